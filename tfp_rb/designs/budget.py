"""A budget of evaluations, split between sums and draws row by row."""

import tensorflow as tf

from tfp_rb.designs.atoms import Atoms, Whole, make_atoms
from tfp_rb.internal import shapes
from tfp_rb.internal.types import StatelessSeed

__all__ = ['atoms_of_budget']


def atoms_of_budget(whole: Whole, budget: int, seed: StatelessSeed) -> Atoms:
  """Splits `budget` evaluations as in Proposition 2 of Liu et al. (2019).

  A row that sums `k` of `N` atoms draws the other `N - k` from its rest.

  Args:
    whole: The whole `Partition`.
    budget: Python `int`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    atoms: `Atoms` whose `num_summed` differs between the rows.
  """
  best = whole.best(budget)
  num_atoms = best.values.shape[0]
  if not best.has_rest:
    return make_atoms(whole, best, best.values, best.weights, num_atoms)
  # The mass q(rest_k) for k = 0, ..., N - 1, as a sum of positive terms: a
  # difference `1 - sum` would lose all digits of a small rest.
  weights, rest = best.weights, best.rest_weight
  left = tf.cumsum(weights, axis=0, reverse=True) + rest  # [N] + batch_shape
  slots = tf.reshape(tf.range(num_atoms), [-1] + [1] * (weights.shape.rank - 1))
  # Equation (21): the variance is at most q(rest_k) / (N - k) times that of a
  # single draw, and k minimises this bound.
  bound = left / tf.cast(num_atoms - slots, left.dtype)
  num_summed = tf.argmin(bound, axis=0, output_type=tf.int32)  # batch_shape
  # Only k = N sums everything, which is right only if the rest is empty.
  num_summed = tf.where(rest > 0.0, num_summed, num_atoms)
  split = best.truncated(num_summed)
  # Shapes are static, so every row draws N values and ignores its first k.
  draws = split.draw_rest(num_atoms, seed)
  is_summed = slots < num_summed  # [N] + batch_shape
  # A row without draws must not divide by 0. Its rest weighs 0.
  num_draws = tf.cast(tf.maximum(num_atoms - num_summed, 1), left.dtype)
  return make_atoms(
    whole,
    best,
    tf.where(shapes.with_event_rank(is_summed, draws), best.values, draws),
    tf.where(is_summed, weights, split.rest_weight / num_draws),
    num_summed,
  )
