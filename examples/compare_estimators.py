# SPDX-License-Identifier: Apache-2.0
"""Compares estimators on your own loss, at equal numbers of evaluations.

Replace `loss` with your own loss. The script estimates the gradient variance of
several estimators from pairs of gradients, prints a table with the best one
first, and plots variances against evaluations of `f`.

  python examples/compare_estimators.py
"""

import pathlib

from absl import app, flags
import matplotlib
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb
from tfp_rb import diagnostics

matplotlib.use('Agg')

FLAGS = flags.FLAGS
OUTPUT = pathlib.Path('outputs/compare_estimators.png')
NUM_VALUES, BATCH_SIZE = 10, 16
EVALUATIONS = (2, 4, 6)


def make_loss(seed):
  """Returns a loss, which takes an estimator and a seed, and its logits."""
  rng = tf.random.Generator.from_seed(seed)
  logits = tf.Variable(2.0 * rng.normal([BATCH_SIZE, NUM_VALUES]))
  cost = rng.normal([BATCH_SIZE, NUM_VALUES])

  def loss(estimator, seed):
    q = tfp.distributions.OneHotCategorical(logits=logits, dtype=tf.float32)
    f = lambda z: tf.reduce_sum(z * cost, axis=-1) ** 2  # [m, 16]
    return tf.reduce_mean(tfp_rb.expectation(f, q, estimator, seed=seed))

  return loss, logits


def estimators_with(num_evaluations):
  """Returns estimators with the given number of evaluations of `f` per row."""
  loo = tfp_rb.baselines.LeaveOneOut()
  return {
    'draws': tfp_rb.REINFORCE(num_samples=num_evaluations),
    'draws, leave-one-out': tfp_rb.REINFORCE(loo, num_samples=num_evaluations),
    '1 summed': tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(loo, num_samples=num_evaluations - 1), num_summed=1
    ),
    'budget': tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(loo), budget=num_evaluations
    ),
  }


def main(argv):
  del argv
  loss, logits = make_loss(FLAGS.seed)
  rows = []
  for num_evaluations in EVALUATIONS:
    rows += diagnostics.compare(
      estimators_with(num_evaluations),
      lambda estimator: diagnostics.sampled_moments(
        lambda seed: loss(estimator, seed), [logits], num_pairs=FLAGS.steps
      ),
    )
  print(f'{"evaluations":>11s}  {"estimator":22s}{"variance":>10s}   95 %')
  for row in rows:
    low, high = row.interval
    print(
      f'{row.num_evaluations:11g}  {row.name:22s}{row.variance:10.3g}   '
      f'{low:.3g} to {high:.3g}'
    )
  OUTPUT.parent.mkdir(exist_ok=True)
  diagnostics.plot_variance(rows).figure.savefig(OUTPUT, dpi=120)
  print(f'The plot is in {OUTPUT}.')


if __name__ == '__main__':
  flags.DEFINE_integer('steps', 200, 'Number of pairs of gradients.')
  flags.DEFINE_integer('seed', 0, 'Random seed.')
  app.run(main)
