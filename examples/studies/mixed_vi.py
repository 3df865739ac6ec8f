# SPDX-License-Identifier: Apache-2.0
"""Compares `tfp_rb.vi` with `tfp.vi` on discrete and continuous variables.

The model is a Bayesian mixture of 5 Gaussians in the plane with 200
observations. The latent variables are the 5 means (continuous) and the 200
assignments (discrete). `tfp_rb.vi.fit_surrogate_posterior` fits a mean-field
surrogate posterior with default settings. It sums all 5 clusters at one
assignment at a time, which takes 801 evaluations of the target in one call: the
joint draw, and 4 other clusters at each of the 200 assignments.

The script compares this fit with other methods. They use 1000 evaluations per
step, the same initial values and Adam (SCORE_FUNCTION at the best of three
learning rates):

* TFP's `fit_surrogate_posterior`, which reparameterizes. The assignments cannot
  be reparameterized, so their gradient is noise around 0.
* TFP's SCORE_FUNCTION for all variables, without a baseline.
* The joint Rao-Blackwellization, which sums the best of the 5^200 joint
  assignments and draws 999, with a leave-one-out baseline.

The reference is coordinate ascent (CAVI), which requires the closed form of
every conditional; the other methods only call the target. Only CAVI uses the
fact that the target is a sum over observations. If you make the observations
the batch of the surrogate, 5 evaluations suffice (see
`tfp_rb.local_expectation`).

The negative ELBO has a closed form here, so all curves are exact.

  python -m examples.studies.mixed_vi --output_dir=outputs/mixed_vi
"""

import csv
import os
import time
import warnings

from absl import app, flags
import keras
import matplotlib
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

import tfp_rb

matplotlib.use('Agg')
import matplotlib.pyplot as plt

tfb = tfp.bijectors
tfd = tfp.distributions

FLAGS = flags.FLAGS
NUM_CLUSTERS = 5
PRIOR_SCALE = 10.0
INITIAL_SCALE = 0.5
DISTANCE = 5.0  # Between neighbouring clusters, in standard deviations.
OURS = 'tfp_rb, default'
JOINT = 'tfp_rb, joint sum'
SCORE = 'TFP, SCORE_FUNCTION'
REPARAMETERIZED = 'TFP, default'
METHODS = (OURS, JOINT, SCORE, REPARAMETERIZED)
CAVI = 'CAVI'
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {
  OURS: '#0072B2',
  JOINT: '#009E73',
  SCORE: '#D55E00',
  REPARAMETERIZED: '#CC79A7',
  CAVI: 'black',
}
STYLES = {OURS: '-', JOINT: '--', SCORE: '-.', REPARAMETERIZED: ':'}


def make_data(num_observations, seed):
  """Returns observations near the corners of a pentagon, and initial means."""
  rng = np.random.default_rng(seed)
  angles = 2.0 * np.pi * np.arange(NUM_CLUSTERS) / NUM_CLUSTERS
  radius = DISTANCE / (2.0 * np.sin(np.pi / NUM_CLUSTERS))
  centres = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
  labels = rng.integers(NUM_CLUSTERS, size=num_observations)
  x = centres[labels] + rng.normal(size=[num_observations, 2])
  # Each initial mean is the observation farthest from the previous means.
  means = x[rng.integers(num_observations)][np.newaxis]
  while len(means) < NUM_CLUSTERS:
    distances = np.linalg.norm(x[:, np.newaxis] - means, axis=-1)
    means = np.append(means, x[[np.argmax(distances.min(axis=1))]], axis=0)
  return x, means


def make_target(x):
  """Returns the log joint density of data, means and assignments.

  The means have the shape `[m, K, 2]`, and the assignments `[m, N]`.
  """
  x = tf.constant(x, tf.float32)

  def target(means, assignments):
    prior = tfd.Normal(0.0, PRIOR_SCALE).log_prob(means)
    own = tf.gather(means, assignments, batch_dims=1)  # [m, N, 2]
    likelihood = tfd.Normal(own, 1.0).log_prob(x)
    return (
      tf.reduce_sum(prior, axis=[-2, -1])
      + tf.reduce_sum(likelihood, axis=[-2, -1])
      - x.shape[0] * np.log(NUM_CLUSTERS)
    )

  return target


