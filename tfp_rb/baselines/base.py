# SPDX-License-Identifier: Apache-2.0
"""Defines the base class of baselines, and the sums that they share."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

import tensorflow as tf

from tfp_rb.designs import Atoms, is_draw
from tfp_rb.internal import shapes
from tfp_rb.internal.config import Configurable
from tfp_rb.internal.replicas import sum_over_replicas
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
  """Holds the level of a baseline, and the objective that trains it.

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

  @property
  def treats_draws_alike(self) -> bool:
    """Whether all atoms share one level that does not depend on the draws.

    If so, the mean over `M` draws has `1 / M` of the variance of one draw.
    """
    return True

  @property
  def is_independent_of_atoms(self) -> bool:
    """Whether the level depends on neither the atoms nor `f` at the atoms.

    The level may depend on `f` at the further draws.
    """
    return False

  @property
  def why_not_pooled(self) -> str | None:
    """The reason why `pooled` does not support the baseline, or `None`."""
    return (
      f'`{type(self).__name__}` needs separate atoms for each batch member.'
    )

  def num_extra(self, num_atoms: int) -> int:
    """Returns the number of further draws from `q` at which `f` is needed."""
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


def is_baseline(x: Any) -> TypeGuard[Baseline]:
  """Returns whether an argument is a `Baseline`, not a number."""
  return isinstance(x, Baseline)


class DrawsAndSums(NamedTuple):
  """Holds the quantities from which leave-one-out baselines are computed."""

  draws: tf.Tensor  # [m] + batch_shape, 1 at draws and 0 at summed atoms
  num_draws: tf.Tensor  # batch_shape
  weights: tf.Tensor  # [m] + batch_shape, in the dtype of `f`
  summed_weight: tf.Tensor  # batch_shape, the mass of the summed atoms
  rest_weight: tf.Tensor  # batch_shape, `q(rest)`
  of_others: Callable[[tf.Tensor], tf.Tensor] | None  # as in `Atoms`

  def summed(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the sum over the summed atoms of `q(z) x(z)`, `batch_shape`."""
    return tf.reduce_sum((1.0 - self.draws) * self.weights * x, axis=0)

  def mean_of_summed(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the mean of `x` over the summed atoms, weighted by `1 / q`.

    The weights favour the least probable atoms, which resemble the rest most.

    Args:
      x: `Tensor` of shape `[m] + batch_shape`.

    Returns:
      mean: `Tensor` of `batch_shape`; 0 if nothing is summed.
    """
    # An atom of weight 0 is a placeholder with the value of another atom.
    counts = (self.draws < 0.5) & (self.weights > 0.0)
    largest = self.weights.dtype.max
    least = tf.reduce_min(tf.where(counts, self.weights, largest), axis=0)
    # Dividing by the largest share prevents an overflow.
    shares = tf.where(
      counts,
      tf.math.divide_no_nan(least, self.weights),
      tf.zeros_like(self.weights),
    )
    return tf.math.divide_no_nan(
      tf.reduce_sum(shares * x, axis=0), tf.reduce_sum(shares, axis=0)
    )

  def mean_of_others(self, x: tf.Tensor) -> tf.Tensor:
    """Returns an estimate of `E[x | rest]` for each draw, without that draw."""
    if self.of_others is not None:
      return self.of_others(x)
    x = self.draws * x
    # Add the draws before and after each draw. The total minus the draw itself
    # would lose digits if that draw is by far the largest.
    before = tf.cumsum(x, axis=0, exclusive=True)
    after = tf.cumsum(x, axis=0, exclusive=True, reverse=True)
    return tf.math.divide_no_nan(before + after, self.num_draws - self.draws)

  def level(self, level_of_draw: tf.Tensor) -> tf.Tensor:
    """Returns the given levels at draws, and their mean at summed atoms.

    Only this mean is unbiased. The summed atoms add `-b grad q(summed)` to the
    gradient, the draws add `-mean_j b_j grad q(rest)` on average, and the two
    gradients of masses add up to 0.

    Args:
      level_of_draw: `Tensor` of shape `[m] + batch_shape`.

    Returns:
      level: `Tensor` of shape `[m] + batch_shape`.
    """
    # Draws without replacement have different weights, so the mean is weighted.
    mean = tf.math.divide_no_nan(
      tf.reduce_sum(self.draws * self.weights * level_of_draw, axis=0),
      self.rest_weight,
    )
    return self.draws * level_of_draw + (1.0 - self.draws) * mean


def draws_and_sums(name: str, atoms: Atoms, value: tf.Tensor) -> DrawsAndSums:
  """Returns the `DrawsAndSums` of atoms, or raises for a single drawn atom.

  Args:
    name: Python `str`, the name of the baseline, for the error message.
    atoms: `Atoms`.
    value: `Tensor` of shape `[m] + batch_shape`, `f` at the atoms.

  Returns:
    parts: `DrawsAndSums`.
  """
  num_atoms = value.shape[0]
  # Without draws there is no variance, so every level is right.
  nothing_drawn = (
    isinstance(atoms.num_summed, int) and atoms.num_summed == num_atoms
  )
  if num_atoms < 2 and not nothing_drawn:
    raise ValueError(
      f'`num_samples` (or `budget`) must be at least 2 for `baselines.{name}`, '
      'which computes the level of an atom from the other atoms; got '
      f'{num_atoms} atom. Increase it, or sum at least one atom with '
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


def mean_over_draws(
  x: tf.Tensor, atoms: Atoms, keep_batch: bool = True
) -> tf.Tensor:
  """Returns the weighted mean of `x` over the draws.

  Args:
    x: `Tensor` of shape `[m] + batch_shape`.
    atoms: `Atoms`.
    keep_batch: Python `bool`, whether each batch member has its own mean.
      Otherwise the mean includes the batches of all replicas of
      `tf.distribute`.

  Returns:
    mean: `Tensor` of `batch_shape`, or a scalar; 0 where the rest is empty,
      because its draws then have weight 0.
  """
  weights = tf.cast(atoms.weights, x.dtype)
  weights = tf.where(is_draw(atoms), weights, tf.zeros_like(weights))
  # Every batch member has the same influence, even if its rest is small.
  weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=0))
  if keep_batch:
    return tf.reduce_sum(weights * x, axis=0)
  total, weight = tf.unstack(
    sum_over_replicas(
      tf.stack([tf.reduce_sum(weights * x), tf.reduce_sum(weights)])
    )
  )
  return tf.math.divide_no_nan(total, weight)


