"""Semi-supervised MNIST: section 5.3 of the paper, Table 1 and Figure 4.

A variational autoencoder with a label, of which 5,000 of 50,000 are known. The
gradient of the expectation over the label is that of the estimator; summing one
label of ten is nearly as good as summing all, at half the cost.

All methods start from the same weights, trained on the labeled images alone.
Evaluated on the test images after every epoch: the negative ELBO at the most
probable label (without the constant log 10 of its prior, as in the authors'
code), and the accuracy.

  python examples/semisupervised_mnist.py --methods=RB-REINFORCE,Exact

A run that is stopped goes on where it was, when started again with the same
flags, and ends with the same numbers. `--plot_only` draws figure and tables of
the CSV files that are there.

Reference: Runjing Liu et al. Rao-Blackwellized stochastic gradients for
discrete distributions. ICML 2019. https://arxiv.org/abs/1810.04777
"""

import csv
import json
import pathlib
import time

from absl import app, flags
import keras
import matplotlib
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb
from tfp_rb import baselines, datasets, models

matplotlib.use('Agg')
import matplotlib.pyplot as plt

FLAGS = flags.FLAGS
BATCH_SIZE = 64
NUM_CLASSES = 10


def _network(input_shape, units):
  """A network with one output; built, so that its variables are there."""
  network = keras.Sequential([
    keras.layers.Dense(n, activation='relu') for n in units
  ] + [keras.layers.Dense(1)])  # fmt: skip
  network.build(input_shape)
  return network


def _relax():
  return tfp_rb.RELAX(
    _network([None, None, NUM_CLASSES], [64]),
    tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp()),
    scale=tf.Variable(1.0),
  )


# Estimator, step size, step size of the estimator's own variables.
METHODS = {
  'RB-REINFORCE': (
    lambda: tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1),
    1e-3, None,
  ),
  'Exact': (tfp_rb.Exact, 1e-3, None),
  'REINFORCE': (tfp_rb.REINFORCE, 1e-4, None),
  'REINFORCE+': (
    lambda: tfp_rb.REINFORCE(baselines.IndependentSample()), 1e-3, None
  ),
  'RELAX': (_relax, 5e-4, 1e-2),
  'NVIL': (lambda: tfp_rb.NVIL(_network([None, 784], [128])), 1e-3, 1e-3),
  'Gumbel': (
    lambda: tfp_rb.GumbelSoftmax(
      tfp_rb.AnnealedTemperature(rate=5e-4), straight_through=False
    ), 1e-3, None,
  ),
  'RB-leave-one-out': (
    lambda: tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baselines.LeaveOneOut()), num_summed=1
    ), 1e-3, None,
  ),
  'budget=2': (
    lambda: tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baselines.LeaveOneOut()), budget=2
    ), 1e-3, None,
  ),
  'budget=3': (
    lambda: tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baselines.LeaveOneOut()), budget=3
    ), 1e-3, None,
  ),
}  # fmt: skip


# Negative ELBO (read off Figure 4) and accuracy (Table 1) after 100 epochs.
PAPER = {
  'RB-REINFORCE': ('98.75', '.9650'),
  'Exact': ('98.6', '.9663'),
  'REINFORCE': ('101.7', '.9399'),
  'REINFORCE+': ('99.1', '.9535'),
  'RELAX': ('99.5', '.9664'),
  'NVIL': ('99.05', '.9562'),
  'Gumbel': ('99.1', '.9545'),
}


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
  return data.map(
    lambda u, labeled: (
      tf.gather(unlabeled, u),
      tf.gather(images, labeled),
      tf.gather(labels, labeled),
    ),
  ).prefetch(2)


class Clock(keras.callbacks.Callback):
  """Adds the seconds of an epoch, evaluation not included, to its logs."""

  def on_epoch_begin(self, epoch, logs=None):
    self.start = time.perf_counter()
    self.seconds = None

  def on_test_begin(self, logs=None):
    self.seconds = time.perf_counter() - self.start

  def on_epoch_end(self, epoch, logs=None):
    logs['seconds'] = self.seconds or time.perf_counter() - self.start


def make_model(method, seed, learning_rate=None, **settings):
  """A compiled model for a method of the table."""
  make_estimator, rate, estimator_rate = METHODS[method]
  keras.utils.set_random_seed(seed)
  model = models.SemiSupervisedVAE(make_estimator(), seed=seed, **settings)
  adam = keras.optimizers.Adam
  model.compile(
    adam(learning_rate or rate),
    estimator_optimizer=estimator_rate and adam(estimator_rate),
    jit_compile=True,
  )
  return model


