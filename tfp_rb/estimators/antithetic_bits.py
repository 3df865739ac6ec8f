# SPDX-License-Identifier: Apache-2.0
"""Defines the base class of estimators with antithetic draws of bits."""

import abc
from typing import Any

import tensorflow as tf

from tfp_rb.designs import Atoms, Whole, evaluate
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.estimators.relaxed import linear_in
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed

__all__ = ['AntitheticBits']


class AntitheticBits(GradientEstimator):
  """Base class of estimators whose draws of bits depend on each other.

  ```none
  g(z_i) = advantage_i sum_s coefficients_is . grad log q_s + grad f(z_i)
  ```

  A subclass draws the bits, and returns both factors.
  """

  @abc.abstractmethod
  def advantages(self, signal: tf.Tensor) -> tf.Tensor:
    """Returns the number that multiplies the score, for each draw.

    Args:
      signal: `Tensor` of shape `[m] + batch_shape`, `f` at the draws.

    Returns:
      advantages: `Tensor` of the same shape.
    """

  @abc.abstractmethod
  def coefficients(self, one_hot: tf.Tensor, log_probs: tf.Tensor) -> tf.Tensor:
    """Returns the coefficients of the log-probabilities, for each draw.

    Args:
      one_hot: `Tensor` of shape `[m] + batch_shape + sites + [2]`, the draws.
      log_probs: `Tensor` of shape `batch_shape + sites + [2]`.

    Returns:
      coefficients: `Tensor` of the shape of `one_hot`.
    """

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    del distribution, seed
    relaxation = self.bits_of(atoms.partition)
    value, signal = evaluate(f, atoms.values)  # [m] + batch_shape
    one_hot = relaxation.to_one_hot(atoms.values)  # [m] + batch + sites + [2]
    log_probs = relaxation.log_probs
    terms = linear_in(log_probs, self.coefficients(one_hot, log_probs))
    terms = tf.cast(tf.reduce_sum(terms, relaxation.site_axes), value.dtype)
    advantages = tf.stop_gradient(self.advantages(signal))
    move = terms - tf.stop_gradient(terms)  # 0, but with a gradient
    return Estimate(value, surrogate=value + advantages * move)

  def bits_of(self, whole: Whole) -> Any:
    """Returns the `Relaxation` of sites with two values each, or raises."""
    relaxation = whole.relaxation()
    if relaxation is None or relaxation.log_probs.shape[-1] != 2:
      raise TypeError(
        '`distribution` must have sites of two values for '
        f'`{type(self).__name__}`: a `tfd.Bernoulli`, or `tfd.Independent` or '
        f'`tfd.Sample` of it; got a `{whole.name}`. Use `tfp_rb.REINFORCE` '
        'with `tfp_rb.baselines.LeaveOneOut()`.'
      )
    return relaxation
