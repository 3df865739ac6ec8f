# SPDX-License-Identifier: Apache-2.0
"""Defines the layers that the models share."""

import keras
import tensorflow as tf

__all__ = ['ConcatDense', 'MLP', 'built_network', 'by_fan_in', 'dense_network']


def by_fan_in(fan_in):
  """Returns the uniform initializers that PyTorch uses by default."""
  limit = fan_in**-0.5
  uniform = lambda: keras.initializers.RandomUniform(-limit, limit)
  return {'kernel_initializer': uniform(), 'bias_initializer': uniform()}


@keras.saving.register_keras_serializable('tfp_rb')
class ConcatDense(keras.layers.Layer):
  """Implements a dense layer of two inputs with separate contributions.

  `of_first(x) + of_second(y)` equals `Dense(concat([x, y]))`, but the part that
  depends on `x` alone is not computed again for every value of `y`.
  """

  def __init__(self, units, first_size, second_size, **kwargs):
    super().__init__(**kwargs)
    self.units = units
    self.sizes = (first_size, second_size)
    limit = (6.0 / (first_size + second_size + units)) ** 0.5  # Glorot's range
    make = lambda name, size: self.add_weight(
      name=name,
      shape=[size, units],
      initializer=keras.initializers.RandomUniform(-limit, limit),
    )
    self.first = make('first', first_size)
    self.second = make('second', second_size)
    self.bias = self.add_weight(name='bias', shape=[units], initializer='zeros')
    self.built = True

  def of_first(self, x):
    """Returns the contribution of the first input, with the bias."""
    x, kernel, bias = (
      tf.cast(v, self.compute_dtype) for v in (x, self.first, self.bias)
    )
    return tf.linalg.matmul(x, kernel) + bias

  def of_second(self, y):
    """Returns the contribution of the second input."""
    y, kernel = (tf.cast(v, self.compute_dtype) for v in (y, self.second))
    return tf.tensordot(y, kernel, axes=1)

  def get_config(self):
    first_size, second_size = self.sizes
    return {
      **super().get_config(),
      'units': self.units,
      'first_size': first_size,
      'second_size': second_size,
    }


@keras.saving.register_keras_serializable('tfp_rb')
class MLP(keras.layers.Layer):
  """Stacks hidden dense layers and a linear layer, for inputs of any rank."""

  def __init__(
    self,
    input_size,
    hidden_units,
    output_size,
    activation='relu',
    uniform=False,
    **kwargs,
  ):
    super().__init__(**kwargs)
    self.sizes = (input_size, tuple(hidden_units), output_size)
    self.activation, self.uniform = activation, uniform
    sizes = [input_size, *hidden_units]
    starts = [by_fan_in(size) if uniform else {} for size in sizes]
    self.layers = [
      keras.layers.Dense(
        units, activation=activation, dtype=self.dtype_policy, **start
      )
      for units, start in zip(hidden_units, starts[:-1], strict=True)
    ]
    # The last layer is in float32 under any policy, and so are the losses.
    self.layers.append(
      keras.layers.Dense(output_size, dtype='float32', **starts[-1])
    )
    for layer, size in zip(self.layers, sizes, strict=True):
      layer.build([None, size])
    self.built = True

  def call(self, x):
    for layer in self.layers:
      x = layer(x)
    return x

  def get_config(self):
    input_size, hidden_units, output_size = self.sizes
    return {
      **super().get_config(),
      'input_size': input_size,
      'hidden_units': hidden_units,
      'output_size': output_size,
      'activation': self.activation,
      'uniform': self.uniform,
    }


def dense_network(hidden_units, output_size, slope, policy):
  """Returns hidden layers with leaky ReLU, followed by a linear layer."""
  layers = []
  for units in hidden_units:
    layers.append(keras.layers.Dense(units, dtype=policy))
    layers.append(keras.layers.LeakyReLU(negative_slope=slope, dtype=policy))
  # The last layer is in float32 even in mixed precision, for the losses.
  last = keras.layers.Dense(output_size, dtype=policy.variable_dtype)
  return keras.Sequential([*layers, last])


def built_network(network, input_size, output_size, name):
  """Builds a network unless it is built, and checks the size of its output.

  Args:
    network: A Keras layer or model that takes matrices.
    input_size: Python `int`.
    output_size: Python `int`.
    name: Python `str`, name of the argument, for the error message.

  Returns:
    network: The same network.
  """
  if not network.built:
    network.build([None, input_size])
  found = tuple(network.compute_output_shape((None, input_size)))
  if found != (None, output_size):
    raise ValueError(
      f'`{name}` must map [n, {input_size}] to [n, {output_size}]; got an '
      f'output of shape {found}. Change the size of its last layer.'
    )
  return network
