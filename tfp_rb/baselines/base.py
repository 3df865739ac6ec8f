"""What a baseline is."""

import abc
from typing import NamedTuple

import tensorflow as tf

from tfp_rb.designs import Atoms
from tfp_rb.internal.config import Configurable
from tfp_rb.internal.types import Distribution

__all__ = ['Baseline', 'Correction']


class Correction(NamedTuple):
  """What a baseline answers.

  Attributes:
    level: `Tensor` that broadcasts to `[m] + batch_shape`, subtracted from `f`.
    auxiliary: `Tensor` of `batch_shape`, an objective of the baseline's own
      variables, to be minimised; `None` if it has none.
  """

  level: tf.Tensor
  auxiliary: tf.Tensor | None = None


class Baseline(Configurable, metaclass=abc.ABCMeta):
  """Base class of the baselines.

  #### Examples

  ```python
  class Half(tfp_rb.baselines.Baseline):

    def evaluate(self, distribution, atoms, value, extra_value):
      return tfp_rb.baselines.Correction(0.5 * tf.ones_like(value))

  tfp_rb.REINFORCE(baseline=Half()).baseline.num_extra(4)  # ==> 0
  ```
  """

  def num_extra(self, num_atoms: int) -> int:
    """Number of further draws from `q` at which `f` is to be evaluated."""
    del num_atoms
    return 0

  @abc.abstractmethod
  def evaluate(
    self,
    distribution: Distribution,
    atoms: Atoms,
    value: tf.Tensor,
    extra_value: tf.Tensor,
  ) -> Correction:
    """Returns the `Correction`.

    Args:
      distribution: The distribution.
      atoms: `Atoms`.
      value: `Tensor` of shape `[m] + batch_shape`, `f` at the atoms.
      extra_value: `Tensor` of shape `[num_extra(m)] + batch_shape`.

    Returns:
      correction: A `Correction`; its level is not differentiated.
    """
