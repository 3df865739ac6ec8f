"""Every outcome of the draws, without a seed: value and gradient are unbiased.

The outcomes are those of the library; what their mean must be is the derivative
of the explicit sum over all values, from `reference.py`.
"""

from collections.abc import Callable
import itertools
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import reference
import tfp_rb
from tfp_rb import _atoms, _enumeration

baselines = tfp_rb.baselines
tfb = tfp.bijectors
tfd = tfp.distributions

ATOL = 1e-10
MOST_OUTCOMES = 7000


class Family(NamedTuple):
  """A batch of distributions, twice.

  Attributes:
    parameters: List of arrays.
    distribution: Callable, `Tensor`s with any dimensions in front to a `tfd`
      distribution.
    tables: Callable, arrays to a list of tables, one for each batch member.
    num_values: Python `int` `K`, values of the largest row.
  """

  parameters: list
  distribution: Callable
  tables: Callable
  num_values: int


def array(*rows):
  return np.array(rows, np.float64)


LOGITS = array([0.3, 1.1, -0.5, 0.0], [2.5, -1.0, 0.2, 0.9])
OUTCOMES = array(-1.0, 0.5, 2.0, 3.0)
COUNTS = array(2.0, 1.0)  # rows whose supports differ
U_SHAPED_COUNTS = array(3.0, 1.0)


def of_rows(table):
  """Tables of a family whose rows are those of its parameters."""
  return lambda *parameters: [table(*row) for row in zip(*parameters)]


def sites_of(table):
  """A table of the product of independent sites, one for each parameter."""
  return lambda row: reference.product([table(p) for p in row])


def repeated(table, num):
  return lambda row: reference.product([table(row)] * num)


