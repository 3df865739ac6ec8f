"""REBAR and RELAX: the score function and a relaxed control variate."""

import abc
import functools
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_rb.designs import Atoms
from tfp_rb.estimators.base import Estimate
from tfp_rb.estimators.relaxed import (
  RelaxedEstimator,
  call_at_floats,
  draw_free_noise,
  draw_noise,
  given_rest,
  linear_in,
  relaxation_of,
  softmax,
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
  """The atoms `start, ...` that have a control variate."""

  start: int
  one_hot: tf.Tensor  # [n] + batch_shape + sites + [K]
  log_probs: tf.Tensor  # broadcasts to it: of `q`, or of `q` given the rest
  log_rest: tf.Tensor | None  # [n] + batch_shape, if given the rest
  is_corrected: tf.Tensor  # [n] + batch_shape


def _over_sites(x, like, axes):
  """Reshapes a number for each atom, so that it multiplies its vectors."""
  shape = tf.concat([tf.shape(x), [1] * len(axes)], axis=0)
  return tf.reshape(tf.cast(x, like.dtype), shape)


def _gradient_by_logits(
  weights, plain, probs, corrected, by_log_probs, by_log_rest
):
  """The gradient of the whole estimate w.r.t. the logits.

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
  # A gradient `x` w.r.t. log-probabilities is `x - probs sum(x)` w.r.t. logits.
  through_softmax = lambda x, p: x - p * tf.reduce_sum(x, -1, keepdims=True)
  probs = tf.stop_gradient(probs)
  probs_of_draws = tf.stop_gradient(tf.exp(corrected.log_probs))
  score = through_softmax(tf.stop_gradient(plain), probs)
  correction = through_softmax(by_log_probs, probs_of_draws)
  correction += by_log_rest * (probs_of_draws - probs)
  return tf.reduce_sum(weights * score, axis=0) + tf.reduce_sum(
    weights[corrected.start :] * correction, axis=0
  )


class RelaxedControlVariate(RelaxedEstimator):
  """Base class: what is subtracted is `scale` times a control variate `c`.

  With `x = softmax(perturbed / temperature)` the relaxed atom, drawn given the
  atom `z`, the term of zero mean that is added to the score function's is

  ```none
  scale (grad_u c(x) - grad_v c(x) - c(x) grad log q(z))
  ```

  `grad_u` follows `log q + noise` with the noise held fixed, `grad_v` the
  perturbed values given the atom. Both have the same value, so `c` is
  evaluated once, and both are diagonal in `log q`, so their difference needs no
  second derivative: see `Noise.share`.

  Where the relaxation is that of `q` given the rest, the gradient of the mass
  of the rest times `f` is left. There `c(x)` less its mean is subtracted, too,
  if that mean can be had at little cost: over `num_references` relaxed atoms
  that are drawn for it alone.
  """

  num_references = 0

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

  @abc.abstractmethod
  def control_variate_at(
    self, f: Integrand, relaxed: tf.Tensor, batch_shape: list[Any]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns `c` at relaxed atoms, `[n] + batch_shape`, and its slope."""

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    relaxation = relaxation_of(atoms, self)
    one_hot = relaxation.to_one_hot(atoms.values)
    inputs = relaxation.to_event(one_hot)
    value = call_at_floats(f, inputs, self)
    ratio = tf.cast(gradients.likelihood_ratio(atoms.log_prob), value.dtype)
    surrogate = value * ratio
    corrected = self._corrected(relaxation, atoms, one_hot)
    if corrected.start == value.shape[0]:
      return Estimate(value, surrogate)
    axes, start = relaxation.site_axes, corrected.start
    over_sites = functools.partial(_over_sites, like=one_hot, axes=axes)
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
      objective = tf.reduce_sum(gradient**2, axis=axes)
    terms = tf.reduce_sum(linear_in(corrected.log_probs, by_log_probs), axes)
    if corrected.log_rest is not None:
      terms += tf.stop_gradient(by_log_rest) * corrected.log_rest
    # Without its value: only the gradient of these terms means something.
    terms = tf.cast(terms - tf.stop_gradient(terms), value.dtype)
    surrogate += tf.concat([tf.zeros_like(value[:start]), terms], axis=0)
    # After the call, which may have built a network.
    variables = [
      v if isinstance(v, tf.Variable) else v.value  # Keras 3 wraps its own
      for v in self.trainable_variables
    ]
    if not variables:
      return Estimate(value, surrogate)
    return Estimate(
      value, surrogate, gradients.objective_of(objective, tape, variables)
    )

  def _corrected(self, relaxation, atoms, one_hot):
    if not self.is_restricted(relaxation, atoms):
      log_probs = relaxation.log_probs[tf.newaxis]
      return _Corrected(0, one_hot, log_probs, None, atoms.weights > 0.0)
    # What is summed by plain score terms needs no control variate.
    log_probs, log_rest, is_drawn = given_rest(
      relaxation.log_probs, atoms, one_hot
    )
    start = atoms.num_summed if isinstance(atoms.num_summed, int) else 0
    return _Corrected(
      start, *(x[start:] for x in (one_hot, log_probs, log_rest, is_drawn))
    )

  def _coefficients(self, relaxed, corrected, over_sites, seed):
    """What the control variate adds to the gradient.

    Args:
      relaxed: Callable, perturbed values to `c` and its gradient by them.
      corrected: The `_Corrected`.
      over_sites: Callable, `[n] + batch_shape` to a shape beside the vectors.
      seed: Stateless seed, `int32[2]`.

    Returns:
      by_log_probs: `Tensor` like `corrected.one_hot`.
      by_log_rest: `Tensor` of shape `[n] + batch_shape`.
    """
    noise_seed, reference_seed = random.split_seed(seed, n=2)
    one_hot, log_probs = corrected.one_hot, corrected.log_probs
    noise = draw_noise(log_probs, one_hot, noise_seed)
    control, slope = relaxed(noise.perturbed)
    control = tf.cast(control, one_hot.dtype)
    scale = read_scalar(self.scale, one_hot.dtype, 'scale', is_positive=False)
    by_log_probs = scale * (noise.share * slope - over_sites(control) * one_hot)
    by_log_rest = tf.zeros_like(control)
    if corrected.log_rest is not None and self.num_references:
      # The last atom is a draw, wherever something is drawn.
      free = draw_free_noise(log_probs[-1], self.num_references, reference_seed)
      level = tf.cast(tf.reduce_mean(relaxed(free)[0], axis=0), control.dtype)
      by_log_rest = scale * (level - control)
    return tuple(
      tf.where(is_corrected, x, tf.zeros_like(x))
      for x, is_corrected in (
        (by_log_probs, over_sites(corrected.is_corrected) > 0.0),
        (by_log_rest, corrected.is_corrected),
      )
    )

  def _relaxed(self, f, relaxation, perturbed, distribution, batch_shape):
    """`c` at the relaxed atoms, and its gradient by the perturbed values."""
    # Finite at impossible classes, or a trained temperature would be NaN.
    perturbed = tf.maximum(perturbed, -1e30)
    temperature = self.read_temperature(perturbed.dtype, distribution)
    relaxed = softmax(perturbed / temperature)
    with tf.GradientTape() as tape:
      tape.watch(relaxed)
      inputs = relaxation.to_event(relaxed)
    control, slope = self.control_variate_at(f, inputs, batch_shape)
    slope = tape.gradient(inputs, relaxed, output_gradients=slope)
    mean = tf.reduce_sum(relaxed * slope, axis=-1, keepdims=True)
    return control, relaxed * (slope - mean) / temperature
