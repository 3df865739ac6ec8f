# SPDX-License-Identifier: Apache-2.0
"""Diagnostics of pooled budgets: evaluations, comparisons, suggestions."""

import sys

import matplotlib
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import internals
import tfp_rb
from tfp_rb import baselines, diagnostics

matplotlib.use('Agg')
import matplotlib.pyplot as plt

tfd = tfp.distributions

RTOL = 1e-10
COST = np.array([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0]])
LOGITS = np.array([[0.0, 1.0, 2.0], [6.0, 0.0, 0.5]])


def by_rows(z, rows):
  return tf.gather_nd(tf.constant(COST), tf.stack([rows, z], axis=-1))


def by_batch(z):
  return tf.reduce_sum(tf.one_hot(z, 3, dtype=tf.float64) * COST, axis=-1)


# All estimators share one `f`.


@pytest.mark.parametrize(
  'estimator',
  [
    tfp_rb.Exact(),
    tfp_rb.REINFORCE(num_samples=3),
    tfp_rb.REINFORCE(baselines.IndependentSample(), num_samples=2),
    tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baselines.LeaveOneOut()), budget=2
    ),
  ],
  ids=['Exact', 'REINFORCE', 'independent', 'budget'],
)
@pytest.mark.parametrize('batch_shape', [[], [2], [3, 2]])
def test_every_estimator_takes_a_function_of_rows(estimator, batch_shape):
  rng = np.random.default_rng(0)
  logits = tf.constant(rng.normal(size=[*batch_shape, 3]))
  cost = tf.constant(rng.normal(size=[*batch_shape, 3]))
  table = tf.reshape(cost, [-1, 3])
  num_rows = table.shape[0]

  def of_rows(z, rows):
    assert z.shape == rows.shape == [z.shape[0]]
    return tf.gather_nd(table, tf.stack([rows, z], axis=-1))

  def of_batch(z):
    one_hot = tf.one_hot(z, 3, dtype=tf.float64)
    return tf.reduce_sum(one_hot * cost, axis=-1)

  results = []
  for f in (of_rows, of_batch):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Categorical(logits=logits)
      value = tfp_rb.expectation(f, q, estimator, seed=[0, 1])
    results += [value, tape.gradient(value, logits)]
  assert results[0].shape == batch_shape and num_rows >= 1
  for a, b in zip(results[:2], results[2:], strict=True):
    np.testing.assert_allclose(a, b, rtol=RTOL)


def test_sites_take_a_function_of_rows():
  logits = tf.constant(np.random.default_rng(1).normal(size=[2, 4]))
  slopes = tf.constant([1.0, -2.0], tf.float64)
  q = tfd.Independent(tfd.Bernoulli(logits=logits, dtype=tf.float64), 1)
  local = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=2)

  def of_rows(z, rows):
    return tf.gather(slopes, rows) * tf.reduce_sum(z, axis=-1) ** 2

  def of_batch(z):
    return slopes * tf.reduce_sum(z, axis=-1) ** 2

  values = [
    tfp_rb.expectation(f, q, local, seed=[0, 1]) for f in (of_rows, of_batch)
  ]
  np.testing.assert_allclose(*values, rtol=RTOL)


def test_rows_of_a_batch_of_unknown_size_are_counted_at_run_time():
  @tf.function(
    autograph=False, input_signature=[tf.TensorSpec([None, 3], tf.float64)]
  )
  def run(logits):
    q = tfd.Categorical(logits=logits)
    return tfp_rb.expectation(by_rows, q, tfp_rb.Exact())

  expected = np.sum(tf.nn.softmax(LOGITS) * COST, axis=-1)
  np.testing.assert_allclose(run(tf.constant(LOGITS)), expected, rtol=RTOL)


@pytest.mark.parametrize(
  'f',
  [
    lambda z, rows: tf.zeros([4]),
    lambda z, rows: tf.zeros([z.shape[0], 1]),
    lambda z, rows: tf.zeros([3, 2]) if rows.shape == [3] else None,
  ],
)
def test_a_function_of_rows_must_return_one_number_for_each(f):
  q = tfd.Categorical(logits=LOGITS)
  with raises((TypeError, ValueError), 'f'):
    tfp_rb.expectation(f, q, tfp_rb.REINFORCE(num_samples=3), seed=[0, 1])


