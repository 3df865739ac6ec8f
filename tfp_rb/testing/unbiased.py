"""The test that an estimator is unbiased."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import expectation
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import random
from tfp_rb.internal.types import Problem, StatelessSeed, TensorLike
from tfp_rb.partitions import family_of
from tfp_rb.testing import enumeration

__all__ = ['UnbiasednessReport', 'assert_unbiased']

tfd = tfp.distributions

_MOST_OUTCOMES = 20_000
_CHUNK = 4096


class UnbiasednessReport(NamedTuple):
  """What `assert_unbiased` found.

  Attributes:
    is_exact: Whether all outcomes were enumerated.
    num_outcomes: Number of outcomes enumerated, or of independent draws.
    relative_bias: Norm of the mean gradient's error over the gradient's norm.
    detectable_bias: Relative bias that would be found (with probability 0.99
      where the gradients were drawn).
  """

  is_exact: bool
  num_outcomes: int
  relative_bias: float
  detectable_bias: float


def _default_problem(logits):
  cost = tf.constant([2.0, -1.0, 0.5, 3.0, 1.0], logits.dtype)
  # The cost depends on the parameters, too: the pathwise term counts.
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

  Where the support can be enumerated and the estimator has no noise of its own,
  all outcomes of its draws are enumerated, and the mean is compared with the
  derivative of the explicit sum to rounding. Otherwise, and where the partition
  of the distribution is not one of this library, gradients are drawn: as
  many as are needed to find a bias of `detectable_bias` of the gradient's norm,
  in any direction, with probability 0.99, while an unbiased estimator passes
  with probability `1 - false_fail_rate`.

  Args:
    estimator: A `GradientEstimator`.
    problem: Callable that takes the `parameters` and returns the pair
      `(f, distribution)`. The parameters come with one further dimension in
      front, so both must follow TFP's batch semantics. Default: a `Categorical`
      of 5 values with a cost that depends on the logits as well.
    parameters: List of floating-point `Tensor`s, preferably float64, with
      respect to which the gradient is taken. Default: 2 rows of logits.
    detectable_bias: Python `float`, relative to the norm of the gradient.
    false_fail_rate: Python `float`.
    most_draws: Python `int`, the most gradients that are drawn.
    seed: Stateless seed.

  Returns:
    report: An `UnbiasednessReport`.

  Raises:
    AssertionError: The estimator is biased.
    ValueError: The gradient vanishes, or `most_draws` gradients would not be
      enough.

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
  value, gradients = enumeration.exact_reference(problem, parameters)
  gradient = _flat(gradients)
  if not np.any(gradient):
    raise ValueError(
      '`problem` must have a gradient other than 0, since a bias is measured '
      'relative to it. Choose another `f` or other `parameters`.'
    )
  outcomes = [
    enumeration.enumerate_outcomes(
      estimator, problem, parameters, _MOST_OUTCOMES, seed=s
    )
    for s in (seed, (seed[0] + 1, seed[1]))
  ]
  if outcomes[0] is not None and all(
    np.array_equal(a, b)
    for a, b in zip(*(o.weighted_gradients for o in outcomes), strict=True)
  ):
    report = _check_exactly(outcomes[0], value, gradient)
    if not _is_partition_of_the_user(problem(*parameters)[1]):
      return report
  # The outcomes depend on the seed as well: there is inner noise. Or else the
  # sampler of a partition that is not ours is to be tested, too.
  return _check_by_draws(
    estimator, problem, parameters, value, gradient,
    detectable_bias, false_fail_rate, most_draws, tf.constant(seed, tf.int32),
  )  # fmt: skip


def _is_partition_of_the_user(distribution):
  """Of the distribution, or of one that it wraps."""
  family = family_of(distribution)
  if family is None or family.is_of_user:
    return True
  wrapped = getattr(distribution, 'distribution', None)
  return wrapped is not None and _is_partition_of_the_user(wrapped)


def _flat(gradients):
  return np.concatenate([np.ravel(g) for g in gradients]).astype(np.float64)


def _check_exactly(outcomes, value, gradient):
  mean_value = np.sum(outcomes.probabilities * outcomes.values, axis=0)
  mean = _flat([np.sum(g, axis=0) for g in outcomes.weighted_gradients])
  # Rounding is relative to what was added up, not to what is left of it.
  size = sum(np.sum(np.abs(g)) for g in outcomes.weighted_gradients)
  size += np.linalg.norm(gradient)
  tolerance = 1e4 * np.finfo(value.dtype).eps * size
  error = np.linalg.norm(mean - gradient)
  value_error = np.max(np.abs(mean_value - value))
  value_tolerance = (
    1e4 * np.finfo(value.dtype).eps * np.max(np.abs(outcomes.values))
  )
  norm = np.linalg.norm(gradient)
  if not error <= tolerance:
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
  estimator, problem, parameters, value, gradient,
  detectable_bias, false_fail_rate, most_draws, seed,
):  # fmt: skip
  """Compares the mean of independent gradients by a chi-squared test."""
  expected = np.concatenate([np.ravel(value).astype(np.float64), gradient])
  moments = _moments_of_errors(estimator, problem, parameters, expected)
  of_value = slice(np.size(value))
  of_gradient = slice(np.size(value), None)
  norm = np.linalg.norm(gradient)
  # A vector of d components of unit variance, moved by delta, is longer than
  # sqrt(c) at least as often as a normal variable of mean |delta| exceeds it:
  # 2.33 standard deviations more make 0.99.
  needed = np.sqrt(_threshold(gradient.size, false_fail_rate)) + 2.33
  pilot_seed, test_seed = random.split_seed(seed, n=2)
  _, covariance, _ = moments(4, pilot_seed)
  # A tenth more, since the pilot's estimate has an error of its own.
  num_draws = 1.1 * _spread(covariance[of_gradient, of_gradient])
  num_draws *= (needed / (detectable_bias * norm)) ** 2
  if num_draws > most_draws:
    raise ValueError(
      f'`most_draws` must be at least {num_draws:.2g} to find a bias of '
      f'{detectable_bias} of the gradient; got {most_draws}. Raise it or '
      '`detectable_bias`, or choose a problem with less noise.'
    )
  mean, covariance, n = moments(max(4, -int(-num_draws // _CHUNK)), test_seed)
  for name, part in (('gradient', of_gradient), ('value', of_value)):
    statistic, rank = _chi_squared(
      mean[part], covariance[part, part], n, np.linalg.norm(expected[part])
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


def _moments_of_errors(estimator, problem, parameters, expected):
  """Returns a function that draws estimates and compares them.

  Args:
    estimator: A `GradientEstimator`.
    problem: As in `assert_unbiased`.
    parameters: List of `Tensor`s.
    expected: Array, the values and the gradient, all in one vector.

  Returns:
    moments: Callable, `(num_chunks, seed)` to the mean error, the covariance
      of the error of one draw, and the number of draws.
  """

  @tf.function(autograph=False)
  def draw(seed):
    tiled = enumeration.tile(parameters, _CHUNK)
    with tf.GradientTape() as tape:
      tape.watch(tiled)
      f, distribution = problem(*tiled)
      values = expectation(f, distribution, estimator, seed=seed)
    parts = tape.gradient(values, tiled, unconnected_gradients='zero')
    parts = [tf.reshape(values, [_CHUNK, -1])] + [
      tf.reshape(g, [_CHUNK, -1]) for g in parts
    ]
    return tf.concat([tf.cast(x, tf.float64) for x in parts], axis=-1)

  def moments(num_chunks, seed):
    total, squares = 0.0, 0.0
    for _ in range(num_chunks):
      seed, chunk_seed = random.split_seed(seed, n=2)
      errors = draw(chunk_seed).numpy() - expected
      total, squares = total + errors.sum(0), squares + errors.T @ errors
    n = num_chunks * _CHUNK
    mean = total / n
    return mean, squares / n - np.outer(mean, mean), n

  return moments


def _threshold(num_components, false_fail_rate):
  """What a chi-squared variable exceeds with half the false-fail rate.

  The value is tested with one half, the gradient with the other.
  """
  half = np.float64(num_components / 2)
  return 2.0 * float(tfp.math.igammacinv(half, np.float64(false_fail_rate / 2)))


def _spread(covariance):
  """The variance along the direction that varies most."""
  return np.linalg.eigvalsh(covariance)[-1]


def _chi_squared(mean, covariance, n, size):
  """Squared length of the mean in standard errors, and its dimension.

  A direction without noise (logits that are all moved together) must have no
  error either; if it has one, the length is infinite.

  Args:
    mean: Array of shape `[d]`.
    covariance: Array of shape `[d, d]` of one draw.
    n: Python `int`, number of draws.
    size: Python `float`, norm of what the mean is an error of.

  Returns:
    statistic: Python `float`.
    rank: Python `int`, number of directions with noise.
  """
  variances, directions = np.linalg.eigh(covariance)
  scale = max(np.sqrt(max(variances[-1], 0.0)), size, 1e-30)
  noisy = variances > (1e-6 * scale) ** 2
  errors = directions.T @ mean
  if np.any(np.abs(errors[~noisy]) > 1e-5 * scale):
    return np.inf, int(noisy.sum())
  return float(np.sum(n * errors[noisy] ** 2 / variances[noisy])), int(
    noisy.sum()
  )
