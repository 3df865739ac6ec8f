# SPDX-License-Identifier: Apache-2.0
"""Measures time and memory of divergences over a large vocabulary.

Two models give logits of shape `[batch, length, vocabulary]`, by default
`[2, 128, 152000]`. Each row is one way to compute `KL(q, p)` for each position,
and its gradient w.r.t. the logits of both models:

* TFP: `tfd.kl_divergence`, the exact sum;
* exact: `tfp_rb.kl_divergence(q, p)`, the exact sum;
* estimator: `tfp_rb.kl_divergence(q, p, estimator)` with four draws;
* log_prob_at: `tfp_rb.expectation` of `log_prob_at(q, z) - log_prob_at(p, z)`;
* log_prob: `tfp_rb.expectation` of `q.log_prob(z) - p.log_prob(z)`.

Each row runs in its own process, compiled by XLA or as a plain `tf.function`.
The script prints the median time of a call, without compilation, and how much
the peak memory of the process exceeds the memory before the first call. If a
row needs more than `--gigabytes`, the script ends it and reports this limit.
Only Linux is supported.

  python -m examples.benchmarks.vocabulary
"""

import csv
import pathlib
import resource
import subprocess
import sys
import time

from absl import app, flags
import numpy as np

FLAGS = flags.FLAGS
ROWS = ('TFP', 'exact', 'estimator', 'log_prob_at', 'log_prob')
NUM_DRAWS = 4


def make_loss(row):
  """Returns the summed divergence, as a function of two logits and a seed."""
  import tensorflow as tf
  import tensorflow_probability as tfp

  import tfp_rb

  tfd = tfp.distributions
  estimator = tfp_rb.REINFORCE(
    tfp_rb.baselines.LeaveOneOut(), num_samples=NUM_DRAWS
  )

  def loss(q_logits, p_logits, seed):
    q, p = tfd.Categorical(q_logits), tfd.Categorical(p_logits)
    if row == 'TFP':
      value = tfd.kl_divergence(q, p)
    elif row == 'exact':
      value = tfp_rb.kl_divergence(q, p)
    elif row == 'estimator':
      value = tfp_rb.kl_divergence(q, p, estimator, seed=seed)
    elif row == 'log_prob_at':
      f = lambda z: tfp_rb.log_prob_at(q, z) - tfp_rb.log_prob_at(p, z)
      value = tfp_rb.expectation(f, q, estimator, seed=seed)
    else:
      f = lambda z: q.log_prob(z) - p.log_prob(z)
      value = tfp_rb.expectation(f, q, estimator, seed=seed)
    return tf.reduce_sum(value)

  return loss


def gigabytes(field):
  """Returns a memory statistic of this process; 'VmHWM' is the peak."""
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith(f'{field}:'):
      return float(line.split()[1]) * 1024 / 1e9
  raise RuntimeError(f'/proc/self/status has no field {field}.')


def run_row(row, shape, xla, calls, limit):
  """Measures a row in this process; prints seconds and gigabytes."""
  import tensorflow as tf

  loss = make_loss(row)

  @tf.function(jit_compile=xla, autograph=False)
  def value_and_gradients(q_logits, p_logits, seed):
    with tf.GradientTape() as tape:
      tape.watch([q_logits, p_logits])
      value = loss(q_logits, p_logits, seed)
    return value, tape.gradient(value, [q_logits, p_logits])

  logits = [
    2.0 * tf.random.stateless_normal(shape, seed=[0, i]) for i in range(2)
  ]
  before = gigabytes('VmRSS')
  used = gigabytes('VmSize')
  most = int((used + limit) * 1e9)
  resource.setrlimit(resource.RLIMIT_AS, (most, most))
  times = []
  for i in range(calls + 1):
    start = time.perf_counter()
    value, gradients = value_and_gradients(*logits, tf.constant([1, i]))
    float(value + gradients[0][0, 0, 0])
    times.append(time.perf_counter() - start)
  print(np.median(times[1:]), max(gigabytes('VmHWM') - before, 0.0))


def measure(row, xla):
  """Measures a row in a new process; returns a row of the table."""
  command = [
    sys.executable, __file__, f'--row={row}', f'--xla={xla}',
    f'--shape={",".join(FLAGS.shape)}', f'--calls={FLAGS.calls}',
    f'--gigabytes={FLAGS.gigabytes}',
  ]  # fmt: skip
  process = subprocess.run(command, capture_output=True, text=True, check=False)
  cells = {'row': row, 'xla': xla, 'shape': ' '.join(FLAGS.shape)}
  if process.returncode:
    if not ran_out_of_memory(process):
      raise RuntimeError(f'{row} failed. It printed:\n{process.stderr[-2000:]}')
    return cells | {'seconds': '', 'gigabytes': f'over {FLAGS.gigabytes:g}'}
  seconds, memory = map(float, process.stdout.split()[-2:])
  return cells | {'seconds': f'{seconds:.3f}', 'gigabytes': f'{memory:.2f}'}


def ran_out_of_memory(process):
  words = ('bad_alloc', 'RESOURCE_EXHAUSTED', 'ResourceExhausted', 'OOM')
  words += ('Out of memory', 'MemoryError', 'Cannot allocate')
  return process.returncode < 0 or any(w in process.stderr for w in words)


def main(argv):
  del argv
  if FLAGS.smoke:
    FLAGS.shape, FLAGS.calls = ['2', '3', '50'], 1
  if FLAGS.row:
    shape = [int(x) for x in FLAGS.shape]
    run_row(FLAGS.row, shape, FLAGS.xla, FLAGS.calls, FLAGS.gigabytes)
    return
  folder = pathlib.Path(FLAGS.output_dir)
  folder.mkdir(parents=True, exist_ok=True)
  print(f'{"":14s}{"compiled by":14s}{"seconds":>8s}{"gigabytes":>11s}')
  name = 'x'.join(FLAGS.shape)
  with (folder / f'{name}.csv').open('w', newline='') as file:
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(['row', 'xla', 'shape', 'seconds', 'gigabytes'])
    for row in ROWS[-1:] if FLAGS.smoke else ROWS:
      for xla in (False, True):
        cells = measure(row, xla)
        writer.writerow(cells.values())
        file.flush()
        print(
          f'{row:14s}{"XLA" if xla else "TensorFlow":14s}'
          f'{cells["seconds"]:>8s}{cells["gigabytes"]:>11s}',
          flush=True,
        )


if __name__ == '__main__':
  flags.DEFINE_list('shape', ['2', '128', '152000'], 'Shape of the logits.')
  flags.DEFINE_integer('calls', 3, 'Calls for each median.')
  flags.DEFINE_float('gigabytes', 3.0, 'Maximum memory of a call.')
  flags.DEFINE_bool('smoke', False, 'Runs one row with a small vocabulary.')
  flags.DEFINE_string('row', None, f'Runs only one of {ROWS}, in this process.')
  flags.DEFINE_bool('xla', False, 'With `--row`: whether XLA compiles it.')
  flags.DEFINE_string(
    'output_dir', 'outputs/vocabulary', 'Folder for the CSV file.'
  )
  app.run(main)
