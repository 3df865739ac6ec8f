# SPDX-License-Identifier: Apache-2.0
"""Compares sums over one site at a time with sums over joint values.

The distribution has 20 independent sites of 10 symbols, and so 10^20 joint
values. There are four costs `f`:

* strong pairs: a term for each site, plus terms for 30 random pairs of sites
  with as much variance in all;
* weak pairs: the same with a hundredth of the variance from the pairs;
* product: the product over the sites of a positive factor for its symbol;
* max: the maximum over the sites of a number for its symbol.

The sites are concentrated (the best symbol has a mass of 0.9), medium (0.5) or
flat (logits of scale 0.2). For each combination the script measures the
variance of the gradient, summed over the 200 logits, for estimators with 41 and
with 181 evaluations of `f`. It prints each variance with a 95 % interval
(normal theory, `--draws` gradients), and how many times lower it is than that
of the joint leave-one-out estimator with as many evaluations.

With one summed symbol and two draws per site (41 evaluations), the variance of
the local estimator is 0.33 to 1.9 times lower than that of 41 joint draws. With
all symbols summed (181 evaluations), only the noise of the other sites remains.
Compared with 181 joint draws, the variance is 32 to 105 times lower if the
sites interact weakly, and 3.0 to 14 times lower for the maximum, but only 0.77
to 3.0 times if the sites interact strongly, and 0.58 to 1.8 times for the
product. `examples/benchmarks/site_interaction.py` explains these numbers.

The script then measures the time of a compiled step (variational loss and
gradient) for several numbers of sites: `S` sites require `2 S + 1` evaluations
of a target that itself costs `O(S)`.

  python -m examples.benchmarks.many_sites
"""

import pathlib
import time

from absl import app, flags
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

from examples.benchmarks import site_gradients
from examples.shared import tables
import tfp_rb

tfd = tfp.distributions

FLAGS = flags.FLAGS
NUM_SITES, NUM_SYMBOLS = 20, 10
COSTS = ('weak pairs', 'strong pairs', 'product', 'max')
SHAPES = ('concentrated', 'medium', 'flat')
BEST_MASS = {'concentrated': 0.9, 'medium': 0.5}
LEAVE_ONE_OUT = 'joint leave-one-out'
LOCAL = 'local, k = 1'
LOCAL_FULL = 'local, k = 10'
NUM_ROWS = 100  # The number of gradients in one call.


def leave_one_out(num_samples):
  return tfp_rb.REINFORCE(
    tfp_rb.baselines.LeaveOneOut(), num_samples=num_samples
  )


# The estimators, by name and number of evaluations of `f`.
ESTIMATORS = {
  (LEAVE_ONE_OUT, 41): lambda: leave_one_out(41),
  ('joint, k = 1', 41): lambda: tfp_rb.rao_blackwellize(
    leave_one_out(40), num_summed=1
  ),
  ('joint, budget', 41): lambda: tfp_rb.rao_blackwellize(
    leave_one_out(1), budget=41
  ),
  (LOCAL, 41): lambda: tfp_rb.local_expectation(leave_one_out(2), num_summed=1),
  ('local, k = 2', 41): lambda: tfp_rb.local_expectation(
    leave_one_out(1), num_summed=2
  ),
  (LEAVE_ONE_OUT, 181): lambda: leave_one_out(181),
  # All symbols of a site are summed, and nothing is drawn at it.
  (LOCAL_FULL, 181): lambda: tfp_rb.local_expectation(
    tfp_rb.REINFORCE(), num_summed=NUM_SYMBOLS
  ),
}


def make_logits(shape, seed, num_sites=NUM_SITES):
  """Returns logits of the sites, of shape `[num_sites, NUM_SYMBOLS]`."""
  rng = np.random.default_rng(seed)
  if shape == 'flat':
    return 0.2 * rng.normal(size=[num_sites, NUM_SYMBOLS])
  logits = rng.normal(size=[num_sites, NUM_SYMBOLS])
  best = logits.argmax(axis=1)[:, np.newaxis]
  others = np.exp(logits).sum(axis=1, keepdims=True)
  others -= np.exp(np.take_along_axis(logits, best, axis=1))
  mass = BEST_MASS[shape]
  top = np.log(mass / (1.0 - mass) * others)
  np.put_along_axis(logits, best, top, axis=1)
  return logits


