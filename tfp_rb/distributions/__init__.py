# SPDX-License-Identifier: Apache-2.0
"""Provides distributions that TFP lacks: chains over finitely many states."""

# This module registers divergences when it is imported.
from tfp_rb.distributions import divergences  # noqa: F401
from tfp_rb.distributions.categorical_chain import CategoricalChain

__all__ = ['CategoricalChain']
