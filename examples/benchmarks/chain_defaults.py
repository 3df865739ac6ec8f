# SPDX-License-Identifier: Apache-2.0
"""Compares estimators for a chain in `tfp_rb.vi`.

The surrogates are `CategoricalChain`s with random logits: flat, mixed or
concentrated. In a fourth kind, 'fitted', the logits are close to those of the
exact posterior of a target without its interactions, as at the end of a fit.
The log-density of the target is that of a random chain plus the square of a sum
over all time steps, so the target does not factorise. For each problem the
script measures the variance of the gradient of the reverse divergence, summed
over all logits and estimated from `--draws` gradients. The estimators are:

* With three evaluations of the target: three joint draws, one path summed and
  two drawn, two summed and one drawn, and `budget=3`, all with the
  leave-one-out baseline.
* With `T K` evaluations: joint draws, half summed paths and half draws, a
  budget, and `local_expectation` of all states, both without a baseline and
  with the exact loss as a constant baseline, which a fit would have to learn.

  python -m examples.benchmarks.chain_defaults
"""

import pathlib

from absl import app, flags
import numpy as np
import tensorflow as tf
import tqdm

from examples.benchmarks.defaults import estimators, leave_one_out, line
from examples.shared import tables
import tfp_rb
from tfp_rb.distributions import CategoricalChain

FLAGS = flags.FLAGS
SCALES = {'flat': 0.3, 'mixed': 1.5, 'concentrated': 4.0, 'fitted': 0.3}
SIZES = ((3, 4), (3, 12), (2, 40))  # The numbers of states and of time steps.


class Problems:
  """A batch of problems of one kind, with `num_draws` rows for each problem.

  One call computes all gradients of all problems, because each row of a batch
  has its own draws.
  """

  def __init__(self, rng, shape, num_states, num_steps, number, num_draws):
    size = [number, num_steps, num_states]
    self._unary = 2.0 * rng.normal(size=size)
    self._pairwise = rng.normal(
      size=[number, num_steps - 1, num_states, num_states]
    )
    self._effects = rng.normal(size=size) / np.sqrt(num_steps)
    scale = SCALES[shape]
    if shape == 'fitted':
      close = CategoricalChain.from_potentials(self._unary, self._pairwise)
      start = [close.initial_logits.numpy(), close.transition_logits.numpy()]
    else:
      start = [0.0, 0.0]
    logits = [
      a + scale * rng.normal(size=x.shape)
      for a, x in zip(start, (self._unary[:, 0], self._pairwise), strict=True)
    ]
    self.number, self._num_draws = number, num_draws
    self.logits = [np.repeat(x, num_draws, axis=0) for x in logits]

  def log_prob(self, z):
    """Returns the log-density of paths of shape `[m, rows, T]`."""
    rows = [np.repeat(x, self._num_draws, axis=0) for x in self._tables()]
    unary, pairwise, effects = (x[np.newaxis] for x in rows)
    one_hot = tf.one_hot(z, unary.shape[-1], dtype=tf.float64)
    following = tf.einsum('mrtj,xrtij->mrti', one_hot[:, :, 1:], pairwise)
    total = tf.reduce_sum(one_hot * unary, axis=[-2, -1])
    total += tf.reduce_sum(one_hot[:, :, :-1] * following, axis=[-2, -1])
    effect = tf.reduce_sum(one_hot * effects, axis=[-2, -1])
    return total - 2.0 * effect**2

  def _tables(self):
    return self._unary, self._pairwise, self._effects

  def variance(self, estimator, seed):
    """Returns variance, summed over all logits, and loss of each problem."""
    logits = [tf.constant(x) for x in self.logits]
    with tf.GradientTape() as tape:
      tape.watch(logits)
      loss = tfp_rb.vi.monte_carlo_variational_loss(
        self.log_prob,
        CategoricalChain(*logits),
        gradient_estimator=estimator,
        seed=seed,
      )
    total = 0.0
    for found in tape.gradient(loss, logits):
      rows = np.reshape(found, [self.number, self._num_draws, -1])
      total += np.var(rows, axis=1, ddof=1).sum(axis=-1)
    return total, np.mean(
      np.reshape(loss, [self.number, self._num_draws]), axis=1
    )


def many_evaluations(num_states, num_steps, level):
  """Returns estimators with `T K` evaluations; `level` is the loss per row."""
  number = num_states * num_steps
  half = min(number // 2, num_states**num_steps // 2)
  local = tfp_rb.local_expectation
  return {
    'T K drawn': leave_one_out(number),
    'half summed': tfp_rb.rao_blackwellize(
      leave_one_out(number - half), num_summed=half
    ),
    'budget=T K': tfp_rb.rao_blackwellize(leave_one_out(), budget=number),
    'local, no baseline': local(tfp_rb.REINFORCE(), num_states),
    'local, best level': local(tfp_rb.REINFORCE(baseline=level), num_states),
  }


def measure(number, num_draws, seed):
  """Returns the rows of the table."""
  kinds = [(shape, size) for shape in SCALES for size in SIZES]
  rows = []
  for shape, (num_states, num_steps) in tqdm.tqdm(kinds, unit='kind'):
    rng = np.random.default_rng([seed, num_states, num_steps])
    problems = Problems(rng, shape, num_states, num_steps, number, num_draws)
    _, loss = problems.variance(leave_one_out(100), [seed, 0])
    level = np.repeat(loss, num_draws)[:, np.newaxis]
    level = np.tile(level, [1, num_steps])  # Each site has the same level.
    for group in (
      estimators(), many_evaluations(num_states, num_steps, level)
    ):  # fmt: skip
      found = {
        name: problems.variance(estimator, [seed, 1])[0]
        for name, estimator in group.items()
      }
      for i in range(number):
        least = min(values[i] for values in found.values())
        rows += [
          {
            'shape': shape,
            'states': num_states,
            'steps': num_steps,
            'problem': i,
            'choice': name,
            'variance': values[i],
            'ratio': values[i] / least,
          }
          for name, values in found.items()
        ]
  return rows


def main(argv):
  del argv
  rows = measure(FLAGS.problems, FLAGS.draws, FLAGS.seed)
  output_dir = pathlib.Path(FLAGS.output_dir)
  output_dir.mkdir(parents=True, exist_ok=True)
  tables.write(output_dir / 'chains.csv', rows, num_digits=5)
  names = dict.fromkeys(row['choice'] for row in rows)
  header = ''.join(
    f'{x:>10s}' for x in ('median', '95 %', 'largest', 'best, %')
  )
  for shape in [*SCALES, 'all']:
    print(f'\n{"variance / least, " + shape:32s}{"n":>6s}{header}')
    for name in names:
      own = [
        row['ratio']
        for row in rows
        if row['choice'] == name and shape in (row['shape'], 'all')
      ]
      print(line(name, own))
  print(f'\nThe table is in {output_dir}.')


if __name__ == '__main__':
  flags.DEFINE_integer(
    'problems', 10, 'Number of problems of each of the 12 kinds.'
  )
  flags.DEFINE_integer('draws', 100, 'Gradients for each variance.')
  flags.DEFINE_integer('seed', 0, 'Seed of the problems.')
  flags.DEFINE_string(
    'output_dir', 'outputs/defaults', 'Folder for the CSV file.'
  )
  app.run(main)
