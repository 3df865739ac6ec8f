"""Summed values, the best or given ones, and draws from the rest."""

import numpy as np
import tensorflow as tf

from tfp_rb.designs.atoms import draw, make_atoms
from tfp_rb.partitions import check_num_summed

__all__ = ['given', 'top_k']


def top_k(whole, num_summed, num_draws, sampler, seed):
  """Sums the best values and draws the rest.

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
  if sampler.is_independent:  # a distribution without partition will do
    return draw(whole, num_draws, seed)
  return _sum_and_draw(whole, whole.best(1), whole, num_draws, sampler, seed)


def given(whole, values, num_draws, sampler, seed):
  """Sums values that the user names and draws the rest.

  Args:
    whole: The whole `Partition`.
    values: What the user's function returned.
    num_draws: Python `int`.
    sampler: A `Sampler`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    atoms: `Atoms`.
  """
  best = whole.best(1)
  chosen = _without_repeats(whole.excluding(_check_given(values, best)))
  return _sum_and_draw(whole, best, chosen, num_draws, sampler, seed)


def _sum_and_draw(whole, best, chosen, num_draws, sampler, seed):
  """`Atoms` of the values of `chosen` and draws from its rest."""
  num_summed = chosen.values.shape[0]
  values, weights, mean_of_others = chosen.values, chosen.weights, None
  if chosen.has_rest:
    draws = sampler.draw(whole.distribution, chosen, num_draws, seed)
    values = tf.concat([values, draws.values], axis=0)
    weights = tf.concat([weights, chosen.rest_weight * draws.shares], axis=0)
    if draws.mean_of_others is not None:

      def mean_of_others(x):
        of_draws = draws.mean_of_others(x[num_summed:])
        return tf.concat([tf.zeros_like(x[:num_summed]), of_draws], axis=0)

  return make_atoms(whole, best, values, weights, num_summed, mean_of_others)


def _check_given(values, best):
  """Returns the given values as a constant `Tensor`, if they fit."""
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


def _without_repeats(chosen):
  """Takes the weight from values that are named a second time."""
  values, log_weights = chosen.values, chosen.log_weights
  same = tf.equal(values[:, tf.newaxis], values[tf.newaxis])
  same = tf.reduce_all(
    same, axis=list(range(1 + log_weights.shape.rank, same.shape.rank))
  )  # [k, k] + batch_shape
  size, rank = values.shape[0], log_weights.shape.rank
  earlier = np.reshape(
    np.tril(np.ones([size, size], bool), -1), [size, size] + [1] * (rank - 1)
  )
  is_possible = (log_weights > -np.inf)[tf.newaxis]
  is_repeated = tf.reduce_any(same & earlier & is_possible, axis=1)
  nothing = tf.constant(-np.inf, log_weights.dtype)
  return chosen.replace(log_weights=tf.where(is_repeated, nothing, log_weights))
