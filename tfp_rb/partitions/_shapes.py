"""Shapes as lists of ints where known, of scalar Tensors where not."""

import tensorflow as tf

__all__ = [
  'batch_shape',
  'event_shape',
  'is_same_event',
  'leading',
  'size',
  'take',
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


def take(values, index):
  """Takes `values[index[j, b], b]` for each row `b`, along the first axis."""
  num_values, num_draws = values.shape[0], index.shape[0]
  flat_index = tf.transpose(tf.reshape(index, [num_draws, -1]))
  rows = tf.reshape(values, [num_values, tf.shape(flat_index)[0], -1])
  taken = tf.gather(
    tf.transpose(rows, [1, 0, 2]), flat_index, batch_dims=1
  )  # [rows, num_draws, event]
  shape = tf.concat([[num_draws], tf.shape(values)[1:]], axis=0)
  taken = tf.reshape(tf.transpose(taken, [1, 0, 2]), shape)
  return tf.ensure_shape(taken, [num_draws, *values.shape[1:]])
