"""The estimator that is used if the user chooses none."""

from tfp_rb import baselines
from tfp_rb.designs import Whole
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.estimators.reinforce import REINFORCE

__all__ = ['default_estimator']

_NUM_EVALUATIONS = 3  # of `f`
# A product of more sites gets joint draws: its joint values rarely have a
# noticeable probability, and the search for them takes time to compile.
_MOST_SITES = 8


def default_estimator(whole: Whole) -> GradientEstimator:
  """Returns the default estimator of a distribution: three evaluations of `f`.

  A single variable, and a product of at most 8 sites, gets a budget: each batch
  member sums its most probable values as far as that pays, and draws the
  others. A product of more sites gets joint draws; so does a distribution
  without a registered partition, which can only be sampled. The baseline is
  `baselines.LeaveOneOut()` in all cases.

  The variance of the gradient is that of the best choice for three evaluations
  in 87 % of 540 random problems; the 95 % quantile of the ratio is 1.37, the
  largest 11.5 (10 sites that are nearly certain). With joint draws for products
  of fewer sites as well, the 95 % quantile would be 4.8. The command
  is `python examples/benchmarks/defaults.py`.

  Args:
    whole: The whole `Partition` of the distribution.

  Returns:
    estimator: A `GradientEstimator`.
  """
  leave_one_out = baselines.LeaveOneOut()
  if whole.num_sites is not None and whole.num_sites <= _MOST_SITES:
    return rao_blackwellize(REINFORCE(leave_one_out), budget=_NUM_EVALUATIONS)
  return REINFORCE(leave_one_out, num_samples=_NUM_EVALUATIONS)
