# SPDX-License-Identifier: Apache-2.0
"""Peak memory of a process that trains the autoencoder with hard attention.

The script runs `examples/paper/moving_mnist.py` for an epoch of every method,
each in its own process: loading MNIST, compilation, training, evaluation,
checkpoints and figures. The script sets `MALLOC_ARENA_MAX=1`, unless it is set
already: on Linux all threads then share one heap, which saves 70 MB.

  python -m examples.benchmarks.moving_memory

What the kernel says of a process counts the memory of who started it, which is
why TensorFlow is not imported here. Not for Windows.
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
  """Of a process that trains this method for an epoch: peak, and its data."""
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
      raise RuntimeError(f'{method} failed:\n{text[-2000:]}')
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
  flags.DEFINE_list('methods', list(METHODS), f'Of {list(METHODS)}.')
  flags.DEFINE_bool('smoke', False, 'A small model and few images.')
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_times', 'Where the CSV file goes.'
  )
  app.run(main)
