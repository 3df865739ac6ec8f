# SPDX-License-Identifier: Apache-2.0
"""What the experiments on MNIST share: runs that resume.

A run is a method and a seed, in the folder `<output_dir>/<method>/<seed>`:
`log.csv` with a row for each epoch, `best.keras` and `last.keras`, `backup` to
resume from, and `tensorboard`. All but the last have digests, and a run that
differs from what was written is refused, or repaired from what is left.
"""

import contextlib
import csv
import errno
import gc
import io
import json
import os
import sys
import time

from absl import flags
import keras
import numpy as np
import tensorflow as tf

from examples.shared import checkpoints, kept_files

RESTART_HELP = (
  'Begin again where files are missing or damaged so that a run cannot be '
  'resumed. What is there is moved to a subfolder `replaced-1`, not deleted. '
  'Runs that can be resumed are resumed.'
)
_ADVICE = (
  'Restore the file from a copy; or begin again with `--restart`, which moves '
  'the files to a subfolder `replaced-1`; or pass another `--output_dir`.'
)


def methods_of_flags(demo):
  """Returns the names of the methods that the flags of a script name.

  Args:
    demo: Names of the methods of `--demo`.

  Returns:
    methods: List of names. `--k` and `--budget` replace the default methods.
  """
  given = flags.FLAGS
  others = [f'k={k}' for k in given.k]
  others += [f'budget={n}' for n in given.budget]
  named = demo if given.demo else given.methods
  if others and not given['methods'].present:
    named = ()
  return [*named, *others]


class Log(keras.callbacks.Callback):
  """A CSV file that names its data, with seconds of training by epoch."""

  def __init__(self, path, rows, source):
    super().__init__()
    self.path, self.rows, self.source = path, list(rows), source

  def on_epoch_begin(self, epoch, logs=None):
    self.start = time.perf_counter()
    self.seconds = None

  def on_test_begin(self, logs=None):  # evaluation does not count
    self.seconds = time.perf_counter() - self.start

  def on_epoch_end(self, epoch, logs=None):
    row = {**logs, 'seconds': f'{self.seconds:.3f}', 'data': self.source}
    self.rows.append({'epoch': epoch, **dict(sorted(row.items()))})
    write_rows(self.path, self.rows)


def train(
  model, data_from, steps, validation_data, folder, epochs, monitor, source,
  restart=False, callbacks=(),
):  # fmt: skip
  """Trains a model, or goes on where a run was stopped.

  Args:
    model: A compiled `keras.Model`, at its starting weights.
    data_from: Callable, the number of an epoch to the data from there on.
    steps: Steps of the optimizer in an epoch, and how many in one call.
    validation_data: `tf.data.Dataset`.
    folder: `pathlib.Path` of the run.
    epochs: Python `int`, in all.
    monitor: Name of the metric that `best.keras` minimises.
    source: Python `str`, what the data are.
    restart: Python `bool`, whether to begin again if the run cannot be resumed.
    callbacks: Further Keras callbacks. What they add to `logs` is logged.

  Returns:
    log: The columns of the log by epoch. The model has its last weights.
  """
  log = folder / 'log.csv'
  num_steps, per_call = steps
  with kept_files.lock(folder / 'run.lock'):
    done = resume(model, folder, num_steps, monitor, restart)
    if done:
      print(f'{done} epochs are done already.')
    if done < epochs:
      before = rows_of(log)[:done]
      callbacks = [
        *callbacks,
        Log(log, before, source),
        keras.callbacks.TensorBoard(
          str(folder / 'tensorboard'), write_graph=False
        ),
        checkpoints.Checkpoints(folder, monitor, least(before, monitor)),
        # The last one: what it counts as done has been written.
        checkpoints.Backup(folder / 'backup'),
      ]
      with _room_for_run(model, folder):
        model.fit(
          data_from(done),
          initial_epoch=done,
          epochs=epochs,
          steps_per_epoch=num_steps // per_call,
          validation_data=validation_data,
          shuffle=False,  # the data are
          # A bar that moves if someone looks on, else a line for each epoch.
          verbose=1 if sys.stdout.isatty() else 2,
          callbacks=callbacks,
        )
    return read_log(log)


