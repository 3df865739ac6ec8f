# SPDX-License-Identifier: Apache-2.0
"""The matrix products of a training step, and nothing else.

How fast a machine multiplies matrices of these sizes limits how fast it can
train: `semisupervised.py` compares its steps with this limit.
"""

import itertools

import tensorflow as tf


def layers_of_step(batch_size, num_atoms):
  """Products of a step of `SemiSupervisedVAE` in the sizes of the authors.

  Args:
    batch_size: Python `int`, of unlabeled and of labeled images.
    num_atoms: Python `int`, the labels of an unlabeled image.

  Returns:
    layers: List of `(rows, inputs, outputs, is_first)`. Nothing is
      differentiated with respect to the inputs of a first layer.
  """
  images = 2 * batch_size
  rows = (num_atoms + 1) * batch_size  # with the known labels of the others
  classifier = [784, 256, 256, 256, 10]
  layers = [(images, n, m, n == 784) for n, m in itertools.pairwise(classifier)]
  layers.append((images, 784, 128, True))  # the image's part of the encoder
  for network in ([128, 128, 16], [8, 128, 128, 784]):
    layers += [(rows, n, m, False) for n, m in itertools.pairwise(network)]
  # The label's part of the first layers.
  return layers + [(rows, 10, 128, True)] * 2


def num_operations(layers):
  """Additions and multiplications of the forward and the backward pass."""
  return sum(
    2 * rows * inputs * outputs * (2 if is_first else 3)
    for rows, inputs, outputs, is_first in layers
  )


def make_step(layers, num_steps):
  """A compiled call that makes all products of `num_steps` steps.

  Each layer is linear. Its weights and inputs move a little at each step, so
  that no product is the same as before and could be left out.
  """
  normal = tf.random.stateless_normal
  sizes = [
    ([rows, inputs], [inputs, outputs]) for rows, inputs, outputs, _ in layers
  ]
  start = [
    tuple(normal(shape, [i, j]) for j, shape in enumerate(pair))
    for i, pair in enumerate(sizes)
  ]

  def body(i, state):
    moved = []
    for (x, weights), (_, _, _, is_first) in zip(state, layers, strict=True):
      y = tf.matmul(x, weights)
      slope = tf.matmul(x, y, transpose_a=True)  # w.r.t. the weights
      if not is_first:
        x -= 1e-9 * tf.matmul(y, weights, transpose_b=True)
      moved.append((x, weights - 1e-9 * slope))
    return i + 1, moved

  @tf.function(autograph=False, jit_compile=True)
  def step(batch):
    del batch
    _, state = tf.while_loop(
      lambda i, _: i < num_steps, body, (tf.constant(0), start)
    )
    return {'loss': tf.add_n([weights[0, 0] for _, weights in state])}

  return step
