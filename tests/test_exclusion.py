# SPDX-License-Identifier: Apache-2.0
"""Summing any set of values: which are excluded, and the draws from the rest.

Probabilities come from TFP's own `prob` over an explicit list of the support.
Calibrated tests check the laws of the draws.
"""

import functools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from enumeration import assert_mean_is_explicit_sum
from errors import raises
from internals import exclude, find_partition
import reference
import statistical
import tfp_rb
from tfp_rb import baselines
import variances
from variances import ATOL, NUM_VALUES, PROBLEMS, RTOL
import zoo

tfb = tfp.bijectors
tfd = tfp.distributions

# The number of calibrated tests in this file; they share the rate of false
# failures.
NUM_TESTS = 100

LISTED = [n for n, row in zoo.DISTRIBUTIONS.items() if row.support is not None]


def support_and_probs(name, q):
  """Returns support, `[n] + event_shape`, and probabilities, `[n] + batch`."""
  support = zoo.DISTRIBUTIONS[name].support
  support = np.array(list(support), q.dtype.as_numpy_dtype)
  event = support.shape[1:]
  listed = np.reshape(support, [-1] + [1] * q.batch_shape.rank + list(event))
  if isinstance(q, (tfd.Binomial, tfd.BetaBinomial)):
    # TFP's densities are not 0 above the count.
    counts = np.asarray(q.total_count)
    probs = np.where(listed <= counts, q.prob(np.minimum(listed, counts)), 0.0)
  else:
    listed = np.broadcast_to(listed, [len(support), *q.batch_shape, *event])
    probs = q.prob(listed).numpy()
  return support, np.asarray(probs, np.float64)


def index_in(support, values):
  """Returns the index of each of `values`, `[n] + event_shape`, in `support`.

  The index of a value that is not listed is the length of `support`.
  """
  flat = np.reshape(np.asarray(values), [len(values), -1])
  listed = np.reshape(support, [len(support), -1])
  if listed.shape[1] == 1:
    place = np.searchsorted(listed[:, 0], flat[:, 0])
    found = listed[np.minimum(place, len(support) - 1), 0] == flat[:, 0]
    assert np.all(found | (flat[:, 0] > listed[-1, 0])), 'not in the support'
    return np.where(found, place, len(support))
  equal = np.all(flat[:, np.newaxis] == listed, axis=-1)
  assert np.all(np.any(equal, axis=1)), 'not in the support'
  return np.argmax(equal, axis=1)


def chosen_places(probs, ranks):
  """Returns the places in the support of the values of the given ranks."""
  order = np.argsort(-probs, kind='stable')
  possible = np.count_nonzero(probs)
  return [order[min(r, possible - 1)] for r in ranks]


# The first row holds the 2nd, the 4th and again the 2nd best value; the second
# row holds another set, with the best value twice.
RANKS = [[1, 3, 1], [2, 0, 0]]
ROWS = 2


@functools.cache
def exclusion(name):
  """Returns a partition into values of `RANKS`, and its expected properties."""
  row = zoo.DISTRIBUTIONS[name]
  q = row.make(tf.float64, (ROWS,))
  support, probs = support_and_probs(name, q)
  places = np.array([chosen_places(probs[:, b], RANKS[b]) for b in range(ROWS)])
  values = tf.constant(support[places.T], q.dtype)
  return (
    q,
    exclude(q, find_partition(q, 1), values),
    support,
    probs,
    places,
  )


@pytest.mark.parametrize('name', LISTED)
def test_masses_of_any_set_and_of_the_rest_are_those_of_the_distribution(name):
  _, part, _, probs, places = exclusion(name)
  for b in range(ROWS):
    left = np.delete(probs[:, b], np.unique(places[b]))
    # The list lacks this mass of a countable support.
    beyond = max(1.0 - math.fsum(probs[:, b]), 0.0)
    weights, rest = part.weights[:, b].numpy(), float(part.rest_weight[b])
    np.testing.assert_allclose(weights, probs[places[b], b], rtol=1e-10)
    np.testing.assert_allclose(
      rest, math.fsum(left) + beyond, rtol=0.0, atol=1e-10
    )
    _, first = np.unique(places[b], return_index=True)
    np.testing.assert_allclose(
      math.fsum([*weights[first], rest]), 1.0, rtol=0.0, atol=1e-10
    )
    if np.any(left):
      np.testing.assert_allclose(
        part.log_rest[b], np.log(math.fsum(left) + beyond), rtol=0.0, atol=1e-8
      )
    else:
      assert part.log_rest[b] == -np.inf


