# SPDX-License-Identifier: Apache-2.0
"""Partitions distributions that rearrange or shift another distribution."""

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import dtypes, shapes
from tfp_rb.partitions.base import Partition
from tfp_rb.partitions.registry import (
  NotRegisteredError,
  partition_of,
  register,
)

__all__ = ['Broadcast', 'Reshaped', 'Shifted', 'Wrapped', 'broadcast']

tfb = tfp.bijectors
tfd = tfp.distributions


class Wrapped(Partition):
  """Rearranges the partition of another distribution, the base.

  A subclass converts Tensors from the base to the wrapper (`outward`) and back
  (`inward`).
  """

  def __init__(self, base):
    self._base = base
    self.num_uniforms = base.num_uniforms
    self.num_sites = base.num_sites
    self.is_search_costly = base.is_search_costly
    # Values have shape [k] + batch_shape + event_shape.
    self._event_rank = base.values.shape.rank - 1 - base.log_rest.shape.rank
    super().__init__(
      values=self.outward_values(base.values),
      log_weights=self.outward(base.log_weights),
      # `outward` expects a leading axis.
      log_rest=self.outward(base.log_rest[tf.newaxis])[0],
      sample_rest=None,
      num_values=base.num_values,
    )
    self.has_rest = base.has_rest

  def outward(self, x, event_rank=0):
    """Arranges `[n] + inner batch + event` as `[n] + outer batch + event`."""
    raise NotImplementedError

  def inward(self, x, event_rank=0):
    """Arranges `[n] + outer batch + event` as `[n] + inner batch + event`."""
    raise NotImplementedError

  def outward_values(self, values):
    """Turns values of the base into those of this distribution."""
    return self.outward(values, self._event_rank)

  def inward_values(self, values):
    """Turns values of this distribution into those of the base."""
    return self.inward(values, self._event_rank)

  def _around(self, base):
    """Returns the same wrapper around another partition of the base."""
    raise NotImplementedError

  def best(self, num_summed):
    return self._around(self._base.best(num_summed))

  def log_mode_weight(self):
    return self.outward(self._base.log_mode_weight()[tf.newaxis])[0]

  def excluding(self, values):
    return self._around(self._base.excluding(self.inward_values(values)))

  def draw_rest(self, num_draws, seed):
    if self.num_uniforms is not None:
      return super().draw_rest(num_draws, seed)
    # The base draws from a seed, like the partitions that users register.
    return self.outward_values(self._base.draw_rest(num_draws, seed))

  def rest_from_uniforms(self, u):
    return self.outward_values(self._base.rest_from_uniforms(self.inward(u, 1)))

  def _log_prob(self, values):
    return self.outward(self._base.log_prob(self.inward_values(values)))

  def nearest(self, values):
    return self.outward_values(self._base.nearest(self.inward_values(values)))

  def log_prob_anywhere(self, values):
    log_prob = self._base.log_prob_anywhere(self.inward_values(values))
    return self.outward(log_prob)

  def score_norm(self, values):
    return self.outward(self._base.score_norm(self.inward_values(values)))

  def log_table(self):
    table = self._base.log_table()
    if table is None:
      return None
    values, log_probs = table
    return values, self.outward(log_probs[tf.newaxis], 1)[0]

  def mean(self):
    return self.outward_values(self._base.mean()[tf.newaxis])[0]

  def relaxation(self):
    inner = self._base.relaxation()
    if inner is None:
      return None
    # The axes of sites and classes follow the batch, as event axes do.
    log_probs = self.outward(inner.log_probs[tf.newaxis], inner.num_sites + 1)
    return inner._replace(log_probs=log_probs[0])


class Reshaped(Wrapped):
  """Reshapes the batch to another shape of the same size."""

  def __init__(self, base, batch_shape, distribution=None):
    # The constructor of `Wrapped` calls `outward`, which needs these shapes.
    self._outer = batch_shape
    self._inner = base.batch_shape
    self.distribution = distribution
    super().__init__(base)

  def _around(self, base):
    return Reshaped(base, self._outer, self.distribution)

  def outward(self, x, event_rank=0):
    return shapes.with_batch(x, self._outer, event_rank)

  def inward(self, x, event_rank=0):
    return shapes.with_batch(x, self._inner, event_rank)