def make_surrogate(initial_means, num_observations):
  """Returns independent normal means and categorical assignments."""
  scale = tfp.util.TransformedVariable(
    tf.fill(initial_means.shape, INITIAL_SCALE), tfb.Softplus()
  )
  loc = tf.Variable(initial_means, dtype=tf.float32)
  logits = tf.Variable(tf.zeros([num_observations, NUM_CLUSTERS]))
  return tfd.JointDistributionNamed(
    dict(
      means=tfd.Independent(tfd.Normal(loc, scale), 2),
      assignments=tfd.Independent(tfd.Categorical(logits=logits), 1),
    )
  )


def negative_elbo(x, loc, scale, logits):
  """Returns the exact negative ELBO per observation, for any dtype."""
  x = tf.cast(x, loc.dtype)
  log_r = tf.nn.log_softmax(logits)
  second_moments = loc**2 + scale**2
  distances = tf.reduce_sum((x[:, tf.newaxis] - loc) ** 2 + scale**2, axis=-1)
  # These are the expectations of log p(x_n, z_n = k) and of log r_nk.
  per_site = tf.exp(log_r) * (
    -0.5 * distances - np.log(2.0 * np.pi) - np.log(NUM_CLUSTERS) - log_r
  )
  # This is E[log p(mu)] plus the entropy of q(mu). The constants log(2 pi) / 2
  # cancel.
  per_mean = (
    -0.5 * second_moments / PRIOR_SCALE**2
    - np.log(PRIOR_SCALE)
    + 0.5
    + tf.math.log(scale)
  )
  return -(tf.reduce_sum(per_site) + tf.reduce_sum(per_mean)) / x.shape[0]


def parameters_of(surrogate):
  """Returns locations and scales of the means, and logits of assignments."""
  means, assignments = (
    surrogate.model[name].distribution for name in ('means', 'assignments')
  )
  return (
    tf.convert_to_tensor(means.loc),
    tf.convert_to_tensor(means.scale),
    tf.convert_to_tensor(assignments.logits),
  )


def cavi(x, initial_means, tolerance=1e-10, most_steps=1000):
  """Runs coordinate ascent to convergence; returns losses, means and logits."""
  loc, scale = initial_means, np.full_like(initial_means, INITIAL_SCALE)
  losses = []
  while len(losses) < most_steps:
    distances = ((x[:, np.newaxis] - loc) ** 2 + scale**2).sum(axis=-1)
    logits = -0.5 * distances
    r = np.exp(logits - logits.max(axis=1, keepdims=True))
    r /= r.sum(axis=1, keepdims=True)
    precision = (r.sum(axis=0) + PRIOR_SCALE**-2)[:, np.newaxis]
    loc, scale = r.T @ x / precision, precision**-0.5 * np.ones_like(loc)
    arrays = map(tf.constant, (loc, scale, logits))
    losses.append(float(negative_elbo(x, *arrays)))
    if len(losses) > 1 and losses[-2] - losses[-1] < tolerance:
      break
  return np.array(losses), loc, logits


def evaluations_per_step(method, num_observations):
  if method == CAVI:
    return 0
  if method == OURS:  # All sites share the evaluation of the joint draw.
    return (NUM_CLUSTERS - 1) * num_observations + 1
  return NUM_CLUSTERS * num_observations


