"""REBAR, RELAX, Gumbel-softmax and ReinMax: relaxed one-hot atoms.

What has no noise beside the atoms is enumerated. What has some is drawn; such
a test states how often it fails by chance and what it would find.
"""

import functools
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import reference
import statistical
import tfp_rb
from tfp_rb import _enumeration, _random
from tfp_rb.estimators._relaxation import relaxation_of
import zoo

tfd = tfp.distributions

SEED = (3, 1)

DISTRIBUTIONS = {
  **{
    name: zoo.DISTRIBUTIONS[name]
    for name in (
      'OneHotCategorical',
      'OneHotCategorical-probs',
      'Bernoulli',
      'Bernoulli-probs',
      'Sample',
    )
  },
  'Independent-OneHotCategorical': zoo.DistributionRow(
    zoo._numbers(2, 3),
    lambda x, batch_shape: tfd.Independent(tfd.OneHotCategorical(logits=x), 1),
    9,
  ),
  'Independent-Bernoulli': zoo.DistributionRow(
    zoo._numbers(3),
    lambda x, batch_shape: tfd.Independent(tfd.Bernoulli(logits=x), 1),
    8,
  ),
}
PRODUCTS = ('Independent-OneHotCategorical', 'Independent-Bernoulli', 'Sample')
NUM_SAMPLES = 2
# Every form, both shapes of a batch and both dtypes meet, but not in all ways.
FORMS = {
  'plain': ('float64', ()),
  'summed': ('float32', (2, 3)),
  'budget': ('float64', (2, 3)),
}

every_row = pytest.mark.parametrize('name', zoo.DIFFERENTIATING)
every_distribution = pytest.mark.parametrize('kind', DISTRIBUTIONS)
# The other distributions take the same path through the code.
every_combination = pytest.mark.parametrize(
  ('kind', 'form'),
  [
    (kind, form)
    for kind in DISTRIBUTIONS
    for form in FORMS
    if form == 'summed'
    or (kind, form)
    in (
      ('OneHotCategorical', 'plain'),
      ('Independent-Bernoulli', 'plain'),
      ('OneHotCategorical', 'budget'),
      ('Bernoulli', 'budget'),  # of fewer values
      ('Independent-OneHotCategorical', 'budget'),
    )
  ],
)


def in_form(estimator, form):
  return {
    'plain': lambda: estimator,
    'summed': lambda: tfp_rb.rao_blackwellize(estimator, num_summed=1),
    'summed-more': lambda: tfp_rb.rao_blackwellize(estimator, num_summed=2),
    'budget': lambda: tfp_rb.rao_blackwellize(estimator, budget=3),
  }[form]()


def estimate(estimator, kind, dtype, batch_shape, seed=SEED):
  """Value, gradient by the parameter, and the atoms of every call of `f`."""
  row, atoms = DISTRIBUTIONS[kind], []
  parameter = row.parameter(dtype, batch_shape)
  with tf.GradientTape() as tape:
    tape.watch(parameter)
    q = row.build(parameter, batch_shape)
    f = zoo.cost(q, parameter.dtype)

    def recorded(z):
      atoms.append(z)
      return f(z)

    value = tfp_rb.expectation(recorded, q, estimator, seed=seed)
  return value, tape.gradient(value, parameter), atoms


def make(name, kind, form='plain'):
  q = DISTRIBUTIONS[kind].make()
  return in_form(zoo.DIFFERENTIATING[name].make(NUM_SAMPLES, q), form)


@functools.cache
def result_of(name, kind, form):
  """The estimate of a form in its dtype and batch shape, made once."""
  return estimate(make(name, kind, form), kind, *FORMS[form])


# The contract.


@every_row
@every_combination
def test_value_and_gradient_keep_shape_and_dtype(name, kind, form):
  dtype, batch_shape = FORMS[form]
  value, gradient, _ = result_of(name, kind, form)
  parameter = DISTRIBUTIONS[kind].parameter(dtype, batch_shape)
  assert (value.shape, value.dtype) == (batch_shape, dtype)
  assert (gradient.shape, gradient.dtype) == (parameter.shape, dtype)
  assert np.all(np.isfinite(value))
  assert np.all(np.isfinite(gradient))


@every_row
@every_combination
def test_f_meets_the_promised_number_of_atoms(name, kind, form):
  _, _, atoms = result_of(name, kind, form)
  is_product = kind in PRODUCTS
  if form == 'budget':
    num_values = DISTRIBUTIONS[kind].num_values
    k, M = (num_values, 0) if num_values <= 3 else (0, 3)
  else:
    k, M = (0 if form == 'plain' else 1), NUM_SAMPLES
  promised = zoo.DIFFERENTIATING[name].num_evaluations(k, M, is_product)
  # Where nothing is drawn there is no relaxed atom either.
  assert [z.shape[0] for z in atoms] == [n for n in promised if n]


@every_row
@every_combination
def test_f_meets_atoms_in_the_dtype_of_the_logits(name, kind, form):
  dtype, batch_shape = FORMS[form]
  _, _, atoms = result_of(name, kind, form)
  event_shape = DISTRIBUTIONS[kind].make().event_shape
  for z in atoms:
    assert z.dtype == dtype
    assert z.shape[1:] == (*batch_shape, *event_shape)


@pytest.mark.parametrize('name', ['REBAR', 'RELAX', 'GumbelSoftmax', 'ReinMax'])
@every_distribution
def test_f_meets_the_atoms_themselves_first(name, kind):
  _, _, atoms = result_of(name, kind, 'summed')
  hard = np.array(atoms[0])
  np.testing.assert_allclose(hard, np.round(hard), atol=1e-6)
  if 'OneHot' in kind:
    np.testing.assert_allclose(hard.sum(axis=-1), 1.0, atol=1e-6)


@every_distribution
def test_rebar_meets_relaxed_atoms_of_the_same_argmax(kind):
  found = estimate(make('REBAR', kind), kind, 'float64', ())
  hard, relaxed = (np.array(z) for z in found[2])
  assert np.all((relaxed >= 0.0) & (relaxed <= 1.0))
  assert not np.any(relaxed == hard)
  if 'OneHot' in kind:
    np.testing.assert_allclose(relaxed.sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(relaxed.argmax(-1), hard.argmax(-1))
  else:
    np.testing.assert_array_equal(relaxed > 0.5, hard > 0.5)


@every_row
def test_a_seed_decides_the_estimate(name):
  kind = 'OneHotCategorical'
  estimator = make(name, kind, 'summed')
  dtype, batch_shape = FORMS['summed']
  first = result_of(name, kind, 'summed')
  again = estimate(estimator, kind, dtype, batch_shape)
  other = estimate(estimator, kind, dtype, batch_shape, seed=(3, 2))
  for a, b in zip(first[:2], again[:2]):
    np.testing.assert_array_equal(a, b)
  assert not np.array_equal(first[1], other[1])


@pytest.mark.parametrize(
  'name', [n for n, row in zoo.DIFFERENTIATING.items() if row.has_noise]
)
def test_noise_is_drawn_beside_the_atoms(name):
  """A distribution of one sure value has no other randomness."""
  q = tfd.Independent(tfd.Bernoulli(logits=np.float64([0.0, 0.3])), 1)
  atoms = tfp_rb.REINFORCE().sample_atoms(q, tf.constant([0, 0]))
  estimator = zoo.DIFFERENTIATING[name].make(1, q)
  logits = tf.constant([0.0, 0.3], tf.float64)
  gradients = []
  for seed in ([0, 1], [0, 2]):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
      log_prob = q.log_prob(tf.cast(atoms.values, q.dtype))
      found = estimator.evaluate(
        zoo.cost(q, tf.float64),
        q,
        atoms._replace(log_prob=log_prob),
        tf.constant(seed),
      )
    gradients.append(tape.gradient(found.surrogate, logits))
  assert not np.array_equal(*gradients)


@pytest.mark.parametrize('name', ['REBAR', 'GumbelSoftmax'])
def test_eager_graph_and_xla_agree(name):
  estimator = make(name, 'OneHotCategorical', 'summed')

  def run(seed):
    return estimate(estimator, 'OneHotCategorical', 'float32', (3,), seed)

  seed = tf.constant(SEED)
  expected = run(seed)
  for jit_compile in (False, True):
    go = tf.function(run, autograph=False, jit_compile=jit_compile)
    value, gradient, atoms = go(seed)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5)
    for z, expected_z in zip(atoms, expected[2]):
      np.testing.assert_allclose(z, expected_z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    ('REBAR', 'OneHotCategorical'),
    ('RELAX', 'Independent-Bernoulli'),
    ('GumbelSoftmax', 'Bernoulli'),
    ('ReinMax', 'Independent-OneHotCategorical'),
  ],
)
def test_batch_size_may_be_unknown(name, kind):
  row, estimator = DISTRIBUTIONS[kind], make(name, kind, 'summed')
  parameter = row.parameter(tf.float32, (3,))

  @tf.function(
    autograph=False,
    input_signature=[tf.TensorSpec([None, *parameter.shape[1:]], tf.float32)],
  )
  def value_and_gradient(parameter):
    with tf.GradientTape() as tape:
      tape.watch(parameter)
      q = row.build(parameter, None)
      f = zoo.cost(q, tf.float32)
      value = tfp_rb.expectation(f, q, estimator, seed=SEED)
    return value, tape.gradient(value, parameter)

  expected = estimate(estimator, kind, 'float32', (3,))
  value, gradient = value_and_gradient(parameter)
  np.testing.assert_allclose(value, expected[0], rtol=1e-5)
  np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5)


