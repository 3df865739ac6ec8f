# SPDX-License-Identifier: Apache-2.0
"""The autoencoder with a discrete code: its bounds, steps and files."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import tfp_rb
from tfp_rb import baselines, models

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, size=[6, 9]).astype(np.uint8)
BINARY = (IMAGES > 127).astype(np.float64)
SEED = tf.constant([3, 1])
LATENTS = {'bits': 3, 'categories': (2, 3)}
both_kinds = pytest.mark.parametrize('latents', LATENTS.values(), ids=LATENTS)


def make(estimator=None, latents=3, **settings):
  keras.utils.set_random_seed(0)
  settings = {'encoder_units': [4], 'decoder_units': [5], **settings}
  return models.DiscreteVAE(
    estimator, latents=latents, num_pixels=9, **settings
  )


def leave_one_out(num_samples=2):
  return tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=num_samples)


def summed(k):
  return tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=k)


def all_codes(latents):
  """Returns all codes, flat, and the variables that each code consists of."""
  if isinstance(latents, int):
    return np.array(list(itertools.product([0.0, 1.0], repeat=latents)))
  number, size = latents
  rows = itertools.product(np.eye(size), repeat=number)
  return np.array([np.concatenate(row) for row in rows])


def dense(network, x):
  """Evaluates a network with one hidden layer in NumPy."""
  first, leaky, last = network.layers
  x = x @ np.asarray(first.kernel) + np.asarray(first.bias)
  # TensorFlow rounds the slope to float32.
  x = np.where(x > 0.0, x, float(np.float32(leaky.negative_slope)) * x)
  return x @ np.asarray(last.kernel) + np.asarray(last.bias)


def naive_log_ratio(model, x, latents, codes):
  """Returns `log q(z | x)` and `log p(x, z)` of an image at each code.

  The computation uses NumPy only.
  """
  logits = dense(model.encoder, x)
  if isinstance(latents, int):
    log_q = codes @ logits - np.sum(np.log1p(np.exp(logits)))
    num_codes = 2.0**latents
  else:
    of_variable = logits.reshape(latents)
    total = np.log(np.sum(np.exp(of_variable), axis=-1, keepdims=True))
    log_q = codes @ (of_variable - total).ravel()
    num_codes = float(latents[1] ** latents[0])
  p = 1.0 / (1.0 + np.exp(-dense(model.decoder, codes)))
  log_p = np.sum(x * np.log(p) + (1.0 - x) * np.log(1.0 - p), axis=-1)
  return log_q, log_p - np.log(num_codes)


def gradients(model, loss_of):
  variables = [v.value for v in model.trainable_variables]
  with tf.GradientTape() as tape:
    loss = loss_of()
  return [loss, *tape.gradient(loss, variables)]


def assert_same(actual, expected, tolerance=1e-10):
  for a, b in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@both_kinds
def test_the_exact_bound_is_the_sum_over_all_codes(latents):
  model = make(tfp_rb.Exact(), latents, dtype='float64')
  expected = []
  for x in BINARY:
    log_q, log_p = naive_log_ratio(model, x, latents, all_codes(latents))
    np.testing.assert_allclose(np.sum(np.exp(log_q)), 1.0)
    expected.append(np.sum(np.exp(log_q) * (log_q - log_p)))
  np.testing.assert_allclose(model.negative_bound(BINARY), expected, rtol=1e-12)


def written_out(model, latents):
  """Returns the bound as a sum over codes, one after the other."""
  log_probs = tf.nn.log_softmax(model(BINARY))
  if isinstance(latents, int):
    logits = model(BINARY)
    log_probs = tf.stack([-tf.nn.softplus(logits), -tf.nn.softplus(-logits)], 2)
  total = 0.0
  num_variables, num_values = log_probs.shape[1:]
  for digits in itertools.product(range(num_values), repeat=num_variables):
    log_q = sum(log_probs[:, i, digit] for i, digit in enumerate(digits))
    code = digits if isinstance(latents, int) else np.eye(num_values)[[*digits]]
    codes = np.stack([np.asarray(code, np.float64)] * len(BINARY))
    total += tf.exp(log_q) * (log_q - model.log_joint(BINARY, codes))
  return total


@both_kinds
@pytest.mark.parametrize('kind', ['once', 'generic', 'summed'])
def test_exact_gradients_are_those_of_the_sum_written_out(latents, kind):
  model = make(tfp_rb.Exact(), latents, dtype='float64')
  found = {
    # Each code is decoded once.
    'once': lambda: model.negative_bound(BINARY),
    # Every other estimator takes this path, which decodes all codes for each
    # image.
    'generic': lambda: tfp_rb.vi.monte_carlo_variational_loss(
      lambda z: model.log_joint(BINARY, z),
      model.posterior(BINARY),
      gradient_estimator=tfp_rb.Exact(),
    ),
    'summed': lambda: model.negative_bound(
      BINARY, SEED, summed(len(all_codes(latents)))
    ),
  }
  expected = gradients(model, lambda: written_out(model, latents))
  assert_same(gradients(model, found[kind]), expected)


@both_kinds
def test_the_bound_of_several_draws_is_that_of_numpy(latents):
  model = make(latents=latents, dtype='float64')
  found = model.importance_bound(BINARY, num_samples=7, seed=SEED)
  codes = model.posterior(BINARY).sample(7, seed=SEED).numpy()
  for i, x in enumerate(BINARY):
    drawn = codes[:, i].reshape([7, -1])
    log_q, log_p = naive_log_ratio(model, x, latents, drawn)
    expected = np.log(np.mean(np.exp(log_p - log_q)))
    np.testing.assert_allclose(found[i], expected, rtol=1e-10)


def test_more_draws_bring_the_bound_to_the_likelihood():
  model = make(dtype='float64')
  log_q, log_p = naive_log_ratio(model, BINARY[0], 3, all_codes(3))
  expected = np.log(np.sum(np.exp(log_p)))
  ratio = np.exp(log_p - log_q - expected)
  error = np.sqrt((np.sum(np.exp(log_q) * ratio**2) - 1.0) / 40_000)
  found = model.importance_bound(BINARY[:1], num_samples=40_000, seed=SEED)
  # The limit is 5 standard errors, much less than the gap of a single draw.
  assert abs(found[0] - expected) < 5.0 * error + 1e-6
  gap = np.sum(np.exp(log_q) * (log_q - log_p)) + expected
  assert gap > 20.0 * error


def test_codes_between_the_vertices_are_decoded_by_the_same_network():
  model = make(latents=(2, 3), dtype='float64')
  codes = RNG.random([4, 6, 2, 3])
  found = model.log_joint(BINARY, codes)
  assert found.shape == [4, 6]
  logits = dense(model.decoder, codes.reshape([4, 6, 6]))
  expected = np.sum(BINARY * logits - np.log1p(np.exp(logits)), axis=-1)
  np.testing.assert_allclose(found, expected - np.log(9.0), rtol=1e-10)
  integers = np.eye(3, dtype=np.int32)[RNG.integers(0, 3, [4, 6, 2])]
  np.testing.assert_allclose(
    model.log_joint(BINARY, integers),
    model.log_joint(BINARY, integers.astype(np.float64)),
  )


def network(num_inputs):
  keras.utils.set_random_seed(1)
  return keras.Sequential([keras.Input([num_inputs]), keras.layers.Dense(1)])


# `examples/studies/discrete_vae.py` trains this model with these estimators.
ESTIMATORS = {
  'leave_one_out': leave_one_out,
  'summed': lambda: summed(1),
  'budget': lambda: tfp_rb.rao_blackwellize(leave_one_out(1), budget=3),
  'unordered': lambda: tfp_rb.rao_blackwellize(
    leave_one_out(3),
    num_summed=0,
    sampler=tfp_rb.samplers.WithoutReplacement(),
  ),
  'pooled': lambda: tfp_rb.pooled(budget_per_row=2.0),
  'local_expectation': lambda: tfp_rb.local_expectation(
    tfp_rb.REINFORCE(), num_summed=2
  ),
  'NVIL': lambda: tfp_rb.NVIL(network(9)),
  'MuProp': tfp_rb.MuProp,
  'DARN': tfp_rb.DARN,
  'REBAR': lambda: tfp_rb.REBAR(0.5),
  'RELAX': lambda: tfp_rb.RELAX(
    models.ControlVariate(9, atom_size=3, units=4), temperature=0.5
  ),
  'GumbelSoftmax': lambda: tfp_rb.GumbelSoftmax(0.5),
  'relaxed': lambda: tfp_rb.GumbelSoftmax(0.5, straight_through=False),
  'GumbelRao': lambda: tfp_rb.GumbelSoftmax(0.5, num_noises=4),
  'ReinMax': lambda: tfp_rb.ReinMax(1.0),
  'Exact': tfp_rb.Exact,
}


QUICK = ('leave_one_out', 'pooled', 'REBAR')


# Most of the time is spent on compiling.
@pytest.mark.parametrize(
  'names', [QUICK, pytest.param(tuple(ESTIMATORS), marks=pytest.mark.slow)]
)
def test_every_estimator_trains_the_encoder_in_compiled_steps(names):
  model = make()
  estimators = {name: ESTIMATORS[name]() for name in names}
  variables = [v.value for v in model.trainable_variables]

  @tf.function(jit_compile=True, autograph=False)
  def gradients_of(images, seed):
    found = {}
    for name, estimator in estimators.items():
      with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model.negative_bound(images, seed, estimator))
      found[name] = [loss, *tape.gradient(loss, variables)]
    return found

  found = gradients_of(BINARY.astype(np.float32), SEED)
  for name, (loss, *of_variables) in found.items():
    assert np.isfinite(loss), name
    for gradient in of_variables:
      assert np.all(np.isfinite(gradient)), name
      assert np.any(gradient != 0.0), name


def data_of(*batches):
  return tf.data.Dataset.from_tensor_slices((np.stack(batches),))


def test_a_stack_of_batches_makes_the_same_steps():
  weights = []
  for is_stacked in (False, True):
    model = make(leave_one_out())
    model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    data = data_of(IMAGES[:3], IMAGES[3:], IMAGES[:3])
    model.fit(
      models.prepare_dataset(data, steps_per_call=3 if is_stacked else 1),
      verbose=0,
    )
    assert model.optimizer.iterations == 3
    weights.append(model.get_weights())
  assert_same(*weights, tolerance=1e-5)


def test_integers_are_binarized_anew_and_other_images_are_not():
  model = make(tfp_rb.Exact())  # there is no noise except that of the pixels
  model.compile(jit_compile=False)
  loss = lambda images, seed: model.step_metrics((images,), seed)['loss']
  gray = tf.constant(IMAGES)
  assert loss(gray, SEED) != loss(gray, SEED + 1)
  scaled = tf.cast(gray, tf.float32) / 255.0
  assert loss(scaled, SEED) == loss(scaled, SEED + 1)
  np.testing.assert_allclose(
    loss(scaled, SEED), np.mean(model.negative_bound(scaled)), rtol=1e-6
  )


def test_the_rest_is_what_the_best_codes_leave():
  model = make(latents=(2, 3))
  image = tf.constant(BINARY, tf.float32)
  found = model.step_metrics((image,), SEED)['rest']
  q = tf.nn.softmax(model(image))
  best = np.prod(np.max(q, axis=-1), axis=-1)
  np.testing.assert_allclose(found, np.mean(1.0 - best), rtol=1e-5)


def relax():
  keras.utils.set_random_seed(1)
  return tfp_rb.RELAX(
    models.ControlVariate(9, atom_size=3, units=4),
    temperature=tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp()),
  )


def everything(model):
  return [np.asarray(v) for v in (*model.weights, *model.estimator.variables)]


@pytest.mark.parametrize(
  ('kind', 'latents'), [(relax, 3), (leave_one_out, (2, 3))]
)
def test_a_loaded_model_goes_on_as_the_saved_one(kind, latents, tmp_path):
  model = make(kind(), latents)
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  model.fit(data_of(IMAGES), verbose=0)
  model.save(tmp_path / 'model.keras')
  # The model loads in safe mode.
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  assert_same(everything(loaded), everything(model), tolerance=0.0)
  results = [m.evaluate(data_of(IMAGES), verbose=0) for m in (model, loaded)]
  assert results[0] == results[1]
  for m in (model, loaded):
    m.fit(data_of(IMAGES), verbose=0)
  assert_same(everything(loaded), everything(model), tolerance=1e-6)


def test_networks_of_the_user_are_used_and_saved(tmp_path):
  encoder = keras.Sequential(
    [keras.layers.Reshape([3, 3, 1]), keras.layers.Flatten(),
     keras.layers.Dense(3, activation='tanh')]
  )  # fmt: skip
  decoder = keras.layers.Dense(9, use_bias=False)
  model = make(leave_one_out(), encoder=encoder, decoder=decoder)
  assert len(model.weights) == 3
  model.compile(jit_compile=False)
  model.fit(data_of(IMAGES), verbose=0)
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  np.testing.assert_array_equal(loaded.predict(IMAGES, verbose=0),
                                model.predict(IMAGES, verbose=0))  # fmt: skip


def test_a_run_that_was_stopped_ends_as_if_it_had_not_been(tmp_path):
  class Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
      if epoch == 1:
        raise KeyboardInterrupt

  def run(folder, callbacks=()):
    model = make(relax())
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
    backup = keras.callbacks.BackupAndRestore(folder, delete_checkpoint=False)
    model.fit(
      data_of(IMAGES), epochs=2, callbacks=[backup, *callbacks], verbose=0
    )
    return everything(model)

  expected = run(tmp_path / 'whole')
  with pytest.raises(KeyboardInterrupt):
    run(tmp_path / 'parts', [Stop()])
  assert_same(run(tmp_path / 'parts'), expected, tolerance=1e-6)


@both_kinds
def test_batches_of_unknown_size_and_empty_ones(latents):
  for estimator in (leave_one_out(), tfp_rb.Exact()):
    model = make(estimator, latents)
    bound = tf.function(
      lambda x, model=model: model.negative_bound(x, SEED),
      autograph=False,
      input_signature=[tf.TensorSpec([None, 9], tf.float32)],
    )
    x = BINARY.astype(np.float32)
    assert bound(x[:0]).shape == [0]
    np.testing.assert_allclose(
      bound(x), model.negative_bound(x, SEED), rtol=1e-5
    )


def test_generated_images_are_means_of_pixels():
  for latents in LATENTS.values():
    images = make(latents=latents).generate(50, seed=SEED).numpy()
    assert images.shape == (50, 9)
    assert np.all((images > 0.0) & (images < 1.0))
    most = len(all_codes(latents))
    assert most // 2 < len(np.unique(images.round(5), axis=0)) <= most


def test_wrong_arguments():
  with raises(ValueError, 'latents'):
    make(latents=(2, 3, 4))
  with raises(TypeError, 'latents'):
    make(latents=2.5)
  with raises(ValueError, 'latents'):
    make(latents=(2, 1))
  with raises(ValueError, 'encoder'):
    make(encoder=keras.layers.Dense(4))
  with raises(ValueError, 'decoder'):
    make(decoder=keras.layers.Dense(10))
  with raises(ValueError, 'latents'):
    make(tfp_rb.Exact(), latents=17).negative_bound(BINARY)
  model = make()
  with raises(TypeError, 'images'):
    model.negative_bound(IMAGES)
  with raises(ValueError, 'images'):
    model.compute_step_loss((IMAGES[0],), model.estimator, SEED)
  with raises(ValueError, 'data'):
    model.compute_step_loss((IMAGES, IMAGES), model.estimator, SEED)
