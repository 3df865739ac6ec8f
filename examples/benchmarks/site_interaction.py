# SPDX-License-Identifier: Apache-2.0
"""Measures how interaction of the sites affects `local_expectation`.

There are `S` Bernoulli sites with logits of scale 1. The costs `f` have the
variance 1 and are polynomials in the standardized bits `x_s`:

    f(z) = sqrt(1 - h) sum_s a_s x_s  +  sqrt(h) sum_U c_U prod_{s in U} x_s

The sets `U` are `3 S` random sets of `d` sites each, so `h` is the share of the
variance of `f` that interactions of order `d` cause. Two further costs are the
negative log-likelihood of an image under a decoder with a hidden layer of 200
units and 784 Bernoulli outputs:

* decoder: a random decoder, at an image that it generates;
* trained: a decoder that was trained together with an encoder on binary MNIST
  digits for `--steps` steps, at 20 digits and the logits of the encoder (200
  sites).

The script measures the variance of the gradient w.r.t. the logits, summed over
the sites, of two estimators with `S + 1` evaluations of `f`: `S + 1` joint
draws with a leave-one-out baseline, and `local_expectation` with both symbols
of each site summed. It prints the ratio of the variance of `local_expectation`
to that of the joint draws, with a 95 % interval (normal theory, `--draws`
gradients). If the ratio is below 1, `local_expectation` is better.

For a polynomial the ratio should be about `h d`. In the local estimate of site
`s`, the terms without `s` cancel, and the additive term is exact. So each set
`U` contributes noise only at its `d` sites. In a joint draw every term
contributes noise at each of the `S` sites, but the mean over `S + 1` draws
reduces this noise.

  python -m examples.benchmarks.site_interaction
"""

import pathlib

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

from examples.benchmarks import site_gradients
from examples.shared import tables
import tfp_rb
from tfp_rb import datasets

tfd = tfp.distributions

FLAGS = flags.FLAGS
SIZES = (20, 50, 100, 200)
SHARES = (0.01, 0.1, 0.5, 1.0)
ORDERS = (2, 5)
DECODER = 'decoder'
POLYNOMIAL = 'polynomial'
TRAINED = 'trained'
NUM_ROWS = 20  # The number of gradients in one call.
NUM_HIDDEN = 200


def make_logits(num_sites, seed):
  return np.random.default_rng(seed).normal(size=num_sites)


def make_polynomial(logits, order, share, seed):
  """Returns `f`, which maps bits `[..., S]` to costs `[...]` of variance 1."""
  rng = np.random.default_rng(seed + 1)
  num_sites = len(logits)
  additive = rng.normal(size=num_sites)
  additive *= np.sqrt((1.0 - share) / np.sum(additive**2))
  sets = np.array(
    [rng.choice(num_sites, order, replace=False) for _ in range(3 * num_sites)]
  )
  # Without duplicates the terms are orthogonal.
  sets = np.unique(np.sort(sets, axis=1), axis=0)
  joint = rng.normal(size=len(sets))
  joint *= np.sqrt(share / np.sum(joint**2))
  probs = 1.0 / (1.0 + np.exp(-logits))
  mean, scale = probs, np.sqrt(probs * (1.0 - probs))
  additive, joint, mean, scale = (
    tf.constant(x, tf.float32) for x in (additive, joint, mean, scale)
  )

  def f(z):
    # A matrix product of two dimensions is faster than one of three.
    x = (tf.reshape(z, [-1, num_sites]) - mean) / scale
    terms = tf.ones_like(x[:, :1])
    for sites in sets.T:
      terms *= tf.gather(x, sites, axis=-1)
    cost = tf.linalg.matvec(x, additive) + tf.linalg.matvec(terms, joint)
    return tf.reshape(cost, tf.shape(z)[:-1])

  return f


def make_network(num_inputs, num_outputs, rng):
  """Returns the weights of a network with one hidden layer, as variables."""
  sizes = [(num_inputs, NUM_HIDDEN), (NUM_HIDDEN, num_outputs)]
  weights = [rng.normal(size=s) * np.sqrt(2.0 / s[0]) for s in sizes]
  weights += [np.zeros(s[1]) for s in sizes]
  return [tf.Variable(w, dtype=tf.float32) for w in weights]


