# SPDX-License-Identifier: Apache-2.0
"""Defines a baseline with a given level."""

import numpy as np
import tensorflow as tf

from tfp_rb.baselines.base import (
  Baseline,
  Correction,
  check_level,
  is_baseline,
)
from tfp_rb.designs import Atoms
from tfp_rb.internal.types import Distribution, Numeric

__all__ = ['Constant', 'as_baseline']


def as_baseline(baseline: Baseline | Numeric | None) -> Baseline:
  """Returns the argument of `REINFORCE(baseline=...)` as a `Baseline`.

  Args:
    baseline: A `Baseline`, a number, a `Tensor` or `None`.

  Returns:
    baseline: A `Baseline`.
  """
  if is_baseline(baseline):
    return baseline
  is_number = isinstance(baseline, (int, float, np.ndarray, np.generic))
  if baseline is None or is_number or tf.is_tensor(baseline):
    return Constant(0.0 if baseline is None else baseline)
  raise TypeError(
    '`baseline` must be one of `tfp_rb.baselines`, a number or a Tensor of the '
    f'batch shape; got {baseline!r}. Write, for example, '
    '`baseline=tfp_rb.baselines.LeaveOneOut()`.'
  )


class Constant(Baseline):
  """Subtracts a given level: one number, or one per batch member.

  It is unbiased and needs no further evaluation of `f`.
  `REINFORCE(baseline=3.)` uses it.

  #### Examples

  ```python
  tfp_rb.REINFORCE(baseline=3.).baseline.get_config()  # ==> {'level': 3.0}
  ```
  """

  def __init__(self, level: Numeric = 0.0, *, name: str | None = None) -> None:
    """Makes the baseline.

    Args:
      level: A number, or a `Tensor` of the batch shape of the distribution.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(name=name)
    self.level = level

  why_not_pooled = None
  is_independent_of_atoms = True

  def evaluate(
    self,
    distribution: Distribution,
    atoms: Atoms,
    value: tf.Tensor,
    extra_value: tf.Tensor,
  ) -> Correction:
    del distribution, extra_value
    return Correction(check_level(self.level, value, atoms))
