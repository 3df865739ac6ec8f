# SPDX-License-Identifier: Apache-2.0
"""Measures the time per training step of the semi-supervised autoencoder.

The script compares `tfp_rb` with PyTorch and storchastic. The model is that of
section 5.3 of the paper, with the sizes of the authors' code, in float32 on the
CPU. A step binarizes 64 unlabeled and 64 labeled images, computes the objective
(weights 0.9 and 0.1, exact entropy) and its gradient, and updates the variables
with Adam. The images are in memory beforehand. All rows run in one process:

* tfp_rb: all methods of `examples/paper/semisupervised_mnist.py`, in a plain
  loop over a compiled `train_step` that runs 37 steps. For RB the script also
  measures an epoch of `model.fit`, and the same epoch with the plain loop.
* PyTorch, eager, as a user would write it: a loop with one pass through encoder
  and decoder for each category, and `torch.optim.Adam`. RB loops over the most
  probable category and one drawn from the rest, Exact over all ten. A further
  row compiles the loss with `torch.compile`.
* storchastic: `RaoBlackwellSF` and `Expect` on the same networks; storchastic
  evaluates the categories of an image in one batch.

Before it measures times, the script checks that the gradients of all three
libraries agree for the same weights without noise. Then all rows take turns,
`--rounds` times and in a different order each time. The script prints medians
and quartiles of the milliseconds per step, the ratio of each median to that of
our RB, and for each target the median of the ratio over the rounds.

  pip install -e '.[benchmarks]'
  python -m examples.benchmarks.semisupervised

Without PyTorch or storchastic, the script leaves out their rows.
"""

import functools
import pathlib

from absl import app, flags
import numpy as np
import tensorflow as tf

from examples.benchmarks import matrix_products, step_times
from examples.benchmarks import semisupervised_torch as others
from examples.paper import semisupervised_mnist as experiment
from tfp_rb import datasets, models

FLAGS = flags.FLAGS
NUM_PIXELS, LATENT_DIM, BATCH_SIZE = 784, 8, 64
RB = ('tfp_rb', 'RB-REINFORCE')
LAYERS = matrix_products.layers_of_step(BATCH_SIZE, num_atoms=2)
PRODUCTS = ('tfp_rb', 'RB, matrix products alone')
FIT, BARE = ('tfp_rb', 'RB, epoch by fit'), ('tfp_rb', 'RB, epoch, bare loop')

# Each target has a numerator, a denominator, and a bound for their ratio.
TARGETS = (
  (('torch', 'RB'), RB, 'at least', 3.0),
  (('torch', 'Exact'), ('tfp_rb', 'Exact'), 'at least', 3.0),
  (RB, ('tfp_rb', 'Exact'), 'at most', 0.556),
  (RB, ('tfp_rb', 'REINFORCE'), 'at most', 1.2),
  (('tfp_rb', 'pooled=1.25'), ('tfp_rb', 'Exact'), 'at most', 0.5),
  (('tfp_rb', 'pooled=1.25'), ('tfp_rb', 'REINFORCE'), 'at most', 1.06),
  (FIT, BARE, 'at most', 1.05),
  (PRODUCTS, RB, 'at least', 0.7),
)


def make_data(num_calls, per_call):
  """Returns unlabeled images, labeled images and labels, and their source.

  Pixels are between 0 and 255. The shapes are `[num_calls, per_call, 64, ...]`.
  """
  mnist = datasets.load_mnist('embedded')
  images = mnist.train_images.reshape([-1, NUM_PIXELS])
  shape = [num_calls, per_call, BATCH_SIZE]
  order = np.random.default_rng(0).integers(len(images), size=[2, *shape])
  data = images[order[0]], images[order[1]], mnist.train_labels[order[1]]
  return data, mnist.source


def our_rows(methods, data, num_calls, compiled=True):
  """Returns rows by name: the methods, and `fit` and a plain loop for RB."""
  calls = [tuple(tf.constant(x[i]) for x in data) for i in range(len(data[0]))]
  per_call = data[0].shape[1]

  loop = functools.partial(step_times.loop, steps_per_call=per_call)
  rows = {}
  for method in methods:
    model = experiment.make_model(method, seed=0, jit_compile=compiled)
    step = tf.function(model.train_step, autograph=False, jit_compile=compiled)
    rows['tfp_rb', method] = loop(step, calls[:num_calls])
    if method == RB[1]:
      fit = functools.partial(
        model.fit,
        models.prepare_dataset(tf.data.Dataset.from_tensor_slices(data)),
        verbose=0,
        callbacks=[],
        shuffle=False,
      )
      run_fit = lambda first=None, fit=fit: fit(steps_per_epoch=first)
      rows[FIT] = run_fit, per_call * len(calls)
      rows[BARE] = loop(step, calls)
      products = matrix_products.make_step(LAYERS, per_call)
      rows[PRODUCTS] = loop(products, calls[:num_calls])
  return rows


