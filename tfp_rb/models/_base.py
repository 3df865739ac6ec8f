"""What the models share: an expectation, its estimator, and their steps."""

import abc
from typing import Any, Literal, TypeVar

import keras
import tensorflow as tf

from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal.config import deserialize, serialize
from tfp_rb.internal.types import StatelessSeed
from tfp_rb.models._steps import over_batches
from tfp_rb.models.estimator_layer import EstimatorLayer

__all__ = ['EstimatorModel']

_Self = TypeVar('_Self', bound='EstimatorModel')


class EstimatorModel(keras.Model):
  """A model with one expectation over a discrete variable in its loss.

  A model defines `step_loss`. `fit` may be given several batches at once, with
  one more axis in front: these steps run inside one compiled call.
  """

  def __init__(
    self,
    estimator: GradientEstimator,
    seed: int,
    settings: dict[str, Any],
    **kwargs: Any,
  ) -> None:
    """Stores the settings.

    Args:
      estimator: A `GradientEstimator`.
      seed: Python `int`, of the noise of all steps.
      settings: Dictionary, the other arguments of the model's `__init__`.
      **kwargs: As of every model.
    """
    super().__init__(**kwargs)
    self.seed = seed
    self._settings = {**settings, 'seed': seed}
    self.estimator_layer = EstimatorLayer(estimator, name='estimator')
    self.estimator_optimizer = None
    self._loss_metric = keras.metrics.Mean(name='loss')
    self._rest_metric = keras.metrics.Mean(name='rest')

  @property
  def batch_rank(self) -> int:
    """The rank of the first element of a single batch."""
    return 2

  @abc.abstractmethod
  def step_loss(
    self,
    batch: tuple[tf.Tensor, ...],
    seed: StatelessSeed,
    step: int | tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss of one step.

    Args:
      batch: Tuple of `Tensor`s, as `fit` was given them.
      seed: Stateless seed, `int32[2]`, of this step.
      step: The number of steps before.

    Returns:
      loss: Scalar `Tensor`.
      rest: Scalar `Tensor`, the mean mass beside the most probable atom.
    """

  @property
  def estimator(self) -> GradientEstimator:
    """The gradient estimator."""
    return self.estimator_layer.estimator

  def evaluate(self, *args: Any, **kwargs: Any) -> Any:
    # Keras 3.12 returns Tensors where a model has more metrics than it tests.
    found = super().evaluate(*args, **kwargs)
    as_number = lambda x: float(x) if tf.is_tensor(x) else x
    return tf.nest.map_structure(as_number, found)

  def get_config(self) -> dict[str, Any]:
    config = {**self._settings, 'estimator': serialize(self.estimator)}
    return {**super().get_config(), **config}

  @classmethod
  def from_config(cls: type[_Self], config: dict[str, Any]) -> _Self:
    config = dict(config)
    return cls(deserialize(config.pop('estimator')), **config)

  def compile(
    self,
    optimizer: str | keras.Optimizer = 'adam',
    estimator_optimizer: str | keras.Optimizer | None = None,
    jit_compile: bool | Literal['auto'] = 'auto',
    **kwargs: Any,
  ) -> None:
    """As of every model.

    Args:
      optimizer: A Keras optimizer.
      estimator_optimizer: Another one, for the variables of the estimator.
        Default: they are trained by `optimizer`, too.
      jit_compile: As of every model. On several replicas the gradient alone is
        compiled, since Keras cannot compile an optimizer there.
      **kwargs: As of every model.
    """
    num_replicas = self.distribute_strategy.num_replicas_in_sync
    self._loss_share = 1.0 / num_replicas  # the optimizer sums over replicas
    self._gradients = self._plain_gradients
    if num_replicas > 1:
      if jit_compile:
        self._gradients = tf.function(
          self._plain_gradients, autograph=False, jit_compile=True
        )
      jit_compile = False
    super().compile(optimizer=optimizer, jit_compile=jit_compile, **kwargs)
    if estimator_optimizer is not None:
      estimator_optimizer = keras.optimizers.get(estimator_optimizer)
    self.estimator_optimizer = estimator_optimizer
    own = self.estimator_layer.estimator_variables
    model = [v.value for v in self.trainable_variables]
    if estimator_optimizer is None:
      model, own = model + own, []
    self._variable_groups = [(self.optimizer, model)]
    if own:
      self._variable_groups.append((self.estimator_optimizer, own))
    for group_optimizer, variables in self._variable_groups:
      group_optimizer.build(variables)

  def get_compile_config(self) -> dict[str, Any]:
    config = super().get_compile_config()
    if not config:  # not compiled
      return config
    optimizer = self.estimator_optimizer
    config['estimator_optimizer'] = optimizer and (
      keras.saving.serialize_keras_object(optimizer)
    )
    return config

  def compile_from_config(self, config: dict[str, Any]) -> None:
    config = keras.saving.deserialize_keras_object(config)
    self.compile(**config)

  def train_step(
    self, data: tf.Tensor | tuple[tf.Tensor, ...]
  ) -> dict[str, tf.Tensor]:
    data = data if isinstance(data, tuple) else (data,)
    if data[0].shape.rank is None:
      raise ValueError(
        'Batches must have one rank as long as a model is compiled, since '
        'Keras forgets the rank where it changes, but now another one came. '
        'Call `compile` again.'
      )
    values = over_batches(self._one_step, data, rank=self.batch_rank)
    metrics = (self._loss_metric, self._rest_metric)
    for metric, value in zip(metrics, values, strict=True):
      metric.update_state(value)
    return {metric.name: metric.result() for metric in metrics}

  def _one_step(self, *batch):
    # The count of steps is saved, so a resumed run draws what it would have.
    step = tf.cast(self.optimizer.iterations, tf.int32)
    groups, loss, rest = self._gradients(batch, self._seed(step), step)
    for (optimizer, variables), gradients in zip(
      self._variable_groups, groups, strict=True
    ):
      optimizer.apply(gradients, variables)
    return loss, rest

  def _plain_gradients(self, batch, seed, step):
    """Gradients by the groups of variables, the loss, and `q(rest)`."""
    # Not 1 in float16 only, where Keras' optimizer divides by it.
    scale = self.optimizer.scale_loss(tf.constant(1.0))
    with tf.GradientTape() as tape:
      loss, rest = self.step_loss(batch, seed, step)
      own_share = (self._loss_share * scale) * loss
    groups = [variables for _, variables in self._variable_groups]
    gradients = tape.gradient(own_share, groups)
    if isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer):
      # It also skips a step that overflows, until it has found its scale.
      gradients[1:] = [
        [tf.math.multiply_no_nan(g / scale, _is_finite(g)) for g in group]
        for group in gradients[1:]
      ]
    return gradients, loss, rest

  def _seed(self, step):
    replica = tf.distribute.get_replica_context()
    number = 0 if replica is None else replica.replica_id_in_sync_group
    return tf.stack([self.seed + 1_000_003 * number, step])

  def _test_seed(self, images):
    """Of an evaluation: the same each time, another one for each batch."""
    total = tf.reduce_sum(tf.cast(images, tf.int32))
    return tf.stack([self.seed, -1 - total])


def _is_finite(x):
  """1 if all entries are finite, else 0."""
  return tf.cast(tf.reduce_all(tf.math.is_finite(x)), x.dtype)
