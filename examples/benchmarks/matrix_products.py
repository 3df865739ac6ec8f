# SPDX-License-Identifier: Apache-2.0
"""Computes only the matrix products of a training step.

A training step cannot be faster than its matrix products. `semisupervised.py`
compares its steps with this limit.
"""

import itertools

import tensorflow as tf


def layers_of_step(batch_size, num_atoms):
  """Lists the matrix products of a step of `SemiSupervisedVAE`.

  The layers have the sizes in the authors' code.

  Args:
    batch_size: Python `int`, the number of unlabeled and of labeled images.
    num_atoms: Python `int`, the number of labels of an unlabeled image.

  Returns:
    layers: List of `(rows, inputs, outputs, is_first)`. Nothing is
      differentiated with respect to the inputs of a first layer.
  """
  images = 2 * batch_size
  rows = (num_atoms + 1) * batch_size  # A labeled image has one label.
  classifier = [784, 256, 256, 256, 10]
  layers = [(images, n, m, n == 784) for n, m in itertools.pairwise(classifier)]
  # The first layer of the encoder has separate products for image and label.
  layers.append((images, 784, 128, True))
  for network in ([128, 128, 16], [8, 128, 128, 784]):
    layers += [(rows, n, m, False) for n, m in itertools.pairwise(network)]
  # These are the products for the label in encoder and decoder.
  return layers + [(rows, 10, 128, True)] * 2


def num_operations(layers):
  """Counts additions and multiplications in a forward and backward pass."""
  return sum(
    2 * rows * inputs * outputs * (2 if is_first else 3)
    for rows, inputs, outputs, is_first in layers
  )


def make_step(layers, num_steps):
  """Returns a compiled function that runs all products of `num_steps` steps.

  Each layer is linear. Its weights and inputs change a little at each step, so
  that the compiler cannot reuse a previous product.
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
