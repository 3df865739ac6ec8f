"""The local expectation gradient, Rao-Blackwellized at each site."""

from typing import Any

import tensorflow as tf

from tfp_rb.designs import SiteIntegrand, Sites, Whole, draw, site_atoms
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.rao_blackwell import (
  RaoBlackwellized,
  Wrapper,
  rao_blackwellize,
)
from tfp_rb.internal import checks, dtypes, random
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed

__all__ = ['LocalExpectation', 'local_expectation']


def local_expectation(
  estimator: GradientEstimator,
  num_summed: int,
  sites_per_call: int | None = None,
) -> GradientEstimator:
  """Applies `estimator` to each site of a product or chain, one at a time.

  ```none
  sum over sites s of   sum_{a in C_s} q_s(a) g_s(a)  +  q_s(rest) g_s(v_s),
  g_s(a) = the estimate of `estimator` for f(z_1, ..., a, ..., z_S) at site s
  ```

  One joint value `z` is drawn. At each site the `k` most probable symbols are
  summed and `M` of the others are drawn, while the other sites stay at `z`. Use
  this for many sites, where no joint value has a noticeable probability and
  `rao_blackwellize` would sum almost nothing. It pays off if `k` symbols hold
  nearly all the mass of a site, and most if all symbols are summed: then only
  the noise of the other sites is left. Draws of single sites are no better than
  the same number of joint draws.

  Unbiased if `estimator` is. Costs `S (k + M)` evaluations of `f` for `S`
  sites, in one call, or in `ceil(S / sites_per_call)` calls. If `f` is a sum of
  one term for each site, make the sites the *batch* of the distribution
  instead; the cost is then `k + M`.

  In a chain (`distributions.CategoricalChain`), the state at step `t` is summed
  given the states before and after it, and its score is that of the factor
  `q(z_t | z_{t-1})` [1]:

  ```none
  sum over t and a of   q(a | z_{t-1}, z_{t+1}) f(.., z_{t-1}, a, z_{t+1}, ..)
                        * grad log q(a | z_{t-1})
  ```

  Given both neighbours this score does not have mean 0, so only a baseline that
  is known before the draw keeps the gradient unbiased: a constant, for example
  `f` at the mode of an earlier step, or `baselines.Learned()`. Others are
  refused.

  With `sites_per_call` the calls run in a loop, and again in the backward pass.
  In eager mode, in graphs and under XLA, only the intermediate results of one
  chunk of sites are in memory; the `S (k + M)` atoms themselves are in memory
  at once. Value and gradient are those of a single call. The loop doubles the
  number of evaluations and uses chunks of equal size (the last chunk repeats a
  site if necessary). `tf.function` must be able to trace `f`, and `f` must
  return the same result when called again: no dropout, no `tf.random.normal`. A
  second derivative keeps everything in memory, and some `f` have none under
  XLA.

  Args:
    estimator: A `GradientEstimator` that only draws; `M` is its `num_samples`.
    num_summed: Python `int` `k`, at most the number of symbols of a site.
    sites_per_call: Python `int`, the maximal number of sites per call of `f`,
      to save memory. `None` means all sites.

  Returns:
    estimator: A `GradientEstimator`, for `tfd.Independent`, `tfd.Sample` and
      `distributions.CategoricalChain`.

  Raises:
    TypeError: `estimator` is not an estimator that only draws, or a number is
      not an `int`.
    ValueError: A number is out of range.

  #### Examples

  ```python
  logits = tf.Variable(tf.zeros([20, 10]))  # 20 sites, 10 symbols each
  estimator = tfp_rb.local_expectation(
      tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut()), num_summed=2)
  with tf.GradientTape() as tape:
    q = tfp.distributions.Independent(
        tfp.distributions.Categorical(logits=logits), 1)
    loss = tfp_rb.expectation(
        lambda z: tf.cast(tf.reduce_max(z, axis=-1), tf.float32), q, estimator,
        seed=[0, 1])
  tape.gradient(loss, logits).shape  # ==> (20, 10)
  ```

  #### References

  [1] Michalis K. Titsias, Miguel Lazaro-Gredilla. Local expectation gradients
      for black box variational inference. NeurIPS 2015.
      https://arxiv.org/abs/1503.01494
  [2] Runjing Liu et al. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019, section 6. https://arxiv.org/abs/1810.04777
  """
  rao_blackwellize(estimator, num_summed=num_summed)  # checks both
  if sites_per_call is not None:
    sites_per_call = checks.check_int(
      sites_per_call, 'sites_per_call', minimum=1
    )
  return LocalExpectation(estimator, int(num_summed), sites_per_call)


