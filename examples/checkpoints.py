"""Writes the weights of a run: `last.keras`, `best.keras` and the backup.

It differs from `keras.callbacks.ModelCheckpoint` and `BackupAndRestore` in
three ways. It assembles an archive on the disk, not in memory, where 200 MB of
weights take 320 MB more. If a run is stopped while it writes a file, the
previous file remains. And every file has a digest.
"""

import shutil
import zipfile

import keras
import numpy as np
import tensorflow as tf

import kept_files

BACKUPS = ('latest.weights.h5', 'previous.weights.h5')


class Checkpoints(keras.callbacks.Callback):
  """Writes the model after every epoch, and also keeps the best one."""

  def __init__(self, folder, monitor, best=float('inf')):
    """Makes the callback.

    Args:
      folder: `pathlib.Path`, where the files go.
      monitor: Name of the metric that is to be least.
      best: Python `float`, its least value so far.
    """
    super().__init__()
    self.folder, self.monitor, self.best = folder, monitor, best

  def on_epoch_end(self, epoch, logs=None):
    paths = [self.folder / 'last.keras']
    if logs[self.monitor] < self.best:
      self.best = logs[self.monitor]
      paths.append(self.folder / 'best.keras')
    save(self.model, *paths)


class Backup(keras.callbacks.Callback):
  """Writes the weights to resume from, and keeps those of an epoch before."""

  def __init__(self, folder):
    """Makes the callback.

    Args:
      folder: `pathlib.Path`, where the files go.
    """
    super().__init__()
    self.folder = folder

  def on_epoch_end(self, epoch, logs=None):
    self.folder.mkdir(exist_ok=True)
    latest, previous = (self.folder / name for name in BACKUPS)
    unfinished = self.folder / 'unfinished.weights.h5'
    with kept_files.room_for(latest, num_bytes(self.model), unfinished):
      self.model.save_weights(unfinished, overwrite=True)
    if latest.exists():
      kept_files.put(latest, previous)
    kept_files.put(unfinished, latest)


def variables_of(model):
  """Returns everything that a backup of a compiled model has to hold."""
  second = model.estimator_optimizer
  return [
    *model.weights,
    *model.optimizer.variables,
    *model.estimator.variables,
    *(second.variables if second else ()),
  ]


def num_bytes(model):
  """Returns the least size of a file with all variables of a model."""
  return sum(
    int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size
    for v in variables_of(model)
  )


def save(model, *paths):
  """Writes `.keras` files: what Keras saves as a folder, in an archive.

  Args:
    model: A compiled `models.EstimatorModel`.
    *paths: `pathlib.Path`s in one folder.
  """
  unfinished = paths[0].parent / 'unfinished'
  shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was stopped
  content, archive = unfinished / 'content', unfinished / 'archive'
  *others, last = paths
  # The folder, the archive and its copies are there at the same time.
  needed = (1 + len(paths)) * num_bytes(model)
  with kept_files.room_for(last, needed, unfinished):
    model.save(content, zipped=False)
    with zipfile.ZipFile(archive, 'w') as file:
      for path in sorted(content.rglob('*')):
        file.write(path, path.relative_to(content))
    copies = [shutil.copyfile(archive, unfinished / p.name) for p in others]
  for copy, path in zip(copies, others, strict=True):
    kept_files.put(copy, path)
  kept_files.put(archive, last)
  shutil.rmtree(unfinished)
