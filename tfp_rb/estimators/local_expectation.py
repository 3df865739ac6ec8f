"""Site by site: the local expectation gradient, Rao-Blackwellized."""

import tensorflow as tf

from tfp_rb.designs import SiteIntegrand, Sites, draw, site_atoms
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.estimators.rao_blackwell import (
  RaoBlackwellized,
  Wrapper,
  rao_blackwellize,
)
from tfp_rb.internal import checks, dtypes, random

__all__ = ['LocalExpectation', 'local_expectation']


def local_expectation(
  estimator: GradientEstimator,
  num_summed: int,
  sites_per_call: int | None = None,
) -> GradientEstimator:
  """Returns `estimator`, applied to each site of a product on its own.

  ```none
  sum over sites s of   sum_{a in C_s} q_s(a) g_s(a)  +  q_s(rest) g_s(v_s),
  g_s(a) = what `estimator` says of f(z_1, ..., a, ..., z_S) at site s
  ```

  One joint value `z` is drawn; at each site in turn the `k` most probable
  symbols are summed and `M` of the others drawn, while the other sites stay at
  `z`. Where no joint value has any mass to speak of, as with many sites, this
  is what Rao-Blackwellization can do: the joint one would sum nothing. It pays
  where `k` symbols hold nearly all the mass of a site, best with all of them
  summed: then only the noise of the other sites is left. Draws of single sites
  are no better than as many joint ones.

  Unbiased where `estimator` is. Costs `S (k + M)` evaluations of `f` for `S`
  sites, in one call, or in `ceil(S / sites_per_call)`. If `f` is a sum of one
  term for each site, make the sites the *batch* of the distribution instead,
  and the cost is `k + M`.

  The calls follow each other in a loop, forward and again in the backward pass,
  and hold what `f` computes for one chunk of sites only, in eager, graph and
  XLA; the `S (k + M)` atoms themselves are held at once. Value and gradient are
  those of a single call. This takes twice the evaluations, chunks of equal size
  (the last one repeats a site where `S` asks for it), and an `f` that
  `tf.function` can trace and that says the same when called again: no dropout,
  no `tf.random.normal`. A second derivative holds everything, and not all of
  `f` has one under XLA.

  Args:
    estimator: A `GradientEstimator` that only draws; `M` is its `num_samples`.
    num_summed: Python `int` `k`, at most the number of symbols of a site.
    sites_per_call: Python `int`, to how many sites at most `f` is applied at
      once, where memory asks for it. `None`: to all.

  Returns:
    estimator: A `GradientEstimator`, for `tfd.Independent` and `tfd.Sample`.

  Raises:
    TypeError: `estimator` is no estimator that only draws, or a number is not
      an `int`.
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
  of_sites = rao_blackwellize(estimator, num_summed=num_summed)
  if sites_per_call is not None:
    sites_per_call = checks.check_int(
      sites_per_call, 'sites_per_call', minimum=1
    )
  return LocalExpectation(estimator, of_sites.num_summed, sites_per_call)


class LocalExpectation(Wrapper):
  """The result of `local_expectation`."""

  def __init__(self, estimator, num_summed, sites_per_call=None, name=None):
    super().__init__(estimator, name)
    self.num_summed = num_summed
    self.sites_per_call = sites_per_call

  @property
  def chooses_atoms(self):
    return 'It works site by site and sums atoms already.'

  def choose_atoms(self, whole, seed):
    groups = [Sites(group) for group in whole.sites()]
    if not groups:
      raise TypeError(
        '`distribution` must be a product for `local_expectation`, '
        f'`tfd.Independent` or `tfd.Sample`; got `{whole.name}`. Use '
        '`tfp_rb.rao_blackwellize`.'
      )
    joint_seed, *seeds = random.split_seed(seed, n=1 + len(groups))
    joint = draw(whole, 1, joint_seed).values
    of_groups = [
      self._at_sites(sites, len(groups)).atoms_of(sites.partition, site_seed)
      for sites, site_seed in zip(groups, seeds, strict=True)
    ]
    return site_atoms(joint, groups, of_groups)

  def _at_sites(self, sites, num_groups):
    """Returns the Rao-Blackwellized estimator of one group of sites."""
    num_summed, num_values = self.num_summed, sites.partition.num_values
    if num_groups > 1 and num_values is not None:
      # One number serves groups of different sizes.
      num_summed = min(num_summed, num_values)
    return RaoBlackwellized(self.estimator, num_summed=num_summed)

  def evaluate(self, f, distribution, atoms, seed):
    del distribution
    seeds = random.split_seed(seed, n=len(atoms.groups))
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

  def combine(self, estimate, atoms):
    groups = [
      self.estimator.combine(of_group, group_atoms)
      for of_group, group_atoms in zip(estimate, atoms.of_groups, strict=True)
    ]
    dtype = dtypes.widest([group[0] for group in groups])
    totals = [
      tf.add_n([tf.cast(tf.reduce_sum(x, axis=-1), dtype) for x in terms])
      for terms in zip(*groups, strict=True)
    ]
    # Every site has an estimate of the same value, but of its own gradient.
    return totals[0] / atoms.num_sites, totals[1], totals[2]
