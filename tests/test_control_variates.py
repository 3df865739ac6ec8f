# SPDX-License-Identifier: Apache-2.0
"""REBAR and RELAX train their own variables, downhill, and affect nothing else.

The objective is the squared gradient of the whole estimate w.r.t. the logits.
Its derivative is compared with finite differences of that square for a fixed
seed.
"""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from cases import covering_pairs
import tfp_rb

tfb = tfp.bijectors
tfd = tfp.distributions

SEED = (3, 1)
LOGITS = np.array([0.4, 1.2, -0.6, 0.1])


def cost(z):
  """Differs from all control variates below, inside the simplex and outside."""
  a = tf.constant([4.0, 1.0, 2.5, 3.5], tf.float64)
  z = tf.cast(z, tf.float64)
  return tf.reduce_sum(a * z + tf.sin(3.0 * a * z) * (1.0 - z), axis=-1)


def cost_of_sites(z):
  a = tf.constant([2.0, -1.0, 0.5], tf.float64)
  z = tf.cast(z, tf.float64)
  return tf.reduce_sum(a * z, axis=-1) + 0.5 * tf.reduce_sum(z, axis=-1) ** 3


# The logit of a Bernoulli is the difference of the logits of its two classes,
# so a gradient counts once for each class.
PROBLEMS = {
  'OneHotCategorical': (
    cost, lambda x: tfd.OneHotCategorical(logits=x), LOGITS, 1.0
  ),
  'Independent-Bernoulli': (
    cost_of_sites,
    lambda x: tfd.Independent(tfd.Bernoulli(logits=x), 1),
    np.array([0.4, -0.8, 1.1]),
    2.0,
  ),
}  # fmt: skip


def variable(value):
  return tf.Variable(np.asarray(value, np.float64))


class Quadratic(tf.Module):
  """A control variate that has a slope and a curvature for each class."""

  def __init__(self, slope, curvature):
    super().__init__()
    self.slope = variable(slope)
    self.curvature = variable(curvature)

  def __call__(self, x):
    return tf.reduce_sum(self.slope * x + self.curvature * x**2, axis=-1)


def make(name, size=4, num_summed=0, restricted=None, num_samples=1):
  settings = dict(
    temperature=variable(0.7),
    scale=variable(0.8),
    restricted=restricted,
    num_samples=num_samples,
  )
  if name == 'REBAR':
    estimator = tfp_rb.REBAR(**settings)
  else:
    position = np.arange(size)
    control_variate = Quadratic(np.sin(position), 0.5 * np.cos(position))
    with_f = name == 'RELAX-with_f'
    estimator = tfp_rb.RELAX(control_variate, with_f=with_f, **settings)
  return tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)


def loss_and_gradient(estimator, kind='OneHotCategorical', logits=None,
                      seed=SEED):  # fmt: skip
  f, build, default, _ = PROBLEMS[kind]
  logits = tf.constant(default if logits is None else logits)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    loss = tfp_rb.expectation(f, build(logits), estimator, seed=seed)
  return loss, tape.gradient(loss, logits)


def squared_gradients(estimator, kind, logits=None, seed=SEED):
  """Returns the squared gradient w.r.t. the logits, one for each row."""
  gradient = loss_and_gradient(estimator, kind, logits, seed)[1]
  return np.sum(np.square(gradient), axis=-1) * PROBLEMS[kind][3]


def objective_gradients(estimator, kind='OneHotCategorical', logits=None,
                        weights=1.0, seed=SEED):  # fmt: skip
  """Differentiates `sum(weights * loss)` w.r.t. the estimator's variables."""
  f, build, default, _ = PROBLEMS[kind]
  logits = tf.constant(default if logits is None else logits)
  with tf.GradientTape() as tape:
    loss = tfp_rb.expectation(f, build(logits), estimator, seed=seed)
    loss = tf.reduce_sum(weights * loss)
  return tape.gradient(loss, estimator.trainable_variables)


def along(direction, variable, function):
  """Returns the central difference of `function()` as the variable moves."""
  step, start = 1e-5, variable.numpy()
  ends = []
  for sign in (1.0, -1.0):
    variable.assign(start + sign * step * direction)
    ends.append(function())
  variable.assign(start)
  return (ends[0] - ends[1]) / (2.0 * step)


