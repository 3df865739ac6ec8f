# SPDX-License-Identifier: Apache-2.0
"""Defines the baselines of `REINFORCE`, levels that are subtracted from `f`.

One rule keeps the gradient unbiased: draw `j` may use any level that is
computed without draw `j`, and the summed atoms use the mean of the levels of
the draws. The contributions of summed atoms and draws then cancel, because the
gradients of the mass of the summed set and of the mass of the rest add up to 0.
Any other level that differs between atoms gives a biased gradient.
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
