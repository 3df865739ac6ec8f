"""What a baseline is, and what levels are made of."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf

from tfp_rb.designs import Atoms, is_draw
from tfp_rb.internal.config import Configurable
from tfp_rb.internal.types import Distribution

__all__ = [
  'Baseline',
  'Correction',
  'DrawsAndSums',
  'check_level',
  'draws_and_sums',
  'is_baseline',
  'mean_over_draws',
]


class Correction(NamedTuple):
  """What a baseline answers.

  Attributes:
    level: `Tensor` that broadcasts to `[m] + batch_shape`, subtracted from `f`.
    auxiliary: `Tensor` of `batch_shape`, an objective of the baseline's own
      variables, to be minimised; `None` if it has none.
  """

  level: tf.Tensor
  auxiliary: tf.Tensor | None = None


class Baseline(Configurable, metaclass=abc.ABCMeta):
  """Base class of the baselines.

  #### Examples

  ```python
  class Half(tfp_rb.baselines.Baseline):

    def evaluate(self, distribution, atoms, value, extra_value):
      return tfp_rb.baselines.Correction(0.5 * tf.ones_like(value))

  tfp_rb.REINFORCE(baseline=Half()).baseline.num_extra(4)  # ==> 0
  ```
  """

  def num_extra(self, num_atoms: int) -> int:
    """Number of further draws from `q` at which `f` is to be evaluated."""
    del num_atoms
    return 0

  @abc.abstractmethod
  def evaluate(
    self,
    distribution: Distribution,
    atoms: Atoms,
    value: tf.Tensor,
    extra_value: tf.Tensor,
  ) -> Correction:
    """Returns the `Correction`.

    Args:
      distribution: The distribution.
      atoms: `Atoms`.
      value: `Tensor` of shape `[m] + batch_shape`, `f` at the atoms.
      extra_value: `Tensor` of shape `[num_extra(m)] + batch_shape`.

    Returns:
      correction: A `Correction`; its level is not differentiated.
    """


def is_baseline(x):
  """Whether an argument is a `Baseline`, not a number."""
  return isinstance(x, Baseline)


class DrawsAndSums(NamedTuple):
  """What leave-one-out baselines are made of, all of `batch_shape`.

  `draws` is 1 at the draws and 0 at the summed atoms, `[m] + batch_shape`.
  """

  draws: tf.Tensor
  num_draws: tf.Tensor
  weights: tf.Tensor  # [m] + batch_shape, in the dtype of `f`
  summed_weight: tf.Tensor
  rest_weight: tf.Tensor
  of_others: Callable | None  # `Atoms.mean_of_others`

  def summed(self, x):
    """Sum over the summed atoms of `q(z) x(z)`."""
    return tf.reduce_sum((1.0 - self.draws) * self.weights * x, axis=0)

  def mean_of_others(self, x):
    """For each draw an estimate of `E[x | rest]`, unbiased given the draw."""
    if self.of_others is not None:
      return self.of_others(x)
    total = tf.reduce_sum(self.draws * x, axis=0)
    return tf.math.divide_no_nan(
      total - self.draws * x, self.num_draws - self.draws
    )

  def level(self, level_of_draw):
    """Levels of the draws as given, their mean for the summed atoms."""
    # Weighted, since draws without replacement do not weigh the same.
    mean = tf.math.divide_no_nan(
      tf.reduce_sum(self.draws * self.weights * level_of_draw, axis=0),
      self.rest_weight,
    )
    return self.draws * level_of_draw + (1.0 - self.draws) * mean


def draws_and_sums(name, atoms, value):
  num_atoms = value.shape[0]
  nothing_drawn = (
    isinstance(atoms.num_summed, int) and atoms.num_summed == num_atoms
  )
  if num_atoms < 2 and not nothing_drawn:
    raise ValueError(
      f'`baselines.{name}` needs a second evaluation of `f` that it does not '
      f'correct, but `f` is evaluated at {num_atoms} atom. Use '
      '`num_samples=2` (or `budget=2`) or more, or sum at least one atom by '
      '`tfp_rb.rao_blackwellize`.'
    )
  draws = tf.cast(is_draw(atoms), value.dtype)
  weights = tf.cast(atoms.weights, value.dtype)
  return DrawsAndSums(
    draws=draws,
    num_draws=tf.reduce_sum(draws, axis=0),
    weights=weights,
    summed_weight=tf.reduce_sum((1.0 - draws) * weights, axis=0),
    rest_weight=tf.reduce_sum(draws * weights, axis=0),
    of_others=atoms.mean_of_others,
  )


def mean_over_draws(x, atoms, keep_batch=True):
  """Mean of `x` over the draws, in proportion to their weights.

  Args:
    x: `Tensor` of shape `[m] + batch_shape`.
    atoms: `Atoms`.
    keep_batch: Python `bool`, whether to average each batch member apart.

  Returns:
    mean: `Tensor` of `batch_shape`, or a scalar; 0 where nothing is drawn (the
      rest is empty, its draws weigh 0).
  """
  weights = tf.cast(atoms.weights, x.dtype)
  weights = tf.where(is_draw(atoms), weights, tf.zeros_like(weights))
  # Each batch member counts alike, however small its rest.
  weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=0))
  if keep_batch:
    return tf.reduce_sum(weights * x, axis=0)
  return tf.math.divide_no_nan(
    tf.reduce_sum(weights * x), tf.reduce_sum(weights)
  )


def check_level(level, value):
  """Returns a baseline given by the user as a `Tensor` like `value[0]`."""
  level = tf.convert_to_tensor(level, dtype_hint=value.dtype)
  if not _broadcasts_to(level.shape, value.shape[1:]):
    raise ValueError(
      '`baseline` must be a number or have the batch shape of the '
      f'distribution, {value.shape[1:]}, but has shape {level.shape}. '
      'Broadcast or reduce it to that shape.'
    )
  return tf.cast(level, value.dtype)


def _broadcasts_to(shape, target):
  try:
    return tf.broadcast_static_shape(shape, target).is_compatible_with(target)
  except ValueError:
    return False
