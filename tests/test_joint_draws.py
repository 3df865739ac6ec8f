# SPDX-License-Identifier: Apache-2.0
"""Estimators that make their own joint draws, and the promises they all keep.

DoubleControlVariate and Stein have no noise besides the draws, so their mean is
taken over all outcomes; `test_antithetic.py` does so for DisARM and ARMS. Both
are also compared with the formulas of their papers, which are written out draw
by draw, site by site and neighbor by neighbor.
"""

import itertools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from batched import ALL
from cases import covering_values
from enumeration import assert_mean_is_explicit_sum
from errors import assert_reaches_the_user, raises
import internals
from modes import modes_of
import tfp_rb
from tfp_rb import models
import zoo

tfd = tfp.distributions

SEED = (3, 1)
every_row = pytest.mark.parametrize('name', zoo.JOINT)
every_kind = pytest.mark.parametrize(
  ('name', 'kind'), [(n, k) for n, row in zoo.JOINT.items() for k in row.kinds]
)
TRAINED = ['DoubleControlVariate', 'Stein']


def make(name, num_evaluations=2):
  return zoo.JOINT[name].make(num_evaluations)


def value_and_gradient(f, build, logits, estimator, seed=SEED):
  with tf.GradientTape() as tape:
    tape.watch(logits)
    value = tfp_rb.expectation(f, build(logits), estimator, seed=seed)
  return value, tape.gradient(value, logits)


def estimate(
  name, kind, dtype='float64', batch_shape=(), seed=SEED, estimator=None
):
  row = zoo.DISTRIBUTIONS[kind]
  q = row.make(dtype, batch_shape)
  return value_and_gradient(
    zoo.cost(q, dtype),
    lambda p: row.build(p, batch_shape),
    row.parameter(dtype, batch_shape),
    estimator or make(name, 4),
    seed,
  )


# Unbiasedness.


@pytest.mark.parametrize('name', TRAINED)
@pytest.mark.parametrize(
  ('family', 'num_draws'),
  [
    ('Bernoulli', 3),
    ('Bernoulli_by_probs', 2),
    ('OneHotCategorical', 3),
    ('Independent_Bernoulli', 3),
    ('Independent_OneHotCategorical', 2),
    ('Sample_Bernoulli', 3),
    ('Sample_of_Independent', 2),
  ],
)
def test_mean_over_all_outcomes_is_the_derivative_of_the_sum(
  name, family, num_draws
):
  assert_mean_is_explicit_sum(family, zoo.JOINT[name].make(num_draws))


LOGITS = np.array([[0.4, -0.8, 1.1], [2.0, 0.0, -3.0]])


def bits(logits):
  """Returns an `f` that depends on the logits and is cubic in the bits."""
  weights = tf.constant([2.0, -1.0, 0.5], logits.dtype)
  penalty = 1.0 + 0.1 * tf.reduce_sum(logits**2, axis=-1)

  def f(z):
    z = tf.cast(z, logits.dtype)
    level = tf.reduce_sum(weights * z, axis=-1)
    return penalty * (level + 0.5 * level**3)

  return f, tfd.Independent(tfd.Bernoulli(logits=logits), 1)


class Shared(tfp_rb.Stein):
  """Lets the surrogate of a draw see that draw itself, an easy mistake."""

  def by_log_probs(self, draws):
    rolled = draws._replace(slope=tf.roll(draws.slope, 1, axis=0))
    return super().by_log_probs(rolled)


def test_a_wrong_surrogate_is_found_to_be_biased():
  wrong = Shared()
  wrong.score_scale.assign(1.0)
  with raises(AssertionError, 'gradient'):
    tfp_rb.testing.assert_unbiased(wrong, bits, [tf.constant(LOGITS)])