class LocalExpectation(Wrapper):
  """The result of `local_expectation`.

  Its atoms are `SiteAtoms`, and an estimate is a list of `Estimate`s, one for
  each group of sites.
  """

  def __init__(
    self,
    estimator: GradientEstimator,
    num_summed: int,
    sites_per_call: int | None = None,
    name: str | None = None,
  ) -> None:
    super().__init__(estimator, name)
    self.num_summed = num_summed  # at each site
    self.sites_per_call = sites_per_call

  @property
  def chooses_atoms(self) -> str:
    return 'It works site by site and sums atoms already.'

  def choose_atoms(self, whole: Whole, seed: StatelessSeed) -> Any:
    found = whole.sites()
    joint_seed, *seeds = random.split_seed(seed, n=1 + max(len(found), 1))
    # The value of the other sites, [1] + batch_shape + event_shape.
    joint = draw(whole, 1, joint_seed).values
    groups = [
      Sites(group) for group in found or self._dependent_sites(whole, joint)
    ]
    # The batch of each group is batch_shape + [S].
    of_groups = [
      self._at_sites(sites, len(groups)).atoms_of(sites.partition, site_seed)
      for sites, site_seed in zip(groups, seeds, strict=True)
    ]
    return site_atoms(joint, groups, of_groups)

  def _dependent_sites(self, whole: Whole, joint: tf.Tensor) -> Any:
    """Returns the groups of sites that depend on each other, or raises."""
    groups = whole.conditional_sites(joint)
    if not groups:
      raise TypeError(
        '`distribution` must be a product or a chain for `local_expectation`: '
        '`tfd.Independent`, `tfd.Sample` or `distributions.CategoricalChain`; '
        f'got `{whole.name}`. Use `tfp_rb.rao_blackwellize`.'
      )
    if not self.estimator.serves_dependent_sites:
      raise TypeError(
        '`estimator` must be `REINFORCE` with a constant baseline or '
        '`baselines.Learned()` for the steps of a chain, because a level that '
        f'depends on the draws makes the gradient biased; got '
        f'{self.estimator!r}.'
      )
    return groups

  def _at_sites(self, sites: Sites, num_groups: int) -> RaoBlackwellized:
    """Returns the Rao-Blackwellized estimator of one group of sites."""
    num_summed, num_values = self.num_summed, sites.partition.num_values
    if num_groups > 1 and num_values is not None:
      # One setting serves all groups, and some have fewer symbols.
      num_summed = min(num_summed, num_values)
    return RaoBlackwellized(self.estimator, num_summed=num_summed)

  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Any,
    seed: StatelessSeed,
  ) -> Any:
    del distribution
    seeds = random.split_seed(seed, n=len(atoms.groups))
    # To the estimator, the sites of a group are batch members.
    return [
      self.estimator.evaluate(
        SiteIntegrand(f, sites, atoms, self.sites_per_call),
        sites.partition.distribution,
        of_group,
        group_seed,
      )
      for sites, of_group, group_seed in zip(
        atoms.groups, atoms.of_groups, seeds, strict=True
      )
    ]

  def combine(
    self, estimate: Any, atoms: Any
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    # Value, surrogate and auxiliary of each group, batch_shape + [S].
    groups = [
      self.estimator.combine(of_group, group_atoms)
      for of_group, group_atoms in zip(estimate, atoms.of_groups, strict=True)
    ]
    dtype = dtypes.widest([group[0] for group in groups])
    value, surrogate, auxiliary = (
      tf.add_n([tf.cast(tf.reduce_sum(x, axis=-1), dtype) for x in terms])
      for terms in zip(*groups, strict=True)
    )
    # Every site estimates the same value, so this is averaged. The gradients
    # w.r.t. the parameters of the sites are different terms of one sum.
    return value / atoms.num_sites, surrogate, auxiliary
