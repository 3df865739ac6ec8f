# SPDX-License-Identifier: Apache-2.0
"""Draws without replacement and stratified draws: law, weights and moments.

Everything that can be enumerated is enumerated: sets of draws by brute force
over all orders, and the uniforms of stratified draws piece by piece. Calibrated
tests check the laws of real draws; they use one draw from each of many rows.
"""

import functools
import itertools
import json
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from enumeration import assert_mean_is_explicit_sum
from errors import raises
import internals
from modes import modes_of
import reference
import statistical
import tfp_rb
from tfp_rb import baselines, samplers
import variances
from variances import (
  ATOL,
  NUM_VALUES,
  PROBLEMS,
  RTOL,
  variance_of,
  variance_of_summed,
)
import zoo

tfd = tfp.distributions

# The number of calibrated tests in this file; they share the rate of false
# failures.
NUM_TESTS = 30


def estimator_of(
  num_summed, num_samples, baseline=None, sampler=samplers.WithoutReplacement
):
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples),
    num_summed=num_summed,
    sampler=sampler(),
  )


# Weights of a set, compared with brute force over all orders.


def assert_weights_are_those_of_all_orders(masses, beyond, atol=1e-12):
  """Checks rows of `masses`, `[rows, M]`, and of `beyond`, `[rows]`."""
  with np.errstate(divide='ignore'):
    log_masses, log_beyond = np.log(masses), np.log(beyond)
  first, others = internals.leave_one_out_weights(
    tf.constant(log_masses.T), tf.constant(log_beyond)
  )
  for row, (p, q) in enumerate(zip(masses, beyond)):
    expected, second = reference.first_and_second(p, q)
    np.testing.assert_allclose(first[:, row], expected, rtol=0.0, atol=atol)
    # The share of everything but the first draw is computed without a
    # difference.
    total = math.fsum([*p, q])
    for s in range(len(p)):
      left = math.fsum([*np.delete(p, s), q]) / total
      level = left * second[s]
      level[s] = p[s] / total
      if len(p) == 1:
        level[s] = p[s]
      np.testing.assert_allclose(others[s, :, row], level, rtol=0.0, atol=atol)


@pytest.mark.parametrize('size', range(1, 6))
def test_weights_of_a_set_are_those_of_all_its_orders(size):
  generator = np.random.default_rng(size)
  masses = generator.dirichlet(np.full(size + 1, 0.7), 10)
  assert_weights_are_those_of_all_orders(masses[:, :-1], masses[:, -1])


@pytest.mark.parametrize('size', range(2, 6))
@pytest.mark.parametrize('place', [0, -1])
def test_weights_of_a_set_are_right_where_one_value_has_nearly_all_mass(
  size, place
):
  small = 1e-9 * reference.softmax(np.arange(size, dtype=np.float64))
  masses, beyond = np.array(small[:-1]), small[-1:]
  masses = np.insert(masses, 0 if place == 0 else size - 1, 1.0 - 1e-9)
  assert_weights_are_those_of_all_orders(masses[np.newaxis], beyond)


@pytest.mark.parametrize('size', range(1, 6))
def test_weights_of_a_set_are_right_where_nearly_all_mass_is_beyond(size):
  masses = 1e-8 * np.arange(1.0, size + 1.0)[np.newaxis]
  assert_weights_are_those_of_all_orders(masses, 1.0 - np.sum(masses, axis=1))


@pytest.mark.parametrize('size', range(1, 6))
def test_a_set_of_everything_is_weighted_by_the_probabilities(size):
  p = reference.softmax(np.linspace(-3.0, 2.0, size))
  first, others = internals.leave_one_out_weights(
    tf.constant(np.log(p)), tf.constant(-np.inf, tf.float64)
  )
  np.testing.assert_allclose(first, p, rtol=1e-13)
  np.testing.assert_allclose(others, np.tile(p, [size, 1]), rtol=1e-13)


@pytest.mark.parametrize('num_possible', [1, 2, 3])
def test_draws_from_an_empty_rest_have_no_share(num_possible):
  p = reference.softmax(np.arange(num_possible, dtype=np.float64))
  masses = np.append(p, np.zeros(4 - num_possible))
  # The result does not depend on the order of the draws, in particular not on
  # which draw comes first.
  masses = masses[np.array(list(itertools.permutations(range(4))))].T
  with np.errstate(divide='ignore'):
    log_masses = np.log(masses)
  first, others = internals.leave_one_out_weights(
    tf.constant(log_masses), tf.fill([24], np.float64(-np.inf))
  )
  np.testing.assert_allclose(first, masses, rtol=0.0, atol=1e-12)
  for s, row in np.argwhere(masses):
    np.testing.assert_allclose(
      others[s, :, row], masses[:, row], rtol=0.0, atol=1e-12
    )