def test_rows_with_a_default_are_left_to_the_function():
  q = tfd.Categorical(logits=LOGITS)

  def f(z, rows=None):
    return by_batch(z) if rows is None else by_rows(z, rows)

  for estimator in (tfp_rb.Exact(), tfp_rb.pooled(budget=4)):
    assert tfp_rb.expectation(f, q, estimator, seed=[0, 1]).shape == [2]


# Evaluations.


def loss_of(estimator, logits):
  def loss(seed):
    q = tfd.Categorical(logits=logits)
    return tf.reduce_sum(tfp_rb.expectation(by_rows, q, estimator, seed=seed))

  return loss


@pytest.mark.parametrize(
  ('estimator', 'number'),
  [
    (tfp_rb.pooled(budget=3), 1.5),
    (tfp_rb.pooled(budget_per_row=2.0), 2.0),
    (tfp_rb.pooled(tfp_rb.REINFORCE(baseline=2.0), budget=5), 2.5),
    (tfp_rb.pooled(budget=100), 3.0),  # all values of both rows are evaluated
    (tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), budget=2), 2),
  ],
  ids=['budget', 'per_row', 'constant', 'all', 'summed'],
)
def test_evaluations_are_counted_for_each_row(estimator, number):
  logits = tf.Variable(LOGITS)
  found = diagnostics.sampled_moments(
    loss_of(estimator, logits), [logits], num_pairs=2
  )
  assert found.num_evaluations == number


def test_evaluations_of_pools_and_others_are_added_up():
  logits = tf.Variable(LOGITS)
  pooled = loss_of(tfp_rb.pooled(budget=3), logits)
  plain = loss_of(tfp_rb.REINFORCE(), logits)
  loss = lambda seed: pooled(seed) + plain(seed) + pooled(seed)
  found = diagnostics.sampled_moments(loss, [logits], num_pairs=2)
  assert found.num_evaluations == 4.0


def test_evaluations_of_a_pool_in_vi_are_counted():
  logits = tf.Variable(LOGITS)

  def loss(seed):
    return tf.reduce_sum(
      tfp_rb.vi.monte_carlo_variational_loss(
        lambda z, rows: by_rows(z, rows),
        tfd.Categorical(logits=logits),
        gradient_estimator=tfp_rb.pooled(budget=3),
        seed=seed,
      )
    )

  found = diagnostics.sampled_moments(loss, [logits], num_pairs=2)
  assert found.num_evaluations == 1.5


def test_a_pool_of_unknown_size_is_not_counted():
  logits = tf.Variable(LOGITS)

  def loss(seed):
    unknown = tf.compat.v1.placeholder_with_default(logits, [None, 3])
    q = tfd.Categorical(logits=unknown)
    estimator = tfp_rb.pooled(budget_per_row=2.0)
    return tf.reduce_sum(tfp_rb.expectation(by_rows, q, estimator, seed=seed))

  found = diagnostics.sampled_moments(loss, [logits], num_pairs=2)
  assert found.num_evaluations is None


def test_sampled_moments_of_a_pool_are_near_the_exact_ones():
  estimator = tfp_rb.pooled(budget=3)
  problem = lambda logits: (by_rows, tfd.Categorical(logits=logits))
  exact = diagnostics.exact_moments(estimator, problem, [LOGITS])
  logits = tf.Variable(LOGITS)
  found = diagnostics.sampled_moments(
    loss_of(estimator, logits),
    [logits],
    num_pairs=400,
    reference=exact.mean,
  )
  # The test uses one seed, and the intervals hold 19 times out of 20.
  assert found.interval[0] < exact.variance < found.interval[1]
  assert found.bias_interval[0] == 0.0
  assert found.num_evaluations == exact.num_evaluations


def test_a_pool_is_compared_with_a_budget_for_each_row():
  logits = tf.Variable(LOGITS)
  leave_one_out = tfp_rb.REINFORCE(baselines.LeaveOneOut())
  rows = diagnostics.compare(
    {
      'pooled': tfp_rb.pooled(budget_per_row=2.0),
      'per row': tfp_rb.rao_blackwellize(leave_one_out, budget=2),
    },
    lambda e: diagnostics.sampled_moments(
      loss_of(e, logits), [logits], num_pairs=20
    ),
  )
  assert [row.num_evaluations for row in rows] == [2.0, 2]
  assert [row.name for row in rows] == ['pooled', 'per row']
  assert rows[0].product == 2.0 * rows[0].variance


