# SPDX-License-Identifier: Apache-2.0
"""Trains, kills the process, damages files and restarts, over and over.

  make soak MINUTES=60 SEED=0

Each trial trains `examples/paper/semisupervised_mnist.py` in its own folder, on
the subset of MNIST that the package contains. The process is killed (`kill -9`)
at random moments, files are damaged at random (bytes are flipped, or the file
is truncated or deleted), a second process is started in the same folder, and
the same command runs again. Two outcomes are allowed: either the files equal
those of an uninterrupted run, or the script refuses to run and names the
reason, and `--restart` leads to equal files. Any other outcome is a failure;
its folder is kept, and the exit status is 1.
"""

import argparse
import collections
import csv
import io
import json
import os
import pathlib
import random
import runpy
import shutil
import signal
import sys
import tempfile
import time
import traceback
import zipfile

import h5py
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
SCRIPT = 'examples.paper.semisupervised_mnist'
METHOD = 'RB-REINFORCE'
# At most this many starts of a trial may be killed; the next one runs to its
# end.
MOST_STARTS = 8
TIMEOUT = 300.0
RUN = pathlib.Path(METHOD) / '0'
TABLES = ('paths.csv', RUN / 'log.csv')
WEIGHTS = (
  'warm_start.npz', RUN / 'last.keras', RUN / 'best.keras',
  RUN / 'backup' / 'latest.weights.h5',
)  # fmt: skip
KEPT = ('.keras', '.h5', '.npz', '.csv', '.json', '')
TEXTS = ('warm_start.json', 'generated.csv')


class SoakError(Exception):
  """Raised when a trial ends in a way that is not allowed."""


class Process:
  """The script in a separate process.

  It is forked from this process, which has imported TensorFlow but has not used
  it. This makes a start several seconds faster.
  """

  def __init__(self, folder, epochs, *flags):
    self.output = folder.with_name(f'{folder.name}.{time.time_ns()}.txt')
    argv = [
      SCRIPT, '--smoke', '--source=embedded', f'--methods={METHOD}',
      f'--epochs={epochs}', '--num_seeds=1', '--warm_start_epochs=2',
      f'--output_dir={folder}', *flags,
    ]  # fmt: skip
    sys.stdout.flush()
    self.pid, self.status = os.fork(), None
    if self.pid == 0:
      self._run(argv)

  def _run(self, argv):
    status = 1
    try:
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
      file = os.open(self.output, os.O_WRONLY | os.O_CREAT, 0o644)
      os.dup2(file, 1)
      os.dup2(file, 2)
      sys.argv = argv
      sys.path.insert(0, str(ROOT))
      runpy.run_module(SCRIPT, run_name='__main__')
      status = 0
    except SystemExit as stop:
      status = stop.code or 0
    # Otherwise this process would continue as its parent does.
    except BaseException:
      traceback.print_exc()
    finally:
      sys.stdout.flush()
      sys.stderr.flush()
      os._exit(status)

  def is_running(self):
    if self.status is None:
      pid, status = os.waitpid(self.pid, os.WNOHANG)
      if pid:
        self.status = os.waitstatus_to_exitcode(status)
    return self.status is None

  def wait(self, until=lambda: False):
    """Waits for the end or for a condition; returns whether it still runs."""
    start = time.monotonic()
    while self.is_running() and not until():
      time.sleep(0.002)
      if time.monotonic() - start > TIMEOUT:
        self.kill()
        raise SoakError(f'did not end within {TIMEOUT} seconds')
    return self.is_running()

  def kill(self):
    if self.is_running():
      os.kill(self.pid, signal.SIGKILL)
      self.wait()

  def printed(self):
    return self.output.read_text(errors='replace')


def count_rows(path):
  return path.read_bytes().count(b'\n') - 1 if path.exists() else 0