@every_row
@pytest.mark.parametrize(
  ('kind', 'dtype'),
  [('OneHotCategorical', 'float16'), ('Independent-Bernoulli', 'bfloat16')],
)
def test_half_precision_is_finite(name, kind, dtype):
  estimator = make(name, kind, 'summed')
  value, gradient, atoms = estimate(estimator, kind, dtype, (3,))
  assert {x.dtype for x in (value, gradient, *atoms)} == {tf.as_dtype(dtype)}
  assert np.all(np.isfinite(tf.cast(value, tf.float32)))
  assert np.all(np.isfinite(tf.cast(gradient, tf.float32)))


# Configurations.


def copy_by_json(estimator):
  config = json.loads(json.dumps(estimator.get_config()))
  return type(estimator).from_config(config)


TEMPERATURES = {
  'number': lambda: 0.5,
  'variable': lambda: tf.Variable(0.6),
  'annealed': lambda: tfp_rb.AnnealedTemperature(rate=0.01, floor=0.25),
}
CONFIGURABLE = {
  'REBAR': lambda t: tfp_rb.REBAR(t, 0.5, restricted=False, num_samples=2),
  'RELAX': lambda t: tfp_rb.RELAX(
    keras.Sequential(
      [keras.layers.Dense(3, 'tanh'), keras.layers.Dense(1)],
    ),
    t,
    tf.Variable(0.8),
  ),
  'GumbelSoftmax': lambda t: tfp_rb.GumbelSoftmax(t, num_noises=3),
  'GumbelSoftmax-relaxed': lambda t: tfp_rb.GumbelSoftmax(t, False),
  'ReinMax': lambda t: tfp_rb.ReinMax(t, num_samples=3),
}


@pytest.mark.parametrize('name', CONFIGURABLE)
@pytest.mark.parametrize('temperature', TEMPERATURES)
def test_estimator_comes_back_from_its_config(name, temperature):
  estimator = CONFIGURABLE[name](TEMPERATURES[temperature]())
  copy = copy_by_json(tfp_rb.rao_blackwellize(estimator, num_summed=1))
  assert copy.num_summed == 1
  copy = copy.estimator
  assert type(copy) is type(estimator)
  assert type(copy.temperature) is type(estimator.temperature)
  results = [
    # The variables of a network are no part of a configuration.
    estimate(e, 'OneHotCategorical', 'float32', (2,))
    for e in (estimator, copy)
  ]
  if name == 'RELAX':
    assert len(copy.trainable_variables) == len(estimator.trainable_variables)
    pairs = zip(estimator.control_variate.weights, copy.control_variate.weights)
    assert all(a.shape == b.shape and a is not b for a, b in pairs)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    copy.control_variate.set_weights(estimator.control_variate.get_weights())
    results[1] = estimate(copy, 'OneHotCategorical', 'float32', (2,))
  for a, b in zip(results[0][:2], results[1][:2]):
    np.testing.assert_array_equal(a, b)


def test_variables_come_back_as_variables_of_their_own():
  estimator = tfp_rb.REBAR(tf.Variable(0.6), tf.Variable(0.7, trainable=False))
  copy = copy_by_json(estimator)
  assert len(copy.variables) == 2
  assert [v.numpy() for v in copy.trainable_variables] == [np.float32(0.6)]
  copy.temperature.assign(0.9)
  assert estimator.temperature.numpy() == np.float32(0.6)


def test_trained_temperature_does_not_come_back_as_a_constant():
  """The errors of a temperature recommend `TransformedVariable`."""
  temperature = tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp())
  estimator = tfp_rb.REBAR(temperature)
  copy = copy_by_json(estimator)
  assert len(copy.trainable_variables) == 1
  np.testing.assert_allclose(copy.temperature, 0.5, rtol=1e-6)


def test_temperature_transformed_by_what_is_not_known_has_no_config():
  bijector = tfp.bijectors.Square()
  estimator = tfp_rb.REBAR(tfp.util.TransformedVariable(0.5, bijector))
  with raises(
    TypeError, '`REBAR.temperature`', "('Exp', 'Softplus')", 'Square'
  ):
    estimator.get_config()


# The noise given the atom.

NUM_DRAWS = 100_000
NUM_LAW_TESTS = 60  # at most, all calls of `assert_standard_gumbel` together
LOGITS = np.array([0.4, 1.2, -0.6, 0.1])


def assert_uniform(cells, num_cells):
  statistical.assert_follows(
    cells,
    np.arange(num_cells),
    np.full(num_cells, 1.0 / num_cells),
    NUM_LAW_TESTS,
    detectable=0.06,
  )


def gumbel_cells(x, num_cells):
  """Cells of equal probability under the standard Gumbel law."""
  return np.floor(num_cells * np.exp(-np.exp(-x))).astype(int)


def assert_independent_standard_gumbels(x):
  """Each column follows the law, and each two columns do together."""
  for i in range(x.shape[-1]):
    assert_uniform(gumbel_cells(x[..., i], 10), 10)
    for j in range(i):
      pair = 5 * gumbel_cells(x[..., i], 5) + gumbel_cells(x[..., j], 5)
      assert_uniform(pair, 25)


def noise_of(num_summed):
  """Atoms, log-probabilities given the rest, and what is perturbed of them."""
  q = tfd.OneHotCategorical(logits=tf.constant(LOGITS))
  relaxation = relaxation_of(q, 'test')
  estimator = tfp_rb.REINFORCE(num_samples=NUM_DRAWS)
  if num_summed:
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
  atoms = estimator.sample_atoms(q, tf.constant([1, 2]))
  one_hot = relaxation.to_one_hot(atoms.values)
  log_probs = relaxation.log_probs[tf.newaxis]
  if num_summed:
    log_probs, _, is_from_rest = relaxation.of_rest(atoms, one_hot)
    assert np.all(is_from_rest[num_summed:])
    assert not np.any(is_from_rest[:num_summed])
    log_probs, one_hot = log_probs[num_summed:], one_hot[num_summed:]
  noise = relaxation.noise(log_probs, one_hot, tf.constant([3, 4]))
  return np.array(one_hot), np.array(log_probs[0]), np.array(noise.perturbed)


def test_noise_given_the_atom_is_gumbel_noise_whose_argmax_is_the_atom():
  one_hot, log_probs, perturbed = noise_of(num_summed=0)
  np.testing.assert_array_equal(perturbed.argmax(-1), one_hot.argmax(-1))
  np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, rtol=1e-12)
  assert_independent_standard_gumbels(perturbed - log_probs)


@pytest.mark.parametrize('num_summed', [1, 2])
def test_noise_given_the_rest_is_gumbel_noise_of_the_rest(num_summed):
  one_hot, log_probs, perturbed = noise_of(num_summed)
  rest = np.argsort(-LOGITS)[num_summed:]
  np.testing.assert_array_equal(perturbed.argmax(-1), one_hot.argmax(-1))
  summed = np.argsort(-LOGITS)[:num_summed]
  assert np.all(perturbed[:, summed] == -np.inf)
  np.testing.assert_allclose(
    np.exp(log_probs[rest]), reference.softmax(LOGITS[rest]), rtol=1e-12
  )
  assert_independent_standard_gumbels(perturbed[:, rest] - log_probs[rest])


