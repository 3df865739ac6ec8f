# SPDX-License-Identifier: Apache-2.0
"""Measures how the form of the ELBO affects the variance of its gradient.

The model is `tfp_rb.models.DiscreteVAE`, an autoencoder of binary MNIST digits
with a code of 200 bits. Its negative ELBO can be written in five forms, which
have the same value and the same mean gradient:

    inside    E_q[log q(z) - log p(x, z)]
    stopped   E_q[stop_gradient(log q(z)) - log p(x, z)]
    analytic  E_q[-log p(x | z)] + KL(q, p), with TFP's `kl_divergence`
    vi        `tfp_rb.vi.monte_carlo_variational_loss`
    entropy   the same as 'vi', with `exact_entropy=True`

The script measures the total variance of the gradient w.r.t. the encoder, for
the mean loss of a batch of 100 digits, before training and after each number of
steps in `--steps`. The estimator makes `--draws` joint draws and has a
leave-one-out baseline.

  python -m examples.benchmarks.elbo_forms
"""

import pathlib

from absl import app, flags
import keras
import tensorflow as tf
import tensorflow_probability as tfp

from examples.shared import tables
import tfp_rb
from tfp_rb import datasets

tfd = tfp.distributions

FLAGS = flags.FLAGS
BATCH_SIZE = 100


def make_forms(model, images, estimator):
  """Returns a loss for each form, as a function of a stateless seed."""

  def log_joint(z):
    return model.log_joint(images, z)

  def inside(seed):
    q = model.posterior(images)
    f = lambda z: q.log_prob(z) - log_joint(z)
    return tfp_rb.expectation(f, q, estimator, seed=seed)

  def stopped(seed):
    q = model.posterior(images)
    f = lambda z: tf.stop_gradient(q.log_prob(z)) - log_joint(z)
    return tfp_rb.expectation(f, q, estimator, seed=seed)

  def analytic(seed):
    q = model.posterior(images)
    bits = tf.zeros([model.code_shape[0]])
    prior = tfd.Independent(tfd.Bernoulli(logits=bits, dtype=tf.float32), 1)
    f = lambda z: prior.log_prob(z) - log_joint(z)  # -log p(x | z)
    kl = tfd.kl_divergence(q, prior)
    return tfp_rb.expectation(f, q, estimator, seed=seed) + kl

  def vi(seed, exact_entropy=False):
    return tfp_rb.vi.monte_carlo_variational_loss(
      log_joint,
      model.posterior(images),
      gradient_estimator=estimator,
      exact_entropy=exact_entropy,
      seed=seed,
    )

  return {
    'inside': inside,
    'stopped': stopped,
    'analytic': analytic,
    'vi': vi,
    'entropy': lambda seed: vi(seed, exact_entropy=True),
  }


def measure(latents, all_steps, all_draws, num_pairs, seed):
  """Returns the rows of the table."""
  digits = datasets.load_mnist('embedded').train_images.reshape([-1, 784])
  batch = tf.constant(digits[:BATCH_SIZE] > 127, tf.float32)
  keras.utils.set_random_seed(seed)
  model = tfp_rb.models.DiscreteVAE(latents=latents, seed=seed)
  model.compile(keras.optimizers.Adam(1e-3))
  data = tf.data.Dataset.from_tensor_slices(digits)
  data = data.shuffle(len(digits), seed=seed).repeat().batch(BATCH_SIZE)
  rows, done = [], 0
  for steps in (0, *all_steps):
    if steps > done:
      model.fit(data, steps_per_epoch=steps - done, verbose=0)
      done = steps
    bound = -tf.reduce_mean(model.importance_bound(batch, 100, seed=[seed, 0]))
    for draws in all_draws:
      estimator = tfp_rb.REINFORCE(
        tfp_rb.baselines.LeaveOneOut(), num_samples=draws
      )
      for form, loss in make_forms(model, batch, estimator).items():
        moments = tfp_rb.diagnostics.sampled_moments(
          lambda s, loss=loss: tf.reduce_mean(loss(s)),
          model.encoder.trainable_variables,
          num_pairs=num_pairs,
          seed=seed,
        )
        rows.append({
          'steps': steps,
          'bound': float(bound),
          'draws': draws,
          'form': form,
          'variance': moments.variance,
          'low': moments.interval[0],
          'high': moments.interval[1],
          'pairs': num_pairs,
        })  # fmt: skip
        print(show(rows[-1]), flush=True)
  return rows


def show(row):
  return (
    f'{row["steps"]:6d} steps ({row["bound"]:6.1f} nats)  {row["draws"]:3d} '
    f'draws  {row["form"]:9s}{row["variance"]:10.4g}  '
    f'({row["low"]:.4g} to {row["high"]:.4g})'
  )


def main(argv):
  del argv
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  latents, pairs = 200, FLAGS.pairs
  steps, draws = [int(x) for x in FLAGS.steps], [int(x) for x in FLAGS.draws]
  if FLAGS.smoke:
    latents, steps, draws, pairs = 5, [1], [2], 2
  folder = pathlib.Path(FLAGS.output_dir)
  folder.mkdir(parents=True, exist_ok=True)
  rows = measure(latents, steps, draws, pairs, FLAGS.seed)
  tables.write(folder / 'variances.csv', rows, 5, lineterminator='\n')
  print(f'\nThe table is in {folder}.')


def define_flags():
  flags.DEFINE_list(
    'steps', ['500'], 'Numbers of training steps, in increasing order.'
  )
  flags.DEFINE_list('draws', ['3', '10'], 'Numbers of joint draws.')
  flags.DEFINE_integer('pairs', 200, 'Pairs of gradients for each variance.')
  flags.DEFINE_integer('seed', 0, 'Seed of weights, training and draws.')
  flags.DEFINE_string(
    'output_dir', 'outputs/elbo_forms', 'Folder for the CSV file.'
  )
  flags.DEFINE_bool('smoke', False, 'Uses a small model and two pairs.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
