"""Gradient estimators: what is evaluated at an atom."""

from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.estimators.exact import Exact
from tfp_rb.estimators.reinforce import REINFORCE

__all__ = [
  'Estimate',
  'Exact',
  'GradientEstimator',
  'REINFORCE',
]
