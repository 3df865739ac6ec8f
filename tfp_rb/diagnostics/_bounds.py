# SPDX-License-Identifier: Apache-2.0
"""Compares exact variances with the bounds of the paper's propositions."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfp_rb.diagnostics._mass import rest_mass
from tfp_rb.diagnostics._moments import enumerate_all, total_variance
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.internal import checks
from tfp_rb.internal.types import Problem, TensorLike
from tfp_rb.partitions import check_discrete, partition_of

__all__ = ['VarianceBound', 'variance_bounds']

_MOST_OUTCOMES = 20_000  # enumerated for each number of summed atoms


class VarianceBound(NamedTuple):
  """Holds a total variance and its bound, for one number of summed atoms.

  Attributes:
    num_summed: Python `int` `k`.
    num_samples: Python `int` `M`, the number of draws; 0 if nothing is left to
      draw.
    rest_mass: Python `float`, `q(rest)`.
    variance: Python `float`, the exact variance of the gradient.
    bound: Python `float`, `q(rest) / M` times the variance of one plain draw.
  """

  num_summed: int
  num_samples: int
  rest_mass: float
  variance: float
  bound: float


def variance_bounds(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[TensorLike],
  budget: int | None = None,
) -> list[VarianceBound]:
  """Returns exact variances of the gradient and the bounds of the paper.

  If `g` depends on its own atom only, and `k` atoms are summed, then

  ```none
  estimate  G_k,M = sum_{z in C_k} q(z) g(z) + q(rest) / M sum_{j <= M} g(v_j)
  Proposition 1   Var[G_k,1] <= q(rest) Var[g(z)],    z ~ q
  Proposition 2   Var[G_k,N-k] <= q(rest) / (N - k) Var[g(z)], and at the k
                  of the least bound, Var[G_k,N-k] <= Var[g(z)] / N
  ```

  The bounds hold for each component of the gradient, and therefore for the
  total variance that is returned. Their proofs only require that `g` is the
  same function at summed atoms and at draws; `g` may be biased. The baselines
  `LeaveOneOut` and `Optimal` do not meet this condition because their level
  depends on the other draws. Neither does `IndependentSample(shared=False)`,
  which draws separate noise for each atom. `IndependentSample()` meets the
  condition given its extra draw.

  Args:
    estimator: A `GradientEstimator` with `num_samples=1`.
    problem: As in `exact_moments`; the support must be finite.
    parameters: As in `exact_moments`.
    budget: Python `int` `N`, the number of evaluations of `g`. Default: one
      draw for each `k`, as in Proposition 1.

  Returns:
    rows: List of `VarianceBound`, for `k = 0, 1, ...` up to the number of
      values, or up to `budget - 1` if that is less. Proposition 2 chooses the
      row with the least `bound` (the first one, if there are several).

  Raises:
    TypeError: The distribution is not discrete.
    ValueError: `estimator` draws more than once, or its outcomes cannot be
      enumerated, or `budget` is given and the variance of several draws does
      not follow from the variance of one.
    NotImplementedError: No partition is registered for the distribution.

  #### Examples

  ```python
  def problem(logits):
    f = lambda z: tf.gather(tf.constant([3., 1., 2.], tf.float64), z)
    return f, tfp.distributions.Categorical(logits=logits)

  rows = tfp_rb.diagnostics.variance_bounds(
      tfp_rb.REINFORCE(), problem, [tf.constant([0., 1., 2.], tf.float64)])
  [round(row.variance, 3) for row in rows]  # ==> [1.743, 0.263, 0.0, 0.0]
  [round(row.bound, 3) for row in rows]     # ==> [1.743, 0.583, 0.157, 0.0]
  ```

  #### References

  [1] Runjing Liu, Jeffrey Regier, Nilesh Tripuraneni, Michael I. Jordan, Jon
      McAuliffe. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019, Propositions 1 and 2.
      https://arxiv.org/abs/1810.04777
  """
  if estimator.num_samples != 1:
    raise ValueError(
      '`estimator` must have `num_samples=1`; got '
      f'`num_samples={estimator.num_samples}`. Pass the number of evaluations '
      'as `budget`.'
    )
  if budget is not None:
    budget = checks.check_int(budget, 'budget', minimum=1)
    _check_draws_share(estimator)
  parameters = [tf.convert_to_tensor(p) for p in parameters]
  _, distribution = problem(*parameters)
  check_discrete(distribution)
  num_values = partition_of(distribution).num_values
  if num_values is None:
    raise ValueError(
      '`problem` must return a distribution with finitely many values; got a '
      f'`{type(distribution).__name__}`. Use `sampled_moments` for each '
      '`num_summed`.'
    )

  def variance_of_one_draw(k: int) -> float:
    summed = rao_blackwellize(estimator, num_summed=k)
    return total_variance(
      enumerate_all(summed, problem, parameters, _MOST_OUTCOMES)
    )

  plain = variance_of_one_draw(0)
  largest = num_values
  if budget is not None and budget < num_values:
    largest = budget - 1  # Keep at least one draw, as not all can be summed.
  masses = rest_mass(distribution, largest)  # [largest + 1]
  rows = []
  for k, mass in enumerate(masses.numpy().tolist()):
    num_samples = 1 if budget is None else budget - k
    num_samples = num_samples if k < num_values else 0
    # The draws are independent (given the extra draw of a baseline, if it makes
    # one), so the mean of M draws has 1 / M of the variance of one.
    share = 1.0 / max(num_samples, 1)
    rows.append(
      VarianceBound(
        num_summed=k,
        num_samples=num_samples,
        rest_mass=mass,
        variance=share * (variance_of_one_draw(k) if k else plain),
        bound=share * mass * plain,  # Proposition 2, or 1 without a budget
      )
    )
  return rows


def _check_draws_share(estimator: GradientEstimator) -> None:
  """Raises unless the mean of `M` draws has `1 / M` of the variance of one."""
  baseline = getattr(estimator.unwrap(), 'baseline', None)
  if not getattr(baseline, 'treats_draws_alike', True):
    raise ValueError(
      f'`baseline` must not depend on the other draws if `budget` is given; '
      f'got {baseline!r}, with which the variance of several draws does not '
      'follow from the variance of one. Call `exact_moments` for each split, '
      'or use `IndependentSample()`.'
    )
