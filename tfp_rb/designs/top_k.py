# SPDX-License-Identifier: Apache-2.0
"""Sums over the best values, or over given ones, and draws from the rest."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_rb.designs.atoms import Atoms, Whole, draw, make_atoms
from tfp_rb.designs.samplers import Sampler
from tfp_rb.internal.types import StatelessSeed
from tfp_rb.partitions import Partition, check_num_summed

__all__ = ['given', 'top_k']


def top_k(
  whole: Whole,
  num_summed: int,
  num_draws: int,
  sampler: Sampler,
  seed: StatelessSeed,
) -> Atoms:
  """Sums the best values and draws from the rest.

  Args:
    whole: The whole `Partition`.
    num_summed: Python `int`.
    num_draws: Python `int`.
    sampler: A `Sampler`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    atoms: `Atoms`.
  """
  if num_summed:
    best = check_num_summed(whole.best(num_summed), num_summed)
    return _sum_and_draw(whole, best, best, num_draws, sampler, seed)
  if sampler.is_independent:
    # This path also serves distributions without a registered partition.
    return draw(whole, num_draws, seed)
  return _sum_and_draw(whole, whole.best(1), whole, num_draws, sampler, seed)


def given(
  whole: Whole,
  values: Any,
  num_draws: int,
  sampler: Sampler,
  seed: StatelessSeed,
) -> Atoms:
  """Sums values that the user chooses and draws from the rest.

  Args:
    whole: The whole `Partition`.
    values: The result of the user's function.
    num_draws: Python `int`.
    sampler: A `Sampler`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    atoms: `Atoms`.
  """
  best = whole.best(1)  # This value replaces values of weight 0.
  chosen = _without_repeats(whole.excluding(_check_given(values, best)))
  return _sum_and_draw(whole, best, chosen, num_draws, sampler, seed)


def _sum_and_draw(
  whole: Whole,
  best: Partition,
  chosen: Partition,
  num_draws: int,
  sampler: Sampler,
  seed: StatelessSeed,
) -> Atoms:
  """Returns `Atoms` of the values of `chosen` and of draws from its rest.

  This is equation (8) of Liu et al. (2019), with any number of draws.
  """
  num_summed = chosen.values.shape[0]
  values, weights = chosen.values, chosen.weights
  if not chosen.has_rest:
    return make_atoms(whole, best, values, weights, num_summed)
  draws = sampler.draw(whole.distribution, chosen, num_draws, seed)
  values = tf.concat([values, draws.values], axis=0)
  weights = tf.concat([weights, chosen.rest_weight * draws.shares], axis=0)
  of_draws = draws.mean_of_others
  if of_draws is None:
    return make_atoms(whole, best, values, weights, num_summed)

  def mean_of_others(x: tf.Tensor) -> tf.Tensor:
    # The entries of summed atoms are never read.
    zeros = tf.zeros_like(x[:num_summed])
    return tf.concat([zeros, of_draws(x[num_summed:])], axis=0)

  return make_atoms(whole, best, values, weights, num_summed, mean_of_others)


def _check_given(values: Any, best: Partition) -> tf.Tensor:
  """Returns the given values as a constant `Tensor`, or raises."""
  values = tf.convert_to_tensor(values, dtype_hint=best.values.dtype)
  expected = [None, *best.values.shape[1:]]
  if not values.shape.is_compatible_with(expected) or values.shape[0] is None:
    raise ValueError(
      '`atoms` must return values of shape [k] + batch_shape + event_shape, '
      f'{tf.TensorShape(expected)} with a static k; got shape {values.shape}. '
      'Broadcast them to the batch.'
    )
  if values.dtype.is_floating and best.values.dtype.is_integer:
    raise TypeError(
      f'`atoms` must return values of {best.values.dtype.name}, the dtype of '
      f'the distribution; got {values.dtype.name}. Cast them.'
    )
  return tf.stop_gradient(tf.cast(values, best.values.dtype))


def _without_repeats(chosen: Partition) -> Partition:
  """Sets the weight of a value to 0 if the list already contains it."""
  values, log_weights = chosen.values, chosen.log_weights
  size, rank = values.shape[0], log_weights.shape.rank
  same = tf.equal(values[:, tf.newaxis], values[tf.newaxis])
  same = tf.reduce_all(
    same, axis=list(range(1 + rank, same.shape.rank))
  )  # [k, k] + batch_shape
  earlier = np.reshape(
    np.tril(np.ones([size, size], bool), -1), [size, size] + [1] * (rank - 1)
  )
  # A partition may list one placeholder for all impossible values. The
  # placeholder may equal a possible value, and must not take its weight.
  is_possible = (log_weights > -np.inf)[tf.newaxis]
  is_repeated = tf.reduce_any(same & earlier & is_possible, axis=1)
  nothing = tf.constant(-np.inf, log_weights.dtype)
  return chosen.replace(log_weights=tf.where(is_repeated, nothing, log_weights))