def assert_is_derivative(gradients, variables, function):
  """Compares along one direction for each variable; no entry may be 0."""
  assert len(gradients) == len(variables) > 0
  for n, (gradient, v) in enumerate(zip(gradients, variables)):
    direction = np.cos(1.0 + n + np.arange(np.size(v.numpy())))
    direction = np.reshape(direction, v.shape)
    expected = along(direction, v, function)
    actual = np.sum(gradient * direction)
    assert abs(expected) > 1e-3  # otherwise the comparison proves nothing
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


# The objective.


@pytest.mark.parametrize('name', ['REBAR', 'RELAX', 'RELAX-with_f'])
@pytest.mark.parametrize(
  ('kind', 'num_summed', 'restricted'),
  [
    ('OneHotCategorical', 0, None),
    *itertools.product(['OneHotCategorical'], [1, 2], [True, False]),
    *itertools.product(['Independent-Bernoulli'], [0, 1, 2], [None]),
  ],
)
def test_objective_is_the_squared_gradient_of_the_whole_estimate(
  name, kind, num_summed, restricted
):
  size = len(PROBLEMS[kind][2])
  estimator = make(name, size, num_summed, restricted, num_samples=2)
  variables = estimator.trainable_variables
  assert len(variables) == (2 if name == 'REBAR' else 4)
  assert_is_derivative(
    objective_gradients(estimator, kind),
    variables,
    lambda: squared_gradients(estimator, kind),
  )


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
@pytest.mark.parametrize(
  'split', [{'budget': 3}, {'num_summed': 1}], ids=['budget', 'distinct']
)
def test_objective_weighs_the_atoms_as_the_estimate_does(name, split):
  if 'num_summed' in split:
    split = dict(split, sampler=tfp_rb.samplers.WithoutReplacement())
  inner = make(name, num_samples=2).estimator
  estimator = tfp_rb.rao_blackwellize(inner, **split)
  assert_is_derivative(
    objective_gradients(estimator),
    estimator.trainable_variables,
    lambda: squared_gradients(estimator, 'OneHotCategorical'),
  )


ROWS = np.array([LOGITS, [0.0, 0.3, 0.2, -0.4], [-1.0, 0.5, 0.6, 1.0]])


@pytest.mark.parametrize(('name', 'num_summed'), [('REBAR', 0), ('RELAX', 1)])
@pytest.mark.parametrize(
  'weights',
  [(1.0, 1.0, 1.0), (2.0, 0.25, 3.0), (0.0, -1.5, 2.0)],
  ids=str,
)
def test_each_row_weighs_as_its_share_of_the_loss(name, num_summed, weights):
  estimator = make(name, num_summed=num_summed)
  gradients = objective_gradients(estimator, logits=ROWS, weights=weights)
  assert_is_derivative(
    gradients,
    estimator.trainable_variables,
    lambda: np.sum(
      np.abs(weights) * squared_gradients(estimator, 'OneHotCategorical', ROWS)
    ),
  )


def test_rows_whose_rest_is_empty_do_not_count():
  certain = np.array([0.0, -np.inf, -np.inf, -np.inf])
  estimator = make('RELAX', num_summed=1)
  gradients = objective_gradients(
    estimator, logits=np.stack([certain, certain])
  )
  for gradient in gradients:
    np.testing.assert_array_equal(gradient, np.zeros(gradient.shape))


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
def test_nothing_is_trained_where_all_is_summed(name):
  estimator = make(name, num_summed=4)
  gradients = objective_gradients(estimator)
  assert all(g is None or not np.any(g) for g in gradients)


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
@pytest.mark.parametrize('factor', [-1.0, 7.0])
def test_variables_move_downhill_whatever_multiple_is_minimised(name, factor):
  estimator = make(name, num_summed=1)
  expected = objective_gradients(estimator, logits=ROWS)
  scaled = objective_gradients(estimator, logits=ROWS, weights=factor)
  for gradient, reference in zip(scaled, expected):
    assert np.all(reference)
    np.testing.assert_allclose(gradient, abs(factor) * reference, rtol=1e-10)


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
@pytest.mark.parametrize('num_summed', [0, 1])
def test_a_small_step_lowers_the_squared_gradient(name, num_summed):
  estimator = make(name, num_summed=num_summed)
  before = np.sum(squared_gradients(estimator, 'OneHotCategorical', ROWS))
  gradients = objective_gradients(estimator, logits=ROWS, weights=-1.0)
  for v, gradient in zip(estimator.trainable_variables, gradients):
    v.assign_sub(1e-4 * gradient)
  after = np.sum(squared_gradients(estimator, 'OneHotCategorical', ROWS))
  expected = 1e-4 * sum(np.sum(np.square(g)) for g in gradients)
  np.testing.assert_allclose(before - after, expected, rtol=0.1)


