# SPDX-License-Identifier: Apache-2.0
"""Variational inference over paths, compared with sums over all paths."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import assert_reaches_the_user, raises
import internals
from internals import WithDraws
from modes import modes_of
import tfp_rb
from tfp_rb import baselines
from tfp_rb.distributions import CategoricalChain

tfd = tfp.distributions

SEED = (3, 1)
K, T = 3, 3
RNG = np.random.default_rng(5)
A = RNG.normal(size=[K])
B = RNG.normal(size=[T - 1, K, K])
LOC = RNG.normal(size=[K])
SCORES = RNG.normal(size=[K] * T)
PATHS = np.array(list(np.ndindex(*SCORES.shape)))  # [K^T, T]
SCALE = tf.constant(0.7, tf.float64)
SUMMED_TWO = tfp_rb.rao_blackwellize(
  tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2), num_summed=2
)


def loss_of(target, q, **kwargs):
  kwargs.setdefault('seed', SEED)
  return tfp_rb.vi.monte_carlo_variational_loss(target, q, **kwargs)


def of_chain(a, b):
  return CategoricalChain(a, b)


def of_markov_chain(a, b):
  def transition(t, z):
    # While drawing, `t` is a number; otherwise `t` is the first axis of the
    # states.
    t = tf.reshape(t, [-1] + [1] * (z.shape.rank - 1)) if z.shape.rank else t
    t += tf.zeros_like(z)
    return tfd.Categorical(logits=tf.gather_nd(b, tf.stack([t, z], axis=-1)))

  return tfd.MarkovChain(tfd.Categorical(logits=a), transition, num_steps=T)


CHAINS = {'CategoricalChain': of_chain, 'MarkovChain': of_markov_chain}


def score(z):
  """Returns a log-density that does not factorize over the steps."""
  return tf.gather_nd(tf.constant(SCORES), z)


def log_paths(a, b):
  """Returns the log-probabilities of all paths, given the logits."""
  a, b = tf.nn.log_softmax(a), tf.nn.log_softmax(b)
  steps = [tf.gather_nd(b[t], PATHS[:, t : t + 2]) for t in range(T - 1)]
  return tf.gather(a, PATHS[:, 0]) + tf.add_n(steps)


def with_gradient(function, variables):
  """Returns value and gradients in one vector."""
  with tf.GradientTape() as tape:
    value = function()
  found = tape.gradient(value, variables, unconnected_gradients='zero')
  found = [tf.convert_to_tensor(g) for g in found]
  flat = [tf.reshape(x, [-1]) for x in [value, *found]]
  return tf.concat(flat, axis=0).numpy()


def chain_variables():
  return [tf.Variable(A), tf.Variable(B)]


# The target as a function of the whole path.


@pytest.mark.parametrize('kind', CHAINS)
@pytest.mark.parametrize('discrepancy', ['kl_reverse', 'kl_forward'])
def test_all_paths_are_summed(kind, discrepancy):
  a, b = variables = chain_variables()
  discrepancy_fn = getattr(tfp.vi, discrepancy)
  actual = with_gradient(
    lambda: loss_of(
      score,
      CHAINS[kind](a, b),
      gradient_estimator=tfp_rb.Exact(),
      discrepancy_fn=discrepancy_fn,
    ),
    variables,
  )

  def explicit():
    log_q = log_paths(a, b)
    ratio = SCORES.ravel() - log_q
    return tf.reduce_sum(tf.exp(log_q) * discrepancy_fn(ratio))

  np.testing.assert_allclose(
    actual, with_gradient(explicit, variables), atol=1e-10
  )


def outcomes_of(estimator, chain):
  """Returns every sequence of draws from the rest, and its probability."""
  part = tfp_rb.partition(chain, getattr(estimator, 'num_summed', 0))
  summed = {tuple(z) for z in np.asarray(part.values)}
  rest = [z for z in map(tuple, PATHS) if z not in summed]
  probs = chain.prob(np.array(rest)).numpy()
  probs /= np.sum(probs)
  for drawn in itertools.product(range(len(rest)), repeat=2):
    yield [rest[i] for i in drawn], np.prod(probs[list(drawn)])


@pytest.mark.parametrize(
  'estimator',
  [tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2), SUMMED_TWO],
  ids=['joint draws', 'summed'],
)
def test_draws_are_unbiased_by_enumeration(estimator):
  a, b = variables = chain_variables()

  @tf.function
  def run(drawn):  # [2, T]
    with tf.GradientTape() as tape:
      loss = loss_of(
        score,
        of_chain(a, b),
        gradient_estimator=WithDraws(estimator, lambda *_: drawn),
      )
    found = [tf.reshape(g, [-1]) for g in tape.gradient(loss, variables)]
    return tf.concat([[loss], *found], axis=0)

  mean, total = 0.0, 0.0
  for drawn, probability in outcomes_of(estimator, of_chain(A, B)):
    mean += probability * run(tf.constant(drawn, tf.int32)).numpy()
    total += probability
  np.testing.assert_allclose(total, 1.0, atol=1e-12)

  def explicit():
    log_q = log_paths(a, b)
    return tf.reduce_sum(tf.exp(log_q) * (log_q - SCORES.ravel()))

  np.testing.assert_allclose(
    mean, with_gradient(explicit, variables), atol=1e-10
  )


class Parts:
  """A chain with continuous parts before and after it, whose noise is fixed.

  The noise is recovered from the parts that the target receives.
  """

  def __init__(self, kind):
    self.variables = [*chain_variables(), tf.Variable(LOC)]
    self._kind = kind
    self.noise = {}

  def mean_of_late(self, z, x):
    loc = self.variables[2]
    return tf.reduce_sum(tf.gather(loc, z), axis=-1) + 0.5 * x

  def surrogate(self):
    a, b, loc = self.variables
    return tfd.JointDistributionSequential([
      tfd.Normal(loc[0], SCALE),
      lambda x: CHAINS[self._kind](a, b),
      lambda z, x: tfd.Normal(self.mean_of_late(z, x), SCALE),
    ])  # fmt: skip

  def target(self, x, z, y):
    self.noise['x'] = (x - self.variables[2][0]) / SCALE
    self.noise['y'] = (y - self.mean_of_late(z, x)) / SCALE
    self.noise['z'] = z
    return self.log_density(x, z, y)

  def log_density(self, x, z, y):
    return score(z) - (y - tf.cast(z[..., 1], y.dtype) * x) ** 2 - 0.1 * x**2

  def explicit(self):
    """Returns the sum over all paths, given the noise."""
    a, b, loc = self.variables
    z = tf.constant(self.noise['z'])
    np.testing.assert_equal(np.sort(z, axis=0), np.sort(PATHS, axis=0))
    x = loc[0] + SCALE * tf.stop_gradient(self.noise['x'])
    y = self.mean_of_late(z, x) + SCALE * tf.stop_gradient(self.noise['y'])
    log_q = of_chain(a, b).log_prob(z)
    log_p = self.log_density(x, z, y)
    log_density = tfd.Normal(loc[0], SCALE).log_prob(x)
    log_density += tfd.Normal(self.mean_of_late(z, x), SCALE).log_prob(y)
    return tf.reduce_sum(tf.exp(log_q) * (log_density + log_q - log_p))


@pytest.mark.parametrize('kind', CHAINS)
def test_continuous_parts_before_and_after_the_path(kind):
  parts = Parts(kind)
  actual = with_gradient(
    lambda: loss_of(
      parts.target, parts.surrogate(), gradient_estimator=tfp_rb.Exact()
    ),
    parts.variables,
  )
  expected = with_gradient(parts.explicit, parts.variables)
  np.testing.assert_allclose(actual, expected, atol=1e-10)


@pytest.mark.parametrize(
  'estimator',
  [None, SUMMED_TWO, tfp_rb.local_expectation(tfp_rb.REINFORCE(), 3)],
  ids=['default', 'summed', 'local'],
)
def test_every_estimator_takes_a_path_and_continuous_parts(estimator):
  parts = Parts('CategoricalChain')
  found = with_gradient(
    lambda: loss_of(
      parts.target, parts.surrogate(), gradient_estimator=estimator
    ),
    parts.variables,
  )
  assert np.all(np.isfinite(found))
  assert np.any(found[1:-K] != 0.0) and np.any(found[-K:] != 0.0)


def test_entropy_of_a_chain_is_exact():
  # At q = p, the loss of a constant target consists only of the entropy of the
  # path.
  q = of_chain(A, B)
  loss = loss_of(lambda z: tf.zeros(z.shape[:1], tf.float64), q,
                 exact_entropy=True)  # fmt: skip
  log_q = log_paths(A, B)
  expected = tf.reduce_sum(tf.exp(log_q) * log_q)
  np.testing.assert_allclose(loss, expected, atol=1e-10)


# The target as a sum over time steps.

INITIAL = RNG.normal(size=[K])
TRANSITION = RNG.normal(size=[T - 1, K, K])
EMISSION = RNG.normal(size=[T, K])


def initial(z, x=0.0):
  return tf.gather(tf.constant(INITIAL), z) + x


def transition(t, before, z, x=None):
  del x
  table = tf.constant(TRANSITION.ravel())
  return tf.gather(table, ((t - 1) * K + before) * K + z)


def emission(t, z, x=0.0):
  table = tf.gather(tf.constant(EMISSION.ravel()), t * K + z)
  return table * (1.0 + x)


def sums_along(x=0.0, factor=1.0):
  """Returns the same terms, summed along every path."""
  total = tf.gather(INITIAL, PATHS[:, 0]) + x
  for t in range(T):
    total += tf.gather(EMISSION[t], PATHS[:, t]) * factor
  for t in range(T - 1):
    total += tf.gather_nd(TRANSITION[t], PATHS[:, t : t + 2])
  return total


def terms(**kwargs):
  functions = {
    'initial': initial,
    'transition': transition,
    'emission': emission,
  }
  return tfp_rb.vi.ChainTarget(**{**functions, **kwargs})


@pytest.mark.parametrize('kind', CHAINS)
def test_terms_are_summed_over_all_paths(kind):
  a, b = variables = chain_variables()
  other = lambda: 2.0 * tf.reduce_sum(a**2)
  actual = with_gradient(
    lambda: loss_of(terms(other=other), CHAINS[kind](a, b)), variables
  )

  def explicit():
    log_q = log_paths(a, b)
    mean = tf.reduce_sum(tf.exp(log_q) * (log_q - sums_along()))
    return mean - other()

  np.testing.assert_allclose(
    actual, with_gradient(explicit, variables), atol=1e-10
  )


@pytest.mark.parametrize('name', ['initial', 'transition', 'emission'])
def test_each_function_is_optional(name):
  function = {
    'initial': initial,
    'transition': transition,
    'emission': emission,
  }[name]
  along = {
    'initial': INITIAL[PATHS[:, 0]],
    'transition': sum(
      TRANSITION[t][PATHS[:, t], PATHS[:, t + 1]] for t in range(T - 1)
    ),
    'emission': sum(EMISSION[t][PATHS[:, t]] for t in range(T)),
  }[name]
  log_q = log_paths(A, B).numpy()
  loss = loss_of(tfp_rb.vi.ChainTarget(**{name: function}), of_chain(A, B))
  expected = np.sum(np.exp(log_q) * (log_q - along))
  np.testing.assert_allclose(loss, expected, atol=1e-10)


def test_each_function_is_called_once_with_all_steps_and_states():
  calls = []

  def record(name, function):
    def recorded(*args):
      calls.append((name, *args))
      return function(*args)

    return recorded

  target = terms(
    initial=record('initial', initial),
    transition=record('transition', transition),
    emission=record('emission', emission),
    other=record('other', lambda: 0.0),
  )
  loss_of(target, of_chain(A, B))
  found = {name: args for name, *args in calls}
  assert len(calls) == len(found) == 4
  states, steps = np.arange(K, dtype=np.int32), np.arange(T, dtype=np.int32)
  expected = {
    'initial': [states],
    'transition': [steps[1:, None, None], states[:, None], states],
    'emission': [steps[:, None], states],
    'other': [],
  }
  for name, arguments in expected.items():
    assert len(found[name]) == len(arguments)
    for actual, desired in zip(found[name], arguments):
      np.testing.assert_array_equal(actual, desired, strict=True)


# Continuous parts, which the chain depends on.


def structure_of(name, loc, a, b):
  law = tfd.Normal(loc[0], SCALE)
  chain = lambda x: CategoricalChain(a + x * loc, b)
  if name == 'named':
    return tfd.JointDistributionNamed({'x': law, 'path': chain})
  if name == 'auto-batched':
    return tfd.JointDistributionSequentialAutoBatched([law, chain])
  if name == 'coroutine':

    def model():
      x = yield tfd.JointDistributionCoroutine.Root(law)
      yield chain(x)

    return tfd.JointDistributionCoroutine(model)
  return tfd.JointDistributionSequential([law, chain])


@pytest.mark.parametrize(
  'name', ['sequential', 'named', 'auto-batched', 'coroutine']
)
@pytest.mark.parametrize('entropy', ['estimated', 'exact', 'stopped'])
def test_the_loss_given_the_drawn_parts_is_exact(name, entropy):
  a, b, loc = variables = [*chain_variables(), tf.Variable(LOC)]
  stop = lambda *x: [tf.stop_gradient(tf.convert_to_tensor(v)) for v in x]
  drawn = []

  def other(x):
    drawn.append(x)
    return -0.3 * x**2

  actual = with_gradient(
    lambda: loss_of(
      terms(other=other),
      structure_of(name, loc, a, b),
      exact_entropy=entropy == 'exact',
      stopped_surrogate_posterior=(
        structure_of(name, *stop(loc, a, b)) if entropy == 'stopped' else None
      ),
    ),
    variables,
  )

  def explicit():
    x = loc[0] + tf.stop_gradient(drawn[0] - loc[0])
    log_q = log_paths(a + x * loc, b)
    log_p = sums_along(x, 1.0 + x)
    mean = tf.reduce_sum(tf.exp(log_q) * (log_q - log_p)) + 0.3 * x**2
    law = tfd.Normal(stop(loc)[0][0] if entropy == 'stopped' else loc[0], SCALE)
    return mean + (-law.entropy() if entropy == 'exact' else law.log_prob(x))

  np.testing.assert_allclose(
    actual, with_gradient(explicit, variables), atol=1e-10
  )


def test_several_draws_of_the_continuous_parts_are_averaged():
  variables = [*chain_variables(), tf.Variable(LOC)]
  drawn = []

  def other(x):
    if tf.is_tensor(x) and hasattr(x, 'numpy'):  # The loop is also traced.
      drawn.append(x)
    return -0.3 * x**2

  def run(q_loc, seed, **kwargs):
    a, b, _ = variables
    q = structure_of('sequential', q_loc, a, b)
    return loss_of(terms(other=other), q, seed=seed, **kwargs)

  loss = run(variables[2], SEED, sample_size=3)
  assert len(drawn) == 3 and len(set(map(float, drawn))) == 3
  of_draw = []
  for x in drawn[:3]:
    log_q = log_paths(A + x * LOC, B)
    log_p = sums_along(x, 1.0 + x)
    mean = tf.reduce_sum(tf.exp(log_q) * (log_q - log_p)) + 0.3 * x**2
    of_draw.append(mean + tfd.Normal(LOC[0], SCALE).log_prob(x))
  np.testing.assert_allclose(loss, np.mean(of_draw), atol=1e-10)


def test_the_number_of_draws_does_not_change_how_often_functions_are_traced():
  def calls_of(sample_size):
    calls = []

    def other(x):
      calls.append(x)
      return -(x**2)

    target, q = terms(other=other), structure_of('sequential', LOC, A, B)
    run = tf.function(
      lambda: loss_of(target, q, sample_size=sample_size), autograph=False
    )
    assert run().shape == []
    return len(calls)

  assert calls_of(2) == calls_of(20) <= 2


@pytest.mark.parametrize(
  'jit_compile', [False, pytest.param(True, marks=pytest.mark.slow)]
)
def test_several_draws_have_the_mean_of_the_gradients(jit_compile, monkeypatch):
  # A Dirichlet draws gammas, which XLA cannot differentiate after a loop.
  variables = [*chain_variables(), tf.Variable(np.ones([K, K]) + np.eye(K))]
  target = tfp_rb.vi.ChainTarget(transition=lambda t, z, w, p: tf.math.log(p))

  def loss():
    a, b, concentration = variables
    rows = tfd.Independent(tfd.Dirichlet(concentration), 1)
    q = tfd.JointDistributionNamed({'p': rows, 'path': CategoricalChain(a, b)})
    return loss_of(target, q, seed=SEED, sample_size=2)

  def with_gradients():
    # Eager mode, graphs and XLA draw gammas in different ways.
    compiled = tf.function(loss, autograph=False, jit_compile=jit_compile)
    # The tape is outside of the compiled function.
    with tf.GradientTape() as tape:
      value = compiled()
    return [value, *tape.gradient(value, variables)]

  actual = with_gradients()
  one_by_one = lambda f, x: tf.stack([f(seed) for seed in tf.unstack(x)])
  monkeypatch.setattr(internals.gradients, 'call_one_by_one', one_by_one)
  for a, b in zip(actual, with_gradients(), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


# Batches, forbidden transitions, one step.


def test_batch_members_have_losses_of_their_own():
  a, b = np.stack([A, -A, 2.0 * A]), np.stack([B, B + 1.0, -B])
  gains = np.array([1.0, 0.3, -2.0])
  target = tfp_rb.vi.ChainTarget(
    initial=initial,
    transition=transition,
    emission=lambda t, z: gains[:, None, None] * emission(t, z),
    other=lambda: tf.constant(gains),
  )
  loss = loss_of(target, of_chain(a, b))
  for i, gain in enumerate(gains):
    log_q = log_paths(a[i], b[i]).numpy()
    expected = np.sum(np.exp(log_q) * (log_q - sums_along(factor=gain)))
    np.testing.assert_allclose(loss[i], expected - gain, atol=1e-10)


@pytest.mark.parametrize('name', ['named', 'auto-batched'])
def test_several_series_share_the_continuous_parts(name):
  a, b = np.stack([A, -A]), np.stack([B, 0.5 * B])
  gains = tf.constant([1.0, 0.3], tf.float64)
  drawn = []

  def of_series(t, z, x):
    drawn.append(x)
    return gains[:, tf.newaxis, tf.newaxis] * emission(t, z, x)

  target = tfp_rb.vi.ChainTarget(
    initial=lambda z, x: initial(z), transition=transition, emission=of_series
  )
  chain, law = of_chain(a, b), tfd.Normal(LOC[0], SCALE)
  if name == 'named':
    parts = {'x': law, 'path': tfd.Independent(chain, 1)}
    q = tfd.JointDistributionNamed(parts)
  else:
    q = tfd.JointDistributionNamedAutoBatched({'x': law, 'path': chain})
  loss = loss_of(target, q)
  assert loss.shape == []
  expected = law.log_prob(drawn[0])
  for i in range(2):
    log_q = log_paths(a[i], b[i]).numpy()
    factor = gains[i] * (1.0 + drawn[0])
    expected += np.sum(np.exp(log_q) * (log_q - sums_along(factor=factor)))
  np.testing.assert_allclose(loss, expected, atol=1e-10)


def test_terms_of_impossible_transitions_count_as_zero():
  forbidden = B.copy()
  forbidden[:, 0, 2] = -np.inf
  logits = tf.Variable(forbidden)

  def never(t, before, z):
    is_forbidden = (before == 0) & (z == 2)
    return tf.where(is_forbidden, -np.inf, transition(t, before, z))

  with tf.GradientTape() as tape:
    loss = loss_of(terms(transition=never), CategoricalChain(A, logits))
  log_q = log_paths(A, forbidden).numpy()
  possible = np.isfinite(log_q)
  log_q, log_p = log_q[possible], sums_along().numpy()[possible]
  np.testing.assert_allclose(
    loss, np.sum(np.exp(log_q) * (log_q - log_p)), atol=1e-10
  )
  assert np.all(np.isfinite(tape.gradient(loss, logits)))
  # If a surrogate allows something that the target forbids, the loss is
  # infinite.
  assert np.isposinf(loss_of(terms(transition=never), of_chain(A, B)))


def test_one_step_is_a_single_variable():
  q = CategoricalChain(A, np.zeros([0, K, K]))
  loss = loss_of(
    terms(transition=lambda t, before, z: tf.zeros([K, K], tf.float64)), q
  )
  probs = np.exp(A) / np.sum(np.exp(A))
  expected = np.sum(probs * (np.log(probs) - INITIAL - EMISSION[0]))
  np.testing.assert_allclose(loss, expected, atol=1e-10)


def test_eager_graph_and_xla_agree():
  # Batch sizes are unknown in a graph; one of them is 0.
  def value_and_gradients(a, b):
    with tf.GradientTape() as tape:
      tape.watch([a, b])
      loss = loss_of(terms(), of_chain(a, b))
    return [loss, *tape.gradient(loss, [a, b])]

  arguments = tf.constant([A, -A]), tf.constant([B, B])
  results = [
    run(*arguments)
    for run in modes_of(value_and_gradients, *arguments).values()
  ]
  for result in results[1:]:
    for actual, desired in zip(result, results[0]):
      np.testing.assert_allclose(actual, desired, atol=1e-12)
  unknown = [tf.TensorSpec([None, *x.shape[1:]], tf.float64) for x in arguments]
  of_any = tf.function(value_and_gradients, input_signature=unknown)
  np.testing.assert_allclose(of_any(*arguments)[0], results[0][0], atol=1e-12)
  assert of_any(*(x[:0] for x in arguments))[0].shape == [0]


@pytest.mark.parametrize(
  'name, sample_size',
  [
    ('named', None),
    ('named', 2),
    ('auto-batched', None),
    ('named', 'path'),
    ('late', 'path'),
  ],
)
def test_a_joint_surrogate_takes_a_batch_of_unknown_size(name, sample_size):
  def surrogate(a, b, loc):
    law = tfd.Normal(loc, SCALE)
    if name == 'late':
      first = lambda path: tf.cast(path[..., 0], tf.float64)
      late = lambda path: tfd.Normal(loc + first(path), SCALE)
      return tfd.JointDistributionNamed({'x': late, 'path': of_chain(a, b)})
    parts = {'x': law, 'path': lambda x: of_chain(a + x[..., tf.newaxis], b)}
    if name == 'named':
      return tfd.JointDistributionNamed(parts)
    return tfd.JointDistributionNamedAutoBatched(parts, batch_ndims=1)

  def value_and_gradients(*arguments):
    kwargs = {}
    if sample_size == 'path':
      target = lambda x, path: score(path) - x**2
    else:
      kwargs = {'sample_size': sample_size}
      target = tfp_rb.vi.ChainTarget(
        transition=lambda t, before, z, x: transition(t, before, z),
        other=lambda x: -(x**2),
      )
    with tf.GradientTape() as tape:
      tape.watch(arguments)
      loss = loss_of(target, surrogate(*arguments), **kwargs)
    return [loss, *tape.gradient(loss, arguments)]

  arguments = tf.constant([A, -A]), tf.constant([B, B]), tf.constant(LOC[:2])
  unknown = [tf.TensorSpec([None, *x.shape[1:]], tf.float64) for x in arguments]
  of_any = tf.function(
    value_and_gradients, input_signature=unknown, autograph=False
  )
  for size in (2, 1):
    own = [x[:size] for x in arguments]
    for actual, desired in zip(of_any(*own), value_and_gradients(*own)):
      np.testing.assert_allclose(actual, desired, atol=1e-12)
  assert of_any(*(x[:0] for x in arguments))[0].shape == [0]


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
def test_the_loss_has_the_dtype_of_the_chain(dtype):
  q = CategoricalChain(tf.constant(A, dtype), tf.constant(B, dtype))
  loss = loss_of(terms(), q)
  assert loss.dtype == dtype
  np.testing.assert_allclose(loss, loss_of(terms(), of_chain(A, B)), rtol=1e-5)


def test_the_graph_hardly_grows_with_the_number_of_steps():
  def size(num_steps):
    def run(initial_logits, transition_logits):
      target = tfp_rb.vi.ChainTarget(
        emission=lambda t, z: tf.cast(t * z, tf.float32)
      )
      return loss_of(target, of_chain(initial_logits, transition_logits))

    traced = tf.function(run, autograph=False).get_concrete_function(
      tf.TensorSpec([2]), tf.TensorSpec([num_steps - 1, 2, 2])
    )
    functions = traced.graph.as_graph_def().library.function
    return len(traced.graph.get_operations()) + sum(
      len(f.node_def) for f in functions
    )

  # One node per step would add 1950 nodes.
  assert size(2000) < size(50) + 20


# Fits.


def hidden_markov_model(num_states, num_steps):
  stay = 0.8 * np.eye(num_states) + 0.2 / num_states
  loc = np.linspace(-2.0, 2.0, num_states)
  return tfd.HiddenMarkovModel(
    tfd.Categorical(logits=tf.zeros([num_states])),
    tfd.Categorical(logits=tf.constant(np.log(stay), tf.float32)),
    tfd.Normal(tf.constant(loc, tf.float32), 1.0),
    num_steps,
  )


def test_a_fit_of_terms_reaches_the_posterior():
  hmm, num_steps = hidden_markov_model(3, 20), 20
  x = hmm.sample(seed=[0, 1])
  posterior = CategoricalChain.posterior(hmm, x)
  laws = hmm.transition_distribution, hmm.observation_distribution
  target = tfp_rb.vi.ChainTarget(
    initial=hmm.initial_distribution.log_prob,
    transition=lambda t, before, z: laws[0].logits_parameter(),
    emission=lambda t, z: laws[1].log_prob(tf.gather(x, t)),
  )
  q = CategoricalChain(
    tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([num_steps - 1, 3, 3]))
  )
  losses = tfp_rb.vi.fit_surrogate_posterior(
    target, q, keras.optimizers.Adam(0.2), num_steps=100
  )
  gap = losses + hmm.log_prob(x)
  assert gap[0] > 5.0 and -1e-4 < gap[-1] < 0.1
  np.testing.assert_allclose(gap[-1], q.kl_divergence(posterior), atol=0.02)


def model_with_chain(kind):
  """Returns a prior of paths, and observations given a path and its level."""
  logits = tf.constant(
    [[0.0, 1.0, -np.inf], [-np.inf, 0.0, -1.0], [-np.inf, -np.inf, 0.0]]
  )
  path = tfd.MarkovChain(
    tfd.Categorical(logits=[0.0, -1.0, -2.0]),
    lambda t, z: tfd.Categorical(logits=tf.gather(logits, z)),
    num_steps=4,
  )
  if kind == 'CategoricalChain':
    path = CategoricalChain.from_markov_chain(path)
  return tfd.JointDistributionNamed({
    'level': tfd.Normal(0.0, 1.0),
    'path': path,
    'x': lambda level, path: tfd.Independent(
      tfd.Normal(level[..., tf.newaxis] + tf.cast(path, tf.float32), 1.0), 1
    ),
  })  # fmt: skip


@pytest.mark.parametrize('kind', CHAINS)
def test_a_chain_is_built_for_a_prior_of_paths(kind):
  model = model_with_chain(kind)
  pinned = model.experimental_pin(x=[0.0, 1.0, 1.0, 2.0])
  q = tfp_rb.vi.build_factored_surrogate_posterior(pinned, seed=[1, 2])
  path = q.model['path']
  assert isinstance(path, CategoricalChain) and path.name == 'path'
  assert path.transition_logits.shape == [3, 3, 3]
  assert {v.shape.rank for v in path.trainable_variables} == {1, 3}
  prior = CategoricalChain.from_markov_chain(model.model['path'])
  for actual, desired in zip(path.marginals(), prior.marginals()):
    np.testing.assert_allclose(actual, desired, atol=0.02)
  # Paths that the prior forbids have probability 0, so the loss is finite.
  np.testing.assert_array_equal(
    np.isinf(path.transition_logits), np.isinf(prior.transition_logits)
  )
  with tf.GradientTape() as tape:
    loss = loss_of(pinned.unnormalized_log_prob, q)
  found = tape.gradient(loss, q.trainable_variables)
  assert np.isfinite(loss)
  assert all(np.all(np.isfinite(g)) and np.any(g != 0.0) for g in found)


def test_a_chain_is_built_for_several_series_and_for_a_prior_alone():
  chain = CategoricalChain(np.zeros([2, 3]), np.zeros([2, 4, 3, 3]))
  q = tfp_rb.vi.build_factored_surrogate_posterior(
    tfd.Independent(chain, 1), seed=[1, 2]
  )
  assert (q.batch_shape, q.event_shape, q.dtype) == ([], [2, 5], tf.int32)
  q = tfp_rb.vi.build_factored_surrogate_posterior(chain, seed=[1, 2])
  assert (q.batch_shape, q.event_shape) == ([2], [5])
  assert q.initial_logits.dtype == tf.float64


# Messages to the user.


@pytest.mark.parametrize('name', ['initial', 'transition', 'emission', 'other'])
def test_an_exception_of_a_function_arrives(name):
  def fail(*args):
    raise KeyError(len(args))

  assert_reaches_the_user(
    lambda f: loss_of(terms(**{name: f}), of_chain(A, B)), fail
  )
  assert_reaches_the_user(
    lambda f: tfp_rb.vi.fit_surrogate_posterior(
      terms(**{name: f}),
      of_chain(*chain_variables()),
      keras.optimizers.Adam(0.1),
      num_steps=2,
    ),
    fail,
  )


@pytest.mark.parametrize(
  ('name', 'shape'),
  [
    ('initial', [K + 1]),
    ('initial', [2, K]),
    ('transition', [T, K, K]),
    ('transition', [K, K + 1]),
    ('emission', [T + 1, K]),
    ('emission', [5, T, K]),
    ('other', [1]),
  ],
)
def test_terms_of_wrong_shapes_are_refused(name, shape):
  target = terms(**{name: lambda *_: tf.zeros(shape, tf.float64)})
  with raises(ValueError, name):
    loss_of(target, of_chain(A, B))


@pytest.mark.parametrize('result', [None, 1], ids=['nothing', 'integers'])
def test_terms_of_wrong_kinds_are_refused(result):
  with raises(TypeError, 'emission'):
    loss_of(terms(emission=lambda *_: result), of_chain(A, B))


@pytest.mark.parametrize('name', ['initial', 'transition', 'emission', 'other'])
def test_functions_that_do_not_take_all_parts_are_refused(name):
  q = tfd.JointDistributionNamed(
    {'path': of_chain(A, B), 'scale': tfd.LogNormal(np.float64(0.0), 1.0)}
  )
  takes_all = lambda *_, scale: tf.zeros([], tf.float64)
  functions = dict.fromkeys(['initial', 'transition', 'emission'], takes_all)
  target = terms(**{**functions, name: lambda *_: tf.zeros([], tf.float64)})
  with raises(TypeError, name):
    loss_of(target, q)


def test_a_target_without_functions_is_refused():
  with raises(ValueError, 'transition'):
    tfp_rb.vi.ChainTarget(other=lambda: 0.0)
  with raises(TypeError, 'emission'):
    tfp_rb.vi.ChainTarget(emission=EMISSION)


@pytest.mark.parametrize(
  ('argument', 'value'),
  [
    ('gradient_estimator', tfp_rb.REINFORCE()),
    ('discrepancy_fn', tfp.vi.kl_forward),
    ('importance_sample_size', 2),
    ('sample_size', 0),
  ],
)
def test_arguments_that_do_not_go_with_terms_are_refused(argument, value):
  with raises(ValueError, argument):
    loss_of(terms(), of_chain(A, B), **{argument: value})


UNFIT = {
  'no chain': lambda: tfd.Categorical(logits=A),
  'no discrete part': lambda: tfd.JointDistributionSequential(
    [tfd.Normal(0.0, 1.0)]
  ),
  'two discrete parts': lambda: tfd.JointDistributionSequential(
    [of_chain(A, B), tfd.Bernoulli(logits=0.0)]
  ),
  'a batch that the chain lacks': lambda: tfd.JointDistributionNamed(
    {'path': of_chain(A, B), 'means': tfd.Normal([0.0, 1.0, 2.0], 1.0)}
  ),
  'a continuous part that depends on the path': lambda: (
    tfd.JointDistributionSequential(
      [of_chain(A, B), lambda z: tfd.Normal(tf.cast(z[..., 0], tf.float64), 1)]
    )
  ),
}


@pytest.mark.parametrize('name', UNFIT)
def test_surrogates_that_do_not_go_with_terms_are_refused(name):
  with raises((TypeError, ValueError), 'surrogate_posterior'):
    loss_of(terms(), UNFIT[name]())
