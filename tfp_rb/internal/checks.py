# SPDX-License-Identifier: Apache-2.0
"""Provides the argument checks that many modules share."""

import inspect
import operator

import tensorflow as tf

__all__ = ['check_callable', 'check_int', 'num_arguments']


def check_int(value, name, minimum):
  """Returns `value` if it is a Python (or NumPy) int of at least `minimum`."""
  # NumPy integers pass `operator.index`, but so do booleans and scalar Tensors
  # in eager mode, which would fail in a graph.
  try:
    number = operator.index(value)
  except TypeError:
    number = None
  if number is None or isinstance(value, bool) or tf.is_tensor(value):
    raise TypeError(
      f'`{name}` must be a Python int because shapes are static; got {value!r}.'
    )
  if number < minimum:
    raise ValueError(f'`{name}` must be at least {minimum}; got {value}.')
  return number


def check_callable(function, name, example):
  """Raises `TypeError` unless `function` can be called."""
  if not callable(function):
    raise TypeError(
      f'`{name}` must be callable; got {function!r}. Pass a function, for '
      f'example `{example}`.'
    )


def num_arguments(function):
  """Returns the number of positional arguments without a default."""
  # `__call__` of a Keras layer has the signature `(*args, **kwargs)`.
  call = getattr(function, 'call', function)
  return sum(
    p.default is p.empty
    and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    for p in inspect.signature(call).parameters.values()
  )
