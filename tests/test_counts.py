# SPDX-License-Identifier: Apache-2.0
"""Poisson, NegativeBinomial, Geometric, Binomial and Zipf.

The reference is a long table of each law in extended precision. It is built
from the ratios of neighboring probabilities and normalized by its own sum,
without `tfp_rb`, TFP or their special functions. The table itself is checked
against SciPy.
"""

import functools
import time
from typing import NamedTuple

import numpy as np
import pytest
from scipy import special, stats
import tensorflow as tf
import tensorflow_probability as tfp

from internals import large_poisson_tail
import statistical
import tfp_rb

tfd = tfp.distributions

SEEDS = [[1, 2], [-7, 3], [2**31 - 1, -(2**31)], [0, -1]]

# The number of calibrated tests in this file, which share the rate of false
# failures: at most 8 laws for each family, with 3 numbers of summed values.
NUM_TESTS = 8 * 5 * 3
NUM_DRAWS = 20_000


class Table(NamedTuple):
  """Values, log-probabilities (extended), and the mass beyond the last one."""

  values: np.ndarray
  log_probs: np.ndarray
  beyond: float

  def best(self, k):
    """Returns the `k` most probable values; ties go to the lowest value."""
    # Ties are exact in theory, and within 1e-17 in the table.
    below_mode = np.rint((np.max(self.log_probs) - self.log_probs) * 2.0**43)
    last = min(k, self.values.size) - 1
    (candidates,) = np.nonzero(
      below_mode <= np.partition(below_mode, last)[last]
    )
    order = np.argsort(below_mode[candidates], kind='stable')
    return candidates[order[:k]]

  def rest(self, k):
    """Returns the mass of all but the `k` best, as a sum of positive terms."""
    is_rest = np.ones(self.values.size, bool)
    is_rest[self.best(k)] = False
    return np.sum(np.exp(self.log_probs[is_rest])) + self.beyond

  def smallest_k(self, mass):
    """Returns the smallest `k` that leaves less than `mass`."""
    k = 1
    while self.rest(k) >= mass:
      k += 1
    return k


def success_and_failure(row):
  if 'probs' in row:
    p = np.longdouble(row['probs'])
    return p, 1 - p
  odds = np.exp(np.longdouble(row['logits']))
  return odds / (1 + odds), 1 / (1 + odds)


def rate_of(row):
  if 'rate' in row:
    return np.longdouble(row['rate'])
  return np.exp(np.longdouble(row['log_rate']))


def ratio(kind, row, z):
  """Returns `q(z) / q(z - 1)`."""
  if kind is tfd.Poisson:
    return rate_of(row) / z
  p, failure = success_and_failure(row)
  if kind is tfd.Geometric:
    return failure * np.ones_like(z)
  if kind is tfd.NegativeBinomial:
    return (z + np.longdouble(row['total_count']) - 1) / z * p
  return (row['total_count'] - z + 1) / z * (p / failure)


def scipy_law(kind, row):
  if kind is tfd.Poisson:
    return stats.poisson(float(rate_of(row)))
  if kind is tfd.Zipf:
    return stats.zipf(row['power'])
  p, failure = (float(x) for x in success_and_failure(row))
  if kind is tfd.Geometric:
    return stats.geom(p, loc=-1)
  if kind is tfd.NegativeBinomial:
    return stats.nbinom(row['total_count'], failure)
  return stats.binom(row['total_count'], p)


def zipf_table(power, num_values=5000):
  z = np.arange(1, num_values + 1, dtype=np.longdouble)
  log_probs = -power * np.log(z) - np.log(special.zeta(power))
  beyond = special.zeta(power, num_values + 1) / special.zeta(power)
  return Table(z.astype(np.float64), log_probs, beyond)


def table_of(kind, row, depth=800.0):
  """Tabulates a law until it has fallen by a factor `exp(-depth)`."""
  return _cached_table(kind, tuple(row.items()), depth)


