# SPDX-License-Identifier: Apache-2.0
"""Defines NVIL: the score function with an input-dependent baseline."""

from collections.abc import Callable
import copy
import inspect
from typing import Any

import tensorflow as tf

from tfp_rb.baselines.base import check_level, mean_over_draws
from tfp_rb.designs import Atoms, evaluate, is_draw
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.internal import checks, gradients
from tfp_rb.internal.replicas import sum_over_replicas
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed

__all__ = ['NVIL']


class NVIL(GradientEstimator):
  """Uses the score function with a baseline that a network predicts.

  ```none
  g(z) = (f(z) - b - c) / s  grad log q(z) + grad f(z)
  ```

  The network predicts `b`, one number for each batch member, and is trained by
  regression: the mean of `(f - b - c)^2` over the draws from the rest (only
  these have variance) is passed on as `auxiliary` and has a gradient w.r.t. `b`
  only. The value of the estimate does not depend on `b`. With `k` summed and
  `M` drawn atoms, NVIL costs `k + M` evaluations of `f`, in one call.

  By default `c` is 0 and `s` is 1. `center=True` subtracts the moving average
  of `f - b`. The gradient stays unbiased, because the average is that of the
  previous steps. `normalize=True` divides by the moving standard deviation
  if that exceeds 1, which scales the gradient down and therefore **biases** it.
  Both averages are non-trainable variables that every call of `expectation`
  updates. Make the estimator once, and bind the inputs of each step with
  `with_inputs`.

  Several threads and `tf.data` pipelines may use the same estimator at once.
  The moving averages are the exception: every call reads and updates them, so
  the result depends on the order of the calls. Give each thread its own
  estimator, or leave `center` and `normalize` off.

  On several replicas of `tf.distribute` the averages are those of the whole
  batch, and equal on all replicas: every call inside `strategy.run` exchanges
  20 bytes. Make the estimator inside `strategy.scope()`. TensorFlow cannot
  exchange anything inside a function that each replica compiles by itself, so
  on several replicas do not call `expectation` within a nested
  `tf.function(jit_compile=True)`. `tfp_rb.models.distributed_fit` takes care of
  this.

  #### Examples

  ```python
  weight = tf.Variable([0.1, 0.2])
  network = lambda x: tf.reduce_sum(weight * x, axis=-1)  # or Keras
  nvil = tfp_rb.NVIL(network)
  images = tf.constant([[1., 0.], [0., 1.], [1., 1.]])
  logits = tf.Variable(tf.zeros([3, 5]))
  with tf.GradientTape() as tape:
    q = tfp.distributions.Categorical(logits=logits)
    estimator = tfp_rb.rao_blackwellize(nvil.with_inputs(images), num_summed=1)
    loss = tfp_rb.expectation(
        lambda z: tf.cast(z, tf.float32), q, estimator, seed=[0, 1])
  by_logits, by_weight = tape.gradient(loss, [logits, weight])
  by_weight.shape  # ==> (2,)
  ```

  #### References

  [1] Andriy Mnih, Karol Gregor. Neural variational inference and learning in
      belief networks. ICML 2014, section 2.3.1, equation (9), and
      algorithm 1; normalisation: section 2.3.2.
      https://arxiv.org/abs/1402.0030
  """

  _DECAY = 0.8  # The decay of the moving averages, as in [1].

  def __init__(
    self,
    baseline: tf.Tensor | tf.Variable | Callable[..., tf.Tensor],
    *,
    center: bool = False,
    normalize: bool = False,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      baseline: `Tensor` of the batch shape of the distribution (or with a last
        dimension of 1), through which the network is trained; or a callable
        that returns such a `Tensor`. `expectation` calls it without arguments,
        or with those of `with_inputs`.
      center: Python `bool`, whether to subtract the moving average.
      normalize: Python `bool`, whether to divide by the moving deviation.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      TypeError: `baseline` is neither a `Tensor` nor callable.
    """
    super().__init__(num_samples=num_samples, name=name)
    if not (callable(baseline) or tf.is_tensor(baseline)):
      raise TypeError(
        '`baseline` must be a Tensor of the batch shape, or a callable without '
        f'arguments that returns one; got {baseline!r}. For a number use '
        '`tfp_rb.REINFORCE(baseline=...)`.'
      )
    self.baseline = baseline
    self.center = bool(center)
    self.normalize = bool(normalize)
    # Without these settings there is no variable to save.
    if self.center or self.normalize:
      self.moving_mean = tf.Variable(0.0, trainable=False, name='moving_mean')
      self.moving_variance = tf.Variable(
        0.0, trainable=False, name='moving_variance'
      )

  why_not_pooled = None

  @property
  def evaluates_only_atoms(self) -> bool:
    # A subclass may evaluate `f` elsewhere.
    return type(self).evaluate is NVIL.evaluate

  @property
  def serves_dependent_sites(self) -> bool:
    # The level depends on the inputs and on earlier steps, not on the atoms.
    return self.evaluates_only_atoms

  @property
  def keeps_averages(self) -> bool:
    return self.center or self.normalize

  def bind(self, *inputs: Any) -> 'NVIL':
    # A Tensor or a callable without arguments needs no inputs.
    return self.with_inputs(*inputs) if _takes_inputs(self.baseline) else self

  def with_inputs(self, *inputs: Any) -> 'NVIL':
    """Returns this estimator with `baseline(*inputs)` as its baseline.

    Args:
      *inputs: The arguments of the network `baseline`, for example the images
        of this step.

    Returns:
      estimator: An `NVIL` that shares all variables with this one.
    """
    network: Any = self.baseline
    bound = copy.copy(self)  # The copy shares the moving averages.
    bound.baseline = lambda: network(*inputs)
    return bound

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    del distribution, seed
    value, signal = evaluate(f, atoms.values)  # [m] + batch_shape
    level = check_level(self._baseline_given_inputs(), value, atoms)
    # The regression trains the network, but not the model through `signal`.
    error = tf.stop_gradient(signal) - level
    inverse_scale = tf.ones([], value.dtype)
    if self.center or self.normalize:
      # Read the averages before the update. If they contained this draw, the
      # gradient would be biased.
      mean, variance = (
        tf.cast(tf.stop_gradient(v.read_value()), value.dtype)
        for v in (self.moving_mean, self.moving_variance)
      )
      self._update(tf.stop_gradient(error), atoms)
      if self.center:
        error, level = error - mean, level + mean
      if self.normalize:
        inverse_scale = tf.math.rsqrt(tf.maximum(variance, 1.0))
    ratio = tf.cast(gradients.likelihood_ratio(atoms.log_prob), value.dtype)
    # The value of `move` is 0, and its gradient is the score, divided by `s`.
    move = (ratio - 1.0) * inverse_scale
    return Estimate(
      value,
      surrogate=value + (signal - tf.stop_gradient(level)) * move,
      auxiliary=mean_over_draws(error**2, atoms),
    )

  def _baseline_given_inputs(self) -> Any:
    """Returns the output of the network, or the Tensor that replaces it."""
    if not callable(self.baseline):
      return self.baseline
    if checks.num_arguments(self.baseline):
      raise TypeError(
        '`baseline` must be callable without arguments, unless you bind its '
        f'inputs; got {self.baseline!r}. For a network write '
        '`nvil.with_inputs(x)` with the inputs of this step.'
      )
    return self.baseline()

  def _update(self, signal: tf.Tensor, atoms: Atoms) -> None:
    """Updates the averages with the draws of the batch, on all replicas."""
    mean = mean_over_draws(signal, atoms, keep_batch=False)
    variance = mean_over_draws((signal - mean) ** 2, atoms, keep_batch=False)
    # If no row has a draw, both are 0, and the averages must not change.
    is_drawn = tf.reduce_any(is_draw(atoms) & (atoms.weights > 0.0))
    is_drawn = sum_over_replicas(tf.cast(is_drawn, mean.dtype)) > 0.0
    for average, new in (
      (self.moving_mean, mean),
      (self.moving_variance, variance),
    ):
      step = (1.0 - self._DECAY) * (tf.cast(new, average.dtype) - average)
      average.assign_add(tf.where(is_drawn, step, tf.zeros_like(step)))


def _takes_inputs(baseline: Any) -> bool:
  """Returns whether a baseline is a network that is called with inputs."""
  if not callable(baseline):
    return False
  # The signature of a Keras layer is that of its `call`.
  call = getattr(baseline, 'call', baseline)
  return any(
    p.kind is p.VAR_POSITIONAL
    or (p.default is p.empty and p.kind is not p.VAR_KEYWORD)
    for p in inspect.signature(call).parameters.values()
  )
