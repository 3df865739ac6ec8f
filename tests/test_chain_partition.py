# SPDX-License-Identifier: Apache-2.0
"""The partition of chains, compared with tables by brute force."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from chains import CHAINS, number, paths
from errors import raises
import internals
from modes import largest_array
import tfp_rb
from tfp_rb import baselines, samplers
from tfp_rb.distributions import CategoricalChain

tfd = tfp.distributions

every_chain = pytest.mark.parametrize('name', CHAINS)


def make(name, dtype=tf.float64):
  return CategoricalChain(*(tf.constant(x, dtype) for x in CHAINS[name]))


def some_k(num_values):
  """Returns small and large `k`, so that both searches for best paths run."""
  numbers = {1, 2, 7, 26, num_values - 1, num_values}
  return sorted(k for k in numbers if 1 <= k <= num_values)


def ranked(probs):
  """Returns the numbers of paths, best first; ties go to the lowest number."""
  # Rounding may separate paths that are equally probable in theory.
  with np.errstate(divide='ignore'):
    log_probs = np.round(np.log(probs), 10)
  return np.argsort(-log_probs, axis=0, kind='stable')


# The best paths.


@every_chain
def test_the_summed_paths_are_the_k_best(name):
  values, probs = paths(name)
  order = ranked(probs)
  for k in some_k(len(values)):
    p = tfp_rb.partition(make(name), k)
    best = np.take_along_axis(probs, order[:k], axis=0)
    np.testing.assert_allclose(p.weights, best, rtol=1e-12, atol=1e-300)
    possible = best > 0.0
    # Ties go to the first path in lexicographic order.
    np.testing.assert_array_equal(
      p.values.numpy()[possible], values[order[:k]][possible]
    )


@every_chain
def test_the_recursion_finds_few_and_all_paths(name):
  values, probs = paths(name)
  order = ranked(probs)
  log_factors = make(name).log_factors()
  for k in {min(3, len(values)), len(values)}:
    best = internals.best_paths(log_factors, k).numpy()  # [T, rows, k]
    possible = np.take_along_axis(probs, order[:k], axis=0) > 0.0
    np.testing.assert_array_equal(
      np.transpose(best, [2, 1, 0])[possible], values[order[:k]][possible]
    )
    assert np.all((best >= 0) & (best < CHAINS[name][0].shape[1]))


def test_paths_of_a_long_chain_are_the_best():
  # The steps are independent, so the best paths are those of a product.
  logits = np.random.default_rng(0).normal(size=[40, 3])
  chain = CategoricalChain(
    logits[0], np.broadcast_to(logits[1:, np.newaxis], [39, 3, 3])
  )
  product = tfd.Independent(tfd.Categorical(logits=logits), 1)
  p, expected = (tfp_rb.partition(q, 12) for q in (chain, product))
  np.testing.assert_array_equal(p.values, expected.values)
  for attribute in ('weights', 'rest_weight'):
    np.testing.assert_allclose(
      getattr(p, attribute), getattr(expected, attribute), rtol=1e-10
    )


@every_chain
def test_weight_of_the_mode_needs_no_search(name):
  _, probs = paths(name)
  weight = tf.exp(internals.find_partition(make(name), 0).log_mode_weight())
  np.testing.assert_allclose(weight, np.max(probs, axis=0), rtol=1e-12)


# The rest.


@every_chain
def test_the_rest_has_the_mass_of_all_other_paths(name):
  values, probs = paths(name)
  masses = -np.sort(-probs, axis=0)
  for k in some_k(len(values)):
    p = tfp_rb.partition(make(name), k)
    np.testing.assert_allclose(
      p.rest_weight, np.sum(masses[k:], axis=0), rtol=1e-11, atol=1e-300
    )
  assert p.sample_rest is None
  assert p.num_values == len(values)


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('gap', [14.0, 30.0, 60.0])
def test_a_tiny_rest_keeps_its_digits(gap, dtype):
  # Staying in state 0 is certain except for a probability of about exp(-gap) at
  # each of four steps.
  logits = tf.constant([0.0, -gap, -gap - 1.0], dtype)
  chain = CategoricalChain(logits, tf.broadcast_to(logits, [3, 3, 3]))
  p = tfp_rb.partition(chain, 1)
  leave = np.exp(-gap) + np.exp(-gap - 1.0)
  stay = -np.log1p(leave)
  expected = np.log(-np.expm1(4.0 * stay))
  tolerance = 1e-5 if dtype == tf.float32 else 1e-12
  np.testing.assert_allclose(p.log_rest, expected, rtol=0.0, atol=tolerance)


def _quarters():
  """Returns a chain whose probabilities are multiples of 1/4."""
  first = np.array([0.5, 0.25, 0.25])
  transitions = np.array(
    [
      [[0.75, 0.25, 0.0], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]],
      [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.5, 0.0, 0.5]],
    ]
  )
  probs = np.array(
    [
      first[i] * transitions[0, i, j] * transitions[1, j, k]
      for i, j, k in itertools.product(range(3), repeat=3)
    ]
  )
  with np.errstate(divide='ignore'):
    return CategoricalChain(np.log(first), np.log(transitions)), probs


def _midpoints(*sizes):
  """Returns the midpoints of the cells of a grid, `[n, dimensions]`."""
  axes = [(np.arange(n) + 0.5) / n for n in sizes]
  return np.reshape(
    np.stack(np.meshgrid(*axes, indexing='ij'), axis=-1), [-1, len(sizes)]
  )


def _law(partition, sizes):
  """Returns the share of each path on a grid of uniforms."""
  draws = partition.rest_from_uniforms(tf.constant(_midpoints(*sizes)))
  return np.bincount(number(3, draws), minlength=27) / len(draws)


def test_draws_from_the_whole_chain_have_its_law_exactly():
  chain, probs = _quarters()
  whole = internals.find_partition(chain, 0)
  assert whole.num_uniforms == 3
  np.testing.assert_array_equal(_law(whole, [4, 4, 4]), probs)


@pytest.mark.parametrize('k', [1, 2, 4, 8, 12])
def test_draws_from_the_rest_have_the_conditional_law_exactly(k):
  chain, probs = _quarters()
  p = tfp_rb.partition(chain, k)
  left = np.array(probs)
  left[number(3, p.values)] = 0.0
  # Each cell has a mass that is a multiple of 1/64. The remaining symbols of a
  # step have masses that are multiples of 1/4 and sum to between 1/4 and 4/4.
  size = round(64 * np.sum(left))
  assert p.num_uniforms == 4
  np.testing.assert_allclose(
    _law(p, [size, 12, 4, 4]), left / np.sum(left), rtol=1e-12
  )


def test_draws_beside_any_set_have_the_conditional_law_exactly():
  chain, probs = _quarters()
  # These are an impossible path, a path outside of the states, and a repeated
  # one.
  values = tf.constant([[1, 1, 0], [0, 2, 0], [0, 0, 3], [1, 1, 0], [2, 2, 2]])
  p = internals.find_partition(chain, 1).excluding(values)
  excluded = probs[[number(3, z) for z in ([1, 1, 0], [2, 2, 2])]]
  np.testing.assert_allclose(
    p.weights, [excluded[0], 0.0, 0.0, excluded[0], excluded[1]], rtol=1e-12
  )
  left = np.array(probs)
  left[[number(3, z) for z in ([1, 1, 0], [2, 2, 2])]] = 0.0
  np.testing.assert_allclose(p.rest_weight, np.sum(left), rtol=1e-12)
  size = round(64 * np.sum(left))
  np.testing.assert_allclose(
    _law(p, [size, 12, 4, 4]), left / np.sum(left), rtol=1e-12
  )


@every_chain
def test_an_empty_rest_has_no_mass_and_gives_no_nan(name):
  values, probs = paths(name)
  p = internals.find_partition(make(name), 0).excluding(
    tf.constant(np.repeat(values[:, np.newaxis], 2, axis=1), tf.int32)
  )
  np.testing.assert_array_equal(p.rest_weight, [0.0, 0.0])
  np.testing.assert_allclose(p.weights, probs, rtol=1e-12, atol=1e-300)
  draws = p.draw_rest(5, tf.constant([1, 2]))
  assert np.all((draws >= 0) & (draws < CHAINS[name][0].shape[1]))


# Scores.


def test_log_prob_gathers_and_score_norm_is_that_of_the_logits():
  values, _ = paths('random')
  whole = internals.find_partition(make('random'), 0)
  listed = tf.constant(np.repeat(values[:, np.newaxis], 2, axis=1), tf.int32)
  np.testing.assert_allclose(
    whole.log_prob(listed), make('random').log_prob(listed), rtol=1e-12
  )
  logits = [tf.constant(x) for x in CHAINS['random']]
  with tf.GradientTape() as tape:
    tape.watch(logits)
    log_prob = CategoricalChain(*logits).log_prob(listed)[:, 0]
  scores = tape.jacobian(log_prob, logits)
  norm = sum(np.sum(np.reshape(s, [81, -1]) ** 2, axis=1) for s in scores)
  np.testing.assert_allclose(whole.score_norm(listed)[:, 0], norm, rtol=1e-10)


# Estimators.


def _problem(initial, transitions):
  chain = CategoricalChain(initial, transitions)
  penalty = 0.1 * tf.reduce_sum(transitions**2, axis=[-3, -2, -1])

  def f(z):
    z = tf.cast(z, tf.float64)
    return (z[..., 0] - 2.0 * z[..., 1] * z[..., 2]) ** 2 + penalty * z[..., 2]

  return f, chain


_REINFORCE = tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2)
ESTIMATORS = {
  'exact': tfp_rb.Exact(),
  'joint draws': _REINFORCE,
  'summed': tfp_rb.rao_blackwellize(_REINFORCE, num_summed=2),
  'optimal': tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.Optimal(), num_samples=2), num_summed=1
  ),
  'budget': tfp_rb.rao_blackwellize(_REINFORCE, budget=3),
  'given atoms': tfp_rb.rao_blackwellize(
    _REINFORCE, atoms=lambda q: tf.zeros([1, *q.batch_shape, 3], tf.int32)
  ),
  'without replacement': tfp_rb.rao_blackwellize(
    _REINFORCE, num_summed=2, sampler=samplers.WithoutReplacement()
  ),
  'pooled': tfp_rb.pooled(tfp_rb.REINFORCE(), budget=4, num_candidates=8),
}


@pytest.mark.parametrize('name', ESTIMATORS)
def test_estimators_are_unbiased_by_enumeration(name):
  initial = tf.constant([[0.3, -0.4], [1.5, 0.0]], tf.float64)
  transitions = tf.constant(
    np.reshape(np.sin(3.0 * np.arange(16)), [2, 2, 2, 2])
  )
  problem = _problem
  if name == 'pooled':

    def problem(*parameters):
      f, chain = _problem(*parameters)
      penalty = 0.1 * tf.reduce_sum(parameters[1] ** 2, axis=[-3, -2, -1])

      def of_rows(z, rows):
        z = tf.cast(z, tf.float64)
        own = tf.gather(penalty, rows)
        return (z[:, 0] - 2.0 * z[:, 1] * z[:, 2]) ** 2 + own * z[:, 2]

      del f
      return of_rows, chain

  report = tfp_rb.testing.assert_unbiased(
    ESTIMATORS[name], problem, [initial, transitions]
  )
  assert report.is_exact


LOCAL = {
  'all states': (tfp_rb.REINFORCE(), 2, None),
  'level': (tfp_rb.REINFORCE(baseline=1.75), 2, None),
  'one state': (tfp_rb.REINFORCE(baseline=1.75), 1, None),
  'draws': (tfp_rb.REINFORCE(), 0, None),
  'chunks': (tfp_rb.REINFORCE(baseline=baselines.Learned(0.5)), 2, 2),
  'network': (tfp_rb.NVIL(lambda: tf.constant([[0.5], [1.5]])), 1, None),
  'other path': (tfp_rb.REINFORCE(baselines.IndependentSample()), 2, None),
  'other path, chunks': (tfp_rb.REINFORCE(baselines.IndependentSample()), 2, 1),
  'other path, one state': (
    tfp_rb.REINFORCE(baselines.IndependentSample()),
    1,
    None,
  ),
}


@pytest.mark.parametrize('name', LOCAL)
def test_step_by_step_is_unbiased_by_enumeration(name):
  initial = tf.constant([[0.3, -0.4], [1.5, 0.0]], tf.float64)
  transitions = tf.constant(
    np.reshape(np.sin(3.0 * np.arange(16)), [2, 2, 2, 2])
  )
  report = tfp_rb.testing.assert_unbiased(
    tfp_rb.local_expectation(*LOCAL[name]), _problem, [initial, transitions]
  )
  assert report.is_exact


@pytest.mark.parametrize(
  'estimator',
  [
    _REINFORCE,
    tfp_rb.REINFORCE(baselines.Optimal(), num_samples=2),
    tfp_rb.MuProp(),
  ],
  ids=str,
)
def test_a_level_that_depends_on_the_draws_is_refused_step_by_step(estimator):
  local = tfp_rb.local_expectation(estimator, num_summed=1)
  with raises(TypeError, 'estimator'):
    tfp_rb.expectation(lambda z: z[..., 0], make('random'), local, seed=[0, 1])


def _forbidden_problem(initial, transitions):
  # The paths (., 1, 0) and (2, 0, .) are forbidden.
  nothing = np.zeros([2, 3, 3])
  nothing[0, 2, 0] = nothing[1, 1, 0] = -np.inf
  chain = CategoricalChain(initial, transitions + nothing)

  def f(z):
    z = tf.cast(z, tf.float64)
    return tf.sin(z[..., 0] + 2.0 * z[..., 1]) * (z[..., 2] - 0.3)

  return f, chain


@pytest.mark.parametrize('num_summed', [1, 3])
@pytest.mark.parametrize(
  'baseline', [baselines.IndependentSample(), baselines.Constant(1.5)], ids=str
)
def test_step_by_step_is_unbiased_with_forbidden_transitions(
  num_summed, baseline
):
  initial = tf.constant([[0.3, -0.4, 0.0]], tf.float64)
  transitions = np.reshape(np.sin(3.0 * np.arange(18)), [1, 2, 3, 3])
  report = tfp_rb.testing.assert_unbiased(
    tfp_rb.local_expectation(tfp_rb.REINFORCE(baseline), num_summed),
    _forbidden_problem,
    [initial, tf.constant(transitions)],
  )
  assert report.is_exact


@pytest.mark.parametrize(
  ('estimator', 'num_evaluations'),
  [
    (tfp_rb.REINFORCE(), 4 * 2 + 1),
    (tfp_rb.REINFORCE(baselines.IndependentSample()), 4 * 2 + 2),
    (tfp_rb.REINFORCE(baselines.IndependentSample(shared=False)), 4 * 2 + 4),
  ],
  ids=str,
)
def test_the_path_is_evaluated_once_for_all_steps(estimator, num_evaluations):
  sizes = []

  def f(z):
    sizes.append(z.shape[0])
    return tf.cast(tf.reduce_sum(z, axis=-1), tf.float64)

  local = tfp_rb.local_expectation(estimator, num_summed=3)
  value = tfp_rb.expectation(f, make('random'), local, seed=[0, 1])
  assert value.shape == [2]
  assert sizes == [num_evaluations]


def test_step_by_step_does_not_depend_on_what_is_known_while_tracing():
  estimator = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(baselines.IndependentSample()), num_summed=1
  )

  def run(initial, transitions):
    with tf.GradientTape() as tape:
      tape.watch([initial, transitions])
      value = tfp_rb.expectation(
        *_problem(initial, transitions), estimator, seed=tf.constant([3, 1])
      )
    return [value, *tape.gradient(value, [initial, transitions])]

  specs = [tf.TensorSpec([None, 2], tf.float64)]
  specs += [tf.TensorSpec([None, 2, 2, 2], tf.float64)]
  dynamic = tf.function(run, input_signature=specs, autograph=False)
  compiled = tf.function(run, jit_compile=True, autograph=False)
  for size in (2, 0):
    logits = np.sin(np.arange(12.0 * size)).reshape([size, 12])
    initial = tf.constant(logits[:, :2])
    transitions = tf.constant(logits[:, 2:10].reshape([size, 2, 2, 2]))
    functions = [dynamic, compiled] if size else [dynamic]
    for function in functions:
      for actual, desired in zip(
        function(initial, transitions), run(initial, transitions), strict=True
      ):
        assert actual.shape == desired.shape
        np.testing.assert_allclose(actual, desired, rtol=1e-10, atol=1e-12)


def test_forbidden_transitions_are_not_visited_step_by_step():
  chain, _ = _quarters()
  seen = []

  def f(z):
    seen.append(z)
    return tf.cast(tf.reduce_sum(z, axis=-1), tf.float64)

  local = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=3)
  for seed in range(20):
    value = tfp_rb.expectation(f, chain, local, seed=[0, seed])
    assert np.isfinite(value)
  assert all(z.shape == (3 * 2 + 1, 3) for z in seen)
  assert np.all(chain.prob(tf.concat(seen, axis=0)) > 0.0)


def test_forbidden_paths_reach_neither_the_value_nor_the_gradient():
  first = np.array([0.5, -np.inf, 0.2])
  transitions = np.zeros([2, 3, 3])
  transitions[0, 0, 1] = transitions[1, 2, :2] = -np.inf
  logits = [tf.constant(first), tf.constant(transitions)]

  def f(z):  # `f` is infinite at the forbidden paths.
    z = tf.cast(z, tf.float64)
    is_forbidden = tf.equal(z[..., 0], 1.0)
    bad = tf.where(is_forbidden, tf.zeros_like(z[..., 0]), 1.0 + z[..., 1])
    return tf.math.log(bad) + z[..., 2]

  results = []
  for estimator in (
    tfp_rb.Exact(),
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=26),
  ):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      chain = CategoricalChain(*logits)
      value = tfp_rb.expectation(f, chain, estimator, seed=[0, 1])
    results.append([value, *tape.gradient(value, logits)])
  for exact, summed in zip(*results):
    assert np.all(np.isfinite(exact))
    np.testing.assert_allclose(summed, exact, rtol=1e-10, atol=1e-12)


def test_too_many_paths_to_sum_are_counted_in_the_error():
  chain = CategoricalChain(tf.zeros([2]), tf.zeros([39, 2, 2]))
  assert tfp_rb.partition(chain, 3).num_values == 2**40
  with raises(ValueError, '1e12'):
    tfp_rb.expectation(lambda z: z[..., 0], chain, tfp_rb.Exact())


# Markov chains of TFP.


@pytest.mark.parametrize('dtype', [tf.int32, tf.float64])
def test_a_markov_chain_is_partitioned_as_the_chain_is(dtype):
  initial, transitions = (tf.constant(x) for x in CHAINS['random'])

  def transition_fn(t, z):
    # The index consists of row, step and previous state; the leading axes of
    # `z` are the steps.
    # With NumPy 1, TFP passes the steps as int64.
    t = tf.cast(tf.reshape(t, [-1] + [1] * (z.shape.rank - 1)), tf.int32)
    t, z = tf.broadcast_to(t, z.shape), tf.cast(z, tf.int32)
    rows = tf.broadcast_to(tf.range(2), z.shape)
    logits = tf.gather_nd(transitions, tf.stack([rows, t, z], axis=-1))
    return tfd.Categorical(logits=logits, dtype=dtype)

  markov_chain = tfd.MarkovChain(
    tfd.Categorical(logits=initial, dtype=dtype), transition_fn, num_steps=4
  )
  p, expected = (tfp_rb.partition(q, 5) for q in (markov_chain, make('random')))
  assert p.values.dtype == dtype
  np.testing.assert_array_equal(p.values, expected.values)
  np.testing.assert_allclose(p.weights, expected.weights, rtol=1e-12)
  draws = p.sample_rest(7, tf.constant([1, 2]))
  assert draws.dtype == dtype
  np.testing.assert_array_equal(
    draws, expected.sample_rest(7, tf.constant([1, 2]))
  )
  np.testing.assert_allclose(
    p.log_prob(draws), markov_chain.log_prob(draws), rtol=1e-12
  )


def test_a_markov_chain_over_infinitely_many_states_is_only_sampled():
  counts = tfd.MarkovChain(
    tfd.Poisson(2.0), lambda t, z: tfd.Poisson(1.0 + 0.5 * z), num_steps=3
  )
  with raises(NotImplementedError, 'initial_state_prior'):
    tfp_rb.partition(counts, 1)
  value = tfp_rb.expectation(
    lambda z: z[..., 0], counts, tfp_rb.REINFORCE(num_samples=3), seed=[0, 1]
  )
  assert np.isfinite(value)


# Cost.


def _best_and_draw(transitions):
  chain = CategoricalChain(transitions[:, 0, 0], transitions[:, 1:])
  p = tfp_rb.partition(chain, 4)
  return p.values, p.log_rest, p.sample_rest(2, tf.constant([1, 2]))


def test_the_graph_does_not_grow_with_the_number_of_steps():
  def size(num_steps):
    traced = tf.function(_best_and_draw, autograph=False)
    traced = traced.get_concrete_function(tf.TensorSpec([2, num_steps, 3, 3]))
    functions = traced.graph.as_graph_def().library.function
    return len(traced.graph.get_operations()) + sum(
      len(f.node_def) for f in functions
    )

  assert size(50) == size(10)


@pytest.mark.slow
def test_memory_is_linear_in_the_number_of_steps():
  def largest(num_steps):
    compiled = tf.function(_best_and_draw, autograph=False, jit_compile=True)
    return largest_array(compiled, tf.zeros([2, num_steps, 3, 3]))

  assert largest(200) <= 2 * largest(100)


def test_a_chain_of_unknown_length_is_refused():
  @tf.function(input_signature=[tf.TensorSpec([None, 3, 3])])
  def run(transitions):
    return tfp_rb.partition(CategoricalChain(tf.zeros([3]), transitions), 1)

  with raises(ValueError, 'transition_logits'):
    run(tf.zeros([2, 3, 3]))