@pytest.mark.parametrize('num_summed', [0, 1])
def test_largest_perturbed_value_does_not_depend_on_the_atom(num_summed):
  one_hot, _, perturbed = noise_of(num_summed)
  atom = one_hot.argmax(-1)
  for z in np.argsort(-LOGITS)[num_summed:]:
    assert_uniform(gumbel_cells(perturbed[atom == z].max(-1), 10), 10)


def test_noise_of_a_bernoulli_is_logistic():
  logit = 0.7
  q = tfd.Bernoulli(logits=np.float64(logit))
  relaxation = relaxation_of(q, 'test')
  z = q.sample(NUM_DRAWS, seed=(5, 6))
  noise = relaxation.noise(
    relaxation.log_probs[tf.newaxis],
    relaxation.to_one_hot(z),
    tf.constant([7, 8]),
  )
  difference = np.array(noise.perturbed[:, 1] - noise.perturbed[:, 0])
  np.testing.assert_array_equal(difference > 0.0, z)
  quantile = reference.sigmoid(difference - logit)
  assert_uniform(np.floor(20 * quantile).astype(int), 20)


# The gradient, against one that is written with tapes.

# Exact in float32.
NOISE_TEMPERATURE, NOISE_SCALE = 0.75, 0.875


def wavy(x):
  """Far from linear, not symmetric, and mixes sites and classes."""
  axes = list(range(x.shape.rank - wavy.event_rank, x.shape.rank))
  shape = x.shape[x.shape.rank - wavy.event_rank :]
  a = tf.reshape(tf.linspace(-1.0, 2.0, shape.num_elements()), shape)
  a = tf.cast(a, x.dtype)
  level = tf.reduce_sum(a * x, axis=axes)
  return tf.sin(2.0 * level) + level**2 + tf.reduce_sum(a * x**3, axis=axes)


def of_rank(function, event_rank):
  def ranked(x):
    function.event_rank = event_rank
    return function(x)

  return ranked


def tape_oracle(build, logits, estimator, f, c, is_restricted, seed):
  """Gradient of REBAR or RELAX with both paths followed by a tape.

  The perturbed values are functions of the log-probabilities: `log q + G` with
  `G` fixed, and those given the atom with the uniforms fixed. Given the rest,
  RELAX also subtracts `c` less its mean from what the mass of the rest carries.
  """
  atom_seed, noise_seed = _random.split_seed(seed, n=2)
  noise_seed, reference_seed = _random.split_seed(noise_seed, n=2)
  tau, scale = NOISE_TEMPERATURE, NOISE_SCALE
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(logits)
    q = build(logits)
    relaxation = relaxation_of(q, 'test')
    atoms = estimator.sample_atoms(q, atom_seed)
    hard = relaxation.to_one_hot(atoms.values)
    k = atoms.num_summed if is_restricted else 0
    L = relaxation.log_probs
    score = tf.reduce_sum(hard * L, axis=relaxation.site_axes)
    drawn = hard[k:]
    if k:
      is_summed = tf.reduce_sum(hard[:k], axis=0) > 0.0
      # A large negative number, so that no infinity meets a zero.
      L = tf.where(is_summed, tf.constant(-200.0, L.dtype), L)
      log_rest = tf.reduce_logsumexp(L, axis=-1)
      L = tf.nn.log_softmax(L)
    uniform = _random.uniform(tf.shape(drawn), noise_seed, tf.float64)
    gumbel = -tf.math.log(-tf.math.log(uniform))
    top = tf.reduce_sum(drawn * gumbel, axis=-1, keepdims=True)
    below = -tf.math.log(tf.exp(-(L + gumbel)) + tf.exp(-top))
    given_atom = tf.where(drawn > 0.5, top, below)
    free = L + tf.stop_gradient(given_atom - L)
    path_u, path_v = (
      c(relaxation.to_event(tf.nn.softmax(x / tau))) for x in (free, given_atom)
    )
    score_of_c = tf.reduce_sum(drawn * L, axis=relaxation.site_axes)
    weights = atoms.weights
    plain = weights * tf.stop_gradient(f(relaxation.to_event(hard))) * score
    zero_mean = weights[k:] * (
      path_u - path_v - tf.stop_gradient(path_u) * score_of_c
    )
    num_references = estimator.estimator.num_references
    if k and num_references:
      shape = [num_references, *L.shape]
      uniform = _random.uniform(shape, reference_seed, tf.float64)
      references = L - tf.math.log(-tf.math.log(uniform))
      level = c(relaxation.to_event(tf.nn.softmax(references / tau)))
      level = tf.reduce_mean(level, axis=0)
      zero_mean += weights[k:] * tf.stop_gradient(level - path_u) * log_rest
    total = tf.reduce_sum(plain) + scale * tf.reduce_sum(zero_mean)
  return tape.gradient(total, logits)


TAPE_PROBLEMS = {
  'OneHotCategorical': (lambda x: tfd.OneHotCategorical(logits=x), [2, 4], 1),
  'Bernoulli': (lambda x: tfd.Bernoulli(logits=x), [3], 0),
  'Independent-OneHotCategorical': (
    lambda x: tfd.Independent(tfd.OneHotCategorical(logits=x), 1),
    [2, 2, 3],
    2,
  ),
  'Independent-Bernoulli': (
    lambda x: tfd.Independent(tfd.Bernoulli(logits=x), 1),
    [2, 3],
    1,
  ),
}


@pytest.mark.parametrize('kind', TAPE_PROBLEMS)
@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
@pytest.mark.parametrize(
  ('num_summed', 'restricted'), [(0, None), (1, None), (1, False)]
)
def test_gradient_is_that_of_both_paths(kind, name, num_summed, restricted):
  build, shape, event_rank = TAPE_PROBLEMS[kind]
  logits = tf.reshape(tf.linspace(-0.9, 1.3, int(np.prod(shape))), shape)
  logits = tf.math.sin(7.0 * tf.cast(logits, tf.float64))
  wave = of_rank(wavy, event_rank)
  f = lambda z: 2.0 * wave(z) + wave(z**2)
  c = f if name == 'REBAR' else (lambda z: wave(1.5 * z))
  settings = dict(restricted=restricted, num_samples=2)
  if name == 'REBAR':
    estimator = tfp_rb.REBAR(NOISE_TEMPERATURE, NOISE_SCALE, **settings)
  else:
    estimator = tfp_rb.RELAX(c, NOISE_TEMPERATURE, NOISE_SCALE, **settings)
  estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
  seed = tf.constant([11, 12])
  with tf.GradientTape() as tape:
    tape.watch(logits)
    loss = tfp_rb.expectation(f, build(logits), estimator, seed=seed)
  is_restricted = restricted is None and 'Independent' not in kind
  expected = tape_oracle(
    build, logits, estimator, f, c, is_restricted and num_summed > 0, seed
  )
  actual = tape.gradient(loss, logits)
  np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)


# Unbiasedness. An unbiased estimator fails with probability 1e-6; a bias of
# `DETECTABLE` of the gradient's norm is found with probability 0.99.

DETECTABLE = 0.03


def four_values(logits):
  """Nonlinear in the one-hot vector, whatever the four values at its corners.

  The second summand vanishes at the corners, so that only what looks inside
  the simplex sees it.
  """
  a = tf.constant([2.0, -1.0, 0.5, 1.5], logits.dtype)
  b = tf.constant([1.0, -2.0, 2.5, 0.5], logits.dtype)

  def f(z):
    z = tf.cast(z, logits.dtype)
    return tf.reduce_sum(a * z + 2.0 * b * z * (1.0 - z), axis=-1)

  return f, tfd.OneHotCategorical(logits=logits)


def steep(x):
  """A control variate that is far from constant, and from any of the `f`."""
  size = x.shape[-1]
  position = tf.cast(tf.range(1, size + 1), x.dtype)
  return tf.reduce_sum(tf.sin(2.0 * position * x), axis=-1)


