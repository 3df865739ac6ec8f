# SPDX-License-Identifier: Apache-2.0
"""Defines the score-function estimator."""

from typing import Any

import tensorflow as tf

from tfp_rb.baselines.base import Baseline, is_baseline
from tfp_rb.baselines.constant import as_baseline
from tfp_rb.designs import Atoms, evaluate
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.internal import gradients
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  Numeric,
  StatelessSeed,
)

__all__ = ['REINFORCE']


class REINFORCE(GradientEstimator):
  """Estimates the gradient with the score function and a baseline.

  ```none
  g(z) = (f(z) - b) grad log q(z) + grad f(z)
  ```

  Value, gradient and Hessian are unbiased with every baseline of
  `tfp_rb.baselines`, with or without Rao-Blackwellization. REINFORCE costs
  `num_samples` evaluations of `f` (`num_summed + num_samples` if it is
  Rao-Blackwellized), in one call, plus those that the baseline needs.

  REINFORCE+ of [2] is `REINFORCE(baseline=baselines.IndependentSample())`.

  #### Examples

  ```python
  logits = tf.Variable([0., 1., 2.])
  estimator = tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baseline=tfp_rb.baselines.LeaveOneOut(),
                       num_samples=2), num_summed=1)
  with tf.GradientTape() as tape:
    q = tfp.distributions.Categorical(logits=logits)
    loss = tfp_rb.expectation(
        lambda z: tf.cast(z, tf.float32)**2, q, estimator, seed=[0, 1])
  tape.gradient(loss, logits).shape  # ==> (3,)
  ```

  #### References

  [1] Ronald J. Williams. Simple statistical gradient-following algorithms for
      connectionist reinforcement learning. _Machine Learning_, 8, 1992.
  [2] Runjing Liu, Jeffrey Regier, Nilesh Tripuraneni, Michael I. Jordan, Jon
      McAuliffe. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019, equations (3) and (4).
      https://arxiv.org/abs/1810.04777
  """

  def __init__(
    self,
    *positional: Baseline,
    baseline: Baseline | Numeric | None = None,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      *positional: One of `tfp_rb.baselines`, instead of `baseline=`. Numbers
        are accepted by keyword only, because `REINFORCE(5)` would look like
        five draws.
      baseline: One of `tfp_rb.baselines`, or a constant: a number or a `Tensor`
        of the batch shape of the distribution. `None` means no baseline.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      TypeError: `baseline` is none of the above, or was given twice.
    """
    super().__init__(num_samples=num_samples, name=name)
    if positional:
      baseline = _only_baseline(positional, baseline)
    self.baseline = as_baseline(baseline)

  @classmethod
  def _argument_names(cls) -> list[str]:
    # Leave out `positional`: its baseline is stored as `baseline`.
    return ['baseline', 'num_samples']

  @property
  def evaluates_only_atoms(self) -> bool:
    # A subclass may evaluate `f` elsewhere.
    return type(self).evaluate is REINFORCE.evaluate

  @property
  def serves_dependent_sites(self) -> bool:
    return self.evaluates_only_atoms and self.baseline.is_independent_of_atoms

  @property
  def why_not_pooled(self) -> str | None:
    return self.baseline.why_not_pooled

  def num_extra(self, num_atoms: int) -> int:
    return self.baseline.num_extra(num_atoms)

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    del seed
    num_atoms = atoms.weights.shape[0]
    values = atoms.values
    if atoms.extra is not None:
      # One call of `f` serves the atoms and the draws of the baseline.
      values = tf.concat([values, atoms.extra], axis=0)
    everything, signals = evaluate(f, values)
    value, signal = everything[:num_atoms], signals[:num_atoms]  # [m] + batch
    correction = self.baseline.evaluate(
      distribution=distribution,
      atoms=atoms,
      value=tf.stop_gradient(signal),
      extra_value=tf.stop_gradient(signals[num_atoms:]),
    )
    ratio = tf.cast(gradients.likelihood_ratio(atoms.log_prob), value.dtype)
    level = tf.stop_gradient(tf.cast(correction.level, value.dtype))
    return Estimate(
      value,
      # Equation (4) of [2]. `ratio - 1` is 0, and its gradient is the score.
      # `signal` keeps its gradient, so that the Hessian is unbiased as well.
      surrogate=value + (signal - level) * (ratio - 1.0),
      auxiliary=correction.auxiliary,
    )


def _only_baseline(positional: tuple[Any, ...], keyword: Any) -> Baseline:
  """Returns the single positional argument if it is a `Baseline`."""
  if len(positional) > 1 or keyword is not None:
    raise TypeError(
      '`baseline` must be given once; got '
      f'{[*positional, keyword]!r}. Pass other settings by keyword.'
    )
  if not is_baseline(positional[0]):
    raise TypeError(
      f'`baseline` must be one of `tfp_rb.baselines`; got {positional[0]!r}. '
      'Write `REINFORCE(baseline=...)` for a constant baseline, and '
      '`REINFORCE(num_samples=...)` for the number of draws.'
    )
  return positional[0]
