# SPDX-License-Identifier: Apache-2.0
"""Measures the time per training step of the autoencoder with a discrete code.

The script uses the model and the methods of `examples/studies/discrete_vae.py`
in float32 on the CPU. A step takes 100 binarized images, computes the loss and
its gradient, and updates all variables with Adam. All images are in memory
beforehand, and 50 steps run in one compiled call. The same model in plain
PyTorch, with 3 leave-one-out draws, runs in the same process.

Before it measures times, the script checks that PyTorch and our model have the
same gradient for the same weights and codes. Then all rows take turns,
`--rounds` times and in a different order each time. The script prints medians
and quartiles of the milliseconds per step, and the ratio of each median to that
of leave-one-out.

  pip install -e '.[benchmarks]'
  python -m examples.benchmarks.discrete_vae
  python -m examples.benchmarks.discrete_vae --latents=categorical

Without PyTorch the script measures only the rows of `tfp_rb`.
"""

import pathlib

from absl import app, flags
import numpy as np
import tensorflow as tf

from examples.benchmarks import discrete_vae_torch as peer
from examples.benchmarks import step_times
from examples.studies import discrete_vae as study
from examples.studies import discrete_vae_methods as methods
from tfp_rb import datasets

FLAGS = flags.FLAGS
BASE = ('tfp_rb', 'leave-one-out-3')


def make_data(protocol, num_calls):
  """Returns images in stacks of batches, and the name of their source."""
  mnist = datasets.load_mnist('embedded')
  images = mnist.train_images.reshape([len(mnist.train_images), -1])
  shape = [num_calls, protocol.steps_per_call, study.BATCH_SIZE]
  order = np.random.default_rng(0).integers(len(images), size=shape)
  stacks = [study.as_input(tf.constant(images[i]), protocol) for i in order]
  return stacks, mnist.source


def our_rows(names, protocol, stacks, num_evaluations):
  rows = {}
  for name in names:
    model, number = study.make_model(name, protocol, num_evaluations, seed=0)
    step = tf.function(
      model.train_step, autograph=False, jit_compile=protocol.is_compiled
    )
    # Exact decodes 4,096 codes per step, so one call is enough.
    calls = stacks[:1] if name == 'Exact' else stacks
    rows['tfp_rb', f'{name}-{number}'] = step_times.loop(
      step, calls, protocol.steps_per_call
    )
  return rows


def check(protocol, num_draws):
  """Raises an error if the gradient of PyTorch differs at the same codes."""
  model, _ = study.make_model('leave-one-out', protocol, num_draws, seed=0)
  stacks, _ = make_data(protocol._replace(steps_per_call=1), 1)
  images = tf.cast(stacks[0][0] > 127, tf.float32)
  codes = model.posterior(images).sample(num_draws, seed=[0, 1])
  with tf.GradientTape() as tape:
    log_q = model.posterior(images).log_prob(codes)
    value = log_q - model.log_joint(images, codes)
    others = (tf.reduce_sum(value, axis=0) - value) / (num_draws - 1)
    signal = tf.stop_gradient(value - others)
    surrogate = tf.reduce_mean(value + signal * log_q)
  variables = [
    *model.encoder.trainable_variables, *model.decoder.trainable_variables
  ]  # fmt: skip
  weights = [v.value for v in variables]
  gradients = tape.gradient(surrogate, weights)
  networks = peer.make_networks(protocol.latents, weights)
  loss = peer.leave_one_out_loss(
    networks, peer.as_tensor(images), codes=peer.as_tensor(codes)
  )
  loss.backward()
  for ours, theirs in zip(gradients, peer.gradients(networks), strict=True):
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)
  print('PyTorch: the gradient equals ours at the same codes.')


def main(argv):
  del argv
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  protocol = study.PROTOCOLS[FLAGS.latents]
  num_calls, num_rounds = FLAGS.calls, FLAGS.rounds
  names = methods.methods_of(protocol.latents)
  if FLAGS.smoke:
    protocol, num_calls, num_rounds = study.shortened(protocol), 1, 2
    names = ['leave-one-out', 'budget']
  stacks, source = make_data(protocol, num_calls)
  rows = our_rows(names, protocol, stacks, FLAGS.evaluations)
  failed = {}
  if protocol.is_binarized:
    if peer.torch is None:
      failed['torch', BASE[1]] = peer.INSTALL
    else:
      if not FLAGS.smoke:
        check(protocol, FLAGS.evaluations)
      rows['torch', BASE[1]] = peer.row(
        protocol.latents, stacks, FLAGS.evaluations, protocol.learning_rate
      )
  rows, unable = step_times.warm_up(rows)
  times = step_times.measure(rows, num_rounds)
  folder = pathlib.Path(FLAGS.output_dir) / FLAGS.latents
  base = ('tfp_rb', f'leave-one-out-{FLAGS.evaluations}')
  step_times.report(times, {**failed, **unable}, base, source, (), folder)


def define_flags():
  flags.DEFINE_enum(
    'latents', 'bernoulli', list(study.PROTOCOLS), 'The latent variables.'
  )
  flags.DEFINE_integer(
    'evaluations', 3, 'Evaluations of the decoder for each image.'
  )
  flags.DEFINE_integer('rounds', 9, 'How often each row is timed.')
  flags.DEFINE_integer('calls', 2, 'Calls of 50 steps each in a round.')
  flags.DEFINE_string(
    'output_dir', 'outputs/discrete_vae_times', 'Folder for the CSV files.'
  )
  flags.DEFINE_bool('smoke', False, 'Runs two steps of two methods.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
