"""What the levels of draws are made of, without the draw itself."""

from typing import NamedTuple

import tensorflow as tf

from tfp_rb._atoms import is_draw

__all__ = ['DrawsAndSums', 'draws_and_sums']


class DrawsAndSums(NamedTuple):
  """What leave-one-out baselines are made of, all of `batch_shape`.

  `draws` is 1 at the draws and 0 at the summed atoms, `[m] + batch_shape`.
  """

  draws: tf.Tensor
  num_draws: tf.Tensor
  weights: tf.Tensor  # [m] + batch_shape, in the dtype of `f`
  summed_weight: tf.Tensor
  rest_weight: tf.Tensor

  def summed(self, x):
    """Sum over the summed atoms of `q(z) x(z)`."""
    return tf.reduce_sum((1.0 - self.draws) * self.weights * x, axis=0)

  def mean_of_others(self, x):
    """For each atom the mean of `x` over the draws other than itself."""
    total = tf.reduce_sum(self.draws * x, axis=0)
    return tf.math.divide_no_nan(
      total - self.draws * x, self.num_draws - self.draws
    )

  def level(self, level_of_draw):
    """Levels of the draws as given, their mean for the summed atoms."""
    mean = tf.math.divide_no_nan(
      tf.reduce_sum(self.draws * level_of_draw, axis=0), self.num_draws
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
  )