FAMILIES = {
  'Categorical': Family(
    [LOGITS],
    lambda logits: tfd.Categorical(logits=logits),
    of_rows(reference.categorical),
    4,
  ),
  'Categorical_by_probs': Family(
    [LOGITS],
    lambda logits: tfd.Categorical(probs=tf.nn.softmax(logits)),
    of_rows(reference.categorical),
    4,
  ),
  'Categorical_of_3': Family(
    [LOGITS[:, :3]],
    lambda logits: tfd.Categorical(logits=logits),
    of_rows(reference.categorical),
    3,
  ),
  'OneHotCategorical': Family(
    [LOGITS],
    lambda logits: tfd.OneHotCategorical(logits=logits, dtype=tf.float64),
    of_rows(reference.one_hot_categorical),
    4,
  ),
  'Bernoulli': Family(
    [array(0.4, -1.3)],
    lambda logits: tfd.Bernoulli(logits=logits),
    of_rows(reference.bernoulli),
    2,
  ),
  'Bernoulli_by_probs': Family(
    [array(0.4, -1.3)],
    lambda logits: tfd.Bernoulli(probs=tf.sigmoid(logits)),
    of_rows(reference.bernoulli),
    2,
  ),
  'FiniteDiscrete': Family(
    [LOGITS],
    lambda logits: tfd.FiniteDiscrete(tf.constant(OUTCOMES), logits=logits),
    of_rows(lambda row: reference.finite_discrete(OUTCOMES, row)),
    4,
  ),
  'OrderedLogistic': Family(
    [array([-0.7, 0.2, 1.4], [-1.0, -0.1, 0.3]), array(0.3, -0.8)],
    lambda cutpoints, location: tfd.OrderedLogistic(cutpoints, location),
    of_rows(reference.ordered_logistic),
    4,
  ),
  'BetaBinomial': Family(
    # U-shaped in the first row.
    [array(0.4, 2.0), array(0.3, 1.2)],
    lambda a, b: tfd.BetaBinomial(tf.constant(U_SHAPED_COUNTS), a, b),
    lambda a, b: of_rows(reference.beta_binomial)(U_SHAPED_COUNTS, a, b),
    4,
  ),
  'Binomial': Family(
    [array(0.4, -0.9)],
    lambda logits: tfd.Binomial(tf.constant(COUNTS), logits=logits),
    lambda logits: of_rows(reference.binomial)(COUNTS, logits),
    3,
  ),
  'Binomial_by_probs': Family(
    [array(0.4, -0.9)],
    lambda logits: tfd.Binomial(tf.constant(COUNTS), probs=tf.sigmoid(logits)),
    lambda logits: of_rows(reference.binomial)(COUNTS, logits),
    3,
  ),
  'Shift_of_Binomial': Family(
    # The shift is a parameter too, and has a batch that the base lacks.
    [array(0.4), array(1.5, -0.5)],
    lambda logits, shift: tfb.Shift(shift)(
      tfd.Binomial(tf.constant(2.0, tf.float64), logits=logits)
    ),
    lambda logits, shift: [
      reference.shifted(reference.binomial(2, logits[0]), s) for s in shift
    ],
    3,
  ),
  'Shift_of_Categorical': Family(
    [LOGITS],
    lambda logits: tfb.Shift(tf.constant(5))(tfd.Categorical(logits=logits)),
    of_rows(lambda row: reference.shifted(reference.categorical(row), 5)),
    4,
  ),
  'BatchReshape': Family(
    [np.concatenate([LOGITS, LOGITS[:, ::-1]])[:, :3]],
    lambda logits: tfd.BatchReshape(
      tfd.Categorical(logits=logits), [*logits.shape[:-2], 2, 2]
    ),
    of_rows(reference.categorical),
    3,
  ),
  'BatchBroadcast': Family(
    [LOGITS[:, np.newaxis, :3]],
    lambda logits: tfd.BatchBroadcast(
      tfd.OneHotCategorical(logits=logits, dtype=tf.float64),
      [*logits.shape[:-3], 2, 3],
    ),
    lambda logits: [
      reference.one_hot_categorical(row[0]) for row in logits for _ in range(3)
    ],
    3,
  ),
  'Independent_Bernoulli': Family(
    [array([0.4, -1.3], [2.1, 0.2])],
    lambda logits: tfd.Independent(tfd.Bernoulli(logits=logits), 1),
    of_rows(sites_of(reference.bernoulli)),
    4,
  ),
  'Independent_Categorical': Family(
    [np.stack([LOGITS[:, :3], LOGITS[:, 1:]])],
    lambda logits: tfd.Independent(tfd.Categorical(logits=logits), 1),
    of_rows(sites_of(reference.categorical)),
    9,
  ),
  'Independent_Binomial': Family(
    # Sites whose supports differ: 6 of the 9 pairs are possible.
    [array([0.4, -0.9], [-1.5, 0.1])],
    lambda logits: tfd.Independent(
      tfd.Binomial(tf.constant(COUNTS), logits=logits), 1
    ),
    of_rows(
      lambda row: reference.product(
        [reference.binomial(n, p) for n, p in zip(COUNTS, row)]
      )
    ),
    9,
  ),
  'Sample_Bernoulli': Family(
    [array(0.4, -1.3)],
    lambda logits: tfd.Sample(tfd.Bernoulli(logits=logits), 3),
    of_rows(repeated(reference.bernoulli, 3)),
    8,
  ),
  'Sample_of_Independent': Family(
    [array([0.4, -1.3], [2.1, 0.2])],
    lambda logits: tfd.Sample(
      tfd.Independent(tfd.Bernoulli(logits=logits), 1), 2
    ),
    of_rows(repeated(sites_of(reference.bernoulli), 2)),
    16,
  ),
}

# Constructors, since a learned baseline has a variable.
BASELINES = {
  'None': lambda: None,
  'number': lambda: 2.5,
  'IndependentSample': baselines.IndependentSample,
  'IndependentSample_each': lambda: baselines.IndependentSample(shared=False),
  'LeaveOneOut_mixed': baselines.LeaveOneOut,
  'LeaveOneOut_rest': lambda: baselines.LeaveOneOut('rest'),
  'LeaveOneOut_all': lambda: baselines.LeaveOneOut('all'),
  'Optimal': baselines.Optimal,
  'Learned': lambda: baselines.Learned(tf.constant(1.7, tf.float64)),
}
NEED_ANOTHER = ('LeaveOneOut_mixed', 'LeaveOneOut_rest', 'LeaveOneOut_all')
NEED_ANOTHER += ('Optimal',)


def cost(feature, penalty):
  """`f`: depends on the parameters, through `penalty`, at each value anew."""
  return (feature - 1.3) ** 2 + 2.0 + penalty * (1.0 + 0.5 * feature)


def feature_weights(event_shape):
  size = int(np.prod(event_shape))
  return np.reshape(0.5 + 0.4 * np.arange(size), event_shape)


