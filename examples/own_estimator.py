# SPDX-License-Identifier: Apache-2.0
"""Defines an estimator, tests that it is unbiased, and Rao-Blackwellizes it.

The estimator is self-critical REINFORCE: the baseline is `f` at the most
probable value. A subclass of `GradientEstimator` has one method, `evaluate`.
The script also shows how `assert_unbiased` finds a frequent mistake: without
`tf.stop_gradient`, the gradient of `f` is counted once too often.

  python examples/own_estimator.py
"""

from absl import app, flags
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

tfd = tfp.distributions

FLAGS = flags.FLAGS


class SelfCritical(tfp_rb.GradientEstimator):
  """REINFORCE with `f` at the most probable value as its baseline."""

  def evaluate(self, f, distribution, atoms, seed):
    del seed  # This estimator has no noise of its own.
    mode = tf.cast(distribution.mode(), atoms.values.dtype)
    # `f` is called once, with the atoms and the mode along the first axis.
    values = f(tf.concat([atoms.values, mode[tf.newaxis]], axis=0))
    value, level = values[:-1], values[-1]
    # The gradient of the surrogate is the estimate at each atom.
    score = self.stop(value - level) * atoms.log_prob
    return tfp_rb.Estimate(value, surrogate=value + score)

  def stop(self, x):
    return tf.stop_gradient(x)


class WithoutStop(SelfCritical):
  """The same estimator with a mistake that `assert_unbiased` finds."""

  def stop(self, x):
    return x


def is_unbiased(estimator):
  try:
    report = tfp_rb.testing.assert_unbiased(estimator, seed=[FLAGS.seed, 1])
  except AssertionError as error:
    print(f'  {str(error).splitlines()[0]}')
    return False
  print(f'  passed: relative bias {report.relative_bias:.1e}')
  return True


def train(estimator, steps, seed):
  """Returns the exact loss after training a batch of 8 distributions."""
  logits = tf.Variable(tf.zeros([8, 5]))
  cost = tf.constant([10.0, 11.0, 9.0, 12.0, 8.0])

  @tf.function(jit_compile=True)
  def step(seed):
    with tf.GradientTape() as tape:
      q = tfd.Categorical(logits=logits)
      loss = tfp_rb.expectation(
        lambda z: tf.gather(cost, z), q, estimator, seed=seed
      )
      loss = tf.reduce_sum(loss)
    logits.assign_sub(0.2 * tape.gradient(loss, logits))

  for i in range(steps):
    step(tf.constant([seed, i]))
  return tf.reduce_mean(tf.linalg.matvec(tf.nn.softmax(logits), cost))


def main(argv):
  del argv
  print('Self-critical:')
  assert is_unbiased(SelfCritical())
  print('Self-critical, with the most probable value summed:')
  assert is_unbiased(tfp_rb.rao_blackwellize(SelfCritical(), num_summed=1))
  print('Self-critical without `tf.stop_gradient`:')
  assert not is_unbiased(WithoutStop())
  print(f'Exact loss after {FLAGS.steps} steps (the optimum is 8):')
  estimators = {
    'REINFORCE': tfp_rb.REINFORCE(),
    'self-critical': SelfCritical(),
    'self-critical, 1 summed': tfp_rb.rao_blackwellize(
      SelfCritical(), num_summed=1
    ),
  }
  for name, estimator in estimators.items():
    print(f'  {name:24s}{train(estimator, FLAGS.steps, FLAGS.seed):6.2f}')


if __name__ == '__main__':
  flags.DEFINE_integer('steps', 100, 'Number of training steps.')
  flags.DEFINE_integer('seed', 0, 'Random seed.')
  app.run(main)
