# SPDX-License-Identifier: Apache-2.0
"""Estimates gradients of expectations over discrete distributions.

`tfp_rb.datasets`, `tfp_rb.diagnostics` and `tfp_rb.models` are imported when
you first use them.
"""

import importlib as _importlib
import types as _types
import typing as _typing

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

# These imports tell type checkers what `__getattr__` imports.
if _typing.TYPE_CHECKING:
  from tfp_rb import datasets as datasets
  from tfp_rb import diagnostics as diagnostics
  from tfp_rb import models as models


_IMPORTED_ON_FIRST_USE = ('datasets', 'diagnostics', 'models')


def __dir__() -> list[str]:
  return sorted([*__all__, *_IMPORTED_ON_FIRST_USE])


def __getattr__(name: str) -> _types.ModuleType:
  # Import these modules on first use, because the core does not need Keras.
  if name in _IMPORTED_ON_FIRST_USE:
    return _importlib.import_module(f'tfp_rb.{name}')
  raise AttributeError(f'module `tfp_rb` has no attribute `{name}`')
