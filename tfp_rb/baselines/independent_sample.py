# SPDX-License-Identifier: Apache-2.0
"""Defines the baseline of REINFORCE+: the value at an independent draw."""

import tensorflow as tf

from tfp_rb.baselines.base import Baseline, Correction
from tfp_rb.designs import Atoms
from tfp_rb.internal.types import Distribution

__all__ = ['IndependentSample']


class IndependentSample(Baseline):
  """Subtracts `f` at an independent draw `z'` from `q`: REINFORCE+.

  It is unbiased. With `shared=True` all atoms share one `z'`. This costs one
  further evaluation of `f`, and no noise is left when all values are summed.
  With `shared=False` every atom has its own `z'`, as in the code of [1]. This
  costs as many further evaluations as there are atoms, and Rao-Blackwellization
  cannot reduce the variance below `sum_z q(z)^2 Var[g(z)]`.

  #### Examples

  ```python
  tfp_rb.baselines.IndependentSample().num_extra(4)              # ==> 1
  tfp_rb.baselines.IndependentSample(shared=False).num_extra(4)  # ==> 4
  ```

  #### References

  [1] Runjing Liu et al. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019, equation (23). https://arxiv.org/abs/1810.04777
  """

  def __init__(self, shared: bool = True, *, name: str | None = None) -> None:
    """Makes the baseline.

    Args:
      shared: Python `bool`, whether one draw serves all atoms.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(name=name)
    self.shared = bool(shared)

  is_independent_of_atoms = True

  @property
  def treats_draws_alike(self) -> bool:
    # If each atom has its own `z'`, more draws do not reduce the noise at the
    # summed atoms.
    return self.shared

  def num_extra(self, num_atoms: int) -> int:
    return 1 if self.shared else num_atoms

  def evaluate(
    self,
    distribution: Distribution,
    atoms: Atoms,
    value: tf.Tensor,
    extra_value: tf.Tensor,
  ) -> Correction:
    del distribution, atoms, value
    # [1] + batch_shape if shared, otherwise [m] + batch_shape.
    return Correction(extra_value)
