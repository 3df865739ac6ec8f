# SPDX-License-Identifier: Apache-2.0
"""Extreme distributions with impossible values, rare values and boundaries."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import internals
import tfp_rb
from tfp_rb import baselines

tfd = tfp.distributions


# Impossible atoms that the user provides.

COST = np.array([3.0, 1.0, np.nan, -1.0])


def _problem(logits):
  # The third value is impossible, and `f` is NaN there.
  mask = tf.constant([0.0, 0.0, -np.inf, 0.0], logits.dtype)
  q = tfd.Categorical(logits=logits + mask)
  return lambda z: tf.gather(tf.constant(COST), z), q


def _named(*values):
  """Returns a function for `atoms=` that names these values in every row."""

  def atoms(q):
    shape = [len(values), *q.batch_shape]
    column = np.reshape(values, [-1] + [1] * q.batch_shape.rank)
    return tf.cast(tf.broadcast_to(column, shape), q.dtype)

  return atoms


def _estimator(*values, baseline=None, num_samples=2, sampler=None):
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples),
    atoms=_named(*values),
    sampler=sampler,
  )


ATOMS = {
  'impossible': (2,),
  'impossible-and-possible': (2, 1),
  'twice': (2, 2, 0),
  'outside': (7, 1),
  'negative': (-1, 1),
}
BASELINES = {
  'none': lambda: None,
  'LeaveOneOut': baselines.LeaveOneOut,
  'Optimal': baselines.Optimal,
}


@pytest.mark.parametrize('baseline', BASELINES)
@pytest.mark.parametrize('atoms', ATOMS)
def test_diagnostics_accept_impossible_atoms(atoms, baseline):
  estimator = _estimator(*ATOMS[atoms], baseline=BASELINES[baseline]())
  parameters = [tf.constant([0.3, 1.1, 0.2, 0.4], tf.float64)]
  report = tfp_rb.testing.assert_unbiased(estimator, _problem, parameters)
  assert report.is_exact
  moments = tfp_rb.diagnostics.exact_moments(estimator, _problem, parameters)
  assert moments.bias < 1e-12
  assert np.isfinite(moments.variance)


@pytest.mark.parametrize('atoms', ['impossible', 'outside'])
def test_impossible_atom_has_the_moments_of_no_atom(atoms):
  parameters = [tf.constant([0.3, 1.1, 0.2, 0.4], tf.float64)]
  found, expected = (
    tfp_rb.diagnostics.exact_moments(estimator, _problem, parameters)
    for estimator in (
      _estimator(ATOMS[atoms][0], *ATOMS[atoms][1:]),
      _estimator(*ATOMS[atoms][1:])
      if ATOMS[atoms][1:]
      else tfp_rb.REINFORCE(num_samples=2),
    )
  )
  np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-12)


def test_impossible_atoms_of_products_are_accepted():
  def problem(logits):
    q = tfd.Independent(tfd.Categorical(logits=logits), 1)
    weights = tf.constant([1.0, 2.5], tf.float64)
    f = lambda z: tf.reduce_sum(weights * tf.cast(z, tf.float64) ** 2, axis=-1)
    return f, q

  def atoms(q):
    values = np.array([[0, 9], [1, 2]])  # no site has the value 9
    column = values.reshape([2] + [1] * q.batch_shape.rank + [2])
    return tf.cast(tf.broadcast_to(column, [2, *q.batch_shape, 2]), q.dtype)

  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), atoms=atoms)
  logits = tf.constant([[0.3, 1.1, 0.2], [-0.4, 0.1, 0.9]], tf.float64)
  report = tfp_rb.testing.assert_unbiased(estimator, problem, [logits])
  assert report.is_exact


def test_f_may_be_nan_at_an_impossible_value():
  parameters = [tf.constant([0.3, 1.1, 0.2, 0.4], tf.float64)]
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  moments = tfp_rb.diagnostics.exact_moments(estimator, _problem, parameters)
  assert moments.bias < 1e-12


# Gradients at the boundary of the parameters.


def _two(p):
  return tf.constant(2.0, p.dtype)


# Each entry holds parameters, a builder of the distribution, and the possible
# values.
BOUNDARIES = {
  'Bernoulli-0': (0.0, lambda p: tfd.Bernoulli(probs=p), [0]),
  'Bernoulli-1': (1.0, lambda p: tfd.Bernoulli(probs=p), [1]),
  'Binomial-0': (0.0, lambda p: tfd.Binomial(_two(p), probs=p), [0]),
  'Binomial-1': (1.0, lambda p: tfd.Binomial(_two(p), probs=p), [2]),
  'Geometric': (1.0, lambda p: tfd.Geometric(probs=p), [0]),
  'NegativeBinomial': (
    0.0,
    lambda p: tfd.NegativeBinomial(_two(p), probs=p),
    [0],
  ),
  'Poisson': (0.0, lambda p: tfd.Poisson(rate=p), [0]),
  'Categorical': (
    [0.0, 0.2, 0.4, 0.4],
    lambda p: tfd.Categorical(probs=p),
    [1, 2, 3],
  ),
  'OneHotCategorical': (
    [0.0, 0.2, 0.4, 0.4],
    lambda p: tfd.OneHotCategorical(probs=p, dtype=tf.float64),
    [1, 2, 3],
  ),
}
ESTIMATORS = {
  'Exact': tfp_rb.Exact(),
  'REINFORCE': tfp_rb.REINFORCE(num_samples=3),
  'summed': tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2), num_summed=1
  ),
}


COUNTABLE = ('Geometric', 'NegativeBinomial', 'Poisson')


@pytest.mark.parametrize(
  'name, estimator',
  [
    (name, estimator)
    for name in BOUNDARIES
    for estimator in ESTIMATORS
    if estimator != 'Exact' or name not in COUNTABLE
  ],
)
def test_impossible_value_adds_nothing_to_the_gradient(name, estimator):
  start, build, possible = BOUNDARIES[name]
  q = build(tf.constant(start, tf.float64))

  def f(z):
    z = tf.argmax(z, axis=-1) if q.event_shape.rank else tf.cast(z, tf.int64)
    is_possible = tf.reduce_any(z[..., tf.newaxis] == possible, axis=-1)
    return tf.where(is_possible, 2.0 + tf.cast(z, tf.float64), np.nan)

  p = tf.Variable(start, dtype=tf.float64)
  with tf.GradientTape() as tape:
    value = tfp_rb.expectation(f, build(p), ESTIMATORS[estimator], seed=[0, 1])
  gradient = tape.gradient(value, p).numpy()
  assert np.isfinite(value)
  assert np.all(np.isfinite(gradient))
  assert np.ravel(gradient)[0] == 0.0


def test_logits_have_no_boundary():
  logits = tf.Variable(np.float64(-30.0))
  with tf.GradientTape() as tape:
    q = tfd.Bernoulli(logits=logits)
    f = lambda z: 2.0 + 3.0 * tf.cast(z, tf.float64)
    value = tfp_rb.expectation(f, q, tfp_rb.Exact())
  expected = 3.0 * np.exp(-30.0)
  np.testing.assert_allclose(tape.gradient(value, logits), expected, rtol=1e-10)


# Rare values.

RARE = {
  'Categorical': lambda p: tfd.Categorical(
    logits=tf.cast(tf.math.log([1.0, 1.0, p]), tf.float32)
  ),
  'OneHotCategorical': lambda p: tfd.OneHotCategorical(
    logits=tf.cast(tf.math.log([1.0, 1.0, p]), tf.float32)
  ),
}


@pytest.mark.parametrize('exponent', [-26, -35, -48])
@pytest.mark.parametrize('name', RARE)
def test_rare_value_of_float32_can_be_drawn(name, exponent):
  q = RARE[name](2.0**exponent)
  rest = tfp_rb.partition(q, 1)
  share = 2.0**exponent / (1.0 + 2.0**exponent)
  # One point is half a share from the end of the interval, the other two
  # shares.
  u = 1.0 - share * tf.constant([0.5, 2.0], tf.float64)
  draws = rest.rest_from_uniforms(tf.stack([u, u], axis=-1))
  if q.event_shape.rank:
    draws = tf.argmax(draws, axis=-1)
  np.testing.assert_array_equal(draws, [2, 1])


def test_every_bit_of_a_uniform_counts(monkeypatch):
  # If all bits are set, a uniform has the largest possible value, `1 - 2^-53`.
  internals.patch_bits(
    monkeypatch, lambda shape, seed, dtype: tf.fill(shape, tf.cast(-1, dtype))
  )
  rest = tfp_rb.partition(RARE['Categorical'](2.0**-50), 1)
  np.testing.assert_array_equal(rest.sample_rest(1, tf.constant([0, 1])), [2])


def test_rare_count_of_float32_can_be_drawn():
  rest = tfp_rb.partition(tfd.Geometric(probs=0.5), 1)
  # The rest begins at 1: the tail above `z` has the share `2^-z`.
  u = tf.constant([0.75 * 2.0**-40, 1.5 * 2.0**-40], tf.float64)
  draws = rest.rest_from_uniforms(tf.stack([0.5 + 0.0 * u, u], axis=-1))
  np.testing.assert_array_equal(draws, [41.0, 40.0])


# Sites with rare symbols.


@pytest.mark.parametrize('num_summed', [0, 1, 2, 3])
@pytest.mark.parametrize('baseline', ['none', 'LeaveOneOut'])
def test_local_expectation_is_exact_over_sites_with_rare_atoms(
  num_summed, baseline
):
  # The rarest symbols of the sites have masses of 1e-6 to 1e-12.
  concentrations = [
    np.array([40.0, 0.02, 3.0]),
    np.array([0.01, 30.0, 1e-3]),
  ]
  counts = np.array([2.0, 2.0, 1.0])

  def problem(a, b):
    q = tfd.Independent(tfd.BetaBinomial(tf.constant(counts), a, b), 1)
    weights = tf.constant([1.0, -2.0, 0.5], tf.float64)

    def f(z):
      along = tf.reduce_sum(weights * tf.cast(z, tf.float64), axis=-1)
      return tf.sin(along) + 3.0 * along**2 + tf.reduce_prod(z + 0.5, axis=-1)

    return f, q

  num_samples = 2 if num_summed == 0 else 1
  if baseline == 'LeaveOneOut':
    reinforce = tfp_rb.REINFORCE(
      baselines.LeaveOneOut(), num_samples=num_samples
    )
  else:
    reinforce = tfp_rb.REINFORCE(num_samples=num_samples)
  estimator = tfp_rb.local_expectation(reinforce, num_summed=num_summed)
  parameters = [tf.constant(c) for c in concentrations]
  outcomes = internals.enumerate_outcomes(
    estimator, problem, parameters, 300_000
  )
  value, gradients = _explicit_sum(problem, parameters, counts)
  np.testing.assert_allclose(np.sum(outcomes.probabilities), 1.0, rtol=1e-12)
  np.testing.assert_allclose(
    np.sum(outcomes.probabilities * outcomes.values), value, rtol=1e-10
  )
  for actual, desired in zip(outcomes.weighted_gradients, gradients):
    np.testing.assert_allclose(
      np.sum(actual, axis=0), desired, rtol=1e-10, atol=1e-10
    )


def _explicit_sum(problem, parameters, counts):
  """Returns the sum over all joint values, with the `log_prob` of TFP."""
  grid = np.indices([int(n) + 1 for n in counts])
  values = tf.constant(grid.reshape([len(counts), -1]).T, tf.float64)
  with tf.GradientTape() as tape:
    tape.watch(parameters)
    f, q = problem(*parameters)
    value = tf.reduce_sum(tf.exp(q.log_prob(values)) * f(values))
  return value, tape.gradient(value, parameters)
