# SPDX-License-Identifier: Apache-2.0
"""Values and gradients are finite if probabilities or `f` are extreme."""

import functools
import math
from typing import NamedTuple

import hypothesis
from hypothesis import strategies
import numpy as np
import pytest
from scipy import special
import tensorflow as tf
import tensorflow_probability as tfp

from internals import enumerate_outcomes
import tfp_rb
import zoo

tfd = tfp.distributions

INF = math.inf
SEED = (6, 2)


class Extreme(NamedTuple):
  """A distribution with values that cannot occur (in this precision)."""

  parameter: list
  build: callable
  num_values: int


def build_of(name):
  """Returns a builder of a zoo distribution from a parameter of three rows."""
  return lambda x: zoo.DISTRIBUTIONS[name].build(x, x.shape[:1])


IMPOSSIBLE = [[0.0, -INF, 1.0, -INF], [-INF, -INF, 2.0, -INF], [0.0] * 4]
FAR_APART = [[1e4, -1e4, 0.0, 1e4], [-1e4, -1e4, -1e4, 1e4], [-1e4] * 4]
ZEROS = [[0.5, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0], [0.25] * 4]

EXTREMES = {
  **{
    f'{name}-{which}': Extreme(parameter, build_of(name), 4)
    for name in ('Categorical', 'OneHotCategorical', 'FiniteDiscrete')
    for which, parameter in (
      ('impossible', IMPOSSIBLE),
      ('far_apart', FAR_APART),
    )
  },
  'Categorical-zeros': Extreme(ZEROS, build_of('Categorical-probs'), 4),
  'OneHotCategorical-zeros': Extreme(
    ZEROS, build_of('OneHotCategorical-probs'), 4
  ),
  'FiniteDiscrete-zeros': Extreme(
    ZEROS, lambda x: tfd.FiniteDiscrete([-1.0, 0.5, 2.0, 3.0], probs=x), 4
  ),
  'Bernoulli-far_apart': Extreme([1e4, -1e4, 0.0], build_of('Bernoulli'), 2),
  'Bernoulli-impossible': Extreme([INF, -INF, 0.0], build_of('Bernoulli'), 2),
  'Bernoulli-zeros': Extreme([0.0, 1.0, 0.5], build_of('Bernoulli-probs'), 2),
  'OrderedLogistic-far_apart': Extreme(
    [1e4, -1e4, 0.0], build_of('OrderedLogistic'), 4
  ),
  'BetaBinomial-short_rows': Extreme(
    [1.0, 1e-3, 1e3],
    lambda x: tfd.BetaBinomial([3.0, 1.0, 0.0], x, 1.0 / x),
    4,
  ),
  'Binomial-far_apart': Extreme(
    [1e4, -1e4, 0.0], lambda x: tfd.Binomial([3.0, 2.0, 0.0], logits=x), 4
  ),
  'Binomial-zeros': Extreme(
    [0.0, 1.0, 0.5], lambda x: tfd.Binomial([3.0, 2.0, 0.0], probs=x), 4
  ),
  'Independent-impossible': Extreme(
    [[[0.0, -INF], [0.0, 1.0]], [[-INF, 0.0], [0.0, -INF]], [[0.0, 0.0]] * 2],
    build_of('Independent'),
    4,
  ),
  'Independent-far_apart': Extreme(
    [[[1e4, -1e4], [0.0, 1.0]], [[-1e4, 1e4], [1e4, -1e4]], [[0.0, 0.0]] * 2],
    build_of('Independent-OneHotCategorical'),
    4,
  ),
  'Sample-zeros': Extreme(
    [0.0, 1.0, 0.5], lambda x: tfd.Sample(tfd.Bernoulli(probs=x), 2), 4
  ),
}

every_extreme = pytest.mark.parametrize('name', EXTREMES)


def wild(q, scale, dtype):
  """Returns an `f` that is infinite, NaN or not smooth where `q` is 0."""
  f = zoo.cost(q, dtype)
  # TFP's own `log_prob` is NaN for a `OneHotCategorical` with impossible
  # values.
  log_prob = tfp_rb.partition(q, 0).log_prob

  def wild_f(z):
    possible = tf.stop_gradient(tf.cast(log_prob(z) > -200.0, dtype))
    x = scale * possible
    return f(z) + tf.math.log(x) + tf.sqrt(x) + possible / x

  return wild_f


