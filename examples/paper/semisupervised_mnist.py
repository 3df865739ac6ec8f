# SPDX-License-Identifier: Apache-2.0
"""Semi-supervised MNIST: section 5.3 of the paper, Table 1 and Figure 4.

A variational autoencoder with a label, of which 5,000 of 50,000 are known. The
gradient of the expectation over the label is that of the estimator; summing one
label of ten is nearly as good as summing all, at half the cost.

All methods start from the same weights, trained on the labeled images alone.
Evaluated on the test images after every epoch: the negative ELBO at the most
probable label (without the constant log 10 of its prior, as in the authors'
code), and the accuracy.

  python -m examples.paper.semisupervised_mnist --methods=RB-REINFORCE,Exact

runs both for 100 epochs with two seeds; without `--methods`, all ten of them,
twenty runs. Besides the methods of the table below there are `--k=3`, with
three labels summed, and `--budget=4`. A run that is stopped goes on where it
was, when started again with the same flags, and ends with the same numbers.
`--plot_only` draws figures and table from the CSV files that are there;
`--tune` compares the paper's step sizes on the validation images. From a short
warm start, or with few labels, the classifier may unlearn the labels before it
learns from the other images; `--demo` gives them a larger weight.

Several processes, on one machine or more, train each model together if the
environment variable `TF_CONFIG` names them. Start two workers in two terminals,
with the same flags and a folder that both share:

  TF_CONFIG='{"cluster": {"worker": ["localhost:2222", "localhost:2223"]},
    "task": {"type": "worker", "index": 0}}' \\
    python -m examples.paper.semisupervised_mnist --methods=RB-REINFORCE

and the same with `"index": 1` in the second one. Each step then takes 64 images
of either kind, 32 in each process. If a process is stopped, end the other one
and start both again.

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
  """Steps of an epoch, and how many of them run in one call."""
  num_steps = num_images // BATCH_SIZE
  per_call = max(n for n in range(1, most_steps) if num_steps % n == 0)
  if per_call < 8:  # a prime, nearly: rather leave a few images out
    per_call = min(20, num_steps)
    num_steps -= num_steps % per_call
  return num_steps, per_call


def training_data(split, first_epoch, seed):
  """Epochs without end; each is in an order of its own, whenever it begins."""
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
    # The few labeled images pass by several times in an epoch.
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
  """Trains on the labeled images alone, once: the weights are kept.

  Args:
    split: `datasets.SemiSupervised`.
    test_data: `tf.data.Dataset`.
    epochs: Python `int`.
    seed: Python `int`.
    path: `pathlib.Path` of the weights.
    **settings: As of `make_model`.

  Returns:
    metrics: Dictionary, of the test images.
  """
  model = make_model('REINFORCE', seed, learning_rate=1e-3, **settings)
  problem = kept_files.problem_of(path)
  if problem:
    if kept_files.is_known(path):
      print(f'`{path}` {problem}; the warm start is repeated.')
    # The labeled images stand in for the unlabeled, whose weight is 0.
    alone = split._replace(unlabeled=split.labeled)
    model.unlabeled_weight = 0.0
    num_steps, per_call = steps_of(len(alone.labeled[1]))
    print(f'Warm start: {epochs} epochs on {len(alone.labeled[1])} images.')
    model.fit(
      training_data(alone, 0, seed),
      epochs=epochs,
      steps_per_epoch=num_steps // per_call,
      shuffle=False,  # the data are
      verbose=0,
    )
    save_networks(model, path, same=training_runs.has_runs(path.parent))
  load_networks(model, path)
  return model.evaluate(test_data, return_dict=True, verbose=0)


def run_together(workers, method, seed, split, *args, **settings):
  """`run` of a method in several processes, each of which calls this."""
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
  """Trains a model from the warm start, or goes on with it.

  Args:
    model: Of `make_model`.
    seed: Python `int`, of the order of the images.
    split: `datasets.SemiSupervised`.
    data: `tf.data.Dataset` of images and labels to evaluate it by.
    start: Path of the weights to start from.
    folder: `pathlib.Path` of the run.
    epochs: Python `int`, in all.
    source: Python `str`, what the data are.
    restart: Python `bool`, whether to begin again if it cannot be resumed.

  Returns:
    log: The columns of the log by epoch.
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
  """The paper's grid of step sizes, by the validation images."""
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
  """What the flags ask for.

  Attributes:
    methods: Names of the methods to train.
    epochs: Python `int`, passes over the unlabeled images.
    num_seeds: Python `int`, runs of each method.
    warm_epochs: Python `int`, passes over the labeled images beforehand.
    settings: Dictionary, arguments of `make_model`.
  """

  methods: list[str]
  epochs: int
  num_seeds: int
  warm_epochs: int
  settings: dict[str, Any]


