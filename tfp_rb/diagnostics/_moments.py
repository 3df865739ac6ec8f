# SPDX-License-Identifier: Apache-2.0
"""Computes the exact mean, variance and bias of a gradient."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs import needs_rows
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal.types import Distribution, Problem, TensorLike
from tfp_rb.partitions import check_discrete
from tfp_rb.testing import enumeration
from tfp_rb.testing.enumeration import flat
from tfp_rb.testing.explicit_sum import exact_reference

__all__ = [
  'GradientMoments',
  'check_moments',
  'enumerate_all',
  'exact_moments',
  'total_variance',
]


class GradientMoments(NamedTuple):
  """Holds mean, variance and bias of the gradient of one estimate.

  Attributes:
    mean: List of arrays with the shapes of the parameters, the mean gradient.
    variance: Python `float`, the total variance: the sum of the variances of
      all components.
    interval: Pair of Python `float`s, the 95 % interval of the variance. If the
      variance is exact, both ends equal it.
    bias: Python `float`, the norm of the error of the mean gradient; `None` if
      the exact gradient is not known. With sampled gradients, the noise of the
      mean is subtracted.
    bias_interval: Pair of Python `float`s, the 95 % interval of the bias, or
      `None`.
    num_evaluations: Python `int`, the number of atoms at which `f` is
      evaluated, for each member of a batch; `None` if they could not be
      counted. With `pooled` it is a `float`: `N` evaluations of `B` members
      count as `N / B`.
    is_exact: Python `bool`, whether all outcomes were enumerated.
  """

  mean: list[np.ndarray]
  variance: float
  interval: tuple[float, float]
  bias: float | None
  bias_interval: tuple[float, float] | None
  num_evaluations: float | None
  is_exact: bool


def check_moments(moments: Any) -> None:
  """Raises `TypeError` unless `measure` returned `GradientMoments`."""
  if not isinstance(moments, GradientMoments):
    raise TypeError(
      f'`measure` must return `GradientMoments`; got {moments!r}. Use '
      '`exact_moments` or `sampled_moments`.'
    )


def exact_moments(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[TensorLike],
  most_outcomes: int = 20_000,
) -> GradientMoments:
  """Returns exact moments of the gradient by enumerating all outcomes.

  ```none
  mean      sum_t p(t) g(t)
  variance  sum_t p(t) |g(t) - mean|^2      outcomes t of the draws
  ```

  The result is deterministic. The estimator must have no noise other than its
  draws. With `K` values and `M` draws there are `K ** M` outcomes.

  Args:
    estimator: A `GradientEstimator`.
    problem: Callable that takes the `parameters` and returns the pair
      `(f, distribution)`. Without a batch, it is also called with the
      parameters stacked along a new first axis, so `f` and the distribution
      must follow TFP's batch semantics. With a batch it gets the parameters
      themselves, and the moments are those of the gradient of the sum over the
      batch. In that case all estimators, including `pooled`, support an
      `f(z, rows)`.
    parameters: List of floating-point `Tensor`s, preferably float64, with
      respect to which the gradient is taken.
    most_outcomes: Python `int`, the largest number of outcomes to enumerate
      (for each row, if rows are drawn independently).

  Returns:
    moments: `GradientMoments`.

  Raises:
    ValueError: `f` takes rows and there is no batch, or the outcomes cannot be
      enumerated. The reason is an infinite support, too many outcomes, a
      sampler with dependent draws (except draws without replacement), or
      further noise of the estimator.

  #### Examples

  ```python
  def problem(logits):
    f = lambda z: tf.gather(tf.constant([3., 1., 2.], tf.float64), z)
    return f, tfp.distributions.Categorical(logits=logits)

  logits = tf.constant([0., 1., 2.], tf.float64)
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  moments = tfp_rb.diagnostics.exact_moments(estimator, problem, [logits])
  round(moments.variance, 4)  # ==> 0.2631
  moments.mean[0]             # ==> [ 0.104  -0.2069  0.1029]
  moments.bias < 1e-15        # ==> True
  ```
  """
  parameters = [tf.convert_to_tensor(p) for p in parameters]
  f, distribution = problem(*parameters)
  check_discrete(distribution)
  if distribution.batch_shape.rank and not estimator.takes_rows:
    mean, variance, num_evaluations = _moments_of_rows(
      estimator, problem, parameters, most_outcomes
    )
  else:
    _check_function(f, estimator)
    outcomes = enumerate_all(estimator, problem, parameters, most_outcomes)
    variance = total_variance(outcomes)
    # The gradients are weighted by the probabilities, so their sum is the mean.
    mean = [g.sum(axis=0) for g in outcomes.weighted_gradients]
    num_evaluations = outcomes.num_evaluations
  # This is the derivative of the explicit sum, Equation (2) of the paper.
  _, reference = exact_reference(
    problem, parameters, takes_rows=estimator.takes_rows
  )
  bias = float(np.linalg.norm(flat(mean) - flat(reference)))
  return GradientMoments(
    mean=mean,
    variance=variance,
    interval=(variance, variance),
    bias=bias,  # For an unbiased estimator this is a rounding error.
    bias_interval=(bias, bias),
    num_evaluations=num_evaluations,
    is_exact=True,
  )


def _check_function(f: Any, estimator: GradientEstimator) -> None:
  """Raises if `f` takes rows that would change with the outcomes."""
  if needs_rows(f) and not estimator.takes_rows:
    raise ValueError(
      '`problem` must return an `f(z)` if its distribution has no batch; got '
      'an `f(z, rows)`. Give the distribution a batch, or remove `rows`.'
    )


def _moments_of_rows(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[tf.Tensor],
  most_outcomes: int,
) -> tuple[list[np.ndarray], float, float]:
  """Returns mean, total variance and evaluations of independent rows."""
  first, second = (
    enumeration.enumerate_rows(
      estimator, problem, parameters, most_outcomes, seed
    )
    for seed in ((0, 0), (0, 1))
  )
  # If the outcomes differ between two seeds, the estimator has further noise.
  if (
    first is None
    or second is None
    or not np.array_equal(
      flat(first.gradients), flat(second.gradients), equal_nan=True
    )
  ):
    _, distribution = problem(*parameters)
    raise _not_enumerable(estimator, distribution, most_outcomes)
  chances, gradients, num_evaluations = first
  mean, variance = [], 0.0
  for gradient in gradients:  # [T, B] + shape
    by_row = gradient.reshape([*chances.shape, -1]).astype(np.float64)
    weights = chances.astype(np.float64)[..., np.newaxis]
    # An impossible outcome has no gradient: it would be 0 / 0.
    by_row = np.where(weights > 0.0, by_row, 0.0)
    of_row = np.sum(weights * by_row, axis=0)  # [B, size]
    variance += float(np.sum(weights * (by_row - of_row) ** 2))
    mean.append(np.sum(of_row, axis=0).reshape(gradient.shape[2:]))
  return mean, variance, num_evaluations


def enumerate_all(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[tf.Tensor],
  most_outcomes: int,
) -> enumeration.Outcomes:
  """Returns the `Outcomes` of an estimator, or raises `ValueError`."""
  _, distribution = problem(*parameters)
  check_discrete(distribution)
  # Only a pool depends on the whole batch; with other estimators the rows are
  # independent.
  if distribution.batch_shape.rank != 0 and not estimator.takes_rows:
    raise ValueError(
      '`problem` must return a distribution without a batch; got batch shape '
      f'{distribution.batch_shape}. Measure one member at a time and add up '
      'the variances, or use `sampled_moments`.'
    )
  outcomes = enumeration.enumerate_without_noise(
    estimator, problem, parameters, most_outcomes
  )
  if outcomes is None:
    raise _not_enumerable(estimator, distribution, most_outcomes)
  return outcomes


def _not_enumerable(
  estimator: GradientEstimator, distribution: Distribution, most_outcomes: int
) -> ValueError:
  return ValueError(
    f'`estimator` must have at most {most_outcomes} outcomes, independent '
    f'draws and no other noise; got {estimator!r} for a '
    f'`{type(distribution).__name__}`. Increase `most_outcomes`, reduce '
    '`num_samples`, or use `sampled_moments`.'
  )


def total_variance(outcomes: enumeration.Outcomes) -> float:
  """Returns the total variance of the gradients, without a batch."""
  probabilities = np.reshape(outcomes.probabilities, [-1])  # [T]
  possible = probabilities > 0.0
  chances = probabilities[possible].astype(np.float64)
  variance = 0.0
  for weighted in outcomes.weighted_gradients:  # [T] + shape
    weighted = weighted.astype(np.float64).reshape([len(possible), -1])
    # An impossible outcome has no gradient: it would be 0 / 0.
    gradients = weighted[possible] / chances[:, np.newaxis]
    errors = gradients - weighted.sum(axis=0)  # [possible outcomes, size]
    variance += float(np.sum(chances @ errors**2))
  return variance
