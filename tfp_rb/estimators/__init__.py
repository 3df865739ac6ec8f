# SPDX-License-Identifier: Apache-2.0
"""Defines the gradient estimators, each with its gradient `g` at an atom."""

from tfp_rb.estimators.arms import ARMS
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.estimators.darn import DARN
from tfp_rb.estimators.disarm import DisARM
from tfp_rb.estimators.double_control_variate import DoubleControlVariate
from tfp_rb.estimators.exact import Exact
from tfp_rb.estimators.gumbel_softmax import GumbelSoftmax
from tfp_rb.estimators.local_expectation import local_expectation
from tfp_rb.estimators.muprop import MuProp
from tfp_rb.estimators.nvil import NVIL
from tfp_rb.estimators.pooled import pooled
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.estimators.rebar import REBAR
from tfp_rb.estimators.reinforce import REINFORCE
from tfp_rb.estimators.reinmax import ReinMax
from tfp_rb.estimators.relax import RELAX
from tfp_rb.estimators.stein import Stein
from tfp_rb.estimators.temperature import AnnealedTemperature

__all__ = [
  'ARMS',
  'AnnealedTemperature',
  'DARN',
  'DisARM',
  'DoubleControlVariate',
  'Estimate',
  'Exact',
  'GradientEstimator',
  'GumbelSoftmax',
  'MuProp',
  'NVIL',
  'REBAR',
  'REINFORCE',
  'RELAX',
  'ReinMax',
  'Stein',
  'local_expectation',
  'pooled',
  'rao_blackwellize',
]