def make_cost(name, seed, num_sites=NUM_SITES):
  """Returns `f`, which maps integers `[..., num_sites]` to costs `[...]`."""
  rng = np.random.default_rng(seed + 1)
  unary = rng.normal(size=[num_sites, NUM_SYMBOLS])
  num_pairs = 3 * num_sites // 2
  pairs = np.array(
    [rng.choice(num_sites, 2, replace=False) for _ in range(num_pairs)]
  )
  # The pairs have as much variance as the sites, or a hundredth of it.
  binary = rng.normal(size=[num_pairs, NUM_SYMBOLS**2])
  binary *= np.sqrt(num_sites / num_pairs) * (
    0.1 if name == 'weak pairs' else 1.0
  )

  def terms(table, z):  # It computes table[i, z[..., i]] for all i at once.
    offsets = table.shape[1] * np.arange(table.shape[0], dtype=np.int32)
    return tf.gather(tf.constant(table.reshape(-1), tf.float32), z + offsets)

  def pairwise(z):
    first, second = (tf.gather(z, i, axis=-1) for i in pairs.T)
    return tf.reduce_sum(terms(unary, z), axis=-1) + tf.reduce_sum(
      terms(binary, NUM_SYMBOLS * first + second), axis=-1
    )

  def product(z):
    return tf.exp(0.3 * tf.reduce_sum(terms(unary, z), axis=-1))

  def largest(z):
    return tf.reduce_max(terms(unary, z), axis=-1)

  return {'product': product, 'max': largest}.get(name, pairwise)


def total_variance(estimator, logits, f, num_draws, seed):
  """Returns the variance, summed over the logits, and its standard error."""
  rows = np.broadcast_to(logits, [NUM_ROWS, *logits.shape])
  make_site = lambda logits: tfd.Categorical(logits=logits)
  draws = site_gradients.draw(estimator, make_site, rows, f, num_draws, seed)
  draws = draws.reshape([-1, *logits.shape])
  n = len(draws)
  squares = ((draws - draws.mean(axis=0)) ** 2).sum(axis=(1, 2)) * n / (n - 1)
  return squares.mean(), squares.std() / np.sqrt(n)


def measure(costs, shapes, num_draws, seed):
  """Returns the rows of the table of variances."""
  rows = []
  cases = [(c, s, e) for c in costs for s in shapes for e in ESTIMATORS]
  for cost, shape, (name, calls) in tqdm.tqdm(cases, unit='variance'):
    variance, error = total_variance(
      ESTIMATORS[name, calls](),
      make_logits(shape, seed),
      make_cost(cost, seed),
      num_draws,
      seed,
    )
    # It is the first estimator with this number of calls.
    if name == LEAVE_ONE_OUT:
      reference = variance, error / variance
    # The interval of a ratio of independent means comes from its logarithm.
    ratio = reference[0] / variance if variance > 0.0 else np.inf
    spread = 1.96 * np.hypot(reference[1], error / max(variance, 1e-300))
    rows.append(
      {
        'cost': cost,
        'logits': shape,
        'estimator': name,
        'evaluations': calls,
        'variance': variance,
        'standard_error': error,
        'times_lower': ratio,
        'low': ratio * np.exp(-spread),
        'high': ratio * np.exp(spread),
        'draws': num_draws,
        'seed': seed,
      }
    )
  return rows


