"""The integrand: the user's `f`, with checks of its results."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_rb.internal import shapes
from tfp_rb.internal.types import Integrand

__all__ = ['CheckedIntegrand', 'EVALUATION', 'Evaluation', 'evaluate']

# Name of the operation that passes atoms to the user's `f`.
EVALUATION = 'atoms_of_f'


class Evaluation(NamedTuple):
  """The results of an integrand at the atoms, of shape `[m] + batch_shape`.

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


class CheckedIntegrand:
  """Calls the user's `f` and checks its results.

  An exception that `f` raises passes through unchanged.

  Attributes:
    name: Python `str`, what `f` is called in an error.
  """

  def __init__(self, f: Integrand, batch_shape: Any, name: str = 'f') -> None:
    """Stores the function.

    Args:
      f: Callable of atoms, `[m] + batch_shape + event_shape`.
      batch_shape: The batch shape, a list of ints and scalar Tensors.
      name: Python `str`, what `f` is called in an error.
    """
    self._f = f
    self._batch_shape = batch_shape
    self.name = name

  def __call__(self, values: tf.Tensor) -> tf.Tensor:
    """Returns `f(values)`, floating-point, of shape `[m] + batch_shape`."""
    # The name lets diagnostics find the calls of `f` in a graph.
    values = tf.identity(values, name=EVALUATION)
    return self._check(self._f(values), values)

  def _check(self, result: Any, values: tf.Tensor) -> tf.Tensor:
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
        f'{result.dtype.name}. Cast it, e.g. by `tf.cast(..., tf.float32)`.'
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
    # Where a size is unknown while tracing, [m, 1] would pass the check above
    # and be broadcast silently.
    is_right = tf.debugging.assert_equal(
      tf.shape(result), tf.stack(shape), message=message
    )
    with tf.control_dependencies([is_right]):
      return tf.ensure_shape(tf.identity(result), expected)