@pytest.mark.parametrize('name', LISTED)
def test_excluded_values_are_never_drawn_and_the_others_follow_the_law(name):
  q, part, support, probs, places = exclusion(name)
  num_draws = 20_000
  draws = part.sample_rest(num_draws, tf.constant([5, 6]))
  assert draws.shape == [num_draws, ROWS, *q.event_shape]
  assert draws.dtype == q.dtype
  for b in range(ROWS):
    left = np.array(probs[:, b])
    left[places[b]] = 0.0
    if not np.any(left):
      continue  # nothing is left to draw
    total = math.fsum(left) + max(1.0 - math.fsum(probs[:, b]), 0.0)
    index = index_in(support, draws[:, b].numpy())
    assert not np.any(np.isin(index, places[b]))
    statistical.assert_follows(
      index,
      np.arange(len(support)),
      left / total,
      num_tests=NUM_TESTS,
      detectable=0.06,
    )


@pytest.mark.parametrize('name', LISTED)
def test_excluding_the_best_is_the_partition_of_the_best(name):
  q = zoo.DISTRIBUTIONS[name].make(tf.float64, (ROWS,))
  best = find_partition(q, 2)
  again = exclude(q, find_partition(q, 1), best.values)
  np.testing.assert_array_equal(again.values, best.values)
  np.testing.assert_allclose(
    again.log_weights, best.log_weights, rtol=0.0, atol=1e-10
  )
  np.testing.assert_allclose(
    again.rest_weight, best.rest_weight, rtol=0.0, atol=1e-12
  )


@pytest.mark.parametrize(
  'make',
  [
    lambda: zoo.DISTRIBUTIONS['nested'].make(tf.float64, (ROWS,)),
    lambda: tfd.BatchBroadcast(tfd.Sample(tfd.Poisson(2.0), 2), [ROWS]),
    lambda: tfd.BatchBroadcast(
      tfd.Sample(tfd.Bernoulli(logits=0.0), 17), [ROWS]
    ),
  ],
  ids=['nested', 'countable', 'long'],
)
def test_what_cannot_be_excluded_is_refused(make):
  q = make()
  best = find_partition(q, 1)
  with raises(NotImplementedError, 'excluding'):
    exclude(q, best, best.values)


# Counts: sets on both sides of the mode.

COUNTS = {  # a constructor for each entry of `ones`, and the number of values
  'Poisson': (lambda ones: tfd.Poisson(3.2 * ones), 80),
  'large Poisson': (lambda ones: tfd.Poisson(1e3 * ones), 2000),
  'NegativeBinomial': (
    lambda ones: tfd.NegativeBinomial(40.0 * ones, probs=0.9 * ones),
    3000,
  ),
  'Binomial': (lambda ones: tfd.Binomial(30.0 * ones, probs=0.3 * ones), 31),
  'Geometric': (lambda ones: tfd.Geometric(probs=0.05 * ones), 1500),
}


def sets_of_counts(mode, sd):
  """Returns rows of values about a mode, in units of standard deviations."""
  return np.array([
    [mode - sd, mode + sd, mode - sd, mode + sd],  # on both sides, repeated
    [mode + 1, mode, mode - 1, mode + 2],  # adjacent
    [mode - sd, mode - 2 * sd, mode - sd + 1, mode],
    [mode + 2 * sd, mode + sd, mode + 2 * sd + 2, mode + 3 * sd],
    [0.0, mode + sd, 1.0, 0.0],
    [-1.0, mode, -7.0, -7.0],  # impossible
    [-1.0, -1.0, -7.0, -7.0],  # nothing is excluded
    [mode + 30 * sd, mode + 30 * sd, mode, mode + 1],  # far away
  ])  # fmt: skip


