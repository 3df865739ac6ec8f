"""Shapes as lists of ints where known, of scalar Tensors where not."""

import tensorflow as tf

__all__ = [
  'at_least_float32',
  'batch_shape',
  'event_shape',
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


def leading(x):
  """The size of the first axis: an int where it is known."""
  return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


def size(shape):
  """The product of a shape list: an int where all entries are ints."""
  result = 1
  for n in shape:
    result = result * n
  return result


def at_least_float32(x):
  """Casts float16 and bfloat16 up; masses are never kept in half precision."""
  return tf.cast(x, tf.float32) if x.dtype.size < 4 else x
