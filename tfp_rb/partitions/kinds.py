# SPDX-License-Identifier: Apache-2.0
"""Registers the kind of values for families that have no partition.

A model may contain such a family: `vi.build_factored_surrogate_posterior`
approximates its posterior with a family that has a partition.
"""

import tensorflow_probability as tfp

from tfp_rb.partitions.registry import register

__all__: list[str] = []

tfd = tfp.distributions

# `None` means that there is no partition.
register(tfd.ProbitBernoulli, kind='bits')(None)
register(tfd.StoppingRatioLogistic, kind='labels')(None)
register(tfd.PoissonLogNormalQuadratureCompound, kind='counts')(None)
register(tfd.ZeroInflatedNegativeBinomial, kind='counts')(None)