@contextlib.contextmanager
def _room_for_run(model, folder):
  """Says how much a run needs if the disk is full, or TensorBoard finds so."""
  needed = checkpoints.bytes_of_run(model, folder)
  kept_files.require_room(folder / 'backup', needed)
  try:
    yield
  except tf.errors.ResourceExhaustedError as error:
    reason = os.strerror(errno.ENOSPC)
    if reason not in str(error):  # but memory
      raise
    raise kept_files.no_room(folder / 'tensorboard', needed, reason) from error


def least(rows, column):
  return min((float(row[column]) for row in rows), default=np.inf)


def resume(model, folder, steps_per_epoch, monitor, restart=False):
  """Loads the backup of a run, if there is one.

  Args:
    model: The compiled model; its weights become those of the backup.
    folder: `pathlib.Path` of the run.
    steps_per_epoch: Python `int`.
    monitor: Name of the metric that `best.keras` minimises.
    restart: Python `bool`, whether to begin again if the run cannot be resumed.

  Returns:
    epochs: Python `int`, those that are done, and logged.

  Raises:
    Refused: The run cannot be resumed, and `restart` is false.
  """
  variables = checkpoints.variables_of(model)
  # Loading may fail halfway; without `restart` that ends the program.
  start = [v.numpy() for v in variables] if restart else []
  try:
    epochs = load_backup(model, folder, steps_per_epoch)
    repair(model, folder, epochs, monitor)
    return epochs
  except kept_files.Refused as error:
    if not restart:
      raise
    print(error)
  kept_files.set_aside(folder)
  for variable, value in zip(variables, start, strict=True):
    variable.assign(value)
  return 0


def load_backup(model, folder, steps_per_epoch):
  """Loads the newest backup that is whole; returns the number of its epochs."""
  log, backup = folder / 'log.csv', folder / 'backup'
  keras_files = folder / 'last.keras', folder / 'best.keras'
  backups = [backup / name for name in checkpoints.BACKUPS]
  backups = [path for path in backups if kept_files.is_known(path)]
  known = backups or any(kept_files.is_known(path) for path in keras_files)
  if not known and not log.exists():
    return 0
  epochs, reasons = None, []
  for path in backups:
    name, problem = path.relative_to(folder), kept_files.problem_of(path)
    if not problem:
      epochs = _load(model, folder, name) // steps_per_epoch
      break
    reasons.append(f'`{name}` {problem}')
  there = f', while the backup has {epochs} epochs' if epochs else ''
  problem = kept_files.problem_of(log)
  if problem:
    _refuse(folder, f'`log.csv` {problem}{there}')
  logged = [int(row['epoch']) for row in rows_of(log)]
  if logged != list(range(len(logged))) or len(logged) < (epochs or 0):
    _refuse(folder, f'`log.csv` has the epochs {logged}{there}')
  if epochs is None and len(logged) > 1:
    _refuse(folder, '; '.join(reasons) or '`backup` is missing')
  if reasons and epochs:
    reasons.append(f'the run goes on from the backup of epoch {epochs}')
  if epochs is None:
    # The first backup is written after the first row of the log.
    reasons.append(f'the first epoch of {folder} is repeated')
  if reasons:
    print(f'{"; ".join(reasons)}.')
  return epochs or 0


def _load(model, folder, name):
  """Loads weights; returns the number of steps, which is one of them."""
  problem = ''
  try:
    model.load_weights(folder / name)
  except (OSError, KeyError, ValueError, RuntimeError) as error:
    problem = str(error).splitlines()[0]
  if problem:
    # Keras leaves the file open. Closed by the garbage collector at another
    # time, for example while a file is written, it makes h5py crash.
    gc.collect()
    _refuse(folder, f'`{name}` is of another model: {problem}')
  return int(model.optimizer.iterations)


