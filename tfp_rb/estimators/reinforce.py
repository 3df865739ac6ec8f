"""The score-function estimator."""

import tensorflow as tf

from tfp_rb import _gradient
from tfp_rb._atoms import Atoms, draw_atoms
from tfp_rb._types import Distribution, Integrand, Numeric, StatelessSeed
from tfp_rb.baselines.base import Baseline
from tfp_rb.baselines.constant import as_baseline
from tfp_rb.estimators.base import Estimate, GradientEstimator

__all__ = ['REINFORCE']


class REINFORCE(GradientEstimator):
  """The score-function estimator, with a baseline.

  ```none
  g(z) = (f(z) - b) grad log q(z) + grad f(z)
  ```

  Unbiased with every baseline of `tfp_rb.baselines`, in value, gradient and
  Hessian, Rao-Blackwellized or not. Costs `num_samples` evaluations of `f`
  (`num_summed + num_samples` when Rao-Blackwellized), in one call, plus those
  that the baseline asks for.

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
    baseline: Baseline | Numeric | None = None,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      baseline: One of `tfp_rb.baselines`, or a number or a `Tensor` of the
        batch shape of the distribution, a constant. `None`: no baseline.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      TypeError: `baseline` is none of the above.
    """
    super().__init__(num_samples=num_samples, name=name)
    self.baseline = as_baseline(baseline)

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    num_atoms = atoms.weights.shape[0]
    num_extra = self.baseline.num_extra(num_atoms)
    values = atoms.values
    if num_extra:
      # One call of `f` for all: the baseline's draws ride along.
      extra = draw_atoms(distribution, num_extra, seed).values
      values = tf.concat([values, extra], axis=0)
    everything = f(values)
    value, extra_value = everything[:num_atoms], everything[num_atoms:]
    correction = self.baseline.evaluate(
      distribution=distribution,
      atoms=atoms,
      value=tf.stop_gradient(value),
      extra_value=tf.stop_gradient(extra_value),
    )
    ratio = tf.cast(_gradient.likelihood_ratio(atoms.log_prob), value.dtype)
    level = tf.stop_gradient(tf.cast(correction.level, value.dtype))
    return Estimate(
      value,
      surrogate=value * ratio - level * (ratio - 1.0),
      auxiliary=correction.auxiliary,
    )