@pytest.mark.parametrize('beyond', ['much', 'little', 'nothing'])
@pytest.mark.parametrize('spread', [0.0, 1.0, 30.0])
def test_weights_of_eight_tiny_masses_are_finite_in_float32(beyond, spread):
  log_masses = np.float32(np.log(1e-7) - spread * np.arange(8.0))
  log_beyond = {'much': np.log1p(-8e-7), 'little': -18.0, 'nothing': -np.inf}
  first, others = internals.leave_one_out_weights(
    tf.constant(log_masses), tf.constant(log_beyond[beyond], tf.float32)
  )
  assert np.all(np.isfinite(others))
  assert np.all(first >= 0.0)
  total = np.sum(np.exp(np.float64(log_masses)))
  total += np.exp(np.float64(log_beyond[beyond]))
  # The unit is the total mass, which is 1 if the masses are probabilities.
  np.testing.assert_allclose(np.sum(first), total, rtol=1e-4)


def test_weights_of_each_row_are_those_of_the_row_alone():
  generator = np.random.default_rng(3)
  masses = np.log(generator.dirichlet(np.ones(5), [2, 3]))
  log_masses = np.moveaxis(masses[..., :-1], -1, 0)
  first, others = internals.leave_one_out_weights(
    tf.constant(log_masses), tf.constant(masses[..., -1])
  )
  assert first.shape == [4, 2, 3]
  assert others.shape == [4, 4, 2, 3]
  for row in np.ndindex(2, 3):
    alone = internals.leave_one_out_weights(
      tf.constant(masses[row][:-1]), tf.constant(masses[row][-1])
    )
    np.testing.assert_allclose(first[(..., *row)], alone[0], rtol=1e-13)
    np.testing.assert_allclose(others[(..., *row)], alone[1], rtol=1e-13)


# Draws without replacement, with all outcomes.


def splits(num_values, nums_summed=(0, 1, 2, 3), nums_of_samples=(1, 2, 3)):
  """Returns all `(k, M)` that are possible without replacement."""
  pairs = itertools.product(nums_summed, nums_of_samples)
  return [(k, m) for k, m in pairs if k + m <= num_values]


@pytest.mark.parametrize(
  ('name', 'num_summed', 'num_samples'),
  [
    (name, num_summed, num_samples)
    for name in ('none', 'constant', 'independent', 'mixed', 'rest', 'all')
    for num_summed, num_samples in splits(4)
    # A single draw has no other draw to serve as its baseline.
    if num_summed + num_samples > 1 or not zoo.BASELINES[name].needs_second
  ],
)
def test_draws_without_replacement_are_unbiased_with_every_baseline(
  name, num_summed, num_samples
):
  assert_mean_is_explicit_sum(
    'Categorical',
    estimator_of(num_summed, num_samples, zoo.BASELINES[name].make()),
  )


@pytest.mark.parametrize(
  ('family', 'num_summed', 'num_samples'),
  [
    ('Binomial', 0, 2),
    ('Binomial', 1, 2),
    ('Shift_of_Binomial', 0, 2),
    ('BatchBroadcast', 1, 2),
    ('Independent_Bernoulli', 0, 3),
    ('Independent_Bernoulli', 1, 2),
    ('Independent_Bernoulli', 2, 2),
  ],
)
def test_draws_without_replacement_are_unbiased_for_every_kind_of_family(
  family, num_summed, num_samples
):
  assert_mean_is_explicit_sum(
    family, estimator_of(num_summed, num_samples, baselines.LeaveOneOut())
  )


@pytest.mark.parametrize(
  'make',
  [
    lambda m: tfp_rb.NVIL(tf.constant(1.5, tf.float64), num_samples=m),
    lambda m: tfp_rb.MuProp(num_samples=m),
  ],
  ids=['NVIL', 'MuProp'],
)
@pytest.mark.parametrize(
  ('num_summed', 'num_samples'), [(0, 1), (0, 3), (1, 2), (2, 2), (3, 1)]
)
def test_other_estimators_stay_unbiased_without_replacement(
  num_summed, num_samples, make
):
  estimator = tfp_rb.rao_blackwellize(
    make(num_samples),
    num_summed=num_summed,
    sampler=samplers.WithoutReplacement(),
  )
  assert_mean_is_explicit_sum('OneHotCategorical', estimator)