class Broadcast(Wrapped):
  """Repeats the batch, and draws the copies independently.

  The base treats the copies of a row as further values: `inward` turns
  `[n] + outer` into `[n * repeats] + inner`, and `_spread` undoes this.
  """

  def __init__(self, base, batch_shape, distribution=None):
    self._outer = batch_shape
    self._inner = base.batch_shape
    # Broadcasting adds axes on the left, as in NumPy.
    missing = len(batch_shape) - len(self._inner)
    self._padded = [1] * missing + self._inner
    # Along each axis the base either has the full size or is repeated.
    self._repeats = [
      _num_repeats(n, p) for n, p in zip(batch_shape, self._padded, strict=True)
    ]
    self.distribution = distribution
    super().__init__(base)

  def _around(self, base):
    return Broadcast(base, self._outer, self.distribution)

  def outward(self, x, event_rank=0):
    n, event = shapes.leading(x), shapes.as_list(x)[x.shape.rank - event_rank :]
    x = tf.reshape(x, [n, *self._padded, *event])
    return tf.broadcast_to(x, [n, *self._outer, *event])

  def inward(self, x, event_rank=0):
    """Arranges `[n] + outer + event` as `[n * repeats] + inner + event`."""
    n, event = shapes.leading(x), shapes.as_list(x)[x.shape.rank - event_rank :]
    rank = len(self._outer)
    # Split each axis into its repeats and its base size: [n, r1, b1, r2, ...].
    pairs = zip(self._repeats, self._padded, strict=True)
    x = tf.reshape(x, [n, *(size for pair in pairs for size in pair), *event])
    # Move the repeats to the front: [n, r1, r2, ..., b1, b2, ...] + event.
    order = [0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2)]
    order += range(2 * rank + 1, 2 * rank + 1 + event_rank)
    num_copies = n * shapes.size(self._repeats)
    return tf.reshape(
      tf.transpose(x, order), [num_copies, *self._inner, *event]
    )

  def _spread(self, x, num, event_rank=0):
    """Inverts `inward`, for `num` values."""
    rank = len(self._outer)
    event = shapes.as_list(x)[x.shape.rank - event_rank :]
    x = tf.reshape(x, [num, *self._repeats, *self._padded, *event])
    # Join the repeats with their axes again: [num, r1, b1, r2, ...] + event.
    order = [0]
    for axis in range(1, rank + 1):
      order += [axis, axis + rank]
    order += range(2 * rank + 1, 2 * rank + 1 + event_rank)
    return tf.reshape(tf.transpose(x, order), [num, *self._outer, *event])

  def excluding(self, values):
    # Each copy of a row may exclude different values, so one partition of the
    # base cannot serve all copies.
    if self._base.broadcasts:
      return self._base.excluding(values).replace(batch_shape=self._outer)
    return Partition.excluding(self, values)

  def draw_rest(self, num_draws, seed):
    if self.num_uniforms is not None:
      return Partition.draw_rest(self, num_draws, seed)
    # The copies must not share draws.
    num_copies = num_draws * shapes.size(self._repeats)
    draws = self._base.draw_rest(num_copies, seed)
    return self._spread(draws, num_draws, self._event_rank)

  def rest_from_uniforms(self, u):
    draws = self._base.rest_from_uniforms(self.inward(u, 1))
    return self._spread(draws, shapes.leading(u), self._event_rank)

  def _log_prob(self, values):
    log_prob = self._base.log_prob(self.inward_values(values))
    return self._spread(log_prob, shapes.leading(values))

  def nearest(self, values):
    nearest = self._base.nearest(self.inward_values(values))
    return self._spread(nearest, shapes.leading(values), self._event_rank)

  def log_prob_anywhere(self, values):
    log_prob = self._base.log_prob_anywhere(self.inward_values(values))
    return self._spread(log_prob, shapes.leading(values))

  def score_norm(self, values):
    score_norm = self._base.score_norm(self.inward_values(values))
    return self._spread(score_norm, shapes.leading(values))


def _num_repeats(outer, padded):
  """Returns how often an axis is repeated."""
  # Dividing the sizes would fail for an axis of size 0.
  if isinstance(outer, int) and isinstance(padded, int):
    return 1 if outer == padded else outer
  if isinstance(padded, int) and padded == 1:
    return outer
  return tf.where(tf.equal(outer, padded), 1, outer)


