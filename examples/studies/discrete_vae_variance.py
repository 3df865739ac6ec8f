# SPDX-License-Identifier: Apache-2.0
"""Variance and bias of every gradient estimator at three checkpoints.

The checkpoints are those of the leave-one-out run of `discrete_vae.py`: its
start, its weights after 10,000 steps, and its last weights. The same weights
serve all methods, so only the estimators differ. At each checkpoint,

1. methods with learned variables (control variates, temperatures, baselines)
   train them for `--adapt` steps while encoder and decoder stay fixed;
2. the gradient w.r.t. the encoder is measured on one batch of 100 images: its
   variance over draws from `--pairs` pairs of gradients, with a 95 % interval,
   and its bias, the distance of its mean from a reference. The reference is
   the mean of `--reference` gradients with 64 leave-one-out draws each.

The figure shows the variance times the evaluations of the decoder, and times
the milliseconds of a training step, which
`examples/benchmarks/discrete_vae.py` measures. The script first trains 10,000
steps if that run is not there yet. It writes `variances.csv` after each row;
when started again, it goes on with the missing rows.

  python -m examples.studies.discrete_vae --methods=leave-one-out
  python -m examples.studies.discrete_vae_variance
"""

import pathlib

from absl import app, flags
import keras
import matplotlib
import numpy as np
import tensorflow as tf
import tqdm

from examples.shared import training_runs
from examples.studies import discrete_vae as study
from examples.studies import discrete_vae_methods as methods
from examples.studies import discrete_vae_report as report
import tfp_rb
from tfp_rb import baselines, datasets, diagnostics, models

matplotlib.use('Agg')
import matplotlib.pyplot as plt

FLAGS = flags.FLAGS
BASE = 'leave-one-out'
CHECKPOINTS = ('start', '10,000 steps', 'end')
REFERENCE_DRAWS = 64
COLUMNS = (
  'variance', 'low', 'high', 'bias', 'bias_low', 'bias_high', 'norm',
)  # fmt: skip
NORMAL_95 = 1.959964


def find_checkpoints(protocol, num_evaluations, mnist, runs):
  """Returns the weights of encoder and decoder at each checkpoint.

  Args:
    protocol: `study.Protocol`.
    num_evaluations: Python `int`.
    mnist: `datasets.MNIST`.
    runs: `pathlib.Path`, `--output_dir` of `discrete_vae.py`.

  Returns:
    checkpoints: Dictionary, the name of a checkpoint to a list of arrays.
  """
  weights = lambda m: (m.encoder.get_weights(), m.decoder.get_weights())
  start, number = study.make_model(BASE, protocol, num_evaluations, FLAGS.seed)
  run = pathlib.Path(f'{BASE}-{number}') / str(FLAGS.seed)
  early_runs = pathlib.Path(FLAGS.output_dir) / 'early'
  early_steps = min(10_000, protocol.num_steps)
  early = protocol._replace(
    num_steps=early_steps - early_steps % protocol.steps_per_row
  )
  study.run(BASE, early, num_evaluations, FLAGS.seed, mnist, early_runs)
  last = runs / FLAGS.latents / run / 'last.keras'
  if not last.exists():
    raise app.UsageError(
      f'`--runs` must have a run of {BASE}; got {FLAGS.runs!r} without {last}. '
      f'Run `python -m examples.studies.discrete_vae --methods={BASE}` first.'
    )
  load = keras.saving.load_model
  return {
    'start': weights(start),
    '10,000 steps': weights(load(early_runs / run / 'last.keras')),
    'end': weights(load(last)),
  }


def adapted_model(method, protocol, num_evaluations, weights, images, steps):
  """Returns a model at given weights whose estimator was trained there.

  Args:
    method: Python `str`.
    protocol: `study.Protocol`.
    num_evaluations: Python `int`.
    weights: Weights of encoder and decoder.
    images: `uint8` array of shape `[n, pixels]`.
    steps: Python `int`, steps for the variables of the estimator.

  Returns:
    model: `tfp_rb.models.DiscreteVAE`.
    number: Python `int`, evaluations of the decoder for each image.
  """
  model, number = study.make_model(
    method, protocol, num_evaluations, FLAGS.seed
  )
  model.encoder.set_weights(weights[0])
  model.decoder.set_weights(weights[1])
  if model.estimator.trainable_variables and steps:
    model.compile(
      keras.optimizers.SGD(0.0),  # Encoder and decoder stay fixed.
      estimator_optimizer=keras.optimizers.Adam(1e-3),
      jit_compile=protocol.is_compiled,
    )
    model.fit(
      study.training_data(images, protocol, 0, FLAGS.seed),
      steps_per_epoch=steps // protocol.steps_per_call,
      verbose=0,
      shuffle=False,  # The data come in random order.
    )
  return model, number


