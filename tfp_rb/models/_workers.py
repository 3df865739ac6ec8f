# SPDX-License-Identifier: Apache-2.0
"""Finds the workers of a `tf.distribute` strategy, and the data of each."""

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfp_rb.models._stacks import has_stacks

__all__ = [
  'Batches',
  'check_one_worker',
  'input_context',
  'is_chief',
  'num_workers',
  'per_replica',
]


def _tasks(strategy: tf.distribute.Strategy) -> list[tuple[str, int]]:
  """Returns the type and number of every task that trains, the chief first."""
  resolver = strategy.cluster_resolver
  cluster = {} if resolver is None else resolver.cluster_spec().as_dict()
  return [
    (kind, i)
    for kind in ('chief', 'worker')
    for i in range(len(cluster.get(kind, [])))
  ]


def num_workers(strategy: tf.distribute.Strategy) -> int:
  """Returns the number of processes that train together."""
  return max(1, len(_tasks(strategy)))


def check_one_worker(
  strategy: tf.distribute.Strategy, method: str, instead: str
) -> None:
  """Raises if a method of Keras is called in one of several workers."""
  # With several workers, Keras fails because it reads one value per worker as
  # if it were a Tensor (https://github.com/keras-team/keras/issues/20585).
  number = num_workers(strategy)
  if number > 1:
    raise RuntimeError(
      f'`{method}` of Keras must run on a single worker; got a strategy with '
      f'{number} workers. Call `tfp_rb.models.{instead}(model, data)` in '
      'every worker instead.'
    )


def worker_id(strategy: tf.distribute.Strategy) -> int:
  """Returns the number of this process; the chief is 0."""
  tasks = _tasks(strategy)
  resolver = strategy.cluster_resolver
  if len(tasks) < 2:
    return 0
  return tasks.index((resolver.task_type, resolver.task_id))


def is_chief(strategy: tf.distribute.Strategy) -> bool:
  """Returns whether this process writes the files and shows the progress."""
  return worker_id(strategy) == 0


def input_context(
  strategy: tf.distribute.Strategy,
) -> tf.distribute.InputContext:
  """Returns a description of the part of the data that this process reads."""
  return tf.distribute.InputContext(
    num_input_pipelines=num_workers(strategy),
    input_pipeline_id=worker_id(strategy),
    num_replicas_in_sync=strategy.num_replicas_in_sync,
  )


def replicas_here(strategy: tf.distribute.Strategy) -> tuple[int, int]:
  """Returns the first replica of this process, and its number of replicas."""
  number = strategy.num_replicas_in_sync // num_workers(strategy)
  return number * worker_id(strategy), number


def per_replica(strategy: tf.distribute.Strategy, values: list[Any]) -> Any:
  """Returns a value for each replica of this process, for `strategy.run`."""
  if len(values) == 1:
    return values[0]
  first, _ = replicas_here(strategy)
  return strategy.experimental_distribute_values_from_function(
    lambda context: values[context.replica_id_in_sync_group - first]
  )


