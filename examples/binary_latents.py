# SPDX-License-Identifier: Apache-2.0
"""Trains an autoencoder with 200 binary latent variables.

Each image has a code of 200 bits, so there are far too many codes to sum.
A leave-one-out baseline with a few draws works well here: the baseline of each
draw is the mean of the other draws. The script prints the negative ELBO of test
images, and the importance-weighted bound with 100 codes.

  python examples/binary_latents.py
"""

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf

import tfp_rb
from tfp_rb import datasets, models

FLAGS = flags.FLAGS
BATCH_SIZE = 100
STEPS_PER_CALL = 10


def training_data(images, num_batches, seed):
  data = tf.data.Dataset.from_tensor_slices(images)
  data = data.shuffle(len(images), seed=seed).repeat()
  data = data.batch(BATCH_SIZE, drop_remainder=True)
  # On a CPU, ten small steps in one compiled call take half the time.
  return models.prepare_dataset(
    data.take(num_batches), steps_per_call=STEPS_PER_CALL
  )


def main(argv):
  del argv
  keras.utils.set_random_seed(FLAGS.seed)
  mnist = datasets.load_mnist('embedded')
  train, test = (
    x.reshape([len(x), -1]) for x in (mnist.train_images, mnist.test_images)
  )
  model = models.DiscreteVAE(
    tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=3),
    latents=200,
    seed=FLAGS.seed,
  )
  model.compile(keras.optimizers.Adam(1e-3))
  model.fit(training_data(train, FLAGS.steps, FLAGS.seed), verbose=0)

  print(f'Data: {mnist.source}')
  batches = tf.data.Dataset.from_tensor_slices(test).batch(BATCH_SIZE)
  found = model.evaluate(batches, verbose=0, return_dict=True)
  print(f'negative ELBO of test images: {found["negative_elbo"]:.1f} nats')
  binary = (test[:200] > 127).astype(np.float32)
  bound = model.importance_bound(binary, num_samples=100, seed=[FLAGS.seed, 0])
  print(f'bound with 100 codes, 200 images: {-np.mean(bound):.1f} nats')
  logits = model.predict(binary, verbose=0)
  used = np.mean(np.std(1.0 / (1.0 + np.exp(-logits)), axis=0) > 0.1)
  print(f'bits whose probability depends on the image: {used:.0%}')


if __name__ == '__main__':
  flags.DEFINE_integer('steps', 500, 'Number of training steps.')
  flags.DEFINE_integer('seed', 0, 'Random seed.')
  app.run(main)
