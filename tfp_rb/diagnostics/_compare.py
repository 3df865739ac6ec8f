# SPDX-License-Identifier: Apache-2.0
"""Compares estimators at an equal number of evaluations of `f`."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tfp_rb.diagnostics._moments import GradientMoments, check_moments
from tfp_rb.estimators.base import GradientEstimator

__all__ = ['Comparison', 'compare']


class Comparison(NamedTuple):
  """Holds the result of `compare` for one estimator.

  Attributes:
    name: Python `str`.
    num_evaluations: Python `int`, the number of atoms at which `f` is
      evaluated, for each row of a batch. With `pooled` it is a `float`.
    variance: Python `float`, the total variance of the gradient.
    interval: Pair of Python `float`s, the 95 % interval of the variance.
    bias: Python `float`, the norm of the error of the mean gradient; `None` if
      it is not known.
    product: Python `float`, the variance times the evaluations. If you average
      independent estimates that use `N` evaluations in total, the mean has the
      variance `product / N`.
  """

  name: str
  num_evaluations: float
  variance: float
  interval: tuple[float, float]
  bias: float | None
  product: float


def compare(
  estimators: Mapping[str, GradientEstimator],
  measure: Callable[[GradientEstimator], GradientMoments],
) -> list[Comparison]:
  """Ranks estimators by their variance at an equal number of evaluations.

  The library counts the evaluations: the number of atoms at which `f` is
  evaluated for one estimate. It ranks estimators with different numbers of
  evaluations by variance times evaluations. Twice the draws may reduce the
  variance to less than half (with `LeaveOneOut` they do), so compare such an
  estimator at several numbers of draws.

  Evaluations are counted per row of the batch: `pooled`, which evaluates `N`
  atoms for `B` rows, counts as `N / B`. To compare it with other estimators,
  write `f(z, rows)`, with exactly this argument name. `pooled` requires the
  argument. All other estimators support it, too, and pass all rows of the
  batch.

  Args:
    estimators: Dictionary (or any `Mapping`) from names to
      `GradientEstimator`s.
    measure: Callable that takes an estimator and returns `GradientMoments`:
      `lambda e: exact_moments(e, problem, parameters)`, or
      `lambda e: sampled_moments(lambda seed: loss(e, seed), variables)`.

  Returns:
    rows: List of `Comparison`, the least `product` first.

  Raises:
    TypeError: `measure` does not return `GradientMoments`.
    ValueError: `estimators` is empty or not a `Mapping`, or the evaluations of
      `f` could not be counted.

  #### Examples

  ```python
  def problem(logits):
    f = lambda z: tf.gather(tf.constant([3., 1., 2.], tf.float64), z)
    return f, tfp.distributions.Categorical(logits=logits)

  logits = tf.constant([0., 1., 2.], tf.float64)
  rows = tfp_rb.diagnostics.compare(
      {'plain': tfp_rb.REINFORCE(num_samples=2),
       'summed': tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)},
      lambda e: tfp_rb.diagnostics.exact_moments(e, problem, [logits]))
  [row.name for row in rows]                # ==> ['summed', 'plain']
  [row.num_evaluations for row in rows]     # ==> [2, 2]
  [round(row.variance, 3) for row in rows]  # ==> [0.263, 0.871]
  ```

  The next example compares one budget for a batch of three rows with a budget
  per row:

  ```python
  cost = tf.constant([[3., 1., 2.], [0., 1., 5.], [2., 2., 1.]])
  logits = tf.Variable([[9., 0., 0.], [0., 0.5, 0.5], [7., 0., 0.]])

  def loss(estimator, seed):
    f = lambda z, rows: tf.gather_nd(cost, tf.stack([rows, z], axis=-1))
    q = tfp.distributions.Categorical(logits=logits)
    return tf.reduce_sum(tfp_rb.expectation(f, q, estimator, seed=seed))

  rows = tfp_rb.diagnostics.compare(
      {'per row': tfp_rb.rao_blackwellize(
           tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut()), budget=2),
       'pooled': tfp_rb.pooled(budget_per_row=5 / 3)},
      lambda e: tfp_rb.diagnostics.sampled_moments(
          lambda seed: loss(e, seed), [logits], num_pairs=20))
  [row.name for row in rows]                       # ==> ['pooled', 'per row']
  [round(row.num_evaluations, 2) for row in rows]  # ==> [1.67, 2]
  ```
  """
  if not isinstance(estimators, Mapping) or not estimators:
    raise ValueError(
      '`estimators` must be a dictionary with at least one estimator; got '
      f'{estimators!r}. Pass a dictionary `{{name: estimator}}`.'
    )
  rows = []
  for name, estimator in estimators.items():
    moments = measure(estimator)
    check_moments(moments)
    calls = moments.num_evaluations
    if calls is None:  # Without the cost, a variance cannot be ranked.
      raise ValueError(
        '`measure` must count the evaluations of `f`; got None for '
        f'{name!r}. Pass a plain function to `sampled_moments`, not a '
        '`tf.function`.'
      )
    rows.append(
      Comparison(
        name,
        calls,
        moments.variance,
        moments.interval,
        moments.bias,
        # Averaging n estimates divides the variance by n and multiplies the
        # evaluations by n, so the product does not depend on n.
        product=moments.variance * calls,
      )
    )
  return sorted(rows, key=lambda row: row.product)