def call_network(weights, x):
  first, second, first_bias, second_bias = weights
  hidden = tf.nn.leaky_relu(tf.tensordot(x, first, 1) + first_bias, 0.3)
  return tf.tensordot(hidden, second, 1) + second_bias


def loss_of_image(decoder, image, z):
  """Returns negative log-likelihoods `[...]` for bits `[..., S]`."""
  logits = call_network(decoder, 2.0 * z - 1.0)
  return tf.reduce_sum(tf.nn.softplus(logits) - image * logits, axis=-1)


def make_decoder(logits, seed):
  """Returns `f`, the negative log-likelihood under a random decoder."""
  rng = np.random.default_rng(seed + 2)
  num_sites = len(logits)
  decoder = make_network(num_sites, 784, rng)
  bits = (rng.random(num_sites) < 1.0 / (1.0 + np.exp(-logits))) * 1.0
  pixels = call_network(
    decoder, 2.0 * tf.constant(bits, tf.float32)[None] - 1.0
  )
  brightness = tf.sigmoid(pixels[0]).numpy()
  image = (rng.random(784) < brightness).astype(np.float32)
  return lambda z: loss_of_image(decoder, image, z)


def train_autoencoder(num_sites, num_steps, seed):
  """Trains an autoencoder; returns logits of digits, and `f` at the digits."""
  digits = datasets.load_mnist(source='embedded').train_images
  digits = np.reshape(digits > 127, [-1, 784]).astype(np.float32)
  rng = np.random.default_rng(seed + 3)
  encoder = make_network(784, num_sites, rng)
  decoder = make_network(num_sites, 784, rng)
  variables = [*encoder, *decoder]
  optimizer = keras.optimizers.Adam(1e-3)
  optimizer.build(variables)
  estimator = tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=4)
  prior = tfd.Independent(tfd.Bernoulli(logits=tf.zeros([num_sites])), 1)

  def posterior(images):
    logits = call_network(encoder, images - 0.5)
    return tfd.Independent(tfd.Bernoulli(logits=logits, dtype=tf.float32), 1)

  @tf.function(autograph=False, jit_compile=True)
  def step(images, seed):
    with tf.GradientTape() as tape:
      q = posterior(images)
      loss = tfp_rb.expectation(
        lambda z: loss_of_image(decoder, images, z), q, estimator, seed=seed
      )
      loss = tf.reduce_mean(loss + tfd.kl_divergence(q, prior))
    return loss, tape.gradient(loss, variables)

  for i in tqdm.trange(num_steps, unit='step'):
    images = digits[rng.integers(len(digits), size=100)]
    _, gradients = step(tf.constant(images), tf.constant([seed, i]))
    optimizer.apply_gradients(zip(gradients, variables))
  images = tf.constant(digits[rng.integers(len(digits), size=NUM_ROWS)])
  logits = call_network(encoder, images - 0.5).numpy()
  return logits, lambda z: loss_of_image(decoder, images, z)


def total_variance(estimator, logits, f, num_draws, seed):
  """Returns the variance, summed over the logits, and its standard error.

  Args:
    estimator: A `GradientEstimator`.
    logits: Array of shape `[S]`, or `[NUM_ROWS, S]` if the rows differ.
    f: Callable that maps `[m, NUM_ROWS, S]` to `[m, NUM_ROWS]`.
    num_draws: Python `int`, the number of gradients in all rows together.
    seed: Python `int`.

  Returns:
    variance: The mean over the rows.
    error: Its standard error.
  """
  rows = np.broadcast_to(logits, [NUM_ROWS, logits.shape[-1]])
  make_site = lambda logits: tfd.Bernoulli(logits=logits, dtype=tf.float32)
  draws = site_gradients.draw(
    estimator, make_site, rows, f, num_draws, seed
  )  # [n, NUM_ROWS, S]
  n = len(draws)
  squares = ((draws - draws.mean(axis=0)) ** 2).sum(axis=-1) * n / (n - 1)
  # The standard error is computed per row, because the variances of the rows
  # differ.
  return squares.mean(), np.sqrt((squares.var(axis=0) / n).mean() / NUM_ROWS)


