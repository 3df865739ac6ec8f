# SPDX-License-Identifier: Apache-2.0
"""Defines the base class of estimators with several joint draws."""

import abc
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs import Atoms
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.estimators.relaxed import (
  auxiliary_of,
  linear_in,
  relaxation_of,
  through_softmax,
  value_and_slope,
)
from tfp_rb.internal import checks
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed

__all__ = ['Draws', 'JointDraws', 'mean_of_others']


class Draws(NamedTuple):
  """Holds independent draws of sites with `K` classes each, as constants.

  Attributes:
    one_hot: `Tensor` of shape `[m] + batch_shape + sites + [K]`, the draws.
    probs: `Tensor` of shape `batch_shape + sites + [K]`.
    value: `Tensor` of shape `[m] + batch_shape`, `f` at the draws.
    slope: `Tensor` of the shape of `one_hot`, the gradient of `f` w.r.t. it.
    num_sites: Python `int`, the rank of `sites`.
  """

  one_hot: tf.Tensor
  probs: tf.Tensor
  value: tf.Tensor
  slope: tf.Tensor
  num_sites: int

  def sum_sites(self, x: tf.Tensor) -> tf.Tensor:
    """Sums over the sites and their classes."""
    return tf.reduce_sum(x, axis=list(range(-1 - self.num_sites, 0)))

  def over_sites(self, x: tf.Tensor) -> tf.Tensor:
    """Reshapes one number per draw so that it multiplies its vectors."""
    ones = [1] * (1 + self.num_sites)
    return tf.reshape(x, tf.concat([tf.shape(x), ones], axis=0))


def mean_of_others(x: tf.Tensor) -> tf.Tensor:
  """Returns the mean over the other draws, which lie on the first axis."""
  size = x.shape[0]
  # The total minus the draw itself would lose digits if that draw is large.
  weights = (1.0 - np.eye(size)) / (size - 1.0)
  return tf.einsum('ij,j...->i...', tf.constant(weights, x.dtype), x)


class JointDraws(GradientEstimator):
  """Base class of estimators that combine `m >= 2` independent joint draws.

  A subclass returns the gradient at each draw. The gradient of `f` w.r.t. its
  atoms comes from the same call of `f`. The estimator's own variables are
  trained to minimise the squared gradient of the whole estimate w.r.t. the
  logits. Its mean is the variance plus a constant.
  """

  differentiates_f = True

  def __init__(self, *, num_samples: int = 2, name: str | None = None) -> None:
    checks.check_int(num_samples, 'num_samples', minimum=2)
    super().__init__(num_samples=num_samples, name=name)

  def replace(self, num_samples: int) -> GradientEstimator:
    checks.check_int(num_samples, 'num_samples', minimum=2)
    return super().replace(num_samples)

  @property
  def chooses_atoms(self) -> str:
    return f'`{type(self).__name__}` needs independent draws of everything.'

  @abc.abstractmethod
  def by_log_probs(self, draws: Draws) -> tf.Tensor:
    """Returns the gradient w.r.t. the log-probabilities, at each draw.

    Args:
      draws: `Draws`.

    Returns:
      gradient: `Tensor` of the shape of `draws.one_hot`. Its mean over the
        draws is the estimate, without the gradient of `f` itself. It is
        differentiated w.r.t. the variables of the estimator only.
    """

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    del distribution, seed
    relaxation = relaxation_of(atoms, self)
    one_hot = relaxation.to_one_hot(atoms.values)  # [m] + batch + sites + [K]
    with tf.GradientTape() as tape:
      tape.watch(one_hot)
      inputs = relaxation.to_event(one_hot)
    value, slope = value_and_slope(f, inputs, self)
    slope = tape.gradient(inputs, one_hot, output_gradients=slope)
    draws = Draws(
      one_hot,
      tf.stop_gradient(tf.exp(relaxation.log_probs)),
      tf.stop_gradient(tf.cast(value, one_hot.dtype)),
      tf.stop_gradient(slope),
      relaxation.num_sites,
    )
    # The tape differentiates the objective w.r.t. the estimator's variables.
    with tf.GradientTape(persistent=True) as tape:
      by_log_probs = self.by_log_probs(draws)
      gradient = tf.reduce_mean(by_log_probs, axis=0)
      gradient = through_softmax(gradient, draws.probs)
      objective = draws.sum_sites(gradient**2)  # batch_shape
    terms = draws.sum_sites(linear_in(relaxation.log_probs, by_log_probs))
    # Subtract the value of these terms, because only their gradient counts.
    terms = tf.cast(terms - tf.stop_gradient(terms), value.dtype)
    return Estimate(value, value + terms, auxiliary_of(objective, tape, self))
