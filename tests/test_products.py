# SPDX-License-Identifier: Apache-2.0
"""Products of sites: `Independent`, `Sample`, and nested combinations.

The reference either enumerates the product or searches it best first with a
heap. It starts from the log-probabilities of the sites by NumPy and SciPy.
"""

from collections.abc import Callable
import functools
import heapq
import itertools
from typing import NamedTuple

import numpy as np
import pytest
from scipy import special, stats
import tensorflow as tf
import tensorflow_probability as tfp

from foreign import EvenNumbers, partition_of_even
import internals
import statistical
import tfp_rb

tfd = tfp.distributions

# The number of calibrated tests in this file; they share the rate of false
# failures.
NUM_TESTS = 60
NUM_DRAWS = 20_000

SEEDS = [[1, 2], [-7, 3], [2**31 - 1, -(2**31)]]

_generator = np.random.default_rng(0)
LOGITS = 1.5 * _generator.normal(size=[2, 3, 3])  # [batch, sites, symbols]


class Product(NamedTuple):
  """A product and its sites, flattened in the order of the event.

  Attributes:
    build: Callable that maps a floating dtype to the distribution, of batch
      shape `[b]`.
    site_log_probs: Array of shape `[b, sites, symbols]`; symbol `s` stands for
      the value `s` or its one-hot vector.
    is_one_hot: Whether the last axis of an event is a one-hot vector.
  """

  build: Callable
  site_log_probs: np.ndarray
  is_one_hot: bool = False

  @property
  def num_sites(self):
    return self.site_log_probs.shape[1]

  @property
  def shape(self):
    return (self.site_log_probs.shape[2],) * self.num_sites

  @property
  def log_probs(self):
    """Returns the log-probabilities of all joint values.

    The result has shape `[b, symbols ** sites]`.
    """
    total = self.site_log_probs[:, 0]
    for site in range(1, self.num_sites):
      own = self.site_log_probs[:, np.newaxis, site]
      total = (total[..., np.newaxis] + own).reshape([len(total), -1])
    return total

  def index(self, values):
    """Maps joint values `[n, b] + event` to their numbers, `[n, b]`."""
    values = np.array(values)
    if self.is_one_hot:
      assert np.all(np.sum(values, axis=-1) == 1)
      values = np.argmax(values, axis=-1)
    digits = values.reshape([*values.shape[:2], self.num_sites]).astype(int)
    return np.ravel_multi_index(np.moveaxis(digits, -1, 0), self.shape)


def log_softmax(logits):
  return special.log_softmax(logits, axis=-1)


def cast(x, dtype):
  return tf.constant(np.array(x), dtype)


BERNOULLI_LOGITS = np.array([[0.7, -1.2, 2.0], [0.0, 0.1, -3.0]])
RATES = np.array([[0.4, 2.5], [1.0, 3.0]])
COUNTS, PROBS = np.array([1.0, 3.0, 2.0]), np.array([0.3, 0.6, 0.5])