def test_draws_without_replacement_are_enumerated_by_assert_unbiased():
  estimator = estimator_of(1, 3, baselines.LeaveOneOut())
  report = tfp_rb.testing.assert_unbiased(estimator)
  assert report.is_exact
  assert report.num_outcomes == 5**3


def outcomes_by_tuple(estimator, num_samples):
  """Yields `(row, values, chance, gradient)` of all possible outcomes."""
  chances, gradients = variances.enumerate_all(estimator)
  tuples = list(itertools.product(range(NUM_VALUES), repeat=num_samples))
  for row, problem in enumerate(PROBLEMS):
    # Values are enumerated from the most to the least probable.
    order, _ = problem.most_probable(NUM_VALUES)
    for ranks, chance, gradient in zip(
      tuples, chances[:, row], gradients[:, row], strict=True
    ):
      if chance:
        yield row, [order[r] for r in ranks], chance, gradient


# Since nothing is summed, all forms give the same.
@pytest.mark.parametrize('form', ['mixed', 'rest', 'all'])
@pytest.mark.parametrize('num_samples', [2, 3, 4])
def test_every_set_has_the_gradient_of_the_unordered_set_estimator(
  num_samples, form
):
  estimator = estimator_of(0, num_samples, baselines.LeaveOneOut(form))
  for row, values, chance, gradient in outcomes_by_tuple(
    estimator, num_samples
  ):
    problem = PROBLEMS[row]
    np.testing.assert_allclose(
      chance,
      reference.chance_of_order(values, dict(enumerate(problem.q))),
      rtol=1e-12,
    )
    expected = reference.unordered_set_gradient(problem, values)
    np.testing.assert_allclose(gradient, expected, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize('num_samples', [2, 3])
def test_the_order_of_the_draws_does_not_matter(num_samples):
  estimator = estimator_of(1, num_samples, baselines.LeaveOneOut())
  found = {}
  for row, values, _, gradient in outcomes_by_tuple(estimator, num_samples):
    same = found.setdefault((row, frozenset(values)), gradient)
    np.testing.assert_allclose(gradient, same, rtol=0.0, atol=1e-10)


@functools.cache
def variance_without_replacement(num_summed, num_samples, level):
  return variance_of(estimator_of(num_summed, num_samples, level))


@pytest.mark.parametrize('level', [None, 2.5])
@pytest.mark.parametrize(
  ('num_summed', 'num_samples'), splits(NUM_VALUES, (0, 1, 2), (2, 3))
)
def test_variance_without_replacement_is_at_most_that_of_a_single_draw(
  num_summed, num_samples, level
):
  actual = variance_without_replacement(num_summed, num_samples, level)
  single = variance_of_summed(level, num_summed)
  assert np.all(actual <= single * (1.0 + RTOL) + ATOL)


@pytest.mark.parametrize(
  ('num_summed', 'num_samples'), splits(NUM_VALUES, (0, 1, 2), (2, 3))
)
def test_variance_without_replacement_is_at_most_that_of_independent_draws(
  num_summed, num_samples
):
  actual = variance_without_replacement(num_summed, num_samples, None)
  independent = variance_of_summed(None, num_summed, num_samples)
  assert np.all(actual <= independent * (1.0 + RTOL) + ATOL)


@pytest.mark.parametrize('name', ['none', 'independent', 'mixed'])
@pytest.mark.parametrize('num_summed', [0, 1, 3])
def test_no_variance_is_left_where_all_values_are_drawn(num_summed, name):
  num_samples = NUM_VALUES - num_summed
  estimator = estimator_of(num_summed, num_samples, zoo.BASELINES[name].make())
  np.testing.assert_allclose(variance_of(estimator), 0.0, atol=ATOL)


# Without replacement, real draws.


def tiled(parameter, num_rows):
  return tf.tile(
    tf.constant(parameter, tf.float64)[tf.newaxis],
    [num_rows] + [1] * np.ndim(parameter),
  )


FIVE = np.array([0.3, 1.1, -0.5, 0.0, 0.8])
STEEP = 4.0 * np.exp(-0.04 * np.arange(300.0)) * np.cos(np.arange(300.0))
SITES = np.array([0.4, -0.9, 0.2])
RATE = 2.5
# A code has this many entries along its first axis; all draws of the tests are
# smaller.
BASE = 1024


def code_of_sites(z):
  return np.sum(z * 2 ** np.arange(z.shape[-1]), axis=-1)


def product_table(logits):
  table = reference.product([reference.bernoulli(x) for x in logits])
  return {int(code_of_sites(z)): p for z, p in table}


def poisson_table(rate, size=40):
  return {
    z: math.exp(z * math.log(rate) - rate - math.lgamma(z + 1.0))
    for z in range(size)
  }


LAWS = {  # maps rows to a distribution, a table of its codes, and the code
  'Categorical_of_5': (
    lambda n: tfd.Categorical(logits=tiled(FIVE, n)),
    dict(reference.categorical(FIVE)),
    np.asarray,
  ),
  'Categorical_of_300': (
    lambda n: tfd.Categorical(logits=tiled(STEEP, n)),
    dict(reference.categorical(STEEP)),
    np.asarray,
  ),
  'Poisson': (
    lambda n: tfd.Poisson(tiled(RATE, n)),
    poisson_table(RATE),
    lambda z: np.int64(np.asarray(z)),
  ),
  'product': (
    lambda n: tfd.Independent(tfd.Bernoulli(logits=tiled(SITES, n)), 1),
    product_table(SITES),
    lambda z: code_of_sites(np.asarray(z)),
  ),
  'BatchBroadcast': (
    lambda n: tfd.BatchBroadcast(
      tfd.Categorical(logits=tf.constant(FIVE)), [n]
    ),
    dict(reference.categorical(FIVE)),
    np.asarray,
  ),
}


def best_codes(table, num):
  return sorted(table, key=lambda z: -table[z])[:num]


def normalised(table):
  total = math.fsum(table.values())
  return {z: p / total for z, p in table.items()}


def drawn_codes(name, estimator, num_rows, seed=(3, 4)):
  """Returns codes of the draws, `[M, rows]`; also checks the summed atoms."""
  make, table, encode = LAWS[name]
  atoms = estimator.sample_atoms(make(num_rows), tf.constant(seed))
  codes = encode(atoms.values)
  num_summed = atoms.num_summed
  np.testing.assert_array_equal(
    codes[:num_summed].T,
    np.tile(best_codes(table, num_summed), [num_rows, 1]),
  )
  np.testing.assert_allclose(
    np.sum(atoms.weights, axis=0), 1.0, rtol=0.0, atol=1e-6
  )
  return codes[num_summed:]


@pytest.mark.parametrize('num_summed', [0, 1])
@pytest.mark.parametrize('name', list(LAWS))
def test_no_value_is_drawn_twice_and_no_summed_one_at_all(name, num_summed):
  table = LAWS[name][1]
  codes = drawn_codes(name, estimator_of(num_summed, 4), 200)
  codes = np.concatenate(
    [np.tile(best_codes(table, num_summed), [200, 1]), codes.T], axis=1
  )
  assert all(len(set(row)) == num_summed + 4 for row in codes.tolist())


@pytest.mark.parametrize(
  ('name', 'num_summed'),
  [
    ('Categorical_of_5', 0),
    ('Categorical_of_5', 1),
    ('Poisson', 2),
    ('product', 0),
    ('product', 1),
    ('BatchBroadcast', 1),
  ],
)
def test_a_pair_is_drawn_as_often_as_without_replacement(name, num_summed):
  table = LAWS[name][1]
  rest = normalised(reference.without(table, *best_codes(table, num_summed)))
  law = {
    BASE * a + b: reference.chance_of_order([a, b], rest)
    for a, b in itertools.permutations(rest, 2)
  }
  first, second = drawn_codes(name, estimator_of(num_summed, 2), 30_000)
  statistical.assert_follows(
    BASE * first + second,
    list(law),
    list(law.values()),
    num_tests=NUM_TESTS,
    detectable=0.05,
  )


def test_pairs_of_a_long_table_are_drawn_as_often_as_without_replacement():
  name, num_rows = 'Categorical_of_300', 20_000
  table = LAWS[name][1]
  first, second = drawn_codes(name, estimator_of(0, 2), num_rows)
  (best,) = best_codes(table, 1)
  left = normalised(reference.without(table, best))
  for draws, law in ((first, table), (second[first == best], left)):
    statistical.assert_follows(
      draws,
      list(law),
      list(law.values()),
      num_tests=NUM_TESTS,
      detectable=0.15,
    )


# Stratified draws, with all outcomes.


def pieces_of_strata(probs, num_draws):
  """Returns the pieces into which the CDF divides the strata of (0, 1).

  Args:
    probs: Array of shape `[K]`, the law, in the order of the table.
    num_draws: Python `int`, the number of strata.

  Returns:
    pieces: For each stratum a list of pairs. The first entry is the midpoint of
      a piece, measured from the start of the stratum in units of the stratum;
      the second is the piece's share of the stratum.
  """
  cuts = np.cumsum(probs)[:-1] * num_draws
  pieces = []
  for stratum in range(num_draws):
    inside = cuts[(cuts > stratum) & (cuts < stratum + 1)] - stratum
    ends = np.concatenate([[0.0], np.unique(inside), [1.0]])
    pieces.append(list(zip((ends[1:] + ends[:-1]) / 2.0, np.diff(ends))))
  return pieces


def stratified_outcomes(row, num_summed, num_draws, baseline):
  """Returns chances `[T, 1]` and gradients `[T, 1, K]` of all outcomes.

  The outcomes are all orders of the strata with all pieces.
  """
  problem = PROBLEMS[row]
  _, rest = problem.most_probable(num_summed)
  probs = np.where(np.isin(np.arange(NUM_VALUES), rest), problem.q, 0.0)
  pieces = pieces_of_strata(probs / np.sum(probs), num_draws)
  uniforms, chances = [], []
  for order in itertools.permutations(range(num_draws)):
    for chosen in itertools.product(*(pieces[stratum] for stratum in order)):
      middles = np.array([middle for middle, _ in chosen])
      uniforms.append((np.array(order) + middles) / num_draws)
      share = np.prod([share for _, share in chosen])
      chances.append(share / math.factorial(num_draws))
  uniforms = np.array(uniforms).T[..., np.newaxis]  # [M, T, 1]

  def from_uniforms(partition, u):
    # The sampler passes outcomes like those that are enumerated.
    strata = np.sort(np.floor(u * num_draws), axis=0)
    assert np.all(strata == np.reshape(np.arange(num_draws), [-1, 1, 1]))
    # A draw from a long table uses two uniforms; here the second one determines
    # the draw.
    return partition.rest_from_uniforms(tf.broadcast_to(uniforms, u.shape))

  estimator = estimator_of(num_summed, num_draws, baseline, samplers.Stratified)
  logits = tiled(variances.LOGITS[row], len(chances))
  costs = variances.COSTS[row]
  with tf.GradientTape() as tape:
    tape.watch(logits)
    f, q = variances.make_problem(costs)(logits)
    value = internals.estimate_with_draws(
      f, q, estimator, from_uniforms=from_uniforms
    )
  gradients = tape.gradient(value, logits).numpy()
  return np.array(chances)[:, np.newaxis], gradients[:, np.newaxis]


@pytest.mark.parametrize('level', [None, 2.5])
@pytest.mark.parametrize(
  ('num_summed', 'num_draws'), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 4), (2, 3)]
)
@pytest.mark.parametrize('row', [1, 3])
def test_stratified_draws_are_unbiased_and_vary_no_more_than_independent_ones(
  row, num_summed, num_draws, level
):
  independent = variance_of_summed(level, num_summed, num_draws)[row]
  chances, gradients = stratified_outcomes(row, num_summed, num_draws, level)
  np.testing.assert_allclose(np.sum(chances), 1.0, rtol=1e-12)
  np.testing.assert_allclose(
    np.sum(chances * gradients[:, 0], axis=0),
    PROBLEMS[row].exact_gradient(),
    rtol=0.0,
    atol=1e-10,
  )
  (actual,) = variances.total_variance(chances, gradients)
  assert actual <= independent * (1.0 + RTOL) + ATOL
  if num_draws > 1 and num_summed < 2:
    assert actual < independent


