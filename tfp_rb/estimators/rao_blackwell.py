"""Rao-Blackwellization: sums the best atoms, draws the rest."""

from collections.abc import Callable
import copy

from tfp_rb.designs import (
  IID,
  Sampler,
  atoms_of_budget,
  check_sampler,
  given,
  top_k,
)
from tfp_rb.estimators.base import GradientEstimator, check_estimator
from tfp_rb.internal import checks
from tfp_rb.internal.types import Distribution, TensorLike

__all__ = ['RaoBlackwellized', 'Wrapper', 'rao_blackwellize']


def rao_blackwellize(
  estimator: GradientEstimator,
  num_summed: int | None = None,
  budget: int | None = None,
  atoms: Callable[[Distribution], TensorLike] | None = None,
  sampler: Sampler | None = None,
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
  check_estimator(estimator)
  if estimator.chooses_atoms:
    raise TypeError(
      '`estimator` must leave the choice of its atoms to `rao_blackwellize`. '
      f'{estimator.chooses_atoms} Pass an estimator that only draws, e.g. '
      '`tfp_rb.REINFORCE()`.'
    )
  settings = {'num_summed': num_summed, 'budget': budget, 'atoms': atoms}
  if sum(value is not None for value in settings.values()) != 1:
    found = ', '.join(f'`{k}={v!r}`' for k, v in settings.items())
    raise ValueError(
      'Exactly one of `num_summed`, `budget` and `atoms` must be given; got '
      f'{found}.'
    )
  if num_summed is not None:
    num_summed = checks.check_int(num_summed, 'num_summed', minimum=0)
  elif budget is not None:
    budget = checks.check_int(budget, 'budget', minimum=1)
  else:
    checks.check_callable(atoms, 'atoms', 'lambda q: buffer')
  sampler = IID() if sampler is None else sampler
  check_sampler(sampler)
  if budget is not None and not sampler.is_independent:
    raise ValueError(
      '`sampler` must be `samplers.IID()` with a `budget`, which gives each '
      f'batch member another number of draws; got {sampler!r}. Use '
      '`num_summed`.'
    )
  if budget is None:
    sampler.check(estimator.num_samples)
  return RaoBlackwellized(estimator, num_summed, budget, atoms, sampler)


class Wrapper(GradientEstimator):
  """Base class of estimators that choose atoms for another one."""

  def __init__(self, estimator, name=None):
    super().__init__(num_samples=estimator.num_samples, name=name)
    self.estimator = estimator

  @property
  def differentiates_f(self):
    return self.estimator.differentiates_f

  @property
  def needs_vectors(self):
    return self.estimator.needs_vectors

  def unwrap(self):
    return self.estimator.unwrap()

  def _around(self, estimator):
    """Returns this wrapper around another estimator, with shared variables."""
    copied = copy.copy(self)
    copied.estimator = estimator
    copied._num_samples = estimator.num_samples
    return copied

  def replace(self, num_samples):
    return self._around(self.estimator.replace(num_samples))

  def bind(self, *inputs):
    return self._around(self.estimator.bind(*inputs))


class RaoBlackwellized(Wrapper):
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
    super().__init__(estimator, name)
    self.num_summed = num_summed
    self.budget = budget
    self.atoms = atoms
    self.sampler = IID() if sampler is None else sampler

  @property
  def chooses_atoms(self):
    return 'It is Rao-Blackwellized and sums atoms already.'

  def num_extra(self, num_atoms):
    return self.estimator.num_extra(num_atoms)

  def replace(self, num_samples):
    if self.budget is not None:
      raise ValueError(
        '`num_samples` (`sample_size` in `vi`) cannot be set where a `budget` '
        f'decides; got {num_samples} with `budget={self.budget}`. Choose '
        'another `budget`.'
      )
    return super().replace(num_samples)

  def choose_atoms(self, whole, seed):
    if self.budget is not None:
      return atoms_of_budget(whole, self.budget, seed)
    if self.atoms is not None:
      values = self.atoms(whole.distribution)
      return given(whole, values, self.num_samples, self.sampler, seed)
    return top_k(whole, self.num_summed, self.num_samples, self.sampler, seed)

  def evaluate(self, f, distribution, atoms, seed):
    return self.estimator.evaluate(f, distribution, atoms, seed)