def warm_start(split, test_data, epochs, seed, path):
  """Trains on the labeled images alone, once: the weights are kept."""
  model = make_model('REINFORCE', seed, learning_rate=1e-3)
  if not path.exists():
    # The labeled images stand in for the unlabeled, whose weight is 0.
    alone = split._replace(unlabeled=split.labeled)
    model.unlabeled_weight = 0.0
    num_steps, per_call = steps_of(len(alone.labeled[1]))
    model.fit(
      training_data(alone, 0, seed),
      epochs=epochs,
      steps_per_epoch=num_steps // per_call,
      verbose=2,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    save_networks(model, path)
  load_networks(model, path)
  return model.evaluate(test_data, return_dict=True, verbose=0)


def save_networks(model, path):
  """The weights of the model without those of its estimator."""
  weights = {str(i): np.asarray(v) for i, v in enumerate(model.weights)}
  with open(path, 'wb') as file:
    np.savez(file, **weights)


def load_networks(model, path):
  with np.load(path, allow_pickle=False) as weights:
    for i, variable in enumerate(model.weights):
      variable.assign(weights[str(i)])


def run(method, seed, split, test_data, start, folder, epochs):
  """Trains a method, or goes on with it; writes a row for each epoch.

  Args:
    method: Name of the method.
    seed: Python `int`.
    split: `datasets.SemiSupervised`.
    test_data: `tf.data.Dataset`.
    start: Path of the weights to start from.
    folder: Where everything goes.
    epochs: Python `int`, in all.
  """
  folder.mkdir(parents=True, exist_ok=True)
  model = make_model(method, seed)
  load_networks(model, start)
  backup = folder / 'backup'
  metadata = backup / 'training_metadata.json'
  done = 0
  if metadata.exists():
    done = json.loads(metadata.read_text())['epoch'] + 1
  log = folder / 'log.csv'
  if finished_epochs(log) >= epochs:
    return
  if not log.exists():
    first = model.evaluate(test_data, return_dict=True, verbose=0)
    print(f'{method}, seed {seed}, at the start: {first}')
  num_steps, per_call = steps_of(len(split.unlabeled[1]))
  model.fit(
    training_data(split, done, seed),
    epochs=epochs,
    steps_per_epoch=num_steps // per_call,
    validation_data=test_data,
    verbose=FLAGS.verbose,
    callbacks=[
      Clock(),
      keras.callbacks.CSVLogger(str(log), append=True),
      keras.callbacks.BackupAndRestore(str(backup), delete_checkpoint=False),
    ],
  )
  model.save(folder / 'last.keras')


def read_log(path):
  """`{column: array by epoch}`; of an epoch that was repeated the last row."""
  rows = {}
  with path.open(newline='') as file:
    for row in csv.DictReader(file):
      if row['epoch'] != 'epoch':
        rows[int(row['epoch'])] = row
  columns = rows[min(rows)].keys()
  return {
    c: np.array([float(rows[e][c]) for e in sorted(rows)]) for c in columns
  }


def finished_epochs(path):
  if not path.exists() or len(path.read_text().splitlines()) < 2:
    return 0
  return int(read_log(path)['epoch'][-1]) + 1


def collect(output):
  """All runs that are there: `{method: {seed: columns by epoch}}`."""
  runs = {}
  for path in sorted(output.glob('*/*/log.csv')):
    if finished_epochs(path):
      method, seed = path.parent.parent.name, int(path.parent.name)
      runs.setdefault(method, {})[seed] = read_log(path)
  return {m: runs[m] for m in METHODS if m in runs}


def write_paths(path, runs, first):
  """One row for a method, a seed and an epoch; epoch 0 is the warm start."""
  with path.open('w', newline='') as file:
    writer = csv.writer(file)
    columns = ('val_negative_elbo', 'val_accuracy', 'loss', 'rest', 'seconds')
    writer.writerow(['method', 'seed', 'epoch', *columns, 'data'])
    for method, by_seed in runs.items():
      for seed, log in by_seed.items():
        start = [first['negative_elbo'], first['accuracy'], '', '', '']
        writer.writerow([method, seed, 0, *start, first['source']])
        for i, epoch in enumerate(log['epoch']):
          row = [f'{log[c][i]:.6g}' for c in columns]
          writer.writerow([method, seed, int(epoch) + 1, *row, first['source']])


def mean_and_error(values):
  """Mean over runs, and its standard error (NaN for a single run)."""
  values = np.asarray(values)
  spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.nan
  return values.mean(axis=0), spread / np.sqrt(len(values))


def plot(path, runs, first):
  figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout='constrained')
  for i, (method, by_seed) in enumerate(runs.items()):
    length = min(len(log['epoch']) for log in by_seed.values())
    for axis, column, at_start in (
      (axes[0], 'val_negative_elbo', first['negative_elbo']),
      (axes[1], 'val_accuracy', first['accuracy']),
    ):
      paths = [[at_start, *log[column][:length]] for log in by_seed.values()]
      mean, error = mean_and_error(paths)
      style = ('-', '--', '-.', ':')[i % 4]
      epochs = np.arange(length + 1)
      axis.plot(epochs, mean, style, color=f'C{i}', label=method, linewidth=1.8)
      if len(paths) > 1:
        axis.fill_between(
          epochs, mean - error, mean + error, color=f'C{i}', alpha=0.2
        )
  axes[0].set(
    xlabel='epoch', ylabel='negative ELBO at the best label [nats]',
    ylim=(97.5, 111.5),
  )  # fmt: skip
  axes[1].set(xlabel='epoch', ylabel='accuracy', ylim=(0.9, 0.98))
  axes[0].legend(fontsize=8)
  figure.suptitle(f'Test images of {first["source"]}')
  figure.savefig(path, dpi=130)
  plt.close(figure)