def assert_finite(name, estimator, dtype=tf.float32):
  extreme = EXTREMES[name]
  parameter, scale = tf.constant(extreme.parameter, dtype), tf.ones([], dtype)
  with tf.GradientTape() as tape:
    tape.watch([parameter, scale])
    q = extreme.build(parameter)
    f = wild(q, scale, dtype)
    value = tfp_rb.expectation(f, q, estimator, seed=SEED)
  gradients = tape.gradient(value, [parameter, scale])
  for x in (value, *gradients):
    assert np.all(np.isfinite(x)), x


def summed(name, k, M=2):
  return zoo.ESTIMATORS[f'summed-{name}'].make(k, M)


# Values that cannot occur.


@every_extreme
def test_f_may_be_wild_where_q_is_zero_for_every_num_summed(name):
  for k in range(EXTREMES[name].num_values + 1):
    assert_finite(name, summed('mixed', k))


@every_extreme
def test_f_may_be_wild_where_q_is_zero_for_a_budget(name):
  for budget in (2, EXTREMES[name].num_values):
    assert_finite(name, zoo.ESTIMATORS['budget-mixed'].make(0, budget))


@pytest.mark.parametrize('baseline', zoo.BASELINES)
@pytest.mark.parametrize('name', ['Categorical-impossible', 'Sample-zeros'])
def test_f_may_be_wild_where_q_is_zero_for_every_baseline(name, baseline):
  for k in (0, 2, 4):
    assert_finite(name, summed(baseline, k))
  assert_finite(name, zoo.ESTIMATORS[f'budget-{baseline}'].make(0, 3))


@pytest.mark.parametrize(
  ('build', 'parameter'),
  [
    (lambda x: tfd.Poisson(rate=x), 0.0),
    (lambda x: tfd.Poisson(log_rate=x), -INF),
    (lambda x: tfd.Geometric(probs=x), 1.0),
    (lambda x: tfd.NegativeBinomial(3.0, probs=x), 0.0),
    (lambda x: tfd.NegativeBinomial(3.0, logits=x), -1e4),
  ],
  ids=['rate-0', 'log_rate-inf', 'Geometric-1', 'probs-0', 'logits-1e4'],
)
def test_count_that_is_always_zero_is_finite(build, parameter):
  parameter = tf.constant([parameter])
  with tf.GradientTape() as tape:
    tape.watch(parameter)
    value = tfp_rb.expectation(
      lambda z: 3.0 - tf.sqrt(z), build(parameter), summed('mixed', 1)
    )
  np.testing.assert_array_equal(value, [3.0])
  assert np.all(np.isfinite(tape.gradient(value, parameter)))


@pytest.mark.parametrize('location', [-30.0, 30.0])
def test_tails_of_ordered_logistic_are_accurate(location):
  q = tfd.OrderedLogistic(cutpoints=[-1.0, 0.0, 1.0], loc=location)
  sigmoid = lambda x: 1.0 / (1.0 + np.exp(-x))
  # The distance from a far location is decisive, so no numbers near 1 are
  # subtracted.
  below = sigmoid(np.array([-INF, -1.0, 0.0, 1.0, INF]) - location)
  above = sigmoid(location - np.array([-INF, -1.0, 0.0, 1.0, INF]))
  probs = np.diff(below) if location > 0 else -np.diff(above)
  p = tfp_rb.partition(q, 4)
  np.testing.assert_allclose(p.weights, np.sort(probs)[::-1], rtol=1e-5)


@pytest.mark.parametrize('location', [-30.0, 30.0])
def test_tails_of_ordered_logistic_have_finite_gradients(location):
  location = tf.constant(location)
  with tf.GradientTape() as tape:
    tape.watch(location)
    q = tfd.OrderedLogistic(cutpoints=[-1.0, 0.0, 1.0], loc=location)
    f = zoo.cost(q, tf.float32)
    value = tfp_rb.expectation(f, q, summed('mixed', 1), seed=SEED)
  assert np.isfinite(tape.gradient(value, location))


@every_extreme
def test_weights_sum_to_one_where_values_cannot_occur(name):
  extreme = EXTREMES[name]
  q = extreme.build(tf.constant(extreme.parameter))
  for k in (1, extreme.num_values):
    p = tfp_rb.partition(q, k)
    total = np.sum(p.weights, axis=0) + p.rest_weight
    np.testing.assert_allclose(total, np.ones(3), rtol=1e-5)


@every_extreme
def test_only_possible_values_are_handed_to_f(name):
  extreme = EXTREMES[name]
  q = extreme.build(tf.constant(extreme.parameter))
  for k in (1, extreme.num_values):
    atoms = summed('none', k, M=20).sample_atoms(q, tf.constant(SEED))
    assert np.all(atoms.log_prob > -200.0)


