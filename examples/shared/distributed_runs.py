# SPDX-License-Identifier: Apache-2.0
"""Trains the runs of an experiment in several processes together.

A run has the same folder as in `training_runs`, with a subfolder `checkpoints`
to resume from. The chief, which is worker 0, writes this folder. The other
workers write their copies of the models to subfolders `worker_1` and so on.
"""

import pathlib
import time

from absl import app
import tensorflow as tf

from examples.shared import checkpoints, kept_files, training_runs
from tfp_rb import models


class Workers:
  """The processes that `TF_CONFIG` names; this one alone if it is not set.

  Create it before anything else in a program, because the first TensorFlow
  operation fixes the devices.
  """

  def __init__(self):
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    cluster = resolver.cluster_spec().as_dict()
    self.number = sum(
      len(cluster.get(kind, [])) for kind in ('chief', 'worker')
    )
    self.index = 0
    self.strategy = tf.distribute.get_strategy()
    if self.number > 1:
      self.index = resolver.task_id
      if 'chief' in cluster and resolver.task_type != 'chief':
        self.index += 1
      self.strategy = tf.distribute.MultiWorkerMirroredStrategy()

  @property
  def is_several(self):
    return self.number > 1

  @property
  def is_chief(self):
    return self.index == 0

  def wait_for(self, *paths, hours=24):
    """Waits until the chief has written some files."""
    end = time.monotonic() + 3600 * hours
    for path in paths:
      while not path.exists():
        if time.monotonic() > end:
          raise app.UsageError(
            f'The chief has not written {path} within {hours} hours. Make sure '
            'that `--output_dir` is a folder that all workers share.'
          )
        time.sleep(0.5)

  def train(
    self, model, data, num_steps, validation_data, folder, epochs, monitor,
    source,
  ):  # fmt: skip
    """Trains a model, or resumes a run that was stopped.

    Args:
      model: A compiled `EstimatorModel` of this strategy, with its starting
        weights.
      data: `tf.data.Dataset` that yields global batches forever.
      num_steps: Number of optimizer steps per epoch.
      validation_data: `tf.data.Dataset`.
      folder: `pathlib.Path` of the run.
      epochs: Python `int`, the total number of epochs.
      monitor: Name of the metric that `best.keras` minimises.
      source: Python `str`, a description of the data.
    """
    own = folder if self.is_chief else folder / f'worker_{self.index}'
    with kept_files.lock(own / 'run.lock'):
      written, best = [], float('inf')
      if self.is_chief:
        log = folder / 'log.csv'
        before = rows_to_continue(log, folder / 'checkpoints', num_steps)
        written.append(training_runs.Log(log, before, source))
        best = training_runs.least(before, monitor)
      models.distributed_fit(
        model,
        data,
        epochs=epochs,
        steps_per_epoch=num_steps,
        validation_data=validation_data,
        directory=folder / 'checkpoints',
        callbacks=[*written, checkpoints.Checkpoints(own, monitor, best)],
        verbose=2,
      )


def rows_to_continue(log, folder, num_steps):
  """Returns the rows of a log up to the newest checkpoint.

  Raises:
    Refused: The log and the checkpoint do not fit together.
  """
  done = finished_epochs(folder, num_steps)
  kept_files.refuse_damaged(log)
  rows = training_runs.rows_of(log)
  # The row of an epoch is written before its checkpoint.
  if not done <= len(rows) <= done + 1:
    raise kept_files.Refused(
      f'The newest checkpoint in {folder} has {done} epochs, but {log} has '
      f'{len(rows)} rows. Restore the missing files from a copy, or pass '
      'another `--output_dir`.'
    )
  return rows[:done]


def finished_epochs(folder, num_steps):
  """Returns the number of epochs up to the newest checkpoint."""
  newest = tf.train.latest_checkpoint(str(folder))
  if newest is None:
    return 0
  return int(pathlib.Path(newest).name.rpartition('-')[2]) // num_steps
