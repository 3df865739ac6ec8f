# SPDX-License-Identifier: Apache-2.0
"""Measures the peak memory of training the autoencoder with hard attention.

The script runs `examples/paper/moving_mnist.py` for one epoch of every method,
each in its own process. The peak includes loading MNIST, compilation, training,
evaluation, checkpoints and figures. Unless `MALLOC_ARENA_MAX` is already set,
the script sets it to 1: on Linux all threads then share one heap, which saves
70 MB.

  python -m examples.benchmarks.moving_memory

The kernel counts the memory of the parent process in the peak of its child, so
this script does not import TensorFlow. Windows is not supported.
"""

import csv
import os
import pathlib
import subprocess
import sys
import tempfile

from absl import app, flags

FLAGS = flags.FLAGS
ROOT = pathlib.Path(__file__).resolve().parents[2]
METHODS = (
  'RB-REINFORCE+', 'REINFORCE+', 'RELAX', 'NVIL', 'Gumbel', 'RB-leave-one-out',
  'pooled=6',
)  # fmt: skip
MOST_MEGABYTES = 1.5 * 2**30 / 1e6


def peak_megabytes(method, smoke=False):
  """Trains a method for one epoch; returns the peak memory and the data."""
  with tempfile.TemporaryDirectory() as folder:
    command = [
      sys.executable, '-m', 'examples.paper.moving_mnist',
      f'--methods={method}', '--num_seeds=1', '--epochs=1', '--as_published',
      f'--output_dir={folder}',
    ]  # fmt: skip
    printed = pathlib.Path(folder, 'printed')
    with printed.open('w') as file:
      process = subprocess.Popen(
        [*command, '--smoke'] if smoke else command,
        stdout=file,
        stderr=file,
        cwd=ROOT,
        env={'MALLOC_ARENA_MAX': '1', **os.environ},
      )
      _, status, usage = os.wait4(process.pid, 0)
      process.returncode = os.waitstatus_to_exitcode(status)
    text = printed.read_text()
    if process.returncode:
      raise RuntimeError(f'{method} failed. It printed:\n{text[-2000:]}')
  unit = 1 if sys.platform == 'darwin' else 1024
  (data,) = (x for x in text.splitlines() if x.startswith('Data: '))
  return usage.ru_maxrss * unit / 1e6, data.removeprefix('Data: ')


def main(argv):
  del argv
  folder = pathlib.Path(FLAGS.output_dir)
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / 'memory.csv').open('w', newline='') as file:
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(['method', 'megabytes', 'data'])
    for method in FLAGS.methods:
      peak, data = peak_megabytes(method, FLAGS.smoke)
      writer.writerow([method, f'{peak:.0f}', data])
      file.flush()
      verdict = 'PASS' if peak < MOST_MEGABYTES else 'MISSED'
      print(f'{verdict:7s}{method:18s}{peak:7.0f} MB', flush=True)


if __name__ == '__main__':
  flags.DEFINE_list(
    'methods', list(METHODS), f'Methods to measure, among {list(METHODS)}.'
  )
  flags.DEFINE_bool('smoke', False, 'Uses a small model and few images.')
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_times', 'Folder for the CSV file.'
  )
  app.run(main)
