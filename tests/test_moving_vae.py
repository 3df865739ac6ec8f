# SPDX-License-Identifier: Apache-2.0
"""The autoencoder with hard attention: its loss and its steps."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import gpu
from internals import seed_of_evaluation, split_seed
from reference import naive_window
import tfp_rb
from tfp_rb import models

RNG = np.random.default_rng(5)
SIZE, WINDOW = 11, 4
SEED = tf.constant([3, 1])
FRAMES = RNG.integers(0, 2, size=[3, SIZE, SIZE]).astype(np.float32)
DIGITS = RNG.integers(0, 256, size=[6, WINDOW, WINDOW]).astype(np.uint8)


def make(estimator=None, **settings):
  keras.utils.set_random_seed(0)
  return models.MovingVAE(
    estimator,
    frame=settings.pop('frame', SIZE),
    window=WINDOW,
    latent_dim=2,
    hidden_units=6,
    channels=2,
    **settings,
  )


def naive_bound(model, frame, location, seen, noise, epsilon=1e-8):
  """Returns `f(x, l)` with the decoder's image written into an empty frame."""

  def mlp(layer, v):
    first, last = layer.layers
    v = np.tanh(v @ np.asarray(first.kernel) + np.asarray(first.bias))
    return v @ np.asarray(last.kernel) + np.asarray(last.bias)

  mean, log_scale = np.split(mlp(model.encoder, seen), 2)
  p = 1.0 / (
    1.0 + np.exp(-mlp(model.decoder, mean + np.exp(log_scale) * noise))
  )
  row, column = divmod(location, SIZE)
  image = np.zeros([SIZE, SIZE])
  for i in range(WINDOW):
    for j in range(WINDOW):
      r, c = row - WINDOW // 2 + i, column - WINDOW // 2 + j
      if 0 <= r < SIZE and 0 <= c < SIZE:
        image[r, c] = p[i * WINDOW + j]
  likelihood = np.sum(
    frame * np.log(image + epsilon) + (1 - frame) * np.log(1 - image + epsilon)
  )
  kl = np.sum(0.5 * (mean**2 + np.exp(2 * log_scale) - 1) - log_scale)
  return kl - likelihood


def test_weights_start_as_those_of_the_authors():
  # Weights and biases are uniform within 1 / sqrt(inputs), PyTorch's default.
  model = make()
  layers = [*model.convolutions.layers, *model.attention.layers]
  layers += [*model.encoder.layers, *model.decoder.layers]
  for layer in layers:
    limit = np.prod(layer.kernel.shape[:-1]) ** -0.5
    for variable in (layer.kernel, layer.bias):
      values = np.abs(np.asarray(variable))
      assert 0.0 < values.max() <= limit
      # The largest of 50 uniform values is below 0.75 limits once in 2e6 cases.
      if values.size >= 50:
        assert values.max() > 0.75 * limit
        assert values.mean() > 0.3 * limit


def test_reconstruction_is_at_the_most_probable_location():
  model = without_noise(make())
  images = model.reconstruct(FRAMES)
  guesses = np.argmax(model(FRAMES), axis=-1)
  for b, location in enumerate(guesses):
    window, inside = naive_window(images[b].numpy(), location, WINDOW)
    np.testing.assert_allclose(window.sum(), np.sum(images[b]), rtol=1e-5)
    assert np.all((window > 0.0) == (inside > 0.0))


@pytest.mark.parametrize('epsilon', [1e-8, 1e-3])
def test_bound_is_that_of_the_whole_frame(epsilon):
  model = make(epsilon=epsilon)
  locations = np.array([[0, 60, 120], [10, 37, 55]])
  noise = tf.random.stateless_normal([2, 3, 2], SEED, alg='philox').numpy()
  actual = model.negative_bound(FRAMES, tf.constant(locations), SEED)
  one_hot = tf.one_hot(locations, SIZE**2)
  soft = model.negative_bound(FRAMES, one_hot, SEED)
  np.testing.assert_allclose(soft, actual, rtol=1e-5)
  for m in range(2):
    for b in range(3):
      location = locations[m, b]
      seen, _ = naive_window(FRAMES[b], location, WINDOW)
      expected = naive_bound(
        model, FRAMES[b], location, seen, noise[m, b], epsilon
      )
      np.testing.assert_allclose(actual[m, b], expected, rtol=1e-5)


def test_encoder_sees_a_mixture_and_the_image_has_one_place():
  model = make()
  weights = RNG.dirichlet(np.ones(SIZE**2), size=[1, 3]).astype(np.float32)
  noise = tf.random.stateless_normal([1, 3, 2], SEED, alg='philox').numpy()
  weights = tf.constant(weights)
  with tf.GradientTape() as tape:
    tape.watch(weights)
    actual = model.negative_bound(FRAMES, weights, SEED)
  assert np.all(np.any(tape.gradient(actual, weights) != 0.0, axis=-1))
  for b in range(3):
    windows = np.stack(
      [naive_window(FRAMES[b], n, WINDOW)[0] for n in range(SIZE**2)]
    )
    own = weights[0, b].numpy()
    expected = naive_bound(
      model, FRAMES[b], np.argmax(own), own @ windows, noise[0, b]
    )
    np.testing.assert_allclose(actual[0, b], expected, rtol=1e-5)


