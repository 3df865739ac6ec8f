"""Several steps in one call."""

import tensorflow as tf

__all__ = ['over_batches']


def over_batches(step, data, rank):
  """Calls `step` for a batch, or for each of several in a loop.

  On a CPU steps that follow each other inside a compiled function take half
  the time of as many calls: the variables stay inside.

  Args:
    step: Callable, the elements of a batch to two scalars.
    data: Tuple of `Tensor`s; with one more axis in front for several batches.
    rank: Python `int`, the rank of the first element of one batch.

  Returns:
    means: List of scalars, the mean over the batches of what `step` returns.
  """
  if data[0].shape.rank == rank:
    return list(step(*data))
  num_batches = data[0].shape[0]
  if num_batches is None:
    num_batches = tf.shape(data[0])[0]

  def body(i, totals):
    values = step(*(x[i] for x in data))
    return i + 1, [t + v for t, v in zip(totals, values, strict=True)]

  _, totals = tf.while_loop(
    lambda i, totals: i < num_batches,
    body,
    (tf.constant(0), [tf.constant(0.0), tf.constant(0.0)]),
    maximum_iterations=num_batches,
  )
  return [t / tf.cast(num_batches, t.dtype) for t in totals]
