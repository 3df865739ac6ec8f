# SPDX-License-Identifier: Apache-2.0
"""Trains and evaluates models on several devices and machines."""

from collections.abc import Callable, Sequence
import os
from typing import Any

import keras
import tensorflow as tf

from tfp_rb.models._checkpoints import Checkpoints, state_of
from tfp_rb.models._stacks import StepProgress
from tfp_rb.models._workers import (
  Batches,
  is_chief,
  num_workers,
  per_replica,
  replicas_here,
)
from tfp_rb.models.estimator_model import EstimatorModel

__all__ = ['distributed_evaluate', 'distributed_fit']


def distributed_fit(
  model: EstimatorModel,
  data: tf.data.Dataset | Callable[..., tf.data.Dataset],
  *,
  epochs: int = 1,
  steps_per_epoch: int | None = None,
  validation_data: tf.data.Dataset | None = None,
  directory: str | os.PathLike[str] | None = None,
  max_to_keep: int = 2,
  callbacks: Sequence[keras.callbacks.Callback] = (),
  verbose: int = 1,
) -> keras.callbacks.History:
  """Trains a model on the devices and machines of its strategy.

  Keras 3 cannot `fit` a model on several machines (keras issue 20585). This
  function runs the model's own training step with `strategy.run` instead. The
  same call supports `tf.distribute.MultiWorkerMirroredStrategy`,
  `tf.distribute.MirroredStrategy` and a single device without a strategy. Make
  and compile the model, its estimator and its optimizers inside
  `strategy.scope()`, and call this function in every worker.

  In each step every replica computes the gradient of its own batch, the
  replicas exchange the sum, and all of them apply the same update, so their
  weights stay equal to the last digit. The loss is the mean over the replicas,
  which equals the mean over the global batch. Replicas use different seeds,
  which follow from `model.seed`, the step and the number of the replica. A
  budget of `tfp_rb.pooled` is allocated among the rows of each replica.

  With `directory`, a checkpoint is written at the end of every epoch, and a
  call with the same arguments continues after the newest checkpoint. If a
  worker is killed, the others raise `tf.errors.UnavailableError`, or wait if
  the machine of that worker no longer answers. End them and start all workers
  again: the run ends with the same weights as if it had not been stopped. For
  this, `data` must return the same batches again: pass `seed` to `shuffle`, and
  create a new dataset.

  #### Examples

  ```python
  import keras

  strategy = tf.distribute.get_strategy()  # or MultiWorkerMirroredStrategy()
  with strategy.scope():
    model = tfp_rb.models.SemiSupervisedVAE(
        latent_dim=2, num_pixels=20, classifier_units=[8], hidden_units=[8])
    model.compile(keras.optimizers.Adam(1e-3), jit_compile=False)
  images, labels = tf.zeros([32, 20], tf.uint8), tf.zeros([32], tf.int32)
  data = tf.data.Dataset.from_tensor_slices((images, images, labels))
  data = data.shuffle(32, seed=0).batch(8, drop_remainder=True)
  history = tfp_rb.models.distributed_fit(model, data, epochs=2, verbose=0)
  len(history.history['loss'])  # ==> 2
  ```

  To train with two workers, make the strategy in the first line of the program
  and start it twice, each time with another `index`:

  ```none
  TF_CONFIG='{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
              "task": {"type": "worker", "index": 0}}' python train.py
  ```

  Ray Train sets `TF_CONFIG` itself, so the same program runs as the
  `train_loop_per_worker` of `ray.train.tensorflow.TensorflowTrainer`; see
  `examples/ray_train.py`.

  Args:
    model: A compiled `EstimatorModel`.
    data: A `tf.data.Dataset` of global batches, or a function. The dataset must
      be the same in every worker: each replica gets an equal part of the rows
      of each batch, and a finite dataset is repeated. The function takes
      `(input_context, first_step)` and returns the dataset of this worker:
      batches for one replica, from step `first_step` on, all of the same size.
      `input_context` is a `tf.distribute.InputContext`. A resumed run reads and
      skips the earlier batches of a dataset; a function does not have to
      produce them. Stacks of batches are accepted as in `fit`; on several
      replicas they are split into batches.
    epochs: Python `int`, the total number of epochs, including those before a
      run was resumed.
    steps_per_epoch: Python `int`, the number of batches in an epoch. Default:
      the length of the dataset. It is required if `data` is a function.
    validation_data: `tf.data.Dataset` for `distributed_evaluate`, after every
      epoch.
    directory: Folder of the checkpoints (model, estimator, optimizers, step).
      All workers must read it, and the chief (worker 0) writes it. Default: no
      checkpoints.
    max_to_keep: Python `int`, the number of checkpoints to keep.
    callbacks: List of Keras callbacks. They run in every worker, with the
      metrics of all replicas at the end of an epoch and none after a batch. A
      callback that saves the model must run in every worker, with a different
      path in each, because saving reads variables of all replicas. A callback
      that only writes metrics may be passed in the chief only. Checkpoints do
      not contain the state of callbacks.
    verbose: 0 is silent, 1 shows a progress bar, 2 prints a line for each
      epoch. Only the chief prints.

  Returns:
    history: `keras.callbacks.History` of the epochs of this call.

  Raises:
    TypeError: `data` is neither a dataset nor a function that returns one.
    ValueError: The model is not compiled or was made outside of the scope, the
      batches do not divide among the replicas, `data` ends too early,
      `directory` holds other checkpoints, or `steps_per_epoch` does not divide
      their steps.
  """
  strategy = model.distribute_strategy
  _check_variables(model, strategy)
  with strategy.scope():
    checkpoints, step = None, 0
    if directory is not None:
      path = os.fspath(directory)
      checkpoints = Checkpoints(model, strategy, path, max_to_keep)
      step = checkpoints.restore()
    batches = Batches(
      data,
      strategy,
      model.batch_rank,
      step,
      steps_per_epoch,
      model.loops_over_stacks,
    )
    shown = verbose if is_chief(strategy) else 0
    bar = [StepProgress()] if shown else []
    caller = keras.callbacks.CallbackList(
      [*callbacks, *bar],
      add_history=True,
      model=model,
      verbose=shown,
      epochs=epochs,
      steps=batches.steps_per_epoch // batches.steps_per_element,
    )
    model.stop_training = False
    train, test = _train_function(model), _TestFunction(model)
    caller.on_train_begin()
    logs: dict[str, float] = {}
    for epoch in range(step // batches.steps_per_epoch, epochs):
      logs = _train_epoch(model, train, batches, caller, epoch)
      if validation_data is not None:
        caller.on_test_begin()
        found = test.on(validation_data)
        caller.on_test_end(found)
        logs |= {f'val_{name}': value for name, value in found.items()}
      caller.on_epoch_end(epoch, logs)
      if checkpoints is not None:
        checkpoints.save((epoch + 1) * batches.steps_per_epoch)
      if model.stop_training:
        break
    if epochs > 0:
      # As in `fit`, if the optimizer has `use_ema`, its averages replace the
      # weights. The checkpoints hold both, so that a resumed run continues from
      # the weights.
      model.optimizer.finalize_variable_values(model.trainable_variables)
    caller.on_train_end(logs)
  return model.history


def distributed_evaluate(
  model: EstimatorModel, data: tf.data.Dataset
) -> dict[str, float]:
  """Evaluates a model on the devices and machines of its strategy.

  The replicas evaluate different batches. The metrics cover all batches, as in
  `evaluate` on a single device.

  #### Examples

  ```python
  model = tfp_rb.models.SemiSupervisedVAE(
      latent_dim=2, num_pixels=20, classifier_units=[8], hidden_units=[8])
  model.compile(jit_compile=False)
  data = tf.data.Dataset.from_tensors(
      (tf.zeros([8, 20], tf.uint8), tf.zeros([8], tf.int32)))
  found = tfp_rb.models.distributed_evaluate(model, data)
  sorted(found)  # ==> ['accuracy', 'negative_elbo']
  ```

  Args:
    model: A compiled `EstimatorModel`. Call this function in every worker.
    data: Finite `tf.data.Dataset` of batches, the same in every worker.

  Returns:
    metrics: Dictionary of Python `float`s, the same in every worker.

  Raises:
    ValueError: The model is not compiled or was made outside of the scope, or
      `data` is empty.
  """
  strategy = model.distribute_strategy
  _check_variables(model, strategy)
  with strategy.scope():
    return _TestFunction(model).on(data)


def _check_variables(
  model: EstimatorModel, strategy: tf.distribute.Strategy
) -> None:
  """Raises unless all variables of a run exist on every replica."""
  if getattr(model, 'optimizer', None) is None:
    raise ValueError(
      '`model` must be compiled; got a model without an optimizer. Call '
      '`model.compile(...)` inside `strategy.scope()`.'
    )
  if num_workers(strategy) == 1 and strategy.num_replicas_in_sync == 1:
    return
  for name, variables in state_of(model).items():
    for variable in variables:
      if not strategy.extended.variable_created_in_scope(variable):
        raise ValueError(
          f'`model` must have all its variables inside `strategy.scope()`; got '
          f'`{variable.name}` ({name}), which was made outside. Make the '
          'model, its estimator and its optimizers in the scope.'
        )


def _train_function(model: EstimatorModel) -> Callable[[Any], Any]:
  """Returns the training step of all replicas."""
  strategy, step = model.distribute_strategy, model.train_step
  if model.jit_compile:  # On several replicas, the model compiles its gradient.
    step = tf.function(step, jit_compile=True, reduce_retracing=True)
  # AutoGraph would otherwise convert the code of Keras.
  return tf.function(
    lambda batch: strategy.run(step, args=(batch,)),
    autograph=False,
    reduce_retracing=True,
  )


def _train_epoch(
  model: EstimatorModel,
  train: Callable[[Any], Any],
  batches: Batches,
  caller: keras.callbacks.CallbackList,
  epoch: int,
) -> dict[str, float]:
  """Runs the steps of an epoch, and returns its metrics."""
  names: list[str] = []
  model.reset_metrics()
  caller.on_epoch_begin(epoch)
  for i in range(batches.steps_per_epoch // batches.steps_per_element):
    caller.on_train_batch_begin(i)
    names = list(train(batches.next()))
    caller.on_train_batch_end(i)
  return _results(model, names)


def _results(model: EstimatorModel, names: list[str]) -> dict[str, float]:
  # Reading a metric outside of a replica adds up the states of all replicas.
  return {m.name: float(m.result()) for m in model.metrics if m.name in names}


class _TestFunction:
  """Evaluates a model, with one batch on each replica."""

  def __init__(self, model: EstimatorModel) -> None:
    self._model = model
    self._compiled: Any = None
    self._num_metrics = 0

  def on(self, data: tf.data.Dataset) -> dict[str, float]:
    """Returns the metrics of a dataset."""
    num_replicas = self._model.distribute_strategy.num_replicas_in_sync
    self._model.reset_metrics()
    names: list[str] = []
    waiting: list[Any] = []
    for batch in data:
      waiting.append(batch)
      if len(waiting) == num_replicas:
        names, waiting = self._batches(waiting, num_replicas), []
    if waiting:
      # Estimators may exchange Tensors, so every replica needs a batch.
      number = len(waiting)
      waiting += waiting[-1:] * (num_replicas - number)
      names = self._batches(waiting, number)
    if not names:
      raise ValueError(
        '`data` must have at least one batch for an evaluation; got none. Pass '
        'a dataset that is not empty.'
      )
    return _results(self._model, names)

  def _batches(self, batches: list[Any], num_counted: int) -> list[str]:
    """Evaluates batches, one for each replica of all workers.

    Args:
      batches: List of batches.
      num_counted: Python `int`, the number of batches that the metrics count.

    Returns:
      names: The names of the metrics.
    """
    # The last step may have added a metric, so trace the function again.
    if self._num_metrics != len(self._model.metrics):
      self._compiled = tf.function(
        self._run, autograph=False, reduce_retracing=True
      )
      self._num_metrics = len(self._model.metrics)
    strategy = self._model.distribute_strategy
    first, number = replicas_here(strategy)
    mine = slice(first, first + number)
    counts = [tf.constant(i < num_counted) for i in range(len(batches))]
    own = per_replica(strategy, batches[mine])
    return list(self._compiled(own, per_replica(strategy, counts[mine])))

  def _run(self, batch: Any, counts: Any) -> Any:
    step = self._model.test_step
    if self._model.jit_compile:
      step = tf.function(step, jit_compile=True, reduce_retracing=True)

    def on_replica(batch: Any, counts: tf.Tensor) -> Any:
      states = [v for m in self._model.metrics for v in m.variables]
      before = [tf.identity(v.value) for v in states]
      results = step(batch)
      for state, value in zip(states, before, strict=True):
        state.assign(tf.where(counts, state.value, value))
      return results

    return self._model.distribute_strategy.run(on_replica, args=(batch, counts))
