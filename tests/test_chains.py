# SPDX-License-Identifier: Apache-2.0
"""`CategoricalChain`, compared with sums over all paths in NumPy."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from chains import CHAINS, number, paths, tables
from errors import raises
from modes import modes_of
import reference
import statistical
from tfp_rb.distributions import CategoricalChain

tfd = tfp.distributions

every_chain = pytest.mark.parametrize('name', CHAINS)

# These chains contain no `-inf`, so complex steps can differentiate them.
SMOOTH = [
  name
  for name, logits in CHAINS.items()
  if all(np.all(np.isfinite(x)) for x in logits) and name != 'concentrated'
]


def make(name, dtype=tf.float64):
  return CategoricalChain(*(tf.constant(x, dtype) for x in CHAINS[name]))


def terms_of(name, seed=0):
  """Returns the terms of states and of transitions."""
  initial, transitions = CHAINS[name]
  rng = np.random.default_rng(seed)
  unary = rng.normal(size=[transitions.shape[1] + 1, initial.shape[1]])
  return unary, rng.normal(size=transitions.shape[1:])


def assert_close(actual, desired, tolerance=1e-12):
  np.testing.assert_allclose(actual, desired, rtol=tolerance, atol=tolerance)


# Comparison with brute force.


@every_chain
def test_log_prob_is_that_of_the_factors(name):
  values, probs = paths(name)
  log_prob = make(name).log_prob(values[:, np.newaxis])
  with np.errstate(divide='ignore'):
    assert_close(log_prob, np.log(probs))


@every_chain
def test_entropy_is_that_of_the_table(name):
  _, probs = paths(name)
  logs = np.log(np.where(probs > 0.0, probs, 1.0))
  assert_close(make(name).entropy(), -np.sum(probs * logs, axis=0))


@every_chain
def test_mode_is_the_first_of_the_most_probable_paths(name):
  values, probs = paths(name)
  assert_close(make(name).mode(), values[np.argmax(probs, axis=0)])


@every_chain
def test_marginals_are_those_of_the_table(name):
  values, probs = paths(name)
  num_states, num_steps = CHAINS[name][0].shape[1], values.shape[1]
  unary, pairwise = make(name).marginals()
  is_state = values[..., np.newaxis] == np.arange(num_states)  # [n, T, K]
  assert_close(unary, np.einsum('nb,ntk->btk', probs, is_state))
  is_pair = is_state[:, :-1, :, np.newaxis] & is_state[:, 1:, np.newaxis]
  assert pairwise.shape == (2, num_steps - 1, num_states, num_states)
  assert_close(pairwise, np.einsum('nb,ntij->btij', probs, is_pair))


@every_chain
def test_expectation_of_a_sum_over_steps_is_exact(name):
  unary, pairwise = terms_of(name)
  expected = [
    reference.expectation(
      table, lambda z: reference.sum_along(z, unary, pairwise)
    )
    for table in tables(name)
  ]
  assert_close(make(name).expectation(unary, pairwise), expected)
  nothing = np.zeros_like(unary), np.zeros_like(pairwise)
  separate = [
    make(name).expectation(unary_terms=unary, pairwise_terms=nothing[1]),
    make(name).expectation(pairwise_terms=pairwise),
  ]
  assert_close(sum(separate), expected)


@every_chain
def test_divergence_is_that_of_the_table(name):
  values, probs = paths(name)
  shifted = [0.3 * x + np.sin(np.maximum(x, -9.0)) for x in CHAINS[name]]
  other = CategoricalChain(*map(tf.constant, shifted))
  log_other = other.log_prob(values[:, np.newaxis]).numpy()
  possible = probs > 0.0
  with np.errstate(divide='ignore', invalid='ignore'):
    terms = np.where(possible, probs * (np.log(probs) - log_other), 0.0)
  assert_close(make(name).kl_divergence(other), np.sum(terms, axis=0))
  assert_close(make(name).kl_divergence(make(name)), np.zeros(2))


def test_divergence_from_a_chain_that_forbids_a_path_is_infinite():
  first, second = make('random'), make('forbidden')
  assert np.all(np.isposinf(first.kl_divergence(second)))
  assert np.all(np.isfinite(second.kl_divergence(first)))


# Gradients.


def gradients(function, *arrays):
  tensors = [tf.constant(x, tf.float64) for x in arrays]
  with tf.GradientTape() as tape:
    tape.watch(tensors)
    total = tf.reduce_sum(function(*tensors))
  found = tape.gradient(total, tensors, unconnected_gradients='zero')
  return [g.numpy() for g in found]


def _weighted_log_probs(table):
  return sum((1.0 + n) * np.log(p) for n, (_, p) in enumerate(table))


def _entropy(table):
  return -sum(p * np.log(p) for _, p in table)


def gradients_of_chain(function, name):
  """Returns the gradients of a function of the chain w.r.t. the logits."""
  return gradients(lambda *x: function(CategoricalChain(*x)), *CHAINS[name])


def assert_gradients_agree(of_chain, of_table, name):
  desired = reference.complex_step_gradient(
    lambda *x: sum(of_table(reference.chain(*row)) for row in zip(*x)),
    CHAINS[name],
  )
  for a, d in zip(gradients_of_chain(of_chain, name), desired):
    assert_close(a, d, 1e-9)


@pytest.mark.parametrize('name', SMOOTH)
def test_gradients_are_those_of_the_table(name):
  unary, pairwise = terms_of(name)
  values, _ = paths(name)
  weights = 1.0 + np.arange(len(values))[:, np.newaxis]
  assert_gradients_agree(lambda q: q.entropy(), _entropy, name)
  assert_gradients_agree(
    lambda q: weights * q.log_prob(values[:, np.newaxis]),
    _weighted_log_probs,
    name,
  )
  assert_gradients_agree(
    lambda q: q.expectation(unary, pairwise),
    lambda table: reference.expectation(
      table, lambda z: reference.sum_along(z, unary, pairwise)
    ),
    name,
  )


@every_chain
def test_gradients_are_finite_where_something_is_impossible(name):
  values, probs = paths(name)
  possible = values[np.all(probs > 0.0, axis=1)][:, np.newaxis]
  unary, pairwise = terms_of(name)
  impossible = np.all(make(name).marginals()[1] == 0.0, axis=0)
  pairwise = np.where(impossible, -np.inf, pairwise)
  for function in (
    lambda q: q.entropy(),
    lambda q: q.log_prob(possible),
    lambda q: q.expectation(unary, pairwise),
    lambda q: q.kl_divergence(make(name)),
  ):
    found = gradients_of_chain(function, name)
    assert all(np.all(np.isfinite(g)) for g in found)
    for g, x in zip(found, CHAINS[name]):
      assert not np.any(g[np.isneginf(x)])


def test_terms_of_impossible_transitions_count_as_zero():
  unary, pairwise = terms_of('forbidden')
  expected = make('forbidden').expectation(unary, pairwise)
  impossible = np.all(make('forbidden').marginals()[1] == 0.0, axis=0)
  assert np.any(impossible)
  for odd in (-np.inf, np.inf, np.nan):
    terms = np.where(impossible, odd, pairwise)
    assert_close(make('forbidden').expectation(unary, terms), expected)
  found = make('forbidden').expectation(np.where(unary < 0, -np.inf, unary))
  assert np.all(np.isneginf(found))


# Potentials, hidden Markov models, Markov chains.


def _potentials(name):
  """Returns potentials, `[T, K]` and `[T - 1, K, K]`, with dead ends."""
  unary, pairwise = terms_of(name, seed=1)
  if name == 'forbidden':
    pairwise[0, 0] = -np.inf
    pairwise[1, 2] = -np.inf
    pairwise[2, :, 1] = -np.inf
    unary[3, 2] = -np.inf
  return unary, pairwise


@pytest.mark.parametrize('name', ['random', 'forbidden', 'one step', 'long'])
def test_potentials_are_normalised(name):
  unary, pairwise = _potentials(name)
  values, _ = paths(name)
  logs = np.array([reference.sum_along(z, unary, pairwise) for z in values])
  total = np.log(np.sum(np.exp(logs)))
  chain = CategoricalChain.from_potentials(unary, pairwise, validate_args=True)
  assert_close(chain.log_normalizer, total)
  assert_close(chain.log_prob(values), logs - total)

  def log_normalizer(*potentials):
    return CategoricalChain.from_potentials(*potentials).log_normalizer

  # The derivative w.r.t. the potentials is the marginal probability.
  for actual, desired in zip(
    gradients(log_normalizer, unary, pairwise), chain.marginals()
  ):
    assert_close(actual, desired)
  entropy = gradients(
    lambda *x: CategoricalChain.from_potentials(*x).entropy(), unary, pairwise
  )
  assert all(np.all(np.isfinite(g)) for g in entropy)


def test_potentials_that_allow_no_path_give_no_nan():
  unary, pairwise = _potentials('random')
  pairwise[1] = -np.inf

  def outputs(*x):
    chain = CategoricalChain.from_potentials(*x)
    return tf.stack([chain.entropy(), chain.log_normalizer])

  assert_close(outputs(unary, pairwise)[1], -np.inf)
  assert np.isfinite(outputs(unary, pairwise)[0])
  found = gradients(lambda *x: outputs(*x)[0], unary, pairwise)
  found += gradients(lambda *x: outputs(*x)[1], unary, pairwise)
  assert all(np.all(np.isfinite(g)) for g in found)


def test_long_potentials_keep_their_digits():
  # The messages of 4,000 steps add up to more than 10,000.
  unary = tf.constant(np.random.default_rng(0).normal(3.0, size=[4000, 3]))
  pairwise = tf.zeros([3999, 3, 3], tf.float64)
  wide = CategoricalChain.from_potentials(unary, pairwise)
  narrow = CategoricalChain.from_potentials(
    tf.cast(unary, tf.float32), tf.cast(pairwise, tf.float32)
  )
  # Without `pairwise`, the steps are independent.
  assert_close(wide.marginals()[0], tf.nn.softmax(unary))
  np.testing.assert_allclose(
    narrow.marginals()[0], wide.marginals()[0], atol=1e-5
  )


def _hmm(*, in_time, num_steps=5):
  """Returns a batch of two hidden Markov models over three states."""
  rng = np.random.default_rng(2)
  transitions = [num_steps - 1, 3, 3] if in_time else [3, 3]
  means = [num_steps, 3] if in_time else [3]
  return tfd.HiddenMarkovModel(
    tfd.Categorical(logits=rng.normal(size=[3])),
    tfd.Categorical(logits=rng.normal(size=[2, *transitions])),
    tfd.Normal(rng.normal(size=means), tf.constant(1.0, tf.float64)),
    num_steps=num_steps,
    time_varying_transition_distribution=in_time,
    time_varying_observation_distribution=in_time,
  )


@pytest.mark.parametrize('event', ['scalar', 'vector'])
@pytest.mark.parametrize('in_time', [False, True])
def test_a_missing_observation_may_be_nan(event, in_time):
  rng = np.random.default_rng(7)
  shape = ([4] if in_time else []) + [2] + ([3] if event == 'vector' else [])
  loc = tf.Variable(rng.normal(size=shape))
  x = rng.normal(size=[4, 3] if event == 'vector' else [4])
  mask = tf.constant([False, True, False, True])

  def of(x):
    law = tfd.LogNormal(loc, tf.ones([], tf.float64))
    if event == 'vector':
      law = tfd.Independent(law, 1)
    hmm = tfd.HiddenMarkovModel(
      tfd.Categorical(logits=np.zeros([2])),
      tfd.Categorical(logits=np.eye(2)),
      law,
      num_steps=4,
      time_varying_observation_distribution=in_time,
    )
    with tf.GradientTape() as tape:
      value = CategoricalChain.posterior(hmm, x, mask=mask).log_normalizer
    return value, tape.gradient(value, loc)

  values = np.exp(x)
  missing = np.where(np.reshape(mask, [4] + [1] * (x.ndim - 1)), np.nan, values)
  for actual, expected in zip(of(missing), of(values), strict=True):
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize('masked', [False, True])
@pytest.mark.parametrize('in_time', [False, True])
def test_posterior_of_a_hidden_markov_model_is_that_of_tfp(in_time, masked):
  hmm = _hmm(in_time=in_time)
  x = tf.constant(np.random.default_rng(3).normal(size=[4, 1, 5]))
  mask = tf.constant([False, True, False, False, True]) if masked else None
  chain = CategoricalChain.posterior(hmm, x, mask=mask)
  assert chain.batch_shape == (4, 2)
  assert_close(
    chain.marginals()[0],
    hmm.posterior_marginals(x, mask=mask).probs_parameter(),
  )
  np.testing.assert_array_equal(chain.mode(), hmm.posterior_mode(x, mask=mask))
  assert_close(chain.log_normalizer, hmm.log_prob(x, mask=mask))


def test_posterior_of_a_path_is_the_joint_minus_the_evidence():
  hmm = _hmm(in_time=False)
  x = tf.constant(np.random.default_rng(3).normal(size=[5]))
  chain = CategoricalChain.posterior(hmm, x)
  z = np.array([2, 0, 0, 1, 2])
  initial, transitions, means = (
    tf.convert_to_tensor(part).numpy()
    for part in (
      hmm.initial_distribution.logits_parameter(),
      hmm.transition_distribution.logits_parameter(),
      hmm.observation_distribution.loc,
    )
  )
  for row in range(2):
    table = reference.chain(initial, np.stack([transitions[row]] * 4))
    (prior,) = (p for path, p in table if np.array_equal(path, z))
    joint = np.log(prior) + np.sum(
      -0.5 * (x.numpy() - means[z]) ** 2 - 0.5 * np.log(2.0 * np.pi)
    )
    evidence = hmm.log_prob(x)[row]
    assert_close(chain.log_prob(z)[row], joint - evidence)


def test_posterior_of_vector_observations_and_certain_parts():
  hmm = tfd.HiddenMarkovModel(
    tfd.Categorical(probs=[1.0, 0.0]),
    tfd.Categorical(probs=[[0.6, 0.4], [0.0, 1.0]]),
    tfd.MultivariateNormalDiag([[0.0, 1.0], [2.0, -1.0]], [1.0, 1.0]),
    num_steps=3,
  )
  x = tf.constant([[0.1, 1.0], [np.nan, 0.0], [2.0, 0.0]])
  mask = tf.constant([False, True, False])
  chain = CategoricalChain.posterior(hmm, x, mask=mask)
  expected = hmm.posterior_marginals(x, mask=mask).probs_parameter()
  np.testing.assert_allclose(chain.marginals()[0], expected, atol=1e-6)


def _markov_chain(parameters, seen=None):
  """Returns a batch of two chains whose transitions depend on the step."""
  initial, slope = parameters

  def transition_fn(t, x):
    if seen is not None:
      seen.append(x.shape)
    x = tf.cast(x, tf.float64)
    t = tf.cast(tf.reshape(t, [-1] + [1] * (x.shape.rank - 1)), tf.float64)
    level = x * slope - 0.3 * t
    return tfd.Categorical(logits=tf.stack([level, 0.5 * level**2, -level], -1))

  return tfd.MarkovChain(tfd.Categorical(logits=initial), transition_fn, 4)


MARKOV = np.array([[0.3, -1.0, 0.2], [1.0, 0.1, 0.0]]), np.array([0.7, -0.4])


def test_markov_chain_is_converted_with_one_call_of_its_transitions():
  seen = []
  markov_chain = _markov_chain(list(map(tf.constant, MARKOV)), seen)
  chain = CategoricalChain.from_markov_chain(markov_chain)
  assert seen == [(3, 3, 2)]
  values, _ = paths('random')
  values = values[:, np.newaxis]
  assert_close(chain.log_prob(values), markov_chain.log_prob(values))
  assert_close(chain.kl_divergence(markov_chain), np.zeros(2))
  assert_close(markov_chain.kl_divergence(chain), np.zeros(2))


def test_markov_chain_of_bits_and_of_constant_transitions_is_converted():
  bits = tfd.MarkovChain(
    tfd.Bernoulli(probs=0.25),
    lambda t, x: tfd.Bernoulli(probs=tf.gather([0.0, 0.75], x)),
    3,
  )
  fixed = tfd.MarkovChain(
    tfd.Categorical(probs=[0.25, 0.75]),
    lambda t, x: tfd.Categorical(probs=tf.constant([0.5, 0.5])),
    3,
  )
  for markov_chain, path, prob in (
    (bits, [1, 1, 0], 0.25 * 0.75 * 0.25),
    (bits, [0, 1, 0], 0.0),
    (fixed, [1, 1, 0], 0.75 * 0.25),
  ):
    chain = CategoricalChain.from_markov_chain(markov_chain)
    np.testing.assert_allclose(chain.prob(path), prob, rtol=1e-6)


# The chain as a distribution of TFP.


@every_chain
def test_draws_follow_the_law(name):
  values, probs = paths(name)
  draws = make(name).sample(20_000, seed=[1, 2])
  assert draws.dtype == tf.int32
  assert draws.shape == (20_000, 2, values.shape[1])
  numbers = number(CHAINS[name][0].shape[1], draws)
  for row in range(2):
    statistical.assert_follows(
      numbers[:, row],
      np.arange(len(values)),
      probs[:, row],
      num_tests=2 * len(CHAINS),
      detectable=0.06,
    )


def test_eager_graph_and_xla_agree():
  initial, transitions = (tf.constant(x, tf.float32) for x in CHAINS['random'])

  def run(initial, transitions, seed):
    with tf.GradientTape() as tape:
      tape.watch(transitions)
      chain = CategoricalChain(initial, transitions)
      draws = chain.sample([2, 3], seed=seed)
      total = tf.reduce_sum(chain.entropy() + chain.log_prob(draws))
      total += tf.reduce_sum(chain.kl_divergence(chain[::-1]))
    return draws, chain.mode(), total, tape.gradient(total, transitions)

  args = initial, transitions, tf.constant([5, 3])
  modes = modes_of(run, *args)
  expected = modes['eager'](*args)
  assert expected[0].shape == (2, 3, 2, 4)
  for mode in ('graph', 'xla'):
    draws, mode_of_chain, total, gradient = modes[mode](*args)
    np.testing.assert_array_equal(draws, expected[0])
    np.testing.assert_array_equal(mode_of_chain, expected[1])
    np.testing.assert_allclose(total, expected[2], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[3], atol=1e-5)


def test_the_graph_does_not_grow_with_the_number_of_steps():
  def size(num_steps):
    def run(initial, transitions):
      with tf.GradientTape() as tape:
        tape.watch(transitions)
        chain = CategoricalChain.from_potentials(initial, transitions)
        total = tf.reduce_sum(chain.entropy()) + chain.log_normalizer
      chain.sample(2, seed=[0, 1])
      chain.mode()
      return tape.gradient(total, transitions)

    traced = tf.function(run, autograph=False).get_concrete_function(
      tf.TensorSpec([num_steps, 3]), tf.TensorSpec([num_steps - 1, 3, 3])
    )
    functions = traced.graph.as_graph_def().library.function
    return len(traced.graph.get_operations()) + sum(
      len(f.node_def) for f in functions
    )

  assert size(50) == size(5)


@pytest.mark.parametrize('batch', [0, 2])
def test_batch_size_and_number_of_steps_may_be_unknown(batch):
  @tf.function(
    input_signature=[
      tf.TensorSpec([None, 3], tf.float64),
      tf.TensorSpec([None, None, 3, 3], tf.float64),
    ]
  )
  def run(initial, transitions):
    chain = CategoricalChain(initial, transitions)
    draws = chain.sample(5, seed=[1, 2])
    return draws, chain.mode(), chain.entropy(), chain.log_prob(draws)

  initial, transitions = (x[:batch] for x in CHAINS['random'])
  chain = CategoricalChain(initial, transitions)
  draws, mode, entropy, log_prob = run(initial, transitions)
  assert draws.shape == (5, batch, 4)
  np.testing.assert_array_equal(draws, chain.sample(5, seed=[1, 2]))
  np.testing.assert_array_equal(mode, chain.mode())
  assert_close(entropy, chain.entropy())
  assert_close(log_prob, chain.log_prob(draws))


def test_values_and_parameters_broadcast():
  initial, transitions = CHAINS['random']
  values, _ = paths('random')
  chain = CategoricalChain(initial[:1], transitions[0])
  assert (chain.batch_shape, chain.event_shape) == ((1,), (4,))
  expected = make('random').log_prob(values[:, np.newaxis])[:, 0]
  assert_close(chain.log_prob(values), expected)
  assert_close(
    chain.log_prob(values[:6].reshape([3, 2, 4])),
    np.reshape(expected[:6], [3, 2]),
  )
  both = CategoricalChain(initial[:, np.newaxis], transitions)
  assert both.batch_shape == (2, 2)
  assert both.entropy().shape == (2, 2)
  assert_close(tf.linalg.diag_part(both.entropy()), make('random').entropy())
  assert (
    make('random').log_prob([-1, 0, 0, 3]).numpy().tolist() == [-np.inf] * 2
  )


def test_a_chain_behaves_as_other_distributions_do():
  chain = make('random')
  assert_close(chain[1].entropy(), chain.entropy()[1])
  assert chain.copy(validate_args=True).validate_args
  assert_close(tf.function(lambda q: q.entropy())(chain), chain.entropy())
  independent = tfd.Independent(chain, 1)
  assert independent.event_shape == (2, 4)
  assert_close(independent.entropy(), tf.reduce_sum(chain.entropy()))
  variable = tf.Variable(CHAINS['random'][0])
  chain = CategoricalChain(variable, CHAINS['random'][1])
  assert [v is variable for v in chain.trainable_variables] == [True]
  variable.assign(-CHAINS['random'][0])
  expected = CategoricalChain(-CHAINS['random'][0], CHAINS['random'][1])
  assert_close(chain.entropy(), expected.entropy())
  posterior = CategoricalChain.from_potentials(*_potentials('random'))
  assert_close(posterior.copy().log_normalizer, posterior.log_normalizer)


@pytest.mark.parametrize('dtype', [tf.float16, tf.bfloat16, tf.float32])
def test_narrow_dtypes_compute_in_float32(dtype):
  logits = [tf.cast(x, dtype) for x in CHAINS['random']]
  wide = CategoricalChain(*(tf.cast(x, tf.float64) for x in logits))
  chain = CategoricalChain(*logits)
  for function in (
    lambda q: q.entropy(),
    lambda q: q.log_prob(q.mode()),
    lambda q: q.marginals()[1],
  ):
    assert function(chain).dtype == tf.float32
    np.testing.assert_allclose(function(chain), function(wide), rtol=2e-6)
  assert chain.sample(seed=1).shape == (2, 4)


# Errors.


@pytest.mark.parametrize(
  ('initial', 'transitions', 'argument'),
  [
    ([], [3, 2, 2], 'initial_logits'),
    ([2], [2, 2], 'transition_logits'),
    ([2], [3, 2, 3], 'transition_logits'),
    ([3], [3, 2, 2], 'transition_logits'),
    ([0], [3, 0, 0], 'initial_logits'),
    ([4, 2], [3, 3, 2, 2], 'initial_logits'),
  ],
)
def test_logits_of_wrong_shapes_are_refused(initial, transitions, argument):
  with raises(ValueError, argument):
    CategoricalChain(tf.zeros(initial), tf.zeros(transitions))


def test_logits_of_wrong_dtypes_are_refused():
  with raises(TypeError, 'transition_logits'):
    CategoricalChain(tf.zeros([2]), tf.zeros([1, 2, 2], tf.float64))
  with raises(TypeError, 'initial_logits'):
    CategoricalChain(tf.zeros([2], tf.int32), [[[0.0, 1.0], [1.0, 0.0]]])


@pytest.mark.parametrize(
  ('unary', 'pairwise', 'argument'),
  [
    ([3], [2, 3, 3], 'unary'),
    ([3, 2], [2, 2], 'pairwise'),
    ([3, 2], [2, 3, 3], 'pairwise'),
    ([3, 2], [3, 2, 2], 'pairwise'),
    ([0, 2], [0, 2, 2], 'unary'),
    ([4, 3, 2], [3, 2, 2, 2], 'pairwise'),
  ],
)
def test_potentials_of_wrong_shapes_are_refused(unary, pairwise, argument):
  with raises(ValueError, argument):
    CategoricalChain.from_potentials(tf.zeros(unary), tf.zeros(pairwise))


@pytest.mark.parametrize(
  ('terms', 'argument'),
  [
    ({}, 'unary_terms'),
    ({'unary_terms': np.zeros([3])}, 'unary_terms'),
    ({'unary_terms': np.zeros([3, 3])}, 'unary_terms'),
    ({'pairwise_terms': np.zeros([3, 3])}, 'pairwise_terms'),
    ({'pairwise_terms': np.zeros([4, 3, 3])}, 'pairwise_terms'),
    ({'pairwise_terms': np.zeros([3, 3, 2])}, 'pairwise_terms'),
  ],
)
def test_terms_of_wrong_shapes_are_refused(terms, argument):
  with raises(ValueError, argument):
    make('random').expectation(**terms)


def test_a_function_in_place_of_terms_is_refused():
  with raises(TypeError, 'unary_terms'):
    make('random').expectation(lambda z: tf.reduce_sum(z, axis=-1))


def test_chains_of_other_sizes_have_no_divergence():
  with raises(ValueError, 'other'):
    make('random').kl_divergence(make('four states'))


def test_what_cannot_be_converted_is_refused():
  normal = tfd.Normal(0.0, 1.0)
  hmm = _hmm(in_time=False)
  with raises(TypeError, 'hmm'):
    CategoricalChain.posterior(normal, tf.zeros([3]))
  with raises(ValueError, 'observations'):
    CategoricalChain.posterior(hmm, tf.zeros([3], tf.float64))
  with raises(ValueError, 'mask'):
    mask = [True, False]
    CategoricalChain.posterior(hmm, tf.zeros([5], tf.float64), mask=mask)
  with raises(TypeError, 'markov_chain'):
    CategoricalChain.from_markov_chain(normal)
  walk = tfd.MarkovChain(normal, lambda t, x: tfd.Normal(x, 1.0), 3)
  with raises(TypeError, 'initial_state_prior'):
    CategoricalChain.from_markov_chain(walk)
  growing = tfd.MarkovChain(
    tfd.Categorical(probs=[0.5, 0.5]),
    lambda t, x: tfd.Categorical(logits=[0.0, 0.0, 0.0]),
    3,
  )
  with raises(ValueError, 'transition_fn'):
    CategoricalChain.from_markov_chain(growing)


ERRORS = (tf.errors.InvalidArgumentError, ValueError)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('argument', ['initial_logits', 'transition_logits'])
def test_validate_args_finds_bad_logits(argument, value):
  arguments = dict(
    initial_logits=np.zeros([3]), transition_logits=np.zeros([2, 3, 3])
  )
  # The whole row is set, because a single `-inf` is allowed.
  arguments[argument][..., :] = value
  CategoricalChain(**arguments)
  with raises(ERRORS, argument):
    CategoricalChain(**arguments, validate_args=True)
  # A variable may change, so it is checked when it is used.
  variable = tf.Variable(0.0 * np.zeros_like(arguments[argument]))
  chain = CategoricalChain(
    **(arguments | {argument: variable}), validate_args=True
  )
  chain.entropy()
  variable.assign(arguments[argument])
  with raises(ERRORS, argument):
    chain.entropy()


def test_validate_args_finds_bad_potentials_and_paths():
  unary, pairwise = _potentials('random')
  with raises(ERRORS, 'unary'):
    CategoricalChain.from_potentials(
      np.nan * unary, pairwise, validate_args=True
    )
  with raises(ERRORS, 'pairwise'):
    CategoricalChain.from_potentials(
      unary, pairwise - np.inf, validate_args=True
    )
  chain = make('random').copy(validate_args=True)
  for path in ([0, 1, 2, 3], [0, -1, 0, 0], [0, 1, 2]):
    with raises(ERRORS, 'value'):
      chain.log_prob(path)


@pytest.mark.parametrize('path', [0, [0], [0, 1, 1, 0, 2]])
def test_a_path_with_another_number_of_steps_is_refused(path):
  with raises(ValueError, 'value'):
    make('random').log_prob(path)


def test_logits_of_different_batch_shapes_broadcast():
  rng = np.random.default_rng(0)
  initial, transitions = (
    rng.normal(size=[2, 1, 3]),
    rng.normal(size=[3, 2, 3, 3]),
  )
  chain = CategoricalChain(initial, transitions)
  both = CategoricalChain(
    np.broadcast_to(initial, [2, 3, 3]),
    np.broadcast_to(transitions, [2, 3, 2, 3, 3]),
  )
  values = both.sample(4, seed=[0, 1])
  assert_close(chain.log_prob(values), both.log_prob(values))
  assert_close(chain.kl_divergence(both), np.zeros([2, 3]))
  assert_close(chain[1].entropy(), both[1].entropy())


@pytest.mark.parametrize('size', [1e4, 1e30])
@pytest.mark.parametrize('num_states, num_steps', [(1, 1), (2, 1), (2, 3)])
def test_extreme_logits_give_no_nan(size, num_states, num_steps):
  rng = np.random.default_rng(0)
  logits = [
    tf.constant(size * rng.normal(size=[2, num_states])),
    tf.constant(
      size * rng.normal(size=[2, num_steps - 1, num_states, num_states])
    ),
  ]
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(logits)
    chain = CategoricalChain(*logits)
    found = [chain.entropy(), chain.log_prob(chain.mode()), *chain.marginals()]
  for x in found:
    for y in (x, *tape.gradient(x, logits)):
      assert y is None or np.all(np.isfinite(y))
