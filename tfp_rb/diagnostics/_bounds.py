"""The propositions of the paper, beside what they bound."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfp_rb.baselines import IndependentSample, LeaveOneOut, Optimal
from tfp_rb.diagnostics._mass import rest_mass
from tfp_rb.diagnostics._moments import enumerate_all, total_variance
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.internal import checks
from tfp_rb.internal.types import Problem, TensorLike
from tfp_rb.partitions import partition_of

__all__ = ['VarianceBound', 'variance_bounds']

_MOST_OUTCOMES = 20_000


class VarianceBound(NamedTuple):
  """A total variance and its bound, for one number of summed atoms.

  Attributes:
    num_summed: Python `int` `k`.
    num_samples: Python `int` `M`, the draws; 0 where nothing is left to draw.
    rest_mass: Python `float`, `q(rest)`.
    variance: Python `float`, that of the gradient, exact.
    bound: Python `float`, `q(rest) / M` times that of a single plain draw.
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

  For `g` that depends on its own atom only, and `k` atoms summed,

  ```none
  estimate  G_k,M = sum_{z in C_k} q(z) g(z) + q(rest) / M sum_{j <= M} g(v_j)
  Proposition 1   Var[G_k,1] <= q(rest) Var[g(z)],    z ~ q
  Proposition 2   Var[G_k,N-k] <= q(rest) / (N - k) Var[g(z)], and at the k
                  of the least bound, Var[G_k,N-k] <= Var[g(z)] / N
  ```

  The bounds hold for each component of the gradient, hence for the total
  variance that is returned. Their proofs use nothing of `g` but that it is the
  same function at summed atoms and draws; it may be biased. The baselines
  `LeaveOneOut` and `Optimal` are not of this kind (a level depends on the other
  draws), nor is `IndependentSample(shared=False)` (noise of each atom's own);
  the shared form is, given its extra draw.

  Args:
    estimator: A `GradientEstimator` with `num_samples=1`.
    problem: As in `exact_moments`; the support is finite.
    parameters: As in `exact_moments`.
    budget: Python `int` `N`, of evaluations of `g`. `None`: one draw for each
      `k`, as in Proposition 1.

  Returns:
    rows: List of `VarianceBound`, for `k = 0, 1, ...` up to the number of
      values, or to `budget - 1` if that is less. That of the least `bound` is
      the choice of Proposition 2 (the first, if several are).

  Raises:
    ValueError: `estimator` draws more than once, or its outcomes cannot be
      enumerated; or there is a `budget`, and the variance of several draws does
      not follow from that of one.

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
      '`estimator` must have `num_samples=1`, since the variances of several '
      f'draws follow from that of one, but has {estimator.num_samples}. Give '
      'the number of evaluations by `budget`.'
    )
  if budget is not None:
    budget = checks.check_int(budget, 'budget', minimum=1)
    _check_draws_share(estimator)
  parameters = [tf.convert_to_tensor(p) for p in parameters]

  def variance_of_one_draw(k):
    summed = rao_blackwellize(estimator, num_summed=k)
    return total_variance(
      enumerate_all(summed, problem, parameters, _MOST_OUTCOMES)
    )

  plain = variance_of_one_draw(0)
  _, distribution = problem(*parameters)
  num_values = partition_of(distribution).num_values
  is_enough = budget is None or budget >= num_values
  masses = rest_mass(distribution, num_values if is_enough else budget - 1)
  rows = []
  for k, mass in enumerate(masses.numpy().tolist()):
    num_samples = 1 if budget is None else budget - k
    num_samples = num_samples if k < num_values else 0
    # Given what is summed, and an extra draw if there is one, the draws are
    # independent: several share out what one has.
    share = 1.0 / max(num_samples, 1)
    rows.append(
      VarianceBound(
        num_summed=k,
        num_samples=num_samples,
        rest_mass=mass,
        variance=share * (variance_of_one_draw(k) if k else plain),
        bound=share * mass * plain,
      )
    )
  return rows


def _check_draws_share(estimator):
  """Refuses what has noise at summed atoms, or levels of the other draws."""
  baseline = getattr(estimator.unwrap(), 'baseline', None)
  is_own = isinstance(baseline, IndependentSample) and not baseline.shared
  if is_own or isinstance(baseline, LeaveOneOut | Optimal):
    raise ValueError(
      '`budget` must be None with this baseline, since several draws do not '
      f'share out the variance of one, but is given with {baseline!r}. Use '
      '`exact_moments` of each split, or `IndependentSample()`.'
    )