def make_problem(family):
  """Returns the callable, parameters to `(f, q)`, of the enumeration."""
  ranks = [p.ndim for p in family.parameters]

  def problem(*parameters):
    q = family.distribution(*parameters)
    penalty = 0.0
    for parameter, rank in zip(parameters, ranks):
      own_axes = list(range(parameter.shape.rank - rank, parameter.shape.rank))
      penalty += 0.1 * tf.reduce_sum(parameter**2, own_axes)
    num_copied = penalty.shape.rank
    penalty = tf.reshape(
      penalty, [*penalty.shape] + [1] * (q.batch_shape.rank - num_copied)
    )
    weights = feature_weights(q.event_shape)

    def f(z):
      axes = list(range(z.shape.rank - q.event_shape.rank, z.shape.rank))
      feature = tf.reduce_sum(weights * tf.cast(z, tf.float64), axes)
      return cost(feature, penalty)

    return f, q

  return problem


def explicit_sums(family, *parameters):
  """`sum_z q(z) f(z)` of each batch member."""
  penalty = sum(0.1 * np.sum(p**2) for p in parameters)
  return [
    reference.expectation(
      table,
      lambda z: cost(np.sum(feature_weights(np.shape(z)) * z), penalty),
    )
    for table in family.tables(*parameters)
  ]


EXPECTED = {
  name: (
    np.array(explicit_sums(family, *family.parameters)),
    reference.complex_step_gradient(
      lambda *p, family=family: sum(explicit_sums(family, *p)),
      family.parameters,
    ),
  )
  for name, family in FAMILIES.items()
}


def assert_mean_is_explicit_sum(name, estimator):
  family = FAMILIES[name]
  outcomes = _enumeration.enumerate_outcomes(
    estimator, make_problem(family), family.parameters, MOST_OUTCOMES
  )
  assert outcomes is not None, 'too many outcomes to enumerate'
  value, gradients = EXPECTED[name]
  np.testing.assert_allclose(np.sum(outcomes.probabilities, axis=0), 1.0)
  mean = np.sum(outcomes.probabilities * outcomes.values, axis=0)
  np.testing.assert_allclose(np.ravel(mean), value, rtol=0.0, atol=ATOL)
  for actual, desired in zip(outcomes.weighted_gradients, gradients):
    np.testing.assert_allclose(
      np.sum(actual, axis=0), desired, rtol=0.0, atol=ATOL
    )


def splits(names, names_of_baselines, nums_of_samples, nums_summed=None):
  """All `(family, baseline, k, M)` with a second evaluation where needed."""
  for name, baseline in itertools.product(names, names_of_baselines):
    num_values = FAMILIES[name].num_values
    every = range(num_values + 1)
    for k, m in itertools.product(nums_summed or every, nums_of_samples):
      if k == num_values and m > min(nums_of_samples):
        continue  # nothing is drawn
      if k == 0 and m == 1 and baseline in NEED_ANOTHER:
        continue
      yield name, baseline, k, m


def budgets(names, names_of_baselines, most_beyond=1):
  """All budgets up to so many more than there are values."""
  for name, baseline in itertools.product(names, names_of_baselines):
    for budget in range(1, FAMILIES[name].num_values + 1 + most_beyond):
      if budget == 1 and baseline in NEED_ANOTHER:
        continue
      yield name, baseline, budget


def at_length(cases):
  """Cases for `make test-all`: what they compute is computed beside them."""
  return [pytest.param(*case, marks=pytest.mark.slow) for case in cases]


EACH_OWN = ['IndependentSample_each']
CHEAP = [name for name in BASELINES if name not in EACH_OWN]
BY_PROBS = ['Categorical_by_probs', 'Bernoulli_by_probs', 'Binomial_by_probs']
SMALL = [
  'OneHotCategorical', 'Bernoulli', 'FiniteDiscrete', 'OrderedLogistic',
  'BetaBinomial', 'Binomial', 'Shift_of_Binomial', 'Shift_of_Categorical',
  'BatchReshape', 'BatchBroadcast', 'Independent_Bernoulli',
]  # fmt: skip
LARGE = ['Independent_Categorical', 'Sample_Bernoulli']
SOME_K = [0, 2]
SOME_SHARED = ['OneHotCategorical', 'Binomial', 'Independent_Bernoulli']


