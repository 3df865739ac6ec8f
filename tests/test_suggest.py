# SPDX-License-Identifier: Apache-2.0
"""The suggested estimator is the best one, by enumeration of all outcomes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import internals
import reference
import tfp_rb
from tfp_rb import diagnostics

tfd = tfp.distributions

RTOL = 1e-10


def enumerated_variance(q, f, scores, k, num_draws, leave_one_out):
  """Returns the total variance over all tuples of draws, in NumPy.

  Args:
    q: Array of shape `[K]`, best first.
    f: Array of shape `[K]`.
    scores: Array of shape `[K, P]`.
    k: Python `int`, the number of summed values.
    num_draws: Python `int`.
    leave_one_out: Python `bool`.

  Returns:
    variance: Python `float`.
  """
  mass = np.sum(q[k:])
  tuples = np.indices([len(q) - k] * num_draws).reshape([num_draws, -1]).T + k
  chances = np.prod(q[tuples] / mass, axis=1)  # [T]
  drawn = f[tuples]  # [T, M]
  known, summed = q[:k] @ f[:k], np.sum(q[:k])
  if not leave_one_out:
    levels = np.zeros_like(drawn)
  elif num_draws == 1:
    levels = np.full_like(drawn, np.average(f[:k], weights=1.0 / q[:k]))
  else:
    others = (drawn.sum(axis=1, keepdims=True) - drawn) / (num_draws - 1)
    share = mass / (2.0 * (num_draws - 1) ** 2)
    levels = share * known + (1.0 - summed * share) * others
  advantage = np.zeros([len(tuples), len(q)])  # by value, [T, K]
  for j in range(num_draws):
    terms = mass / num_draws * (drawn[:, j] - levels[:, j])
    advantage[np.arange(len(tuples)), tuples[:, j]] += terms
  level = levels.mean(axis=1, keepdims=True)
  advantage[:, :k] += q[:k] * (f[:k] - level)
  gradients = advantage @ scores  # [T, P]
  mean = chances @ gradients
  return float(np.sum(chances @ (gradients - mean) ** 2))


def best_first(table):
  """Returns probabilities, best first, and their order."""
  q = np.array([p for _, p in table])
  order = np.argsort(-q, kind='stable')
  return q[order], order


def random_row(seed, num_values=5, num_scores=None):
  rng = np.random.default_rng(seed)
  q = np.sort(reference.softmax(1.5 * rng.normal(size=num_values)))[::-1]
  scores = None
  if num_scores is not None:
    scores = rng.normal(size=[num_values, num_scores])
    scores = scores - q @ scores
  return internals.ClosedFormRow(q, 3.0 + rng.normal(size=num_values), scores)


# The closed forms.


@pytest.mark.parametrize('num_scores', [None, 1, 3])
@pytest.mark.parametrize('leave_one_out', [False, True])
def test_closed_forms_are_the_variances_of_all_tuples(
  num_scores, leave_one_out
):
  for seed, k, m in itertools.product(range(3), range(4), range(1, 5)):
    if leave_one_out and k + m < 2:
      continue
    row = random_row(seed, num_scores=num_scores)
    scores = np.eye(5) - row.q if num_scores is None else row.scores
    np.testing.assert_allclose(
      internals.closed_form_variance(row, k, m, leave_one_out),
      enumerated_variance(row.q, row.f, scores, k, m, leave_one_out),
      rtol=RTOL,
    )


def of_logits(parameters):
  f = lambda z: tf.gather(tf.constant([1.0, -2.0, 0.5, 3.0], tf.float64), z)
  return f, tfd.Categorical(logits=parameters)


def of_counts(logits):
  q = tfd.Binomial(tf.constant(3.0, tf.float64), logits=logits)
  return lambda z: (z - 1.0) ** 2, q


def of_sites(logits):
  q = tfd.Independent(tfd.Bernoulli(logits=logits, dtype=tf.float64), 1)
  slopes = tf.constant([1.0, -2.0], tf.float64)
  return lambda z: tf.reduce_sum(z * slopes, axis=-1) ** 2, q


@pytest.mark.parametrize(
  ('problem', 'parameters', 'budget'),
  [
    (of_logits, [0.3, 1.1, -0.5, 2.0], 3),
    (of_counts, -0.7, 2),
    (of_sites, [0.4, -1.3], 2),
  ],
  ids=['Categorical', 'Binomial', 'Independent'],
)
def test_variances_are_those_of_the_outcomes_of_the_estimators(
  problem, parameters, budget
):
  """Checks variances w.r.t. the variables, via the estimators themselves."""
  parameters = tf.Variable(parameters, dtype=tf.float64)
  f, q = problem(parameters)
  table = diagnostics.suggest(f, q, budget).table
  names = {option.name for option in table}
  assert len(names) == 6
  for option in table:
    outcomes = internals.enumerate_outcomes(
      option.estimator, problem, [parameters], most_outcomes=100
    )
    assert outcomes.num_evaluations == budget
    np.testing.assert_allclose(
      option.variance, internals.total_variance(outcomes), rtol=RTOL
    )


def test_gradient_by_logits_needs_no_variables():
  logits = tf.constant([0.3, 1.1, -0.5, 2.0], tf.float64)
  with_variables = diagnostics.suggest(
    *of_logits(tf.Variable(logits)), budget=3
  )
  without = diagnostics.suggest(*of_logits(logits), budget=3)
  for a, b in zip(with_variables.table, without.table, strict=True):
    assert a[:3] == b[:3]
    np.testing.assert_allclose(a.variance, b.variance, rtol=RTOL)


# The choice.


def costs(kind, size, rng):
  f = rng.normal(size=size)
  if kind == 'sparse':
    f *= rng.random(size) < 0.3
    f[rng.integers(size)] = 1.0
  elif kind == 'smooth':
    f = np.cumsum(f) + 2.0
  elif kind == 'huge':
    f[rng.integers(size)] = 1000.0
  return f


def number_of(z):
  """Returns an atom's number: itself, the place of its 1, or binary digits."""
  return tf.cast(z, tf.int32)


