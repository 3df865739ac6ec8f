# SPDX-License-Identifier: Apache-2.0
"""Defines the base class of Keras models with a discrete latent variable."""

from collections.abc import Mapping
import inspect
from typing import Any, Literal

import keras
import tensorflow as tf

from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal.types import StatelessSeed
from tfp_rb.models import _compile_checks, _stacks
from tfp_rb.models._configured_model import ConfiguredModel
from tfp_rb.models._metrics import Trackers
from tfp_rb.models._workers import check_one_worker
from tfp_rb.models.estimator_layer import EstimatorLayer

__all__ = ['EstimatorModel']


class EstimatorModel(ConfiguredModel):
  """Base class of Keras models whose loss contains a discrete expectation.

  A subclass defines its layers in `__init__` and its loss in
  `compute_step_loss`. The base class does the rest:

  * `compile`, `fit`, `evaluate`, callbacks and several devices work as in
    every Keras model. Each scalar that `compute_step_loss` returns is reported
    as a metric. On several machines, `tfp_rb.models.distributed_fit` trains
    the model.
  * The variables of the estimator (the network of `NVIL`, the control variate
    and temperature of `RELAX`, a `Learned` baseline) are trained and saved with
    the model.
  * Each step draws with its own seed, which follows from `seed` and the number
    of steps so far. If a resumed run reads the same batches, it ends with the
    same weights as an uninterrupted run. With `BackupAndRestore`, Keras begins
    the dataset again, so a `shuffle` that differs from epoch to epoch (its
    default) repeats the order of the first epochs. `distributed_fit` with a
    `directory` skips the batches that were already read.
  * `predict` and `export` use the method `call`, which you may define.
  * `get_config` returns the arguments of the subclass' constructor, so models
    are saved to and loaded from `.keras` files without further code. Register
    the subclass with Keras as in the example.

  `tfp_rb.models.prepare_dataset` makes a dataset that `fit` reads at full
  speed, and stacks its batches. Class attributes make training faster:

  * `batch_rank`, the rank of the first Tensor of a batch. If you set it, `fit`
    also takes several batches at once, stacked along a new first dimension.
    These steps run inside one compiled call, which takes half the time on a CPU
    if a step takes a few milliseconds. Set `loops_over_stacks = False` if the
    model has convolutions: XLA runs them about ten times slower inside a loop
    on a CPU. `fit` then takes the batches of a stack one by one.
  * `metric_names`, the names that `compute_step_loss` returns, by default
    `('loss',)`. Keras traces the first step a second time for other names.

  #### Examples

  ```python
  import keras

  @keras.saving.register_keras_serializable('my_package')
  class DiscreteAutoencoder(tfp_rb.models.EstimatorModel):

    def __init__(self, estimator, num_codes=8, **kwargs):
      super().__init__(estimator, **kwargs)
      self.encoder = keras.layers.Dense(num_codes)
      self.encoder.build([None, 20])
      self.decoder = keras.layers.Dense(20)
      self.decoder.build([None, num_codes])

    def compute_step_loss(self, batch, estimator, seed):
      (x,) = batch
      q = tfp.distributions.OneHotCategorical(
          logits=self.encoder(x), dtype=tf.float32)
      f = lambda z: tf.reduce_sum((self.decoder(z) - x)**2, axis=-1)
      error = tfp_rb.expectation(f, q, estimator.bind(x), seed=seed)
      return {'loss': tf.reduce_mean(error), 'entropy': q.entropy()[0]}

  model = DiscreteAutoencoder(tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(), num_summed=2))
  model.compile(keras.optimizers.Adam(1e-2))
  history = model.fit(np.zeros([64, 20], np.float32), verbose=0)
  sorted(history.history)  # ==> ['entropy', 'loss']
  ```
  """

  batch_rank: int | None = None  # `None`: `fit` takes no stacks of batches
  loops_over_stacks: bool = True
  metric_names: tuple[str, ...] = ('loss',)

  def __init__(
    self, estimator: GradientEstimator, *, seed: int = 0, **kwargs: Any
  ) -> None:
    """Makes a model without layers of its own.

    Args:
      estimator: A `GradientEstimator`. Its networks must be built.
      seed: Python `int`, from which the seeds of all steps follow.
      **kwargs: Arguments of `keras.Model`, e.g. `name` and `dtype`.

    Raises:
      TypeError: `estimator` is not a `GradientEstimator`.
      ValueError: A network of the estimator is not built.
    """
    super().__init__(**kwargs)
    self.seed = seed
    self.estimator_layer = EstimatorLayer(estimator, name='estimator')
    self.estimator_optimizer: Any = None
    self._batch_signature: tf.TensorSpec | None = None
    self._trackers = Trackers(self.metric_names)

  def compute_step_loss(
    self,
    batch: tuple[tf.Tensor, ...],
    estimator: GradientEstimator,
    seed: StatelessSeed,
  ) -> tf.Tensor | Mapping[str, tf.Tensor]:
    """Returns the loss of one batch. Every subclass defines this method.

    Args:
      batch: Tuple of `Tensor`s, one batch of the data that `fit` was given.
      estimator: The model's estimator with its schedules at the current step.
        Call `estimator.bind(x)` to pass `x` to the network of `NVIL` or the
        control variate of `RELAX`; other estimators ignore it.
      seed: Stateless seed, `int32[2]`, of this step. Split it with
        `tfp.random.split_seed` if you need more than one.

    Returns:
      loss: Scalar `Tensor`, or a dictionary of scalar `Tensor`s that contains
        `'loss'`. Each entry becomes a metric of that name.
    """
    raise NotImplementedError(
      f'`{type(self).__name__}` must define `compute_step_loss`; got a class '
      'without it. Return the loss of one batch there.'
    )

  @property
  def estimator(self) -> GradientEstimator:
    """The gradient estimator."""
    return self.estimator_layer.estimator

  @property
  def step(self) -> tf.Tensor:
    """The number of training steps so far, an `int32` scalar."""
    optimizer = getattr(self, 'optimizer', None)
    return tf.cast(0 if optimizer is None else optimizer.iterations, tf.int32)

  @property
  def built(self) -> bool:
    """Whether all layers have their variables."""
    return all(layer.built for layer in self.layers)

  @built.setter
  def built(self, value: bool) -> None:
    # Ignore the value. Keras sets it when a model is called, although a call
    # may build only some of the layers.
    del value

  @property
  def trainable_variables(self) -> list[keras.Variable]:
    # Put the estimator's variables last, as in files of version 0.1. Keras
    # optimizers find the moving average of a variable by its position.
    own = self.estimator_layer.trainable_variables
    numbers = {id(v) for v in own}
    found = super().trainable_variables
    return [v for v in found if id(v) not in numbers] + own

  @property
  def trainable_weights(self) -> list[keras.Variable]:
    return self.trainable_variables

  @property
  def metrics(self) -> list[keras.Metric]:
    # Our tracker of the loss replaces the one of Keras.
    own = self._trackers.by_name
    others = [m for m in super().metrics if m.name not in own]
    return [*own.values(), *others]

  def step_metrics(
    self, batch: tuple[tf.Tensor, ...], seed: StatelessSeed
  ) -> dict[str, tf.Tensor]:
    """Returns the loss of one batch, and the other scalars to report.

    Args:
      batch: Tuple of `Tensor`s, one batch of the data that `fit` takes.
      seed: Stateless seed, `int32[2]`.

    Returns:
      metrics: Dictionary of scalar `Tensor`s, with the key `'loss'`.
    """
    estimator = self.estimator.at_step(self.step)
    found = self.compute_step_loss(batch, estimator, seed)
    found = dict(found) if isinstance(found, Mapping) else {'loss': found}
    if 'loss' not in found:
      raise ValueError(
        '`compute_step_loss` must return a scalar, or a dictionary with the '
        f"key 'loss'; got the keys {sorted(found)}. Add `'loss'`."
      )
    for name, value in found.items():
      found[name] = value = tf.convert_to_tensor(value)
      if value.shape.rank != 0:
        raise ValueError(
          f'`compute_step_loss` must return scalars; got shape {value.shape} '
          f'for {name!r}. Take the mean over the batch.'
        )
    return found

  def compile(
    self,
    optimizer: str | keras.Optimizer = 'adam',
    estimator_optimizer: str | keras.Optimizer | None = None,
    jit_compile: bool | Literal['auto'] = 'auto',
    **kwargs: Any,
  ) -> None:
    """Configures the model for training.

    Args:
      optimizer: A Keras optimizer.
      estimator_optimizer: A Keras optimizer for the variables of the estimator.
        Default: `optimizer` trains them, too.
      jit_compile: As in `keras.Model.compile`. With several replicas only the
        gradient is compiled, because Keras cannot compile an optimizer there;
        nothing is compiled if the estimator exchanges averages in every step
        (`NVIL` with `center` or `normalize`).
      **kwargs: Other arguments of `keras.Model.compile`, except for losses and
        metrics.

    Raises:
      ValueError: A layer is not built, or a loss or metrics are given.
    """
    _compile_checks.check_layers(self.layers)
    _compile_checks.check_no_losses(kwargs)
    strategy = self.distribute_strategy
    num_replicas = strategy.num_replicas_in_sync
    self._loss_share = 1.0 / num_replicas  # The optimizer sums over replicas.
    self._gradients = self._plain_gradients
    if num_replicas > 1 or isinstance(
      strategy, tf.distribute.MultiWorkerMirroredStrategy
    ):
      if jit_compile and not self.estimator.keeps_averages:
        self._gradients = tf.function(
          self._plain_gradients, autograph=False, jit_compile=True
        )
      jit_compile = False
    super().compile(optimizer=optimizer, jit_compile=jit_compile, **kwargs)
    if estimator_optimizer is not None:
      estimator_optimizer = keras.optimizers.get(estimator_optimizer)
    self.estimator_optimizer = estimator_optimizer
    variables = [v.value for v in self.trainable_variables]
    self._variable_groups = [(self.optimizer, variables)]
    num_own = len(self.estimator_layer.trainable_variables)
    if estimator_optimizer is not None and num_own:
      _compile_checks.check_averages(self.optimizer, estimator_optimizer)
      self._variable_groups = [
        (self.optimizer, variables[:-num_own]),
        (self.estimator_optimizer, variables[-num_own:]),
      ]
    for group_optimizer, variables in self._variable_groups:
      group_optimizer.build(variables)

  def fit(self, *args: Any, **kwargs: Any) -> keras.callbacks.History:
    check_one_worker(self.distribute_strategy, 'fit', 'distributed_fit')
    call = inspect.signature(super().fit).bind(*args, **kwargs)
    call.apply_defaults()
    given = call.arguments
    if _stacks.has_stacks(given['x'], self.batch_rank):
      if not self.loops_over_stacks:
        given['x'], given['steps_per_epoch'] = _stacks.unstacked(
          given['x'], given['steps_per_epoch']
        )
      elif given['verbose'] != 0 and not _stacks.has_progress(
        given['callbacks']
      ):
        shown = _stacks.StepProgress()
        given['callbacks'] = [given['callbacks'] or [], shown]
    return super().fit(*call.args, **call.kwargs)

  @property
  def serving_signature(self) -> tf.TensorSpec | None:
    """The input of `call` in an exported model, by default that of `fit`."""
    return self._batch_signature

  def export(self, *args: Any, **kwargs: Any) -> None:
    call = inspect.signature(super().export).bind(*args, **kwargs)
    call.apply_defaults()
    if call.arguments['input_signature'] is None:
      if self.serving_signature is None:
        raise ValueError(
          '`input_signature` must be given for a model that was not trained, '
          'because the shape of its inputs is unknown; got None. Call `fit` '
          'first, or pass a list with one `tf.TensorSpec`.'
        )
      call.arguments['input_signature'] = [self.serving_signature]
    super().export(*call.args, **call.kwargs)

  def train_step(
    self, data: tf.Tensor | tuple[tf.Tensor, ...]
  ) -> dict[str, tf.Tensor]:
    batch = _as_tuple(data)
    rank = batch[0].shape.rank
    if self.batch_rank is not None and rank is None:
      raise ValueError(
        'All batches must have the same rank after `compile`; got batches of '
        'different ranks. Call `compile` again before you change the rank.'
      )
    if self.batch_rank is not None and rank == self.batch_rank + 1:
      names = self._train_on_stack(batch)
    else:
      names = self._train_on_batch(batch)
    return self._trackers.results(names)

  def _train_on_stack(self, stack: tuple[tf.Tensor, ...]) -> list[str]:
    """Trains on several batches, in a loop inside one compiled call."""
    num_replicas = self.distribute_strategy.num_replicas_in_sync
    return _stacks.train_in_loop(self._train_on_batch, stack, num_replicas)

  def _train_on_batch(self, batch: tuple[tf.Tensor, ...]) -> list[str]:
    """Makes one step, and returns the names of its metrics."""
    # The number of steps is saved, so a resumed run makes the same draws as an
    # uninterrupted one.
    gradients, values = self._gradients(batch, self._seed(self.step))
    for (optimizer, variables), group in zip(
      self._variable_groups, gradients, strict=True
    ):
      optimizer.apply(group, variables)
    return self._trackers.update(values)

  def _plain_gradients(
    self, batch: tuple[tf.Tensor, ...], seed: StatelessSeed
  ) -> Any:
    """Returns a list of gradients for each optimizer, and the metrics."""
    # The scale differs from 1 only in float16, where Keras' optimizer divides
    # the gradient by it.
    scale = self.optimizer.scale_loss(tf.constant(1.0))
    self._batch_signature = tf.TensorSpec(
      [None, *batch[0].shape[1:]], batch[0].dtype
    )
    with tf.GradientTape() as tape:
      values = self.step_metrics(batch, seed)
      own_share = (self._loss_share * scale) * values['loss']
    groups = [variables for _, variables in self._variable_groups]
    gradients = tape.gradient(own_share, groups)
    if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
      # Keras' optimizer skips steps that overflow until it has found a scale.
      gradients[1:] = [
        [tf.math.multiply_no_nan(g / scale, _is_finite(g)) for g in group]
        for group in gradients[1:]
      ]
    return gradients, values

  def _seed(self, step: int | tf.Tensor) -> tf.Tensor:
    """Returns the seed of a training step, a different one on each replica."""
    replica = tf.distribute.get_replica_context()
    number = 0 if replica is None else replica.replica_id_in_sync_group
    return tf.stack([self.seed + 1_000_003 * number, step])

  def test_step(
    self, data: tf.Tensor | tuple[tf.Tensor, ...]
  ) -> dict[str, tf.Tensor]:
    batch = _as_tuple(data)
    # An estimator may keep averages, which an evaluation must not change.
    state = [v for v in self.estimator.variables if not v.trainable]
    before = [tf.identity(v) for v in state]
    values = self.step_metrics(batch, self._test_seed(batch[0]))
    for variable, value in zip(state, before, strict=True):
      variable.assign(value)
    return self._trackers.results(self._trackers.update(values))

  def _test_seed(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the seed of an evaluation of a batch, always the same."""
    x = tf.convert_to_tensor(x)
    if x.dtype.is_floating:
      x = tf.bitcast(tf.cast(x, tf.float32), tf.int32)
    total = tf.reduce_sum(tf.cast(x, tf.int32))
    return tf.stack([self.seed, -1 - total])

  def evaluate(self, *args: Any, **kwargs: Any) -> Any:
    check_one_worker(
      self.distribute_strategy, 'evaluate', 'distributed_evaluate'
    )
    # Keras 3.12 returns Tensors if a model has metrics without a test value.
    found = super().evaluate(*args, **kwargs)
    as_number = lambda x: float(x) if tf.is_tensor(x) else x
    return tf.nest.map_structure(as_number, found)


def _as_tuple(data: Any) -> tuple[tf.Tensor, ...]:
  return data if isinstance(data, tuple) else (data,)


def _is_finite(x: tf.Tensor) -> tf.Tensor:
  """Returns 1 if all entries are finite, else 0."""
  return tf.cast(tf.reduce_all(tf.math.is_finite(x)), x.dtype)
