# SPDX-License-Identifier: Apache-2.0
"""Measures the time per training step of the model with hard attention.

The script compares `tfp_rb` with PyTorch. The model is that of section 5.4 of
the paper, with the sizes of the paper, in float32 on the CPU. A step binarizes
64 digits, places them at new locations, computes the objective and its
gradient, and updates the variables with Adam. The digits are in memory
beforehand. All rows run in one process:

* tfp_rb: all methods of `examples/paper/moving_mnist.py`, compiled, with one
  step per call.
* 'one window, true location': the same step without an estimator, with `f` at
  the location of the digit. No method that evaluates `f` can be faster.
* 'RB, stacks by fit': the steps of RB in `model.fit` with a dataset of stacks
  of batches, of which `fit` takes one at a time.
* 'attention and optimizer': a step without `f`, only with the entropy of the
  location.
* PyTorch, eager, as a user would write it, with gathered windows in a loop over
  the locations.

Before it measures times, the script checks that `f`, the attention and their
gradients equal those of PyTorch for the same weights without noise. Then all
rows take turns, `--rounds` times and in a different order each time. To measure
memory, run `moving_memory.py`.

  pip install -e '.[benchmarks]'
  python -m examples.benchmarks.moving

Without PyTorch the script measures only the rows of `tfp_rb`.
"""

import pathlib

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from examples.benchmarks import moving_torch, step_times
from examples.paper import moving_mnist as experiment
from tfp_rb import datasets, models

FLAGS = flags.FLAGS
RB, PLUS = ('tfp_rb', 'RB-REINFORCE+'), ('tfp_rb', 'REINFORCE+')
WINDOW_ONLY = ('tfp_rb', 'one window, true location')
STACKS = ('tfp_rb', 'RB, stacks by fit')
ATTENTION_ONLY = ('tfp_rb', 'attention and optimizer')
TARGETS = (
  (RB, PLUS, 'at most', 1.15),
  (RB, WINDOW_ONLY, 'at most', 1.3),
  (STACKS, RB, 'at most', 1.1),
  (('torch', 'RB-REINFORCE+'), RB, 'at least', 1.0),
)


class WithoutEstimator(models.MovingVAE):
  """A model whose step evaluates `f` at the true location, or not at all."""

  evaluates_f = True

  def compute_step_loss(self, batch, estimator, seed):
    digits = self._digits(batch)
    pixel_seed, place_seed, draw_seed = tfp.random.split_seed(seed, n=3)
    frames, truth = self.frames.place(
      models.binarize(digits, pixel_seed), place_seed
    )
    log_probs = self(frames)
    entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)
    loss = tf.reduce_mean(-self.entropy_weight * entropy)
    if self.evaluates_f:
      f = self.negative_bound(frames, truth[tf.newaxis], draw_seed)
      loss += tf.reduce_mean(f)
    else:  # These gradients are 0, but the optimizer still updates variables.
      networks = (self.encoder, self.decoder)
      unused = [v for n in networks for v in n.trainable_variables]
      loss += 0.0 * tf.add_n([tf.reduce_sum(v) for v in unused])
    return loss


class AttentionOnly(WithoutEstimator):
  evaluates_f = False


def make_data(num_steps):
  """Returns digits with pixels from 0 to 255, and the name of their source.

  The digits have the shape `[num_steps, 64, 28, 28]`.
  """
  mnist = datasets.load_mnist('embedded')
  order = np.random.default_rng(0).integers(
    len(mnist.train_images), size=[num_steps, experiment.BATCH_SIZE]
  )
  return mnist.train_images[order], mnist.source


def our_rows(methods, digits, compiled=True, **size):
  batches = [tf.constant(batch) for batch in digits]
  named = [
    (
      ('tfp_rb', method),
      experiment.make_model(method, 0, entropy_weight=64.0, **size),
    )
    for method in methods
  ]
  for name, kind in (
    (WINDOW_ONLY, WithoutEstimator), (ATTENTION_ONLY, AttentionOnly)
  ):  # fmt: skip
    model = kind(entropy_weight=64.0, **size)
    model.compile(keras.optimizers.Adam(1e-3))
    named.append((name, model))
  rows = {
    name: step_times.loop(
      tf.function(model.train_step, autograph=False, jit_compile=compiled),
      batches,
    )
    for name, model in named
  }
  if RB in rows:
    model = experiment.make_model(
      RB[1], 0, entropy_weight=64.0, jit_compile=compiled, **size
    )
    rows[STACKS] = _fit_on_stacks(model, digits)
  return rows


