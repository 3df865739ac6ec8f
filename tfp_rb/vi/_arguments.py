# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of a variational loss, and chooses an estimator."""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import inspect
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb import baselines
from tfp_rb.designs import Whole, whole_of
from tfp_rb.estimators import REINFORCE
from tfp_rb.estimators.base import GradientEstimator, check_estimator
from tfp_rb.estimators.default import default_estimator
from tfp_rb.estimators.local_expectation import local_expectation
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.internal import checks
from tfp_rb.internal.types import Distribution, StatelessSeed

__all__ = [
  'call_target',
  'check_arguments',
  'check_discrete_arguments',
  'check_exact_arguments',
  'check_pooled',
  'check_target',
  'estimator_for',
  'takes_rows',
]

MOST_SYMBOLS = 16  # The default sums all symbols of a site up to this number.

tfd = tfp.distributions


def check_arguments(
  target: Any,
  surrogate: Any,
  sample_size: Any,
  discrepancy_fn: Any,
  estimator: Any,
  stopped: Any,
  exact: bool,
) -> None:
  """Raises if an argument of a loss has the wrong type."""
  for argument, name in (
    (target, 'target_log_prob_fn'),
    (discrepancy_fn, 'discrepancy_fn'),
  ):
    if not callable(argument):
      raise TypeError(
        f'`{name}` must be callable; got {argument!r}. Pass a function.'
      )
  if not isinstance(surrogate, tfd.Distribution):
    raise TypeError(
      '`surrogate_posterior` must be a `tfp.distributions.Distribution`; got '
      f'{surrogate!r}. Pass the distribution itself.'
    )
  if hasattr(sample_size, 'sample_atoms'):
    raise TypeError(
      f'`sample_size` must be a Python int; got {sample_size!r}. Pass an '
      'estimator by its name, `gradient_estimator=`.'
    )
  # Users of `tfp.vi` may pass an entry of TFP's enumeration.
  if isinstance(estimator, tfp.vi.GradientEstimators):
    raise TypeError(
      '`gradient_estimator` must be a `tfp_rb.GradientEstimator`; got '
      f'{estimator}. Instead of SCORE_FUNCTION, pass `tfp_rb.REINFORCE()`. '
      'Continuous parts are always reparameterized.'
    )
  if estimator is not None:
    check_estimator(estimator, 'gradient_estimator')
  if stopped is not None and (
    not isinstance(stopped, tfd.Distribution)
    or (stopped.dtype, stopped.event_shape)
    != (surrogate.dtype, surrogate.event_shape)
  ):
    raise ValueError(
      '`stopped_surrogate_posterior` must be a copy of `surrogate_posterior`, '
      f'with the same parts in the same order; got {stopped!r}. Build it in '
      'the same way, from `tf.stop_gradient` of the parameters.'
    )
  is_kl = discrepancy_fn is tfp.vi.kl_reverse
  if exact and not is_kl:
    raise ValueError(
      '`exact_entropy` must be False unless `discrepancy_fn` is '
      f'`tfp.vi.kl_reverse`; got {exact!r} with {discrepancy_fn!r}. Only the '
      'reverse divergence has the entropy as a separate term.'
    )
  if exact and stopped is not None:
    raise ValueError(
      '`stopped_surrogate_posterior` must be None with `exact_entropy=True`, '
      f'which needs no log-density; got {stopped!r}. Leave out one of the two.'
    )


