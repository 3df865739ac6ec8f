# SPDX-License-Identifier: Apache-2.0
"""Measures how a pooled budget is spent over the rows of a batch."""

from typing import cast

import numpy as np
import tensorflow as tf

from tfp_rb.designs import Pool
from tfp_rb.estimators.base import GradientEstimator, check_estimator
from tfp_rb.internal import checks
from tfp_rb.internal.types import Distribution, StatelessSeed
from tfp_rb.partitions import check_discrete

__all__ = ['evaluations_per_row']


def evaluations_per_row(
  distribution: Distribution,
  estimator: GradientEstimator,
  num_estimates: int = 100,
  seed: StatelessSeed = (0, 0),
) -> np.ndarray:
  """Returns how many evaluations of `f` a pooled estimator spends on each row.

  Use it to see which members of a batch, for example which images, get more
  evaluations than others.

  Args:
    distribution: A discrete `tfp.distributions.Distribution` with a batch and
      a registered partition.
    estimator: The result of `tfp_rb.pooled`.
    num_estimates: Python `int`, the number of estimates to average over. Pass 1
      for the evaluations of a single estimate.
    seed: Stateless seed of the estimates.

  Returns:
    evaluations: Array of `batch_shape`, float64. The mean over the batch is the
      number of evaluations per row.

  Raises:
    TypeError: `distribution` is not discrete, `estimator` is not a
      `GradientEstimator`, or `num_estimates` is not an `int`.
    ValueError: `estimator` is not pooled, or `num_estimates` is less than 1.
    NotImplementedError: No partition is registered for the distribution.

  #### Examples

  ```python
  q = tfp.distributions.Categorical(
      logits=[[9., 0., 0.], [0., 0.5, 0.5], [7., 0., 0.]])
  estimator = tfp_rb.pooled(budget_per_row=5 / 3)
  evaluations = tfp_rb.diagnostics.evaluations_per_row(q, estimator)
  np.argsort(-evaluations)[:1]   # ==> [1]
  round(np.mean(evaluations), 3)  # ==> 1.667
  ```
  """
  check_discrete(distribution)
  check_estimator(estimator)
  if not estimator.takes_rows:
    raise ValueError(
      '`estimator` must be pooled, because other estimators evaluate equally '
      f'many atoms in every row; got {estimator!r}. Write, for example, '
      '`tfp_rb.pooled(budget_per_row=2.)`.'
    )
  num_estimates = checks.check_int(num_estimates, 'num_estimates', minimum=1)
  num_rows = distribution.batch_shape.num_elements()
  seeds = tf.random.experimental.stateless_split(seed, num_estimates)

  def count(seed: tf.Tensor) -> tf.Tensor:
    rows = cast(Pool, estimator.sample_atoms(distribution, seed).pool).rows
    return tf.math.bincount(rows, minlength=num_rows, maxlength=num_rows)

  # Trace the function only if it is called more than once.
  run = count if num_estimates == 1 else tf.function(count, autograph=False)
  total = sum(run(seed).numpy() for seed in seeds)
  return np.reshape(total / num_estimates, distribution.batch_shape)
