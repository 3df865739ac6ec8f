# SPDX-License-Identifier: Apache-2.0
"""Moments of gradients, masses, bounds, comparisons, plots."""

import sys
import types

import keras
import matplotlib
import numpy as np
import pytest
from scipy import stats
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import bias_of, mean_and_interval
import reference
import tfp_rb
from tfp_rb import baselines, diagnostics
import zoo

matplotlib.use('Agg')
import matplotlib.pyplot as plt

tfd = tfp.distributions

ATOL = 1e-10
LOGITS = np.array([0.3, 1.1, -0.5, 2.0])
COST = np.array([1.0, -2.0, 0.5, 3.0])


def problem(logits):
  """Returns a cost that depends on the logits as well."""
  scale = 1.0 + 0.1 * tf.reduce_sum(logits**2, axis=-1)
  f = lambda z: scale * tf.gather(tf.constant(COST), z)
  return f, tfd.Categorical(logits=logits)


def fixed_problem(logits):
  """Returns a cost that does not depend on the logits."""
  return (
    lambda z: tf.gather(tf.constant(COST), z),
    tfd.Categorical(logits=logits),
  )


def naive_problem():
  scale = 1.0 + 0.1 * np.sum(LOGITS**2)
  return reference.Problem(
    q=reference.softmax(LOGITS),
    f=scale * COST,
    score=reference.softmax_scores(LOGITS),
    df=0.2 * np.outer(COST, LOGITS),
  )


def naive_fixed_problem(logits, cost):
  return reference.Problem(
    q=reference.softmax(logits),
    f=cost,
    score=reference.softmax_scores(logits),
    df=np.zeros([len(cost), len(cost)]),
  )


def reinforce(k=0, num_samples=1, baseline=None):
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples), num_summed=k
  )


class Doubled(tfp_rb.GradientEstimator):
  """Doubles the gradient of the score function."""

  def evaluate(self, f, distribution, atoms, seed):
    value = f(atoms.values)
    score = tf.stop_gradient(value) * atoms.log_prob
    return tfp_rb.Estimate(value, surrogate=2.0 * (value + score))


def loss_of(estimator, logits):
  return lambda seed: tfp_rb.expectation(
    *fixed_problem(logits), estimator, seed=seed
  )


# Moments by enumeration.


INDEPENDENT = (
  baselines.IndependentSample,
  reference.independent_sample_levels(True),
)
LEAVE_ONE_OUT = (
  baselines.LeaveOneOut,
  reference.leave_one_out_levels('mixed'),
)


@pytest.mark.parametrize(
  ('baseline', 'k', 'num_samples'),
  [
    (INDEPENDENT, 1, 1),
    (INDEPENDENT, 4, 1),
    (LEAVE_ONE_OUT, 0, 2),
    (LEAVE_ONE_OUT, 1, 1),
    (LEAVE_ONE_OUT, 2, 3),
  ],
)
def test_exact_moments_are_those_of_a_loop(baseline, k, num_samples):
  make, levels = baseline
  actual = diagnostics.exact_moments(
    reinforce(k, num_samples, make()), problem, [tf.constant(LOGITS)]
  )
  naive = naive_problem()
  expected = reference.rao_blackwellized_moments(naive, k, num_samples, levels)
  np.testing.assert_allclose(actual.mean[0], expected.gradient, atol=ATOL)
  np.testing.assert_allclose(actual.variance, expected.variance, atol=ATOL)
  np.testing.assert_allclose(actual.interval, [actual.variance] * 2)
  assert actual.is_exact
  assert actual.bias < ATOL
  num_atoms = k + (num_samples if k < 4 else 0)
  assert actual.num_evaluations == num_atoms + levels.num_extra(num_atoms)


def test_exact_bias_is_the_distance_from_the_gradient():
  actual = diagnostics.exact_moments(Doubled(), problem, [LOGITS])
  gradient = naive_problem().exact_gradient()
  np.testing.assert_allclose(actual.mean[0], 2.0 * gradient, atol=ATOL)
  np.testing.assert_allclose(actual.bias, np.linalg.norm(gradient), atol=ATOL)


