# SPDX-License-Identifier: Apache-2.0
"""Defines the Gumbel-softmax estimator."""

import tensorflow as tf

from tfp_rb.designs import Atoms
from tfp_rb.estimators.base import Estimate
from tfp_rb.estimators.relaxed import (
  RelaxedEstimator,
  draw_noise,
  given_rest,
  relaxation_of,
  softmax,
  value_and_slope,
)
from tfp_rb.internal import checks, gradients
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  StatelessSeed,
  Temperature,
)

__all__ = ['GumbelSoftmax']


class GumbelSoftmax(RelaxedEstimator):
  """Differentiates through the relaxed atom, by default straight through.

  ```none
  x    = softmax((log q + gumbel) / temperature) given that its argmax is z
  g(z) = f'(z) . grad x + grad f(z)        straight_through=True, value f(z)
  g(z) = f'(x) . grad x + grad f(x)        straight_through=False, value f(x)
  ```

  The gradient is **biased**. A higher temperature gives more bias, a lower one
  more variance. With `straight_through=False` the *value* is that of `f` at the
  relaxed atom, and it is biased as well. With `k` summed and `M` drawn atoms,
  all forms cost `k + M` evaluations of `f`, in one call.

  `num_noises` averages `grad x` over several noises given the same atom. This
  is the Gumbel-Rao estimator of [3]. The bias is the same, the variance is not
  higher, and `f` is still called once.

  If the estimator is Rao-Blackwellized, the summed atoms have exact score
  terms, and the draws use the relaxation of `q` restricted to the rest, as in
  `REBAR`. The bias falls with the mass of the rest and is 0 when everything is
  summed. With `restricted=False`, and for products, all atoms use the
  relaxation of `q`, and the bias remains.

  The temperature is not trained: the gradient w.r.t. it is 0.

  GumbelSoftmax supports `OneHotCategorical` and `Bernoulli`, and `Independent`
  and `Sample` of them. `f` takes vectors in the dtype of the logits.

  #### Examples

  ```python
  estimator = tfp_rb.GumbelSoftmax(
      tfp_rb.AnnealedTemperature(rate=1e-4), num_noises=8)
  cost = tf.constant([3., 1., 2.])
  logits = tf.Variable([0., 1., 2.])
  with tf.GradientTape() as tape:
    q = tfp.distributions.OneHotCategorical(logits=logits)
    loss = tfp_rb.expectation(
        lambda z: tf.reduce_sum(z * cost, axis=-1), q, estimator, seed=[0, 1])
  loss.numpy() in cost.numpy()  # ==> True
  ```

  #### References

  [1] Eric Jang, Shixiang Gu, Ben Poole. Categorical reparameterization with
      Gumbel-softmax. ICLR 2017, equation (2) and section 2.2.
      https://arxiv.org/abs/1611.01144
  [2] Chris J. Maddison, Andriy Mnih, Yee Whye Teh. The concrete distribution:
      a continuous relaxation of discrete random variables. ICLR 2017,
      equation (10). https://arxiv.org/abs/1611.00712
  [3] Max B. Paulus, Chris J. Maddison, Andreas Krause. Rao-Blackwellizing the
      straight-through Gumbel-softmax gradient estimator. ICLR 2021, section
      3.2 (GR-MCK). https://arxiv.org/abs/2010.04838
  """

  differentiates_f = True

  def __init__(
    self,
    temperature: Temperature,
    *,
    straight_through: bool = True,
    num_noises: int = 1,
    restricted: bool | None = None,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      temperature: A positive number, a scalar `Tensor` or variable, or a
        callable without arguments that returns one, such as
        `AnnealedTemperature`.
      straight_through: Python `bool`, whether `f` sees the atom itself.
      num_noises: Python `int`, the number of noises averaged for each atom;
        more than one requires `straight_through=True`.
      restricted: Python `bool`, whether a Rao-Blackwellized estimator relaxes
        `q` given the rest instead of `q`. `None` restricts where possible.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: `temperature` is not a positive scalar, or `num_noises` is
        out of range.
    """
    super().__init__(
      temperature, restricted=restricted, num_samples=num_samples, name=name
    )
    self.straight_through = bool(straight_through)
    self.num_noises = checks.check_int(num_noises, 'num_noises', minimum=1)
    if self.num_noises > 1 and not self.straight_through:
      raise ValueError(
        '`num_noises` must be 1 with `straight_through=False`, because every '
        f'noise requires another evaluation of `f`; got {num_noises}. Use '
        '`num_samples` instead.'
      )

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    relaxation = relaxation_of(atoms, self)
    one_hot = relaxation.to_one_hot(atoms.values)  # [m] + batch + sites + [K]
    log_probs, log_score = relaxation.log_probs[tf.newaxis], None
    if self.is_restricted(relaxation, atoms):
      log_probs, log_rest, is_relaxed = given_rest(
        relaxation.log_probs, atoms, one_hot
      )
      # The draws estimate q(rest) E[f | rest], so they get the score of
      # q(rest). The summed atoms get the score of the atom.
      log_score = tf.where(is_relaxed, log_rest, atoms.log_prob)
    noise = draw_noise(log_probs, one_hot, seed, self.num_noises)
    # Training the temperature would minimise a biased loss.
    temperature = tf.stop_gradient(
      self.read_temperature(one_hot.dtype, distribution)
    )
    # Take the value of the perturbed log-probabilities given the atom, and the
    # gradient of the log-probabilities with the noise held fixed.
    moving = tf.where(log_probs > -1e30, log_probs, tf.zeros_like(log_probs))
    moving = tf.maximum(noise.perturbed, -1e30) + (
      moving - tf.stop_gradient(moving)
    )  # [num_noises, m] + batch_shape + sites + [K]
    relaxed = tf.reduce_mean(softmax(moving / temperature), axis=0)
    inputs = relaxed
    if self.straight_through:
      # `inputs` has the value of the atom and the gradient of the relaxed atom.
      inputs = one_hot + (relaxed - tf.stop_gradient(relaxed))
    if log_score is not None:
      inputs = tf.where(is_relaxed[..., tf.newaxis], inputs, one_hot)
    value, _ = value_and_slope(f, relaxation.to_event(inputs), self)
    if log_score is None:
      return Estimate(value, surrogate=value)
    ratio = tf.cast(gradients.likelihood_ratio(log_score), value.dtype)
    return Estimate(value, surrogate=value * ratio)
