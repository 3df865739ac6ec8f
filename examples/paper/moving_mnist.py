# SPDX-License-Identifier: Apache-2.0
"""Trains hard attention on moving MNIST: section 5.4 of the paper.

The script draws Figures 5 and 6 and prints Table 2. A digit lies somewhere in a
frame of 68 by 68 pixels. An autoencoder looks at one window of 28 by 28 pixels.
The location of the window is a discrete variable with 4,624 values, and the
estimator under test estimates the gradient w.r.t. its distribution. The exact
gradient is too expensive, but most of the mass is on a few locations, and the
Rao-Blackwellized methods sum those.

All methods start from the same weights. After every epoch the script evaluates
two quantities on test images: the negative ELBO at the most probable location
(without entropy and prior of the location, as in the authors' code), and the
distance of this location from the true one.

  python -m examples.paper.moving_mnist --as_published --methods=RB-REINFORCE+

The entropy of the location has the weight 1 by default, and the weight 64 with
`--as_published`, as in the authors' code. With `--anneal_epochs=25` its weight
starts at 256 and falls to the final weight within 25 epochs. `--plot_only`
draws the figures and prints the table from the existing CSV files. `--tune`
compares the paper's step sizes on validation images. If a run is stopped, start
it again with the same flags, and it continues where it stopped. A run needs
0.8 GB on disk: the attention has 17 million weights, and Adam keeps two further
values for each weight.

The script differs from the authors' code as follows:

* It places digits at whole pixels; the authors' code interpolates them
  between pixels.
* An epoch has 93 steps; digits that do not fill a batch are left out.
* Test images have the same locations in all evaluations.
* RELAX is unbiased, with a control variate of frame and location; the authors'
  version is close to REBAR, and biased for this `f`.
* The network of NVIL has the default initialization of Keras.

Reference: Runjing Liu et al. Rao-Blackwellized stochastic gradients for
discrete distributions. ICML 2019. https://arxiv.org/abs/1810.04777
"""

import functools
import gc
import os
import pathlib
from typing import Any, NamedTuple

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from examples.paper import moving_report, step_sizes
from examples.shared import kept_files, training_runs
import tfp_rb
from tfp_rb import baselines, datasets, models

FLAGS = flags.FLAGS
BATCH_SIZE = 64
# The authors' code multiplies the entropy by the batch size once too often.
PUBLISHED_WEIGHT = 64.0
# 256 * log 4,624 is roughly the loss of a frame that the model misses entirely.
ANNEALED_FROM = 256.0
MOST_ATOMS = 500  # About this many fit into memory.


def choose_emitters():
  """Selects XLA's older emitters; call it before any computation.

  They need 300 MB less memory, but a step takes 8 % longer. If `XLA_FLAGS` is
  already set, the function does not change it.
  """
  os.environ.setdefault(
    'XLA_FLAGS',
    '--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters',
  )


def _plus(frame=None):
  del frame
  # As in the authors' code, every atom has its own draw for the baseline.
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
    models.ControlVariate(frame**2, atom_size=frame**2),
    temperature=tfp.util.TransformedVariable(1.0, tfp.bijectors.Exp()),
    scale=tf.Variable(1.0),
  )


def _gumbel(frame, rate=5e-4):
  del frame
  return tfp_rb.GumbelSoftmax(tfp_rb.AnnealedTemperature(rate=rate))


def _summed(frame, k=5):
  del frame
  return tfp_rb.rao_blackwellize(_plus(), num_summed=k)


def _leave_one_out(frame, num_samples=2, **split):
  del frame
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=num_samples),
    **(split or {'num_summed': 4}),
  )


def _pooled(frame, budget_per_row):
  del frame
  return tfp_rb.pooled(budget_per_row=budget_per_row)