def test_f_may_take_rows():
  cost = tf.constant([[1.0, -2.0, 0.5], [0.3, 0.0, 4.0]], tf.float64)

  def problem(logits):
    def f(z, rows):
      own = tf.gather(cost, rows % 2)
      return tf.reduce_sum(own * tf.cast(z, tf.float64), axis=-1) ** 2

    return f, tfd.Independent(tfd.Bernoulli(logits=logits), 1)

  for name in TRAINED:
    report = tfp_rb.testing.assert_unbiased(
      make(name), problem, [tf.constant(LOGITS)]
    )
    assert report.is_exact


# The formulas of the papers.


def slope_of(f, z):
  with tf.GradientTape() as tape:
    tape.watch(z)
    value = f(z)
  return value.numpy(), tape.gradient(value, z).numpy()


def double_control_variate(scale, z, probs, value, slope):
  """Computes the formula draw by draw, with our sign of the scale."""
  size, total = len(z), 0.0
  corrected = [
    value[i]
    - scale * np.mean(np.delete(slope, i, axis=0), axis=0) @ (z[i] - probs)
    for i in range(size)
  ]
  for i in range(size):
    signal = corrected[i] - np.mean(np.delete(corrected, i))
    total += signal * (z[i] - probs)
    total += scale * slope[i] * probs * (1.0 - probs)
  return total / size


def stein(network, scales, z, probs, value, slope):
  """Computes the formula neighbor by neighbor, with the score of each one."""
  size, num_sites = z.shape

  def surrogate(i, y):
    """Returns both outputs of `h_i` at `y`."""
    inputs = [[slope[j] @ (y - z[j]), value[j]] for j in range(size) if j != i]
    return np.mean(network(tf.constant(inputs)), axis=0)

  def operator(i, h):
    """Returns `(A h)(z_i)` for a function `h` of a value."""
    total = 0.0
    for s in range(num_sites):
      for bit in (0.0, 1.0):
        y = z[i].copy()
        y[s] = bit
        chance = probs[s] if bit else 1.0 - probs[s]
        total += chance * (h(y) - h(z[i]))
    return total / num_sites

  levels = [
    value[i] + scales[0] * operator(i, lambda y, i=i: surrogate(i, y)[0])
    for i in range(size)
  ]
  total = 0.0
  for i in range(size):
    level = np.mean(np.delete(levels, i))
    total += (value[i] - level) * (z[i] - probs)
    scored = lambda y, i=i: surrogate(i, y)[1] * (y - probs)
    total += scales[1] * operator(i, scored)
  return total / size


@pytest.mark.parametrize('num_draws', [2, 4])
@pytest.mark.parametrize('name', TRAINED)
def test_the_gradient_is_that_of_the_paper(name, num_draws):
  estimator = zoo.JOINT[name].make(num_draws)
  logits = tf.constant(LOGITS[0])
  probs = tf.sigmoid(logits).numpy()
  weights = tf.constant([2.0, -1.0, 0.5], tf.float64)
  f = lambda z: tf.reduce_sum(weights * tf.cast(z, tf.float64), axis=-1) ** 3
  build = lambda x: tfd.Independent(tfd.Bernoulli(logits=x), 1)
  for number in range(3):
    seed = tf.constant([5, number])
    _, gradient = value_and_gradient(f, build, logits, estimator, seed)
    atom_seed, _ = internals.split_seed(seed, n=2)
    z = estimator.sample_atoms(build(logits), atom_seed).values
    z = tf.cast(z, tf.float64)
    if name == 'Stein':
      scales = [estimator.baseline_scale.numpy(), estimator.score_scale.numpy()]
      expected = stein(
        estimator._network, scales, z.numpy(), probs, *slope_of(f, z)
      )
    else:
      expected = double_control_variate(0.75, z.numpy(), probs, *slope_of(f, z))
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


