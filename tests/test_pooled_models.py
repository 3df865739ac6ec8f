# SPDX-License-Identifier: Apache-2.0
"""Models that spend one budget over the minibatch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfp_rb

RNG = np.random.default_rng(0)
IMAGES = tf.constant(RNG.integers(0, 256, [8, 784]), tf.uint8)


def small_model(estimator, **settings):
  keras.utils.set_random_seed(1)
  return tfp_rb.models.SemiSupervisedVAE(
    estimator,
    latent_dim=2,
    classifier_units=(8,),
    hidden_units=(8,),
    **settings,
  )


@pytest.mark.parametrize('share_noise', [False, True])
def test_a_budget_for_all_labels_is_the_exact_sum(share_noise):
  binary = tf.cast(IMAGES > 127, tf.float32)
  labels = tf.zeros([8], tf.int32)
  results = []
  for estimator in (tfp_rb.Exact(), tfp_rb.pooled(budget_per_row=10.0)):
    model = small_model(estimator, share_noise=share_noise)
    with tf.GradientTape() as tape:
      losses, _, _ = model.losses_of(binary, binary, labels, seed=(1, 2))
      loss = tf.reduce_mean(losses)
    weights = model.classifier.trainable_variables
    gradients = tape.gradient(loss, [v.value for v in weights])
    results.append([losses, *gradients])
  # The noise of `z` differs between the two, unless each image has only one
  # noise.
  if share_noise:
    for exact, pooled in zip(*results, strict=True):
      np.testing.assert_allclose(pooled, exact, rtol=2e-3, atol=2e-3)
  assert results[1][0].shape == [8]


def test_a_pooled_model_trains_and_is_loaded_as_it_was_saved(tmp_path):
  model = small_model(tfp_rb.pooled(budget_per_row=1.25))
  model.compile(keras.optimizers.Adam(1e-3))
  data = tf.data.Dataset.from_tensors((IMAGES, IMAGES, tf.zeros([8], tf.int32)))
  history = model.fit(data.repeat(3), verbose=0)
  assert np.isfinite(history.history['loss'][0])
  model.save(tmp_path / 'model.keras')
  loaded = keras.saving.load_model(tmp_path / 'model.keras')
  assert repr(loaded.estimator) == repr(model.estimator)
  np.testing.assert_array_equal(
    loaded.predict(IMAGES, verbose=0), model.predict(IMAGES, verbose=0)
  )


def test_hard_attention_takes_a_pooled_budget():
  keras.utils.set_random_seed(1)
  model = tfp_rb.models.MovingVAE(
    tfp_rb.pooled(budget_per_row=2.0, num_candidates=4)
  )
  frames = tf.cast(tf.random.uniform([3, 68, 68], seed=1) > 0.9, tf.float32)
  losses, _ = model.losses_of(frames, seed=(1, 2))
  assert losses.shape == [3]
  assert np.all(np.isfinite(losses))