def fit(
  method, x, initial_means, learning_rate, num_steps, seed, jit_compile=True
):
  """Fits a surrogate posterior; returns the exact losses and the fit."""
  target = make_target(x)
  surrogate = make_surrogate(initial_means, len(x))
  num_evaluations = evaluations_per_step(method, len(x))
  settings = dict(
    # The learning rate falls to 0, so that no curve ends in its own noise.
    optimizer=keras.optimizers.Adam(
      keras.optimizers.schedules.CosineDecay(learning_rate, num_steps)
    ),
    num_steps=num_steps,
    trace_fn=lambda _: negative_elbo(x, *parameters_of(surrogate)),
    jit_compile=jit_compile,
    seed=seed,
  )
  if method == OURS:
    losses = tfp_rb.vi.fit_surrogate_posterior(target, surrogate, **settings)
  elif method == JOINT:
    estimator = tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(
        tfp_rb.baselines.LeaveOneOut(), num_samples=num_evaluations - 1
      ),
      num_summed=1,
    )
    losses = tfp_rb.vi.fit_surrogate_posterior(
      target, surrogate, gradient_estimator=estimator, **settings
    )
  else:
    # With TFP the user has to build a Keras 3 optimizer.
    variables = surrogate.trainable_variables
    settings['optimizer'].build(variables)
    settings['trainable_variables'] = variables
    if method == SCORE:
      losses = tfp.math.minimize(
        lambda seed: tfp.vi.monte_carlo_variational_loss(
          target,
          surrogate,
          sample_size=num_evaluations,
          gradient_estimator=tfp.vi.GradientEstimators.SCORE_FUNCTION,
          seed=seed,
        ),
        **settings,
      )
    else:
      # TFP warns that this gradient may be biased, which this script shows.
      with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        losses = tfp.vi.fit_surrogate_posterior(
          target, surrogate, sample_size=num_evaluations, **settings
        )
  return losses.numpy().astype(float), surrogate


def run_all(x, initial_means, learning_rates, num_steps, seed, jit_compile):
  """Fits with every method at each of its learning rates.

  Args:
    x: Observations.
    initial_means: Initial locations of the means.
    learning_rates: Dictionary that maps each method to a list of rates.
    num_steps: Python `int`.
    seed: Stateless seed.
    jit_compile: Python `bool`.

  Returns:
    paths: Dictionary that maps method and rate to the losses per step.
    table: Dictionary that maps each method to its best rate and to the seconds
      of this fit, including compilation.
    surrogate: The surrogate posterior that `tfp_rb` fitted.
  """
  paths, table, ours = {}, {}, None
  work = [(name, rate) for name in METHODS for rate in learning_rates[name]]
  for name, rate in (bar := tqdm.tqdm(work, unit='fit')):
    bar.set_description(f'{name}, rate {rate:g}')
    start = time.perf_counter()
    losses, surrogate = fit(
      name, x, initial_means, rate, num_steps, seed, jit_compile
    )
    seconds = time.perf_counter() - start
    paths[name, rate] = losses
    if name not in table or losses[-1] < paths[name, table[name][0]][-1]:
      table[name] = rate, seconds
      ours = surrogate if name == OURS else ours
  return paths, table, ours


def write_csv(path, paths, reference, num_observations, seed):
  """Writes one row per method, learning rate and step; CAVI has no rate."""
  with open(path, 'w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(
      ['method', 'learning_rate', 'step', 'evaluations']
      + ['negative_elbo_per_observation', 'observations', 'seed']
    )
    for (name, rate), losses in {(CAVI, ''): reference, **paths}.items():
      for step, loss in enumerate(losses, 1):
        calls = evaluations_per_step(name, num_observations) * step
        row = [name, rate, step, calls, f'{loss:.6g}', num_observations, seed]
        writer.writerow(row)


