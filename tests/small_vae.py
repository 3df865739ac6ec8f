# SPDX-License-Identifier: Apache-2.0
"""A semi-supervised autoencoder with few units, and images for it."""

import keras
import numpy as np
import tensorflow as tf

from tfp_rb import models

RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, size=[12, 20]).astype(np.uint8)
BINARY = (IMAGES > 127).astype(np.float32)
LABELS = RNG.integers(0, 3, size=[12]).astype(np.int32)
SEED = tf.constant([3, 1])


def make(estimator=None, **settings):
  keras.utils.set_random_seed(0)
  return models.SemiSupervisedVAE(
    estimator,
    latent_dim=2,
    num_classes=3,
    num_pixels=20,
    classifier_units=(8,),
    hidden_units=(7, 6),
    **settings,
  )


def network(input_shape):
  keras.utils.set_random_seed(1)  # the model sets its own seed afterwards
  built = keras.Sequential([keras.layers.Dense(1)])
  built.build(input_shape)
  return built
