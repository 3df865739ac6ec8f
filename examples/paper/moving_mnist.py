# SPDX-License-Identifier: Apache-2.0
"""Moving MNIST: section 5.4 of the paper, Figures 5 and 6, Table 2.

A digit lies somewhere in a frame of 68 by 68 pixels. An autoencoder looks at
one window of 28 by 28; where, is a discrete variable of 4,624 values, and the
gradient of its distribution is that of the estimator. The exact gradient is
out of reach, yet the mass sits on a few pixels: those are summed.

All methods start from the same weights. Evaluated on test images after every
epoch: the negative ELBO at the most probable location (without entropy and
prior of the location, as in the authors' code), and how far that location is
from the truth.

  python -m examples.paper.moving_mnist --as_published --methods=RB-REINFORCE+

`--as_published` weighs the entropy of the location 64 times, as the authors'
code does; default is its weight 1. `--anneal_epochs=25` begins with 256 and
falls to that weight within so many epochs. Digits are placed at whole pixels,
where the authors' code stretched them between pixels. A run that is stopped
goes on where it was, when started again with the same flags; `--plot_only`
draws figures and table from the CSV files that are there; `--tune` compares the
paper's step sizes on validation images. A run keeps 0.8 GB: the attention has
17 million weights, and Adam keeps as many twice.

Other differences from the authors' code: an epoch has 93 steps, the digits that
do not fill a batch are left out; test images lie where they lay at the last
evaluation; RELAX is the unbiased one, with a control variate of frame and
location, where the authors' is close to REBAR, biased for this `f`; the network
of NVIL starts as Keras does.

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
PUBLISHED_WEIGHT = 64.0  # of the entropy: the size of a batch, once too often
# Times log 4,624 about what a frame costs of which nothing is seen.
ANNEALED_FROM = 256.0
MOST_ATOMS = 500  # what memory allows, about


def choose_emitters():
  """Selects XLA's older emitters; call it before anything is computed.

  They need 300 MB less memory, and a step takes 8 % longer. If `XLA_FLAGS` is
  set, it remains as it is.
  """
  os.environ.setdefault(
    'XLA_FLAGS',
    '--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters',
  )


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


# Estimator by the size of frames, step size, that of its own variables.
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
  """A row of the table of methods, also of `k=...` and `budget=...`."""
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
      f'Methods must be of {list(METHODS)}, `k=0` to `k={MOST_ATOMS}` or '
      f'`budget=2` to `budget={MOST_ATOMS}` (by `--methods`, `--k` or '
      f'`--budget`), but one is {name!r}.'
    )
  return METHODS[name]


def make_model(method, seed, learning_rate=None, rate=None, **settings):
  """A compiled model for a method; its networks start alike for all.

  Args:
    method: Name of the method.
    seed: Python `int`, of the noise.
    learning_rate: Python `float`. Default: that of the table.
    rate: Python `float`, of the annealing of Gumbel. Default: the paper's.
    **settings: Of `MovingVAE`, or `jit_compile`.

  Returns:
    model: A `MovingVAE`.
  """
  make_estimator, default, estimator_rate = method_of(method)
  jit_compile = settings.pop('jit_compile', True)
  frame = settings.get('frame', 68)
  gc.collect()  # the model before: Keras leaves it to the collector
  keras.utils.set_random_seed(seed)
  estimator = (
    make_estimator(frame) if rate is None else make_estimator(frame, rate)
  )
  keras.utils.set_random_seed(901)
  model = models.MovingVAE(estimator, seed=seed, **settings)
  # The authors' epsilon, of gradients of a sum over the batch.
  adam = functools.partial(keras.optimizers.Adam, epsilon=1e-8 / BATCH_SIZE)
  model.compile(
    adam(learning_rate or default),
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
  return models.prepare_dataset(
    data.map(lambda order: tf.gather(digits, order))
  )


def split(mnist, num_images, num_test):
  """Training, validation and test digits, without replacement.

  Args:
    mnist: `datasets.MNIST`.
    num_images: Python `int`, of training digits, and of validation digits.
    num_test: Python `int`.

  Returns:
    train, validation, test: Arrays of images; fewer if there are fewer.
  """
  if num_images < BATCH_SIZE or num_test < 1:
    raise app.UsageError(
      f'`--num_images` must be at least {BATCH_SIZE}, a batch, and '
      f'`--num_test` at least 1, but they are {num_images} and {num_test}.'
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
  """A weight; or its schedule, if it comes down from a heavier one."""
  if not num_steps:
    return weight
  return keras.optimizers.schedules.PolynomialDecay(
    ANNEALED_FROM, num_steps, end_learning_rate=weight, power=3.0
  )


def evaluation_data(digits):
  data = tf.data.Dataset.from_tensor_slices(digits).batch(BATCH_SIZE)
  return models.prepare_dataset(data)


def run(model, seed, digits, test_data, folder, epochs, source, restart=False):
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
    epochs = 20  # as the authors
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
      print(f'{epochs} epochs end before the entropy weighs {weight:g}.')
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
  # Processes with other methods may share the folder; they wait here.
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
      del model  # before there is another
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
    method_of(method)  # before anything takes time
  mnist = datasets.load_mnist(FLAGS.source, FLAGS.data_dir)
  print(f'Data: {mnist.source}')
  plan = plan_of_flags()
  digits, validation, test_digits = split(mnist, plan.num_images, plan.num_test)
  source = f'{mnist.source}, {len(digits)} + {len(test_digits)} digits'
  del mnist  # what is not used
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
  """The paper's grid of step sizes, by the validation images."""
  data = evaluation_data(validation)

  def run_one(method, step_size, rate, folder):
    model = make_model(method, 0, step_size, rate, **settings)
    return run(model, 0, digits, data, folder, epochs, source, restart)

  columns = ('val_negative_elbo', 'val_distance')
  step_sizes.compare(methods, run_one, columns, output, source)


def define_flags():
  flags.DEFINE_list('methods', list(METHODS), f'Of {list(METHODS)}.')
  flags.DEFINE_list('k', [], 'REINFORCE+ with so many locations summed.')
  flags.DEFINE_list('budget', [], 'Leave-one-out with such a budget.')
  flags.DEFINE_integer(
    'epochs', 50, 'Passes over the training digits; 20 by default to tune.'
  )
  flags.DEFINE_integer('num_seeds', 3, 'Runs of each method.')
  flags.DEFINE_integer('first_seed', 0, 'The seed of the first run.')
  flags.DEFINE_integer('num_images', 6000, 'Of the training digits.')
  flags.DEFINE_integer('num_test', 2000, 'Of the test digits.')
  flags.DEFINE_bool('as_published', False, 'Entropy 64 times as heavy.')
  flags.DEFINE_float('entropy_weight', None, 'Another weight of the entropy.')
  flags.DEFINE_integer(
    'anneal_epochs',
    0,
    'The weight of the entropy comes down from 256 in so many epochs.',
    lower_bound=0,
  )
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Which MNIST.'
  )
  flags.DEFINE_string('data_dir', None, 'Where TFDS keeps its data.')
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_mnist', 'Where everything goes.'
  )
  flags.DEFINE_bool(
    'plot_only', False, 'Only tables and figures, of CSV files.'
  )
  flags.DEFINE_bool('restart', False, training_runs.RESTART_HELP)
  flags.DEFINE_bool('tune', False, 'Compare the step sizes of the paper.')
  flags.DEFINE_bool('demo', False, 'Two methods, as long as 3 minutes allow.')
  flags.DEFINE_bool('smoke', False, 'A small model and few images.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
