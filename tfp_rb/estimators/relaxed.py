# SPDX-License-Identifier: Apache-2.0
"""Relaxes one-hot atoms, with Gumbel noise given the atom.

A relaxed estimator works on sites of `K` classes each. A `Bernoulli` is a site
of two classes. Let `L` be the log-probabilities of a site and `z` its atom. The
perturbed log-probabilities `L + gumbel`, given that `z` is their argmax, are

```none
  T                                      at the class of z
  L + g - softplus(L + g - T)            at the others
```

with standard Gumbel variables `T` and `g`: the maximum is independent of the
class that attains it, and the others are Gumbel variables truncated below it
(Tucker et al. 2017, appendix C).
"""

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.designs import Atoms, is_draw
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.temperature import check_temperature, read_scalar
from tfp_rb.internal import gradients, random
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  StatelessSeed,
  Temperature,
)

__all__ = [
  'Noise',
  'RelaxedEstimator',
  'auxiliary_of',
  'call_at_floats',
  'draw_free_noise',
  'draw_noise',
  'given_rest',
  'linear_in',
  'relaxation_of',
  'softmax',
  'through_softmax',
  'value_and_slope',
  'values_and_mean',
]


class Noise(NamedTuple):
  """Holds perturbed log-probabilities given the atoms.

  Attributes:
    perturbed: `Tensor` of shape `[m] + batch_shape + sites + [K]`, constant.
    share: `Tensor` of that shape with values in (0, 1]: the derivative w.r.t.
      `L` of `L + noise` with the noise held fixed, minus the derivative of the
      perturbed values given the atom. This difference of two Jacobians is
      diagonal: 1 at the class of the atom and `sigmoid(L + g - T)` at the
      others.
  """

  perturbed: tf.Tensor
  share: tf.Tensor