def unbiased(name, restricted=None, num_samples=1, control_variate=steep):
  if name == 'REBAR':
    return tfp_rb.REBAR(0.6, 0.75, restricted, num_samples)
  return tfp_rb.RELAX(control_variate, 0.6, 0.75, restricted, num_samples)


def assert_unbiased(estimator, problem=four_values, parameters=(LOGITS,)):
  return tfp_rb.testing.assert_unbiased(
    estimator,
    problem,
    [tf.constant(p) for p in parameters],
    detectable_bias=DETECTABLE,
  )


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
@pytest.mark.parametrize('k', range(5))
def test_restricted_control_variate_is_unbiased(name, k):
  estimator = tfp_rb.rao_blackwellize(unbiased(name, True), num_summed=k)
  report = assert_unbiased(estimator)
  # A rest of one value has no noise, and of none no draw.
  assert report.is_exact == (k >= 3)


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
@pytest.mark.parametrize(
  'k',
  [
    0,
    pytest.param(1, marks=pytest.mark.slow),
    2,
    pytest.param(3, marks=pytest.mark.slow),
    4,
  ],
)
def test_unrestricted_control_variate_is_unbiased(name, k):
  estimator = tfp_rb.rao_blackwellize(unbiased(name, False), num_summed=k)
  assert not assert_unbiased(estimator).is_exact


def two_one_hot_sites(logits):
  a = tf.constant([[2.0, -1.0, 0.5], [1.0, 0.0, -1.5]], logits.dtype)

  def f(z):
    z = tf.cast(z, logits.dtype)
    level = tf.reduce_sum(a * z, axis=[-2, -1])
    return level + 0.5 * level**2 + tf.reduce_sum(z[..., 0] ** 3, axis=-1)

  return f, tfd.Independent(tfd.OneHotCategorical(logits=logits), 1)


def three_bernoulli_sites(logits):
  a = tf.constant([2.0, -1.0, 0.5], logits.dtype)

  def f(z):
    z = tf.cast(z, logits.dtype)
    return tf.reduce_sum(a * z, axis=-1) + 0.5 * tf.reduce_sum(z, axis=-1) ** 3

  return f, tfd.Independent(tfd.Bernoulli(logits=logits), 1)


UNBIASED_FORMS = {
  'several-draws': lambda e: e(num_samples=3),
  'summed-several-draws': lambda e: tfp_rb.rao_blackwellize(
    e(num_samples=2), num_summed=1
  ),
  'budget': lambda e: tfp_rb.rao_blackwellize(e(), budget=2),
  'without-replacement': lambda e: tfp_rb.rao_blackwellize(
    e(num_samples=2),
    num_summed=1,
    sampler=tfp_rb.samplers.WithoutReplacement(),
  ),
  'atoms': lambda e: tfp_rb.rao_blackwellize(
    e(),
    # The best value is not among them, and one is repeated.
    atoms=lambda q: tf.broadcast_to(
      tf.reshape(
        tf.one_hot([2, 3, 2], 4, dtype=q.dtype),
        [3] + [1] * q.batch_shape.rank + [4],
      ),
      [3, *q.batch_shape, 4],
    ),
  ),
}


@pytest.mark.parametrize(
  ('name', 'form'),
  [
    ('RELAX', 'several-draws'),
    ('RELAX', 'budget'),
    ('RELAX', 'without-replacement'),
    ('REBAR', 'atoms'),
    *(
      pytest.param(name, form, marks=pytest.mark.slow)
      for name, form in [
        ('REBAR', 'several-draws'),
        ('REBAR', 'summed-several-draws'),
        ('RELAX', 'summed-several-draws'),
        ('REBAR', 'budget'),
        ('REBAR', 'without-replacement'),
        ('RELAX', 'atoms'),
      ]
    ),
  ],
)
def test_control_variate_is_unbiased_however_the_atoms_are_chosen(name, form):
  estimator = UNBIASED_FORMS[form](functools.partial(unbiased, name))
  assert not assert_unbiased(estimator).is_exact


@pytest.mark.slow
@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
def test_budget_is_unbiased_where_the_rows_differ(name):
  """One row draws both atoms, another sums one of them."""
  logits = np.array([[0.4, 0.6, 0.5, 0.1], [0.3, 2.0, -0.6, 0.1]])
  estimator = tfp_rb.rao_blackwellize(unbiased(name), budget=2)
  q = tfd.OneHotCategorical(logits=logits)
  atoms = estimator.sample_atoms(q, tf.constant(SEED))
  np.testing.assert_array_equal(atoms.num_summed, [0, 1])
  assert_unbiased(estimator, parameters=[logits])


SITE_LOGITS = {
  'OneHotCategorical': (
    two_one_hot_sites, np.array([[0.4, 1.2, -0.6], [0.1, -0.2, 0.9]])
  ),
  'Bernoulli': (three_bernoulli_sites, np.array([0.4, -0.8, 1.1])),
}  # fmt: skip


@pytest.mark.parametrize(
  ('kind', 'name', 'k'),
  [
    ('OneHotCategorical', 'RELAX', 3),
    ('Bernoulli', 'REBAR', 1),
    *(
      pytest.param(*row, marks=pytest.mark.slow)
      for row in [
        ('OneHotCategorical', 'REBAR', 0),
        ('OneHotCategorical', 'REBAR', 1),
        ('OneHotCategorical', 'REBAR', 9),
        ('OneHotCategorical', 'RELAX', 0),
        ('OneHotCategorical', 'RELAX', 1),
        ('Bernoulli', 'REBAR', 0),
        ('Bernoulli', 'REBAR', 8),
        ('Bernoulli', 'RELAX', 0),
        ('Bernoulli', 'RELAX', 1),
        ('Bernoulli', 'RELAX', 3),
      ]
    ),
  ],
)
def test_control_variate_is_unbiased_on_products(kind, name, k):
  problem, logits = SITE_LOGITS[kind]
  control_variate = steep
  if kind == 'OneHotCategorical':
    control_variate = lambda x: tf.reduce_sum(steep(x), axis=-1)
  estimator = unbiased(name, control_variate=control_variate)
  estimator = tfp_rb.rao_blackwellize(estimator, num_summed=k)
  assert_unbiased(estimator, problem, [logits])


class DoublyCounted(tfp_rb.RELAX):
  """The score term of the control variate twice, a mistake easily made."""

  def control_variate_at(self, f, relaxed, distribution):
    control, slope = super().control_variate_at(f, relaxed, distribution)
    return 2.0 * control, slope


class Unconditional(tfp_rb.RELAX):
  """The relaxed atom is not that of the atom: its classes are rolled."""

  def control_variate_at(self, f, relaxed, distribution):
    rolled = tf.roll(relaxed, 1, axis=-1)
    control, slope = super().control_variate_at(f, rolled, distribution)
    return control, slope


@pytest.mark.parametrize(
  ('wrong', 'k'),
  [
    pytest.param(DoublyCounted, 0, marks=pytest.mark.slow),
    (DoublyCounted, 1),
    pytest.param(Unconditional, 1, marks=pytest.mark.slow),
  ],
)
def test_a_wrong_control_variate_is_found_to_be_biased(wrong, k):
  estimator = tfp_rb.rao_blackwellize(wrong(steep, 0.6, 0.75), num_summed=k)
  with pytest.raises(AssertionError, match='The gradient is biased'):
    assert_unbiased(estimator)


# Rows of one problem: many gradients at once.


def gradients_of(estimator, num_rows, problem=four_values, logits=LOGITS,
                 seed=SEED):  # fmt: skip
  """Values `[n]` and gradients `[n] + shape` of independent estimates."""
  tiled = tf.tile(
    tf.constant(logits)[tf.newaxis], [num_rows] + [1] * np.ndim(logits)
  )
  with tf.GradientTape() as tape:
    tape.watch(tiled)
    f, q = problem(tiled)
    values = tfp_rb.expectation(f, q, estimator, seed=seed)
  return values.numpy(), tape.gradient(values, tiled).numpy()


def total_variance(gradients):
  return np.sum(np.var(np.reshape(gradients, [len(gradients), -1]), axis=0))


def exact_gradient(problem=four_values, logits=LOGITS):
  return _enumeration.exact_reference(problem, [tf.constant(logits)])[1][0]


