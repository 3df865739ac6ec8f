"""Plain-data configurations of estimators and baselines."""

import inspect

import numpy as np
import tensorflow as tf

__all__ = ['Configurable']


class Configurable(tf.Module):
  """A `tf.Module` that can be described by, and rebuilt from, plain data.

  The constructor keeps each of its arguments as an attribute of that name.
  `get_config` collects them; a nested estimator or baseline becomes
  `{'class_name': ..., 'config': ...}`, a Tensor a list with its dtype. The
  result can be written as JSON. Variables are not part of a configuration: save
  them with `tf.train.Checkpoint`.
  """

  @classmethod
  def _argument_names(cls):
    names = inspect.signature(cls.__init__).parameters
    return [name for name in names if name not in ('self', 'name')]

  def __repr__(self):
    settings = [
      f'{name}={getattr(self, name)!r}'
      for name in self._argument_names()
      if hasattr(self, name)
    ]
    return f'{type(self).__name__}({", ".join(settings)})'

  def get_config(self):
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
      config[name] = _serialize(getattr(self, name), where)
    return config

  @classmethod
  def from_config(cls, config):
    """Returns a new object built from the result of `get_config`."""
    return cls(**{name: _deserialize(v) for name, v in config.items()})


def _serialize(value, where):
  if isinstance(value, Configurable):
    return {'class_name': type(value).__name__, 'config': value.get_config()}
  # First, since some numpy scalars are Python floats as well.
  if tf.is_tensor(value) or isinstance(value, (np.ndarray, np.generic)):
    array = np.asarray(value)
    return {'tensor': array.tolist(), 'dtype': array.dtype.name}
  if value is None or isinstance(value, (bool, int, float, str)):
    return value
  raise TypeError(
    f'`{where}` must be a number, a Tensor or one of the objects of this '
    f'library to be written into a config, but is {value!r}. Rebuild the '
    'object in code instead.'
  )


def _deserialize(value):
  if not isinstance(value, dict):
    return value
  if 'tensor' in value:
    return tf.constant(value['tensor'], value['dtype'])
  for kind in _all_subclasses(Configurable):
    if kind.__name__ == value['class_name']:
      return kind.from_config(value['config'])
  raise ValueError(
    f'`class_name` must name an imported estimator or baseline, but is '
    f'{value["class_name"]!r}. Import the module that defines it first.'
  )


def _all_subclasses(kind):
  for child in kind.__subclasses__():
    yield child
    yield from _all_subclasses(child)