@functools.cache
def _cached_table(kind, items, depth):
  row = dict(items)
  if kind is tfd.Zipf:
    return zipf_table(row['power'])
  size = 1024
  while True:
    end = int(row['total_count']) if kind is tfd.Binomial else size
    z = np.arange(0, end + 1, dtype=np.longdouble)
    log_probs = np.cumsum(
      np.append(np.longdouble(0), np.log(ratio(kind, row, z[1:])))
    )
    log_probs -= np.max(log_probs)
    if kind is tfd.Binomial or log_probs[-1] < -depth:
      break
    size *= 2
  log_probs -= np.log(np.sum(np.exp(log_probs)))
  return Table(z.astype(np.float64), log_probs, 0.0)


class Family(NamedTuple):
  """A batch of laws of one kind; each parameter is a vector."""

  kind: type
  parameters: dict

  @property
  def rows(self):
    names = self.parameters.keys()
    columns = zip(*self.parameters.values(), strict=True)
    return [
      dict(zip(names, map(float, column), strict=True)) for column in columns
    ]

  @property
  def tables(self):
    return [table_of(self.kind, row) for row in self.rows]

  def build(self, dtype=np.float64, **parameters):
    given = {
      name: tf.convert_to_tensor(value, dtype)
      for name, value in {**self.parameters, **parameters}.items()
    }
    if self.kind is tfd.Zipf:
      given['dtype'] = tf.as_dtype(dtype)
    return self.kind(**given)


# Ties occur for a Poisson of integer rate, a Binomial of p = 1/2, and a
# NegativeBinomial with an integer (r - 1) p / (1 - p).
FAMILIES = {
  'Poisson': Family(tfd.Poisson, {'rate': [0.3, 1.0, 4.0, 33.7, 200.0]}),
  'Poisson of log_rate': Family(
    tfd.Poisson, {'log_rate': [-3.0, 0.0, 1.7, 5.0]}
  ),
  'NegativeBinomial': Family(
    tfd.NegativeBinomial,
    {
      'total_count': [0.3, 1.0, 5.0, 3.0, 40.0],
      'probs': [0.9, 0.4, 0.5, 0.75, 0.3],
    },
  ),
  'NegativeBinomial of logits': Family(
    tfd.NegativeBinomial,
    {
      'total_count': [0.3, 1.0, 5.0, 40.0],
      'logits': [2.0, -1.0, 0.0, -1.5],
    },
  ),
  'Geometric': Family(tfd.Geometric, {'probs': [0.9, 0.5, 0.02]}),
  'Geometric of logits': Family(tfd.Geometric, {'logits': [3.0, 0.0, -4.0]}),
  'Binomial': Family(
    tfd.Binomial,
    {
      'total_count': [301.0, 40.0, 21.0, 20.0, 5.0],
      'probs': [0.37, 0.9, 0.5, 0.5, 0.1],
    },
  ),
  'Binomial of logits': Family(
    tfd.Binomial,
    {
      'total_count': [301.0, 40.0, 21.0, 20.0, 5.0],
      'logits': [0.0, 2.0, 0.0, 0.0, -2.0],
    },
  ),
  'Zipf': Family(tfd.Zipf, {'power': [1.5, 2.0, 3.5, 12.0]}),
}

# The means are about 1e5.
LARGE = {
  'large Poisson': Family(tfd.Poisson, {'rate': [1e5, 1e5 + 0.4]}),
  'large NegativeBinomial': Family(
    tfd.NegativeBinomial,
    {'total_count': [1e5, 20.0], 'probs': [0.5, 5000.0 / 5001.0]},
  ),
  'large Geometric': Family(tfd.Geometric, {'probs': [2e-5]}),
  'large Binomial': Family(
    tfd.Binomial, {'total_count': [2e5, 1e6], 'probs': [0.5, 0.1]}
  ),
}

KINDS = {
  name: family for name, family in FAMILIES.items() if ' of ' not in name
}


@functools.cache
def partition_of(name, k):
  return tfp_rb.partition({**FAMILIES, **LARGE}[name].build(), k)


def assert_is_top_k(partition, tables, k, rtol):
  """Checks the values, in order, and the weights; 0 beyond a row's support."""
  for i, table in enumerate(tables):
    best = table.best(k)
    values = partition.values.numpy()[:, i]
    np.testing.assert_array_equal(values[: best.size], table.values[best])
    weights = partition.weights.numpy()[:, i]
    exact = np.exp(table.log_probs[best]).astype(np.float64)
    # Weights below 1e-280 may underflow.
    np.testing.assert_allclose(weights[: best.size], exact, rtol, atol=1e-280)
    np.testing.assert_array_equal(weights[best.size :], 0.0)