def make_cases(sizes, num_steps, seed):
  """Yields the start of a table row, logits and `f` for each case."""
  for num_sites in sizes:
    logits = make_logits(num_sites, seed)
    settings = [(1, 0.0)] + [(d, h) for d in ORDERS for h in SHARES]
    for order, share in settings:
      row = {'sites': num_sites, 'cost': POLYNOMIAL}
      row |= {'order': order, 'share': share, 'expected_ratio': share * order}
      f = make_polynomial(logits, max(order, 2), share, seed)
      yield row, logits, f
    row = {'sites': num_sites, 'cost': DECODER}
    row |= {'order': '', 'share': '', 'expected_ratio': ''}
    yield row, logits, make_decoder(logits, seed)
  logits, f = train_autoencoder(sizes[-1], num_steps, seed)
  yield row | {'cost': TRAINED}, logits, f


def measure(sizes, num_draws, num_steps, seed):
  """Returns the rows of the table."""
  rows = []
  cases = list(make_cases(sizes, num_steps, seed))
  for row, logits, f in tqdm.tqdm(cases, unit='cost'):
    num_evaluations = logits.shape[-1] + 1
    joint = tfp_rb.REINFORCE(
      tfp_rb.baselines.LeaveOneOut(), num_samples=num_evaluations
    )
    local = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=2)
    (of_joint, error_of_joint), (of_local, error_of_local) = (
      total_variance(estimator, logits, f, num_draws, seed)
      for estimator in (joint, local)
    )
    # The interval of a ratio of independent means comes from its logarithm.
    spread = 1.96 * np.hypot(
      error_of_joint / of_joint, error_of_local / max(of_local, 1e-300)
    )
    ratio = of_local / of_joint
    row |= {
      'evaluations': num_evaluations,
      'variance_joint': of_joint,
      'variance_local': of_local,
      'ratio': ratio,
      'low': ratio * np.exp(-spread),
      'high': ratio * np.exp(spread),
      'draws': num_draws,
      'seed': seed,
    }
    rows.append(row)
  return rows


def show(rows):
  print(
    f'\n{"sites":>5s}  {"cost":12s}{"order":>5s}{"share":>7s}'
    f'{"calls":>7s}   ratio of variances, local / joint (expected)'
  )
  for row in rows:
    expected = row['expected_ratio']
    expected = '' if expected == '' else f' ({expected:.3g})'
    print(
      f'{row["sites"]:5d}  {row["cost"]:12s}{row["order"]!s:>5s}'
      f'{row["share"]!s:>7s}{row["evaluations"]:7d}   {row["ratio"]:.3g}, '
      f'{row["low"]:.3g} to {row["high"]:.3g}{expected}'
    )


def main(argv):
  del argv
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  sizes, num_draws, num_steps = SIZES, FLAGS.draws, FLAGS.steps
  if FLAGS.smoke:
    sizes, num_draws, num_steps = (5,), 100, 2
  output_dir = pathlib.Path(FLAGS.output_dir)
  output_dir.mkdir(parents=True, exist_ok=True)
  rows = measure(sizes, num_draws, num_steps, FLAGS.seed)
  tables.write(output_dir / 'variances.csv', rows)
  show(rows)
  print(f'\nThe table is in {output_dir}.')


def define_flags():
  """Defines the flags of the script; an import of the module defines none."""
  flags.DEFINE_integer('draws', 2000, 'Gradients for each variance.')
  flags.DEFINE_integer('steps', 3000, 'Training steps of the autoencoder.')
  flags.DEFINE_integer('seed', 0, 'Seed of problems and draws.')
  flags.DEFINE_string(
    'output_dir', 'outputs/site_interaction', 'Folder for the CSV file.'
  )
  flags.DEFINE_bool('smoke', False, 'Makes a few draws for a few sites.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
