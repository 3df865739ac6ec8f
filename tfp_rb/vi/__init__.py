# SPDX-License-Identifier: Apache-2.0
"""Fits discrete and mixed surrogate posteriors by variational inference."""

# `_beam` registers its partition when it is imported.
from tfp_rb.vi import _beam  # noqa: F401
from tfp_rb.vi._build import build_factored_surrogate_posterior
from tfp_rb.vi._chain_target import ChainTarget
from tfp_rb.vi._fit import fit_surrogate_posterior
from tfp_rb.vi._loss import monte_carlo_variational_loss

__all__ = [
  'ChainTarget',
  'build_factored_surrogate_posterior',
  'fit_surrogate_posterior',
  'monte_carlo_variational_loss',
]
