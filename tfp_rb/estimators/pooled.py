# SPDX-License-Identifier: Apache-2.0
"""Pools a budget: spends evaluations on the rows where they matter most."""

from collections.abc import Callable
import inspect
import math
from typing import Any, cast

import numpy as np
import tensorflow as tf

from tfp_rb.designs import (
  Atoms,
  CheckedIntegrand,
  Pool,
  PooledIntegrand,
  Whole,
  include,
  most_candidates,
  offer,
  outcomes,
  pool_scope,
  sum_by_row,
)
from tfp_rb.estimators.base import (
  Estimate,
  GradientEstimator,
  check_estimator,
)
from tfp_rb.estimators.rao_blackwell import Wrapper
from tfp_rb.estimators.reinforce import REINFORCE
from tfp_rb.internal import checks, random, shapes
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  StatelessSeed,
  TensorLike,
)

__all__ = ['Pooled', 'pooled']

# A support of at most this many values is listed in full. For a larger support,
# this number of best values is listed for each row.
_MOST_CANDIDATES = 64


def pooled(
  estimator: GradientEstimator | None = None,
  *,
  budget: int | None = None,
  budget_per_row: float | None = None,
  num_candidates: int | None = None,
  row_weights: TensorLike | None = None,
) -> GradientEstimator:
  """Returns an estimator that spends one budget over the whole batch.

  In a batch, some rows may be certain and others not. Each row gets one
  evaluation, at its best value. The other evaluations go to those values of all
  rows that matter most:

  ```none
  sum over rows of   f(best) + sum_i w_i (f(z_i) - f(best)),
  included with probability   p_i = min(1, q(z_i) s_i / c),   sum_i p_i = N - B
  weight                      w_i = q(z_i) / p_i
  ```

  `s_i` is the norm of the score, and `c` makes the probabilities sum to the
  number of evaluations that are left. (The mean of `f` over the values of a row
  that are included for certain takes the place of `f(best)`.) A flat row gets
  its share of the evaluations as independent draws with a leave-one-out
  baseline instead, if that promises less variance. Value, gradient and Hessian
  are unbiased. (The exception is a value with less than about 1e-16 of the mass
  that is left to chance in the whole batch: it is never included.) `f` is
  called once, at `N` atoms.

  `f` takes two arguments: `f(z, rows)`, with values `z` of shape
  `[N] + event_shape` and `rows`, `int32[N]`, an index into the flattened batch.
  It gathers the data of the rows with `tf.gather(images, rows)`, and returns a
  Tensor of shape `[N]`. The result of `expectation` has the batch shape, as
  with other estimators. Other estimators support the same `f` if its second
  argument is named `rows`. `diagnostics.evaluations_per_row` shows which rows
  get more evaluations.

  A pool helps if the rows differ, especially if most of them are certain. If
  all rows are alike, a budget per row with `baselines.LeaveOneOut` is as good.

  Args:
    estimator: The estimator to evaluate at an atom: `NVIL`, or `REINFORCE`
      without a baseline, with a constant or with `baselines.Learned`. The pool
      first subtracts the level of a row, `f(best)`, so such a baseline is an
      offset to this level. `num_samples` of the estimator must be 1, because
      the pool decides how often it draws. Default: `REINFORCE()`.
    budget: Python `int` `N`, larger than the number of rows `B`. If there are
      fewer candidates than `N`, all of them are evaluated.
    budget_per_row: Python `float`, instead of `budget`:
      `N = max(B + 1, ceil(budget_per_row * B))`. With this argument, the number
      of rows may be unknown while tracing.
    num_candidates: Python `int`, the number of best values of a row that are
      listed; other values are only drawn. Default: all values if there are at
      most 64, otherwise 64.
    row_weights: `Tensor` of the batch shape, the weights of rows in the loss.
      The allocation then minimises the variance of the weighted sum. A weight
      below 0.001 times the mean weight counts as 0.001 times the mean, so that
      every row stays unbiased. Default: equal weights.

  Returns:
    estimator: A `GradientEstimator`.

  Raises:
    TypeError: `estimator` cannot be pooled, or a number has the wrong type.
    ValueError: Not exactly one of `budget` and `budget_per_row` is given, or a
      number is out of range. Errors that depend on the batch are raised when
      the estimator is applied to a distribution.

  #### Examples

  ```python
  cost = tf.constant([[3., 1., 2.], [0., 1., 5.], [2., 2., 1.]])
  q = tfp.distributions.Categorical(
      logits=[[9., 0., 0.], [0., 0.5, 0.5], [7., 0., 0.]])
  estimator = tfp_rb.pooled(budget=5)
  f = lambda z, rows: tf.gather_nd(cost, tf.stack([rows, z], axis=-1))
  estimator.sample_atoms(q, seed=[0, 1]).pool.rows  # ==> [0 1 2 1 1]
  tfp_rb.expectation(f, q, estimator, seed=[0, 1]).shape  # ==> (3,)
  ```

  #### References

  [1] Runjing Liu et al. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019. https://arxiv.org/abs/1810.04777
  [2] Paul Fearnhead, Peter Clifford. On-line inference for hidden Markov models
      via particle filters. _JRSS B_, 65, 2003.
  """
  estimator = REINFORCE() if estimator is None else estimator
  check_estimator(estimator)
  reason = estimator.chooses_atoms or estimator.why_not_pooled
  if reason:
    raise TypeError(
      f'`estimator` must support a pool; got {estimator!r}. {reason} Use '
      '`NVIL`, or `REINFORCE` without a baseline (a pool subtracts a level for '
      'each row anyway) or with `baselines.Learned`.'
    )
  if estimator.num_samples != 1:
    raise ValueError(
      '`num_samples` of `estimator` must be 1, because the pool decides how '
      f'often it draws; got {estimator.num_samples}. Increase the budget.'
    )
  if (budget is None) == (budget_per_row is None):
    raise ValueError(
      'Exactly one of `budget` and `budget_per_row` must be given; got '
      f'`budget={budget!r}` and `budget_per_row={budget_per_row!r}`. Write '
      '`pooled(budget_per_row=1.25)`, for example.'
    )
  if budget is not None:
    budget = checks.check_int(budget, 'budget', minimum=1)
  else:
    budget_per_row = _check_budget_per_row(budget_per_row)
  if num_candidates is not None:
    num_candidates = checks.check_int(num_candidates, 'num_candidates', 1)
  if row_weights is not None:
    row_weights = _check_row_weights(row_weights)
  return Pooled(estimator, budget, budget_per_row, num_candidates, row_weights)