# Each entry has a callable that takes the size of frames and returns an
# estimator, the step size, and the step size for the estimator's variables.
METHODS = {
  'RB-REINFORCE+': (_summed, 1e-3, None),
  'REINFORCE+': (_plus, 1e-3, None),
  'RELAX': (_relax, 5e-4, 1e-2),
  'NVIL': (_nvil, 1e-3, None),
  'Gumbel': (_gumbel, 5e-5, None),
  'RB-leave-one-out': (_leave_one_out, 1e-3, None),
  'pooled=6': (functools.partial(_pooled, budget_per_row=6.0), 1e-3, None),
}


DEMO = ('RB-REINFORCE+', 'REINFORCE+')


def method_of(name):
  """Returns the entry of a method; `k=...` and `budget=...` work, too."""
  kind, _, number = name.partition('=')
  if number.isdigit() and int(number) <= MOST_ATOMS:
    if kind == 'k':
      return functools.partial(_summed, k=int(number)), 1e-3, None
    if kind == 'budget' and int(number) > 1:
      estimator = functools.partial(
        _leave_one_out, num_samples=1, budget=int(number)
      )
      return estimator, 1e-3, None
  if name not in METHODS:
    raise app.UsageError(
      f'`--methods` must be among {list(METHODS)}, `k=0` to `k={MOST_ATOMS}` '
      f'(also `--k`) and `budget=2` to `budget={MOST_ATOMS}` (also '
      f'`--budget`); got {name!r}.'
    )
  return METHODS[name]


def make_model(method, seed, learning_rate=None, rate=None, **settings):
  """Returns a compiled model, with the same initial networks for all methods.

  Args:
    method: Name of the method.
    seed: Python `int`, the seed of the noise.
    learning_rate: Python `float`. Default: the step size in `METHODS`.
    rate: Python `float`, annealing rate of Gumbel. Default: the paper's rate.
    **settings: Arguments of `MovingVAE`, or `jit_compile`.

  Returns:
    model: A `MovingVAE`.
  """
  make_estimator, default, estimator_rate = method_of(method)
  jit_compile = settings.pop('jit_compile', True)
  frame = settings.get('frame', 68)
  gc.collect()  # Keras does not free the previous model at once.
  keras.utils.set_random_seed(seed)
  estimator = (
    make_estimator(frame) if rate is None else make_estimator(frame, rate)
  )
  keras.utils.set_random_seed(901)
  model = models.MovingVAE(estimator, seed=seed, **settings)
  # The authors' epsilon belongs to a sum over the batch; our loss is a mean.
  adam = functools.partial(keras.optimizers.Adam, epsilon=1e-8 / BATCH_SIZE)
  model.compile(
    adam(learning_rate or default),
    estimator_optimizer=estimator_rate and adam(estimator_rate),
    jit_compile=jit_compile,
  )
  return model


def training_data(digits, first_epoch, seed):
  """Returns batches of endless epochs.

  The order in an epoch depends only on the seed and the number of the epoch.
  """
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
  return models.prepare_dataset(
    data.map(lambda order: tf.gather(digits, order))
  )


def split(mnist, num_images, num_test):
  """Draws training, validation and test digits without replacement.

  Args:
    mnist: `datasets.MNIST`.
    num_images: Python `int`, number of training and of validation digits.
    num_test: Python `int`, number of test digits.

  Returns:
    train, validation, test: Arrays of images, which have fewer images if MNIST
      does not have enough.
  """
  if num_images < BATCH_SIZE or num_test < 1:
    raise app.UsageError(
      f'`--num_images` must be at least the batch size ({BATCH_SIZE}), and '
      f'`--num_test` at least 1; got {num_images} and {num_test}.'
    )
  rng = np.random.default_rng(901)
  train = rng.permutation(len(mnist.train_images))
  test = rng.permutation(len(mnist.test_images))[:num_test]
  return (
    mnist.train_images[train[:num_images]],
    mnist.train_images[train[num_images : 2 * num_images]],
    mnist.test_images[test],
  )


def entropy_weight(weight, num_steps):
  """Returns a weight, or a schedule that falls to it from `ANNEALED_FROM`."""
  if not num_steps:
    return weight
  return keras.optimizers.schedules.PolynomialDecay(
    ANNEALED_FROM, num_steps, end_learning_rate=weight, power=3.0
  )


