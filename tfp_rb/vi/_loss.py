"""Variational losses over discrete and mixed surrogate posteriors."""

from collections.abc import Callable

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import gradients, random
from tfp_rb.internal.types import Distribution, Seed, do_not_convert
from tfp_rb.vi._arguments import (
  call_target,
  check_arguments,
  check_discrete_arguments,
  check_target,
  differentiates_f,
)
from tfp_rb.vi._integrand import expected_discrepancy, log_prob_of_values
from tfp_rb.vi._split import is_reparameterized, split
from tfp_rb.vi._views import views_of

__all__ = ['monte_carlo_variational_loss']

tfd = tfp.distributions


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
    early_seed, *seeds, target_seed = random.split_seed(seed, n=5)
    parts = split(surrogate_posterior, early_seed, stopped_surrogate_posterior)
    check_discrete_arguments(
      importance_sample_size,
      discrepancy_fn,
      gradient_estimator,
      stopped_surrogate_posterior,
    )
    atom_seed, held_seed, late_seed = seeds
    batch_shape = parts.discrete.batch_shape
    is_differentiated = differentiates_f(gradient_estimator)

    def log_ratio(values):
      """`log p - log q`, where `log q` of the values is a constant."""
      sample, log_probs = parts.complete(values, late_seed)
      result = call_target(target_log_prob_fn, sample, target_seed)
      log_p = check_target(result, values.shape[:1] + batch_shape)
      if exact_entropy:
        return log_p
      log_probs.append(
        log_prob_of_values(parts.discrete, values, is_differentiated)
      )
      return log_p - sum(tf.cast(x, log_p.dtype) for x in log_probs)

    views = views_of(parts, gradient_estimator, sample_size, held_seed)

    def loss_of_view(distribution, own_estimator, of_all):
      return expected_discrepancy(
        discrepancy_fn,
        lambda values: gradients.scale_gradient(
          log_ratio(of_all(values)), 1.0 / len(views)
        ),
        distribution,
        own_estimator,
        atom_seed,
      )

    total = tf.add_n([loss_of_view(*view) for view in views])
    loss = gradients.value_with_gradient_of(
      total / len(views), total, tf.zeros_like(total)
    )
    if exact_entropy:
      loss -= tf.cast(parts.entropy(), loss.dtype)
    return loss


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
