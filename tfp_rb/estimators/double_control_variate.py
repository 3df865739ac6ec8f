# SPDX-License-Identifier: Apache-2.0
"""Defines leave-one-out gradients with linear expansions of `f`."""

import tensorflow as tf

from tfp_rb.estimators.joint_draws import Draws, JointDraws, mean_of_others
from tfp_rb.estimators.temperature import read_scalar
from tfp_rb.internal.types import Numeric

__all__ = ['DoubleControlVariate']


class DoubleControlVariate(JointDraws):
  """Uses leave-one-out draws, and linear expansions of `f` at the other draws.

  ```none
  g(z_i) = (h_i - mean_{j != i} h_j) grad log q(z_i) + s f'(z_i) . grad m
           + grad f(z_i)
  h_i    = f(z_i) - s d_i . (z_i - m),    d_i = mean_{j != i} f'(z_j)
  m      = mean(q)
  ```

  The linear control variate `d_i . (z_i - m)` reduces the variance twice: in
  the draw itself, where its mean is added back, and in the leave-one-out
  baseline, where its mean is 0. Unbiased in value and gradient for every `s`,
  but not in the Hessian. With `s = 0` it is `REINFORCE(LeaveOneOut())`.

  Costs `num_samples` evaluations of `f`, at least 2, in one call, and the
  gradient of `f` at each of them. So `f` takes floating-point atoms and must be
  differentiable w.r.t. them. Supports `OneHotCategorical` and `Bernoulli`, and
  `Independent` and `Sample` of them. All draws must be independent, so it
  cannot be Rao-Blackwellized.

  The objective of a variable `s` is the squared gradient of the whole estimate
  w.r.t. the logits, as in `REBAR`. Give the optimizer
  `estimator.trainable_variables` as well.

  #### Examples

  ```python
  logits = tf.Variable(tf.zeros([20]))
  estimator = tfp_rb.DoubleControlVariate(num_samples=3)
  with tf.GradientTape() as tape:
    q = tfp.distributions.Independent(
        tfp.distributions.Bernoulli(logits=logits), 1)
    loss = tfp_rb.expectation(
        lambda z: (tf.reduce_mean(z, axis=-1) - 0.3)**2, q, estimator,
        seed=[0, 1])
  gradients = tape.gradient(loss, [logits, *estimator.trainable_variables])
  len(gradients)  # ==> 2
  ```

  #### References

  [1] Michalis K. Titsias, Jiaxin Shi. Double control variates for gradient
      estimation in discrete latent variable models. AISTATS 2022, section 3.
      https://arxiv.org/abs/2111.05300
  """

  def __init__(
    self,
    scale: Numeric | None = None,
    *,
    num_samples: int = 2,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      scale: A number, scalar `Tensor` or variable, `s`. `None` means a
        trainable variable that starts at 0, as in [1].
      num_samples: Python `int`, the number of draws, at least 2.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(num_samples=num_samples, name=name)
    self.scale = tf.Variable(0.0, name='scale') if scale is None else scale
    read_scalar(self.scale, tf.float32, 'scale', is_positive=False)

  def by_log_probs(self, draws: Draws) -> tf.Tensor:
    dtype = draws.value.dtype
    scale = read_scalar(self.scale, dtype, 'scale', is_positive=False)
    direction = mean_of_others(draws.slope)
    linear = draws.sum_sites(direction * (draws.one_hot - draws.probs))
    signal = draws.value - scale * linear  # [m] + batch_shape
    advantage = signal - mean_of_others(signal)
    # The mean of `grad log q . z` is `grad m`, which is `p` w.r.t. `log p`.
    mean = scale * draws.slope * draws.probs
    return draws.over_sites(advantage) * draws.one_hot + mean
