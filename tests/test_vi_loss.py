# SPDX-License-Identifier: Apache-2.0
"""The variational loss of a single discrete distribution."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import WithDraws
from modes import modes_of
import tfp_rb
from tfp_rb import baselines

tfd = tfp.distributions

LOGITS = np.array([[0.3, -0.2, 0.5], [1.5, 0.0, -1.0]])
TARGET = np.array([[0.1, 1.0, -0.4], [0.2, -0.3, 0.7]])
SEED = (3, 1)
DISCREPANCIES = [
  'kl_reverse',
  'kl_forward',
  'jensen_shannon',
  'arithmetic_geometric',
  'total_variation',
  'pearson',
  'squared_hellinger',
  'triangular',
  'log1p_abs',
  'jeffreys',
  'chi_square',
  'modified_gan',
  'amari_alpha',
]


def loss_of(target, q, **kwargs):
  return tfp_rb.vi.monte_carlo_variational_loss(target, q, **kwargs)


def table(scores):
  """Returns a target with a log-density for each row and class: `[m, rows]`."""

  def target(z):
    scores_ = tf.broadcast_to(scores, [z.shape[0], *scores.shape])
    return tf.gather(scores_, z, batch_dims=z.shape.rank)

  return target


def written_out(discrepancy_fn, logits, scores):
  log_q = tf.nn.log_softmax(logits)
  return tf.reduce_sum(tf.exp(log_q) * discrepancy_fn(scores - log_q), axis=-1)


# Comparison with the sum over all values.


@pytest.mark.parametrize(
  'estimator',
  [
    None,
    tfp_rb.Exact(),
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2),
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), budget=2),
  ],
  ids=['default', 'exact', 'draws', 'budget'],
)
def test_a_target_of_rows_is_the_same_target_without_a_pool(estimator):
  logits, scores = tf.Variable(LOGITS), tf.constant(TARGET)

  def by_rows(z, rows):
    return tf.gather_nd(scores, tf.stack([rows, z], axis=-1))

  results = []
  for target in (table(scores), by_rows):
    with tf.GradientTape() as tape:
      loss = loss_of(
        target,
        tfd.Categorical(logits=logits),
        gradient_estimator=estimator,
        seed=SEED,
      )
    results.append((loss, tape.gradient(loss, logits)))
  for expected, actual in zip(*results):
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize('name', DISCREPANCIES)
def test_value_and_gradients_are_those_of_the_sum(name):
  discrepancy_fn = getattr(tfp.vi, name)
  logits, scores = tf.Variable(LOGITS), tf.Variable(TARGET)
  with tf.GradientTape(persistent=True) as tape:
    actual = loss_of(
      table(scores),
      tfd.Categorical(logits=logits),
      discrepancy_fn=discrepancy_fn,
      gradient_estimator=tfp_rb.Exact(),
    )
    expected = written_out(discrepancy_fn, logits, scores)
  np.testing.assert_allclose(actual, expected, atol=1e-12)
  for variable in (logits, scores):
    np.testing.assert_allclose(
      tape.gradient(actual, variable),
      tape.gradient(expected, variable),
      atol=1e-12,
    )


def scripted(loss_fn, estimator, variables, probs):
  """Returns expected value and gradients over all outcomes, one by one."""
  slots = []

  def count(part, num_draws):
    slots.append(num_draws)
    return part.sample_rest(num_draws, tf.constant([0, 0]))

  loss_fn(WithDraws(estimator, count))
  totals = [0.0] * (1 + len(variables))
  for outcome in itertools.product(range(len(probs)), repeat=sum(slots)):
    left, weight = iter(outcome), 1.0

    def script(part, num_draws, left=left):
      nonlocal weight
      chosen = [next(left) for _ in range(num_draws)]
      rest = np.array(probs)
      rest[np.asarray(part.values)] = 0.0
      weight *= np.prod(rest[chosen] / np.sum(rest))
      return tf.constant(chosen, tf.int32)

    with tf.GradientTape() as tape:
      loss = loss_fn(WithDraws(estimator, script))
    if weight:
      results = [loss, *tape.gradient(loss, variables)]
      totals = [t + weight * np.asarray(r) for t, r in zip(totals, results)]
  return totals


BASELINES = [
  (None, 0, 1),
  (None, 1, 2),
  (baselines.LeaveOneOut(), 0, 2),
  (baselines.LeaveOneOut(), 1, 2),
  (baselines.LeaveOneOut(), 1, 1),
  (baselines.IndependentSample(), 1, 1),
  (2.0, 1, 1),
]


@pytest.mark.parametrize(
  ('name', 'baseline', 'num_summed', 'num_samples'),
  [
    *(('kl_reverse', *row) for row in BASELINES),
    *(('kl_forward', *row) for row in BASELINES),
    # This is the sum of the other two, so two rows are enough.
    ('jeffreys', None, 0, 1),
    ('jeffreys', baselines.LeaveOneOut(), 1, 1),
    *(
      pytest.param('jeffreys', *row, marks=pytest.mark.slow)
      for row in BASELINES
      if row[2] == 2 or row[0] in (2.0, BASELINES[5][0])
    ),
  ],
  ids=str,
)
def test_unbiased(name, baseline, num_summed, num_samples):
  discrepancy_fn = getattr(tfp.vi, name)
  logits, scores = tf.Variable(LOGITS[0]), tf.Variable(TARGET[0])
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples),
    num_summed=num_summed,
  )
  actual = scripted(
    lambda with_draws: loss_of(
      table(scores),
      tfd.Categorical(logits=logits),
      discrepancy_fn=discrepancy_fn,
      gradient_estimator=with_draws,
      seed=SEED,
    ),
    estimator,
    [logits, scores],
    tf.nn.softmax(logits).numpy(),
  )
  with tf.GradientTape() as tape:
    value = written_out(discrepancy_fn, logits, scores)
  expected = [value, *tape.gradient(value, [logits, scores])]
  for a, e in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, e, atol=1e-10)


# The variance is 0 at `q = p`.


def one_hot_target(log_p):
  return lambda z: tf.reduce_sum(z * log_p, axis=-1)


AT_TARGET = {
  'REINFORCE': tfp_rb.REINFORCE(num_samples=3),
  'summed': tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1),
  'leave_one_out': tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2), num_summed=2
  ),
  'budget': tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), budget=2),
}


@pytest.mark.parametrize(
  ('name', 'estimator'),
  [(name, 'summed') for name in DISCREPANCIES[1:]]
  + [
    (name, e)
    for name in ('kl_reverse', 'jeffreys')
    for e in AT_TARGET
    if (name, e) != ('jeffreys', 'summed')
  ],
)
def test_no_gradient_at_the_target_whatever_is_drawn(name, estimator):
  logits = tf.Variable(np.tile(LOGITS, [40, 1]))
  log_p = tf.nn.log_softmax(tf.constant(logits))
  with tf.GradientTape() as tape:
    loss = loss_of(
      table(log_p),
      tfd.Categorical(logits=logits),
      discrepancy_fn=getattr(tfp.vi, name),
      gradient_estimator=AT_TARGET[estimator],
      seed=SEED,
    )
  np.testing.assert_allclose(tape.gradient(loss, logits), 0.0, atol=1e-13)


@pytest.mark.parametrize(
  'estimator',
  [
    tfp_rb.MuProp(),
    tfp_rb.rao_blackwellize(tfp_rb.REBAR(0.5), num_summed=1),
    tfp_rb.DARN(),
  ],
  ids=['MuProp', 'REBAR', 'DARN'],
)
def test_no_gradient_at_the_target_for_estimators_that_differentiate(estimator):
  logits = tf.Variable(np.tile(LOGITS, [20, 1]))
  log_p = tf.nn.log_softmax(tf.constant(logits))
  with tf.GradientTape() as tape:
    q = tfd.OneHotCategorical(logits=logits, dtype=tf.float64)
    loss = loss_of(
      one_hot_target(log_p), q, gradient_estimator=estimator, seed=SEED
    )
  np.testing.assert_allclose(tape.gradient(loss, logits), 0.0, atol=1e-13)


def test_rebar_sees_how_log_q_varies_with_relaxed_atoms():
  # The test uses draws. It finds a bias of 3 % of the gradient with probability
  # .99, and fails by chance with probability 1e-6.
  num_copies = 150_000
  logits = tf.Variable(np.tile(LOGITS[:1], [num_copies, 1]))
  log_p = tf.constant(TARGET[0])
  with tf.GradientTape() as tape:
    q = tfd.OneHotCategorical(logits=logits, dtype=tf.float64)
    loss = loss_of(
      one_hot_target(log_p),
      q,
      gradient_estimator=tfp_rb.REBAR(0.5),
      seed=SEED,
    )
  gradients = tape.gradient(loss, logits).numpy()
  one = tf.constant(LOGITS[0])
  with tf.GradientTape() as tape:
    tape.watch(one)
    value = written_out(tfp.vi.kl_reverse, one, log_p)
  exact = tape.gradient(value, one).numpy()
  error = np.std(gradients, axis=0) / np.sqrt(num_copies)
  threshold = 5.1  # a quantile of the normal law, for three numbers
  assert np.max((threshold + 2.4) * error) < 0.03 * np.max(np.abs(exact))
  assert np.all(np.abs(np.mean(gradients, axis=0) - exact) < threshold * error)


# The arguments.


@pytest.mark.parametrize('exact', [False, True])
def test_exact_entropy_gives_the_same_loss(exact):
  logits = tf.Variable(LOGITS)
  with tf.GradientTape(persistent=True) as tape:
    actual = loss_of(
      table(tf.constant(TARGET)),
      tfd.Categorical(logits=logits),
      gradient_estimator=tfp_rb.rao_blackwellize(
        tfp_rb.REINFORCE(), num_summed=3
      ),
      exact_entropy=exact,
    )
    expected = written_out(tfp.vi.kl_reverse, logits, TARGET)
  np.testing.assert_allclose(actual, expected, atol=1e-12)
  np.testing.assert_allclose(
    tape.gradient(actual, logits), tape.gradient(expected, logits), atol=1e-12
  )


def test_exact_entropy_is_not_estimated():
  # With a constant target, only the entropy is left.
  q = tfd.Categorical(logits=LOGITS)
  loss = loss_of(
    lambda z: tf.zeros(z.shape, tf.float64), q, exact_entropy=True, seed=SEED
  )
  np.testing.assert_allclose(loss, -q.entropy(), atol=1e-12)


@pytest.mark.parametrize(
  ('estimator', 'sample_size', 'num_atoms'),
  [
    (None, None, 3),
    (None, 5, 6),
    (tfp_rb.REINFORCE(num_samples=4), None, 4),
    (tfp_rb.REINFORCE(num_samples=4), 2, 2),
    (tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=2), 4, 6),
    (tfp_rb.Exact(), 4, 10),
  ],
  ids=str,
)
def test_sample_size_is_the_number_of_draws(estimator, sample_size, num_atoms):
  sizes = []

  def target(z):
    sizes.append(z.shape[0])
    return tf.zeros(z.shape)

  loss_of(
    target,
    tfd.Categorical(logits=tf.zeros([2, 10])),
    sample_size=sample_size,
    gradient_estimator=estimator,
    seed=SEED,
  )
  assert sizes == [num_atoms]


def test_sample_size_leaves_the_estimator_as_it_was_and_shares_its_variables():
  estimator = tfp_rb.REINFORCE(baselines.Learned(1.0))
  with tf.GradientTape() as tape:
    loss = loss_of(
      lambda z: tf.zeros(z.shape),
      tfd.Categorical(logits=tf.zeros([10])),
      sample_size=3,
      gradient_estimator=estimator,
      seed=SEED,
    )
  assert estimator.num_samples == 1
  assert tape.gradient(loss, estimator.trainable_variables)[0] is not None


def test_a_product_goes_site_by_site_unless_told_otherwise():
  sizes = []

  def target(z):
    sizes.append(z.shape[0])
    return tf.zeros(z.shape[:1])

  q = tfd.Independent(tfd.Categorical(logits=tf.zeros([7, 10])), 1)
  loss_of(target, q, seed=SEED)
  assert sizes == [7 * (10 - 1) + 1]  # all symbols of each site are summed
  sizes.clear()
  many = tfd.Independent(tfd.Categorical(logits=tf.zeros([7, 20])), 1)
  loss_of(target, many, seed=SEED)
  # If a site has too many symbols, only the best are summed.
  assert sizes == [7 * (8 + 2 - 1) + 1]
  # If the target has one term for each site, the sites are the batch.
  sizes.clear()
  target_of_sites = lambda z: (sizes.append(z.shape[0]), tf.zeros(z.shape))[1]
  loss_of(target_of_sites, q.distribution, seed=SEED)
  assert sizes == [3]


def test_target_may_take_a_seed():
  seeds = []

  def target(z, seed):
    seeds.append(seed)
    return tf.zeros(z.shape)

  loss_of(target, tfd.Categorical(logits=tf.zeros([3])), seed=SEED)
  assert seeds[0].shape == [2]


def test_eager_graph_and_xla_agree():
  def run(seed):
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = loss_of(
        table(tf.constant(TARGET)),
        tfd.Categorical(logits=logits),
        discrepancy_fn=tfp.vi.kl_forward,
        seed=seed,
      )
    return loss, tape.gradient(loss, logits)

  seed = tf.constant(SEED)
  modes = modes_of(run, seed)
  for mode in ('graph', 'xla'):
    for actual, expected in zip(modes[mode](seed), run(seed), strict=True):
      np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_a_value_the_target_excludes_costs_infinitely_much():
  target = lambda z: tf.math.log(tf.cast(z > 0, tf.float64))
  for discrepancy_fn in (tfp.vi.kl_reverse, tfp.vi.jeffreys):
    loss = loss_of(
      target,
      tfd.Categorical(logits=LOGITS[0]),
      discrepancy_fn=discrepancy_fn,
      gradient_estimator=tfp_rb.Exact(),
    )
    assert loss.numpy() == np.inf


@pytest.mark.parametrize(
  'name', ['kl_forward', 'jensen_shannon', 'amari_alpha']
)
def test_where_an_excluded_value_costs_little_there_is_no_nan(name):
  discrepancy_fn = getattr(tfp.vi, name)
  logits = tf.Variable(LOGITS[0])
  results = []
  for excluded in (-np.inf, -80.0):
    scores = tf.constant([excluded, 1.0, -0.4], tf.float64)
    with tf.GradientTape() as tape:
      loss = loss_of(
        table(scores),
        tfd.Categorical(logits=logits),
        discrepancy_fn=discrepancy_fn,
        gradient_estimator=tfp_rb.Exact(),
      )
    results.append(np.append(loss, tape.gradient(loss, logits)))
  np.testing.assert_allclose(*results, atol=1e-10)


# TFP handles a continuous surrogate.


@pytest.mark.parametrize('sample_size', [None, 4])
@pytest.mark.parametrize('importance_sample_size', [1, 3])
def test_continuous_surrogate_has_the_loss_of_tfp(
  sample_size, importance_sample_size
):
  q = tfd.Normal([0.0, 1.0], 2.0)
  target = tfd.Normal(1.0, 1.0).log_prob
  kwargs = {
    'importance_sample_size': importance_sample_size,
    'seed': tf.constant(SEED),
  }
  actual = loss_of(target, q, sample_size=sample_size, **kwargs)
  expected = tfp.vi.monte_carlo_variational_loss(
    target,
    q,
    sample_size=sample_size or 1,
    gradient_estimator=tfp.vi.GradientEstimators.REPARAMETERIZATION,
    **kwargs,
  )
  np.testing.assert_array_equal(actual, expected)


def test_continuous_surrogate_may_have_an_exact_entropy():
  q = tfd.Normal([0.0, 1.0], 2.0)
  loss = loss_of(tf.zeros_like, q, exact_entropy=True, seed=SEED)
  np.testing.assert_allclose(loss, -q.entropy(), rtol=1e-6)


# Errors.

Q = tfd.Categorical(logits=[[0.0, 1.0], [0.0, 2.0]])
ZERO = lambda z: tf.zeros(z.shape)


@pytest.mark.parametrize(
  ('result', 'kind'),
  [
    (lambda z: tf.zeros([]), ValueError),
    (lambda z: tf.zeros([3]), ValueError),
    (lambda z: tf.zeros([2, 3]), ValueError),
    (lambda z: z, TypeError),
    (lambda z: None, TypeError),
  ],
  ids=['scalar', 'no_batch', 'transposed', 'integers', 'none'],
)
def test_target_must_return_one_number_for_each_atom(result, kind):
  with raises(kind, 'target_log_prob_fn'):
    loss_of(result, Q, sample_size=2)


@pytest.mark.parametrize('size', [0, 2])
def test_importance_weighted_bounds_are_refused(size):
  with raises(ValueError, 'importance_sample_size'):
    loss_of(ZERO, Q, importance_sample_size=size)


@pytest.mark.parametrize(
  ('kwargs', 'kind', 'argument'),
  [
    (
      {'discrepancy_fn': tfp.vi.kl_forward, 'exact_entropy': True},
      ValueError,
      'exact_entropy',
    ),
    (
      {'exact_entropy': True, 'stopped_surrogate_posterior': Q},
      ValueError,
      'stopped_surrogate_posterior',
    ),
    (
      {
        'discrepancy_fn': tfp.vi.kl_forward,
        'stopped_surrogate_posterior': Q,
      },
      ValueError,
      'stopped_surrogate_posterior',
    ),
    (
      {'discrepancy_fn': 3},
      TypeError,
      'discrepancy_fn',
    ),
    (
      {'gradient_estimator': tfp.vi.GradientEstimators.SCORE_FUNCTION},
      TypeError,
      'gradient_estimator',
    ),
    (
      {'gradient_estimator': 'REINFORCE'},
      TypeError,
      'gradient_estimator',
    ),
    (
      {'sample_size': 0},
      ValueError,
      'sample_size',
    ),
    (
      {
        'sample_size': 2,
        'gradient_estimator': tfp_rb.rao_blackwellize(
          tfp_rb.REINFORCE(), budget=2
        ),
      },
      ValueError,
      'sample_size',
    ),
    (
      {
        'discrepancy_fn': tfp.vi.kl_forward,
        'gradient_estimator': tfp_rb.rao_blackwellize(
          tfp_rb.REBAR(0.5), num_summed=1
        ),
      },
      ValueError,
      'gradient_estimator',
    ),
  ],
  ids=[
    'entropy',
    'entropy_stopped',
    'stopped',
    'discrepancy',
    'enum',
    'string',
    'no_samples',
    'budget',
    'REBAR',
  ],
)
def test_arguments_that_do_not_go_together(kwargs, kind, argument):
  with raises(kind, argument):
    loss_of(ZERO, Q, **kwargs)


def test_target_and_surrogate_must_be_what_they_are():
  with raises(TypeError, 'target_log_prob_fn'):
    loss_of(3, Q)
  with raises(TypeError, 'surrogate_posterior'):
    loss_of(ZERO, [Q])


def test_an_estimator_must_be_passed_by_its_name():
  with raises(TypeError, 'gradient_estimator'):
    tfp_rb.vi.monte_carlo_variational_loss(ZERO, Q, tfp_rb.Exact())


def test_a_named_tuple_is_passed_whole_a_list_is_spread():
  pair = collections.namedtuple('pair', 'a b')
  q = tfd.JointDistributionNamed(
    pair(a=tfd.Bernoulli(0.0), b=tfd.Bernoulli(1.0))
  )
  loss = loss_of(lambda z: tf.zeros(z.a.shape) * tf.cast(z.b, tf.float32), q)
  assert loss.shape == []