def as_torch(values):
  """Converts weights or gradients of our model to the order of PyTorch."""
  found, kernels = [], []
  for value in map(np.asarray, values):
    if value.ndim == 2:
      kernels.append(value)  # A layer with two inputs has two kernels.
    else:
      found += [np.concatenate(kernels).T, value]
      kernels = []
  return found


def check(gradients, data):
  """Raises an error if a gradient or a loss without noise differs from ours."""
  versions = others.exact_versions(gradients)
  if not versions:
    return
  model = experiment.make_model('Exact', seed=0)
  bias = model.encoder.layers[-1].bias
  # The scales are almost 0, so that `z` equals its mean.
  bias.assign(np.repeat([0.0, -20.0], LATENT_DIM))
  *images, labels = (x[0, 0] for x in data)
  images = [(x > 127).astype(np.float32) for x in images]
  with tf.GradientTape() as tape:
    unlabeled, labeled, _ = model.losses_of(
      *map(tf.constant, images), tf.constant(labels), tf.constant([0, 0])
    )
    ours = 0.9 * tf.reduce_mean(unlabeled) + 0.1 * tf.reduce_mean(labeled)
  weights = [v.value for v in model.trainable_weights]
  expected = as_torch(tape.gradient(ours, weights))
  torch = others.torch
  batch = [*map(torch.tensor, images), torch.tensor(labels).long()]
  for name, gradient in versions.items():
    networks = others.make_networks()
    for p, value in zip(networks.parameters(), as_torch(weights), strict=True):
      p.data = torch.tensor(value)
    loss = gradient(networks, *batch)
    if name != ('torch', 'RB'):  # Its loss is a surrogate with another value.
      np.testing.assert_allclose(loss.item(), ours, rtol=1e-5)
    for p, value in zip(networks.parameters(), expected, strict=True):
      np.testing.assert_allclose(p.grad, value, rtol=1e-3, atol=1e-4)
    print(f'{" ".join(name)}: the gradient equals ours; the loss is {ours:.4f}')


def main(argv):
  del argv
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  num_calls, per_call, epoch, num_rounds = FLAGS.calls, 37, 19, FLAGS.rounds
  methods = dict.fromkeys([RB[1], *FLAGS.methods])  # All ratios need RB.
  if FLAGS.smoke:
    num_calls, per_call, epoch, num_rounds = 1, 2, 2, 2
    methods = [RB[1]]
  data, source = make_data(epoch, per_call)
  gradients, failed = others.peers(FLAGS.torch_compile and not FLAGS.smoke)
  rows = our_rows(methods, data, num_calls, compiled=not FLAGS.smoke)
  if gradients:
    rows.update(others.peer_rows(gradients, data, num_calls))
  rows, unable = step_times.warm_up(rows)
  check({n: g for n, g in gradients.items() if n in rows}, data)
  times = step_times.measure(rows, num_rounds)
  folder = pathlib.Path(FLAGS.output_dir)
  targets = () if FLAGS.smoke else TARGETS  # Two steps are too few for them.
  step_times.report(times, {**failed, **unable}, RB, source, targets, folder)
  operations = matrix_products.num_operations(LAYERS)
  rate = lambda row: 1e-6 * operations / np.median(times[row])
  print(
    f'A step with RB has {1e-9 * operations:.3f} GFLOP of matrix products, and '
    f'runs at {rate(RB):.0f} GFLOP/s; the products alone run at '
    f'{rate(PRODUCTS):.0f} GFLOP/s.'
  )


def define_flags():
  """Defines the flags of the script; an import of the module defines none."""
  names = list(experiment.METHODS)
  flags.DEFINE_list(
    'methods', names, f'Methods to time with {RB[1]}, among {names}.'
  )
  flags.DEFINE_integer('rounds', 15, 'How often each row is timed.')
  flags.DEFINE_integer('calls', 2, 'Calls of 37 steps each in a round.')
  flags.DEFINE_bool('torch_compile', True, 'Whether to try `torch.compile`.')
  flags.DEFINE_string(
    'output_dir', 'outputs/semisupervised_times', 'Folder for the CSV files.'
  )
  flags.DEFINE_bool('smoke', False, 'Runs two steps of one method.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