@pytest.mark.parametrize('name', list(COUNTS))
def test_any_set_can_be_excluded_from_counts(name):
  make, size = COUNTS[name]
  one = make(tf.ones([], tf.float64))
  support = np.arange(float(size))
  probs = one.prob(support).numpy()
  mode, deviation = np.argmax(probs), np.floor(one.stddev().numpy())
  values = sets_of_counts(mode, deviation)
  q = make(tf.ones([len(values)], tf.float64))
  part = exclude(q, find_partition(q, 1), tf.constant(values.T))
  draws = part.sample_rest(20_000, tf.constant([7, 8])).numpy()
  for b, row in enumerate(values):
    is_possible = (row >= 0.0) & (row < size)
    place = np.int64(np.where(is_possible, row, 0.0))
    left = np.array(probs)
    left[place[is_possible]] = 0.0
    np.testing.assert_allclose(
      part.rest_weight[b], math.fsum(left), rtol=0.0, atol=1e-10
    )
    np.testing.assert_allclose(
      part.weights[:, b],
      np.where(is_possible, probs[place], 0.0),
      rtol=1e-9,
      atol=1e-15,
    )
    assert not np.any(np.isin(draws[:, b], row))
    statistical.assert_follows(
      draws[:, b],
      support,
      left / math.fsum(left),
      num_tests=NUM_TESTS,
      detectable=0.1,
    )


def test_rest_of_counts_is_right_where_little_is_left():
  # The other values have a mass of 2e-7, which `1 - sum` would compute less
  # precisely.
  rate, size = 0.05, 60
  q = tfd.Poisson(tf.constant(rate, tf.float64))
  probs = q.prob(np.arange(float(size))).numpy()
  values = np.array([0.0, 1.0, 2.0, 3.0, 5.0])
  part = exclude(q, find_partition(q, 1), tf.constant(values))
  left = math.fsum(np.delete(probs, np.int64(values)))
  np.testing.assert_allclose(part.rest_weight, left, rtol=1e-9)
  draws = part.sample_rest(1000, tf.constant([1, 2])).numpy()
  assert set(draws) <= {4.0, 6.0, 7.0}


@pytest.mark.parametrize('shift', [0.1, 0.7, 10.1])
def test_values_of_shifted_counts_are_integers_again(monkeypatch, shift):
  # In float32, `(z + shift) - shift` need not equal `z`. A search among
  # fractions would not end, so the test limits it.
  monkeypatch.setattr(
    tf,
    'while_loop',
    functools.partial(tf.while_loop, maximum_iterations=200),
  )
  q = tfb.Shift(np.float32(shift))(tfd.Poisson(5.0))
  values = tfp_rb.partition(q, 8).values
  part = exclude(q, find_partition(q, 1), values)
  draws = part.sample_rest(20_000, tf.constant([1, 2])).numpy()
  # The eight best values are 2 to 9, so the rest begins with 0, 1, 10, ...
  left = poisson_probs(5.0, 60)
  left[2:10] = 0.0
  statistical.assert_follows(
    np.round(draws - np.float32(shift)),
    np.arange(60),
    left / np.sum(left),
    num_tests=NUM_TESTS,
    detectable=0.05,
  )


def poisson_probs(rate, size):
  return np.array(
    [
      math.exp(z * math.log(rate) - rate - math.lgamma(z + 1.0))
      for z in range(size)
    ]
  )


_UNEVEN = np.array([0.5, 0.3, 0.15, 0.05])


def _uneven(dtype, kind=tfd.FiniteDiscrete):
  probs = tf.constant(_UNEVEN, dtype)
  if kind is tfd.Categorical:
    return tfd.Categorical(probs=probs, dtype=dtype)
  outcomes = tf.constant([0.0, 0.1, 2.0, 3.7], dtype)
  return tfd.FiniteDiscrete(outcomes, probs=probs)


