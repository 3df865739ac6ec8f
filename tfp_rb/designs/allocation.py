# SPDX-License-Identifier: Apache-2.0
"""Allocates the evaluations of a pool to the rows of a batch.

The best value of each row is evaluated. `n` evaluations are left for all the
other values. Value `i` gets the expected number

```none
  p_i = min(1, a_i / c),     a_i = w_i s_i r_i,     sum_i p_i = n
```

where `w_i` is its mass, `s_i` the norm of its score and `r_i` the weight of its
row. This minimises the sum of `(w_i s_i r_i)^2 / p_i`, a bound of the variance.
Values with `p_i = 1` are summed. The others are chosen in one of two ways:

* Most rows share one systematic sample [1], which includes exactly as many
  values as are left, each at most once if `p_i < 1`. The level of such a row,
  which is `f` at its summed values, is a poor baseline if the row is flat.
* A flat row gets its whole share of evaluations as independent draws, so that
  each draw has the mean of the other draws as its baseline. If the best value
  of the row has less mass than a draw, it is drawn like the others.

All decisions depend on the probabilities only, so they cause no bias.

[1] Paul Fearnhead, Peter Clifford. On-line inference for hidden Markov models
    via particle filters. _JRSS B_, 65, 2003, section 4 (optimal resampling).
"""

from typing import NamedTuple

import tensorflow as tf

from tfp_rb.internal import shapes

__all__ = [
  'Allocation',
  'Cells',
  'MOST_DRAWS',
  'Selection',
  'allocate',
  'select',
]

# The variance of the difference between `f` at a value and `f` at the best
# value, as a multiple of `Var[f]`. It is 2 if both vary alike. On random
# batches, 2.2 gave the best choice between the two ways (0.9, 1.1 and 1.3 times
# 2 were tried).
_NOISE_OF_LEVEL = 2.2

# The largest number of draws of a row that has values beyond its list.
MOST_DRAWS = 32


class Cells(NamedTuple):
  """Holds the values of `B` rows: `C` cells for each, the best one first.

  Attributes:
    weights: `float64` `Tensor` of shape `[B, C]`, masses.
    importance: `float64` `Tensor` of shape `[B, C]`, `s_i r_i`.
    has_rest: Python `bool`, whether the last cell of a row stands for all
      values that are not listed.
  """

  weights: tf.Tensor
  importance: tf.Tensor
  has_rest: bool


class Allocation(NamedTuple):
  """Describes how the evaluations are spent, which does not depend on draws.

  Attributes:
    certain: `int32` `Tensor` of shape `[B C]`, the number of cells up to and
      including this one that have `p_i = 1`. A cell has the index
      `row * C + column`.
    num_certain: `int32` scalar, the number of these cells.
    is_summed: Boolean `Tensor` of shape `[B, C]`.
    num_draws: `int32` `Tensor` of shape `[B]`, the number of independent draws;
      0 for the rows that share the systematic sample.
    draws_best: Boolean `Tensor` of shape `[B]`, whether the row spends its own
      evaluation on one of these draws. Other rows spend it on their best value.
    masses: `float64` `Tensor` of shape `[B, C]`, masses of the cells from which
      the draws of a row are taken, cumulative along the row.
    line: `float64` `Tensor` of shape `[B C]`, the cumulative sum of `p_i` over
      the cells from which the systematic sample is taken.
    num_points: `int32` scalar, the size of that sample and the end of `line`.
    level: `float64` scalar, `a_i / p_i` of those cells.
  """

  certain: tf.Tensor
  num_certain: tf.Tensor
  is_summed: tf.Tensor
  num_draws: tf.Tensor
  draws_best: tf.Tensor
  masses: tf.Tensor
  line: tf.Tensor
  num_points: tf.Tensor
  level: tf.Tensor


class Selection(NamedTuple):
  """Holds the slots at which `f` is evaluated, first the own slot of each row.

  All attributes are Tensors of shape `[N]`.

  Attributes:
    cell: `int32`, the cell.
    rank: `int32`, distinguishes the values that come from the same cell of
      unlisted values.
    weights: `float64`, 0 at unused slots.
    is_summed: Boolean, whether the value is included for certain.
    is_draw: Boolean, whether the value is an independent draw of its row.
  """

  cell: tf.Tensor
  rank: tf.Tensor
  weights: tf.Tensor
  is_summed: tf.Tensor
  is_draw: tf.Tensor


