# SPDX-License-Identifier: Apache-2.0
"""Infers counts without an upper bound: how many animals live at a place.

Each of 20 places has an unknown number `n` of animals, and on each of 5 visits
an observer sees each animal with probability 0.4. The surrogate posterior of
`n` is a negative binomial distribution, shifted to the largest number that was
seen at the place, because fewer animals are impossible. It has infinitely many
values: `tfp_rb` sums the most probable ones and draws from the rest. The exact
posterior is known here, and the script compares it with the fit.

  python examples/counts.py
"""

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

tfb, tfd = tfp.bijectors, tfp.distributions

FLAGS = flags.FLAGS
NUM_PLACES, NUM_VISITS = 20, 5
RATE, SEEN = 12.0, 0.4


def make_data(seed):
  """Returns the numbers of animals seen, an array of shape [5, 20]."""
  rng = np.random.default_rng(seed)
  n = rng.poisson(RATE, size=NUM_PLACES)
  seen = rng.binomial(n, SEEN, size=[NUM_VISITS, NUM_PLACES])
  return np.float32(seen)


def make_target(seen):
  """Returns the unnormalized log-density of the counts at each place."""

  def log_joint(n):
    # `n` has the shape [m, 20]; the first axis enumerates the atoms.
    visits = tfd.Binomial(n[..., tf.newaxis, :], probs=SEEN).log_prob(seen)
    return tfd.Poisson(RATE).log_prob(n) + tf.reduce_sum(visits, axis=-2)

  return log_joint


def exact_mean(seen, target):
  """Returns the mean of the exact posterior.

  The sum goes up to 100 more animals than were seen.
  """
  n = seen.max(axis=0) + np.arange(101, dtype=np.float32)[:, np.newaxis]
  return np.sum(tf.nn.softmax(target(tf.constant(n)), axis=0) * n, axis=0)


def main(argv):
  del argv
  seen = make_data(FLAGS.seed)
  target = make_target(seen)
  # There is one distribution for each place, so the places are the batch.
  excess = tfd.NegativeBinomial(
    tfp.util.TransformedVariable(tf.fill([NUM_PLACES], 5.0), tfb.Softplus()),
    logits=tf.Variable(tf.zeros([NUM_PLACES])),
    require_integer_total_count=False,
  )
  q = tfd.TransformedDistribution(excess, tfb.Shift(seen.max(axis=0)))
  tfp_rb.vi.fit_surrogate_posterior(
    target,
    q,
    keras.optimizers.Adam(0.05),
    num_steps=FLAGS.steps,
    # `f` is evaluated six times per place. How many values are summed depends
    # on `q`.
    gradient_estimator=tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut()), budget=6
    ),
    jit_compile=True,
    seed=[FLAGS.seed, 1],
  )
  means = seen.max(axis=0) + excess.mean().numpy()
  exact = exact_mean(seen, target)
  print(f'{"most seen":>9s}{"fitted mean":>13s}{"exact mean":>12s}')
  for row in list(zip(seen.max(axis=0), means, exact))[:5]:
    print('{:9.0f}{:13.2f}{:12.2f}'.format(*row))
  error = np.abs(means - exact).max()
  print(f'largest difference at {NUM_PLACES} places: {error:.2f}')


if __name__ == '__main__':
  flags.DEFINE_integer('steps', 600, 'Number of steps of the fit.')
  flags.DEFINE_integer('seed', 0, 'Random seed.')
  app.run(main)