SHIFTED = {
  'FiniteDiscrete': lambda s: tfb.Shift(s)(_uneven(s.dtype)),
  'Categorical': lambda s: tfb.Shift(s)(_uneven(s.dtype, tfd.Categorical)),
  # The shift has a batch dimension that the base lacks.
  'wider': lambda s: tfb.Shift(s * np.array([1, 2], s.dtype))(_uneven(s.dtype)),
  'product': lambda s: tfb.Shift(s)(tfd.Sample(_uneven(s.dtype), 2)),
  'counts': lambda s: tfb.Shift(s)(
    tfd.Independent(tfd.Poisson(tf.constant([1.0, 1.5], s.dtype)), 1)
  ),
}


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('shift', [0.7, 1000.3])
@pytest.mark.parametrize('name', SHIFTED)
def test_shifted_values_are_found_despite_rounding(name, shift, dtype):
  # `(z + shift) - shift` need not equal `z`.
  q = SHIFTED[name](dtype(shift))
  best = find_partition(q, 4)
  part = exclude(q, find_partition(q, 0), best.values[1:])
  np.testing.assert_array_equal(part.values, best.values[1:])
  np.testing.assert_allclose(part.weights, best.weights[1:], rtol=1e-4)
  np.testing.assert_allclose(
    part.rest_weight, 1.0 - tf.reduce_sum(part.weights, axis=0), rtol=1e-4
  )


def test_values_that_a_shift_rounds_are_no_error():
  q = tfb.Shift(0.7)(_uneven(tf.float32))
  checked = tfd.TransformedDistribution(
    q.distribution, q.bijector, validate_args=True
  )
  np.testing.assert_array_equal(
    find_partition(checked, 4).values, find_partition(q, 4).values
  )


def test_a_value_between_those_of_a_shifted_distribution_is_impossible():
  q = tfb.Shift(0.7)(_uneven(tf.float32))
  part = exclude(q, find_partition(q, 0), tf.constant([0.75, 0.7]))
  np.testing.assert_allclose(part.weights, [0.0, 0.5], rtol=1e-6)
  np.testing.assert_allclose(part.rest_weight, 0.5, rtol=1e-6)


# Products.


def test_sets_of_countable_sites_are_excluded():
  rates = np.array([[1.5, 0.7], [0.4, 2.5]])
  q = tfd.Independent(tfd.Poisson(tf.constant(rates)), 1)
  values = np.array([
    [[1.0, 0.0], [0.0, 2.0]],
    [[1.0, 3.0], [5.0, 2.0]],
    [[0.0, 0.0], [0.0, 2.0]],  # repeated in the second row
  ])  # fmt: skip
  part = exclude(q, find_partition(q, 1), tf.constant(values))
  draws = np.int64(part.sample_rest(50_000, tf.constant([3, 4])))
  for b in range(2):
    sites = [poisson_probs(rate, 20) for rate in rates[b]]
    table = np.outer(*sites)
    named = {tuple(np.int64(z)) for z in values[:, b]}
    for z in named:
      table[z] = 0.0
    np.testing.assert_allclose(
      part.rest_weight[b], np.sum(table), rtol=0.0, atol=1e-10
    )
    statistical.assert_follows(
      20 * draws[:, b, 0] + draws[:, b, 1],
      np.arange(400),
      np.ravel(table) / np.sum(table),
      num_tests=NUM_TESTS,
      detectable=0.05,
    )


def test_impossible_values_of_a_product_take_no_mass():
  # The value 2 is impossible at the second site, whose list does not contain
  # it.
  q = tfd.Independent(
    tfd.Binomial(np.array([2.0, 1.0]), logits=np.array([0.4, -0.9])), 1
  )
  for impossible in ([0.0, 2.0], [1.0, -1.0], [7.0, -3.0]):
    values = tf.constant([impossible, [1.0, 0.0]], tf.float64)
    part = exclude(q, find_partition(q, 1), values)
    expected = q.prob(values[1])
    np.testing.assert_allclose(part.weights, [0.0, expected], rtol=1e-10)
    np.testing.assert_allclose(part.rest_weight, 1.0 - expected, rtol=1e-10)


# `rao_blackwellize(atoms=...)`, all outcomes in turn.


def summed(atoms, estimator=None, **kwargs):
  return tfp_rb.rao_blackwellize(
    estimator or tfp_rb.REINFORCE(**kwargs), atoms=atoms
  )


def named(values):
  """Returns a function that names these values, `[k] + batch + event`.

  Each copy of the batch gets the same values.
  """

  def atoms(q):
    listed = np.asarray(values)
    rank = 1 + q.batch_shape.rank + q.event_shape.rank
    listed = np.reshape(
      listed,
      [len(listed)] + [1] * (rank - listed.ndim) + list(listed.shape[1:]),
    )
    shape = [len(listed), *q.batch_shape, *q.event_shape]
    return tf.broadcast_to(tf.constant(listed, q.dtype), shape)

  return atoms


