# SPDX-License-Identifier: Apache-2.0
"""Trains models in runs that can be stopped and resumed.

The experiments on MNIST use this module. A run is one method with one seed. Its
folder `<output_dir>/<method>/<seed>` contains `log.csv` with a row for each
epoch, `best.keras` and `last.keras`, `backup` to resume from, and
`tensorboard`. All files except those of TensorBoard have digests. If a file
differs from what was written, the script repairs it from the other files, or
refuses to continue the run.
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
  'Starts a run again if it cannot be resumed because files are missing or '
  'damaged. Its files are moved to a subfolder `replaced-1`, not deleted. '
  'Runs that can be resumed are resumed.'
)
_ADVICE = (
  'Restore the file from a copy; or pass `--restart`, which moves the files to '
  'a subfolder `replaced-1` and starts again; or pass another `--output_dir`.'
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
  """Writes a CSV file with the metrics and the training time of each epoch."""

  def __init__(self, path, rows, source):
    super().__init__()
    self.path, self.rows, self.source = path, list(rows), source

  def on_epoch_begin(self, epoch, logs=None):
    self.start = time.perf_counter()
    self.seconds = None

  def on_test_begin(self, logs=None):
    # The time of the evaluation does not count.
    self.seconds = time.perf_counter() - self.start

  def on_epoch_end(self, epoch, logs=None):
    row = {**logs, 'seconds': f'{self.seconds:.3f}', 'data': self.source}
    self.rows.append({'epoch': epoch, **dict(sorted(row.items()))})
    write_rows(self.path, self.rows)


def train(
  model, data_from, steps, validation_data, folder, epochs, monitor, source,
  restart=False, callbacks=(),
):  # fmt: skip
  """Trains a model, or resumes a run that was stopped.

  After the call the model has the weights of the last epoch.

  Args:
    model: A compiled `keras.Model` with its starting weights.
    data_from: Callable that maps the number of an epoch to the data from this
      epoch on.
    steps: Pair of the number of optimizer steps per epoch, and the number of
      steps that run in one call.
    validation_data: `tf.data.Dataset`.
    folder: `pathlib.Path` of the run.
    epochs: Python `int`, the total number of epochs.
    monitor: Name of the metric that `best.keras` minimises.
    source: Python `str`, a description of the data.
    restart: Python `bool`, whether to start again if the run cannot be resumed.
    callbacks: Further Keras callbacks. Values that they add to `logs` are
      written to the log.

  Returns:
    log: Dictionary of the columns of the log, with one value per epoch.
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
        # The backup comes last, when all other files of an epoch exist.
        checkpoints.Backup(folder / 'backup'),
      ]
      with _room_for_run(model, folder):
        model.fit(
          data_from(done),
          initial_epoch=done,
          epochs=epochs,
          steps_per_epoch=num_steps // per_call,
          validation_data=validation_data,
          shuffle=False,  # The data are shuffled already.
          # A terminal shows a progress bar, a file gets one line per epoch.
          verbose=1 if sys.stdout.isatty() else 2,
          callbacks=callbacks,
        )
    return read_log(log)