def without_noise(model):
  """Removes the noise, so that `f` is a function of the location alone."""
  bias = model.encoder.layers[-1].bias
  bias.assign(np.where(np.arange(4) < 2, bias, -30.0))
  kernel = model.encoder.layers[-1].kernel
  kernel.assign(np.where(np.arange(4) < 2, kernel, 0.0))
  return model


@pytest.mark.parametrize(
  'estimator',
  [
    tfp_rb.Exact(),
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=SIZE**2),
    tfp_rb.rao_blackwellize(
      tfp_rb.GumbelSoftmax(0.5), num_summed=SIZE**2
    ),
  ],
  ids=['Exact', 'REINFORCE', 'GumbelSoftmax'],
)  # fmt: skip
def test_with_all_locations_summed_it_is_the_explicit_sum(estimator):
  model = without_noise(make(estimator, entropy_weight=3.0))
  variables = [v.value for v in model.trainable_variables]
  with tf.GradientTape(persistent=True) as tape:
    losses, _ = model.losses_of(FRAMES, SEED)
    log_q = model(FRAMES)
    everywhere = tf.tile(tf.range(SIZE**2)[:, tf.newaxis], [1, 3])
    f = model.negative_bound(FRAMES, everywhere, SEED)
    expected = tf.reduce_sum(
      tf.exp(log_q) * (tf.transpose(f) + 3.0 * log_q), axis=-1
    )
  np.testing.assert_allclose(losses, expected, rtol=1e-5)
  if model.estimator_layer.needs_vectors:
    return  # straight-through gradients are biased
  for actual, reference, v in zip(
    tape.gradient(losses, variables),
    tape.gradient(expected, variables),
    model.trainable_variables,
    strict=True,
  ):
    scale = np.abs(reference).max()
    np.testing.assert_allclose(
      actual, reference, atol=1e-4 * scale, rtol=0, err_msg=v.path
    )
    assert scale > 0.0, v.path


def test_entropy_weight_follows_its_schedule_also_when_loaded(tmp_path):
  schedule = keras.optimizers.schedules.PolynomialDecay(64.0, 10, 1.0, power=2)
  model = make(entropy_weight=schedule)
  model.save(tmp_path / 'model.keras')
  # The model loads in safe mode.
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  for step, weight in ((0, 64.0), (5, 1.0 + 63.0 / 4), (10, 1.0), (12, 1.0)):
    expected, _ = make(entropy_weight=weight).losses_of(FRAMES, SEED)
    for scheduled in (model, loaded):
      losses, _ = scheduled.losses_of(FRAMES, SEED, step)
      np.testing.assert_allclose(losses, expected, rtol=1e-6)

  def two_steps(model):
    model.compile(keras.optimizers.SGD(0.0), jit_compile=False)
    data = tf.data.Dataset.from_tensors(DIGITS)
    return model.fit(data, epochs=2, verbose=0).history['loss']

  second = two_steps(make(entropy_weight=float(schedule(1))))[1]
  assert two_steps(model)[1] == pytest.approx(second, rel=1e-6)


METHODS = {
  'RB-REINFORCE+': lambda size=SIZE: None,
  'RELAX': lambda size=SIZE: tfp_rb.RELAX(
    models.ControlVariate(size**2, atom_size=size**2, units=4),
    temperature=tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp()),
  ),
  'GumbelSoftmax': lambda size=SIZE: tfp_rb.GumbelSoftmax(0.5),
}


