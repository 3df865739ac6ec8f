# SPDX-License-Identifier: Apache-2.0
"""Takes stacks of batches in `fit`: loops over them, or unstacks them."""

from collections.abc import Callable
import math
from typing import Any

import keras
import tensorflow as tf

__all__ = [
  'StepProgress',
  'has_progress',
  'has_stacks',
  'train_in_loop',
  'unstacked',
]


def has_stacks(data: Any, batch_rank: int | None) -> bool:
  """Returns whether a dataset is known to consist of stacks of batches."""
  if batch_rank is None or not isinstance(data, tf.data.Dataset):
    return False
  first = tf.nest.flatten(data.element_spec)[0]
  return first.shape.rank == batch_rank + 1


def unstacked(
  stacks: tf.data.Dataset, num_stacks: int | None
) -> tuple[tf.data.Dataset, int | None]:
  """Returns the batches of a dataset of stacks, and their number per epoch."""
  # An epoch with a given number of stacks needs stacks of one known size.
  size = tf.nest.flatten(stacks.element_spec)[0].shape[0]
  if num_stacks is not None:
    if size is None:
      raise ValueError(
        '`x` must have stacks of a static size if `steps_per_epoch` is given; '
        f'got elements of {stacks.element_spec}. Pass single batches.'
      )
    num_stacks *= size
  return stacks.unbatch(), num_stacks


def train_in_loop(
  train_on_batch: Callable[[tuple[tf.Tensor, ...]], list[str]],
  stack: tuple[tf.Tensor, ...],
  num_replicas: int,
) -> list[str]:
  """Trains on the batches of a stack, in a loop inside one compiled call.

  Args:
    train_on_batch: Callable that makes one step, and returns the names of its
      metrics.
    stack: Tuple of `Tensor`s whose first axis is that of the batches.
    num_replicas: Python `int`, the number of replicas of the model.

  Returns:
    names: List of Python `str`s, the names of the metrics.
  """
  if num_replicas > 1:
    raise ValueError(
      'Stacked batches must be trained on a single replica; got '
      f'{num_replicas} replicas. Pass single batches to `fit`.'
    )
  num_batches = stack[0].shape[0]
  if num_batches is None:
    num_batches = tf.shape(stack[0])[0]
  names: list[str] = []

  def body(i: tf.Tensor) -> tuple[tf.Tensor]:
    names[:] = train_on_batch(tuple(tf.gather(x, i) for x in stack))
    return (i + 1,)

  # On a CPU this takes half as long as the same number of calls, because the
  # variables stay inside the loop.
  tf.while_loop(
    lambda i: i < num_batches,
    body,
    (tf.constant(0),),
    maximum_iterations=num_batches,
  )
  return names


def has_progress(callbacks: Any) -> bool:
  """Returns whether the callbacks already show the progress of `fit`."""
  if isinstance(callbacks, keras.callbacks.CallbackList):
    return True
  return any(
    isinstance(c, keras.callbacks.ProgbarLogger)
    for c in tf.nest.flatten(callbacks or [])
  )


class StepProgress(keras.callbacks.ProgbarLogger):
  """Shows the number of training steps, not the number of calls.

  Keras counts the elements of the dataset. If they are stacks of batches, each
  of them takes several steps, which the optimizer counts.
  """

  def set_params(self, params: dict[str, Any]) -> None:
    super().set_params(params)
    self._num_calls = params['steps']  # `None` in an epoch of unknown length

  def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
    self._start = self._num_steps()
    super().on_epoch_begin(epoch, logs)

  def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
    done = self._num_steps() - self._start
    if self._num_calls is not None:
      # The last stack may be smaller, so this is exact only after the epoch.
      per_call = max(1, math.ceil(done / (batch + 1)))
      self._set_target(max(done, per_call * self._num_calls))
    super().on_train_batch_end(done - 1, logs)

  def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
    self._set_target(max(1, self._num_steps() - self._start))
    super().on_epoch_end(epoch, logs)

  def _num_steps(self) -> int:
    # `numpy` also supports mirrored variables.
    return int(self.model.optimizer.iterations.numpy())

  def _set_target(self, num_steps: int) -> None:
    self.target = num_steps
    if self.progbar is not None:
      self.progbar.target = num_steps
