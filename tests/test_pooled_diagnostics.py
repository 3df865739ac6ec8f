"""Diagnostics of pooled budgets: evaluations, comparisons, suggestions."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import tfp_rb
from tfp_rb import baselines, diagnostics

tfd = tfp.distributions

RTOL = 1e-10
COST = np.array([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0]])
LOGITS = np.array([[0.0, 1.0, 2.0], [6.0, 0.0, 0.5]])


def by_rows(z, rows):
  return tf.gather_nd(tf.constant(COST), tf.stack([rows, z], axis=-1))


def by_batch(z):
  return tf.reduce_sum(tf.one_hot(z, 3, dtype=tf.float64) * COST, axis=-1)


# One `f` for all estimators.


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
    (tfp_rb.pooled(budget=100), 3.0),  # all values of both rows
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
  # One seed, and intervals that hold 19 times of 20.
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