def check_discrete_arguments(
  importance_sample_size: Any,
  discrepancy_fn: Callable[[tf.Tensor], tf.Tensor],
  estimator: GradientEstimator | None,
  stopped: Distribution | None,
) -> None:
  """Raises if an argument is not supported with discrete parts."""
  if tf.get_static_value(importance_sample_size) != 1:
    raise ValueError(
      '`importance_sample_size` must be 1 for a `surrogate_posterior` with '
      f'discrete parts; got {importance_sample_size}. For an '
      'importance-weighted bound use `tfp.vi.monte_carlo_variational_loss` '
      'with `tfp.vi.GradientEstimators.VIMCO`.'
    )
  if discrepancy_fn is tfp.vi.kl_reverse:
    return
  # The terms that a stopped density leaves out have mean 0 only for the
  # reverse divergence.
  if stopped is not None:
    raise ValueError(
      '`stopped_surrogate_posterior` must be None unless `discrepancy_fn` is '
      '`tfp.vi.kl_reverse`, because the gradient would be biased; got '
      f'`discrepancy_fn` {discrepancy_fn!r}. Leave it out.'
    )
  # Estimators that differentiate `f` do not use the signal F + dF/dlog q.
  if estimator is not None and estimator.differentiates_f:
    kind = type(estimator.unwrap()).__name__
    raise ValueError(
      '`gradient_estimator` must not differentiate `f` w.r.t. the atoms unless '
      f'`discrepancy_fn` is `tfp.vi.kl_reverse`; got `{kind}` with '
      f'{discrepancy_fn!r}. Use, for example, `tfp_rb.REINFORCE` with a '
      'baseline.'
    )


def check_exact_arguments(
  importance_sample_size: Any,
  discrepancy_fn: Callable[[tf.Tensor], tf.Tensor],
  estimator: GradientEstimator | None,
) -> None:
  """Raises if an argument is not supported with a `ChainTarget`."""
  if discrepancy_fn is not tfp.vi.kl_reverse:
    raise ValueError(
      '`discrepancy_fn` must be `tfp.vi.kl_reverse` with a `ChainTarget`; got '
      f'{discrepancy_fn!r}. Only this divergence is a sum over the time steps. '
      'Pass a function of the whole path as `target_log_prob_fn`.'
    )
  if estimator is not None:
    raise ValueError(
      '`gradient_estimator` must be None with a `ChainTarget`, whose gradient '
      f'is exact w.r.t. the chain; got {estimator!r}. Leave it out, or pass a '
      'function of the whole path as `target_log_prob_fn`.'
    )
  if tf.get_static_value(importance_sample_size) != 1:
    raise ValueError(
      '`importance_sample_size` must be 1 with a `ChainTarget`; got '
      f'{importance_sample_size}. Leave it out.'
    )


def takes_rows(target: Callable[..., Any], surrogate: Distribution) -> bool:
  """Returns whether a target takes `rows`, as one that serves a pool does."""
  if isinstance(surrogate, tfd.JointDistribution):
    return False  # There, `rows` may be the name of a part.
  try:
    return 'rows' in inspect.signature(target).parameters
  except (TypeError, ValueError):  # A builtin may have no signature.
    return False


def check_pooled(target: Callable[..., Any], surrogate: Distribution) -> None:
  """Raises if an argument is not supported with a pooled estimator."""
  if isinstance(surrogate, tfd.JointDistribution):
    raise ValueError(
      '`surrogate_posterior` must be a single discrete distribution with a '
      f'pooled `gradient_estimator`; got a `{type(surrogate).__name__}`. Use '
      '`tfp_rb.rao_blackwellize` instead.'
    )
  if not takes_rows(target, surrogate):
    raise TypeError(
      '`target_log_prob_fn` must take an argument `rows` with a pooled '
      f'`gradient_estimator`; got {target!r}. It is called as '
      '`fn(z, rows=rows)`, and returns the log-density of each value `z` in '
      'its row of the batch. Gather the data with `tf.gather(data, rows)`.'
    )


def call_target(
  function: Callable[..., Any], sample: Any, seed: StatelessSeed
) -> Any:
  """Calls the target in the same way as TFP."""
  further = {}
  # A builtin may have no signature.
  with contextlib.suppress(TypeError, ValueError):
    if 'seed' in inspect.signature(function).parameters:
      further = {'seed': seed}
  if isinstance(sample, Mapping):
    return function(**sample, **further)
  # A named tuple is one argument, unless a joint distribution made it.
  is_spread = not hasattr(sample, '_fields') or hasattr(
    sample, '_tfp_nest_expansion_force_args'
  )
  if isinstance(sample, Sequence) and is_spread:
    return function(*sample, **further)
  return function(sample, **further)


