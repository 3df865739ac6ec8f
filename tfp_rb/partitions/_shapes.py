"""Shapes as lists of ints where known, of scalar Tensors where not."""

import tensorflow as tf

__all__ = [
  'batch_shape',
  'event_shape',
  'is_same_event',
  'leading',
  'size',
]


def batch_shape(distribution):
  """The batch shape as a list, static entries as ints."""
  return _as_list(distribution.batch_shape, distribution.batch_shape_tensor)


def event_shape(distribution):
  """The event shape as a list, static entries as ints."""
  return _as_list(distribution.event_shape, distribution.event_shape_tensor)


def _as_list(static, dynamic_fn):
  if static.rank is None:
    raise ValueError(
      'The batch and event shapes of `distribution` must have a known number '
      f'of dimensions, but are {static}. Set the static shape of its '
      'parameters.'
    )
  if static.is_fully_defined():
    return static.as_list()
  dynamic = dynamic_fn()
  return [
    dynamic[i] if n is None else n for i, n in enumerate(static.as_list())
  ]


def is_same_event(x, y, batch_rank):
  """Whether values agree, `[n] + batch_shape + event_shape` to `[n] + batch`.

  Up to rounding, since a shifted float need not come back as it was.

  Args:
    x: `Tensor`.
    y: `Tensor` of the same shape.
    batch_rank: Python `int`, the rank of `[n] + batch_shape`.
  """
  if x.dtype.is_floating:
    same = tf.abs(x - y) <= 1e-5 * tf.maximum(tf.abs(x), 1.0)
  else:
    same = x == y
  return tf.reduce_all(same, axis=list(range(batch_rank, same.shape.rank)))


def leading(x):
  """The size of the first axis: an int where it is known."""
  return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


def size(shape):
  """The product of a shape list: an int where all entries are ints."""
  result = 1
  for n in shape:
    result = result * n
  return result
