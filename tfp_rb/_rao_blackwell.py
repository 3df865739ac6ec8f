"""Rao-Blackwellization: sums the best atoms, draws the rest."""

import tensorflow as tf

from tfp_rb import _checks, _random
from tfp_rb._atoms import (
  draw_atoms,
  draw_rest,
  make_atoms,
  with_event_rank,
)
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.partitions.base import find_partition, partition

__all__ = ['rao_blackwellize']


def rao_blackwellize(estimator, num_summed=None, budget=None):
  """Returns `estimator` with its most probable atoms summed exactly.

  ```none
  sum_{z in C_k} q(z) g(z)  +  q(rest) / M  sum_{j <= M} g(v_j),
  v_j ~ q given that v_j is not in C_k
  ```

  `C_k` holds the `k` most probable values. The bias of `estimator` does not
  change, so an unbiased one stays unbiased, and with the same number of draws
  its variance does not rise. The result is an estimator itself. `f` is called
  once, with `k + M` atoms.

  Args:
    estimator: A `GradientEstimator`. `M` is its `num_samples`.
    num_summed: Python `int` `k`. With `k` equal to the number of values
      everything is summed and nothing drawn. 0 leaves `estimator` as it is.
    budget: Python `int` `N`, instead of `num_summed`: `f` is evaluated at
      exactly `N` atoms (or at all, if there are fewer), which are split for
      each batch member on its own into the `k` that minimises
      `q(rest_k) / (N - k)` and `N - k` draws, Proposition 2 of [1]: never worse
      than `N` independent draws. `num_samples` plays no part then.

  Returns:
    estimator: A `GradientEstimator`.

  Raises:
    TypeError: `estimator` is no estimator, or sums atoms already; or a number
      is not an `int`.
    ValueError: Not exactly one of `num_summed` and `budget` is given, or it
      is out of range. A `num_summed` above the number of values is reported
      when the estimator meets the distribution.

  #### Examples

  ```python
  q = tfp.distributions.NegativeBinomial(total_count=4., probs=0.3)
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=3)
  atoms = estimator.sample_atoms(q, seed=[1, 2])
  atoms.values[:3]  # ==> [1. 0. 2.]
  atoms.weights     # ==> [0.2881 0.2401 0.2161 0.2557]

  spread = tfp.distributions.Categorical(logits=[[0., 0., 0., 0., 0.],
                                                 [9., 5., 0., 0., 0.]])
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), budget=3)
  estimator.sample_atoms(spread, seed=[1, 2]).num_summed  # ==> [0 2]
  ```

  #### References

  [1]: Runjing Liu, Jeffrey Regier, Nilesh Tripuraneni, Michael I. Jordan, Jon
       McAuliffe. Rao-Blackwellized stochastic gradients for discrete
       distributions. ICML 2019, equation (8). https://arxiv.org/abs/1810.04777
  """
  if not isinstance(estimator, GradientEstimator):
    raise TypeError(
      '`estimator` must be a `tfp_rb.GradientEstimator`, but is '
      f'{estimator!r}. Write, for example, `tfp_rb.REINFORCE()`.'
    )
  overrides = type(estimator).sample_atoms
  if overrides is not GradientEstimator.sample_atoms:
    raise TypeError(
      f'`estimator` must draw its atoms independently, but '
      f'`{type(estimator).__name__}` sums atoms already. Pass an estimator '
      'that only draws, e.g. `tfp_rb.REINFORCE()`.'
    )
  if (num_summed is None) == (budget is None):
    raise ValueError(
      'Exactly one of `num_summed` and `budget` must be given, but got '
      f'`num_summed={num_summed}` and `budget={budget}`. Give one of them.'
    )
  if num_summed is not None:
    num_summed = _checks.check_int(num_summed, 'num_summed', minimum=0)
  else:
    budget = _checks.check_int(budget, 'budget', minimum=1)
  return RaoBlackwellized(estimator, num_summed=num_summed, budget=budget)


