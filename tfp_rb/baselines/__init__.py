"""Baselines of `REINFORCE`: what is subtracted from `f`.

The rule that keeps them unbiased: draw `j` may use any level computed without
draw `j`, and the summed atoms use the mean of the levels of the draws. Summed
atoms and draws together then cancel, because the gradients of the mass of the
summed set and of the mass of the rest are opposite. Anything else that differs
between atoms is biased.
"""

from tfp_rb.baselines.base import Baseline, Correction
from tfp_rb.baselines.constant import Constant
from tfp_rb.baselines.independent_sample import IndependentSample
from tfp_rb.baselines.learned import Learned
from tfp_rb.baselines.leave_one_out import LeaveOneOut
from tfp_rb.baselines.optimal import Optimal

__all__ = [
  'Baseline',
  'Constant',
  'Correction',
  'IndependentSample',
  'Learned',
  'LeaveOneOut',
  'Optimal',
]