PRODUCTS = {
  'Independent Bernoulli': Product(
    lambda dtype: tfd.Independent(
      tfd.Bernoulli(logits=cast(BERNOULLI_LOGITS, dtype)), 1
    ),
    log_softmax(np.stack([0.0 * BERNOULLI_LOGITS, BERNOULLI_LOGITS], -1)),
  ),
  'Sample Bernoulli': Product(
    lambda dtype: tfd.Sample(tfd.Bernoulli(logits=cast([0.7, -2.0], dtype)), 3),
    log_softmax(np.tile([[[0.0, 0.7]], [[0.0, -2.0]]], [1, 3, 1])),
  ),
  'Independent Categorical': Product(
    lambda dtype: tfd.Independent(tfd.Categorical(cast(LOGITS, dtype)), 1),
    log_softmax(LOGITS),
  ),
  'Independent OneHotCategorical': Product(
    lambda dtype: tfd.Independent(
      tfd.OneHotCategorical(cast(LOGITS, dtype)), 1
    ),
    log_softmax(LOGITS),
    is_one_hot=True,
  ),
  'Independent of rank 2': Product(
    lambda dtype: tfd.Independent(
      tfd.Bernoulli(
        logits=tf.reshape(cast(BERNOULLI_LOGITS, dtype), [1, 2, 3])
      ),
      2,
    ),
    log_softmax(
      np.stack([np.zeros([1, 6]), BERNOULLI_LOGITS.reshape([1, 6])], -1)
    ),
  ),
  'Sample of rank 2': Product(
    lambda dtype: tfd.Sample(
      tfd.Categorical(cast(LOGITS[:, 0], dtype)), [2, 2]
    ),
    log_softmax(np.tile(LOGITS[:, :1], [1, 4, 1])),
  ),
  'Sample of Independent': Product(
    lambda dtype: tfd.Sample(
      tfd.Independent(tfd.Categorical(cast(LOGITS[:, :2], dtype)), 1), 2
    ),
    log_softmax(np.tile(LOGITS[:, :2], [1, 2, 1])),
  ),
  'Independent of Sample': Product(
    lambda dtype: tfd.Independent(
      tfd.Sample(tfd.Categorical(cast(LOGITS[:, :2], dtype)), 2), 1
    ),
    log_softmax(np.repeat(LOGITS[:, :2], 2, axis=1)),
  ),
  'Independent of Sample of OneHotCategorical': Product(
    lambda dtype: tfd.Independent(
      tfd.Sample(tfd.OneHotCategorical(cast(LOGITS[:, :2], dtype)), 2), 1
    ),
    log_softmax(np.repeat(LOGITS[:, :2], 2, axis=1)),
    is_one_hot=True,
  ),
  'Independent Binomial': Product(
    # The counts of the second row differ from those of the first.
    lambda dtype: tfd.Independent(
      tfd.Binomial(
        cast([COUNTS, COUNTS[::-1]], dtype), probs=cast(PROBS, dtype)
      ),
      1,
    ),
    np.moveaxis(
      [stats.binom.logpmf(z, [COUNTS, COUNTS[::-1]], PROBS) for z in range(4)],
      0,
      -1,
    ),
  ),
  'Independent Poisson': Product(
    lambda dtype: tfd.Independent(tfd.Poisson(cast(RATES, dtype)), 1),
    stats.poisson.logpmf(np.arange(60), RATES[..., np.newaxis]),
  ),
  'Sample of Poisson': Product(
    lambda dtype: tfd.Sample(tfd.Poisson(cast([0.7, 1.9], dtype)), 3),
    np.tile(stats.poisson.logpmf(np.arange(45), [[[0.7]], [[1.9]]]), [1, 3, 1]),
  ),
}

SMALL = [name for name in PRODUCTS if 'Poisson' not in name]


@functools.cache
def partition_of(name, k):
  return tfp_rb.partition(PRODUCTS[name].build(tf.float64), k)


def numbers_of_summed(num_values):
  """Returns all numbers up to 9, a few more, and the size if it is finite."""
  numbers = {*range(1, 10), 16, 27, 40, num_values - 1, num_values}
  most = num_values if num_values < 1000 else 40
  return sorted(k for k in numbers if k <= most)


def possible_numbers(product, partition):
  """Returns, for each row, the numbers of its possible summed values.

  Possible values are those of positive weight.
  """
  index = product.index(partition.values)
  is_possible = np.exp(partition.log_weights) > 0.0
  return [index[is_possible[:, i], i] for i in range(index.shape[1])]


@pytest.mark.parametrize('name', PRODUCTS)
def test_the_summed_values_are_the_k_best(name):
  product = PRODUCTS[name]
  log_probs = product.log_probs
  for k in numbers_of_summed(log_probs.shape[1]):
    partition = partition_of(name, k)
    weights = partition.weights.numpy()
    best = np.exp(-np.sort(-log_probs, axis=1)[:, :k])
    np.testing.assert_allclose(weights.T, best, rtol=1e-12)
    for i, numbers in enumerate(possible_numbers(product, partition)):
      # The weights match the values, and no value occurs twice.
      np.testing.assert_allclose(
        np.exp(log_probs[i, numbers]), weights[: numbers.size, i], rtol=1e-12
      )
      assert np.unique(numbers).size == numbers.size


@pytest.mark.parametrize('name', PRODUCTS)
def test_the_rest_has_the_mass_of_all_other_values(name):
  product = PRODUCTS[name]
  masses = np.exp(-np.sort(-product.log_probs, axis=1))
  for k in numbers_of_summed(masses.shape[1]):
    partition = partition_of(name, k)
    exact = np.sum(masses[:, k:], axis=1)
    np.testing.assert_allclose(partition.rest_weight, exact, rtol=1e-12)