def test_one_possible_value_has_no_noise():
  logits = tf.constant([-INF, 0.0, -INF], tf.float64)
  cost = tf.constant([5.0, 3.0, 7.0], tf.float64)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    value = tfp_rb.expectation(
      lambda z: tf.gather(cost, z), tfd.Categorical(logits=logits), seed=SEED
    )
  np.testing.assert_array_equal(value, 3.0)
  np.testing.assert_array_equal(tape.gradient(value, logits), np.zeros(3))


# Ties, and everything summed.


@pytest.mark.parametrize('k', range(7))
def test_ties_are_broken_by_the_lowest_value(k):
  p = tfp_rb.partition(tfd.Categorical(logits=tf.zeros([2, 6])), k)
  expected = np.broadcast_to(np.arange(k)[:, np.newaxis], [k, 2])
  np.testing.assert_array_equal(p.values, expected)


@pytest.mark.parametrize('estimator', ['summed', 'budget', 'more'])
@pytest.mark.parametrize(
  'baseline', ['none', 'independent', 'mixed', 'optimal']
)
def test_summing_everything_is_exact(estimator, baseline):
  made = {
    'summed': summed(baseline, 5),
    'budget': zoo.ESTIMATORS[f'budget-{baseline}'].make(0, 5),
    'more': zoo.ESTIMATORS[f'budget-{baseline}'].make(0, 9),
  }[estimator]
  row = zoo.DISTRIBUTIONS['Categorical']
  parameter = row.parameter(tf.float64, (3,))
  results = []
  for each in (made, tfp_rb.Exact()):
    with tf.GradientTape() as tape:
      tape.watch(parameter)
      q = row.build(parameter, (3,))
      f = zoo.cost(q, tf.float64)
      value = tfp_rb.expectation(f, q, each, seed=SEED)
    results.append((value, tape.gradient(value, parameter)))
  for actual, expected in zip(*results):
    np.testing.assert_allclose(actual, expected, atol=1e-14)


# Masses that underflow.


@pytest.mark.parametrize('baseline', zoo.BASELINES)
@pytest.mark.parametrize('gap', [95.0, 200.0])
def test_rest_may_underflow(baseline, gap):
  logits = tf.constant([[0.0, -gap, -gap - 1.0], [0.0, 0.5, 1.0]])
  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = tfd.Categorical(logits=logits)
    f = zoo.cost(q, tf.float32)
    value = tfp_rb.expectation(f, q, summed(baseline, 1), seed=SEED)
  assert np.all(np.isfinite(value))
  assert np.all(np.isfinite(tape.gradient(value, logits)))


FLAT = {
  'Bernoulli': lambda x: tfd.Independent(tfd.Bernoulli(logits=x[..., 0]), 1),
  'Categorical': lambda x: tfd.Independent(tfd.Categorical(logits=x), 1),
}


@pytest.mark.parametrize(
  ('kind', 'num_sites'), [('Categorical', 50), ('Bernoulli', 200)]
)
@pytest.mark.parametrize('baseline', zoo.BASELINES)
def test_flat_product_is_finite(num_sites, kind, baseline):
  logits = tf.zeros([2, num_sites, 3])
  # If there is a single draw, a leave-one-out baseline has only the summed
  # atoms.
  estimators = [
    summed(baseline, 3, M=1),
    zoo.ESTIMATORS[f'budget-{baseline}'].make(0, 3),
  ]
  for estimator in estimators:
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = FLAT[kind](logits)
      f = lambda z: tf.reduce_mean(tf.cast(z, tf.float32), axis=-1)
      value = tfp_rb.expectation(f, q, estimator, seed=SEED)
    assert np.all(np.isfinite(value))
    assert np.all(np.isfinite(tape.gradient(value, logits)))


@pytest.mark.parametrize('num_sites', [50, 200])
@pytest.mark.parametrize('kind', FLAT)
def test_weights_of_a_flat_product_sum_to_one(num_sites, kind):
  q = FLAT[kind](tf.zeros([2, num_sites, 3]))
  p = tfp_rb.partition(q, 3)
  total = np.sum(p.weights, axis=0) + p.rest_weight
  np.testing.assert_allclose(total, np.ones(2), rtol=1e-5)


# One bad row.


@functools.cache
def first_row(kind, name, bad_parameter, bad_f):
  """Returns value and gradient of a good row next to one that may be NaN."""
  row = zoo.DISTRIBUTIONS[kind]
  good, bad = row.parameter(tf.float32, (2,))
  bad = tf.fill(bad.shape, math.nan) if bad_parameter else bad
  parameter = tf.stack([good, bad])
  with tf.GradientTape() as tape:
    tape.watch(parameter)
    q = row.build(parameter, (2,))
    cost = zoo.cost(q, tf.float32)
    factor = tf.constant([1.0, math.nan if bad_f else 1.0])
    estimator = zoo.ESTIMATORS[name].make(1, 2)
    value = tfp_rb.expectation(
      lambda z: factor * cost(z), q, estimator, seed=SEED
    )
  return value[0], tape.gradient(value, parameter)[0]


