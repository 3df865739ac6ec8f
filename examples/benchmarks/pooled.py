# SPDX-License-Identifier: Apache-2.0
"""Compares one budget for a batch with a budget for each row.

Each problem is a batch of 8 categorical variables and a table of `f`. The
script compares the variance of the gradient w.r.t. the logits, summed over the
batch, of two estimators with the same number of evaluations of `f`:

* `tfp_rb.pooled(budget_per_row=n)`, one budget for the batch;
* `rao_blackwellize(REINFORCE(LeaveOneOut()), budget=n)`, a budget per row.

  python -m examples.benchmarks.pooled

The rows of a 'mixed' batch differ in their concentration; those of a
'concentrated' or 'flat' batch are similar. `f` is random, has an offset, or is
low at the most probable values. Each variance is the mean squared distance of
`--estimates` gradients from the exact one. The script prints quantiles of the
ratio of the two variances, and writes all variances and a figure to
`--output_dir`.
"""

import csv
import itertools
import pathlib

from absl import app, flags
import matplotlib
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

import tfp_rb

matplotlib.use('Agg')
import matplotlib.pyplot as plt

FLAGS = flags.FLAGS
NUM_ROWS = 8
SCALES = {  # The scales of the normal logits.
  'mixed': (0.2, 1.0, 4.0, 8.0), 'concentrated': (4.0, 8.0, 12.0),
  'flat': (0.1, 0.5),
}  # fmt: skip
COSTS = ('random', 'offset', 'low')


def random_problem(rng, kind, cost, num_values):
  """Returns logits and a table of `f`, both of shape `[8, num_values]`."""
  scale = rng.choice(SCALES[kind], size=[NUM_ROWS, 1])
  logits = scale * rng.normal(size=[NUM_ROWS, num_values])
  table = rng.normal(size=logits.shape)
  if cost == 'offset':
    table += 5.0
  if cost == 'low':  # A trained model has such costs.
    table -= tf.nn.log_softmax(logits).numpy()
  return logits, table


def variance_of(estimator, num_values):
  """Returns a compiled function from logits, table and seeds to a variance."""
  shape = [NUM_ROWS, num_values]
  own = tf.range(NUM_ROWS)

  @tf.function(
    jit_compile=True,
    autograph=False,
    input_signature=[
      tf.TensorSpec(shape, tf.float64),
      tf.TensorSpec(shape, tf.float64),
      tf.TensorSpec([FLAGS.estimates, 2], tf.int32),
    ],
  )
  def variance(logits, table, seeds):
    def f(z, rows=None):
      rows = tf.broadcast_to(own, tf.shape(z)) if rows is None else rows
      return tf.gather_nd(table, tf.stack([rows, z], axis=-1))

    probs = tf.nn.softmax(logits)
    mean = tf.reduce_sum(probs * table, axis=-1, keepdims=True)
    exact = probs * (table - mean)

    def squared_error(seed):
      with tf.GradientTape() as tape:
        tape.watch(logits)
        q = tfp.distributions.Categorical(logits=logits)
        value = tfp_rb.expectation(f, q, estimator, seed=seed)
      return tf.reduce_sum((tape.gradient(value, logits) - exact) ** 2)

    return tf.reduce_mean(
      tf.map_fn(squared_error, seeds, fn_output_signature=tf.float64)
    )

  return variance


def compare(num_batches):
  """Yields a dictionary with both variances for each problem."""
  per_row = lambda n: tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut()), budget=n
  )
  settings = list(itertools.product((5, 10, 40), (2, 3, 4)))
  seeds = tf.stack(
    [tf.zeros([FLAGS.estimates], tf.int32), tf.range(FLAGS.estimates)], axis=1
  )
  rng = np.random.default_rng(FLAGS.seed)
  progress = tqdm.tqdm(total=len(settings) * num_batches, unit='batch')
  for num_values, number in settings:
    pooled, rows = (
      variance_of(estimator, num_values)
      for estimator in (tfp_rb.pooled(budget_per_row=number), per_row(number))
    )
    kinds = itertools.cycle(itertools.product(SCALES, COSTS))
    for kind, cost in itertools.islice(kinds, num_batches):
      logits, table = random_problem(rng, kind, cost, num_values)
      variances = [float(v(logits, table, seeds)) for v in (pooled, rows)]
      progress.update()
      yield {
        'rows': kind, 'f': cost, 'values': num_values,
        'evaluations_per_row': number, 'pooled': variances[0],
        'budget_per_row': variances[1], 'ratio': variances[0] / variances[1],
      }  # fmt: skip
  progress.close()


def report(problems, output):
  """Prints quantiles of the ratio, and writes a CSV file and a figure."""
  output.mkdir(parents=True, exist_ok=True)
  with (output / 'pooled.csv').open('w', newline='') as file:
    writer = csv.DictWriter(file, list(problems[0]))
    writer.writeheader()
    writer.writerows(problems)
  print(
    'The ratio of variances, pooled budget to budget per row, has these '
    'quantiles:'
  )
  print(f'{"":28s}{"number":>8s}{"5 %":>10s}{"median":>10s}{"95 %":>10s}')
  figure, axis = plt.subplots(figsize=(7, 4), layout='constrained')
  for kind in SCALES:
    of_kind = [p for p in problems if p['rows'] == kind]
    if not of_kind:
      continue
    ratios = [p['ratio'] for p in of_kind]
    axis.ecdf(ratios, label=f'{kind} ({len(ratios)})')
    groups = {kind: of_kind}
    for name in ('evaluations_per_row', 'f', 'values'):
      for value in dict.fromkeys(p[name] for p in of_kind):
        label = f'  {name.replace("_", " ")}: {value}'
        groups[label] = [p for p in of_kind if p[name] == value]
    for label, group in groups.items():
      low, median, high = np.percentile(
        [p['ratio'] for p in group], [5, 50, 95]
      )
      print(f'{label:28s}{len(group):8d}{low:10.2g}{median:10.2g}{high:10.2g}')
  axis.axvline(1.0, color='0.5', linewidth=0.8)
  axis.set(
    xscale='log',
    xlim=(1e-5, 3.0),  # Lower ratios belong to gradients without noise.
    xlabel='variance of a pool / variance of a budget per row',
    ylabel='share of batches',
    title='Equal evaluations of f, random batches of 8 rows',
  )
  axis.legend(title='rows')
  figure.savefig(output / 'pooled.png', dpi=130)
  plt.close(figure)


def main(argv):
  del argv
  problems = list(compare(FLAGS.batches))
  report(problems, pathlib.Path(FLAGS.output_dir))
  print(f'The table and the figure are in {FLAGS.output_dir}.')


if __name__ == '__main__':
  flags.DEFINE_integer(
    'batches', 27, 'Number of batches for each of nine settings.'
  )
  flags.DEFINE_integer('estimates', 4000, 'Gradients for each variance.')
  flags.DEFINE_integer('seed', 0, 'Seed of the problems.')
  flags.DEFINE_string(
    'output_dir', 'outputs/pooled', 'Folder for all output files.'
  )
  app.run(main)
