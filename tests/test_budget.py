# SPDX-License-Identifier: Apache-2.0
"""A budget on a product searches for joint values only where they matter."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

tfb = tfp.bijectors
tfd = tfp.distributions

SEED = [3, 4]


def budget_of(num):
  return tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), budget=num)


def product(best, num_sites=4, batch_shape=()):
  """Returns a product of sites of 3 symbols.

  Its best joint value has the probability `best`.
  """
  mass = tf.convert_to_tensor(best, tf.float64) ** (1.0 / num_sites)
  others = (1.0 - mass)[..., tf.newaxis] * tf.constant([0.6, 0.4], tf.float64)
  probs = tf.concat(
    [others[..., :1], mass[..., tf.newaxis], others[..., 1:]], -1
  )
  shape = [*mass.shape, num_sites, 3]
  probs = tf.broadcast_to(probs[..., tf.newaxis, :], shape)
  return tfd.Independent(tfd.Categorical(probs=probs), 1)


def proposition_2(q, budget):
  """Returns the number of joint values to sum; enumerates all of them."""
  every = np.array(list(itertools.product(range(3), repeat=q.event_shape[0])))
  masses = np.sort(np.exp(q.log_prob(every)))[::-1]
  left = [masses[k:].sum() / (budget - k) for k in range(budget)]
  return int(np.argmin(left))


@pytest.mark.parametrize('budget', [2, 3, 5, 8])
@pytest.mark.parametrize(
  'best', [0.03, 0.11, 0.19, 0.21, 0.32, 0.34, 0.6, 0.95]
)
def test_as_many_joint_values_are_summed_as_proposition_2_says(best, budget):
  q = product(best)
  atoms = budget_of(budget).sample_atoms(q, SEED)
  assert int(atoms.num_summed) == proposition_2(q, budget)
  np.testing.assert_allclose(tf.reduce_sum(atoms.weights), 1.0, rtol=1e-12)


@pytest.mark.parametrize('seed', range(20))
def test_values_are_summed_if_and_only_if_the_best_has_more_than_one_share(
  seed,
):
  rng = np.random.default_rng(seed)
  budget = int(rng.integers(2, 9))
  logits = rng.uniform(0.1, 4.0) * rng.normal(size=[3, 3])
  q = tfd.Independent(tfd.Categorical(logits=logits), 1)
  best = math.exp(q.log_prob(np.argmax(logits, axis=-1)))
  atoms = budget_of(budget).sample_atoms(q, SEED)
  assert (int(atoms.num_summed) > 0) == (best > 1.0 / budget)
  assert int(atoms.num_summed) == proposition_2(q, budget)


def test_a_row_does_not_depend_on_whether_others_sum():
  flat, sharp = product([0.02, 0.9]), product([0.02, 0.01])
  estimator = budget_of(3)
  first, second = (estimator.sample_atoms(q, SEED) for q in (flat, sharp))
  assert first.num_summed.numpy().tolist() == [0, 1]
  assert second.num_summed.numpy().tolist() == [0, 0]
  np.testing.assert_array_equal(first.values[:, 0], second.values[:, 0])
  np.testing.assert_array_equal(first.weights[:, 0], second.weights[:, 0])


def test_draws_are_those_of_the_estimator_without_sums():
  q = product(0.02)
  atoms = budget_of(3).sample_atoms(q, SEED)
  expected = tfp_rb.REINFORCE(num_samples=3).sample_atoms(q, SEED)
  np.testing.assert_array_equal(atoms.values, expected.values)
  np.testing.assert_array_equal(atoms.weights, expected.weights)
  np.testing.assert_array_equal(atoms.log_prob, expected.log_prob)


def test_equal_values_that_use_up_the_budget_are_summed():
  # There are three possible values of probability 1/3. None of them exceeds one
  # share, but after summing them nothing is left to draw.
  probs = tf.constant([[1.0, 1.0, 1.0], [3.0, 0.0, 0.0]], tf.float64) / 3.0
  q = tfd.Independent(tfd.Categorical(probs=probs), 1)
  assert int(budget_of(3).sample_atoms(q, SEED).num_summed) == 3


@pytest.mark.parametrize(
  'best', [0.9, pytest.param(0.02, marks=pytest.mark.slow)]
)
def test_eager_graph_and_xla_agree_in_both_branches(best):
  logits = tf.Variable(tf.math.log(product(best).distribution.probs))

  def gradient(seed):
    with tf.GradientTape() as tape:
      q = tfd.Independent(tfd.Categorical(logits=logits), 1)
      f = lambda z: tf.cast(tf.reduce_sum(z**2, axis=-1), tf.float64)
      loss = tfp_rb.expectation(f, q, budget_of(3), seed=seed)
    return tape.gradient(loss, logits)

  seed = tf.constant(SEED)
  expected = gradient(seed)
  for compiled in (False, True):
    actual = tf.function(gradient, jit_compile=compiled)(seed)
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
  'rate', [0.01, pytest.param(5.0, marks=pytest.mark.slow)]
)
def test_the_gradient_with_respect_to_a_shift_passes_both_branches(rate):
  shift = tf.Variable([1.0, 2.0], dtype=tf.float64)
  rates = tf.constant([rate, rate], tf.float64)
  for compiled in (False, True):

    @tf.function(jit_compile=compiled)
    def gradient():
      with tf.GradientTape() as tape:
        q = tfd.Independent(tfb.Shift(shift)(tfd.Poisson(rates)), 1)
        f = lambda z: tf.reduce_sum(z * tf.constant([1.0, -3.0], z.dtype), -1)
        loss = tfp_rb.expectation(f, q, budget_of(3), seed=tf.constant(SEED))
      return tape.gradient(loss, shift)

    np.testing.assert_allclose(gradient(), [1.0, -3.0], rtol=1e-12)


def operations_outside_branches(estimator, num_sites):
  """Returns the kinds of operations of a step, except those in branches."""

  @tf.function
  def step(logits, seed):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
      f = lambda z: tf.cast(tf.reduce_sum(z, axis=-1), tf.float32)
      loss = tfp_rb.expectation(f, q, estimator, seed=seed)
    return tape.gradient(loss, logits)

  graph = step.get_concrete_function(
    tf.TensorSpec([8, num_sites]), tf.TensorSpec([2], tf.int32)
  ).graph
  return [op.type for op in graph.get_operations()]


def test_no_search_stands_outside_the_branches():
  kinds = operations_outside_branches(budget_of(3), 200)
  assert 'TopKV2' not in kinds
  assert sum(kind in ('If', 'StatelessIf') for kind in kinds) == 1
