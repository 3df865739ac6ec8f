"""A number of evaluations, split between sums and draws row by row."""

import tensorflow as tf

from tfp_rb.designs.atoms import make_atoms
from tfp_rb.internal import shapes

__all__ = ['atoms_of_budget']


def atoms_of_budget(whole, budget, seed):
  """Returns `Atoms` of `budget` evaluations, split by Proposition 2.

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
  # Mass of what is left after k = 0, ..., N - 1 sums: positive terms only.
  weights, rest = best.weights, best.rest_weight
  left = tf.cumsum(weights, axis=0, reverse=True) + rest
  slots = tf.reshape(tf.range(num_atoms), [-1] + [1] * (weights.shape.rank - 1))
  # The variance is at most q(rest) / (N - k) times a constant: Proposition 2.
  bound = left / tf.cast(num_atoms - slots, left.dtype)
  num_summed = tf.argmin(bound, axis=0, output_type=tf.int32)
  num_summed = tf.where(rest > 0.0, num_summed, num_atoms)
  split = best.truncated(num_summed)
  draws = split.draw_rest(num_atoms, seed)
  is_summed = slots < num_summed  # [N] + batch_shape
  num_draws = tf.cast(tf.maximum(num_atoms - num_summed, 1), left.dtype)
  return make_atoms(
    whole,
    best,
    tf.where(shapes.with_event_rank(is_summed, draws), best.values, draws),
    tf.where(is_summed, weights, split.rest_weight / num_draws),
    num_summed,
  )