def assert_is_rest(partition, tables, k, rtol):
  exact = [float(table.rest(k)) for table in tables]
  np.testing.assert_allclose(partition.rest_weight, exact, rtol, atol=1e-280)


@pytest.mark.parametrize('name', [*FAMILIES, *LARGE])
def test_the_reference_table_agrees_with_scipy(name):
  family = {**FAMILIES, **LARGE}[name]
  for row in family.rows:
    table = table_of(family.kind, row, depth=40.0)
    likely = table.log_probs > -60.0
    np.testing.assert_allclose(
      table.log_probs[likely].astype(np.float64),
      scipy_law(family.kind, row).logpmf(table.values[likely]),
      rtol=1e-9,
      atol=1e-8 if name in LARGE else 1e-10,
    )


@pytest.mark.parametrize('k', [1, 2, 20, 200])
@pytest.mark.parametrize('name', FAMILIES)
def test_the_window_is_the_true_top_k(name, k):
  partition = partition_of(name, k)
  assert_is_top_k(partition, FAMILIES[name].tables, k, rtol=1e-10)


@pytest.mark.parametrize('k', [1, 2, 20, 200])
@pytest.mark.parametrize('name', FAMILIES)
def test_the_rest_has_the_mass_of_all_other_values(name, k):
  partition = partition_of(name, k)
  assert_is_rest(partition, FAMILIES[name].tables, k, rtol=1e-10)


@pytest.mark.parametrize('k', [1, 20, 200])
@pytest.mark.parametrize('name', LARGE)
def test_the_window_is_the_true_top_k_at_means_of_1e5(name, k):
  family = LARGE[name]
  tables = [table_of(family.kind, row, depth=40.0) for row in family.rows]
  partition = partition_of(name, k)
  assert_is_top_k(partition, tables, k, rtol=1e-9)


@pytest.mark.parametrize('k', [1, 20, 200])
@pytest.mark.parametrize('name', LARGE)
def test_the_rest_has_the_mass_of_all_other_values_at_means_of_1e5(name, k):
  family = LARGE[name]
  tables = [table_of(family.kind, row, depth=40.0) for row in family.rows]
  partition = partition_of(name, k)
  assert_is_rest(partition, tables, k, rtol=1e-9)


SMALL_REST = {
  'Poisson': Family(tfd.Poisson, {'rate': [1.0, 20.0, 64.0]}),
  'NegativeBinomial': Family(
    tfd.NegativeBinomial, {'total_count': [0.5, 6.0], 'probs': [0.5, 0.6]}
  ),
  'Geometric': Family(tfd.Geometric, {'probs': [0.3, 0.1]}),
  'Binomial': Family(
    tfd.Binomial, {'total_count': [40.0, 60.0, 300.0], 'probs': [0.5, 0.1, 0.7]}
  ),
  'Zipf': Family(tfd.Zipf, {'power': [8.0, 12.0]}),
}


@pytest.mark.parametrize('name', SMALL_REST)
def test_a_rest_of_mass_1e_minus_12_is_right(name):
  family = SMALL_REST[name]
  for i, table in enumerate(family.tables):
    k = table.smallest_k(2e-12)
    partition = tfp_rb.partition(family.build()[i : i + 1], k)
    assert 1e-14 < partition.rest_weight[0] < 2e-12
    assert_is_rest(partition, [table], k, rtol=1e-10)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
@pytest.mark.parametrize('name', FAMILIES)
def test_without_summed_values_the_rest_weighs_exactly_1(name, dtype):
  partition = tfp_rb.partition(FAMILIES[name].build(dtype), 0)
  np.testing.assert_array_equal(partition.log_rest, 0.0)
  assert partition.values.shape[0] == 0