def number_of_one_hot(z):
  return tf.argmax(z, axis=-1, output_type=tf.int32)


def number_of_digits(base):
  def number(z):
    powers = base ** np.arange(z.shape[-1])[::-1]
    return tf.reduce_sum(tf.cast(z, tf.int32) * powers, axis=-1)

  return number


OUTCOMES = np.array([-1.0, 0.5, 2.0, 3.0, 7.0])


def number_of_outcome(z):
  return tf.argmin(
    tf.abs(z[..., tf.newaxis] - OUTCOMES), axis=-1, output_type=tf.int32
  )


def poisson(rate):
  """Tabulates a Poisson law until the remaining mass is below rounding."""
  table, p = [], np.exp(-rate)
  while p > 1e-15 or len(table) <= rate:
    table.append((len(table), p))
    p *= rate / len(table)
  return table


def random_problem(kind, rng):
  """Returns a distribution, its table, and the number function of its atoms.

  The function maps an atom to its number in the table.
  """
  spread = rng.choice([0.2, 1.0, 3.0])
  logits = spread * rng.normal(size=rng.integers(3, 8))
  of = lambda x: tf.constant(x, tf.float64)
  if kind == 'Categorical':
    q = tfd.Categorical(logits=of(logits))
    return q, reference.categorical(logits), number_of
  if kind == 'OneHotCategorical':
    q = tfd.OneHotCategorical(logits=of(logits))
    return q, reference.categorical(logits), number_of_one_hot
  if kind == 'FiniteDiscrete':
    logits = spread * rng.normal(size=5)
    q = tfd.FiniteDiscrete(of(OUTCOMES), logits=of(logits))
    return q, reference.categorical(logits), number_of_outcome
  if kind == 'Binomial':
    logit = spread * rng.normal()
    q = tfd.Binomial(of(5.0), logits=of(logit))
    return q, reference.binomial(5, logit), number_of
  if kind == 'OrderedLogistic':
    cutpoints, location = np.sort(logits[:3]), spread * rng.normal()
    q = tfd.OrderedLogistic(of(cutpoints), of(location))
    return q, reference.ordered_logistic(cutpoints, location), number_of
  if kind == 'Independent':
    logits = spread * rng.normal(size=[2, 3])
    q = tfd.Independent(tfd.Categorical(logits=of(logits)), 1)
    table = reference.product([reference.categorical(x) for x in logits])
    return q, table, number_of_digits(3)
  rate = rng.uniform(0.2, 1.0)
  return tfd.Poisson(of(rate)), poisson(rate), number_of