def evaluation_data(digits):
  data = tf.data.Dataset.from_tensor_slices(digits).batch(BATCH_SIZE)
  return models.prepare_dataset(data)


def run(model, seed, digits, test_data, folder, epochs, source, restart=False):
  """Trains a model, or resumes a stopped run; returns its log."""
  num_steps = len(digits) // BATCH_SIZE
  return training_runs.train(
    model,
    lambda first_epoch: training_data(digits, first_epoch, seed),
    # Each call runs one step, because loops of convolutions are slow on a CPU.
    (num_steps, 1),
    test_data,
    folder,
    epochs,
    'val_negative_elbo',
    source,
    restart,
  )


class Plan(NamedTuple):
  """What the flags ask for.

  Attributes:
    epochs: Python `int`, passes over the training digits.
    num_seeds: Python `int`, runs of each method.
    num_images: Python `int`, the number of training digits.
    num_test: Python `int`, the number of test digits.
    weight: Python `float`, the weight of the entropy in the end.
    settings: Dictionary, the other arguments of `make_model`.
    about: Dictionary, the settings that all runs of a folder share.
  """

  epochs: int
  num_seeds: int
  num_images: int
  num_test: int
  weight: float
  settings: dict[str, Any]
  about: dict[str, Any]


def plan_of_flags():
  """Returns a `Plan`, and warns if the run ends before its schedule."""
  num_images, num_test, settings = FLAGS.num_images, FLAGS.num_test, {}
  epochs, num_seeds = FLAGS.epochs, FLAGS.num_seeds
  if FLAGS.tune and not FLAGS['epochs'].present:
    epochs = 20  # The authors also use 20.
  if FLAGS.demo:
    epochs, num_seeds, num_test = 4, 1, 500
  if FLAGS.smoke:
    num_images, num_test = 128, 64
    settings = {'frame': 36, 'channels': 2, 'jit_compile': False}
  weight = PUBLISHED_WEIGHT if FLAGS.as_published else 1.0
  if FLAGS.entropy_weight is not None:
    weight = FLAGS.entropy_weight
  about = {**settings, 'entropy_weight': weight}
  if FLAGS.anneal_epochs:
    about['anneal_epochs'] = FLAGS.anneal_epochs
    about['annealed_from'] = ANNEALED_FROM
    if FLAGS.anneal_epochs >= epochs:
      print(
        f'The {epochs} epochs end before the weight of the entropy falls to '
        f'{weight:g}.'
      )
  return Plan(epochs, num_seeds, num_images, num_test, weight, settings, about)


def shared_start(plan, settings, test_data, output, source):
  """Evaluates the weights that all methods start from, unless that is done.

  Args:
    plan: `Plan`.
    settings: Dictionary, arguments of `make_model`.
    test_data: `tf.data.Dataset`.
    output: `pathlib.Path` of the folder of all runs.
    source: Python `str`, what the data are.
  """
  # Other processes may train other methods in this folder; they wait here.
  with kept_files.lock(output / 'start.lock', wait=True):
    training_runs.start_of(
      output / 'start.json',
      {
        'source': source,
        'entropy_weight': plan.weight,
        'settings': plan.about,
      },
      lambda: make_model('REINFORCE+', 0, **settings).evaluate(
        test_data, return_dict=True, verbose=0
      ),
      FLAGS.restart,
    )


def run_all(
  methods, plan, settings, digits, test_digits, test_data, output, source
):
  """Trains every method with every seed; draws what is there after each run."""
  for i in range(plan.num_seeds):
    seed = FLAGS.first_seed + i
    for j, method in enumerate(methods):
      print(
        f'{method}, seed {seed}, {plan.epochs} epochs: '
        f'run {1 + i * len(methods) + j} of {plan.num_seeds * len(methods)}'
      )
      folder = output / method / str(seed)
      model = make_model(method, seed, **settings)
      run(
        model, seed, digits, test_data, folder, plan.epochs, source,
        FLAGS.restart,
      )  # fmt: skip
      moving_report.reconstruct(
        model, test_digits[:4], output / method / 'reconstructions.csv', source
      )
      del model  # Frees its memory before the next model is created.
      moving_report.report(output, METHODS)