# Each set has different values in its two rows, and repeats one of them.
SOME_SETS = {
  'Categorical': [[1, 0], [3, 2], [1, 2]],
  'OneHotCategorical': np.eye(4)[[[1, 0], [3, 2], [1, 2]]],
  'Independent_Bernoulli': [[[0, 1], [1, 1]], [[1, 1], [0, 0]]],
  'Binomial': [[2, 0], [0, 0]],
}


@pytest.mark.parametrize('name', SOME_SETS)
@pytest.mark.parametrize('baseline', ['none', 'mixed', 'optimal'])
def test_any_set_of_values_is_summed_without_bias(name, baseline):
  estimator = zoo.ESTIMATORS[f'REINFORCE-{baseline}'].make(0, 2)
  assert_mean_is_explicit_sum(name, summed(named(SOME_SETS[name]), estimator))


def test_any_set_of_values_is_summed_without_bias_by_muprop():
  name = 'OneHotCategorical'
  assert_mean_is_explicit_sum(
    name, summed(named(SOME_SETS[name]), tfp_rb.MuProp())
  )


@pytest.mark.parametrize('sampler', ['IID', 'WithoutReplacement'])
@pytest.mark.parametrize('seed', range(3))
def test_random_sets_are_summed_without_bias(seed, sampler):
  generator = np.random.default_rng(seed)
  values = generator.integers(4, size=[2, 2])
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=baselines.LeaveOneOut(), num_samples=2),
    atoms=named(values),
    sampler=zoo.SAMPLERS[sampler](),
  )
  assert_mean_is_explicit_sum('Categorical', estimator)


def largest_terms(q):
  """Returns the two values of largest `q(z) |f(z)|`, for some model's loss."""
  losses = tf.constant([0.1, 5.0, -9.0, 2.0], tf.float64)
  _, index = tf.math.top_k(tf.nn.softmax(q.logits) * tf.abs(losses), 2)
  return tf.transpose(index, np.roll(range(index.shape.rank), 1))


def test_a_set_that_depends_on_the_losses_is_summed_without_bias():
  q = tfd.Categorical(logits=zoo.FAMILIES['Categorical'].parameters[0])
  assert np.any(largest_terms(q) != tfp_rb.partition(q, 2).values)
  estimator = summed(
    largest_terms, baseline=baselines.LeaveOneOut(), num_samples=2
  )
  assert_mean_is_explicit_sum('Categorical', estimator)


@pytest.mark.parametrize(
  ('name', 'values'),
  [
    ('Categorical_of_3', [0, 0, 1]),
    ('Categorical_of_3', [0, 0, 1, 1]),
    ('Independent_Bernoulli', [[0, 0], [0, 1], [0, 0], [0, 0]]),
    ('Binomial', [0, 0, 1]),
    ('BatchBroadcast', np.eye(3)[[0, 0, 1]]),
  ],
)
def test_repeats_may_be_as_many_as_the_support_has_values(name, values):
  # A row with fewer values repeats one; the values that it lacks are drawn.
  assert_mean_is_explicit_sum(name, summed(named(values)))


@pytest.mark.parametrize(
  ('name', 'values'),
  [
    ('Shift_of_Binomial', [[1.5, -0.5]]),
    ('Shift_of_Binomial', [[2.5, 0.5], [1.5, 0.5]]),
  ],
)
def test_the_gradient_by_a_shift_passes_through_named_values(name, values):
  assert_mean_is_explicit_sum(name, summed(named(values)))


def test_the_gradient_by_the_shift_of_a_site_passes_through_named_values():
  def problem(logits, shift):
    count = tf.constant(2.0, tf.float64)
    sites = tfb.Shift(shift)(tfd.Binomial(count, logits=logits))
    f = lambda z: tf.reduce_sum([1.0, 2.0] * z, axis=-1) ** 2
    return f, tfd.Independent(sites, 1)

  parameters = [
    tf.constant([0.4, -0.2], tf.float64),
    tf.constant([1.5, -0.5], tf.float64),
  ]
  report = tfp_rb.testing.assert_unbiased(
    summed(named([[1.5, 0.5], [2.5, -0.5]])), problem, parameters
  )
  assert report.is_exact


# Values that cannot occur.


