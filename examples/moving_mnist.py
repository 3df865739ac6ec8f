"""Moving MNIST: section 5.4 of the paper, Figures 5 and 6, Table 2.

A digit lies somewhere in a frame of 68 by 68 pixels. An autoencoder looks at
one window of 28 by 28; where, is a discrete variable of 4,624 values, and the
gradient of its distribution is that of the estimator. The exact gradient is
out of reach, yet the mass sits on a few pixels: those are summed.

All methods start from the same weights. Evaluated on test images after every
epoch: the negative ELBO at the most probable location (without entropy and
prior of the location, as in the authors' code), and how far that location is
from the truth.

  python examples/moving_mnist.py --as_published --methods=RB-REINFORCE+

`--as_published` weighs the entropy of the location 64 times, as the authors'
code does; default is its weight 1. Digits are placed at whole pixels, where the
authors' code stretched them between pixels. A run that is stopped goes on where
it was, when started again with the same flags; `--plot_only` draws figures and
table from the CSV files that are there.

Reference: Runjing Liu et al. Rao-Blackwellized stochastic gradients for
discrete distributions. ICML 2019. https://arxiv.org/abs/1810.04777
"""

import functools
import pathlib

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import moving_report
import tfp_rb
from tfp_rb import baselines, datasets, models
import training_runs

FLAGS = flags.FLAGS
BATCH_SIZE = 64


def _plus(frame=None):
  del frame
  # As published: a draw of its own for every atom.
  return tfp_rb.REINFORCE(baselines.IndependentSample(shared=False))


def _nvil(frame):
  network = keras.Sequential(
    [keras.layers.Dense(n, activation='relu') for n in (512, 512, 512)]
    + [keras.layers.Dense(1)]
  )
  network.build([None, frame**2])
  return tfp_rb.NVIL(network)


def _relax(frame):
  return tfp_rb.RELAX(
    models.ControlVariate(frame**2, frame**2),
    tfp.util.TransformedVariable(1.0, tfp.bijectors.Exp()),
    scale=tf.Variable(1.0),
  )


def _gumbel(frame):
  del frame
  return tfp_rb.GumbelSoftmax(tfp_rb.AnnealedTemperature(rate=5e-4))


def _summed(frame, k=5):
  del frame
  return tfp_rb.rao_blackwellize(_plus(), num_summed=k)


def _leave_one_out(frame):
  del frame
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2), num_summed=4
  )


# Estimator by the size of frames, step size, that of its own variables.
METHODS = {
  'RB-REINFORCE+': (_summed, 1e-3, None),
  'REINFORCE+': (_plus, 1e-3, None),
  'RELAX': (_relax, 5e-4, 1e-2),
  'NVIL': (_nvil, 1e-3, None),
  'Gumbel': (_gumbel, 5e-5, None),
  'RB-leave-one-out': (_leave_one_out, 1e-3, None),
}


def method_of(name):
  """A row of the table of methods, also of `k=...`."""
  kind, _, number = name.partition('=')
  if kind == 'k' and number.isdigit():
    return functools.partial(_summed, k=int(number)), 1e-3, None
  if name not in METHODS:
    raise app.UsageError(
      f'`--methods` must be of {list(METHODS)} or `k=...`, but has {name!r}.'
    )
  return METHODS[name]


def make_model(method, seed, **settings):
  """A compiled model for a method; its networks start alike for all.

  Args:
    method: Name of the method.
    seed: Python `int`, of the noise.
    **settings: Of `MovingVAE`, or `jit_compile`.

  Returns:
    model: A `MovingVAE`.
  """
  make_estimator, rate, estimator_rate = method_of(method)
  jit_compile = settings.pop('jit_compile', True)
  keras.utils.set_random_seed(901)
  networks = models.MovingVAE(**settings).get_weights()
  estimator = make_estimator(settings.get('frame', 68))
  model = models.MovingVAE(estimator, seed=seed, **settings)
  model.set_weights(networks)
  adam = keras.optimizers.Adam
  model.compile(
    adam(rate),
    estimator_optimizer=estimator_rate and adam(estimator_rate),
    jit_compile=jit_compile,
  )
  return model


