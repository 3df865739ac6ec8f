# SPDX-License-Identifier: Apache-2.0
"""Defines DisARM: antithetic pairs of draws of bits."""

from typing import Any

import tensorflow as tf

from tfp_rb.designs import Antithetic, Atoms, Whole
from tfp_rb.estimators.antithetic_bits import AntitheticBits
from tfp_rb.internal import checks
from tfp_rb.internal.types import StatelessSeed

__all__ = ['DisARM']


class DisARM(AntitheticBits):
  """Uses antithetic pairs of draws of bits, without a baseline.

  ```none
  z  = bits from the uniforms u,    z' = bits from 1 - u
  g  = 1/2 (f(z) - f(z')) sum_s (z_s - z'_s) max(p_s, 1 - p_s) grad logit_s
       + 1/2 (grad f(z) + grad f(z'))
  ```

  Here `p_s` is the probability of a 1 at site `s`. A site at which both draws
  agree contributes nothing. The factor `max(p_s, 1 - p_s)` is the score,
  averaged over all uniforms that give the same pair. This is the average of the
  estimator ARM over these uniforms; U2G is another name for it.

  Unbiased in value and gradient, but not in the Hessian. Costs two evaluations
  of `f` per pair, all in one call, and averages over the pairs. It pays for
  many bits that are far from certain. The pairs have no baseline in common, so
  `ARMS` is often better at four or more evaluations.

  It supports sites with two values each: `Bernoulli`, `OneHotCategorical` with
  two classes, and `Independent` and `Sample` of them. It cannot be
  Rao-Blackwellized further, because it must draw both values of a pair.

  #### Examples

  ```python
  logits = tf.Variable(tf.zeros([200]))
  with tf.GradientTape() as tape:
    q = tfp.distributions.Independent(
        tfp.distributions.Bernoulli(logits=logits), 1)
    loss = tfp_rb.expectation(
        lambda z: tf.reduce_mean(tf.cast(z, tf.float32), axis=-1)**2, q,
        tfp_rb.DisARM(), seed=[0, 1])
  tape.gradient(loss, logits).shape  # ==> (200,)
  ```

  #### References

  [1] Zhe Dong, Andriy Mnih, George Tucker. DisARM: an antithetic gradient
      estimator for binary latent variables. NeurIPS 2020, section 3.
      https://arxiv.org/abs/2006.10680
  [2] Mingzhang Yin, Nhat Ho, Bowei Yan, Xiaoning Qian, Mingyuan Zhou.
      Probabilistic best subset selection via gradient-based optimization. 2020.
      https://arxiv.org/abs/2006.06448
  """

  def __init__(self, num_pairs: int = 1, *, name: str | None = None) -> None:
    """Makes the estimator.

    Args:
      num_pairs: Python `int`, the number of independent pairs of draws.
      name: Python `str`, name of the `tf.Module`.
    """
    num_pairs = checks.check_int(num_pairs, 'num_pairs', minimum=1)
    super().__init__(num_samples=2 * num_pairs, name=name)

  @property
  def num_pairs(self) -> int:
    """Number of pairs of draws."""
    return self.num_samples // 2

  def replace(self, num_samples: int) -> 'DisARM':
    if checks.check_int(num_samples, 'num_samples', minimum=2) % 2:
      raise ValueError(
        f'`num_samples` must be even for `DisARM`; got {num_samples}. Draw '
        'one more.'
      )
    copied: Any = super().replace(num_samples)
    return copied

  def choose_atoms(self, whole: Whole, seed: StatelessSeed) -> Atoms:
    self.bits_of(whole)  # This raises before anything is drawn.
    draws = Antithetic().draw(whole.distribution, whole, self.num_samples, seed)
    log_prob = whole.log_prob(draws.values)  # [m] + batch_shape
    weights = tf.cast(draws.shares, log_prob.dtype)
    return Atoms(draws.values, weights, log_prob, num_summed=0, partition=whole)

  def advantages(self, signal: tf.Tensor) -> tf.Tensor:
    return 0.5 * self._minus_partner(signal)

  def coefficients(self, one_hot: tf.Tensor, log_probs: tf.Tensor) -> tf.Tensor:
    # The two entries of a site differ only in their sign, so the terms are
    # linear in the logit, which is the difference of the log-probabilities.
    largest = tf.exp(tf.reduce_max(log_probs, axis=-1, keepdims=True))
    return self._minus_partner(one_hot) * largest

  def _minus_partner(self, x: tf.Tensor) -> tf.Tensor:
    # The draws of the pairs come first, then their partners in the same order.
    return x - tf.roll(x, self.num_pairs, axis=0)
