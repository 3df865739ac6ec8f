# SPDX-License-Identifier: Apache-2.0
"""Computes the exact gradient by enumeration."""

import math
import os

import tensorflow as tf

from tfp_rb.designs import Atoms, Whole, evaluate, everything
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.internal import gradients
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed

__all__ = ['Exact']

_MOST_VALUES = 2**20  # The atoms of all values are in memory at once.


class Exact(GradientEstimator):
  """Sums over all values, which gives the exact gradient without noise.

  ```none
  sum_z q(z) (f(z) grad log q(z) + grad f(z))
  ```

  It costs as many evaluations of `f` as the distribution has values, in one
  call.

  The sum leaves out values of probability 0, where `f` may be undefined. So
  with `probs` of exactly 0 or 1 the gradient with respect to `probs` lacks the
  terms of these values. Parameterize by `logits` if you need these terms.

  #### Examples

  ```python
  q = tfp.distributions.Binomial(total_count=4., probs=0.5)
  tfp_rb.expectation(lambda z: z**2, q, tfp_rb.Exact())  # ==> 5.0
  ```
  """

  sums_everything = True

  def __init__(self, *, name: str | None = None) -> None:
    """Makes the estimator.

    Args:
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(name=name)

  def choose_atoms(self, whole: Whole, seed: StatelessSeed) -> Atoms:
    del seed
    # `best` raises if the distribution has no registered partition.
    num_values = whole.best(0).num_values
    if num_values is None or num_values > _MOST_VALUES:
      found: int | str = num_values or (
        'an infinite or statically unknown number of'
      )
      if num_values and num_values > 10**12:  # too many digits to read
        found = f'about 1e{math.log10(num_values):.0f}'
      raise ValueError(
        f'`distribution` must have at most {_MOST_VALUES} values for `Exact`; '
        f'got a `{whole.name}` with {found} values. Sum the most probable '
        'ones and draw the rest: '
        '`tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=k)`.'
      )
    _check_memory(whole, num_values)
    return everything(whole, num_values)

  @property
  def chooses_atoms(self) -> str:
    # The error of `rao_blackwellize` contains this reason.
    return '`Exact` sums all values already.'

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    del distribution, seed
    value, signal = evaluate(f, atoms.values)  # [m] + batch_shape
    ratio = tf.cast(gradients.likelihood_ratio(atoms.log_prob), value.dtype)
    # `ratio - 1` is 0, and its gradient is grad log q. Together with the
    # weights q(z) this is equation (2) of Liu et al. (2019).
    return Estimate(value, surrogate=value + signal * (ratio - 1.0))


def _check_memory(whole: Whole, num_values: int) -> None:
  """Raises if the atoms do not fit into the memory of the machine."""
  values = whole.best(0).values  # [0] + batch_shape + event_shape
  num_rows = whole.log_rest.shape.num_elements()
  num_entries = values.shape[1:].num_elements()
  if num_rows is None or num_entries is None or not hasattr(os, 'sysconf'):
    return  # The size of the batch is not known while tracing.
  # Count the values, their weights, log-probabilities and the results of `f`.
  per_value = num_entries * values.dtype.size
  per_value += 3 * num_rows * whole.log_rest.dtype.size
  required = num_values * per_value
  available = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  if required > available:
    raise ValueError(
      '`distribution` must have few enough values for `Exact` to hold all of '
      f'them in memory; got {num_values} values for {num_rows} rows, which '
      f'require at least {required / 1e9:.1f} GB, and this machine has '
      f'{available / 1e9:.1f} GB. Sum the most probable values and draw the '
      'rest: `tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=k)`.'
    )
