# SPDX-License-Identifier: Apache-2.0
"""Compares estimators for a few discrete parts in `tfp_rb.vi`.

The surrogates have 1 to 4 Categorical parts with 5 values, with flat, mixed or
concentrated logits. The parts are independent, or each part depends on all
previous ones. The log-densities of the target are normal draws. For each
problem the script measures the variance of the gradient of the reverse
divergence, summed over all logits and estimated from `--draws` gradients. The
estimators have three evaluations of the target and a leave-one-out baseline:
three joint draws; one joint value summed and two drawn; two summed and one
drawn; and `budget=3`.

`examples/benchmarks/many_sites.py` measures parts with many sites.

  python -m examples.benchmarks.vi_defaults
"""

import pathlib

from absl import app, flags
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

from examples.benchmarks.defaults import estimators, line
from examples.shared import tables
import tfp_rb

tfd = tfp.distributions

FLAGS = flags.FLAGS
NUM_VALUES = 5
SCALES = {'flat': 0.3, 'mixed': 1.5, 'concentrated': 4.0}
PARTS = ((1, False), (2, False), (2, True), (3, True), (4, True))


def make_surrogate(logits, is_dependent):
  """Returns a joint distribution with one part for each entry of `logits`."""

  def parts():
    values = []
    for i, own in enumerate(logits):
      if is_dependent and i:
        own = tf.gather_nd(own, tf.stack(values, axis=-1))
      law = tfd.Categorical(logits=own)
      if i == 0 or not is_dependent:
        law = tfd.JointDistributionCoroutine.Root(law)
      values.append((yield law))

  return tfd.JointDistributionCoroutine(parts)


def total_variance(estimator, logits, is_dependent, target, num_draws):
  """Estimates the variance of the gradient, summed over all logits."""

  @tf.function(autograph=False)
  def gradient(seed):
    with tf.GradientTape() as tape:
      loss = tfp_rb.vi.monte_carlo_variational_loss(
        lambda *z: tf.gather_nd(target, tf.stack(z, axis=-1)),
        make_surrogate(logits, is_dependent),
        gradient_estimator=estimator,
        seed=seed,
      )
    found = tape.gradient(loss, logits)
    return tf.concat([tf.reshape(g, [-1]) for g in found], axis=0)

  draws = [gradient(tf.constant([1, i])).numpy() for i in range(num_draws)]
  return np.var(draws, axis=0, ddof=1).sum()


def measure(num_problems, num_draws, seed):
  """Returns the rows of the table."""
  cases = [
    (shape, num_parts, is_dependent, i)
    for shape in SCALES
    for num_parts, is_dependent in PARTS
    for i in range(num_problems)
  ]
  rows = []
  for shape, num_parts, is_dependent, i in tqdm.tqdm(cases, unit='problem'):
    rng = np.random.default_rng([seed, i, num_parts, is_dependent])
    sizes = [[NUM_VALUES] * (1 + j * is_dependent) for j in range(num_parts)]
    logits = [
      tf.Variable(SCALES[shape] * rng.normal(size=size), dtype=tf.float64)
      for size in sizes
    ]
    target = tf.constant(2.0 * rng.normal(size=[NUM_VALUES] * num_parts))
    found = {
      name: total_variance(estimator, logits, is_dependent, target, num_draws)
      for name, estimator in estimators().items()
    }
    least = min(found.values())
    row = {'shape': shape, 'parts': num_parts, 'dependent': is_dependent}
    row |= found | {f'ratio of {k}': v / least for k, v in found.items()}
    rows.append(row)
  return rows


def main(argv):
  del argv
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  rows = measure(FLAGS.problems, FLAGS.draws, FLAGS.seed)
  output_dir = pathlib.Path(FLAGS.output_dir)
  output_dir.mkdir(parents=True, exist_ok=True)
  tables.write(output_dir / 'vi.csv', rows, num_digits=5)
  header = ''.join(
    f'{x:>10s}' for x in ('median', '95 %', 'largest', 'best, %')
  )
  print(f'\n{"variance / least variance":32s}{"n":>6s}{header}')
  for name in estimators():
    print(line(name, [row[f'ratio of {name}'] for row in rows]))
  print(f'\nThe table is in {output_dir}.')


if __name__ == '__main__':
  flags.DEFINE_integer(
    'problems', 3, 'Number of problems of each of the 15 kinds.'
  )
  flags.DEFINE_integer('draws', 1000, 'Gradients for each variance.')
  flags.DEFINE_integer('seed', 0, 'Seed of the problems.')
  flags.DEFINE_string(
    'output_dir', 'outputs/defaults', 'Folder for the CSV file.'
  )
  app.run(main)