def test_impossible_outcomes_add_nothing():
  logits = tf.constant([0.5, -np.inf, 1.0, 0.0], tf.float64)
  actual = diagnostics.exact_moments(reinforce(1), fixed_problem, [logits])
  possible = [0, 2, 3]
  expected = reference.rao_blackwellized_moments(
    naive_fixed_problem(logits.numpy()[possible], COST[possible]),
    1,
    1,
    reference.constant_levels(0.0),
  )
  np.testing.assert_allclose(actual.variance, expected.variance, atol=ATOL)


WITHOUT_REPLACEMENT = tfp_rb.rao_blackwellize(
  tfp_rb.REINFORCE(num_samples=2),
  num_summed=1,
  sampler=tfp_rb.samplers.WithoutReplacement(),
)


def one_site(cost):
  f = lambda z: tf.gather(tf.constant(cost), z)
  return lambda logits: (f, tfd.Categorical(logits=logits))


def two_sites(cost):
  f = lambda z: tf.reduce_prod(tf.gather(tf.constant(cost), z), axis=-1)
  return lambda logits: (f, tfd.Sample(tfd.Categorical(logits=logits), 2))


@pytest.mark.parametrize(
  ('estimator', 'problem_with'),
  [
    (reinforce(0, 2, baselines.LeaveOneOut()), one_site),
    (reinforce(1, 2), one_site),
    (WITHOUT_REPLACEMENT, one_site),
    (reinforce(1, 2), two_sites),
    (tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=1), two_sites),
  ],
  ids=['plain', 'summed', 'without', 'product', 'local'],
)
def test_exact_moments_do_not_evaluate_f_at_impossible_values(
  estimator, problem_with
):
  logits = tf.constant([0.5, -np.inf, 1.0, 0.0], tf.float64)
  expected, actual = (
    diagnostics.exact_moments(
      estimator, problem_with(np.array([1.0, cost, 0.5, 3.0])), [logits]
    )
    for cost in (-2.0, np.nan)
  )
  assert expected.variance > 0.0
  np.testing.assert_allclose(actual.variance, expected.variance, atol=ATOL)


def test_exact_moments_are_nan_where_f_is_at_a_possible_value():
  case = lambda x: (lambda z: np.nan * fixed_problem(x)[0](z), problem(x)[1])
  assert np.isnan(diagnostics.exact_moments(reinforce(1), case, [LOGITS]).bias)


def test_exact_moments_of_several_parameters_are_those_of_all_components():
  def two(location, scale):
    f = lambda z: scale * tf.gather(tf.constant(COST), z)
    logits = tf.constant(LOGITS) * location[..., tf.newaxis]
    return f, tfd.Categorical(logits=logits)

  parameters = [tf.constant(0.7, tf.float64), tf.constant(2.0, tf.float64)]
  actual = diagnostics.exact_moments(tfp_rb.REINFORCE(), two, parameters)
  q = reference.softmax(0.7 * LOGITS)
  components = np.stack([2.0 * COST * (LOGITS - q @ LOGITS), COST])
  mean = components @ q
  np.testing.assert_allclose(actual.mean, mean, atol=ATOL)
  np.testing.assert_allclose(
    actual.variance, np.sum(q * (components.T - mean).T ** 2), atol=ATOL
  )


@pytest.mark.parametrize('baseline', [None, baselines.LeaveOneOut()])
def test_exact_moments_of_a_batch_are_those_of_the_sum(baseline):
  estimator = reinforce(1, 2, baseline)
  rows = [LOGITS, LOGITS[::-1], 2.0 * LOGITS]
  moments = [
    diagnostics.exact_moments(estimator, problem, [row]) for row in rows
  ]
  actual = diagnostics.exact_moments(estimator, problem, [np.stack(rows)])
  variance = sum(m.variance for m in moments)
  np.testing.assert_allclose(actual.variance, variance, atol=ATOL)
  mean = np.stack([m.mean[0] for m in moments])
  np.testing.assert_allclose(actual.mean[0], mean, atol=ATOL)
  assert actual.bias < ATOL
  assert actual.num_evaluations == moments[0].num_evaluations