# Stratified, real draws.


@pytest.mark.parametrize('num_summed', [0, 1])
@pytest.mark.parametrize('name', list(LAWS))
def test_each_stratified_draw_alone_follows_the_law_of_the_rest(
  name, num_summed
):
  table = LAWS[name][1]
  rest = normalised(reference.without(table, *best_codes(table, num_summed)))
  is_long = len(table) > 100
  codes = drawn_codes(
    name,
    estimator_of(num_summed, 3, sampler=samplers.Stratified),
    20_000,
  )
  # The test uses the first and the last draw, since both show an order that is
  # not random.
  for draws in (codes[0], codes[-1]):
    statistical.assert_follows(
      draws,
      list(rest),
      list(rest.values()),
      num_tests=NUM_TESTS,
      detectable=0.1 if is_long else 0.06,
    )


@pytest.mark.parametrize('num_draws', [2, 5, 64, 127])
def test_stratified_draws_of_equal_values_are_a_permutation(num_draws):
  estimator = estimator_of(0, num_draws, sampler=samplers.Stratified)
  q = tfd.Categorical(logits=tf.zeros([20, num_draws], tf.float64))
  values = estimator.sample_atoms(q, tf.constant([5, 6])).values.numpy()
  np.testing.assert_array_equal(
    np.sort(values, axis=0), np.tile(np.arange(num_draws), [20, 1]).T
  )
  # Each row has its own order, which differs from that of the values.
  assert len({tuple(row) for row in values.T}) > (1 if num_draws == 2 else 10)


