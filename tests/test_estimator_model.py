# SPDX-License-Identifier: Apache-2.0
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
  """Returns everything that training changes."""
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
  # This is the value before the last step.
  assert estimator.temperature.step.numpy() == 2


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
  # The model loads in safe mode.
  loaded = keras.models.load_model(tmp_path / 'model.keras')
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


class Plain(keras.Model):
  """A model that has its own `train_step` and holds an estimator."""

  def __init__(self, estimator=None, **kwargs):
    super().__init__(**kwargs)
    self.encoder = keras.layers.Dense(4)
    self.encoder.build([None, 5])
    estimator = nvil() if estimator is None else estimator
    self.chosen = models.EstimatorLayer(estimator)
    self.built = True

  def call(self, x):
    return self.encoder(x)

  def train_step(self, data):
    (x,) = data
    cost = tf.range(4.0)
    with tf.GradientTape() as tape:
      q = tfp.distributions.Categorical(logits=self(x))
      loss = tf.reduce_mean(
        tfp_rb.expectation(
          lambda z: tf.gather(cost, z),
          q,
          self.chosen.estimator.bind(x),
          seed=tf.stack([0, tf.cast(self.optimizer.iterations, tf.int32)]),
        )
      )
    own = self.trainable_variables
    self.optimizer.apply(tape.gradient(loss, own), own)
    return {'loss': loss}

  def get_config(self):
    return {}


@WITH_VARIABLES
def test_a_plain_model_with_an_estimator_trains_on_after_loading(
  estimate, tmp_path
):
  class Model(Plain):
    def __init__(self, **kwargs):
      super().__init__(learned() if estimate is relax else estimate(), **kwargs)

  keras.utils.set_random_seed(0)
  model = Model()
  model.compile(keras.optimizers.Adam(0.01))
  model.fit(data_of(X, X).unbatch().batch(12), verbose=0, shuffle=False)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(
    tmp_path / 'model.keras', custom_objects={'Model': Model}
  )
  for m in (model, loaded):
    m.fit(data_of(X, -X).unbatch().batch(12), verbose=0, shuffle=False)
  states = [
    [np.asarray(v) for v in (*m.weights, *m.optimizer.variables)]
    for m in (model, loaded)
  ]
  assert_same(*states, rtol=1e-6)
  own = model.chosen.trainable_variables
  assert own
  assert all(any(v is w for w in model.trainable_variables) for v in own)


def test_the_best_weights_include_those_of_the_estimator():
  model = compiled(learned())
  best = model.get_weights()
  model.fit(data_of(X), verbose=0)
  (level,) = model.estimator.trainable_variables
  assert float(level) != 0.5
  model.set_weights(best)
  assert float(level) == 0.5


def test_moving_averages_cover_the_variables_of_the_estimator():
  values = []

  class Record(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      (level,) = self.model.estimator.trainable_variables
      values.append(float(level))

  model = make(learned())
  optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.5)
  model.compile(optimizer, jit_compile=False)
  model.fit(data_of(X, -X), verbose=0, callbacks=[Record()])
  (level,) = model.estimator.trainable_variables
  # Keras initializes the average with the first value.
  assert float(level) == pytest.approx(0.5 * (values[0] + values[1]))
  assert values[0] != values[1]


def test_averages_of_two_optimizers_are_refused():
  model = make(learned())
  for first, second in ((True, False), (False, True)):
    with raises(ValueError, 'use_ema'):
      model.compile(
        keras.optimizers.SGD(0.05, use_ema=first),
        estimator_optimizer=keras.optimizers.SGD(0.05, use_ema=second),
      )


def test_a_trained_model_is_exported_without_a_signature(tmp_path):
  model = compiled(nvil())
  with raises(ValueError, 'input_signature'):
    model.export(str(tmp_path / 'too_early'), verbose=False)
  model.fit(data_of(X, X), verbose=0)
  model.export(str(tmp_path / 'model'), verbose=False)
  served = tf.saved_model.load(str(tmp_path / 'model'))
  np.testing.assert_allclose(served.serve(X[:3]), model(X[:3]), rtol=1e-6)


