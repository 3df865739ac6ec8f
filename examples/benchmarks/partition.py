# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of a partition, and the overhead of `tfp_rb.expectation`.

The script measures:

1. the time of a partition (the 5 best values and one draw from the rest) of a
   batch of logits, relative to one `log_softmax` of the same logits;
2. the time of `tfp_rb.expectation` with an MLP as `f`, forward and backward,
   relative to hand-written code for the same surrogate at the same atoms;
3. the time of a partition of product distributions (the 16 best joint values
   and one draw from the rest).

XLA compiles all functions, in one process and in float32. The two sides of each
ratio are called in turn. The script prints medians and quartiles of the times
and of the ratios.

  python -m examples.benchmarks.partition
"""

import re
import time

from absl import app, flags
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

_REPEATS = flags.DEFINE_integer(
  'repeats', 60, 'Number of calls of each function.'
)
_SMOKE = flags.DEFINE_bool('smoke', False, 'Uses small sizes and few calls.')

tfd = tfp.distributions

_SIZES = ((64, 4_624), (64, 100_000), (4, 1_000_000))


def compiled(function):
  return tf.function(function, jit_compile=True, autograph=False)


def milliseconds(functions, repeats):
  """Times the functions in turn; returns shape `[repeats, functions]`."""
  for function in functions:
    function()
    function()
  times = np.zeros([2 if _SMOKE.value else repeats, len(functions)])
  for row in times:
    for i, function in enumerate(functions):
      start = time.perf_counter()
      result = function()
      tf.nest.map_structure(lambda x: x.numpy(), result)
      row[i] = 1e3 * (time.perf_counter() - start)
  return times


def quartiles(x):
  return '{1:8.3f} [{0:.3f}, {2:.3f}]'.format(*np.percentile(x, [25, 50, 75]))


def largest_tensor(function, *args):
  """Returns the size of the largest array in the compiled program."""
  program = function.experimental_get_compiler_ir(*args)(stage='optimized_hlo')
  shapes = re.findall(r'[a-z]+[0-9]+\[([0-9,]+)\]', program)
  return max(np.prod([int(n) for n in s.split(',')]) for s in shapes)


def partition_over_log_softmax(rows, size):
  logits = tf.random.stateless_normal([rows, size], seed=[0, 1]) * 3.0
  seed = tf.constant([1, 2])

  @compiled
  def log_softmax(logits):
    return tf.nn.log_softmax(logits)

  @compiled
  def partition(logits, seed):
    p = tfp_rb.partition(tfd.Categorical(logits=logits), 5)
    return p.values, p.weights, p.rest_weight, p.sample_rest(1, seed)

  # The result of `log_softmax` is not copied to NumPy, because the copy is not
  # part of its cost.
  base = lambda: log_softmax(logits)[0, 0]
  times = milliseconds([base, lambda: partition(logits, seed)], _REPEATS.value)
  largest = largest_tensor(partition, logits, seed) / (rows * size)
  print(
    f'{rows:4d} x {size:9,d}  log_softmax {quartiles(times[:, 0])} ms   '
    f'partition {quartiles(times[:, 1])} ms   '
    f'ratio {quartiles(times[:, 1] / times[:, 0])}   '
    f'largest array / logits {largest:.2f}'
  )


def expectation_over_by_hand(rows=64, size=100, width=512):
  """Times an MLP with 6 one-hot atoms and an image-sized input."""
  weights = [
    tf.random.stateless_normal(shape, seed=[i, 5]) / shape[0] ** 0.5
    for i, shape in enumerate([(784 + size, width), (width, width), (width, 1)])
  ]
  x = tf.random.stateless_normal([rows, 784], seed=[7, 7])
  logits = tf.random.stateless_normal([rows, size], seed=[8, 8])
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=5)
  seed = tf.constant([1, 2])

  def f(z, weights):
    z = tf.one_hot(z, size)
    inputs = tf.concat([tf.broadcast_to(x, [z.shape[0], *x.shape]), z], axis=-1)
    hidden = tf.nn.relu(tf.tensordot(inputs, weights[0], 1))
    hidden = tf.nn.relu(tf.tensordot(hidden, weights[1], 1))
    return tf.tensordot(hidden, weights[2], 1)[..., 0]

  @compiled
  def library(logits, seed, *weights):
    with tf.GradientTape() as tape:
      tape.watch([logits, *weights])
      q = tfd.Categorical(logits=logits)
      loss = tf.reduce_sum(
        tfp_rb.expectation(lambda z: f(z, weights), q, estimator, seed=seed)
      )
    return tape.gradient(loss, [logits, *weights])

  @compiled
  def by_hand(logits, atoms, atom_weights, *weights):
    with tf.GradientTape() as tape:
      tape.watch([logits, *weights])
      log_q = tf.nn.log_softmax(logits)
      log_q = tf.gather(log_q, tf.transpose(atoms), batch_dims=1)
      value = f(atoms, weights)
      surrogate = value + tf.stop_gradient(value) * tf.transpose(log_q)
      loss = tf.reduce_sum(atom_weights * surrogate)
    return tape.gradient(loss, [logits, *weights])

  atoms = estimator.sample_atoms(tfd.Categorical(logits=logits), seed)
  times = milliseconds(
    [
      lambda: by_hand(logits, atoms.values, atoms.weights, *weights),
      lambda: library(logits, seed, *weights),
    ],
    _REPEATS.value,
  )
  print(
    f'by hand {quartiles(times[:, 0])} ms   expectation '
    f'{quartiles(times[:, 1])} ms   ratio '
    f'{quartiles(times[:, 1] / times[:, 0])}'
  )


def _partition_of_product(make, logits, num_summed):
  @compiled
  def partition(logits, seed):
    p = tfp_rb.partition(tfd.Independent(make(logits=logits), 1), num_summed)
    return p.values, p.weights, p.rest_weight, p.sample_rest(1, seed)

  seed = tf.constant([1, 2])
  return lambda: partition(logits, seed)


def products(rows=32, num_summed=16, num_bernoullis=200, sites=20, size=50):
  normal = tf.random.stateless_normal
  bernoulli = normal([rows, num_bernoullis], seed=[3, 3]) * 4.0
  categorical = normal([rows, sites, size], seed=[4, 4]) * 4.0
  for name, make, logits in (
    (f'{num_bernoullis} Bernoullis', tfd.Bernoulli, bernoulli),
    (f'{sites} Categoricals of {size}', tfd.Categorical, categorical),
  ):
    times = milliseconds(
      [_partition_of_product(make, logits, num_summed)], _REPEATS.value
    )
    print(f'{name:22s} batch {rows}, k = {num_summed}: {quartiles(times)} ms')


def main(argv):
  del argv
  print(
    'Time of the 5 best values and one draw from the rest, relative to '
    'log_softmax (target: 3)'
  )
  for rows, size in ((2, 100),) if _SMOKE.value else _SIZES:
    partition_over_log_softmax(rows, size)
  print(
    '\nTime of expectation with an MLP, relative to hand-written code (target: '
    '1.05)'
  )
  expectation_over_by_hand()
  print('\nProducts')
  products(*(2, 2, 3, 2, 3) if _SMOKE.value else ())


if __name__ == '__main__':
  app.run(main)