def test_a_pool_is_compared_with_others_exactly():
  problem = lambda logits: (by_rows, tfd.Categorical(logits=logits))
  leave_one_out = tfp_rb.REINFORCE(baselines.LeaveOneOut())
  rows = diagnostics.compare(
    {
      'pooled': tfp_rb.pooled(budget_per_row=2.0),
      'per row': tfp_rb.rao_blackwellize(leave_one_out, budget=2),
      'Exact': tfp_rb.Exact(),
    },
    lambda e: diagnostics.exact_moments(e, problem, [LOGITS]),
  )
  assert [row.name for row in rows] == ['Exact', 'pooled', 'per row']
  assert [row.num_evaluations for row in rows] == [3, 2.0, 2]
  assert max(row.bias for row in rows) < 1e-12
  assert rows[0].variance < 1e-20


def test_a_function_of_rows_without_a_batch_is_refused():
  problem = lambda logits: (by_rows, tfd.Categorical(logits=logits))
  with raises(ValueError, 'problem'):
    diagnostics.exact_moments(tfp_rb.REINFORCE(), problem, [LOGITS[0]])


# Suggestions.


def random_batch(rng, spreads):
  """Returns logits and costs of a batch; a row has one of several spreads."""
  num_rows, num_values = rng.integers(2, 9), rng.integers(3, 7)
  spread = rng.choice(spreads, size=[num_rows, 1])
  logits = spread * rng.normal(size=[num_rows, num_values])
  cost = rng.normal(size=[num_rows, num_values]) + rng.choice([0.0, 5.0])
  return logits, cost


def look_up(cost):
  def f(z, rows):
    return tf.gather_nd(tf.constant(cost), tf.stack([rows, z], axis=-1))

  return f


def suggest(logits, cost, budget):
  q = tfd.Categorical(logits=tf.constant(logits))
  return diagnostics.suggest(look_up(cost), q, budget)


def pool_of(table):
  (option,) = (o for o in table if o.estimator.takes_rows)
  return option


@pytest.mark.slow
def test_variances_of_a_batch_are_those_of_the_estimators():
  logits = np.reshape(MIXED, [2, 2, 4])  # this batch has rank 2
  problem = lambda x: (look_up(MIXED_COST), tfd.Categorical(logits=x))
  q = tfd.Categorical(logits=tf.constant(logits))
  table = diagnostics.suggest(look_up(MIXED_COST), q, budget=2).table
  assert len(table) == 7
  for option in table:
    moments = diagnostics.exact_moments(option.estimator, problem, [logits])
    np.testing.assert_allclose(option.variance, moments.variance, rtol=1e-8)
    assert moments.num_evaluations == 2


def enumerated_variance(option, problem, parameters):
  """Enumerates the variance of an option.

  If there are too many outcomes, returns the variance that `suggest` found.
  """
  outcomes = internals.enumerate_outcomes(
    option.estimator, problem, parameters, most_outcomes=500
  )
  if outcomes is None:
    return option.variance
  return internals.total_variance(outcomes)


@pytest.mark.slow
def test_suggestions_for_mixed_batches_are_near_the_best():
  rng = np.random.default_rng(19)
  num_pools = 0
  for _ in range(12):
    logits, cost = random_batch(rng, [0.1, 1.0, 3.0, 6.0])
    budget = int(rng.integers(2, logits.shape[1]))
    found = suggest(logits, cost, budget)
    variances = [o.variance for o in found.table if o.name != 'pooled']
    pools = [o for o in found.table if o.name == 'pooled']
    for pool in pools:
      problem = lambda x, cost=cost: (
        look_up(cost),
        tfd.Categorical(logits=x),
      )
      variances.append(enumerated_variance(pool, problem, [logits]))
      np.testing.assert_allclose(pool.variance, variances[-1], rtol=1e-8)
    assert found.variance <= 1.2 * min(variances) + 1e-12
    num_pools += found.estimator.takes_rows
  assert num_pools >= 3


@pytest.mark.parametrize('budget', [1.25, 2, 3, 5])
def test_a_pool_is_never_suggested_for_flat_rows(budget):
  rng = np.random.default_rng(20)
  for _ in range(25):
    logits, cost = random_batch(rng, [0.0, 0.1, 0.3])
    found = suggest(logits, cost, budget)
    assert not any(o.estimator.takes_rows for o in found.table)


