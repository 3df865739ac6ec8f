# SPDX-License-Identifier: Apache-2.0
"""Wraps the user's `f`, the integrand, and checks its results."""

from collections.abc import Callable
import contextlib
import inspect
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_rb.internal import shapes
from tfp_rb.internal.types import Integrand

__all__ = [
  'CheckedIntegrand',
  'EVALUATION',
  'Evaluation',
  'POOL',
  'evaluate',
  'needs_rows',
  'pool_scope',
  'serve_rows',
]

# Name of the operation that passes atoms to the user's `f`.
EVALUATION = 'atoms_of_f'
# Name of the scope of that operation, if the rows of a batch share the atoms.
POOL = 'pool_of_{}_rows'


def pool_scope(num_rows: int | tf.Tensor) -> Any:
  """Returns a name scope that lets diagnostics find the number of rows."""
  # A number that is unknown while tracing cannot be part of a name.
  if tf.is_tensor(num_rows):
    return contextlib.nullcontext()
  return tf.name_scope(POOL.format(num_rows))


class Evaluation(NamedTuple):
  """Holds the results of an integrand at the atoms, `[m] + batch_shape`.

  Attributes:
    value: `Tensor` that is averaged.
    signal: `Tensor` that multiplies the score. It differs from `value` if the
      integrand contains `log q` itself: then it is `value + d value / d log q`,
      and baselines estimate this sum.
  """

  value: tf.Tensor
  signal: tf.Tensor


def evaluate(f: Integrand, values: tf.Tensor) -> Evaluation:
  """Returns the `Evaluation` of an integrand at atoms.

  Args:
    f: Callable of atoms. If it contains `log q`, it has a method `evaluate`.
      The signal of any other integrand is its value.
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.

  Returns:
    evaluation: An `Evaluation`.
  """
  if hasattr(f, 'evaluate'):
    return f.evaluate(values)
  value = f(values)
  return Evaluation(value, value)


def serve_rows(
  f: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], batch_shape: Any
) -> Integrand:
  """Returns `f(z, rows)` as a function of atoms that have a batch.

  Args:
    f: Callable that maps values `[n] + event_shape` and rows `int32[n]`,
      indices into the flattened batch, to `[n]`.
    batch_shape: The batch shape, a list of ints and scalar Tensors.

  Returns:
    f: Callable that maps atoms `[m] + batch_shape + event_shape` to
      `[m] + batch_shape`.
  """
  num_rows = shapes.size(batch_shape)

  def of_atoms(values: tf.Tensor) -> tf.Tensor:
    num_atoms = shapes.leading(values)
    event_shape = shapes.as_list(values)[1 + len(batch_shape) :]
    rows = tf.tile(tf.range(num_rows), [num_atoms])
    result = f(tf.reshape(values, [num_atoms * num_rows, *event_shape]), rows)
    if not tf.is_tensor(result) or not result.shape.is_compatible_with(
      rows.shape
    ):
      return result  # `CheckedIntegrand` raises for a wrong result.
    return tf.reshape(result, [num_atoms, *batch_shape])

  return of_atoms


def needs_rows(f: Any) -> bool:
  """Returns whether `f` has a second argument `rows` without a default."""
  try:
    parameters = list(inspect.signature(f).parameters.values())
  except (TypeError, ValueError):  # A builtin may have no signature.
    return False
  return any(p.name == 'rows' and p.default is p.empty for p in parameters[1:2])


class CheckedIntegrand:
  """Calls the user's `f` and checks its results.

  An exception that `f` raises passes through unchanged. An `f(z, rows)` that is
  written for a pool gets the rows of the batch.

  Attributes:
    name: Python `str`, the name of `f` in error messages.
  """

  def __init__(self, f: Integrand, batch_shape: Any, name: str = 'f') -> None:
    """Stores the function.

    Args:
      f: Callable of atoms, `[m] + batch_shape + event_shape`.
      batch_shape: The batch shape, a list of ints and scalar Tensors.
      name: Python `str`, the name of `f` in error messages.
    """
    self._f = serve_rows(f, batch_shape) if needs_rows(f) else f
    self._batch_shape = batch_shape
    self.name = name

  def __call__(self, values: tf.Tensor) -> tf.Tensor:
    """Returns `f(values)`, floating-point, of shape `[m] + batch_shape`."""
    # Diagnostics find the calls of `f` in a graph by this name.
    values = tf.identity(values, name=EVALUATION)
    return self.check(self._f(values), values)

  def check(self, result: Any, values: tf.Tensor) -> tf.Tensor:
    """Returns the result of `f` as a `Tensor`, or raises if it is wrong."""
    name = self.name
    # TensorFlow would stack a list, and a missing `return` gives None.
    if result is None or isinstance(result, (dict, list, tuple, set)):
      advice = 'Add a `return`.' if result is None else 'Return one Tensor.'
      raise TypeError(
        f'`{name}` must return a Tensor; got {type(result).__name__}. {advice}'
      )
    result = tf.convert_to_tensor(result)
    if not result.dtype.is_floating:
      raise TypeError(
        f'`{name}` must return a floating-point Tensor; got dtype '
        f'{result.dtype.name}. Cast it, e.g. with `tf.cast(..., tf.float32)`.'
      )
    shape = [shapes.leading(values), *self._batch_shape]  # [m] + batch_shape
    expected = tf.TensorShape(
      [n if isinstance(n, int) else None for n in shape]
    )
    message = (
      f'`{name}` must return a Tensor of shape [m] + batch_shape, {expected}, '
      f'for atoms of shape {values.shape}; got shape {result.shape}. Reduce '
      'over the event, and keep the first axis and the batch.'
    )
    if not result.shape.is_compatible_with(expected):
      raise ValueError(message)
    if result.shape.is_fully_defined() and expected.is_fully_defined():
      return result
    # If a size is unknown while tracing, [m, 1] would pass the check above and
    # be broadcast silently.
    is_right = tf.debugging.assert_equal(
      tf.shape(result), tf.stack(shape), message=message
    )
    with tf.control_dependencies([is_right]):
      # XLA drops assertions, but refuses to reshape [m, 1] to a larger shape.
      return tf.ensure_shape(tf.reshape(result, tf.stack(shape)), expected)
