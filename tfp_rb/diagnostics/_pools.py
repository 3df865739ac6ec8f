# SPDX-License-Identifier: Apache-2.0
"""Computes the variance of a pooled estimator from tables of the rows."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import expectation
from tfp_rb.diagnostics._closed_forms import Row
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal.types import Distribution, Integrand, Problem
from tfp_rb.testing import enumeration

__all__ = ['PoolVariance', 'are_flat', 'distribution_of', 'pool_variance']

_IMPOSSIBLE = -1e4  # a logit of probability 0, also in float64
_MOST_OUTCOMES = 2000  # The largest number of outcomes that are enumerated.
_NUM_ESTIMATES = 1000  # The number of random estimates for more outcomes.
_MOST_NUMBERS = 2**24  # The largest number of components in memory, 128 MB.


class PoolVariance(NamedTuple):
  """Holds the total variance of the gradient of a pooled estimator.

  Attributes:
    variance: Python `float`.
    num_estimates: Python `int`, the number of estimates from which the variance
      was computed; `None` if all outcomes were enumerated.
  """

  variance: float
  num_estimates: int | None


def are_flat(rows: Sequence[Row]) -> bool:
  """Returns whether the probabilities of all rows are nearly uniform."""
  for row in rows:
    # The effective number of values is between 1 and K.
    effective = 1.0 / np.sum(row.q**2)
    if effective - 1.0 < 0.5 * (len(row.q) - 1.0):
      return False
  return True


def distribution_of(rows: Sequence[Row]) -> Distribution:
  """Returns a `Categorical` over the positions in each row."""
  return tfp.distributions.Categorical(logits=_logits(rows))


def pool_variance(
  rows: Sequence[Row], estimator: GradientEstimator
) -> PoolVariance:
  """Returns the total variance of the gradient of the sum over the batch.

  The rows of a pool are not independent, so their variances do not add up if
  they share parameters.

  Args:
    rows: List of `Row`.
    estimator: The result of `pooled`.

  Returns:
    variance: A `PoolVariance`.
  """
  logits = _logits(rows)  # [B, K]
  q = _stack([row.q for row in rows], logits.shape[1])
  f = _stack([row.f for row in rows], logits.shape[1])

  def problem(logits: tf.Tensor) -> tuple[Integrand, Distribution]:
    table = tf.constant(f)
    look_up = lambda z, rows: tf.gather_nd(table, tf.stack([rows, z], axis=-1))
    return look_up, tfp.distributions.Categorical(logits=logits)

  most = max(_MOST_NUMBERS // logits.size, 100)
  found = enumeration.enumerate_pool(
    estimator, problem, [logits], min(_MOST_OUTCOMES, most), traced=True
  )
  if found is None:
    num_estimates = min(_NUM_ESTIMATES, most)
    chances = np.full([num_estimates], 1.0 / num_estimates)
    gradients = _sample(estimator, problem, logits, num_estimates)
  else:
    num_estimates = None
    chances = np.ravel(found.probabilities)
    gradients = found.weighted_gradients[0] / chances[:, np.newaxis, np.newaxis]
  # The estimate is unbiased, so its mean is the derivative of the sum.
  mean = q * (f - np.sum(q * f, axis=1, keepdims=True))
  errors = np.reshape(gradients - mean, [len(chances), -1])  # [T, B K]
  scores = [
    _pad(row.scores, logits.shape[1]) for row in rows if row.scores is not None
  ]
  if scores:
    # Scores have mean 0, so the chain rule needs nothing else.
    errors = errors @ np.concatenate(scores, axis=0)  # [T, P]
  return PoolVariance(float(np.sum(chances @ errors**2)), num_estimates)


def _sample(
  estimator: GradientEstimator,
  problem: Problem,
  logits: np.ndarray,
  num_estimates: int,
) -> np.ndarray:
  """Returns the gradients of `n` estimates w.r.t. logits, `[n, B, K]`."""
  parameter = tf.constant(logits)

  def gradient(seed: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
      tape.watch(parameter)
      value = expectation(*problem(parameter), estimator, seed=seed)
    return tape.gradient(value, parameter)

  traced = tf.function(gradient, autograph=False)
  return np.stack([traced(tf.constant([0, i])) for i in range(num_estimates)])


def _logits(rows: Sequence[Row]) -> np.ndarray:
  """Returns log-probabilities of all rows, `[B, K]`."""
  size = max(len(row.q) for row in rows)
  q = _stack([row.q for row in rows], size)
  return np.log(q, out=np.full(q.shape, _IMPOSSIBLE), where=q > 0.0)


def _stack(arrays: Sequence[np.ndarray], size: int) -> np.ndarray:
  return np.stack([_pad(array, size) for array in arrays])


def _pad(array: np.ndarray, size: int) -> np.ndarray:
  """Appends zeros to the first axis."""
  width = [(0, size - len(array))] + [(0, 0)] * (array.ndim - 1)
  return np.pad(array, width)
