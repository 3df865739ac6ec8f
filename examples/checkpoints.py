"""Writes the files `last.keras` and `best.keras` of a run.

It differs from `keras.callbacks.ModelCheckpoint` in two ways. It assembles a
file on the disk, not in memory, where 200 MB of weights take 320 MB more. And
if a run is stopped while it writes a file, the previous file remains.
"""

import shutil
import zipfile

import keras


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


def save(model, *paths):
  """Writes `.keras` files: what Keras saves as a folder, in an archive.

  Args:
    model: A `keras.Model`.
    *paths: `pathlib.Path`s in one folder.
  """
  unfinished = paths[0].parent / 'unfinished'
  shutil.rmtree(unfinished, ignore_errors=True)  # of a run that was stopped
  content, archive = unfinished / 'content', unfinished / 'archive'
  model.save(content, zipped=False)
  with zipfile.ZipFile(archive, 'w') as file:
    for path in sorted(content.rglob('*')):
      file.write(path, path.relative_to(content))
  *others, last = paths
  for path in others:
    copy = shutil.copyfile(archive, unfinished / path.name)
    copy.replace(path)
  archive.replace(last)
  shutil.rmtree(unfinished)
