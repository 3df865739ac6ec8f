# SPDX-License-Identifier: Apache-2.0
"""The Keras callback that measures gradients while a model is trained."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import tfp_rb
from tfp_rb import diagnostics, models

tfd = tfp.distributions

COST = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
BATCH = (np.random.default_rng(3).normal(size=[6, 4]).astype(np.float32),)


def summed():
  return tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)


class Tiny(models.EstimatorModel):
  """A model of one layer, whose outputs are the logits of a choice."""

  def __init__(self, estimator):
    super().__init__(estimator)
    self.layer = keras.layers.Dense(4)
    self.layer.build([None, 4])

  def compute_step_loss(self, batch, estimator, seed):
    (x,) = batch
    q = tfd.OneHotCategorical(logits=self.layer(x), dtype=tf.float32)
    f = lambda z: tf.reduce_sum(z * COST, axis=-1) ** 2
    rest = 1.0 - tf.reduce_max(q.probs_parameter(), axis=-1)
    loss = tfp_rb.expectation(f, q, estimator, seed=seed)
    return {'loss': tf.reduce_mean(loss), 'rest': tf.reduce_mean(rest)}


def annealed():
  """Returns an estimator that keeps the step in its own variable."""
  return tfp_rb.GumbelSoftmax(tfp_rb.AnnealedTemperature(rate=0.01))


def fit(estimator, callbacks, jit_compile=False, epochs=2):
  keras.utils.set_random_seed(0)
  model = Tiny(estimator)
  model.compile(keras.optimizers.Adam(0.01), jit_compile=jit_compile)
  data = tf.data.Dataset.from_tensors(BATCH).repeat(2)
  model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
  return model


def events(folder):
  """Returns steps and values by tag."""
  found = {}
  for path in sorted(pathlib.Path(folder).iterdir()):
    for event in tf.compat.v1.train.summary_iterator(str(path)):
      for value in event.summary.value:
        number = float(tf.make_ndarray(value.tensor))
        found.setdefault(value.tag, []).append((event.step, number))
  return found


def state_of(model):
  """Returns everything that training changes."""
  variables = [*model.estimator.variables, *model.optimizer.variables]
  return [*model.get_weights(), *[np.asarray(v).copy() for v in variables]]


@pytest.fixture(scope='module')
def measured(tmp_path_factory):
  """Fits a model with the callback; returns it, its state, and the events."""
  folder = tmp_path_factory.mktemp('logs')
  callback = diagnostics.GradientVariance(
    folder, batch=BATCH, every=2, num_pairs=3, seed=4
  )
  model = fit(annealed(), [callback], epochs=4)
  return model, state_of(model), events(folder)


def test_training_is_the_same_with_the_callback(measured):
  without = state_of(fit(annealed(), [], epochs=4))
  for a, b in zip(without, measured[1], strict=True):
    np.testing.assert_array_equal(a, b)


def test_what_is_logged_is_what_is_measured(measured):
  model, _, found = measured
  assert all([step for step, _ in rows] == [1, 3] for rows in found.values())
  last = {tag: rows[-1][1] for tag, rows in found.items()}
  moments = diagnostics.sampled_moments(
    lambda seed: model.step_metrics(BATCH, seed)['loss'],
    model.trainable_variables,
    num_pairs=3,
    seed=4,
  )
  seeds = [tf.constant([4, i]) for i in range(6)]
  rests = [model.step_metrics(BATCH, seed)['rest'] for seed in seeds]
  expected = {
    'gradient_variance': moments.variance,
    'gradient_variance_low': moments.interval[0],
    'gradient_variance_high': moments.interval[1],
    'rest': np.mean(rests),
  }
  assert last.keys() == expected.keys()
  for tag, value in expected.items():
    np.testing.assert_allclose(last[tag], value, rtol=1e-5)


def test_it_writes_beside_keras_own_summaries(tmp_path):
  callback = diagnostics.GradientVariance(
    tmp_path / 'a', batch=BATCH, num_pairs=2
  )
  # This callback lets summaries pass only at every 100th step.
  other = keras.callbacks.TensorBoard(
    str(tmp_path / 'b'), update_freq=100, write_graph=False
  )
  fit(summed(), [other, callback], epochs=2)
  assert [step for step, _ in events(tmp_path / 'a')['rest']] == [0, 1]


class WithAverages(Tiny):
  """A model with state of its own."""

  def __init__(self, estimator):
    super().__init__(estimator)
    self.normalization = keras.layers.BatchNormalization()
    self.normalization.build([None, 4])

  def compute_step_loss(self, batch, estimator, seed):
    x = self.normalization(*batch, training=True)
    return super().compute_step_loss((x,), estimator, seed)


@pytest.mark.slow
def test_averages_of_layers_are_put_back(tmp_path):
  def averages(callbacks):
    keras.utils.set_random_seed(0)
    model = WithAverages(summed())
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    data = tf.data.Dataset.from_tensors(BATCH).repeat(2)
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    return model.get_weights()

  callback = diagnostics.GradientVariance(tmp_path, batch=BATCH, num_pairs=2)
  for a, b in zip(averages([]), averages([callback]), strict=True):
    np.testing.assert_array_equal(a, b)


def test_the_callback_needs_a_compiled_model(tmp_path):
  callback = diagnostics.GradientVariance(tmp_path, batch=BATCH)
  with raises(ValueError, 'compile'):
    callback.set_model(Tiny(summed()))


@pytest.mark.slow
def test_a_compiled_model_is_measured_too(tmp_path):
  callback = diagnostics.GradientVariance(tmp_path, batch=BATCH, num_pairs=2)
  fit(summed(), [callback], jit_compile=True, epochs=1)
  ((step, variance),) = events(tmp_path)['gradient_variance']
  assert step == 0
  assert variance > 0.0


def test_the_callback_needs_a_model_with_a_loss_of_a_step(tmp_path):
  callback = diagnostics.GradientVariance(tmp_path, batch=BATCH)
  with raises(TypeError, 'model'):
    callback.set_model(keras.Sequential())


@pytest.mark.parametrize(('name', 'value'), [('every', 0), ('num_pairs', 1)])
def test_numbers_of_the_callback_are_checked(name, value):
  with raises(ValueError, name):
    diagnostics.GradientVariance('', batch=BATCH, **{name: value})
