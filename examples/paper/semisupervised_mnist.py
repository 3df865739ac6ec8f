# SPDX-License-Identifier: Apache-2.0
"""Trains a semi-supervised autoencoder on MNIST: section 5.3 of the paper.

The script draws Figure 4 and prints Table 1. The model is a variational
autoencoder with a label, and 5,000 of the 50,000 labels are known. The
estimator under test estimates the gradient of the expectation over the label.
Summing one label of ten is nearly as good as summing all, at half the cost.

All methods start from the same weights, which are trained on the labeled images
alone. After every epoch the script evaluates two quantities on the test images:
the negative ELBO at the most probable label (without the constant log 10 of its
prior, as in the authors' code), and the accuracy.

  python -m examples.paper.semisupervised_mnist --methods=RB-REINFORCE,Exact

This command trains both methods for 100 epochs with two seeds. Without
`--methods` the script trains all methods. Further methods are `--k=3`, which
sums three labels, and `--budget=4`. `--plot_only` draws the figures and prints
the table from the existing CSV files. `--tune` compares the paper's step sizes
on the validation images. If a run is stopped, start it again with the same
flags: it continues where it stopped, and ends with the same numbers. After a
short warm start, or with few labels, the classifier may unlearn the labels
before it learns from the other images; `--demo` therefore gives the labels a
larger weight.

Several processes, on one machine or more, train each model together if the
environment variable `TF_CONFIG` names them. Start two workers in two terminals,
with the same flags and a folder that both share:

  TF_CONFIG='{"cluster": {"worker": ["localhost:2222", "localhost:2223"]},
    "task": {"type": "worker", "index": 0}}' \\
    python -m examples.paper.semisupervised_mnist --methods=RB-REINFORCE

Run the same command with `"index": 1` in the second terminal. Each step then
takes 64 labeled and 64 unlabeled images, 32 of each kind per process. If one
process is stopped, end the other one and start both again.

Reference: Runjing Liu et al. Rao-Blackwellized stochastic gradients for
discrete distributions. ICML 2019. https://arxiv.org/abs/1810.04777
"""

import pathlib
from typing import Any, NamedTuple

from absl import app, flags
import tensorflow as tf

from examples.paper import semisupervised_report, step_sizes
from examples.paper.semisupervised_methods import (
  DEMO,
  METHODS,
  make_model,
  method_of,
)
from examples.shared import distributed_runs, kept_files, training_runs
from examples.shared.checkpoints import load_networks, save_networks
from tfp_rb import datasets, models

FLAGS = flags.FLAGS
BATCH_SIZE = 64


def flat(images):
  return images.reshape([len(images), -1])


def steps_of(num_images, most_steps=40):
  """Returns the number of steps per epoch, and that of steps per call."""
  num_steps = num_images // BATCH_SIZE
  per_call = max(n for n in range(1, most_steps) if num_steps % n == 0)
  # If the number of steps has no suitable divisor, leave out a few images.
  if per_call < 8:
    per_call = min(20, num_steps)
    num_steps -= num_steps % per_call
  return num_steps, per_call


