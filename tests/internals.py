# SPDX-License-Identifier: Apache-2.0
"""The private parts of `tfp_rb` that tests use, under plain names.

A test imports private names only from here, so that only this file changes when
a module of the package moves.
"""

import tensorflow as tf

import tfp_rb
from tfp_rb import datasets
from tfp_rb._expectation import estimate_at
from tfp_rb.designs import allocation, draw, is_draw, whole_of
from tfp_rb.designs.subsets import leave_one_out_weights
from tfp_rb.diagnostics._closed_forms import Row as ClosedFormRow
from tfp_rb.diagnostics._closed_forms import variance as closed_form_variance
from tfp_rb.diagnostics._moments import total_variance
from tfp_rb.diagnostics._pairs import _bias_of as bias_of
from tfp_rb.diagnostics._pairs import mean_and_interval
from tfp_rb.diagnostics._support import tabulate
from tfp_rb.distributions import recursions
from tfp_rb.estimators.relaxed import draw_noise, given_rest, softmax
from tfp_rb.internal import config, gradients, random
from tfp_rb.internal.gradients import likelihood_ratio
from tfp_rb.internal.random import (
  search_index,
  split_seed,
  stratified_uniform,
  uniform,
)
from tfp_rb.models._convolutions import Convolutions
from tfp_rb.models._frames import Frames
from tfp_rb.models._pixels import log_likelihood
from tfp_rb.partitions import partition_of, registry
from tfp_rb.partitions.counts import _large_poisson_tail as large_poisson_tail
from tfp_rb.partitions.registry import plain_class
from tfp_rb.testing.enumeration import enumerate_outcomes
from tfp_rb.testing.explicit_sum import exact_reference
from tfp_rb.vi import _build
from tfp_rb.vi._joint import split as split_joint

__all__ = [
  'ClosedFormRow',
  'Convolutions',
  'Frames',
  'WithDraws',
  'allocation',
  'ask_server',
  'best_paths',
  'bias_of',
  'closed_form_variance',
  'copy_registry',
  'deserialize',
  'draw_atoms',
  'draw_noise',
  'enumerate_outcomes',
  'exact_reference',
  'estimate_with_draws',
  'exclude',
  'find_partition',
  'given_rest',
  'gradients',
  'is_draw',
  'large_poisson_tail',
  'leave_one_out_weights',
  'likelihood_ratio',
  'log_likelihood',
  'mean_and_interval',
  'patch_bits',
  'patch_num_pilot_draws',
  'patch_step_seed',
  'patch_timeout',
  'plain_class',
  'pooled_cells',
  'pooled_estimate',
  'pooled_outcomes',
  'pooled_sample',
  'registered_classes',
  'registered_partitions',
  'relaxation_of',
  'search_index',
  'seed_of_evaluation',
  'serialize',
  'softmax',
  'split_joint',
  'split_seed',
  'stratified_uniform',
  'tabulate',
  'total_variance',
  'uniform',
]

ask_server = datasets._ask
best_paths = recursions.best_paths
deserialize, serialize = config.deserialize, config.serialize


def find_partition(distribution, num_summed):
  """Works like `tfp_rb.partition`, but sums fewer values if there are fewer."""
  return partition_of(distribution).best(num_summed)


def exclude(distribution, partition, values):
  """Splits a distribution into `values` and all others."""
  del distribution
  return partition.excluding(values)


def draw_atoms(distribution, num_draws, seed):
  """Returns the `Atoms` of independent draws."""
  return draw(whole_of(distribution), num_draws, seed)


def relaxation_of(distribution):
  """Returns the relaxed form of a distribution."""
  return partition_of(distribution).relaxation()


class _WithDraws:
  """A partition whose draws come from given functions."""

  def __init__(self, inner, draw, from_uniforms):
    self._inner = inner
    self._draw, self._from_uniforms = draw, from_uniforms

  def __getattr__(self, name):
    return getattr(self._inner, name)

  def _around(self, inner):
    return _WithDraws(inner, self._draw, self._from_uniforms)

  def best(self, num_summed):
    return self._around(self._inner.best(num_summed))

  def excluding(self, values):
    return self._around(self._inner.excluding(values))

  def truncated(self, num_summed):
    return self._around(self._inner.truncated(num_summed))

  def draw_rest(self, num_draws, seed):
    del seed
    return self._draw(self._inner, num_draws)

  def rest_from_uniforms(self, u):
    return self._from_uniforms(self._inner, u)


