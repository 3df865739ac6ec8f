# SPDX-License-Identifier: Apache-2.0
"""Which default for a chain in `tfp_rb.vi`? Gradient variances.

Surrogates are `CategoricalChain`s with random logits: flat, mixed or
concentrated; and, as at the end of a fit, the exact posterior of a target
without its interactions, from which the logits are moved a little ('fitted').
The target is a random chain plus a square of a sum over all time steps, so that
nothing factorises. For each: the variance of the gradient of the reverse
divergence, summed over all logits and estimated from `--draws` gradients.

* With three evaluations of the target: three joint draws, one path summed and
  two drawn, two summed and one drawn, and `budget=3`, all with the
  leave-one-out baseline.
* With `T K` evaluations: the same number of joint draws, half of them summed
  paths, a budget, and `local_expectation` of all states, with no baseline and
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
SIZES = ((3, 4), (3, 12), (2, 40))  # numbers of states and of time steps


class Problems:
  """A batch of problems of one kind; each one has `num_draws` rows.

  All gradients of all problems come from one call, since the rows of a batch
  have draws of their own.
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
    """The log-density of paths `[m, rows, T]`."""
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
    """The variance of the gradient of each problem, summed over all logits."""
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
  """The choices with `T K` evaluations; `level` is the loss of each row."""
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
  """Rows of the table."""
  kinds = [(shape, size) for shape in SCALES for size in SIZES]
  rows = []
  for shape, (num_states, num_steps) in tqdm.tqdm(kinds, unit='kind'):
    rng = np.random.default_rng([seed, num_states, num_steps])
    problems = Problems(rng, shape, num_states, num_steps, number, num_draws)
    _, loss = problems.variance(leave_one_out(100), [seed, 0])
    level = np.repeat(loss, num_draws)[:, np.newaxis]
    level = np.tile(level, [1, num_steps])  # one for each site
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
    print(f'\n{"choice / best choice, " + shape:32s}{"n":>6s}{header}')
    for name in names:
      own = [
        row['ratio']
        for row in rows
        if row['choice'] == name and shape in (row['shape'], 'all')
      ]
      print(line(name, own))
  print(f'\nThe table is in {output_dir}.')


if __name__ == '__main__':
  flags.DEFINE_integer('problems', 10, 'Problems of each of the 12 kinds.')
  flags.DEFINE_integer('draws', 100, 'Gradients for each variance.')
  flags.DEFINE_integer('seed', 0, 'Seed of the problems.')
  flags.DEFINE_string(
    'output_dir', 'outputs/defaults', 'Where the CSV file goes.'
  )
  app.run(main)
