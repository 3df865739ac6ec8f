# SPDX-License-Identifier: Apache-2.0
"""Binarizes grey images at random, and computes their log-likelihood."""

import tensorflow as tf

from tfp_rb.internal import gradients
from tfp_rb.internal.types import StatelessSeed, TensorLike

__all__ = ['binarize', 'log_likelihood']


def binarize(images: TensorLike, seed: StatelessSeed) -> tf.Tensor:
  """Draws binary pixels with probability `images / 255`.

  One random number of 32 bits serves two pixels, so the probabilities are
  accurate to `2**-17`; values of 0 and 255 are exact.

  Args:
    images: `Tensor` of integers, of any shape.
    seed: Stateless seed, `int32[2]`.

  Returns:
    binary: `float32` `Tensor` of that shape.

  Raises:
    TypeError: `images` are not integers.

  #### Examples

  ```python
  tfp_rb.models.binarize(tf.constant([0, 255]), seed=[0, 1])  # ==> [0. 1.]
  ```
  """
  images = tf.convert_to_tensor(images)
  if not images.dtype.is_integer:
    raise TypeError(
      '`images` must be integers from 0 to 255; got '
      f'{images.dtype.name}. Multiply values from 0 to 1 by 255, and cast them.'
    )
  size = tf.size(images)

  def draw():
    words = tf.random.stateless_uniform(
      [(size + 1) // 2], seed, None, None, tf.uint32, alg='philox'
    )
    # The low halves serve the first pixels, the high halves the others. If the
    # two halves of a word served neighbouring pixels, XLA would take twice as
    # long.
    low = tf.bitwise.bitwise_and(words, 0xFFFF)
    high = tf.bitwise.right_shift(words, 16)
    # XLA converts signed integers faster.
    halves = tf.bitcast(tf.concat([low, high], axis=0)[:size], tf.int32)
    u = tf.reshape(tf.cast(halves, tf.float32), tf.shape(images))
    limit = tf.cast(images, tf.float32) * (65536.0 / 255.0)
    return tf.cast(u + 0.5 < limit, tf.float32)

  # The branch makes XLA draw only once. Otherwise XLA draws again in every
  # kernel that reads the pixels, which took a sixth of a training step.
  return tf.cond(
    tf.reduce_any(images > 0),
    draw,
    lambda: tf.zeros(tf.shape(images), tf.float32),
  )


def log_likelihood(images: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """Returns the log-probability of binary images, summed over the pixels.

  Args:
    images: `Tensor` of shape `[..., pixels]` with values from 0 to 1.
    logits: `Tensor` of shape `[..., pixels]`, the logits of a pixel of 1.

  Returns:
    log_prob: `Tensor` of shape `[...]`, in the dtype of `logits`.
  """
  terms = tf.cast(images, logits.dtype) * logits - gradients.softplus(logits)
  return tf.reduce_sum(terms, axis=-1)
