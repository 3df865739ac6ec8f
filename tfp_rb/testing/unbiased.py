# SPDX-License-Identifier: Apache-2.0
"""Tests whether an estimator is unbiased."""

from collections.abc import Callable, Sequence
import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import expectation
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import random
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  Problem,
  StatelessSeed,
  TensorLike,
)
from tfp_rb.partitions import family_of
from tfp_rb.testing import enumeration
from tfp_rb.testing.enumeration import flat
from tfp_rb.testing.explicit_sum import exact_reference

__all__ = ['UnbiasednessReport', 'assert_unbiased']

tfd = tfp.distributions

_MOST_OUTCOMES = 20_000
_CHUNK = 4096  # draws per call, which form a batch

# Mean error, covariance of the error of one draw, and number of draws.
_Moments: TypeAlias = tuple[np.ndarray, np.ndarray, int]


class UnbiasednessReport(NamedTuple):
  """Holds the result of `assert_unbiased`.

  Attributes:
    is_exact: Whether all outcomes were enumerated.
    num_outcomes: Number of enumerated outcomes, or of independent draws.
    relative_bias: Norm of the error of the mean gradient, divided by the norm
      of the gradient.
    detectable_bias: Relative bias that the test detects (with probability 0.99
      if gradients were drawn).
  """

  is_exact: bool
  num_outcomes: int
  relative_bias: float
  detectable_bias: float


def _default_problem(logits: tf.Tensor) -> tuple[Integrand, Distribution]:
  cost = tf.constant([2.0, -1.0, 0.5, 3.0, 1.0], logits.dtype)
  # `f` also depends on the parameters, so that a wrong pathwise term is found.
  scale = 1.0 + 0.1 * tf.reduce_sum(logits**2, axis=-1)
  return lambda z: scale * tf.gather(cost, z), tfd.Categorical(logits=logits)


_DEFAULT_LOGITS = ((0.3, 1.0, -0.5, 0.0, 2.0), (1.5, -1.0, 0.2, 0.8, -0.3))


def assert_unbiased(
  estimator: GradientEstimator,
  problem: Problem | None = None,
  parameters: Sequence[TensorLike] | None = None,
  detectable_bias: float = 0.02,
  false_fail_rate: float = 1e-6,
  most_draws: int = 2**24,
  seed: StatelessSeed = (20, 19),
) -> UnbiasednessReport:
  """Raises `AssertionError` if value or gradient of `estimator` is biased.

  If all outcomes of the draws can be enumerated, and the estimator has no other
  noise, the test compares the mean over all outcomes with the derivative of the
  explicit sum, up to rounding errors. Otherwise, and for a partition that you
  registered, the test draws gradients. It draws enough of them to detect a bias
  of `detectable_bias` times the norm of the gradient, in any direction, with
  probability 0.99. An unbiased estimator passes with probability
  `1 - false_fail_rate`.

  Args:
    estimator: A `GradientEstimator`.
    problem: Callable that takes the `parameters` and returns the pair
      `(f, distribution)`. It is also called with the parameters stacked along
      a new first axis, so `f` and the distribution must follow TFP's batch
      semantics. Default: a `Categorical` of 5 values, and a cost that depends
      on the logits as well.
    parameters: List of floating-point `Tensor`s, preferably float64, with
      respect to which the gradient is taken. Default: 2 rows of logits.
    detectable_bias: Python `float`, relative to the norm of the gradient.
    false_fail_rate: Python `float`, the probability that an unbiased estimator
      fails.
    most_draws: Python `int`, the largest number of gradients to draw.
    seed: Stateless seed.

  Returns:
    report: An `UnbiasednessReport`.

  Raises:
    AssertionError: The estimator is biased.
    ValueError: The gradient is 0 or not finite, or more than `most_draws`
      gradients would be needed.

  #### Examples

  ```python
  report = tfp_rb.testing.assert_unbiased(
      tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(num_samples=2), num_summed=2))
  report.is_exact, report.num_outcomes  # ==> (True, 25)
  ```
  """
  problem = problem or _default_problem
  if parameters is None:
    parameters = [tf.constant(_DEFAULT_LOGITS, tf.float64)]
  parameters = [tf.convert_to_tensor(p) for p in parameters]
  value, gradients = exact_reference(
    problem, parameters, takes_rows=estimator.takes_rows
  )
  gradient = flat(gradients)
  if not np.all(np.isfinite(value)) or not np.all(np.isfinite(gradient)):
    raise ValueError(
      '`f` of the `problem` must be finite, with a finite gradient, at all '
      f'values with mass; got the expectation {value} and its gradient '
      f'{gradient}. Make it finite there.'
    )
  if not np.any(gradient):
    raise ValueError(
      '`problem` must have a gradient other than 0, because the bias is '
      f'relative to it; got {gradient}. Choose another `f` or other '
      '`parameters`.'
    )
  outcomes = enumeration.enumerate_without_noise(
    estimator, problem, parameters, _MOST_OUTCOMES
  )
  if outcomes is not None:
    report = _check_exactly(outcomes, value, gradient)
    # The enumeration replaces the sampler of a partition, so it cannot find an
    # error in a user's sampler. Test that one by draws as well.
    if not _is_partition_of_the_user(problem(*parameters)[1]):
      return report
  return _check_by_draws(
    estimator, problem, parameters, value, gradient,
    detectable_bias, false_fail_rate, most_draws, tf.constant(seed, tf.int32),
  )  # fmt: skip


