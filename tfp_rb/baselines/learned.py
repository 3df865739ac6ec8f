# SPDX-License-Identifier: Apache-2.0
"""Defines a baseline that is learned by regression."""

import tensorflow as tf

from tfp_rb.baselines.base import Baseline, Correction, mean_over_draws
from tfp_rb.designs import Atoms
from tfp_rb.internal.types import Distribution, Numeric

__all__ = ['Learned']


class Learned(Baseline):
  """Subtracts one scalar variable, learned by regression on the draws.

  It is unbiased and needs no further evaluation of `f`. The objective is the
  mean of `(f - b)^2` over the draws from the rest, because only these have
  variance. It is passed on as `auxiliary` and has a gradient w.r.t. this
  variable only. The optimizer of the model also trains the baseline if you give
  it `estimator.trainable_variables` in addition to the variables of the model.

  #### Examples

  ```python
  estimator = tfp_rb.REINFORCE(baseline=tfp_rb.baselines.Learned())
  q = tfp.distributions.Bernoulli(logits=0.)
  with tf.GradientTape() as tape:
    loss = tfp_rb.expectation(lambda z: 0. * tf.cast(z, tf.float32) + 3.,
                              q, estimator)
  tape.gradient(loss, estimator.trainable_variables)[0]  # ==> -6.0
  ```
  """

  def __init__(
    self, initial_value: Numeric = 0.0, *, name: str | None = None
  ) -> None:
    """Makes the baseline.

    Args:
      initial_value: A number. A NumPy scalar or a Tensor sets the dtype of the
        variable, which is otherwise float32.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(name=name)
    self.initial_value = initial_value  # `get_config` needs it.
    self.level = tf.Variable(
      initial_value,
      dtype=getattr(initial_value, 'dtype', tf.float32),
      name='level',
    )

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
    # Read the variable only once: an optimizer may change it between two reads.
    # (`tf.cast` to the variable's own dtype would return the variable.)
    level = tf.cast(tf.convert_to_tensor(self.level), value.dtype)
    # `value` is a constant here, so the regression trains only the level.
    return Correction(
      tf.stop_gradient(level), mean_over_draws((value - level) ** 2, atoms)
    )
