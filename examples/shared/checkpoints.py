# SPDX-License-Identifier: Apache-2.0
"""Writes weights: `last.keras` and `best.keras`, backups, and warm starts.

This module differs from `keras.callbacks.ModelCheckpoint` and
`BackupAndRestore` in three ways. It assembles an archive on the disk, not in
memory, where 200 MB of weights take 320 MB more. If a run is stopped while it
writes a file, the previous file remains. And every file has a digest.
"""

import shutil
import zipfile

import keras
import numpy as np
import tensorflow as tf

from examples.shared import kept_files

BACKUPS = ('latest.weights.h5', 'previous.weights.h5')


class Checkpoints(keras.callbacks.Callback):
  """Writes the model after every epoch, and also keeps the best one."""

  def __init__(self, folder, monitor, best=float('inf')):
    """Creates the callback.

    Args:
      folder: `pathlib.Path` of the folder for the files.
      monitor: Name of the metric that `best.keras` minimises.
      best: Python `float`, the least value of this metric so far.
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
  """Writes weights to resume from, and keeps those of the previous epoch."""

  def __init__(self, folder):
    """Creates the callback.

    Args:
      folder: `pathlib.Path` of the folder for the files.
    """
    super().__init__()
    self.folder = folder

  def on_epoch_end(self, epoch, logs=None):
    self.folder.mkdir(exist_ok=True)
    latest, previous = (self.folder / name for name in BACKUPS)
    unfinished = self.folder / 'unfinished.weights.h5'
    with kept_files.room_for(latest, num_bytes(self.model), unfinished):
      self.model.save_weights(unfinished, overwrite=True)
    # If the latest backup is damaged, the run was resumed from the previous
    # one, which therefore must remain.
    if not kept_files.problem_of(latest):
      kept_files.put(latest, previous)
    kept_files.put(unfinished, latest)


def variables_of(model):
  """Returns all variables that a backup of a compiled model must contain."""
  second = model.estimator_optimizer
  return [
    *model.weights,
    *model.optimizer.variables,
    *model.estimator.variables,
    *(second.variables if second else ()),
  ]


def num_bytes(model):
  """Returns the minimum size of a file with all variables of a model."""
  return sum(
    int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size
    for v in variables_of(model)
  )


def bytes_of_run(model, folder):
  """Returns how much space the files of a run will still need."""
  files = [folder / 'last.keras', folder / 'best.keras']
  files += [folder / 'backup' / name for name in BACKUPS]
  missing = sum(not path.exists() for path in files)
  # While `save` writes two of them, three temporary files exist as well.
  return (missing + 3) * num_bytes(model)


def save(model, *paths):
  """Writes `.keras` files: archives of the folder that Keras saves.

  Args:
    model: A compiled `models.EstimatorModel`.
    *paths: `pathlib.Path`s in one folder.
  """
  unfinished = paths[0].parent / 'unfinished'
  # A run that was stopped may have left this folder.
  shutil.rmtree(unfinished, ignore_errors=True)
  content, archive = unfinished / 'content', unfinished / 'archive'
  *others, last = paths
  # The folder, the archive and its copies exist at the same time.
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


def save_networks(model, path, same=False):
  """Writes the weights of the model without those of its estimator.

  Args:
    model: As `make_model` returns it.
    path: `pathlib.Path` of the file.
    same: Python `bool`, whether the new file must equal the previous one.
  """
  weights = {
    str(i): np.asarray(v) for i, v in enumerate(network_weights(model))
  }
  unfinished = path.with_suffix('.part')
  num_bytes = sum(v.nbytes for v in weights.values())
  with (
    kept_files.room_for(path, num_bytes, unfinished),
    unfinished.open('wb') as file,
  ):
    np.savez(file, **weights)
  before = kept_files.listed(path)
  if path.exists():  # The digest may be damaged instead of the file.
    before.append(kept_files.digest_of(path))
  if same and before and kept_files.digest_of(unfinished) not in before:
    raise kept_files.Refused(
      f'`{path}` {kept_files.problem_of(path)}. The script computed it again '
      f'in {unfinished.name}, but the weights differ from those that the runs '
      f'in {path.parent} started from. Pass the same flags as for these runs, '
      'restore the file from a copy, or pass another `--output_dir`.'
    )
  kept_files.put(unfinished, path)


def load_networks(model, path):
  with np.load(path, allow_pickle=False) as weights:
    for i, variable in enumerate(network_weights(model)):
      variable.assign(weights[str(i)])


def network_weights(model):
  """Returns the weights of all networks except those of the estimator."""
  networks = [x for x in model.layers if x is not model.estimator_layer]
  return [weight for network in networks for weight in network.weights]