def test_stratified_draws_of_a_broadcast_distribution_are_permutations():
  estimator = estimator_of(0, 4, sampler=samplers.Stratified)
  q = tfd.BatchBroadcast(tfd.Categorical(logits=tf.zeros([1, 4])), [5, 3])
  values = estimator.sample_atoms(q, tf.constant([5, 6])).values.numpy()
  np.testing.assert_array_equal(
    np.sort(values, axis=0),
    np.broadcast_to(np.reshape(np.arange(4), [4, 1, 1]), [4, 5, 3]),
  )


def test_sites_of_a_stratified_product_have_orders_of_their_own():
  estimator = estimator_of(0, 4, sampler=samplers.Stratified)
  q = tfd.Sample(tfd.Categorical(logits=tf.zeros([4])), 6)
  values = estimator.sample_atoms(q, tf.constant([5, 6])).values.numpy()
  np.testing.assert_array_equal(
    np.sort(values, axis=0), np.tile(np.arange(4), [6, 1]).T
  )
  assert len({tuple(site) for site in values.T}) > 1


def assert_one_in_each_stratum(u):
  """Checks strata along the first axis; values are strictly between 0 and 1."""
  num_draws = u.shape[0]
  assert np.all((u > 0.0) & (u < 1.0))
  # A number near the end of a stratum may be rounded into the next one.
  middles = np.reshape(np.arange(num_draws) + 0.5, [-1, 1])
  distance = np.abs(np.sort(u, axis=0) * num_draws - middles)
  assert np.all(distance < 0.5 + 1e-9)


