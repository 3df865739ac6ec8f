"""Rao-Blackwellized gradients of expectations over discrete distributions."""

from tfp_rb import baselines, testing
from tfp_rb._atoms import Atoms
from tfp_rb._expectation import expectation
from tfp_rb._rao_blackwell import rao_blackwellize
from tfp_rb.estimators import REINFORCE, Estimate, Exact, GradientEstimator
from tfp_rb.partitions import Partition, RegisterPartition, partition
from tfp_rb.version import __version__

__all__ = [
  'Atoms',
  'Estimate',
  'Exact',
  'GradientEstimator',
  'Partition',
  'REINFORCE',
  'RegisterPartition',
  '__version__',
  'baselines',
  'expectation',
  'partition',
  'rao_blackwellize',
  'testing',
]