def time_step(estimator, num_sites, num_calls, seed):
  """Returns the median milliseconds of a compiled loss with its gradient."""
  cost = make_cost('weak pairs', seed, num_sites)
  logits = make_logits('medium', seed, num_sites)
  logits = tf.Variable(logits, dtype=tf.float32)
  q = tfd.Independent(tfd.Categorical(logits=logits), 1)

  @tf.function(autograph=False, jit_compile=True)
  def step(seed):
    with tf.GradientTape() as tape:
      loss = tfp_rb.vi.monte_carlo_variational_loss(
        lambda z: -cost(z), q, gradient_estimator=estimator, seed=seed
      )
    return tape.gradient(loss, logits)

  step(tf.constant([seed, 0]))  # The first call compiles.
  times = []
  for i in range(num_calls):
    start = time.perf_counter()
    step(tf.constant([seed, i])).numpy()
    times.append(time.perf_counter() - start)
  return 1e3 * np.median(times)


def measure_times(sizes, repeats, num_calls, seed):
  """Returns the rows of the table of times, the least of repeated medians."""
  rows = []
  cases = [(n, name) for n in sizes for name in (LOCAL, LEAVE_ONE_OUT)]
  for num_sites, name in tqdm.tqdm(cases, unit='time'):
    calls = 2 * num_sites + 1
    estimator = (
      ESTIMATORS[LOCAL, 41]() if name == LOCAL else leave_one_out(calls)
    )
    times = [
      time_step(estimator, num_sites, num_calls, seed) for _ in range(repeats)
    ]
    rows.append(
      {
        'sites': num_sites,
        'estimator': name,
        'evaluations': calls,
        'milliseconds': min(times),
        'slowest_repeat': max(times),
        'microseconds_per_evaluation': 1e3 * min(times) / calls,
        'repeats': repeats,
      }
    )
  return rows


def show(rows):
  print(
    f'\n{"cost":13s}{"logits":14s}{"estimator":21s}{"calls":>6s}'
    f'{"variance":>11s}{"+- 95 %":>10s}   times lower than leave-one-out'
  )
  for row in rows:
    print(
      f'{row["cost"]:13s}{row["logits"]:14s}{row["estimator"]:21s}'
      f'{row["evaluations"]:6d}{row["variance"]:11.4g}'
      f'{1.96 * row["standard_error"]:10.2g}   {row["times_lower"]:.3g}'
      f' ({row["low"]:.3g} to {row["high"]:.3g})'
    )


def show_times(rows):
  print(
    f'\n{"sites":>5s}  {"estimator":21s}{"calls":>6s}{"ms":>9s}'
    f'{"slowest":>9s}{"us per call":>13s}'
  )
  for row in rows:
    print(
      f'{row["sites"]:5d}  {row["estimator"]:21s}{row["evaluations"]:6d}'
      f'{row["milliseconds"]:9.3f}{row["slowest_repeat"]:9.3f}'
      f'{row["microseconds_per_evaluation"]:13.2f}'
    )


def main(argv):
  del argv
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  costs, shapes, num_draws = COSTS, SHAPES, FLAGS.draws
  sizes, repeats, num_calls = (10, 25, 50, 100), 3, 50
  if FLAGS.smoke:
    costs, shapes, num_draws = COSTS[:1], SHAPES[:1], 100
    sizes, repeats, num_calls = (5,), 1, 5
  output_dir = pathlib.Path(FLAGS.output_dir)
  output_dir.mkdir(parents=True, exist_ok=True)
  if FLAGS.variances:
    rows = measure(costs, shapes, num_draws, FLAGS.seed)
    tables.write(output_dir / 'variances.csv', rows)
    show(rows)
  if FLAGS.times:
    rows = measure_times(sizes, repeats, num_calls, FLAGS.seed)
    tables.write(output_dir / 'times.csv', rows)
    show_times(rows)
  print(f'\nThe tables are in {output_dir}.')


def define_flags():
  """Defines the flags of the script; an import of the module defines none."""
  flags.DEFINE_integer('draws', 2500, 'Gradients for each variance.')
  flags.DEFINE_integer('seed', 0, 'Seed of problems and draws.')
  flags.DEFINE_string(
    'output_dir', 'outputs/many_sites', 'Folder for the CSV files.'
  )
  flags.DEFINE_bool('variances', True, 'Whether to measure the variances.')
  flags.DEFINE_bool('times', True, 'Whether to measure the times.')
  flags.DEFINE_bool('smoke', False, 'Makes a few draws of a few estimators.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
