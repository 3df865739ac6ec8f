# SPDX-License-Identifier: Apache-2.0
"""Infers the regimes of a time series, together with unknown parameters.

The series has 300 steps, and each step is in one of three regimes with its own
mean. The posterior is a chain over the regimes, with a normal or log-normal
distribution for each parameter. The log-density is a sum over the steps, so the
script declares it as a `ChainTarget`. Given the parameters, the sum over all
3^300 paths is then exact, and no path is drawn.

  python examples/regime_switching.py
"""

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

tfb, tfd = tfp.bijectors, tfp.distributions

FLAGS = flags.FLAGS
NUM_STEPS, NUM_REGIMES = 300, 3
TRUE_MEANS, TRUE_SCALE = np.array([-2.0, 0.0, 2.0]), 0.7
TRANSITION = np.where(np.eye(NUM_REGIMES), 0.95, 0.025).astype(np.float32)


def make_series(seed):
  """Returns the observations and the regimes."""
  rng = np.random.default_rng(seed)
  path = [0]
  for _ in range(NUM_STEPS - 1):
    path.append(rng.choice(NUM_REGIMES, p=TRANSITION[path[-1]]))
  noise = TRUE_SCALE * rng.standard_t(4.0, size=NUM_STEPS)
  return np.float32(TRUE_MEANS[path] + noise), np.array(path)


def make_target(x):
  """Returns the log-density, as terms for the first step and each transition.

  Each function is called once, with all steps `t` and all regimes `z`.
  """
  return tfp_rb.vi.ChainTarget(
    initial=lambda z, means, scale: tf.math.log([1.0 / NUM_REGIMES]),
    transition=lambda t, before, z, means, scale: tf.math.log(TRANSITION),
    emission=lambda t, z, means, scale: tfd.StudentT(
      4.0, tf.gather(means, z), scale
    ).log_prob(tf.gather(x, t)),
    other=lambda means, scale: (
      tf.reduce_sum(tfd.Normal(0.0, 3.0).log_prob(means))
      + tfd.Gamma(2.0, 2.0).log_prob(scale)
    ),
  )


def make_surrogate(x):
  """Returns a posterior with variables.

  The means start at quantiles of the observations, because with equal means all
  regimes would be equal and stay equal. The chain starts at the best chain for
  these means. A uniform chain would first pull all means together.
  """
  quantiles = np.quantile(x, [0.2, 0.5, 0.8]).astype(np.float32)
  chain = tfp_rb.distributions.CategoricalChain.from_potentials(
    tfd.StudentT(4.0, quantiles, 1.0).log_prob(x[:, np.newaxis]),
    tf.broadcast_to(
      tf.math.log(TRANSITION), [NUM_STEPS - 1, NUM_REGIMES, NUM_REGIMES]
    ),
  )
  positive = lambda value, shape: tfp.util.TransformedVariable(
    tf.fill(shape, value), tfb.Softplus()
  )
  return tfd.JointDistributionNamed(
    {
      'path': tfp_rb.distributions.CategoricalChain(
        tf.Variable(chain.initial_logits), tf.Variable(chain.transition_logits)
      ),
      'means': tfd.Independent(
        tfd.Normal(tf.Variable(quantiles), positive(0.3, [NUM_REGIMES])), 1
      ),
      'scale': tfd.LogNormal(tf.Variable(0.0), positive(0.3, [])),
    }
  )


def main(argv):
  del argv
  x, path = make_series(FLAGS.seed)
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
  means = q.model['means'].distribution
  order = np.argsort(means.loc)  # The numbers of the regimes are arbitrary.
  found = np.argsort(order)[q.model['path'].mode()]
  print(
    f'correct regimes on the most probable path: {np.mean(found == path):.1%}'
  )
  for k, true in zip(order, TRUE_MEANS):
    loc, scale = means.loc[k], means.scale[k]
    print(f'mean of one regime: {loc:.2f} +- {scale:.2f} (true: {true:g})')
  print(f'scale: {q.model["scale"].mean():.2f} (true: {TRUE_SCALE})')


if __name__ == '__main__':
  flags.DEFINE_integer('steps', 400, 'Number of steps of the fit.')
  flags.DEFINE_integer('seed', 0, 'Random seed.')
  app.run(main)
