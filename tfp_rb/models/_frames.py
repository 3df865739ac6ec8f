# SPDX-License-Identifier: Apache-2.0
"""Places digits in frames, and cuts windows out of frames."""

import tensorflow as tf

from tfp_rb.internal import random

__all__ = ['Frames']


class Frames:
  """Handles frames of `size` by `size` pixels, and windows cut out of them.

  A window has `window` by `window` pixels.

  A location is the number of a pixel, row by row. Its window begins `half`
  pixels above and left of it, and may reach beyond the frame.
  """

  def __init__(self, size, window):
    self.size, self.window = size, window
    self.half = window // 2
    self.num_locations = size**2

  def flat(self, frames):
    return tf.reshape(frames, [-1, self.num_locations])

  def place(self, digits, seed):
    """Puts each digit at a random place of its own frame.

    As in the authors' code, a digit never reaches the last row or column.

    Args:
      digits: `Tensor` of shape `[B, window, window]`.
      seed: Stateless seed, `int32[2]`.

    Returns:
      frames: `Tensor` of shape `[B, size, size]`.
      locations: `int32` `Tensor` of shape `[B]`.
    """
    num_places = max(1, self.size - self.window)
    u = random.uniform([2, tf.shape(digits)[0]], seed, tf.float32)
    starts = tf.cast(u * float(num_places), tf.int32)
    starts = tf.minimum(starts, num_places - 1)  # The product may round up.
    row, column = tf.unstack(starts + self.half)
    locations = row * self.size + column
    return self.paste(digits, locations), locations

  def paste(self, digits, locations):
    """Returns empty frames with digits at locations, cropped at the border.

    Args:
      digits: `Tensor` of shape `[B, window, window]` or `[B, window**2]`.
      locations: `Tensor` of integers, `[B]`.

    Returns:
      frames: `Tensor` of shape `[B, size, size]`.
    """
    # [B, size, window]: 1 where a row of the frame shows a row of the digit.
    rows, columns = (
      tf.one_hot(
        tf.range(self.size) - start[:, tf.newaxis],
        self.window,
        dtype=tf.float32,
      )
      for start in self._starts(locations)
    )
    digits = tf.reshape(digits, [-1, self.window, self.window])
    return tf.linalg.matmul(
      rows, tf.linalg.matmul(digits, columns, transpose_b=True)
    )

  def _starts(self, locations):
    """Returns first row and first column of the windows, `[m, B]` each."""
    locations = tf.cast(locations, tf.int32)
    row, column = locations // self.size, locations % self.size
    return row - self.half, column - self.half

  def windows(self, frames, locations):
    """Returns the windows at locations, with 0 outside of the frame.

    Args:
      frames: `Tensor` of shape `[B, size, size]`.
      locations: `Tensor` of integers, `[m, B]`.

    Returns:
      windows: `Tensor` of shape `[m, B, window * window]`.
    """
    padded = self._padded(frames)
    width = self.size + self.window - 1
    row, column = (start + self.half for start in self._starts(locations))
    offsets = tf.range(self.window)
    offsets = offsets[:, tf.newaxis] * width + offsets
    first = (row * width + column)[..., tf.newaxis]
    index = first + tf.reshape(offsets, [-1])
    index = tf.transpose(index, [1, 0, 2])
    padded = tf.reshape(padded, [-1, width**2])
    return tf.transpose(tf.gather(padded, index, batch_dims=1), [1, 0, 2])

  def _padded(self, frames):
    after = self.window - self.half - 1
    return tf.pad(frames, [[0, 0], [self.half, after], [self.half, after]])

  def is_inside(self, locations):
    """Returns 1 for the pixels of the windows that lie in the frame, else 0.

    Args:
      locations: `Tensor` of integers, `[m, B]`.

    Returns:
      inside: `float32` `Tensor` of shape `[m, B, window * window]`.
    """
    rows, columns = (
      tf.cast((x >= 0) & (x < self.size), tf.float32)
      for x in (
        start[..., tf.newaxis] + tf.range(self.window)
        for start in self._starts(locations)
      )
    )
    inside = rows[..., :, tf.newaxis] * columns[..., tf.newaxis, :]
    return tf.reshape(inside, tf.concat([tf.shape(locations), [-1]], axis=0))

  def soft_windows(self, frames, weights):
    """Returns weighted sums of the windows at all locations.

    They are correlations of frames and weights. Fourier transforms compute
    these, so the windows of all locations are never in memory at once. (A
    grouped convolution takes ten times as long on a CPU.)

    Args:
      frames: `Tensor` of shape `[B, size, size]`.
      weights: `Tensor` of shape `[m, B, size * size]`.

    Returns:
      windows: `Tensor` of shape `[m, B, window * window]`.
    """
    length = self.size + self.window - 1  # With this length, nothing wraps.
    length += length % 2
    shape = [length, length]
    weights = tf.reshape(
      weights, tf.concat([tf.shape(weights)[:-1], [self.size] * 2], axis=0)
    )
    transform = lambda x: tf.signal.rfft2d(x, fft_length=shape)
    product = transform(self._padded(frames)) * tf.math.conj(transform(weights))
    windows = tf.signal.irfft2d(product, fft_length=shape)
    windows = windows[..., : self.window, : self.window]
    return tf.reshape(
      windows, tf.concat([tf.shape(windows)[:-2], [self.window**2]], axis=0)
    )

  def distance(self, locations, others):
    """Returns the distance between locations in pixels."""
    apart = [
      tf.cast(a - b, tf.float32)
      for a, b in zip(
        self._starts(locations), self._starts(others), strict=True
      )
    ]
    return tf.sqrt(apart[0] ** 2 + apart[1] ** 2)
