# SPDX-License-Identifier: Apache-2.0
"""Defines the posteriors and estimators of `switching_dynamics.py`."""

import collections
import functools

import tensorflow as tf
import tensorflow_probability as tfp

from examples.studies import switching_model
import tfp_rb

tfd = tfp.distributions

NUM_SUMMED = 8
NUM_FEW = 40

# `make` takes the number of evaluations per series, the number of series, and a
# baseline level for each series, and returns an estimator.
Method = collections.namedtuple('Method', 'is_chain make')


def _draws(n, num_series, levels):
  del num_series, levels
  return tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=n)


def _best(n, num_series, levels):
  num_summed = min(NUM_SUMMED, n - 2)  # Leave-one-out requires two draws.
  estimator = _draws(n - num_summed, num_series, levels)
  return tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)


def _local(n, num_series, levels):
  del n, num_series
  return tfp_rb.local_expectation(
    tfp_rb.REINFORCE(baseline=levels[:, tf.newaxis]),
    num_summed=switching_model.NUM_REGIMES,
  )


def _few(make, n, num_series, levels):
  return make(min(n, NUM_FEW), num_series, levels)


def _pooled(n, num_series, levels):
  del levels
  return tfp_rb.pooled(budget=n * num_series, num_candidates=NUM_SUMMED)


MANY = {
  'mean field, by step': Method(False, _local),
  'chain, draws': Method(True, _draws),
  'chain, 8 best + draws': Method(True, _best),
  'chain, by step': Method(True, _local),
}
# A pooled budget draws at most 32 paths of a series.
FEW = {
  'mean field, 40 draws': Method(False, functools.partial(_few, _draws)),
  'chain, 40 draws': Method(True, functools.partial(_few, _draws)),
  'chain, 8 best + 32 draws': Method(True, functools.partial(_few, _best)),
  'chain, pooled 40': Method(True, functools.partial(_few, _pooled)),
}
METHODS = {**MANY, **FEW}
# These methods run on short series, where none spends more than 40 evaluations.
SHORT_METHODS = {
  **MANY,
  'chain, pooled': Method(True, _pooled),
  'mean field, exact': Method(False, lambda *_: tfp_rb.Exact()),
  'chain, exact': Method(True, lambda *_: tfp_rb.Exact()),
}


def make_surrogate(is_chain, num_series, num_steps):
  """Returns a uniform distribution over paths per series, with variables."""
  k = switching_model.NUM_REGIMES
  zeros = lambda *shape: tf.Variable(tf.zeros([num_series, *shape]))
  if is_chain:
    return tfp_rb.distributions.CategoricalChain(
      zeros(k), zeros(num_steps - 1, k, k)
    )
  return tfd.Independent(tfd.Categorical(logits=zeros(num_steps, k)), 1)


def marginals_of(surrogate):
  """Returns the probabilities of the regimes at each step, `[S, T, K]`."""
  if isinstance(surrogate, tfd.Independent):
    return surrogate.distribution.probs_parameter()
  return surrogate.marginals()[0]
