# SPDX-License-Identifier: Apache-2.0
"""Each family with both of its parameters, also with raw `probs` variables.

TFP normalizes the `probs` of a categorical family in `log_prob`, so any
positive numbers will do. The gradient w.r.t. these numbers is that of the
normalized distribution.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from cases import covering_values
import internals
import tfp_rb
import zoo

tfd = tfp.distributions


class Pair(NamedTuple):
  """A family that is made from the same parameter in two ways.

  Attributes:
    parameter: Array of positive numbers, which are not normalized even if their
      sum should be 1.
    directly: Callable that maps the parameter to a distribution with `probs` or
      `rate`.
    by_logits: Callable that maps the parameter to a distribution with `logits`
      or `log_rate`.
    support: Array of shape `[K] + event_shape` with all values (of a countable
      support, the values that have noticeable mass).
  """

  parameter: np.ndarray
  directly: Callable
  by_logits: Callable
  support: np.ndarray


_RAW = np.array([0.4, 0.9, 1.7])  # the sum is 3
_ROWS = np.array([[0.4, 1.7], [2.0, 0.3]])
_OUTCOMES = np.array([-1.0, 0.5, 2.0])
_PROBS = np.array([0.35, 0.6])
_COUNTS = np.arange(200.0)


def _logit(p):
  return tf.math.log(p) - tf.math.log1p(-p)


def _one_hot(**parameters):
  return tfd.OneHotCategorical(dtype=tf.float64, **parameters)


def _sites(make, **parameters):
  return tfd.Independent(make(**parameters), 1)


def _joint(symbols, num_sites=2):
  grid = np.indices([len(symbols)] * num_sites).reshape([num_sites, -1]).T
  return symbols[grid]


FINITE = {
  'Categorical': Pair(
    _RAW,
    lambda p: tfd.Categorical(probs=p),
    lambda p: tfd.Categorical(logits=tf.math.log(p)),
    np.arange(3),
  ),
  'OneHotCategorical': Pair(
    _RAW,
    lambda p: _one_hot(probs=p),
    lambda p: _one_hot(logits=tf.math.log(p)),
    np.eye(3),
  ),
  'FiniteDiscrete': Pair(
    _RAW,
    lambda p: tfd.FiniteDiscrete(_OUTCOMES, probs=p),
    lambda p: tfd.FiniteDiscrete(_OUTCOMES, logits=tf.math.log(p)),
    _OUTCOMES,
  ),
  'Bernoulli': Pair(
    _PROBS[0],
    lambda p: tfd.Bernoulli(probs=p),
    lambda p: tfd.Bernoulli(logits=_logit(p)),
    np.arange(2),
  ),
  'Binomial': Pair(
    _PROBS[0],
    lambda p: tfd.Binomial(tf.constant(2.0, p.dtype), probs=p),
    lambda p: tfd.Binomial(tf.constant(2.0, p.dtype), logits=_logit(p)),
    np.arange(3.0),
  ),
  'Independent_OneHotCategorical': Pair(
    _ROWS,
    lambda p: _sites(_one_hot, probs=p),
    lambda p: _sites(_one_hot, logits=tf.math.log(p)),
    _joint(np.eye(2)),
  ),
  'Independent_Bernoulli': Pair(
    _PROBS,
    lambda p: _sites(tfd.Bernoulli, probs=p),
    lambda p: _sites(tfd.Bernoulli, logits=_logit(p)),
    _joint(np.arange(2)),
  ),
}
PAIRS = FINITE | {
  'Geometric': Pair(
    _PROBS[0],
    lambda p: tfd.Geometric(probs=p),
    lambda p: tfd.Geometric(logits=_logit(p)),
    _COUNTS,
  ),
  'NegativeBinomial': Pair(
    _PROBS[0],
    lambda p: tfd.NegativeBinomial(tf.constant(2.5, p.dtype), probs=p),
    lambda p: tfd.NegativeBinomial(tf.constant(2.5, p.dtype), logits=_logit(p)),
    _COUNTS,
  ),
  'Poisson': Pair(
    np.array(2.7),
    lambda p: tfd.Poisson(rate=p),
    lambda p: tfd.Poisson(log_rate=tf.math.log(p)),
    np.arange(60.0),
  ),
}
RELAXED = [
  'OneHotCategorical',
  'Bernoulli',
  'Independent_OneHotCategorical',
  'Independent_Bernoulli',
]
NUM_SUMMED, NUM_DRAWS = 1, 2


def make_problem(pair, build):
  """Returns a callable that maps a parameter, with any batch, to `(f, q)`."""
  rank = np.ndim(pair.parameter)

  def problem(p):
    q = build(p)
    own_axes = list(range(p.shape.rank - rank, p.shape.rank))
    # The cost also depends on the parameter, so the pathwise term counts.
    scale = 1.0 + 0.1 * tf.reduce_sum(p**2, axis=own_axes)
    cost = zoo.cost(q, tf.float64)
    return lambda z: scale * cost(z), q

  return problem


def explicit_sum(pair, build):
  """Returns value and gradient of `sum_z exp(log_prob(z)) f(z)`.

  The computation uses TFP alone.
  """
  p = tf.constant(pair.parameter)
  with tf.GradientTape() as tape:
    tape.watch(p)
    f, q = make_problem(pair, build)(p)
    values = tf.cast(pair.support, q.dtype)
    value = tf.reduce_sum(tf.exp(q.log_prob(values)) * f(values))
  return value, tape.gradient(value, p)


def estimate(pair, build, estimator):
  """Returns value and gradient of `expectation`."""
  p = tf.Variable(pair.parameter)
  with tf.GradientTape() as tape:
    f, q = make_problem(pair, build)(p)
    value = tfp_rb.expectation(f, q, estimator, seed=[3, 4])
  return value, tape.gradient(value, p)


def assert_close(actual, desired):
  for x, y in zip(actual, desired, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-10)


def make_estimator(name, pair):
  if name in zoo.ESTIMATORS:
    return zoo.ESTIMATORS[name].make(NUM_SUMMED, NUM_DRAWS)
  row = zoo.DIFFERENTIATING[name.removeprefix('summed-')]
  q = pair.directly(tf.constant(pair.parameter))
  estimator = row.make(NUM_DRAWS, q)
  if name.startswith('summed-'):
    return tfp_rb.rao_blackwellize(estimator, num_summed=NUM_SUMMED)
  return estimator


DIFFERENTIATING = [
  prefix + name for name in zoo.DIFFERENTIATING for prefix in ('', 'summed-')
]


def _is_possible(name, family):
  if name == 'Exact':
    return family in FINITE
  if name.startswith('without_replacement'):
    return family != 'Bernoulli'  # a Bernoulli has fewer than 3 values
  return True


ALL = [
  (family, name)
  for family in PAIRS
  for name in zoo.ESTIMATORS
  if _is_possible(name, family)
]
ALL += [(family, name) for family in RELAXED for name in DIFFERENTIATING]
ALL += [(family, 'MuProp') for family in PAIRS if family not in RELAXED]
ALL.remove(('Categorical', 'MuProp'))  # it has no mean


def _is_enumerated(family, name):
  row = zoo.DIFFERENTIATING.get(name.removeprefix('summed-'))
  is_right = row is None or (row.is_unbiased and not row.has_noise)
  return family in FINITE and is_right and name != 'Exact'


# For the same seed, even a biased or noisy estimator has the same estimate.
@pytest.mark.parametrize(
  'family, name',
  covering_values(row for row in ALL if not _is_enumerated(*row)),
)
def test_both_parameterisations_have_the_same_estimate(family, name):
  pair = PAIRS[family]
  estimator = make_estimator(name, pair)
  assert_close(
    estimate(pair, pair.directly, estimator),
    estimate(pair, pair.by_logits, estimator),
  )


@pytest.mark.parametrize(
  'family, name',
  covering_values(row for row in ALL if _is_enumerated(*row)),
)
def test_mean_by_raw_probs_is_the_derivative_of_the_sum(family, name):
  pair = FINITE[family]
  outcomes = internals.enumerate_outcomes(
    make_estimator(name, pair),
    make_problem(pair, pair.directly),
    [pair.parameter],
    10**6,
  )
  assert_close(
    [
      np.sum(outcomes.probabilities * outcomes.values, axis=0),
      np.sum(outcomes.weighted_gradients[0], axis=0),
    ],
    explicit_sum(pair, pair.directly),
  )


@pytest.mark.parametrize('family', FINITE)
@pytest.mark.parametrize('by', ['directly', 'by_logits'])
def test_exact_is_the_derivative_of_the_sum(family, by):
  pair = FINITE[family]
  build = getattr(pair, by)
  assert_close(estimate(pair, build, tfp_rb.Exact()), explicit_sum(pair, build))


@pytest.mark.parametrize('family', sorted(set(PAIRS) - set(FINITE)))
@pytest.mark.parametrize('by', ['directly', 'by_logits'])
def test_sum_of_a_countable_support_is_the_derivative_of_the_sum(family, by):
  pair = PAIRS[family]
  build = getattr(pair, by)
  # The rest is drawn, but it has no noticeable mass.
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=120)
  assert_close(estimate(pair, build, estimator), explicit_sum(pair, build))


def test_muprop_follows_the_normalised_mean():
  p = tf.Variable(np.array([0.2, 0.3, 0.5]))
  c = tf.constant([1.0, 3.0, -2.0], tf.float64)

  def problem(p):
    def f(z):
      along = tf.reduce_sum(z * c, axis=-1)
      return tf.sin(along) + 3.0 * along

    return f, _one_hot(probs=p)

  moments = tfp_rb.diagnostics.exact_moments(tfp_rb.MuProp(), problem, [p])
  assert moments.bias < 1e-12