def mean_and_radius(x):
  """Mean over rows, and a radius that the error of its norm keeps.

  The error of the mean is normal. Its norm exceeds 6 times the root of its
  mean square with probability below 1e-8.
  """
  flat = np.reshape(x, [len(x), -1])
  return flat.mean(0), 6.0 * np.sqrt(total_variance(flat) / len(flat))


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
def test_nothing_is_left_to_chance_where_all_is_summed(name):
  estimator = tfp_rb.rao_blackwellize(unbiased(name), num_summed=4)
  _, gradients = gradients_of(estimator, 3)
  _, others = gradients_of(estimator, 3, seed=(9, 9))
  np.testing.assert_array_equal(gradients, others)
  np.testing.assert_allclose(
    gradients, [exact_gradient()] * 3, rtol=1e-12, atol=1e-14
  )


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
def test_unrestricted_floor_is_that_of_the_noise_at_the_atoms(name):
  """The variance at k = K is `sum_z q(z)^2 Var[g(z)]`.

  Over 50000 rows a variance has a relative standard error of about 1 %.
  """
  num_rows = 50_000
  estimator = unbiased(name, restricted=False)
  summed = tfp_rb.rao_blackwellize(estimator, num_summed=4)
  actual = total_variance(gradients_of(summed, num_rows)[1])
  # The value of `f` is another one at each atom.
  values, gradients = gradients_of(estimator, num_rows, seed=(8, 8))
  corners, _ = four_values(tf.constant(LOGITS))
  expected = 0.0
  for q, f in zip(reference.softmax(LOGITS), corners(np.eye(4)).numpy()):
    expected += q**2 * total_variance(gradients[np.isclose(values, f)])
  assert actual > 0.1
  np.testing.assert_allclose(actual, expected, rtol=0.06)


# ReinMax, by enumeration.


def mean_gradient(estimator, problem, logits):
  outcomes = _enumeration.enumerate_outcomes(
    estimator, problem, [tf.constant(logits)], 10_000
  )
  return np.sum(outcomes.weighted_gradients[0], axis=0)


def polynomial(num_classes, degree, seed=0):
  """A problem whose `f` has this degree in the one-hot vector."""
  random = np.random.RandomState(seed)
  a = random.normal(size=num_classes)
  B = random.normal(size=[num_classes, num_classes])
  b = random.normal(size=num_classes)

  def f(z):
    z = tf.cast(z, tf.float64)
    linear = tf.reduce_sum(a * z, axis=-1)
    quadratic = tf.reduce_sum(z * tf.linalg.matvec(B, z), axis=-1)
    cubic = tf.reduce_sum(b * z, axis=-1) ** 3
    return linear + (degree >= 2) * quadratic + (degree >= 3) * cubic

  logits = random.normal(size=num_classes)
  return (lambda x: (f, tfd.OneHotCategorical(logits=x))), logits, f


@pytest.mark.parametrize('num_classes', [2, 3, 5])
@pytest.mark.parametrize('temperature', [1.0, 1.5])
@pytest.mark.parametrize('k', [0, 1])
def test_reinmax_is_algorithm_2(num_classes, temperature, k):
  problem, logits, f = polynomial(num_classes, degree=3)
  corners = tf.eye(num_classes, dtype=tf.float64)
  with tf.GradientTape() as tape:
    tape.watch(corners)
    value = f(corners)
  df = tape.gradient(value, corners).numpy()
  # Summing changes the variance, and not the mean.
  estimator = tfp_rb.rao_blackwellize(tfp_rb.ReinMax(temperature), num_summed=k)
  actual = mean_gradient(estimator, problem, logits)
  expected = reference.reinmax_gradient(logits, df, temperature)
  np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('num_classes', [2, 3, 5])
def test_reinmax_is_exact_for_a_quadratic_function(num_classes):
  for degree in (1, 2, 3):
    problem, logits, _ = polynomial(num_classes, degree)
    actual = mean_gradient(tfp_rb.ReinMax(1.0), problem, logits)
    expected = exact_gradient(problem, logits)
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error < 1e-10 if degree < 3 else error > 1e-2


def test_reinmax_is_not_exact_at_another_temperature():
  problem, logits, _ = polynomial(3, degree=2)
  actual = mean_gradient(tfp_rb.ReinMax(1.5), problem, logits)
  expected = exact_gradient(problem, logits)
  error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
  assert error > 1e-2


def test_reinmax_of_sites_is_exact_for_a_quadratic_function():
  """Given the others, `f` is quadratic in each site."""
  a = tf.constant([[2.0, -1.0, 0.5], [1.0, 0.0, -1.5]], tf.float64)

  def problem(logits):
    def f(z):
      level = tf.reduce_sum(a * tf.cast(z, a.dtype), axis=[-2, -1])
      return level + level**2

    return f, tfd.Independent(tfd.OneHotCategorical(logits=logits), 1)

  logits = SITE_LOGITS['OneHotCategorical'][1]
  actual = mean_gradient(tfp_rb.ReinMax(1.0), problem, logits)
  expected = exact_gradient(problem, logits)
  np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_reinmax_has_no_noise_beside_the_atoms():
  estimator = tfp_rb.rao_blackwellize(tfp_rb.ReinMax(), num_summed=4)
  _, gradients = gradients_of(estimator, 3)
  _, others = gradients_of(estimator, 3, seed=(9, 9))
  np.testing.assert_array_equal(gradients, others)


# Gumbel-softmax.


def at_atoms(estimator, seed=SEED, num_rows=5, f=None):
  """Value, gradient, the atoms that were drawn and what `f` was handed."""
  logits = tf.constant(np.tile(LOGITS, [num_rows, 1]))
  problem_f, _ = four_values(logits)
  f, handed = f or problem_f, []

  def recorded(z):
    handed.append(z)
    return f(z)

  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = tfd.OneHotCategorical(logits=logits)
    value = tfp_rb.expectation(recorded, q, estimator, seed=seed)
  atom_seed, _ = _random.split_seed(seed, n=2)
  atoms = estimator.sample_atoms(q, atom_seed)
  values = tf.cast(atoms.values, tf.float64)
  return value, tape.gradient(value, logits), values, handed[0]


@pytest.mark.parametrize('num_noises', [1, 4])
def test_straight_through_value_is_that_of_the_atom(num_noises):
  estimator = tfp_rb.GumbelSoftmax(0.8, num_noises=num_noises)
  value, _, atoms, handed = at_atoms(estimator)
  f, _ = four_values(tf.constant(LOGITS))
  np.testing.assert_allclose(handed, atoms, atol=1e-15)
  np.testing.assert_allclose(value, f(atoms)[0], rtol=1e-12)


@pytest.mark.parametrize('tau', [0.375, 1.0, 2.0])
def test_relaxed_estimate_is_that_of_the_reparameterized_sample(tau):
  estimator = tfp_rb.GumbelSoftmax(tau, straight_through=False)
  value, gradient, atoms, handed = at_atoms(estimator)
  np.testing.assert_array_equal(
    np.argmax(handed, axis=-1), np.argmax(atoms, axis=-1)
  )
  logits = tf.constant(np.tile(LOGITS, [5, 1]))
  f, _ = four_values(logits)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    log_probs = tf.nn.log_softmax(logits)
    # The noise, up to a constant that the softmax ignores.
    gumbel = tf.stop_gradient(tau * tf.math.log(handed[0]) - log_probs)
    expected = f(tf.nn.softmax((log_probs + gumbel) / tau))
  np.testing.assert_allclose(value, expected, rtol=1e-12)
  np.testing.assert_allclose(
    gradient, tape.gradient(expected, logits), rtol=1e-10, atol=1e-12
  )


def test_relaxed_sample_follows_the_law_of_tfp():
  """Each class of `RelaxedOneHotCategorical`, in cells of its own quantiles."""
  handed = []

  def f(z):
    handed.append(z)
    return tf.reduce_sum(z, axis=-1)

  estimator = tfp_rb.GumbelSoftmax(0.8, False, num_samples=NUM_DRAWS)
  logits = tf.constant(LOGITS)
  tfp_rb.expectation(
    f, tfd.OneHotCategorical(logits=logits), estimator, seed=SEED
  )
  # Edges from so many draws that their error is no matter.
  relaxed = tfd.RelaxedOneHotCategorical(0.8, logits=logits)
  drawn = relaxed.sample(20 * NUM_DRAWS, seed=(4, 5)).numpy()
  for z in range(4):
    edges = np.quantile(drawn[:, z], np.arange(1, 10) / 10)
    assert_uniform(np.searchsorted(edges, handed[0][:, z]), 10)


