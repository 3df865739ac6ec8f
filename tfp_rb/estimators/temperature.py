# SPDX-License-Identifier: Apache-2.0
"""Reads the temperatures of relaxations: numbers, variables and schedules."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_rb.internal import checks
from tfp_rb.internal.config import Configurable

__all__ = ['AnnealedTemperature', 'check_temperature', 'read_scalar']


class AnnealedTemperature(Configurable):
  """Computes a temperature that falls with the number of steps.

  ```none
  max(floor, exp(-rate * step))
  ```

  `step` is a non-trainable variable that starts at 0. The training loop
  increases it: `estimator.temperature.step.assign_add(1)`.

  #### Examples

  ```python
  temperature = tfp_rb.AnnealedTemperature(rate=1e-3)
  temperature()  # ==> 1.0
  temperature.step.assign_add(500)
  temperature()  # ==> 0.6065
  temperature.step.assign_add(500)
  temperature()  # ==> 0.5
  estimator = tfp_rb.GumbelSoftmax(temperature)
  ```

  #### References

  [1] Eric Jang, Shixiang Gu, Ben Poole. Categorical reparameterization with
      Gumbel-softmax. ICLR 2017, section 4.2. https://arxiv.org/abs/1611.01144
  """

  def __init__(
    self, rate: float, *, floor: float = 0.5, name: str | None = None
  ) -> None:
    """Makes the schedule.

    Args:
      rate: Python `float`, not negative.
      floor: Python `float`, positive, the lowest temperature.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      ValueError: `rate` is negative or `floor` is not positive.
    """
    super().__init__(name=name)
    # In this form, both checks also reject NaN.
    if not rate >= 0.0:
      raise ValueError(
        '`rate` must not be negative, because the temperature must not rise; '
        f'got {rate}. Pass, for example, `rate=1e-4`.'
      )
    if not floor > 0.0:
      raise ValueError(
        '`floor` must be positive, because it is the lowest temperature; got '
        f'{floor}. Pass, for example, `floor=0.1`.'
      )
    self.rate = rate
    self.floor = floor
    self.step = tf.Variable(0, trainable=False, dtype=tf.int64, name='step')

  def set_step(self, step: int | tf.Tensor) -> None:
    """Sets the number of steps."""
    self.step.assign(tf.cast(step, self.step.dtype))

  def __call__(self) -> tf.Tensor:
    """Returns the current temperature, a float32 scalar."""
    step = tf.cast(self.step, tf.float32)
    return tf.maximum(tf.exp(-self.rate * step), self.floor)


def check_temperature(temperature: Any, name: str = 'temperature') -> None:
  """Raises if a temperature is known not to be a positive scalar.

  Args:
    temperature: A number, a `Tensor`, a variable or a callable without
      arguments.
    name: Python `str`, the name of the argument.
  """
  if temperature is None or isinstance(temperature, (str, bool)):
    raise TypeError(
      f'`{name}` must be a positive number, a scalar Tensor or variable, or a '
      f'callable that returns one; got {temperature!r}. Write, for example, '
      f'`{name}=0.5`.'
    )
  if callable(temperature):
    return  # Its values are checked when they are read.
  if tf.executing_eagerly() or not tf.is_tensor(temperature):
    # Leave the graph of a `tf.function`, in which the number would become a
    # symbolic Tensor without a value.
    with tf.init_scope():
      value = np.asarray(tf.convert_to_tensor(temperature))
  else:
    value = tf.get_static_value(temperature)
  _check_positive(value, name)


def _check_positive(value: Any, name: str) -> None:
  if value is None:  # A symbolic Tensor has no value that is known statically.
    return
  if np.ndim(value) != 0 or not 0.0 < value < np.inf:
    raise ValueError(
      f'`{name}` must be a positive scalar; got {value}. To keep a trained '
      'variable positive, use `tfp.util.TransformedVariable(0.5, '
      'tfp.bijectors.Exp())`.'
    )


def read_scalar(
  given: Any,
  dtype: tf.DType,
  name: str,
  is_positive: bool = True,
  validate_args: bool = False,
) -> tf.Tensor:
  """Returns a number, Tensor, variable or schedule as a scalar `Tensor`.

  Args:
    given: The user's argument.
    dtype: Dtype of the result.
    name: Python `str`, the name of the argument.
    is_positive: Python `bool`, whether a value that is known statically must be
      positive.
    validate_args: Python `bool`, whether to check this at run time as well.

  Returns:
    scalar: Differentiable `Tensor` of shape `[]`.
  """
  # Convert here and not in the constructor, so that every call reads the
  # current values of variables and schedules.
  value = given
  if callable(given):
    if checks.num_arguments(given):
      raise TypeError(
        f'`{name}` must be callable without arguments; got {given!r}. Pass a '
        'Keras schedule as `lambda: schedule(step)`.'
      )
    value = given()  # An exception of the user's callable passes through.
  try:
    scalar = tf.convert_to_tensor(value, dtype_hint=dtype)
    scalar = tf.cast(scalar, dtype)
  except (TypeError, ValueError, tf.errors.OpError) as error:
    raise TypeError(
      f'`{name}` must be a number, a scalar Tensor or variable, or a callable '
      f'without arguments that returns one; got {given!r}: {error}'
    ) from error
  if scalar.shape.rank != 0:
    raise ValueError(
      f'`{name}` must be a scalar; got shape {scalar.shape}. Reduce it.'
    )
  if is_positive:
    _check_positive(tf.get_static_value(scalar), name)
    if validate_args:
      message = f'`{name}` must be positive.'
      with tf.control_dependencies(
        [tf.debugging.assert_positive(scalar, message=message)]
      ):
        return tf.identity(scalar)
  return scalar