def test_exact_moments_of_a_batch_refuse_noise():
  logits = np.stack([LOGITS, LOGITS])
  row = zoo.DIFFERENTIATING['REBAR']
  estimator = row.make(1, noisy_problem(tf.constant(logits))[1])
  with raises(ValueError, 'estimator'):
    diagnostics.exact_moments(estimator, noisy_problem, [logits])


def noisy_problem(logits):
  f = lambda z: tf.reduce_sum(z * tf.constant(COST), axis=-1)
  return f, tfd.OneHotCategorical(logits=logits, dtype=tf.float64)


@pytest.mark.parametrize(
  ('estimator', 'case'),
  [
    (
      reinforce(),
      lambda x: (lambda z: z, tfd.Poisson(log_rate=tf.reduce_sum(x, axis=-1))),
    ),
    (reinforce(num_samples=8), problem),
    (tfp_rb.GumbelSoftmax(0.5), noisy_problem),
    (
      tfp_rb.rao_blackwellize(
        tfp_rb.REINFORCE(num_samples=2),
        num_summed=0,
        sampler=tfp_rb.samplers.Stratified(),
      ),
      problem,
    ),
  ],
  ids=['countable', 'too_many', 'noise', 'stratified'],
)
def test_exact_moments_refuse_what_cannot_be_enumerated(estimator, case):
  with raises(ValueError, 'estimator'):
    diagnostics.exact_moments(estimator, case, [LOGITS])


# Moments from pairs.


def test_sampled_moments_are_those_of_the_gradients_at_the_seeds():
  a, b = tf.Variable([1.0, 2.0]), tf.Variable(3.0)

  def loss(seed):
    noise = tf.cast(seed[1], tf.float32) ** 2
    return noise * tf.reduce_sum(a) + tf.cast(seed[0], tf.float32) * noise * b

  actual = diagnostics.sampled_moments(
    loss, [a, b], num_pairs=3, seed=2, reference=[[0.0, 0.0], 0.0]
  )
  noise = np.arange(6.0) ** 2
  gradients = np.stack([noise, noise, 2.0 * noise], axis=1)
  distances = np.sum((gradients[::2] - gradients[1::2]) ** 2, axis=1) / 2.0
  mean = gradients.mean(axis=0)
  np.testing.assert_allclose(actual.mean[0], mean[:2], rtol=1e-6)
  np.testing.assert_allclose(actual.mean[1], mean[2], rtol=1e-6)
  variance = distances.mean()
  np.testing.assert_allclose(actual.variance, variance, rtol=1e-6)
  margin = 1.959964 * distances.std(ddof=1) / np.sqrt(3.0)
  np.testing.assert_allclose(
    actual.interval, [max(variance - margin, 0.0), variance + margin], rtol=1e-6
  )
  norm, margin = np.linalg.norm(mean), 1.959964 * np.sqrt(variance / 6.0)
  np.testing.assert_allclose(
    actual.bias, np.sqrt(norm**2 - variance / 6.0), rtol=1e-6
  )
  np.testing.assert_allclose(
    actual.bias_interval, [max(norm - margin, 0.0), norm + margin], rtol=1e-6
  )
  assert not actual.is_exact
  assert actual.num_evaluations is None