def _where(condition, x):
  """Returns `x` where the condition holds, else 0."""
  return tf.where(condition, x, tf.zeros_like(x))


def allocate(cells, num_left):
  """Returns the `Allocation` of `num_left` evaluations beyond one per row.

  Args:
    cells: `Cells`.
    num_left: Python `int` or `int32` scalar `Tensor`.

  Returns:
    allocation: An `Allocation`.
  """
  column = tf.range(shapes.as_list(cells.weights)[1])
  # The best value has a slot of its own.
  priority = _where(column > 0, cells.weights * cells.importance)
  is_certain = _certain(cells, priority, num_left)
  certain = tf.cumsum(tf.reshape(tf.cast(is_certain, tf.int32), [-1]))
  num_certain = tf.reduce_sum(tf.cast(is_certain, tf.int32))
  priority = _where(~is_certain, priority)
  split = _split(cells, priority, is_certain, num_left - num_certain)
  draws_best = split.is_drawn & split.draws_best
  is_summed = is_certain | ((column == 0) & ~draws_best[:, tf.newaxis])
  is_drawn = split.is_drawn[:, tf.newaxis]
  line = tf.cumsum(tf.reshape(_where(~is_drawn, priority), [-1]))
  total = tf.reduce_max(tf.concat([[0.0], line], axis=0))
  length = tf.cast(split.num_points, tf.float64)
  return Allocation(
    certain=certain,
    num_certain=num_certain,
    is_summed=is_summed,
    num_draws=split.num_further + tf.cast(draws_best, tf.int32),
    draws_best=draws_best,
    masses=tf.cumsum(_where(is_drawn & ~is_summed, cells.weights), axis=1),
    # Rescale, so that the line ends at exactly the number of points.
    line=tf.math.divide_no_nan(line, total) * length,
    num_points=split.num_points,
    level=tf.math.divide_no_nan(total, length),
  )


def _certain(cells, priority, num_left):
  """Returns which cells have `p_i = 1`, Booleans of shape `[B, C]`.

  If some cells are certain, the others share the evaluations that are left.
  This lowers `c` and may make further cells certain. The loop needs few rounds,
  which cost less than a sort.
  """
  total = tf.cast(num_left, tf.float64)
  listed = priority
  if cells.has_rest:  # No single evaluation covers all unlisted values.
    listed = tf.concat([priority[:, :-1], tf.zeros_like(priority[:, :1])], 1)

  def is_certain(level):
    return (listed >= level) & (listed > 0.0)

  def lower(level, before, number):
    del before
    others = tf.reduce_sum(_where(~is_certain(level), priority))
    left = total - number
    # If no evaluation is left, the other cells are negligible: keep the level.
    next_level = tf.where(left > 0.0, others / tf.maximum(left, 1.0), level)
    return next_level, number, count(next_level)

  def count(level):
    return tf.reduce_sum(tf.cast(is_certain(level), tf.float64))

  level = tf.math.divide_no_nan(tf.reduce_sum(priority), total)
  level, _, _ = tf.while_loop(
    lambda level, before, number: number > before,
    lower,
    (level, tf.constant(0.0, tf.float64), count(level)),
  )
  return is_certain(level)


class _Split(NamedTuple):
  """Describes which rows get independent draws and which share the sample."""

  is_drawn: tf.Tensor  # [B]
  draws_best: tf.Tensor  # [B]
  num_further: tf.Tensor  # [B], the draws beyond the slot of the best value
  num_points: tf.Tensor  # scalar, the size of the systematic sample


