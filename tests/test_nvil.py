# SPDX-License-Identifier: Apache-2.0
"""NVIL: the regression of its baseline, centering and normalization."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import is_draw, split_seed
import tfp_rb

tfd = tfp.distributions

LOGITS = [[1.5, 0.2, -0.3, 0.1], [0.0, 0.3, 2.0, -1.0]]
COST = [3.0, -1.0, 2.0, 5.0]
SEED = [4, 2]
SPLITS = [{'num_summed': 0}, {'num_summed': 2}, {'budget': 3}]


def cost(z):
  return tf.gather(tf.constant(COST), z)


def rao_blackwellized(split, num_samples=3, **arguments):
  def make(baseline):
    estimator = tfp_rb.NVIL(baseline, num_samples=num_samples, **arguments)
    return tfp_rb.rao_blackwellize(estimator, **split)

  return make


def draws_of(estimator, q):
  """Returns `f` at the draws from the rest, and marks which atoms these are."""
  seed = split_seed(SEED, n=2)[0]
  atoms = estimator.sample_atoms(q, seed)
  return cost(atoms.values).numpy(), is_draw(atoms).numpy()


@pytest.mark.parametrize('split', SPLITS, ids=str)
@pytest.mark.parametrize('weights', [(1.0, 1.0), (-2.0, 0.0)], ids=str)
def test_regression_is_over_the_draws_of_each_row(split, weights):
  level = tf.Variable([0.5, -1.0])
  q = tfd.Categorical(logits=LOGITS)
  estimator = rao_blackwellized(split)(level)
  with tf.GradientTape() as tape:
    loss = tfp_rb.expectation(cost, q, estimator, seed=SEED)
    total = tf.reduce_sum(weights * loss)
  value, drawn = draws_of(estimator, q)
  error = 2.0 * (level.numpy() - value)
  # The error is minimized, whatever the sign of the loss.
  expected = np.abs(weights) * np.sum(drawn * error, 0) / np.sum(drawn, 0)
  np.testing.assert_allclose(tape.gradient(total, level), expected, rtol=1e-5)


def test_nothing_is_regressed_where_everything_is_summed():
  level = tf.Variable([0.5, -1.0])
  with tf.GradientTape() as tape:
    loss = tfp_rb.expectation(
      cost,
      tfd.Categorical(logits=LOGITS),
      rao_blackwellized({'num_summed': 4})(level),
    )
  np.testing.assert_array_equal(tape.gradient(loss, level), [0.0, 0.0])


@pytest.mark.parametrize('split', SPLITS, ids=str)
def test_gradient_is_that_of_a_constant_baseline(split):
  level = tf.Variable([0.5, -1.0])
  results = []
  for make in (
    rao_blackwellized(split),
    lambda b: tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baseline=b.value(), num_samples=3), **split
    ),
  ):
    logits, slope = tf.Variable(LOGITS), tf.Variable(1.5)
    with tf.GradientTape() as tape:
      loss = tfp_rb.expectation(
        lambda z, slope=slope: slope * cost(z),
        tfd.Categorical(logits=logits),
        make(level),
        seed=SEED,
      )
    results.append([loss, *tape.gradient(loss, [logits, slope])])
  for a, b in zip(*results):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_callable_is_called_once_for_each_expectation():
  calls = []

  def baseline():
    calls.append(1)
    return tf.constant([0.0, 1.0])

  estimator = tfp_rb.NVIL(baseline)
  for _ in range(2):
    tfp_rb.expectation(cost, tfd.Categorical(logits=LOGITS), estimator)
  assert len(calls) == 2


def test_one_tape_trains_model_and_network():
  keras.utils.set_random_seed(1)
  images = tf.constant([[1.0, 0.0], [0.0, 1.0]])
  network = keras.Sequential(
    [keras.layers.Dense(8, activation='tanh'), keras.layers.Dense(1)]
  )
  network.build([None, 2])
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.NVIL(lambda: network(images)[:, 0], num_samples=256), num_summed=1
  )
  optimizer = keras.optimizers.Adam(0.05)
  optimizer.build(network.trainable_variables)
  variables = [v.value for v in network.trainable_variables]
  q = tfd.Categorical(logits=LOGITS)

  @tf.function(jit_compile=True, autograph=False)
  def step(seed):
    with tf.GradientTape() as tape:
      loss = tfp_rb.expectation(cost, q, estimator, seed=seed)
      loss = tf.reduce_sum(loss)
    gradients = tape.gradient(loss, variables)
    # This step is inside, because outside it would take most of the time.
    optimizer.apply_gradients(zip(gradients, network.trainable_variables))

  for i in range(150):
    step(tf.constant([1, i]))
  best = tfp_rb.partition(q, 1)
  probs = q.probs_parameter().numpy()
  over_all = probs @ COST
  probs[[0, 1], best.values.numpy()[0]] = 0.0
  over_rest = probs @ COST / probs.sum(axis=1)
  # The mean of a batch has a standard deviation of 0.15, and Adam averages over
  # batches.
  np.testing.assert_allclose(network(images)[:, 0], over_rest, atol=0.2)
  assert np.all(np.abs(over_rest - over_all) > 0.4)


def test_inputs_of_each_step_are_bound_to_one_estimator():
  network = keras.Sequential([keras.layers.Dense(1)])
  nvil = tfp_rb.NVIL(network, center=True)
  q = tfd.Categorical(logits=LOGITS)

  @tf.function
  def step(images):
    with tf.GradientTape() as tape:
      estimator = tfp_rb.rao_blackwellize(
        nvil.with_inputs(images), num_summed=1
      )
      loss = tfp_rb.expectation(cost, q, estimator, seed=SEED)
      loss = tf.reduce_sum(loss)
    return tape.gradient(loss, [v.value for v in network.trainable_variables])

  images = tf.constant([[1.0, 0.0], [0.0, 1.0]])
  network(images)
  first, again = step(images), step(2.0 * images)
  assert np.all(np.abs(first[0]) > 0.0)
  assert not np.array_equal(first[0], again[0])
  assert nvil.moving_mean != 0.0
  assert {id(v) for v in nvil.trainable_variables} == {
    id(v) for v in network.trainable_variables
  }


# Centering and normalization.


def test_averages_move_by_the_signal_of_the_draws():
  q = tfd.Categorical(logits=LOGITS)
  level = tf.constant([0.5, -1.0])
  nvil = tfp_rb.NVIL(level, center=True, normalize=True, num_samples=3)
  estimator = tfp_rb.rao_blackwellize(nvil, num_summed=1)
  value, drawn = draws_of(estimator, q)
  signal = (value - level.numpy())[drawn]
  for step in (1, 2):
    tfp_rb.expectation(cost, q, estimator, seed=SEED)
    # The average starts at 0 and has the decay of the original.
    share = 1.0 - 0.8**step
    np.testing.assert_allclose(
      nvil.moving_mean, share * np.mean(signal), rtol=1e-5
    )
    np.testing.assert_allclose(
      nvil.moving_variance, share * np.var(signal), rtol=1e-5
    )


def test_averages_rest_where_nothing_is_drawn():
  nvil = tfp_rb.NVIL(tf.constant(0.0), center=True)
  nvil.moving_mean.assign(3.0)
  estimator = tfp_rb.rao_blackwellize(nvil, num_summed=4)
  tfp_rb.expectation(cost, tfd.Categorical(logits=LOGITS), estimator)
  assert nvil.moving_mean == 3.0


def test_averages_are_variables_that_are_not_trained():
  nvil = tfp_rb.NVIL(tf.constant(0.0), center=True)
  assert len(nvil.variables) == 2
  assert not nvil.trainable_variables
  assert not tfp_rb.NVIL(tf.constant(0.0)).variables


def gradient_of(estimator, f=cost):
  logits = tf.Variable(LOGITS)
  with tf.GradientTape() as tape:
    q = tfd.Categorical(logits=logits)
    loss = tfp_rb.expectation(f, q, estimator, seed=SEED)
  return tape.gradient(loss, logits)


def test_centring_subtracts_the_average_of_the_steps_before():
  nvil = tfp_rb.NVIL(tf.constant(0.5), center=True, num_samples=3)
  nvil.moving_mean.assign(2.0)
  np.testing.assert_allclose(
    gradient_of(nvil),
    gradient_of(tfp_rb.REINFORCE(baseline=2.5, num_samples=3)),
    rtol=1e-5,
    atol=1e-6,
  )


@pytest.mark.parametrize(('variance', 'scale'), [(16.0, 0.25), (0.3, 1.0)])
def test_normalisation_divides_by_a_deviation_above_one(variance, scale):
  nvil = tfp_rb.NVIL(tf.constant(0.5), normalize=True, num_samples=3)
  nvil.moving_variance.assign(variance)
  plain = gradient_of(tfp_rb.REINFORCE(baseline=0.5, num_samples=3))
  np.testing.assert_allclose(
    gradient_of(nvil), scale * plain, rtol=1e-5, atol=1e-6
  )


def test_centring_is_unbiased_while_its_average_does_not_move(monkeypatch):
  monkeypatch.setattr(tfp_rb.NVIL, '_update', lambda *arguments: None)
  nvil = tfp_rb.NVIL(tf.constant(0.5, tf.float64), center=True)
  nvil.moving_mean.assign(-3.0)
  estimator = tfp_rb.rao_blackwellize(nvil, num_summed=1)
  assert tfp_rb.testing.assert_unbiased(estimator).is_exact


# Errors.


@pytest.mark.parametrize('baseline', [3.0, None, 'mean'])
def test_baseline_must_be_a_tensor_or_callable(baseline):
  with raises(TypeError, 'baseline'):
    tfp_rb.NVIL(baseline)


def test_a_network_without_its_inputs_says_how_to_give_them():
  q = tfd.Categorical(logits=LOGITS)
  with raises(TypeError, 'baseline'):
    tfp_rb.expectation(cost, q, tfp_rb.NVIL(lambda x: x))


@pytest.mark.parametrize('shape', [[2, 2], [3]], ids=str)
def test_baseline_must_have_the_batch_shape(shape):
  q = tfd.Categorical(logits=LOGITS)
  with raises(ValueError, 'baseline'):
    tfp_rb.expectation(cost, q, tfp_rb.NVIL(tf.zeros(shape)))