@pytest.mark.parametrize('name', FAMILIES)
def test_float32_parameters_give_float32_weights_of_full_precision(name):
  family = FAMILIES[name]
  rounded = family._replace(
    parameters={
      key: np.float32(value).astype(np.float64)
      for key, value in family.parameters.items()
    }
  )
  partition = tfp_rb.partition(family.build(np.float32), 20)
  exact = tfp_rb.partition(rounded.build(), 20)
  assert partition.log_weights.dtype == tf.float32
  for given, wanted in [
    (partition.log_weights, exact.log_weights),
    (partition.log_rest, exact.log_rest),
  ]:
    np.testing.assert_allclose(given, wanted, rtol=1e-6)


def test_float32_weights_are_right_near_a_large_mode():
  # In float32, `log_prob` near the mode of this law takes two values only.
  narrow = tfp_rb.partition(tfd.Poisson(rate=np.float32(1e5)), 200)
  wide = tfp_rb.partition(tfd.Poisson(rate=np.float64(1e5)), 200)
  np.testing.assert_array_equal(narrow.values, wide.values)
  np.testing.assert_allclose(narrow.weights, wide.weights, rtol=1e-5)


@pytest.mark.parametrize('batch_shape', [[], [6], [2, 3], [1, 3, 2]])
@pytest.mark.parametrize('k', [0, 3])
def test_batches_of_any_rank_equal_their_rows(batch_shape, k):
  rates = np.array([0.5, 3.0, 8.0, 1.0, 20.0, 4.4])
  rates = rates[0] if not batch_shape else np.reshape(rates, batch_shape)
  partition = tfp_rb.partition(tfd.Poisson(rate=rates), k)
  flat = tfp_rb.partition(tfd.Poisson(rate=np.ravel(rates)), k)
  for given, wanted, shape in [
    (partition.values, flat.values, [k, *batch_shape]),
    (partition.log_weights, flat.log_weights, [k, *batch_shape]),
    (partition.log_rest, flat.log_rest, batch_shape),
    (
      partition.sample_rest(7, seed=[1, 2]),
      flat.sample_rest(7, seed=[1, 2]),
      [7, *batch_shape],
    ),
  ]:
    np.testing.assert_array_equal(given, np.reshape(wanted, shape))


# --- Binomial: rows with supports of different sizes.


def test_binomial_values_beyond_the_support_of_a_row_weigh_0():
  q = tfd.Binomial(total_count=[5.0, 2.0, 0.0], probs=[0.3, 0.8, 0.5])
  partition = tfp_rb.partition(q, 5)
  is_possible = partition.weights.numpy() > 0.0
  np.testing.assert_array_equal(np.sum(is_possible, axis=0), [5, 3, 1])


def test_binomial_values_of_weight_0_lie_in_the_support():
  total_count = np.array([5.0, 2.0, 0.0])
  q = tfd.Binomial(total_count=total_count, probs=[0.3, 0.8, 0.5])
  values = tfp_rb.partition(q, 6).values.numpy()
  assert np.all((values >= 0.0) & (values <= total_count))


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_binomial_summed_completely_leaves_nothing(dtype):
  q = tfd.Binomial(dtype([5.0, 2.0, 0.0]), probs=dtype([0.3, 0.8, 0.5]))
  partition = tfp_rb.partition(q, 6)
  np.testing.assert_array_equal(partition.rest_weight, 0.0)
  np.testing.assert_allclose(np.sum(partition.weights, axis=0), 1.0, 1e-6)
  assert partition.sample_rest is None
  assert partition.num_values == 6


def test_binomial_of_no_trials_is_0_for_sure():
  partition = tfp_rb.partition(tfd.Binomial(np.float64(0.0), probs=0.3), 1)
  np.testing.assert_array_equal(partition.values, [0.0])
  np.testing.assert_array_equal(partition.weights, [1.0])
  np.testing.assert_array_equal(partition.rest_weight, 0.0)


@pytest.mark.parametrize('k', [1, 2, 8])
@pytest.mark.parametrize('probs', [0.0, 1.0])
def test_binomial_of_sure_trials_has_one_value(probs, k):
  q = tfd.Binomial(np.float64(7.0), probs=np.float64(probs))
  partition = tfp_rb.partition(q, k)
  assert partition.values[0] == 7.0 * probs
  np.testing.assert_array_equal(partition.weights, np.eye(k)[0])
  np.testing.assert_array_equal(partition.rest_weight, 0.0)


