# SPDX-License-Identifier: Apache-2.0
"""Enumerates every outcome of the draws: value and gradient are unbiased.

No seed is involved. The library lists the outcomes; their mean must equal the
derivative of the explicit sum over all values, which comes from `reference.py`.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from cases import covering_pairs
from enumeration import (
  ATOL,
  EXPECTED,
  assert_mean_is_explicit_sum,
  cost,
  make_problem,
)
import internals
import reference
import tfp_rb
import zoo
from zoo import FAMILIES

baselines = tfp_rb.baselines
tfb = tfp.bijectors
tfd = tfp.distributions


# One family of each kind runs with every baseline. The others run with one
# baseline whose level comes from the draws, and one whose level comes from the
# scores.
KINDS = ('Categorical', 'Categorical_of_3', 'Bernoulli')
OF_DRAWS = ('mixed', 'optimal')


def is_possible(name, baseline, num_summed, num_samples):
  """Returns whether the outcomes are defined, distinct, and not too many."""
  row, num_values = zoo.BASELINES[baseline], FAMILIES[name].num_values
  if num_summed == num_values and num_samples > 1:
    return False  # nothing is drawn
  if num_summed + num_samples == 1 and row.needs_second:
    return False
  extra = row.num_extra(num_summed + num_samples)
  outcomes = (num_values - num_summed) ** num_samples * num_values**extra
  return outcomes <= 1000


def some_k(num_values):
  """Returns all numbers of summed values, or the extremes if there are many."""
  last = (num_values - 1, num_values)
  return sorted({k for k in (0, 1, 2, 3, *last) if k <= num_values})


def splits():
  for name, family in FAMILIES.items():
    for baseline in zoo.BASELINES if name in KINDS else OF_DRAWS:
      for split in itertools.product(some_k(family.num_values), (1, 2, 3)):
        if is_possible(name, baseline, *split):
          yield name, baseline, *split


def budgets():
  for name, family in FAMILIES.items():
    for baseline in zoo.BASELINES if name in KINDS else OF_DRAWS:
      for budget in range(1, min(family.num_values, 5) + 2):
        if is_possible(name, baseline, 0, budget):
          yield name, baseline, budget


@pytest.mark.parametrize(
  ('name', 'baseline', 'num_summed', 'num_samples'), covering_pairs(splits())
)
def test_mean_over_all_draws_is_the_derivative_of_the_explicit_sum(
  name, baseline, num_summed, num_samples
):
  estimator = tfp_rb.REINFORCE(
    baseline=zoo.BASELINES[baseline].make(), num_samples=num_samples
  )
  assert_mean_is_explicit_sum(
    name, tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
  )


@pytest.mark.parametrize(
  ('name', 'baseline', 'budget'), covering_pairs(budgets())
)
def test_mean_under_a_budget_is_the_derivative_of_the_explicit_sum(
  name, baseline, budget
):
  estimator = tfp_rb.REINFORCE(baseline=zoo.BASELINES[baseline].make())
  assert_mean_is_explicit_sum(
    name, tfp_rb.rao_blackwellize(estimator, budget=budget)
  )


@pytest.mark.parametrize('budget', [1, 2, 3, 8, 9])
def test_mean_under_a_budget_of_a_product_is_the_derivative_of_the_explicit_sum(
  budget,
):
  estimator = tfp_rb.REINFORCE(baseline=2.5)
  assert_mean_is_explicit_sum(
    'Sample_Bernoulli', tfp_rb.rao_blackwellize(estimator, budget=budget)
  )


@pytest.mark.parametrize('num_samples', [1, 2, 3])
@pytest.mark.parametrize('name', ['Categorical', 'Sample_Bernoulli'])
def test_reinforce_without_summation_is_unbiased(name, num_samples):
  assert_mean_is_explicit_sum(name, tfp_rb.REINFORCE(num_samples=num_samples))


@pytest.mark.parametrize('name', list(FAMILIES))
def test_exact_has_one_outcome_and_it_is_the_explicit_sum(name):
  assert_mean_is_explicit_sum(name, tfp_rb.Exact())


def mean_outcome_by_outcome(family, estimator):
  """Returns mean value and gradients with one `expectation` per outcome.

  Unlike `enumerate_outcomes`, this keeps the batch shape, which a constant
  baseline of that shape requires.

  Args:
    family: `Family` of `Categorical` distributions.
    estimator: A `GradientEstimator`.

  Returns:
    value: Array of batch shape.
    gradients: List of arrays.
  """
  parameters = [tf.constant(p) for p in family.parameters]
  script = ()

  def draw(partition, num_draws):
    nonlocal chance, num_slots
    num_slots = num_draws
    chosen = script[:num_draws] or (0,) * num_draws
    draws = tf.constant([[z] * 2 for z in chosen])
    masses = reference_law(partition)
    chance = np.prod([masses[:, z] for z in chosen], axis=0)
    return draws

  def reference_law(partition):
    masses = []
    for row, table in enumerate(family.tables(*family.parameters)):
      is_summed = partition.weights.numpy()[:, row] > 0.0
      listed = partition.values.numpy()[is_summed, row]
      kept = np.array([0.0 if z in listed else p for z, p in table])
      masses.append(kept / np.sum(kept) if np.any(kept) else kept + 0.25)
    return np.array(masses)

  chance, num_slots = np.ones(2), 0
  value, gradients = 0.0, [np.zeros_like(p) for p in family.parameters]
  f, q = make_problem(family)(*parameters)
  internals.estimate_with_draws(f, q, estimator, draw)  # counts the draws
  for script in itertools.product(  # noqa: B007, read by `draw`
    range(family.num_values), repeat=num_slots
  ):
    with tf.GradientTape() as tape:
      tape.watch(parameters)
      f, q = make_problem(family)(*parameters)
      result = internals.estimate_with_draws(f, q, estimator, draw)
      weighted = tf.reduce_sum(chance * result)
    value += chance * result.numpy()
    for total, part in zip(gradients, tape.gradient(weighted, parameters)):
      total += part.numpy()
  return value, gradients


@pytest.mark.parametrize(
  'split',
  [
    *({'num_summed': k, 'num_samples': m} for k in range(3) for m in (1, 2)),
    {'num_summed': 1, 'num_samples': 3},
    {'num_summed': 3, 'num_samples': 1},
    *({'budget': n} for n in range(1, 5)),
  ],
  ids=str,
)
def test_constant_baseline_of_batch_shape_is_unbiased(split):
  name = 'Categorical_of_3'
  estimator = tfp_rb.REINFORCE(
    baseline=tf.constant([2.5, -4.0], tf.float64),
    num_samples=split.get('num_samples', 1),
  )
  split = {k: v for k, v in split.items() if k != 'num_samples'}
  value, gradients = mean_outcome_by_outcome(
    FAMILIES[name], tfp_rb.rao_blackwellize(estimator, **split)
  )
  expected_value, expected_gradients = EXPECTED[name]
  np.testing.assert_allclose(value, expected_value, rtol=0.0, atol=ATOL)
  for actual, desired in zip(gradients, expected_gradients):
    np.testing.assert_allclose(actual, desired, rtol=0.0, atol=ATOL)


def test_oracle_differentiates_as_the_closed_form_of_the_softmax():
  logits = FAMILIES['Categorical'].parameters[0][0]
  penalty = 0.1 * np.sum(logits**2)
  feature = 0.5 * np.arange(4)
  f = cost(feature, penalty)
  df = np.outer(1.0 + 0.5 * feature, 0.2 * logits)
  (by_steps,) = reference.complex_step_gradient(
    lambda x: reference.expectation(
      reference.categorical(x),
      lambda z: cost(0.5 * z, 0.1 * np.sum(x**2)),
    ),
    [logits],
  )
  closed_form = reference.softmax_gradient(logits, f, df)
  np.testing.assert_allclose(by_steps, closed_form, rtol=0.0, atol=1e-14)
