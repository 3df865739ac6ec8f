"""A user's own Keras model: a subclass of `EstimatorModel` with one method."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import processes
from small_autoencoder import Autoencoder, Reporting, X, data_of, make, nvil
import tfp_rb
from tfp_rb import baselines, models


def compiled(*args, learning_rate=0.05, **kwargs):
  model = make(*args, **kwargs)
  model.compile(keras.optimizers.SGD(learning_rate), jit_compile=False)
  return model


def state_of(model):
  """All that training changes."""
  optimizers = (model.optimizer, model.estimator_optimizer)
  variables = [
    *model.weights,
    *model.estimator.variables,
    *[v for optimizer in optimizers if optimizer for v in optimizer.variables],
  ]
  return [np.asarray(v).copy() for v in variables]


def assert_same(states, others, rtol=0.0):
  for a, b in zip(states, others, strict=True):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


# Estimators with variables of their own.


def relax():
  keras.utils.set_random_seed(1)
  return tfp_rb.RELAX(
    models.ControlVariate(5, atom_size=4, units=3),
    temperature=tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp()),
  )


def learned():
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.Learned(0.5)), num_summed=1
  )


WITH_VARIABLES = pytest.mark.parametrize('estimate', [nvil, relax, learned])


# Steps.


def test_a_step_follows_the_gradient_of_the_exact_loss():
  model = compiled(tfp_rb.Exact(), learning_rate=0.1)
  variables = [v.value for v in model.trainable_variables]
  with tf.GradientTape() as tape:
    q = tf.nn.softmax(model(X))
    errors = tf.stack(
      [
        tf.reduce_sum((model.decoder(tf.one_hot([k], 4)) - X) ** 2, axis=-1)
        for k in range(4)
      ],
      axis=-1,
    )
    loss = tf.reduce_mean(tf.reduce_sum(q * errors, axis=-1))
  gradients = tape.gradient(loss, variables)
  expected = [v - 0.1 * g for v, g in zip(variables, gradients, strict=True)]
  history = model.fit(data_of(X), verbose=0).history
  assert history == {'loss': [pytest.approx(float(loss), rel=1e-6)]}
  assert_same(model.trainable_variables, expected, rtol=1e-5)


def test_batches_of_arrays_are_accepted_as_by_every_keras_model():
  model = compiled()
  history = model.fit(X, batch_size=5, epochs=2, verbose=0).history
  assert model.step == 6  # the last batch of an epoch has two rows
  assert np.all(np.isfinite(history['loss']))
  assert model.predict(X, verbose=0).shape == (12, 4)


def test_a_stack_of_batches_makes_the_same_steps_as_single_batches():
  one, several = (compiled(kind=Reporting) for _ in range(2))
  batches = [X, X[::-1], 2.0 * X]
  histories = [
    one.fit(data_of(*batches), verbose=0).history,
    several.fit(data_of(np.stack(batches)), verbose=0).history,
  ]
  assert one.step == several.step == 3
  assert_same(state_of(one), state_of(several), rtol=1e-5)
  for name in ('loss', 'mean', 'step'):
    assert histories[1][name] == pytest.approx(histories[0][name], rel=1e-5)


def test_without_a_rank_there_are_no_stacks():
  class Unstacked(Autoencoder):
    batch_rank = None

  model = compiled(kind=Unstacked)
  model.fit(data_of(np.stack([X, X])), verbose=0)
  assert model.step == 1


def test_each_step_draws_by_its_number_and_the_seed_of_the_model():
  def losses(model):
    model.compile(keras.optimizers.SGD(0.0), jit_compile=False)
    return model.fit(data_of(X), epochs=3, verbose=0).history['loss']

  first = losses(make(seed=1))
  assert len(set(first)) == 3
  assert losses(make(seed=1)) == first
  assert losses(make(seed=2))[0] != first[0]


def test_temperatures_follow_the_steps():
  estimator = tfp_rb.GumbelSoftmax(tfp_rb.AnnealedTemperature(rate=0.1))
  model = compiled(estimator)
  model.fit(data_of(X, X, X), verbose=0)
  assert estimator.temperature.step.numpy() == 2  # before the last step


# Metrics.


@pytest.mark.parametrize('jit_compile', [False, True])
def test_every_scalar_becomes_a_metric(jit_compile):
  model = make(kind=Reporting)
  model.compile(keras.optimizers.SGD(0.01), jit_compile=jit_compile)
  history = model.fit(data_of(X, X + 1.0), epochs=2, verbose=0).history
  assert sorted(history) == ['loss', 'mean', 'step']
  assert history['mean'] == pytest.approx([X.mean() + 0.5] * 2, rel=1e-4)
  assert history['step'] == [0.5, 2.5]
  assert [m.name for m in model.metrics] == ['loss', 'mean', 'step']


def test_names_that_are_declared_are_traced_once():
  class Counting(Reporting):
    num_traces = 0

    def compute_step_loss(self, batch, estimator, seed):
      self.num_traces += 1
      return super().compute_step_loss(batch, estimator, seed)

  class Declared(Counting):
    metric_names = ('loss', 'mean', 'step')

  traces = []
  for kind in (Counting, Declared):
    model = compiled(kind=kind)
    model.fit(data_of(X, X), verbose=0)
    traces.append(model.num_traces)
  assert traces == [2, 1]


def test_evaluation_is_repeatable_and_changes_nothing():
  model = compiled(nvil())
  model.fit(data_of(X), verbose=0)
  before = state_of(model)
  results = [model.evaluate(data_of(X), verbose=0) for _ in range(2)]
  assert results[0] == results[1]
  assert_same(state_of(model), before)
  assert model.evaluate(data_of(X + 0.1), verbose=0) != results[0]


def test_validation_is_reported_with_what_is_trained():
  model = compiled(kind=Reporting)
  history = model.fit(
    data_of(X), validation_data=data_of(X + 1.0), verbose=0
  ).history
  assert history['val_mean'] == pytest.approx([X.mean() + 1.0], rel=1e-4)


def test_evaluation_of_an_exact_loss_is_that_of_the_training():
  model = compiled(tfp_rb.Exact(), learning_rate=0.0)
  loss = model.fit(data_of(X), verbose=0).history['loss'][0]
  assert model.evaluate(data_of(X), verbose=0) == pytest.approx(loss, rel=1e-6)


# Variables of the estimator, and files.


@WITH_VARIABLES
@pytest.mark.parametrize(
  'has_own_optimizer', [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_variables_of_the_estimator_are_trained(estimate, has_own_optimizer):
  model = make(estimate())
  own = model.estimator.trainable_variables
  before = [np.asarray(v).copy() for v in own]
  model.compile(
    keras.optimizers.SGD(0.0 if has_own_optimizer else 0.01),
    estimator_optimizer='adam' if has_own_optimizer else None,
    jit_compile=False,
  )
  encoder = np.asarray(model.encoder.kernel).copy()
  model.fit(data_of(X, X), verbose=0)
  assert before
  for old, new in zip(before, own, strict=True):
    assert np.any(old != np.asarray(new)), new
  is_unchanged = np.all(encoder == np.asarray(model.encoder.kernel))
  assert is_unchanged == has_own_optimizer


@WITH_VARIABLES
def test_a_loaded_model_continues_identically(estimate, tmp_path):
  model = make(estimate(), units=4, activation='tanh', seed=7, name='mine')
  model.compile(
    keras.optimizers.Adam(0.01),
    estimator_optimizer=keras.optimizers.SGD(0.01),
    jit_compile=False,
  )
  model.fit(data_of(X, X), verbose=0)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')  # in safe mode
  assert (loaded.name, loaded.seed) == ('mine', 7)
  assert_same(state_of(loaded), state_of(model))
  for m in (model, loaded):
    m.fit(data_of(X, -X), verbose=0)
  assert_same(state_of(loaded), state_of(model), rtol=1e-6)


@WITH_VARIABLES
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(estimate, tmp_path):
  class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
      if epoch == 2:
        raise KeyboardInterrupt

  def run(folder, callbacks=()):
    model = compiled(estimate(), learning_rate=0.01)
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    model.fit(data_of(X), epochs=4, callbacks=[backup, *callbacks], verbose=0)
    return state_of(model)

  expected = run(tmp_path / 'whole')
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path / 'parts', [Stop()])
  assert_same(run(tmp_path / 'parts'), expected, rtol=1e-6)


def test_a_model_that_was_never_compiled_is_saved(tmp_path):
  model = make(nvil())
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_array_equal(model(X), loaded(X))
  model.save_weights(tmp_path / 'x.weights.h5')
  loaded.decoder.kernel.assign(tf.zeros([4, 5]))
  loaded.load_weights(tmp_path / 'x.weights.h5')
  assert_same(loaded.get_weights(), model.get_weights())


# Configs.


def test_a_config_holds_the_arguments_of_the_constructor():
  model = make(units=6, activation='tanh', name='mine', seed=np.int64(7))
  config = json.loads(json.dumps(model.get_config()))
  assert (config['units'], config['seed']) == (6, 7)
  assert config['activation'] == 'tanh'
  assert config['name'] == 'mine'
  assert config['estimator']['registered_name'] == 'tfp_rb>REINFORCE'
  copy = Autoencoder.from_config(config)
  assert copy.decoder.kernel.shape == (6, 5)
  assert copy.get_config() == model.get_config()


@keras.saving.register_keras_serializable('test_estimator_model')
class Wrapping(Autoencoder):
  """Makes its estimator of one it is given, and takes no other arguments."""

  def __init__(self, estimator, baseline=None, schedule=None):
    super().__init__(tfp_rb.rao_blackwellize(estimator, num_summed=1))
    self.baseline, self.schedule = baseline, schedule


def test_a_config_holds_arguments_as_they_were_given(tmp_path):
  schedule = keras.optimizers.schedules.ExponentialDecay(0.5, 10, 0.1)
  model = Wrapping(
    tfp_rb.REINFORCE(num_samples=3), baselines.Learned(2.0), schedule
  )
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  assert repr(loaded.estimator) == repr(model.estimator)
  assert loaded.baseline.initial_value == 2.0
  assert loaded.schedule.get_config() == schedule.get_config()


class OfTheUser(tfp_rb.REINFORCE):
  """An estimator that is not registered with Keras."""


def test_an_estimator_of_the_user_needs_no_registration(tmp_path):
  model = make(OfTheUser(num_samples=2))
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  assert type(loaded.estimator) is OfTheUser


def test_keras_layers_of_the_user_hold_estimators():
  layer = models.EstimatorLayer(learned())
  copy = models.EstimatorLayer.from_config(layer.get_config())
  assert copy.get_config() == layer.get_config()


# Errors.


@pytest.mark.parametrize('estimator', [tfp_rb.REINFORCE, 'REINFORCE', None])
def test_only_estimators_are_estimators(estimator):
  with raises(TypeError, 'estimator'):
    Autoencoder(estimator)


def test_the_method_must_be_defined():
  class Nothing(models.EstimatorModel):
    pass

  model = Nothing(learned())
  model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
  with raises(NotImplementedError, 'compute_step_loss'):
    model.fit(data_of(X), verbose=0)


@pytest.mark.parametrize(
  'found', [{'error': 0.0}, [1.0, 2.0], {'loss': 0.0, 'errors': [1.0]}]
)
def test_what_is_no_scalar_loss_is_refused(found):
  class Wrong(Autoencoder):
    def compute_step_loss(self, batch, estimator, seed):
      return found

  with raises(ValueError, 'compute_step_loss'):
    make(kind=Wrong).step_metrics((X,), [0, 1])


def test_layers_must_be_built():
  class Unbuilt(Autoencoder):
    def __init__(self, estimator):
      super().__init__(estimator)
      self.last = keras.layers.Dense(3, name='last')

  model = make(kind=Unbuilt)
  model(X)  # builds only what `call` uses
  assert not model.built
  with raises(ValueError, 'last'):
    model.compile()


@pytest.mark.parametrize('name', ['loss', 'metrics'])
def test_a_loss_of_keras_is_refused(name):
  with raises(ValueError, name):
    make().compile('adam', **{name: 'mse'})


# Two replicas.

ON_TWO_DEVICES = """
import keras
import numpy as np
import pytest
import tensorflow as tf

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(
  cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
from small_autoencoder import X, Reporting, data_of, make, nvil
import tfp_rb

two = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
found = []
for strategy in (tf.distribute.get_strategy(), two):
  with strategy.scope():
    model = make(tfp_rb.Exact(), kind=Reporting)
    model.compile(keras.optimizers.SGD(0.05), jit_compile=False)
  history = model.fit(data_of(X, X + 1.0), epochs=2, verbose=0).history
  found.append((model.get_weights(), history))
(weights, history), (others, other_history) = found
for a, b in zip(weights, others, strict=True):
  np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
for name in ('loss', 'mean', 'step'):
  np.testing.assert_allclose(history[name], other_history[name], rtol=1e-5)

with two.scope():
  model = make(nvil())
  model.compile(keras.optimizers.SGD(0.05), jit_compile=False)
with pytest.raises(ValueError, match='replica'):
  model.fit(data_of(np.stack([X, X])), verbose=0)
"""


@pytest.mark.slow
def test_two_replicas_make_the_steps_and_the_metrics_of_one():
  # In a process of its own: devices are set before the first operation.
  processes.run(ON_TWO_DEVICES)