# Variables that the objective does not reach.


@pytest.mark.parametrize('name', ['REBAR', 'RELAX', 'RELAX-with_f'])
@pytest.mark.parametrize('num_summed', [0, 1])
def test_objective_reaches_only_the_variables_of_the_estimator(
  name, num_summed
):
  """Checks that all else is as with constants of the same value."""
  logits, factor = tf.Variable(ROWS), variable(1.3)
  control_variate = lambda x: tf.reduce_sum(tf.sin(2.0 * x), axis=-1)
  results = []
  for number in (variable, lambda x: tf.constant(x, tf.float64)):
    settings = dict(temperature=number(0.7), scale=number(0.8))
    if name == 'REBAR':
      estimator = tfp_rb.REBAR(**settings)
    else:
      with_f = name == 'RELAX-with_f'
      estimator = tfp_rb.RELAX(control_variate, with_f=with_f, **settings)
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
    with tf.GradientTape() as tape:
      loss = tfp_rb.expectation(
        lambda z: factor**2 * cost(z),
        tfd.OneHotCategorical(logits=logits),
        estimator,
        seed=SEED,
      )
      total = tf.reduce_sum(loss)
    results.append([loss, *tape.gradient(total, [logits, factor])])
  for trained, constant in zip(*results):
    np.testing.assert_array_equal(trained, constant)
  # The factor gets only the gradient of the value, which is 2 / factor times
  # the value.
  np.testing.assert_allclose(
    results[0][2], 2.0 / 1.3 * np.sum(results[0][0]), rtol=1e-12
  )


def test_a_variable_that_f_shares_with_the_estimator_gets_both():
  """Checks that a shared variable gets the gradients of both roles.

  The variable then belongs to the estimator, and the loss depends on it as
  well.
  """
  weight = variable(1.3)
  f = lambda z: weight * cost(z)
  shared = tfp_rb.RELAX(f, temperature=0.5)
  shared.weight = weight
  apart = tfp_rb.RELAX(lambda x: weight * cost(x), temperature=0.5)
  gradients = []
  for estimator in (shared, apart):
    with tf.GradientTape() as tape:
      loss = tfp_rb.expectation(
        f,
        tfd.OneHotCategorical(logits=tf.constant(LOGITS)),
        estimator,
        seed=SEED,
      )
    gradients.append(tape.gradient(loss, weight).numpy())
  np.testing.assert_allclose(gradients[1], loss / 1.3, rtol=1e-12)
  assert gradients[0] != gradients[1]


def test_frozen_variables_get_no_gradient():
  temperature = tf.Variable(np.float64(0.7), trainable=False)
  estimator = tfp_rb.REBAR(temperature, scale=variable(0.8))
  assert estimator.trainable_variables == (estimator.scale,)
  with tf.GradientTape() as tape:
    tape.watch(temperature)
    loss = tfp_rb.expectation(
      cost,
      tfd.OneHotCategorical(logits=tf.constant(LOGITS)),
      estimator,
      seed=SEED,
    )
  by_temperature, by_scale = tape.gradient(loss, [temperature, estimator.scale])
  assert by_temperature is None
  assert by_scale.numpy() != 0.0


# Kinds of variables.


def test_transformed_temperature_is_trained():
  temperature = tfp.util.TransformedVariable(
    np.float64(0.7), tfb.Exp(), dtype=tf.float64
  )
  estimator = tfp_rb.REBAR(temperature)
  (v,) = estimator.trainable_variables
  assert v is temperature.trainable_variables[0]
  assert_is_derivative(
    objective_gradients(estimator),
    [v],
    lambda: squared_gradients(estimator, 'OneHotCategorical'),
  )


def network(units=1):
  keras.utils.set_random_seed(1)
  return keras.Sequential(
    [
      keras.layers.Dense(5, 'tanh', dtype='float64'),
      keras.layers.Dense(units, dtype='float64'),
    ]
  )