def _fit_on_stacks(model, digits):
  """Returns a row that runs `model.fit` on one stack of all batches."""
  stacks = tf.data.Dataset.from_tensors(tf.constant(digits)).repeat()
  data = models.prepare_dataset(stacks)

  def run(first=None):
    del first  # A stack is a single element, so all steps always run.
    model.fit(data, steps_per_epoch=1, verbose=0)

  return run, len(digits)


def as_torch(values):
  """Converts weights or gradients of our model to the layout of PyTorch."""
  axes = {4: [3, 2, 0, 1], 2: [1, 0], 1: [0]}
  return [np.transpose(x, axes[np.ndim(x)]) for x in values]


def check(digits):
  """Raises an error if `f`, attention or gradients differ from PyTorch's."""
  model = experiment.make_model('REINFORCE+', seed=0)
  last = model.encoder.layers[-1]
  mask = np.arange(10) < 5  # The scales become almost 0, so `z` is the mean.
  last.kernel.assign(np.where(mask, last.kernel, 0.0))
  last.bias.assign(np.where(mask, last.bias, -20.0))
  frames, _ = model.frames.place((digits > 127).astype(np.float32), [0, 0])
  locations = np.random.default_rng(0).integers(68**2, size=[1, len(digits)])
  layers = [*model.convolutions.layers, *model.attention.layers]
  layers += [*model.encoder.layers, *model.decoder.layers]
  weights = [v.value for layer in layers for v in (layer.kernel, layer.bias)]
  with tf.GradientTape() as tape:
    f = model.negative_bound(frames, tf.constant(locations), [0, 1])[0]
    log_q = tf.gather(model(frames), locations[0], batch_dims=1)
    total = tf.reduce_mean(f) + tf.reduce_mean(log_q)
  expected = as_torch(tape.gradient(total, weights))
  torch = moving_torch.torch
  networks = moving_torch.make_networks()
  parameters = list(networks.parameters())
  for p, value in zip(parameters, as_torch(weights), strict=True):
    p.data = torch.tensor(np.ascontiguousarray(value))
  x, atoms = torch.tensor(frames.numpy()), torch.tensor(locations[0])
  theirs = moving_torch.negative_bound(networks, x, atoms)
  log_probs = moving_torch.log_probs_of(networks, x)
  theirs_log_q = log_probs.gather(1, atoms[:, None])[:, 0]
  np.testing.assert_allclose(theirs.detach(), f, rtol=1e-4)
  np.testing.assert_allclose(theirs_log_q.detach(), log_q, rtol=1e-4)
  (theirs.mean() + theirs_log_q.mean()).backward()
  for p, value in zip(parameters, expected, strict=True):
    scale = np.abs(value).max()
    np.testing.assert_allclose(p.grad, value, rtol=1e-3, atol=1e-4 * scale)
  print('PyTorch: f, the attention and their gradients equal ours.')


def print_shares(times):
  """Prints the share of a step outside the attention and the optimizer."""
  alone = np.median(times[ATTENTION_ONLY])
  print('\nShare of a step outside the attention and the optimizer:')
  for (library, method), t in times.items():
    if library == 'tfp_rb' and (library, method) != ATTENTION_ONLY:
      print(f'{method:26s}{1.0 - alone / np.median(t):8.1%}')


def main(argv):
  del argv
  experiment.choose_emitters()  # The training script does this, too.
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  digits, source = make_data(FLAGS.steps)
  methods = list(dict.fromkeys([RB[1], *FLAGS.methods]))  # All ratios need RB.
  if FLAGS.smoke:
    size = {'compiled': False, 'frame': 36, 'channels': 2}
    rows, theirs, failed = our_rows([RB[1]], digits[:2], **size), {}, {}
  else:
    rows = our_rows(methods, digits)
    theirs, failed = moving_torch.rows(digits)
  if theirs:
    check(digits[0])
  rows, unable = step_times.warm_up(rows | theirs)
  times = step_times.measure(rows, 2 if FLAGS.smoke else FLAGS.rounds)
  folder = pathlib.Path(FLAGS.output_dir)
  targets = () if FLAGS.smoke else TARGETS  # They do not hold for small models.
  step_times.report(times, failed | unable, RB, source, targets, folder)
  print_shares(times)


def define_flags():
  """Defines the flags of the script; an import of the module defines none."""
  names = list(experiment.METHODS)
  flags.DEFINE_list(
    'methods', names, f'Methods to time with {RB[1]}, among {names}.'
  )
  flags.DEFINE_integer('rounds', 11, 'How often each row is timed.')
  flags.DEFINE_integer('steps', 10, 'Number of steps in a round.')
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_times', 'Folder for the CSV files.'
  )
  flags.DEFINE_bool('smoke', False, 'Runs two steps of a small model.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
