"""Families whose values are enumerated: one table of logits each.

Everything is done on the table of (unnormalised) log-probabilities; its
normaliser is shared with the differentiable `log_prob`.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

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
  table = tf.reshape(_shapes.at_least_float32(logits), [-1, num_values])
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

  if num_summed == 0:
    best = tf.zeros([tf.shape(table)[0], 0], table.dtype)
    index, rest_sums = None, None
    log_rest = tf.zeros(batch_shape, table.dtype)
    values = encode(tf.zeros([0, *batch_shape], tf.int32))
  else:
    best, index, rest_sums, log_rest = blocks.split(num_summed)
    log_rest = tf.reshape(log_rest, batch_shape)
    values = encode(unflatten(tf.transpose(index)))

  def sample_rest(num_draws, seed):
    return encode(unflatten(blocks.draw(index, rest_sums, num_draws, seed)))

  return Partition(
    values=values,
    log_weights=unflatten(
      tf.transpose(tf.stop_gradient(blocks.normalised(best)))
    ),
    log_rest=log_rest,
    sample_rest=sample_rest if num_summed < num_values else None,
    num_values=num_values,
    log_prob=log_prob,
    score_norm=score_norm,
  )


def _log_of_probs(probs):
  """`log(probs)` whose gradient is 0, not NaN, where a probability is 0."""
  possible = probs > 0.0
  log_probs = tf.math.log(tf.where(possible, probs, tf.ones_like(probs)))
  return tf.where(possible, log_probs, tf.constant(-np.inf, probs.dtype))


def _table_of(distribution):
  """Logits of a distribution that is given by `logits` or by `probs`."""
  if distribution.logits is not None:
    return tf.convert_to_tensor(distribution.logits)
  return _log_of_probs(tf.convert_to_tensor(distribution.probs))


@RegisterPartition(tfd.Categorical)
def partition_categorical(q, num_summed):
  return partition_table(
    _table_of(q),
    num_summed,
    encode=lambda index: tf.cast(index, q.dtype),
    decode=_to_index,
  )


@RegisterPartition(tfd.OneHotCategorical)
def partition_one_hot_categorical(q, num_summed):
  table = _table_of(q)
  return partition_table(
    table,
    num_summed,
    encode=lambda index: tf.one_hot(index, table.shape[-1], dtype=q.dtype),
    decode=lambda z: tf.argmax(z, axis=-1, output_type=tf.int32),
  )


@RegisterPartition(tfd.Bernoulli)
def partition_bernoulli(q, num_summed):
  if q.logits is not None:
    logits = _shapes.at_least_float32(tf.convert_to_tensor(q.logits))
    table = [-tf.nn.softplus(logits), -tf.nn.softplus(-logits)]
  else:
    probs = _shapes.at_least_float32(tf.convert_to_tensor(q.probs))
    table = [_log_of_probs(1.0 - probs), _log_of_probs(probs)]
  return partition_table(
    tf.stack(table, axis=-1),
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
    _table_of(q),
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
  distance = _shapes.at_least_float32(distance)
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