def test_sampled_variance_and_bias_are_near_the_exact_ones():
  logits = tf.Variable(LOGITS)
  exact = diagnostics.exact_moments(Doubled(), fixed_problem, [LOGITS])
  gradient = naive_fixed_problem(LOGITS, COST).exact_gradient()
  actual = diagnostics.sampled_moments(
    loss_of(Doubled(), logits), [logits], num_pairs=200, reference=[gradient]
  )
  # Half of a normal interval is 1.96 standard errors. An error of 4.9 standard
  # errors is exceeded with a probability of 1e-6.
  low, high = actual.interval
  assert abs(actual.variance - exact.variance) < 2.5 * (high - low) / 2.0
  low, high = actual.bias_interval
  assert abs(actual.bias - exact.bias) < 2.5 * (high - low) / 2.0
  assert low > 0.0
  assert actual.num_evaluations == 1


def test_intervals_of_the_variance_hold_19_times_of_20():
  # 2000 intervals from 100 pairs in 3 dimensions: a coverage of 0.94 falls
  # below the limit with a probability of 1e-6.
  distances = np.random.default_rng(0).gamma(1.5, size=[2000, 100])
  found = [mean_and_interval(row)[1] for row in distances]
  num_holding = sum(low <= 1.5 <= high for low, high in found)
  assert num_holding >= stats.binom.ppf(1e-6, 2000, 0.94)


@pytest.mark.parametrize('rank', [1, 2, 10])
def test_intervals_of_the_bias_hold_at_least_19_times_of_20(rank):
  # The limit is the same; in one dimension the coverage is 0.95, and higher in
  # more dimensions.
  rng = np.random.default_rng(1)
  truth = np.full(rank, 0.3)
  num_holding = 0
  for mean in truth + rng.normal(size=[2000, rank]) / np.sqrt(rank):
    found = bias_of(mean, [np.zeros(rank)], noise=1.0)
    low, high = found['bias_interval']
    num_holding += low <= np.linalg.norm(truth) <= high
    assert low <= found['bias'] <= high
  assert num_holding >= stats.binom.ppf(1e-6, 2000, 0.95)


def test_sparse_and_missing_gradients_count(run_eagerly):
  table, other = tf.Variable(np.arange(3.0)), tf.Variable([1.0, 1.0])
  loss = lambda seed: tf.gather(table, seed[1] % 3)
  actual = diagnostics.sampled_moments(loss, [table, other], num_pairs=3)
  np.testing.assert_allclose(actual.mean[0], np.full(3, 1.0 / 3.0))
  np.testing.assert_allclose(actual.mean[1], [0.0, 0.0])
  np.testing.assert_allclose(actual.variance, 1.0)


def test_keras_variables_are_variables(run_eagerly):
  variable = keras.Variable([1.0, 2.0])
  loss = lambda seed: (
    tf.reduce_sum(variable.value) * tf.cast(seed[1], tf.float32)
  )
  actual = diagnostics.sampled_moments(loss, [variable], num_pairs=2)
  np.testing.assert_allclose(actual.mean[0], [1.5, 1.5])


@pytest.mark.parametrize(
  ('arguments', 'kind', 'argument'),
  [
    ({'loss': 3.0}, TypeError, 'loss'),
    # The id is explicit, because that of a function contains its address.
    pytest.param(
      {'loss': lambda seed: tf.zeros([20])}, ValueError, 'loss', id='vector'
    ),
    ({'variables': []}, ValueError, 'variables'),
    ({'variables': LOGITS}, ValueError, 'variables'),
    (
      {'variables': [LOGITS]},
      TypeError,
      'variables',
    ),
    ({'reference': 0.0}, ValueError, 'reference'),
    ({'reference': [0.0]}, ValueError, 'reference'),
    ({'reference': [LOGITS[:3]]}, ValueError, 'reference'),
    ({'num_pairs': 1}, ValueError, 'num_pairs'),
    ({'num_pairs': 2.0}, TypeError, 'num_pairs'),
    ({'seed': [0, 1]}, TypeError, 'seed'),
    (
      {'variables': [tf.Variable(1.0)]},
      ValueError,
      'loss',
    ),
    (
      {'variables': [tf.Variable(1)]},
      TypeError,
      'variables',
    ),
  ],
  ids=str,
)
def test_arguments_of_sampled_moments_are_checked(arguments, kind, argument):
  logits = tf.Variable(LOGITS)
  given = {'loss': loss_of(reinforce(), logits), 'variables': [logits]}
  with raises(kind, argument):
    diagnostics.sampled_moments(**{**given, **arguments})


