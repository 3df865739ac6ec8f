# SPDX-License-Identifier: Apache-2.0
"""Draws integers outside a window, or outside a set, by inverse CDF.

All computations are in float64. Each tail is computed from its own side: a tail
below the mode is never 1 minus the tail above.
"""

import tensorflow as tf

from tfp_rb.internal import random

__all__ = ['Gaps', 'invert_tail']


class Gaps:
  """Measures and draws the integers between, below and above given ones."""

  def __init__(self, excluded, mode, tail, lowest):
    """Measures the gaps.

    Args:
      excluded: `Tensor` of shape `[n] + batch_shape`, ascending.
      mode: `Tensor` of `batch_shape`, a most probable value.
      tail: Callable `(z, below)`, as in `Window`, for any `z`.
      lowest: Python `float`, the smallest possible value.
    """
    self._tail = tail
    bottom = tf.fill(tf.shape(excluded[:1]), tf.cast(lowest - 1.0, tf.float64))
    # Gap i holds the integers strictly between `lower[i]` and `upper[i]`. The
    # last gap has no upper end. The shape is [n + 1] + batch_shape.
    self._lower = tf.concat([bottom, tf.maximum(excluded, bottom)], axis=0)
    upper = tf.maximum(excluded, bottom)
    # The masses of gaps below the mode are differences of lower tails, and the
    # other masses are differences of upper tails. The tail on the other side
    # would be close to 1, and the difference would lose digits.
    is_below = upper <= mode
    self._is_below = tf.concat([is_below, tf.zeros_like(is_below[:1])], axis=0)
    # The last upper end is a placeholder and is not used.
    self._upper = tf.concat([upper, bottom], axis=0)
    near = tf.where(self._is_below, self._lower, self._upper - 1.0)
    far = tf.where(self._is_below, self._upper - 1.0, self._lower)
    start = tail(near, self._is_below)
    # No mass lies beyond the last gap.
    self._start = tf.concat([start[:-1], tf.zeros_like(start[:1])], axis=0)
    masses = tail(far, self._is_below) - self._start
    # There is no gap between neighbouring or repeated integers.
    is_gap = tf.concat(
      [self._upper[:-1] - self._lower[:-1] > 1.0, tf.ones_like(is_below[:1])], 0
    )
    self._masses = tf.where(is_gap, tf.maximum(masses, 0.0), 0.0)

  @property
  def total(self):
    """`Tensor` of `batch_shape`, the mass of all gaps."""
    return tf.reduce_sum(self._masses, axis=0)

  def draw(self, u, bound):
    """Draws from the gaps.

    Args:
      u: `Tensor` of shape `[num_draws] + batch_shape + [2]`, uniforms: the
        first chooses the gap, the second the place in it.
      bound: Python `float`, the largest value returned.

    Returns:
      z: `Tensor` of shape `[num_draws] + batch_shape`.
    """
    rank = self._masses.shape.rank
    masses = tf.transpose(self._masses, [*range(1, rank), 0])
    index = random.search_index(masses[tf.newaxis], u[..., 0])
    # [num_draws, gaps] + batch_shape
    one_hot = tf.one_hot(index, self._masses.shape[0], True, False, axis=1)

    def chosen(x):  # [gaps] + batch_shape -> [num_draws] + batch_shape
      zero = tf.zeros([], x.dtype)
      return tf.reduce_sum(tf.where(one_hot, x[tf.newaxis], zero), axis=1)

    lower, upper = chosen(self._lower), chosen(self._upper)
    below = tf.reduce_any(one_hot & self._is_below, axis=1)
    target = chosen(self._start) + u[..., 1] * chosen(self._masses)
    z = invert_tail(self._tail, target, below, upper, lower, lower + 1.0, bound)
    is_last = index == self._masses.shape[0] - 1
    # Rounding in the search must not lead to an excluded value.
    return tf.where(
      is_last,
      tf.maximum(z, lower + 1.0),
      tf.clip_by_value(z, lower + 1.0, tf.maximum(upper - 1.0, lower + 1.0)),
    )


def invert_tail(tail, target, below, first, last, lowest, bound):
  """Finds the values at which the tails pass `target`.

  Below the window this is the smallest `z` with `q(Z <= z) > target`, above it
  the smallest `z` with `q(Z > z) < target`. The search treats all elements at
  once: it doubles the distance to the window until it has passed `target`, and
  then bisects. The bracket of a finished element no longer moves.

  Args:
    tail: Callable `(z, below)`, as in `Window`, that accepts any `z`.
    target: `Tensor` of shape `[n] + batch_shape`.
    below: Boolean `Tensor` of that shape.
    first: `Tensor`, the first value of the window.
    last: `Tensor`, the last value of the window.
    lowest: Python `float` or `Tensor`, the smallest value that is returned.
    bound: Python `float`, the largest value returned.

  Returns:
    z: `Tensor` of the shape of `target`.
  """

  empty = target <= 0.0  # There is nothing to find: the draw has weight 0.

  def reached(z):
    mass = tail(z, below)
    found = tf.where(below, mass > target, mass < target)
    return found | empty | ~(z < bound)  # A NaN ends the search, too.

  def double(low, high, done):
    wider = tf.minimum(last + 2.0 * (high - last), bound)
    low = tf.where(done, low, high)
    high = tf.where(done, high, wider)
    return low, high, done | reached(high)

  def bisect(low, high, done):
    middle = tf.floor(0.5 * (low + high))
    right = reached(middle)
    low = tf.where(done | right, low, middle)
    high = tf.where(done | ~right, high, middle)
    return low, high, _is_bracketed(low, high)

  not_all = lambda low, high, done: ~tf.reduce_all(done)
  low = tf.where(below, tf.cast(lowest - 1.0, tf.float64), last)
  high = tf.where(below, first - 1.0, last + 1.0)
  # Only upper tails need this loop: below the window, the bracket starts at
  # `lowest` and needs no doubling.
  low, high, _ = tf.while_loop(
    not_all, double, (low, high, below | reached(high))
  )
  low, high, _ = tf.while_loop(
    not_all, bisect, (low, high, _is_bracketed(low, high))
  )
  return high


def _is_bracketed(low, high):
  return ~(high - low > 1.0)  # True for NaN, so that the loop ends.
