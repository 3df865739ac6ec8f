# SPDX-License-Identifier: Apache-2.0
"""Compares the variance of the default estimator with the best choice.

The script draws random problems, and uses three evaluations of `f`. The choices
are three draws, one value summed and two drawn, two summed and one drawn, and
`budget=3`, all with the leave-one-out baseline; and the exact sum of three
values. The variance is that of the gradient w.r.t. the logits of a table, the
natural parameter of a count, or the logits of all sites. There are four kinds
of problems:

* tables: Categoricals with 3 to 1000 values;
* counts: Poisson, NegativeBinomial, Geometric;
* small products: 2 to 5 sites with at most 1024 joint values;
* large products: 10 to 200 sites with 4 symbols.

The logits are flat (of scale 0.1 to 0.5), mixed (1 to 2) or concentrated (3 to
6). `f` is normal, normal with an offset of 10, smooth in the value, or spiky
(one value in ten is 10 times larger). The variances of large products are
estimated from draws; all others are exact.

  python -m examples.benchmarks.defaults
"""

import functools
import pathlib

from absl import app, flags
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

from examples.shared import tables
import tfp_rb

tfd = tfp.distributions

SCALES = {'flat': (0.1, 0.5), 'mixed': (1, 2), 'concentrated': (3, 6)}
COSTS = ('normal', 'offset', 'smooth', 'spiky')
COUNTS = ('Poisson', 'NegativeBinomial', 'Geometric')
CHOICES = ('3 drawn', '1 + 2', '2 + 1', 'budget=3')
NUM_SYMBOLS = 4  # The number of symbols of a site in a large product.
LARGE = (10, 20, 50, 200)  # With these numbers of sites the default draws.
NUM_ROWS = 250  # The number of gradients in one call.
NO_VARIANCE = 1e-25


def leave_one_out(num_samples=1):
  return tfp_rb.REINFORCE(
    tfp_rb.baselines.LeaveOneOut(), num_samples=num_samples
  )


def estimators():
  return {
    '3 drawn': leave_one_out(3),
    '1 + 2': tfp_rb.rao_blackwellize(leave_one_out(2), num_summed=1),
    '2 + 1': tfp_rb.rao_blackwellize(leave_one_out(1), num_summed=2),
    'budget=3': tfp_rb.rao_blackwellize(leave_one_out(), budget=3),
  }


def log_uniform(rng, low, high):
  return np.exp(rng.uniform(np.log(low), np.log(high)))


def make_costs(rng, cost, shape):
  """Returns an array of costs; smooth ones vary slowly along the last axis."""
  f = rng.normal(size=shape)
  if cost == 'offset':
    return f + 10.0
  if cost == 'smooth':
    x = np.linspace(0.0, rng.uniform(0.5, 2.0), shape[-1])
    return np.sin(2.0 * np.pi * (x + rng.uniform(size=[*shape[:-1], 1])))
  if cost == 'spiky':
    return np.where(rng.uniform(size=shape) < 0.1, 10.0 * f, f)
  return f


def make_logits(rng, shape, size):
  return rng.uniform(*SCALES[shape]) * rng.normal(size=size)


def variable(x):
  return tf.Variable(x, dtype=tf.float64)


def make_table(rng, shape, cost):
  size = round(log_uniform(rng, 3, 1000))
  f = tf.constant(make_costs(rng, cost, [size]))
  q = tfd.Categorical(logits=make_logits(rng, shape, [size]))
  return lambda z: tf.gather(f, z), q, size


def make_count(rng, family, cost):
  if family == 'Poisson':
    q = tfd.Poisson(log_rate=variable(np.log(log_uniform(rng, 0.05, 100))))
  elif family == 'NegativeBinomial':
    logits = variable(rng.uniform(-3.0, 2.0))
    q = tfd.NegativeBinomial(log_uniform(rng, 0.3, 30.0), logits=logits)
  else:
    q = tfd.Geometric(logits=variable(rng.uniform(-3.0, 3.0)))
  f = tf.constant(make_costs(rng, cost, [4096]))
  return lambda z: tf.gather(f, tf.cast(z, tf.int32)), q, 0


def make_small_product(rng, shape, cost):
  num_sites = int(rng.integers(2, 6))
  most = int(1024 ** (1 / num_sites))
  num_symbols = int(rng.integers(2, most + 1))
  f = tf.constant(make_costs(rng, cost, [num_symbols**num_sites]))
  powers = tf.constant(num_symbols ** np.arange(num_sites), tf.int32)
  logits = variable(make_logits(rng, shape, [num_sites, num_symbols]))
  q = tfd.Independent(tfd.Categorical(logits=logits), 1)
  return lambda z: tf.gather(f, tf.reduce_sum(z * powers, -1)), q, num_sites


def exact_variances(f, q):
  """Computes the variance of each choice from `f` at all values."""
  # Counts beyond 4096 have a mass of less than 1e-12.
  table = tfp_rb.diagnostics.suggest(
    f, q, budget=3, most_evaluations=4096
  ).table
  found = {}
  for option in table:
    if option.name == 'Exact':
      found['budget=3'] = found['3 + 0'] = option.variance
    elif 'leave-one-out' in option.name:
      is_budget = 'budget' in option.name
      k = option.num_summed
      name = f'{k} + {3 - k}' if k else '3 drawn'
      found['budget=3' if is_budget else name] = option.variance
  return found


