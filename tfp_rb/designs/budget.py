# SPDX-License-Identifier: Apache-2.0
"""Splits a budget of evaluations between sums and draws, for each row."""

import math

import tensorflow as tf

from tfp_rb.designs.atoms import Atoms, Whole, everything, make_atoms
from tfp_rb.internal import shapes
from tfp_rb.internal.types import StatelessSeed

__all__ = ['atoms_of_budget']

# The tolerance of `_some_row_sums`, which must not miss a row that sums values
# because of rounding.
_SLACK = 1e-3


def atoms_of_budget(whole: Whole, budget: int, seed: StatelessSeed) -> Atoms:
  """Splits `budget` evaluations as in Proposition 2 of Liu et al. (2019).

  A row that sums `k` of `N` atoms draws the other `N - k` from its rest. If the
  search for the best values is costly, as in a product of many sites, it runs
  only if a row of the batch sums at least one value.

  Args:
    whole: The whole `Partition`.
    budget: Python `int`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    atoms: `Atoms` whose `num_summed` differs between the rows.
  """
  num_values = whole.num_values
  if num_values is not None and num_values <= budget:
    return everything(whole, num_values)
  if not whole.is_search_costly:
    return _searched(whole, budget, seed)

  # Each branch makes its own draws. Under XLA, draws that are made outside
  # would be copied into the branch and out of it.
  def drawn() -> tuple[tf.Tensor, ...]:
    shares = tf.fill(
      [budget, *whole.batch_shape],
      tf.constant(1.0 / budget, whole.log_rest.dtype),
    )
    nothing = tf.zeros(whole.batch_shape, tf.int32)
    return whole.draw_rest(budget, seed), shares, nothing

  def searched() -> tuple[tf.Tensor, ...]:
    # A row that sums nothing is drawn as in the other branch, so that it does
    # not depend on the other rows.
    draws, shares, _ = drawn()
    atoms = _searched(whole, budget, seed)
    sums = atoms.num_summed > 0  # batch_shape
    return (
      tf.where(shapes.with_event_rank(sums, draws[0]), atoms.values, draws),
      tf.where(sums, atoms.weights, shares),
      tf.convert_to_tensor(atoms.num_summed),
    )

  values, weights, num_summed = tf.cond(
    _some_row_sums(whole, budget), searched, drawn
  )
  # Stop the gradient, because the gradient of `tf.cond` is another `tf.cond`.
  weights = tf.stop_gradient(weights)
  log_prob = whole.log_prob(values)  # [N] + batch_shape
  return Atoms(values, weights, log_prob, num_summed, partition=whole)


def _some_row_sums(whole: Whole, budget: int) -> tf.Tensor:
  """Returns whether a row sums values, a scalar Boolean.

  `k` values hold at most `k` times the mass of the best one, `q(best)`. So the
  bound of Proposition 2 satisfies `q(rest_k) / (N - k) >= (1 - k q(best)) /
  (N - k)`, which is smaller than `1 / N`, the bound of `N` draws, only if
  `q(best) > 1 / N`. In that case even `k = 1` has a smaller bound.
  """
  least = math.log((1.0 - _SLACK) / budget)
  return tf.reduce_any(whole.log_mode_weight() > least)


def _searched(whole: Whole, budget: int, seed: StatelessSeed) -> Atoms:
  """Returns the atoms of a budget that is less than the number of values."""
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
  # If the rest is empty, sum all N values, which is not among these k.
  num_summed = tf.where(rest > 0.0, num_summed, num_atoms)
  split = best.truncated(num_summed)
  # Shapes are static, so every row draws N values and ignores its first k.
  draws = split.draw_rest(num_atoms, seed)
  is_summed = slots < num_summed  # [N] + batch_shape
  # Avoid a division by 0 in a row without draws, whose rest has weight 0.
  num_draws = tf.cast(tf.maximum(num_atoms - num_summed, 1), left.dtype)
  return make_atoms(
    whole,
    best,
    tf.where(shapes.with_event_rank(is_summed, draws), best.values, draws),
    tf.where(is_summed, weights, split.rest_weight / num_draws),
    num_summed,
  )
