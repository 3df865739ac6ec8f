"""Peak memory of a process that trains the autoencoder with hard attention.

Every method of `examples/moving_mnist.py` in a process of its own, as the
example trains it: 64 digits a step, compiled.

  python examples/benchmarks/moving_memory.py
"""

import csv
import pathlib
import re
import resource
import subprocess
import sys

from absl import app, flags
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import moving_mnist as experiment
from tfp_rb import datasets

FLAGS = flags.FLAGS
MOST_MEGABYTES = 1536.0


def peak_of_this_process():
  """Its most megabytes so far."""
  status = pathlib.Path('/proc/self/status')
  if status.exists():  # `getrusage` counts who started the process, too
    return int(re.search(r'VmHWM:\s+(\d+) kB', status.read_text())[1]) / 2**10
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def train(method, num_steps, smoke):
  """Some steps; the last line that is printed is the peak."""
  settings = {'frame': 36, 'channels': 2, 'jit_compile': False} if smoke else {}
  images = datasets.load_mnist('embedded').train_images
  digits = images[: num_steps * experiment.BATCH_SIZE]
  model = experiment.make_model(method, 0, entropy_weight=64.0, **settings)
  model.fit(
    experiment.training_data(digits, 0, 0),
    steps_per_epoch=num_steps,
    shuffle=False,  # the data are
    verbose=0,
  )
  print(peak_of_this_process())


def peak_megabytes(method, num_steps, smoke=False):
  """Of a process that trains this method."""
  command = [sys.executable, __file__, f'--only={method}']
  command += [f'--train_steps={num_steps}', f'--smoke={smoke}']
  result = subprocess.run(command, capture_output=True, text=True)
  if result.returncode:
    raise RuntimeError(f'{method} failed:\n{result.stderr[-2000:]}')
  return float(result.stdout.split()[-1])


def main(argv):
  del argv
  if FLAGS.only:
    train(FLAGS.only, FLAGS.train_steps, FLAGS.smoke)
    return
  tf.get_logger().setLevel('ERROR')
  rows = [['method', 'megabytes', 'steps']]
  for method in FLAGS.methods:
    megabytes = peak_megabytes(method, FLAGS.train_steps, FLAGS.smoke)
    rows.append([method, f'{megabytes:.0f}', FLAGS.train_steps])
    verdict = 'PASS' if megabytes < MOST_MEGABYTES else 'MISSED'
    print(f'{verdict:7s}{method:18s}{megabytes:7.0f} MB', flush=True)
  folder = pathlib.Path(FLAGS.output_dir)
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / 'memory.csv').open('w', newline='') as file:
    csv.writer(file).writerows(rows)


if __name__ == '__main__':
  names = list(experiment.METHODS)
  flags.DEFINE_list('methods', names, f'Of {names}.')
  flags.DEFINE_integer('train_steps', 100, 'Of each method.')
  flags.DEFINE_string('only', None, 'Train this one, print its peak, stop.')
  flags.DEFINE_bool('smoke', False, 'A small model.')
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_times', 'Where the CSV file goes.'
  )
  app.run(main)
