# SPDX-License-Identifier: Apache-2.0
"""The semi-supervised autoencoder: its loss, its steps and its saved state."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import gpu
import internals
import processes
from small_vae import BINARY, IMAGES, LABELS, RNG, SEED, make, network
import tfp_rb
from tfp_rb import models


def nvil():
  return tfp_rb.NVIL(network([None, 20]))


def relax():
  keras.utils.set_random_seed(1)
  return tfp_rb.RELAX(
    models.ControlVariate(20, atom_size=3, units=4),
    temperature=tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp()),
  )


def data_of(num_batches=None):
  batch = (IMAGES[:8], IMAGES[8:], LABELS[8:])
  if num_batches is None:
    return tf.data.Dataset.from_tensors(batch)
  stacked = tuple(np.stack([x] * num_batches) for x in batch)
  return tf.data.Dataset.from_tensors(stacked)


def naive_bound(model, x, y, noise):
  """Evaluates `f(x, y)` in NumPy; concatenates the inputs of each layer."""
  relu = lambda v: np.maximum(v, 0.0)

  def dense(layer, v):
    return v @ np.asarray(layer.kernel) + np.asarray(layer.bias)

  def concat_dense(layer, v, w):
    kernel = np.concatenate([np.asarray(layer.first), np.asarray(layer.second)])
    return np.concatenate([v, w], axis=-1) @ kernel + np.asarray(layer.bias)

  h = relu(concat_dense(model.encoder_input, x, y))
  h = dense(model.encoder.layers[1], relu(dense(model.encoder.layers[0], h)))
  mean, log_scale = np.split(h, 2, axis=-1)
  z = mean + np.exp(log_scale) * noise
  h = relu(concat_dense(model.decoder_input, z, y))
  h = dense(model.decoder.layers[1], relu(dense(model.decoder.layers[0], h)))
  p = 1.0 / (1.0 + np.exp(-h))
  likelihood = np.sum(x * np.log(p) + (1 - x) * np.log(1 - p), axis=-1)
  kl = np.sum(0.5 * (mean**2 + np.exp(2 * log_scale) - 1) - log_scale, axis=-1)
  return kl - likelihood


def test_bound_is_that_of_layers_side_by_side():
  model = make()
  noise = tf.random.stateless_normal([2, 12, 2], SEED, alg='philox').numpy()
  y = np.eye(3, dtype=np.float32)[np.stack([LABELS, 2 - LABELS])]
  actual = model.negative_bound(
    BINARY, model.encoder_input.of_first(BINARY), y, SEED
  )
  for i in range(2):
    np.testing.assert_allclose(
      actual[i], naive_bound(model, BINARY, y[i], noise[i]), rtol=1e-4
    )


def test_atoms_share_their_noise_if_asked_to():
  y = np.eye(3, dtype=np.float32)[np.stack([LABELS, LABELS])]
  for share in (False, True):
    model = make(share_noise=share)
    part = model.encoder_input.of_first(BINARY)
    losses = model.negative_bound(BINARY, part, y, SEED).numpy()
    assert np.allclose(losses[0], losses[1]) == share


@pytest.mark.parametrize(
  'estimator',
  [tfp_rb.Exact(), tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=3)],
  ids=['Exact', 'REINFORCE'],
)
def test_loss_with_all_labels_summed_is_the_sum_written_out(estimator):
  model = make(estimator, share_noise=True, alpha=2.0)
  variables = [v.value for v in model.trainable_variables]
  seeds = internals.split_seed(SEED, n=3)
  with tf.GradientTape(persistent=True) as tape:
    of_unlabeled, of_labeled, _ = model.losses_of(
      BINARY[:8], BINARY[8:], LABELS[8:], SEED
    )
    log_q = model(BINARY)
    part = model.encoder_input.of_first(BINARY)
    y = np.broadcast_to(np.eye(3, dtype=np.float32)[:, None], [3, 8, 3])
    f = model.negative_bound(BINARY[:8], part[:8], y, seeds[1])
    q = tf.exp(log_q[:8])
    expected = tf.reduce_sum(q * (tf.transpose(f) + log_q[:8]), axis=-1)
    own = np.eye(3, dtype=np.float32)[LABELS[8:]]
    labeled = model.negative_bound(BINARY[8:], part[8:], own[None], seeds[2])[0]
    labeled -= 2.0 * tf.reduce_sum(own * log_q[8:], axis=-1)
  np.testing.assert_allclose(of_unlabeled, expected, rtol=1e-5)
  np.testing.assert_allclose(of_labeled, labeled, rtol=1e-5)
  for actual, reference in ((of_unlabeled, expected), (of_labeled, labeled)):
    for a, b in zip(
      tape.gradient(actual, variables, unconnected_gradients='zero'),
      tape.gradient(reference, variables, unconnected_gradients='zero'),
      strict=True,
    ):
      np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)


def test_all_parts_are_trained():
  model = make()
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  before = [np.array(v) for v in model.trainable_variables]
  model.fit(data_of(), verbose=0)
  assert len(before) == len(model.trainable_variables) == 18
  for old, new in zip(before, model.trainable_variables, strict=True):
    assert np.any(old != np.asarray(new)), new.path


# In `make test`, `test_estimator_model.py` checks the same with a smaller
# model.
@pytest.mark.slow
def test_several_steps_in_one_call_are_the_same_steps(monkeypatch):
  # XLA takes long to compile, so only the call of several steps uses it. XLA
  # has its own normal numbers, but the same uniform numbers.
  monkeypatch.setattr(
    tf.random,
    'stateless_normal',
    lambda shape, seed, alg: (
      4.0 * internals.uniform(shape, seed, tf.float32) - 2.0
    ),
  )
  weights = []
  for num_batches in (None, 3):
    model = make(tfp_rb.REINFORCE())  # this estimator compiles fastest
    optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
    model.compile(optimizer, jit_compile=bool(num_batches))
    data = data_of(num_batches)
    model.fit(data.repeat(1 if num_batches else 3), verbose=0)
    assert model.optimizer.iterations == 3
    weights.append(model.get_weights())
  for one, several in zip(*weights, strict=True):
    np.testing.assert_allclose(one, several, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  ('make_estimator', 'with_own_optimizer'),
  [pytest.param(nvil, False, marks=pytest.mark.slow), (relax, True)],
)
def test_variables_of_the_estimator_are_trained_and_saved(
  make_estimator, with_own_optimizer, tmp_path
):
  model = make(make_estimator())
  own = model.estimator.trainable_variables
  before = [np.array(v) for v in own]
  model.compile(
    keras.optimizers.Adam(0.01),
    estimator_optimizer=(
      keras.optimizers.SGD(1e-3) if with_own_optimizer else None
    ),
    jit_compile=False,
  )
  model.fit(data_of().repeat(2), verbose=0)
  for old, new in zip(before, own, strict=True):
    assert np.any(old != np.asarray(new)), new

  model.save(tmp_path / 'model.keras')
  # The model loads in safe mode.
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  assert type(loaded.estimator) is type(model.estimator)
  everything = lambda m: [
    np.asarray(v) for v in (*m.weights, *m.estimator.variables)
  ]
  for a, b in zip(everything(loaded), everything(model), strict=True):
    np.testing.assert_array_equal(a, b)
  # The loaded model continues like the original.
  for m in (model, loaded):
    m.fit(data_of(), verbose=0)
  for a, b in zip(everything(loaded), everything(model), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)

  model.save_weights(tmp_path / 'x.weights.h5')
  other = make(make_estimator())
  other.load_weights(tmp_path / 'x.weights.h5')
  for a, b in zip(everything(other), everything(model), strict=True):
    np.testing.assert_array_equal(a, b)


def test_steps_per_execution_of_keras():
  model = make()
  model.compile(
    keras.optimizers.SGD(0.01), jit_compile=False, steps_per_execution=3
  )
  history = model.fit(data_of().repeat(6), verbose=0)
  assert model.optimizer.iterations == 6
  assert np.isfinite(history.history['loss'][0])


# In `make test`, `test_estimator_model.py` checks the same with a smaller
# model.
@pytest.mark.slow
def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path):
  class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
      if epoch == 2:
        raise KeyboardInterrupt

  def run(folder, epochs, callbacks=()):
    model = make(nvil())
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    model.fit(
      data_of(), epochs=epochs, callbacks=[backup, *callbacks], verbose=0
    )
    return [np.asarray(v) for v in (*model.weights, *model.estimator.variables)]

  expected = run(tmp_path / 'whole', 4)
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path / 'parts', 4, [Stop()])
  actual = run(tmp_path / 'parts', 4)
  for a, b in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_control_variate_sees_each_image_for_itself():
  keras.utils.set_random_seed(0)
  control = models.ControlVariate(20, atom_size=3, units=16)
  atoms = RNG.random([2, 12, 3]).astype(np.float32)
  together = control(atoms, BINARY)
  assert together.shape == [2, 12]
  for i in range(12):
    np.testing.assert_allclose(
      control(atoms[:, i : i + 1], BINARY[i : i + 1])[:, 0],
      together[:, i],
      rtol=1e-5,
      atol=1e-6,
    )
  same_atoms = np.broadcast_to(atoms[:1, :1], [1, 12, 3])
  assert len(np.unique(control(same_atoms, BINARY))) == 12


def test_weights_of_another_estimator_are_refused(tmp_path):
  model = make(nvil())
  model.save_weights(tmp_path / 'x.weights.h5')
  other = make(tfp_rb.REINFORCE(tfp_rb.baselines.Learned(1.0)))
  with raises(ValueError, 'variables'):
    other.load_weights(tmp_path / 'x.weights.h5')
  # Keras leaves the file open. If it is closed while another test writes a
  # file, h5py crashes.
  gc.collect()


def test_temperature_follows_the_steps():
  estimator = tfp_rb.GumbelSoftmax(tfp_rb.AnnealedTemperature(rate=0.1))
  model = make(estimator)
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  model.fit(data_of().repeat(3), verbose=0)
  # This is the value before the last step.
  assert estimator.temperature.step.numpy() == 2


def test_evaluation_at_the_most_probable_label():
  model = make()
  model.compile(keras.optimizers.Adam(0.01))
  images = (255 * BINARY).astype(np.uint8)
  guess = np.argmax(model(BINARY), axis=-1)
  labels = np.where(np.arange(12) < 9, guess, (guess + 1) % 3)
  data = tf.data.Dataset.from_tensors((images, labels))
  result = model.evaluate(data, return_dict=True, verbose=0)
  # The result contains no Tensors.
  assert all(isinstance(x, float) for x in result.values())
  assert result['accuracy'] == pytest.approx(0.75)
  seeds = internals.split_seed(internals.seed_of_evaluation(model, images), n=2)
  noise = tf.random.stateless_normal([1, 12, 2], seeds[1], alg='philox')[0]
  one_hot = np.eye(3, dtype=np.float32)[guess]
  expected = naive_bound(model, BINARY, one_hot, noise.numpy())
  assert result['negative_elbo'] == pytest.approx(np.mean(expected), rel=1e-4)


def test_pixels_are_drawn_in_proportion_to_their_values():
  # The limit is 5 standard errors of 40,000 draws.
  images = tf.constant(np.tile([[0, 64, 128, 255]], [40_000, 1]), tf.uint8)
  drawn = models.binarize(images, SEED).numpy()
  assert set(np.unique(drawn)) == {0.0, 1.0}
  expected = np.array([0, 64, 128, 255]) / 255
  error = np.sqrt(expected * (1 - expected) / 40_000)
  assert np.all(np.abs(drawn.mean(axis=0) - expected) <= 5 * error)


def test_number_of_pixels_may_be_odd_and_all_may_be_dark():
  images = tf.constant([[255, 0, 255]], tf.uint8)
  drawn = models.binarize(images, SEED)
  np.testing.assert_array_equal(drawn, [[1.0, 0.0, 1.0]])
  np.testing.assert_array_equal(models.binarize(0 * images, SEED), 0.0 * drawn)
  drawn = models.binarize(np.full([99, 99], 128), SEED).numpy()
  assert np.all(np.mean(drawn[1:] != drawn[:-1], axis=0) > 0.2)


def test_halves_of_a_random_number_are_independent_pixels():
  # One random number serves two pixels, so their correlation would be the first
  # thing to break. The limit is 5 standard errors of 40,000 pairs.
  images = np.full([2, 40_000], 128, np.uint8)
  first, second = models.binarize(images, SEED).numpy()
  assert abs(np.corrcoef(first, second)[0, 1]) <= 5 / np.sqrt(40_000)


def test_generated_images_differ_by_label_and_seed():
  model = make()
  images = model.generate([0, 1, 2], seed=[1, 2])
  assert images.shape == [3, 20]
  assert 0.0 < np.min(images) < np.max(images) < 1.0
  np.testing.assert_array_equal(images, model.generate([0, 1, 2], seed=[1, 2]))
  assert np.any(images != model.generate([0, 1, 2], seed=[1, 3]))
  assert model.generate(1, seed=[1, 2]).shape == [1, 20]


def test_mixed_precision():
  policy = keras.config.dtype_policy()
  keras.config.set_dtype_policy('mixed_bfloat16')
  try:
    model = make()
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    history = model.fit(data_of(), verbose=0)
  finally:
    keras.config.set_dtype_policy(policy)
  assert model.encoder_input.compute_dtype == 'bfloat16'
  assert model.trainable_variables[0].dtype == 'float32'
  assert np.isfinite(history.history['loss'][0])


def test_half_precision_trains():
  # Keras scales the loss in float16, so that small gradients do not vanish, and
  # skips steps until nothing overflows.
  policy = keras.config.dtype_policy()
  keras.config.set_dtype_policy('mixed_float16')
  try:
    model = make(relax())
    variables = [*model.weights, *model.estimator.variables]
    start = [v.numpy() for v in variables]
    model.compile(
      keras.optimizers.SGD(1e-3),
      estimator_optimizer=keras.optimizers.SGD(1e-3),
      jit_compile=False,
    )
    model.fit(data_of(15), verbose=0)
  finally:
    keras.config.set_dtype_policy(policy)
  for old, new in zip(start, variables, strict=True):
    # In single precision the variables move by 5e-4 to 0.2. If the scale were
    # not removed, they would move by thousands.
    assert 1e-4 < np.abs(new.numpy() - old).max() < 1.0, new


def test_networks_that_are_not_built_are_refused():
  unbuilt = keras.Sequential([keras.layers.Dense(1)])
  estimator = tfp_rb.rao_blackwellize(tfp_rb.NVIL(unbuilt), num_summed=1)
  with raises(ValueError, 'baseline'):
    make(estimator)


def test_wrong_shapes_and_types_are_named():
  model = make()
  model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
  of = lambda *batch: tf.data.Dataset.from_tensors(batch)
  with raises(ValueError, 'unlabeled'):
    model.step_metrics(
      (tf.constant(IMAGES[:8].reshape([8, 4, 5])), *map(tf.constant, (
        IMAGES[8:], LABELS[8:]))), SEED)  # fmt: skip
  with raises(ValueError, 'labels'):
    model.fit(of(IMAGES[:8], IMAGES[8:], LABELS[8:, None]), verbose=0)
  with raises(ValueError, 'labels'):
    model.fit(of(IMAGES[:8], IMAGES[8:], LABELS[8:] * 1.0), verbose=0)
  with raises(ValueError, 'labels'):
    model.fit(of(IMAGES[:8], IMAGES[8:], LABELS[9:]), verbose=0)
  with raises(ValueError, 'unlabeled'):
    model.fit(of(IMAGES[8:], LABELS[8:]), verbose=0)
  with raises(ValueError, 'images'):
    model.evaluate(tf.data.Dataset.from_tensors(IMAGES), verbose=0)
  with raises(ValueError, 'images'):
    model.predict(IMAGES.reshape([12, 4, 5]), verbose=0)
  with raises(TypeError, 'images'):
    models.binarize(BINARY, SEED)
  with raises(ValueError, 'labels'):
    model.generate([1, 3])
  with raises(ValueError, 'z'):
    model.generate([1], z=np.zeros([1, 3]))


def test_several_steps_after_single_ones_need_another_compile():
  model = make()
  model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
  model.fit(data_of(), verbose=0)
  with raises(ValueError, 'compile'):
    model.fit(data_of(2), verbose=0)
  model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
  model.fit(data_of(2), verbose=0)
  assert model.optimizer.iterations == 2


@pytest.mark.parametrize(
  ('settings', 'kind', 'argument'),
  [
    ({'estimator': tfp_rb.REINFORCE}, TypeError, 'estimator'),
    ({'estimator': 'REINFORCE'}, TypeError, 'estimator'),
    ({'unlabeled_weight': 2.0}, ValueError, 'unlabeled_weight'),
    ({'hidden_units': ()}, ValueError, 'hidden_units'),
  ],
)  # fmt: skip
def test_impossible_settings_are_named(settings, kind, argument):
  with raises(kind, argument):
    models.SemiSupervisedVAE(**settings)


def test_prediction_is_of_images_as_they_are_given_to_fit():
  model = make()
  model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
  expected = model(BINARY)
  actual = model.predict((255 * BINARY).astype(np.uint8), verbose=0)
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_a_model_is_saved_before_it_is_compiled(tmp_path):
  model = make()
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_array_equal(model(BINARY), loaded(BINARY))


def test_the_default_estimator_is_part_of_the_config():
  config = make().get_config()
  assert config['estimator']['class_name'] == 'RaoBlackwellized'
  assert config['estimator']['config']['num_summed'] == 1


def test_batches_of_evaluation_have_noise_of_their_own():
  model = make()
  seeds = [
    internals.seed_of_evaluation(model, x).numpy()
    for x in (IMAGES[:6], IMAGES[6:])
  ]
  assert seeds[0].tolist() != seeds[1].tolist()
  np.testing.assert_array_equal(
    internals.seed_of_evaluation(model, IMAGES[:6]), seeds[0]
  )


@pytest.mark.parametrize(
  'name', ['NVIL', pytest.param('RB-REINFORCE', marks=pytest.mark.slow)]
)
def test_every_operation_of_a_step_runs_on_a_gpu(name):
  model = make(nvil() if name == 'NVIL' else None)
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  kinds = gpu.operations(model.train_step, next(iter(data_of(3))))
  assert {'MatMul', 'While'} <= kinds
  gpu.assert_all_run_on_a_gpu(kinds)


ON_TWO_DEVICES = """
import keras
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(
  cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
import internals
from small_vae import IMAGES, LABELS, make, network
import tfp_rb


def weights_after_a_step(strategy, data, share_draws):
  with strategy.scope():
    model = make(tfp_rb.REINFORCE())  # the least to compile
    # Not compiled: XLA draws other normal numbers.
    model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
  if share_draws:
    internals.patch_step_seed(model, lambda step: tf.stack([0, step]))
  model.fit(data, verbose=0)
  return model.get_weights()


half = (IMAGES[:4], IMAGES[8:], LABELS[8:])
twice = tuple(np.concatenate([x, x]) for x in half)
of = lambda batch: tf.data.Dataset.from_tensors(batch)
two = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])
one = weights_after_a_step(tf.distribute.get_strategy(), of(half), True)
same = weights_after_a_step(two, of(twice), True)
other = weights_after_a_step(two, of(twice), False)
distance = lambda x: max(np.abs(a - b).max() for a, b in zip(one, x))
assert distance(same) < 1e-5, distance(same)
assert distance(other) > 1e-3, distance(other)

with two.scope():
  model = make(tfp_rb.REINFORCE())  # the least to compile
  model.compile(keras.optimizers.SGD(0.01), jit_compile=True)
history = model.fit(of(twice), verbose=0)
assert np.isfinite(history.history['loss'][0])

# What an estimator moves by itself, moves on both.
for make_estimator in (
  lambda: tfp_rb.NVIL(network([None, 20]), center=True),
  lambda: tfp_rb.GumbelSoftmax(tfp_rb.AnnealedTemperature(rate=0.1)),
):
  with two.scope():
    model = make(make_estimator())
    model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
  model.fit(of(twice).repeat(3), verbose=0)
  moved = [v for v in model.estimator.variables if not v.trainable]
  for variable in moved:
    assert all(float(v) != 0.0 for v in variable.values), variable
  assert moved
"""


@pytest.mark.slow
def test_two_devices_make_the_step_of_one_but_draw_apart():
  # This needs a separate process, because devices are set before the first
  # operation.
  processes.run(ON_TWO_DEVICES)
