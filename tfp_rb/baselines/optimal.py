"""The level of least variance."""

import tensorflow as tf

from tfp_rb.baselines.base import Baseline, Correction, draws_and_sums
from tfp_rb.designs import Atoms
from tfp_rb.internal.types import Distribution

__all__ = ['Optimal']


class Optimal(Baseline):
  """The level of least variance, estimated for each draw without that draw.

  ```none
  b = E[f |s|^2] / E[|s|^2],    s = score with respect to the logits
  ```

  Unbiased; no further evaluation of `f`. The expectations are taken over the
  summed atoms, exactly, and the draws other than `j`. The original in [1]
  estimates the ratio from the very draws that it corrects, which biases the
  gradient. For families without logits the score is that by the natural
  parameter (log-rate and so on); for a product, that of all its sites.

  #### Examples

  ```python
  estimator = tfp_rb.REINFORCE(
      baseline=tfp_rb.baselines.Optimal(), num_samples=4)
  q = tfp.distributions.Categorical(logits=[0., 1., 2.])
  f = lambda z: 0. * tf.cast(z, tf.float32) + 2.
  tfp_rb.expectation(f, q, estimator)  # ==> 2.0
  ```

  #### References

  [1] Rajesh Ranganath, Sean Gerrish, David M. Blei. Black box variational
      inference. AISTATS 2014, section 3.2. https://arxiv.org/abs/1401.0118
  """

  def evaluate(
    self,
    distribution: Distribution,
    atoms: Atoms,
    value: tf.Tensor,
    extra_value: tf.Tensor,
  ) -> Correction:
    del distribution, extra_value
    parts = draws_and_sums('Optimal', atoms, value)
    if atoms.mean_of_others is not None:
      raise ValueError(
        '`baselines.Optimal` needs independent draws, since a ratio of means '
        'that see the draw itself is biased, but `sampler` draws dependent '
        'ones. Use `tfp_rb.samplers.IID()`, or another baseline, e.g. '
        '`baselines.IndependentSample()`.'
      )
    score_norm = atoms.partition.score_norm(atoms.values)
    score_norm = tf.stop_gradient(tf.cast(score_norm, value.dtype))

    def expected(x):
      return parts.summed(x) + parts.rest_weight * parts.mean_of_others(x)

    return Correction(
      parts.level(
        tf.math.divide_no_nan(
          expected(score_norm * value), expected(score_norm)
        )
      )
    )
