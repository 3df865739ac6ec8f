# SPDX-License-Identifier: Apache-2.0
"""`assert_unbiased` accepts right estimators and detects wrong ones."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import (
  copy_registry,
  draw_atoms,
  find_partition,
  is_draw,
  likelihood_ratio,
)
import tfp_rb
from tfp_rb import baselines, testing
import zoo

tfd = tfp.distributions


class Modified(tfp_rb.GradientEstimator):
  """REINFORCE with one part that a test corrupts."""

  def evaluate(self, f, distribution, atoms, seed):
    value = f(atoms.values)
    ratio = likelihood_ratio(atoms.log_prob)
    return self.spoil(value, ratio, distribution, atoms, f, seed)

  def spoil(self, value, ratio, distribution, atoms, f, seed):
    del distribution, atoms, f, seed
    return tfp_rb.Estimate(value, value * ratio)


class WithInnerNoise(Modified):
  """Stays unbiased: adds noise of mean 0 times the score."""

  bias = 0.0
  noise = 3.0

  def spoil(self, value, ratio, distribution, atoms, f, seed):
    del distribution, atoms, f
    noise = tf.random.stateless_normal(value.shape, seed, dtype=value.dtype)
    surrogate = (value + self.noise * noise) * ratio
    return tfp_rb.Estimate(value, (1.0 + self.bias) * surrogate)


class LittleNoise(WithInnerNoise):
  """Has less noise, so fewer draws are needed."""

  noise = 0.1


def summed(estimator, k=2):
  return tfp_rb.rao_blackwellize(estimator, num_summed=k)


# Right estimators pass.


@pytest.mark.parametrize('name', zoo.ESTIMATORS)
def test_estimator_of_the_zoo_passes_exactly(name):
  # With 5 values, 6 draws can be enumerated; `unshared` doubles their number.
  k, M = (1, 1) if name == 'budget-unshared' else (2, 1)
  if name.startswith('REINFORCE'):
    M = 2
  report = testing.assert_unbiased(zoo.ESTIMATORS[name].make(k, M))
  assert report.is_exact
  assert report.relative_bias <= report.detectable_bias < 1e-9


def test_number_of_outcomes_is_reported():
  report = testing.assert_unbiased(summed(tfp_rb.REINFORCE(num_samples=3)))
  assert report.num_outcomes == 5**3


def test_countable_support_is_tested_by_draws():
  cost = lambda z: tf.sqrt(z + 1.0)
  report = testing.assert_unbiased(
    summed(tfp_rb.REINFORCE(baseline=baselines.LeaveOneOut()), k=4),
    problem=lambda x: (cost, tfd.Poisson(log_rate=x)),
    parameters=[tf.constant([0.5], tf.float64)],
  )
  assert not report.is_exact
  assert report.detectable_bias <= 0.02


# Biased estimators are detected.


class OwnDraw(baselines.Baseline):
  """Averages over all draws, including the one that it corrects."""

  def evaluate(self, distribution, atoms, value, extra_value):
    del distribution, extra_value
    return baselines.Correction(
      tf.reduce_sum(atoms.weights * value, axis=0) + tf.zeros_like(value)
    )


class NothingForSummed(baselines.Baseline):
  """Leaves one draw out for the draws, but uses 0 for the summed atoms."""

  def evaluate(self, distribution, atoms, value, extra_value):
    correction = baselines.LeaveOneOut().evaluate(
      distribution, atoms, value, extra_value
    )
    draws = tf.cast(is_draw(atoms), value.dtype)
    return baselines.Correction(draws * correction.level)


class OwnLevelForSummed(baselines.Baseline):
  """Uses a separate level for every atom, computed without that atom."""

  def evaluate(self, distribution, atoms, value, extra_value):
    del distribution, extra_value
    total = tf.reduce_sum(value, axis=0)
    return baselines.Correction((total - value) / (value.shape[0] - 1.0))


class HeavyWeights(tfp_rb.REINFORCE):
  """Has weights that sum to 1.01."""

  def sample_atoms(self, distribution, seed):
    atoms = super().sample_atoms(distribution, seed)
    return atoms._replace(weights=1.01 * atoms.weights)


class Redraws(Modified):
  """Evaluates `f` at another draw, with the score of the given atom."""

  def spoil(self, value, ratio, distribution, atoms, f, seed):
    other = draw_atoms(distribution, value.shape[0], seed).values
    value = f(other)
    return tfp_rb.Estimate(value, value * ratio)


class RedrawsByItself(Modified):
  """Redraws like `Redraws`, with the distribution's own `sample`."""

  def spoil(self, value, ratio, distribution, atoms, f, seed):
    value = f(distribution.sample(value.shape[0], seed=seed))
    return tfp_rb.Estimate(value, value * ratio)