KINDS = (
  'Categorical',
  'OneHotCategorical',
  'FiniteDiscrete',
  'Binomial',
  'OrderedLogistic',
  'Independent',
  'Poisson',
)
COSTS = ('random', 'sparse', 'smooth', 'huge')


def candidates(q, f, budget):
  """Returns variances of all options, keyed by summed atoms and baseline."""
  scores = np.eye(len(q)) - q
  found = {}
  for k, leave_one_out in itertools.product(range(budget), [False, True]):
    if k + 1 <= len(q) and (budget > 1 or not leave_one_out):
      found[k, leave_one_out] = enumerated_variance(
        q, f, scores, k, budget - k, leave_one_out
      )
  return found


def within(factor, chosen, variances):
  """Returns whether a variance is the least, up to a factor and rounding."""
  return chosen <= factor * min(variances) + 1e-12 * max(variances)


def gathered(cost, number=number_of):
  """Returns `f` from a table of costs; mass beyond the table is negligible."""
  cost = tf.constant(np.append(cost, np.zeros(64)))
  return lambda z: tf.gather(cost, number(z))


@pytest.mark.slow
def test_suggestions_for_200_problems_are_the_best_by_enumeration():
  rng = np.random.default_rng(2019)
  num_near = 0
  for i in range(200):
    distribution, table, number = random_problem(KINDS[i % len(KINDS)], rng)
    q, order = best_first(table)
    cost = costs(COSTS[i % len(COSTS)], len(q), rng)
    # This allows at most a few thousand tuples.
    most = int(np.log(4000.0) / np.log(len(q)))
    budget = int(rng.integers(2, min(most, len(q) - 1) + 1))
    found = diagnostics.suggest(gathered(cost, number), distribution, budget)
    variances = candidates(q, cost[order], budget)
    # Proposition 2 gives two of the splits again.
    assert len(found.table) == len(variances) + 2
    assert found.num_summed + found.num_samples == budget
    is_leave_one_out = 'leave-one-out' in found.table[0].name
    chosen = variances[found.num_summed, is_leave_one_out]
    num_near += within(1.2, chosen, variances.values())
  assert num_near == 200


def test_suggestions_from_a_pilot_are_near_the_best():
  """Evaluates 100 of 200 to 1000 values; closed forms determine the best."""
  rng = np.random.default_rng(2020)
  num_near = 0
  for i in range(20):
    size = int(rng.integers(200, 1000))
    logits = rng.choice([0.2, 1.0, 3.0]) * rng.normal(size=size)
    cost = costs(COSTS[i % len(COSTS)], size, rng)
    budget = int(rng.integers(2, 8))
    found = diagnostics.suggest(
      gathered(cost),
      tfd.Categorical(logits=tf.constant(logits)),
      budget,
      most_evaluations=100,
    )
    assert f'a pilot of {100 - budget} draws' in found.reason
    q, order = best_first(reference.categorical(logits))
    row = internals.ClosedFormRow(q, cost[order])
    true = {
      (k, has): internals.closed_form_variance(row, k, budget - k, has)
      for k, has in itertools.product(range(budget), [False, True])
    }
    is_leave_one_out = 'leave-one-out' in found.table[0].name
    chosen = true[found.num_summed, is_leave_one_out]
    num_near += within(1.2, chosen, true.values())
  assert num_near >= 19


