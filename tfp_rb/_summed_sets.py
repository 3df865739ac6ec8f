"""Which atoms are summed, where that is not simply the `k` best."""

import numpy as np
import tensorflow as tf

from tfp_rb import _random
from tfp_rb._atoms import draw_rest, make_atoms, with_event_rank
from tfp_rb.partitions._shapes import take
from tfp_rb.partitions.base import find_partition
from tfp_rb.partitions.exclusion import exclude

__all__ = ['atoms_of_budget', 'partition_into']


def partition_into(distribution, best, values):
  """The `Partition` into values that the user names, repeats without weight."""
  values = tf.convert_to_tensor(values, dtype_hint=best.values.dtype)
  expected = [None, *best.values.shape[1:]]
  if not values.shape.is_compatible_with(expected) or values.shape[0] is None:
    raise ValueError(
      '`atoms` must return values of shape [k] + batch_shape + event_shape, '
      f'{tf.TensorShape(expected)} with a static k, but returned shape '
      f'{values.shape}. Broadcast them to the batch.'
    )
  if values.dtype.is_floating and best.values.dtype.is_integer:
    raise TypeError(
      f'`atoms` must return values of {best.values.dtype.name}, the dtype of '
      f'the distribution, but returned {values.dtype.name}. Cast them.'
    )
  values = tf.stop_gradient(tf.cast(values, best.values.dtype))
  chosen = exclude(distribution, best, values)
  values = chosen.values
  same = values[:, tf.newaxis] == values[tf.newaxis]
  same = tf.reduce_all(
    same, axis=list(range(1 + chosen.log_weights.shape.rank, same.shape.rank))
  )
  num_values = values.shape[0]
  earlier = tf.reshape(
    tf.linalg.band_part(tf.ones([num_values, num_values], tf.int32), -1, 0)
    - tf.eye(num_values, dtype=tf.int32)
    > 0,
    [num_values, num_values] + [1] * (chosen.log_weights.shape.rank - 1),
  )
  is_possible = (chosen.log_weights > -np.inf)[tf.newaxis]
  is_repeated = tf.reduce_any(same & earlier & is_possible, axis=1)
  nothing = tf.constant(-np.inf, chosen.log_weights.dtype)
  return chosen._replace(
    log_weights=tf.where(is_repeated, nothing, chosen.log_weights)
  )


def atoms_of_budget(distribution, budget, seed):
  """`Atoms` of `budget` evaluations, split for each row by Proposition 2."""
  best = find_partition(distribution, budget)
  num_atoms = best.values.shape[0]
  if best.sample_rest is None:
    return make_atoms(best, best.values, best.weights, num_atoms)
  # Mass of what is left after k = 0, ..., N - 1 sums: positive terms only.
  weights, rest = best.weights, best.rest_weight
  left = tf.cumsum(weights, axis=0, reverse=True) + rest
  slots = tf.reshape(tf.range(num_atoms), [-1] + [1] * (weights.shape.rank - 1))
  bound = left / tf.cast(num_atoms - slots, left.dtype)
  num_summed = tf.argmin(bound, axis=0, output_type=tf.int32)
  num_summed = tf.where(rest > 0.0, num_summed, num_atoms)
  is_summed = slots < num_summed  # [N] + batch_shape
  nothing = tf.zeros_like(weights)

  choice_seed, rest_seed = _random.split_seed(seed, n=2)

  def sample_rest(num_draws, seed):
    """Draws one of the unsummed among the N best, or else beyond them."""
    beyond = best.sample_rest(num_draws, seed)
    masses = tf.concat(
      [tf.where(is_summed, nothing, weights), rest[tf.newaxis]], axis=0
    )
    masses = tf.transpose(
      tf.reshape(masses, [num_atoms + 1, -1])
    )  # [rows, N + 1]
    index = _random.draw_index(masses, num_draws, choice_seed)
    index = tf.reshape(
      index, tf.concat([[num_draws], tf.shape(num_summed)], axis=0)
    )
    index = tf.ensure_shape(index, [num_draws, *num_summed.shape])
    chosen = take(best.values, tf.minimum(index, num_atoms - 1))
    return tf.where(with_event_rank(index < num_atoms, beyond), chosen, beyond)

  split = best._replace(sample_rest=sample_rest)
  draws = draw_rest(split, num_summed, num_atoms, rest_seed)
  num_draws = tf.cast(tf.maximum(num_atoms - num_summed, 1), left.dtype)
  mass = tf.reduce_sum(tf.where(is_summed, nothing, weights), axis=0) + rest
  return make_atoms(
    best,
    tf.where(with_event_rank(is_summed, draws), best.values, draws),
    tf.where(is_summed, weights, mass / num_draws),
    num_summed,
  )