def main(argv):
  del argv
  output = pathlib.Path(FLAGS.output_dir)
  if FLAGS.plot_only:
    moving_report.report(output, METHODS)
    return
  choose_emitters()
  methods = training_runs.methods_of_flags(DEMO)
  for method in methods:
    method_of(method)  # An unknown name is reported before anything runs.
  mnist = datasets.load_mnist(FLAGS.source, FLAGS.data_dir)
  print(f'Data: {mnist.source}')
  plan = plan_of_flags()
  digits, validation, test_digits = split(mnist, plan.num_images, plan.num_test)
  source = f'{mnist.source}, {len(digits)} + {len(test_digits)} digits'
  del mnist  # Frees the images that are not used.
  num_steps = FLAGS.anneal_epochs * (len(digits) // BATCH_SIZE)
  settings = {
    **plan.settings,
    'entropy_weight': entropy_weight(plan.weight, num_steps),
  }
  test_data = evaluation_data(test_digits)
  shared_start(plan, settings, test_data, output, source)
  if FLAGS.tune:
    tune(
      methods, digits, validation, output, plan.epochs, source, FLAGS.restart,
      **settings,
    )  # fmt: skip
    return
  run_all(
    methods, plan, settings, digits, test_digits, test_data, output, source
  )
  print(f'Figures and CSV files are in {output}.')


def tune(
  methods, digits, validation, output, epochs, source, restart=False, **settings
):
  """Compares the paper's grid of step sizes on the validation images."""
  data = evaluation_data(validation)

  def run_one(method, step_size, rate, folder):
    model = make_model(method, 0, step_size, rate, **settings)
    return run(model, 0, digits, data, folder, epochs, source, restart)

  columns = ('val_negative_elbo', 'val_distance')
  step_sizes.compare(methods, run_one, columns, output, source)


def define_flags():
  flags.DEFINE_list(
    'methods', list(METHODS), f'Methods to train, among {list(METHODS)}.'
  )
  flags.DEFINE_list(
    'k', [], 'Numbers of locations to sum; trains REINFORCE+ with each.'
  )
  flags.DEFINE_list(
    'budget', [], 'Budgets; trains leave-one-out with each of them.'
  )
  flags.DEFINE_integer(
    'epochs', 50, 'Passes over the training digits; 20 by default to tune.'
  )
  flags.DEFINE_integer('num_seeds', 3, 'Number of runs of each method.')
  flags.DEFINE_integer('first_seed', 0, 'The seed of the first run.')
  flags.DEFINE_integer('num_images', 6000, 'Number of training digits.')
  flags.DEFINE_integer('num_test', 2000, 'Number of test digits.')
  flags.DEFINE_bool(
    'as_published', False, 'Sets the weight of the entropy to 64.'
  )
  flags.DEFINE_float(
    'entropy_weight', None, 'Weight of the entropy, in place of 1 or 64.'
  )
  flags.DEFINE_integer(
    'anneal_epochs',
    0,
    'Epochs in which the weight of the entropy falls from 256; 0: none.',
    lower_bound=0,
  )
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Source of MNIST.'
  )
  flags.DEFINE_string('data_dir', None, 'Folder of the data of TFDS.')
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_mnist', 'Folder for all output files.'
  )
  flags.DEFINE_bool(
    'plot_only', False, 'Only draws figures and tables from the CSV files.'
  )
  flags.DEFINE_bool('restart', False, training_runs.RESTART_HELP)
  flags.DEFINE_bool('tune', False, 'Compares the step sizes of the paper.')
  flags.DEFINE_bool('demo', False, 'Trains two methods in about 3 minutes.')
  flags.DEFINE_bool('smoke', False, 'Uses a small model and few images.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