@functools.cache
def compiled_gradients(choice, num_sites):
  """Returns a function for `NUM_ROWS` gradients, compiled once per size."""
  estimator = estimators()[choice]
  offsets = NUM_SYMBOLS * np.arange(num_sites, dtype=np.int32)

  @tf.function(autograph=False)
  def gradients(logits, unary, mixing, constant, seed):
    def f(z):  # Interactions contribute as much variance as single sites.
      terms = tf.gather(tf.reshape(unary, [-1]), z + offsets)
      mixed = tf.sin(tf.tensordot(terms, mixing, 1))
      return constant + tf.reduce_sum(terms, -1) + tf.reduce_sum(mixed, -1)

    rows = tf.broadcast_to(logits, [NUM_ROWS, num_sites, NUM_SYMBOLS])
    with tf.GradientTape() as tape:
      tape.watch(rows)
      q = tfd.Independent(tfd.Categorical(logits=rows), 1)
      loss = tfp_rb.expectation(f, q, estimator, seed=seed)
    return tape.gradient(loss, rows)

  return gradients


def sampled_variances(rng, shape, cost, num_draws):
  """Returns variances of each choice on a large product, and its size."""
  num_sites = int(rng.choice(LARGE))
  size = [num_sites, NUM_SYMBOLS]
  arguments = [
    make_logits(rng, shape, size),
    make_costs(rng, 'normal' if cost == 'offset' else cost, size),
    rng.normal(size=size[:1] * 2) * 3.0 / np.sqrt(num_sites),
    10.0 if cost == 'offset' else 0.0,
  ]
  arguments = [tf.constant(x, tf.float32) for x in arguments]
  seed = int(rng.integers(2**30))
  found = {}
  for choice in CHOICES:
    gradients = compiled_gradients(choice, num_sites)
    draws = np.concatenate(
      [
        gradients(*arguments, tf.constant([seed, i])).numpy().astype(float)
        for i in range(-(-num_draws // NUM_ROWS))
      ]
    )
    found[choice] = draws.var(axis=0, ddof=1).sum()
  return found, num_sites


def measure(num_problems, num_draws, seed):
  """Returns the rows of the table, with `num_problems` of each kind."""
  kinds = [('table', shape) for shape in SCALES]
  kinds += [('count', family) for family in COUNTS]
  kinds += [(k, s) for k in ('small product', 'large product') for s in SCALES]
  makers = {
    'table': make_table,
    'count': make_count,
    'small product': make_small_product,
  }
  rows = []
  for kind, shape in tqdm.tqdm(kinds, unit='kind'):
    rng = np.random.default_rng([seed, kinds.index((kind, shape))])
    for i in range(num_problems):
      cost = COSTS[i % len(COSTS)]
      if kind == 'large product':
        found, size = sampled_variances(rng, shape, cost, num_draws)
      else:
        f, q, size = makers[kind](rng, shape, cost)
        found = exact_variances(f, q)
      default = '3 drawn' if kind == 'large product' else 'budget=3'
      rows.append(as_row(kind, shape, cost, size, found, default))
  return rows


def as_row(kind, shape, cost, size, found, default):
  least = min(found.values())

  def ratio(x):
    if x < NO_VARIANCE:  # The variance is 0 up to rounding errors.
      return 1.0
    return x / least if least >= NO_VARIANCE else np.inf

  row = {'kind': kind, 'shape': shape, 'cost': cost, 'size': size}
  row |= {name: found.get(name, '') for name in (*CHOICES, '3 + 0')}
  row['default'] = default
  row['ratio'] = ratio(found[default])
  row |= {
    f'ratio of {name}': ratio(found[name]) if name in found else ''
    for name in CHOICES
  }
  return row


def line(name, ratios):
  numbers = [np.median(ratios), np.quantile(ratios, 0.95), np.max(ratios)]
  numbers.append(100.0 * np.mean(np.array(ratios) < 1.001))
  cells = [f'{x:10.3g}' for x in numbers]
  return f'{name:32s}{len(ratios):6d}' + ''.join(cells)


def show(rows):
  header = ''.join(
    f'{x:>10s}' for x in ('median', '95 %', 'largest', 'best, %')
  )
  print(f'\n{"variance of default / best":32s}{"n":>6s}{header}')
  groups = dict.fromkeys((r['kind'], r['shape']) for r in rows)
  for kind, shape in groups:
    chosen = [r for r in rows if (r['kind'], r['shape']) == (kind, shape)]
    print(line(f'{kind}, {shape}', [r['ratio'] for r in chosen]))
  print(line('all', [r['ratio'] for r in rows]))
  print(f'\n{"variance of fixed choice / best":32s}{"n":>6s}{header}')
  for name in CHOICES:
    column = f'ratio of {name}'
    for kinds in (('table', 'count'), ('small product', 'large product')):
      ratios = [
        r[column] for r in rows if r['kind'] in kinds and r[column] != ''
      ]
      print(line(f'{name}, {kinds[0].split()[-1]}s', ratios))


def main(argv):
  del argv
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  rows = measure(FLAGS.problems, FLAGS.draws, FLAGS.seed)
  output_dir = pathlib.Path(FLAGS.output_dir)
  output_dir.mkdir(parents=True, exist_ok=True)
  tables.write(output_dir / 'defaults.csv', rows, num_digits=5)
  show(rows)
  print(f'\nThe table is in {output_dir}.')


FLAGS = flags.FLAGS


if __name__ == '__main__':
  flags.DEFINE_integer(
    'problems', 45, 'Number of problems of each of the 12 kinds.'
  )
  flags.DEFINE_integer('draws', 1000, 'Gradients for each sampled variance.')
  flags.DEFINE_integer('seed', 0, 'Seed of problems and draws.')
  flags.DEFINE_string(
    'output_dir', 'outputs/defaults', 'Folder for the CSV file.'
  )
  app.run(main)