@pytest.mark.parametrize('num_draws', [1, 3, 1000, 2**17 + 1])
def test_each_stratum_holds_one_uniform_strictly_between_0_and_1(num_draws):
  u = internals.stratified_uniform([num_draws, 3], tf.constant([1, 2])).numpy()
  assert u.shape == (num_draws, 3)
  assert_one_in_each_stratum(u)


@pytest.mark.parametrize('bits', [0, -1, 'min', 'max'])
@pytest.mark.parametrize('num_draws', [1, 3, 1000])
def test_stratified_uniforms_of_extreme_bits_lie_strictly_between_0_and_1(
  monkeypatch, num_draws, bits
):
  def extreme_bits(shape, seed, dtype):
    del seed
    value = getattr(dtype, bits) if isinstance(bits, str) else bits
    return tf.fill(shape, tf.constant(value, dtype))

  internals.patch_bits(monkeypatch, extreme_bits)
  u = internals.stratified_uniform([num_draws, 2], tf.constant([1, 2])).numpy()
  assert_one_in_each_stratum(u)


def test_stratified_draws_leave_those_that_follow_independent():
  independent = estimator_of(0, 4, sampler=samplers.IID)
  before = independent.sample_atoms(Q, tf.constant([1, 2])).values
  stratified = estimator_of(0, 4, sampler=samplers.Stratified)
  stratified.sample_atoms(Q, tf.constant([3, 4]))
  after = independent.sample_atoms(Q, tf.constant([1, 2])).values
  np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
  ('num_summed', 'baseline'),
  [
    (1, baselines.IndependentSample()),
    (0, 1.0),
  ],
)
def test_stratified_draws_are_unbiased_by_draws(num_summed, baseline):
  report = tfp_rb.testing.assert_unbiased(
    estimator_of(num_summed, 3, baseline, samplers.Stratified),
    detectable_bias=0.05,
  )
  assert not report.is_exact
  assert report.detectable_bias <= 0.055


