# SPDX-License-Identifier: Apache-2.0
"""Defines DARN: the score function with a biased, linear baseline."""

import tensorflow as tf

from tfp_rb.designs import Atoms
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.estimators.relaxed import value_and_slope, values_and_mean
from tfp_rb.internal import gradients
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  StatelessSeed,
  TensorLike,
)

__all__ = ['DARN']


class DARN(GradientEstimator):
  """Uses the score function, minus the linear expansion of `f` at the atom.

  ```none
  g(z) = (f(z) - b(z)) grad log q(z) + grad f,   b(z) = f(z) + f'(z) . (c - z)
       =  f'(z) . (z - c) grad log q(z) + grad f
  ```

  The gradient is **biased**, because the baseline depends on the atom. The
  expected gradient is exact for a linear `f`, and for a quadratic `f` of a
  `Bernoulli`. (With `c = 1/2`, the mean of the derivatives at 0 and 1 replaces
  the difference `f(1) - f(0)`, which is the trapezoidal rule.) For `f(z) = z^3`
  of a `Bernoulli` the expected gradient is 3/2 times the correct one.

  With `k` summed and `M` drawn atoms, DARN costs `k + M` evaluations of `f`, in
  one call. `f` must be differentiable w.r.t. its atoms, which have the dtype of
  the mean. DARN supports `OneHotCategorical`, `Bernoulli` and products of them.
  If you pass `center`, it supports every distribution that has a `mean`.

  #### Examples

  ```python
  logit = tf.Variable(0.)
  estimator = tfp_rb.rao_blackwellize(tfp_rb.DARN(), num_summed=2)
  for power in (1., 2., 3.):
    with tf.GradientTape() as tape:
      q = tfp.distributions.Bernoulli(logits=logit)
      loss = tfp_rb.expectation(lambda z: z**power, q, estimator)
    gradient = tape.gradient(loss, logit)  # the right one is 1/4
  gradient  # ==> 0.375
  ```

  #### References

  [1] Karol Gregor, Ivo Danihelka, Andriy Mnih, Charles Blundell, Daan
      Wierstra. Deep autoregressive networks. ICML 2014.
      https://arxiv.org/abs/1310.8499
  [2] Shixiang Gu, Sergey Levine, Ilya Sutskever, Andriy Mnih. MuProp:
      unbiased backpropagation for stochastic neural networks. ICLR 2016,
      section 4.2, equations (5) to (7). https://arxiv.org/abs/1511.05176
  """

  differentiates_f = True

  def __init__(
    self,
    center: TensorLike | None = None,
    *,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      center: A number or a `Tensor` that broadcasts to
        `batch_shape + event_shape`. Default: 1/2 for `Bernoulli`, `1 / K` for
        one-hot vectors of `K` classes.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(num_samples=num_samples, name=name)
    self.center = center

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    del distribution, seed
    values, mean = values_and_mean(atoms, self)
    center = self._center(atoms, mean)
    value, slope = value_and_slope(f, values, self)
    axes = list(range(value.shape.rank, values.shape.rank))  # the event's axes
    # f(z) - b(z) = f'(z) . (z - c), of shape [m] + batch_shape.
    signal = tf.stop_gradient(
      tf.reduce_sum(slope * (values - center), axis=axes)
    )
    ratio = tf.cast(gradients.likelihood_ratio(atoms.log_prob), value.dtype)
    return Estimate(
      value,
      # `ratio - 1` is 0, and its gradient is the score.
      surrogate=value + tf.cast(signal, value.dtype) * (ratio - 1.0),
    )

  def _center(self, atoms: Atoms, mean: tf.Tensor) -> tf.Tensor:
    """Returns `c`, which broadcasts to `batch_shape + event_shape`."""
    if self.center is not None:
      return tf.cast(tf.convert_to_tensor(self.center), mean.dtype)
    relaxation = atoms.partition.relaxation()
    if relaxation is None:
      raise TypeError(
        '`center` must be given to `DARN` for a distribution other than '
        '`tfd.Bernoulli`, `tfd.OneHotCategorical` and their products; got a '
        f'`{atoms.partition.name}`. Pass `center=`, the point at which the '
        'expansion of `f` is evaluated, or replace a `tfd.Categorical` with a '
        '`tfd.OneHotCategorical`.'
      )
    return tf.cast(relaxation.center(), mean.dtype)