@pytest.mark.parametrize('num_noises', [1, 3])
@pytest.mark.parametrize('num_summed', [0, 1])
def test_averaged_gradient_is_the_mean_over_noises(num_noises, num_summed):
  tau = 0.75
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.GumbelSoftmax(
      tau, num_noises=num_noises, restricted=False, num_samples=2
    ),
    num_summed=num_summed,
  )
  _, gradient, hard, _ = at_atoms(estimator)
  logits = tf.constant(np.tile(LOGITS, [5, 1]))
  f, q = four_values(logits)
  relaxation = relaxation_of(q, 'test')
  atom_seed, noise_seed = _random.split_seed(SEED, n=2)
  weights = estimator.sample_atoms(q, atom_seed).weights
  perturbed = relaxation.noise(
    relaxation.log_probs, hard, noise_seed, num_noises
  ).perturbed
  with tf.GradientTape() as tape:
    tape.watch(hard)
    value = f(hard)
  slope = tape.gradient(value, hard)
  expected = np.zeros([5, 4])
  for n in range(num_noises):  # one noise at a time
    with tf.GradientTape() as tape:
      tape.watch(logits)
      log_probs = tf.nn.log_softmax(logits)
      gumbel = tf.stop_gradient(perturbed[n] - log_probs)
      relaxed = tf.nn.softmax((log_probs + gumbel) / tau)
      total = tf.reduce_sum(weights[..., tf.newaxis] * slope * relaxed)
    expected += tape.gradient(total, logits) / num_noises
  np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
  ('num_summed', 'restricted'), [(0, None), (1, None), (1, False)]
)
def test_more_noises_leave_the_mean_and_lower_the_variance(
  num_summed, restricted
):
  """Given the same atoms, in 20000 rows.

  The means agree within 6 standard errors of their difference, at most
  6 % of the gradient's norm. The variance is lower by at least 6 standard
  errors.
  """
  results = {}
  for n in (1, 4, 16):
    estimator = tfp_rb.GumbelSoftmax(0.5, num_noises=n, restricted=restricted)
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
    values, results[n] = gradients_of(estimator, 20_000)
    # The same atoms: the noise has a seed of its own.
    results.setdefault('values', values)
    np.testing.assert_array_equal(values, results['values'])
  norm = np.linalg.norm(exact_gradient())
  for few, many in ((1, 4), (4, 16)):
    difference, radius = mean_and_radius(results[few] - results[many])
    assert np.linalg.norm(difference) < radius < 0.06 * norm
    squares = [
      np.sum((results[n] - results[n].mean(0)) ** 2, axis=-1)
      for n in (few, many)
    ]
    lowered = squares[0] - squares[1]
    error = np.std(lowered) / np.sqrt(len(lowered))
    assert np.mean(lowered) > 6.0 * error