@pytest.mark.parametrize('probs', [0.0, 1.0])
def test_binomial_of_sure_trials_draws_its_value(probs):
  q = tfd.Binomial(np.float64(7.0), probs=np.float64(probs))
  draws = tfp_rb.partition(q, 0).sample_rest(50, seed=[1, 2])
  np.testing.assert_array_equal(draws, 7.0 * probs)


def test_binomial_with_a_count_known_at_run_time_only_is_partitioned():
  @tf.function(input_signature=[tf.TensorSpec([2], tf.float64)])
  def weights(total_count):
    q = tfd.Binomial(total_count, probs=np.float64(0.5))
    partition = tfp_rb.partition(q, 3)
    assert partition.num_values is None
    return partition.weights

  np.testing.assert_allclose(
    weights([2.0, 1.0]), [[0.5, 0.5], [0.25, 0.5], [0.25, 0.0]], rtol=1e-12
  )


# --- Compilation.


@pytest.mark.parametrize('name', KINDS)
def test_compiled_partitions_equal_eager_ones(name):
  family = KINDS[name]
  # The parameters and the seed are known only at run time, except for the
  # counts.
  counts = {'total_count': family.parameters.get('total_count')}
  counts = {} if family.kind is not tfd.Binomial else counts

  @tf.function(jit_compile=True, autograph=False)
  def compiled(parameters, seed):
    partition = tfp_rb.partition(family.build(**parameters, **counts), 21)
    return (
      partition.values,
      partition.weights,
      partition.rest_weight,
      partition.sample_rest(200, seed),
    )

  parameters = {
    key: tf.constant(value, tf.float64)
    for key, value in family.parameters.items()
    if key not in counts
  }
  # The partition is the same for every seed.
  partition = tfp_rb.partition(family.build(**parameters, **counts), 21)
  weights, rest = partition.weights, partition.rest_weight
  # If the rest is empty, its draws have no meaning.
  exists = rest.numpy() > 0.0
  for seed in map(tf.constant, SEEDS):
    draws = partition.sample_rest(200, seed)
    compiled_values, compiled_weights, compiled_rest, compiled_draws = compiled(
      parameters, seed
    )
    np.testing.assert_array_equal(compiled_values, partition.values)
    np.testing.assert_allclose(compiled_weights, weights, 1e-11, atol=1e-280)
    np.testing.assert_allclose(compiled_rest, rest, 1e-11, atol=1e-280)
    np.testing.assert_array_equal(
      compiled_draws.numpy()[:, exists], draws.numpy()[:, exists]
    )


def test_negative_binomial_is_drawn_under_xla():
  # `tfd.NegativeBinomial.sample` does not compile: it has no XLA kernel.
  q = tfd.NegativeBinomial(np.float32([0.5, 30.0]), logits=np.float32([1, -1]))
  draw = lambda seed: tfp_rb.partition(q, 0).sample_rest(300, seed)
  compiled = tf.function(draw, jit_compile=True)
  for seed in map(tf.constant, SEEDS):
    np.testing.assert_array_equal(compiled(seed), draw(seed))


# --- Draws from the rest.


def assert_draws_follow_the_rest(draws, table, k):
  is_rest = np.ones(table.values.size, bool)
  is_rest[table.best(k)] = False
  law = np.exp(table.log_probs[is_rest]) / table.rest(k)
  statistical.assert_follows(
    draws,
    table.values[is_rest],
    law.astype(np.float64),
    num_tests=NUM_TESTS,
    detectable=0.06,
  )


@pytest.mark.parametrize('k', [0, 4])
@pytest.mark.parametrize('name', KINDS)
def test_draws_from_the_rest_follow_the_conditional_law(name, k):
  family = KINDS[name]
  partition = tfp_rb.partition(family.build(), k)
  draws = partition.sample_rest(NUM_DRAWS, seed=[11, 12]).numpy()
  for i, table in enumerate(family.tables):
    assert_draws_follow_the_rest(draws[:, i], table, k)


