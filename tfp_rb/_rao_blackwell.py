"""Rao-Blackwellization: sums the best atoms, draws the rest."""

from collections.abc import Callable

import tensorflow as tf

from tfp_rb import _checks, samplers
from tfp_rb._atoms import draw_atoms, make_atoms
from tfp_rb._summed_sets import atoms_of_budget, partition_into
from tfp_rb._types import Distribution, TensorLike
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.partitions.base import find_partition, partition

__all__ = ['rao_blackwellize']


def rao_blackwellize(
  estimator: GradientEstimator,
  num_summed: int | None = None,
  budget: int | None = None,
  atoms: Callable[[Distribution], TensorLike] | None = None,
  sampler: samplers.Sampler | None = None,
) -> GradientEstimator:
  """Returns `estimator` with its most probable atoms summed exactly.

  ```none
  sum_{z in C_k} q(z) g(z)  +  q(rest) / M  sum_{j <= M} g(v_j),
  v_j ~ q given that v_j is not in C_k
  ```

  `C_k` holds the `k` most probable values. An unbiased `estimator` stays
  unbiased, and where `g` depends on its own atom only the variance does not
  rise with the same number of draws. The result is an estimator itself. `f` is
  called once, with `k + M` atoms.

  Args:
    estimator: A `GradientEstimator`. `M` is its `num_samples`.
    num_summed: Python `int` `k`. With `k` equal to the number of values
      everything is summed and nothing drawn. 0 leaves `estimator` as it is.
    budget: Python `int` `N`, instead of `num_summed`: `f` is evaluated at
      exactly `N` atoms (or at all, if there are fewer), which are split for
      each batch member on its own into the `k` that minimises
      `q(rest_k) / (N - k)` and `N - k` draws, Proposition 2 of [1]: never worse
      than `N` independent draws, where `g` depends on its own atom only. (With
      `LeaveOneOut` it is a rule of thumb, nearly always better.)
      `num_samples` plays no part then.
    atoms: Callable, instead of `num_summed`: takes the distribution and returns
      the values to sum, `[k] + batch_shape + event_shape`, for example a buffer
      of good ones as in [2], or the neighbours of the best. Unbiased for any
      set, if the draws have no part in its choice. Rows of fewer values repeat
      one: a repeated or impossible value weighs 0.
    sampler: One of `tfp_rb.samplers`: how the rest is drawn. Default:
      independently. With a `budget` there is no other way.

  Returns:
    estimator: A `GradientEstimator`.

  Raises:
    TypeError: `estimator` is no estimator, or sums atoms already; or a number
      is not an `int`.
    ValueError: Not exactly one of `num_summed`, `budget` and `atoms` is given,
      or it is out of range, or the `sampler` cannot draw so many. What depends
      on the number of values is reported when the estimator meets the
      distribution.

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

  [1] Runjing Liu, Jeffrey Regier, Nilesh Tripuraneni, Michael I. Jordan, Jon
      McAuliffe. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019, equation (8). https://arxiv.org/abs/1810.04777
  [2] Chen Liang, Mohammad Norouzi, Jonathan Berant, Quoc Le, Ni Lao. Memory
      augmented policy optimization for program synthesis and semantic
      parsing. NeurIPS 2018. https://arxiv.org/abs/1807.02322
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
  given = {'num_summed': num_summed, 'budget': budget, 'atoms': atoms}
  if sum(value is not None for value in given.values()) != 1:
    found = ', '.join(f'`{k}={v!r}`' for k, v in given.items())
    raise ValueError(
      'Exactly one of `num_summed`, `budget` and `atoms` must be given, but '
      f'got {found}. Give one of them.'
    )
  if num_summed is not None:
    num_summed = _checks.check_int(num_summed, 'num_summed', minimum=0)
  elif budget is not None:
    budget = _checks.check_int(budget, 'budget', minimum=1)
  elif not callable(atoms):
    raise TypeError(
      '`atoms` must be a callable of the distribution that returns the values '
      f'to sum, but is {atoms!r}. Write, for example, `lambda q: buffer`.'
    )
  sampler = samplers.IID() if sampler is None else sampler
  if not isinstance(sampler, samplers.Sampler):
    raise TypeError(
      f'`sampler` must be one of `tfp_rb.samplers`, but is {sampler!r}. Write, '
      'for example, `tfp_rb.samplers.WithoutReplacement()`.'
    )
  if budget is not None and not isinstance(sampler, samplers.IID):
    raise ValueError(
      '`sampler` must be `samplers.IID()` with a `budget`, which gives each '
      f'batch member another number of draws, but is {sampler!r}. Use '
      '`num_summed`.'
    )
  if budget is None:
    sampler.check(estimator.num_samples)
  return RaoBlackwellized(estimator, num_summed, budget, atoms, sampler)


class RaoBlackwellized(GradientEstimator):
  """The result of `rao_blackwellize`."""

  def __init__(
    self,
    estimator,
    num_summed=None,
    budget=None,
    atoms=None,
    sampler=None,
    name=None,
  ):
    super().__init__(num_samples=estimator.num_samples, name=name)
    self.estimator = estimator
    self.num_summed = num_summed
    self.budget = budget
    self.atoms = atoms
    self.sampler = samplers.IID() if sampler is None else sampler

  def sample_atoms(self, distribution, seed):
    if self.budget is not None:
      return atoms_of_budget(distribution, self.budget, seed)
    if self.atoms is not None:
      best = find_partition(distribution, 1)
      chosen = partition_into(distribution, best, self.atoms(distribution))
      return self._atoms_of(distribution, best, chosen, seed)
    if self.num_summed == 0:
      if isinstance(self.sampler, samplers.IID):
        return draw_atoms(distribution, self.num_samples, seed)
      best = find_partition(distribution, 1)
      whole = find_partition(distribution, 0)
      return self._atoms_of(distribution, best, whole, seed)
    best = partition(distribution, self.num_summed)
    return self._atoms_of(distribution, best, best, seed)

  def _atoms_of(self, distribution, best, chosen, seed):
    """`Atoms` of the values of `chosen` and draws from its rest."""
    num_summed = chosen.values.shape[0]
    values, weights, mean_of_others = chosen.values, chosen.weights, None
    if chosen.sample_rest is not None:
      draws = self.sampler.draw(distribution, chosen, self.num_samples, seed)
      values = tf.concat([values, draws.values], axis=0)
      weights = tf.concat([weights, chosen.rest_weight * draws.shares], axis=0)
      if draws.mean_of_others is not None:
        mean_of_others = lambda x: tf.concat(
          [tf.zeros_like(x[:num_summed]), draws.mean_of_others(x[num_summed:])],
          axis=0,
        )
    return make_atoms(best, values, weights, num_summed, mean_of_others)

  def evaluate(self, f, distribution, atoms, seed):
    return self.estimator.evaluate(f, distribution, atoms, seed)
