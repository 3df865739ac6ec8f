# SPDX-License-Identifier: Apache-2.0
"""Defines the base class of REBAR and RELAX."""

import abc
from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_rb.designs import Atoms
from tfp_rb.estimators.base import Estimate
from tfp_rb.estimators.relaxed import (
  RelaxedEstimator,
  auxiliary_of,
  call_at_floats,
  draw_free_noise,
  draw_noise,
  given_rest,
  linear_in,
  relaxation_of,
  softmax,
  through_softmax,
)
from tfp_rb.estimators.temperature import read_scalar
from tfp_rb.internal import gradients, random
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  Numeric,
  StatelessSeed,
  Temperature,
)

__all__ = ['RelaxedControlVariate']


class _Corrected(NamedTuple):
  """Holds the atoms from number `start` on, which have a control variate."""

  start: int
  one_hot: tf.Tensor  # [n] + batch_shape + sites + [K]
  # The log-probabilities of `q`, or of `q` given the rest, which broadcast to
  # the shape of `one_hot`.
  log_probs: tf.Tensor
  log_rest: tf.Tensor | None  # [n] + batch_shape, `None` if not restricted
  is_corrected: tf.Tensor  # [n] + batch_shape, Boolean


def _over_sites(
  x: tf.Tensor, like: tf.Tensor, axes: Sequence[int]
) -> tf.Tensor:
  """Reshapes one number per atom so that it multiplies the atom's vectors."""
  shape = tf.concat([tf.shape(x), [1] * len(axes)], axis=0)
  return tf.reshape(tf.cast(x, like.dtype), shape)


def _gradient_by_logits(
  weights: tf.Tensor,
  plain: tf.Tensor,
  probs: tf.Tensor,
  corrected: _Corrected,
  by_log_probs: tf.Tensor,
  by_log_rest: tf.Tensor,
) -> tf.Tensor:
  """Returns the gradient of the whole estimate w.r.t. the logits.

  Only the corrections are differentiated further, w.r.t. the variables of the
  control variate.

  Args:
    weights: `Tensor` of shape `[m] + batch_shape + ones`.
    plain: `Tensor` of shape `[m] + batch_shape + sites + [K]`, `f(z)` times the
      gradient of the score function's `log q` w.r.t. the log-probabilities.
    probs: `Tensor` of shape `batch_shape + sites + [K]`.
    corrected: The `_Corrected`.
    by_log_probs: `Tensor`, as returned by `_coefficients`.
    by_log_rest: `Tensor`, as returned by `_coefficients`, like `weights`.

  Returns:
    gradient: `Tensor` of shape `batch_shape + sites + [K]`.
  """
  probs = tf.stop_gradient(probs)
  probs_of_draws = tf.stop_gradient(tf.exp(corrected.log_probs))
  score = through_softmax(tf.stop_gradient(plain), probs)
  correction = through_softmax(by_log_probs, probs_of_draws)
  # The gradient of log q(rest) w.r.t. the logits is `probs_of_draws - probs`.
  correction += by_log_rest * (probs_of_draws - probs)
  return tf.reduce_sum(weights * score, axis=0) + tf.reduce_sum(
    weights[corrected.start :] * correction, axis=0
  )


