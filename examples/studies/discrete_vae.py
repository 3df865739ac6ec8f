# SPDX-License-Identifier: Apache-2.0
"""Autoencoders with discrete codes: the benchmark of the field.

Two models and protocols of the literature:

  --latents=bernoulli    200 bits, dynamically binarized MNIST, batches of 100,
                         Adam 1e-3 (Titsias and Shi 2022, Shi et al. 2022)
  --latents=categorical  4 variables of 8 values, gray pixels, batches of 100,
                         Adam 5e-4, 160 epochs (Liu et al. 2023)

All methods start from the same weights for the same seed. The command

  python -m examples.studies.discrete_vae --methods=leave-one-out,budget \\
    --evaluations=3

trains with two methods that evaluate the decoder three times for each image.
After every 2,000 steps a row is written to `log.csv`: the negative ELBO of the
training images (`loss`), the probability of all codes but the best (`rest`),
the variance of the gradient w.r.t. the encoder along the path, the seconds of
training, and the negative ELBO of the test images with one draw. Every 50,000
steps, and at the end, follows the bound of the test images with 100 draws.

A run that is stopped goes on where it was, when started again with the same
flags. A run that has ended goes on with more `--steps`. `--plot_only` draws the
figures and prints the table from the CSV files that are there.

References:
  Michalis K. Titsias, Jiaxin Shi. Double control variates for gradient
  estimation in discrete latent variable models. https://arxiv.org/abs/2111.05300
  Jiaxin Shi et al. Gradient estimation with discrete Stein operators.
  https://arxiv.org/abs/2202.09497
  Liyuan Liu et al. Bridging discrete and backpropagation: straight-through and
  beyond. https://arxiv.org/abs/2304.08612
"""

import pathlib
from typing import NamedTuple

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf

from examples.shared import kept_files, training_runs
from examples.studies import discrete_vae_methods as methods
from examples.studies import discrete_vae_report
from examples.studies.path_variance import AdamWithMoments, PathVariance
from tfp_rb import datasets, models

FLAGS = flags.FLAGS
BATCH_SIZE = 100
TEST_DRAWS = 100


class Protocol(NamedTuple):
  """How a model is trained."""

  latents: int | tuple[int, int]
  learning_rate: float
  num_steps: int
  num_images: int  # of those for training; others of MNIST are for validation
  is_binarized: bool
  steps_per_row: int = 2000  # of the log
  steps_per_call: int = 50
  rows_per_bound: int = 25
  num_test_images: int = 10_000
  is_compiled: bool = True
  settings: dict = {}


PROTOCOLS = {
  'bernoulli': Protocol(200, 1e-3, 200_000, 50_000, True),
  'categorical': Protocol((4, 8), 5e-4, 96_000, 60_000, False),
}


def shortened(protocol):
  """A protocol of a few steps of a small model."""
  latents = 5 if isinstance(protocol.latents, int) else (3, 2)
  return protocol._replace(
    latents=latents, num_steps=8, num_images=400, steps_per_row=4,
    steps_per_call=2, rows_per_bound=1, num_test_images=200,
    is_compiled=False,
    settings={'encoder_units': (8,), 'decoder_units': (8,)},
  )  # fmt: skip


def as_input(images, protocol):
  """Integers, which the model binarizes, or numbers from 0 to 1."""
  return (
    images if protocol.is_binarized else tf.cast(images, tf.float32) / 255.0
  )