def _is_partition_of_the_user(distribution: Distribution) -> bool:
  """Returns whether a user registered this partition or one inside it."""
  family = family_of(distribution)
  if family is None or family.is_of_user:
    return True
  wrapped = getattr(distribution, 'distribution', None)
  return wrapped is not None and _is_partition_of_the_user(wrapped)


def _check_exactly(
  outcomes: enumeration.Outcomes, value: np.ndarray, gradient: np.ndarray
) -> UnbiasednessReport:
  """Compares the mean over all outcomes with the derivative of the sum."""
  mean_value = np.sum(outcomes.probabilities * outcomes.values, axis=0)
  mean = flat(np.sum(g, axis=0) for g in outcomes.weighted_gradients)
  # Rounding errors scale with the terms of a sum, which may nearly cancel.
  size = sum(np.sum(np.abs(g)) for g in outcomes.weighted_gradients)
  size += np.linalg.norm(gradient)
  rounding = 1e4 * np.finfo(value.dtype).eps
  tolerance = rounding * size
  error = np.linalg.norm(mean - gradient)
  value_error = np.max(np.abs(mean_value - value))
  value_tolerance = rounding * np.max(np.abs(outcomes.values))
  norm = np.linalg.norm(gradient)
  if not error <= tolerance:  # This form also catches NaN.
    raise AssertionError(
      f'The gradient is biased: its mean over all {len(outcomes.values)} '
      f'outcomes is {mean}, but the derivative of the sum is {gradient}; the '
      f'error is {error / norm:.2e} of its norm.'
    )
  if not value_error <= value_tolerance:
    raise AssertionError(
      f'The value is biased: its mean over all {len(outcomes.values)} outcomes '
      f'is {mean_value}, but the expectation is {value}.'
    )
  return UnbiasednessReport(
    True, len(outcomes.values), float(error / norm), float(tolerance / norm)
  )


def _check_by_draws(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[tf.Tensor],
  value: np.ndarray,
  gradient: np.ndarray,
  detectable_bias: float,
  false_fail_rate: float,
  most_draws: int,
  seed: tf.Tensor,
) -> UnbiasednessReport:
  """Compares the mean of independent gradients in a chi-squared test."""
  expected = flat([value, gradient])
  moments = _moments_of_errors(estimator, problem, parameters, expected)
  of_value = slice(np.size(value))
  of_gradient = slice(np.size(value), None)
  norm = np.linalg.norm(gradient)
  # The test fails if a standardized error is longer than sqrt(threshold). An
  # error with mean delta is that long at least as often as a normal variable
  # with mean |delta| and variance 1 exceeds sqrt(threshold). If |delta| exceeds
  # sqrt(threshold) by 2.33, the probability is 0.99.
  needed = np.sqrt(_threshold(gradient.size, false_fail_rate)) + 2.33
  pilot_seed, test_seed = random.split_seed(seed, n=2)
  _, covariance, _ = moments(4, pilot_seed)
  # A margin of a tenth covers the error of the pilot's variance.
  num_draws = 1.1 * _spread(covariance[of_gradient, of_gradient])
  num_draws *= (needed / (detectable_bias * norm)) ** 2
  if num_draws > most_draws:
    raise ValueError(
      f'`most_draws` must be at least {num_draws:.2g} to find a bias of '
      f'{detectable_bias} of the gradient; got {most_draws}. Increase it or '
      '`detectable_bias`, or choose a `problem` with less noise.'
    )
  # Do not reuse the draws of the pilot: the number of draws depends on them.
  num_chunks = max(4, math.ceil(num_draws / _CHUNK))
  mean, covariance, n = moments(num_chunks, test_seed)
  for name, part in (('gradient', of_gradient), ('value', of_value)):
    statistic, rank = _chi_squared(
      mean[part],
      covariance[part, part],
      n,
      size=float(np.linalg.norm(expected[part])),
    )
    threshold = _threshold(max(rank, 1), false_fail_rate)
    if statistic > threshold:
      raise AssertionError(
        f'The {name} is biased: its mean over {n} draws differs from '
        f'{expected[part]} by {mean[part]}, a chi-squared of {statistic:.1f} '
        f'where {threshold:.1f} is exceeded with probability '
        f'{false_fail_rate / 2}.'
      )
  spread = _spread(covariance[of_gradient, of_gradient])
  return UnbiasednessReport(
    False,
    n,
    float(np.linalg.norm(mean[of_gradient]) / norm),
    float(needed * np.sqrt(spread / n) / norm),
  )