def print_table(runs):
  print(
    f'{"":18s}{"runs":>5s}{"epochs":>8s}{"-ELBO":>9s}{"paper":>8s}'
    f'{"accuracy":>10s}{"paper":>8s}{"s/epoch":>9s}'
  )
  for method, by_seed in runs.items():
    logs = list(by_seed.values())
    loss = np.mean([log['val_negative_elbo'][-1] for log in logs])
    accuracy = np.mean([log['val_accuracy'][-1] for log in logs])
    seconds = np.median([np.median(log['seconds'][1:]) for log in logs])
    paper = PAPER.get(method, ('', ''))
    print(
      f'{method:18s}{len(logs):5d}{len(logs[0]["epoch"]):8d}{loss:9.2f}'
      f'{paper[0]:>8}{accuracy:10.4f}{paper[1]:>8}{seconds:9.1f}'
    )


def report(output):
  """Tables and figure of what has been run."""
  runs = collect(output)
  first = json.loads((output / 'warm_start.json').read_text())
  write_paths(output / 'paths.csv', runs, first)
  plot(output / 'figure_4.png', runs, first)
  print_table(runs)


def main(argv):
  del argv
  output = pathlib.Path(FLAGS.output_dir)
  if FLAGS.plot_only:
    report(output)
    return
  mnist = datasets.load_mnist(FLAGS.source, FLAGS.data_dir)
  print(f'Data: {mnist.source}')
  split = datasets.split_mnist(mnist)
  test_data = tf.data.Dataset.from_tensor_slices(
    (flat(mnist.test_images), mnist.test_labels)
  ).batch(1000)
  start = output / 'warm_start.npz'
  first = warm_start(
    split, test_data, FLAGS.warm_start_epochs, seed=901, path=start
  )
  print(f'Warm start: {first}')
  (output / 'warm_start.json').write_text(
    json.dumps({**first, 'source': mnist.source}) + '\n'
  )
  for seed in range(FLAGS.num_seeds):
    for method in FLAGS.methods:
      folder = output / method / str(seed)
      run(method, seed, split, test_data, start, folder, FLAGS.epochs)
      report(output)


def define_flags():
  flags.DEFINE_list('methods', list(METHODS), f'Of {list(METHODS)}.')
  flags.DEFINE_integer('epochs', 100, 'Passes over the unlabeled images.')
  flags.DEFINE_integer('num_seeds', 2, 'Runs of each method.')
  flags.DEFINE_integer('warm_start_epochs', 100, 'On labeled images alone.')
  flags.DEFINE_string('source', 'auto', '`tfds`, `embedded` or `auto`.')
  flags.DEFINE_string('data_dir', None, 'Where TFDS keeps its data.')
  flags.DEFINE_string(
    'output_dir', 'outputs/semisupervised_mnist', 'Where everything goes.'
  )
  flags.DEFINE_bool('plot_only', False, 'Only tables and figure, of CSV files.')
  flags.DEFINE_integer('verbose', 2, 'As of `fit`.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
