# SPDX-License-Identifier: Apache-2.0
"""Uniforms, seeds and indices: right, and equal in eager, graph and XLA."""

import numpy as np
import pytest
import tensorflow as tf

from internals import patch_bits, search_index, split_seed, uniform
from modes import modes_of
import statistical

# The seeds include negative ones and the ends of int32.
SEEDS = [[1, 2], [0, 0], [-1, -7], [2**31 - 1, -(2**31)]]
DTYPES = [tf.float32, tf.float64]

# The number of calibrated tests in this file; they share the rate of false
# failures.
NUM_TESTS = 2 + 2 * 5

SIZES = [5, 128, 129, 1000, 4624]


def in_all_modes(function):
  """Returns `function(seed)` for all seeds: eager, as a graph, and compiled."""
  return [
    [tf.nest.map_structure(np.array, mode(tf.constant(s))) for s in SEEDS]
    for mode in modes_of(function, tf.constant(SEEDS[0])).values()
  ]


@pytest.mark.parametrize('dtype', DTYPES)
def test_uniforms_are_equal_in_eager_graph_and_xla(dtype):
  shapes = [[], [1], [3, 0], [1001], [2, 3, 5]]
  eager, graph, compiled = in_all_modes(
    lambda seed: [uniform(shape, seed, dtype) for shape in shapes]
  )
  tf.nest.map_structure(np.testing.assert_array_equal, graph, eager)
  tf.nest.map_structure(np.testing.assert_array_equal, compiled, eager)


@pytest.mark.parametrize('shape', [[], [1], [3, 0], [2, 3, 5]])
@pytest.mark.parametrize('dtype', DTYPES)
def test_uniforms_have_the_shape_and_dtype_asked_for(shape, dtype):
  u = uniform(shape, tf.constant([1, 2]), dtype)
  assert u.shape == shape
  assert u.dtype == dtype


def test_uniforms_accept_a_shape_known_at_run_time_only():
  @tf.function(input_signature=[tf.TensorSpec([None])])
  def like(x):
    return uniform([2, tf.shape(x)[0]], [1, 2], tf.float32)

  assert like(np.zeros(7, np.float32)).shape == [2, 7]


@pytest.mark.parametrize('dtype', DTYPES)
def test_uniforms_lie_strictly_between_0_and_1(dtype):
  # A million draws of float32 hit the ends of a closed grid of 2**23 points
  # only rarely, so the test also makes the ends from extreme bits.
  u = uniform([1_000_000], tf.constant([3, 4]), dtype).numpy()
  assert np.all((u > 0.0) & (u < 1.0))


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('bits', [0, 1, -1, 'min', 'max'])
def test_uniforms_of_extreme_bits_lie_strictly_between_0_and_1(
  monkeypatch, dtype, bits
):
  def extreme_bits(shape, seed, dtype):
    del seed
    value = getattr(dtype, bits) if isinstance(bits, str) else bits
    return tf.fill(shape, tf.constant(value, dtype))

  patch_bits(monkeypatch, extreme_bits)
  u = uniform([1], [0, 0], dtype).numpy()
  assert 0.0 < u[0] < 1.0


@pytest.mark.parametrize('dtype', DTYPES)
def test_uniforms_are_uniform(dtype):
  num_cells = 64
  u = uniform([100_000], tf.constant([5, 6]), dtype).numpy()
  statistical.assert_follows(
    np.floor(u * num_cells),
    np.arange(num_cells),
    np.full(num_cells, 1.0 / num_cells),
    num_tests=NUM_TESTS,
    detectable=0.025,
  )


@pytest.mark.parametrize('dtype', DTYPES)
def test_uniforms_of_different_seeds_differ(dtype):
  draws = [uniform([4], tf.constant(seed), dtype).numpy() for seed in SEEDS]
  assert np.unique(draws).size == 4 * len(SEEDS)


def test_split_seeds_are_equal_in_eager_graph_and_xla():
  eager, graph, compiled = in_all_modes(
    lambda seed: [split_seed(seed, n) for n in (1, 2, 5)]
  )
  tf.nest.map_structure(np.testing.assert_array_equal, graph, eager)
  tf.nest.map_structure(np.testing.assert_array_equal, compiled, eager)


def test_split_seeds_differ_from_each_other_and_from_their_parent():
  seeds = [tuple(seed) for seed in SEEDS]
  for seed in SEEDS:
    seeds += [tuple(s.numpy()) for s in split_seed(seed, n=5)]
  assert len(set(seeds)) == 6 * len(SEEDS)


def test_split_seeds_are_stateless_seeds():
  for seed in split_seed([1, 2], n=3):
    assert seed.dtype == tf.int32
    assert seed.shape == [2]


def test_split_seed_of_an_int_repeats_after_the_global_seed_is_set():
  def split():
    tf.random.set_seed(7)
    return np.array(split_seed(3, n=2))

  np.testing.assert_array_equal(split(), split())


@pytest.mark.parametrize('seed', [3, None])
def test_split_seed_of_a_stateful_seed_moves_on(seed):
  first, second = (np.array(split_seed(seed, n=2)) for _ in range(2))
  assert np.all(first != second)


def zeros_between(size, positive, masses):
  row = np.zeros(size)
  row[positive] = masses
  return row


