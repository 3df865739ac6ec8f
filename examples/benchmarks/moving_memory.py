"""Peak memory of a process that trains the autoencoder with hard attention.

Every method of `examples/moving_mnist.py` in a process of its own, as the
example trains it: 64 digits a step, compiled, an epoch and its evaluation. Then
once more with the checkpoints of a run.

  python examples/benchmarks/moving_memory.py
"""

import csv
import pathlib
import re
import resource
import subprocess
import sys
import tempfile

from absl import app, flags
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import moving_mnist as experiment
from tfp_rb import datasets

FLAGS = flags.FLAGS
MOST_MEGABYTES = 1500.0


def peak_of_this_process():
  """Its most megabytes so far, of a million bytes."""
  status = pathlib.Path('/proc/self/status')
  if status.exists():  # `getrusage` counts who started the process, too
    kibibytes = int(re.search(r'VmHWM:\s+(\d+) kB', status.read_text())[1])
    return kibibytes * 1024 / 1e6
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS


def train(method, smoke):
  """Prints the peak after an epoch, then with checkpoints."""
  experiment.spare_memory()  # as the script does
  settings = {'frame': 36, 'channels': 2, 'jit_compile': False} if smoke else {}
  mnist = datasets.load_mnist('embedded')
  num_images = 128 if smoke else 6000
  digits, _, test_digits = experiment.split(mnist, num_images, num_images // 3)
  test_data = experiment.evaluation_data(test_digits)
  model = experiment.make_model(method, 0, entropy_weight=64.0, **settings)
  model.fit(
    experiment.training_data(digits, 0, 0),
    steps_per_epoch=num_images // experiment.BATCH_SIZE,
    validation_data=test_data,
    shuffle=False,  # the data are
    verbose=0,
  )
  peaks = [peak_of_this_process()]
  with tempfile.TemporaryDirectory() as folder:
    experiment.run(
      model, 0, digits, test_data, pathlib.Path(folder), 1, mnist.source
    )
  print(*peaks, peak_of_this_process())


def peak_megabytes(method, smoke=False):
  """Of a process that trains this method: both peaks."""
  command = [sys.executable, __file__, f'--only={method}', f'--smoke={smoke}']
  result = subprocess.run(command, capture_output=True, text=True)
  if result.returncode:
    raise RuntimeError(f'{method} failed:\n{result.stderr[-2000:]}')
  return tuple(map(float, result.stdout.split()[-2:]))


def main(argv):
  del argv
  if FLAGS.only:
    train(FLAGS.only, FLAGS.smoke)
    return
  tf.get_logger().setLevel('ERROR')
  folder = pathlib.Path(FLAGS.output_dir)
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / 'memory.csv').open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(['method', 'megabytes', 'with_checkpoints'])
    for method in FLAGS.methods:
      peak, with_checkpoints = peak_megabytes(method, FLAGS.smoke)
      writer.writerow([method, f'{peak:.0f}', f'{with_checkpoints:.0f}'])
      file.flush()
      verdict = 'PASS' if with_checkpoints < MOST_MEGABYTES else 'MISSED'
      print(
        f'{verdict:7s}{method:18s}{peak:7.0f} MB, with checkpoints '
        f'{with_checkpoints:.0f} MB',
        flush=True,
      )


if __name__ == '__main__':
  names = list(experiment.METHODS)
  flags.DEFINE_list('methods', names, f'Of {names}.')
  flags.DEFINE_string('only', None, 'Train this one, print its peaks, stop.')
  flags.DEFINE_bool('smoke', False, 'A small model.')
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_times', 'Where the CSV file goes.'
  )
  app.run(main)
