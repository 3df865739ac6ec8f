"""Distributions that rearrange or shift another one."""

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.partitions import _shapes
from tfp_rb.partitions.base import RegisterPartition, find_partition

__all__ = []  # registers; there is nothing to call

tfb = tfp.bijectors
tfd = tfp.distributions


@RegisterPartition(tfd.TransformedDistribution)
def partition_shifted(q, num_summed):
  if not isinstance(q.bijector, tfb.Shift):
    raise NotImplementedError(
      'A partition of a `TransformedDistribution` is known for the bijector '
      f'`tfb.Shift` only, but `bijector` is `{type(q.bijector).__name__}`. '
      'Apply the bijector inside `f` instead.'
    )
  base = find_partition(
    # A shift may have batch dimensions that the base lacks.
    tfd.BatchBroadcast(q.distribution, to_shape=_shapes.batch_shape(q)),
    num_summed,
  )
  shift = tf.cast(q.bijector.shift, q.dtype)
  return _rearranged(
    base,
    # The gradient by the shift is pathwise, through the values alone.
    outward=lambda x, of_values: x + shift if of_values else x,
    inward=lambda z: tf.stop_gradient(z - shift),
  )


@RegisterPartition(tfd.BatchReshape)
def partition_batch_reshape(q, num_summed):
  inner, outer = _shapes.batch_shape(q.distribution), _shapes.batch_shape(q)
  event = _shapes.event_shape(q.distribution)

  def outward(x, of_values):
    tail = event if of_values else []
    return tf.reshape(x, [_shapes.leading(x), *outer, *tail])

  return _rearranged(
    find_partition(q.distribution, num_summed),
    outward=outward,
    inward=lambda z: tf.reshape(z, [_shapes.leading(z), *inner, *event]),
  )


@RegisterPartition(tfd.BatchBroadcast)
def partition_batch_broadcast(q, num_summed):
  inner, outer = _shapes.batch_shape(q.distribution), _shapes.batch_shape(q)
  event = _shapes.event_shape(q.distribution)
  rank = len(outer)
  padded = [1] * (rank - len(inner)) + inner
  # Along each axis the base either has the full size or is repeated.
  repeats = [n // p for n, p in zip(outer, padded, strict=True)]
  num_repeats = _shapes.size(repeats)
  if isinstance(num_repeats, int) and num_repeats == 1:
    return partition_batch_reshape(q, num_summed)
  base = find_partition(q.distribution, num_summed)
  interleaved = [n for pair in zip(repeats, padded, strict=True) for n in pair]

  def broadcast(x, of_values):
    tail = event if of_values else []
    n = _shapes.leading(x)
    x = tf.reshape(x, [n, *padded, *tail])
    return tf.broadcast_to(x, [n, *outer, *tail])

  def spread(x, n, tail):  # [n * repeats] + inner + tail -> [n] + outer + tail
    x = tf.reshape(x, [n, *repeats, *padded, *tail])
    order = [0]
    for axis in range(1, rank + 1):
      order += [axis, axis + rank]
    order += range(2 * rank + 1, 2 * rank + 1 + len(tail))
    return tf.reshape(tf.transpose(x, order), [n, *outer, *tail])

  def gather_repeats(z):  # the inverse of `spread`
    n = _shapes.leading(z)
    z = tf.reshape(z, [n, *interleaved, *event])
    order = [0, *range(1, 2 * rank, 2), *range(2, 2 * rank + 1, 2)]
    order += range(2 * rank + 1, 2 * rank + 1 + len(event))
    return tf.reshape(tf.transpose(z, order), [n * num_repeats, *inner, *event])

  def of_values_fn(function):
    return function and (
      lambda z: spread(function(gather_repeats(z)), _shapes.leading(z), [])
    )

  def sample_rest(num_draws, seed):
    draws = base.sample_rest(num_draws * num_repeats, seed)
    return spread(draws, num_draws, event)

  return base._replace(
    values=broadcast(base.values, True),
    log_weights=broadcast(base.log_weights, False),
    log_rest=broadcast(base.log_rest[tf.newaxis], False)[0],
    sample_rest=base.sample_rest and sample_rest,
    log_prob=of_values_fn(base.log_prob),
    score_norm=of_values_fn(base.score_norm),
    excluding=None,  # the copies of a row may have other values excluded
  )


def _rearranged(base, outward, inward):
  """A partition of the same values in another arrangement.

  Args:
    base: `Partition` of the inner distribution.
    outward: Callable `(x, of_values)` on Tensors `[n] + inner batch (+ event)`.
    inward: Callable on values, the inverse of `outward`.

  Returns:
    partition: `Partition` of the outer distribution.
  """

  def of_values_fn(function):
    return function and (lambda z: outward(function(inward(z)), False))

  return base._replace(
    values=outward(base.values, True),
    log_weights=outward(base.log_weights, False),
    log_rest=outward(base.log_rest[tf.newaxis], False)[0],
    sample_rest=base.sample_rest
    and (lambda n, seed: outward(base.sample_rest(n, seed), True)),
    log_prob=of_values_fn(base.log_prob),
    score_norm=of_values_fn(base.score_norm),
    excluding=base.excluding
    and (lambda z: _rearranged(base.excluding(inward(z)), outward, inward)),
  )
