# SPDX-License-Identifier: Apache-2.0
"""Estimates variational losses over discrete and mixed surrogates."""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import estimate_at
from tfp_rb.designs import CheckedIntegrand
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import random, shapes
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  Seed,
  do_not_convert,
)
from tfp_rb.vi._arguments import (
  call_target,
  check_arguments,
  check_discrete_arguments,
  check_exact_arguments,
  check_pooled,
  estimator_for,
  takes_rows,
)
from tfp_rb.vi._chain_target import ChainTarget
from tfp_rb.vi._densities import (
  log_densities_in_pool,
  log_densities_of_parts,
  without_rows,
)
from tfp_rb.vi._discrepancy import Csiszar, Discrepancy, LogDensities
from tfp_rb.vi._joint import is_reparameterized, split

__all__ = ['monte_carlo_variational_loss']


@do_not_convert
def monte_carlo_variational_loss(
  target_log_prob_fn: Callable[..., tf.Tensor] | ChainTarget,
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
  """Estimates `E_q[discrepancy_fn(log p(z) - log q(z))]` and its gradient.

  This is `tfp.vi.monte_carlo_variational_loss` for a surrogate posterior `q`
  that is discrete, or discrete in some of its parts. An estimator of this
  library gives the gradient w.r.t. the parameters of discrete parts. The
  gradient w.r.t. the parameters of continuous parts is reparameterized.

  ```none
  gradient   sum_i w_i (F + dF/dlog q - level) grad log q(d_i)  +  grad F
  ```

  `F` is the discrepancy at an atom, and `d_i` are its discrete parts. `F`
  contains `log q` itself. The estimator and its baseline take this into
  account, so that at `q = p` the gradient w.r.t. the discrete parts has zero
  variance with the default estimator, and with every estimator if `p` is
  normalized. `grad F` is the gradient through the parameters of
  `target_log_prob_fn` and through the continuous parts.

  * Continuous parts that do not depend on discrete ones are drawn once and
    shared by all atoms. The other continuous parts are drawn for each atom.
  * A few discrete parts, even dependent ones, are summed jointly. A beam search
    over the parts finds the best values.
  * A discrete part with many independent sites (`tfd.Independent` or
    `tfd.Sample`) is summed one site at a time; see `tfp_rb.local_expectation`.
    If the target has one term for each site, make the sites the *batch* of the
    surrogate; the cost is then that of one site.
  * A path of hidden states is a `distributions.CategoricalChain` or a
    `tfd.MarkovChain`. If the target is a sum over the time steps, pass a
    `ChainTarget`: then no path is drawn. Otherwise the estimator draws or sums
    paths, as for any other discrete part.

  Value and gradient are unbiased if the estimator is. The target is called
  once, with all atoms of the estimator.

  Args:
    target_log_prob_fn: A `ChainTarget`, or a callable, the unnormalised
      `log p`. Each part of a `sample` of the surrogate has a first axis of `m`
      atoms. The function is called as `fn(*sample)` for a list or a tuple,
      `fn(**sample)` for a dictionary and `fn(sample)` for a `Tensor`; if it has
      an argument `seed`, it is also given a seed. For a single discrete
      surrogate, a function with an argument `rows` is called as
      `fn(z, rows=rows)`, with values `[n] + event_shape` and their rows in the
      flattened batch, `int32[n]`: `pooled` requires it, and every other
      estimator supports it. It returns a `Tensor` of shape `[m] + batch_shape`,
      or `[n]` with `rows`. If this is `-inf` at a possible value of `q`, the
      reverse divergence is infinite and a fit ends in NaN: let `q` exclude such
      values, or soften the target.
    surrogate_posterior: A `tfd.Distribution`: a discrete one, or a
      `tfd.JointDistribution*` with discrete or reparameterizable parts. A
      discrete part may not depend on a continuous part that depends on a
      discrete one. If all parts are reparameterizable, this is TFP's loss. Each
      discrete part that depends on others makes tracing slower: with half a
      dozen of them it takes a few seconds.
    sample_size: Python `int`, the number of draws, instead of the
      `num_samples` of the estimator. It does not average over quantities that
      are drawn once per call: the continuous parts before the discrete ones,
      and the joint value of many sites. To average over these as well, average
      the losses of several seeds. With a `ChainTarget`, `sample_size` is the
      number of draws of the continuous parts.
    importance_sample_size: Must be 1, because no importance-weighted bound is
      known for a sum over atoms. (For such a bound use
      `tfp.vi.GradientEstimators.VIMCO` of TFP.)
    discrepancy_fn: Callable, a Csiszar function in log-space: any of `tfp.vi`.
    gradient_estimator: A `GradientEstimator`. The default has a leave-one-out
      baseline. If every part is a single variable, it is the default of
      `tfp_rb.expectation`: a budget of three evaluations for up to 8 parts,
      three joint draws for more. (With `sample_size`, it sums the best value
      and draws that number of others.) If a part has several sites, it treats
      one site at a time: it sums all symbols of a site if there are at most 16,
      otherwise 8 of them, and it draws two others. This costs many evaluations
      of the target, and helps if the sites interact weakly; see
      `tfp_rb.local_expectation`. Otherwise pass
      `REINFORCE(baselines.LeaveOneOut(), num_samples=n)`. A chain counts as
      one part with one variable per step: a budget of three for up to 8 steps,
      three joint draws for more (`examples/benchmarks/chain_defaults.py`).
    stopped_surrogate_posterior: A copy of `surrogate_posterior` with stopped
      gradients to its parameters. If given, it computes the log-density of the
      continuous parts (sticking the landing, [2]). Only `tfp.vi.kl_reverse`
      supports it; otherwise the gradient would be biased.
    exact_entropy: Python `bool`, whether `surrogate_posterior.entropy()`
      replaces the estimate of the entropy. Only `tfp.vi.kl_reverse` supports
      it.
    seed: As in TFP; see `tfp_rb.expectation`. (TFP draws the continuous parts,
      and its draws under XLA differ from those in eager mode.)
    name: Python `str`, name of the scope of the operations.

  Returns:
    loss: `Tensor` of the batch shape of the surrogate.

  Raises:
    TypeError: `target_log_prob_fn` is not callable, or another argument has the
      wrong type.
    ValueError: The target returns a shape other than `[m] + batch_shape`, the
      order of the parts is not supported, or two arguments exclude each other.
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
  # A target that is a sum over time steps computes its loss without sampling.
  target: Any = target_log_prob_fn
  exact_loss = getattr(target, 'exact_loss', None)
  check_arguments(
    exact_loss or target,
    surrogate_posterior,
    sample_size,
    discrepancy_fn,
    gradient_estimator,
    stopped_surrogate_posterior,
    exact_entropy,
  )
  with tf.name_scope(name or 'monte_carlo_variational_loss'):
    if exact_loss is not None:
      check_exact_arguments(
        importance_sample_size, discrepancy_fn, gradient_estimator
      )
      return exact_loss(
        surrogate_posterior,
        sample_size,
        stopped_surrogate_posterior,
        exact_entropy,
        seed,
      )
    if is_reparameterized(surrogate_posterior):
      if sample_size is None:
        sample_size = getattr(gradient_estimator, 'num_samples', 1)
      return _reparameterized_loss(
        target,
        surrogate_posterior,
        sample_size,
        importance_sample_size,
        discrepancy_fn,
        stopped_surrogate_posterior,
        exact_entropy,
        seed,
      )
    return _discrete_loss(
      target,
      surrogate_posterior,
      sample_size,
      importance_sample_size,
      discrepancy_fn,
      gradient_estimator,
      stopped_surrogate_posterior,
      exact_entropy,
      seed,
    )


def _discrete_loss(
  target: Callable[..., tf.Tensor],
  surrogate: Distribution,
  sample_size: int | None,
  importance_sample_size: int,
  discrepancy_fn: Csiszar,
  gradient_estimator: GradientEstimator | None,
  stopped: Distribution | None,
  exact_entropy: bool,
  seed: Seed,
) -> tf.Tensor:
  """Returns the loss of a surrogate that is discrete in some of its parts."""
  check_discrete_arguments(
    importance_sample_size, discrepancy_fn, gradient_estimator, stopped
  )
  early_seed, *seeds, atom_seed, noise_seed = random.split_seed(seed, n=5)
  # Continuous parts that do not depend on discrete ones are drawn here.
  parts = split(surrogate, early_seed, stopped)
  estimator = estimator_for(parts.discrete, gradient_estimator, sample_size)
  atoms = estimator.sample_atoms(parts.discrete, atom_seed)
  if estimator.takes_rows:
    check_pooled(target, surrogate)
    log_densities = log_densities_in_pool(
      target, atoms, exact_entropy, seeds[1]
    )
  else:
    late_seed, target_seed = seeds
    if takes_rows(target, surrogate):
      target = without_rows(target, parts.discrete)
    log_densities = log_densities_of_parts(
      functools.partial(call_target, target, seed=target_seed),
      parts,
      estimator,
      exact_entropy,
      late_seed,
    )
  # [m] + batch_shape; in a pool the rows share the first axis.
  batch_shape = shapes.as_list(atoms.weights)[1:]
  integrand = _integrand(discrepancy_fn, log_densities, batch_shape)
  loss = estimate_at(atoms, integrand, parts.discrete, estimator, noise_seed)
  if exact_entropy:
    loss -= tf.cast(parts.entropy(), loss.dtype)
  return loss


def _integrand(
  discrepancy_fn: Csiszar,
  log_densities: LogDensities,
  batch_shape: list[Any],
) -> Integrand:
  """Returns the discrepancy as a function of the discrete parts."""
  if discrepancy_fn is not tfp.vi.kl_reverse:
    return Discrepancy(discrepancy_fn, log_densities, batch_shape)

  def negative_log_ratio(values: tf.Tensor) -> tf.Tensor:
    # The derivative of F = log q - log p w.r.t. log q is 1. Its term in the
    # gradient is the mean of the score, which is 0, so leave it out. Then the
    # signal is constant at q = p, and a baseline removes all variance.
    log_p, log_q = log_densities(values)
    return log_q - log_p

  return CheckedIntegrand(negative_log_ratio, batch_shape)


def _reparameterized_loss(
  target: Callable[..., tf.Tensor],
  surrogate: Distribution,
  sample_size: int,
  importance_sample_size: int,
  discrepancy_fn: Csiszar,
  stopped: Distribution | None,
  exact_entropy: bool,
  seed: Seed,
) -> tf.Tensor:
  """Returns TFP's loss, for a surrogate without discrete parts."""
  kinds = tfp.vi.GradientEstimators
  kind = kinds.REPARAMETERIZATION
  if stopped is not None:  # TFP uses it with this kind only.
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
  # The loss is E[log q - log p]. The entropy replaces -E[log q].
  sample_seed, target_seed = random.split_seed(seed, n=2)
  sample = surrogate.sample(sample_size, seed=sample_seed)
  log_p = tf.convert_to_tensor(call_target(target, sample, target_seed))
  return -tf.reduce_mean(log_p, axis=0) - surrogate.entropy()