def test_variables_that_are_not_trainable_count():
  variances = []
  for trainable in (True, False):
    logits = tf.Variable(LOGITS, trainable=trainable)
    loss = loss_of(reinforce(), logits)
    # With so few pairs, all draws are equal for one seed in 10,000.
    variances.append(diagnostics.sampled_moments(loss, [logits], 10).variance)
  assert variances[0] == variances[1] > 0.0


# Evaluations of `f`.


def counted(f):
  """Returns `f`, and a list of the numbers of atoms that it was given."""
  numbers = []

  def counting(values):
    if tf.executing_eagerly():
      numbers.append(values.shape[0])
    return f(values)

  return counting, numbers


@pytest.mark.parametrize(
  'name',
  ['Exact', 'NVIL', 'summed-independent', 'budget-mixed', 'REINFORCE-unshared'],
)
def test_evaluations_that_are_counted_are_those_promised(name):
  row = zoo.ESTIMATORS[name]
  f, q = fixed_problem(LOGITS)
  f, numbers = counted(f)
  tfp_rb.expectation(f, q, row.make(2, 2), seed=[0, 1])
  assert numbers == [row.num_evaluations(4, 2, 2)]


@pytest.mark.parametrize('name', ['MuProp', 'REBAR'])
def test_evaluations_at_relaxed_atoms_are_counted_too(name):
  row = zoo.DIFFERENTIATING[name]
  f, q = noisy_problem(tf.constant(LOGITS))
  estimator = tfp_rb.rao_blackwellize(row.make(2, q), num_summed=1)
  f, numbers = counted(f)
  tfp_rb.expectation(f, q, estimator, seed=[0, 1])
  assert numbers == row.num_evaluations(1, 2, False)


def test_evaluations_in_several_calls_are_added_up():
  q = tfd.Sample(tfd.Bernoulli(logits=0.5), 4)
  f = lambda z: tf.reduce_sum(tf.cast(z, tf.float32), axis=-1)
  local = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(), num_summed=1, sites_per_call=2
  )
  f, numbers = counted(f)
  tfp_rb.expectation(f, q, local, seed=[0, 1])
  # One site has 2 atoms. One of them is the joint value, so there are 5 points.
  assert numbers == [3, 3]


@pytest.fixture
def run_eagerly():
  """Runs eagerly, for tests whose few gradients take less time than a trace."""
  tf.config.run_functions_eagerly(True)
  yield
  tf.config.run_functions_eagerly(False)


def test_evaluations_of_all_expectations_are_added_up(run_eagerly):
  logits = tf.Variable(LOGITS)
  plain, summed = loss_of(reinforce(), logits), loss_of(reinforce(2), logits)
  loss = lambda seed: plain(seed) + summed(seed)
  found = diagnostics.sampled_moments(loss, [logits], num_pairs=2)
  assert found.num_evaluations == 1 + 3


def test_evaluations_inside_of_a_function_are_not_seen():
  logits = tf.Variable(LOGITS)
  loss = tf.function(loss_of(reinforce(), logits), autograph=False)
  found = diagnostics.sampled_moments(loss, [logits], num_pairs=2)
  assert found.num_evaluations is None


# The mass of the rest.


def test_rest_mass_is_what_is_left_of_the_sorted_probabilities():
  logits = np.random.default_rng(0).normal(size=[2, 3, 6])
  q = tfd.Categorical(logits=tf.constant(logits))
  actual = diagnostics.rest_mass(q, 6).numpy()
  for row in np.ndindex(2, 3):
    ordered = np.sort(reference.softmax(logits[row]))[::-1]
    expected = [np.sum(ordered[k:]) for k in range(7)]
    np.testing.assert_allclose(actual[(slice(None), *row)], expected, atol=ATOL)