class RelaxedControlVariate(RelaxedEstimator):
  """Base class of estimators that subtract `scale` times a control variate `c`.

  Let `x = softmax(perturbed / temperature)` be the relaxed atom, drawn given
  the atom `z`. The estimator adds a term of mean 0 to the score function:

  ```none
  scale (grad_u c(x) - grad_v c(x) - c(x) grad log q(z))
  ```

  `grad_u` differentiates `log q + noise` with the noise held fixed, and
  `grad_v` differentiates the perturbed values given the atom. Both paths have
  the same value, so `c` is evaluated once. Both are diagonal in `log q`, so
  their difference needs no second derivative (see `Noise.share`).

  If the relaxation is that of `q` given the rest, the product of `f` and the
  gradient of `log q(rest)` has no control variate yet. If `c` is cheap, the
  estimator also subtracts `c(x)` minus its mean from `f` in this product. It
  estimates the mean with `num_references` further relaxed atoms.
  """

  def __init__(
    self,
    temperature: Temperature,
    *,
    scale: Numeric = 1.0,
    restricted: bool | None = None,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    super().__init__(
      temperature, restricted=restricted, num_samples=num_samples, name=name
    )
    read_scalar(scale, tf.float32, 'scale', is_positive=False)
    self.scale = scale

  @property
  def num_references(self) -> int:
    """The number of relaxed atoms that estimate the mean of `c`, or 0."""
    return 0

  @abc.abstractmethod
  def control_variate_at(
    self, f: Integrand, relaxed: tf.Tensor, batch_shape: list[Any]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `c` at relaxed atoms, `[n] + batch_shape`, and its gradient."""

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    relaxation = relaxation_of(atoms, self)
    one_hot = relaxation.to_one_hot(atoms.values)  # [m] + batch + sites + [K]
    inputs = relaxation.to_event(one_hot)
    value = call_at_floats(f, inputs, self)  # [m] + batch_shape
    ratio = tf.cast(gradients.likelihood_ratio(atoms.log_prob), value.dtype)
    surrogate = value * ratio
    corrected = self._corrected(relaxation, atoms, one_hot)
    if corrected.start == value.shape[0]:  # Everything is summed.
      return Estimate(value, surrogate)
    axes, start = relaxation.site_axes, corrected.start
    over_sites = functools.partial(_over_sites, like=one_hot, axes=axes)
    # The tape differentiates the objective w.r.t. the estimator's variables.
    with tf.GradientTape(persistent=True) as tape:
      by_log_probs, by_log_rest = self._coefficients(
        lambda perturbed: self._relaxed(
          f, relaxation, perturbed, distribution, atoms.partition.batch_shape
        ),
        corrected,
        over_sites,
        seed,
      )
      gradient = _gradient_by_logits(
        over_sites(atoms.weights),
        over_sites(value) * one_hot,
        tf.exp(relaxation.log_probs),
        corrected,
        by_log_probs,
        over_sites(by_log_rest),
      )
      # Equation (6) of Grathwohl et al. (2018), for the whole estimate: the
      # mean of the gradient is fixed, so its square measures the variance.
      objective = tf.reduce_sum(gradient**2, axis=axes)  # batch_shape
    terms = tf.reduce_sum(linear_in(corrected.log_probs, by_log_probs), axes)
    if corrected.log_rest is not None:
      terms += tf.stop_gradient(by_log_rest) * corrected.log_rest
    # Subtract the value of these terms, because only their gradient counts.
    terms = tf.cast(terms - tf.stop_gradient(terms), value.dtype)
    surrogate += tf.concat([tf.zeros_like(value[:start]), terms], axis=0)
    return Estimate(value, surrogate, auxiliary_of(objective, tape, self))

  def _corrected(
    self, relaxation: Any, atoms: Atoms, one_hot: tf.Tensor
  ) -> _Corrected:
    """Returns the atoms that have a control variate."""
    if not self.is_restricted(relaxation, atoms):
      log_probs = relaxation.log_probs[tf.newaxis]
      return _Corrected(0, one_hot, log_probs, None, atoms.weights > 0.0)
    log_probs, log_rest, is_drawn = given_rest(
      relaxation.log_probs, atoms, one_hot
    )
    # The summed atoms have exact score terms and need no control variate.
    start = atoms.num_summed if isinstance(atoms.num_summed, int) else 0
    return _Corrected(
      start, *(x[start:] for x in (one_hot, log_probs, log_rest, is_drawn))
    )

  def _coefficients(
    self,
    relaxed: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
    corrected: _Corrected,
    over_sites: Callable[[tf.Tensor], tf.Tensor],
    seed: StatelessSeed,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the terms that the control variate adds to the gradient.

    Args:
      relaxed: Callable that maps perturbed values to `c` and its gradient
        w.r.t. them.
      corrected: The `_Corrected`.
      over_sites: Callable that appends axes of size 1 to `[n] + batch_shape`.
      seed: Stateless seed, `int32[2]`.

    Returns:
      by_log_probs: `Tensor` like `corrected.one_hot`, the gradient w.r.t. the
        log-probabilities.
      by_log_rest: `Tensor` of shape `[n] + batch_shape`, the gradient w.r.t.
        `log q(rest)`.
    """
    noise_seed, reference_seed = random.split_seed(seed, n=2)
    one_hot, log_probs = corrected.one_hot, corrected.log_probs
    noise = draw_noise(log_probs, one_hot, noise_seed)
    control, slope = relaxed(noise.perturbed)
    control = tf.cast(control, one_hot.dtype)
    scale = read_scalar(self.scale, one_hot.dtype, 'scale', is_positive=False)
    # grad_u - grad_v, and the score of the atom.
    by_log_probs = scale * (noise.share * slope - over_sites(control) * one_hot)
    by_log_rest = tf.zeros_like(control)
    if corrected.log_rest is not None and self.num_references:
      # In each row with draws, the last atom is a draw. So its
      # log-probabilities are those given the rest.
      free = draw_free_noise(log_probs[-1], self.num_references, reference_seed)
      level = tf.cast(tf.reduce_mean(relaxed(free)[0], axis=0), control.dtype)
      by_log_rest = scale * (level - control)
    is_corrected = corrected.is_corrected
    zeros = tf.zeros_like(by_log_probs)
    return (
      tf.where(over_sites(is_corrected) > 0.0, by_log_probs, zeros),
      tf.where(is_corrected, by_log_rest, tf.zeros_like(by_log_rest)),
    )

  def _relaxed(
    self,
    f: Integrand,
    relaxation: Any,
    perturbed: tf.Tensor,
    distribution: Distribution,
    batch_shape: list[Any],
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `c` at the relaxed atoms, and its gradient w.r.t. `perturbed`."""
    # The gradient w.r.t. a trained temperature would be NaN at -inf.
    perturbed = tf.maximum(perturbed, -1e30)
    temperature = self.read_temperature(perturbed.dtype, distribution)
    relaxed = softmax(perturbed / temperature)
    with tf.GradientTape() as tape:
      tape.watch(relaxed)
      inputs = relaxation.to_event(relaxed)
    control, slope = self.control_variate_at(f, inputs, batch_shape)
    slope = tape.gradient(inputs, relaxed, output_gradients=slope)
    # Apply the chain rule, with the Jacobian of the softmax, diag(x) - x x^T.
    mean = tf.reduce_sum(relaxed * slope, axis=-1, keepdims=True)
    return control, relaxed * (slope - mean) / temperature
