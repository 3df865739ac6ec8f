# SPDX-License-Identifier: Apache-2.0
"""Defines the baseline of least variance."""

import tensorflow as tf

from tfp_rb.baselines.base import Baseline, Correction, draws_and_sums
from tfp_rb.designs import Atoms
from tfp_rb.internal.types import Distribution

__all__ = ['Optimal']


class Optimal(Baseline):
  """Subtracts the level of least variance, estimated from the other draws.

  ```none
  b = E[f |s|^2] / E[|s|^2],    s = score with respect to the logits
  ```

  It is unbiased and needs no further evaluation of `f`. For draw `j`, both
  expectations sum over the summed atoms exactly and average over the draws
  other than `j`. The original in [1] estimates the ratio from the same draws
  that it corrects, which biases the gradient. Families without logits use the
  score w.r.t. the natural parameter (log-rate and so on); products use the
  scores of all sites.

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

  treats_draws_alike = False

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
        '`sampler` must draw independently with `baselines.Optimal`, because '
        'the baseline must not depend on the draw that it corrects; got a '
        'sampler with dependent draws. Use `tfp_rb.samplers.IID()`, or another '
        'baseline, e.g. `baselines.IndependentSample()`.'
      )
    score_norm = atoms.partition.score_norm(atoms.values)  # [m] + batch_shape
    score_norm = tf.stop_gradient(tf.cast(score_norm, value.dtype))

    def expected(x: tf.Tensor) -> tf.Tensor:
      # Estimates E[x] for each draw without using that draw.
      return parts.summed(x) + parts.rest_weight * parts.mean_of_others(x)

    # The score of a distribution with a single value is 0.
    level = tf.math.divide_no_nan(
      expected(score_norm * value), expected(score_norm)
    )
    return Correction(parts.level(level))
