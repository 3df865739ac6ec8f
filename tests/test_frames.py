# SPDX-License-Identifier: Apache-2.0
"""Frames, windows and convolutions, compared with pixel-by-pixel versions."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from internals import Convolutions, Frames
from reference import naive_window

RNG = np.random.default_rng(5)
SIZE, WINDOW = 11, 4
SEED = tf.constant([3, 1])


@pytest.mark.parametrize('size', [11, 12])
def test_convolutions_by_pixels_or_by_blocks(size):
  layer = Convolutions(size, (2, 3, 1))
  images = RNG.random([2, size, size]).astype(np.float32)
  hidden = images[..., np.newaxis]
  for i, part in enumerate(layer.layers):
    kernel, bias = np.asarray(part.kernel), np.asarray(part.bias)
    patches = np.lib.stride_tricks.sliding_window_view(hidden, [3, 3], (1, 2))
    hidden = np.einsum('bhwiyx,yxio->bhwo', patches, kernel) + bias
    hidden = np.maximum(hidden, 0.0) if i < 2 else hidden
  np.testing.assert_allclose(
    layer(images), hidden.reshape([2, -1]), rtol=1e-4, atol=1e-6
  )


def test_gradients_by_blocks_are_those_by_pixels():
  # With some weights, no unit of a layer is active, so there is no gradient to
  # compare.
  keras.utils.set_random_seed(0)
  layer = Convolutions(12, (2, 3, 1))
  images = RNG.random([2, 12, 12]).astype(np.float32)
  variables = [v.value for v in layer.trainable_variables]
  with tf.GradientTape() as tape:
    loss = tf.reduce_sum(layer(images) ** 3)
  with tf.GradientTape() as reference_tape:
    hidden = images[..., np.newaxis]
    for part in layer.layers:
      hidden = part(hidden)
      hidden = hidden if part is layer.layers[-1] else tf.nn.relu(hidden)
    reference = tf.reduce_sum(hidden**3)
  for actual, expected in zip(
    tape.gradient(loss, variables),
    reference_tape.gradient(reference, variables),
    strict=True,
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)
    assert np.any(expected)


SHAPES = [(11, 4), (12, 4), (7, 5), (6, 6)]


@pytest.mark.parametrize(('size', 'window'), SHAPES)
def test_windows_about_all_locations(size, window):
  frames = Frames(size, window)
  images = RNG.random([3, size, size]).astype(np.float32)
  locations = np.arange(size**2)
  locations = np.stack([locations, locations[::-1], np.roll(locations, 7)], 1)
  windows = frames.windows(images, tf.constant(locations))
  inside = frames.is_inside(tf.constant(locations))
  for m, row in enumerate(locations):
    for b, location in enumerate(row):
      pixels, is_inside = naive_window(images[b], location, window)
      np.testing.assert_array_equal(windows[m, b], pixels)
      np.testing.assert_array_equal(inside[m, b], is_inside)


@pytest.mark.parametrize(('size', 'window'), SHAPES)
def test_soft_windows_are_mixtures_of_all_windows(size, window):
  images = RNG.random([3, size, size]).astype(np.float32)
  weights = RNG.dirichlet(np.ones(size**2), size=[2, 3]).astype(np.float32)
  weights[0, 1] = np.eye(size**2)[17]
  actual = Frames(size, window).soft_windows(images, tf.constant(weights))
  for b in range(3):
    windows = [naive_window(images[b], n, window)[0] for n in range(size**2)]
    for m in range(2):
      np.testing.assert_allclose(
        actual[m, b], weights[m, b] @ np.stack(windows), rtol=1e-5, atol=1e-6
      )


def test_a_digit_is_found_where_it_was_placed():
  frames = Frames(SIZE, WINDOW)
  digits = RNG.random([500, WINDOW, WINDOW]).astype(np.float32)
  placed, locations = frames.place(digits, SEED)
  np.testing.assert_array_equal(
    frames.windows(placed, locations[tf.newaxis])[0],
    digits.reshape([500, -1]),
  )
  np.testing.assert_allclose(
    np.sum(placed, axis=(1, 2)), np.sum(digits, axis=(1, 2)), rtol=1e-5
  )
  rows, columns = np.divmod(locations, SIZE)
  # The centers are as far from the border as the paper's: 14 to 53 of 68.
  for x in (rows, columns):
    np.testing.assert_array_equal(np.unique(x), np.arange(2, 9))
  assert len(np.unique(locations)) == 49


def test_a_digit_at_the_border_is_cut_off():
  frames = Frames(SIZE, WINDOW)
  digits = 1.0 + RNG.random([SIZE**2, WINDOW**2]).astype(np.float32)
  pasted = frames.paste(digits, tf.range(SIZE**2)).numpy()
  for location in range(SIZE**2):
    window, inside = naive_window(pasted[location], location, WINDOW)
    np.testing.assert_array_equal(window, inside * digits[location])
    np.testing.assert_allclose(pasted[location].sum(), window.sum(), rtol=1e-5)


def test_distance_is_that_of_pixels():
  actual = Frames(SIZE, WINDOW).distance(
    tf.constant([0, 5]), tf.constant([3 * SIZE + 4, 5])
  )
  np.testing.assert_allclose(actual, [5.0, 0.0])
