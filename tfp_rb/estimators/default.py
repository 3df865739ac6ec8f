"""The estimator that is used if the user chooses none."""

from tfp_rb import baselines
from tfp_rb.designs import Whole
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.estimators.reinforce import REINFORCE

__all__ = ['NUM_EVALUATIONS', 'default_estimator']

NUM_EVALUATIONS = 3  # of `f`


def default_estimator(
  whole: Whole, num_evaluations: int = NUM_EVALUATIONS
) -> GradientEstimator:
  """Returns the default estimator of a distribution.

  A single variable gets a budget: each batch member sums its most probable
  values as far as that pays, and draws the others. A product of several sites
  gets joint draws, because its joint values rarely have a noticeable
  probability; so does a distribution without a registered partition, which can
  only be sampled. The baseline is `baselines.LeaveOneOut()` in all cases.

  Args:
    whole: The whole `Partition` of the distribution.
    num_evaluations: Python `int`, the number of evaluations of `f`.

  Returns:
    estimator: A `GradientEstimator`.
  """
  leave_one_out = baselines.LeaveOneOut()
  if whole.num_sites == 1:
    return rao_blackwellize(REINFORCE(leave_one_out), budget=num_evaluations)
  return REINFORCE(leave_one_out, num_samples=num_evaluations)
