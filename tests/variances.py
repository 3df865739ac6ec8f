# SPDX-License-Identifier: Apache-2.0
"""Variances over all outcomes of the draws, on six problems of four values.

Rows of a batch are separate problems. The variance is the total one: the trace
of the covariance of the gradient w.r.t. the logits.
"""

import functools

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import internals
import reference
import tfp_rb

tfd = tfp.distributions

RTOL = 1e-9
ATOL = 1e-12

# The distributions are flat, moderate or concentrated. The costs f are random,
# are low at the best value, have an outlier in the rest, or have an offset.
LOGITS = np.array([
  [0.1, -0.1, 0.0, 0.05],
  [0.3, 1.1, -0.5, 0.0],
  [3.0, 0.5, -0.4, 0.1],
  [0.0, 2.0, 4.0, -1.0],
  [0.7, 0.2, -0.3, 0.9],
  [2.2, 0.4, 0.1, -0.6],
])  # fmt: skip
COSTS = np.array(
  [
    [1.0, -2.0, 0.5, 3.0],
    [2.0, -1.0, 0.5, 3.0],
    [-1.0, 2.0, 2.5, 1.5],
    [0.0, 1.0, 0.5, 9.0],
    [11.0, 9.0, 10.5, 12.0],
    [20.0, 21.5, 19.0, 22.0],
  ]
)
OFFSET_ROWS = [4, 5]
NUM_VALUES = 4
PENALTY = 0.1


def make_problem(costs):
  """Returns an `f` that also depends on the logits, `[T] + [rows, K]`."""

  def problem(logits):
    penalty = PENALTY * tf.reduce_sum(logits**2, axis=-1)
    table = tf.broadcast_to(tf.constant(costs), logits.shape)

    def f(z):
      order = [*range(1, z.shape.rank), 0]
      index = tf.transpose(z, order)  # this moves the atoms to the last axis
      cost = tf.gather(table, index, batch_dims=index.shape.rank - 1)
      cost = tf.transpose(cost, [z.shape.rank - 1, *range(z.shape.rank - 1)])
      return cost + penalty * (1.0 + 0.3 * cost)

    return f, tfd.Categorical(logits=logits)

  return problem


def problem_of(logits, costs):
  penalty = PENALTY * np.sum(logits**2)
  return reference.Problem(
    q=reference.softmax(logits),
    f=costs + penalty * (1.0 + 0.3 * costs),
    score=reference.softmax_scores(logits),
    df=np.outer(1.0 + 0.3 * costs, 2.0 * PENALTY * logits),
  )


ROWS = range(len(LOGITS))
PROBLEMS = [problem_of(*row) for row in zip(LOGITS, COSTS)]


def enumerate_all(estimator, logits=LOGITS, costs=COSTS, most_outcomes=7000):
  outcomes = internals.enumerate_outcomes(
    estimator, make_problem(costs), [tf.constant(logits)], most_outcomes
  )
  assert outcomes is not None, 'too many outcomes to enumerate'
  chances = outcomes.probabilities[..., np.newaxis]  # [T, rows, 1]
  # Impossible outcomes have chance 0 and gradient 0.
  gradients = outcomes.weighted_gradients[0] / np.where(chances, chances, 1.0)
  return outcomes.probabilities, gradients


def total_variance(chances, gradients):
  """Returns the variance of each row, from `[T, rows]` and `[T, rows, K]`."""
  chances = chances[..., np.newaxis]
  mean = np.sum(chances * gradients, axis=0)
  return np.sum(chances * (gradients - mean) ** 2, axis=(0, 2))


def variance_of(estimator, **kwargs):
  return total_variance(*enumerate_all(estimator, **kwargs))


def summed(baseline, num_summed, num_samples=1):
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples),
    num_summed=num_summed,
  )


# Values that several tests compare with, enumerated once.


@functools.cache
def variance_of_summed(level, num_summed, num_samples=1):
  return variance_of(summed(level, num_summed, num_samples))


@functools.cache
def variance_of_plain(level):
  return variance_of(tfp_rb.REINFORCE(baseline=level))
