"""One budget of evaluations for a whole batch: rows in doubt get more of it.

Each row offers candidates: its best values with their probabilities, and draws
from its rest with a share of the mass of the rest. The best value of a row is
always evaluated. Of all the other candidates, `n` are included, candidate `i`
with probability

```none
  p_i = min(1, a_i / c),     a_i = w_i s_i r_i,     sum_i p_i = n
```

where `w_i` is its weight, `s_i` the norm of its score and `r_i` the weight of
its row. This minimises the sum of `(w_i s_i r_i)^2 / p_i`, a bound of the
variance. Those with `p_i = 1` are included for certain, the others by
systematic sampling, which includes exactly as many as are left [1].

[1] Paul Fearnhead, Peter Clifford. On-line inference for hidden Markov models
    via particle filters. _JRSS B_, 65, 2003, section 4 (optimal resampling).
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs.atoms import Atoms, Pool
from tfp_rb.designs.integrand import Evaluation, evaluate
from tfp_rb.internal import shapes

__all__ = [
  'Candidates',
  'PooledIntegrand',
  'include',
  'offer',
  'outcomes',
  'select',
  'sum_by_row',
]

# A row counts at least this much of the mean row in the allocation. So every
# value of it can be included, and its expectation stays unbiased.
_LEAST_ROW_WEIGHT = 1e-3


class Candidates(NamedTuple):
  """What the rows offer, `C` candidates for each of `B` rows.

  Attributes:
    values: `Tensor` of shape `[C] + batch_shape + event_shape`; the first one
      is the best value of the row.
    weights: `Tensor` of shape `[C, B]`, the mean weight of a candidate.
    scores: `Tensor` of shape `[C, B]`, norms of the score.
    num_listed: Python `int`: the first ones are values of known probability,
      the others are draws.
  """

  values: tf.Tensor
  weights: tf.Tensor
  scores: tf.Tensor
  num_listed: int


class _Selection(NamedTuple):
  """Which `n` candidates are included, each of shape `[n]`.

  Attributes:
    index: `int32`, positions among all candidates.
    is_certain: Boolean, whether `p_i = 1`.
    level: `float64` scalar, `c`: `a_i / p_i` of those that are not certain; 0
      if there are none with mass.
  """

  index: tf.Tensor
  is_certain: tf.Tensor
  level: tf.Tensor


def include(whole, candidates, num_atoms, row_weights, u):
  """Returns the `Atoms` of a pool: the best of each row, then the others.

  Args:
    whole: The whole `Partition`.
    candidates: `Candidates`.
    num_atoms: `N`, a Python `int` or a scalar `Tensor`, larger than the number
      of rows `B` unless that is 0.
    row_weights: `Tensor` of the batch shape, or `None`.
    u: `float64` scalar `Tensor`, uniform in (0, 1): the only randomness left.

  Returns:
    atoms: `Atoms` with values of shape `[N] + event_shape`, and with a `pool`.
      Their `num_summed` is `B`: the others may be draws.
  """
  num_rows = shapes.size(whole.batch_shape)
  importance = _importance(candidates, row_weights, num_rows)
  priority = _priority(candidates, importance)
  selection = select(priority, num_atoms - num_rows, u)
  return _atoms_of(whole, candidates, importance, selection)


def offer(whole, num_candidates, num_draws, seed):
  """Returns the `Candidates`: best values of each row, draws of its rest."""
  num_rows = shapes.size(whole.batch_shape)
  listed = whole.best(num_candidates)
  values, weights = listed.values, listed.weights  # [k] + batch_shape + ...
  num_listed = values.shape[0]
  by_row = lambda x: tf.reshape(x, [shapes.leading(x), num_rows])
  # The norm of the score of a table, |e_z - q|. That of a natural parameter can
  # be 0 at a possible value, which would then never be included.
  probs = by_row(weights)
  collision = tf.reduce_sum(probs**2, axis=0)
  if listed.has_rest:
    draws = listed.draw_rest(num_draws, seed)
    values = tf.concat([values, draws], axis=0)
    share = listed.rest_weight[tf.newaxis] / num_draws
    weights = tf.concat([weights] + [share] * num_draws, axis=0)
    # A draw is one of many values, each of little mass.
    probs = tf.concat([probs, tf.zeros_like(by_row(weights)[num_listed:])], 0)
  scores = tf.sqrt(1.0 - 2.0 * probs + collision)
  return Candidates(values, by_row(weights), scores, num_listed)


def _importance(candidates, row_weights, num_rows):
  """`s_i r_i` of the candidates other than the best, `[C - 1, B]`, float64."""
  importance = tf.cast(candidates.scores[1:], tf.float64)
  if row_weights is None:
    return importance
  rows = tf.abs(tf.reshape(tf.cast(row_weights, tf.float64), [num_rows]))
  least = _LEAST_ROW_WEIGHT * tf.reduce_mean(rows)
  # Where all weights are 0, all rows count alike.
  rows = tf.where(least > 0.0, tf.maximum(rows, least), tf.ones_like(rows))
  return importance * rows


def _priority(candidates, importance):
  """`a_i` of the candidates other than the best, flattened to `[(C - 1) B]`."""
  priority = tf.cast(candidates.weights[1:], tf.float64) * importance
  return tf.reshape(priority, [-1])


class _Line(NamedTuple):
  """The candidates that are not certain, on a line of as many unit lengths.

  Attributes:
    top_index: `int32` `Tensor` of shape `[n]`, the candidates of the highest
      priority; the first `num_certain` of them are certain.
    num_certain: `int32` scalar.
    cumulated: `float64` `Tensor`, where each candidate ends on the line: a
      multiple of its probability, 0 where it is certain.
    num_points: `float64` scalar, the length of the line.
    level: `float64` scalar, `c`.
  """

  top_index: tf.Tensor
  num_certain: tf.Tensor
  cumulated: tf.Tensor
  num_points: tf.Tensor
  level: tf.Tensor


def select(priority, num_included, u):
  """Includes candidates with probabilities `min(1, priority / c)`.

  Args:
    priority: `float64` `Tensor` of shape `[n]`, not negative.
    num_included: Python `int` or scalar `int32` `Tensor`, at most `n`.
    u: `float64` scalar `Tensor`, uniform in (0, 1).

  Returns:
    selection: A `_Selection`. Where fewer than `num_included` candidates have
      priority, those without fill it up.
  """
  line = _lay_out(priority, num_included)
  slots = tf.range(num_included)
  is_certain = slots < line.num_certain
  # Equidistant points on the line. Rounding must not lead beyond its end.
  points = u + tf.cast(slots - line.num_certain, tf.float64)
  points = tf.minimum(points, line.num_points * (1.0 - 2.0**-52))
  drawn = tf.searchsorted(line.cumulated, points, side='right')
  drawn = tf.minimum(drawn, tf.size(priority) - 1)
  is_top = is_certain | (line.level <= 0.0)
  index = tf.where(is_top, line.top_index, drawn)
  return _Selection(index, is_certain, line.level)


def _lay_out(priority, num_included):
  """Returns the `_Line`."""
  top, top_index = tf.math.top_k(priority, num_included)  # largest first
  slots = tf.range(num_included)
  left = tf.cast(num_included - slots, tf.float64)
  # If the `t` largest are certain, the others share what is left.
  above = tf.cumsum(top, exclusive=True)
  level_if = (tf.reduce_sum(priority) - above) / left
  num_certain = tf.reduce_sum(tf.cast(~_any_before(top < level_if), tf.int32))
  # A sum of positive terms: the difference above may have no correct digit.
  others = tf.tensor_scatter_nd_update(
    priority,
    top_index[:, tf.newaxis],
    tf.where(slots < num_certain, tf.zeros_like(top), top),
  )
  cumulated = tf.cumsum(others)
  total = tf.reduce_max(tf.concat([[0.0], cumulated], axis=0))
  num_points = tf.cast(num_included - num_certain, tf.float64)
  return _Line(
    top_index,
    num_certain,
    # Its end is exactly the number of points.
    tf.math.divide_no_nan(cumulated, total) * num_points,
    num_points,
    tf.math.divide_no_nan(total, num_points),
  )


def outcomes(whole, candidates, num_atoms, row_weights):
  """Lists all outcomes of the inclusion, for exact moments.

  What is included is constant between the points at which a candidate ends on
  the line, taken modulo 1.

  Args:
    whole: The whole `Partition`.
    candidates: `Candidates`.
    num_atoms: As in `include`.
    row_weights: As in `include`.

  Returns:
    uniforms: List of Python `float`s, one for each outcome.
    chances: List of Python `float`s, their probabilities.
  """
  num_rows = shapes.size(whole.batch_shape)
  importance = _importance(candidates, row_weights, num_rows)
  priority = _priority(candidates, importance)
  line = _lay_out(priority, num_atoms - num_rows)
  ends = np.mod(line.cumulated.numpy(), 1.0)
  ends = np.unique(np.concatenate([[0.0, 1.0], ends]))
  return list(0.5 * (ends[1:] + ends[:-1])), list(np.diff(ends))


def _any_before(x):
  """Whether an entry, or one before it, is true."""
  return tf.cumsum(tf.cast(x, tf.int32)) > 0


def _atoms_of(whole, candidates, importance, selection):
  """Puts the best values and the included ones together."""
  dtype = candidates.weights.dtype
  num_rows = shapes.leading(candidates.weights[0])
  own_rows = tf.range(num_rows)
  rows = selection.index % num_rows  # as the candidates are [C - 1, B]
  of_others = lambda x: tf.gather(tf.reshape(x, [-1]), selection.index)
  plain = of_others(candidates.weights[1:])
  # Not `w / p`: where `p` is tiny, both are.
  scaled = tf.math.divide_no_nan(selection.level, of_others(importance))
  weights = tf.where(selection.is_certain, plain, tf.cast(scaled, dtype))
  # Spare slots: a candidate without mass, which becomes the best of its row.
  weights = tf.where(plain > 0.0, weights, tf.zeros_like(weights))
  is_known = selection.index < (candidates.num_listed - 1) * num_rows
  probs = tf.where(selection.is_certain & is_known, plain, tf.zeros_like(plain))
  best = candidates.weights[0]
  rows = tf.concat([own_rows, rows], axis=0)
  weights = tf.concat([best, weights], axis=0)  # [N]
  probs = tf.concat([best, probs], axis=0)
  anchors = probs / tf.gather(sum_by_row(probs, rows, num_rows), rows)
  # The weights of a row sum to 1. What is missing goes to the atoms that are
  # certain: their mean acts as a control variate.
  missing = 1.0 - sum_by_row(weights, rows, num_rows)
  # [N], positions among all candidates [C, B]; the best ones come first.
  position = tf.concat([own_rows, num_rows + selection.index], axis=0)
  position = tf.where(weights > 0.0, position, rows)
  weights += anchors * tf.gather(missing, rows)
  values, log_prob = _gather(whole, candidates, position)
  return Atoms(
    values,
    tf.stop_gradient(weights),
    log_prob,
    num_summed=num_rows,
    partition=whole,
    pool=Pool(rows, tf.stop_gradient(anchors)),
  )


def _gather(whole, candidates, position):
  """Values and log-probabilities at positions among the candidates."""
  rank = len(whole.batch_shape)
  # Where a candidate is impossible, `log q` is taken at the best value.
  is_possible = tf.reshape(
    candidates.weights > 0.0, tf.shape(candidates.values)[: 1 + rank]
  )
  values = tf.where(
    shapes.with_event_rank(is_possible, candidates.values),
    candidates.values,
    candidates.values[:1],
  )
  log_prob = tf.reshape(whole.log_prob(values), [-1])
  event_shape = shapes.as_list(values)[1 + rank :]
  values = tf.reshape(values, [-1, *event_shape])
  return tf.gather(values, position), tf.gather(log_prob, position)


def sum_by_row(x, rows, num_rows):
  """Sums atoms of shape `[N]` to rows of shape `[B]`."""
  return tf.math.unsorted_segment_sum(x, rows, num_rows)


class PooledIntegrand:
  """`f` at the atoms of a pool, the level of each row taken off the signal.

  The level is the mean over the atoms that are included for certain. It does
  not depend on the draws, so every estimator that adds a baseline stays
  unbiased: that baseline is an offset to the level.
  """

  def __init__(self, f, atoms):
    """Stores the function.

    Args:
      f: Callable of atoms, `[N] + event_shape` to `[N]`.
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
    anchored = tf.cast(self._pool.anchors, signal.dtype) * signal
    rows = self._pool.rows
    level = tf.gather(sum_by_row(anchored, rows, self._num_rows), rows)
    return Evaluation(value, signal - tf.stop_gradient(level))
