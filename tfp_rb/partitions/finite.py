"""Families whose values are enumerated: one table of logits each.

Everything is done on the table of (unnormalised) log-probabilities; its
normaliser is shared with the differentiable `log_prob`.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb import _logits
from tfp_rb.partitions import _shapes
from tfp_rb.partitions._blocks import BlockedTable
from tfp_rb.partitions.base import Partition, RegisterPartition

__all__ = ['partition_table']

tfd = tfp.distributions


def partition_table(logits, num_summed, encode, decode):
  """Returns the `Partition` of values that are numbered `0, ..., K - 1`.

  Args:
    logits: Differentiable `Tensor` of shape `batch_shape + [K]`, unnormalised
      log-probabilities; `K` is static. `-inf` marks impossible values.
    num_summed: Python `int`.
    encode: Callable, indices `[n] + batch_shape` to values.
    decode: Callable, values to indices; inverse of `encode`.

  Returns:
    partition: A `Partition`.
  """
  num_values = logits.shape[-1]
  if num_values is None:
    raise ValueError(
      'The number of values of `distribution` must be known statically, but '
      f'its logits have shape {logits.shape}. Set their last dimension.'
    )
  num_summed = min(num_summed, num_values)
  batch_shape = [
    tf.shape(logits)[i] if n is None else n
    for i, n in enumerate(logits.shape[:-1])
  ]
  table = tf.reshape(_logits.at_least_float32(logits), [-1, num_values])
  blocks = BlockedTable(table)

  def unflatten(x):  # [n, rows] -> [n] + batch_shape
    return tf.reshape(x, [_shapes.leading(x), *batch_shape])

  def log_prob(values):
    index = decode(values)  # [m] + batch_shape
    index = tf.reshape(index, [_shapes.leading(index), -1])
    chosen = tf.gather(table, tf.transpose(index), batch_dims=1)
    return unflatten(tf.transpose(blocks.normalised(chosen)))

  def score_norm(values):  # |e_z - q|^2
    collision = unflatten(tf.transpose(blocks.collision()))
    return 1.0 - 2.0 * tf.exp(log_prob(values)) + collision

  def partition_of(
    values, log_weights, index, rest_sums, log_rest, is_best=True
  ):
    def sample_rest(num_draws, seed):
      return encode(unflatten(blocks.draw(index, rest_sums, num_draws, seed)))

    # Given values may be repeated: then they are not all, however many.
    is_all = is_best and values.shape[0] == num_values
    return Partition(
      values=values,
      log_weights=tf.stop_gradient(log_weights),
      log_rest=tf.reshape(log_rest, batch_shape),
      sample_rest=None if is_all else sample_rest,
      num_values=num_values,
      log_prob=log_prob,
      score_norm=score_norm,
      excluding=excluding,
    )

  def excluding(values):
    index = tf.clip_by_value(decode(values), 0, num_values - 1)
    listed = encode(index)
    # What is in no table has no mass, and excludes nothing.
    is_listed = _shapes.is_same_event(listed, values, index.shape.rank)
    index = tf.where(is_listed, index, -1)
    index = tf.transpose(tf.reshape(index, [_shapes.leading(index), -1]))
    rest_sums, log_rest = blocks.exclude(index)
    log_weights = tf.where(
      is_listed, log_prob(listed), tf.constant(-np.inf, table.dtype)
    )
    return partition_of(
      listed, log_weights, index, rest_sums, log_rest, is_best=False
    )

  if num_summed == 0:
    nothing = tf.zeros([0, *batch_shape], tf.int32)
    return partition_of(
      encode(nothing),
      tf.cast(nothing, table.dtype),
      index=None,
      rest_sums=None,
      log_rest=tf.zeros(batch_shape, table.dtype),
    )
  best, index, rest_sums, log_rest = blocks.split(num_summed)
  return partition_of(
    encode(unflatten(tf.transpose(index))),
    unflatten(tf.transpose(blocks.normalised(best))),
    index,
    rest_sums,
    log_rest,
  )


@RegisterPartition(tfd.Categorical)
def partition_categorical(q, num_summed):
  return partition_table(
    _logits.categorical_logits(q),
    num_summed,
    encode=lambda index: tf.cast(index, q.dtype),
    decode=_to_index,
  )


@RegisterPartition(tfd.OneHotCategorical)
def partition_one_hot_categorical(q, num_summed):
  table = _logits.categorical_logits(q)
  return partition_table(
    table,
    num_summed,
    encode=lambda index: tf.one_hot(index, table.shape[-1], dtype=q.dtype),
    decode=lambda z: tf.argmax(z, axis=-1, output_type=tf.int32),
  )


@RegisterPartition(tfd.Bernoulli)
def partition_bernoulli(q, num_summed):
  return partition_table(
    _logits.bernoulli_log_probs(q),
    num_summed,
    encode=lambda index: tf.cast(index, q.dtype),
    decode=_to_index,
  )


@RegisterPartition(tfd.FiniteDiscrete)
def partition_finite_discrete(q, num_summed):
  outcomes = tf.convert_to_tensor(q.outcomes)

  def decode(z):
    distance = tf.abs(z[..., tf.newaxis] - outcomes)
    return tf.argmin(distance, axis=-1, output_type=tf.int32)

  return partition_table(
    _logits.categorical_logits(q),
    num_summed,
    encode=lambda index: tf.gather(outcomes, index),
    decode=decode,
  )


@RegisterPartition(tfd.OrderedLogistic)
def partition_ordered_logistic(q, num_summed):
  # Of the distance to the cutpoints `c`: q(z) = s(c_z) - s(c_{z-1}), written as
  # s(c_z) s(-c_{z-1}) (1 - exp(c_{z-1} - c_z)), s the sigmoid, since TFP's own
  # differences of probabilities underflow, and their gradients are NaN.
  distance = tf.convert_to_tensor(q.cutpoints)
  distance = distance - tf.convert_to_tensor(q.loc)[..., tf.newaxis]
  distance = _logits.at_least_float32(distance)
  step = distance[..., 1:] - distance[..., :-1]
  is_step = step > 0.0
  log_step = tf.math.log(-tf.math.expm1(-tf.where(is_step, step, 1.0)))
  log_step = tf.where(is_step, log_step, -np.inf)
  below, above = tf.math.log_sigmoid(distance), tf.math.log_sigmoid(-distance)
  inner = below[..., 1:] + above[..., :-1] + log_step
  log_probs = [below[..., :1], inner, above[..., -1:]]
  return partition_table(
    tf.concat(log_probs, axis=-1),
    num_summed,
    encode=lambda index: tf.cast(index, q.dtype),
    decode=_to_index,
  )


@RegisterPartition(tfd.BetaBinomial)
def partition_beta_binomial(q, num_summed):
  total_count = tf.convert_to_tensor(q.total_count)
  static_count = tf.get_static_value(total_count)
  if static_count is None:
    raise ValueError(
      '`total_count` of a `BetaBinomial` must be known statically, since all '
      f'its values are enumerated, but is {total_count}. Pass a constant.'
    )
  # A table of `0, ..., max(total_count)`; what lies beyond a row's own count
  # is impossible. (`log_prob` there is NaN, so it must not be asked for.)
  largest = int(np.max(static_count))
  batch_shape = _shapes.batch_shape(q)
  counts = tf.broadcast_to(total_count, batch_shape)
  z = tf.reshape(
    tf.range(largest + 1, dtype=q.dtype), [-1] + [1] * len(batch_shape)
  )
  log_probs = tf.where(
    z <= counts,
    q.log_prob(tf.minimum(z, counts)),
    tf.constant(-np.inf, q.dtype),
  )
  order = [*range(1, len(batch_shape) + 1), 0]
  return partition_table(
    tf.transpose(log_probs, order),
    num_summed,
    encode=lambda index: tf.cast(index, q.dtype),
    decode=_to_index,
  )


def _to_index(z):
  # Rounded, since a shifted float need not come back as the same integer.
  z = tf.convert_to_tensor(z)
  return tf.cast(tf.round(z) if z.dtype.is_floating else z, tf.int32)