@pytest.mark.parametrize('num_summed', [0, 1])
def test_control_variate_is_given_the_inputs_of_the_step(num_summed):
  slope = variable([0.3, -0.2, 0.5, 0.1])
  inputs = tf.constant([[2.0], [-1.0]], tf.float64)
  logits = tf.constant(
    [[0.1, 0.2, -0.3, 0.4], [1.0, 0.0, 0.5, -0.5]], tf.float64
  )
  control = lambda x, w: tf.reduce_sum(w * slope * x**2, axis=-1)

  def gradients(estimator):
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
    assert len(estimator.trainable_variables) == 1
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = tfp_rb.expectation(
        lambda z: tf.reduce_sum(z * [3.0, 1.0, 2.0, 5.0], axis=-1),
        tfd.OneHotCategorical(logits=logits, dtype=tf.float64),
        estimator,
        seed=SEED,
      )
    return tape.gradient(loss, [logits, slope])

  relax = tfp_rb.RELAX(control, temperature=0.7)
  relax.slope = slope
  by_hand = tfp_rb.RELAX(lambda x: control(x, inputs), temperature=0.7)
  by_hand.slope = slope
  actual = gradients(relax.with_inputs(inputs))
  for a, b in zip(actual, gradients(by_hand), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-12)
  other = gradients(relax.with_inputs(-inputs))
  assert all(np.any(a != b) for a, b in zip(actual, other, strict=True))


@pytest.mark.parametrize('num_summed', [0, 1])
def test_keras_network_is_built_at_the_first_call_and_trained(num_summed):
  estimator = tfp_rb.RELAX(network(), temperature=variable(0.7))
  estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
  assert len(estimator.trainable_variables) == 1
  with tf.GradientTape() as tape:
    loss = tfp_rb.expectation(
      cost,
      tfd.OneHotCategorical(logits=tf.constant(LOGITS)),
      estimator,
      seed=SEED,
    )
  # The variables exist now, and the tape of the very first call knows them.
  variables = estimator.trainable_variables
  assert len(variables) == 5
  gradients = tape.gradient(loss, variables)
  np.testing.assert_allclose(
    np.concatenate([np.ravel(g) for g in gradients]),
    np.concatenate([np.ravel(g) for g in objective_gradients(estimator)]),
    rtol=1e-6,  # the network rounds its input to float32 until it is built
    atol=1e-6,
  )
  # The variable that shifts the control variate is no exception, because the
  # shift acts as a baseline.
  assert all(np.any(g) for g in gradients)
  for gradient, v in zip(gradients, variables):
    direction = np.cos(1.0 + np.arange(np.size(v.numpy())))
    direction = np.reshape(direction, v.shape)
    expected = along(
      direction, v, lambda: squared_gradients(estimator, 'OneHotCategorical')
    )
    np.testing.assert_allclose(
      np.sum(gradient * direction), expected, rtol=1e-5, atol=1e-8
    )


def test_an_optimizer_of_keras_takes_the_gradients():
  estimator = tfp_rb.RELAX(network(), temperature=variable(0.7))
  objective_gradients(estimator)  # this builds the network
  before = [v.numpy() for v in estimator.trainable_variables]
  optimizer = keras.optimizers.Adam(0.01)
  gradients = objective_gradients(estimator)
  optimizer.apply(gradients, estimator.trainable_variables)
  for v, value in zip(estimator.trainable_variables, before):
    assert np.any(v.numpy() != value)


def test_variables_behind_a_lambda_are_trained_once_they_are_attached():
  """Checks what the docstring of `RELAX` says."""
  hidden = Quadratic(np.ones(4), np.zeros(4))
  estimator = tfp_rb.RELAX(lambda x: cost(x) + hidden(x), temperature=0.75)
  assert estimator.trainable_variables == ()
  estimator.hidden = hidden
  assert_is_derivative(
    objective_gradients(estimator),
    estimator.trainable_variables,
    lambda: squared_gradients(estimator, 'OneHotCategorical'),
  )


# Functions, tapes and loops.

ESTIMATORS = {
  'REBAR': lambda: make('REBAR', num_summed=1),
  'RELAX': lambda: make('RELAX', num_summed=1),
  'network': lambda: tfp_rb.rao_blackwellize(
    tfp_rb.RELAX(network(), temperature=variable(0.7)), num_summed=1
  ),
}
every_estimator = pytest.mark.parametrize('name', ESTIMATORS)