def loss_of(model, estimator, pixels, is_compiled):
  """Returns a callable, the mean bound of a batch as a function of a seed."""

  @tf.function(autograph=False, jit_compile=is_compiled)
  def loss(seed):
    return tf.reduce_mean(model.negative_bound(pixels, seed, estimator))

  return loss


def mean_gradient(model, pixels, number, is_compiled):
  """Returns a nearly exact gradient, and the variance of its noise."""
  estimator = tfp_rb.REINFORCE(
    baselines.LeaveOneOut(), num_samples=REFERENCE_DRAWS
  )
  num_pairs = max(number // 2, 2)
  moments = diagnostics.sampled_moments(
    loss_of(model, estimator, pixels, is_compiled),
    model.encoder.trainable_variables,
    num_pairs=num_pairs,
    seed=2,
  )
  return moments.mean, moments.variance / (2 * num_pairs)


def measure(model, pixels, reference, num_pairs, is_compiled):
  """Returns the columns of a row.

  Args:
    model: `tfp_rb.models.DiscreteVAE`.
    pixels: `Tensor` of shape `[B, pixels]`, binary.
    reference: Pair of a gradient and the variance of its noise.
    num_pairs: Python `int`.
    is_compiled: Python `bool`.

  Returns:
    row: Dictionary of `float`s.
  """
  gradient, noise = reference
  moments = diagnostics.sampled_moments(
    loss_of(model, model.estimator, pixels, is_compiled),
    model.encoder.trainable_variables,
    num_pairs=num_pairs,
    seed=1,
  )
  total = lambda arrays: float(sum(np.sum(np.square(x)) for x in arrays))
  error = total(a - b for a, b in zip(moments.mean, gradient, strict=True))
  # Both means are noisy, which adds their variances to the squared distance.
  noise = noise + moments.variance / (2 * num_pairs)
  margin = NORMAL_95 * np.sqrt(noise)
  return {
    'variance': moments.variance,
    'low': moments.interval[0],
    'high': moments.interval[1],
    'bias': np.sqrt(max(error - noise, 0.0)),
    'bias_low': max(np.sqrt(error) - margin, 0.0),
    'bias_high': np.sqrt(error) + margin,
    'norm': np.sqrt(max(total(gradient), 0.0)),
  }


def plot(path, rows, milliseconds, title):
  """Draws variance times evaluations, and times milliseconds per step."""
  names = list(dict.fromkeys(row['method'] for row in rows))
  figure, axes = plt.subplots(
    1, 2, figsize=(13, 1.5 + 0.32 * len(names)), layout='constrained',
    sharey=True,
  )  # fmt: skip
  factors = (
    ('evaluations', lambda row: float(row['evaluations'])),
    (
      'milliseconds per step',
      lambda row: milliseconds.get(row['method'], np.nan),
    ),
  )
  for axis, (unit, factor) in zip(axes, factors, strict=True):
    for j, checkpoint in enumerate(CHECKPOINTS):
      for row in (r for r in rows if r['checkpoint'] == checkpoint):
        low, mean, high = (
          factor(row) * float(row[c]) for c in ('low', 'variance', 'high')
        )
        if not mean > 0.0:  # A logarithmic axis has no place for 0.
          continue
        axis.errorbar(
          mean, names.index(row['method']) + 0.2 * (j - 1),
          xerr=[[mean - low], [high - mean]], fmt='os^'[j], color=f'C{j}',
          capsize=2, markersize=5,
          label=checkpoint if row['method'] == names[0] else None,
        )  # fmt: skip
    axis.set(
      xscale='log', xlabel=f'variance w.r.t. the encoder x {unit}',
      yticks=range(len(names)), yticklabels=names,
    )  # fmt: skip
    axis.grid(axis='x', alpha=0.3)
  axes[0].invert_yaxis()
  axes[0].set_ylabel('method, evaluations of the decoder')
  axes[0].legend(title='weights of the leave-one-out run')
  figure.suptitle(f'{title}; 95 % intervals')
  figure.savefig(path, dpi=120)
  plt.close(figure)


def print_table(rows):
  header = ''.join(f'{column:>10s}' for column in COLUMNS)
  print(f'\n{"checkpoint":14s}{"method":24s}{header}')
  for row in rows:
    numbers = [float(row[column]) for column in COLUMNS]
    cells = ''.join(f'{number:10.3g}' for number in numbers)
    print(f'{row["checkpoint"]:14s}{row["method"]:24s}{cells}')


def main(argv):
  del argv
  protocol = study.PROTOCOLS[FLAGS.latents]
  pairs, adapt, number = FLAGS.pairs, FLAGS.adapt, FLAGS.reference
  if FLAGS.smoke:
    protocol, pairs, adapt, number = study.shortened(protocol), 2, 4, 4
  output = pathlib.Path(FLAGS.output_dir) / FLAGS.latents
  path = output / 'variances.csv'
  milliseconds = report.milliseconds_of_steps(FLAGS.latents)
  rows = training_runs.rows_of(path)
  if not FLAGS.plot_only:
    mnist = datasets.load_mnist(FLAGS.source, FLAGS.data_dir)
    rows = measure_all(protocol, mnist, rows, path, (pairs, adapt, number))
  if not rows:
    print(f'Nothing has been measured in {output} yet.')
    return
  print_table(rows)
  plot(output / 'variances.png', rows, milliseconds, rows[0]['data'])
  print(f'The table and the figure are in {output}.')


def measure_all(protocol, mnist, rows, path, numbers):
  """Measures the missing rows and writes the file after each of them."""
  pairs, adapt, number = numbers
  checkpoints = find_checkpoints(
    protocol, FLAGS.evaluations, mnist, pathlib.Path(FLAGS.runs)
  )
  images = mnist.train_images.reshape([len(mnist.train_images), -1])
  pixels = study.as_input(tf.constant(images[: study.BATCH_SIZE]), protocol)
  if protocol.is_binarized:
    pixels = models.binarize(pixels, [0, 1])
  done = {(row['checkpoint'], row['method']) for row in rows}
  names = FLAGS.methods or methods.methods_of(protocol.latents)
  path.parent.mkdir(parents=True, exist_ok=True)
  for checkpoint, weights in checkpoints.items():
    reference = None
    for method in tqdm.tqdm(names, desc=checkpoint, unit='method'):
      _, count = methods.estimator_of(
        method, protocol.latents, FLAGS.evaluations
      )
      if (checkpoint, f'{method}-{count}') in done:
        continue
      model, _ = adapted_model(
        method, protocol, FLAGS.evaluations, weights, images, adapt
      )
      if reference is None:
        reference = mean_gradient(model, pixels, number, protocol.is_compiled)
      rows.append({
        'checkpoint': checkpoint, 'method': f'{method}-{count}',
        'evaluations': count,
        **measure(model, pixels, reference, pairs, protocol.is_compiled),
        'pairs': pairs, 'data': mnist.source,
      })  # fmt: skip
      training_runs.write_rows(path, rows)
  order = list(methods.METHODS)
  place = lambda row: (
    CHECKPOINTS.index(row['checkpoint']),
    order.index(row['method'].rpartition('-')[0]),
  )
  return sorted(rows, key=place)


def define_flags():
  flags.DEFINE_list('methods', None, 'Default: all of the protocol.')
  flags.DEFINE_integer('evaluations', 3, 'Of the decoder, for each image.')
  flags.DEFINE_enum(
    'latents', 'bernoulli', list(study.PROTOCOLS), 'Which model.'
  )
  flags.DEFINE_integer('pairs', 100, 'Pairs of gradients in each row.')
  flags.DEFINE_integer('adapt', 2000, 'Steps for learned control variates.')
  flags.DEFINE_integer('reference', 400, 'Gradients in the reference.')
  flags.DEFINE_integer('seed', 0, 'Of the run with leave-one-out.')
  flags.DEFINE_string(
    'runs', 'outputs/discrete_vae', '`--output_dir` of `discrete_vae.py`.'
  )
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Which MNIST.'
  )
  flags.DEFINE_string('data_dir', None, 'Where TFDS keeps its data.')
  flags.DEFINE_string(
    'output_dir', 'outputs/discrete_vae_variance', 'Where the results go.'
  )
  flags.DEFINE_bool('plot_only', False, 'Draws the figure from the CSV file.')
  flags.DEFINE_bool('smoke', False, 'A small model and few gradients.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
