# SPDX-License-Identifier: Apache-2.0
"""Converts estimators, baselines and samplers to plain data and back."""

import importlib
import inspect
import sys
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = [
  'Configurable',
  'REGISTRY',
  'deserialize',
  'is_config',
  'is_configurable',
  'serialize',
]

_BIJECTORS = {
  'Exp': tfp.bijectors.Exp,
  'Softplus': tfp.bijectors.Softplus,
}
_Self = TypeVar('_Self', bound='Configurable')

# Maps registered names to classes. A config can load only these classes, and
# those that their authors registered with Keras.
REGISTRY: dict[str, type['Configurable']] = {}


class Configurable(tf.Module):
  """Extends `tf.Module` with conversions to plain data and back.

  The constructor stores each of its arguments in an attribute of the same name.
  `get_config` collects them as data that JSON can hold. A nested estimator or
  baseline becomes a dictionary in the format of Keras,

  ```none
  {'module': ..., 'class_name': ..., 'config': ..., 'registered_name': ...}
  ```

  a Tensor becomes a list with its dtype, and a Keras network is serialized by
  Keras. A config holds the current value of a variable that is an argument, but
  not the variables of networks: save these with `tf.train.Checkpoint`.

  A config refers to a class by its registered name. Subclasses are registered
  when they are defined: those of this library as `tfp_rb>REINFORCE`, others as
  `module>Class`. Decorate your class with
  `keras.saving.register_keras_serializable('my_package')` to choose a name that
  does not change when the class moves to another module.
  """

  def __init_subclass__(cls, **kwargs: Any) -> None:
    super().__init_subclass__(**kwargs)
    REGISTRY[_default_name(cls.__module__, cls.__qualname__)] = cls

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
    """Returns the constructor's arguments as plain data that JSON can hold."""
    config = {}
    for name in self._argument_names():
      where = f'{type(self).__name__}.{name}'
      if not hasattr(self, name):
        raise TypeError(
          f'`{where}` must store the argument `{name}` of the constructor to '
          'be written into a config; got an object without this attribute. '
          'Store it, or override `get_config`.'
        )
      config[name] = serialize(getattr(self, name), where)
    return config

  @classmethod
  def from_config(cls: type[_Self], config: dict[str, Any]) -> _Self:
    """Returns a new object built from the result of `get_config`."""
    return cls(**{name: deserialize(v) for name, v in config.items()})


def serialize(value, where='estimator'):
  """Returns an estimator, or one of its settings, as data for JSON."""
  if isinstance(value, Configurable):
    kind = type(value)
    return {
      'module': kind.__module__,
      'class_name': kind.__name__,
      'config': value.get_config(),
      'registered_name': _registered_name(kind),
    }
  if isinstance(value, tfp.util.TransformedVariable):
    return _serialize_transformed(value, where)
  if isinstance(value, tf.Variable):
    return {
      'variable': value.numpy().tolist(),
      'dtype': value.dtype.name,
      'trainable': value.trainable,
    }
  # Test for this before Python floats, because some NumPy scalars are both.
  if tf.is_tensor(value) or isinstance(value, (np.ndarray, np.generic)):
    array = np.asarray(value)
    return {'tensor': array.tolist(), 'dtype': array.dtype.name}
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  if _is_of_keras(value):
    return {'keras': _keras_saving().serialize_keras_object(value)}
  raise TypeError(
    f'`{where}` must be a number, a Tensor, a Keras network or an object of '
    f'this library to be written into a config; got {value!r}. Rebuild the '
    'object in code instead.'
  )