def test_a_product_of_many_sites_has_a_pilot():
  q = tfd.Sample(tfd.Bernoulli(logits=-1.0), 200)
  f = lambda z: tf.reduce_sum(tf.cast(z, tf.float32), axis=-1)
  found = diagnostics.suggest(f, q, budget=4, most_evaluations=200)
  assert found.num_summed == 0  # no value has noticeable mass
  assert 'a pilot of 196 draws' in found.reason
  again = diagnostics.suggest(f, q, budget=4, most_evaluations=200)
  assert again.variance == found.variance


def test_draws_that_repeat_are_one_value():
  q = tfd.Geometric(probs=np.float64(0.5))
  f = lambda z: (z - 1.0) ** 2
  support = internals.tabulate(f, q, 2, most_evaluations=40, seed=(0, 1))
  (row,) = support.rows
  assert not support.is_whole
  assert support.num_evaluations == 40
  assert len(row.q) < 20  # there are 38 draws
  np.testing.assert_allclose(np.sum(row.q), 1.0)
  np.testing.assert_allclose(row.q[:2], [0.5, 0.25])
  shares = row.q[2:] * 38.0 / 0.25
  np.testing.assert_allclose(shares, np.round(shares), rtol=1e-9)
  assert len(set(row.f)) >= len(row.q) - 1  # 0 and 2 are equally far from 1


def test_all_is_summed_where_the_budget_allows():
  q = tfd.Categorical(logits=[0.0, 1.0, 2.0])
  found = diagnostics.suggest(lambda z: tf.cast(z, tf.float32), q, budget=3)
  assert isinstance(found.estimator, tfp_rb.Exact)
  assert (found.num_summed, found.num_samples, found.variance) == (3, 0, 0.0)
  assert found.reason.startswith('Sum all 3 values')
  assert {option.name for option in found.table[1:]} == {
    'REINFORCE',
    'leave-one-out',
    'summed REINFORCE',
    'summed leave-one-out',
  }


def test_a_budget_for_more_than_all_sums_all():
  q = tfd.Categorical(logits=[0.0, 1.0, 2.0])
  found = diagnostics.suggest(lambda z: tf.cast(z, tf.float32), q, budget=2000)
  assert isinstance(found.estimator, tfp_rb.Exact)


def test_the_reason_says_what_is_left_of_a_countable_support():
  f = lambda z: (z - 1.0) ** 2
  found = diagnostics.suggest(f, tfd.Poisson(np.float64(0.5)), budget=2)
  assert 'at 64 values and all but a mass of 1e-12' in found.reason


def test_a_single_evaluation_is_a_plain_draw():
  q = tfd.Categorical(logits=[0.0, 1.0, 2.0])
  found = diagnostics.suggest(lambda z: tf.cast(z, tf.float32), q, budget=1)
  assert (found.num_summed, found.num_samples) == (0, 1)
  assert {option.name for option in found.table} == {
    'REINFORCE',
    'budget REINFORCE',
  }


def test_variances_of_a_batch_add_up():
  logits = np.array([[6.0, 3.0, 0.0, -3.0, -1.0], [0.1, 0.2, 0.15, 0.0, 0.05]])
  slopes = np.array([1.0, 2.0])

  def table_of(rows):
    f = lambda z: slopes[rows] * tf.cast(z, tf.float64) ** 2
    q = tfd.Categorical(logits=tf.constant(logits[rows]))
    return diagnostics.suggest(f, q, budget=3).table

  first, second, both = map(table_of, (0, 1, [0, 1]))
  key = lambda option: (option.name, 'budget' in option.name or option[1])
  of_first, of_second = (
    {key(option): option.variance for option in table}
    for table in (first, second)
  )
  # For one row a pool is not an option; with two rows, its rows are dependent.
  assert {o.name for o in both} - {o.name for o in first} == {'pooled'}
  both = [option for option in both if option.name != 'pooled']
  for option in both:
    np.testing.assert_allclose(
      option.variance,
      of_first[key(option)] + of_second[key(option)],
      rtol=RTOL,
    )
  # One row is peaked and the other one flat, so separate splits are best here.
  assert both[0].name == 'budget leave-one-out'
  assert both[0].num_summed is both[0].num_samples is None


