"""Mean, variance and bias of a gradient, and these by enumeration."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal.types import Problem, TensorLike
from tfp_rb.partitions import check_discrete
from tfp_rb.testing import enumeration

__all__ = [
  'GradientMoments',
  'check_moments',
  'enumerate_all',
  'exact_moments',
  'flat',
  'total_variance',
]


class GradientMoments(NamedTuple):
  """What is known of the gradient of one estimate.

  Attributes:
    mean: List of arrays with the shapes of the parameters, the mean gradient.
    variance: Python `float`, the total variance: the sum of the variances of
      all components.
    interval: Pair of Python `float`s, 95 % interval of the variance; the
      variance twice where it is exact.
    bias: Python `float`, the norm of the mean's error; `None` where the exact
      gradient is not known. From draws, the noise of the mean is taken off.
    bias_interval: Pair of Python `float`s, 95 % interval of the bias, or
      `None`.
    num_evaluations: Python `int`, the number of atoms at which `f` is
      evaluated, for each member of a batch; `None` where they were not seen.
    is_exact: Python `bool`, whether all outcomes were enumerated.
  """

  mean: list[np.ndarray]
  variance: float
  interval: tuple[float, float]
  bias: float | None
  bias_interval: tuple[float, float] | None
  num_evaluations: int | None
  is_exact: bool


def check_moments(moments):
  """Raises `TypeError` unless a function returned `GradientMoments`."""
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
  """Returns exact moments of the gradient, by enumeration of all outcomes.

  ```none
  mean      sum_t p(t) g(t)
  variance  sum_t p(t) |g(t) - mean|^2      outcomes t of the draws
  ```

  Nothing is random. The estimator must have no noise beside its draws, and the
  number of outcomes is that of the values to the power of the draws.

  Args:
    estimator: A `GradientEstimator`.
    problem: Callable that takes the `parameters` and returns the pair
      `(f, distribution)`. The parameters come with one further dimension in
      front, so both must follow TFP's batch semantics. On its own the
      distribution has no batch: members of a batch are drawn independently, so
      their variances add up.
    parameters: List of floating-point `Tensor`s, preferably float64, with
      respect to which the gradient is taken.
    most_outcomes: Python `int`, the most outcomes that are enumerated.

  Returns:
    moments: `GradientMoments`.

  Raises:
    ValueError: The distribution has a batch, or the outcomes cannot be
      enumerated: an infinite support, too many outcomes, draws that depend on
      each other in another way than without replacement, noise of the
      estimator's own.

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
  outcomes = enumerate_all(estimator, problem, parameters, most_outcomes)
  variance = total_variance(outcomes)
  mean = [g.sum(axis=0) for g in outcomes.weighted_gradients]
  _, reference = enumeration.exact_reference(problem, parameters)
  bias = float(np.linalg.norm(flat(mean) - flat(reference)))
  return GradientMoments(
    mean=mean,
    variance=variance,
    interval=(variance, variance),
    bias=bias,
    bias_interval=(bias, bias),
    num_evaluations=outcomes.num_evaluations,
    is_exact=True,
  )


def enumerate_all(estimator, problem, parameters, most_outcomes):
  """Returns the `Outcomes` of an estimator, or says why it cannot."""
  _, distribution = problem(*parameters)
  check_discrete(distribution)
  if distribution.batch_shape.rank != 0:
    raise ValueError(
      '`problem` must have a distribution without a batch, since members of a '
      'batch are drawn independently and their variances add up, but its batch '
      f'shape is {distribution.batch_shape}. Take one member at a time, or use '
      '`sampled_moments`.'
    )
  # Where the seed makes a difference, there is noise beside the draws.
  first, second = (
    enumeration.enumerate_outcomes(
      estimator, problem, parameters, most_outcomes, seed=(0, s)
    )
    for s in range(2)
  )
  if first is None or not all(
    np.array_equal(a, b)
    for a, b in zip(
      first.weighted_gradients, second.weighted_gradients, strict=True
    )
  ):
    raise ValueError(
      f'`estimator` must have at most {most_outcomes} outcomes and no noise '
      f'beside its draws, but {estimator!r} has more, or has noise, with '
      f'`{type(distribution).__name__}`. Raise `most_outcomes`, draw less, or '
      'use `sampled_moments`.'
    )
  return first


def total_variance(outcomes):
  """Of the gradients of `Outcomes` without a batch."""
  possible = outcomes.probabilities > 0.0
  chances = outcomes.probabilities[possible].astype(np.float64)
  variance = 0.0
  for weighted in outcomes.weighted_gradients:  # [T] + shape
    weighted = weighted.astype(np.float64).reshape([len(possible), -1])
    gradients = weighted[possible] / chances[:, np.newaxis]
    errors = gradients - weighted.sum(axis=0)
    variance += float(np.sum(chances @ errors**2))
  return variance


def flat(arrays):
  """All components of a list of arrays, in float64."""
  return np.concatenate([np.ravel(np.asarray(a, np.float64)) for a in arrays])
