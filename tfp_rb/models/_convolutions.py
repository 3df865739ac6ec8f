# SPDX-License-Identifier: Apache-2.0
"""Defines convolutions with few channels."""

import keras
import numpy as np
import tensorflow as tf

from tfp_rb.models._layers import by_fan_in

__all__ = ['Convolutions']

# This table is 1 where a pixel of a block of two meets a pixel of a kernel of
# three. Its axes are [block, pixel in the block, pixel of the result, pixel of
# the kernel].
_MEETING = np.zeros([2, 2, 2, 3], np.float32)
for _block, _inside, _result in np.ndindex(2, 2, 2):
  if 0 <= 2 * _block + _inside - _result < 3:
    _MEETING[_block, _inside, _result, 2 * _block + _inside - _result] = 1.0


@keras.saving.register_keras_serializable('tfp_rb')
class Convolutions(keras.layers.Layer):
  """Stacks unpadded convolutions of 3 by 3, with ReLU after all but the last.

  Convolutions with few channels are slow. If height and width are even, this
  layer turns blocks of 2 by 2 pixels into channels, and computes the same
  numbers with convolutions of 2 by 2 with four times the channels. On a CPU
  this takes a third to a half of the time.
  """

  def __init__(self, size, channels, **kwargs):
    """Makes the layers, initialised as in the authors' code.

    Args:
      size: Python `int`, height and width of the images.
      channels: Number of channels of each layer.
      **kwargs: Arguments of `keras.Layer`.
    """
    super().__init__(**kwargs)
    self.settings = {'size': size, 'channels': tuple(channels)}
    self.output_size = size - 2 * len(channels)
    self.layers = []
    for before, after in zip((1, *channels), channels):
      layer = keras.layers.Conv2D(after, 3, **by_fan_in(9 * before))
      layer.build([None, None, None, before])
      self.layers.append(layer)
    self.built = True

  def call(self, images):
    """Maps images `[B, size, size]` to outputs `[B, output_size**2]`."""
    is_even = self.settings['size'] % 2 == 0
    hidden = tf.cast(images, self.compute_dtype)[..., tf.newaxis]
    if is_even:
      hidden = tf.nn.space_to_depth(hidden, 2)
    for layer in self.layers:
      kernel, bias = (
        tf.cast(v, self.compute_dtype) for v in (layer.kernel, layer.bias)
      )
      if is_even:
        kernel, bias = _of_blocks(kernel), tf.tile(bias, [4])
      hidden = tf.nn.conv2d(hidden, kernel, strides=1, padding='VALID') + bias
      if layer is not self.layers[-1]:
        hidden = tf.nn.relu(hidden)
    if is_even:
      hidden = tf.nn.depth_to_space(hidden, 2)
    return tf.reshape(hidden, [-1, self.output_size**2])

  def get_config(self):
    return {**super().get_config(), **self.settings}


def _of_blocks(kernel):
  """Returns the kernel between blocks, `[2, 2, 4 * inputs, 4 * outputs]`."""
  inputs, outputs = kernel.shape[2:]
  meeting = tf.cast(_MEETING, kernel.dtype)
  kernel = tf.einsum('apqk,brsl,klio->abpriqso', meeting, meeting, kernel)
  return tf.reshape(kernel, [2, 2, 4 * inputs, 4 * outputs])
