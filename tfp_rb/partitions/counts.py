"""Families of counts, each a `CountLaw`: what its window and tails are."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.partitions import _shapes
from tfp_rb.partitions._window import CountLaw, partition_counts
from tfp_rb.partitions.base import RegisterPartition

__all__ = []  # registers; there is nothing to call

tfd = tfp.distributions

# From about 1.5e5 on, the incomplete gamma function of TensorFlow is off.
_LARGE_RATE = 1e5


def _float64(x):
  return tf.cast(tf.convert_to_tensor(x), tf.float64)


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
  probs = _float64(q.probs)
  return _Coin(
    probs,
    1.0 - probs,
    lambda x, y: tf.math.xlogy(x, probs) + tf.math.xlog1py(y, -probs),
  )


@RegisterPartition(tfd.Poisson)
def partition_poisson(q, num_summed):
  given = tf.convert_to_tensor(q.log_rate if q.rate is None else q.rate)
  rate = tf.exp(_float64(given)) if q.rate is None else _float64(given)

  def log_prob(z):
    if q.rate is None:
      power = tf.math.multiply_no_nan(_float64(given), z)
    else:
      power = tf.math.xlogy(z, rate)  # its gradient is finite at a rate of 0
    return power - rate - tf.math.lgamma(z + 1.0)

  def tail(z, below):
    return tf.where(
      rate > _LARGE_RATE,
      _large_poisson_tail(z, below, rate),
      tf.where(
        below, tf.math.igammac(z + 1.0, rate), tf.math.igamma(z + 1.0, rate)
      ),
    )

  law = CountLaw(
    lowest=0.0,
    highest=np.inf,
    mode=tf.floor(rate),
    odds=lambda z: (rate, z),
    log_prob=log_prob,
    tail=tail,
    score=lambda z: z - rate,
  )
  return partition_counts(q, law, num_summed, given.dtype)


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


@RegisterPartition(tfd.NegativeBinomial)
def partition_negative_binomial(q, num_summed):
  total_count = _float64(q.total_count)
  probs, failure, log_prob_of_coin = _coin(q)

  def log_prob(z):
    return (
      log_prob_of_coin(z, total_count)
      - tf.math.log(total_count + z)
      - tfp.math.lbeta(total_count, z + 1.0)
    )

  def tail(z, below):
    return tf.math.betainc(
      tf.where(below, total_count, z + 1.0),
      tf.where(below, z + 1.0, total_count),
      tf.where(below, failure, probs),
    )

  mode = tf.floor((total_count - 1.0) * probs / failure)
  law = CountLaw(
    lowest=0.0,
    highest=np.inf,
    mode=tf.where(total_count > 1.0, mode, 0.0),
    odds=lambda z: ((z + total_count - 1.0) * probs, z),
    log_prob=log_prob,
    tail=tail,
    score=lambda z: z * failure - total_count * probs,
  )
  return partition_counts(
    q, law, num_summed, tf.convert_to_tensor(q.total_count).dtype
  )


@RegisterPartition(tfd.Geometric)
def partition_geometric(q, num_summed):
  probs, failure, log_prob_of_coin = _coin(q)
  log_failure = tf.stop_gradient(
    log_prob_of_coin(np.float64(0.0), np.float64(1.0))
  )

  def tail(z, below):
    log_above = (z + 1.0) * log_failure
    return tf.where(below, -tf.math.expm1(log_above), tf.exp(log_above))

  law = CountLaw(
    lowest=0.0,
    highest=np.inf,
    mode=tf.zeros_like(probs),
    odds=lambda z: (tf.broadcast_to(failure, tf.shape(z)), tf.ones_like(z)),
    log_prob=lambda z: log_prob_of_coin(np.float64(1.0), z),
    tail=tail,
    score=lambda z: failure - z * probs,
  )
  given = q.logits if q.logits is not None else q.probs
  return partition_counts(q, law, num_summed, tf.convert_to_tensor(given).dtype)


@RegisterPartition(tfd.Binomial)
def partition_binomial(q, num_summed):
  total_count = tf.broadcast_to(_float64(q.total_count), _shapes.batch_shape(q))
  static_count = tf.get_static_value(tf.convert_to_tensor(q.total_count))
  probs, failure, log_prob_of_coin = _coin(q)

  def log_prob(z):
    return (
      log_prob_of_coin(z, total_count - z)
      - tf.math.log1p(total_count)
      - tfp.math.lbeta(total_count - z + 1.0, z + 1.0)
    )

  def tail(z, below):
    return tf.math.betainc(
      tf.where(below, total_count - z, z + 1.0),
      tf.where(below, z + 1.0, total_count - z),
      tf.where(below, failure, probs),
    )

  law = CountLaw(
    lowest=0.0,
    highest=total_count,
    mode=tf.floor((total_count + 1.0) * probs),
    odds=lambda z: ((total_count - z + 1.0) * probs, z * failure),
    log_prob=log_prob,
    tail=tail,
    score=lambda z: z - total_count * probs,
    num_values=(
      None if static_count is None else int(np.max(static_count)) + 1
    ),
  )
  return partition_counts(
    q, law, num_summed, tf.convert_to_tensor(q.total_count).dtype
  )


@RegisterPartition(tfd.Zipf)
def partition_zipf(q, num_summed):
  power = _float64(q.power)

  def tail(z, below):
    above = tf.math.zeta(power, z + 1.0) / tf.math.zeta(power, 1.0)
    return tf.where(below, 1.0 - above, above)

  def score(z):
    _, expected = tfp.math.value_and_gradient(_log_zeta, power)
    return -tf.math.log(z) - expected

  law = CountLaw(
    lowest=1.0,
    highest=np.inf,
    mode=tf.ones_like(power),
    odds=lambda z: (tf.ones_like(z), (z / (z - 1.0)) ** power),
    # Not TFP's own `log_prob`: TensorFlow has no derivative of `zeta(x, q)` by
    # `x`, so that its score lacks the normaliser.
    log_prob=lambda z: -power * tf.math.log(z) - _log_zeta(power),
    tail=tail,
    score=score,
  )
  return partition_counts(
    q, law, num_summed, tf.convert_to_tensor(q.power).dtype
  )


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
