# SPDX-License-Identifier: Apache-2.0
"""Defines MuProp: the score function with a linear control variate."""

import tensorflow as tf

from tfp_rb.designs import Atoms
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.estimators.relaxed import value_and_slope, values_and_mean
from tfp_rb.internal import gradients
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed

__all__ = ['MuProp']


class MuProp(GradientEstimator):
  """Uses the score function, minus the linear expansion of `f` at the mean.

  ```none
  g(z) = (f(z) - f(m) - f'(m) . (z - m)) grad log q(z) + f'(m) . grad m + grad f
  m    = mean(q)
  ```

  The gradient is unbiased, with or without Rao-Blackwellization. For a linear
  `f` it has zero variance. With `k` summed and `M` drawn atoms, MuProp costs
  `k + M + 1` evaluations of `f`, in one call for the atoms and the mean. `f`
  must be differentiable w.r.t. its atoms, which have the dtype of the mean:
  vectors in the simplex for `OneHotCategorical`, numbers in (0, 1) for
  `Bernoulli`, any positive numbers for counts. MuProp supports every
  distribution that has a `mean`, including products.

  #### Examples

  ```python
  cost = tf.constant([3., 1., 2.])
  logits = tf.Variable([0., 1., 2.])
  with tf.GradientTape() as tape:
    q = tfp.distributions.OneHotCategorical(logits=logits)
    loss = tfp_rb.expectation(
        lambda z: tf.reduce_sum(z * cost, axis=-1), q, tfp_rb.MuProp())
  tape.gradient(loss, logits)  # ==> [ 0.104  -0.2069  0.1029]
  ```

  #### References

  [1] Shixiang Gu, Sergey Levine, Ilya Sutskever, Andriy Mnih. MuProp:
      unbiased backpropagation for stochastic neural networks. ICLR 2016,
      equation (3). https://arxiv.org/abs/1511.05176
  """

  differentiates_f = True

  def __init__(self, *, num_samples: int = 1, name: str | None = None) -> None:
    """Makes the estimator.

    Args:
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(num_samples=num_samples, name=name)

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    del distribution, seed
    values, mean = values_and_mean(atoms, self)
    center = tf.stop_gradient(mean)[tf.newaxis]
    # One call of `f` serves the atoms and, as the last one, the mean.
    everything, slope = value_and_slope(
      f, tf.concat([values, center], axis=0), self
    )
    value, at_mean = everything[:-1], everything[-1:]
    slope = tf.stop_gradient(slope[-1:])  # [1] + batch_shape + event_shape
    axes = list(range(value.shape.rank, values.shape.rank))  # the event's axes

    def along_slope(x: tf.Tensor) -> tf.Tensor:
      # f'(m) . x, of shape [m] + batch_shape.
      terms = tf.cast(slope, x.dtype) * x
      return tf.cast(tf.reduce_sum(terms, axis=axes), value.dtype)

    level = tf.stop_gradient(at_mean + along_slope(values - center))
    ratio = tf.cast(gradients.likelihood_ratio(atoms.log_prob), value.dtype)
    # The subtracted term has a gradient through the atoms if they depend on a
    # shift. Its expected value, which is added, has one through the mean.
    moved = values - tf.stop_gradient(values)
    path = along_slope(mean[tf.newaxis] - center - moved)
    return Estimate(
      value, surrogate=value + (value - level) * (ratio - 1.0) + path
    )
