"""Variational inference with discrete and mixed surrogate posteriors."""

from tfp_rb.vi._build import build_factored_surrogate_posterior
from tfp_rb.vi._fit import fit_surrogate_posterior
from tfp_rb.vi._loss import monte_carlo_variational_loss

__all__ = [
  'build_factored_surrogate_posterior',
  'fit_surrogate_posterior',
  'monte_carlo_variational_loss',
]