def _split(cells, priority, is_certain, num_open):
  """Returns the `_Split` of the evaluations that are not certain.

  Args:
    cells: `Cells`.
    priority: `float64` `Tensor` of shape `[B, C]`, 0 at certain cells.
    is_certain: Boolean `Tensor` of shape `[B, C]`.
    num_open: `int32` scalar, the number of these evaluations.

  Returns:
    split: A `_Split`.
  """
  level = tf.math.divide_no_nan(
    tf.reduce_sum(priority), tf.cast(num_open, tf.float64)
  )
  expected = tf.math.divide_no_nan(priority, level)  # `p_i`
  number = tf.reduce_sum(expected, axis=1)  # evaluations of each row, [B]
  # Proposition 2 of Liu et al. (2019), for a row without other certain values.
  draws_best = cells.weights[:, 0] * (number + 1.0) < 1.0
  draws_best &= ~tf.reduce_any(is_certain, axis=1)
  pays = _drawing_pays(cells, priority, expected, level, draws_best)
  # A row needs at least two draws, one of which may use the row's own slot.
  least = tf.where(draws_best, 1, 2)
  is_drawn, num_points = tf.zeros_like(pays), num_open
  surplus = tf.constant(0)
  # Prefer the second round, which rounds up, if the evaluations suffice.
  for slack in (0.0, 0.5):
    rows = pays & (number >= tf.cast(least, tf.float64) - slack)
    others = tf.reduce_sum(_where(~rows, number))
    # The sample needs at least one point, or the other rows would be biased.
    points = tf.cast(tf.maximum(tf.math.floor(others), 1.0), tf.int32)
    points = _where(others > 0.0, points)
    left = num_open - points - tf.reduce_sum(_where(rows, least))
    is_possible = (left >= 0) & tf.reduce_any(rows)
    is_drawn = tf.where(is_possible, rows, is_drawn)
    num_points = tf.where(is_possible, points, num_points)
    surplus = tf.where(is_possible, left, surplus)
  # The small constant keeps a share positive if the number equals the least.
  share = _where(is_drawn, number + 1e-6 - tf.cast(least, tf.float64))
  further = _where(is_drawn, least) + _round_shares(share, surplus)
  if cells.has_rest:
    further = tf.minimum(further, MOST_DRAWS - 1)
  return _Split(is_drawn, draws_best, further, num_points)


def _drawing_pays(cells, priority, expected, level, draws_best):
  """Returns for each row whether independent draws promise less variance.

  ```none
  systematic sample:  2.2 Var[f] c^2 sum_i p_i (1 - p_i)
  m draws:            Var[f] (sum_i a_i)^2 / (m - 1)
  ```

  Args:
    cells: `Cells`.
    priority: `float64` `Tensor` of shape `[B, C]`, `a_i`.
    expected: `float64` `Tensor` of shape `[B, C]`, `p_i`.
    level: `float64` scalar, `c`.
    draws_best: Boolean `Tensor` of shape `[B]`.

  Returns:
    pays: Boolean `Tensor` of shape `[B]`.
  """
  # The rest has many values, each with a `p_i` of about 0.
  listed = expected[:, :-1] if cells.has_rest else expected
  number = tf.reduce_sum(expected, axis=1)
  scatter = number - tf.reduce_sum(listed**2, axis=1)
  best = _where(draws_best, cells.weights[:, 0] * cells.importance[:, 0])
  total = tf.reduce_sum(priority, axis=1) + best
  others = number + tf.cast(draws_best, tf.float64) - 1.0  # `m - 1`
  return total**2 < _NOISE_OF_LEVEL * level**2 * scatter * others


def _round_shares(share, total):
  """Returns integers that sum to `total`, roughly proportional to `share`.

  Args:
    share: `float64` `Tensor` of shape `[B]`; a negative one counts as 0.
    total: `int32` scalar.

  Returns:
    rounded: `int32` `Tensor` of shape `[B]`.
  """
  ends = tf.cumsum(tf.maximum(share, tf.zeros_like(share)))
  ends = tf.concat([tf.zeros([1], ends.dtype), ends], axis=0)
  ends = tf.math.divide_no_nan(ends, ends[-1]) * tf.cast(total, ends.dtype)
  ends = tf.cast(tf.math.floor(ends + 0.5), tf.int32)
  return ends[1:] - ends[:-1]