def training_data(digits, first_epoch, seed):
  """Epochs without end; each is in an order of its own, whenever it begins."""
  num_steps = len(digits) // BATCH_SIZE
  digits = tf.constant(digits)

  def epoch_of(epoch):
    order = tf.random.experimental.stateless_shuffle(
      tf.range(len(digits)), seed=tf.stack([tf.cast(seed, tf.int64), epoch])
    )
    order = order[: num_steps * BATCH_SIZE]
    return tf.data.Dataset.from_tensor_slices(
      tf.reshape(order, [num_steps, BATCH_SIZE])
    )

  data = tf.data.Dataset.counter(first_epoch).flat_map(epoch_of)
  return data.map(lambda order: tf.gather(digits, order)).prefetch(2)


def split(mnist, num_images, num_test):
  """Some training digits and some test digits, without replacement."""
  rng = np.random.default_rng(901)
  num_images = min(num_images, len(mnist.train_images))
  num_test = min(num_test, len(mnist.test_images))
  train = rng.permutation(len(mnist.train_images))[:num_images]
  test = rng.permutation(len(mnist.test_images))[:num_test]
  return mnist.train_images[train], mnist.test_images[test]


def run(model, seed, digits, test_data, folder, epochs, source):
  """Trains a model, or goes on with it; returns its log by epoch."""
  num_steps = len(digits) // BATCH_SIZE
  return training_runs.train(
    model,
    lambda first_epoch: training_data(digits, first_epoch, seed),
    # One step in a call: a loop around convolutions is slow on a CPU.
    (num_steps, 1),
    test_data,
    folder,
    epochs,
    'val_negative_elbo',
    source,
  )


def main(argv):
  del argv
  output = pathlib.Path(FLAGS.output_dir)
  if FLAGS.plot_only:
    moving_report.report(output, METHODS)
    return
  methods = [*FLAGS.methods, *(f'k={k}' for k in FLAGS.k)]
  for method in methods:
    method_of(method)  # before anything takes time
  mnist = datasets.load_mnist(FLAGS.source, FLAGS.data_dir)
  print(f'Data: {mnist.source}')
  num_images, num_test, settings = FLAGS.num_images, FLAGS.num_test, {}
  if FLAGS.smoke:
    num_images, num_test = 128, 64
    settings = {'frame': 36, 'channels': 2, 'jit_compile': False}
  settings['entropy_weight'] = 64.0 if FLAGS.as_published else 1.0
  if FLAGS.entropy_weight is not None:
    settings['entropy_weight'] = FLAGS.entropy_weight
  digits, test_digits = split(mnist, num_images, num_test)
  source = f'{mnist.source}, {len(digits)} digits'
  test_data = tf.data.Dataset.from_tensor_slices(test_digits).batch(BATCH_SIZE)
  training_runs.start_of(
    output / 'start.json',
    {'source': source, 'entropy_weight': settings['entropy_weight']},
    lambda: make_model('REINFORCE+', 0, **settings).evaluate(
      test_data, return_dict=True, verbose=0
    ),
  )
  for seed in range(FLAGS.num_seeds):
    for method in methods:
      print(f'{method}, seed {seed}, {FLAGS.epochs} epochs')
      model = make_model(method, seed, **settings)
      run(
        model, seed, digits, test_data, output / method / str(seed),
        FLAGS.epochs, source,
      )  # fmt: skip
      moving_report.reconstruct(
        model, test_digits[:4], output / method / 'reconstructions.csv', source
      )
      moving_report.report(output, METHODS)
  print(f'Figures and CSV files are in {output}.')


def define_flags():
  flags.DEFINE_list('methods', list(METHODS), f'Of {list(METHODS)}.')
  flags.DEFINE_list('k', [], 'REINFORCE+ with so many locations summed, too.')
  flags.DEFINE_integer('epochs', 50, 'Passes over the training digits.')
  flags.DEFINE_integer('num_seeds', 3, 'Runs of each method.')
  flags.DEFINE_integer('num_images', 6000, 'Of the training digits.')
  flags.DEFINE_integer('num_test', 2000, 'Of the test digits.')
  flags.DEFINE_bool('as_published', False, 'Entropy 64 times as heavy.')
  flags.DEFINE_float('entropy_weight', None, 'Another weight of the entropy.')
  flags.DEFINE_string('source', 'auto', '`tfds`, `embedded` or `auto`.')
  flags.DEFINE_string('data_dir', None, 'Where TFDS keeps its data.')
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_mnist', 'Where everything goes.'
  )
  flags.DEFINE_bool(
    'plot_only', False, 'Only tables and figures, of CSV files.'
  )
  flags.DEFINE_bool('smoke', False, 'A small model and few images.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