def _moments_of_errors(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[tf.Tensor],
  expected: np.ndarray,
) -> Callable[[int, tf.Tensor], _Moments]:
  """Returns a function that draws estimates and measures their errors.

  Args:
    estimator: A `GradientEstimator`.
    problem: As in `assert_unbiased`.
    parameters: List of `Tensor`s.
    expected: Array of shape `[d]`, the values and the gradient in one vector.

  Returns:
    moments: Callable that takes `(num_chunks, seed)` and returns the mean
      error, `[d]`, the covariance of the error of one draw, `[d, d]`, and the
      number of draws.
  """

  def draw(seed: tf.Tensor) -> tf.Tensor:
    tiled = enumeration.tile(parameters, _CHUNK)
    with tf.GradientTape() as tape:
      tape.watch(tiled)
      f, distribution = problem(*tiled)
      values = expectation(f, distribution, estimator, seed=seed)
    # The copies are independent, so each has the gradient of its own value.
    gradients = tape.gradient(values, tiled, unconnected_gradients='zero')
    parts = [tf.reshape(x, [_CHUNK, -1]) for x in (values, *gradients)]
    return tf.concat([tf.cast(x, tf.float64) for x in parts], axis=-1)

  traced = tf.function(draw, autograph=False)

  def moments(num_chunks: int, seed: tf.Tensor) -> _Moments:
    total: Any = 0.0
    squares: Any = 0.0
    for _ in range(num_chunks):
      seed, chunk_seed = random.split_seed(seed, n=2)
      errors = traced(chunk_seed).numpy() - expected  # [_CHUNK, d]
      total, squares = total + errors.sum(0), squares + errors.T @ errors
    n = num_chunks * _CHUNK
    mean = total / n
    return mean, squares / n - np.outer(mean, mean), n

  return moments


def _threshold(num_components: int, false_fail_rate: float) -> float:
  """Returns the quantile that a chi-squared variable rarely exceeds.

  It is exceeded with half the false-fail rate because there are two tests, one
  of the value and one of the gradient.

  Args:
    num_components: Python `int`, the degrees of freedom.
    false_fail_rate: Python `float`, of both tests together.

  Returns:
    threshold: Python `float`.
  """
  half = np.float64(num_components / 2)
  return 2.0 * float(tfp.math.igammacinv(half, np.float64(false_fail_rate / 2)))


def _spread(covariance: np.ndarray) -> float:
  """Returns the variance in the direction that varies most."""
  return np.linalg.eigvalsh(covariance)[-1]


def _chi_squared(
  mean: np.ndarray, covariance: np.ndarray, n: int, size: float
) -> tuple[float, int]:
  """Returns the squared length of an error in standard errors, and its rank.

  In a direction without noise (for example, adding a constant to all logits)
  there must be no error either. If there is one, the length is infinite.

  Args:
    mean: Array of shape `[d]`, the mean error.
    covariance: Array of shape `[d, d]`, the covariance of one draw.
    n: Python `int`, the number of draws.
    size: Python `float`, the norm of the exact value or gradient.

  Returns:
    statistic: Python `float`.
    rank: Python `int`, the number of directions with noise.
  """
  variances, directions = np.linalg.eigh(covariance)
  scale = max(np.sqrt(max(variances[-1], 0.0)), size, 1e-30)
  # Without noise, a variance is not 0 but a rounding error.
  noisy = variances > (1e-6 * scale) ** 2
  rank = int(noisy.sum())
  errors = directions.T @ mean  # The components are uncorrelated.
  if np.any(np.abs(errors[~noisy]) > 1e-5 * scale):
    return np.inf, rank
  return float(np.sum(n * errors[noisy] ** 2 / variances[noisy])), rank
