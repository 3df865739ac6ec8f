# SPDX-License-Identifier: Apache-2.0
"""Tables of any length, searched by blocks for best values, rest and draws."""

import numpy as np
import pytest
from scipy import special
import tensorflow as tf
import tensorflow_probability as tfp

import statistical
import tfp_rb

tfd = tfp.distributions

# Tables of up to 128 entries form one block. For longer ones, the block size
# either divides the length (1000, 4624) or leaves a shorter block at the end
# (the primes 131 and 1009).
SIZES = [5, 128, 129, 131, 1000, 1009, 4624]
SEEDS = [[1, 2], [-7, 3], [2**31 - 1, -(2**31)]]

# The number of calibrated tests in this file; they share the rate of false
# failures.
NUM_TESTS = 2 * len(SIZES)


def uneven_logits(size):
  """Returns four rows: steep, partly impossible, heavy at the end, random."""
  generator = np.random.default_rng(size)
  steep = -10.0 * np.arange(size) / size
  holes = np.where(np.arange(size) % 3 == 1, steep, -np.inf)
  last = np.append(np.full(size - 1, -np.log(size)), 0.0)
  return np.array([steep, holes, last, generator.normal(size=size)])


@pytest.mark.parametrize('k', [1, 2, 5])
@pytest.mark.parametrize('size', SIZES)
def test_the_best_entries_and_the_mass_of_the_rest_are_right(size, k):
  logits = uneven_logits(size)
  partition = tfp_rb.partition(tfd.Categorical(tf.constant(logits)), k)
  masses = special.softmax(logits, axis=-1)
  order = np.argsort(-masses, axis=-1, kind='stable')
  ordered = np.take_along_axis(masses, order, axis=-1)
  weights = np.transpose(partition.weights)
  np.testing.assert_allclose(weights, ordered[:, :k], rtol=1e-12)
  # An entry of weight 0 may have any value.
  given = np.where(weights > 0.0, np.transpose(partition.values), -1)
  np.testing.assert_array_equal(
    given, np.where(weights > 0.0, order[:, :k], -1)
  )
  np.testing.assert_allclose(
    partition.rest_weight, np.sum(ordered[:, k:], axis=-1), rtol=1e-12
  )


@pytest.mark.parametrize('size', SIZES)
def test_ties_across_blocks_go_to_the_lowest_index(size):
  logits = np.zeros([2, size])
  logits[1, [1, size // 2, size - 1]] = 1.0
  values = tfp_rb.partition(tfd.Categorical(tf.constant(logits)), 4).values
  best = [1, size // 2, size - 1, 0]
  np.testing.assert_array_equal(np.transpose(values), [[0, 1, 2, 3], best])


@pytest.mark.parametrize('k', [0, 3])
@pytest.mark.parametrize('size', SIZES)
def test_draws_from_the_rest_follow_the_conditional_law(size, k):
  logits = uneven_logits(size)[[0, 2, 3]]
  q = tfd.Categorical(tf.constant(logits, tf.float32))
  partition = tfp_rb.partition(q, k)
  draws = partition.sample_rest(20_000, seed=[3, 4]).numpy()
  masses = special.softmax(logits, axis=-1)
  np.put_along_axis(masses, np.transpose(partition.values), 0.0, axis=-1)
  masses /= np.sum(masses, axis=-1, keepdims=True)
  is_rest = np.ravel(masses) > 0.0
  # The three rows form one table, which excludes summed entries.
  statistical.assert_follows(
    draws + size * np.arange(3),
    np.flatnonzero(is_rest),
    np.ravel(masses)[is_rest] / 3.0,
    num_tests=NUM_TESTS,
    detectable=0.06,
  )


@pytest.mark.parametrize('k', [0, 3])
@pytest.mark.parametrize('size', SIZES[1:])
def test_impossible_entries_are_not_drawn(size, k):
  # Impossible entries surround the possible ones, also at the end.
  logits = np.where(np.arange(size) % 11 == 4, 0.0, -np.inf)
  logits[0] = -9.0
  q = tfd.Categorical(tf.constant(logits, tf.float32))
  partition = tfp_rb.partition(q, k)
  draws = partition.sample_rest(5000, seed=[5, 6]).numpy()
  assert np.all(logits[draws] > -np.inf)


def test_compiled_partitions_equal_eager_ones():
  # This uses float64, because XLA rounds sums of float32 differently, so that a
  # few draws in thousands from a long table may differ.
  def run(seed):
    results = []
    for size in (131, 4624):
      q = tfd.Categorical(tf.constant(uneven_logits(size)))
      partition = tfp_rb.partition(q, 3)
      results.append((partition.values, partition.sample_rest(100, seed)))
    return results

  compiled = tf.function(run, jit_compile=True)
  for seed in map(tf.constant, SEEDS):
    tf.nest.map_structure(
      np.testing.assert_array_equal, compiled(seed), run(seed)
    )


def test_compiled_float32_draws_equal_eager_ones_but_for_rounding():
  logits = tf.constant(uneven_logits(4624), tf.float32)

  def draw(logits, seed):
    partition = tfp_rb.partition(tfd.Categorical(logits), 3)
    return partition.sample_rest(1000, seed)

  compiled = tf.function(draw, jit_compile=True)
  differences = [
    compiled(logits, seed) != draw(logits, seed)
    for seed in map(tf.constant, SEEDS)
  ]
  assert np.mean(differences) <= 1e-3