def check_level(level: Any, value: tf.Tensor, atoms: Atoms) -> tf.Tensor:
  """Returns a user's baseline as a `Tensor` that broadcasts to `value`.

  Args:
    level: A number, or a `Tensor` of the batch shape, optionally followed by an
      axis of size 1.
    value: `Tensor` of shape `[m] + batch_shape`, `f` at the atoms.
    atoms: `Atoms`. In a pool, each atom gets the level of its row.

  Returns:
    level: `Tensor` in the dtype of `value`.
  """
  level = tf.convert_to_tensor(level, dtype_hint=value.dtype)
  pool, batch_shape = atoms.pool, shapes.as_list(value)[1:]
  expected = value.shape[1:]
  if pool is not None:  # The atoms have no batch of their own.
    batch_shape = atoms.partition.batch_shape
    expected = atoms.partition.log_rest.shape
  if level.shape.is_compatible_with(expected + [1]):
    level = tf.squeeze(level, axis=-1)  # Drop the axis of a single output unit.
  if not _broadcasts_to(level.shape, expected):
    raise ValueError(
      '`baseline` must be a number or have the batch shape of the '
      f'distribution, {expected}; got shape {level.shape}. '
      'Broadcast or reduce it to that shape.'
    )
  level = tf.cast(level, value.dtype)
  is_known = level.shape.is_fully_defined() and expected.is_fully_defined()
  if level.shape.rank != 0 and (pool is not None or not is_known):
    level = _broadcast_to(level, tf.stack(batch_shape))
  if pool is None or level.shape.rank == 0:
    return level
  return tf.gather(tf.reshape(level, [-1]), pool.rows)


def _broadcast_to(level: tf.Tensor, batch_shape: tf.Tensor) -> tf.Tensor:
  """Broadcasts a level, and checks at run time that this is possible."""
  # A level with more entries than the batch would enlarge the result.
  is_right = tf.debugging.assert_equal(
    tf.broadcast_dynamic_shape(tf.shape(level), batch_shape),
    batch_shape,
    message='`baseline` must have the batch shape of the distribution.',
  )
  with tf.control_dependencies([is_right]):
    # XLA drops assertions, but refuses to broadcast to fewer entries.
    return tf.broadcast_to(level, batch_shape)


def _broadcasts_to(shape: tf.TensorShape, target: tf.TensorShape) -> bool:
  # A level with more dimensions than the batch would enlarge the result.
  try:
    return tf.broadcast_static_shape(shape, target).is_compatible_with(target)
  except ValueError:
    return False