@pytest.mark.parametrize('num_draws', [2, 3])
def test_without_scale_both_are_leave_one_out(num_draws):
  f, _ = bits(tf.constant(LOGITS))
  build = lambda x: bits(x)[1]
  plain = tfp_rb.REINFORCE(
    tfp_rb.baselines.LeaveOneOut(), num_samples=num_draws
  )
  expected = value_and_gradient(f, build, tf.constant(LOGITS), plain)
  for kind in (tfp_rb.DoubleControlVariate, tfp_rb.Stein):
    estimator = kind(num_samples=num_draws)
    found = value_and_gradient(f, build, tf.constant(LOGITS), estimator)
    for x, y in zip(found, expected):
      np.testing.assert_allclose(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('kind', zoo.RELAXABLE)
def test_a_linear_function_has_no_variance_at_scale_1(kind):
  row = zoo.DISTRIBUTIONS[kind]
  parameter = row.parameter('float64', ())
  size = row.make().event_shape.num_elements()

  def problem(x):
    q = row.build(x, None)
    axes = list(range(-q.event_shape.rank, 0))
    weights = tf.reshape(tf.range(1.0, size + 1.0), q.event_shape)
    weights = tf.cast(weights, tf.float64)
    f = lambda z: tf.reduce_sum(weights * tf.cast(z, tf.float64), axis=axes)
    return f, q

  moments = tfp_rb.diagnostics.exact_moments(
    tfp_rb.DoubleControlVariate(1.0), problem, [parameter]
  )
  assert moments.variance < 1e-20
  assert moments.bias < 1e-12


# Training.


def squared_gradient(estimator):
  f, _ = bits(tf.constant(LOGITS))
  _, gradient = value_and_gradient(
    f, lambda x: bits(x)[1], tf.constant(LOGITS), estimator
  )
  # Each logit is the difference of the logits of two classes.
  return 2.0 * np.sum(np.square(gradient))


def objective_gradients(estimator, factor=1.0):
  f, q = bits(tf.constant(LOGITS))
  with tf.GradientTape() as tape:
    loss = factor * tfp_rb.expectation(f, q, estimator, seed=SEED)
  return tape.gradient(loss, estimator.trainable_variables)


@pytest.mark.parametrize('name', TRAINED)
def test_objective_is_the_squared_gradient_of_the_whole_estimate(name):
  estimator = (
    tfp_rb.DoubleControlVariate(tf.Variable(0.6, dtype=tf.float64))
    if name == 'DoubleControlVariate'
    else make(name)
  )
  gradients = objective_gradients(estimator)
  # The variables of the default network are float32.
  step, rtol = (1e-5, 1e-5) if name != 'Stein' else (1e-2, 2e-2)
  for gradient, v in zip(gradients, estimator.trainable_variables, strict=True):
    start = v.numpy()
    direction = np.sign(gradient)
    ends = []
    for sign in (1.0, -1.0):
      v.assign(start + sign * step * direction)
      ends.append(squared_gradient(estimator))
    v.assign(start)
    expected = (ends[0] - ends[1]) / (2.0 * step)
    assert expected > 1e-3
    np.testing.assert_allclose(
      np.sum(gradient * direction), expected, rtol=rtol
    )
  for gradient, other in zip(gradients, objective_gradients(estimator, -2.0)):
    np.testing.assert_allclose(other, 2.0 * gradient, rtol=1e-6)


@pytest.mark.parametrize('name', TRAINED)
def test_objective_does_not_train_the_model(name):
  """Checks that the model gets the same gradients if nothing is trained."""
  slope, found = tf.Variable(1.5, dtype=tf.float64), []
  logits = tf.Variable(LOGITS)
  for trainable in (True, False):
    estimator = make(name)
    if name == 'DoubleControlVariate':
      scale = tf.Variable(0.75, trainable=trainable, dtype=tf.float64)
      estimator = tfp_rb.DoubleControlVariate(scale)
    with tf.GradientTape() as tape:
      f, q = bits(logits)
      loss = tfp_rb.expectation(
        lambda z, f=f: slope**2 * f(z), q, estimator, seed=SEED
      )
    found.append([loss, *tape.gradient(loss, [logits, slope])])
  for x, y in zip(*found):
    np.testing.assert_array_equal(x, y)
  np.testing.assert_allclose(
    found[0][2], 2.0 / 1.5 * np.sum(found[0][0]), rtol=1e-12
  )


@pytest.mark.parametrize(
  ('name', 'most'), [('DoubleControlVariate', 0.8), ('Stein', 0.6)]
)
def test_training_lowers_the_exact_variance(name, most):
  estimator = {
    'DoubleControlVariate': tfp_rb.DoubleControlVariate, 'Stein': tfp_rb.Stein
  }[name](num_samples=2)  # fmt: skip
  logits = np.array([[0.4, -0.8, 1.1]])

  def problem(x):
    weights = tf.constant([2.0, -1.0, 1.5], tf.float64)
    f = lambda z: tf.tanh(
      tf.reduce_sum(weights * tf.cast(z, tf.float64), axis=-1)
    )
    return f, tfd.Independent(tfd.Bernoulli(logits=x), 1)

  def variance():
    return tfp_rb.diagnostics.exact_moments(
      estimator, problem, [tf.constant(logits)]
    ).variance

  before = variance()
  optimizer = keras.optimizers.Adam(0.05)
  variables = list(estimator.trainable_variables)
  optimizer.build(variables)
  copies = tf.constant(np.tile(logits, [32, 1]))

  @tf.function(autograph=False)
  def step(seed):
    with tf.GradientTape() as tape:
      f, q = problem(copies)
      loss = tf.reduce_sum(tfp_rb.expectation(f, q, estimator, seed=seed))
    optimizer.apply(tape.gradient(loss, variables), variables)

  for i in range(60):
    step(tf.constant([7, i]))
  assert variance() < most * before


def test_a_keras_network_is_built_at_the_first_call_and_trained():
  network = keras.Sequential(
    [keras.layers.Dense(4, 'tanh'), keras.layers.Dense(2)]
  )
  estimator = tfp_rb.Stein(network)
  estimator.score_scale.assign(0.5)
  with tf.GradientTape() as tape:
    f, q = bits(tf.constant(LOGITS))
    loss = tfp_rb.expectation(f, q, estimator, seed=SEED)
  variables = estimator.trainable_variables
  assert len(variables) == 2 + 4
  gradients = tape.gradient(loss, variables)
  assert all(np.any(g) for g in gradients)
  config = json.loads(json.dumps(estimator.get_config()))
  copy = tfp_rb.Stein.from_config(config)
  assert isinstance(copy.network, keras.Sequential)


@pytest.mark.parametrize('name', TRAINED)
def test_a_keras_layer_holds_the_variables_and_saves_them(name):
  layer = models.EstimatorLayer(getattr(tfp_rb, name)())
  variables = layer.estimator.variables
  assert len(layer.trainable_variables) == len(variables) > 0
  for i, v in enumerate(variables):
    v.assign(tf.fill(v.shape, 0.1 * (i + 1.0)))
  copy = models.EstimatorLayer.from_config(
    json.loads(json.dumps(layer.get_config()))
  )
  store = {}
  layer.save_own_variables(store)
  copy.load_own_variables(store)
  for v, expected in zip(copy.estimator.variables, variables, strict=True):
    assert v is not expected
    np.testing.assert_array_equal(v, expected)


# Shapes, dtypes, modes, batches.


@every_kind
def test_estimates_keep_shape_and_dtype(name, kind):
  row = zoo.DISTRIBUTIONS[kind]
  for dtype, batch_shape in (('float32', (2, 3)), ('float64', ())):
    value, gradient = estimate(name, kind, dtype, batch_shape)
    shape = row.parameter(dtype, batch_shape).shape
    assert (value.shape, value.dtype) == (batch_shape, dtype)
    assert (gradient.shape, gradient.dtype) == (shape, dtype)
    assert np.all(np.isfinite(value)) and np.all(np.isfinite(gradient))


@every_row
def test_f_is_called_once_with_the_promised_number(name):
  q = zoo.DISTRIBUTIONS['Independent-Bernoulli'].make(batch_shape=(2,))
  f, found = zoo.cost(q, tf.float32), []

  def recorded(z):
    found.append(z)
    return f(z)

  tfp_rb.expectation(recorded, q, make(name, 4), seed=SEED)
  (z,) = found
  assert z.shape == (4, 2, 3)
  is_floating = zoo.JOINT[name].differentiates_f
  assert make(name).differentiates_f == is_floating
  assert z.dtype == (tf.float32 if is_floating else q.dtype)


@every_row
@pytest.mark.parametrize('dtype', ['float16', 'bfloat16'])
def test_half_precision_is_finite(name, dtype):
  value, gradient = estimate(name, 'Independent-Bernoulli', dtype, (3,))
  assert (value.dtype, gradient.dtype) == (dtype, dtype)
  assert np.all(np.isfinite(tf.cast(value, tf.float32)))
  assert np.all(np.isfinite(tf.cast(gradient, tf.float32)))


@every_row
def test_eager_graph_and_xla_agree(name):
  # Variables are created outside of the traced function.
  estimator, kind = make(name, 4), 'Independent-Bernoulli'

  def run(seed):
    return estimate(name, kind, 'float32', (3,), seed, estimator)

  seed = tf.constant(SEED)
  expected, modes = run(seed), modes_of(run, seed)
  for mode in ('graph', 'xla'):
    value, gradient = modes[mode](seed)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5)