IS_POSSIBLE = [True, False, True, False, True]
WITH_IMPOSSIBLE = [[1], [1, 0, 3], [3, 3], [0, 2, 4, 1]]


def problem_with_impossible_values(at_impossible):
  """Returns a problem whose values 1 and 3 are impossible.

  At these values, `f` is a multiple of `at_impossible`.
  """
  costs = np.where(IS_POSSIBLE, [1.0, 0.0, 4.0, 0.0, -2.0], at_impossible)

  def problem(logits):
    scale = 1.0 + 0.1 * tf.reduce_sum(logits**2, axis=-1)
    masked = tf.where(IS_POSSIBLE, logits, -np.inf)
    f = lambda z: scale * tf.gather(costs, z)
    return f, tfd.Categorical(logits=masked)

  return problem


@pytest.mark.parametrize('values', WITH_IMPOSSIBLE, ids=str)
@pytest.mark.parametrize('num_samples', [1, 2])
def test_impossible_values_may_be_named_without_bias(values, num_samples):
  # The value is finite, since the enumeration also evaluates outcomes of chance
  # 0.
  report = tfp_rb.testing.assert_unbiased(
    summed(named(values), baseline=2.5, num_samples=num_samples),
    problem_with_impossible_values(3.0),
    [tf.constant([[0.3, 1.0, -0.5, 0.0, 0.8]], tf.float64)],
  )
  assert report.is_exact


@pytest.mark.parametrize('values', WITH_IMPOSSIBLE, ids=str)
@pytest.mark.parametrize('sampler', zoo.SAMPLERS)
def test_f_is_never_evaluated_at_an_impossible_value(values, sampler):
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(num_samples=1 if len(values) == 4 else 2),
    atoms=named(values),
    sampler=zoo.SAMPLERS[sampler](),
  )
  logits = tf.tile(
    tf.constant([[0.3, 1.0, -0.5, 0.0, 0.8]], tf.float64), [200, 1]
  )
  with tf.GradientTape() as tape:
    tape.watch(logits)
    f, q = problem_with_impossible_values(np.nan)(logits)
    value = tfp_rb.expectation(f, q, estimator, seed=[0, 1])
  assert np.all(np.isfinite(value))
  assert np.all(np.isfinite(tape.gradient(value, logits)))


@pytest.mark.parametrize('values', [[-1.0], [7.0, 1.0], [3.0, -2.0, 0.0]])
def test_impossible_counts_weigh_nothing_and_are_not_evaluated(values):
  q = tfd.Binomial(np.array([4.0, 2.0]), logits=np.array([0.3, -0.4]))
  atoms = summed(named(values), num_samples=3).sample_atoms(q, [0, 1])
  np.testing.assert_allclose(np.sum(atoms.weights, axis=0), 1.0, rtol=1e-10)
  assert np.all((atoms.values >= 0.0) & (atoms.values <= [4.0, 2.0]))
  assert np.all(np.isfinite(atoms.log_prob))
  listed = np.array(values)[:, np.newaxis]
  is_possible = (listed >= 0.0) & (listed <= [4.0, 2.0])
  np.testing.assert_array_equal(
    atoms.weights[: len(values)].numpy() > 0.0, is_possible
  )


# Variance and contract.


@pytest.mark.parametrize('level', [None, 2.5])
@pytest.mark.parametrize('num_samples', [1, 2])
@pytest.mark.parametrize('values', [[2], [0, 3], [1, 1], [3, 1, 2]])
def test_variance_with_a_constant_baseline_is_that_of_what_is_not_named(
  values, num_samples, level
):
  expected = []
  for problem in PROBLEMS:
    rest = [z for z in range(NUM_VALUES) if z not in values]
    mass = sum(problem.q[z] for z in rest)
    variance = reference.conditional_variance(problem, rest, level or 0.0)
    expected.append(mass**2 / num_samples * variance)
  actual = variances.variance_of(
    summed(named(values), baseline=level, num_samples=num_samples)
  )
  np.testing.assert_allclose(actual, expected, rtol=RTOL, atol=ATOL)


