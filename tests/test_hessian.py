# SPDX-License-Identifier: Apache-2.0
"""Enumerates every outcome of the draws: the Hessian is unbiased.

No seed is involved. Nested tapes take the second derivatives; their mean over
all outcomes must be the second derivative of the explicit sum.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from internals import estimate_with_draws
import reference
import tfp_rb
import zoo

baselines = tfp_rb.baselines
tfd = tfp.distributions

ATOL = 1e-9
LOGITS = np.array([0.3, 1.1, -0.5])
COSTS = np.array([2.0, -1.0, 4.0])
COUPLINGS = np.array([0.3, -0.2, 0.5])


def categorical(logits):
  """Returns a problem whose `f` has derivatives that vary by value.

  This holds for the first and the second derivatives.
  """
  square = tf.reduce_sum(logits**2, axis=-1)

  def f(z):
    return tf.gather(COSTS, z) + tf.gather(COUPLINGS, z) * square**2

  return f, tfd.Categorical(logits=logits)


def bernoulli_pair(logits):
  """Returns a problem with two sites; the values are in binary order."""
  square = tf.reduce_sum(logits**2, axis=-1)

  def f(z):
    z = tf.cast(z, tf.float64)
    first, second = z[..., 0], z[..., 1]
    return 2.0 + first - 3.0 * first * second + (0.2 + second) * square

  return f, tfd.Independent(tfd.Bernoulli(logits=logits), 1)


def enumerate_derivatives(estimator, problem, parameter, support, table):
  """Returns mean value, gradient and Hessian over all tuples of draws.

  Args:
    estimator: A `GradientEstimator`.
    problem: Callable that maps `[T, P]` to `(f, distribution)`.
    parameter: Array of shape `[P]`.
    support: Array of shape `[K] + event_shape`.
    table: Array of shape `[K]`, the probabilities.

  Returns:
    value: Number.
    gradient: Array of shape `[P]`.
    hessian: Array of shape `[P, P]`.
  """
  slots = []

  def law(partition):
    """Returns the law of the values that are not summed, in `support` order."""
    is_summed = partition.weights.numpy()[:, 0] > 0.0  # all rows are copies
    summed = [z.tolist() for z in partition.values.numpy()[is_summed, 0]]
    kept = [0.0 if z.tolist() in summed else p for z, p in zip(support, table)]
    # If nothing is left, the draws have weight 0.
    return kept / np.sum(kept) if np.any(kept) else np.array(table)

  def count(partition, num_draws):
    slots.extend([law(partition)] * num_draws)
    return tf.constant(support[[0] * num_draws])[:, tf.newaxis]

  single = tf.constant(parameter)[tf.newaxis]
  f, q = problem(single)
  estimate_with_draws(f, q, estimator, count)
  index = np.array(
    list(itertools.product(range(len(support)), repeat=len(slots))), int
  )  # [T, slots]
  chances = np.ones(len(index))
  for slot, chance in enumerate(slots):
    chances *= chance[index[:, slot]]
  draws = tf.constant(np.swapaxes(support[index], 0, 1))  # [slots, T, ...]
  first = 0

  def script(partition, num_draws):
    del partition
    nonlocal first
    first += num_draws
    return draws[first - num_draws : first]

  copies = tf.tile(single, [len(index), 1])
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(copies)
    with tf.GradientTape() as inner:
      inner.watch(copies)
      f, q = problem(copies)
      values = estimate_with_draws(f, q, estimator, script)
      value = tf.reduce_sum(chances * values)
    gradient = inner.gradient(value, copies)
    columns = tf.unstack(gradient, axis=-1)
  rows = [outer.gradient(column, copies) for column in columns]
  hessian = [np.sum(row, axis=0) for row in rows]
  return value.numpy(), np.sum(gradient, axis=0), np.array(hessian)


def expected_of_categorical():
  square = np.sum(LOGITS**2)
  f = COSTS + COUPLINGS * square**2
  df = np.outer(COUPLINGS, 4.0 * square * LOGITS)
  curvature = 4.0 * square * np.eye(3) + 8.0 * np.outer(LOGITS, LOGITS)
  d2f = COUPLINGS[:, np.newaxis, np.newaxis] * curvature
  return (
    np.sum(reference.softmax(LOGITS) * f),
    reference.softmax_gradient(LOGITS, f, df),
    reference.softmax_hessian(LOGITS, f, df, d2f),
  )


def assert_unbiased_to_second_order(estimator):
  actual = enumerate_derivatives(
    estimator,
    categorical,
    LOGITS,
    np.arange(3, dtype=np.int32),
    reference.softmax(LOGITS),
  )
  for mean, expected in zip(actual, expected_of_categorical()):
    np.testing.assert_allclose(mean, expected, rtol=0.0, atol=ATOL)


def reinforce(name, num_samples=1):
  baseline = zoo.BASELINES[name].make()
  return tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples)


def splits():
  for name, k, m in itertools.product(zoo.BASELINES, range(4), [1, 2]):
    if k == 3 and m == 2:
      continue  # nothing is drawn in this case
    if k == 0 and m == 1 and zoo.BASELINES[name].needs_second:
      continue
    yield name, k, m


@pytest.mark.parametrize(('name', 'num_summed', 'num_samples'), [*splits()])
def test_mean_hessian_is_that_of_the_explicit_sum(
  name, num_summed, num_samples
):
  estimator = reinforce(name, num_samples)
  assert_unbiased_to_second_order(
    tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
  )


@pytest.mark.parametrize('name', zoo.BASELINES)
def test_mean_hessian_without_summation_is_that_of_the_explicit_sum(name):
  estimator = tfp_rb.REINFORCE(
    baseline=zoo.BASELINES[name].make(), num_samples=2
  )
  assert_unbiased_to_second_order(estimator)


@pytest.mark.parametrize('name', zoo.BASELINES)
@pytest.mark.parametrize('budget', [2, 3])
def test_mean_hessian_under_a_budget_is_that_of_the_explicit_sum(budget, name):
  estimator = reinforce(name)
  assert_unbiased_to_second_order(
    tfp_rb.rao_blackwellize(estimator, budget=budget)
  )


def test_hessian_of_exact_is_that_of_the_explicit_sum():
  assert_unbiased_to_second_order(tfp_rb.Exact())


@pytest.mark.parametrize('name', ['none', 'mixed', 'optimal'])
@pytest.mark.parametrize('num_summed', range(5))
def test_mean_hessian_of_a_product_is_that_of_the_explicit_sum(
  num_summed, name
):
  logits = np.array([0.4, -1.3])
  support = np.array(list(itertools.product([0, 1], repeat=2)), np.int32)
  parameter = tf.constant(logits)
  with tf.GradientTape(persistent=True) as outer:
    outer.watch(parameter)
    with tf.GradientTape() as inner:
      inner.watch(parameter)
      on, off = tf.sigmoid(parameter), tf.sigmoid(-parameter)
      probs = tf.stack(
        [off[0] * off[1], off[0] * on[1], on[0] * off[1], on[0] * on[1]]
      )
      f, _ = bernoulli_pair(parameter)
      value = tf.reduce_sum(probs * f(tf.constant(support)))
    gradient = inner.gradient(value, parameter)
    columns = tf.unstack(gradient)
  hessian = [outer.gradient(column, parameter) for column in columns]
  estimator = tfp_rb.REINFORCE(
    baseline=zoo.BASELINES[name].make(), num_samples=2
  )
  actual = enumerate_derivatives(
    tfp_rb.rao_blackwellize(estimator, num_summed=num_summed),
    bernoulli_pair,
    logits,
    support,
    probs.numpy(),
  )
  for mean, expected in zip(actual, (value, gradient, np.array(hessian))):
    np.testing.assert_allclose(mean, expected, rtol=0.0, atol=ATOL)


@pytest.mark.parametrize('compiled', [False, True])
def test_hessian_vector_product_inside_a_function_is_a_column_of_the_hessian(
  compiled,
):
  """Sums everything, so there is one outcome."""
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=2.5), num_summed=3
  )
  direction = tf.constant([1.0, -2.0, 0.5], tf.float64)

  @tf.function(jit_compile=compiled)
  def product(logits):
    with tf.GradientTape() as outer:
      outer.watch(logits)
      with tf.GradientTape() as inner:
        inner.watch(logits)
        f, q = categorical(logits)
        loss = tfp_rb.expectation(f, q, estimator, seed=[0, 0])
      slope = tf.reduce_sum(direction * inner.gradient(loss, logits))
    return outer.gradient(slope, logits)

  expected = expected_of_categorical()[2] @ direction.numpy()
  np.testing.assert_allclose(
    product(tf.constant(LOGITS)), expected, rtol=0.0, atol=ATOL
  )
