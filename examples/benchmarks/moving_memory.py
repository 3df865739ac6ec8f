# SPDX-License-Identifier: Apache-2.0
"""Peak memory of a process that trains the autoencoder with hard attention.

`examples/moving_mnist.py` itself, an epoch of every method in a process of its
own: loading MNIST, compilation, training, evaluation, checkpoints and figures.

  python examples/benchmarks/moving_memory.py

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
SCRIPT = pathlib.Path(__file__).resolve().parents[1] / 'moving_mnist.py'
METHODS = (
  'RB-REINFORCE+', 'REINFORCE+', 'RELAX', 'NVIL', 'Gumbel', 'RB-leave-one-out',
  'pooled=6',
)  # fmt: skip
MOST_MEGABYTES = 1.5 * 2**30 / 1e6


def peak_megabytes(method, smoke=False):
  """Of a process that trains this method for an epoch: peak, and its data."""
  with tempfile.TemporaryDirectory() as folder:
    command = [
      sys.executable, str(SCRIPT), f'--methods={method}', '--num_seeds=1',
      '--epochs=1', '--as_published', f'--output_dir={folder}',
    ]  # fmt: skip
    printed = pathlib.Path(folder, 'printed')
    with printed.open('w') as file:
      process = subprocess.Popen(
        [*command, '--smoke'] if smoke else command, stdout=file, stderr=file
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
