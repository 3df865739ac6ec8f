# SPDX-License-Identifier: Apache-2.0
"""Measures the variance of gradients, and suggests an estimator.

Every variance here is a total variance: the sum of the variances of all
components of a gradient (the trace of its covariance).
"""

from tfp_rb.diagnostics._bounds import VarianceBound, variance_bounds
from tfp_rb.diagnostics._compare import Comparison, compare
from tfp_rb.diagnostics._evaluations import evaluations_per_row
from tfp_rb.diagnostics._mass import rest_mass
from tfp_rb.diagnostics._moments import GradientMoments, exact_moments
from tfp_rb.diagnostics._pairs import sampled_moments
from tfp_rb.diagnostics._plots import (
  plot_bounds,
  plot_evaluations,
  plot_mass,
  plot_variance,
)
from tfp_rb.diagnostics._suggest import Option, Suggestion, suggest
from tfp_rb.diagnostics.callback import GradientVariance

__all__ = [
  'Comparison',
  'GradientMoments',
  'GradientVariance',
  'Option',
  'Suggestion',
  'VarianceBound',
  'compare',
  'evaluations_per_row',
  'exact_moments',
  'plot_bounds',
  'plot_evaluations',
  'plot_mass',
  'plot_variance',
  'rest_mass',
  'sampled_moments',
  'suggest',
  'variance_bounds',
]
