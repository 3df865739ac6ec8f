# SPDX-License-Identifier: Apache-2.0
"""Writes the arguments of a Keras model to a config, and reads them back."""

import inspect
from typing import Any, TypeVar

import keras

from tfp_rb.internal import config as configs

__all__ = ['ConfiguredModel']

_Self = TypeVar('_Self', bound='ConfiguredModel')


class ConfiguredModel(keras.Model):
  """Base class of models whose config holds the constructor's arguments.

  A subclass has the attributes `estimator` and `estimator_optimizer`, and
  `compile` takes an argument `estimator_optimizer`.
  """

  def __new__(cls, *args: Any, **kwargs: Any) -> 'ConfiguredModel':
    model = super().__new__(cls, *args, **kwargs)
    # Record the arguments for `get_config`: Keras records only plain ones.
    signature = inspect.signature(cls.__init__)
    model._arguments = signature.bind(None, *args, **kwargs)
    model._arguments.apply_defaults()
    return model

  def get_config(self) -> dict[str, Any]:
    config: dict[str, Any] = {}
    keras_config = super().get_config()
    given = self._arguments.arguments
    parameters = list(self._arguments.signature.parameters.values())[1:]
    for parameter in parameters:
      if parameter.kind is inspect.Parameter.VAR_KEYWORD:
        # The other arguments of `keras.Model`, such as its name.
        config = {**config, **given[parameter.name], **keras_config}
      elif parameter.name in keras_config:
        config[parameter.name] = keras_config[parameter.name]
      else:
        config[parameter.name] = given[parameter.name]
    if 'estimator' in config and config['estimator'] is None:
      config['estimator'] = self.estimator  # The default may change one day.
    return {name: _serialize(value, name) for name, value in config.items()}

  @classmethod
  def from_config(cls: type[_Self], config: dict[str, Any]) -> _Self:
    return cls(**{k: _deserialize(value, k) for k, value in config.items()})

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


def _serialize(value: Any, name: str) -> Any:
  if configs.is_configurable(value):
    return configs.serialize(value, name)
  return keras.saving.serialize_keras_object(value)


def _deserialize(value: Any, name: str) -> Any:
  if name == 'estimator' or configs.is_config(value):
    return configs.deserialize(value)
  return keras.saving.deserialize_keras_object(value)