def expectation_of_rows(estimator):
  q = tfd.OneHotCategorical(logits=tf.constant(ROWS))
  loss = tfp_rb.expectation(cost, q, estimator, seed=tf.constant(SEED))
  return tf.reduce_sum(tf.constant([1.0, -2.0, 0.5], tf.float64) * loss)


def built(name):
  """Returns an estimator, its variables, and their eager gradients."""
  estimator = ESTIMATORS[name]()
  expectation_of_rows(estimator)
  variables = estimator.trainable_variables
  with tf.GradientTape() as tape:
    loss = expectation_of_rows(estimator)
  return estimator, variables, tape.gradient(loss, variables)


def assert_same(actual, expected):
  assert len(actual) == len(expected) > 0
  for a, b in zip(actual, expected):
    np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-12)


@every_estimator
@pytest.mark.parametrize('jit_compile', [False, True])
def test_gradient_inside_a_function(name, jit_compile):
  estimator, variables, expected = built(name)

  @tf.function(jit_compile=jit_compile)
  def gradients():
    with tf.GradientTape() as tape:
      loss = expectation_of_rows(estimator)
    return tape.gradient(loss, variables)

  assert_same(gradients(), expected)
  # The variables are read when the function runs, not when it is traced.
  variables[0].assign(variables[0] + 0.1)
  with tf.GradientTape() as tape:
    loss = expectation_of_rows(estimator)
  moved = tape.gradient(loss, variables)
  assert np.any(np.abs(moved[0] - expected[0]) > 1e-6)
  assert_same(gradients(), moved)


@every_estimator
def test_gradient_outside_of_the_function_of_the_loss(name):
  estimator, variables, expected = built(name)
  loss_of = tf.function(lambda: expectation_of_rows(estimator))
  for _ in range(2):
    with tf.GradientTape() as tape:
      loss = loss_of()
    assert_same(tape.gradient(loss, variables), expected)


@every_estimator
def test_persistent_tape_may_be_asked_twice(name):
  estimator, variables, expected = built(name)
  with tf.GradientTape(persistent=True) as tape:
    loss = expectation_of_rows(estimator)
    double = 2.0 * loss
  assert_same(tape.gradient(loss, variables), expected)
  assert_same(tape.gradient(loss, variables), expected)
  assert_same(tape.gradient(double, variables), [2.0 * g for g in expected])


@every_estimator
def test_two_estimates_on_one_tape_add_up(name):
  estimator, variables, expected = built(name)
  with tf.GradientTape() as tape:
    loss = expectation_of_rows(estimator) - 3.0 * expectation_of_rows(estimator)
  assert_same(tape.gradient(loss, variables), [4.0 * g for g in expected])


@pytest.mark.parametrize(
  ('name', 'in_a_function'),
  [('RELAX', False), ('REBAR', True), ('network', True)],
)
def test_gradient_inside_a_loop(name, in_a_function):
  """Computes the loss and its gradient in the body, summed over three turns."""
  estimator, variables, expected = built(name)

  def body(n, *totals):
    with tf.GradientTape() as tape:
      loss = expectation_of_rows(estimator)
    gradients = tape.gradient(loss, variables)
    return n + 1, *[t + g for t, g in zip(totals, gradients)]

  def run():
    zeros = [tf.zeros(v.shape, tf.float64) for v in variables]
    return tf.while_loop(lambda n, *_: n < 3, body, (0, *zeros))[1:]

  run = tf.function(run) if in_a_function else run
  assert_same(run(), [3.0 * g for g in expected])


def test_a_new_network_may_be_built_inside_a_function():
  estimator = ESTIMATORS['network']()

  @tf.function
  def gradients():
    with tf.GradientTape() as tape:
      loss = expectation_of_rows(estimator)
    return tape.gradient(loss, estimator.trainable_variables)

  actual = gradients()
  assert len(actual) == 5
  with tf.GradientTape() as tape:
    loss = expectation_of_rows(estimator)
  assert_same(actual, tape.gradient(loss, estimator.trainable_variables))


# Training.

NUM_ROWS = 20_000


def gradients_of_rows(estimator, num_rows=NUM_ROWS, seed=(8, 8)):
  """Returns independent gradients of one problem, `[n, 4]`."""
  logits = np.tile(LOGITS, [num_rows, 1])
  return loss_and_gradient(estimator, logits=logits, seed=seed)[1].numpy()