class NoPath(Modified):
  """Drops the derivative of `f`."""

  def spoil(self, value, ratio, distribution, atoms, f, seed):
    return tfp_rb.Estimate(value, tf.stop_gradient(value) * ratio)


class WrongValue(Modified):
  """Returns the right gradient and a value that is a little too high."""

  def spoil(self, value, ratio, distribution, atoms, f, seed):
    return tfp_rb.Estimate(value + 1e-3, value * ratio)


class NoisyWrongValue(LittleNoise):
  """Works like `WrongValue`, but is tested by draws."""

  def spoil(self, value, ratio, *rest):
    estimate = super().spoil(value, ratio, *rest)
    return estimate._replace(value=value + 0.1)


BIASED = {
  'own_draw': (
    lambda: tfp_rb.REINFORCE(baseline=OwnDraw(), num_samples=2),
    'gradient',
  ),
  'nothing_for_summed': (
    lambda: summed(
      tfp_rb.REINFORCE(baseline=NothingForSummed(), num_samples=2)
    ),
    'gradient',
  ),
  'own_level_for_summed': (
    lambda: summed(
      tfp_rb.REINFORCE(baseline=OwnLevelForSummed(), num_samples=2)
    ),
    'gradient',
  ),
  'heavy_weights': (HeavyWeights, 'gradient'),
  'redraws': (Redraws, 'gradient'),
  'redraws_summed': (lambda: summed(Redraws()), 'gradient'),
  'redraws_by_itself': (lambda: summed(RedrawsByItself(), k=4), 'gradient'),
  'no_path': (lambda: summed(NoPath()), 'gradient'),
  'wrong_value': (lambda: summed(WrongValue()), 'value'),
  'noisy_wrong_value': (lambda: summed(NoisyWrongValue(), k=4), 'value'),
}


@pytest.mark.parametrize('name', BIASED)
def test_biased_estimator_is_caught(name):
  make, part = BIASED[name]
  with raises(AssertionError, part):
    testing.assert_unbiased(make())


def test_score_alone_is_right_where_f_has_no_path():
  cost = tf.constant([2.0, -1.0, 0.5], tf.float64)
  report = testing.assert_unbiased(
    summed(NoPath()),
    problem=lambda x: (
      lambda z: tf.gather(cost, z),
      tfd.Categorical(logits=x),
    ),
    parameters=[tf.constant([0.1, 1.0, -0.5], tf.float64)],
  )
  assert report.is_exact


# Inner noise requires a test by draws.

some_seeds = pytest.mark.parametrize(
  'seed',
  [
    (1, 2),
    *(pytest.param(s, marks=pytest.mark.slow) for s in [(3, 4), (5, 6)]),
  ],
)


@some_seeds
def test_inner_noise_passes(seed):
  report = testing.assert_unbiased(summed(WithInnerNoise(), k=4), seed=seed)
  assert not report.is_exact
  # The test uses as many draws as necessary, and not many more.
  assert 0.018 <= report.detectable_bias <= 0.02


@some_seeds
def test_two_percent_are_caught_in_noise(seed):
  estimator = WithInnerNoise()
  estimator.bias = 0.02
  with raises(AssertionError, 'gradient'):
    testing.assert_unbiased(summed(estimator, k=4), seed=seed)


def test_more_draws_find_a_smaller_bias():
  reports = [
    testing.assert_unbiased(summed(WithInnerNoise(), k=4), detectable_bias=bias)
    for bias in (0.04, 0.02)
  ]
  assert reports[1].detectable_bias <= 0.02 < reports[0].detectable_bias
  assert reports[1].num_outcomes > reports[0].num_outcomes


# Distributions that are registered with an error.


@pytest.fixture
def registry(monkeypatch):
  copy_registry(monkeypatch)


class Wrong(tfd.Categorical):
  """A distribution that the tests below register with an error."""


def register(spoil):
  @tfp_rb.RegisterPartition(Wrong)
  def partition_wrong(q, num_summed):
    plain = tfd.Categorical(logits=q.logits)
    # A product may ask for more values than exist.
    return spoil(find_partition(plain, num_summed), plain)


