# SPDX-License-Identifier: Apache-2.0
"""Computes the mass that remains to be sampled after the best values."""

import tensorflow as tf

from tfp_rb.internal.types import Distribution
from tfp_rb.partitions.registry import partition

__all__ = ['rest_mass']


def rest_mass(distribution: Distribution, num_summed: int) -> tf.Tensor:
  """Returns `q(rest)` after the best `0, 1, ..., num_summed` values are summed.

  Small masses are accurate, because they are sums of the smallest
  probabilities and not differences from 1.

  Args:
    distribution: A discrete `tfp.distributions.Distribution` with a registered
      partition.
    num_summed: Python `int`, the largest `k`; at most the number of values.

  Returns:
    masses: `Tensor` of shape `[num_summed + 1] + batch_shape`; the first is 1.

  Raises:
    TypeError: `distribution` is not a discrete distribution, or `num_summed`
      is not an `int`.
    ValueError: `num_summed` is negative or exceeds the number of values.
    NotImplementedError: No partition is registered for the distribution.

  #### Examples

  ```python
  q = tfp.distributions.Poisson(rate=3.5)
  tfp_rb.diagnostics.rest_mass(q, 3)  # ==> [1. 0.7842 0.5954 0.4104]
  ```
  """
  best = partition(distribution, num_summed)
  # List the weights, the most probable value first, and append the rest.
  masses = tf.concat([best.weights, best.rest_weight[tf.newaxis]], axis=0)
  return tf.cumsum(masses, axis=0, reverse=True)