def _check_budget_per_row(value: Any) -> float:
  """Returns a finite number above 1 as a Python `float`."""
  try:
    number = math.nan if isinstance(value, str) else float(value)
  except (TypeError, ValueError):
    number = math.nan
  if not 1.0 < number < math.inf:
    raise ValueError(
      '`budget_per_row` must be a finite number above 1, because the best '
      f'value of each row is always evaluated; got {value!r}. Pass, for '
      'example, 1.25.'
    )
  return number


def _check_row_weights(row_weights: TensorLike) -> TensorLike:
  """Returns the weights; raises if a known one is negative or not finite."""
  if tf.is_tensor(row_weights):
    known = tf.get_static_value(row_weights)
  else:
    # A config can hold an array, but not a list.
    row_weights = known = np.asarray(row_weights)
  if known is not None and known.dtype.kind not in 'fiu':
    raise TypeError(
      f'`row_weights` must be real numbers; got {row_weights!r}. Pass the '
      'weight of each row in the loss.'
    )
  if known is not None and not np.all((known >= 0.0) & (known < np.inf)):
    raise ValueError(
      '`row_weights` must be finite and not negative; got '
      f'{row_weights!r}. Pass the weight of each row in the loss.'
    )
  return row_weights


class Pooled(Wrapper):
  """Wraps the estimator of `pooled`."""

  takes_rows = True

  def __init__(
    self,
    estimator: GradientEstimator,
    budget: int | None = None,
    budget_per_row: float | None = None,
    num_candidates: int | None = None,
    row_weights: TensorLike | None = None,
    name: str | None = None,
  ) -> None:
    super().__init__(estimator, name)
    self.budget = budget
    self.budget_per_row = budget_per_row
    self.num_candidates = num_candidates
    self.row_weights = row_weights

  @property
  def chooses_atoms(self) -> str:
    return 'It is pooled and chooses its atoms over the whole batch.'

  def choose_atoms(self, whole: Whole, seed: StatelessSeed) -> Atoms:
    draw_seed, pool_seed = random.split_seed(seed, n=2)
    u = random.uniform([1 + self._num_atoms(whole)], pool_seed)
    return self.atoms_at(whole, u, draw_seed)

  def atoms_at(
    self, whole: Whole, u: tf.Tensor, seed: StatelessSeed = (0, 0)
  ) -> Atoms:
    """Returns the atoms for one outcome of the inclusion.

    Args:
      whole: The whole `Partition`.
      u: `float64` `Tensor` of shape `[1 + N]`, uniform in (0, 1).
      seed: Stateless seed for draws from the rest of each row, if there is one.

    Returns:
      atoms: `Atoms`.
    """
    candidates = self._candidates(whole)
    return include(whole, candidates, self._num_atoms(whole), u, seed)

  def outcomes(
    self, whole: Whole, most_outcomes: int
  ) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the uniforms of all outcomes, and their probabilities.

    Args:
      whole: The whole `Partition`.
      most_outcomes: Python `int`.

    Returns:
      outcomes: Arrays of shape `[T, 1 + N]` and `[T]`; `None` if there are more
        than `most_outcomes`, or draws of values that are not listed.
    """
    candidates = self._candidates(whole)
    return outcomes(candidates, self._num_atoms(whole), most_outcomes)

  def _candidates(self, whole: Whole) -> Any:
    return offer(whole, self._num_candidates(whole), self._row_weights(whole))

  def _row_weights(self, whole: Whole) -> tf.Tensor | None:
    """Returns the weights of the rows, if they have the batch shape."""
    if self.row_weights is None:
      return None
    row_weights = tf.convert_to_tensor(self.row_weights)
    expected = whole.log_rest.shape
    if not row_weights.shape.is_compatible_with(expected):
      raise ValueError(
        f'`row_weights` must have the batch shape of `{whole.name}`, '
        f'{expected}; got shape {row_weights.shape}. Pass one weight per row.'
      )
    return row_weights

  def _num_candidates(self, whole: Whole) -> int:
    num_values = whole.best(0).num_values
    if self.num_candidates is None:
      return min(num_values or _MOST_CANDIDATES, _MOST_CANDIDATES)
    if num_values is not None and self.num_candidates > num_values:
      raise ValueError(
        '`num_candidates` must be at most the number of values of '
        f'`{whole.name}`, {num_values}; got {self.num_candidates}. Leave it '
        'out to offer all of them.'
      )
    return self.num_candidates

  def _num_atoms(self, whole: Whole) -> Any:
    """Returns `N`, a Python `int` if the number of rows is known statically."""
    num_rows = shapes.size(whole.batch_shape)
    num_offered = most_candidates(whole, self._num_candidates(whole))
    if isinstance(num_rows, int):
      num_atoms: Any = self.budget
      if self.budget_per_row is not None:
        # A row cannot use more evaluations than it offers values.
        per_row = min(self.budget_per_row, num_offered)
        num_atoms = max(num_rows + 1, math.ceil(per_row * num_rows))
      if num_rows and num_atoms <= num_rows:
        raise ValueError(
          f'`budget` must be larger than the number of rows, {num_rows}; got '
          f'{self.budget}. Increase `budget`: the pool evaluates the best '
          'value of each row, and at least one more value.'
        )
      return min(num_atoms, num_rows * num_offered)
    if self.budget is not None:
      raise ValueError(
        '`budget` requires a batch shape that is known while tracing; got '
        f'{whole.distribution.batch_shape}. Use `budget_per_row`.'
      )
    # Use numbers of 64 bits, so that a large budget does not overflow.
    rows = tf.cast(num_rows, tf.float64)
    scaled = tf.maximum(rows + 1.0, tf.math.ceil(self.budget_per_row * rows))
    return tf.cast(tf.minimum(scaled, rows * num_offered), tf.int32)

  def integrand(
    self, f: Callable[..., tf.Tensor], atoms: Atoms
  ) -> CheckedIntegrand:
    _check_takes_rows(f)
    rows = _pool_of(atoms).rows
    return CheckedIntegrand(lambda values: f(values, rows), [])

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    with pool_scope(atoms.num_summed):
      return self.estimator.evaluate(
        PooledIntegrand(f, atoms), distribution, atoms, seed
      )

  def sum_atoms(self, terms: tf.Tensor, atoms: Atoms) -> tf.Tensor:
    total = sum_by_row(terms, _pool_of(atoms).rows, atoms.num_summed)
    return tf.reshape(total, atoms.partition.batch_shape)


def _pool_of(atoms: Atoms) -> Pool:
  """Returns the pool that `choose_atoms` has made."""
  return cast(Pool, atoms.pool)


def _check_takes_rows(f: Callable[..., Any]) -> None:
  """Raises `TypeError` if `f` cannot take two arguments."""
  try:
    signature = inspect.signature(f)
  except (TypeError, ValueError):  # A builtin may have no signature.
    return
  second = list(signature.parameters.values())[1:2]
  takes_rows = _binds(signature, 2) and not any(
    # The second argument of `lambda z, y=y: ...` has another meaning.
    p.default is not p.empty and p.name != 'rows'
    for p in second
  )
  if not takes_rows:
    raise TypeError(
      '`f` must take two arguments with `pooled`: the values, and the rows of '
      'the batch to which they belong. The second one must be named `rows` if '
      f'it has a default; got the signature {signature}. Write, for example, '
      '`f = lambda z, rows: loss(z, tf.gather(images, rows))`.'
    )


def _binds(signature: inspect.Signature, number: int) -> bool:
  """Returns whether a function takes this number of positional arguments."""
  try:
    signature.bind(*[None] * number)
  except TypeError:
    return False
  return True