@pytest.mark.parametrize('batch_shape', [[], [1], [1, 1]])
def test_a_pool_is_never_suggested_for_a_single_row(batch_shape):
  q = tfd.Categorical(logits=tf.reshape([5.0, 0.0, 1.0], [*batch_shape, 3]))
  found = diagnostics.suggest(lambda z: tf.cast(z, tf.float32), q, budget=2)
  assert not any(o.estimator.takes_rows for o in found.table)


def test_a_pool_is_not_suggested_where_everything_can_be_summed():
  found = suggest(LOGITS, COST, budget=3)
  assert isinstance(found.estimator, tfp_rb.Exact)
  assert not any(o.estimator.takes_rows for o in found.table)


def shared_problem(weights):
  features = tf.constant([[0.1, 3.0], [2.0, -1.0], [-4.0, 0.5]], tf.float64)
  cost = np.random.default_rng(3).normal(size=[3, 4]) + 1.0
  logits = tf.linalg.matmul(features, tf.reshape(weights, [2, 4]))
  return look_up(cost), tfd.Categorical(logits=logits)


def test_rows_of_a_pool_that_share_variables_are_correlated():
  weights = tf.Variable(np.random.default_rng(4).normal(size=[2, 4]))
  f, _ = shared_problem(weights)
  q = tfd.Categorical(
    logits=tfp.util.DeferredTensor(
      weights, lambda w: shared_problem(w)[1].logits, shape=[3, 4]
    )
  )
  pool = pool_of(diagnostics.suggest(f, q, budget=2).table)
  expected = enumerated_variance(pool, shared_problem, [weights])
  np.testing.assert_allclose(pool.variance, expected, rtol=1e-8)


MIXED = np.array([[9.0, 0, 0, 0], [0, 0.5, 0.5, 0], [7, 0, 0, 0], [8, 0, 1, 0]])
MIXED_COST = np.random.default_rng(5).normal(size=[4, 4])


def test_the_reason_of_a_pool_says_what_it_gains_and_what_it_needs():
  q = tfd.Categorical(logits=tf.constant(MIXED))

  def by_batch(z):
    one_hot = tf.one_hot(z, 4, dtype=tf.float64)
    return tf.reduce_sum(one_hot * MIXED_COST, axis=-1)

  found = diagnostics.suggest(by_batch, q, budget=2)
  best, second = found.table[:2]
  assert found.estimator is best.estimator and best.estimator.takes_rows
  assert found.num_summed is found.num_samples is None
  gain = f'{best.variance / second.variance:.2g} times that of the best option'
  assert found.reason.startswith('Pool the budget over the 4 rows')
  assert gain in found.reason and '`f(z, rows)`' in found.reason
  # An `f` that accepts the rows needs no change.
  same = suggest(MIXED, MIXED_COST, budget=2)
  assert same.variance == pytest.approx(found.variance)
  assert '`f(z, rows)`' not in same.reason


def test_only_a_pool_spends_a_fraction_of_an_evaluation():
  found = suggest(MIXED, MIXED_COST, budget=1.5)
  pool = pool_of(found.table)
  assert pool.estimator.budget_per_row == 1.5
  assert {o.num_samples for o in found.table if o is not pool} == {1}
  assert found.estimator is pool.estimator


@pytest.mark.slow
def test_the_variance_of_a_pool_of_many_values_is_an_estimate():
  rng = np.random.default_rng(6)
  logits = rng.choice([1.0, 8.0], size=[4, 1]) * rng.normal(size=[4, 100])
  logits[:2, 0] += 20.0
  cost = 5.0 + rng.normal(size=[4, 100])
  found = suggest(logits, cost, budget=3)
  assert found.estimator.takes_rows
  assert 'An estimate, from 1000 gradients' in found.reason
  variable = tf.Variable(logits)

  def loss(seed):
    q = tfd.Categorical(logits=variable)
    f = look_up(cost)
    return tf.reduce_sum(tfp_rb.expectation(f, q, found.estimator, seed=seed))

  low, high = diagnostics.sampled_moments(
    loss, [variable], num_pairs=300, seed=1
  ).interval
  assert 0.8 * low < found.variance < 1.2 * high