def broadcast(base, batch_shape, distribution=None):
  """Returns `base` with another batch shape, and repeats it only if needed.

  Args:
    base: A `Partition`.
    batch_shape: List of ints and scalar Tensors.
    distribution: The distribution of the result.

  Returns:
    partition: A `Partition`.
  """
  # Only a static shape shows that no copies are needed.
  same = shapes.is_same(base.batch_shape, batch_shape)
  kind = Reshaped if same else Broadcast
  return kind(base, batch_shape, distribution)


class Shifted(Wrapped):
  """Shifts the values by a constant for each member of the batch."""

  def __init__(self, base, shift, distribution=None):
    self._shift = shift
    self.distribution = distribution
    super().__init__(base)

  def _around(self, base):
    return Shifted(base, self._shift, self.distribution)

  def outward(self, x, event_rank=0):
    del event_rank
    return x

  def inward(self, x, event_rank=0):
    del event_rank
    return x

  def outward_values(self, values):
    # The gradient w.r.t. the shift is pathwise: it passes through the values
    # only.
    shift = tf.cast(self._shift, values.dtype)
    if values.dtype.is_integer and self._base.num_values is None:
      # Draws of an unbounded family may reach the largest integer, which must
      # not wrap around.
      values = tf.minimum(values, values.dtype.max - tf.maximum(shift, 0))
    shifted = values + shift
    if not self.distribution.validate_args:
      return shifted
    message = (
      f'`shift` must keep the values distinct in {values.dtype.name}, which '
      f'holds integers up to {dtypes.largest_integer(values.dtype)}. Use a '
      'wider dtype.'
    )
    if values.dtype.is_integer:  # A value that wraps around moves backwards.
      expected, found = shift >= 0, shifted >= values
    else:
      expected, found = values, self.inward_values(shifted)
    is_held = tf.debugging.assert_equal(found, expected, message=message)
    with tf.control_dependencies([is_held]):
      return tf.identity(shifted)

  def inward_values(self, values):
    # The probability of a shifted value does not depend on the shift.
    values, shift = map(tf.stop_gradient, (values, self._shift))
    shift = tf.cast(shift, values.dtype)
    inward = values - shift
    if values.dtype.is_integer:
      return inward
    # Adding and subtracting the shift rounds. Undo the rounding, so that the
    # value is found among those of the base, but do not round an impossible
    # value to a possible one.
    size = tf.maximum(tf.abs(values), tf.abs(shift))
    slack = 8.0 / dtypes.largest_integer(values.dtype) * size
    nearest = tf.stop_gradient(self._base.nearest(inward))
    return tf.where(tf.abs(nearest - inward) <= slack, nearest, inward)

  def mean(self):
    mean = self._base.mean()
    return mean + tf.cast(self._shift, mean.dtype)

  def log_table(self):
    return None  # The values depend on the shift.

  def relaxation(self):
    return None  # Relaxed estimators do not support shifts.


@register(tfd.TransformedDistribution, kind='transformed')
def _of_transformed(q):
  if not isinstance(q.bijector, tfb.Shift):
    raise NotRegisteredError(
      '`bijector` of a `TransformedDistribution` must be `tfb.Shift`; got '
      f'`{type(q.bijector).__name__}`. Apply the bijector inside `f` instead.'
    )
  base = partition_of(q.distribution)
  shift = tf.convert_to_tensor(q.bijector.shift)
  if shift.shape.rank != 0:
    # The shift may have batch dimensions that the base lacks.
    base = broadcast(base, shapes.batch_shape(q), q.distribution)
  return Shifted(base, shift, q)


@register(tfd.BatchReshape, kind='wrapped')
def _of_batch_reshape(q):
  base = partition_of(q.distribution)
  if q.batch_shape.is_fully_defined():
    return Reshaped(base, q.batch_shape.as_list(), q)
  # `batch_shape_tensor` of TFP fails in a graph if the shape is unknown.
  given = tf.convert_to_tensor(q.parameters['batch_shape'])
  others = tf.maximum(-tf.reduce_prod(given), 1)  # One entry may be -1.
  sizes = tf.where(given < 0, shapes.size(base.batch_shape) // others, given)
  known = q.batch_shape.as_list()
  batch_shape = [sizes[i] if n is None else n for i, n in enumerate(known)]
  return Reshaped(base, batch_shape, q)


@register(tfd.BatchBroadcast, kind='wrapped')
def _of_batch_broadcast(q):
  return broadcast(partition_of(q.distribution), shapes.batch_shape(q), q)