def test_rest_mass_of_a_small_rest_is_no_difference():
  q = tfd.Categorical(logits=[40.0, 0.0, 1.0])
  actual = diagnostics.rest_mass(q, 2)
  expected = [1.0, np.exp(-40.0) * (1.0 + np.e), np.exp(-40.0)]
  np.testing.assert_allclose(actual, expected, rtol=1e-5)


def test_rest_mass_of_a_countable_family():
  actual = diagnostics.rest_mass(tfd.Geometric(probs=np.float64(0.25)), 10)
  np.testing.assert_allclose(actual, 0.75 ** np.arange(11.0), rtol=1e-10)


def test_rest_mass_needs_as_many_values():
  with raises(ValueError, 'num_summed'):
    diagnostics.rest_mass(tfd.Categorical(logits=LOGITS), 5)


# The propositions.


@pytest.mark.parametrize(
  ('budget', 'size', 'most'), [(None, 3, 3), (2, 3, 1), (3, 2, 2)]
)
def test_bounds_are_those_of_the_paper(budget, size, most):
  rows = diagnostics.variance_bounds(
    tfp_rb.REINFORCE(), fixed_problem, [LOGITS[:size]], budget=budget
  )
  naive = naive_fixed_problem(LOGITS[:size], COST[:size])
  plain = reference.conditional_variance(naive, range(size))
  assert [row.num_summed for row in rows] == list(range(most + 1))
  for row in rows:
    _, rest = naive.most_probable(row.num_summed)
    mass = sum(naive.q[z] for z in rest)
    num_draws = 1 if budget is None else budget - row.num_summed
    assert row.num_samples == (num_draws if rest else 0)
    share = 1.0 / max(row.num_samples, 1)
    variance = mass**2 * reference.conditional_variance(naive, rest)
    np.testing.assert_allclose(row.rest_mass, mass, atol=ATOL)
    np.testing.assert_allclose(row.variance, share * variance, atol=ATOL)
    np.testing.assert_allclose(row.bound, share * mass * plain, atol=ATOL)


def test_variance_of_several_draws_is_that_of_the_estimator():
  rows = diagnostics.variance_bounds(
    tfp_rb.REINFORCE(baselines.IndependentSample()), problem, [LOGITS], budget=2
  )
  for row in rows:
    estimator = reinforce(
      row.num_summed, row.num_samples, baselines.IndependentSample()
    )
    direct = diagnostics.exact_moments(estimator, problem, [LOGITS])
    np.testing.assert_allclose(row.variance, direct.variance, atol=ATOL)


@pytest.mark.parametrize(
  'estimator',
  [
    tfp_rb.REINFORCE(baselines.IndependentSample()),
    Doubled(),
  ],
  ids=['independent', 'biased'],
)
def test_bounds_hold_where_the_paper_says(estimator):
  rows = diagnostics.variance_bounds(estimator, problem, [LOGITS], budget=2)
  for row in rows:
    assert row.variance <= row.bound + ATOL
  # Proposition 2 says that the choice is no worse than as many plain draws.
  chosen = min(rows, key=lambda row: row.bound)
  assert chosen.variance <= rows[0].variance + ATOL


def test_noise_of_each_atom_breaks_the_bounds():
  estimator = tfp_rb.REINFORCE(baselines.IndependentSample(shared=False))
  rows = diagnostics.variance_bounds(estimator, fixed_problem, [LOGITS[:2]])
  assert rows[-1].variance > rows[-1].bound == 0.0


@pytest.mark.parametrize(
  'baseline',
  [baselines.IndependentSample(shared=False), baselines.LeaveOneOut()],
  ids=['own', 'leave_one_out'],
)
def test_a_budget_needs_draws_that_share_the_variance_of_one(baseline):
  with raises(ValueError, 'budget'):
    diagnostics.variance_bounds(
      tfp_rb.REINFORCE(baseline=baseline), problem, [LOGITS], budget=3
    )


