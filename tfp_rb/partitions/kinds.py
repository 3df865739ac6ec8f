"""Families without a partition, of which only the kind of values is known.

A model may contain them: `vi.build_factored_surrogate_posterior` approximates
them by a family that has a partition.
"""

import tensorflow_probability as tfp

from tfp_rb.partitions.base import register

__all__: list[str] = []

tfd = tfp.distributions

register(tfd.ProbitBernoulli, kind='bits')(None)
register(tfd.StoppingRatioLogistic, kind='labels')(None)
register(tfd.PoissonLogNormalQuadratureCompound, kind='counts')(None)
register(tfd.ZeroInflatedNegativeBinomial, kind='counts')(None)