def check_target(result: Any, expected: tf.TensorShape) -> tf.Tensor:
  """Returns the result of the target as a `Tensor`, or raises if it is wrong.

  Args:
    result: The result of `target_log_prob_fn`.
    expected: `tf.TensorShape`, `[m] + batch_shape`.

  Returns:
    log_prob: Floating-point `Tensor`.
  """
  if result is None:
    raise TypeError(
      '`target_log_prob_fn` must return a Tensor; got None. Add a `return`.'
    )
  result = tf.convert_to_tensor(result)
  if not result.dtype.is_floating:
    raise TypeError(
      '`target_log_prob_fn` must return a floating-point Tensor; got dtype '
      f'{result.dtype.name}. Cast it.'
    )
  if not result.shape.is_compatible_with(expected):
    raise ValueError(
      '`target_log_prob_fn` must return a Tensor of shape [m] + batch_shape, '
      f'{expected}, one log-density for each of m atoms; got shape '
      f'{result.shape}. Keep the first axis and the batch of '
      '`surrogate_posterior`, and sum over all other axes.'
    )
  return result


def estimator_for(
  discrete: Distribution,
  estimator: GradientEstimator | None,
  sample_size: int | None,
) -> GradientEstimator:
  """Returns the estimator of the expectation over the discrete parts.

  Args:
    discrete: A discrete distribution.
    estimator: A `GradientEstimator`, or `None` for the default.
    sample_size: Python `int`, the number of draws, or `None` for the number of
      the estimator.

  Returns:
    estimator: A `GradientEstimator`.
  """
  if sample_size is not None:
    sample_size = checks.check_int(sample_size, 'sample_size', minimum=1)
  if estimator is None:
    return _default_estimator(whole_of(discrete), sample_size)
  return estimator if sample_size is None else estimator.replace(sample_size)


def _default_estimator(
  whole: Whole, sample_size: int | None
) -> GradientEstimator:
  """Returns the default estimator for the discrete parts.

  A few parts get a budget of three. Its variance is 1.03 times that of the best
  choice for three evaluations (median of 45 problems; 95 % quantile 1.7). If
  one value is summed and two are drawn, the ratio is 1.5 (5.1); with three
  joint draws it is 1.06 (110). See `examples/benchmarks/vi_defaults.py`.

  A chain gets the result of `default_estimator`, although it has many sites: a
  budget of three for at most 8 steps, three joint draws for more. We compared
  variances on 36 random chains, relative to the best choice with the same
  number of evaluations (medians). `local_expectation` of all states had a ratio
  of 21 without a baseline, and 7 with the best constant one. A budget of three
  and three draws both had a ratio of 1.0 (95 % quantiles 1.7 and 3.7; with more
  than 8 steps they are equal in most problems). See
  `examples/benchmarks/chain_defaults.py`.

  With many sites, the default sums all symbols of a site if there are few
  symbols, so only the noise of the other sites is left. Draws of single sites
  would be no better than the same number of joint draws
  (`examples/benchmarks/many_sites.py`).

  Args:
    whole: The whole `Partition` of the discrete parts.
    sample_size: Python `int`, the number of draws, or `None` for the default.

  Returns:
    estimator: A `GradientEstimator`.
  """
  estimator = REINFORCE(baselines.LeaveOneOut(), num_samples=sample_size or 2)
  # The batch shape of a group of S sites is batch_shape + [S].
  groups = [group.partition for group in whole.sites()]
  # If every part is a single site, there are few parts: sum them jointly.
  if not any(group.batch_shape[-1] > 1 for group in groups):
    if sample_size is None:
      return default_estimator(whole)
    # Do not use a budget: the cost of its search grows with the budget, and
    # `sample_size` may be large.
    return rao_blackwellize(estimator, num_summed=1)
  # The number of values is `None` for an infinite support.
  largest = max(group.num_values or MOST_SYMBOLS + 1 for group in groups)
  num_symbols = largest if largest <= MOST_SYMBOLS else MOST_SYMBOLS // 2
  return local_expectation(estimator, num_summed=num_symbols)
