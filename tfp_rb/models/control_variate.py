# SPDX-License-Identifier: Apache-2.0
"""Defines a network for the control variate of RELAX."""

from typing import Any

import keras
import tensorflow as tf

from tfp_rb.models._layers import MLP, ConcatDense

__all__ = ['ControlVariate']


@keras.saving.register_keras_serializable('tfp_rb')
class ControlVariate(keras.layers.Layer):
  """Computes a control variate for `RELAX` from the image and the atom.

  It has two hidden layers with ReLU. The part that depends on the image alone
  is computed once for all atoms. `estimator.bind(images)` passes the images of
  each step.

  #### Examples

  ```python
  network = tfp_rb.models.ControlVariate(input_size=784, atom_size=10)
  relax = tfp_rb.RELAX(network, temperature=0.5)
  images, atoms = tf.zeros([64, 784]), tf.zeros([3, 64, 10])
  network(atoms, images).shape  # ==> (3, 64)
  relax.bind(images)  # pass this to `tfp_rb.expectation` in each step
  ```
  """

  def __init__(
    self, input_size: int, *, atom_size: int, units: int = 128, **kwargs: Any
  ) -> None:
    """Makes the network and its variables.

    Args:
      input_size: Python `int`, the size of the images.
      atom_size: Python `int`, the size of the one-hot vectors.
      units: Python `int`, the size of each of the two hidden layers.
      **kwargs: Arguments of `keras.Layer`.
    """
    # The training objective is a squared gradient, which would overflow in half
    # precision.
    kwargs.setdefault('dtype', 'float32')
    super().__init__(**kwargs)
    self.sizes = (input_size, atom_size, units)
    precision = {'dtype': self.dtype_policy}
    self.first_layer = ConcatDense(units, input_size, atom_size, **precision)
    self.others = MLP(units, [units], 1, **precision)
    self.built = True

  def call(self, atoms: tf.Tensor, images: tf.Tensor) -> tf.Tensor:
    hidden = self.first_layer.of_first(images)
    hidden = tf.nn.relu(hidden + self.first_layer.of_second(atoms))
    return tf.squeeze(self.others(hidden), axis=-1)

  def get_config(self) -> dict[str, Any]:
    input_size, atom_size, units = self.sizes
    return {
      **super().get_config(),
      'input_size': input_size,
      'atom_size': atom_size,
      'units': units,
    }
