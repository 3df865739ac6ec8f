"""A Keras layer that holds an estimator, and with it its variables."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_rb.estimators.base import GradientEstimator, check_estimator
from tfp_rb.internal.config import deserialize, serialize

__all__ = ['EstimatorLayer']


@keras.saving.register_keras_serializable('tfp_rb')
class EstimatorLayer(keras.layers.Layer):
  """Holds a `tfp_rb.GradientEstimator` inside a Keras model.

  Keras tracks and saves variables of its own only. Those of an estimator (the
  baseline of `NVIL`, the control variate of `RELAX`) would neither be trained
  nor saved; this layer saves them with the model, and names them for whoever
  trains it.

  #### Examples

  ```python
  layer = tfp_rb.models.EstimatorLayer(
      tfp_rb.REINFORCE(tfp_rb.baselines.Learned(2.)))
  layer.estimator_variables[0].numpy()  # ==> 2.0
  ```
  """

  def __init__(self, estimator: GradientEstimator, **kwargs: Any) -> None:
    """Makes the layer.

    Args:
      estimator: A `GradientEstimator`; its networks have to be built.
      **kwargs: As of every layer.

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
            f'`estimator` must have networks that are built, but `{name}` of '
            f'`{type(module).__name__}` is not, and would never be trained. '
            f'Call `{name}.build(input_shape)` first.'
          )
    self.estimator = estimator
    self.built = True

  @property
  def estimator_variables(self) -> list[tf.Variable]:
    """What an optimizer is given: the trainable variables of the estimator."""
    return [
      v if isinstance(v, tf.Variable) else v.value  # Keras wraps its own
      for v in self.estimator.trainable_variables
    ]

  @property
  def needs_vectors(self) -> bool:
    """Whether atoms have to be one-hot vectors of floating point."""
    return self.estimator.needs_vectors

  @property
  def differentiates_f(self) -> bool:
    """Whether atoms are points between these, too."""
    return self.estimator.differentiates_f

  def at_step(
    self, step: int | tf.Tensor, inputs: tf.Tensor
  ) -> GradientEstimator:
    """The estimator as it is for one step.

    Args:
      step: `Tensor`, the number of steps before; temperatures follow it.
      inputs: `Tensor`, what the network of `NVIL` is given, and the control
        variate of `RELAX` if it asks for more than the atoms.

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
      store[str(i)] = np.asarray(variable)

  def load_own_variables(self, store: Any) -> None:
    variables = self.estimator.variables
    if len(store.keys()) != len(variables):
      raise ValueError(
        f'The file must have the {len(variables)} variables of '
        f'{self.estimator!r}, but has {len(store.keys())}. Build the model '
        'with the estimator it was saved with.'
      )
    for i, variable in enumerate(variables):
      variable.assign(store[str(i)])