@pytest.mark.parametrize('budget', [0.5, np.inf, np.nan])
def test_a_budget_of_a_batch_is_at_least_one(budget):
  with raises(ValueError, 'budget'):
    suggest(LOGITS, COST, budget)


# Evaluations of each row.


def test_evaluations_of_rows_are_those_of_the_atoms():
  q = tfd.Categorical(logits=tf.reshape(tf.constant(MIXED), [2, 2, 4]))
  estimator = tfp_rb.pooled(budget_per_row=1.75)
  found = diagnostics.evaluations_per_row(q, estimator)
  assert found.shape == (2, 2)
  np.testing.assert_allclose(np.sum(found), 7.0)
  assert np.min(found) >= 1.0
  assert np.argmax(found) == 1  # the uncertain row gets most
  one = diagnostics.evaluations_per_row(q, estimator, num_estimates=1)
  assert set(one.ravel()) <= {1.0, 2.0, 3.0, 4.0} and np.sum(one) == 7.0


def test_evaluations_are_reproducible():
  q = tfd.Categorical(logits=tf.constant(LOGITS))
  estimator = tfp_rb.pooled(budget=3)
  first, second = (
    diagnostics.evaluations_per_row(q, estimator, 20, seed=(3, 4))
    for _ in range(2)
  )
  np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
  ('arguments', 'kind', 'argument'),
  [
    ({'estimator': tfp_rb.REINFORCE()}, ValueError, 'estimator'),
    ({'estimator': 3}, TypeError, 'estimator'),
    ({'distribution': tfd.Normal(0.0, 1.0)}, TypeError, 'distribution'),
    ({'num_estimates': 0}, ValueError, 'num_estimates'),
    ({'num_estimates': 2.0}, TypeError, 'num_estimates'),
  ],
  ids=['not_pooled', 'number', 'continuous', 'none', 'float'],
)
def test_arguments_of_evaluations_are_checked(arguments, kind, argument):
  given = {
    'distribution': tfd.Categorical(logits=LOGITS),
    'estimator': tfp_rb.pooled(budget=3),
  }
  with raises(kind, argument):
    diagnostics.evaluations_per_row(**{**given, **arguments})


def test_evaluations_are_plotted_row_by_row():
  figure, ax = plt.subplots()
  evaluations, masses = np.array([[1.0, 3.0], [2.0, 1.0]]), np.eye(2)
  for label in ('one', 'two'):
    found = diagnostics.plot_evaluations(evaluations, masses, ax, label)
    assert found is ax
  first, mean, second, _ = ax.get_lines()
  np.testing.assert_allclose(
    first.get_xydata(), [[1.0, 1.0], [0.0, 3.0], [0.0, 2.0], [1.0, 1.0]]
  )
  np.testing.assert_allclose(mean.get_ydata(), 1.75)
  assert first.get_marker() != second.get_marker()
  assert first.get_linestyle() == 'None'
  assert ax.get_xlabel() == '1 - q(best), probability'
  assert [t.get_text() for t in ax.get_legend().get_texts()] == ['one', 'two']
  plt.close(figure)


def test_a_plot_of_evaluations_shows_all_of_a_higher_second_series():
  figure, ax = plt.subplots()
  for number in (2.0, 8.0):
    diagnostics.plot_evaluations([1.0, number], [0.1, 0.9], ax, f'{number}')
  figure.draw_without_rendering()
  low, high = ax.get_ylim()
  assert low == 0.0 and high > 8.0
  plt.close(figure)


def test_a_plot_of_evaluations_needs_as_many_masses():
  with raises(ValueError, 'masses'):
    diagnostics.plot_evaluations(np.ones([3]), np.ones([2, 3]))


def test_a_plot_of_evaluations_needs_matplotlib(monkeypatch):
  monkeypatch.setitem(sys.modules, 'matplotlib.pyplot', None)
  with raises(ImportError, 'matplotlib'):
    diagnostics.plot_evaluations([1.0], [0.5])


def test_variances_at_fractions_of_an_evaluation_are_plotted():
  figure, ax = plt.subplots()
  rows = [
    diagnostics.Comparison('pooled', x, 1.0 / x, (0.5, 2.0), None, product=1.0)
    for x in (1.25, 1.5, 1.75)
  ]
  diagnostics.plot_variance(rows, ax=ax)
  low, high = ax.get_xlim()
  assert sum(low < tick < high for tick in ax.get_xticks()) > 2
  plt.close(figure)
