# SPDX-License-Identifier: Apache-2.0
"""Fits the posterior of a Bayesian mixture, with discrete and continuous parts.

The means of three clusters are continuous, and the assignments of 150
observations are discrete. One call of `fit_surrogate_posterior` fits both: it
reparameterizes the gradient w.r.t. the means, and estimates the gradient w.r.t.
the assignments by a sum over the clusters, for one observation at a time.

  python examples/mixture_posterior.py
"""

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

tfb, tfd = tfp.bijectors, tfp.distributions

FLAGS = flags.FLAGS
NUM_CLUSTERS, NUM_OBSERVATIONS = 3, 150
TRUE_MEANS = np.array([-4.0, 0.0, 3.0])


def make_data(seed):
  """Returns the observations and their clusters."""
  rng = np.random.default_rng(seed)
  clusters = rng.integers(NUM_CLUSTERS, size=NUM_OBSERVATIONS)
  noise = rng.normal(size=NUM_OBSERVATIONS)
  return np.float32(TRUE_MEANS[clusters] + noise), clusters


def make_target(x):
  """Returns the unnormalized log-density of means and assignments."""

  def log_joint(means, assignments):
    # `assignments` has the shape [m, 150]; the first axis enumerates the atoms.
    prior = tf.reduce_sum(tfd.Normal(0.0, 5.0).log_prob(means), axis=-1)
    centers = tf.gather(means, assignments, axis=-1, batch_dims=1)
    log_likelihood = tfd.Normal(centers, 1.0).log_prob(x)
    log_likelihood -= np.log(NUM_CLUSTERS)
    return prior + tf.reduce_sum(log_likelihood, axis=-1)

  return log_joint


def make_surrogate(x):
  """Returns a mean-field posterior with variables.

  The means start at quantiles of the observations, because with equal means all
  clusters would be equal and stay equal.
  """
  quantiles = np.quantile(x, [0.2, 0.5, 0.8]).astype(np.float32)
  scale = tfp.util.TransformedVariable(
    tf.fill([NUM_CLUSTERS], 0.3), tfb.Softplus()
  )
  logits = tf.Variable(tf.zeros([NUM_OBSERVATIONS, NUM_CLUSTERS]))
  return tfd.JointDistributionNamed(
    {
      'means': tfd.Independent(tfd.Normal(tf.Variable(quantiles), scale), 1),
      'assignments': tfd.Independent(tfd.Categorical(logits=logits), 1),
    }
  )


def main(argv):
  del argv
  x, clusters = make_data(FLAGS.seed)
  q = make_surrogate(x)
  losses = tfp_rb.vi.fit_surrogate_posterior(
    make_target(x),
    q,
    keras.optimizers.Adam(0.05),
    num_steps=FLAGS.steps,
    jit_compile=True,
    seed=[FLAGS.seed, 1],
  )
  print(f'ELBO of the last 50 steps: {-np.mean(losses[-50:]):.1f} nats')
  found = q.model['assignments'].mode().numpy()
  print(f'correct clusters: {np.mean(found == clusters):.1%}')
  means = q.model['means'].distribution
  for k in range(NUM_CLUSTERS):
    print(
      f'mean of cluster {k}: {means.loc[k]:.2f} +- {means.scale[k]:.2f} '
      f'(true: {TRUE_MEANS[k]:g})'
    )


if __name__ == '__main__':
  flags.DEFINE_integer('steps', 400, 'Number of steps of the fit.')
  flags.DEFINE_integer('seed', 0, 'Random seed.')
  app.run(main)