def given_rest(
  log_probs: tf.Tensor, atoms: Atoms, one_hot: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Returns the log-probabilities given the rest, at the draws.

  Args:
    log_probs: `Tensor` of shape `batch_shape + [K]`.
    atoms: `Atoms` of a single site.
    one_hot: `Tensor` of shape `[m] + batch_shape + [K]`, their vectors.

  Returns:
    log_probs: `Tensor` of shape `[m] + batch_shape + [K]`: those of `q`
      restricted to the rest at the draws, those of `q` at the other atoms.
    log_rest: `Tensor` of shape `[m] + batch_shape`, the differentiable log of
      the mass of the rest at the draws; 0 at the other atoms.
    is_from_rest: Boolean `Tensor` of shape `[m] + batch_shape`, whether an atom
      is a draw.
  """
  is_possible = atoms.weights > 0.0
  drawn = is_draw(atoms)
  # Atoms of weight 0 hold the mode instead, so they must not exclude anything.
  listed = tf.cast(is_possible & ~drawn, one_hot.dtype)[..., tf.newaxis]
  is_summed = tf.reduce_any(
    listed * one_hot > 0.0, axis=0, keepdims=True
  )  # [1] + batch_shape + [K]
  is_from_rest = drawn & is_possible  # [m] + batch_shape
  excluded = is_summed & is_from_rest[..., tf.newaxis]
  log_probs = tf.where(excluded, tf.constant(-np.inf, one_hot.dtype), log_probs)
  # If nothing is excluded, this is log 1 = 0.
  log_rest = tf.reduce_logsumexp(log_probs, axis=-1)
  return log_probs - log_rest[..., tf.newaxis], log_rest, is_from_rest


def draw_noise(
  log_probs: tf.Tensor,
  one_hot: tf.Tensor,
  seed: StatelessSeed,
  num_noises: int | None = None,
) -> Noise:
  """Draws the `Noise` given the atoms.

  Args:
    log_probs: `Tensor` that broadcasts to the shape of `one_hot`.
    one_hot: `Tensor` of shape `[m] + batch_shape + sites + [K]`.
    seed: Stateless seed, `int32[2]`.
    num_noises: Python `int`, the size of an additional first axis; `None` for
      none.

  Returns:
    noise: `Noise`.
  """
  extra = [] if num_noises is None else [num_noises]
  gumbel = _gumbel(extra, one_hot, seed)  # extra + [m] + batch + sites + [K]
  is_atom = one_hot > 0.5
  # The Gumbel variable of the atom's class serves as the maximum `T`.
  top = tf.reduce_sum(one_hot * gumbel, axis=-1, keepdims=True)
  free = tf.stop_gradient(log_probs) + gumbel
  # Truncate below `T`: -log(exp(-free) + exp(-top)) is finite or -inf.
  below = free - tf.math.softplus(free - top)
  return Noise(
    perturbed=tf.where(is_atom, top, below),
    share=tf.where(is_atom, tf.ones_like(free), tf.sigmoid(free - top)),
  )


def draw_free_noise(
  log_probs: tf.Tensor, num_noises: int, seed: StatelessSeed
) -> tf.Tensor:
  """Returns `num_noises` perturbed log-probabilities that no atom restricts."""
  return tf.stop_gradient(log_probs) + _gumbel([num_noises], log_probs, seed)


def _gumbel(
  sample_shape: list[int], like: tf.Tensor, seed: StatelessSeed
) -> tf.Tensor:
  """Returns standard Gumbel variables of shape `sample_shape + like.shape`."""
  shape = tf.concat([sample_shape, tf.shape(like)], axis=0)
  # Neither 0 nor 1 can occur, so both logarithms are finite.
  uniform = random.uniform(shape, seed, like.dtype)
  uniform = tf.ensure_shape(uniform, sample_shape + like.shape.as_list())
  return -tf.math.log(-tf.math.log(uniform))


def linear_in(log_probs: tf.Tensor, coefficients: tf.Tensor) -> tf.Tensor:
  """Returns terms whose gradient w.r.t. `log_probs` is `coefficients`.

  Args:
    log_probs: Differentiable `Tensor`; entries of `-inf` are ignored.
    coefficients: `Tensor`, not differentiated.

  Returns:
    terms: `Tensor`, `coefficients * log_probs`, 0 at impossible classes.
  """
  is_possible = log_probs > -np.inf
  # Mask both factors, because 0 times -inf is NaN, forward and backward.
  zeros = tf.zeros_like(coefficients)
  return tf.stop_gradient(
    tf.where(is_possible, coefficients, zeros)
  ) * tf.where(is_possible, log_probs, tf.zeros_like(log_probs))


def softmax(logits: tf.Tensor) -> tf.Tensor:
  """Returns the softmax along the last axis of a Tensor of any rank."""
  # The kernel of oneDNN supports at most five axes.
  if logits.shape.rank is not None and logits.shape.rank <= 5:
    return tf.nn.softmax(logits)
  shape = tf.shape(logits)
  flat = tf.nn.softmax(tf.reshape(logits, [-1, shape[-1]]))
  return tf.ensure_shape(tf.reshape(flat, shape), logits.shape)


def through_softmax(by_log_probs: tf.Tensor, probs: tf.Tensor) -> tf.Tensor:
  """Converts a gradient w.r.t. log-probabilities to one w.r.t. the logits."""
  return by_log_probs - probs * tf.reduce_sum(by_log_probs, -1, keepdims=True)


def auxiliary_of(
  objective: tf.Tensor, tape: tf.GradientTape, estimator: GradientEstimator
) -> tf.Tensor | None:
  """Returns an objective that trains only the variables of the estimator.

  Args:
    objective: `Tensor` of `batch_shape`.
    tape: Persistent `tf.GradientTape` that recorded `objective`.
    estimator: The estimator.

  Returns:
    auxiliary: `Tensor` of `batch_shape`; `None` if there are no variables.
  """
  # Ask for the variables only now: a Keras network has none until it is called.
  variables = [
    v if isinstance(v, tf.Variable) else v.value  # Keras 3 wraps its variables.
    for v in estimator.trainable_variables
  ]
  if not variables:
    return None
  return gradients.objective_of(objective, tape, variables)


def relaxation_of(atoms: Atoms, estimator: GradientEstimator) -> Any:
  """Returns the `Relaxation` of the distribution, or raises if it has none.

  Args:
    atoms: `Atoms`.
    estimator: The estimator, for the error message.

  Returns:
    relaxation: A `Relaxation`.
  """
  relaxation = atoms.partition.relaxation()
  if relaxation is not None:
    return relaxation
  kind = atoms.partition.name
  advice = {
    'Categorical': 'Use `tfd.OneHotCategorical`, and an `f` of one-hot vectors.'
  }.get(kind, 'Use `tfp_rb.REINFORCE`, which supports every distribution.')
  raise TypeError(
    f'`distribution` must consist of one-hot vectors or bits for '
    f'`{type(estimator).__name__}`: a `tfd.OneHotCategorical`, a '
    '`tfd.Bernoulli`, or `tfd.Independent` or `tfd.Sample` of them; got a '
    f'`{kind}`. {advice}'
  )


class RelaxedEstimator(GradientEstimator):
  """Base class of the estimators that draw Gumbel noise given the atom."""

  def __init__(
    self,
    temperature: Temperature,
    *,
    restricted: bool | None = None,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Stores the settings.

    Args:
      temperature: A positive number, a scalar `Tensor` or variable, or a
        callable without arguments that returns one.
      restricted: Python `bool`, or `None` to restrict where possible.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(num_samples=num_samples, name=name)
    check_temperature(temperature)
    if restricted not in (None, True, False):
      raise TypeError(
        '`restricted` must be True, False or None; got '
        f'{restricted!r}. Pass None to restrict where that is possible.'
      )
    self.temperature = temperature  # read again at every call
    self.restricted = restricted

  def read_temperature(
    self, dtype: tf.DType, distribution: Distribution
  ) -> tf.Tensor:
    """Returns the current temperature, checked under `validate_args`."""
    return read_scalar(
      self.temperature,
      dtype,
      'temperature',
      validate_args=distribution.validate_args,
    )

  def is_restricted(self, relaxation: Any, atoms: Atoms) -> bool:
    """Returns whether the relaxation is that of `q` given the rest."""
    if isinstance(atoms.num_summed, int) and atoms.num_summed == 0:
      return False  # Nothing is summed, so the rest is the whole support.
    if self.restricted and relaxation.num_sites:
      raise ValueError(
        '`restricted` must not be True for a `distribution` with several '
        f'sites; got {relaxation.num_sites} site dimensions. Use '
        '`restricted=None`.'
      )
    return relaxation.num_sites == 0 and self.restricted in (None, True)


def value_and_slope(
  f: Integrand, inputs: tf.Tensor, estimator: GradientEstimator
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns `f` at floating-point atoms, and its gradient w.r.t. them.

  Args:
    f: Callable of atoms that checks its result.
    inputs: `Tensor` of shape `[n] + batch_shape + event_shape`.
    estimator: The estimator, for the error message.

  Returns:
    value: `Tensor` of shape `[n] + batch_shape`.
    slope: `Tensor` of the shape of `inputs`, the gradient w.r.t. them.
  """
  with tf.GradientTape() as tape:
    tape.watch(inputs)
    value = call_at_floats(f, inputs, estimator)
  slope = tape.gradient(value, inputs)
  # A missing gradient must not count as 0: nothing would be trained, without
  # any warning.
  if slope is None:
    raise ValueError(
      f'`{getattr(f, "name", "f")}` must be differentiable w.r.t. its atoms '
      f'for `{type(estimator).__name__}`; got no gradient. Do not round, cast '
      'or take the argmax of the atoms, or use `tfp_rb.REINFORCE`.'
    )
  return value, slope


def call_at_floats(
  f: Integrand, inputs: tf.Tensor, estimator: GradientEstimator
) -> tf.Tensor:
  """Returns `f(inputs)`, and adds a note to an exception that `f` raises."""
  try:
    return f(inputs)
  except Exception as error:
    # The exception itself reaches the user unchanged.
    if hasattr(error, 'add_note'):  # It exists from Python 3.11 on.
      error.add_note(
        f'`{type(estimator).__name__}` calls `{getattr(f, "name", "f")}` with '
        f'atoms of {inputs.dtype.name} and shape {inputs.shape}, which are '
        'one-hot vectors or points between them. Write it with products and '
        'sums, e.g. `tf.reduce_sum(z * cost, axis=-1)` instead of '
        '`tf.gather(cost, z)`, or use `tfp_rb.REINFORCE`.'
      )
    raise


def values_and_mean(
  atoms: Atoms, estimator: GradientEstimator
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the atoms as floating-point numbers, and the mean of `q`.

  Args:
    atoms: `Atoms`.
    estimator: The estimator, for the error message.

  Returns:
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.
    mean: Differentiable `Tensor` of shape `batch_shape + event_shape`.
  """
  try:
    mean = atoms.partition.mean()
  except NotImplementedError as error:
    if _has_mean(atoms.partition.distribution):
      raise  # The user's own `_mean` raised this exception.
    raise TypeError(
      f'`distribution` must have a mean for `{type(estimator).__name__}`; got '
      f'a `{atoms.partition.name}`, which has none. Use `tfp_rb.REINFORCE`.'
    ) from error
  return tf.cast(atoms.values, mean.dtype), mean


def _has_mean(distribution: Distribution) -> bool:
  """Returns whether a distribution, and any that it wraps, defines a mean."""
  if type(distribution)._mean is tfp.distributions.Distribution._mean:
    return False
  wrapped = getattr(distribution, 'distribution', None)
  return wrapped is None or _has_mean(wrapped)