def test_f_is_evaluated_at_the_named_values_and_the_draws():
  seen = []

  def f(z):
    seen.append(z)
    return tf.cast(z, tf.float64)

  q = tfd.Categorical(logits=np.zeros([2, 6]))
  values = np.array([[4, 0], [1, 5], [2, 2]])
  estimator = summed(named(values), num_samples=4)
  tfp_rb.expectation(f, q, estimator, seed=[0, 1])
  (atoms,) = seen
  assert atoms.shape == [3 + 4, 2]
  np.testing.assert_array_equal(atoms[:3], values)
  for b in range(2):
    assert not set(values[:, b]) & set(atoms[3:, b].numpy())
  atoms = estimator.sample_atoms(q, tf.constant([0, 1]))
  assert atoms.num_summed == 3
  np.testing.assert_allclose(
    atoms.weights, [[1 / 6] * 2] * 3 + [[1 / 8] * 2] * 4
  )


def test_a_repeated_value_weighs_nothing_the_second_time():
  q = tfd.Categorical(logits=np.zeros([2, 4]))
  estimator = summed(named([[1, 0], [1, 2], [2, 0]]))
  weights = estimator.sample_atoms(q, tf.constant([0, 1])).weights
  np.testing.assert_allclose(
    weights, [[0.25, 0.25], [0.0, 0.25], [0.25, 0.0], [0.5, 0.5]]
  )


@pytest.mark.parametrize(
  'values', [[0, 1], [[0, 1, 2]], [[[0, 1]]], 0], ids=str
)
def test_named_values_must_have_the_batch_and_event_shape(values):
  q = tfd.Categorical(logits=np.zeros([2, 4]))
  with raises(ValueError, 'atoms'):
    summed(lambda q: tf.constant(values)).sample_atoms(q, [0, 1])


@pytest.mark.parametrize('atoms', [3, [0, 1], tf.constant([1])], ids=repr)
def test_atoms_must_be_callable(atoms):
  with raises(TypeError, 'atoms'):
    summed(atoms)


# Values that a user may name by mistake, or in order to fill up a row.

LOGITS_3 = np.array([0.0, 1.0, 2.0])
UNLISTED = {
  'Categorical-above': (lambda: tfd.Categorical(logits=LOGITS_3), [0, 7]),
  'Categorical-below': (lambda: tfd.Categorical(logits=LOGITS_3), [-1, 2]),
  'unlisted-first': (lambda: tfd.Categorical(logits=LOGITS_3), [7, 2]),
  'Bernoulli': (lambda: tfd.Bernoulli(logits=np.float64(0.5)), [1, 2]),
  'OneHotCategorical': (
    lambda: tfd.OneHotCategorical(logits=LOGITS_3),
    [[0, 0, 0], [0, 1, 0]],
  ),
  'FiniteDiscrete': (
    lambda: tfd.FiniteDiscrete(np.array([1.0, 2.0, 4.0]), logits=LOGITS_3),
    [2.0, 3.0],
  ),
  'Poisson': (lambda: tfd.Poisson(rate=np.float64(2.5)), [2.0, 2.5]),
}


@pytest.mark.parametrize(
  ('name', 'jit_compile'),
  [
    *((name, False) for name in UNLISTED),
    # XLA clips an index in cases where the other modes raise an error.
    ('Categorical-above', True),
    ('OneHotCategorical', True),
  ],
)
def test_what_is_no_value_weighs_nothing(name, jit_compile):
  make, values = UNLISTED[name]
  q = make()
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(), atoms=lambda q: tf.constant(values, q.dtype)
  )

  def weights():
    atoms = estimator.sample_atoms(q, tf.constant([1, 2]))
    return atoms.values, atoms.weights

  if jit_compile:
    weights = tf.function(weights, jit_compile=True)
  atoms, found = weights()
  np.testing.assert_allclose(np.sum(found), 1.0, rtol=1e-10)
  assert np.sum(found[:2] > 0.0) == 1
  listed = np.argmax(found[:2])
  np.testing.assert_allclose(atoms[listed], values[listed])
  np.testing.assert_allclose(
    found[listed], np.exp(q.log_prob(atoms[listed])), rtol=1e-10
  )


def test_named_values_must_have_the_dtype_of_the_distribution():
  q = tfd.Categorical(logits=LOGITS_3)
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(), atoms=lambda q: tf.constant([0.5, 1.0])
  )
  with raises(TypeError, 'atoms'):
    estimator.sample_atoms(q, tf.constant([1, 2]))