def test_bounds_refuse_a_countable_support():
  case = lambda x: (
    lambda z: z,
    tfd.Poisson(log_rate=tf.reduce_sum(x, axis=-1)),
  )
  with raises(ValueError, 'problem'):
    diagnostics.variance_bounds(reinforce(), case, [LOGITS])


def test_bounds_refuse_a_batch():
  with raises(ValueError, 'problem'):
    diagnostics.variance_bounds(
      tfp_rb.REINFORCE(), problem, [np.stack([LOGITS, LOGITS])]
    )


def test_bounds_need_a_single_draw():
  with raises(ValueError, 'num_samples'):
    diagnostics.variance_bounds(
      tfp_rb.REINFORCE(num_samples=2), problem, [LOGITS]
    )


# Comparisons.


def moments_with(variance=1.0, num_evaluations=1):
  return diagnostics.GradientMoments(
    mean=[],
    variance=variance,
    interval=(0.9 * variance, 1.1 * variance),
    bias=0.25,
    bias_interval=(0.2, 0.3),
    num_evaluations=num_evaluations,
    is_exact=False,
  )


def test_rows_are_ordered_by_variance_times_evaluations():
  plain, summed, exact = reinforce(), reinforce(1), tfp_rb.Exact()
  of = {
    plain: moments_with(variance=5.0, num_evaluations=1),
    summed: moments_with(variance=2.0, num_evaluations=2),
    exact: moments_with(variance=0.0, num_evaluations=4),
  }
  names = {'plain': plain, 'summed': summed, 'Exact': exact}
  rows = diagnostics.compare(names, lambda estimator: of[estimator])
  assert [row.name for row in rows] == ['Exact', 'summed', 'plain']
  assert [row.product for row in rows] == [0.0, 4.0, 5.0]
  for row in rows:
    moments = of[names[row.name]]
    for field in ('num_evaluations', 'variance', 'interval', 'bias'):
      assert getattr(row, field) == getattr(moments, field)


def test_comparison_of_draws_is_that_of_a_model():
  logits = tf.Variable(LOGITS)
  rows = diagnostics.compare(
    {'plain': reinforce(num_samples=2), 'summed': reinforce(1)},
    lambda e: diagnostics.sampled_moments(
      loss_of(e, logits), [logits], num_pairs=50
    ),
  )
  assert [row.name for row in rows] == ['summed', 'plain']
  assert [row.num_evaluations for row in rows] == [2, 2]
  assert rows[0].interval[1] < rows[1].interval[0]


def test_compare_takes_any_mapping():
  estimators = types.MappingProxyType({'plain': reinforce()})
  rows = diagnostics.compare(estimators, lambda e: moments_with())
  assert [row.name for row in rows] == ['plain']


@pytest.mark.parametrize(
  ('estimators', 'measured', 'kind', 'argument'),
  [
    ({}, moments_with, ValueError, 'estimators'),
    ([reinforce()], moments_with, ValueError, 'estimators'),
    (
      {'a': reinforce()},
      lambda e: 1.0,
      TypeError,
      'measure',
    ),
    (
      {'a': reinforce()},
      lambda e: moments_with(num_evaluations=None),
      ValueError,
      'measure',
    ),
  ],
  ids=['empty', 'list', 'number', 'unseen'],
)
def test_arguments_of_compare_are_checked(estimators, measured, kind, argument):
  with raises(kind, argument):
    diagnostics.compare(estimators, measured)


# Plots.


@pytest.fixture
def ax():
  figure, ax = plt.subplots()
  yield ax
  plt.close(figure)


def comparison(name, calls, variance):
  return diagnostics.Comparison(
    name, calls, variance, (0.5 * variance, 2.0 * variance), None,
    product=calls * variance,
  )  # fmt: skip