class WithDraws(tfp_rb.GradientEstimator):
  """An estimator with draws from a function of `(partition, num_draws)`."""

  def __init__(self, estimator, draw):
    super().__init__(num_samples=estimator.num_samples)
    self.estimator, self._draw = estimator, draw

  def sample_atoms(self, distribution, seed):
    whole = _WithDraws(partition_of(distribution), self._draw, None)
    return self.estimator.atoms_of(whole, seed)

  def evaluate(self, f, distribution, atoms, seed):
    return self.estimator.evaluate(f, distribution, atoms, seed)


def estimate_with_draws(
  f, distribution, estimator, draw=None, from_uniforms=None, seed=(0, 0)
):
  """Works like `expectation`, with draws from the given functions.

  Args:
    f: Callable of atoms.
    distribution: A discrete distribution with a partition.
    estimator: A `GradientEstimator`.
    draw: Callable of `(partition, num_draws)` that replaces `draw_rest`.
    from_uniforms: Callable of `(partition, u)` that replaces
      `rest_from_uniforms`.
    seed: Stateless seed.

  Returns:
    expectation: `Tensor` of `batch_shape`.
  """
  seed = tf.constant(seed)
  whole = _WithDraws(partition_of(distribution), draw, from_uniforms)
  atoms = estimator.atoms_of(whole, seed)
  return estimate_at(atoms, f, distribution, estimator, seed)


def copy_registry(monkeypatch):
  """Lets a test register partitions that are forgotten when it ends."""
  monkeypatch.setattr(registry, '_REGISTRY', dict(registry._REGISTRY))


def registered_partitions():
  """Returns the distributions whose partitions the package registers.

  Excludes the parts of joint distributions, which `vi` registers.
  """
  return {
    kind
    for kind, family in registry._REGISTRY.items()
    if not family.is_of_user
    and getattr(family.whole, '__module__', '').startswith('tfp_rb.partitions')
  }


def registered_classes():
  """Returns the classes that a config can name, by their registered names."""
  return dict(config.REGISTRY)


def patch_bits(monkeypatch, function):
  monkeypatch.setattr(random, '_bits', function)


def patch_num_pilot_draws(monkeypatch, number):
  """Sets the number of draws of the model that initialize a surrogate."""
  monkeypatch.setattr(_build, '_NUM_DRAWS', number)


def patch_timeout(monkeypatch, seconds):
  monkeypatch.setattr(datasets, '_TIMEOUT', seconds)


def patch_step_seed(model, function):
  """Makes a model draw with the seed `function(step)` during training."""
  model._seed = function


def seed_of_evaluation(model, batch):
  """Returns the seed with which a model evaluates a batch."""
  return model._test_seed(batch)


def pooled_cells(distribution, estimator):
  """Returns the cells that the rows of a distribution offer to a pool."""
  return estimator._candidates(whole_of(distribution)).cells


def pooled_outcomes(distribution, estimator, most_outcomes=100_000):
  """Yields pairs: uniforms of an outcome of a pool, and its probability."""
  found = estimator.outcomes(whole_of(distribution), most_outcomes)
  return list(zip(*found, strict=True))


def pooled_sample(distribution, estimator, u, seed=(0, 0)):
  """Returns the `Atoms` of a pooled estimator, given inclusion uniforms."""
  u = tf.convert_to_tensor(u, tf.float64)
  return estimator.atoms_at(whole_of(distribution), u, tf.constant(seed))


def pooled_estimate(f, distribution, estimator, u):
  """Works like `expectation`, given the uniforms of the inclusion."""
  atoms = pooled_sample(distribution, estimator, u)
  integrand = estimator.integrand(f, atoms)
  seed = tf.constant([0, 0])
  return estimate_at(atoms, integrand, distribution, estimator, seed)