@pytest.fixture
def no_endless_loop(monkeypatch):
  """Makes a search fail after 300 steps that should end after about 100."""
  while_loop = tf.while_loop

  def bounded(condition, body, loop_vars, maximum_iterations=None):
    if maximum_iterations is not None:  # this loop ends
      return while_loop(
        condition, body, loop_vars, maximum_iterations=maximum_iterations
      )
    result = while_loop(condition, body, loop_vars, maximum_iterations=300)
    assert not condition(*result), 'This loop does not end.'
    return result

  monkeypatch.setattr(tf, 'while_loop', bounded)


@pytest.mark.usefixtures('no_endless_loop')
@pytest.mark.parametrize(
  'kind',
  # The rows of a `BatchBroadcast` share their parameter.
  [kind for kind in zoo.DISTRIBUTIONS if kind != 'BatchBroadcast'],
)
@pytest.mark.parametrize('name', ['summed-mixed', 'budget-optimal'])
@pytest.mark.parametrize('bad', ['parameter', 'f'])
def test_nan_stays_in_its_row(kind, name, bad):
  good = first_row(kind, name, bad_parameter=False, bad_f=False)
  found = first_row(kind, name, bad == 'parameter', bad == 'f')
  for actual, expected in zip(found, good):
    np.testing.assert_array_equal(actual, expected)


# Random problems.


@strategies.composite
def problems(draw):
  """Draws logits, costs and an estimator."""
  num_values = draw(strategies.integers(1, 4))
  number = strategies.floats(-3.0, 3.0)
  logit = strategies.one_of(
    strategies.floats(-1e4, 1e4), number, number, strategies.just(-INF)
  )
  logits = draw(
    strategies.lists(logit, min_size=num_values, max_size=num_values).filter(
      lambda x: max(x) > -INF
    )
  )
  cost = draw(
    strategies.lists(number, min_size=num_values, max_size=num_values)
  )
  baseline = draw(strategies.sampled_from(sorted(zoo.BASELINES)))
  form = draw(strategies.sampled_from(['REINFORCE', 'summed', 'budget']))
  k = draw(strategies.integers(0, num_values))
  M = draw(strategies.integers(1, 2))
  if form == 'budget':
    # Every evaluation of a budget may be a draw, and draws are enumerated.
    k = min(k, 3 - M)
  atoms = M if form == 'REINFORCE' else k + M
  if zoo.BASELINES[baseline].needs_second and atoms < 2:
    k, M = 0, 2
  return logits, cost, zoo.ESTIMATORS[f'{form}-{baseline}'].make(k, M)


def check_random_problem(problem):
  logits, cost, estimator = problem
  cost = tf.constant(cost, tf.float64)
  parameters = [tf.constant(logits, tf.float64), tf.constant(1.0, tf.float64)]

  def build(logits, scale):
    f = lambda z: scale * tf.gather(cost, z)
    return f, tfd.Categorical(logits=logits)

  q = tfd.Categorical(logits=parameters[0])
  atoms = estimator.sample_atoms(q, tf.constant(SEED))
  np.testing.assert_allclose(np.sum(atoms.weights), 1.0, rtol=1e-12)
  outcomes = enumerate_outcomes(
    # Two draws, and one more for each of five atoms, have 4^7 outcomes.
    estimator,
    build,
    parameters,
    most_outcomes=4**7,
  )
  # The closed form does not use the library, and it is cheaper.
  probs, costs = special.softmax(logits), cost.numpy()
  value = probs @ costs
  gradients = [probs * (costs - value), value]
  np.testing.assert_allclose(
    np.sum(outcomes.probabilities * outcomes.values), value, atol=1e-9
  )
  for parts, expected in zip(outcomes.weighted_gradients, gradients):
    assert np.all(np.isfinite(parts))
    np.testing.assert_allclose(np.sum(parts, axis=0), expected, atol=1e-9)


@hypothesis.given(problems())
@hypothesis.settings(
  max_examples=60, deadline=None, derandomize=True, database=None
)
def test_random_problems_are_exact_and_finite(problem):
  check_random_problem(problem)


@pytest.mark.slow
@hypothesis.given(problems())
@hypothesis.settings(max_examples=1000, deadline=None, database=None)
def test_many_other_random_problems_are_exact_and_finite(problem):
  check_random_problem(problem)