@pytest.mark.parametrize('name', PRODUCTS)
def test_float32_weights_are_right(name):
  product = PRODUCTS[name]
  masses = np.exp(-np.sort(-product.log_probs, axis=1))
  partition = tfp_rb.partition(product.build(tf.float32), 5)
  np.testing.assert_allclose(
    np.transpose(partition.weights), masses[:, :5], rtol=1e-5
  )
  np.testing.assert_allclose(
    partition.rest_weight, np.sum(masses[:, 5:], axis=1), rtol=1e-5
  )


@pytest.mark.parametrize('name', SMALL)
def test_a_product_summed_completely_leaves_nothing(name):
  product = PRODUCTS[name]
  num_values = product.log_probs.shape[1]
  partition = partition_of(name, num_values)
  np.testing.assert_array_equal(partition.rest_weight, 0.0)
  assert partition.sample_rest is None
  assert partition.num_values == num_values


@pytest.mark.parametrize('k', [0, 1, 6])
@pytest.mark.parametrize('name', PRODUCTS)
def test_draws_from_the_rest_follow_the_conditional_law(name, k):
  product = PRODUCTS[name]
  partition = partition_of(name, k)
  numbers = product.index(partition.values)
  draws = product.index(partition.sample_rest(NUM_DRAWS, seed=[3, -4]))
  masses = np.exp(product.log_probs)
  for i, summed in enumerate(numbers.T):
    masses[i, summed] = 0.0
  masses /= np.sum(masses, axis=1, keepdims=True)
  # All rows form one table, which excludes summed values.
  num_rows, num_values = masses.shape
  numbers = np.arange(num_rows * num_values).reshape(masses.shape)
  is_possible = masses > 0.0
  statistical.assert_follows(
    draws + num_values * np.arange(num_rows),
    numbers[is_possible],
    masses[is_possible] / num_rows,
    num_tests=NUM_TESTS,
    detectable=0.06,
  )


# --- Ties.


@pytest.mark.parametrize('k', range(1, 9))
def test_ties_of_a_flat_product_go_to_the_lowest_value(k):
  q = tfd.Sample(tfd.Bernoulli(logits=np.float64(0.0)), 3)
  values = tfp_rb.partition(q, k).values
  lowest = list(itertools.product([0, 1], repeat=3))[:k]
  np.testing.assert_array_equal(values, lowest)


@pytest.mark.parametrize('k', range(1, 5))
def test_ties_of_a_site_go_to_the_lowest_symbol(k):
  q = tfd.Sample(tfd.Categorical(np.float64([0.0, 1.0, 1.0])), 2)
  values = tfp_rb.partition(q, k).values
  np.testing.assert_array_equal(values, [[1, 1], [1, 2], [2, 1], [2, 2]][:k])


def test_ties_between_sites_keep_the_first_sites_at_their_best():
  q = tfd.Sample(tfd.Bernoulli(probs=np.float64(0.9)), 2)
  values = tfp_rb.partition(q, 4).values
  np.testing.assert_array_equal(values, [[1, 1], [1, 0], [0, 1], [0, 0]])


# --- Many sites.


def k_best_by_heap(site_log_probs, k):
  """Returns the `k` best of a product: symbols and log-probabilities.

  The best joint value comes first.
  """
  order = np.argsort(-site_log_probs, axis=-1, kind='stable')
  ordered = np.take_along_axis(site_log_probs, order, axis=-1)
  num_sites, num_symbols = ordered.shape
  start = (0,) * num_sites
  # Each state is reached once, by raising sites from the first to the last.
  heap = [(-np.sum(ordered[:, 0]), start, 0)]
  symbols, log_probs = [], []
  while heap and len(symbols) < k:
    cost, ranks, last = heapq.heappop(heap)
    symbols.append([order[d, r] for d, r in enumerate(ranks)])
    log_probs.append(-cost)
    for d in range(last, num_sites):
      if ranks[d] + 1 < num_symbols:
        step = ordered[d, ranks[d]] - ordered[d, ranks[d] + 1]
        raised = (*ranks[:d], ranks[d] + 1, *ranks[d + 1 :])
        heapq.heappush(heap, (cost + step, raised, d))
  return np.array(symbols), np.array(log_probs)


def test_the_heap_agrees_with_enumeration():
  product = PRODUCTS['Independent Categorical']
  _, log_probs = k_best_by_heap(product.site_log_probs[0], 27)
  np.testing.assert_allclose(log_probs, -np.sort(-product.log_probs[0]), 1e-12)


