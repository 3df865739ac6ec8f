# SPDX-License-Identifier: Apache-2.0
"""A learned baseline trains with the loss, downhill, and disturbs nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from internals import estimate_with_draws
import tfp_rb

tfd = tfp.distributions

# The first value is likely; the other three are equally likely.
PROBS = np.array([0.55, 0.15, 0.15, 0.15])
COSTS = np.array([-4.0, 3.0, 5.0, 10.0])


def cost(z):
  return tf.gather(tf.constant(COSTS), z)


def make(initial_value=1.0, num_samples=1, **kwargs):
  """Returns a Rao-Blackwellized estimator and the variable of its baseline."""
  baseline = tfp_rb.baselines.Learned(tf.constant(initial_value, tf.float64))
  estimator = tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples)
  if kwargs:
    estimator = tfp_rb.rao_blackwellize(estimator, **kwargs)
  return estimator, baseline.level


def gradient_of_level(estimator, level, q, scale=1.0, draws=None):
  """Returns the gradient of `scale` times the loss w.r.t. the level.

  If `draws` are given, they replace those of the seed.

  Args:
    estimator: The estimator.
    level: The variable of its baseline.
    q: The distribution.
    scale: A factor of the loss.
    draws: List of the draws, each entry of batch shape, or `None`.

  Returns:
    gradient: A number.
  """

  def script(partition, num_draws):
    del partition
    assert num_draws == len(draws)
    return tf.constant(draws, tf.int32)

  with tf.GradientTape() as tape:
    if draws is None:
      value = tfp_rb.expectation(cost, q, estimator, seed=[0, 0])
    else:
      value = estimate_with_draws(cost, q, estimator, script)
    loss = scale * value
  return tape.gradient(loss, level).numpy()


def regression_gradient(level, draws):
  """Returns the derivative of the mean of `(f - b)^2` over the draws."""
  return np.mean([-2.0 * (COSTS[z] - level) for z in draws])


@pytest.mark.parametrize('scale', [1.0, -1.0, 7.0])
@pytest.mark.parametrize('split', [{}, {'num_summed': 1}, {'budget': 3}])
def test_first_step_is_downhill_whatever_multiple_of_the_loss_is_minimised(
  split, scale
):
  estimator, level = make(initial_value=0.5, **split)
  q = tfd.Categorical(probs=PROBS)
  gradient = gradient_of_level(estimator, level, q)
  scaled = gradient_of_level(estimator, level, q, scale)
  assert gradient != 0.0
  np.testing.assert_allclose(scaled, np.abs(scale) * gradient, rtol=1e-12)


@pytest.mark.parametrize('scale', [1.0, -1.0, 7.0])
def test_first_step_of_an_optimizer_brings_the_level_nearer_to_f(scale):
  estimator, level = make(initial_value=0.0, num_summed=1)
  q = tfd.Categorical(probs=PROBS)
  optimizer = keras.optimizers.SGD(0.01)
  gradient = gradient_of_level(estimator, level, q, scale)
  optimizer.apply([gradient], [level])
  assert 0.0 < level.numpy() < np.min(COSTS[1:])


@pytest.mark.parametrize('draws', [(1, 2), (3, 3), (2, 1)])
def test_regression_is_over_the_draws_from_the_rest(draws):
  estimator, level = make(1.5, num_samples=2, num_summed=1)
  actual = gradient_of_level(
    estimator, level, tfd.Categorical(probs=PROBS), draws=[*draws]
  )
  expected = regression_gradient(1.5, draws)
  np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize('split', [{}, {'num_summed': 0}])
def test_regression_is_over_all_draws_where_nothing_is_summed(split):
  estimator, level = make(1.5, num_samples=3, **split)
  actual = gradient_of_level(
    estimator, level, tfd.Categorical(probs=PROBS), draws=[0, 3, 0]
  )
  expected = regression_gradient(1.5, [0, 3, 0])
  np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize('split', [{'num_summed': 4}, {'budget': 4}])
def test_gradient_of_the_level_is_zero_where_nothing_is_drawn(split):
  estimator, level = make(1.5, **split)
  q = tfd.Categorical(probs=PROBS)
  assert gradient_of_level(estimator, level, q) == 0.0


def test_regression_under_a_budget_is_over_what_is_drawn():
  # There are 3 atoms: the likely value is summed, and two others are drawn.
  estimator, level = make(1.5, budget=3)
  actual = gradient_of_level(
    estimator, level, tfd.Categorical(probs=PROBS), draws=[0, 3, 2]
  )
  expected = regression_gradient(1.5, [3, 2])
  np.testing.assert_allclose(actual, expected, rtol=1e-12)


@pytest.mark.parametrize('split', [{'num_summed': 2}, {'budget': 3}])
def test_rows_whose_rest_is_empty_do_not_count(split):
  logits = np.log(PROBS)
  one_value = np.array([0.0, -np.inf, -np.inf, -np.inf])
  q = tfd.Categorical(logits=np.stack([logits, one_value, logits]))
  alone = tfd.Categorical(logits=np.stack([logits, logits]))
  estimator, level = make(1.5, **split)
  num_draws = 1 if 'num_summed' in split else 3
  actual = gradient_of_level(
    estimator, level, q, draws=[*[[3, 0, 2]] * num_draws]
  )
  without_row = gradient_of_level(
    estimator, level, alone, draws=[*[[3, 2]] * num_draws]
  )
  expected = regression_gradient(1.5, [3]) + regression_gradient(1.5, [2])
  np.testing.assert_allclose(without_row, expected, rtol=1e-12)
  np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_each_row_weighs_as_its_share_of_the_loss():
  estimator, level = make(1.5, num_summed=1)
  q = tfd.Categorical(probs=np.stack([PROBS, PROBS]))
  shares = tf.constant([-2.0, 0.5], tf.float64)
  actual = gradient_of_level(estimator, level, q, shares, draws=[[1, 3]])
  first, second = (regression_gradient(1.5, [z]) for z in (1, 3))
  np.testing.assert_allclose(actual, 2.0 * first + 0.5 * second, rtol=1e-12)


@pytest.mark.parametrize('split', [{}, {'num_summed': 1}, {'budget': 3}])
def test_regression_reaches_only_the_level(split):
  """Checks that all else is as with a constant baseline of the same level."""
  logits = tf.Variable(np.log(PROBS))
  scale = tf.Variable(np.float64(1.3))
  results = []
  constant = tfp_rb.REINFORCE(baseline=2.0)
  if split:
    constant = tfp_rb.rao_blackwellize(constant, **split)
  for estimator in (make(2.0, **split)[0], constant):
    with tf.GradientTape() as tape:
      loss = tfp_rb.expectation(
        lambda z: scale * cost(z),
        tfd.Categorical(logits=logits),
        estimator,
        seed=[3, 4],
      )
    results.append([loss, *tape.gradient(loss, [logits, scale])])
  for learned, given in zip(*results):
    np.testing.assert_allclose(learned, given, rtol=1e-14)


@pytest.mark.parametrize('split', [{}, {'num_summed': 1}, {'budget': 3}])
def test_value_does_not_depend_on_the_level(split):
  q = tfd.Categorical(probs=PROBS)
  values = [
    tfp_rb.expectation(cost, q, make(level, **split)[0], seed=[1, 2])
    for level in (0.0, 100.0)
  ]
  assert values[0] == values[1]


@pytest.mark.parametrize(
  ('num_summed', 'expected'), [(0, 0.5), (1, 6.0), (2, 7.5), (3, 10.0)]
)
def test_training_brings_the_level_to_the_mean_of_f_over_the_rest(
  num_summed, expected
):
  """Draws each value of the rest as often as it is probable."""
  often = [0] * 11 + [1] * 3 + [2] * 3 + [3] * 3
  draws = [z for z in often if z >= num_summed]
  estimator, level = make(
    num_samples=len(draws), num_summed=num_summed, initial_value=-3.0
  )
  optimizer = keras.optimizers.SGD(0.4)  # each step leaves a fifth of the error
  q = tfd.Categorical(probs=PROBS)
  for _ in range(12):
    gradient = gradient_of_level(estimator, level, q, draws=draws)
    optimizer.apply([gradient], [level])
  np.testing.assert_allclose(level.numpy(), expected, rtol=0.0, atol=1e-6)


def test_training_on_real_draws_brings_the_level_to_the_mean_over_the_rest():
  """With steps `1 / (2 t)`, the level is the mean of f over all draws so far.

  There are 1000 draws in each of 20 steps, so the standard deviation of the
  level is that of f over the rest, 2.944, divided by 141. A right level passes
  with probability 1 - 1e-6 (4.9 standard deviations, 0.102); the mean of f over
  all values is 5.5 away.
  """
  estimator, level = make(num_samples=1000, num_summed=1, initial_value=0.0)
  q = tfd.Categorical(probs=PROBS)
  for step in range(20):
    with tf.GradientTape() as tape:
      loss = tfp_rb.expectation(cost, q, estimator, seed=[step, 7])
    level.assign_sub(tape.gradient(loss, level) / (2.0 * (step + 1)))
  np.testing.assert_allclose(level.numpy(), 6.0, rtol=0.0, atol=0.102)


def test_one_tape_trains_distribution_function_and_baseline():
  logits = tf.Variable(np.log(PROBS))
  target = tf.Variable(np.float64(2.0))
  estimator, level = make(0.0, num_samples=2, num_summed=1)
  variables = [logits, target, *estimator.trainable_variables]
  assert variables[-1] is level
  optimizer = keras.optimizers.SGD(0.1)

  def loss_fn(estimator, seed):
    # The loss is least if q is concentrated on the value 0, whose cost is -4,
    # and the target is -3.
    return tfp_rb.expectation(
      lambda z: 14.0 + cost(z) + (target + 3.0) ** 2,
      tfd.Categorical(logits=logits),
      estimator,
      seed=seed,
    )

  first_loss = loss_fn(tfp_rb.Exact(), seed=None)
  for step in range(25):
    with tf.GradientTape() as tape:
      loss = loss_fn(estimator, seed=[step, 0])
    gradients = tape.gradient(loss, variables)
    assert all(g is not None for g in gradients)
    optimizer.apply(gradients, variables)
  assert first_loss > 39.0
  assert loss_fn(tfp_rb.Exact(), seed=None) < 12.0
  np.testing.assert_allclose(target.numpy(), -3.0, atol=0.1)
  assert 16.0 < level.numpy() < 25.0  # f lies in [17, 24] on the rest


def test_numpy_scalar_sets_the_dtype_of_the_level():
  """Checks what the docstring of `Learned` says."""
  level = tfp_rb.baselines.Learned(np.float64(1.5)).level
  assert level.dtype == tf.float64


# Variables in attributes that are not `tf.Module`s.


class Network(tfp_rb.GradientEstimator):
  """REINFORCE with a Keras network as a baseline for each batch member."""

  def __init__(self, network, inputs=None):
    super().__init__()
    self.network = network
    self.inputs = inputs

  def evaluate(self, f, distribution, atoms, seed):
    del distribution, seed
    layer = self.network[0] if isinstance(self.network, list) else self.network
    value = f(atoms.values)
    level = layer(self.inputs)[:, 0]
    advantage = tf.stop_gradient(value - level)
    return tfp_rb.Estimate(
      value,
      surrogate=value + advantage * atoms.log_prob,
      auxiliary=tf.reduce_mean((tf.stop_gradient(value) - level) ** 2, axis=0),
    )


def dense(units=1):
  layer = keras.layers.Dense(units)
  layer.build([None, 3])
  return layer


def assert_same_variables(actual, expected):
  assert [id(v) for v in actual] == [id(v) for v in expected]


def test_variables_of_an_attached_keras_layer_are_collected():
  layer = dense()
  estimator = Network(layer)
  assert len(layer.trainable_variables) == 2
  assert_same_variables(
    estimator.trainable_variables, layer.trainable_variables
  )
  assert_same_variables(estimator.variables, layer.variables)


def test_variables_of_keras_layers_in_a_list_are_collected():
  layers = [dense(), dense(2)]
  expected = layers[0].trainable_variables + layers[1].trainable_variables
  assert_same_variables(Network(layers).trainable_variables, expected)


def test_variables_of_keras_layers_in_a_dict_are_collected():
  layers = {'first': dense(), 'second': dense(2)}
  expected = [v for layer in layers.values() for v in layer.trainable_variables]
  assert_same_variables(Network(layers).trainable_variables, expected)


def test_variables_of_a_layer_that_is_attached_twice_are_listed_once():
  layer = dense()
  estimator = Network([layer, layer])
  estimator.again = layer
  assert_same_variables(
    estimator.trainable_variables, layer.trainable_variables
  )


def test_variables_are_collected_through_rao_blackwellization():
  layer = dense()
  estimator = tfp_rb.rao_blackwellize(Network(layer), num_summed=1)
  assert_same_variables(
    estimator.trainable_variables, layer.trainable_variables
  )


def test_frozen_keras_variables_are_variables_but_not_trainable():
  layer = dense()
  layer.trainable = False
  estimator = Network(layer)
  assert estimator.trainable_variables == ()
  assert len(estimator.variables) == 2


def test_variables_of_module_layer_and_own_come_without_duplicates():
  layer = dense()
  estimator = Network(layer)
  estimator.baseline = tfp_rb.baselines.Learned()
  estimator.own = tf.Variable(1.0)
  expected = {id(estimator.own), id(estimator.baseline.level)}
  expected |= {id(v) for v in layer.trainable_variables}
  actual = [id(v) for v in estimator.trainable_variables]
  assert len(actual) == len(expected)
  assert set(actual) == expected


@pytest.mark.parametrize('in_a_list', [False, True])
def test_one_tape_reaches_an_attached_keras_layer(in_a_list):
  layer = dense()
  inputs = tf.constant([[1.0, 0.0, 2.0], [0.0, -1.0, 1.0]])
  estimator = tfp_rb.rao_blackwellize(
    Network([layer] if in_a_list else layer, inputs), num_summed=1
  )
  q = tfd.Categorical(probs=np.stack([PROBS, PROBS]).astype(np.float32))
  with tf.GradientTape() as tape:
    loss = tfp_rb.expectation(
      lambda z: tf.cast(cost(z), tf.float32), q, estimator, seed=[0, 0]
    )
  gradients = tape.gradient(loss, estimator.trainable_variables)
  assert all(np.any(g != 0.0) for g in gradients)
