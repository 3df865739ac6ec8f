"""Families of counts: the best values form a window about the mode.

The `k` most probable values of a unimodal family are contiguous, so `2 k + 1`
candidates about the mode contain them. They are ranked by the ratios of
neighbouring probabilities, which are accurate where `log_prob` itself is flat
to rounding. What lies outside the window is drawn by inverse CDF, never by
rejection. All of it in float64, cast before any `exp`.

Draws of `Binomial` and `NegativeBinomial` are exact for means up to about 1e5,
where the incomplete beta function of TensorFlow is accurate. Values above
`2**53`, or above the largest number of an integer dtype, are returned as that
bound.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb import _random
from tfp_rb.partitions import _shapes
from tfp_rb.partitions._tails import Gaps, invert_tail
from tfp_rb.partitions.base import Partition

__all__ = ['CountLaw', 'partition_counts']


class CountLaw(NamedTuple):
  """A unimodal law on integers, in float64.

  Attributes:
    lowest: Python `float`, the smallest value.
    highest: The largest value: `np.inf`, or a `Tensor` of `batch_shape`.
    mode: `Tensor` of `batch_shape`, a most probable value (or one next to it).
    odds: Callable, a pair `(a, b)` with `q(z) / q(z - 1) = a / b`, for
      `lowest < z <= highest`. A pair, since `a / b` and `b / a` compare equal
      where values tie; differences of logarithms need not.
    log_prob: Callable, the differentiable `log q(z)`.
    tail: Callable `(z, below)`: `q(Z <= z)` where `below`, else `q(Z > z)`,
      for `lowest <= z < highest`.
    score: Callable, derivative of `log q(z)` by the natural parameter.
    num_values: Python `int`, or `None` if infinite or unknown.
  """

  lowest: float
  highest: tf.Tensor | float
  mode: tf.Tensor
  odds: Callable
  log_prob: Callable
  tail: Callable
  score: Callable
  num_values: int | None = None


def partition_counts(q, law, num_summed, dtype):
  """Returns the `Partition` of a distribution `q` that follows `law`.

  Args:
    q: The distribution; its dtype is that of the values.
    law: A `CountLaw`.
    num_summed: Python `int`.
    dtype: Dtype of the log-weights, that of the parameters of `q`.

  Returns:
    partition: A `Partition`.
  """
  if law.num_values is not None:
    num_summed = min(num_summed, law.num_values)
  batch_shape = _shapes.batch_shape(q)
  mode = tf.stop_gradient(tf.broadcast_to(law.mode, batch_shape))
  mode = tf.clip_by_value(mode, law.lowest, law.highest)

  def tail(z, below):
    """As `law.tail`, for any `z`."""
    inside = (z >= law.lowest) & (z < law.highest)
    safe = tf.where(inside, z, law.lowest)
    outside = tf.where(below == (z < law.lowest), 0.0, 1.0)
    return tf.where(inside, law.tail(safe, below), tf.cast(outside, tf.float64))

  if num_summed == 0:
    values = tf.zeros([0, *batch_shape], tf.float64)
    log_weights = values
    first, last = mode, mode - 1.0  # an empty window
  else:
    values, relative = _window(law, mode, num_summed)
    log_weights = relative + law.log_prob(mode)
    possible = relative > -np.inf
    values = tf.where(possible, values, mode)
    first = tf.reduce_min(values, axis=0)
    last = tf.reduce_max(values, axis=0)
  mass_below = tail(first - 1.0, tf.fill(tf.shape(first), True))
  mass_above = tail(last, tf.fill(tf.shape(last), False))
  mass_below, mass_above, log_weights = tf.nest.map_structure(
    tf.stop_gradient, (mass_below, mass_above, log_weights)
  )
  # Where most of the mass is left, `1 - sum` loses nothing, and is right for
  # means at which the incomplete gamma and beta functions no longer are.
  summed = tf.reduce_sum(tf.exp(log_weights), axis=0)
  log_rest = tf.where(
    summed < 0.5, tf.math.log1p(-summed), tf.math.log(mass_below + mass_above)
  )

  def sample_rest(num_draws, seed):
    u = _random.uniform(
      [2, num_draws, *batch_shape], seed, tf.float64, draw_axis=1
    )
    below = u[0] * (mass_below + mass_above) < mass_below
    target = u[1] * tf.where(below, mass_below, mass_above)
    z = invert_tail(tail, target, below, first, last, law.lowest, _bound(q))
    # A user's `f` must not be differentiated back into the search.
    return tf.cast(tf.stop_gradient(z), q.dtype)

  def excluding(values):
    # Rounded, since a shifted float need not come back as the same integer.
    z = tf.round(tf.cast(values, tf.float64))
    is_possible = (z >= law.lowest) & (z <= law.highest)
    log_weights = tf.where(
      is_possible, law.log_prob(tf.where(is_possible, z, mode)), -np.inf
    )
    ordered = tf.sort(z, axis=0)
    gaps = Gaps(ordered, mode, tail, law.lowest)
    # A value that is named twice is excluded once.
    is_new = tf.concat(
      [tf.ones_like(ordered[:1], tf.bool), ordered[1:] > ordered[:-1]], axis=0
    )
    is_new &= (ordered >= law.lowest) & (ordered <= law.highest)
    summed = tf.exp(law.log_prob(tf.where(is_new, ordered, mode)))
    summed = tf.reduce_sum(tf.where(is_new, summed, 0.0), axis=0)
    log_rest = tf.where(
      summed < 0.5, tf.math.log1p(-summed), tf.math.log(gaps.total)
    )

    def sample_rest(num_draws, seed):
      u = _random.uniform(
        [2, num_draws, *batch_shape], seed, tf.float64, draw_axis=1
      )
      return tf.cast(tf.stop_gradient(gaps.draw(u, _bound(q))), q.dtype)

    return result._replace(
      values=tf.cast(z, q.dtype),
      log_weights=tf.cast(tf.stop_gradient(log_weights), dtype),
      log_rest=tf.cast(tf.stop_gradient(log_rest), dtype),
      sample_rest=sample_rest,
    )

  exhausted = law.num_values is not None and num_summed == law.num_values
  as_float64 = lambda z: tf.cast(z, tf.float64)
  result = Partition(
    values=tf.cast(values, q.dtype),
    log_weights=tf.cast(log_weights, dtype),
    log_rest=tf.cast(log_rest, dtype),
    sample_rest=None if exhausted else sample_rest,
    num_values=law.num_values,
    log_prob=lambda z: tf.cast(law.log_prob(as_float64(z)), dtype),
    score_norm=lambda z: tf.cast(law.score(as_float64(z)) ** 2, dtype),
    excluding=excluding,
  )
  return result


def _window(law, mode, num_summed):
  """The best values, `[k] + batch_shape`, and their `log q(z) / q(mode)`."""

  def log_odds(z, upward):
    inside = (z > law.lowest) & (z <= law.highest)
    a, b = law.odds(tf.where(inside, z, law.lowest + 1.0))
    return tf.where(inside, tf.math.log(a / b if upward else b / a), -np.inf)

  steps = tf.reshape(
    tf.range(1.0, num_summed + 1.0, dtype=tf.float64),
    [-1] + [1] * mode.shape.rank,
  )
  up = log_odds(mode + steps, upward=True)
  down = log_odds(mode - steps + 1.0, upward=False)
  candidates = tf.concat(
    [tf.reverse(mode - steps, [0]), mode[tf.newaxis], mode + steps], axis=0
  )
  relative = tf.concat(
    [
      tf.reverse(tf.cumsum(down, axis=0), [0]),
      tf.zeros_like(mode)[tf.newaxis],
      tf.cumsum(up, axis=0),
    ],
    axis=0,
  )
  last_axis_first = [mode.shape.rank, *range(mode.shape.rank)]
  first_axis_last = [*range(1, mode.shape.rank + 1), 0]
  best, index = tf.math.top_k(
    tf.stop_gradient(tf.transpose(relative, first_axis_last)), num_summed
  )
  values = tf.gather(
    tf.transpose(candidates, first_axis_last),
    index,
    batch_dims=mode.shape.rank,
  )
  return (
    tf.transpose(values, last_axis_first),
    tf.transpose(best, last_axis_first),
  )


def _bound(q):
  """The largest value that is told apart from its neighbours."""
  return float(min(2**53, q.dtype.max)) if q.dtype.is_integer else 2.0**53
