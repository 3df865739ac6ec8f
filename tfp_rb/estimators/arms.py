# SPDX-License-Identifier: Apache-2.0
"""Defines ARMS: antithetic draws of bits with a leave-one-out baseline."""

import tensorflow as tf

from tfp_rb.designs import Atoms, Whole
from tfp_rb.estimators.antithetic_bits import AntitheticBits
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.joint_draws import mean_of_others
from tfp_rb.internal import checks, random, shapes
from tfp_rb.internal.types import StatelessSeed

__all__ = ['ARMS']


class ARMS(AntitheticBits):
  """Uses `n` mutually antithetic draws of bits with a leave-one-out baseline.

  ```none
  g(z_i) = (f(z_i) - mean_{j != i} f(z_j)) sum_s c_s grad log q_s(z_is)
           + grad f(z_i)
  c_s    = (1 - r) / (1 - max(2 - r^(-1 / (n - 1)), 0)^(n - 1))
  ```

  Here `r` is the probability of the rarer value of site `s`. At each site the
  `n` draws come from uniforms that avoid being small together: with independent
  exponential variables `e_i`, `u_i = (1 - e_i / sum_j e_j)^(n - 1)`, and the
  rarer value is drawn where `u_i < r`. The factor `c_s = 1 / (1 - correlation)`
  corrects for the dependence of the draws. With two draws this is `DisARM`.

  Unbiased in value and gradient, but not in the Hessian. Costs `num_samples`
  evaluations of `f`, at least 2, in one call. It supports sites with two values
  each: `Bernoulli`, `OneHotCategorical` with two classes, and `Independent` and
  `Sample` of them. It makes its own draws, so it cannot be Rao-Blackwellized.

  #### Examples

  ```python
  logits = tf.Variable(tf.zeros([200]))
  with tf.GradientTape() as tape:
    q = tfp.distributions.Independent(
        tfp.distributions.Bernoulli(logits=logits), 1)
    loss = tfp_rb.expectation(
        lambda z: tf.reduce_mean(tf.cast(z, tf.float32), axis=-1)**2, q,
        tfp_rb.ARMS(num_samples=3), seed=[0, 1])
  tape.gradient(loss, logits).shape  # ==> (200,)
  ```

  #### References

  [1] Alek Dimitriev, Mingyuan Zhou. ARMS: antithetic-REINFORCE-multi-sample
      gradient for binary variables. ICML 2021.
      https://arxiv.org/abs/2105.14141
  """

  def __init__(self, num_samples: int = 3, *, name: str | None = None) -> None:
    """Makes the estimator.

    Args:
      num_samples: Python `int`, the number of draws, at least 2.
      name: Python `str`, name of the `tf.Module`.
    """
    checks.check_int(num_samples, 'num_samples', minimum=2)
    super().__init__(num_samples=num_samples, name=name)

  def replace(self, num_samples: int) -> GradientEstimator:
    checks.check_int(num_samples, 'num_samples', minimum=2)
    return super().replace(num_samples)

  def choose_atoms(self, whole: Whole, seed: StatelessSeed) -> Atoms:
    relaxation = self.bits_of(whole)
    log_probs = tf.stop_gradient(relaxation.log_probs)
    # As for all draws, use float64 for every dtype of the parameters.
    shape = [self.num_samples, *shapes.as_list(log_probs)[:-1]]
    e = -tf.math.log(random.uniform(shape, seed))
    # Sum the others, because one minus a share has few correct digits near 0.
    last = self.num_samples - 1.0
    u = (last * mean_of_others(e) / tf.reduce_sum(e, axis=0)) ** last
    rarer = tf.exp(tf.cast(tf.reduce_min(log_probs, axis=-1), u.dtype))
    is_rarer = (u < rarer)[..., tf.newaxis]
    rare = tf.one_hot(tf.argmin(log_probs, axis=-1), 2, dtype=log_probs.dtype)
    one_hot = tf.where(is_rarer, rare, 1.0 - rare)
    values = relaxation.to_event(one_hot)
    values = tf.cast(values, whole.distribution.dtype)
    log_prob = whole.log_prob(values)  # [m] + batch_shape
    weights = tf.ones_like(log_prob) / self.num_samples
    return Atoms(values, weights, log_prob, num_summed=0, partition=whole)

  def advantages(self, signal: tf.Tensor) -> tf.Tensor:
    return signal - mean_of_others(signal)

  def coefficients(self, one_hot: tf.Tensor, log_probs: tf.Tensor) -> tf.Tensor:
    log_rarer = tf.reduce_min(log_probs, axis=-1, keepdims=True)
    return _factor(log_rarer, one_hot.shape[0]) * one_hot


def _factor(log_rarer: tf.Tensor, num_draws: int) -> tf.Tensor:
  """Returns `1 / (1 - correlation)` of two draws of a bit."""
  last = num_draws - 1.0
  # This is P(both draws are the rarer value) / r. A root of r = 0 is infinite.
  both = tf.maximum(2.0 - tf.exp(-log_rarer / last), 0.0) ** last
  return (1.0 - tf.exp(log_rarer)) / (1.0 - both)