def repair(model, folder, epochs, monitor):
  """Writes files anew that the weights of the backup can replace."""
  if not epochs:
    return
  last, best = folder / 'last.keras', folder / 'best.keras'
  rows = rows_of(folder / 'log.csv')
  losses = [float(row[monitor]) for row in rows]
  problem = kept_files.problem_of(best)
  if problem and np.any(np.isfinite(losses)):
    of_epoch = int(np.nanargmin(losses))
    if of_epoch < epochs - 1:
      _refuse(
        folder, f'`best.keras`, written after epoch {of_epoch + 1}, {problem}'
      )
    if of_epoch == epochs - 1:
      checkpoints.save(model, best)
      print(f'`best.keras` {problem}; it is written again from the backup.')
    # An epoch that is going to be repeated writes it again.
  problem = kept_files.problem_of(last)
  if problem:
    checkpoints.save(model, last)
    print(f'`last.keras` {problem}; it is written again from the backup.')


def _refuse(folder, reason):
  """Raises an error that says what is there."""
  there = []
  for path in sorted(folder.rglob('*')):
    name = path.relative_to(folder)
    if path.suffix in ('.csv', '.h5', '.keras') and len(name.parts) < 3:
      # Without what the user may do about it, and the reason.
      problem = kept_files.problem_of(path).split(' (')[0].split(':')[0]
      there.append(f'{name} ({problem or "is whole"})')
  raise kept_files.Refused(
    f'The run in {folder} cannot be resumed: {reason}. In the folder: '
    f'{", ".join(there) or "nothing"}. {_ADVICE}'
  )


def start_of(path, about, evaluate, restart=False):
  """What the runs of a folder have in common: how they start, and with what.

  Args:
    path: `pathlib.Path` of a JSON file, written the first time.
    about: Dictionary, `source` of the data and settings.
    evaluate: Callable without arguments, the metrics before training.
    restart: Python `bool`, whether to begin again if the file is damaged.

  Returns:
    start: Dictionary of `about` and the metrics.
  """
  problem = kept_files.problem_of(path)
  if problem and has_runs(path.parent):
    if not restart:
      raise kept_files.Refused(
        f'`{path}` says what the runs in its folder have in common, but it '
        f'{problem}. {_ADVICE}'
      )
    kept_files.set_aside(path.parent)
  if problem:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept_files.write(path, json.dumps({**evaluate(), **about}) + '\n')
  start = json.loads(path.read_text())
  for name, value in about.items():
    if start.get(name, value) != value:
      raise kept_files.Refused(
        '`--output_dir` must have runs of one kind, but those in '
        f'{path.parent} have {name} {start[name]!r}, and now it is {value!r}. '
        'Pass another folder.'
      )
  return start


def has_runs(folder):
  """Returns whether there is anything that depends on how runs start."""
  patterns = ('*/*/log.csv', 'tuning/*/*/log.csv', 'paths.csv')
  return any(path for p in patterns for path in folder.glob(p))


def rows_of(path):
  """The rows of a log, as dictionaries; without one cut off in the middle."""
  if not path.exists():
    return []
  text = path.read_text()
  whole = text[: text.rfind('\n') + 1].splitlines()
  return [r for r in csv.DictReader(whole) if None not in r.values()]


def write_rows(path, rows):
  """Writes dictionaries with the same keys as a CSV file."""
  file = io.StringIO(newline='')
  writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  kept_files.write(path, file.getvalue())


def finished_epochs(path):
  rows = rows_of(path)
  return int(rows[-1]['epoch']) + 1 if rows else 0


def read_log(path):
  """`{column: array by epoch}` of the columns of numbers."""
  rows = rows_of(path)
  columns = [name for name in rows[0] if name != 'data']
  return {c: np.array([float(row[c]) for row in rows]) for c in columns}