@pytest.mark.parametrize('name', SMALL_REST)
def test_draws_from_a_rest_of_mass_1e_minus_6_follow_the_conditional_law(name):
  family = SMALL_REST[name]
  for i, table in enumerate(family.tables):
    k = table.smallest_k(2e-6)
    partition = tfp_rb.partition(family.build()[i : i + 1], k)
    draws = partition.sample_rest(NUM_DRAWS, seed=[13, 14])
    assert_draws_follow_the_rest(draws, table, k)


@pytest.mark.parametrize('k', [1, 2, 20])
@pytest.mark.parametrize('name', FAMILIES)
def test_draws_from_the_rest_never_hit_the_window(name, k):
  partition = partition_of(name, k)
  draws = partition.sample_rest(1000, seed=[-3, 4]).numpy()
  hits = draws[:, np.newaxis] == partition.values.numpy()
  exists = partition.rest_weight.numpy() > 0.0
  assert not np.any(hits[..., exists])


@pytest.mark.parametrize('name', FAMILIES)
def test_draws_from_the_rest_lie_in_the_support(name):
  family = FAMILIES[name]
  partition = tfp_rb.partition(family.build(), 3)
  draws = partition.sample_rest(1000, seed=[5, 6]).numpy()
  for i, row in enumerate(family.rows):
    law = scipy_law(family.kind, row)
    assert np.all(law.logpmf(draws[:, i]) > -np.inf)


@pytest.mark.parametrize(
  'name', ['large Poisson', 'large NegativeBinomial', 'large Binomial']
)
def test_draws_from_the_rest_lie_on_both_sides_of_the_window(name):
  partition = partition_of(name, 200)
  draws = partition.sample_rest(1000, seed=[15, 16])
  is_below = draws < np.min(partition.values, axis=0)
  # The tolerance is six standard errors of the share, which is about one half
  # at these means.
  np.testing.assert_allclose(np.mean(is_below, axis=0), 0.5, atol=0.1)


# --- Extreme parameters.


def float64(kind, **parameters):
  return kind(
    **{key: tf.constant(x, tf.float64) for key, x in parameters.items()}
  )


EXTREMES = {
  'Poisson 0': float64(tfd.Poisson, rate=0.0),
  'Poisson 1e-30': float64(tfd.Poisson, rate=1e-30),
  'Poisson 1e5': float64(tfd.Poisson, rate=1e5),
  'Poisson 1e7': float64(tfd.Poisson, rate=1e7),
  'NegativeBinomial 1e7': float64(
    tfd.NegativeBinomial, total_count=1e7, probs=0.5
  ),
  'Binomial 1e7': float64(tfd.Binomial, total_count=1e7, probs=0.5),
  'Poisson exp(-800)': float64(tfd.Poisson, log_rate=-800.0),
  'NegativeBinomial .01': float64(
    tfd.NegativeBinomial, total_count=0.01, probs=0.5
  ),
  'NegativeBinomial 30': float64(
    tfd.NegativeBinomial, total_count=3.0, logits=30.0
  ),
  'NegativeBinomial -30': float64(
    tfd.NegativeBinomial, total_count=3.0, logits=-30.0
  ),
  'NegativeBinomial .01 30': float64(
    tfd.NegativeBinomial, total_count=0.01, logits=30.0
  ),
  'Geometric 30': float64(tfd.Geometric, logits=30.0),
  'Geometric -30': float64(tfd.Geometric, logits=-30.0),
  'Geometric of probability 1': float64(tfd.Geometric, probs=1.0),
  'Binomial 30': float64(tfd.Binomial, total_count=50.0, logits=30.0),
  'Binomial -30': float64(tfd.Binomial, total_count=50.0, logits=-30.0),
  'Zipf 1.05': tfd.Zipf(np.float64(1.05), dtype=tf.float64),
  'Zipf 50': tfd.Zipf(np.float64(50.0), dtype=tf.float64),
}


@pytest.mark.parametrize('k', [0, 3])
@pytest.mark.parametrize('name', EXTREMES)
def test_extreme_parameters_give_finite_results(name, k):
  partition = tfp_rb.partition(EXTREMES[name], k)
  draws = partition.sample_rest(200, seed=[1, 2])
  for x in (partition.values, partition.weights, partition.rest_weight, draws):
    assert np.all(np.isfinite(x))
  assert np.all(draws >= 0.0)


