# SPDX-License-Identifier: Apache-2.0
"""Measures seconds per epoch with one and with two workers of one core each.

  python -m examples.benchmarks.workers

The script trains the semi-supervised model with `distributed_fit`, with the
same global batch in every row. The row `none` is one process without a
strategy, in which the whole step is compiled. The row `1` is a
`MultiWorkerMirroredStrategy` with one worker, which compiles only the gradient.
The row `2` has two workers on this machine. The difference between `2` and half
of `1` is the cost of exchanging the gradients. The pixels are random, because
the time does not depend on them.

The script writes `workers.csv` and takes about 10 minutes. Run nothing else on
the machine in the meantime.
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
    raise app.UsageError(
      'Two workers with one core each require at least 2 cores; this machine '
      f'has {number}.'
    )
  rounds = {}
  for i in range(FLAGS.rounds):
    for batch_size in map(int, FLAGS.batch_sizes):
      # The order changes in each round, because a run may affect the next one.
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
  print(
    f'\nSeconds per epoch of {FLAGS.num_images} images, with one core per '
    'worker:'
  )
  for row in table:
    print('  '.join(f'{key} {value}' for key, value in row.items()))


def rows_of(rounds):
  """Returns rows with medians over all epochs except the first of each run."""
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
  """Makes one run in new processes; returns the seconds of its epochs."""
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
    raise RuntimeError(f'A worker has failed. It printed: {printed}')
  return json.loads(printed[0].splitlines()[-1])


def train():
  """Trains in one process, and prints the seconds of its epochs."""
  # This must come before TensorFlow counts the cores.
  os.sched_setaffinity(0, {FLAGS.core})
  import keras
  import numpy as np
  import tensorflow as tf

  strategy = tf.distribute.get_strategy()
  if 'TF_CONFIG' in os.environ:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
  import tfp_rb

  class Clock(keras.callbacks.Callback):
    """Keeps the seconds of each epoch; the first one includes compilation."""

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
  flags.DEFINE_list(
    'batch_sizes', ['64', '512'], 'Batch sizes, summed over all workers.'
  )
  flags.DEFINE_integer('num_images', 45_000, 'Number of images per epoch.')
  flags.DEFINE_integer('epochs', 3, 'Number of measured epochs per run.')
  flags.DEFINE_integer('rounds', 3, 'Number of runs of each row.')
  flags.DEFINE_integer('timeout', 1800, 'Seconds that a run may take.')
  flags.DEFINE_integer(
    'core', None, 'The core of a worker; only the script itself sets it.'
  )
  flags.DEFINE_bool('smoke', False, 'Uses a small model.')
  flags.DEFINE_string(
    'output_dir', 'outputs/workers', 'Folder for the CSV file.'
  )
  app.run(main)