# Datasets and progress.


@pytest.mark.parametrize('num_steps', [None, 2])
def test_the_progress_bar_counts_steps_not_stacks(capfd, num_steps):
  model = compiled()
  batches = tf.data.Dataset.from_tensor_slices(np.stack([X] * 7))
  if num_steps:
    batches = batches.repeat()
  data = models.prepare_dataset(batches, steps_per_call=3)
  model.fit(data, epochs=2, steps_per_epoch=num_steps, verbose=2)
  shown = capfd.readouterr().out
  assert shown.count('6/6' if num_steps else '7/7') == 2


class StepByStep(Autoencoder):
  """Takes the batches of a stack one at a time."""

  loops_over_stacks = False

  def compute_step_loss(self, batch, estimator, seed):
    assert batch[0].shape.rank == 2
    return super().compute_step_loss(batch, estimator, seed)

  def _train_on_stack(self, stack):
    raise NotImplementedError


def test_stacks_are_taken_apart_for_a_model_that_does_not_loop():
  states = []
  batches = tf.data.Dataset.from_tensor_slices(np.stack([X, -X, X, -X]))
  for kind, size in ((Autoencoder, 1), (StepByStep, 2)):
    model = make(kind=kind)
    model.compile(keras.optimizers.SGD(0.05), jit_compile=False)
    data = models.prepare_dataset(batches.repeat(), steps_per_call=size)
    model.fit(data, steps_per_epoch=4 // size, verbose=0)
    assert int(model.optimizer.iterations) == 4
    states.append(state_of(model))
  assert_same(*states)


def test_stacks_of_unknown_size_cannot_be_counted():
  model = make(kind=StepByStep)
  model.compile(keras.optimizers.SGD(0.05), jit_compile=False)
  batches = tf.data.Dataset.from_tensor_slices(np.stack([X, X, X]))
  with raises(ValueError, 'steps_per_epoch'):
    model.fit(
      models.prepare_dataset(batches, steps_per_call=2),
      steps_per_epoch=1,
      verbose=0,
    )


def test_a_prepared_dataset_has_no_autotuner_and_keeps_all_batches():
  batches = tf.data.Dataset.from_tensor_slices(np.stack([X] * 5))
  data = models.prepare_dataset(batches, steps_per_call=2)
  assert data.options().autotune.enabled is False
  assert [len(stack) for stack in data] == [2, 2, 1]
  assert len(models.prepare_dataset(batches)) == 5


def test_stacks_have_a_static_size_where_all_are_full():
  batches = tf.data.Dataset.from_tensor_slices(np.stack([X] * 4))
  size_of = lambda data, number: models.prepare_dataset(
    data, steps_per_call=number
  ).element_spec.shape[0]
  assert size_of(batches, 2) == 2
  assert size_of(batches.repeat(), 3) == 3
  assert size_of(batches, 3) is None
  assert size_of(batches.filter(lambda x: True), 2) is None


@pytest.mark.parametrize(
  ('dataset', 'steps', 'error', 'name'),
  [
    ([X], 1, TypeError, 'dataset'),
    (tf.data.Dataset.from_tensor_slices(X).batch(5), 2, ValueError, 'dataset'),
    (tf.data.Dataset.from_tensors(X), 0, ValueError, 'steps_per_call'),
  ],
)
def test_what_cannot_be_prepared_is_refused(dataset, steps, error, name):
  with raises(error, name):
    models.prepare_dataset(dataset, steps_per_call=steps)


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
  """Builds its estimator from a given one, and takes no other arguments."""

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
  model(X)  # this builds only the layers that `call` uses
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
  # This needs a separate process, because devices are set before the first
  # operation.
  processes.run(ON_TWO_DEVICES)
