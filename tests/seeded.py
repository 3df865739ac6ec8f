# SPDX-License-Identifier: Apache-2.0
"""Seeded computations with the library, which tests repeat in other settings.

Each computation takes a number, the seed, and returns a list of arrays. The
same number must give the same arrays when the computation runs alone, next to
other threads, inside a `tf.data` pipeline and on a replica of `tf.distribute`.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

tfd = tfp.distributions

_LOGITS = np.array([[0.3, 1.1, -0.5, 0.0], [2.5, -1.0, 0.2, 0.9]])
_COST = np.array([3.0, 1.0, 2.0, -1.0])


def _cost(z):
  return tf.gather(tf.constant(_COST), z)


def _value_and_gradient(loss):
  """Returns the loss of a distribution and its gradient w.r.t. the logits."""
  logits = tf.constant(_LOGITS)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    value = loss(tfd.Categorical(logits=logits))
  return [value, tape.gradient(value, logits)]


def _expectation(estimator):
  def compute(number):
    seed = tf.stack([7, number])
    return _value_and_gradient(
      lambda q: tfp_rb.expectation(_cost, q, estimator, seed=seed)
    )

  return compute


def _summed(sampler=None, baseline=None):
  estimator = tfp_rb.REINFORCE(baseline=baseline, num_samples=2)
  return tfp_rb.rao_blackwellize(estimator, num_summed=1, sampler=sampler)


def _partition(number):
  rest = tfp_rb.partition(tfd.Categorical(logits=_LOGITS), 1)
  return [rest.values, rest.log_rest, rest.sample_rest(9, [7, number])]


def _variational_loss(number):
  seed = tf.stack([7, number])
  target = tfd.Categorical(logits=_LOGITS[::-1].copy())
  return _value_and_gradient(
    lambda q: tfp_rb.vi.monte_carlo_variational_loss(
      target.log_prob, q, seed=seed
    )
  )


def _of_bits(make):
  """Returns the estimate of an estimator that is made anew for each number."""

  def compute(number):
    logits = tf.constant(_LOGITS)
    estimator = make()
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
      value = tfp_rb.expectation(
        lambda z: tf.reduce_sum(_COST * tf.cast(z, tf.float64), axis=-1) ** 2,
        q,
        estimator,
        seed=tf.stack([7, number]),
      )
    return [value, tape.gradient(value, logits)]

  return compute


# These computations can be traced: the number may be a Tensor.
TRACEABLE = {
  'ARMS': _of_bits(tfp_rb.ARMS),
  'Antithetic': _expectation(_summed(tfp_rb.samplers.Antithetic())),
  'DisARM': _of_bits(tfp_rb.DisARM),
  'DoubleControlVariate': _of_bits(
    lambda: tfp_rb.DoubleControlVariate(0.5, num_samples=3)
  ),
  'IID': _expectation(_summed(baseline=tfp_rb.baselines.LeaveOneOut())),
  'Stratified': _expectation(_summed(tfp_rb.samplers.Stratified())),
  'WithoutReplacement': _expectation(
    _summed(tfp_rb.samplers.WithoutReplacement())
  ),
  'partition': _partition,
  'variational_loss': _variational_loss,
}


def _problem(logits):
  return _cost, tfd.Categorical(logits=logits)


def _assert_unbiased(number):
  report = tfp_rb.testing.assert_unbiased(
    _summed(), _problem, [tf.constant(_LOGITS[0])], seed=(7, number)
  )
  assert report.is_exact
  return [report.num_outcomes, report.relative_bias]


def _exact_moments(number):
  # Nothing here is random; the number chooses the problem.
  moments = tfp_rb.diagnostics.exact_moments(
    _summed(tfp_rb.samplers.WithoutReplacement()),
    _problem,
    [tf.constant(_LOGITS[0] + 0.1 * number)],
  )
  return [moments.variance, moments.mean[0], moments.num_evaluations]


def _sampled_moments(number):
  logits = tf.Variable(_LOGITS)

  def loss(seed):
    q = tfd.Categorical(logits=logits)
    return tf.reduce_sum(tfp_rb.expectation(_cost, q, _summed(), seed=seed))

  moments = tfp_rb.diagnostics.sampled_moments(
    loss, [logits], num_pairs=3, seed=number
  )
  return [moments.variance, moments.mean[0], moments.num_evaluations]


COMPUTATIONS = TRACEABLE | {
  'assert_unbiased': _assert_unbiased,
  'exact_moments': _exact_moments,
  'sampled_moments': _sampled_moments,
}