@pytest.mark.parametrize('name', EXTREMES)
def test_extreme_parameters_terminate_quickly(name):
  start = time.perf_counter()
  tfp_rb.partition(EXTREMES[name], 3).sample_rest(1000, seed=[1, 2])
  # This takes about half a second on an idle core.
  assert time.perf_counter() - start < 20.0


@pytest.mark.parametrize('name', EXTREMES)
def test_weights_sum_to_1_at_extreme_parameters(name):
  partition = tfp_rb.partition(EXTREMES[name], 20)
  total = np.sum(partition.weights) + partition.rest_weight
  np.testing.assert_allclose(total, 1.0, atol=1e-5)


@pytest.mark.parametrize('rate', [1e4, 1e5, 1e6, 1e7])
def test_draws_at_large_rates_have_the_right_mean(rate):
  partition = tfp_rb.partition(float64(tfd.Poisson, rate=rate), 0)
  standardised = (partition.sample_rest(2000, seed=[1, 2]) - rate) / rate**0.5
  # The tolerance is six standard errors of the mean.
  np.testing.assert_allclose(np.mean(standardised), 0.0, atol=6 / 2000**0.5)


@pytest.mark.parametrize('rate', [1.5e5, 1e6, 1e7])
def test_tails_at_large_rates_equal_sums(rate):
  # The reference sums ratios of neighbors in long double, because SciPy's own
  # tails are off by 4 % at a rate of 1e7, 6 standard deviations above the mean.
  z = np.floor(rate + rate**0.5 * np.linspace(-7.0, 7.0, 41))
  first, last = int(rate - 12.0 * rate**0.5), int(rate + 12.0 * rate**0.5)
  ratios = np.longdouble(rate) / np.arange(first + 1, last + 1)
  probs = np.exp(np.concatenate([[0.0], np.cumsum(np.log(ratios))]))
  probs /= np.sum(probs)
  index = (z - first).astype(int)
  above = np.cumsum(probs[::-1])[::-1][index + 1]
  for below, expected in ((True, np.cumsum(probs)[index]), (False, above)):
    found = large_poisson_tail(
      tf.constant(z), tf.fill(z.shape, below), tf.constant(rate, tf.float64)
    )
    np.testing.assert_allclose(found, expected.astype(float), rtol=1e-10)


def test_zipf_of_integers_does_not_overflow():
  q = tfd.Zipf(np.float64([1.05, 1.0001]), dtype=tf.int32)
  draws = tfp_rb.partition(q, 3).sample_rest(1000, seed=[1, 2]).numpy()
  assert draws.dtype == np.int32
  assert np.min(draws) > 3
  # The mass beyond the largest integer is returned as the largest integer.
  assert np.max(draws) == 2**31 - 1


# --- The differentiable log-probability.


@pytest.mark.parametrize('name', FAMILIES)
def test_log_prob_equals_scipy(name):
  family = FAMILIES[name]
  partition = tfp_rb.partition(family.build(), 2)
  z = np.array([[1.0], [2.0], [3.0], [5.0]])
  log_prob = partition.log_prob(z + np.zeros(len(family.rows))).numpy()
  exact = [scipy_law(family.kind, row).logpmf(z[:, 0]) for row in family.rows]
  np.testing.assert_allclose(log_prob, np.transpose(exact), rtol=1e-10)


def expected_log_zipf(power, num_terms=10_000):
  """Returns `E[log Z]` as a sum whose tail uses Euler and Maclaurin."""
  n = np.arange(1, num_terms, dtype=np.longdouble)
  N = np.longdouble(num_terms)
  log_n = np.log(N)
  total = np.sum(np.log(n) * n**-power)
  total += N ** (1 - power) * (log_n / (power - 1) + 1 / (power - 1) ** 2)
  total += log_n * N**-power / 2
  total += (power * log_n - 1) * N ** (-power - 1) / 12
  return float(total) / special.zeta(power)


