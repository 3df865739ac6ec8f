# SPDX-License-Identifier: Apache-2.0
"""Writes and reads checkpoints of a run, and keeps only those of the chief."""

import os
from typing import Any

import tensorflow as tf

from tfp_rb.internal.replicas import sum_over_replicas
from tfp_rb.models._workers import is_chief, worker_id

__all__ = ['Checkpoints', 'state_of']


def state_of(model: Any) -> dict[str, list[tf.Variable]]:
  """Returns all variables on which the rest of a run depends.

  Args:
    model: A compiled `EstimatorModel`.

  Returns:
    state: Dictionary of lists of variables.
  """
  # Metrics are reset at each epoch, so a checkpoint does not need them.
  passing = {id(v) for v in model.metrics_variables}
  optimizers = [model.optimizer, model.estimator_optimizer]
  state = {
    'model': [v for v in model.variables if id(v) not in passing],
    'estimator': model.estimator.variables,
    'optimizers': [v for o in optimizers if o is not None for v in o.variables],
  }
  return {
    name: [v if isinstance(v, tf.Variable) else v.value for v in variables]
    for name, variables in state.items()
  }


class Checkpoints:
  """Writes and reads the state of a run.

  All workers take part in writing, because TensorFlow may exchange values of
  replicas while it writes. Workers other than the chief write to a temporary
  folder.
  """

  def __init__(
    self,
    model: Any,
    strategy: tf.distribute.Strategy,
    directory: str,
    max_to_keep: int,
  ) -> None:
    self._strategy, self._directory = strategy, directory
    self._max_to_keep = max_to_keep
    self._step = tf.Variable(0, dtype=tf.int64, trainable=False)
    self._checkpoint = tf.train.Checkpoint(step=self._step, **state_of(model))

  def restore(self) -> int:
    """Restores the newest checkpoint, and returns its number of steps."""
    newest = tf.train.latest_checkpoint(self._directory)
    if newest is not None:
      try:
        status = self._checkpoint.restore(newest)
        status.assert_existing_objects_matched()
      except (AssertionError, ValueError, tf.errors.OpError) as error:
        raise ValueError(
          '`directory` must hold checkpoints of this model and estimator; got '
          f'{newest}, which cannot be restored: {error} Pass another folder to '
          'start a new run. If the checkpoint is damaged, remove it, and write '
          'the name of the previous one into the file `checkpoint` in that '
          'folder.'
        ) from error
    self._check_that_workers_agree(newest)
    return int(self._step.numpy())

  def _check_that_workers_agree(self, newest: str | None) -> None:
    @tf.function
    def totals(step: tf.Tensor) -> Any:
      replicas = self._strategy.run(
        lambda: sum_over_replicas(tf.stack([step, step**2]))
      )
      return self._strategy.experimental_local_results(replicas)[0]

    total, squares = (int(x) for x in totals(self._step.read_value()))
    # By Cauchy-Schwarz, equality holds only if all replicas have the same step.
    if total**2 != squares * self._strategy.num_replicas_in_sync:
      raise ValueError(
        '`directory` must be one folder that all workers read; got '
        f'{self._directory!r}, whose newest checkpoint is {newest} on this '
        'worker, but not on all others. Pass a folder on a shared disk.'
      )

  def save(self, step: int) -> None:
    """Writes a checkpoint. If this is interrupted, the previous one remains."""
    self._step.assign(step)
    if is_chief(self._strategy):
      tf.train.CheckpointManager(
        self._checkpoint, self._directory, self._max_to_keep
      ).save(checkpoint_number=step)
      return
    folder = f'temporary_{worker_id(self._strategy)}'
    folder = os.path.join(self._directory, folder)
    tf.train.CheckpointManager(self._checkpoint, folder, 1).save(step)
    tf.io.gfile.rmtree(folder)
