# SPDX-License-Identifier: Apache-2.0
"""Defines a Keras layer that holds an estimator and saves its variables."""

from typing import Any

import keras
import tensorflow as tf

from tfp_rb.estimators.base import GradientEstimator, check_estimator
from tfp_rb.internal.config import REGISTRY, deserialize, serialize

__all__ = ['EstimatorLayer']


class _SharedVariable(keras.Variable):
  """Wraps a `tf.Variable`, so that Keras treats it as one of its own."""

  def __init__(self, variable: tf.Variable) -> None:
    self._shared = variable
    super().__init__(
      tf.zeros_like,  # Keras does not call it: `_initialize` is overridden.
      shape=variable.shape,
      dtype=variable.dtype.name,
      trainable=variable.trainable,
      autocast=False,
      name=variable.name.split(':')[0].split('/')[-1],
    )

  def _initialize(self, value: Any) -> None:
    del value
    self._value = self._shared


# Register the estimators, so that Keras' own functions can save and load them.
for _name, _kind in REGISTRY.items():
  if _name.startswith('tfp_rb>'):
    keras.saving.register_keras_serializable('tfp_rb')(_kind)


@keras.saving.register_keras_serializable('tfp_rb')
class EstimatorLayer(keras.layers.Layer):
  """Holds a `tfp_rb.GradientEstimator` inside a Keras model.

  Keras knows only the variables of its own layers, not those of an estimator
  (the baseline of `NVIL`, the control variate of `RELAX`). This layer makes
  them part of the model: they are among its `trainable_variables` and
  `weights`, so that the optimizer of a custom `train_step` trains them, moving
  averages of the weights cover them, and files contain them.
  `tfp_rb.models.EstimatorModel` has a layer of this kind.

  #### Examples

  ```python
  layer = tfp_rb.models.EstimatorLayer(
      tfp_rb.REINFORCE(tfp_rb.baselines.Learned(2.)))
  layer.trainable_variables[0].numpy()  # ==> 2.0
  ```
  """

  def __init__(self, estimator: GradientEstimator, **kwargs: Any) -> None:
    """Makes the layer.

    Args:
      estimator: A `GradientEstimator`. Its networks must be built.
      **kwargs: Arguments of `keras.Layer`.

    Raises:
      TypeError: `estimator` is not a `GradientEstimator`.
      ValueError: A network of the estimator is not built.
    """
    super().__init__(**kwargs)
    check_estimator(estimator)
    for module in (estimator, *estimator.submodules):
      for name, value in vars(module).items():
        if isinstance(value, keras.Layer) and not value.built:
          raise ValueError(
            f'The networks of `estimator` must be built; got `{name}` of '
            f'`{type(module).__name__}` without variables, which would never '
            f'be trained. Call `{name}.build(input_shape)` first.'
          )
    self.estimator = estimator
    for variable in estimator.variables:
      if isinstance(variable, tf.Variable):  # Keras wraps its own variables.
        variable = _SharedVariable(variable)
      self._track_variable(variable)
    self.built = True

  @property
  def estimator_variables(self) -> list[tf.Variable]:
    """Raises an error, because `trainable_variables` replaces this property."""
    # Raise an error, because code that adds these variables to those of the
    # model would now train each of them twice.
    raise AttributeError(
      '`estimator_variables` was removed in version 0.2: the '
      '`trainable_variables` of the model contain the variables of the '
      'estimator. For a separate optimizer, use those of this layer.'
    )

  @property
  def needs_vectors(self) -> bool:
    """Whether the estimator needs floating-point one-hot vectors."""
    return self.estimator.needs_vectors

  @property
  def differentiates_f(self) -> bool:
    """Whether the estimator differentiates `f` with respect to the atoms."""
    return self.estimator.differentiates_f

  def at_step(
    self, step: int | tf.Tensor, inputs: tf.Tensor
  ) -> GradientEstimator:
    """Returns the estimator for one step.

    Args:
      step: The number of steps so far, on which temperatures depend.
      inputs: `Tensor`, passed to the network of `NVIL`, and to the control
        variate of `RELAX` if it takes more than the atoms.

    Returns:
      estimator: A `GradientEstimator` that shares all variables.
    """
    return self.estimator.at_step(step).bind(inputs)

  def get_config(self) -> dict[str, Any]:
    return {**super().get_config(), 'estimator': serialize(self.estimator)}

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> 'EstimatorLayer':
    config = dict(config)
    return cls(deserialize(config.pop('estimator')), **config)

  def save_own_variables(self, store: Any) -> None:
    for i, variable in enumerate(self.estimator.variables):
      store[str(i)] = variable.numpy()  # `numpy` supports mirrored variables.

  def load_own_variables(self, store: Any) -> None:
    variables = self.estimator.variables
    if len(store.keys()) != len(variables):
      raise ValueError(
        f'The file must hold the {len(variables)} variables of '
        f'{self.estimator!r}; got {len(store.keys())}. Make the model with the '
        'estimator that it had when it was saved.'
      )
    for i, variable in enumerate(variables):
      variable.assign(store[str(i)])