@pytest.mark.parametrize(
  ('name', 'baseline', 'num_summed', 'num_samples'),
  [
    # Every baseline on one family, then some on each of the others. All `k` of
    # every baseline are in `test_hessian.py`, for a single row of three values,
    # and with a third draw, where that counts, in `test_variance.py`.
    *splits(['Categorical'], CHEAP, [1, 2], SOME_K),
    *splits(['Categorical_of_3', 'Bernoulli'], EACH_OWN, [1, 2], SOME_K),
    # Every `k` of every family; what the best level is to be, with one `k`.
    *splits(SMALL, ['LeaveOneOut_mixed'], [2]),
    *splits(SMALL, ['Optimal'], [1], [2]),
    *splits(BY_PROBS, ['Optimal'], [1]),
    *splits(SOME_SHARED, ['IndependentSample'], [1], SOME_K),
    *splits(LARGE[:1], ['Optimal'], [1], [1, 3, 8]),
    *splits(LARGE[1:], ['Optimal'], [1], [1, 3, 7]),
    *splits(LARGE[1:], ['LeaveOneOut_mixed'], [2], [0, 1, 4, 7, 8]),
    *splits(LARGE[:1], ['None'], [2], [0, 1, 4, 8, 9]),
    # A third draw, whose baselines one family has shown; other `k` inside.
    *at_length(
      case
      for case in splits(SMALL, ['LeaveOneOut_mixed'], [2, 3])
      if case[3] == 3
    ),
    *at_length(
      case
      for case in [
        *splits(['Categorical'], CHEAP, [1, 2, 3]),
        *splits(['Categorical_of_3', 'Bernoulli'], EACH_OWN, [1, 2, 3]),
        *splits(SOME_SHARED, ['IndependentSample'], [1]),
      ]
      if case[2] not in SOME_K or case[3] == 3
    ),
    *at_length(
      case for case in splits(SMALL, ['Optimal'], [1]) if case[2] != 2
    ),
    *at_length(splits(LARGE[:1], ['Optimal'], [1], [2, 4, 5, 6, 7, 9])),
    *at_length(splits(LARGE[1:], ['Optimal'], [1], [2, 4, 5, 6, 8])),
    *at_length(splits(LARGE[1:], ['LeaveOneOut_mixed'], [2], [2, 3, 5, 6])),
    *at_length(splits(LARGE[:1], ['None'], [2], [2, 3, 5, 6, 7])),
    *splits(['Independent_Binomial'], ['Optimal'], [2], [0, 1, 3, 5, 6, 9]),
    *splits(['Sample_of_Independent'], ['Optimal'], [2], [0, 1, 2, 5, 15, 16]),
  ],
)
def test_mean_over_all_draws_is_the_derivative_of_the_explicit_sum(
  name, baseline, num_summed, num_samples
):
  estimator = tfp_rb.REINFORCE(
    baseline=BASELINES[baseline](), num_samples=num_samples
  )
  assert_mean_is_explicit_sum(
    name, tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
  )


@pytest.mark.parametrize(
  ('name', 'baseline', 'budget'),
  [
    *budgets(['Categorical'], CHEAP),
    *budgets(['Categorical_of_3', 'Bernoulli'], EACH_OWN),
    *budgets(SMALL, ['LeaveOneOut_mixed'], most_beyond=0),
  ],
)
def test_mean_under_a_budget_is_the_derivative_of_the_explicit_sum(
  name, baseline, budget
):
  estimator = tfp_rb.REINFORCE(baseline=BASELINES[baseline]())
  assert_mean_is_explicit_sum(
    name, tfp_rb.rao_blackwellize(estimator, budget=budget)
  )


@pytest.mark.parametrize('budget', [1, 2, 3, 8, 9])
def test_mean_under_a_budget_of_a_product_is_the_derivative_of_the_explicit_sum(
  budget,
):
  estimator = tfp_rb.REINFORCE(baseline=2.5)
  assert_mean_is_explicit_sum(
    'Sample_Bernoulli', tfp_rb.rao_blackwellize(estimator, budget=budget)
  )


@pytest.mark.parametrize(
  'num_samples', [1, pytest.param(2, marks=pytest.mark.slow), 3]
)
@pytest.mark.parametrize('name', ['Categorical', 'Sample_Bernoulli'])
def test_reinforce_without_summation_is_unbiased(name, num_samples):
  assert_mean_is_explicit_sum(name, tfp_rb.REINFORCE(num_samples=num_samples))