def looks(ax):
  """Returns the properties that tell the lines apart without colors."""
  lines = [line for line in ax.get_lines() if line.get_marker() not in '|_']
  return [(line.get_marker(), line.get_linestyle()) for line in lines]


def test_variances_are_plotted_by_name(ax):
  names = [f'estimator {i}' for i in range(10)]
  rows = [
    comparison(name, calls, 1.0 / (i + calls))
    for i, name in enumerate(names)
    for calls in (4, 2)
  ]
  assert diagnostics.plot_variance(rows, ax=ax) is ax
  assert [t.get_text() for t in ax.get_legend().get_texts()] == names
  data = [c.lines[0].get_xydata() for c in ax.containers]
  np.testing.assert_allclose(data[1], [[2.0, 1.0 / 3.0], [4.0, 0.2]])
  assert len(set(looks(ax))) == 10
  assert (ax.get_yscale(), ax.get_xlabel()) == ('log', 'evaluations of f')
  assert 'variance of the gradient' in ax.get_ylabel()


def test_variances_at_equal_evaluations_are_plotted_row_by_row(ax):
  rows = [comparison('summed', 6, 0.1), comparison('plain', 6, 1.0)]
  assert diagnostics.plot_variance(rows, ax=ax) is ax
  names = [label.get_text() for label in ax.get_yticklabels()]
  assert names == ['summed', 'plain']
  data = [c.lines[0].get_xydata()[0] for c in ax.containers]
  np.testing.assert_allclose(data, [[0.1, 0.0], [1.0, 1.0]])
  assert ax.get_xscale() == 'log' and '6 evaluations' in ax.get_xlabel()
  assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first one is on top


def test_no_variance_has_a_place_on_the_plot(ax):
  rows = [comparison('plain', 2, 1.0), comparison('Exact', 4, 0.0)]
  rows += [comparison('summed', 3, 1e-3), comparison('better', 3, 1e-4)]
  diagnostics.plot_variance(rows, ax=ax)
  assert ax.get_yscale() == 'symlog'
  height = lambda y: ax.transData.transform((3.0, y))[1]
  gap = height(1.0) - height(1e-3)
  assert height(1e-3) - height(1e-4) == pytest.approx(gap / 3, rel=0.01)
  assert height(1e-4) - height(0.0) > 0.1 * gap


def test_masses_are_plotted_line_by_line(ax):
  one = diagnostics.rest_mass(tfd.Categorical(logits=LOGITS), 4)
  many = diagnostics.rest_mass(
    tfd.Categorical(logits=np.stack([LOGITS, 0.0 * LOGITS])), 4
  )
  assert diagnostics.plot_mass(one, ax=ax, label='one') is ax
  diagnostics.plot_mass(many, ax=ax, label='many')
  first, second = ax.get_lines()
  np.testing.assert_allclose(first.get_ydata(), one)
  np.testing.assert_allclose(second.get_ydata(), np.mean(many, axis=1))
  assert len(ax.collections) == 1  # this is the range of the batch
  assert len(set(looks(ax))) == 2
  assert ax.get_xlabel() == 'k, summed values'
  assert ax.get_ylabel() == 'q(rest), probability'


def test_bounds_are_plotted_beside_the_variances(ax):
  rows = [
    diagnostics.VarianceBound(k, 1, 1.0 / (k + 1), 1.0 / (k + 2), 1.0 / (k + 1))
    for k in range(3)
  ]
  assert diagnostics.plot_bounds(rows, ax=ax) is ax
  variance, bound = ax.get_lines()
  np.testing.assert_allclose(variance.get_ydata(), [r.variance for r in rows])
  np.testing.assert_allclose(bound.get_ydata(), [r.bound for r in rows])
  assert len(set(looks(ax))) == 2


@pytest.mark.parametrize('name', ['plot_variance', 'plot_mass', 'plot_bounds'])
def test_a_plot_without_matplotlib_says_so(name, monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib.pyplot', None)
  with raises(ImportError, 'matplotlib'):
    getattr(diagnostics, name)([])
