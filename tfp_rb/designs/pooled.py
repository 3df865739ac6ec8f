# SPDX-License-Identifier: Apache-2.0
"""Chooses the atoms of a pool: one budget for all rows of a batch."""

from typing import NamedTuple

import tensorflow as tf

from tfp_rb.designs import allocation
from tfp_rb.designs.atoms import Atoms, Pool
from tfp_rb.designs.integrand import Evaluation, evaluate
from tfp_rb.designs.outcomes import list_outcomes
from tfp_rb.internal import shapes

__all__ = [
  'Candidates',
  'PooledIntegrand',
  'include',
  'most_candidates',
  'offer',
  'outcomes',
  'sum_by_row',
]

# The least weight of a row in the allocation, relative to the mean weight. It
# lets every value of a row be included, so that the row stays unbiased.
_LEAST_ROW_WEIGHT = 1e-3

# Up to this number of rows times atoms, a table is cheaper than a segment sum.
_MOST_MASKED = 2**16


class Candidates(NamedTuple):
  """Holds the values that the rows of a batch offer to a pool.

  Attributes:
    listed: `Partition`, the best values of each row.
    cells: `allocation.Cells`: the listed values, and the rest if there is one.
  """

  listed: object
  cells: allocation.Cells


def offer(whole, num_candidates, row_weights):
  """Returns the `Candidates`: the best values of each row, and its rest.

  Args:
    whole: The whole `Partition`.
    num_candidates: Python `int`, the number of best values.
    row_weights: `Tensor` of the batch shape, or `None`.

  Returns:
    candidates: `Candidates`.
  """
  listed = whole.best(num_candidates)
  num_rows = shapes.size(whole.batch_shape)
  by_row = lambda x: tf.transpose(tf.reshape(x, [shapes.leading(x), num_rows]))
  weights = tf.cast(by_row(listed.weights), tf.float64)  # [B, k]
  # Use the norm of the score of a table, |e_z - q|. The score of a natural
  # parameter can be 0 at a possible value, which would then never be included.
  collision = tf.reduce_sum(weights**2, axis=1, keepdims=True)
  scores = tf.sqrt(1.0 - 2.0 * weights + collision)
  if listed.has_rest:
    rest = tf.cast(by_row(listed.rest_weight[tf.newaxis]), tf.float64)
    weights = tf.concat([weights, rest], axis=1)  # [B, C]
    # Each value of the rest has little mass, so its score has about this norm.
    scores = tf.concat([scores, tf.sqrt(1.0 + collision)], axis=1)
  if row_weights is not None:
    scores *= _floored(tf.reshape(row_weights, [num_rows, 1]))
  weights, scores = tf.stop_gradient(weights), tf.stop_gradient(scores)
  return Candidates(listed, allocation.Cells(weights, scores, listed.has_rest))


def _floored(row_weights):
  """Returns the weights of rows in float64, with a positive lower bound."""
  rows = tf.abs(tf.cast(row_weights, tf.float64))
  # Only ratios matter, so divide by the maximum: the sums must not overflow.
  rows = tf.math.divide_no_nan(rows, tf.reduce_max(rows))
  least = _LEAST_ROW_WEIGHT * tf.reduce_mean(rows)
  # If all weights are 0, all rows count equally.
  return tf.where(least > 0.0, tf.maximum(rows, least), tf.ones_like(rows))


def most_candidates(whole, num_candidates):
  """Returns the largest number of evaluations that a row can use."""
  if num_candidates == whole.best(0).num_values:
    return num_candidates
  return num_candidates + allocation.MOST_DRAWS


def include(whole, candidates, num_atoms, u, seed):
  """Returns the `Atoms` of a pool: one of each row, then the others.

  Args:
    whole: The whole `Partition`.
    candidates: `Candidates`.
    num_atoms: `N`, a Python `int` or a scalar `Tensor`, larger than the number
      of rows `B` unless `B` is 0.
    u: `float64` `Tensor` of shape `[1 + N]`, uniform in (0, 1).
    seed: Stateless seed for draws from the rest of each row, if there is one.

  Returns:
    atoms: `Atoms` with values of shape `[N] + event_shape`, and with a `pool`.
      Their `num_summed` is `B`, because the other atoms may be draws.
  """
  cells = candidates.cells
  num_rows, num_cells = shapes.as_list(cells.weights)
  num_left = num_atoms - num_rows
  spent = allocation.allocate(cells, num_left)
  chosen = allocation.select(cells, spent, num_left, u)
  dtype = candidates.listed.log_weights.dtype
  rows = chosen.cell // num_cells
  weights = tf.cast(chosen.weights, dtype)
  summed = tf.where(chosen.is_summed, weights, tf.zeros_like(weights))
  of_row = lambda x: tf.gather(sum_by_row(x, rows, num_rows), rows)
  # If the best value of a row is drawn, the row has no summed values. Then the
  # weights of its draws already sum to 1.
  anchors = tf.math.divide_no_nan(summed, of_row(summed))
  is_used = weights > 0.0
  # The weights of a row must sum to 1. The summed atoms get the difference, so
  # that their mean acts as a control variate.
  weights += anchors * (1.0 - of_row(weights))
  values, log_prob = _gather(whole, candidates.listed, chosen, is_used, seed)
  return Atoms(
    values,
    tf.stop_gradient(weights),
    log_prob,
    num_summed=num_rows,
    partition=whole,
    pool=Pool(rows, tf.stop_gradient(anchors), chosen.is_draw),
  )


