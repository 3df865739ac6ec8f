"""What the experiments on MNIST share: runs that resume.

A run is a method and a seed, in the folder `<output_dir>/<method>/<seed>`:
`log.csv` with a row for each epoch, `best.keras` and `last.keras`, `backup` to
resume from, and `tensorboard`.
"""

import csv
import io
import json
import os
import shutil
import sys
import time

from absl import app
import keras
import numpy as np

import checkpoints


class Log(keras.callbacks.CSVLogger):
  """A CSV file that names its data, with seconds of training by epoch."""

  def __init__(self, path, source):
    super().__init__(str(path), append=True)
    self.source = source

  def on_epoch_begin(self, epoch, logs=None):
    self.start = time.perf_counter()
    self.seconds = None

  def on_test_begin(self, logs=None):  # evaluation does not count
    self.seconds = time.perf_counter() - self.start

  def on_epoch_end(self, epoch, logs=None):
    own = {'seconds': f'{self.seconds:.3f}', 'data': self.source}
    super().on_epoch_end(epoch, {**logs, **own})


def train(
  model, data_from, steps, validation_data, folder, epochs, monitor, source
):
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

  Returns:
    log: The columns of the log by epoch. The model has its last weights.
  """
  log = folder / 'log.csv'
  num_steps, per_call = steps
  done = resume(model, folder, num_steps)
  if done:
    print(f'{done} epochs are done already.')
  if done < epochs:
    folder.mkdir(parents=True, exist_ok=True)
    before = keep_rows(log, done)
    model.fit(
      data_from(done),
      epochs=epochs,
      steps_per_epoch=num_steps // per_call,
      validation_data=validation_data,
      shuffle=False,  # the data are
      # A bar that moves for someone who looks on, else a line for each epoch.
      verbose=1 if sys.stdout.isatty() else 2,
      callbacks=[
        Log(log, source),
        keras.callbacks.TensorBoard(
          str(folder / 'tensorboard'), write_graph=False
        ),
        checkpoints.Checkpoints(
          folder,
          monitor,
          min((float(row[monitor]) for row in before), default=np.inf),
        ),
        # The last one: what it counts as done has been logged.
        keras.callbacks.BackupAndRestore(
          str(folder / 'backup'),
          double_checkpoint=True,
          delete_checkpoint=False,
        ),
      ],
    )
  return read_log(log)


def resume(model, folder, steps_per_epoch):
  """Makes a backup whole that was stopped while it was written.

  `BackupAndRestore` writes the weights, then the number of epochs. The count
  of steps, which is one of the weights, tells what the number has to be.

  Args:
    model: The compiled model; its weights become those of the backup.
    folder: `pathlib.Path` of the run.
    steps_per_epoch: Python `int`.

  Returns:
    epochs: Python `int`, those that are done, and logged.
  """
  weights = folder / 'backup' / 'latest.weights.h5'
  metadata = folder / 'backup' / 'training_metadata.json'
  found = [weights, weights.with_name(weights.name + '.bkp')]
  found = [path for path in found if path.exists()]
  logged = [int(row['epoch']) for row in rows_of(folder / 'log.csv')]
  if not found:
    return 0
  variables = [
    *model.weights,
    *model.optimizer.variables,
    *model.estimator.variables,
    *(model.estimator_optimizer.variables if model.estimator_optimizer else ()),
  ]
  start = [v.numpy() for v in variables]
  reasons = []
  for path in found:
    whole = path.with_name('whole.weights.h5')  # Keras goes by the ending
    shutil.copyfile(path, whole)
    try:
      model.load_weights(whole)
    except (OSError, KeyError, ValueError, RuntimeError) as error:
      reasons.append(str(error).splitlines()[0])  # half written, perhaps
      continue
    epochs = int(model.optimizer.iterations) // steps_per_epoch
    if logged[:epochs] == list(range(epochs)):
      whole.replace(weights)
      write(metadata, json.dumps({'epoch': epochs, 'batch': 0}))
      return epochs
    reasons.append(f'it has {epochs} epochs, the log {len(logged)}')
  whole.unlink()
  if len(logged) > 1:  # a kill amid the first backup is no reason
    raise app.UsageError(
      f'The run in {folder} must have a backup that can be loaded, since '
      f'{len(logged)} epochs are logged, but: {"; ".join(reasons)}. Remove the '
      'folder to begin again, or pass another `--output_dir`.'
    )
  for path in (*found, metadata):
    path.unlink(missing_ok=True)
  for variable, value in zip(variables, start, strict=True):
    variable.assign(value)
  return 0


def write(path, text):
  """Writes a file. If it is stopped, the previous file remains."""
  unfinished = path.with_name(f'{path.name}.{os.getpid()}')
  unfinished.write_text(text)
  unfinished.replace(path)


def start_of(path, about, evaluate):
  """What the runs of a folder have in common: how they start, and with what.

  Args:
    path: `pathlib.Path` of a JSON file, written the first time.
    about: Dictionary, `source` of the data and settings.
    evaluate: Callable without arguments, the metrics before training.

  Returns:
    start: Dictionary of `about` and the metrics.
  """
  if not path.exists():
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, json.dumps({**evaluate(), **about}) + '\n')
  start = json.loads(path.read_text())
  for name, value in about.items():
    if start.get(name, value) != value:
      raise app.UsageError(
        '`--output_dir` must have runs of one kind, but those in '
        f'{path.parent} have {name} {start[name]!r}, and now it is {value!r}. '
        'Pass another folder.'
      )
  return start


def rows_of(path):
  """The rows of a log, as dictionaries; without one cut off in the middle."""
  if not path.exists():
    return []
  text = path.read_text()
  whole = text[: text.rfind('\n') + 1].splitlines()
  return [r for r in csv.DictReader(whole) if None not in r.values()]


def keep_rows(path, epochs):
  """Drops the rows of epochs that are going to be repeated."""
  rows = [row for row in rows_of(path) if int(row['epoch']) < epochs]
  if not rows:
    path.unlink(missing_ok=True)
    return []
  file = io.StringIO(newline='')
  writer = csv.DictWriter(file, list(rows[0]), lineterminator='\n')
  writer.writeheader()
  writer.writerows(rows)
  write(path, file.getvalue())
  return rows


def finished_epochs(path):
  rows = rows_of(path)
  return int(rows[-1]['epoch']) + 1 if rows else 0


def read_log(path):
  """`{column: array by epoch}` of the columns of numbers."""
  rows = rows_of(path)
  columns = [name for name in rows[0] if name != 'data']
  return {c: np.array([float(row[c]) for row in rows]) for c in columns}