@pytest.mark.parametrize(
  'name', ['RELAX', pytest.param('RB-REINFORCE+', marks=pytest.mark.slow)]
)
def test_all_parts_are_trained_and_saved(name, tmp_path):
  model = make(METHODS[name]())
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  everything = lambda m: [
    np.asarray(v) for v in (*m.weights, *m.estimator.variables)
  ]
  before = everything(model)
  model.fit(tf.data.Dataset.from_tensors(DIGITS).repeat(2), verbose=0)
  for old, new in zip(before, everything(model), strict=True):
    assert np.any(old != new)
  model.save(tmp_path / 'model.keras')
  # The model loads in safe mode.
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  for m in (model, loaded):  # the loaded model continues like the original
    m.fit(tf.data.Dataset.from_tensors(DIGITS), verbose=0)
  for a, b in zip(everything(loaded), everything(model), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_mixtures_are_made_only_for_who_differentiates_by_them():
  for name, is_soft in (('GumbelSoftmax', True), ('RELAX', False)):
    model = make(METHODS[name]())
    kinds = gpu.operations(model.losses_of, tf.constant(FRAMES), SEED)
    assert ('RFFT2D' in kinds) == is_soft


@pytest.mark.parametrize('name', METHODS)
def test_every_operation_of_a_step_runs_on_a_gpu(name):
  size = SIZE + 1  # the size is even, so there are blocks of pixels
  model = make(METHODS[name](size), frame=size)
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  kinds = gpu.operations(model.train_step, tf.constant(np.stack([DIGITS] * 3)))
  assert {'MatMul', 'Conv2D', 'SpaceToDepth', 'While'} <= kinds
  assert ('RFFT2D' in kinds) == (name == 'GumbelSoftmax')
  kinds |= gpu.operations(model.test_step, tf.constant(DIGITS))
  gpu.assert_all_run_on_a_gpu(kinds)


@pytest.mark.parametrize('shape', [[6, 4, 4, 1], [6, 16], [6, 2, 8]], ids=str)
def test_digits_of_another_shape_are_refused(shape):
  model = make()
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  data = tf.data.Dataset.from_tensors(DIGITS.reshape(shape))
  for use in (model.fit, model.evaluate):
    with raises(ValueError, 'digits'):
      use(data, verbose=0)


def test_labels_are_refused():
  model = make()
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  data = tf.data.Dataset.from_tensors((DIGITS, np.arange(6)))
  with raises(ValueError, 'labels'):
    model.fit(data, verbose=0)


@pytest.mark.parametrize(
  ('settings', 'kind', 'argument'),
  [
    ({'frame': 8}, ValueError, 'frame'),
    ({'frame': 12.0}, TypeError, 'frame'),
    ({'window': 0}, ValueError, 'window'),
    ({'frame': 12, 'window': 13}, ValueError, 'window'),
    ({'epsilon': 0.0}, ValueError, 'epsilon'),
    ({'entropy_weight': [64, 1]}, TypeError,
     'entropy_weight'),
    ({'entropy_weight': -1}, ValueError,
     'entropy_weight'),
    ({'entropy_weight': np.nan}, ValueError,
     'entropy_weight'),
  ],
)  # fmt: skip
def test_impossible_settings_are_named(settings, kind, argument):
  with raises(kind, argument):
    models.MovingVAE(**settings)


def test_evaluation_at_the_most_probable_location():
  model = without_noise(make())
  model.compile(keras.optimizers.Adam(0.01))
  digits = np.where(DIGITS > 127, 255, 0).astype(np.uint8)
  result = model.evaluate(
    tf.data.Dataset.from_tensors(digits), return_dict=True, verbose=0
  )
  seeds = split_seed(seed_of_evaluation(model, digits), n=3)
  frames, truth = model.frames.place(digits / np.float32(255), seeds[1])
  guesses = np.argmax(model(frames), axis=-1)
  losses, distances = [], []
  for frame, guess, location in zip(frames.numpy(), guesses, truth.numpy()):
    seen, _ = naive_window(frame, guess, WINDOW)
    losses.append(naive_bound(model, frame, guess, seen, np.zeros(2)))
    apart = np.subtract(divmod(guess, SIZE), divmod(location, SIZE))
    distances.append(np.linalg.norm(apart))
  assert result['negative_elbo'] == pytest.approx(np.mean(losses), rel=1e-4)
  assert result['distance'] == pytest.approx(np.mean(distances), rel=1e-4)


@pytest.mark.slow
def test_summing_lowers_the_variance_of_a_trained_model():
  # Half the squared distance of pairs of gradients has the variance as its
  # mean. The two means are compared at 5 standard errors of their difference
  # (false-fail rate 3e-7), and lie apart by a factor of four.
  plus = tfp_rb.REINFORCE(tfp_rb.baselines.IndependentSample())
  # The entropy term keeps several locations possible.
  model = make(tfp_rb.rao_blackwellize(plus, num_summed=5), entropy_weight=10.0)
  model.compile(keras.optimizers.Adam(0.005), jit_compile=False)
  bright = np.full([300, 8, WINDOW, WINDOW], 255, np.uint8)
  model.fit(tf.data.Dataset.from_tensors(bright), verbose=0)
  frames, _ = model.frames.place(tf.ones([8, WINDOW, WINDOW]), SEED)
  means, errors = [], []
  for estimator in (plus, model.estimator):
    other = make(estimator)
    other.set_weights(model.get_weights())
    kernel = other.attention.layers[-1].kernel.value

    @tf.function
    def gradient(i, other=other, kernel=kernel):
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean(other.losses_of(frames, tf.stack([7, i]))[0])
      return tape.gradient(loss, kernel)

    distances = [
      float(tf.nn.l2_loss(gradient(2 * i) - gradient(2 * i + 1)))
      for i in tf.range(150)
    ]
    means.append(np.mean(distances))
    errors.append(np.std(distances) / np.sqrt(150))
  assert means[1] + 5 * np.hypot(*errors) < means[0], (means, errors)
