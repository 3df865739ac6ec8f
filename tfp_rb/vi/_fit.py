# SPDX-License-Identifier: Apache-2.0
"""Fits surrogate posteriors."""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import checks
from tfp_rb.internal.types import Distribution, Optimizer, Seed
from tfp_rb.vi._chain_target import ChainTarget
from tfp_rb.vi._loss import monte_carlo_variational_loss

__all__ = ['fit_surrogate_posterior']


def _trace_loss(
  traceable_quantities: tfp.math.MinimizeTraceableQuantities,
) -> tf.Tensor:
  return traceable_quantities.loss


def fit_surrogate_posterior(
  target_log_prob_fn: Callable[..., tf.Tensor] | ChainTarget,
  surrogate_posterior: Distribution,
  optimizer: Optimizer,
  num_steps: int,
  convergence_criterion: Any = None,  # Naming its class loads `tfp.optimizer`.
  trace_fn: Callable[[tfp.math.MinimizeTraceableQuantities], Any] = _trace_loss,
  discrepancy_fn: Callable[[tf.Tensor], tf.Tensor] = tfp.vi.kl_reverse,
  sample_size: int | None = None,
  importance_sample_size: int = 1,
  trainable_variables: Sequence[tf.Variable] | None = None,
  jit_compile: bool | None = None,
  seed: Seed = None,
  name: str = 'fit_surrogate_posterior',
  gradient_estimator: GradientEstimator | None = None,
  exact_entropy: bool = False,
) -> Any:
  """Fits a surrogate posterior with discrete parts to a target, in place.

  This is `tfp.vi.fit_surrogate_posterior` for discrete parts. TFP's function
  reparameterizes all parts. For discrete parts its expected gradient is 0, so
  they receive only noise. Each step costs one call of the target; see
  `monte_carlo_variational_loss`.

  Args:
    target_log_prob_fn: As in `monte_carlo_variational_loss`.
    surrogate_posterior: As in `monte_carlo_variational_loss`. Its parameters
      must be `tf.Variable`s, `tfp.util.TransformedVariable`s or
      `tfp.util.DeferredTensor`s.
    optimizer: Any object with `apply_gradients`: an optimizer of Keras 3, of
      `tf_keras`, or your own.
    num_steps: Python `int`, the largest number of steps.
    convergence_criterion: A `tfp.optimizer.convergence_criteria` that may end
      the fit earlier, or `None`.
    trace_fn: Callable that maps `tfp.math.MinimizeTraceableQuantities` to the
      quantities that are traced at each step. The default traces the loss.
    discrepancy_fn: As in `monte_carlo_variational_loss`.
    sample_size: As in `monte_carlo_variational_loss`.
    importance_sample_size: As in `monte_carlo_variational_loss`.
    trainable_variables: List of `tf.Variable`s. The default is all variables
      with respect to which the loss has a gradient: those of the surrogate, of
      the target and of the estimator.
    jit_compile: Python `bool`, whether XLA compiles the steps. This is faster
      for more than a few hundred steps.
    seed: As in TFP.
    name: Python `str`, name of the scope of the operations.
    gradient_estimator: As in `monte_carlo_variational_loss`.
    exact_entropy: As in `monte_carlo_variational_loss`.

  Returns:
    trace: The results of `trace_fn`, stacked over the steps.

  Raises:
    TypeError: `optimizer` has no `apply_gradients`, or `num_steps` is not an
      `int`.
    ValueError: There is nothing to train.

  #### Examples

  ```python
  import keras

  log_p = tf.math.log([0.1, 0.2, 0.7])
  q = tfp.distributions.Categorical(logits=tf.Variable([0., 0., 0.]))
  losses = tfp_rb.vi.fit_surrogate_posterior(
      lambda z: tf.gather(log_p, z), q,
      optimizer=keras.optimizers.Adam(0.1), num_steps=200, seed=[0, 1])
  q.probs_parameter().numpy().round(2)  # ==> [0.1 0.2 0.7]
  ```

  #### References

  [1] Runjing Liu et al. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019. https://arxiv.org/abs/1810.04777
  """
  num_steps = checks.check_int(num_steps, 'num_steps', minimum=1)
  _check_optimizer(optimizer)
  loss_fn = functools.partial(
    monte_carlo_variational_loss,
    target_log_prob_fn,
    surrogate_posterior,
    sample_size=sample_size,
    importance_sample_size=importance_sample_size,
    discrepancy_fn=discrepancy_fn,
    gradient_estimator=gradient_estimator,
    exact_entropy=exact_entropy,
  )
  # TensorFlow traces the loss once. That trace serves all steps, and lists the
  # variables.
  loss_fn = tf.function(loss_fn, autograph=False)
  if trainable_variables is None:
    trainable_variables = _variables_with_gradient(loss_fn, seed)
  # A single variable, or a nested structure of them, works as well.
  trainable_variables = tf.nest.flatten(trainable_variables)
  if not trainable_variables:
    raise ValueError(
      '`surrogate_posterior` must have trainable variables; got a loss that '
      'depends on none. Pass its parameters as `tf.Variable`s or '
      '`tfp.util.TransformedVariable`s, not as Tensors computed from them.'
    )
  # A Keras optimizer creates variables in `build`, which is impossible inside
  # the compiled loop.
  if not getattr(optimizer, 'built', True) and hasattr(optimizer, 'build'):
    optimizer.build(trainable_variables)
  return tfp.math.minimize(
    loss_fn,
    num_steps=num_steps,
    optimizer=optimizer,
    convergence_criterion=convergence_criterion,
    trainable_variables=trainable_variables,
    trace_fn=trace_fn,
    jit_compile=jit_compile,
    seed=seed,
    name=name,
  )


def _check_optimizer(optimizer: Any) -> None:
  # Also reject the class of an optimizer, which a user may pass without
  # parentheses and which has the method, too.
  if not callable(getattr(optimizer, 'apply_gradients', None)) or isinstance(
    optimizer, type
  ):
    raise TypeError(
      '`optimizer` must have a method `apply_gradients`; got '
      f'{optimizer!r}. Write, for example, `keras.optimizers.Adam(0.1)`.'
    )


def _variables_with_gradient(
  loss_fn: Callable[..., tf.Tensor], seed: Seed
) -> list[tf.Variable]:
  """Returns the variables that the loss depends on, without evaluating it."""
  found: list[tf.Variable] = []

  def trace_only(seed: Seed) -> None:
    with tf.GradientTape() as tape:
      loss = loss_fn(seed=seed)
    variables = tape.watched_variables()
    # A variable may be read without having a gradient.
    gradients = tape.gradient(loss, variables)
    found.extend(
      v for v, g in zip(variables, gradients, strict=True) if g is not None
    )

  # Use the signature of `minimize`, so that its calls reuse the trace.
  spec = None if seed is None else tf.TensorSpec([2], tf.int32)
  tf.function(trace_only, autograph=False).get_concrete_function(spec)
  return found