def plan_of_flags(methods, num_unlabeled):
  """Returns a `Plan` for these methods and so many unlabeled images."""
  settings = {}
  if FLAGS.smoke:
    settings = {
      'classifier_units': [16], 'hidden_units': [16], 'jit_compile': False,
    }  # fmt: skip
  elif FLAGS.demo:
    # In so short a time, and with few labels, the classifier would first
    # unlearn them: they weigh more than in the paper.
    settings = {'alpha': 500.0}
  if FLAGS.as_written:
    settings |= {
      'latent_dim': 5, 'hidden_units': [128], 'unlabeled_weight': 0.5,
    }  # fmt: skip
  if FLAGS.demo:
    # The number of steps hardly depends on how many images there are.
    epochs = 5 * min(4, max(1, round(45_000 / num_unlabeled)))
    return Plan(methods, epochs, 1, 50, settings)
  epochs = FLAGS.epochs
  if FLAGS.tune and not FLAGS['epochs'].present:
    epochs = 10  # as the paper
  return Plan(
    methods, epochs, FLAGS.num_seeds, FLAGS.warm_start_epochs, settings
  )


def shared_start(workers, plan, split, test_data, output, source):
  """Makes the weights that all methods start from, unless they are there.

  Args:
    workers: `distributed_runs.Workers`.
    plan: `Plan`.
    split: `datasets.SemiSupervised`.
    test_data: `tf.data.Dataset`.
    output: `pathlib.Path` of the folder of all runs.
    source: Python `str`, what the data are.

  Returns:
    start: `pathlib.Path` of the weights.
  """
  start, about = output / 'warm_start.npz', output / 'warm_start.json'
  begin = lambda: warm_start(
    split, test_data, plan.warm_epochs, 901, start, **plan.settings
  )
  if not workers.is_chief:
    workers.wait_for(about, start)
  # Processes with other methods may share the folder; they wait here.
  with kept_files.lock(output / 'start.lock', wait=True):
    first = training_runs.start_of(
      about, {'source': source, 'settings': plan.settings}, begin,
      FLAGS.restart,
    )  # fmt: skip
    if kept_files.problem_of(start):  # or only the results were there
      begin()
  print(f'Warm start: {first}')
  return start


def run_all(workers, plan, split, test_data, start, output, source):
  """Trains every method with every seed; draws what is there after each run."""
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
    raise app.UsageError('`--tune` runs in one process: unset `TF_CONFIG`.')
  methods = training_runs.methods_of_flags(DEMO)
  for method in methods:
    method_of(method)  # before anything takes time
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
  flags.DEFINE_list('methods', list(METHODS), f'Of {list(METHODS)}.')
  flags.DEFINE_list('k', [], 'RB-REINFORCE with so many labels summed.')
  flags.DEFINE_list('budget', [], 'Leave-one-out with such a budget.')
  flags.DEFINE_integer(
    'epochs', 100, 'Passes over the unlabeled images; 10 by default to tune.'
  )
  flags.DEFINE_integer('num_seeds', 2, 'Runs of each method.')
  flags.DEFINE_integer('first_seed', 0, 'The seed of the first run.')
  flags.DEFINE_integer('warm_start_epochs', 100, 'On labeled images alone.')
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Which MNIST.'
  )
  flags.DEFINE_string('data_dir', None, 'Where TFDS keeps its data.')
  flags.DEFINE_string(
    'output_dir', 'outputs/semisupervised_mnist', 'Where everything goes.'
  )
  flags.DEFINE_bool(
    'plot_only', False, 'Only tables and figures, of CSV files.'
  )
  flags.DEFINE_bool('restart', False, training_runs.RESTART_HELP)
  flags.DEFINE_bool('tune', False, 'Compare the step sizes of the paper.')
  flags.DEFINE_bool('demo', False, 'Three methods, as long as 3 minutes allow.')
  flags.DEFINE_bool(
    'as_written', False, 'The architecture of the text, not of the code.'
  )
  flags.DEFINE_bool('smoke', False, 'A small model and few images.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
