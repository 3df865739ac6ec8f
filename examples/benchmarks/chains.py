# SPDX-License-Identifier: Apache-2.0
"""Measures the cost of chains relative to one forward-backward pass.

The benchmark has three parts:

1. Ratios: the time of a partition (the 8 best paths and one draw from the rest)
   and of other methods of a chain with K = 16 states, T = 200 steps and a batch
   of 32, relative to a forward-backward pass of the same chain that is written
   by hand below.
2. Growth: the time of the same partition for several numbers of steps and batch
   sizes, and the peak memory that it adds to the process.
3. Compilation: the time to trace and compile each method at T = 200.

XLA compiles all functions, in one process and in float32. The functions of a
part are called in turn. The script prints medians and quartiles, and ratios of
calls in the same round, and writes the tables to `--output_dir`.

  python -m examples.benchmarks.chains

The script measures memory only on Linux. It is the peak during the calls and
their compilation, minus the memory of the process before them.
"""

import pathlib
import time

from absl import app, flags
import numpy as np
import tensorflow as tf

from examples.shared import tables
import tfp_rb

FLAGS = flags.FLAGS
FORWARD_BACKWARD = 'forward-backward by hand'
PARTITION = '8 best paths and a draw'


def compiled(function):
  return tf.function(function, jit_compile=True, autograph=False)


def make_logits(num_states, num_steps, rows):
  """Returns logits of the first state, and logits of the transitions."""
  normal = tf.random.stateless_normal
  shape = [rows, num_steps - 1, num_states, num_states]
  return normal([rows, num_states], [0, 1]), normal(shape, [0, 2])


def forward_backward(initial_logits, transition_logits):
  """Returns the marginals of the states, in log space.

  Args:
    initial_logits: `Tensor` of shape `[rows, K]`.
    transition_logits: `Tensor` of shape `[rows, T - 1, K, K]`.

  Returns:
    marginals: `Tensor` of shape `[T, rows, K]`.
  """
  first = tf.nn.log_softmax(initial_logits)
  factors = tf.transpose(tf.nn.log_softmax(transition_logits), [1, 0, 2, 3])
  forward = tf.scan(
    lambda a, factor: tf.reduce_logsumexp(a[..., tf.newaxis] + factor, axis=1),
    factors,
    first,
  )
  forward = tf.concat([first[tf.newaxis], forward], axis=0)
  backward = tf.scan(
    lambda b, factor: tf.reduce_logsumexp(factor + b[:, tf.newaxis], axis=2),
    factors,
    tf.zeros_like(first),
    reverse=True,
  )
  backward = tf.concat([backward, tf.zeros_like(first)[tf.newaxis]], axis=0)
  return tf.nn.softmax(forward + backward)


def partition_with(num_summed, seed):
  """Returns a function that computes best paths and a draw from the rest."""

  def partition(chain):
    p = tfp_rb.partition(chain, num_summed)
    return p.values, p.weights, p.rest_weight, p.sample_rest(1, seed)

  return partition


def functions_of(logits):
  """Returns the compiled functions of logits that are timed, by name."""
  chain = tfp_rb.distributions.CategoricalChain
  seed = tf.constant([1, 2])
  # All states are 0; the time does not depend on the path.
  path = tf.zeros([logits[0].shape[0], logits[1].shape[1] + 1], tf.int32)
  methods = {
    PARTITION: partition_with(8, seed),
    'mode': lambda q: q.mode(),
    'one draw': lambda q: q.sample(seed=seed),
    'log_prob': lambda q: q.log_prob(path),
    'marginals': lambda q: q.marginals(),
    'entropy': lambda q: q.entropy(),
    'entropy and gradient': lambda q: tf.gradients(
      tf.reduce_sum(q.entropy()), [q.initial_logits, q.transition_logits]
    ),
  }
  functions = {FORWARD_BACKWARD: forward_backward} | {
    name: lambda *logits, method=method: method(chain(*logits))
    for name, method in methods.items()
  }
  return {name: compiled(function) for name, function in functions.items()}


def wait_for(result):
  """Waits until the first array is computed, without copying the others."""
  tf.nest.flatten(result)[0].numpy()


def seconds_of(call):
  start = time.perf_counter()
  wait_for(call())
  return time.perf_counter() - start


def measure(calls, repeats):
  """Times calls in turn; returns milliseconds of shape `[repeats, calls]`."""
  for call in calls:
    wait_for(call())
  return np.array(
    [[1e3 * seconds_of(call) for call in calls] for _ in range(repeats)]
  )


def megabytes(key):
  """Returns a memory statistic of this process on Linux, or NaN."""
  status = pathlib.Path('/proc/self/status')
  if not status.exists():
    return float('nan')
  lines = dict(x.split(':', 1) for x in status.read_text().splitlines())
  return int(lines[key].split()[0]) * 1024 / 1e6


