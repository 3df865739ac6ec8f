# SPDX-License-Identifier: Apache-2.0
"""Defines the families of counts: the odds and tails of each `Window`."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import shapes
from tfp_rb.partitions.registry import register
from tfp_rb.partitions.window import Window

__all__ = ['Binomial', 'Geometric', 'NegativeBinomial', 'Poisson', 'Zipf']

tfd = tfp.distributions

# TensorFlow's incomplete gamma function is wrong from about 1.5e5 on, because
# its series stops before it converges.
_LARGE_RATE = 1e5


def _float64(x):
  return tf.cast(tf.convert_to_tensor(x), tf.float64)


def _inside(parameter, *boundaries):
  """Stops the gradient at the boundary, where only one value is possible.

  At the boundary, the derivatives of all probabilities sum to 0, but `f` is
  never evaluated at impossible values. The possible value alone would
  contribute a multiple of `f`, so an offset of `f` would change the gradient.

  Args:
    parameter: `Tensor`.
    *boundaries: Python `float`s.

  Returns:
    parameter: `Tensor`, as given.
  """
  is_inside = tf.reduce_all([parameter != b for b in boundaries], axis=0)
  return tf.where(is_inside, parameter, tf.stop_gradient(parameter))


class _Coin(NamedTuple):
  """Holds a success probability in float64, with finite gradients of its log.

  The `log_prob` of TFP has NaN gradients if a probability is 0 or 1.
  """

  probs: tf.Tensor
  failure: tf.Tensor
  log_prob: Callable  # (successes, failures) -> Tensor


def _coin(q):
  if q.logits is not None:
    logits = _float64(q.logits)
    return _Coin(
      tf.sigmoid(logits),
      tf.sigmoid(-logits),
      lambda x, y: (
        x * tf.math.log_sigmoid(logits) + y * tf.math.log_sigmoid(-logits)
      ),
    )
  probs = _inside(_float64(q.probs), 0.0, 1.0)
  return _Coin(
    probs,
    1.0 - probs,
    # `xlogy` and `xlog1py` are 0, not NaN, for 0 successes of probability 0.
    lambda x, y: tf.math.xlogy(x, probs) + tf.math.xlog1py(y, -probs),
  )


@register(tfd.Poisson, kind='counts')
class Poisson(Window):
  """Implements the Poisson distribution, `q(z) = rate^z exp(-rate) / z!`."""

  def __init__(self, q):
    given = tf.convert_to_tensor(q.log_rate if q.rate is None else q.rate)
    self._log_rate = None
    if q.rate is None:
      self._log_rate = _float64(given)
      self._rate = tf.exp(self._log_rate)
    else:
      self._rate = _inside(_float64(given), 0.0)
    super().__init__(q, given, tf.floor(self._rate))

  def odds(self, z):
    return self._rate, z  # q(z) / q(z - 1) = rate / z

  def log_mass(self, z):
    if self._log_rate is not None:
      # A log-rate of -inf times 0 must be 0, not NaN.
      power = tf.math.multiply_no_nan(self._log_rate, z)
    else:
      # The gradient of `xlogy` is finite at a rate of 0.
      power = tf.math.xlogy(z, self._rate)
    return power - self._rate - tf.math.lgamma(z + 1.0)

  def tail_inside(self, z, below):
    rate = self._rate
    # q(Z <= z) = Q(z + 1, rate), https://dlmf.nist.gov/8.4.E10.
    return tf.where(
      rate > _LARGE_RATE,
      _large_poisson_tail(z, below, rate),
      tf.where(
        below, tf.math.igammac(z + 1.0, rate), tf.math.igamma(z + 1.0, rate)
      ),
    )

  def score(self, z):
    return z - self._rate  # with respect to the log-rate


def _large_poisson_tail(z, below, rate):
  """Computes tails at a large rate, where `tf.math.igamma` is wrong.

  This is Temme's uniform expansion, https://dlmf.nist.gov/8.12. Its relative
  error is below 1e-10 within 7 standard deviations of the mean.

  Args:
    z: `Tensor` of non-negative values.
    below: Boolean `Tensor`, `True` for `q(Z <= z)` and `False` for `q(Z > z)`.
    rate: `Tensor`.

  Returns:
    tail: `Tensor`.
  """
  # Equation 8.12.1 with lambda = 1 + mu. Rounding may make the square negative.
  a = z + 1.0
  mu = (rate - a) / a
  half_square = tf.maximum(mu - tf.math.log1p(mu), 0.0)
  eta = tf.sign(mu) * tf.sqrt(2.0 * half_square)
  side = tf.where(below, tf.ones_like(a), -tf.ones_like(a))
  # Maclaurin series of c_0 + 1/3 and c_1, since the closed forms in 8.12.9
  # cancel near the mean.
  first = eta * (1 / 12 + eta * (-2 / 135 + eta * (1 / 864 + eta / 2835)))
  second = -1 / 540 + eta * (-1 / 288 + eta / 378)
  # Two terms of 8.12.7, then 8.12.4 (below) or 8.12.3 (above).
  correction = tf.exp(-a * half_square) / tf.sqrt(2.0 * np.pi * a)
  correction *= first - 1 / 3 + second / a
  return 0.5 * tf.math.erfc(side * eta * tf.sqrt(0.5 * a)) + side * correction


@register(tfd.NegativeBinomial, kind='counts')
class NegativeBinomial(Window):
  """Implements the number of successes before `total_count` failures."""

  def __init__(self, q):
    self._total_count = n = _float64(q.total_count)
    self._coin = _coin(q)
    # If `total_count` is at most 1, the probabilities decrease from 0 on.
    mode = tf.floor((n - 1.0) * self._coin.probs / self._coin.failure)
    super().__init__(q, q.total_count, tf.where(n > 1.0, mode, 0.0))

  def odds(self, z):
    return (z + self._total_count - 1.0) * self._coin.probs, z

  def log_mass(self, z):
    # The binomial coefficient is 1 / ((n + z) B(n, z + 1)). The difference of
    # three `lgamma`s would cancel for large counts.
    n = self._total_count
    return (
      self._coin.log_prob(z, n)
      - tf.math.log(n + z)
      - tfp.math.lbeta(n, z + 1.0)
    )

  def tail_inside(self, z, below):
    # q(Z > z) = I_p(z + 1, n), https://dlmf.nist.gov/8.17.E24. The reflection
    # 8.17.4 gives the lower tail without a subtraction.
    n = self._total_count
    return tf.math.betainc(
      tf.where(below, n, z + 1.0),
      tf.where(below, z + 1.0, n),
      tf.where(below, self._coin.failure, self._coin.probs),
    )

  def score(self, z):
    # With respect to the logits, d log q / d logit = z (1 - p) - n p.
    return z * self._coin.failure - self._total_count * self._coin.probs


@register(tfd.Geometric, kind='counts')
class Geometric(Window):
  """Implements the number of failures before the first success."""

  def __init__(self, q):
    self._coin = coin = _coin(q)
    self._log_failure = tf.stop_gradient(
      coin.log_prob(np.float64(0.0), np.float64(1.0))
    )
    given = q.probs if q.logits is None else q.logits
    super().__init__(q, given, tf.zeros_like(coin.probs))

  def odds(self, z):
    failure = self._coin.failure
    return tf.broadcast_to(failure, tf.shape(z)), tf.ones_like(z)

  def log_mass(self, z):
    return self._coin.log_prob(np.float64(1.0), z)

  def tail_inside(self, z, below):
    # q(Z > z) = (1 - p)^(z + 1); `expm1` keeps the digits of small lower tails.
    log_above = (z + 1.0) * self._log_failure
    return tf.where(below, -tf.math.expm1(log_above), tf.exp(log_above))

  def score(self, z):
    return self._coin.failure - z * self._coin.probs


@register(tfd.Binomial, kind='successes')
class Binomial(Window):
  """Implements the number of successes in `total_count` trials."""

  def __init__(self, q):
    static_count = tf.get_static_value(tf.convert_to_tensor(q.total_count))
    num_values = None
    if static_count is not None:
      # An empty batch has no maximum, so it gets `initial`.
      num_values = int(np.max(static_count, initial=0)) + 1
    self._coin = _coin(q)
    self.highest = tf.broadcast_to(
      _float64(q.total_count), shapes.batch_shape(q)
    )
    mode = tf.floor((self.highest + 1.0) * self._coin.probs)
    super().__init__(q, q.total_count, mode, num_values)

  def odds(self, z):
    successes = (self.highest - z + 1.0) * self._coin.probs
    return successes, z * self._coin.failure

  def log_mass(self, z):
    n = self.highest
    return (
      self._coin.log_prob(z, n - z)
      - tf.math.log1p(n)
      - tfp.math.lbeta(n - z + 1.0, z + 1.0)
    )

  def tail_inside(self, z, below):
    # q(Z > z) = I_p(z + 1, n - z), https://dlmf.nist.gov/8.17.E5.
    n = self.highest
    return tf.math.betainc(
      tf.where(below, n - z, z + 1.0),
      tf.where(below, z + 1.0, n - z),
      tf.where(below, self._coin.failure, self._coin.probs),
    )

  def score(self, z):
    return z - self.highest * self._coin.probs


@register(tfd.Zipf, kind='ranks')
class Zipf(Window):
  """Implements the Zipf distribution, `q(z) = z^-power / zeta(power)`.

  TensorFlow has no derivative of `zeta(x, q)` with respect to `x`. So the
  `log_prob` and `mean` of TFP lack the derivative of the normaliser, and this
  class does not use them.
  """

  lowest = 1.0

  def __init__(self, q):
    self._power = _float64(q.power)
    super().__init__(q, q.power, tf.ones_like(self._power))

  def odds(self, z):
    return tf.ones_like(z), (z / (z - 1.0)) ** self._power

  def log_mass(self, z):
    return -self._power * tf.math.log(z) - _log_zeta(self._power)

  def tail_inside(self, z, below):
    # The Hurwitz zeta function sums `n^-power` over `n > z`.
    above = tf.math.zeta(self._power, z + 1.0) / tf.math.zeta(self._power, 1.0)
    return tf.where(below, 1.0 - above, above)

  def score(self, z):
    _, expected = tfp.math.value_and_gradient(_log_zeta, self._power)
    return -tf.math.log(z) - expected

  def mean(self):
    # E[Z] = zeta(power - 1) / zeta(power). The placeholder 3 keeps the gradient
    # of the branch that is not taken finite.
    is_finite = self._power > 2.0
    power = tf.where(is_finite, self._power, 3.0)
    mean = tf.exp(_log_zeta(power - 1.0) - _log_zeta(power))
    mean = tf.where(is_finite, mean, np.inf)
    return tf.cast(mean, tf.convert_to_tensor(self.distribution.power).dtype)


def _log_zeta(s, num_terms=20):
  """Returns the differentiable `log zeta(s)` for `s > 1`.

  Args:
    s: `float64` `Tensor`.
    num_terms: Python `int`, the `N` of the Euler-Maclaurin summation in
      https://dlmf.nist.gov/25.2.E9.

  Returns:
    log_zeta: `Tensor` of the shape of `s`.
  """
  n = np.arange(1.0, num_terms)
  terms = tf.exp(-s[..., tf.newaxis] * np.log(n))  # [..., num_terms - 1]
  total = tf.reduce_sum(terms, axis=-1)
  last = tf.exp(-s * np.log(num_terms))
  total += last * (num_terms / (s - 1.0) + 0.5)
  # Term j is B_2j / (2j)! s (s + 1) ... (s + 2j - 2) num_terms^(-s - 2j + 1).
  factor = s * last / num_terms
  bernoulli_over_factorial = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160,
    -691 / 1307674368000,
  )  # fmt: skip
  for j, coefficient in enumerate(bernoulli_over_factorial, start=1):
    total += coefficient * factor
    factor *= (s + (2 * j - 1)) * (s + 2 * j) / num_terms**2
  return tf.math.log(total)