def training_data(images, protocol, first_row, seed):
  """Batches without end, in orders that depend on the row of the log.

  Args:
    images: `uint8` array of shape `[n, pixels]`.
    protocol: `Protocol`.
    first_row: Python `int`, the row with which the data begin.
    seed: Python `int`.

  Returns:
    data: `tf.data.Dataset` of stacks of batches.
  """
  images = tf.constant(images)
  per_call = protocol.steps_per_call
  shape = [protocol.steps_per_row // per_call, per_call, BATCH_SIZE]
  num_passes = -(-int(np.prod(shape)) // len(images))

  def row(number):
    orders = [
      tf.random.experimental.stateless_shuffle(
        tf.range(len(images)),
        seed=tf.stack([tf.constant(seed + 7919 * i, tf.int64), number]),
      )
      for i in range(num_passes)
    ]
    order = tf.concat(orders, axis=0)[: int(np.prod(shape))]
    return tf.data.Dataset.from_tensor_slices(tf.reshape(order, shape))

  data = tf.data.Dataset.counter(first_row).flat_map(row)
  data = data.map(lambda i: as_input(tf.gather(images, i), protocol))
  return models.prepare_dataset(data)


def evaluation_data(images, protocol):
  data = tf.data.Dataset.from_tensor_slices(images).batch(1000)
  return models.prepare_dataset(data.map(lambda x: as_input(x, protocol)))


class TestBound(keras.callbacks.Callback):
  """Logs the bound of the test images with many draws, now and then."""

  def __init__(self, images, protocol, num_rows):
    super().__init__()
    self.images, self.protocol, self.num_rows = images, protocol, num_rows

  def on_train_begin(self, logs=None):
    model, is_binarized = self.model, self.protocol.is_binarized

    @tf.function(jit_compile=self.protocol.is_compiled, autograph=False)
    def sum_of_bounds(images, number):
      pixels = as_input(images, self.protocol)
      if is_binarized:
        pixels = models.binarize(pixels, tf.stack([number, 1]))
      seed = tf.stack([number, 2])
      return tf.reduce_sum(model.importance_bound(pixels, TEST_DRAWS, seed))

    self.sum_of_bounds = sum_of_bounds

  def on_epoch_end(self, epoch, logs=None):
    row = epoch + 1
    is_due = row % self.protocol.rows_per_bound == 0 or row == self.num_rows
    logs['test_bound'] = self.measure() if is_due else float('nan')

  def measure(self):
    """Returns the mean bound in nats, always at the same pixels and draws."""
    total = 0.0
    for start in range(0, len(self.images), BATCH_SIZE):
      batch = tf.constant(self.images[start : start + BATCH_SIZE])
      total += float(self.sum_of_bounds(batch, tf.constant(start)))
    return total / len(self.images)


def make_model(method, protocol, num_evaluations, seed):
  """Makes a compiled model.

  Args:
    method: Python `str`, of `discrete_vae_methods.METHODS`.
    protocol: `Protocol`.
    num_evaluations: Python `int`.
    seed: Python `int`.

  Returns:
    model: A `tfp_rb.models.DiscreteVAE`.
    num_evaluations: Python `int`, those of the method.
  """
  latents = protocol.latents
  keras.utils.set_random_seed(seed + 1000)
  estimator, number = methods.estimator_of(method, latents, num_evaluations)
  # The weights of the model do not depend on how many the estimator has.
  keras.utils.set_random_seed(seed)
  model = models.DiscreteVAE(
    estimator, latents=latents, seed=seed, **protocol.settings
  )
  model.compile(
    AdamWithMoments(protocol.learning_rate),
    # That of RODEO for the parameters of all control variates.
    estimator_optimizer=keras.optimizers.Adam(1e-3),
    jit_compile=protocol.is_compiled,
  )
  return model, number


def run(method, protocol, num_evaluations, seed, mnist, output, restart=False):
  """Trains with a method, or goes on.

  Args:
    method: Python `str`.
    protocol: `Protocol`.
    num_evaluations: Python `int`.
    seed: Python `int`.
    mnist: `datasets.MNIST`.
    output: `pathlib.Path` of the folder of all methods.
    restart: Python `bool`, whether to begin again if it cannot be resumed.

  Returns:
    log: The columns of the log by row.
  """
  flat = lambda images: images.reshape([len(images), -1])
  images = flat(mnist.train_images)[: protocol.num_images]
  test_images = flat(mnist.test_images)[: protocol.num_test_images]
  model, number = make_model(method, protocol, num_evaluations, seed)
  name = f'{method}-{number}'
  num_rows = protocol.num_steps // protocol.steps_per_row
  print(
    f'{name}, seed {seed}: {num_rows} rows of {protocol.steps_per_row} steps'
  )
  return training_runs.train(
    model,
    lambda first_row: training_data(images, protocol, first_row, seed),
    (protocol.steps_per_row, protocol.steps_per_call),
    evaluation_data(test_images, protocol),
    output / name / str(seed),
    num_rows,
    'val_negative_elbo',
    mnist.source,
    restart,
    [PathVariance(), TestBound(test_images, protocol, num_rows)],
  )


def main(argv):
  del argv
  output = pathlib.Path(FLAGS.output_dir) / FLAGS.latents
  about = output / 'about.json'
  protocol = PROTOCOLS[FLAGS.latents]
  if FLAGS.smoke:
    protocol = shortened(protocol)
  if FLAGS.steps:
    protocol = protocol._replace(num_steps=FLAGS.steps)
  if FLAGS.plot_only:
    discrete_vae_report.report(about, list(methods.METHODS))
    return
  if protocol.num_steps % protocol.steps_per_row:
    raise app.UsageError(
      f'`--steps` must be a multiple of {protocol.steps_per_row}; got '
      f'{protocol.num_steps}.'
    )
  possible = methods.methods_of(protocol.latents)
  for method in FLAGS.methods:
    if method not in possible:
      raise app.UsageError(
        f'`--methods` must be of {possible}; got {method!r}.'
      )
  mnist = datasets.load_mnist(FLAGS.source, FLAGS.data_dir)
  print(f'Data: {mnist.source}')
  with kept_files.lock(output / 'start.lock', wait=True):
    common = {
      'source': mnist.source, 'steps_per_row': protocol.steps_per_row,
      # A list, as JSON has it.
      'latents': np.array(protocol.latents).tolist(),
    }  # fmt: skip
    training_runs.start_of(about, common, dict, FLAGS.restart)
  for method in FLAGS.methods:
    for number in FLAGS.evaluations:
      run(
        method, protocol, int(number), FLAGS.seed, mnist, output,
        FLAGS.restart,
      )  # fmt: skip
      discrete_vae_report.report(about, list(methods.METHODS))
  print(f'Figures and CSV files are in {output}.')


def define_flags():
  flags.DEFINE_list(
    'methods', ['leave-one-out', 'budget'], f'Of {list(methods.METHODS)}.'
  )
  flags.DEFINE_list(
    'evaluations', ['3'], 'Evaluations of the decoder for each image.'
  )
  flags.DEFINE_enum('latents', 'bernoulli', list(PROTOCOLS), 'Which model.')
  flags.DEFINE_integer(
    'steps', None, 'Default: 200,000, or 96,000 for `--latents=categorical`.'
  )
  flags.DEFINE_integer('seed', 0, 'Of weights, data and draws.')
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Which MNIST.'
  )
  flags.DEFINE_string('data_dir', None, 'Where TFDS keeps its data.')
  flags.DEFINE_string(
    'output_dir', 'outputs/discrete_vae', 'Where everything goes.'
  )
  flags.DEFINE_bool('plot_only', False, 'Only table and figures, of CSV files.')
  flags.DEFINE_bool('restart', False, training_runs.RESTART_HELP)
  flags.DEFINE_bool('smoke', False, 'A small model and few images.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
