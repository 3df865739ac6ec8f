# SPDX-License-Identifier: Apache-2.0
"""MuProp and DARN, which expand `f` about the mean and about the atom."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from enumeration import assert_mean_is_explicit_sum
from errors import assert_reaches_the_user, raises
from internals import enumerate_outcomes
import tfp_rb
import zoo

tfd = tfp.distributions

LOGITS = np.array([0.3, 1.1, -0.5, 0.2])
PROBS = np.exp(LOGITS) / np.sum(np.exp(LOGITS))
JACOBIAN = np.diag(PROBS) - np.outer(PROBS, PROBS)
CURVATURE = np.array(
  [
    [1.0, -0.5, 0.3, 0.0],
    [-0.5, -1.5, 0.7, 0.2],
    [0.3, 0.7, 0.5, -1.0],
    [0.0, 0.2, -1.0, 2.0],
  ]
)
SLOPE = np.array([2.0, -1.0, 0.5, 3.0])


def quadratic(z, curvature=CURVATURE):
  z = tf.cast(z, tf.float64)
  return tf.reduce_sum(z * (z @ curvature + SLOPE), axis=-1)


def linear(z):
  return quadratic(z, np.zeros_like(CURVATURE))


def outcomes_of(estimator, f, make_q, parameter):
  """Returns probabilities `[T]` and gradients `[T, ...]` of all draws."""
  outcomes = enumerate_outcomes(
    estimator,
    lambda p: (f, make_q(p)),
    [tf.constant(parameter, tf.float64)],
    most_outcomes=10_000,
  )
  is_possible = outcomes.probabilities > 0.0
  p = outcomes.probabilities[is_possible]
  gradients = outcomes.weighted_gradients[0][is_possible]
  return p, gradients / np.reshape(p, [-1] + [1] * (gradients.ndim - 1))


def one_hot(logits):
  return tfd.OneHotCategorical(logits=logits)


def summed(estimator, k):
  return tfp_rb.rao_blackwellize(estimator, num_summed=k)


def mean_of(p, gradients):
  return np.tensordot(p, gradients, axes=(0, 0))


def variance_of(p, gradients):
  mean = mean_of(p, gradients)
  return np.sum(p[:, np.newaxis] * (gradients - mean) ** 2)


# MuProp.


def test_muprop_is_its_formula_at_every_atom():
  p, gradients = outcomes_of(tfp_rb.MuProp(), quadratic, one_hot, LOGITS)
  f = np.diag(CURVATURE) + SLOPE
  slope = 2.0 * CURVATURE @ PROBS + SLOPE
  at_mean = PROBS @ CURVATURE @ PROBS + SLOPE @ PROBS
  order = np.argsort(-LOGITS)  # the most probable outcomes come first
  for i, z in enumerate(order):
    atom = np.eye(4)[z]
    level = at_mean + slope @ (atom - PROBS)
    expected = (f[z] - level) * (atom - PROBS) + JACOBIAN @ slope
    np.testing.assert_allclose(gradients[i], expected, atol=1e-12)
    np.testing.assert_allclose(p[i], PROBS[z], rtol=1e-12)


@pytest.mark.parametrize('num_samples', [1, 2])
@pytest.mark.parametrize('k', range(5))
def test_muprop_is_unbiased_for_every_number_of_summed_atoms(k, num_samples):
  estimator = summed(tfp_rb.MuProp(num_samples=num_samples), k)
  p, gradients = outcomes_of(estimator, quadratic, one_hot, LOGITS)
  exact = JACOBIAN @ (np.diag(CURVATURE) + SLOPE)
  np.testing.assert_allclose(mean_of(p, gradients), exact, atol=1e-10)


# The values of the other distributions are labels, which have no mean.
WITH_MEAN = [
  name
  for name in zoo.FAMILIES
  if 'Categorical' not in name or 'OneHotCategorical' in name
  if name not in ('OrderedLogistic', 'BatchReshape')
]


@pytest.mark.parametrize('split', [{'num_summed': 2}, {'budget': 2}], ids=str)
@pytest.mark.parametrize('name', WITH_MEAN)
def test_muprop_is_unbiased_where_there_is_a_mean(name, split):
  assert_mean_is_explicit_sum(
    name, tfp_rb.rao_blackwellize(tfp_rb.MuProp(), **split)
  )


def test_muprop_is_unbiased_for_counts_without_end():
  tfp_rb.testing.assert_unbiased(
    summed(tfp_rb.MuProp(num_samples=2), 2),
    lambda rate: (lambda z: tf.sin(z) + 0.2 * z**2, tfd.Poisson(rate=rate)),
    [tf.constant([1.5], tf.float64)],
  )


@pytest.mark.parametrize('k', [0, 1, 3])
def test_muprop_has_no_variance_for_a_linear_function(k):
  p, gradients = outcomes_of(
    summed(tfp_rb.MuProp(), k), linear, one_hot, LOGITS
  )
  assert p.size
  for gradient in gradients:
    np.testing.assert_allclose(gradient, JACOBIAN @ SLOPE, atol=1e-12)


def test_summing_atoms_does_not_raise_the_variance_of_muprop():
  variances = []
  for k in range(5):
    p, gradients = outcomes_of(
      summed(tfp_rb.MuProp(), k), quadratic, one_hot, LOGITS
    )
    variances.append(variance_of(p, gradients))
  assert np.all(np.diff(variances) <= 1e-12)
  assert variances[0] > 0.1
  assert abs(variances[-1]) < 1e-12


@pytest.mark.parametrize('make', [tfp_rb.MuProp, tfp_rb.DARN])
def test_variables_of_f_are_differentiated_at_the_atoms(make):
  scale = tf.Variable(2.0, dtype=tf.float64)
  with tf.GradientTape() as tape:
    value = tfp_rb.expectation(
      lambda z: scale * quadratic(z),
      one_hot(tf.constant(LOGITS)),
      summed(make(), 1),
      seed=[1, 2],
    )
  np.testing.assert_allclose(scale * tape.gradient(value, scale), value)


# DARN.


@pytest.mark.parametrize('k', range(5))
def test_darn_is_exact_in_the_mean_for_a_linear_function(k):
  p, gradients = outcomes_of(summed(tfp_rb.DARN(), k), linear, one_hot, LOGITS)
  np.testing.assert_allclose(
    mean_of(p, gradients), JACOBIAN @ SLOPE, atol=1e-10
  )


@pytest.mark.parametrize('k', [0, 2])
def test_mean_of_darn_is_that_of_its_formula(k):
  p, gradients = outcomes_of(
    summed(tfp_rb.DARN(), k), quadratic, one_hot, LOGITS
  )
  expected = np.zeros(4)
  for z, atom in enumerate(np.eye(4)):
    signal = (2.0 * CURVATURE @ atom + SLOPE) @ (atom - 0.25)
    expected += PROBS[z] * signal * (atom - PROBS)
  np.testing.assert_allclose(mean_of(p, gradients), expected, atol=1e-10)


@pytest.mark.parametrize(
  ('power', 'ratio'), [(1.0, 1.0), (2.0, 1.0), (3.0, 1.5), (4.0, 2.0)]
)
def test_bias_of_darn_grows_with_the_power_of_a_bernoulli(power, ratio):
  # DARN uses half the sum of the derivatives at both ends, instead of the
  # difference of the values of `f`.
  logit = np.array(0.7)
  prob = 1.0 / (1.0 + np.exp(-logit))
  p, gradients = outcomes_of(
    tfp_rb.DARN(),
    lambda z: z**power,
    lambda x: tfd.Bernoulli(logits=x),
    logit,
  )
  np.testing.assert_allclose(
    mean_of(p, gradients), ratio * prob * (1.0 - prob), rtol=1e-10
  )


def test_center_of_darn_may_be_given():
  p, gradients = outcomes_of(
    tfp_rb.DARN(center=0.0),
    lambda z: z,
    lambda x: tfd.Binomial(total_count=np.float64(3.0), logits=x),
    np.array(0.2),
  )
  prob = 1.0 / (1.0 + np.exp(-0.2))
  # For f(z) = z the signal is z itself, as in plain REINFORCE.
  np.testing.assert_allclose(
    mean_of(p, gradients), 3.0 * prob * (1.0 - prob), rtol=1e-10
  )


# Errors.


@pytest.mark.parametrize('make', [tfp_rb.MuProp, tfp_rb.DARN])
def test_distribution_without_a_mean_is_refused(make):
  q = tfd.OrderedLogistic(cutpoints=[0.0, 1.0], loc=0.0)
  with raises(TypeError, 'distribution'):
    tfp_rb.expectation(lambda z: tf.cast(z, tf.float32), q, make())


def test_labels_are_no_index_of_muprop():
  q, cost = tfd.Categorical(logits=[0.0, 1.0]), tf.constant([1.0, 2.0])
  assert_reaches_the_user(
    lambda f: tfp_rb.expectation(f, q, tfp_rb.MuProp()),
    lambda z: tf.gather(cost, z),
    noted='MuProp',
  )


def test_darn_asks_for_a_center():
  q = tfd.Poisson(rate=2.0)
  with raises(TypeError, 'center'):
    tfp_rb.expectation(lambda z: z, q, tfp_rb.DARN())


@pytest.mark.parametrize('make', [tfp_rb.MuProp, tfp_rb.DARN, tfp_rb.ReinMax])
def test_f_must_be_differentiable_by_its_atoms(make):
  q = one_hot(tf.constant(LOGITS))
  with raises(ValueError, 'f'):
    tfp_rb.expectation(
      lambda z: tf.cast(tf.argmax(z, axis=-1), tf.float64), q, make()
    )


@pytest.mark.parametrize('make', [tfp_rb.MuProp, tfp_rb.DARN, tfp_rb.ReinMax])
def test_what_f_raises_at_atoms_of_floating_point_reaches_the_user(make):
  q, cost = tfd.Bernoulli(logits=0.0), tf.constant([1.0, 2.0])
  assert_reaches_the_user(
    lambda f: tfp_rb.expectation(f, q, make()),
    lambda z: tf.gather(cost, z),
    noted=make.__name__,
  )
