# SPDX-License-Identifier: Apache-2.0
"""Trains a Keras model on images, only a few of which have labels.

The label of an image is a discrete latent variable. If the label is known, the
model learns from it; otherwise the loss is an expectation over the labels, and
`tfp_rb` estimates its gradient. The script prints the accuracy on test images
before and after training with the unlabeled images: 83.4 % and 84.4 %. For a
longer run see `examples/paper/semisupervised_mnist.py`.

  python examples/label_vae.py
"""

from absl import app, flags
import keras
import tensorflow as tf

import tfp_rb
from tfp_rb import datasets, models

FLAGS = flags.FLAGS
BATCH_SIZE = 64
NUM_LABELED = 200
STEPS_PER_CALL = 10


def flatten(images):
  return images.reshape([len(images), -1])


def training_data(split, num_batches, seed):
  """Returns batches of `(unlabeled images, labeled images, labels)`."""
  unlabeled = tf.data.Dataset.from_tensor_slices(flatten(split.unlabeled[0]))
  images, labels = split.labeled
  labeled = tf.data.Dataset.from_tensor_slices((flatten(images), labels))
  pairs = tf.data.Dataset.zip(
    unlabeled.shuffle(10_000, seed=seed).repeat(),
    labeled.shuffle(10_000, seed=seed + 1).repeat(),
  )
  batches = pairs.map(lambda x, labeled: (x, *labeled)).batch(
    BATCH_SIZE, drop_remainder=True
  )
  # On a CPU, ten small steps in one compiled call take half the time.
  return models.prepare_dataset(
    batches.take(num_batches), steps_per_call=STEPS_PER_CALL
  )


def accuracy_of(model, images, labels):
  log_probs = model.predict(flatten(images), batch_size=500, verbose=0)
  return (log_probs.argmax(axis=-1) == labels).mean()


def make_model(unlabeled_weight, seed):
  # The estimator sums the most probable label, and draws one of the others.
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(tfp_rb.baselines.IndependentSample()), num_summed=1
  )
  model = models.SemiSupervisedVAE(
    estimator,
    classifier_units=[128, 128],
    hidden_units=[128],
    unlabeled_weight=unlabeled_weight,
    alpha=100.0,  # The weight of the log-probability of known labels.
    seed=seed,
  )
  model.compile(keras.optimizers.Adam(1e-3))
  return model


def main(argv):
  del argv
  mnist = datasets.load_mnist('embedded')
  split = datasets.split_mnist(mnist, num_labeled=NUM_LABELED)
  print(f'{NUM_LABELED} labels; data: {mnist.source}')
  keras.utils.set_random_seed(FLAGS.seed)
  weights = None
  # The model first learns from the labeled images alone, because wrong guesses
  # of labels mislead the decoder. It then continues with all images.
  for name, weight in (('labeled images', 0.0), ('all images', 0.5)):
    model = make_model(weight, FLAGS.seed)
    if weights is not None:
      model.set_weights(weights)
    model.fit(training_data(split, FLAGS.steps, FLAGS.seed), verbose=0)
    weights = model.get_weights()
    accuracy = accuracy_of(model, mnist.test_images, mnist.test_labels)
    print(
      f'test accuracy after {FLAGS.steps} steps with {name}: {accuracy:.1%}'
    )


if __name__ == '__main__':
  flags.DEFINE_integer('steps', 300, 'Training steps in each of two phases.')
  flags.DEFINE_integer('seed', 0, 'Random seed.')
  app.run(main)
