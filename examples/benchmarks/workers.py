# SPDX-License-Identifier: Apache-2.0
"""Seconds of an epoch with one worker and with two, of one core each.

  python -m examples.benchmarks.workers

trains the semi-supervised model by `distributed_fit`, with the same global
batch in every row. `none` is one process without a strategy, where the whole
step is compiled; `1` is a `MultiWorkerMirroredStrategy` of one worker, which
compiles only the gradient; `2` are two workers on this machine. The difference
between half of `1` and `2` is what the exchange of the gradients costs here.
The pixels are random: the work does not depend on them.

Writes `workers.csv`. About 10 minutes; leave the machine alone.
"""

import csv
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from absl import app, flags

FLAGS = flags.FLAGS
STRATEGIES = ('none', '1', '2')


def main(argv):
  del argv
  if FLAGS.core is not None:
    train()
    return
  number = os.cpu_count() or 1
  if number < 2:
    raise app.UsageError('Two workers of one core each need two cores.')
  rounds = {}
  for i in range(FLAGS.rounds):
    for batch_size in map(int, FLAGS.batch_sizes):
      # In another order each time: what ran before leaves its traces.
      for kind in STRATEGIES[:: -1 if i % 2 else 1]:
        seconds = measure(kind, batch_size)
        rounds.setdefault((batch_size, kind), []).extend(seconds)
        print(f'batch {batch_size}, {kind}: {seconds}', flush=True)
  table = rows_of(rounds)
  output = pathlib.Path(FLAGS.output_dir)
  output.mkdir(parents=True, exist_ok=True)
  with open(output / 'workers.csv', 'w', newline='') as file:
    writer = csv.DictWriter(file, list(table[0]), lineterminator='\n')
    writer.writeheader()
    writer.writerows(table)
  print(f'\nSeconds of an epoch of {FLAGS.num_images} images, a core each:')
  for row in table:
    print('  '.join(f'{key} {value}' for key, value in row.items()))


def rows_of(rounds):
  """Rows of the table, medians over all epochs but the first of each run."""
  table = []
  median = lambda x: sorted(x)[len(x) // 2]
  for (batch_size, kind), seconds in sorted(rounds.items()):
    alone = median(rounds[batch_size, '1'])
    table.append({
      'global_batch': batch_size,
      'workers': kind,
      'seconds': f'{median(seconds):.3f}',
      'least': f'{min(seconds):.3f}',
      'most': f'{max(seconds):.3f}',
      'steps': FLAGS.num_images // batch_size,
      'speed_over_1': f'{alone / median(seconds):.3f}',
      'epochs': len(seconds),
    })  # fmt: skip
  return table


def free_ports(number):
  sockets = [socket.socket() for _ in range(number)]
  for one in sockets:
    one.bind(('127.0.0.1', 0))
  ports = [one.getsockname()[1] for one in sockets]
  for one in sockets:
    one.close()
  return ports


def measure(kind, batch_size):
  """Seconds of the epochs of one run, in processes of their own."""
  number = 1 if kind == 'none' else int(kind)
  cluster = {'worker': [f'127.0.0.1:{port}' for port in free_ports(number)]}
  processes = []
  cores = sorted(os.sched_getaffinity(0))
  try:
    for i in range(number):
      env = {**os.environ, 'CUDA_VISIBLE_DEVICES': '-1'}
      env.pop('TF_CONFIG', None)
      if kind != 'none':
        task = {'type': 'worker', 'index': i}
        env['TF_CONFIG'] = json.dumps({'cluster': cluster, 'task': task})
      line = [
        sys.executable, __file__, f'--core={cores[i]}',
        f'--batch_sizes={batch_size}', f'--num_images={FLAGS.num_images}',
        f'--epochs={FLAGS.epochs}', f'--smoke={FLAGS.smoke}',
      ]  # fmt: skip
      processes.append(
        subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True)
      )
    printed = [p.communicate(timeout=FLAGS.timeout)[0] for p in processes]
  finally:
    for process in processes:
      if process.poll() is None:
        process.kill()
  if any(process.returncode for process in processes):
    raise RuntimeError(f'A worker has failed: {printed}')
  return json.loads(printed[0].splitlines()[-1])


def train():
  """What every process runs: prints the seconds of its epochs."""
  os.sched_setaffinity(0, {FLAGS.core})  # before TensorFlow counts the cores
  import keras
  import numpy as np
  import tensorflow as tf

  strategy = tf.distribute.get_strategy()
  if 'TF_CONFIG' in os.environ:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
  import tfp_rb

  class Clock(keras.callbacks.Callback):
    """Seconds of each epoch, of which the first one compiles."""

    def __init__(self):
      super().__init__()
      self.seconds = []

    def on_epoch_begin(self, epoch, logs=None):
      self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
      self.seconds.append(round(time.perf_counter() - self.start, 4))

  batch_size = int(FLAGS.batch_sizes[0])
  rng = np.random.default_rng(0)
  images = rng.integers(0, 256, [2, FLAGS.num_images, 784]).astype(np.uint8)
  labels = rng.integers(0, 10, [FLAGS.num_images]).astype(np.int32)
  data = tf.data.Dataset.from_tensor_slices((*images, labels))
  data = data.batch(batch_size, drop_remainder=True).prefetch(2)
  units = {'classifier_units': [8], 'hidden_units': [8]} if FLAGS.smoke else {}
  with strategy.scope():
    model = tfp_rb.models.SemiSupervisedVAE(**units)
    model.compile(keras.optimizers.Adam(1e-3), jit_compile=True)
  clock = Clock()
  tfp_rb.models.distributed_fit(
    model, data, epochs=1 + FLAGS.epochs, callbacks=[clock], verbose=0
  )
  print(json.dumps(clock.seconds[1:]), flush=True)


if __name__ == '__main__':
  flags.DEFINE_list('batch_sizes', ['64', '512'], 'Images of all workers.')
  flags.DEFINE_integer('num_images', 45_000, 'Images of an epoch.')
  flags.DEFINE_integer('epochs', 3, 'Measured epochs of a run.')
  flags.DEFINE_integer('rounds', 3, 'Runs of each row.')
  flags.DEFINE_integer('timeout', 1800, 'Seconds that a run may take.')
  flags.DEFINE_integer('core', None, 'The core of a worker; set by the script.')
  flags.DEFINE_bool('smoke', False, 'A small model.')
  flags.DEFINE_string('output_dir', 'outputs/workers', 'Where the CSV goes.')
  app.run(main)
