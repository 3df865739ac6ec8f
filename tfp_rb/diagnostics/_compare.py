"""Several estimators side by side, at equal evaluations of `f`."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from tfp_rb.diagnostics._moments import GradientMoments, check_moments
from tfp_rb.estimators.base import GradientEstimator

__all__ = ['Comparison', 'compare']


class Comparison(NamedTuple):
  """One estimator among others.

  Attributes:
    name: Python `str`.
    num_evaluations: Python `int`, the atoms at which `f` is evaluated.
    variance: Python `float`, the total variance of the gradient.
    interval: Pair of Python `float`s, its 95 % interval.
    bias: Python `float`, the norm of the mean's error, or `None`.
    product: Python `float`, variance times evaluations: with `N` evaluations,
      spent on independent estimates that are averaged, the variance is
      `product / N`.
  """

  name: str
  num_evaluations: int
  variance: float
  interval: tuple[float, float]
  bias: float | None
  product: float


def compare(
  estimators: Mapping[str, GradientEstimator],
  measure: Callable[[GradientEstimator], GradientMoments],
) -> list[Comparison]:
  """Returns rows of estimators, the best at equal evaluations of `f` first.

  The evaluations are counted, not declared: they are the atoms that `f` was
  given for one estimate. Estimators of unequal numbers are compared by variance
  times evaluations. An estimator may do better with twice the draws than half
  of that variance (`LeaveOneOut` does), so put it in at several numbers.

  Args:
    estimators: Dictionary, names to `GradientEstimator`s.
    measure: Callable, an estimator to `GradientMoments`:
      `lambda e: exact_moments(e, problem, parameters)`, or
      `lambda e: sampled_moments(lambda seed: loss(e, seed), variables)`.

  Returns:
    rows: List of `Comparison`, the least `product` first.

  Raises:
    TypeError: `measure` returns something else than `GradientMoments`.
    ValueError: There are no estimators, or their evaluations of `f` were not
      seen.

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
  """
  if not isinstance(estimators, dict) or not estimators:
    raise ValueError(
      '`estimators` must be a dictionary that names what is compared, but is '
      f'{estimators!r}. Pass names to estimators.'
    )
  rows = []
  for name, estimator in estimators.items():
    moments = measure(estimator)
    check_moments(moments)
    calls = moments.num_evaluations
    if calls is None:
      raise ValueError(
        '`measure` must see how often `f` is evaluated, but did not for '
        f'{name!r}. Pass `sampled_moments` the plain function, not a '
        '`tf.function` of it.'
      )
    rows.append(
      Comparison(
        name,
        calls,
        moments.variance,
        moments.interval,
        moments.bias,
        product=moments.variance * calls,
      )
    )
  return sorted(rows, key=lambda row: row.product)