class Batches:
  """Reads the training data of this process.

  Attributes:
    steps_per_element: Python `int`, the number of steps for each element of the
      data: more than 1 for a stack of batches on a single replica.
    steps_per_epoch: Python `int`.
  """

  def __init__(
    self,
    data: tf.data.Dataset | Callable[..., tf.data.Dataset],
    strategy: tf.distribute.Strategy,
    batch_rank: int | None,
    first_step: int,
    steps_per_epoch: int | None,
    loops_over_stacks: bool = True,
  ) -> None:
    """Finds the place of a step in the data.

    Args:
      data: As in `distributed_fit`.
      strategy: A `tf.distribute.Strategy`.
      batch_rank: The rank of the first Tensor of a batch, if known.
      first_step: Python `int`, the number of steps done.
      steps_per_epoch: Python `int`; `None` for the length of a dataset.
      loops_over_stacks: Python `bool`, whether the model trains on stacks.
    """
    self._strategy = strategy
    num_replicas = strategy.num_replicas_in_sync
    is_function = callable(data) and not isinstance(data, tf.data.Dataset)
    if is_function:
      data = data(input_context(strategy), first_step)
    if not isinstance(data, tf.data.Dataset):
      raise TypeError(
        '`data` must be a `tf.data.Dataset`, or a function of '
        f'`(input_context, first_step)` that returns one; got {data!r}. Use, '
        'for example, `tf.data.Dataset.from_tensor_slices(x).batch(64)`.'
      )
    depth = _stack_size(data, batch_rank)
    keeps_stacks = loops_over_stacks and num_replicas == 1
    if depth is not None and not keeps_stacks:
      data, depth = data.unbatch(), None
    self.steps_per_element = depth or 1
    if steps_per_epoch is None:
      steps_per_epoch = self._length(data, is_function)
    elif steps_per_epoch < 1 or steps_per_epoch % self.steps_per_element:
      raise ValueError(
        '`steps_per_epoch` must be a positive multiple of the number of '
        f'batches in a stack ({self.steps_per_element}); got '
        f'{steps_per_epoch}. Pass the number of batches, not of stacks.'
      )
    if first_step % steps_per_epoch:
      raise ValueError(
        '`steps_per_epoch` must divide the number of steps that the resumed '
        f'run has done ({first_step}); got {steps_per_epoch}. Pass the value '
        'of that run, or another `directory` to start a new run.'
      )
    self.steps_per_epoch = steps_per_epoch
    if not is_function:
      # Repeat the data instead of making a new iterator per epoch, so that a
      # resumed run finds its place even if each pass is shuffled differently.
      data = data.repeat().skip(first_step // self.steps_per_element)
      data = _rows_of_this_worker(data, strategy)
    self._iterator: Iterator[Any] = iter(data)

  def _length(self, data: tf.data.Dataset, is_function: bool) -> int:
    length = int(data.cardinality())
    if length < 1 or is_function:
      raise ValueError(
        '`steps_per_epoch` must be given if `data` is a function, or a dataset '
        'of infinite or unknown length; got None. Pass the number of batches '
        'in an epoch.'
      )
    return length * self.steps_per_element

  def next(self) -> Any:
    """Returns the next batch of each replica of this process."""
    _, number = replicas_here(self._strategy)
    try:
      values = [next(self._iterator) for _ in range(number)]
    except StopIteration:
      raise ValueError(
        '`data` must have a batch for every step of every epoch; got the end '
        'of the data. Return `dataset.repeat()` from your function.'
      ) from None
    return per_replica(self._strategy, values)


def _stack_size(data: tf.data.Dataset, batch_rank: int | None) -> int | None:
  """Returns the number of batches in an element; `None` if it is a batch."""
  if not has_stacks(data, batch_rank):
    return None
  shape = tf.nest.flatten(data.element_spec)[0].shape
  if shape[0] is None:
    raise ValueError(
      '`data` must have stacks of a known number of batches; got the shape '
      f'{shape}. Choose a `steps_per_call` of `prepare_dataset` that divides '
      'the number of batches, or stack them with `drop_remainder=True`.'
    )
  return shape[0]


def _rows_of_this_worker(
  data: tf.data.Dataset, strategy: tf.distribute.Strategy
) -> tf.data.Dataset:
  """Splits each global batch into one batch for each replica of this process.

  Args:
    data: `tf.data.Dataset` of global batches.
    strategy: A `tf.distribute.Strategy`.

  Returns:
    data: `tf.data.Dataset` of the batches of the replicas, in turn.
  """
  num_replicas = strategy.num_replicas_in_sync
  if num_replicas == 1:
    return data
  first, number = replicas_here(strategy)
  message = (
    '`data` must have batches whose size is a multiple of the number of '
    f'replicas ({num_replicas}); got {{}}. Use `drop_remainder=True`, or '
    'another batch size.'
  )
  for spec in tf.nest.flatten(data.element_spec):
    size = spec.shape[0] if spec.shape.rank else 1
    if size is not None and size % num_replicas:
      raise ValueError(message.format(size))

  def split(x: tf.Tensor) -> tf.Tensor:
    size = tf.shape(x)[0]
    is_multiple = tf.debugging.assert_equal(
      size % num_replicas, 0, message.format('another size')
    )
    with tf.control_dependencies([is_multiple]):
      size = size // num_replicas
    rows = tf.reshape(x, tf.concat([[num_replicas, size], tf.shape(x)[1:]], 0))
    known = x.shape[0] and x.shape[0] // num_replicas
    return tf.ensure_shape(
      rows[first : first + number], [number, known, *x.shape[1:]]
    )

  return data.map(lambda *batch: tf.nest.map_structure(split, batch)).unbatch()
