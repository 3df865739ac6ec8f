"""Rao-Blackwellized gradients of expectations over discrete distributions.

Imported when they are first used: `tfp_rb.diagnostics`, `tfp_rb.models` and
`tfp_rb.datasets`.
"""

import importlib
import types
import typing

from tfp_rb import baselines, distributions, samplers, testing, vi
from tfp_rb._comparisons import (
  cross_entropy,
  entropy,
  kl_divergence,
  log_prob_at,
)
from tfp_rb._expectation import expectation
from tfp_rb.designs import Atoms
from tfp_rb.estimators import (
  ARMS,
  DARN,
  NVIL,
  REBAR,
  REINFORCE,
  RELAX,
  AnnealedTemperature,
  DisARM,
  DoubleControlVariate,
  Estimate,
  Exact,
  GradientEstimator,
  GumbelSoftmax,
  MuProp,
  ReinMax,
  Stein,
  local_expectation,
  pooled,
  rao_blackwellize,
)
from tfp_rb.partitions import Partition, RegisterPartition, partition
from tfp_rb.version import __version__

__all__ = [
  'ARMS',
  'AnnealedTemperature',
  'Atoms',
  'DARN',
  'DisARM',
  'DoubleControlVariate',
  'Estimate',
  'Exact',
  'GradientEstimator',
  'GumbelSoftmax',
  'MuProp',
  'NVIL',
  'Partition',
  'REBAR',
  'REINFORCE',
  'RELAX',
  'RegisterPartition',
  'ReinMax',
  'Stein',
  '__version__',
  'baselines',
  'cross_entropy',
  'distributions',
  'entropy',
  'expectation',
  'kl_divergence',
  'local_expectation',
  'log_prob_at',
  'partition',
  'pooled',
  'rao_blackwellize',
  'samplers',
  'testing',
  'vi',
]

# Type checkers are to know what `__getattr__` imports.
if typing.TYPE_CHECKING:
  from tfp_rb import datasets as datasets
  from tfp_rb import diagnostics as diagnostics
  from tfp_rb import models as models


def __getattr__(name: str) -> types.ModuleType:
  # Imported when asked for: the core does without Keras.
  if name in ('datasets', 'diagnostics', 'models'):
    return importlib.import_module(f'tfp_rb.{name}')
  raise AttributeError(f'`tfp_rb` has no attribute `{name}`.')