def damage(rng, folder):
  """Damages a random file; returns what was done, or `None` without files."""
  files = [
    path
    for path in sorted(folder.rglob('*'))
    if path.is_file()
    # The script never reads these again: events of TensorBoard, figures, and
    # files that were set aside.
    and 'tensorboard' not in path.parts
    and path.suffix != '.png'
    and not any(part.startswith('replaced-') for part in path.parts)
  ]
  if not files:
    return None
  # Lock files and files left behind by a kill are damaged too, but less often.
  weights = [8 if path.suffix in KEPT else 1 for path in files]
  (path,) = rng.choices(files, weights)
  kind = rng.choice(['flip', 'truncate', 'delete'])
  content = bytearray(path.read_bytes())
  if kind == 'delete' or not content:
    path.unlink()
    return 'delete', path
  if kind == 'truncate':
    path.write_bytes(content[: rng.randrange(len(content))])
  else:
    for _ in range(rng.choice([1, 1, 8])):
      content[rng.randrange(len(content))] ^= rng.randrange(1, 256)
    path.write_bytes(content)
  return kind, path


def rows_without_seconds(path):
  with path.open(newline='') as file:
    rows = list(csv.DictReader(file))
  return [{**row, 'seconds': None} for row in rows]


def arrays_of(path):
  """Returns all arrays of a file of weights, by name."""
  if path.suffix == '.npz':
    with np.load(path) as file:
      return dict(file)
  if path.suffix == '.keras':
    with zipfile.ZipFile(path) as archive:
      source = io.BytesIO(archive.read('model.weights.h5'))
  else:
    source = path
  found = {}

  def visit(name, item):
    if isinstance(item, h5py.Dataset):
      found[name] = item[()]

  with h5py.File(source) as file:
    file.visititems(visit)
  return found


def differences(folder, reference):
  """Returns the names of files that differ from an uninterrupted run."""
  found = []
  for name in (*TABLES, *TEXTS, *WEIGHTS):
    ours, theirs = folder / name, reference / name
    if not ours.exists():
      equal = False
    elif name in TABLES:
      equal = rows_without_seconds(ours) == rows_without_seconds(theirs)
    elif name in TEXTS:
      equal = ours.read_text() == theirs.read_text()
    else:
      a, b = arrays_of(ours), arrays_of(theirs)
      equal = a.keys() == b.keys() and all(
        np.array_equal(a[key], b[key], equal_nan=a[key].dtype.kind == 'f')
        for key in a
      )
    if not equal:
      found.append(str(name))
  return found


