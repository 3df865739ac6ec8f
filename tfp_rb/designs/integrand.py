"""What is averaged over the atoms: the user's `f`, checked."""

from typing import Any, NamedTuple

import tensorflow as tf

from tfp_rb.internal import shapes
from tfp_rb.internal.types import Integrand

__all__ = ['CheckedIntegrand', 'EVALUATION', 'Evaluation', 'evaluate']

# Name of the operation that hands atoms to the user's `f`.
EVALUATION = 'atoms_of_f'


class Evaluation(NamedTuple):
  """An integrand at the atoms, both of shape `[m] + batch_shape`.

  Attributes:
    value: `Tensor`, what is averaged.
    signal: `Tensor`, what multiplies the score. It differs from `value` where
      the integrand contains `log q` itself: then it is
      `value + d value / d log q`, and a baseline is a baseline of that.
  """

  value: tf.Tensor
  signal: tf.Tensor


def evaluate(f, values):
  """Returns the `Evaluation` of an integrand at atoms.

  Args:
    f: Callable of atoms. Where it contains `log q`, it has a method `evaluate`;
      the signal of any other one is its value.
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.

  Returns:
    evaluation: An `Evaluation`.
  """
  if hasattr(f, 'evaluate'):
    return f.evaluate(values)
  value = f(values)
  return Evaluation(value, value)


class CheckedIntegrand:
  """The user's `f`, whose results are checked.

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
    """Returns `f(values)`, `[m] + batch_shape`, floating."""
    # The name lets diagnostics find the calls of `f` in a graph.
    values = tf.identity(values, name=EVALUATION)
    return self._check(self._f(values), values)

  def _check(self, result: Any, values: tf.Tensor) -> tf.Tensor:
    """Returns what `f` returned at `values`, if that is right."""
    name = self.name
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
    shape = [shapes.leading(values), *self._batch_shape]
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
    # A size that is not known while tracing could be broadcast silently.
    is_right = tf.debugging.assert_equal(
      tf.shape(result), tf.stack(shape), message=message
    )
    with tf.control_dependencies([is_right]):
      return tf.ensure_shape(tf.identity(result), expected)