def forget_peak():
  file = pathlib.Path('/proc/self/clear_refs')
  if file.exists():
    file.write_text('5')


def quartiles(x):
  return np.percentile(x, [25, 50, 75])


def row_of(times, base, **what):
  """Returns a row of a table; `base` may be `None`."""
  row = dict(what)
  for name, x in {'milliseconds': times, 'ratio': base}.items():
    if x is not None:
      low, median, high = quartiles(x)
      row |= {f'{name}_low': low, name: median, f'{name}_high': high}
  return row


def measure_growth(num_states, sizes, repeats):
  """Measures time and memory of the partition for steps and batch sizes."""
  # The first compilation of a process allocates memory that later ones reuse.
  small = make_logits(3, 5, 1)
  wait_for(functions_of(small)[PARTITION](*small))
  table = []
  for num_steps, rows in sizes:
    logits = make_logits(num_states, num_steps, rows)
    function = functions_of(logits)[PARTITION]
    forget_peak()
    before = megabytes('VmRSS')
    times = measure([lambda f=function, x=logits: f(*x)], repeats)[:, 0]
    table.append(
      row_of(
        times, None, steps=num_steps, batch=rows, states=num_states,
        microseconds_per_step_and_row=1e3
        * np.median(times) / (num_steps * rows),
        megabytes_of_logits=logits[1].shape.num_elements() * 4e-6,
        megabytes_added=megabytes('VmHWM') - before,
      )
    )  # fmt: skip
  return table


def measure_ratios(num_states, num_steps, rows, repeats):
  """Measures times relative to a forward-backward pass, and compilation."""
  logits = make_logits(num_states, num_steps, rows)
  functions = functions_of(logits)
  trace, first = {}, {}
  for name, function in functions.items():
    start = time.perf_counter()
    function.get_concrete_function(*logits)
    trace[name] = time.perf_counter() - start
    first[name] = seconds_of(lambda f=function: f(*logits))
  calls = [lambda f=f: f(*logits) for f in functions.values()]
  times = measure(calls, repeats)
  return [
    row_of(
      times[:, i], times[:, i] / times[:, 0], method=name, steps=num_steps,
      batch=rows, states=num_states, trace_seconds=trace[name],
      compile_seconds=first[name],
    )
    for i, name in enumerate(functions)
  ]  # fmt: skip


def show(growth, ratios):
  print(
    f'{"steps":>7s}{"batch":>7s}{"ms":>10s}{"us per step and row":>21s}'
    f'{"MB of logits":>14s}{"MB added":>10s}'
  )
  for row in growth:
    print(
      f'{row["steps"]:7d}{row["batch"]:7d}{row["milliseconds"]:10.2f}'
      f'{row["microseconds_per_step_and_row"]:21.3f}'
      f'{row["megabytes_of_logits"]:14.1f}{row["megabytes_added"]:10.1f}'
    )
  print(
    f'\n{"method":26s}{"ms":>9s}{"ratio (quartiles)":>24s}{"trace":>9s}'
    f'{"compile":>10s}'
  )
  for row in ratios:
    ratio = (
      f'{row["ratio"]:.2f} [{row["ratio_low"]:.2f}, {row["ratio_high"]:.2f}]'
    )
    print(
      f'{row["method"]:26s}{row["milliseconds"]:9.2f}{ratio:>24s}'
      f'{row["trace_seconds"]:7.2f} s{row["compile_seconds"]:8.2f} s'
    )
  print(f'\n{PARTITION}: the target is a ratio of at most 12.')


def main(argv):
  del argv
  sizes = [(200, 8), (200, 128), (100, 32), (1_000, 32), (10_000, 32)]
  size, repeats = (16, 200, 32), FLAGS.repeats
  if FLAGS.smoke:
    sizes, size, repeats = [(5, 2), (10, 2)], (3, 5, 2), 2
  growth = measure_growth(size[0], sizes, min(repeats, 9))
  ratios = measure_ratios(*size, repeats)
  output_dir = pathlib.Path(FLAGS.output_dir)
  output_dir.mkdir(parents=True, exist_ok=True)
  tables.write(output_dir / 'growth.csv', growth, 4, lineterminator='\n')
  tables.write(output_dir / 'ratios.csv', ratios, 4, lineterminator='\n')
  show(growth, ratios)
  print(f'The tables are in {output_dir}.')


if __name__ == '__main__':
  flags.DEFINE_integer('repeats', 41, 'Number of rounds of calls.')
  flags.DEFINE_bool('smoke', False, 'Uses small sizes and few calls.')
  flags.DEFINE_string('output_dir', 'outputs/chains', 'Folder for the tables.')
  app.run(main)
