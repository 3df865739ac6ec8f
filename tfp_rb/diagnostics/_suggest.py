# SPDX-License-Identifier: Apache-2.0
"""Suggests an estimator for a given number of evaluations of `f`."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from tfp_rb import baselines
from tfp_rb.designs import needs_rows, whole_of
from tfp_rb.diagnostics._closed_forms import proposition_2, variance
from tfp_rb.diagnostics._evaluations import evaluations_per_row
from tfp_rb.diagnostics._pools import (
  PoolVariance,
  are_flat,
  distribution_of,
  pool_variance,
)
from tfp_rb.diagnostics._support import Support, tabulate
from tfp_rb.estimators import REINFORCE, Exact
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.pooled import pooled
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.internal import checks
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed
from tfp_rb.partitions import check_discrete, partition_of

__all__ = ['Option', 'Suggestion', 'suggest']

# A pool needs an `f(z, rows)`, so it must reduce the variance by this factor.
_LEAST_GAIN = 1.1


class Option(NamedTuple):
  """Holds one way to spend the evaluations.

  Attributes:
    name: Python `str`.
    num_summed: Python `int`; `None` if members of a batch differ.
    num_samples: Python `int`, the number of draws; `None` if members differ.
    variance: Python `float`, the total variance of the gradient.
    estimator: A `GradientEstimator`.
  """

  name: str
  num_summed: int | None
  num_samples: int | None
  variance: float
  estimator: GradientEstimator


class Suggestion(NamedTuple):
  """Holds the result of `suggest`.

  Attributes:
    estimator: A `GradientEstimator`, ready to use.
    num_summed: Python `int`; `None` if members of a batch differ.
    num_samples: Python `int`, the number of draws; `None` if members differ.
    variance: Python `float`, the total variance of its gradient.
    reason: Python `str`, the reason for this choice, in two or three sentences.
    table: List of `Option`, the least variance first. The first one is
      suggested, unless it is a pool that gains less than 10 %.
  """

  estimator: GradientEstimator
  num_summed: int | None
  num_samples: int | None
  variance: float
  reason: str
  table: list[Option]


def suggest(
  f: Integrand,
  distribution: Distribution,
  budget: float,
  most_evaluations: int = 1024,
  seed: StatelessSeed = (0, 0),
) -> Suggestion:
  """Returns the estimator of least variance for `budget` evaluations of `f`.

  The function compares these unbiased estimators. All use `budget` evaluations
  (`Exact` may use fewer):

  * `Exact()`, if there are no more than `budget` values;
  * `REINFORCE`, plain and with the baseline `LeaveOneOut`, with draws only;
  * `rao_blackwellize` of both, with every number of summed atoms;
  * `rao_blackwellize` of both with `budget=`, Proposition 2 of the paper;
  * `pooled(budget_per_row=budget)` if there is a batch of several rows. It is
    left out if all rows are flat, because it then moves no evaluations from one
    row to another. It requires an `f(z, rows)`, so it is suggested only if it
    saves at least 10 %.

  The variance is that of the gradient of the sum over the batch, with respect
  to the trainable variables of `distribution`. If it has none, the gradient is
  with respect to the logits of its values, `q = softmax(logits)`. (Gradients
  with respect to other parameters follow from it by the chain rule.) The
  dependence of `f` itself on the variables is ignored.

  If there are at most `most_evaluations` values (for a countable support, all
  but a mass of 1e-12), `f` is evaluated at all of them, and the variances are
  exact. Otherwise `f` is evaluated at the `budget` best values and at draws
  from the rest, `most_evaluations` in total. The draws then stand for the rest,
  so the variances are estimates, and `reason` says so.

  Relaxed estimators, which are biased or train variables, and the estimators
  for bits are not compared: measure them with `compare`.

  Args:
    f: Callable, as in `tfp_rb.expectation`: `f(z)`, or `f(z, rows)` as for
      `pooled`.
    distribution: A discrete `tfp.distributions.Distribution`, `q`, with a
      registered partition.
    budget: Python `int`, the number of evaluations of `f` for one estimate, for
      each row of a batch. With a batch it may be a `float` such as 1.25: only
      `pooled` spends all of it, and the other estimators spend 1.
    most_evaluations: Python `int`, the largest number of evaluations of `f` to
      find the suggestion. It must exceed `budget`.
    seed: Stateless seed of the draws.

  Returns:
    suggestion: A `Suggestion`.

  Raises:
    TypeError: `f` is not callable, `distribution` is not discrete, or a number
      is not an `int`.
    ValueError: `budget` is less than 1, `most_evaluations` is not larger than
      `budget`, the scores with respect to all variables do not fit into memory,
      or `f` is not finite.
    NotImplementedError: No partition is registered for the distribution.

  #### Examples

  ```python
  q = tfp.distributions.Categorical(logits=[4., 2., 1., 0., 0.])
  f = lambda z: tf.gather([1., 2., 3., 4., 5.], z)
  suggestion = tfp_rb.diagnostics.suggest(f, q, budget=3)
  suggestion.num_summed, suggestion.num_samples  # ==> (2, 1)
  round(suggestion.variance, 4)                  # ==> 0.0157
  loss = tfp_rb.expectation(f, q, suggestion.estimator)
  ```

  The `reason` is: "Sum the 2 best values, which hold 93 % of the mass, and draw
  1, with a leave-one-out baseline: the least variance of 8 options, 0.021 times
  that of 3 plain draws. Exact, from `f` at 5 values, of the gradient with
  respect to the logits of the values."

  If only some rows of a batch are uncertain, one budget for all rows is better:

  ```python
  q = tfp.distributions.Categorical(
      logits=[[9., 0., 0.], [0., 0.5, 0.5], [7., 0., 0.]])
  cost = tf.constant([[3., 1., 2.], [0., 1., 5.], [2., 2., 1.]])
  f = lambda z, rows: tf.gather_nd(cost, tf.stack([rows, z], axis=-1))
  suggestion = tfp_rb.diagnostics.suggest(f, q, budget=1.5)
  suggestion.table[0].name  # ==> pooled
  loss = tfp_rb.expectation(f, q, suggestion.estimator)
  ```
  """
  checks.check_callable(f, 'f', 'lambda z: tf.gather(cost, z)')
  check_discrete(distribution)
  num_rows = distribution.batch_shape.num_elements() or 0
  per_row = _check_budget(budget, num_rows)
  most_evaluations = checks.check_int(
    most_evaluations, 'most_evaluations', minimum=1
  )
  num_values = partition_of(distribution).num_values
  # If all values can be listed, nothing is drawn.
  is_enough = num_values is not None and num_values <= most_evaluations
  if most_evaluations <= per_row and not is_enough:
    raise ValueError(
      f'`most_evaluations` must be larger than `budget` ({budget}), because '
      f'some evaluations are draws from the rest; got {most_evaluations}. '
      'Increase it.'
    )
  support = tabulate(f, distribution, per_row, most_evaluations, seed)
  options = list(_options(support, per_row))
  pool = _pool(support, budget)
  if pool is not None:
    options.append(Option('pooled', None, None, pool.variance, _pooled(budget)))
  # The sort is stable: of equal variances, the first option wins.
  table = sorted(options, key=lambda option: option.variance)
  best = table[0]
  if best.estimator.takes_rows and (
    table[1].variance < _LEAST_GAIN * best.variance
  ):
    best = table[1]
  if best.estimator.takes_rows:
    choice = _reason_of_pool(table, support, per_row, needs_rows(f))
  else:
    choice = _reason(best, table, support, per_row)
  reason = f'{choice} {_reliability(best, support, per_row, pool)}'
  if per_row > 1 and best.variance > 0.0 and _has_bits(distribution):
    reason += (
      ' `DisARM` and `ARMS`, which draw bits in pairs, were not compared.'
    )
  return Suggestion(
    best.estimator,
    best.num_summed,
    best.num_samples,
    best.variance,
    reason,
    table,
  )


def _has_bits(distribution: Distribution) -> bool:
  """Returns whether the distribution has sites with two values each."""
  relaxation = whole_of(distribution).relaxation()
  return relaxation is not None and relaxation.log_probs.shape[-1] == 2


def _check_budget(budget: Any, num_rows: int) -> int:
  """Returns how many evaluations an estimator without a pool can spend."""
  if num_rows < 2 or not isinstance(budget, float):
    return checks.check_int(budget, 'budget', minimum=1)
  if not 1.0 <= budget < np.inf:
    raise ValueError(
      f'`budget` must be finite and at least 1; got {budget}. Pass, for '
      'example, 2.'
    )
  return int(budget)


def _pooled(budget: float) -> GradientEstimator:
  return pooled(budget_per_row=float(budget))


def _pool(support: Support, budget: float) -> PoolVariance | None:
  """Returns the variance of a pool, or `None` if a pool is no option."""
  num_values = support.num_values
  is_summed = num_values is not None and num_values <= budget
  if (
    len(support.rows) < 2 or budget <= 1 or is_summed or are_flat(support.rows)
  ):
    return None
  return pool_variance(support.rows, _pooled(budget))


def _options(support: Support, budget: int) -> Iterator[Option]:
  """Yields all options, the simplest first."""
  rows, num_values = support.rows, support.num_values
  if num_values is not None and num_values <= budget:
    largest = num_values
    yield Option('Exact', num_values, 0, 0.0, Exact())
  else:
    largest = budget
  for k in range(largest):  # At least one atom is drawn.
    m = budget - k
    for name, baseline in _baselines(budget):
      estimator = REINFORCE(baseline=baseline, num_samples=m)
      yield Option(
        f'summed {name}' if k else name,
        k,
        m,
        # Members of a batch are drawn independently, so variances add up.
        sum(variance(row, k, m, baseline is not None) for row in rows),
        rao_blackwellize(estimator, num_summed=k) if k else estimator,
      )
  if largest == num_values:
    return  # Such a budget sums everything, and `Exact` is listed already.
  # One number of summed values for each member of the batch.
  splits = [proposition_2(row, budget) for row in rows]
  is_one = len(set(splits)) == 1
  for name, baseline in _baselines(budget):
    yield Option(
      f'budget {name}',
      splits[0] if is_one else None,
      budget - splits[0] if is_one else None,
      sum(
        # If the best values have all the mass, k = budget and nothing is drawn.
        variance(row, k, max(budget - k, 1), baseline is not None)
        for row, k in zip(rows, splits, strict=True)
      ),
      rao_blackwellize(REINFORCE(baseline=baseline), budget=budget),
    )


def _baselines(
  budget: int,
) -> Iterator[tuple[str, baselines.LeaveOneOut | None]]:
  yield 'REINFORCE', None
  if budget > 1:  # The level of a draw needs at least one other evaluation.
    yield 'leave-one-out', baselines.LeaveOneOut()


def _reason(
  best: Option, table: list[Option], support: Support, budget: int
) -> str:
  """Returns sentences that say what was chosen, and what is gained."""
  if best.name == 'Exact':
    choice = f'Sum all {best.num_summed} values'
  elif best.num_summed is None:
    choice = 'Split each member of the batch by Proposition 2'
  elif best.num_summed == 0:
    values = 'value' if budget == 1 else 'values'
    choice = f'Draw {budget} {values} and sum none'
  else:
    masses = [np.sum(row.q[: best.num_summed]) for row in support.rows]
    mass = float(np.mean(masses))
    summed = f'{best.num_summed} best values, which hold'
    if best.num_summed == 1:
      summed = 'best value, which holds'
    choice = (
      f'Sum the {summed} {_percent(mass)} of the mass, and draw '
      f'{best.num_samples}'
    )
  if 'leave-one-out' in best.name:
    choice += ', with a leave-one-out baseline'
  # Only the option with `k = 0` and no baseline has this name.
  plain = next(o.variance for o in table if o.name == 'REINFORCE')
  gain = f'the least variance of {len(table)} options'
  if best is not table[0]:
    gain += ' up to the 10 % that a pool must gain'
  if best.variance == 0.0:
    gain = 'no variance at all'
  elif best.variance < plain:
    gain += f', {best.variance / plain:.2g} times that of {budget} plain draws'
  return f'{choice}: {gain}.'


def _reason_of_pool(
  table: list[Option], support: Support, budget: int, takes_rows: bool
) -> str:
  """Returns sentences on where a pool spends its budget, and on the gain."""
  best, second = table[:2]
  evaluations = evaluations_per_row(
    distribution_of(support.rows), best.estimator
  )
  reason = (
    f'Pool the budget over the {evaluations.size} rows, which get '
    f'{np.min(evaluations):.2g} to {np.max(evaluations):.2g} evaluations each: '
    f'the least variance of {len(table)} options, '
    f'{best.variance / second.variance:.2g} times that of the best option with '
    f'a budget of {budget} for each row.'
  )
  if not takes_rows:
    reason += ' Write `f(z, rows)`, see `tfp_rb.pooled`.'
  return reason


def _reliability(
  best: Option, support: Support, budget: int, pool: PoolVariance | None
) -> str:
  """Returns a sentence on the accuracy of the variance, and on its gradient."""
  has_scores = support.rows[0].scores is not None
  by = 'the trainable variables' if has_scores else 'the logits of the values'
  known = f'Exact, from `f` at {support.num_evaluations} values'
  if support.num_values is None:
    known += ' and all but a mass of 1e-12'
  if not support.is_whole:
    num_draws = support.num_evaluations - budget
    known = f'An estimate, from a pilot of {num_draws} draws'
  elif best.estimator.takes_rows and pool and pool.num_estimates:
    known = f'An estimate, from {pool.num_estimates} gradients'
  return f'{known}, of the gradient with respect to {by}.'


def _percent(mass: float) -> str:
  """Formats a mass; only a mass of 1 is 100 %."""
  digits = 0
  # Add a digit as long as a mass below 1 would be rounded to 1.
  while digits < 6 and mass < 1.0 <= round(mass, digits + 2):
    digits += 1
  return f'{mass:.{digits}%}'.replace('%', ' %')