def _gather(whole, listed, chosen, is_used, seed):
  """Returns values and log-probabilities of the chosen cells."""
  num_rows = shapes.size(whole.batch_shape)
  num_listed = listed.values.shape[0]
  values = listed.values
  num_cells = num_listed
  if listed.has_rest:
    draws = listed.draw_rest(allocation.MOST_DRAWS, seed)
    values = tf.concat([values, draws], axis=0)
    num_cells += 1
  row, column = chosen.cell // num_cells, chosen.cell % num_cells
  # Each draw beyond the list has its own column.
  rank = tf.minimum(chosen.rank, allocation.MOST_DRAWS - 1)
  column = tf.where(column < num_listed, column, num_listed + rank)
  # `f` must not be evaluated at an impossible value: the best one replaces it.
  column = tf.where(is_used, column, tf.zeros_like(column))
  position = column * num_rows + row
  values = _possible(whole, listed, values)
  log_prob = tf.reshape(whole.log_prob(values), [-1])
  event_shape = shapes.as_list(values)[1 + len(whole.batch_shape) :]
  values = tf.reshape(values, [-1, *event_shape])
  return tf.gather(values, position), tf.gather(log_prob, position)


def _possible(whole, listed, values):
  """Replaces values without mass by the best one, so that `log q` is finite."""
  weights = listed.weights
  if listed.has_rest:
    num_draws = values.shape[0] - weights.shape[0]
    rest = tf.repeat(listed.rest_weight[tf.newaxis], num_draws, axis=0)
    weights = tf.concat([weights, rest], axis=0)
  is_possible = shapes.with_event_rank(weights > 0.0, values)
  return tf.where(is_possible, values, values[:1])


def outcomes(candidates, num_atoms, most_outcomes):
  """Lists all outcomes of the inclusion, for exact moments.

  Args:
    candidates: `Candidates`.
    num_atoms: As in `include`.
    most_outcomes: Python `int`.

  Returns:
    outcomes: Arrays of uniforms, `[T, 1 + N]`, and of their probabilities;
      `None` if there are too many, or if values are not listed.
  """
  cells = candidates.cells
  if cells.has_rest:
    return None
  num_left = num_atoms - cells.weights.shape[0]
  spent = allocation.allocate(cells, num_left)
  return list_outcomes(cells, spent, num_left, most_outcomes)


def sum_by_row(x, rows, num_rows):
  """Sums `x` over the atoms of each row, from shape `[N]` to `[B]`."""
  size = x.shape[0]
  if (
    isinstance(num_rows, int)
    and size is not None
    and num_rows * size <= _MOST_MASKED
  ):
    # On a CPU, XLA runs a segment sum as a slow loop over the atoms.
    is_own = rows == tf.range(num_rows)[:, tf.newaxis]  # [B, N]
    return tf.reduce_sum(tf.where(is_own, x, tf.zeros_like(x)), axis=1)
  return tf.math.unsorted_segment_sum(x, rows, num_rows)


class PooledIntegrand:
  """Evaluates `f` at the atoms of a pool, and subtracts a level for each row.

  The level of a row is the mean of `f` over the atoms that are summed. In a row
  with independent draws, each draw has its own level, the mean over the other
  draws, and the level of a summed atom is the mean over all draws. None of
  these levels causes a bias. If the estimator has a baseline, the baseline is
  an offset to the level.
  """

  def __init__(self, f, atoms):
    """Stores the function.

    Args:
      f: Callable that maps atoms `[N] + event_shape` to `[N]`.
      atoms: `Atoms` with a `pool`.
    """
    self.name = getattr(f, 'name', 'f')
    self._f = f
    self._pool = atoms.pool
    self._num_rows = atoms.num_summed

  def __call__(self, values):
    return self._f(values)

  def evaluate(self, values):
    """Returns an `Evaluation`."""
    value, signal = evaluate(self._f, values)
    level = tf.cast(self._level(tf.cast(signal, tf.float64)), signal.dtype)
    return Evaluation(value, signal - tf.stop_gradient(level))

  def _level(self, signal):
    """Returns the level of each atom, `[N]`, in float64."""
    rows, anchors, is_draw = self._pool
    of_row = lambda x: tf.gather(sum_by_row(x, rows, self._num_rows), rows)
    anchored = of_row(tf.cast(anchors, signal.dtype) * signal)
    draws = tf.cast(is_draw, signal.dtype)
    number, total = of_row(draws), of_row(draws * signal)
    # A draw gets the mean over the other draws; a summed atom gets the mean
    # over all draws, because its own entry in `draws` is 0.
    mean = tf.math.divide_no_nan(total - draws * signal, number - draws)
    return tf.where(number > 0.0, mean, anchored)
