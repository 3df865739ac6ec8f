"""Which estimator `expectation` uses if none is given, and what it costs."""

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

PRODUCTS = {
  'Independent',
  'Sample',
  'Independent-OneHotCategorical',
  'Independent-Bernoulli',
  'nested',
  'nested-finite',
}


def atoms_of(q, estimator):
  """The atoms at which `expectation` evaluates `f`, and its value."""
  f, atoms = zoo.cost(q, tf.float32), []

  def recorded(z):
    atoms.append(z.numpy())
    return f(z)

  value = tfp_rb.expectation(recorded, q, estimator, seed=SEED)
  (values,) = atoms  # one call
  return values, value.numpy()


def assert_default_is(estimator, q):
  for actual, expected in zip(
    atoms_of(q, None), atoms_of(q, estimator), strict=True
  ):
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize('name', zoo.DISTRIBUTIONS)
def test_one_variable_gets_a_budget_and_a_product_gets_joint_draws(name):
  q = zoo.DISTRIBUTIONS[name].make(batch_shape=(2, 3))
  assert_default_is(DRAWS if name in PRODUCTS else BUDGET, q)


@pytest.mark.parametrize(
  'q',
  [
    tfd.Independent(tfd.Categorical(logits=[[2.0, 1.0, 0.0, 0.0]]), 1),
    tfd.Independent(tfd.Categorical(logits=[2.0, 1.0, 0.0, 0.0]), 0),
    tfd.Sample(tfd.Sample(tfd.Poisson(2.0), 1), [1, 1]),
    tfb.Shift(1.0)(tfd.Independent(tfd.Poisson([2.0]), 1)),
  ],
)
def test_a_product_of_one_site_is_one_variable(q):
  assert_default_is(BUDGET, q)


@pytest.mark.parametrize(
  'q',
  [
    tfd.Sample(tfd.Sample(tfd.Bernoulli(logits=2.0), 1), 2),
    tfd.Sample(tfd.Sample(tfd.Bernoulli(logits=2.0), 2), 1),
    tfd.BatchReshape(tfd.Sample(tfd.Bernoulli(logits=[2.0, 1.0]), 2), [2, 1]),
    tfd.BatchBroadcast(tfd.Sample(tfd.Bernoulli(logits=2.0), 2), [3]),
  ],
)
def test_sites_are_counted_through_wrappers(q):
  assert_default_is(DRAWS, q)


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
