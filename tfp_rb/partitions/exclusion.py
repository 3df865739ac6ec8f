"""Partitions into given values and all others."""

import numpy as np
import tensorflow as tf

from tfp_rb import _random
from tfp_rb.partitions.base import Partition, find_partition

__all__ = ['exclude']

# The most values that are listed where a family has no way of its own.
_MOST_VALUES = 2**16


def exclude(distribution, partition, values):
  """Splits the support into `values`, whatever they are, and the rest.

  Args:
    distribution: The distribution.
    partition: A `Partition` of it.
    values: `Tensor` of shape `[n] + batch_shape + event_shape`. A value that
      is repeated is excluded once, but listed with its weight each time.

  Returns:
    partition: A `Partition` with these values.
  """
  if partition.excluding is not None:
    return partition.excluding(values)
  num_values = partition.num_values
  if num_values is None or num_values > _MOST_VALUES:
    found = 'infinitely many' if num_values is None else num_values
    raise NotImplementedError(
      'Values other than the best cannot be excluded from '
      f'`{type(distribution).__name__}`: its partition has no `excluding`, and '
      f'its {found} values are too many to list. Add it to the `Partition` '
      'that is registered, or use `num_summed` and `samplers.IID()`.'
    )
  return _exclude_from_list(find_partition(distribution, num_values), values)


def _exclude_from_list(every, values):
  """As `exclude`, where `every` lists the whole support."""
  batch_rank = every.log_rest.shape.rank
  equal = values[:, tf.newaxis] == every.values[tf.newaxis]
  equal = tf.reduce_all(
    equal, axis=list(range(2 + batch_rank, equal.shape.rank))
  )
  masses = every.weights
  masses = tf.where(tf.reduce_any(equal, axis=0), tf.zeros_like(masses), masses)
  last = [*range(1, batch_rank + 1), 0]
  rows = tf.reshape(tf.transpose(masses, last), [-1, masses.shape[0]])

  def take(index):  # [n] + batch_shape -> [n] + batch_shape + event_shape
    listed = tf.transpose(
      every.values, [*last, *range(batch_rank + 1, every.values.shape.rank)]
    )
    taken = tf.gather(listed, tf.transpose(index, last), batch_dims=batch_rank)
    order = [batch_rank, *range(batch_rank)]
    order += range(batch_rank + 1, taken.shape.rank)
    return tf.transpose(taken, order)

  def sample_rest(num_draws, seed):
    index = _random.draw_index(rows, num_draws, seed)
    index = tf.reshape(
      index, tf.concat([[num_draws], tf.shape(every.log_rest)], axis=0)
    )
    return take(index)

  return Partition(
    # As listed, since the gradient by a shift passes through the values.
    values=take(tf.argmax(tf.cast(equal, tf.int32), axis=1)),
    log_weights=tf.where(
      tf.reduce_any(equal, axis=1),
      tf.stop_gradient(every.log_prob(values)),
      tf.constant(-np.inf, every.log_weights.dtype),
    ),
    log_rest=tf.math.log(tf.reduce_sum(masses, axis=0)),
    sample_rest=sample_rest,
    num_values=every.num_values,
    log_prob=every.log_prob,
    score_norm=every.score_norm,
    excluding=lambda values: _exclude_from_list(every, values),
  )