def test_straight_through_is_the_relaxed_gradient_for_a_linear_function():
  """Then the slope is the same at the atom and at the relaxed one."""
  cost = tf.constant([2.0, -1.0, 0.5, 1.5], tf.float64)
  f = lambda z: tf.reduce_sum(cost * z, axis=-1)
  gradients = [
    at_atoms(tfp_rb.GumbelSoftmax(0.8, straight_through), f=f)[1]
    for straight_through in (True, False)
  ]
  np.testing.assert_allclose(*gradients, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize('k', [0, 1, 2])
def test_mean_for_a_linear_function_is_that_of_the_relaxed_slope(k):
  """`E[f'(z) dx/dlogit]`, one integral for a Bernoulli, whatever is summed.

  Over 50000 rows 6 standard errors are below 2 % of it; the bias is 30 %.
  """
  logit, tau = 0.4, 0.6

  def problem(x):
    return lambda z: 3.0 * tf.cast(z, x.dtype), tfd.Bernoulli(logits=x)

  estimator = tfp_rb.GumbelSoftmax(tau, restricted=False)
  estimator = tfp_rb.rao_blackwellize(estimator, num_summed=k)
  _, gradients = gradients_of(estimator, 50_000, problem, np.float64(logit))
  mean, radius = mean_and_radius(gradients)
  expected = 3.0 * reference.mean_slope_of_relaxed_bernoulli(logit, tau)
  assert abs(mean[0] - expected) < radius < 0.04 * expected


def test_restricted_bias_falls_with_the_mass_of_the_rest():
  """Each bias is known up to 6 standard errors over 50000 rows."""
  exact, bounds = exact_gradient(), []
  for k in range(5):
    estimator = tfp_rb.rao_blackwellize(tfp_rb.GumbelSoftmax(0.8), num_summed=k)
    _, gradients = gradients_of(estimator, 50_000 if k < 3 else 3)
    mean, radius = mean_and_radius(gradients)
    bias = np.linalg.norm(mean - exact)
    bounds.append((bias - radius, bias + radius))
  for (low, _), (_, high) in zip(bounds[:3], bounds[1:4]):
    assert low > high
  # A rest of a single value, or none, leaves nothing to relax.
  np.testing.assert_allclose(bounds[3:], 0.0, atol=1e-12)


def test_unrestricted_bias_stays_whatever_is_summed():
  """Means for k = 0, 2 and 4 agree within 6 standard errors of 50000 rows."""
  means = []
  for k in (0, 2, 4):
    estimator = tfp_rb.rao_blackwellize(
      tfp_rb.GumbelSoftmax(0.8, restricted=False), num_summed=k
    )
    means.append(mean_and_radius(gradients_of(estimator, 50_000)[1]))
  exact = exact_gradient()
  for mean, radius in means:
    assert np.linalg.norm(mean - exact) > 5.0 * radius
    assert np.linalg.norm(mean - means[0][0]) < radius + means[0][1]


# The annealed temperature.


def test_annealed_temperature_falls_to_its_floor():
  temperature = tfp_rb.AnnealedTemperature(rate=0.01, floor=0.3)
  for step in (0, 1, 50, 120, 121, 10_000):
    temperature.step.assign(step)
    expected = max(0.3, np.exp(-0.01 * step))
    np.testing.assert_allclose(temperature(), expected, rtol=1e-6)


def test_annealed_temperature_has_one_variable_that_is_not_trained():
  temperature = tfp_rb.AnnealedTemperature(rate=0.01)
  for estimator in (
    tfp_rb.GumbelSoftmax(temperature),
    tfp_rb.REBAR(temperature),
  ):
    assert estimator.trainable_variables == ()
    assert [v is temperature.step for v in estimator.variables] == [True]


def test_step_is_saved_with_the_estimator(tmp_path):
  def make():
    temperature = tfp_rb.AnnealedTemperature(rate=0.01, floor=0.1)
    return tfp_rb.rao_blackwellize(
      tfp_rb.GumbelSoftmax(temperature), num_summed=1
    )

  estimator, other = make(), make()
  estimator.estimator.temperature.step.assign_add(70)
  path = tf.train.Checkpoint(estimator=estimator).save(str(tmp_path / 'at'))
  restored = tf.train.Checkpoint(estimator=other).restore(path)
  restored.assert_consumed()
  assert other.estimator.temperature.step.numpy() == 70
  np.testing.assert_allclose(
    other.estimator.temperature(), np.exp(-0.7), rtol=1e-6
  )


@pytest.mark.parametrize('jit_compile', [False, True])
def test_temperature_moves_inside_a_function(jit_compile):
  estimator = tfp_rb.GumbelSoftmax(
    tfp_rb.AnnealedTemperature(rate=0.1, floor=0.1), straight_through=False
  )
  f, q = four_values(tf.constant(LOGITS))

  @tf.function(jit_compile=jit_compile)
  def step():
    estimator.temperature.step.assign_add(1)
    return tfp_rb.expectation(f, q, estimator, seed=tf.constant(SEED))

  actual = [step().numpy() for _ in range(3)]
  expected = [
    tfp_rb.expectation(
      f, q, tfp_rb.GumbelSoftmax(np.exp(-0.1 * (n + 1)), False), seed=SEED
    ).numpy()
    for n in range(3)
  ]
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
  assert len(set(np.round(actual, 4))) == 3


def test_temperature_may_be_any_callable():
  f, q = four_values(tf.constant(LOGITS))
  given = [
    0.5,
    lambda: 0.5,
    tf.constant(0.5),
    np.float32(0.5),
    tf.Variable(0.5),
  ]
  values = {
    tfp_rb.expectation(f, q, tfp_rb.GumbelSoftmax(t, False), seed=SEED).numpy()
    for t in given
  }
  assert len(values) == 1


@pytest.mark.parametrize('name', ['REBAR', 'GumbelSoftmax', 'ReinMax'])
def test_a_number_keeps_its_digits_beside_float64_logits(name):
  """0.7 is the float64 0.7, not the nearest float32."""
  make = {
    'REBAR': lambda t: tfp_rb.REBAR(t, scale=0.5),
    'GumbelSoftmax': lambda t: tfp_rb.GumbelSoftmax(t, False),
    'ReinMax': tfp_rb.ReinMax,
  }[name]
  given, exact = (
    at_atoms(make(t))[1] for t in (0.7, tf.constant(0.7, tf.float64))
  )
  np.testing.assert_array_equal(given, exact)


def test_a_scale_keeps_its_digits_beside_float64_logits():
  given, exact = (
    at_atoms(tfp_rb.REBAR(0.5, scale))[1]
    for scale in (0.7, tf.constant(0.7, tf.float64))
  )
  np.testing.assert_array_equal(given, exact)


# Numerics.

EXTREME = {
  'OneHotCategorical': (
    lambda x: tfd.OneHotCategorical(logits=x),
    [
      [-np.inf, 0.0, 1.0],
      [1e4, -1e4, 0.0],
      [0.0, -np.inf, -np.inf],
      [1e4, 1e4, -1e4],
      [0.0, -1e4, -1e4],
    ],
  ),
  'Bernoulli': (
    lambda x: tfd.Bernoulli(logits=x),
    [1e4, -1e4, 0.0, 80.0, np.inf, -np.inf],
  ),
  'Independent-OneHotCategorical': (
    lambda x: tfd.Independent(tfd.OneHotCategorical(logits=x), 1),
    [
      [[-np.inf, 0.0, 1.0], [0.5, 0.0, 1.0]],
      [[1e4, -1e4, 0.0], [0.0, -np.inf, -np.inf]],
    ],
  ),
  'Independent-Bernoulli': (
    lambda x: tfd.Independent(tfd.Bernoulli(logits=x), 1),
    [[1e4, -1e4, 0.0], [0.3, -0.2, 80.0]],
  ),
}
WITH_TEMPERATURE = {
  'REBAR': lambda t, q: tfp_rb.REBAR(t, tf.Variable(0.9)),
  'REBAR-unrestricted': lambda t, q: tfp_rb.REBAR(t, restricted=False),
  'RELAX': lambda t, q: tfp_rb.RELAX(zoo.control_variate_of(q), t),
  'GumbelSoftmax': lambda t, q: tfp_rb.GumbelSoftmax(t),
  'GumbelSoftmax-relaxed': lambda t, q: tfp_rb.GumbelSoftmax(t, False),
  'GumbelSoftmax-averaged': lambda t, q: tfp_rb.GumbelSoftmax(t, num_noises=4),
  'GumbelSoftmax-unrestricted': lambda t, q: tfp_rb.GumbelSoftmax(
    t, restricted=False
  ),
  'ReinMax': lambda t, q: tfp_rb.ReinMax(t),
}


@pytest.mark.parametrize(
  ('kind', 'name'),
  [
    (kind, name)
    for kind in EXTREME
    for name in WITH_TEMPERATURE
    # A product is never restricted.
    if 'Independent' not in kind or 'unrestricted' not in name
  ],
)
@pytest.mark.parametrize(
  ('tau', 'forms'),
  [(0.01, ['plain', 'summed', 'budget']), (10.0, ['summed-more'])],
  ids=str,
)
def test_extreme_logits_give_finite_estimates(kind, name, tau, forms):
  build, logits = EXTREME[kind]
  logits, temperature = tf.constant(logits, tf.float32), tf.Variable(tau)
  estimator = WITH_TEMPERATURE[name](temperature, build(logits))
  for form in forms:
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = build(logits)
      value = tfp_rb.expectation(
        zoo.cost(q, tf.float32), q, in_form(estimator, form), seed=SEED
      )
    gradients = tape.gradient(
      value, [logits, temperature], unconnected_gradients='zero'
    )
    for x in (value, *gradients):
      assert np.all(np.isfinite(x)), (form, x)


@pytest.mark.parametrize('name', WITH_TEMPERATURE)
def test_impossible_classes_get_no_gradient(name):
  logits = tf.constant([[-np.inf, 0.3, 1.0], [0.0, -np.inf, -np.inf]])
  build = EXTREME['OneHotCategorical'][0]
  estimator = WITH_TEMPERATURE[name](0.5, build(logits))
  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = build(logits)
    value = tfp_rb.expectation(zoo.cost(q, tf.float32), q, estimator, seed=SEED)
  gradient = tape.gradient(value, logits).numpy()
  assert gradient[0, 0] == 0.0
  np.testing.assert_allclose(gradient[1], 0.0, atol=1e-6)
  assert np.any(gradient[0])


# Errors.

NAMES = {
  'REBAR': lambda t=0.5, **kw: tfp_rb.REBAR(t, **kw),
  'RELAX': lambda t=0.5, **kw: tfp_rb.RELAX(steep, t, **kw),
  'GumbelSoftmax': lambda t=0.5, **kw: tfp_rb.GumbelSoftmax(t, **kw),
  'ReinMax': lambda t=0.5, **kw: tfp_rb.ReinMax(t, **kw),
}
every_name = pytest.mark.parametrize('name', NAMES)
restrictable = pytest.mark.parametrize(
  'name', ['REBAR', 'RELAX', 'GumbelSoftmax']
)


def raises(kind, *parts):
  """Expects an error whose message has all the parts, in this order."""
  pattern = '.*'.join(map(re.escape, parts))
  return pytest.raises(kind, match=f'(?s){pattern}')


def expectation(estimator, f=None, q=None):
  default_f, default_q = four_values(tf.constant(LOGITS))
  return tfp_rb.expectation(
    f or default_f, q or default_q, estimator, seed=SEED
  )


@every_name
@pytest.mark.parametrize(
  ('q', 'advice'),
  [
    (tfd.Categorical(logits=LOGITS), 'Use `tfd.OneHotCategorical`'),
    (tfd.Poisson(rate=1.0), 'Use `tfp_rb.REINFORCE`'),
    (tfd.Sample(tfd.Poisson(rate=1.0), 2), 'Use `tfp_rb.REINFORCE`'),
    (
      tfd.Independent(tfd.Categorical(logits=[LOGITS]), 1),
      'Use `tfd.OneHotCategorical`',
    ),
  ],
  ids=['Categorical', 'Poisson', 'Sample-Poisson', 'Independent-Categorical'],
)
def test_distribution_must_have_relaxed_atoms(name, q, advice):
  inner = getattr(q, 'distribution', q)
  with raises(
    TypeError,
    f'`{name}` relaxes its atoms, so `distribution` must be a',
    '`tfd.OneHotCategorical`, a `tfd.Bernoulli`',
    f'but is a `{type(inner).__name__}`.',
    advice,
  ):
    expectation(NAMES[name](), lambda z: tf.zeros(z.shape[:1]), q)


@every_name
@pytest.mark.parametrize('temperature', [0.0, -1.0, np.float64(0.0)], ids=str)
def test_temperature_must_be_positive(name, temperature):
  with raises(
    ValueError, '`temperature` must be a positive scalar, but is', str(
      temperature
    ), 'TransformedVariable',
  ):  # fmt: skip
    NAMES[name](temperature)


@every_name
@pytest.mark.parametrize(
  'temperature', [[0.5, 0.6], tf.constant([0.5]), tf.Variable([0.5])], ids=str
)
def test_temperature_must_be_a_scalar(name, temperature):
  with raises(ValueError, '`temperature` must be a positive scalar, but is ['):
    NAMES[name](temperature)


@every_name
@pytest.mark.parametrize('temperature', [None, 'hot', True], ids=str)
def test_temperature_must_be_a_number(name, temperature):
  with raises(
    TypeError,
    '`temperature` must be a positive number, a scalar Tensor or variable',
    f'but is {temperature!r}.',
    '`temperature=0.5`',
  ):
    NAMES[name](temperature)


@every_name
def test_temperature_of_a_callable_must_be_a_positive_scalar(name):
  with raises(ValueError, '`temperature` must be a positive scalar', '-1'):
    expectation(NAMES[name](lambda: -1.0))
  with raises(ValueError, '`temperature` must be a scalar', '(2,)'):
    expectation(NAMES[name](lambda: tf.constant([1.0, 2.0])))


def test_scale_must_be_a_scalar():
  with raises(ValueError, '`scale` must be a scalar', '(2,)'):
    tfp_rb.REBAR(0.5, scale=[1.0, 2.0])


def test_schedule_must_fall_to_a_positive_floor():
  with raises(ValueError, '`rate` must not be negative, but is -0.1', 'Pass'):
    tfp_rb.AnnealedTemperature(rate=-0.1)
  with raises(ValueError, '`floor` must be positive, but is 0'):
    tfp_rb.AnnealedTemperature(rate=0.1, floor=0.0)


@pytest.mark.parametrize('control_variate', [None, 3.0, tf.zeros([4])], ids=str)
def test_control_variate_must_be_callable(control_variate):
  with raises(TypeError, '`control_variate` must be a callable', 'but is'):
    tfp_rb.RELAX(control_variate, 0.5)


@pytest.mark.parametrize(
  ('control_variate', 'shape'),
  [
    (lambda x: x, '(1, 4)'),
    (lambda x: tf.reduce_sum(x), '()'),
    (lambda x: tf.zeros([3]) * tf.reduce_sum(tf.cast(x, tf.float32)), '(3,)'),
  ],
  ids=['event', 'scalar', 'rows'],
)
def test_control_variate_must_return_a_number_for_each_atom(
  control_variate, shape
):
  with raises(
    ValueError, '`control_variate` must return', '[m] + batch_shape', shape
  ):
    expectation(tfp_rb.RELAX(control_variate, 0.5))


def test_control_variate_may_return_the_unit_of_a_network():
  plain, unit = (
    at_atoms(tfp_rb.RELAX(c, 0.5))[1]
    for c in (steep, lambda x: steep(x)[..., tf.newaxis])
  )
  np.testing.assert_array_equal(plain, unit)


@pytest.mark.parametrize(
  'control_variate',
  [
    lambda x: tf.reduce_sum(tf.stop_gradient(x), axis=-1),
    lambda x: tf.cast(tf.argmax(x, axis=-1), x.dtype),
    lambda x: tf.ones(x.shape[:-1], x.dtype),
  ],
  ids=['stop_gradient', 'argmax', 'constant'],
)
def test_control_variate_must_be_differentiable(control_variate):
  with raises(
    ValueError,
    '`control_variate` must be differentiable by its atoms, since `RELAX`',
    'argmax',
  ):
    expectation(tfp_rb.RELAX(control_variate, 0.5))


def test_control_variate_must_return_floats():
  with raises(TypeError, '`control_variate` must return a floating', 'int64'):
    expectation(tfp_rb.RELAX(lambda x: tf.argmax(x, axis=-1), 0.5))


@pytest.mark.parametrize('name', ['REBAR', 'GumbelSoftmax', 'ReinMax'])
@pytest.mark.parametrize(
  'f',
  [
    lambda z: tf.gather(tf.constant(LOGITS), z)[..., 0],
    lambda z: tf.gather(tf.constant(LOGITS), tf.bitwise.invert(z)),
  ],
  ids=['gather', 'bits'],
)
def test_f_must_accept_relaxed_atoms(name, f):
  with raises(
    TypeError,
    '`f` must accept atoms of float64, one-hot vectors and points between',
    f'since `{name}` evaluates it there',
    'tf.reduce_sum(z * cost, axis=-1)',
    '`tfp_rb.REINFORCE`',
  ):
    expectation(NAMES[name](), f)


@pytest.mark.parametrize('name', ['REBAR', 'GumbelSoftmax', 'ReinMax'])
@pytest.mark.parametrize(
  'f',
  [
    lambda z: tf.gather(tf.constant(LOGITS), tf.argmax(z, axis=-1)),
    lambda z: tf.reduce_sum(tf.cast(tf.cast(z, tf.int32), tf.float64), axis=-1),
  ],
  ids=['argmax', 'cast'],
)
def test_f_must_be_differentiable_by_its_atoms(name, f):
  with raises(
    ValueError,
    f'`f` must be differentiable by its atoms, since `{name}` follows',
    'argmax',
    '`tfp_rb.REINFORCE`',
  ):
    expectation(NAMES[name](), f)


@restrictable
def test_products_cannot_be_restricted(name):
  q = tfd.Independent(tfd.Bernoulli(logits=np.float64([0.0, 1.0])), 1)
  estimator = tfp_rb.rao_blackwellize(
    NAMES[name](restricted=True), num_summed=1
  )
  with raises(
    ValueError,
    '`restricted=True` needs a `distribution` of a single site',
    'but there are 1 dimensions of sites',
    'Leave `restricted=None`',
  ):
    expectation(estimator, lambda z: tf.reduce_sum(z, axis=-1), q)


@restrictable
@pytest.mark.parametrize('restricted', ['yes', 2, 0.5], ids=str)
def test_restricted_must_be_a_bool_or_none(name, restricted):
  with raises(
    TypeError, '`restricted` must be True, False or None', repr(restricted)
  ):
    NAMES[name](restricted=restricted)


def test_num_noises_must_be_a_positive_int():
  with raises(ValueError, '`num_noises` must be at least 1, but is 0'):
    tfp_rb.GumbelSoftmax(0.5, num_noises=0)
  with raises(TypeError, '`num_noises` must be a Python int', '1.5'):
    tfp_rb.GumbelSoftmax(0.5, num_noises=1.5)


def test_several_noises_need_straight_through():
  with raises(
    ValueError,
    '`num_noises` must be 1 with `straight_through=False`',
    'but is 2',
    '`num_samples`',
  ):
    tfp_rb.GumbelSoftmax(0.5, straight_through=False, num_noises=2)


@pytest.mark.parametrize('scale', ['x', None], ids=str)
def test_scale_must_be_a_number(scale):
  with raises(TypeError, '`scale` must be a number', repr(scale)):
    tfp_rb.REBAR(0.5, scale)


def test_schedule_of_keras_is_told_how_to_be_a_temperature():
  schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.9)
  with raises(TypeError, '`temperature`', '`lambda: schedule(step)`'):
    expectation(tfp_rb.GumbelSoftmax(schedule))


