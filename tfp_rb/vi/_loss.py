"""Variational losses over discrete and mixed surrogate posteriors."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import estimate_at
from tfp_rb.designs import CheckedIntegrand, Evaluation, whole_of
from tfp_rb.designs.integrand import EVALUATION
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import random, shapes
from tfp_rb.internal.types import Distribution, Seed, do_not_convert
from tfp_rb.vi._arguments import (
  call_target,
  check_arguments,
  check_discrete_arguments,
  check_target,
  estimator_for,
)
from tfp_rb.vi._joint import is_reparameterized, split

__all__ = ['monte_carlo_variational_loss']

tfd = tfp.distributions

# Stands in for infinity where a function of it would be NaN.
_LARGE = 1e30


@do_not_convert
def monte_carlo_variational_loss(
  target_log_prob_fn: Callable[..., tf.Tensor],
  surrogate_posterior: Distribution,
  sample_size: int | None = None,
  importance_sample_size: int = 1,
  discrepancy_fn: Callable[[tf.Tensor], tf.Tensor] = tfp.vi.kl_reverse,
  gradient_estimator: GradientEstimator | None = None,
  stopped_surrogate_posterior: Distribution | None = None,
  exact_entropy: bool = False,
  seed: Seed = None,
  name: str | None = None,
) -> tf.Tensor:
  """Estimates `E_q[discrepancy_fn(log p(z) - log q(z))]`, and its gradient.

  As `tfp.vi.monte_carlo_variational_loss`, but right for a surrogate posterior
  `q` that is discrete, or discrete in some of its parts: the gradient w.r.t.
  the discrete parts is that of one of the estimators of this library, that
  w.r.t. the continuous parts is reparameterized.

  ```none
  gradient   sum_i w_i (F + dF/dlog q - level) grad log q(d_i)  +  grad F
  ```

  `F` is the discrepancy at an atom, `d_i` its discrete parts. That `F` contains
  `log q` is accounted for in what the estimator (and its baseline) is given, so
  at `q = p` the gradient w.r.t. the discrete parts has no variance at all: with
  every estimator if `p` is normalized, else with a baseline that follows its
  constant, as the default has. `grad F` passes through what parameters
  `target_log_prob_fn` has and through the continuous parts.

  * Continuous parts that do not depend on discrete ones are drawn once and
    shared by all atoms; those that do are drawn for each atom.
  * Several discrete parts, also such that depend on each other, are summed
    jointly; the best values are found by a beam over the parts.
  * A discrete part with many independent sites (`tfd.Independent` or
    `tfd.Sample`) goes site by site, see `tfp_rb.local_expectation`. Where the
    target has one term for each site, make the sites the *batch* of the
    surrogate, and the cost is that of one site.

  The value is unbiased if the estimator is, and so is the gradient. The target
  is called once, with as many atoms as the estimator asks for.

  Args:
    target_log_prob_fn: Callable, the unnormalised `log p`. With a `sample` of
      the surrogate, each part with a first axis of `m` atoms, it is called as
      `fn(*sample)` for a list or a tuple, `fn(**sample)` for a dictionary and
      `fn(sample)` for a `Tensor`; with `seed=`, too, if it takes one. Returns
      `Tensor` of shape `[m] + batch_shape`. Where it is `-inf` but `q` is
      possible, the reverse divergence is infinite, and a fit ends in NaN: let
      `q` exclude such values, or soften the target.
    surrogate_posterior: A `tfd.Distribution`: a discrete one, or a
      `tfd.JointDistribution*` with discrete or reparameterizable parts, of
      which no discrete one may depend on a continuous one that depends on a
      discrete one. With all parts reparameterizable this is TFP's loss. Each
      discrete part that depends on others adds to the time of tracing, some
      seconds for half a dozen.
    sample_size: Python `int`, the number of draws, in place of the estimator's
      `num_samples`. What is drawn once whatever it is, the continuous parts
      before the discrete ones and the joint value of many sites, it does not
      average over: for that take the mean of the losses of several seeds.
    importance_sample_size: Must be 1: with a sum over atoms no
      importance-weighted bound is known. (`tfp.vi.GradientEstimators.VIMCO` is
      TFP's for such a bound.)
    discrepancy_fn: Callable, a Csiszar function in log-space: any of `tfp.vi`.
    gradient_estimator: A `GradientEstimator`. Default: the best value is summed
      and two others drawn, with a leave-one-out baseline; of a product all
      symbols of each site are summed if they are at most 16, or else 8 of them,
      and two others drawn.
    stopped_surrogate_posterior: A copy of `surrogate_posterior` with stopped
      gradients to its parameters. If given, the log-density of the continuous
      parts is computed by it (sticking the landing, [2]). For
      `tfp.vi.kl_reverse` only; elsewhere this would be biased.
    exact_entropy: Python `bool`, whether `surrogate_posterior.entropy()`
      replaces the estimate of the entropy. For `tfp.vi.kl_reverse` only.
    seed: As in TFP; see `tfp_rb.expectation`. (Continuous parts are drawn by
      TFP, which draws differently under XLA.)
    name: Python `str`, name of the scope of the operations.

  Returns:
    loss: `Tensor` of the batch shape of the surrogate.

  Raises:
    TypeError: `target_log_prob_fn` is not callable or an argument is not what
      it has to be.
    ValueError: The target returns another shape than `[m] + batch_shape`, the
      parts are in an order that is not supported, or an argument does not go
      with another.
    NotImplementedError: A part is neither discrete with a partition nor
      reparameterizable, or has no entropy.

  #### Examples

  ```python
  log_p = tf.math.log([0.1, 0.2, 0.7])
  logits = tf.Variable([0., 0., 0.])
  q = tfp.distributions.Categorical(logits=logits)
  with tf.GradientTape() as tape:
    loss = tfp_rb.vi.monte_carlo_variational_loss(
        lambda z: tf.gather(log_p, z), q, gradient_estimator=tfp_rb.Exact())
  loss                         # ==> 0.3243
  tape.gradient(loss, logits)  # ==> [ 0.2932  0.0622 -0.3554]
  ```

  #### References

  [1] Runjing Liu et al. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019. https://arxiv.org/abs/1810.04777
  [2] Geoffrey Roeder, Yuhuai Wu, David Duvenaud. Sticking the landing: simple,
      lower-variance gradient estimators for variational inference. NeurIPS
      2017. https://arxiv.org/abs/1703.09194
  """
  check_arguments(
    target_log_prob_fn,
    surrogate_posterior,
    discrepancy_fn,
    gradient_estimator,
    stopped_surrogate_posterior,
    exact_entropy,
  )
  with tf.name_scope(name or 'monte_carlo_variational_loss'):
    if is_reparameterized(surrogate_posterior):
      if sample_size is None:
        sample_size = getattr(gradient_estimator, 'num_samples', 1)
      return _reparameterized_loss(
        target_log_prob_fn,
        surrogate_posterior,
        sample_size,
        importance_sample_size,
        discrepancy_fn,
        stopped_surrogate_posterior,
        exact_entropy,
        seed,
      )
    check_discrete_arguments(
      importance_sample_size,
      discrepancy_fn,
      gradient_estimator,
      stopped_surrogate_posterior,
    )
    early_seed, late_seed, target_seed, *seeds = random.split_seed(seed, n=5)
    parts = split(surrogate_posterior, early_seed, stopped_surrogate_posterior)
    estimator = estimator_for(parts.discrete, gradient_estimator, sample_size)

    def log_densities(values):
      """`log p` less the continuous parts of `log q`, and the discrete part."""
      sample, log_probs = parts.complete(values, late_seed)
      result = call_target(target_log_prob_fn, sample, target_seed)
      expected = values.shape[:1] + parts.discrete.batch_shape
      log_p = check_target(result, expected)
      if exact_entropy:
        return log_p, tf.zeros_like(log_p)
      log_p -= sum(tf.cast(x, log_p.dtype) for x in log_probs)
      log_q = _log_prob_at(parts.discrete, values, estimator.differentiates_f)
      return log_p, tf.cast(log_q, log_p.dtype)

    integrand = _integrand(discrepancy_fn, log_densities, parts.discrete)
    atom_seed, noise_seed = seeds
    atoms = estimator.sample_atoms(parts.discrete, atom_seed)
    loss = estimate_at(atoms, integrand, parts.discrete, estimator, noise_seed)
    if exact_entropy:
      loss -= tf.cast(parts.entropy(), loss.dtype)
    return loss


def _integrand(discrepancy_fn, log_densities, discrete):
  """The discrepancy as a function of the discrete parts."""
  if discrepancy_fn is not tfp.vi.kl_reverse:
    return _Discrepancy(discrepancy_fn, log_densities, discrete)

  def negative_log_ratio(values):
    # The derivative w.r.t. log q is 1. Its term in the gradient, the mean of
    # the score, is 0, and is left out: then the baseline silences the rest.
    log_p, log_q = log_densities(values)
    return log_q - log_p

  return CheckedIntegrand(negative_log_ratio, shapes.batch_shape(discrete))


def _log_prob_at(discrete, values, is_differentiated):
  """`log q` of atoms, a constant in its parameters.

  Args:
    discrete: The distribution.
    values: `Tensor` of shape `[n] + batch_shape + event_shape`.
    is_differentiated: Python `bool`, whether an estimator follows the gradient
      w.r.t. the values, and may ask for points between them.

  Returns:
    log_prob: `Tensor` of shape `[n] + batch_shape`.
  """
  whole = whole_of(discrete)
  if not is_differentiated:
    return tf.stop_gradient(whole.log_prob(values))
  relaxation = whole.relaxation()
  if relaxation is not None:
    return relaxation.log_prob_between(values)
  with tf.GradientTape() as tape:
    tape.watch(values)
    log_prob = whole.log_prob(values)
  slope = tape.gradient(log_prob, values, unconnected_gradients='zero')
  path = tf.stop_gradient(slope) * (values - tf.stop_gradient(values))
  axes = list(range(log_prob.shape.rank, values.shape.rank))
  path = tf.cast(tf.reduce_sum(path, axis=axes), log_prob.dtype)
  return tf.stop_gradient(log_prob) + path


class _Discrepancy(CheckedIntegrand):
  """A Csiszar function `F` of `log p - log q`: it contains `log q` itself.

  The gradient of its expectation has `F + dF/dlog q` next to the score; that is
  the signal. Its value at `q = p`, a constant, is taken off.
  """

  def __init__(self, discrepancy_fn, log_densities, discrete):
    self._discrepancy_fn = discrepancy_fn
    self._log_densities = log_densities
    super().__init__(self._value_of, shapes.batch_shape(discrete))

  def _value_at(self, log_ratio):
    # A value that the target excludes has u = 0, where u log u would be NaN.
    value = self._discrepancy_fn(tf.maximum(log_ratio, -_LARGE))
    infinity = tf.constant(np.inf, value.dtype)
    return tf.where(value > _LARGE**0.5, infinity, value)

  def _value_of(self, values):
    log_p, log_q = self._log_densities(values)
    return self._value_at(log_p - log_q)

  def _signal_at(self, log_ratio):
    """Returns `F + dF/dlog q`, a constant."""
    value, slope = tfp.math.value_and_gradient(
      self._value_at, tf.stop_gradient(log_ratio)
    )
    # Where the target excludes an atom, the derivative may be undefined.
    return tf.where(tf.math.is_nan(value - slope), value, value - slope)

  def evaluate(self, values):
    """Returns the `Evaluation`."""
    values = tf.identity(values, name=EVALUATION)
    log_p, log_q = self._log_densities(values)
    log_ratio = log_p - log_q
    signal = self._signal_at(log_ratio)
    signal -= self._signal_at(tf.zeros([], log_ratio.dtype))
    return Evaluation(self._value_at(log_ratio), signal)


def _reparameterized_loss(
  target,
  surrogate,
  sample_size,
  importance_sample_size,
  discrepancy_fn,
  stopped,
  exact_entropy,
  seed,
):
  """TFP's loss: nothing is discrete."""
  kinds = tfp.vi.GradientEstimators
  kind = kinds.REPARAMETERIZATION
  if stopped is not None:
    kind = kinds.DOUBLY_REPARAMETERIZED
  if not exact_entropy:
    return tfp.vi.monte_carlo_variational_loss(
      target,
      surrogate,
      sample_size=sample_size,
      importance_sample_size=importance_sample_size,
      discrepancy_fn=discrepancy_fn,
      gradient_estimator=kind,
      stopped_surrogate_posterior=stopped,
      seed=seed,
    )
  sample_seed, target_seed = random.split_seed(seed, n=2)
  sample = surrogate.sample(sample_size, seed=sample_seed)
  log_p = tf.convert_to_tensor(call_target(target, sample, target_seed))
  return -tf.reduce_mean(log_p, axis=0) - surrogate.entropy()
