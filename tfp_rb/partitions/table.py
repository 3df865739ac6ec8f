# SPDX-License-Identifier: Apache-2.0
"""Partitions families whose values are enumerated in a table of logits."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import dtypes, logspace, shapes
from tfp_rb.partitions.base import Partition
from tfp_rb.partitions.blocks import BlockedTable
from tfp_rb.partitions.registry import register
from tfp_rb.partitions.relaxation import Relaxation

__all__ = [
  'BernoulliTable',
  'FiniteTable',
  'IntegerTable',
  'OneHotTable',
  'Table',
]

tfd = tfp.distributions


class Table(Partition):
  """Partitions values that are numbered `0, ..., K - 1`, by their logits.

  All partitions of a distribution share one `BlockedTable`, whose normaliser
  is also used by the differentiable `log_prob`. A subclass maps numbers to
  values with `encode`, and back with `decode`.
  """

  num_uniforms = 2  # The first chooses a block, the second an entry in it.

  def __init__(self, distribution, logits):
    """Makes the partition with `k = 0`.

    Args:
      distribution: The distribution.
      logits: Differentiable `Tensor` of shape `batch_shape + [K]`, unnormalised
        log-probabilities; `K` is static. `-inf` marks impossible values.
    """
    self.distribution = distribution
    num_values = logits.shape[-1]
    if not num_values:
      raise ValueError(
        'The number of values of `distribution` must be known statically and '
        f'positive; got logits of shape {logits.shape}. Set their last '
        'dimension.'
      )
    self._check_dtype(num_values)
    # The 8 bits of bfloat16 are too few to make masses sum to 1.
    logits = dtypes.at_least_float32(logits)
    batch_shape = shapes.as_list(logits)[:-1]
    self._num_rows = shapes.size(batch_shape)
    self._table = tf.reshape(logits, [self._num_rows, num_values])
    self._blocks = BlockedTable(self._table)
    self._index = None  # the numbers of `values`, [rows, k]
    self._rest_sums = None  # the mass of the rest by block, [rows, blocks]
    nothing = tf.zeros([0, *batch_shape], tf.int32)
    super().__init__(
      values=self.encode(nothing),
      log_weights=tf.cast(nothing, logits.dtype),
      log_rest=tf.zeros(batch_shape, logits.dtype),
      sample_rest=None,
      num_values=num_values,
    )
    self.has_rest = True

  def encode(self, index):
    """Returns the values of indices `[n] + batch_shape`."""
    raise NotImplementedError

  def decode(self, values):
    """Returns the indices of values; the inverse of `encode`."""
    raise NotImplementedError

  def _check_dtype(self, num_values):
    """Raises if the dtype of the distribution cannot hold its values."""

  def _unflatten(self, x):  # [n, rows] -> [n] + batch_shape
    return shapes.with_batch(x, self.batch_shape)

  def _flatten(self, x, event_rank=0):  # [n] + batch_shape -> [n, rows]
    return shapes.with_batch(x, [self._num_rows], event_rank)

  def best(self, num_summed):
    num_summed = min(num_summed, self.num_values)
    if num_summed == 0:
      return self
    best, index, rest_sums, log_rest = self._blocks.split(num_summed)
    log_weights = self._unflatten(tf.transpose(self._blocks.normalised(best)))
    return self.replace(
      values=self.encode(self._unflatten(tf.transpose(index))),
      log_weights=tf.stop_gradient(log_weights),
      log_rest=tf.reshape(log_rest, self.batch_shape),
      has_rest=num_summed < self.num_values,
      _index=index,
      _rest_sums=rest_sums,
    )

  def log_mode_weight(self):
    return tf.reshape(self._blocks.log_highest(), self.batch_shape)

  def excluding(self, values):
    # A value that is not in the table has no mass and excludes nothing.
    index, listed, is_listed = self._look_up(values)
    log_weights = tf.where(
      is_listed,
      tf.stop_gradient(self._log_prob(listed)),
      tf.constant(-np.inf, self._table.dtype),
    )
    # The index -1 excludes nothing; [rows, n].
    index = tf.transpose(self._flatten(tf.where(is_listed, index, -1)))
    rest_sums, log_rest = self._blocks.exclude(index)
    return self.replace(
      values=listed,
      log_weights=log_weights,
      log_rest=tf.reshape(log_rest, self.batch_shape),
      has_rest=True,  # Even K values may leave a rest if some are repeated.
      _index=index,
      _rest_sums=rest_sums,
    )

  def _look_up(self, values):
    """Returns indices, the values listed there, and whether they match."""
    # An impossible value may decode to a number outside the table.
    index = tf.clip_by_value(self.decode(values), 0, self._table.shape[-1] - 1)
    listed = self.encode(index)
    return index, listed, _is_same_event(listed, values, index.shape.rank)

  def log_prob_anywhere(self, values):
    _, listed, is_listed = self._look_up(values)
    log_prob = self.log_prob(listed)
    return tf.where(is_listed, log_prob, tf.constant(-np.inf, log_prob.dtype))

  def rest_from_uniforms(self, u):
    u = self._flatten(u, event_rank=1)
    index = self._blocks.search(self._index, self._rest_sums, u)
    return self.encode(self._unflatten(index))

  def _log_prob(self, values):
    # Gather entries, to avoid a copy of the logits for each of the m values.
    index = tf.transpose(self._flatten(self.decode(values)))  # [rows, m]
    chosen = tf.gather(self._table, index, batch_dims=1)
    return self._unflatten(tf.transpose(self._blocks.normalised(chosen)))

  def nearest(self, values):
    index = tf.clip_by_value(self.decode(values), 0, self._table.shape[-1] - 1)
    return self.encode(index)

  def score_norm(self, values):
    # The score w.r.t. the logits is e_z - q; its squared norm is
    # 1 - 2 q(z) + sum_i q_i^2.
    collision = self._unflatten(tf.transpose(self._blocks.collision()))
    return 1.0 - 2.0 * tf.exp(self._log_prob(values)) + collision

  def log_probs(self):
    """Returns the normalised table, `batch_shape + [K]`."""
    log_probs = self._blocks.normalised(self._table)
    return tf.reshape(log_probs, [*self.batch_shape, self.num_values])


class IntegerTable(Table):
  """Partitions a distribution on the integers `0, ..., K - 1`."""

  def log_table(self):
    return ('integers', self.num_values), self.log_probs()

  def encode(self, index):
    return tf.cast(index, self.distribution.dtype)

  def decode(self, values):
    # A float that was shifted forth and back may not be an integer.
    values = tf.convert_to_tensor(values)
    if values.dtype.is_floating:
      values = tf.round(values)
    return tf.cast(values, tf.int32)

  def _check_dtype(self, num_values):
    dtype = self.distribution.dtype
    if num_values - 1 > dtypes.largest_integer(dtype):
      raise ValueError(
        f'`dtype` of `{self.name}` must hold the values 0 to {num_values - 1}; '
        f'got {dtype.name}, which holds integers up to '
        f'{dtypes.largest_integer(dtype)}. Use a wider `dtype`.'
      )


@register(tfd.Categorical, kind='labels')
def _of_categorical(q):
  return IntegerTable(q, logspace.categorical_logits(q))


@register(tfd.OneHotCategorical, kind='vectors')
class OneHotTable(Table):
  """Partitions a distribution on one-hot vectors."""

  def __init__(self, q):
    super().__init__(q, logspace.categorical_logits(q))

  def log_table(self):
    return ('vectors', self.num_values), self.log_probs()

  def encode(self, index):
    dtype = self.distribution.dtype
    return tf.one_hot(index, self._table.shape[-1], dtype=dtype)

  def decode(self, values):
    return tf.argmax(values, axis=-1, output_type=tf.int32)

  def mean(self):
    # TFP's `mean` returns `probs` as given, but its `log_prob` normalises them.
    dtype = _parameter_dtype(self.distribution)
    return tf.cast(tf.exp(self.log_probs()), dtype)

  def relaxation(self):
    log_probs = self.log_probs()
    dtype = _parameter_dtype(self.distribution)
    return Relaxation(
      dtype=dtype,
      log_probs=log_probs,
      num_sites=0,
      to_one_hot=lambda z: tf.cast(z, log_probs.dtype),
      to_event=lambda x: tf.cast(x, dtype),
    )


@register(tfd.Bernoulli, kind='bits')
class BernoulliTable(IntegerTable):
  """Partitions a distribution on 0 and 1."""

  def __init__(self, q):
    super().__init__(q, logspace.bernoulli_log_probs(q))

  def relaxation(self):
    # The table of a Bernoulli is normalised from the start.
    log_probs = tf.reshape(self._table, [*self.batch_shape, 2])
    dtype = _parameter_dtype(self.distribution)

    def to_one_hot(z):
      z = tf.cast(z, log_probs.dtype)
      return tf.stack([1.0 - z, z], axis=-1)

    return Relaxation(
      dtype=dtype,
      log_probs=log_probs,
      num_sites=0,
      to_one_hot=to_one_hot,
      to_event=lambda x: tf.cast(x[..., 1], dtype),
    )


@register(tfd.FiniteDiscrete, kind='numbers')
class FiniteTable(Table):
  """Partitions a distribution on given numbers."""

  def __init__(self, q):
    self._outcomes = tf.convert_to_tensor(q.outcomes)
    super().__init__(q, logspace.categorical_logits(q))

  def log_table(self):
    outcomes = tf.get_static_value(self._outcomes)
    if outcomes is None:
      return None
    return ('numbers', tuple(outcomes.tolist())), self.log_probs()

  def encode(self, index):
    return tf.gather(self._outcomes, index)

  def decode(self, values):
    # Take the nearest outcome, because a shift rounds.
    distance = tf.abs(values[..., tf.newaxis] - self._outcomes)
    return tf.argmin(distance, axis=-1, output_type=tf.int32)

  def mean(self):
    # TFP's `mean` uses `probs` as given, but its `log_prob` normalises them.
    probs = tf.exp(self.log_probs())
    dtype = _parameter_dtype(self.distribution)
    outcomes = tf.cast(self._outcomes, probs.dtype)
    return tf.cast(tf.reduce_sum(probs * outcomes, axis=-1), dtype)


@register(tfd.OrderedLogistic, kind='labels')
def _of_ordered_logistic(q):
  # With c_z the distance from `loc` to cutpoint z and s the sigmoid,
  #   q(z) = s(c_z) - s(c_{z-1}) = s(c_z) s(-c_{z-1}) (1 - exp(c_{z-1} - c_z)).
  # The difference, which TFP computes, underflows and has NaN gradients.
  cutpoints, loc = (
    dtypes.at_least_float32(tf.convert_to_tensor(x))
    for x in (q.cutpoints, q.loc)
  )
  distance = cutpoints - loc[..., tf.newaxis]
  step = distance[..., 1:] - distance[..., :-1]  # batch_shape + [K - 2]
  # Equal cutpoints leave no mass between them.
  is_step = step > 0.0
  log_step = tf.math.log(-tf.math.expm1(-tf.where(is_step, step, 1.0)))
  log_step = tf.where(is_step, log_step, -np.inf)
  below, above = tf.math.log_sigmoid(distance), tf.math.log_sigmoid(-distance)
  inner = below[..., 1:] + above[..., :-1] + log_step
  log_probs = [below[..., :1], inner, above[..., -1:]]
  return IntegerTable(q, tf.concat(log_probs, axis=-1))


@register(tfd.BetaBinomial, kind='successes')
def _of_beta_binomial(q):
  total_count = tf.convert_to_tensor(q.total_count)
  static_count = tf.get_static_value(total_count)
  if static_count is None:
    raise ValueError(
      '`total_count` of a `BetaBinomial` must be known statically because all '
      f'values are enumerated; got {total_count}. Pass a constant.'
    )
  # The table holds `0, ..., max(total_count)`. Values above the count of a row
  # are impossible; the mass is not computed there because it would be NaN.
  largest = int(np.max(static_count, initial=0))
  batch_shape = shapes.batch_shape(q)
  float_dtype = dtypes.at_least_float32(total_count).dtype
  counts, alpha, beta = (
    tf.broadcast_to(
      dtypes.at_least_float32(tf.convert_to_tensor(x)), batch_shape
    )[..., tf.newaxis]
    for x in (q.total_count, q.concentration1, q.concentration0)
  )
  z = tf.range(largest + 1, dtype=float_dtype)
  is_possible = z <= counts
  z = tf.minimum(z, counts)
  # log(B(z + a, n - z + b) / B(a, b)) + log of the binomial coefficient,
  # which is 1 / ((n + 1) B(z + 1, n - z + 1)).
  log_probs = (
    tfp.math.lbeta(z + alpha, counts - z + beta)
    - tfp.math.lbeta(alpha, beta)
    - tf.math.log1p(counts)
    - tfp.math.lbeta(z + 1.0, counts - z + 1.0)
  )
  return IntegerTable(
    q, tf.where(is_possible, log_probs, tf.constant(-np.inf, float_dtype))
  )


def _is_same_event(x, y, batch_rank):
  """Returns whether values agree up to rounding, `[n] + batch_shape`.

  A float that was shifted forth and back may have changed.

  Args:
    x: `Tensor` of shape `[n] + batch_shape + event_shape`.
    y: `Tensor` of the same shape.
    batch_rank: Python `int`, the rank of `[n] + batch_shape`.
  """
  if x.dtype.is_floating:
    same = tf.abs(x - y) <= 1e-5 * tf.maximum(tf.abs(x), 1.0)
  else:
    same = tf.equal(x, y)
  return tf.reduce_all(same, axis=list(range(batch_rank, same.shape.rank)))


def _parameter_dtype(distribution):
  """Returns the dtype of the logits or probs of a distribution."""
  given = distribution.logits
  return tf.convert_to_tensor(
    distribution.probs if given is None else given
  ).dtype