@pytest.mark.parametrize('name', list(FAMILIES))
def test_exact_has_one_outcome_and_it_is_the_explicit_sum(name):
  assert_mean_is_explicit_sum(name, tfp_rb.Exact())


def mean_outcome_by_outcome(family, estimator):
  """Mean value and gradients, a call of `expectation` for each outcome.

  Unlike `enumerate_outcomes` it keeps the batch shape, which a constant
  baseline of that shape asks for.

  Args:
    family: `Family` of Categoricals.
    estimator: A `GradientEstimator`.

  Returns:
    value: Array of batch shape.
    gradients: List of arrays.
  """
  parameters = [tf.constant(p) for p in family.parameters]
  script = ()

  def interceptor(partition, num_summed, num_draws):
    nonlocal chance, num_slots
    num_slots = num_draws
    chosen = script[:num_draws] or (0,) * num_draws
    draws = tf.constant([[z] * 2 for z in chosen])
    masses = reference_law(partition, num_summed)
    chance = np.prod([masses[:, z] for z in chosen], axis=0)
    return draws

  def reference_law(partition, num_summed):
    masses = []
    for row, table in enumerate(family.tables(*family.parameters)):
      summed = np.broadcast_to(num_summed, [2])[row]
      listed = partition.values.numpy()[:summed, row]
      kept = np.array([0.0 if z in listed else p for z, p in table])
      masses.append(kept / np.sum(kept) if np.any(kept) else kept + 0.25)
    return np.array(masses)

  chance, num_slots = np.ones(2), 0
  value, gradients = 0.0, [np.zeros_like(p) for p in family.parameters]
  with _atoms.intercept_draws(interceptor):
    f, q = make_problem(family)(*parameters)
    tfp_rb.expectation(f, q, estimator)  # counts the draws
    for script in itertools.product(  # noqa: B007, read by `interceptor`
      range(family.num_values), repeat=num_slots
    ):
      with tf.GradientTape() as tape:
        tape.watch(parameters)
        f, q = make_problem(family)(*parameters)
        result = tfp_rb.expectation(f, q, estimator)
        weighted = tf.reduce_sum(chance * result)
      value += chance * result.numpy()
      for total, part in zip(gradients, tape.gradient(weighted, parameters)):
        total += part.numpy()
  return value, gradients


@pytest.mark.parametrize(
  'split',
  [
    *({'num_summed': k, 'num_samples': m} for k in range(3) for m in (1, 2)),
    {'num_summed': 3, 'num_samples': 1},
    pytest.param({'num_summed': 1, 'num_samples': 3}, marks=pytest.mark.slow),
    *({'budget': n} for n in range(1, 5)),
  ],
  ids=str,
)
def test_constant_baseline_of_batch_shape_is_unbiased(split):
  name = 'Categorical_of_3'
  estimator = tfp_rb.REINFORCE(
    baseline=tf.constant([2.5, -4.0], tf.float64),
    num_samples=split.get('num_samples', 1),
  )
  split = {k: v for k, v in split.items() if k != 'num_samples'}
  value, gradients = mean_outcome_by_outcome(
    FAMILIES[name], tfp_rb.rao_blackwellize(estimator, **split)
  )
  expected_value, expected_gradients = EXPECTED[name]
  np.testing.assert_allclose(value, expected_value, rtol=0.0, atol=ATOL)
  for actual, desired in zip(gradients, expected_gradients):
    np.testing.assert_allclose(actual, desired, rtol=0.0, atol=ATOL)


def test_oracle_differentiates_as_the_closed_form_of_the_softmax():
  logits = LOGITS[0]
  penalty = 0.1 * np.sum(logits**2)
  feature = 0.5 * np.arange(4)
  f = cost(feature, penalty)
  df = np.outer(1.0 + 0.5 * feature, 0.2 * logits)
  (by_steps,) = reference.complex_step_gradient(
    lambda x: reference.expectation(
      reference.categorical(x),
      lambda z: cost(0.5 * z, 0.1 * np.sum(x**2)),
    ),
    [logits],
  )
  closed_form = reference.softmax_gradient(logits, f, df)
  np.testing.assert_allclose(by_steps, closed_form, rtol=0.0, atol=1e-14)
