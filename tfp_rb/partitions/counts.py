"""Families of counts, each a `Window`: what its odds and tails are."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import shapes
from tfp_rb.partitions.base import register
from tfp_rb.partitions.window import Window

__all__ = ['Binomial', 'Geometric', 'NegativeBinomial', 'Poisson', 'Zipf']

tfd = tfp.distributions

# From about 1.5e5 on, the incomplete gamma function of TensorFlow is off.
_LARGE_RATE = 1e5


def _float64(x):
  return tf.cast(tf.convert_to_tensor(x), tf.float64)


def _inside(parameter, *boundaries):
  """Stops the gradient at the boundary, where a single value is possible.

  There the derivative of its probability belongs to values that are impossible
  and left out. On its own it would multiply the level of `f`.

  Args:
    parameter: `Tensor`.
    *boundaries: Python `float`s.

  Returns:
    parameter: `Tensor`, as given.
  """
  is_inside = tf.reduce_all([parameter != b for b in boundaries], axis=0)
  return tf.where(is_inside, parameter, tf.stop_gradient(parameter))


class _Coin(NamedTuple):
  """A success probability in float64; its logarithms are differentiable.

  TFP's own `log_prob`s have NaN gradients where a probability is 0 or 1.
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
    lambda x, y: tf.math.xlogy(x, probs) + tf.math.xlog1py(y, -probs),
  )


@register(tfd.Poisson, kind='counts')
class Poisson(Window):
  """`q(z) = rate^z exp(-rate) / z!`."""

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
    return self._rate, z

  def log_mass(self, z):
    if self._log_rate is not None:
      power = tf.math.multiply_no_nan(self._log_rate, z)
    else:
      # Its gradient is finite at a rate of 0.
      power = tf.math.xlogy(z, self._rate)
    return power - self._rate - tf.math.lgamma(z + 1.0)

  def tail_inside(self, z, below):
    rate = self._rate
    return tf.where(
      rate > _LARGE_RATE,
      _large_poisson_tail(z, below, rate),
      tf.where(
        below, tf.math.igammac(z + 1.0, rate), tf.math.igamma(z + 1.0, rate)
      ),
    )

  def score(self, z):
    return z - self._rate


def _large_poisson_tail(z, below, rate):
  """Tails at a large rate, where `tf.math.igamma` stops before it converges.

  Temme's uniform expansion, https://dlmf.nist.gov/8.12, relative error below
  1e-10 within 7 standard deviations of the mean.

  Args:
    z: `Tensor` of non-negative values.
    below: Boolean `Tensor`: `q(Z <= z)` where true, else `q(Z > z)`.
    rate: `Tensor`.

  Returns:
    tail: `Tensor`.
  """
  a = z + 1.0
  mu = (rate - a) / a
  half_square = tf.maximum(mu - tf.math.log1p(mu), 0.0)
  eta = tf.sign(mu) * tf.sqrt(2.0 * half_square)
  side = tf.where(below, tf.ones_like(a), -tf.ones_like(a))
  first = eta * (1 / 12 + eta * (-2 / 135 + eta * (1 / 864 + eta / 2835)))
  second = -1 / 540 + eta * (-1 / 288 + eta / 378)
  correction = tf.exp(-a * half_square) / tf.sqrt(2.0 * np.pi * a)
  correction *= first - 1 / 3 + second / a
  return 0.5 * tf.math.erfc(side * eta * tf.sqrt(0.5 * a)) + side * correction


@register(tfd.NegativeBinomial, kind='counts')
class NegativeBinomial(Window):
  """The number of successes before `total_count` failures."""

  def __init__(self, q):
    self._total_count = n = _float64(q.total_count)
    self._coin = _coin(q)
    mode = tf.floor((n - 1.0) * self._coin.probs / self._coin.failure)
    super().__init__(q, q.total_count, tf.where(n > 1.0, mode, 0.0))

  def odds(self, z):
    return (z + self._total_count - 1.0) * self._coin.probs, z

  def log_mass(self, z):
    n = self._total_count
    return (
      self._coin.log_prob(z, n)
      - tf.math.log(n + z)
      - tfp.math.lbeta(n, z + 1.0)
    )

  def tail_inside(self, z, below):
    n = self._total_count
    return tf.math.betainc(
      tf.where(below, n, z + 1.0),
      tf.where(below, z + 1.0, n),
      tf.where(below, self._coin.failure, self._coin.probs),
    )

  def score(self, z):
    return z * self._coin.failure - self._total_count * self._coin.probs


@register(tfd.Geometric, kind='counts')
class Geometric(Window):
  """The number of failures before the first success."""

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
    log_above = (z + 1.0) * self._log_failure
    return tf.where(below, -tf.math.expm1(log_above), tf.exp(log_above))

  def score(self, z):
    return self._coin.failure - z * self._coin.probs


@register(tfd.Binomial, kind='successes')
class Binomial(Window):
  """The number of successes in `total_count` trials."""

  def __init__(self, q):
    static_count = tf.get_static_value(tf.convert_to_tensor(q.total_count))
    num_values = None
    if static_count is not None:
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
  """`q(z) = z^-power / zeta(power)`.

  TensorFlow has no derivative of `zeta(x, q)` by `x`. So TFP's own `log_prob`
  and `mean` lack the derivative of the normaliser, and are not used.
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
    above = tf.math.zeta(self._power, z + 1.0) / tf.math.zeta(self._power, 1.0)
    return tf.where(below, 1.0 - above, above)

  def score(self, z):
    _, expected = tfp.math.value_and_gradient(_log_zeta, self._power)
    return -tf.math.log(z) - expected

  def mean(self):
    is_finite = self._power > 2.0
    power = tf.where(is_finite, self._power, 3.0)
    mean = tf.exp(_log_zeta(power - 1.0) - _log_zeta(power))
    mean = tf.where(is_finite, mean, np.inf)
    return tf.cast(mean, tf.convert_to_tensor(self.distribution.power).dtype)


def _log_zeta(s, num_terms=20):
  """Differentiable `log zeta(s)`, `s > 1`, by Euler-Maclaurin summation."""
  n = np.arange(1.0, num_terms)
  terms = tf.exp(-s[..., tf.newaxis] * np.log(n))
  total = tf.reduce_sum(terms, axis=-1)
  last = tf.exp(-s * np.log(num_terms))
  total += last * (num_terms / (s - 1.0) + 0.5)
  # B_2j / (2j)! s (s + 1) ... (s + 2j - 2) num_terms^(-s - 2j + 1)
  factor = s * last / num_terms
  bernoulli_over_factorial = (
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160,
    -691 / 1307674368000,
  )  # fmt: skip
  for j, coefficient in enumerate(bernoulli_over_factorial, start=1):
    total += coefficient * factor
    factor *= (s + (2 * j - 1)) * (s + 2 * j) / num_terms**2
  return tf.math.log(total)