def training_data(split, first_epoch, seed):
  """Returns batches of endless epochs.

  The order in an epoch depends only on the seed and the number of the epoch.
  """
  images, labels = (tf.constant(x) for x in split.labeled)
  images = tf.reshape(images, [len(images), -1])
  unlabeled = tf.constant(flat(split.unlabeled[0]))
  num_steps, per_call = steps_of(len(unlabeled))
  shape = [num_steps // per_call, per_call, BATCH_SIZE]
  size = num_steps * BATCH_SIZE

  def epoch_of(epoch):
    shuffle = tf.random.experimental.stateless_shuffle
    seeds = [tf.stack([tf.cast(seed + i, tf.int64), epoch]) for i in (0, 7919)]
    order = shuffle(tf.range(len(unlabeled)), seed=seeds[0])[:size]
    # There are fewer labeled images, so an epoch repeats them several times.
    repeats = -(-size // len(images))
    labeled = tf.concat(
      [
        shuffle(
          tf.range(len(images)), seed=seeds[1] + tf.constant([i, 0], tf.int64)
        )
        for i in range(repeats)
      ],
      axis=0,
    )[:size]
    return tf.data.Dataset.from_tensor_slices(
      (tf.reshape(order, shape), tf.reshape(labeled, shape))
    )

  data = tf.data.Dataset.counter(first_epoch).flat_map(epoch_of)
  data = data.map(
    lambda u, labeled: (
      tf.gather(unlabeled, u),
      tf.gather(images, labeled),
      tf.gather(labels, labeled),
    ),
  )
  return models.prepare_dataset(data)


def warm_start(split, test_data, epochs, seed, path, **settings):
  """Trains on the labeled images alone, and saves the weights for later calls.

  Args:
    split: `datasets.SemiSupervised`.
    test_data: `tf.data.Dataset`.
    epochs: Python `int`.
    seed: Python `int`.
    path: `pathlib.Path` of the weights.
    **settings: As in `make_model`.

  Returns:
    metrics: Dictionary of metrics on the test images.
  """
  model = make_model('REINFORCE', seed, learning_rate=1e-3, **settings)
  problem = kept_files.problem_of(path)
  if problem:
    if kept_files.is_known(path):
      print(f'`{path}` {problem}; the warm start is repeated.')
    # The labeled images replace the unlabeled ones, whose weight is 0.
    alone = split._replace(unlabeled=split.labeled)
    model.unlabeled_weight = 0.0
    num_steps, per_call = steps_of(len(alone.labeled[1]))
    print(f'Warm start: {epochs} epochs on {len(alone.labeled[1])} images.')
    model.fit(
      training_data(alone, 0, seed),
      epochs=epochs,
      steps_per_epoch=num_steps // per_call,
      shuffle=False,  # The data are shuffled already.
      verbose=0,
    )
    save_networks(model, path, same=training_runs.has_runs(path.parent))
  load_networks(model, path)
  return model.evaluate(test_data, return_dict=True, verbose=0)


def run_together(workers, method, seed, split, *args, **settings):
  """Does the same as `run`, in several processes; each of them must call it."""
  data, start, folder, epochs, source = args
  with workers.strategy.scope():
    model = make_model(method, seed, **settings)
  load_networks(model, start)
  num_steps, _ = steps_of(len(split.unlabeled[1]))
  workers.train(
    model, training_data(split, 0, seed), num_steps, data, folder, epochs,
    'val_negative_elbo', source,
  )  # fmt: skip


def run(model, seed, split, data, start, folder, epochs, source, restart=False):
  """Trains a model from the warm start, or resumes a run that was stopped.

  Args:
    model: As `make_model` returns it.
    seed: Python `int`, the seed for the order of the images.
    split: `datasets.SemiSupervised`.
    data: `tf.data.Dataset` of images and labels for the evaluation.
    start: Path of the weights to start from.
    folder: `pathlib.Path` of the run.
    epochs: Python `int`, the total number of epochs.
    source: Python `str`, a description of the data.
    restart: Python `bool`, whether to start again if the run cannot be resumed.

  Returns:
    log: Dictionary of the columns of the log, with one value per epoch.
  """
  load_networks(model, start)
  return training_runs.train(
    model,
    lambda first_epoch: training_data(split, first_epoch, seed),
    steps_of(len(split.unlabeled[1])),
    data,
    folder,
    epochs,
    'val_negative_elbo',
    source,
    restart,
  )


def tune(
  methods, split, start, output, epochs, source, restart=False, **settings
):
  """Compares the paper's grid of step sizes on the validation images."""
  data = evaluation_data(*split.validation)

  def run_one(method, step_size, rate, folder):
    model = make_model(method, 0, step_size, rate, **settings)
    return run(model, 0, split, data, start, folder, epochs, source, restart)

  columns = ('val_negative_elbo', 'val_accuracy')
  step_sizes.compare(methods, run_one, columns, output, source)


def evaluation_data(images, labels):
  data = tf.data.Dataset.from_tensor_slices((flat(images), labels))
  return models.prepare_dataset(data.batch(1000))


class Plan(NamedTuple):
  """The settings that the flags select.

  Attributes:
    methods: Names of the methods to train.
    epochs: Python `int`, passes over the unlabeled images.
    num_seeds: Python `int`, number of runs of each method.
    warm_epochs: Python `int`, passes over the labeled images in the warm start.
    settings: Dictionary of arguments of `make_model`.
  """

  methods: list[str]
  epochs: int
  num_seeds: int
  warm_epochs: int
  settings: dict[str, Any]


def plan_of_flags(methods, num_unlabeled):
  """Returns a `Plan` for the given methods and number of unlabeled images."""
  settings = {}
  if FLAGS.smoke:
    settings = {
      'classifier_units': [16], 'hidden_units': [16], 'jit_compile': False,
    }  # fmt: skip
  elif FLAGS.demo:
    # In such a short run with few labels, the classifier would first unlearn
    # the labels, so they have a larger weight than in the paper.
    settings = {'alpha': 500.0}
  if FLAGS.as_written:
    settings |= {
      'latent_dim': 5, 'hidden_units': [128], 'unlabeled_weight': 0.5,
    }  # fmt: skip
  if FLAGS.demo:
    # With fewer images there are more epochs, so the run takes as long.
    epochs = 5 * min(4, max(1, round(45_000 / num_unlabeled)))
    return Plan(methods, epochs, 1, 50, settings)
  epochs = FLAGS.epochs
  if FLAGS.tune and not FLAGS['epochs'].present:
    epochs = 10  # The paper also uses 10.
  return Plan(
    methods, epochs, FLAGS.num_seeds, FLAGS.warm_start_epochs, settings
  )


def shared_start(workers, plan, split, test_data, output, source):
  """Creates the weights that all methods start from, unless they exist.

  Args:
    workers: `distributed_runs.Workers`.
    plan: `Plan`.
    split: `datasets.SemiSupervised`.
    test_data: `tf.data.Dataset`.
    output: `pathlib.Path` of the folder of all runs.
    source: Python `str`, a description of the data.

  Returns:
    start: `pathlib.Path` of the weights.
  """
  start, about = output / 'warm_start.npz', output / 'warm_start.json'
  begin = lambda: warm_start(
    split, test_data, plan.warm_epochs, 901, start, **plan.settings
  )
  if not workers.is_chief:
    workers.wait_for(about, start)
  # Other processes may train other methods in this folder; they wait here.
  with kept_files.lock(output / 'start.lock', wait=True):
    first = training_runs.start_of(
      about, {'source': source, 'settings': plan.settings}, begin,
      FLAGS.restart,
    )  # fmt: skip
    # The JSON file may exist without the weights.
    if kept_files.problem_of(start):
      begin()
  print(f'Warm start: {first}')
  return start


def run_all(workers, plan, split, test_data, start, output, source):
  """Trains every method with every seed, and updates figures after each run."""
  num_methods = len(plan.methods)
  for i in range(plan.num_seeds):
    seed = FLAGS.first_seed + i
    for j, method in enumerate(plan.methods):
      print(
        f'{method}, seed {seed}, {plan.epochs} epochs: '
        f'run {1 + i * num_methods + j} of {plan.num_seeds * num_methods}'
      )
      folder = output / method / str(seed)
      rest = (split, test_data, start, folder, plan.epochs, source)
      if workers.is_several:
        run_together(workers, method, seed, *rest, **plan.settings)
      else:
        model = make_model(method, seed, **plan.settings)
        run(model, seed, *rest, restart=FLAGS.restart)
      if workers.is_chief:
        semisupervised_report.report(output, METHODS)


def main(argv):
  del argv
  workers = distributed_runs.Workers()
  output = pathlib.Path(FLAGS.output_dir)
  if FLAGS.plot_only:
    semisupervised_report.report(output, METHODS)
    return
  if FLAGS.tune and workers.is_several:
    raise app.UsageError(
      '`--tune` supports only one process; got several in the environment '
      'variable `TF_CONFIG`. Unset it.'
    )
  methods = training_runs.methods_of_flags(DEMO)
  for method in methods:
    method_of(method)  # An unknown name is reported before anything runs.
  mnist = datasets.load_mnist(FLAGS.source, FLAGS.data_dir)
  print(f'Data: {mnist.source}')
  split = datasets.split_mnist(mnist)
  plan = plan_of_flags(methods, len(split.unlabeled[1]))
  if FLAGS.smoke:
    split = split._replace(unlabeled=tuple(x[:256] for x in split.unlabeled))
  test_data = evaluation_data(mnist.test_images, mnist.test_labels)
  start = shared_start(workers, plan, split, test_data, output, mnist.source)
  if FLAGS.tune:
    tune(
      methods, split, start, output, plan.epochs, mnist.source, FLAGS.restart,
      **plan.settings,
    )  # fmt: skip
    return
  run_all(workers, plan, split, test_data, start, output, mnist.source)
  print(f'Figures and CSV files are in {output}.')


def define_flags():
  flags.DEFINE_list(
    'methods', list(METHODS), f'Methods to train, among {list(METHODS)}.'
  )
  flags.DEFINE_list(
    'k', [], 'Numbers of labels to sum; trains RB-REINFORCE with each.'
  )
  flags.DEFINE_list(
    'budget', [], 'Budgets; trains leave-one-out with each of them.'
  )
  flags.DEFINE_integer(
    'epochs', 100, 'Passes over the unlabeled images; 10 by default to tune.'
  )
  flags.DEFINE_integer('num_seeds', 2, 'Number of runs of each method.')
  flags.DEFINE_integer('first_seed', 0, 'The seed of the first run.')
  flags.DEFINE_integer(
    'warm_start_epochs', 100, 'Passes over labeled images in the warm start.'
  )
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Source of MNIST.'
  )
  flags.DEFINE_string('data_dir', None, 'Folder of the data of TFDS.')
  flags.DEFINE_string(
    'output_dir', 'outputs/semisupervised_mnist', 'Folder for all output files.'
  )
  flags.DEFINE_bool(
    'plot_only', False, 'Only draws figures and tables from the CSV files.'
  )
  flags.DEFINE_bool('restart', False, training_runs.RESTART_HELP)
  flags.DEFINE_bool('tune', False, 'Compares the step sizes of the paper.')
  flags.DEFINE_bool('demo', False, 'Trains three methods in about 3 minutes.')
  flags.DEFINE_bool(
    'as_written', False, "Uses the architecture in the paper's text."
  )
  flags.DEFINE_bool('smoke', False, 'Uses a small model and few images.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
