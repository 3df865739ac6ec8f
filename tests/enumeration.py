# SPDX-License-Identifier: Apache-2.0
"""The mean over every outcome of the draws, and the value it must have.

The library lists the outcomes; their mean must equal the derivative of the
explicit sum over all values, which comes from `reference.py`.
"""

import numpy as np
import tensorflow as tf

import internals
import reference
from zoo import FAMILIES

ATOL = 1e-10
MOST_OUTCOMES = 7000


def cost(feature, penalty):
  """Evaluates `f`, which depends on the parameters via `penalty`.

  This dependence differs from value to value.
  """
  return (feature - 1.3) ** 2 + 2.0 + penalty * (1.0 + 0.5 * feature)


def feature_weights(event_shape):
  size = int(np.prod(event_shape))
  return np.reshape(0.5 + 0.4 * np.arange(size), event_shape)


def make_problem(family):
  """Returns a callable from parameters to `(f, q)`, for the enumeration."""
  ranks = [p.ndim for p in family.parameters]

  def problem(*parameters):
    q = family.distribution(*parameters)
    penalty = 0.0
    for parameter, rank in zip(parameters, ranks):
      own_axes = list(range(parameter.shape.rank - rank, parameter.shape.rank))
      penalty += 0.1 * tf.reduce_sum(parameter**2, own_axes)
    num_copied = penalty.shape.rank
    penalty = tf.reshape(
      penalty, [*penalty.shape] + [1] * (q.batch_shape.rank - num_copied)
    )
    weights = feature_weights(q.event_shape)

    def f(z):
      axes = list(range(z.shape.rank - q.event_shape.rank, z.shape.rank))
      feature = tf.reduce_sum(weights * tf.cast(z, tf.float64), axes)
      return cost(feature, penalty)

    return f, q

  return problem


def explicit_sums(family, *parameters):
  """Returns `sum_z q(z) f(z)` for each batch member."""
  penalty = sum(0.1 * np.sum(p**2) for p in parameters)
  return [
    reference.expectation(
      table,
      lambda z: cost(np.sum(feature_weights(np.shape(z)) * z), penalty),
    )
    for table in family.tables(*parameters)
  ]


EXPECTED = {
  name: (
    np.array(explicit_sums(family, *family.parameters)),
    reference.complex_step_gradient(
      lambda *p, family=family: sum(explicit_sums(family, *p)),
      family.parameters,
    ),
  )
  for name, family in FAMILIES.items()
}


def assert_mean_is_explicit_sum(name, estimator):
  family = FAMILIES[name]
  outcomes = internals.enumerate_outcomes(
    estimator, make_problem(family), family.parameters, MOST_OUTCOMES
  )
  assert outcomes is not None, 'too many outcomes to enumerate'
  value, gradients = EXPECTED[name]
  np.testing.assert_allclose(np.sum(outcomes.probabilities, axis=0), 1.0)
  mean = np.sum(outcomes.probabilities * outcomes.values, axis=0)
  np.testing.assert_allclose(np.ravel(mean), value, rtol=0.0, atol=ATOL)
  for actual, desired in zip(outcomes.weighted_gradients, gradients):
    np.testing.assert_allclose(
      np.sum(actual, axis=0), desired, rtol=0.0, atol=ATOL
    )