def _serialize_transformed(value, where):
  """Returns a positive variable (a learned temperature) as plain data."""
  kind = type(value.bijector)
  bijector = kind.__name__
  # The config holds only the bijector's name, so default settings are required.
  settings = {
    name: setting
    for name, setting in value.bijector.parameters.items()
    if name not in ('name', 'validate_args') and setting is not None
  }
  if kind is not _BIJECTORS.get(bijector) or settings:
    names = ' or '.join(f'`{name}()`' for name in _BIJECTORS)
    raise TypeError(
      f'`{where}` must be transformed by {names} to be written into a config; '
      f'got `{bijector}` with settings {settings}. Rebuild the object in code '
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
  # The core imports Keras only when it meets a Keras object.
  return importlib.import_module('keras').saving


def deserialize(value):
  """Inverts `serialize`."""
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
      _bijector_named(value.get('bijector'))(),
    )
  if 'keras' in value:
    return _keras_saving().deserialize_keras_object(value['keras'])
  return _class_of(value).from_config(value['config'])


def _bijector_named(name):
  """Returns the bijector class of this name, or raises if it is unknown."""
  if not isinstance(name, str) or name not in _BIJECTORS:
    raise ValueError(
      f'`bijector` of a config must be one of {", ".join(_BIJECTORS)}; got '
      f'{name!r}. Rebuild the object in code, or repair the config.'
    )
  return _BIJECTORS[name]


def _default_name(module, qualified_name):
  """Returns the registered name of a class if its author chose none."""
  # Leave out this library's modules: a class that moves must still load.
  package = 'tfp_rb' if module.split('.')[0] == 'tfp_rb' else module
  return f'{package}>{qualified_name}'


def _registered_name(kind):
  keras = sys.modules.get('keras')
  if keras is not None:
    name = keras.saving.get_registered_name(kind)
    if name != kind.__name__:  # Keras returns this for unregistered classes.
      return name
  return _default_name(kind.__module__, kind.__qualname__)


def is_configurable(value):
  """Returns whether a value is an estimator, baseline or sampler."""
  return isinstance(value, Configurable)


def is_config(value):
  """Returns whether plain data describes an estimator, baseline or sampler."""
  return isinstance(value, dict) and bool(_find_classes(value))


def _class_of(value):
  """Returns the class that a config names."""
  class_name, found = value.get('class_name'), _find_classes(value)
  if len(found) == 1:
    return found[0]
  if found:
    names = ', '.join(sorted(map(_registered_name, found)))
    raise ValueError(
      f'`class_name` must name one class; got {class_name!r}, which may mean '
      f'any of {names}. Import only one of them before you load.'
    )
  raise ValueError(
    '`class_name` must name an estimator, baseline or sampler that is '
    f'imported; got {value.get("registered_name", class_name)!r}. Import the '
    'module that defines it before you load. If the class was renamed or '
    f'moved, pass `custom_objects={{{class_name!r}: ...}}` to '
    '`keras.models.load_model`.'
  )


def _find_classes(value):
  """Returns the classes that a config may mean, ideally a single one."""
  class_name = value.get('class_name')
  if 'registered_name' in value:
    name = value['registered_name']
    # The bare class name may be a key in `custom_objects` of `load_model`.
    found = [_in_keras(name) or REGISTRY.get(name) or _in_keras(class_name)]
  else:
    found = _classes_of_0_1(value.get('module') or '', class_name)
  return [kind for kind in found if kind is not None]


def _in_keras(name):
  """Returns the class that a user registered with Keras, if there is one."""
  keras = sys.modules.get('keras')
  kind = keras and keras.saving.get_registered_object(name)
  is_ours = isinstance(kind, type) and issubclass(kind, Configurable)
  return kind if is_ours else None


def _classes_of_0_1(module, class_name):
  """Returns the classes that a config of version 0.1 may mean.

  Such a config has no registered name, and the module that it names may have
  moved. So the class name decides; if several classes share it, the module
  decides among them.
  """
  exact = REGISTRY.get(_default_name(module, class_name))
  if exact is not None or module.split('.')[0] == 'tfp_rb':
    return [exact]
  found = [
    kind
    for name, kind in list(REGISTRY.items())
    if kind.__name__ == class_name and not name.startswith('tfp_rb>')
  ]
  return [kind for kind in found if kind.__module__ == module] or found
