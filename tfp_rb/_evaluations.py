"""Counts how often `f` is evaluated."""

import contextlib

import tensorflow as tf

__all__ = ['count_evaluations', 'counted']

_counts = []


@contextlib.contextmanager
def count_evaluations():
  """Counts the atoms that every `f` is given inside the `with` block.

  Counted is what runs eagerly: tracing a function evaluates nothing, and what
  was traced before cannot be seen.

  Yields:
    numbers: List that grows by one for each call, of the number of its atoms.
  """
  numbers = []
  _counts.append(numbers)
  try:
    yield numbers
  finally:
    _counts.pop()


def counted(f):
  """Returns `f`, its calls counted where anybody counts."""
  if not _counts:
    return f
  numbers = _counts[-1]

  def counting(values):
    if tf.executing_eagerly():
      numbers.append(values.shape[0])
    return f(values)

  return counting