FAMILIES = ['Bernoulli', 'Sample', 'Independent-Bernoulli']


@pytest.mark.parametrize(
  ('name', 'family'),
  covering_values(
    [
      *itertools.product(zoo.JOINT, FAMILIES),
      *itertools.product(TRAINED, ['Independent-OneHotCategorical']),
    ]
  ),
)
def test_batch_may_be_of_unknown_size_or_empty(name, family):
  row, estimator = ALL[family], make(name, 4)

  def run(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      q = row.build(x)
      f = zoo.cost(q, tf.float64)
      value = tfp_rb.expectation(f, q, estimator, seed=SEED)
    return value, tape.gradient(value, x)

  traced = tf.function(
    run,
    autograph=False,
    input_signature=[tf.TensorSpec([None, *row.shape], tf.float64)],
  )
  x = tf.constant(row.parameter(3))
  for found, expected in zip(traced(x), run(x)):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
  empty = tf.constant(row.parameter(0))
  for function in (run, traced):
    value, gradient = function(empty)
    assert value.shape.num_elements() == 0
    assert gradient.shape == [0, *row.shape]


@pytest.mark.parametrize('name', TRAINED)
def test_extreme_logits_give_finite_estimates(name):
  logits = tf.constant([1e4, -1e4, 0.0, 80.0, np.inf, -np.inf])
  value, gradient = value_and_gradient(
    lambda z: tf.reduce_sum(z, axis=-1) ** 2,
    lambda x: tfd.Independent(tfd.Bernoulli(logits=x), 1),
    logits,
    make(name, 4),
  )
  assert np.isfinite(value)
  assert np.all(np.isfinite(gradient))


@every_row
def test_what_f_raises_reaches_the_user(name):
  def f(z):
    raise KeyError('mine')

  q = zoo.DISTRIBUTIONS['Independent-Bernoulli'].make()
  assert_reaches_the_user(lambda f: tfp_rb.expectation(f, q, make(name)), f)


@every_row
def test_variational_gradient_vanishes_at_the_posterior(name):
  logits = tf.constant(LOGITS)

  def bits_of(x):
    return tfd.Independent(tfd.Bernoulli(logits=x, dtype=tf.float64), 1)

  with tf.GradientTape() as tape:
    tape.watch(logits)
    loss = tfp_rb.vi.monte_carlo_variational_loss(
      bits_of(tf.constant(LOGITS)).log_prob,
      bits_of(logits),
      gradient_estimator=make(name, 4),
      seed=SEED,
    )
  np.testing.assert_allclose(loss, np.zeros(2), atol=1e-12)
  gradient = tape.gradient(loss, logits)
  np.testing.assert_allclose(gradient, np.zeros([2, 3]), atol=1e-12)


# Configs, and arguments that are rejected.


@every_row
def test_estimator_comes_back_from_its_config(name):
  estimator = make(name, 4)
  config = json.loads(json.dumps(internals.serialize(estimator)))
  copy = internals.deserialize(config)
  assert type(copy) is type(estimator)
  assert repr(copy) == repr(estimator)
  # A config contains neither the variables of a network nor its scale.
  for v, own in zip(copy.variables, estimator.variables, strict=True):
    v.assign(own)
  f, _ = bits(tf.constant(LOGITS))
  build = lambda x: bits(x)[1]
  for x, y in zip(
    value_and_gradient(f, build, tf.constant(LOGITS), copy),
    value_and_gradient(f, build, tf.constant(LOGITS), estimator),
  ):
    np.testing.assert_array_equal(x, y)


def test_a_trained_scale_comes_back_with_its_value():
  estimator = tfp_rb.DoubleControlVariate()
  estimator.scale.assign(0.4)
  config = json.loads(json.dumps(estimator.get_config()))
  copy = tfp_rb.DoubleControlVariate.from_config(config)
  assert [v.numpy() for v in copy.trainable_variables] == [np.float32(0.4)]
  assert copy.scale is not estimator.scale


@pytest.mark.parametrize('name', TRAINED)
def test_another_number_of_draws_shares_the_variables(name):
  estimator = make(name)
  copy = estimator.replace(num_samples=5)
  assert copy.num_samples == 5
  for v, own in zip(copy.variables, estimator.variables, strict=True):
    assert v is own
  with raises(ValueError, 'num_samples'):
    estimator.replace(num_samples=1)


@pytest.mark.parametrize('kind', [tfp_rb.DoubleControlVariate, tfp_rb.Stein])
def test_a_single_draw_is_refused(kind):
  with raises(ValueError, 'num_samples'):
    kind(num_samples=1)


@every_row
def test_nothing_else_chooses_the_atoms(name):
  for wrap in (tfp_rb.rao_blackwellize, tfp_rb.local_expectation):
    with raises(TypeError, 'estimator'):
      wrap(make(name), num_summed=1)
  with raises(TypeError, 'estimator'):
    tfp_rb.pooled(make(name), budget=4)


@pytest.mark.parametrize('name', TRAINED)
@pytest.mark.parametrize(
  'q', [tfd.Categorical(logits=[0.0, 1.0]), tfd.Poisson(rate=2.0)]
)
def test_other_distributions_are_refused(name, q):
  with raises(TypeError, 'distribution'):
    tfp_rb.expectation(lambda z: tf.cast(z, tf.float32), q, make(name))


@pytest.mark.parametrize('name', TRAINED)
def test_f_must_be_differentiable(name):
  q = zoo.DISTRIBUTIONS['Independent-Bernoulli'].make()
  f = lambda z: tf.reduce_sum(tf.round(z), axis=-1) + tf.stop_gradient(z[:, 0])
  with raises(ValueError, 'f'):
    tfp_rb.expectation(
      lambda z: tf.stop_gradient(f(z)), q, make(name), seed=SEED
    )


@pytest.mark.parametrize('network', [3, 'tanh'])
def test_a_network_must_be_callable(network):
  with raises(TypeError, 'network'):
    tfp_rb.Stein(network)


def test_a_network_must_have_two_outputs():
  _, q = bits(tf.constant(LOGITS))
  f, _ = bits(tf.constant(LOGITS))
  with raises(ValueError, 'network'):
    tfp_rb.expectation(f, q, tfp_rb.Stein(lambda x: x[:, :1]), seed=SEED)


@pytest.mark.parametrize('scale', [[1.0, 2.0], 'large'])
def test_a_scale_must_be_a_number(scale):
  with pytest.raises((TypeError, ValueError), match='scale'):
    tfp_rb.DoubleControlVariate(scale)
