# SPDX-License-Identifier: Apache-2.0
"""The estimator that `expectation` uses by default, and its cost."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from enumeration import assert_mean_is_explicit_sum
import tfp_rb
import zoo

tfb = tfp.bijectors
tfd = tfp.distributions

SEED = [3, 4]
LEAVE_ONE_OUT = tfp_rb.baselines.LeaveOneOut()
BUDGET = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(LEAVE_ONE_OUT), budget=3)
DRAWS = tfp_rb.REINFORCE(LEAVE_ONE_OUT, num_samples=3)


def atoms_of(q, estimator):
  """Returns the atoms at which `expectation` evaluates `f`, and its value."""
  f, atoms = zoo.cost(q, tf.float32), []

  def recorded(z):
    atoms.append(z.numpy())
    return f(z)

  value = tfp_rb.expectation(recorded, q, estimator, seed=SEED)
  (values,) = atoms  # there is one call
  return values, value.numpy()


def assert_default_is(estimator, q):
  for actual, expected in zip(
    atoms_of(q, None), atoms_of(q, estimator), strict=True
  ):
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize('name', zoo.DISTRIBUTIONS)
def test_one_variable_and_a_product_of_few_sites_get_a_budget(name):
  assert_default_is(BUDGET, zoo.DISTRIBUTIONS[name].make(batch_shape=(2, 3)))


# The best joint value of 9 bits has a probability of 0.85.
BIT = tfd.Bernoulli(logits=4.0, dtype=tf.float32)
BITS = tfd.Bernoulli(logits=[4.0, 3.5])


@pytest.mark.parametrize(
  ('q', 'num_sites'),
  [
    (tfd.Sample(BIT, 8), 8),
    (tfd.Sample(BIT, 9), 9),
    (tfd.Sample(BIT, [3, 3]), 9),
    (tfd.Sample(tfd.Sample(BIT, 4), 2), 8),
    (tfd.Sample(tfd.Sample(BIT, 3), 3), 9),
    (tfd.Independent(tfd.Sample(BITS, 4), 1), 8),
    (tfd.Independent(tfd.Sample(BITS, 5), 1), 10),
    (tfd.BatchReshape(tfd.Sample(BITS, 9), [2, 1]), 9),
    (tfd.BatchBroadcast(tfd.Sample(BIT, 9), [3]), 9),
    (tfb.Shift(1.0)(tfd.Sample(BIT, 9)), 9),
    (tfb.Shift(1.0)(tfd.Sample(BIT, 8)), 8),
  ],
)
def test_a_product_of_more_than_eight_sites_gets_joint_draws(q, num_sites):
  assert_default_is(BUDGET if num_sites <= 8 else DRAWS, q)


def test_an_unregistered_distribution_gets_draws():
  q = tfd.DirichletMultinomial(4.0, [1.0, 2.0, 0.5])
  assert_default_is(DRAWS, q)


@pytest.mark.parametrize('name', ['Bernoulli', 'OneHotCategorical-probs'])
def test_up_to_three_values_are_summed_exactly(name):
  q = zoo.DISTRIBUTIONS[name].make(tf.float64)
  f = zoo.cost(q, tf.float64)
  np.testing.assert_allclose(
    tfp_rb.expectation(f, q),
    tfp_rb.expectation(f, q, tfp_rb.Exact()),
    rtol=1e-14,
  )


@pytest.mark.parametrize(
  ('name', 'estimator'),
  [
    ('Categorical', BUDGET),
    ('Categorical_of_3', BUDGET),
    ('Bernoulli', BUDGET),
    ('BetaBinomial', BUDGET),
    ('Sample_Bernoulli', DRAWS),
  ],
)
def test_defaults_are_unbiased(name, estimator):
  assert_mean_is_explicit_sum(name, estimator)


@pytest.mark.parametrize(
  'q',
  [
    tfd.Categorical(logits=[3.0, 1.0, 0.0, 0.0]),
    tfd.JointDistributionSequential(
      [
        tfd.Categorical(logits=[3.0, 1.0, 0.0, 0.0]),
        lambda a: tfd.Poisson(1.0 + tf.cast(a, tf.float32)),
      ]
    ),
  ],
)
def test_vi_sums_a_few_parts_as_far_as_a_budget_says(q):
  def loss(estimator):
    return tfp_rb.vi.monte_carlo_variational_loss(
      lambda *z: tf.sin(tf.add_n([tf.cast(x, tf.float32) for x in z])),
      q,
      gradient_estimator=estimator,
      seed=SEED,
    )

  np.testing.assert_array_equal(loss(None), loss(BUDGET))
