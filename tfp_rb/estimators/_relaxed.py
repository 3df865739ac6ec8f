"""What the estimators that relax their atoms share."""

import tensorflow as tf

from tfp_rb import _checks
from tfp_rb._atoms import Atoms
from tfp_rb._types import Distribution, Temperature
from tfp_rb.estimators._relaxation import Relaxation
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.temperature import check_temperature, read_scalar

__all__ = [
  'RelaxedEstimator',
  'call_at_floats',
  'value_and_slope',
  'values_and_mean',
]


class RelaxedEstimator(GradientEstimator):
  """Base class of the estimators that draw Gumbel noise given the atom."""

  def __init__(
    self,
    temperature: Temperature,
    restricted: bool | None = None,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Stores the settings.

    Args:
      temperature: A positive number, a scalar `Tensor` or variable, or a
        callable without arguments that returns one.
      restricted: Python `bool`, or `None` to restrict where possible.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(num_samples=num_samples, name=name)
    check_temperature(temperature)
    if restricted not in (None, True, False):
      raise TypeError(
        '`restricted` must be True, False or None, but is '
        f'{restricted!r}. None restricts where that is possible.'
      )
    self.temperature = temperature
    self.restricted = restricted

  def read_temperature(
    self, dtype: tf.DType, distribution: Distribution
  ) -> tf.Tensor:
    """The present temperature, checked as `distribution` checks itself."""
    return read_scalar(
      self.temperature, dtype, 'temperature', True, distribution.validate_args
    )

  def is_restricted(self, relaxation: Relaxation, atoms: Atoms) -> bool:
    """Whether the relaxation is that of `q` given the rest."""
    if isinstance(atoms.num_summed, int) and atoms.num_summed == 0:
      return False  # the rest is everything
    if self.restricted and relaxation.num_sites:
      raise ValueError(
        '`restricted=True` needs a `distribution` of a single site, since a '
        'product given its rest is no product, but there are '
        f'{relaxation.num_sites} dimensions of sites. Leave `restricted=None`.'
      )
    return relaxation.num_sites == 0 and self.restricted in (None, True)


def call_at_floats(function, inputs, estimator, name='f'):
  """Calls `function` at atoms of floating point, and says so where it fails.

  Args:
    function: Callable of atoms.
    inputs: `Tensor` of shape `[n] + batch_shape + event_shape`.
    estimator: The estimator that asks.
    name: Python `str`, what `function` is called in an error.

  Returns:
    result: What it returns, not checked.
  """
  kind = type(estimator).__name__
  try:
    return getattr(function, 'unchecked', function)(inputs)
  except (TypeError, ValueError, tf.errors.OpError) as error:
    advice = (
      'Write it with products and sums, e.g. '
      '`tf.reduce_sum(z * cost, axis=-1)` instead of `tf.gather(cost, z)`, or '
      'use `tfp_rb.REINFORCE`.'
      if name == 'f'
      else 'Mind the dtype and the rank: atoms come first, then the batch.'
    )
    raise TypeError(
      f'`{name}` must accept atoms of {inputs.dtype.name}, one-hot vectors and '
      f'points between them, since `{kind}` evaluates it there, but failed at '
      f'atoms of shape {inputs.shape}: {error} {advice}'
    ) from error


def value_and_slope(function, inputs, distribution, estimator, name='f'):
  """Calls `function` at atoms of floating point, where it is differentiable.

  Args:
    function: Callable of atoms.
    inputs: `Tensor` of shape `[n] + batch_shape + event_shape`.
    distribution: The distribution.
    estimator: The estimator that asks.
    name: Python `str`, what `function` is called in an error.

  Returns:
    value: `Tensor` of shape `[n] + batch_shape`.
    slope: Its gradient by `inputs`, of their shape.
  """
  kind = type(estimator).__name__
  with tf.GradientTape() as tape:
    tape.watch(inputs)
    value = call_at_floats(function, inputs, estimator, name)
    expected = inputs.shape[:1] + distribution.batch_shape + [1]
    if name == 'control_variate' and value.shape.is_compatible_with(expected):
      value = tf.squeeze(value, axis=-1)  # the output unit of a network
    value = _checks.check_result(value, inputs, distribution, name)
  slope = tape.gradient(value, inputs)
  if slope is None:
    raise ValueError(
      f'`{name}` must be differentiable by its atoms, since `{kind}` follows '
      'that gradient, but there is none. Do not round, cast or take the argmax '
      'of the atoms, or use `tfp_rb.REINFORCE`.'
    )
  return value, slope


def values_and_mean(atoms, distribution, estimator):
  """The atoms as floating-point numbers, and the mean of the distribution.

  Args:
    atoms: `Atoms`.
    distribution: The distribution.
    estimator: The estimator that asks.

  Returns:
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.
    mean: Differentiable `Tensor` of shape `batch_shape + event_shape`.
  """
  try:
    mean = tf.convert_to_tensor(distribution.mean())
  except NotImplementedError as error:
    kind = type(distribution).__name__
    raise TypeError(
      f'`{type(estimator).__name__}` needs a `distribution` that has a mean, '
      f'but `{kind}` has none. '
      'Use `tfp_rb.REINFORCE`.'
    ) from error
  return tf.cast(atoms.values, mean.dtype), mean