def squared_errors(gradients):
  """Returns squared distances from the mean.

  Their mean is the total variance.
  """
  return np.sum((gradients - gradients.mean(0)) ** 2, axis=-1)


def variance_and_error(estimator):
  """Returns a gradient's total variance and the variance's standard error."""
  squares = squared_errors(gradients_of_rows(estimator))
  return squares.mean(), squares.std() / np.sqrt(len(squares))


def trained(estimator, factor, num_steps=150, rows_per_step=256):
  """Minimizes `factor` times the expectation, whose logits stay constant."""
  optimizer = keras.optimizers.Adam(0.1)
  variables = estimator.trainable_variables
  optimizer.build(variables)
  logits = tf.constant(np.tile(LOGITS, [rows_per_step, 1]))
  q = tfd.OneHotCategorical(logits=logits)

  @tf.function
  def step(seed):
    with tf.GradientTape() as tape:
      loss = factor * tf.reduce_mean(
        tfp_rb.expectation(cost, q, estimator, seed=seed)
      )
    optimizer.apply(tape.gradient(loss, variables), variables)

  for n in range(num_steps):
    step(tf.constant([n, 5]))
  return estimator


def untrained(kind='quadratic'):
  temperature = tfp.util.TransformedVariable(
    np.float64(0.5), tfb.Exp(), dtype=tf.float64
  )
  if kind == 'quadratic':
    control_variate = Quadratic(np.zeros(4), np.zeros(4))
  else:
    keras.utils.set_random_seed(2)
    control_variate = keras.Sequential(
      [
        keras.layers.Dense(8, 'tanh', dtype='float64'),
        keras.layers.Dense(1, dtype='float64'),
      ]
    )
    control_variate.build([None, None, 4])
  return tfp_rb.RELAX(
    control_variate, temperature=temperature, scale=variable(1.0)
  )


@pytest.mark.parametrize(
  ('kind', 'factor'),
  [('quadratic', 1.0), ('quadratic', -1.0), ('network', 10.0)],
)
@pytest.mark.slow
def test_training_lowers_the_variance(kind, factor):
  """Requires a variance below a fifth of each of three variances.

  The three are the variance before training, REINFORCE's and REBAR's.

  Each variance is known up to a standard error of 1 %, so that it does not fall
  below a fifth by chance; training lowers it to a tenth.
  """
  estimator = untrained(kind)
  before, _ = variance_and_error(estimator)
  after, error = variance_and_error(trained(estimator, factor))
  reinforce, _ = variance_and_error(tfp_rb.REINFORCE())
  rebar, _ = variance_and_error(tfp_rb.REBAR(0.5))
  assert error < 0.01 * after
  assert after < 0.2 * min(before, reinforce, rebar)


def test_training_lowers_the_variance_of_rebar():
  temperature = tfp.util.TransformedVariable(
    np.float64(0.05), tfb.Exp(), dtype=tf.float64
  )
  estimator = tfp_rb.REBAR(temperature, scale=variable(0.1))
  before, _ = variance_and_error(estimator)
  after, error = variance_and_error(trained(estimator, -1.0))
  assert error < 0.01 * after
  assert after < 0.2 * before


# Rao-Blackwellization.


@pytest.mark.parametrize(
  ('name', 'restricted', 'num_samples'),
  covering_pairs(itertools.product(['REBAR', 'RELAX'], [True, False], [1, 2])),
)
@pytest.mark.slow
def test_summing_does_not_raise_the_variance(name, restricted, num_samples):
  """Compares the variances as more atoms are summed at equal numbers of draws.

  All variances use the same seeds and 20000 rows. If summing does not raise the
  variance, the test fails with probability below 1e-6 for each number of atoms:
  the limit is 5 standard errors of the difference.
  """
  squares = [
    squared_errors(
      gradients_of_rows(
        make(
          name,
          num_summed=k,
          restricted=restricted,
          num_samples=num_samples,
        )
      )
    )
    for k in range(4)
  ]
  for fewer, more in zip(squares, squares[1:]):
    lowered = fewer - more
    assert lowered.mean() > -5.0 * lowered.std() / np.sqrt(NUM_ROWS)
  # Summing some atoms instead of none certainly lowers the variance.
  lowered = squares[0] - squares[1]
  assert lowered.mean() > 5.0 * lowered.std() / np.sqrt(NUM_ROWS)