MANY_SITES = {
  '200 Bernoulli': (
    lambda logits: tfd.Independent(tfd.Bernoulli(logits=logits), 1),
    2.0 * _generator.normal(size=[32, 200]),
    lambda logits: np.stack([0.0 * logits, logits], axis=-1),
  ),
  '20 Categorical of 50': (
    lambda logits: tfd.Independent(tfd.Categorical(logits=logits), 1),
    2.0 * _generator.normal(size=[32, 20, 50]),
    lambda logits: logits,
  ),
}


@pytest.mark.parametrize('name', MANY_SITES)
def test_the_k_best_of_many_sites_are_found(name):
  build, logits, site_logits = MANY_SITES[name]
  partition = tfp_rb.partition(build(cast(logits, tf.float64)), 16)
  for row in (0, 31):
    values, log_probs = k_best_by_heap(
      log_softmax(site_logits(logits[row])), 16
    )
    np.testing.assert_array_equal(partition.values[:, row], values)
    np.testing.assert_allclose(partition.log_weights[:, row], log_probs, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize('name', MANY_SITES)
def test_compiled_partitions_of_many_sites_equal_eager_ones(name):
  build, logits, _ = MANY_SITES[name]

  @tf.function(jit_compile=True, autograph=False)
  def compiled(logits, seed):
    partition = tfp_rb.partition(build(logits), 16)
    return (
      partition.values,
      partition.log_weights,
      partition.log_rest,
      partition.sample_rest(3, seed),
    )

  logits = tf.constant(logits, tf.float32)
  # The partition is the same for every seed.
  partition = tfp_rb.partition(build(logits), 16)
  for seed in map(tf.constant, SEEDS):
    values, log_weights, log_rest, draws = compiled(logits, seed)
    np.testing.assert_array_equal(values, partition.values)
    np.testing.assert_allclose(log_weights, partition.log_weights, rtol=1e-5)
    np.testing.assert_allclose(log_rest, partition.log_rest, 1e-5, atol=2e-6)
    np.testing.assert_array_equal(draws, partition.sample_rest(3, seed))


def test_compiled_draws_of_nested_products_equal_eager_ones():
  names = [
    'Sample of Independent',
    'Independent of Sample of OneHotCategorical',
  ]

  @tf.function(jit_compile=True, autograph=False)
  def compiled(seed):
    return [
      tfp_rb.partition(PRODUCTS[name].build(tf.float64), 5).sample_rest(
        50, seed
      )
      for name in names
    ]

  for seed in map(tf.constant, SEEDS):
    for name, draws in zip(names, compiled(seed)):
      np.testing.assert_array_equal(
        draws, partition_of(name, 5).sample_rest(50, seed)
      )


# --- A rest of mass 1e-7 in float32.

NUM_CONCENTRATED = 200
# The odds against the most probable symbol of each site; their sum is 1e-6.
CONCENTRATED_LOGITS = np.float32(
  np.linspace(17.0, 21.0, NUM_CONCENTRATED)
  * np.where(np.arange(NUM_CONCENTRATED) % 3 == 0, -1.0, 1.0)
)


def concentrated():
  return tfd.Independent(tfd.Bernoulli(logits=CONCENTRATED_LOGITS), 1)


@pytest.mark.parametrize('k', [1, 2, 16, 100])
def test_a_rest_of_mass_1e_minus_7_is_right_in_float32(k):
  # After the best value, the next best values differ from it at one site.
  odds = np.exp(-np.abs(CONCENTRATED_LOGITS.astype(np.float64)))
  total = np.sum(np.log1p(odds))
  rest = np.expm1(total) - np.sum(np.sort(odds)[::-1][: k - 1])
  exact = rest / np.exp(total)
  assert 5e-8 < exact < 3e-6
  given = tfp_rb.partition(concentrated(), k).rest_weight
  assert given.dtype == tf.float32
  np.testing.assert_allclose(given, exact, rtol=1e-3)


def test_draws_from_a_rest_of_mass_1e_minus_7_follow_its_law_in_float32():
  k = 16
  partition = tfp_rb.partition(concentrated(), k)
  draws = partition.sample_rest(NUM_DRAWS, seed=[5, 6]).numpy()
  # Except for a share of 1e-6, draws differ from the best value at one site,
  # which is none of the 15 sites whose values are summed.
  leaves = draws != (CONCENTRATED_LOGITS > 0.0)
  assert np.all(np.sum(leaves, axis=1) == 1)
  odds = np.exp(-np.abs(CONCENTRATED_LOGITS.astype(np.float64)))
  sites = np.argsort(-odds)[k - 1 :]
  statistical.assert_follows(
    np.argmax(leaves, axis=1),
    sites,
    odds[sites] / np.sum(odds[sites]),
    num_tests=NUM_TESTS,
    detectable=0.06,
  )


def test_a_small_rest_of_few_sites_is_right_in_float32():
  # There are 27 values in all: the rest of k = 9 has mass 1e-7 and 18 values.
  logits = np.float32(
    [[0.0, -1.0, -17.0], [0.5, 0.0, -17.5], [1.0, -18.0, 0.0]]
  )
  q = tfd.Independent(tfd.Categorical(logits), 1)
  product = Product(None, log_softmax(logits.astype(np.float64))[np.newaxis])
  partition = tfp_rb.partition(q, 8)
  exact = np.sum(np.sort(np.exp(product.log_probs[0]))[:-8])
  assert 1e-8 < exact < 1e-6
  np.testing.assert_allclose(partition.rest_weight, exact, rtol=1e-5)


# --- Degenerate sites.


def test_flat_sites_whose_joint_weight_underflows_give_no_nan():
  q = tfd.Sample(tfd.Bernoulli(logits=np.float32([0.0, 0.0])), 200)
  partition = tfp_rb.partition(q, 16)
  draws = partition.sample_rest(5, seed=[1, 2])
  np.testing.assert_allclose(
    partition.log_weights, -200.0 * np.log(2.0), rtol=1e-5
  )
  np.testing.assert_allclose(partition.log_rest, 0.0, atol=1e-5)
  assert np.all((draws == 0) | (draws == 1))


def test_draws_of_flat_sites_whose_joint_weight_underflows_are_fair():
  q = tfd.Sample(tfd.Bernoulli(logits=np.float32(0.0)), 200)
  draws = tfp_rb.partition(q, 16).sample_rest(1000, seed=[1, 2])
  # All 16 summed values are 0 at the first 196 sites, whose mass is 2 ** -196.
  num_ones = np.sum(draws, axis=-1)
  edges = np.array([0, 90, 95, 98, 101, 104, 109, 200])
  law = np.diff(stats.binom.cdf(edges - 1, 200, 0.5))
  statistical.assert_follows(
    np.searchsorted(edges, num_ones, side='right') - 1,
    np.arange(7),
    law,
    num_tests=NUM_TESTS,
    detectable=0.17,
  )


IMPOSSIBLE = np.array([
  [0.3, -np.inf, 0.1],
  [-np.inf, 0.0, -np.inf],  # this row is deterministic
  [-np.inf, 1.0, 0.2],
])  # fmt: skip


IMPOSSIBLE_PRODUCT = Product(
  lambda dtype: tfd.Independent(tfd.Categorical(cast([IMPOSSIBLE], dtype)), 1),
  log_softmax(IMPOSSIBLE)[np.newaxis],
)


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('k', [1, 2, 3, 4, 5, 9, 26, 27])
def test_impossible_symbols_weigh_nothing(k, dtype):
  product = IMPOSSIBLE_PRODUCT
  partition = tfp_rb.partition(product.build(dtype), k)
  masses = np.exp(-np.sort(-product.log_probs, axis=1))
  np.testing.assert_allclose(
    np.transpose(partition.weights), masses[:, :k], rtol=1e-6
  )
  np.testing.assert_allclose(
    partition.rest_weight, np.sum(masses[:, k:], axis=1), rtol=1e-6
  )


@pytest.mark.parametrize('k', [0, 1, 3])
def test_impossible_symbols_are_not_drawn(k):
  product = IMPOSSIBLE_PRODUCT
  partition = tfp_rb.partition(product.build(tf.float32), k)
  draws = product.index(partition.sample_rest(500, seed=[1, 2]))
  allowed = set(np.flatnonzero(product.log_probs[0] > -np.inf))
  allowed -= set(np.ravel(product.index(partition.values)))
  assert set(np.ravel(draws)) == allowed


@pytest.mark.parametrize('k', [4, 5, 26])
def test_draws_from_an_empty_rest_have_the_shape_of_values(k):
  partition = tfp_rb.partition(IMPOSSIBLE_PRODUCT.build(tf.float32), k)
  draws = partition.sample_rest(7, seed=[1, 2]).numpy()
  assert draws.shape == (7, 1, 3)
  assert np.all((draws >= 0) & (draws < 3))


def test_sites_that_are_all_deterministic_have_one_value():
  q = tfd.Sample(tfd.Bernoulli(probs=[0.0, 1.0]), 4)
  partition = tfp_rb.partition(q, 3)
  np.testing.assert_array_equal(partition.values[0], [[0] * 4, [1] * 4])
  np.testing.assert_array_equal(partition.weights, [[1, 1], [0, 0], [0, 0]])
  np.testing.assert_array_equal(partition.rest_weight, [0.0, 0.0])


@pytest.mark.parametrize('k', [0, 1, 2, 3])
def test_a_single_site_is_partitioned_as_its_factor(k):
  logits = LOGITS[:, :1]
  product = tfp_rb.partition(tfd.Independent(tfd.Categorical(logits), 1), k)
  factor = tfp_rb.partition(tfd.Categorical(logits[:, 0]), k)
  np.testing.assert_array_equal(product.values[..., 0], factor.values)
  np.testing.assert_allclose(product.log_weights, factor.log_weights, 1e-12)
  np.testing.assert_allclose(product.log_rest, factor.log_rest, 1e-12, 1e-15)


@pytest.mark.parametrize('site_shape', [[4], [2, 2]])
@pytest.mark.parametrize('batch_shape', [[], [6], [2, 3]])
@pytest.mark.parametrize('k', [0, 1, 5])
def test_batches_of_any_rank_equal_their_rows(batch_shape, site_shape, k):
  logits = np.random.default_rng(1).normal(size=[*batch_shape, *site_shape])
  logits = logits.astype(np.float32)
  build = lambda x, num_dims: tfd.Independent(tfd.Bernoulli(logits=x), num_dims)
  given = tfp_rb.partition(build(logits, len(site_shape)), k)
  wanted = tfp_rb.partition(build(logits.reshape([-1, 4]), 1), k)
  for x, flat, shape in [
    (given.values, wanted.values, [k, *batch_shape, *site_shape]),
    (given.log_weights, wanted.log_weights, [k, *batch_shape]),
    (given.log_rest, wanted.log_rest, batch_shape),
    (
      given.sample_rest(7, seed=[1, 2]),
      wanted.sample_rest(7, seed=[1, 2]),
      [7, *batch_shape, *site_shape],
    ),
  ]:
    np.testing.assert_array_equal(x, np.reshape(flat, shape))


def test_the_gradient_of_log_prob_is_the_score_of_the_sites():
  logits = tf.constant([0.3, -1.0, 2.0], tf.float64)
  z = np.array([[0, 1, 1], [1, 1, 0]])
  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
    log_prob = tfp_rb.partition(q, 2).log_prob(tf.constant(z))
  score = z - special.expit(logits.numpy())
  np.testing.assert_allclose(tape.jacobian(log_prob, logits), score, rtol=1e-12)


# A user's own family, inside the distributions that TFP wraps around it.


@pytest.fixture
def own_family(monkeypatch):
  """Registers a partition of `EvenNumbers` until the test ends."""
  internals.copy_registry(monkeypatch)
  tfp_rb.RegisterPartition(EvenNumbers)(partition_of_even)
  return EvenNumbers


@pytest.mark.parametrize(
  'wrap',
  [
    lambda q: tfd.Independent(q, 1),
    lambda q: tfd.Sample(q, 2),
    lambda q: tfd.BatchReshape(q, [2, 1]),
    lambda q: tfd.BatchBroadcast(q, to_shape=[3, 2]),
  ],
  ids=['Independent', 'Sample', 'BatchReshape', 'BatchBroadcast'],
)
def test_own_family_inside_of_a_wrapper(own_family, wrap):
  logits = np.array([[0.3, -1.0, 0.7], [0.0, 2.0, -0.5]])
  actual, expected = (
    tfp_rb.partition(wrap(kind(logits=logits)), 3)
    for kind in (own_family, tfd.Categorical)
  )
  np.testing.assert_array_equal(actual.values, 2 * expected.values)
  np.testing.assert_allclose(actual.weights, expected.weights, atol=1e-12)
