"""Plain-data configurations of estimators and baselines."""

import importlib
import inspect
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = ['Configurable', 'deserialize', 'serialize']

_BIJECTORS = ('Exp', 'Softplus')
_Self = TypeVar('_Self', bound='Configurable')


class Configurable(tf.Module):
  """A `tf.Module` that can be described by, and rebuilt from, plain data.

  The constructor keeps each of its arguments as an attribute of that name.
  `get_config` collects them; a nested estimator or baseline becomes
  `{'class_name': ..., 'module': ..., 'config': ...}`, a Tensor a list with its
  dtype, a Keras network what Keras makes of it, all fit for JSON. Of a
  variable it holds the present value; the variables of networks are not part of
  a configuration: save them with `tf.train.Checkpoint`.
  """

  @classmethod
  def _argument_names(cls):
    names = inspect.signature(cls.__init__).parameters
    return [name for name in names if name not in ('self', 'name')]

  def __repr__(self):
    settings = [
      f'{name}={getattr(self, name)!r}'
      for name in self._argument_names()
      if getattr(self, name, None) is not None
    ]
    return f'{type(self).__name__}({", ".join(settings)})'

  def get_config(self) -> dict[str, Any]:
    """Returns the constructor's arguments as plain data, fit for JSON."""
    config = {}
    for name in self._argument_names():
      where = f'{type(self).__name__}.{name}'
      if not hasattr(self, name):
        raise TypeError(
          f'`{where}` must hold the argument `{name}` of the constructor for a '
          'config to be made, but there is no such attribute. Store it, or '
          'override `get_config`.'
        )
      config[name] = serialize(getattr(self, name), where)
    return config

  @classmethod
  def from_config(cls: type[_Self], config: dict[str, Any]) -> _Self:
    """Returns a new object built from the result of `get_config`."""
    return cls(**{name: deserialize(v) for name, v in config.items()})


def serialize(value, where='estimator'):
  """An estimator, or one of its settings, as plain data, fit for JSON."""
  if isinstance(value, Configurable):
    return {
      'class_name': type(value).__name__,
      'module': type(value).__module__,
      'config': value.get_config(),
    }
  if isinstance(value, tfp.util.TransformedVariable):
    return _serialize_transformed(value, where)
  if isinstance(value, tf.Variable):
    return {
      'variable': value.numpy().tolist(),
      'dtype': value.dtype.name,
      'trainable': value.trainable,
    }
  # First, since some numpy scalars are Python floats as well.
  if tf.is_tensor(value) or isinstance(value, (np.ndarray, np.generic)):
    array = np.asarray(value)
    return {'tensor': array.tolist(), 'dtype': array.dtype.name}
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  if _is_of_keras(value):
    return {'keras': _keras_saving().serialize_keras_object(value)}
  raise TypeError(
    f'`{where}` must be a number, a Tensor, a Keras network or one of the '
    f'objects of this library to be written into a config, but is {value!r}. '
    'Rebuild the object in code instead.'
  )


def _serialize_transformed(value, where):
  """A positive variable, as the errors of a temperature recommend it."""
  bijector = type(value.bijector).__name__
  if bijector not in _BIJECTORS:
    raise TypeError(
      f'`{where}` must be transformed by one of {_BIJECTORS} to be written '
      f'into a config, but is by `{bijector}`. Rebuild the object in code '
      'instead.'
    )
  present = np.asarray(tf.convert_to_tensor(value))
  return {
    'transformed': present.tolist(),
    'dtype': present.dtype.name,
    'bijector': bijector,
  }


def _is_of_keras(value):
  return any(
    kind.__module__.split('.')[0] == 'keras'
    and kind.__name__ == 'KerasSaveable'
    for kind in type(value).__mro__
  )


def _keras_saving():
  # Only where a Keras object is at hand: the core does not import Keras.
  return importlib.import_module('keras').saving


def deserialize(value):
  """The inverse of `serialize`."""
  if not isinstance(value, dict):
    return value
  if 'tensor' in value:
    return tf.constant(value['tensor'], value['dtype'])
  if 'variable' in value:
    return tf.Variable(
      value['variable'], value['trainable'], dtype=value['dtype']
    )
  if 'transformed' in value:
    return tfp.util.TransformedVariable(
      tf.constant(value['transformed'], value['dtype']),
      getattr(tfp.bijectors, value['bijector'])(),
    )
  if 'keras' in value:
    return _keras_saving().deserialize_keras_object(value['keras'])
  kinds = [
    kind
    for kind in _all_subclasses(Configurable)
    if kind.__name__ == value['class_name']
  ]
  # A class of that name may exist here and at the user's.
  kinds.sort(key=lambda kind: kind.__module__ != value.get('module'))
  if kinds:
    return kinds[0].from_config(value['config'])
  raise ValueError(
    f'`class_name` must name an imported estimator or baseline, but is '
    f'{value["class_name"]!r}. Import the module that defines it first.'
  )


def _all_subclasses(kind):
  for child in kind.__subclasses__():
    yield child
    yield from _all_subclasses(child)