def test_negative_temperature_is_found_in_a_graph_by_validate_args():
  temperature = tf.Variable(-0.5)
  temperature.assign(0.5)
  estimator = tfp_rb.GumbelSoftmax(temperature)
  temperature.assign(-0.5)
  f, _ = four_values(tf.constant(LOGITS))

  @tf.function
  def run():
    q = tfd.OneHotCategorical(logits=tf.constant(LOGITS), validate_args=True)
    return tfp_rb.expectation(f, q, estimator, seed=SEED)

  with pytest.raises(tf.errors.InvalidArgumentError, match='must be positive'):
    run()


def test_temperature_of_gumbel_softmax_is_not_trained():
  temperature = tf.Variable(0.5)
  f, q = four_values(tf.constant(LOGITS))
  with tf.GradientTape() as tape:
    loss = tfp_rb.expectation(
      f, q, tfp_rb.GumbelSoftmax(temperature), seed=SEED
    )
  assert tape.gradient(loss, temperature) is None


def test_class_of_the_same_name_comes_back_from_its_own_module():
  # A class of the user's, not the library's of that name.
  REBAR = type('REBAR', (tfp_rb.REBAR,), {'__module__': __name__})
  estimator = tfp_rb.rao_blackwellize(REBAR(0.5), num_summed=1)
  assert type(copy_by_json(estimator).estimator) is REBAR
