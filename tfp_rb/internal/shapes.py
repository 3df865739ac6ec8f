# SPDX-License-Identifier: Apache-2.0
"""Represents shapes as lists of Python ints and, if unknown, scalar Tensors."""

import tensorflow as tf

__all__ = [
  'as_list',
  'batch_shape',
  'broadcast',
  'event_shape',
  'filled',
  'is_same',
  'leading',
  'size',
  'take',
  'with_batch',
  'with_event_rank',
]


def batch_shape(distribution):
  """Returns the batch shape of a distribution."""
  return _as_list(distribution.batch_shape, distribution.batch_shape_tensor)


def event_shape(distribution):
  """Returns the event shape of a distribution."""
  return _as_list(distribution.event_shape, distribution.event_shape_tensor)


def as_list(x):
  """Returns the shape of a Tensor."""
  return _as_list(x.shape, lambda: tf.shape(x))


def _as_list(static, dynamic_fn):
  if static.is_fully_defined():
    return static.as_list()
  dynamic = dynamic_fn()
  if static.rank is None:
    # TFP returns no static rank if the shape is a Tensor. `tf.fill` makes
    # TensorFlow infer the rank and the known sizes.
    static = tf.fill(dynamic, False).shape
  if static.rank is None:
    raise ValueError(
      'The batch and event shapes of `distribution` must have a known number '
      f'of dimensions; got {static}. Set the static shape of its parameters.'
    )
  return filled(static, dynamic)


def filled(static, dynamic):
  """Returns a static shape whose unknown sizes are taken from a Tensor."""
  return [
    dynamic[i] if n is None else n for i, n in enumerate(static.as_list())
  ]


def broadcast(first, second):
  """Broadcasts two shapes, lists of ints and scalar Tensors.

  Args:
    first: List.
    second: List.

  Returns:
    shape: List.

  Raises:
    ValueError: The shapes are known statically and cannot be broadcast.
  """
  rank = max(len(first), len(second))
  padded = [
    [1] * (rank - len(shape)) + list(shape) for shape in (first, second)
  ]
  return [_broadcast_size(n, m) for n, m in zip(*padded)]


def _broadcast_size(n, m):
  """Broadcasts two sizes of an axis."""
  if isinstance(n, int) and isinstance(m, int):
    if n != m and 1 not in (n, m):
      raise ValueError(
        'The sizes of an axis must be equal, or one of them must be 1; got '
        f'{n} and {m}. Use the same batch shape everywhere.'
      )
    return m if n == 1 else n
  if isinstance(m, int):
    n, m = m, n
  # A known size other than 1 determines the size of the result.
  if isinstance(n, int):
    return m if n == 1 else n
  return tf.where(tf.equal(n, 1), m, n)


def is_same(first, second):
  """Returns whether two shapes are known statically to be equal."""
  return len(first) == len(second) and all(
    isinstance(n, int) and isinstance(m, int) and n == m
    for n, m in zip(first, second, strict=True)
  )


def leading(x):
  """Returns the size of the first axis."""
  return tf.shape(x)[0] if x.shape[0] is None else x.shape[0]


def size(shape):
  """Returns the product of a shape: an `int` if all entries are `int`s."""
  result = 1
  for n in shape:
    result = result * n
  return result


def take(values, index):
  """Takes `values[index[j, b], b]` for each row `b`, along the first axis.

  Args:
    values: `Tensor` of shape `[n] + batch_shape + event_shape`.
    index: `int32` `Tensor` of shape `[m] + batch_shape`.

  Returns:
    taken: `Tensor` of shape `[m] + batch_shape + event_shape`.
  """
  rank = index.shape.rank - 1  # the rank of the batch
  # `tf.gather` expects the batch in front: batch_shape + [n] + event_shape.
  last = [*range(1, rank + 1), 0]
  rows = tf.transpose(values, [*last, *range(rank + 1, values.shape.rank)])
  taken = tf.gather(rows, tf.transpose(index, last), batch_dims=rank)
  # Move [m] back to the front.
  order = [rank, *range(rank), *range(rank + 1, taken.shape.rank)]
  return tf.transpose(taken, order)


def with_batch(x, batch_shape, event_rank=0):
  """Reshapes the batch dimensions to another shape of the same size.

  Args:
    x: `Tensor` of shape `[n] + batch + event`.
    batch_shape: The new batch shape, a list of ints and scalar Tensors.
    event_rank: Python `int`, the rank of `event`.

  Returns:
    x: `Tensor` of shape `[n] + batch_shape + event`.
  """
  event = as_list(x)[x.shape.rank - event_rank :]
  return tf.reshape(x, [leading(x), *batch_shape, *event])


def with_event_rank(x, values):
  """Appends axes of size 1, so that `x` broadcasts against `values`."""
  missing = values.shape.rank - x.shape.rank
  return tf.reshape(x, as_list(x) + [1] * missing) if missing else x