class RaoBlackwellized(GradientEstimator):
  """The result of `rao_blackwellize`."""

  def __init__(self, estimator, num_summed=None, budget=None, name=None):
    super().__init__(num_samples=estimator.num_samples, name=name)
    self.estimator = estimator
    self.num_summed = num_summed
    self.budget = budget

  def sample_atoms(self, distribution, seed):
    if self.num_summed == 0:
      return draw_atoms(distribution, self.num_samples, seed)
    if self.budget is not None:
      return _atoms_of_budget(distribution, self.budget, seed)
    best = partition(distribution, self.num_summed)
    values, weights = best.values, best.weights
    if best.sample_rest is not None:
      draws = draw_rest(best, self.num_summed, self.num_samples, seed)
      values = tf.concat([values, draws], axis=0)
      weight = best.rest_weight / self.num_samples
      weights = tf.concat(
        [weights] + [weight[tf.newaxis]] * self.num_samples, 0
      )
    return make_atoms(best, values, weights, self.num_summed)

  def evaluate(self, f, distribution, atoms, seed):
    return self.estimator.evaluate(f, distribution, atoms, seed)


def _atoms_of_budget(distribution, budget, seed):
  """`Atoms` of `budget` evaluations, split for each row by Proposition 2."""
  best = find_partition(distribution, budget)
  num_atoms = best.values.shape[0]
  if best.sample_rest is None:
    return make_atoms(best, best.values, best.weights, num_atoms)
  # Mass of what is left after k = 0, ..., N - 1 sums: positive terms only.
  weights, rest = best.weights, best.rest_weight
  left = tf.cumsum(weights, axis=0, reverse=True) + rest
  slots = tf.reshape(tf.range(num_atoms), [-1] + [1] * (weights.shape.rank - 1))
  bound = left / tf.cast(num_atoms - slots, left.dtype)
  num_summed = tf.argmin(bound, axis=0, output_type=tf.int32)
  num_summed = tf.where(rest > 0.0, num_summed, num_atoms)
  is_summed = slots < num_summed  # [N] + batch_shape
  nothing = tf.zeros_like(weights)

  choice_seed, rest_seed = _random.split_seed(seed, n=2)

  def sample_rest(num_draws, seed):
    """Draws one of the unsummed among the N best, or else beyond them."""
    beyond = best.sample_rest(num_draws, seed)
    masses = tf.concat(
      [tf.where(is_summed, nothing, weights), rest[tf.newaxis]], axis=0
    )
    masses = tf.transpose(
      tf.reshape(masses, [num_atoms + 1, -1])
    )  # [rows, N + 1]
    index = _random.draw_index(masses, num_draws, choice_seed)
    index = tf.reshape(
      index, tf.concat([[num_draws], tf.shape(num_summed)], axis=0)
    )
    index = tf.ensure_shape(index, [num_draws, *num_summed.shape])
    chosen = _take(best.values, tf.minimum(index, num_atoms - 1))
    return tf.where(with_event_rank(index < num_atoms, beyond), chosen, beyond)

  split = best._replace(sample_rest=sample_rest)
  draws = draw_rest(split, num_summed, num_atoms, rest_seed)
  num_draws = tf.cast(tf.maximum(num_atoms - num_summed, 1), left.dtype)
  mass = tf.reduce_sum(tf.where(is_summed, nothing, weights), axis=0) + rest
  return make_atoms(
    best,
    tf.where(with_event_rank(is_summed, draws), best.values, draws),
    tf.where(is_summed, weights, mass / num_draws),
    num_summed,
  )


def _take(values, index):
  """Takes `values[index[j, b], b]` for each row `b`, along the first axis."""
  num_values, num_draws = values.shape[0], index.shape[0]
  flat_index = tf.transpose(tf.reshape(index, [num_draws, -1]))
  rows = tf.reshape(values, [num_values, tf.shape(flat_index)[0], -1])
  taken = tf.gather(
    tf.transpose(rows, [1, 0, 2]), flat_index, batch_dims=1
  )  # [rows, num_draws, event]
  shape = tf.concat([[num_draws], tf.shape(values)[1:]], axis=0)
  taken = tf.reshape(tf.transpose(taken, [1, 0, 2]), shape)
  return tf.ensure_shape(taken, [num_draws, *values.shape[1:]])