@pytest.mark.parametrize(
  ('arguments', 'kind', 'argument'),
  [
    ({'f': 3.0}, TypeError, 'f'),
    (
      {'distribution': tfd.Normal(0.0, 1.0)},
      TypeError,
      'distribution',
    ),
    (
      {'distribution': tfd.Multinomial(2.0, logits=[0.0, 0.0])},
      NotImplementedError,
      'Multinomial',
    ),
    ({'budget': 0}, ValueError, 'budget'),
    ({'budget': 2.0}, TypeError, 'budget'),
    (
      {'most_evaluations': 2},
      ValueError,
      'most_evaluations',
    ),
    (
      {'f': lambda z: 1.0 / tf.cast(z, tf.float32)},
      ValueError,
      'f',
    ),
    (
      {'distribution': tfd.Categorical(logits=[0.0, np.nan, 2.0])},
      ValueError,
      'distribution',
    ),
    (
      {'f': lambda z: tf.zeros([2])},
      ValueError,
      'f',
    ),
  ],
  ids=[
    'f', 'continuous', 'unregistered', 'no_budget', 'budget', 'evaluations',
    'infinite', 'nan', 'shape',
  ],
)  # fmt: skip
def test_arguments_are_checked(arguments, kind, argument):
  given = {
    'f': lambda z: tf.cast(z, tf.float32),
    'distribution': tfd.Categorical(logits=[0.0, 1.0, 2.0]),
    'budget': 2,
  }
  with raises(kind, argument):
    diagnostics.suggest(**{**given, **arguments})


@pytest.mark.parametrize(
  ('mass', 'text'), [(0.934, '93 %'), (0.996, '99.6 %'), (0.99996, '99.996 %')]
)
def test_the_reason_tells_all_from_nearly_all(mass, text):
  q = tfd.Categorical(probs=[mass, (1 - mass) / 2, (1 - mass) / 2])
  f = lambda z: tf.gather([1.0, 5.0, 2.0], z)
  found = diagnostics.suggest(f, q, budget=2)
  assert found.reason.startswith(f'Sum the best value, which holds {text} of')


def test_the_reason_says_which_estimators_of_bits_were_left_out():
  bits = tfd.Independent(tfd.Bernoulli(logits=tf.zeros([20])), 1)
  f = lambda z: tf.reduce_sum(tf.cast(z, tf.float32), axis=-1) ** 2
  assert '`DisARM`' in diagnostics.suggest(f, bits, 2, 64).reason
  labels = tfd.Categorical(logits=tf.zeros([20]))
  f = lambda z: tf.cast(z, tf.float32) ** 2
  assert 'DisARM' not in diagnostics.suggest(f, labels, 2).reason


def test_the_reason_of_a_sum_of_everything_is_that_nothing_is_left():
  q = tfd.Categorical(logits=tf.zeros([3]))
  found = diagnostics.suggest(lambda z: tf.gather([1.0, 5.0, 2.0], z), q, 3)
  assert found.reason.startswith('Sum all 3 values: no variance at all.')


@pytest.mark.parametrize('kind', [tf.constant, tf.Variable])
def test_the_reason_says_by_what_the_gradient_is_taken(kind):
  q = tfd.Categorical(logits=kind([0.0, 1.0, 2.0]))
  found = diagnostics.suggest(lambda z: tf.gather([1.0, 5.0, 2.0], z), q, 2)
  by = 'trainable variables' if kind is tf.Variable else 'logits of the values'
  assert found.reason.endswith(f', of the gradient with respect to the {by}.')


@pytest.mark.filterwarnings('error::RuntimeWarning')
def test_paths_whose_probability_underflows_have_finite_variances():
  q = tfp_rb.distributions.CategoricalChain(
    tf.zeros([3]), tf.zeros([199, 3, 3])
  )
  f = lambda z: tf.reduce_sum(tf.cast(z, tf.float32), axis=-1) ** 2
  found = diagnostics.suggest(f, q, budget=3)
  assert all(np.isfinite(option.variance) for option in found.table)
