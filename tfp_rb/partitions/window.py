# SPDX-License-Identifier: Apache-2.0
"""Partitions families of counts: the best values form a window at the mode.

The `k` most probable values of a unimodal family are contiguous, so `2 k + 1`
candidates around the mode contain them. They are ranked by the ratios of
neighbouring probabilities, which are accurate even if `log_prob` is constant up
to rounding. Values outside the window are drawn by inverse CDF, never by
rejection. Parameters are cast to float64 before any `exp`.

Draws of `Binomial` and `NegativeBinomial` are exact for means up to about 1e5,
where the incomplete beta function of TensorFlow is accurate. A value above
`2**53`, or above the largest number of an integer dtype, is replaced by that
bound.
"""

import abc

import numpy as np
import tensorflow as tf

from tfp_rb.internal import dtypes, shapes
from tfp_rb.partitions.base import Partition
from tfp_rb.partitions.tails import Gaps, invert_tail

__all__ = ['Window']


class Window(Partition, metaclass=abc.ABCMeta):
  """Partitions a unimodal distribution on integers, in float64.

  A subclass sets the attributes before it calls `__init__`, and defines the
  abstract methods.

  Attributes:
    lowest: Python `float`, the smallest value.
    highest: The largest value: `np.inf`, or a `Tensor` of `batch_shape`.
  """

  num_uniforms = 2  # The first chooses a side, the second a value there.
  broadcasts = True  # All computations are elementwise.
  lowest = 0.0
  highest = np.inf

  def __init__(self, distribution, parameter, mode, num_values=None):
    """Makes the partition with `k = 0`.

    Args:
      distribution: The distribution; its dtype is that of the values.
      parameter: `Tensor` whose dtype is that of the log-weights.
      mode: `Tensor`, a most probable value, or an integer next to one.
      num_values: Python `int`, or `None` if infinite or unknown.
    """
    self.distribution = distribution
    self._dtype = dtypes.at_least_float32(tf.convert_to_tensor(parameter)).dtype
    batch_shape = shapes.batch_shape(distribution)
    mode = tf.stop_gradient(tf.broadcast_to(mode, batch_shape))
    self._mode = tf.clip_by_value(mode, self.lowest, self.highest)
    self._gaps = None  # `excluding` sets it; `best` does not need it.
    nothing = tf.zeros([0, *batch_shape], tf.float64)
    super().__init__(
      values=tf.cast(nothing, distribution.dtype),
      log_weights=tf.cast(nothing, self._dtype),
      log_rest=tf.zeros(batch_shape, self._dtype),
      sample_rest=None,
      num_values=num_values,
    )
    self.has_rest = True
    # The window is empty. The mode belongs to the values above it.
    self._first, self._last = self._mode, self._mode - 1.0

  @abc.abstractmethod
  def odds(self, z):
    """Returns a pair `(a, b)` with `q(z) / q(z - 1) = a / b`.

    With a pair, steps up and steps down compare equal if values are equally
    probable. Differences of logarithms may differ by rounding.

    Args:
      z: `float64` `Tensor`, `lowest < z <= highest`.
    """

  @abc.abstractmethod
  def log_mass(self, z):
    """Returns the differentiable `log q(z)` in float64."""

  @abc.abstractmethod
  def tail_inside(self, z, below):
    """Returns `q(Z <= z)` if `below`, else `q(Z > z)`, inside the support.

    Args:
      z: `float64` `Tensor`, `lowest <= z < highest`.
      below: Boolean `Tensor`.
    """

  @abc.abstractmethod
  def score(self, z):
    """Returns the derivative of `log q(z)` w.r.t. the natural parameter."""

  def tail(self, z, below):
    """Returns `tail_inside`, extended to any `z`."""
    # The special functions are not defined outside the support.
    inside = (z >= self.lowest) & (z < self.highest)
    safe = tf.where(inside, z, self.lowest)
    outside = tf.where(below == (z < self.lowest), 0.0, 1.0)
    return tf.where(
      inside, self.tail_inside(safe, below), tf.cast(outside, tf.float64)
    )

  def best(self, num_summed):
    if self.num_values is not None:
      num_summed = min(num_summed, self.num_values)
    if num_summed == 0:
      return self
    values, relative = _window(self, self._mode, num_summed)  # [k] + batch
    log_weights = tf.stop_gradient(relative + self.log_mass(self._mode))
    # If the support is small, some slots hold impossible values of weight 0.
    # The mode replaces them.
    values = tf.where(relative > -np.inf, values, self._mode)
    result = self.replace(
      values=self._to_values(values),
      log_weights=tf.cast(log_weights, self._dtype),
      has_rest=num_summed != self.num_values,
      _first=tf.reduce_min(values, axis=0),
      _last=tf.reduce_max(values, axis=0),
    )
    summed = tf.reduce_sum(tf.exp(log_weights), axis=0)
    result._set_rest(summed, sum(result._masses_outside()))
    return result

  def _set_rest(self, summed, outside):
    """Sets `log_rest` from the mass of the summed values or of the others.

    If most of the mass is left, `1 - summed` loses no digits. It is also
    correct for large means, where the incomplete gamma and beta functions are
    wrong.

    Args:
      summed: `Tensor` of `batch_shape`, the mass of the summed values.
      outside: `Tensor` of `batch_shape`, the mass of the others from the tails.
    """
    log_rest = tf.where(
      summed < 0.5, tf.math.log1p(-summed), tf.math.log(outside)
    )
    self.log_rest = tf.cast(tf.stop_gradient(log_rest), self._dtype)

  def _masses_outside(self):
    """Returns the masses below and above the window, of `batch_shape`."""
    shape = shapes.as_list(self._mode)
    below = self.tail(self._first - 1.0, tf.fill(shape, True))
    above = self.tail(self._last, tf.fill(shape, False))
    return tf.stop_gradient(below), tf.stop_gradient(above)

  def excluding(self, values):
    # A float that was shifted forth and back may not be an integer.
    z = tf.round(tf.cast(values, tf.float64))
    ordered = tf.sort(z, axis=0)
    # A repeated value is excluded only once.
    is_new = tf.concat(
      [tf.ones_like(ordered[:1], tf.bool), ordered[1:] > ordered[:-1]], axis=0
    )
    log_masses = self._log_mass_anywhere(ordered)
    summed = tf.where(is_new, tf.exp(log_masses), tf.zeros_like(ordered))
    gaps = Gaps(ordered, self._mode, self.tail, self.lowest)
    log_weights = tf.stop_gradient(self._log_mass_anywhere(z))
    result = self.replace(
      values=self._to_values(z),
      log_weights=tf.cast(log_weights, self._dtype),
      has_rest=True,
      _gaps=gaps,
    )
    result._set_rest(tf.reduce_sum(summed, axis=0), gaps.total)
    return result

  def _log_mass_anywhere(self, z):
    # The mode replaces impossible values, at which the mass may be NaN.
    is_possible = (z >= self.lowest) & (z <= self.highest)
    return tf.where(
      is_possible, self.log_mass(tf.where(is_possible, z, self._mode)), -np.inf
    )

  def rest_from_uniforms(self, u):
    dtype = tf.as_dtype(self.distribution.dtype)
    # From 2^53 on, float64 cannot hold all integers, and the search would not
    # end.
    bound = float(min(2**53, dtype.max)) if dtype.is_integer else 2.0**53
    if self._gaps is not None:
      z = self._gaps.draw(u, bound)
    else:
      mass_below, mass_above = self._masses_outside()
      below = u[..., 0] * (mass_below + mass_above) < mass_below
      target = u[..., 1] * tf.where(below, mass_below, mass_above)
      z = invert_tail(
        self.tail, target, below, self._first, self._last, self.lowest, bound
      )
    # Stop the gradient of the user's `f`: it must not pass through the search.
    return self._to_values(tf.stop_gradient(z))

  def _to_values(self, z):
    """Casts to the distribution's dtype, or raises if it is too narrow."""
    dtype = tf.as_dtype(self.distribution.dtype)
    values = tf.cast(z, dtype)
    if not self.distribution.validate_args:
      return values
    message = (
      f'`dtype` of `{self.name}` must hold the values; got {dtype.name}, which '
      f'holds integers up to {dtypes.largest_integer(dtype)}. Use a wider '
      'dtype.'
    )
    largest = tf.cast(dtypes.largest_integer(dtype), z.dtype)
    # The distribution checks itself first, so that a parameter out of range is
    # reported as such.
    checked = self.distribution.log_prob(tf.cast(self.lowest, dtype))
    with tf.control_dependencies([checked]):
      is_held = tf.debugging.assert_less_equal(z, largest, message=message)
    with tf.control_dependencies([is_held]):
      return tf.identity(values)

  def _log_prob(self, values):
    return tf.cast(self.log_mass(tf.cast(values, tf.float64)), self._dtype)

  def nearest(self, values):
    return tf.round(values)

  def log_prob_anywhere(self, values):
    z = tf.cast(values, tf.float64)
    is_possible = (z >= self.lowest) & (z <= self.highest)
    is_possible &= tf.abs(z - tf.round(z)) <= 1e-5 * tf.maximum(tf.abs(z), 1.0)
    # `lgamma` of an impossible value may be NaN, so the mode takes its place.
    z = tf.where(is_possible, tf.round(z), self._mode)
    log_prob = self.log_prob(tf.cast(z, values.dtype))
    return tf.where(is_possible, log_prob, tf.constant(-np.inf, log_prob.dtype))

  def score_norm(self, values):
    score = self.score(tf.cast(values, tf.float64))
    return tf.cast(score**2, self._dtype)


def _window(law, mode, num_summed):
  """Returns the best values, and their `log(q(z) / q(mode))`.

  Args:
    law: A `Window`.
    mode: `Tensor` of `batch_shape`.
    num_summed: Python `int`.

  Returns:
    values: `Tensor` of shape `[k] + batch_shape`, best first.
    relative: `Tensor` of that shape; `-inf` for values outside the support.
  """

  def log_odds(z, upward):
    inside = (z > law.lowest) & (z <= law.highest)
    # Two logarithms would round differently for `a / b` and `b / a`, and ties
    # would be lost.
    a, b = law.odds(tf.where(inside, z, law.lowest + 1.0))
    return tf.where(inside, tf.math.log(a / b if upward else b / a), -np.inf)

  steps = tf.reshape(
    tf.range(1.0, num_summed + 1.0, dtype=tf.float64),
    [-1] + [1] * mode.shape.rank,
  )  # [k, 1, ..., 1]
  up = log_odds(mode + steps, upward=True)
  down = log_odds(mode - steps + 1.0, upward=False)
  # Candidates are ascending, so the lowest value wins a tie: [2 k + 1] + batch.
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
  # `top_k` works on the last axis. Its gradient is not needed, because the
  # weights are constants.
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