def plot(x, paths, table, reference, ours, cavi_means, path):
  figure, (left, right) = plt.subplots(
    1, 2, figsize=(12, 4.8), layout='constrained'
  )
  for name in METHODS:
    rate = table[name][0]
    losses = paths[name, rate]
    left.plot(
      np.arange(1, len(losses) + 1), losses, STYLES[name],
      color=COLOURS[name], linewidth=2.0, label=f'{name} (rate {rate:g})',
    )  # fmt: skip
  left.axhline(
    reference[-1], color=COLOURS[CAVI], linewidth=1.0, label='CAVI, converged'
  )
  left.set(
    xscale='log',
    xlabel='step of Adam',
    ylabel='negative ELBO per observation [nats], exact',
  )  # fmt: skip
  left.legend(loc='upper right', fontsize=9)
  loc, _, logits = parameters_of(ours)
  fitted = np.argmax(logits, axis=1)
  colours = ('#E69F00', '#56B4E9', '#009E73', '#CC79A7', '#D55E00')
  for k, (colour, marker) in enumerate(zip(colours, 'osv^D')):
    right.plot(*x[fitted == k].T, marker, color=colour, markersize=4, alpha=0.7)
  right.plot(*cavi_means.T, 'o', color='black', markersize=15, fillstyle='none',
             markeredgewidth=1.5, label='means of CAVI')  # fmt: skip
  right.plot(*loc.numpy().T, 'k+', markersize=11, markeredgewidth=2.5,
             label='means, tfp_rb')  # fmt: skip
  right.set(
    aspect='equal', xlabel='$x_1$ [standard deviations]',
    ylabel='$x_2$ [standard deviations]',
    title='tfp_rb: most probable clusters',
    # The upper limit leaves room for the legend.
    ylim=(x[:, 1].min() - 0.5, x[:, 1].max() + 3.0),
  )  # fmt: skip
  right.legend(loc='upper right', fontsize=9, markerscale=0.6)
  figure.savefig(path, dpi=130)
  plt.close(figure)


def main(argv):
  del argv
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  num_observations, num_steps = FLAGS.observations, FLAGS.steps
  rates = dict.fromkeys(METHODS, [FLAGS.learning_rate])
  rates[SCORE] = [float(x) for x in FLAGS.score_function_learning_rates]
  if FLAGS.smoke:
    num_observations, num_steps = 20, 10
    rates[SCORE] = rates[SCORE][:1]
  os.makedirs(FLAGS.output_dir, exist_ok=True)
  in_output = lambda name: os.path.join(FLAGS.output_dir, name)

  x, initial_means = make_data(num_observations, FLAGS.seed)
  start = time.perf_counter()
  reference, cavi_means, _ = cavi(x, initial_means)
  cavi_seconds = time.perf_counter() - start
  paths, table, ours = run_all(
    x,
    initial_means,
    rates,
    num_steps,
    [FLAGS.seed, 1],
    jit_compile=not FLAGS.smoke,  # Compilation takes longer than a few steps.
  )
  write_csv(
    in_output('paths.csv'), paths, reference, num_observations, FLAGS.seed
  )
  plot(
    x, paths, table, reference, ours, cavi_means, in_output('mixed_vi.png')
  )  # fmt: skip

  print(
    f'\nAfter {num_steps} steps on {num_observations} observations; seconds '
    'include compilation\n'
    f'{"":22s}{"rate":>6s}{"evaluations/step":>18s}'
    f'{"-ELBO/observation":>19s}{"over CAVI":>11s}{"seconds":>9s}'
  )
  print(
    f'{CAVI:22s}{"":6s}{"closed form":>18s}{reference[-1]:19.3f}{"":11s}'
    f'{cavi_seconds:9.1f}'
  )
  for name, (rate, seconds) in table.items():
    loss = paths[name, rate][-1]
    print(
      f'{name:22s}{rate:6g}'
      f'{evaluations_per_step(name, num_observations):18d}{loss:19.3f}'
      f'{loss - reference[-1]:11.3f}{seconds:9.1f}'
    )
  print(f'\nThe figure and the CSV file are in {FLAGS.output_dir}.')


def define_flags():
  """Defines the flags of the script; an import of the module defines none."""
  flags.DEFINE_integer('observations', 200, 'Number of observations.')
  flags.DEFINE_integer('steps', 400, 'Number of optimizer steps.')
  flags.DEFINE_float('learning_rate', 0.1, 'Initial learning rate of Adam.')
  flags.DEFINE_list(
    'score_function_learning_rates', ['0.05', '0.1', '0.2'],
    'Learning rates for SCORE_FUNCTION; the script reports the best run.',
  )  # fmt: skip
  flags.DEFINE_integer('seed', 0, 'Seed for data and fits.')
  flags.DEFINE_string(
    'output_dir', 'outputs/mixed_vi', 'Folder for the CSV and PNG files.'
  )
  flags.DEFINE_bool('smoke', False, 'Makes a short run as a test.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