# Inputs that are rejected.

Q = tfd.Categorical(logits=np.array([0.0, 1.0, 2.0, 0.5]))


def cost(z):
  return tf.cast(z, tf.float64)


@pytest.mark.parametrize('num_summed', [0, 1])
def test_leave_one_out_refuses_stratified_draws(num_summed):
  estimator = estimator_of(
    num_summed, 2, baselines.LeaveOneOut(), samplers.Stratified
  )
  with raises(ValueError, 'sampler'):
    tfp_rb.expectation(cost, Q, estimator)


@pytest.mark.parametrize('num_summed', [0, 1])
@pytest.mark.parametrize(
  'sampler', [samplers.Stratified, samplers.WithoutReplacement]
)
def test_optimal_refuses_dependent_draws(sampler, num_summed):
  estimator = estimator_of(num_summed, 2, baselines.Optimal(), sampler)
  with raises(ValueError, 'sampler'):
    tfp_rb.expectation(cost, Q, estimator)


def test_at_most_eight_draws_are_made_without_replacement():
  estimator_of(0, 8)
  with raises(ValueError, 'num_samples'):
    estimator_of(0, 9)


@pytest.mark.parametrize(
  ('num_summed', 'num_samples'), [(0, 5), (1, 4), (3, 2)]
)
def test_no_more_values_are_drawn_than_there_are(num_summed, num_samples):
  with raises(ValueError, 'num_samples'):
    tfp_rb.expectation(cost, Q, estimator_of(num_summed, num_samples))


@pytest.mark.parametrize(
  'sampler',
  [
    samplers.Antithetic(),
    samplers.Stratified(),
    samplers.WithoutReplacement(),
  ],
  ids=repr,
)
def test_a_budget_is_spent_on_independent_draws_only(sampler):
  with raises(ValueError, 'sampler'):
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), budget=3, sampler=sampler)
  tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), budget=3, sampler=samplers.IID())


@pytest.mark.parametrize('sampler', ['IID', samplers.IID, 3, len], ids=str)
def test_sampler_must_be_a_sampler(sampler):
  with raises(TypeError, 'sampler'):
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1, sampler=sampler)


class OfUser(tfd.Categorical):
  """A distribution whose partition was written by the user."""


def partition_of_user(q, num_summed):
  part = tfp_rb.partition(tfd.Categorical(logits=q.logits), num_summed)
  logits = tf.tensor_scatter_nd_update(
    q.logits, part.values[:, tf.newaxis], tf.fill([num_summed], -np.inf)
  )
  return part._replace(
    sample_rest=lambda n, seed: tf.random.stateless_categorical(
      logits[tf.newaxis], n, seed, dtype=tf.int32
    )[0],
    excluding=None,
  )


@pytest.mark.parametrize('name', ['Antithetic', 'Stratified'])
def test_uniforms_need_a_partition_of_this_library(name, monkeypatch):
  internals.copy_registry(monkeypatch)
  tfp_rb.RegisterPartition(OfUser)(partition_of_user)
  q = OfUser(logits=[0.0, 1.0, 2.0])
  for num_summed in (0, 1):
    estimator = estimator_of(num_summed, 2, sampler=zoo.SAMPLERS[name])
    with raises(NotImplementedError, f'samplers.{name}'):
      estimator.sample_atoms(q, tf.constant([0, 1]))


def test_a_partition_of_the_user_is_drawn_without_replacement(monkeypatch):
  internals.copy_registry(monkeypatch)
  tfp_rb.RegisterPartition(OfUser)(partition_of_user)
  q = OfUser(logits=[0.0, 1.0, 2.0])
  for num_summed in (0, 1):
    estimator = estimator_of(num_summed, 3 - num_summed)
    atoms = estimator.sample_atoms(q, tf.constant([0, 1]))
    np.testing.assert_array_equal(np.sort(atoms.values), [0, 1, 2])
    np.testing.assert_allclose(
      np.array(atoms.weights)[np.argsort(atoms.values)],
      reference.softmax(np.arange(3.0)),
      rtol=1e-5,
    )