@contextlib.contextmanager
def _room_for_run(model, folder):
  """Raises an error that says how much space a run needs if the disk is full.

  It checks this in advance, and also explains the error of TensorBoard if the
  disk fills up during training.
  """
  needed = checkpoints.bytes_of_run(model, folder)
  kept_files.require_room(folder / 'backup', needed)
  try:
    yield
  except tf.errors.ResourceExhaustedError as error:
    reason = os.strerror(errno.ENOSPC)
    if reason not in str(error):  # The memory is exhausted, not the disk.
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
    restart: Python `bool`, whether to start again if the run cannot be resumed.

  Returns:
    epochs: Python `int`, the number of epochs that are finished and logged.

  Raises:
    Refused: The run cannot be resumed, and `restart` is false.
  """
  variables = checkpoints.variables_of(model)
  # Loading may fail halfway. Without `restart` such a failure ends the program.
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
  """Loads the newest undamaged backup, and returns its number of epochs."""
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
    reasons.append(f'the run continues from the backup of epoch {epochs}')
  if epochs is None:
    # The first backup is written after the first row of the log.
    reasons.append(f'the first epoch of {folder} is repeated')
  if reasons:
    print(f'{"; ".join(reasons)}.')
  return epochs or 0


def _load(model, folder, name):
  """Loads the weights of a backup, and returns their number of steps."""
  problem = ''
  try:
    model.load_weights(folder / name)
  except (OSError, KeyError, ValueError, RuntimeError) as error:
    problem = str(error).splitlines()[0]
  if problem:
    # Keras leaves the file open. If the garbage collector closes it at another
    # time, for example while a file is written, h5py crashes.
    gc.collect()
    _refuse(folder, f'`{name}` belongs to another model: {problem}')
  return int(model.optimizer.iterations)


def repair(model, folder, epochs, monitor):
  """Writes missing or damaged `.keras` files again, from the backup."""
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
    # If the best epoch is going to be repeated, it writes the file again.
  problem = kept_files.problem_of(last)
  if problem:
    checkpoints.save(model, last)
    print(f'`last.keras` {problem}; it is written again from the backup.')


def _refuse(folder, reason):
  """Raises an error that lists the files of the run and their state."""
  there = []
  for path in sorted(folder.rglob('*')):
    name = path.relative_to(folder)
    if path.suffix in ('.csv', '.h5', '.keras') and len(name.parts) < 3:
      # The list leaves out the reasons, and what the user may do about them.
      problem = kept_files.problem_of(path).split(' (')[0].split(':')[0]
      there.append(f'{name} ({problem or "is whole"})')
  raise kept_files.Refused(
    f'The run in {folder} cannot be resumed: {reason}. In the folder: '
    f'{", ".join(there) or "nothing"}. {_ADVICE}'
  )


def start_of(path, about, evaluate, restart=False):
  """Returns the settings and starting metrics that the runs of a folder share.

  Args:
    path: `pathlib.Path` of a JSON file, which the first call writes.
    about: Dictionary with the `source` of the data, and settings.
    evaluate: Callable without arguments that returns the metrics before
      training.
    restart: Python `bool`, whether to start again if the file is damaged.

  Returns:
    start: Dictionary of `about` and the metrics.
  """
  problem = kept_files.problem_of(path)
  if problem and has_runs(path.parent):
    if not restart:
      raise kept_files.Refused(
        f'`{path}` contains the settings that the runs in its folder share, '
        f'but it {problem}. {_ADVICE}'
      )
    kept_files.set_aside(path.parent)
  if problem:
    path.parent.mkdir(parents=True, exist_ok=True)
    kept_files.write(path, json.dumps({**evaluate(), **about}) + '\n')
  start = json.loads(path.read_text())
  for name, value in about.items():
    if start.get(name, value) != value:
      raise kept_files.Refused(
        'All runs in `--output_dir` must have the same settings, but the runs '
        f'in {path.parent} have {name} {start[name]!r}; got {value!r}. Pass '
        'another folder.'
      )
  return start


def has_runs(folder):
  """Returns whether a folder has files that depend on the start of the runs."""
  patterns = ('*/*/log.csv', 'tuning/*/*/log.csv', 'paths.csv')
  return any(path for p in patterns for path in folder.glob(p))


def rows_of(path):
  """Returns the rows of a log as dictionaries, without an unfinished row."""
  if not path.exists():
    return []
  text = path.read_text()
  whole = text[: text.rfind('\n') + 1].splitlines()
  return [r for r in csv.DictReader(whole) if None not in r.values()]


def write_rows(path, rows):
  """Writes a CSV file from dictionaries that have the same keys."""
  file = io.StringIO(newline='')
  writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  kept_files.write(path, file.getvalue())


def finished_epochs(path):
  rows = rows_of(path)
  return int(rows[-1]['epoch']) + 1 if rows else 0


def read_log(path):
  """Returns `{column: array}` with a value per epoch, for numeric columns."""
  rows = rows_of(path)
  columns = [name for name in rows[0] if name != 'data']
  return {c: np.array([float(row[c]) for row in rows]) for c in columns}
