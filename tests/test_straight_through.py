# SPDX-License-Identifier: Apache-2.0
"""ReinMax and Gumbel-softmax: their bias, and its size."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from internals import (
  draw_noise,
  enumerate_outcomes,
  relaxation_of,
  split_seed,
)
import reference
from relaxed import (
  LOGITS,
  NUM_DRAWS,
  SEED,
  SITE_LOGITS,
  assert_uniform,
  at_atoms,
  exact_gradient,
  four_values,
  gradients_of,
  mean_and_radius,
)
import tfp_rb

tfd = tfp.distributions


def mean_gradient(estimator, problem, logits):
  outcomes = enumerate_outcomes(
    estimator, problem, [tf.constant(logits)], 10_000
  )
  return np.sum(outcomes.weighted_gradients[0], axis=0)


def polynomial(num_classes, degree, seed=0):
  """Returns a problem whose `f` has this degree in the one-hot vector."""
  random = np.random.RandomState(seed)
  a = random.normal(size=num_classes)
  B = random.normal(size=[num_classes, num_classes])
  b = random.normal(size=num_classes)

  def f(z):
    z = tf.cast(z, tf.float64)
    linear = tf.reduce_sum(a * z, axis=-1)
    quadratic = tf.reduce_sum(z * tf.linalg.matvec(B, z), axis=-1)
    cubic = tf.reduce_sum(b * z, axis=-1) ** 3
    return linear + (degree >= 2) * quadratic + (degree >= 3) * cubic

  logits = random.normal(size=num_classes)
  return (lambda x: (f, tfd.OneHotCategorical(logits=x))), logits, f


@pytest.mark.parametrize('num_classes', [2, 3, 5])
@pytest.mark.parametrize('temperature', [1.0, 1.5])
@pytest.mark.parametrize('k', [0, 1])
def test_reinmax_is_algorithm_2(num_classes, temperature, k):
  problem, logits, f = polynomial(num_classes, degree=3)
  corners = tf.eye(num_classes, dtype=tf.float64)
  with tf.GradientTape() as tape:
    tape.watch(corners)
    value = f(corners)
  df = tape.gradient(value, corners).numpy()
  # Summing changes the variance, but not the mean.
  estimator = tfp_rb.rao_blackwellize(tfp_rb.ReinMax(temperature), num_summed=k)
  actual = mean_gradient(estimator, problem, logits)
  expected = reference.reinmax_gradient(logits, df, temperature)
  np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('num_classes', [2, 3, 5])
def test_reinmax_is_exact_for_a_quadratic_function(num_classes):
  for degree in (1, 2, 3):
    problem, logits, _ = polynomial(num_classes, degree)
    actual = mean_gradient(tfp_rb.ReinMax(1.0), problem, logits)
    expected = exact_gradient(problem, logits)
    error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
    assert error < 1e-10 if degree < 3 else error > 1e-2


def test_reinmax_is_not_exact_at_another_temperature():
  problem, logits, _ = polynomial(3, degree=2)
  actual = mean_gradient(tfp_rb.ReinMax(1.5), problem, logits)
  expected = exact_gradient(problem, logits)
  error = np.linalg.norm(actual - expected) / np.linalg.norm(expected)
  assert error > 1e-2


def test_reinmax_of_sites_is_exact_for_a_quadratic_function():
  """Uses an `f` that is quadratic in each site, given the other sites."""
  a = tf.constant([[2.0, -1.0, 0.5], [1.0, 0.0, -1.5]], tf.float64)

  def problem(logits):
    def f(z):
      level = tf.reduce_sum(a * tf.cast(z, a.dtype), axis=[-2, -1])
      return level + level**2

    return f, tfd.Independent(tfd.OneHotCategorical(logits=logits), 1)

  logits = SITE_LOGITS['OneHotCategorical'][1]
  actual = mean_gradient(tfp_rb.ReinMax(1.0), problem, logits)
  expected = exact_gradient(problem, logits)
  np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_reinmax_has_no_noise_beside_the_atoms():
  estimator = tfp_rb.rao_blackwellize(tfp_rb.ReinMax(), num_summed=4)
  _, gradients = gradients_of(estimator, 3)
  _, others = gradients_of(estimator, 3, seed=(9, 9))
  np.testing.assert_array_equal(gradients, others)


@pytest.mark.parametrize('num_noises', [1, 4])
def test_straight_through_value_is_that_of_the_atom(num_noises):
  estimator = tfp_rb.GumbelSoftmax(0.8, num_noises=num_noises)
  value, _, atoms, handed = at_atoms(estimator)
  f, _ = four_values(tf.constant(LOGITS))
  np.testing.assert_allclose(handed, atoms, atol=1e-15)
  np.testing.assert_allclose(value, f(atoms)[0], rtol=1e-12)


@pytest.mark.parametrize('tau', [0.375, 1.0, 2.0])
def test_relaxed_estimate_is_that_of_the_reparameterized_sample(tau):
  estimator = tfp_rb.GumbelSoftmax(tau, straight_through=False)
  value, gradient, atoms, handed = at_atoms(estimator)
  np.testing.assert_array_equal(
    np.argmax(handed, axis=-1), np.argmax(atoms, axis=-1)
  )
  logits = tf.constant(np.tile(LOGITS, [5, 1]))
  f, _ = four_values(logits)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    log_probs = tf.nn.log_softmax(logits)
    # This is the noise up to a constant, which the softmax ignores.
    gumbel = tf.stop_gradient(tau * tf.math.log(handed[0]) - log_probs)
    expected = f(tf.nn.softmax((log_probs + gumbel) / tau))
  np.testing.assert_allclose(value, expected, rtol=1e-12)
  np.testing.assert_allclose(
    gradient, tape.gradient(expected, logits), rtol=1e-10, atol=1e-12
  )


def test_relaxed_sample_follows_the_law_of_tfp():
  """Compares with `RelaxedOneHotCategorical`.

  Each class is compared in cells of its own quantiles.
  """
  handed = []

  def f(z):
    handed.append(z)
    return tf.reduce_sum(z, axis=-1)

  estimator = tfp_rb.GumbelSoftmax(
    0.8, straight_through=False, num_samples=NUM_DRAWS
  )
  logits = tf.constant(LOGITS)
  tfp_rb.expectation(
    f, tfd.OneHotCategorical(logits=logits), estimator, seed=SEED
  )
  # The edges come from so many draws that their error is negligible.
  relaxed = tfd.RelaxedOneHotCategorical(0.8, logits=logits)
  drawn = relaxed.sample(20 * NUM_DRAWS, seed=(4, 5)).numpy()
  for z in range(4):
    edges = np.quantile(drawn[:, z], np.arange(1, 10) / 10)
    assert_uniform(np.searchsorted(edges, handed[0][:, z]), 10)


@pytest.mark.parametrize('num_noises', [1, 3])
@pytest.mark.parametrize('num_summed', [0, 1])
def test_averaged_gradient_is_the_mean_over_noises(num_noises, num_summed):
  tau = 0.75
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.GumbelSoftmax(
      tau, num_noises=num_noises, restricted=False, num_samples=2
    ),
    num_summed=num_summed,
  )
  _, gradient, hard, _ = at_atoms(estimator)
  logits = tf.constant(np.tile(LOGITS, [5, 1]))
  f, q = four_values(logits)
  relaxation = relaxation_of(q)
  atom_seed, noise_seed = split_seed(SEED, n=2)
  weights = estimator.sample_atoms(q, atom_seed).weights
  perturbed = draw_noise(
    relaxation.log_probs, hard, noise_seed, num_noises
  ).perturbed
  with tf.GradientTape() as tape:
    tape.watch(hard)
    value = f(hard)
  slope = tape.gradient(value, hard)
  expected = np.zeros([5, 4])
  for n in range(num_noises):  # one noise at a time
    with tf.GradientTape() as tape:
      tape.watch(logits)
      log_probs = tf.nn.log_softmax(logits)
      gumbel = tf.stop_gradient(perturbed[n] - log_probs)
      relaxed = tf.nn.softmax((log_probs + gumbel) / tau)
      total = tf.reduce_sum(weights[..., tf.newaxis] * slope * relaxed)
    expected += tape.gradient(total, logits) / num_noises
  np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
  ('num_summed', 'restricted'), [(0, None), (1, None), (1, False)]
)
def test_more_noises_leave_the_mean_and_lower_the_variance(
  num_summed, restricted
):
  """Uses the same atoms in 20000 rows.

  The means agree within 6 standard errors of their difference; these are at
  most 6 % of the gradient's norm. The variance is lower by at least 6 standard
  errors.
  """
  results = {}
  for n in (1, 4, 16):
    estimator = tfp_rb.GumbelSoftmax(0.5, num_noises=n, restricted=restricted)
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
    values, results[n] = gradients_of(estimator, 20_000)
    # The atoms are the same, because the noise has its own seed.
    results.setdefault('values', values)
    np.testing.assert_array_equal(values, results['values'])
  norm = np.linalg.norm(exact_gradient())
  for few, many in ((1, 4), (4, 16)):
    difference, radius = mean_and_radius(results[few] - results[many])
    assert np.linalg.norm(difference) < radius < 0.06 * norm
    squares = [
      np.sum((results[n] - results[n].mean(0)) ** 2, axis=-1)
      for n in (few, many)
    ]
    lowered = squares[0] - squares[1]
    error = np.std(lowered) / np.sqrt(len(lowered))
    assert np.mean(lowered) > 6.0 * error


def test_straight_through_is_the_relaxed_gradient_for_a_linear_function():
  """Uses a linear `f`, whose slope is equal at the atom and the relaxed one."""
  cost = tf.constant([2.0, -1.0, 0.5, 1.5], tf.float64)
  f = lambda z: tf.reduce_sum(cost * z, axis=-1)
  gradients = [
    at_atoms(tfp_rb.GumbelSoftmax(0.8, straight_through=straight_through), f=f)[
      1
    ]
    for straight_through in (True, False)
  ]
  np.testing.assert_allclose(*gradients, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize('k', [0, 1, 2])
def test_mean_for_a_linear_function_is_that_of_the_relaxed_slope(k):
  """Compares the mean with `E[f'(z) dx/dlogit]`, one integral for a Bernoulli.

  The mean does not depend on which atoms are summed. Over 50000 rows, 6
  standard errors are below 2 % of it; the bias is 30 %.
  """
  logit, tau = 0.4, 0.6

  def problem(x):
    return lambda z: 3.0 * tf.cast(z, x.dtype), tfd.Bernoulli(logits=x)

  estimator = tfp_rb.GumbelSoftmax(tau, restricted=False)
  estimator = tfp_rb.rao_blackwellize(estimator, num_summed=k)
  _, gradients = gradients_of(estimator, 50_000, problem, np.float64(logit))
  mean, radius = mean_and_radius(gradients)
  expected = 3.0 * reference.mean_slope_of_relaxed_bernoulli(logit, tau)
  assert abs(mean[0] - expected) < radius < 0.04 * expected


def test_restricted_bias_falls_with_the_mass_of_the_rest():
  """Checks biases that are known up to 6 standard errors over 50000 rows."""
  exact, bounds = exact_gradient(), []
  for k in range(5):
    estimator = tfp_rb.rao_blackwellize(tfp_rb.GumbelSoftmax(0.8), num_summed=k)
    _, gradients = gradients_of(estimator, 50_000 if k < 3 else 3)
    mean, radius = mean_and_radius(gradients)
    bias = np.linalg.norm(mean - exact)
    bounds.append((bias - radius, bias + radius))
  for (low, _), (_, high) in zip(bounds[:3], bounds[1:4]):
    assert low > high
  # If the rest has one value or none, there is nothing to relax.
  np.testing.assert_allclose(bounds[3:], 0.0, atol=1e-12)


def test_unrestricted_bias_stays_whatever_is_summed():
  """Compares the means for k = 0, 2 and 4.

  They agree within 6 standard errors of 50000 rows.
  """
  means = []
  for k in (0, 2, 4):
    estimator = tfp_rb.rao_blackwellize(
      tfp_rb.GumbelSoftmax(0.8, restricted=False), num_summed=k
    )
    means.append(mean_and_radius(gradients_of(estimator, 50_000)[1]))
  exact = exact_gradient()
  for mean, radius in means:
    assert np.linalg.norm(mean - exact) > 5.0 * radius
    assert np.linalg.norm(mean - means[0][0]) < radius + means[0][1]


def test_annealed_temperature_falls_to_its_floor():
  temperature = tfp_rb.AnnealedTemperature(rate=0.01, floor=0.3)
  for step in (0, 1, 50, 120, 121, 10_000):
    temperature.step.assign(step)
    expected = max(0.3, np.exp(-0.01 * step))
    np.testing.assert_allclose(temperature(), expected, rtol=1e-6)


def test_annealed_temperature_has_one_variable_that_is_not_trained():
  temperature = tfp_rb.AnnealedTemperature(rate=0.01)
  for estimator in (
    tfp_rb.GumbelSoftmax(temperature),
    tfp_rb.REBAR(temperature),
  ):
    assert estimator.trainable_variables == ()
    assert [v is temperature.step for v in estimator.variables] == [True]


def test_step_is_saved_with_the_estimator(tmp_path):
  def make():
    temperature = tfp_rb.AnnealedTemperature(rate=0.01, floor=0.1)
    return tfp_rb.rao_blackwellize(
      tfp_rb.GumbelSoftmax(temperature), num_summed=1
    )

  estimator, other = make(), make()
  estimator.estimator.temperature.step.assign_add(70)
  path = tf.train.Checkpoint(estimator=estimator).save(str(tmp_path / 'at'))
  restored = tf.train.Checkpoint(estimator=other).restore(path)
  restored.assert_consumed()
  assert other.estimator.temperature.step.numpy() == 70
  np.testing.assert_allclose(
    other.estimator.temperature(), np.exp(-0.7), rtol=1e-6
  )


@pytest.mark.parametrize('jit_compile', [False, True])
def test_temperature_moves_inside_a_function(jit_compile):
  estimator = tfp_rb.GumbelSoftmax(
    tfp_rb.AnnealedTemperature(rate=0.1, floor=0.1), straight_through=False
  )
  f, q = four_values(tf.constant(LOGITS))

  @tf.function(jit_compile=jit_compile)
  def step():
    estimator.temperature.step.assign_add(1)
    return tfp_rb.expectation(f, q, estimator, seed=tf.constant(SEED))

  actual = [step().numpy() for _ in range(3)]
  expected = [
    tfp_rb.expectation(
      f,
      q,
      tfp_rb.GumbelSoftmax(np.exp(-0.1 * (n + 1)), straight_through=False),
      seed=SEED,
    ).numpy()
    for n in range(3)
  ]
  np.testing.assert_allclose(actual, expected, rtol=1e-5)
  assert len(set(np.round(actual, 4))) == 3


def test_temperature_may_be_any_callable():
  f, q = four_values(tf.constant(LOGITS))
  given = [
    0.5,
    lambda: 0.5,
    tf.constant(0.5),
    np.float32(0.5),
    tf.Variable(0.5),
  ]
  values = {
    tfp_rb.expectation(
      f, q, tfp_rb.GumbelSoftmax(t, straight_through=False), seed=SEED
    ).numpy()
    for t in given
  }
  assert len(values) == 1


@pytest.mark.parametrize('name', ['REBAR', 'GumbelSoftmax', 'ReinMax'])
def test_a_number_keeps_its_digits_beside_float64_logits(name):
  """Checks that 0.7 is the float64 0.7, not the nearest float32."""
  make = {
    'REBAR': lambda t: tfp_rb.REBAR(t, scale=0.5),
    'GumbelSoftmax': lambda t: tfp_rb.GumbelSoftmax(t, straight_through=False),
    'ReinMax': tfp_rb.ReinMax,
  }[name]
  given, exact = (
    at_atoms(make(t))[1] for t in (0.7, tf.constant(0.7, tf.float64))
  )
  np.testing.assert_array_equal(given, exact)


def test_a_scale_keeps_its_digits_beside_float64_logits():
  given, exact = (
    at_atoms(tfp_rb.REBAR(0.5, scale=scale))[1]
    for scale in (0.7, tf.constant(0.7, tf.float64))
  )
  np.testing.assert_array_equal(given, exact)
