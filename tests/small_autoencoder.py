# SPDX-License-Identifier: Apache-2.0
"""A user's own Keras model: an autoencoder with a code of four symbols."""

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb
from tfp_rb import models

tfd = tfp.distributions

X = np.random.default_rng(3).normal(size=[12, 5]).astype(np.float32)


@keras.saving.register_keras_serializable('small_autoencoder')
class Autoencoder(models.EstimatorModel):
  """An encoder, a decoder, and the loss of a batch."""

  batch_rank = 2

  def __init__(self, estimator, units=4, activation=None, **kwargs):
    super().__init__(estimator, **kwargs)
    self.encoder = keras.layers.Dense(units, activation)
    self.encoder.build([None, 5])
    self.decoder = keras.layers.Dense(5)
    self.decoder.build([None, units])

  def call(self, x):
    return self.encoder(x)

  def compute_step_loss(self, batch, estimator, seed):
    (x,) = batch
    q = tfd.OneHotCategorical(logits=self(x), dtype=tf.float32)
    f = lambda z: tf.reduce_sum((self.decoder(z) - x) ** 2, axis=-1)
    loss = tfp_rb.expectation(f, q, estimator.bind(x), seed=seed)
    return tf.reduce_mean(loss)


class Reporting(Autoencoder):
  """Returns metrics besides the loss, without having announced them."""

  def compute_step_loss(self, batch, estimator, seed):
    loss = super().compute_step_loss(batch, estimator, seed)
    return {'loss': loss, 'mean': tf.reduce_mean(batch[0]), 'step': self.step}


def make(estimator=None, kind=Autoencoder, **settings):
  keras.utils.set_random_seed(0)
  return kind(
    tfp_rb.REINFORCE() if estimator is None else estimator, **settings
  )


def data_of(*batches):
  return tf.data.Dataset.from_tensor_slices((np.stack(batches),))


def nvil():
  keras.utils.set_random_seed(1)
  network = keras.Sequential([keras.Input([5]), keras.layers.Dense(1)])
  return tfp_rb.NVIL(network, center=True)
