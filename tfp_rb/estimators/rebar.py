# SPDX-License-Identifier: Apache-2.0
"""Defines REBAR, which uses the relaxed `f` as a control variate."""

from typing import Any

import tensorflow as tf

from tfp_rb.estimators.control_variate import RelaxedControlVariate
from tfp_rb.estimators.relaxed import value_and_slope
from tfp_rb.internal.types import Integrand, Numeric, Temperature

__all__ = ['REBAR']


class REBAR(RelaxedControlVariate):
  """Uses the score function; the control variate is `f` at the relaxed atom.

  ```none
  g(z) = (f(z) - s f(x)) grad log q(z) + s (grad_u f(x) - grad_v f(x)) + grad f
  x    = softmax((log q + gumbel) / temperature) given that its argmax is z
  ```

  `grad_u` differentiates `x` with the Gumbel noise held fixed, and `grad_v`
  differentiates `x` with the noise given the atom held fixed. The gradient is
  unbiased for every temperature and every scale `s`, with or without
  Rao-Blackwellization, because the noise is drawn *given* the atom. `f` is
  called twice: at the atoms, and at one relaxed atom for each draw. With `k`
  summed and `M` drawn atoms this costs `k + 2 M` evaluations if the relaxation
  is restricted, and `2 (k + M)` otherwise.

  Temperature and scale may be variables. Their objective is the squared
  gradient of the whole estimate w.r.t. the logits (of both classes of a
  `Bernoulli`), whose mean is the variance plus a constant. It is passed on as
  `auxiliary` and has a gradient w.r.t. these variables only. To minimise it in
  the same backward pass, give the optimizer `estimator.trainable_variables`.

  REBAR supports `OneHotCategorical` and `Bernoulli`, and `Independent` and
  `Sample` of them. `f` takes vectors inside the simplex (numbers in (0, 1) for
  `Bernoulli`) in the dtype of the logits, and must be differentiable w.r.t.
  them.

  #### Restricted relaxation

  Noise at the summed atoms would leave a variance of `sum_z q(z)^2 Var[g(z)]`
  even when everything is summed. So the summed atoms have plain score terms,
  and the draws use the relaxation of `q` *restricted to the rest*. Then no
  variance is left when everything is summed. A product that is restricted to
  its rest is no longer a product. Therefore all atoms use the relaxation of `q`
  for products, and also with `restricted=False`.

  #### Examples

  ```python
  estimator = tfp_rb.rao_blackwellize(
      tfp_rb.REBAR(temperature=0.5), num_summed=1)
  cost = tf.constant([3., 1., 2.])
  logits = tf.Variable([0., 1., 2.])
  with tf.GradientTape() as tape:
    q = tfp.distributions.OneHotCategorical(logits=logits)
    loss = tfp_rb.expectation(
        lambda z: tf.reduce_sum(z * cost, axis=-1)**2, q, estimator,
        seed=[0, 1])
  tape.gradient(loss, logits).shape  # ==> (3,)
  ```

  #### References

  [1] George Tucker, Andriy Mnih, Chris J. Maddison, Dieterich Lawson, Jascha
      Sohl-Dickstein. REBAR: low-variance, unbiased gradient estimates for
      discrete latent variable models. NeurIPS 2017, section 3; the Gumbel
      variables given the argmax: appendix C.
      https://arxiv.org/abs/1703.07370
  """

  differentiates_f = True  # `f` is differentiated at relaxed atoms.

  def __init__(
    self,
    temperature: Temperature,
    *,
    scale: Numeric = 1.0,
    restricted: bool | None = None,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      temperature: A positive number, a scalar `Tensor` or variable, or a
        callable without arguments that returns one.
      scale: A number, scalar `Tensor` or variable that multiplies the control
        variate.
      restricted: Python `bool`, whether a Rao-Blackwellized estimator relaxes
        `q` given the rest instead of `q`. `None` restricts where possible.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      TypeError: `temperature` or `restricted` has the wrong type.
      ValueError: `temperature` is not a positive scalar.
    """
    super().__init__(
      temperature,
      scale=scale,
      restricted=restricted,
      num_samples=num_samples,
      name=name,
    )

  def control_variate_at(
    self, f: Integrand, relaxed: tf.Tensor, batch_shape: list[Any]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    del batch_shape
    # This is the second call of `f`, at relaxed atoms.
    return value_and_slope(f, relaxed, self)