def wrong_problem(logits):
  cost = tf.constant([2.0, -1.0, 0.5, 3.0, 1.0], logits.dtype)
  return lambda z: tf.gather(cost, z), Wrong(logits=logits)


WRONG_PARTITIONS = {
  # The draws come from the whole distribution, including summed values.
  'rest': lambda p, q: p._replace(
    sample_rest=p.sample_rest
    and (lambda n, seed: tfp_rb.partition(q, 0).sample_rest(n, seed))
  ),
  'log_prob': lambda p, q: p._replace(log_prob=lambda z: 2.0 * q.log_prob(z)),
  'weights': lambda p, q: p._replace(log_weights=p.log_weights - 0.01),
}


@pytest.mark.usefixtures('registry')
@pytest.mark.parametrize('name', WRONG_PARTITIONS)
@pytest.mark.parametrize(
  'estimator', [tfp_rb.REINFORCE, LittleNoise], ids=['exact', 'by_draws']
)
def test_wrong_partition_is_caught(name, estimator):
  register(WRONG_PARTITIONS[name])
  logits = tf.constant([[0.3, 1.0, -0.5, 0.0, 2.0]], tf.float64)
  with pytest.raises(AssertionError):
    testing.assert_unbiased(
      summed(estimator()), problem=wrong_problem, parameters=[logits]
    )


def returns_zero(partition, q):
  """Makes draws that enumeration does not see."""
  del q
  draw = partition.sample_rest
  return partition._replace(
    sample_rest=draw and (lambda n, seed: tf.zeros_like(draw(n, seed)))
  )


@pytest.mark.usefixtures('registry')
def test_wrong_draws_are_caught_inside_what_wraps_them():
  register(returns_zero)
  logits = tf.constant([[0.3, 1.0, -0.5], [0.0, 2.0, 0.1]], tf.float64)

  def problem(logits):
    cost = tf.constant([2.0, -1.0, 0.5], logits.dtype)
    f = lambda z: tf.reduce_prod(tf.gather(cost, z), axis=-1)
    return f, tfd.Independent(Wrong(logits=logits), 1)

  with pytest.raises(AssertionError):
    testing.assert_unbiased(
      tfp_rb.REINFORCE(), problem=problem, parameters=[logits]
    )


# Rounding.


@pytest.mark.parametrize('is_first', [True, False])
def test_rounding_is_that_of_all_parameters(is_first):
  def problem(*parameters):
    logits = parameters[0 if is_first else 1]
    cost = 1e9 + tf.constant([1.0, 2.0, 3.0], tf.float64)
    return lambda z: tf.gather(cost, z), tfd.Categorical(logits=logits)

  logits = tf.constant([0.3, 1.0, -0.5], tf.float64)
  unused = tf.zeros([2], tf.float64)
  parameters = [logits, unused] if is_first else [unused, logits]
  testing.assert_unbiased(tfp_rb.REINFORCE(), problem, parameters)


class DoubledValue(tfp_rb.REINFORCE):
  def evaluate(self, f, distribution, atoms, seed):
    estimate = super().evaluate(f, distribution, atoms, seed)
    return estimate._replace(value=2.0 * estimate.value)


@pytest.mark.parametrize('scale', [1.0, 1e-13])
def test_a_doubled_value_is_caught_at_any_scale(scale):
  def problem(logits):
    cost = scale * tf.constant([1.0, 2.0, 3.0], tf.float64)
    return lambda z: tf.gather(cost, z), tfd.Categorical(logits=logits)

  logits = tf.constant([0.3, 1.0, -0.5], tf.float64)
  with raises(AssertionError, 'value'):
    testing.assert_unbiased(DoubledValue(), problem, [logits])


# Inputs that cannot be tested.


def test_vanishing_gradient_is_refused():
  with raises(ValueError, 'problem'):
    testing.assert_unbiased(
      tfp_rb.REINFORCE(),
      problem=lambda x: (
        lambda z: tf.zeros_like(z, tf.float64),
        tfd.Categorical(logits=x),
      ),
      parameters=[tf.zeros([3], tf.float64)],
    )


def test_too_few_draws_are_refused():
  with raises(ValueError, 'most_draws'):
    testing.assert_unbiased(summed(WithInnerNoise()), most_draws=1000)


def test_report_is_readable():
  report = testing.assert_unbiased(tfp_rb.Exact())
  assert np.isfinite(report.relative_bias)
  assert 'is_exact=True' in str(report)