def select(cells, allocation, num_left, u):
  """Returns the `Selection` for given uniforms.

  Args:
    cells: `Cells`.
    allocation: `Allocation`.
    num_left: As in `allocate`.
    u: `float64` `Tensor` of shape `[1 + N]`, uniform in (0, 1), with `N` the
      number of rows plus `num_left`. The first one places the systematic
      sample, the others the independent draws.

  Returns:
    selection: A `Selection`.
  """
  num_rows, num_cells = shapes.as_list(cells.weights)
  own, slot = tf.range(num_rows), tf.range(num_left)
  # The slots of certain cells come first, then those of draws, then those of
  # the systematic sample.
  draw = slot - allocation.num_certain
  point = slot - (num_left - allocation.num_points)
  further = allocation.num_draws - tf.cast(allocation.draws_best, tf.int32)
  ends = tf.cumsum(further)
  drawn_row = tf.searchsorted(ends, draw, side='right')
  is_draw = (draw >= 0) & (drawn_row < num_rows) & (point < 0)
  drawn_row = tf.minimum(drawn_row, num_rows - 1)
  rank = draw - tf.gather(ends - allocation.num_draws, drawn_row)
  drawn_cell, share = _find_draws(
    allocation, tf.concat([own, drawn_row], axis=0), u[1:]
  )
  found, found_rank = _find_points(allocation, point, u[0])
  certain = tf.searchsorted(allocation.certain, slot + 1)
  certain = tf.minimum(certain, tf.size(allocation.certain) - 1)
  is_certain = draw < 0
  # Concatenate the rows' own slots and the others into Tensors of shape [N].
  join = lambda of_rows, others: tf.concat([of_rows, others], axis=0)
  is_draw = join(allocation.draws_best, is_draw)
  is_summed = join(~allocation.draws_best, is_certain)
  cell = join(own * num_cells, tf.where(is_certain, certain, found))
  cell = tf.where(is_draw, drawn_cell, cell)
  rank = join(
    tf.zeros_like(own), tf.where(is_draw[num_rows:], rank, found_rank)
  )
  mass = tf.gather(tf.reshape(cells.weights, [-1]), cell)
  importance = tf.gather(tf.reshape(cells.importance, [-1]), cell)
  # This equals `w / p`, which would be inaccurate if both are tiny.
  weights = tf.math.divide_no_nan(allocation.level, importance)
  weights = _where(join(tf.zeros_like(own), point) >= 0, weights)
  weights = tf.where(is_draw, share, tf.where(is_summed, mass, weights))
  return Selection(cell, rank, _where(mass > 0.0, weights), is_summed, is_draw)


def _find_draws(allocation, rows, u):
  """Draws a cell from each given row, and returns it with its weight."""
  cumulated = tf.gather(allocation.masses, rows)  # [N, C]
  mass = cumulated[:, -1]
  # Rounding must not lead beyond the last cell with positive mass.
  target = tf.minimum(u * mass, mass * (1.0 - 2.0**-52))
  is_before = cumulated <= target[:, tf.newaxis]
  column = tf.reduce_sum(tf.cast(is_before, tf.int32), axis=1)
  num_cells = shapes.as_list(allocation.masses)[1]
  cell = rows * num_cells + tf.minimum(column, num_cells - 1)
  number = tf.cast(tf.gather(allocation.num_draws, rows), tf.float64)
  return cell, tf.math.divide_no_nan(mass, number)


def _find_points(allocation, point, u):
  """Returns the cell at each equidistant point, and the point's rank in it.

  Args:
    allocation: `Allocation`.
    point: `int32` `Tensor`, indices of points. The results for negative indices
      have no meaning.
    u: `float64` scalar, uniform in (0, 1).

  Returns:
    cell: `int32` `Tensor` of that shape.
    rank: `int32` `Tensor` of that shape: 0 unless the cell is longer than 1.
  """
  line, size = allocation.line, tf.size(allocation.line)
  end = tf.cast(allocation.num_points, tf.float64)
  # Rounding must not lead beyond the end.
  target = u + tf.cast(point, tf.float64)
  target = tf.minimum(target, end * (1.0 - 2.0**-52))
  cell = tf.minimum(tf.searchsorted(line, target, side='right'), size - 1)
  start = tf.gather(tf.concat([tf.zeros_like(line[:1]), line], axis=0), cell)
  return cell, tf.cast(tf.maximum(target - start, 0.0), tf.int32)