# Draws are the same in all modes.


@pytest.mark.parametrize(
  'sampler',
  [samplers.Antithetic, samplers.Stratified, samplers.WithoutReplacement],
)
def test_atoms_are_equal_in_eager_graph_and_xla(sampler):
  estimator = estimator_of(1, 2, sampler=sampler)

  def sample(seed):
    atoms = estimator.sample_atoms(Q, seed)
    return atoms.values, atoms.weights

  modes = modes_of(sample, tf.constant([0, 0]))
  for seed in ([1, 2], [-7, 2**31 - 1], [0, 0]):
    seed = tf.constant(seed)
    values, weights = sample(seed)
    for mode in ('graph', 'xla'):
      other_values, other_weights = modes[mode](seed)
      np.testing.assert_array_equal(values, other_values)
      np.testing.assert_allclose(weights, other_weights, rtol=1e-6)


@pytest.mark.parametrize(
  'sampler',
  [make() for make in zoo.SAMPLERS.values()],
  ids=repr,
)
def test_estimators_with_a_sampler_come_back_from_json(sampler):
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=2.5, num_samples=3), num_summed=1, sampler=sampler
  )
  config = json.loads(json.dumps(estimator.get_config()))
  again = type(estimator).from_config(config)
  assert type(again.sampler) is type(sampler)
  assert again.get_config() == estimator.get_config()
  assert repr(again) == repr(estimator)
  assert repr(sampler) in repr(estimator)
  for a, b in zip(
    estimator.sample_atoms(Q, tf.constant([1, 2]))[:3],
    again.sample_atoms(Q, tf.constant([1, 2]))[:3],
  ):
    np.testing.assert_array_equal(a, b)


# Numerics.

INF = np.inf
HARD_LOGITS = np.array([
  [-INF, 0.3, -INF, -INF, 1.0],  # fewer possible values than draws
  [-INF, 0.3, -INF, -INF, -INF],
  [1e4, -1e4, 0.0, 9.9e3, 1e4],
  [1e4, -1e4, 0.0, -1e4, 1.0],  # all but one underflow
  [0.0, 0.0, 0.0, 0.0, 0.0],
])  # fmt: skip


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize(
  ('num_summed', 'num_samples', 'sampler', 'baseline'),
  [
    (0, 5, samplers.WithoutReplacement, baselines.LeaveOneOut()),
    (2, 3, samplers.WithoutReplacement, baselines.LeaveOneOut()),
    (1, 3, samplers.WithoutReplacement, None),
    (4, 1, samplers.WithoutReplacement, baselines.LeaveOneOut()),
    (1, 3, samplers.Stratified, None),
    (4, 3, samplers.Stratified, 1.0),
    (1, 4, samplers.Antithetic, baselines.LeaveOneOut()),
  ],
)
def test_value_and_gradient_are_finite_for_extreme_logits(
  num_summed, num_samples, sampler, baseline, dtype
):
  estimator = estimator_of(num_summed, num_samples, baseline, sampler)
  logits = tf.constant(HARD_LOGITS, dtype)
  is_possible = np.isfinite(HARD_LOGITS)
  atoms = estimator.sample_atoms(tfd.Categorical(logits=logits), [0, 1])
  np.testing.assert_allclose(np.sum(atoms.weights, axis=0), 1.0, rtol=1e-5)
  assert np.all(np.asarray(atoms.weights) >= 0.0)
  rows = np.arange(len(HARD_LOGITS))
  assert np.all(is_possible[rows, atoms.values.numpy()])
  # The costs are infinite where `f` must not be evaluated.
  costs = np.where(is_possible, np.arange(5.0), np.inf)

  def f(z):
    return tf.transpose(tf.gather(costs, tf.transpose(z), batch_dims=1))

  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = tfd.Categorical(logits=logits)
    value = tfp_rb.expectation(f, q, estimator, seed=[0, 1])
  assert np.all(np.isfinite(value))
  assert np.all(np.isfinite(tape.gradient(value, logits)))
  if sampler is samplers.WithoutReplacement and num_summed + num_samples == 5:
    expected = np.sum(tf.nn.softmax(logits) * np.arange(5.0), axis=1)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
