# SPDX-License-Identifier: Apache-2.0
"""Sums over all values of a distribution: what an unbiased estimate means."""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tfp_rb.designs import make_atoms, needs_rows, serve_rows
from tfp_rb.internal.types import Problem, TensorLike
from tfp_rb.partitions import partition_of

__all__ = ['exact_reference']

_NEGLIGIBLE = 1e-13  # the mass of a countable support that may be left out


def exact_reference(
  problem: Problem,
  parameters: Sequence[TensorLike],
  most_values: int = 2**16,
  takes_rows: bool = False,
) -> tuple[np.ndarray, list[np.ndarray]]:
  """Returns the explicit sum `sum_z q(z) f(z)` and its gradients.

  A countable support is cut where the mass of the rest is below `1e-13`.

  Args:
    problem: As in `enumerate_outcomes`.
    parameters: List of `Tensor`s.
    most_values: Python `int`, the largest number of values that are summed.
    takes_rows: Python `bool`, whether `f` is called as `f(z, rows)`.

  Returns:
    value: Array of `batch_shape`.
    gradients: List of arrays with the shapes of `parameters`.
  """
  parameters = [tf.convert_to_tensor(p) for p in parameters]
  with tf.GradientTape() as tape:
    tape.watch(parameters)
    f, distribution = problem(*parameters)
    whole = partition_of(distribution)
    num_values = whole.num_values
    num_summed = 64 if num_values is None else min(num_values, most_values)
    every = whole.best(num_summed)
    while num_summed < most_values and np.max(every.rest_weight) > _NEGLIGIBLE:
      num_summed *= 2
      every = whole.best(num_summed)
    left = np.max(every.rest_weight)
    if left > _NEGLIGIBLE:
      raise ValueError(
        '`problem` must return a distribution whose mass lies on at most '
        f'{most_values} values; got a mass of {left:.1e} on other values. '
        'Choose a more concentrated distribution.'
      )
    atoms = make_atoms(whole, every, every.values, every.weights, num_summed)
    # The weights are constants. Only `log_prob` has a gradient.
    probs = tf.exp(atoms.log_prob)
    # `make_atoms` replaced impossible values, which must not count twice.
    probs = tf.where(atoms.weights > 0.0, probs, tf.zeros_like(probs))
    if takes_rows or needs_rows(f):
      f = serve_rows(f, whole.batch_shape)
    value = f(atoms.values)
    value = tf.reduce_sum(tf.cast(probs, value.dtype) * value, axis=0)
  gradients = tape.gradient(value, parameters, unconnected_gradients='zero')
  return value.numpy(), [g.numpy() for g in gradients]
