# SPDX-License-Identifier: Apache-2.0
"""Defines ReinMax, a straight-through estimator of second order."""

import tensorflow as tf

from tfp_rb.designs import Atoms
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.estimators.relaxed import (
  linear_in,
  relaxation_of,
  softmax,
  value_and_slope,
)
from tfp_rb.estimators.temperature import check_temperature, read_scalar
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  StatelessSeed,
  Temperature,
)

__all__ = ['ReinMax']


class ReinMax(GradientEstimator):
  """Differentiates straight through the atom, with second-order accuracy.

  ```none
  g(z) = f'(z) . (2 J(p1) - J(p0) / 2) + grad f(z),     J(p) = diag(p) - p p^T
  p0   = q,     p1 = (z + softmax(logits / temperature)) / 2
  ```

  The gradient is **biased**, except at temperature 1 for an `f` that is
  quadratic in the one-hot vectors. The atom is the only source of noise. With
  `k` summed and `M` drawn atoms, ReinMax costs `k + M` evaluations of `f`, in
  one call. `f` takes vectors in the dtype of the logits and is differentiated
  at the atoms themselves. The authors recommend a temperature of 1 or more.
  ReinMax supports the same distributions as `REBAR`.

  #### Examples

  ```python
  cost = tf.constant([3., 1., 2.])
  logits = tf.Variable([0., 1., 2.])
  estimator = tfp_rb.rao_blackwellize(
      tfp_rb.ReinMax(temperature=1.), num_summed=3)
  with tf.GradientTape() as tape:
    q = tfp.distributions.OneHotCategorical(logits=logits)
    loss = tfp_rb.expectation(
        lambda z: tf.reduce_sum(z * cost, axis=-1), q, estimator)
  tape.gradient(loss, logits)  # ==> [ 0.104  -0.2069  0.1029]
  ```

  #### References

  [1] Liyuan Liu, Chengyu Dong, Xiaodong Liu, Bin Yu, Jianfeng Gao. Bridging
      discrete and backpropagation: straight-through and beyond. NeurIPS
      2023, algorithm 2. https://arxiv.org/abs/2304.08612
  """

  differentiates_f = True

  def __init__(
    self,
    temperature: Temperature = 1.0,
    *,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      temperature: A positive number, a scalar `Tensor` or variable, or a
        callable without arguments that returns one.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      TypeError: `temperature` has the wrong type.
      ValueError: `temperature` is not a positive scalar.
    """
    super().__init__(num_samples=num_samples, name=name)
    check_temperature(temperature)
    self.temperature = temperature

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    del seed
    relaxation = relaxation_of(atoms, self)
    one_hot = relaxation.to_one_hot(atoms.values)  # [m] + batch + sites + [K]
    log_probs = relaxation.log_probs  # batch_shape + sites + [K]
    temperature = read_scalar(
      self.temperature,
      one_hot.dtype,
      'temperature',
      validate_args=distribution.validate_args,
    )
    probs = tf.exp(log_probs)
    # Dividing -inf by a trained temperature would give a NaN gradient.
    tempered = softmax(tf.maximum(log_probs, -1e30) / temperature)
    # 2 J(p1) - J(p0) / 2, algorithm 2 of [1].
    moving = 2.0 * _softmax_path(
      0.5 * (one_hot + tempered), log_probs
    ) - 0.5 * _softmax_path(probs, log_probs)
    # `inputs` has the value of the atom and the gradient of the second-order
    # path.
    inputs = one_hot + (moving - tf.stop_gradient(moving))
    value, _ = value_and_slope(f, relaxation.to_event(inputs), self)
    return Estimate(value, surrogate=value)


def _softmax_path(probs: tf.Tensor, log_probs: tf.Tensor) -> tf.Tensor:
  """Returns terms with the Jacobian `diag(p) - p p^T` of a softmax at `p`."""
  probs = tf.stop_gradient(probs)
  terms = linear_in(log_probs, probs)
  return terms - probs * tf.reduce_sum(terms, axis=-1, keepdims=True)
