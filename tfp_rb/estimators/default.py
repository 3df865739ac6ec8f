# SPDX-License-Identifier: Apache-2.0
"""Chooses an estimator if the user does not."""

from tfp_rb import baselines
from tfp_rb.designs import Whole
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.estimators.reinforce import REINFORCE

__all__ = ['default_estimator']

_NUM_EVALUATIONS = 3  # The number of evaluations of `f`.
# A product of more sites gets joint draws: its joint values rarely have a
# noticeable probability, and the search for them takes time to compile.
_MOST_SITES = 8


def default_estimator(whole: Whole) -> GradientEstimator:
  """Returns the default estimator of a distribution: three evaluations of `f`.

  A single variable, or a product of at most 8 sites, gets a budget: each batch
  member sums its most probable values if that lowers a bound of the variance,
  and draws the others. A product of more sites gets joint draws, and so does a
  distribution without a registered partition, which can only be sampled. The
  baseline is `baselines.LeaveOneOut()` in all cases.

  In 87 % of 540 random problems, the variance of the gradient equals that of
  the best choice for three evaluations. The 95 % quantile of the ratio is 1.37,
  and the largest is 11.5 (10 sites that are nearly certain). If products of
  fewer sites also got joint draws, the 95 % quantile would be 4.8. The command
  is `python -m examples.benchmarks.defaults`.

  Args:
    whole: The whole `Partition` of the distribution.

  Returns:
    estimator: A `GradientEstimator`.
  """
  leave_one_out = baselines.LeaveOneOut()
  if whole.num_sites is not None and whole.num_sites <= _MOST_SITES:
    return rao_blackwellize(REINFORCE(leave_one_out), budget=_NUM_EVALUATIONS)
  return REINFORCE(leave_one_out, num_samples=_NUM_EVALUATIONS)