class Soak:
  """Runs trials in a folder and records their actions and results."""

  def __init__(self, folder, seed, epochs):
    self.folder, self.epochs = folder, epochs
    self.rng = random.Random(seed)
    self.counts = collections.Counter()
    self.running = []

  def start(self, folder, *flags):
    process = Process(folder, self.epochs, *flags)
    self.running = [p for p in self.running if p.is_running()] + [process]
    self.counts['starts'] += 1
    return process

  def train_reference(self):
    self.reference = self.folder / 'reference'
    start = time.monotonic()
    process = self.start(self.reference)
    process.wait()
    self.seconds = time.monotonic() - start
    if process.status:
      raise SoakError(f'uninterrupted run: {process.printed()}')

  def let_run(self, process, folder):
    """Lets a process finish, or kills it at a random moment."""
    moment = self.rng.random()
    if moment < 0.3:
      end = time.monotonic() + self.rng.uniform(0.0, self.seconds)
      process.wait(lambda: time.monotonic() > end)
    elif moment < 0.8:
      # This kills the process soon after it wrote a row, while it writes other
      # files.
      rows = self.rng.randrange(1, self.epochs + 1)
      process.wait(lambda: count_rows(folder / RUN / 'log.csv') >= rows)
      end = time.monotonic() + self.rng.uniform(0.0, 0.4)
      process.wait(lambda: time.monotonic() > end)
    else:
      process.wait()
    if process.is_running():
      process.kill()
      self.counts['kills'] += 1

  def run_two(self, folder, damaged):
    """Starts a second process while the first one trains."""
    first = self.start(folder)
    lock = folder / RUN / 'run.lock'
    has_lock = lambda: lock.exists() and f' {first.pid} ' in lock.read_text()
    if not first.wait(has_lock):
      return first
    second = self.start(folder)
    second.wait()
    self.counts['second processes'] += 1
    if second.status and 'holds the lock' in second.printed():
      self.counts['second processes locked out'] += 1
    elif first.is_running() and 'Epoch ' in second.printed():
      raise SoakError(f'two processes train: {second.printed()}')
    elif second.status:
      self.check_refusal(second, damaged, ())
    return first

  def trial(self, folder):
    """Runs until the script has ended once, or raises a `SoakError`."""
    damaged, flags = [], ()
    # The last iteration leaves room for `--restart`.
    for i in range(MOST_STARTS + 2):
      if flags or i >= MOST_STARTS:
        process = self.start(folder, *flags)
        process.wait()
      elif self.rng.random() < 0.1:
        process = self.run_two(folder, damaged)
        self.let_run(process, folder)
      else:
        process = self.start(folder)
        self.let_run(process, folder)
      if process.status == 0:
        self.check_equal(folder, damaged, flags)
        if self.rng.random() < 0.4 or i >= MOST_STARTS:
          return
      elif process.status > 0:
        self.check_refusal(process, damaged, flags)
        flags = ('--restart',)
        continue  # without further damage
      flags = ()
      if self.rng.random() < 0.6:
        done = damage(self.rng, folder)
        if done:
          damaged.append(done)
          self.counts[f'damages: {done[0]}'] += 1

  def check_equal(self, folder, damaged, flags):
    different = differences(folder, self.reference)
    if different:
      raise SoakError(f'silent difference: {different} after {damaged}')
    how = ' after --restart' if flags else ' after damage' if damaged else ''
    self.counts[f'ended equal{how}'] += 1

  def check_refusal(self, process, damaged, flags):
    printed = process.printed()
    names = [path.name for _, path in damaged]
    # A file without an entry in `SHA256SUMS` is rejected, too.
    explained = any(name in printed for name in names) and not flags
    if 'Traceback' in printed or not explained:
      raise SoakError(f'status {process.status} after {damaged}: {printed}')
    self.counts['refused, damaged file named'] += 1

  def summary(self, minutes):
    lines = [f'{n:6d} {name}' for name, n in sorted(self.counts.items())]
    return '\n'.join([f'After {minutes:.1f} minutes:', *lines])


def soak(minutes, seed, epochs, folder):
  """Runs trials; returns the number of failures."""
  trials = Soak(folder, seed, epochs)
  begin = time.monotonic()
  print(f'Seed {seed}, {epochs} epochs, in {folder}', flush=True)

  def stop(*_):
    raise KeyboardInterrupt

  signal.signal(signal.SIGTERM, stop)
  try:
    trials.train_reference()
    number = 0
    while time.monotonic() - begin < 60.0 * minutes:
      number += 1
      place = folder / f'trial_{number}'
      try:
        trials.trial(place)
      except SoakError as error:
        trials.counts['FAILURES'] += 1
        print(f'FAILURE in {place}: {error}', flush=True)
      else:
        shutil.rmtree(place, ignore_errors=True)
        for path in folder.glob(f'{place.name}.*.txt'):
          path.unlink()
      trials.counts['trials'] += 1
      if number % 10 == 0:
        print(json.dumps(trials.counts), flush=True)
  except KeyboardInterrupt:
    print('Interrupted.')
  finally:
    for process in trials.running:
      process.kill()
    print(trials.summary((time.monotonic() - begin) / 60.0), flush=True)
  return trials.counts['FAILURES']


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--minutes', type=float, default=1.0)
  parser.add_argument('--seed', type=int, default=0)
  parser.add_argument('--epochs', type=int, default=5)
  arguments = parser.parse_args()
  # These are imported once, for all processes that are forked.
  import keras  # noqa: F401
  import matplotlib.pyplot  # noqa: F401

  import tfp_rb  # noqa: F401

  folder = pathlib.Path(tempfile.mkdtemp(prefix='soak_'))
  failures = soak(arguments.minutes, arguments.seed, arguments.epochs, folder)
  if not failures:
    shutil.rmtree(folder)
  sys.exit(failures > 0)


if __name__ == '__main__':
  main()