def test_the_reference_for_zipf_has_known_values():
  # The expected values are zeta'(2) / zeta(2) and zeta'(3) / zeta(3).
  np.testing.assert_allclose(
    [expected_log_zipf(2.0), expected_log_zipf(3.0)],
    [0.9375482543158437 * 6 / np.pi**2, 0.1981262428856369 / special.zeta(3)],
    rtol=1e-12,
  )


# Derivatives of log q(z) w.r.t. the named parameter; the others are fixed.
SCORES = {
  'Poisson rate': (
    lambda x: tfd.Poisson(rate=x),
    [0.4, 3.0, 50.0],
    lambda z, x: z / x - 1.0,
  ),
  'Poisson log_rate': (
    lambda x: tfd.Poisson(log_rate=x),
    [-2.0, 0.0, 4.0],
    lambda z, x: z - np.exp(x),
  ),
  'NegativeBinomial logits': (
    lambda x: tfd.NegativeBinomial(np.float64(4.0), logits=x),
    [-2.0, 0.0, 4.0],
    lambda z, x: z * special.expit(-x) - 4.0 * special.expit(x),
  ),
  'NegativeBinomial probs': (
    lambda x: tfd.NegativeBinomial(np.float64(4.0), probs=x),
    [0.1, 0.5, 0.95],
    lambda z, x: z / x - 4.0 / (1.0 - x),
  ),
  'NegativeBinomial total_count': (
    lambda x: tfd.NegativeBinomial(x, probs=np.float64(0.3)),
    [0.5, 4.0, 30.0],
    lambda z, x: special.digamma(z + x) - special.digamma(x) + np.log(0.7),
  ),
  'Geometric logits': (
    lambda x: tfd.Geometric(logits=x),
    [-2.0, 0.0, 4.0],
    lambda z, x: special.expit(-x) - z * special.expit(x),
  ),
  'Geometric probs': (
    lambda x: tfd.Geometric(probs=x),
    [0.1, 0.5, 0.95],
    lambda z, x: 1.0 / x - z / (1.0 - x),
  ),
  'Binomial logits': (
    lambda x: tfd.Binomial(np.float64(9.0), logits=x),
    [-2.0, 0.0, 4.0],
    lambda z, x: z - 9.0 * special.expit(x),
  ),
  'Binomial probs': (
    lambda x: tfd.Binomial(np.float64(9.0), probs=x),
    [0.1, 0.5, 0.95],
    lambda z, x: z / x - (9.0 - z) / (1.0 - x),
  ),
  # TFP 0.25 differentiates `tfd.Zipf.log_prob` to `-log z` alone: TensorFlow
  # returns no derivative of `zeta(x, q)` w.r.t. `x`, so `E[log Z]` is lost
  # without an error. The partition's own `log_prob` includes it.
  'Zipf power': (
    lambda x: tfd.Zipf(x, dtype=tf.float64),
    [1.05, 1.5, 2.0, 6.0, 50.0],
    lambda z, x: (
      -np.log(z) + np.array([expected_log_zipf(power) for power in x])
    ),
  ),
}


@pytest.mark.parametrize('name', SCORES)
def test_the_gradient_of_log_prob_is_the_score(name):
  build, parameters, score = SCORES[name]
  x = tf.constant(parameters, tf.float64)
  z = np.array([1.0, 2.0, 3.0, 9.0])[:, np.newaxis] + np.zeros(len(parameters))
  with tf.GradientTape() as tape:
    tape.watch(x)
    log_prob = tfp_rb.partition(build(x), 2).log_prob(z)
  jacobian = tape.jacobian(log_prob, x)  # each row has its own parameter
  given = np.einsum('mii->mi', jacobian)
  np.testing.assert_allclose(given, score(z, x.numpy()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('name', SCORES)
def test_no_gradient_passes_through_the_weights(name):
  build, parameters, _ = SCORES[name]
  x = tf.constant(parameters, tf.float64)
  with tf.GradientTape() as tape:
    tape.watch(x)
    partition = tfp_rb.partition(build(x), 2)
    total = tf.reduce_sum(partition.weights) + tf.reduce_sum(
      partition.rest_weight
    )
  assert tape.gradient(total, x) is None
