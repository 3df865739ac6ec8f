"""Checks of arguments; every message says what must hold and what came."""

import operator

import tensorflow as tf
import tensorflow_probability as tfp

__all__ = [
  'check_discrete',
  'check_int',
  'check_result',
  'checked_function',
  'is_a',
  'is_product',
  'is_wrapper',
  'plain_class',
]

tfd = tfp.distributions

_PRODUCTS = (tfd.Independent, tfd.Sample)
_ARRANGEMENTS = (tfd.BatchBroadcast, tfd.BatchReshape)


def check_int(value, name, minimum):
  """Returns `value` if it is a Python (or numpy) int of at least `minimum`."""
  try:
    number = operator.index(value)
  except TypeError:
    number = None
  if number is None or isinstance(value, bool) or tf.is_tensor(value):
    raise TypeError(
      f'`{name}` must be a Python int, since shapes are static, but is '
      f'{value!r}. Pass a plain number.'
    )
  if number < minimum:
    raise ValueError(
      f'`{name}` must be at least {minimum}, but is {value}. Pass a larger '
      'number.'
    )
  return number


def check_discrete(distribution):
  """Raises unless `distribution` is a TFP distribution that may be discrete."""
  if not isinstance(distribution, tfd.Distribution):
    raise TypeError(
      '`distribution` must be a `tfp.distributions.Distribution`, but is '
      f'{distribution!r}. Pass the distribution itself, e.g. '
      '`tfd.Categorical(logits=logits)`.'
    )
  reparameterized = tfd.FULLY_REPARAMETERIZED
  if distribution.reparameterization_type == reparameterized:
    raise TypeError(
      '`distribution` must be discrete, but '
      f'`{type(distribution).__name__}` is continuous and reparameterizable. '
      'Use `tfp.monte_carlo.expectation` for it.'
    )


def checked_function(f, distribution):
  """Returns `f` with its result checked: `[m] + batch_shape`, floating."""

  def checked(values):
    return check_result(f(values), values, distribution, 'f')

  checked.unchecked = f
  return checked


def check_result(result, values, distribution, name):
  """Returns what a function of atoms returned, if that is right.

  Args:
    result: What came.
    values: `Tensor`, the atoms, `[m] + batch_shape + event_shape`.
    distribution: The distribution.
    name: Python `str`, what the function is called in an error.

  Returns:
    result: `Tensor` of shape `[m] + batch_shape`.
  """
  if result is None:
    raise TypeError(
      f'`{name}` must return a Tensor, but returned None. Add a `return`.'
    )
  result = tf.convert_to_tensor(result)
  expected = values.shape[:1] + distribution.batch_shape
  if not result.dtype.is_floating:
    raise TypeError(
      f'`{name}` must return a floating-point Tensor, but returned one of '
      f'{result.dtype.name}. Cast it, e.g. by `tf.cast(..., tf.float32)`.'
    )
  if not result.shape.is_compatible_with(expected):
    raise ValueError(
      f'`{name}` must return a Tensor of shape [m] + batch_shape, {expected}, '
      f'for atoms of shape {values.shape}, but returned shape {result.shape}. '
      'Reduce over the event, and keep the first axis and the batch.'
    )
  return result


def plain_class(kind):
  """The class of which a wrapper of TFP may be an instance.

  Around a distribution that is no `CompositeTensor`, as one of the user's,
  `tfd.Independent` and its like make instances of a base class of theirs.

  Args:
    kind: A class of distributions.

  Returns:
    kind: That base class, where there is one.
  """
  base = kind.__mro__[1]
  return base if base.__name__ == f'_{kind.__name__}' else kind


def is_a(distribution, kind):
  """As `isinstance`, around whatever distribution."""
  return isinstance(distribution, plain_class(kind))


def is_product(distribution):
  """Whether a distribution is a product of independent sites."""
  return any(is_a(distribution, kind) for kind in _PRODUCTS)


def is_wrapper(distribution):
  """Whether a distribution arranges copies of another one."""
  return any(is_a(distribution, kind) for kind in _PRODUCTS + _ARRANGEMENTS)