ADVERSARIAL_MASSES = {
  'one positive first': zeros_between(40, [0], [1.0]),
  'one positive last': zeros_between(40, [-1], [1e-30]),
  'one positive inside': zeros_between(40, [17], [1e30]),
  'zeros about every mass': zeros_between(41, slice(1, None, 2), 0.1),
  'zeros at the end': zeros_between(400, slice(0, 200), 0.1),
  'a huge mass first': zeros_between(40, [3, 20, 38], [1e30, 1.0, 1e-30]),
  'a huge mass last': zeros_between(40, [3, 20, 38], [1e-30, 1.0, 1e30]),
  'many masses below the rounding': zeros_between(
    400, slice(0, None, 2), np.append(1.0, np.full(199, 1e-9))
  ),
  'tiny': zeros_between(40, [5, 30], [1e-36, 2e-36]),
}


@pytest.mark.parametrize('dtype', DTYPES)
@pytest.mark.parametrize('masses', ADVERSARIAL_MASSES)
def test_search_never_finds_an_index_of_mass_0(masses, dtype):
  row = tf.constant(ADVERSARIAL_MASSES[masses], dtype)
  grid = np.concatenate([
    (np.arange(100) + 0.5) * 2.0**-52,  # the smallest uniforms
    1.0 - (np.arange(100) + 0.5) * 2.0**-52,  # the largest uniforms
    np.linspace(0.001, 0.999, 500),
  ])  # fmt: skip
  u = tf.constant(grid, tf.float64)
  rows = tf.tile(row[tf.newaxis], [u.shape[0], 1])
  index = search_index(rows, u).numpy()
  assert np.all(row.numpy()[index] > 0.0)


@pytest.mark.parametrize('dtype', DTYPES)
def test_compiled_search_never_finds_an_index_of_mass_0(dtype):
  generator = np.random.default_rng(0)
  masses = 10.0 ** generator.uniform(-20.0, 10.0, [2000, 300])
  masses *= generator.uniform(size=masses.shape) < 0.2
  masses = masses.astype(dtype.as_numpy_dtype)
  u = uniform([2000], tf.constant([1, 2]))
  search = tf.function(search_index, jit_compile=True)
  index = search(masses, u).numpy()
  found = np.take_along_axis(masses, index[:, np.newaxis], axis=-1)
  assert np.all(found > 0.0)


def test_search_finds_the_index_where_the_cumulated_masses_pass_u():
  masses = tf.constant([1.0, 0.0, 2.0, 5.0], tf.float64)
  u = tf.constant([0.01, 0.12, 0.13, 0.37, 0.38, 0.99], tf.float64)
  index = search_index(tf.tile(masses[tf.newaxis], [6, 1]), u)
  np.testing.assert_array_equal(index, [0, 0, 2, 2, 3, 3])


def uneven_masses(size, dtype):
  """Returns three rows: steep, with zeros, and heavy at the last index."""
  generator = np.random.default_rng(size)
  steep = np.exp(-10.0 * np.arange(size) / size)
  holes = generator.uniform(size=size) * (np.arange(size) % 3 == 0)
  last = np.append(np.full(size - 1, 1.0 / size), 1.0)
  return tf.constant([steep, 1e-6 * holes, 1e6 * last], dtype)


def draw_index(masses, num_draws, seed):
  """Draws indices `[num_draws, rows]` in proportion to `masses`.

  The masses have shape `[rows, size]`.
  """
  u = uniform([num_draws, masses.shape[0]], seed)
  return search_index(masses[tf.newaxis], u)


@pytest.mark.parametrize('size', SIZES)
@pytest.mark.parametrize('dtype', DTYPES)
def test_drawn_indices_follow_the_masses(size, dtype):
  masses = uneven_masses(size, dtype)
  num_draws = 20_000
  index = draw_index(masses, num_draws, tf.constant([7, 8])).numpy()
  exact = masses.numpy().astype(np.float64)
  exact /= np.sum(exact, axis=-1, keepdims=True)
  # The three rows form one table.
  statistical.assert_follows(
    index + size * np.arange(3),
    np.arange(3 * size),
    np.ravel(exact) / 3.0,
    num_tests=NUM_TESTS,
    detectable=0.06,
  )


@pytest.mark.parametrize('size', SIZES)
def test_no_index_of_mass_0_is_drawn(size):
  masses = tf.constant(np.arange(size) % 11 == 4, tf.float32)[tf.newaxis]
  index = draw_index(masses, 20_000, tf.constant([9, 10])).numpy()
  np.testing.assert_array_equal(np.unique(index % 11), [4])


@pytest.mark.parametrize('size', SIZES)
def test_some_valid_index_is_drawn_where_all_masses_are_0(size):
  masses = tf.zeros([3, size])
  index = draw_index(masses, 100, tf.constant([11, 12])).numpy()
  assert np.all((index >= 0) & (index < size))


def test_drawn_indices_have_the_shape_of_draws_by_rows():
  index = draw_index(tf.ones([3, 200]), 7, tf.constant([1, 2]))
  assert index.shape == [7, 3]
  assert index.dtype == tf.int32


def test_rows_and_draws_are_independent():
  index = draw_index(tf.ones([50, 1000]), 50, tf.constant([1, 2]))
  # If the 2,500 draws from 1,000 values are independent, they hit about 918
  # distinct values.
  assert 850 < np.unique(index).size < 970


@pytest.mark.parametrize('dtype', DTYPES)
def test_drawn_indices_are_equal_in_eager_graph_and_xla(dtype):
  tables = [uneven_masses(size, dtype) for size in (5, 129)]
  eager, graph, compiled = in_all_modes(
    lambda seed: [draw_index(table, 50, seed) for table in tables]
  )
  tf.nest.map_structure(np.testing.assert_array_equal, graph, eager)
  tf.nest.map_structure(np.testing.assert_array_equal, compiled, eager)
