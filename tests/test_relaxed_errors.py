# SPDX-License-Identifier: Apache-2.0
"""Relaxed estimators at extreme parameters, and the inputs they reject."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from cases import covering_pairs
from errors import assert_reaches_the_user, raises
from relaxed import (
  LOGITS,
  SEED,
  at_atoms,
  copy_by_json,
  four_values,
  in_form,
  steep,
)
import tfp_rb
import zoo

tfd = tfp.distributions


TEMPERED = [n for n, row in zoo.DIFFERENTIATING.items() if row.has_temperature]

every_name = pytest.mark.parametrize('name', TEMPERED)
restrictable = pytest.mark.parametrize('name', zoo.RESTRICTABLE)

FOUR_VALUES = tfd.OneHotCategorical(logits=LOGITS)


def make(name, q=FOUR_VALUES, **settings):
  return zoo.DIFFERENTIATING[name].make(1, q, **settings)


# Estimators with a temperature, both with default settings and without a
# restriction.
VARIANTS = {name: (name, {}) for name in TEMPERED} | {
  f'{name}-unrestricted': (name, {'restricted': False})
  for name in zoo.RESTRICTABLE
}


def make_variant(variant, q, temperature):
  name, settings = VARIANTS[variant]
  return make(name, q, temperature=temperature, **settings)


EXTREME = {
  'OneHotCategorical': [
    [-np.inf, 0.0, 1.0],
    [1e4, -1e4, 0.0],
    [0.0, -np.inf, -np.inf],
    [1e4, 1e4, -1e4],
    [0.0, -1e4, -1e4],
  ],
  'Bernoulli': [1e4, -1e4, 0.0, 80.0, np.inf, -np.inf],
  'Independent-OneHotCategorical': [
    [[-np.inf, 0.0, 1.0], [0.5, 0.0, 1.0]],
    [[1e4, -1e4, 0.0], [0.0, -np.inf, -np.inf]],
  ],
  'Independent-Bernoulli': [[1e4, -1e4, 0.0], [0.3, -0.2, 80.0]],
}


def build(kind, logits):
  return zoo.DISTRIBUTIONS[kind].build(logits, None)


@pytest.mark.parametrize(
  ('kind', 'variant', 'temperature', 'form'),
  covering_pairs(
    itertools.product(
      EXTREME,
      VARIANTS,
      [0.01, 10.0],
      ['plain', 'summed', 'summed-more', 'budget'],
    )
  ),
)
def test_extreme_logits_give_finite_estimates(kind, variant, temperature, form):
  logits = tf.constant(EXTREME[kind], tf.float32)
  temperature = tf.Variable(temperature)
  estimator = make_variant(variant, build(kind, logits), temperature)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = build(kind, logits)
    value = tfp_rb.expectation(
      zoo.cost(q, tf.float32), q, in_form(estimator, form), seed=SEED
    )
  gradients = tape.gradient(
    value, [logits, temperature], unconnected_gradients='zero'
  )
  for x in (value, *gradients):
    assert np.all(np.isfinite(x)), x


@pytest.mark.parametrize('variant', VARIANTS)
def test_impossible_classes_get_no_gradient(variant):
  logits = tf.constant([[-np.inf, 0.3, 1.0], [0.0, -np.inf, -np.inf]])
  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = tfd.OneHotCategorical(logits=logits)
    estimator = make_variant(variant, q, temperature=0.5)
    value = tfp_rb.expectation(zoo.cost(q, tf.float32), q, estimator, seed=SEED)
  gradient = tape.gradient(value, logits).numpy()
  assert gradient[0, 0] == 0.0
  np.testing.assert_allclose(gradient[1], 0.0, atol=1e-6)
  assert np.any(gradient[0])


def expectation(estimator, f=None, q=None):
  default_f, default_q = four_values(tf.constant(LOGITS))
  return tfp_rb.expectation(
    f or default_f, q or default_q, estimator, seed=SEED
  )


@every_name
@pytest.mark.parametrize(
  'q',
  [
    tfd.Categorical(logits=LOGITS),
    tfd.Poisson(rate=1.0),
    tfd.Sample(tfd.Poisson(rate=1.0), 2),
    tfd.Independent(tfd.Categorical(logits=[LOGITS]), 1),
  ],
  ids=['Categorical', 'Poisson', 'Sample-Poisson', 'Independent-Categorical'],
)
def test_distribution_must_have_relaxed_atoms(name, q):
  with raises(TypeError, 'distribution'):
    expectation(make(name), lambda z: tf.zeros(z.shape[:1]), q)


@every_name
@pytest.mark.parametrize('temperature', [0.0, -1.0, np.float64(0.0)], ids=str)
def test_temperature_must_be_positive(name, temperature):
  with raises(ValueError, 'temperature'):
    make(name, temperature=temperature)


@every_name
@pytest.mark.parametrize(
  'temperature', [[0.5, 0.6], tf.constant([0.5]), tf.Variable([0.5])], ids=str
)
def test_temperature_must_be_a_scalar(name, temperature):
  with raises(ValueError, 'temperature'):
    make(name, temperature=temperature)


@every_name
@pytest.mark.parametrize('temperature', [None, 'hot', True], ids=str)
def test_temperature_must_be_a_number(name, temperature):
  with raises(TypeError, 'temperature'):
    make(name, temperature=temperature)


@every_name
def test_temperature_of_a_callable_must_be_a_positive_scalar(name):
  with raises(ValueError, 'temperature'):
    expectation(make(name, temperature=lambda: -1.0))
  with raises(ValueError, 'temperature'):
    expectation(make(name, temperature=lambda: tf.constant([1.0, 2.0])))


def test_scale_must_be_a_scalar():
  with raises(ValueError, 'scale'):
    tfp_rb.REBAR(0.5, scale=[1.0, 2.0])


def test_schedule_must_fall_to_a_positive_floor():
  with raises(ValueError, 'rate'):
    tfp_rb.AnnealedTemperature(rate=-0.1)
  with raises(ValueError, 'floor'):
    tfp_rb.AnnealedTemperature(rate=0.1, floor=0.0)


@pytest.mark.parametrize('control_variate', [None, 3.0, tf.zeros([4])], ids=str)
def test_control_variate_must_be_callable(control_variate):
  with raises(TypeError, 'control_variate'):
    tfp_rb.RELAX(control_variate, temperature=0.5)


@pytest.mark.parametrize(
  'control_variate',
  [
    lambda x: x,
    lambda x: tf.reduce_sum(x),
    lambda x: tf.zeros([3]) * tf.reduce_sum(tf.cast(x, tf.float32)),
  ],
  ids=['event', 'scalar', 'rows'],
)
def test_control_variate_must_return_a_number_for_each_atom(control_variate):
  with raises(ValueError, 'control_variate'):
    expectation(tfp_rb.RELAX(control_variate, temperature=0.5))


def test_control_variate_may_return_the_unit_of_a_network():
  plain, unit = (
    at_atoms(tfp_rb.RELAX(c, temperature=0.5))[1]
    for c in (steep, lambda x: steep(x)[..., tf.newaxis])
  )
  np.testing.assert_array_equal(plain, unit)


@pytest.mark.parametrize(
  'control_variate',
  [
    lambda x: tf.reduce_sum(tf.stop_gradient(x), axis=-1),
    lambda x: tf.cast(tf.argmax(x, axis=-1), x.dtype),
    lambda x: tf.ones(x.shape[:-1], x.dtype),
  ],
  ids=['stop_gradient', 'argmax', 'constant'],
)
def test_control_variate_must_be_differentiable(control_variate):
  with raises(ValueError, 'control_variate'):
    expectation(tfp_rb.RELAX(control_variate, temperature=0.5))


def test_control_variate_must_return_floats():
  with raises(TypeError, 'control_variate'):
    expectation(tfp_rb.RELAX(lambda x: tf.argmax(x, axis=-1), temperature=0.5))


@pytest.mark.parametrize('name', ['REBAR', 'GumbelSoftmax', 'ReinMax'])
@pytest.mark.parametrize(
  'f',
  [
    lambda z: tf.gather(tf.constant(LOGITS), z)[..., 0],
    lambda z: tf.gather(tf.constant(LOGITS), tf.bitwise.invert(z)),
  ],
  ids=['gather', 'bits'],
)
def test_what_f_raises_at_relaxed_atoms_reaches_the_user(name, f):
  assert_reaches_the_user(lambda f: expectation(make(name), f), f, noted=name)


@pytest.mark.parametrize('error', [TypeError, ValueError, NotImplementedError])
@every_name
def test_an_exception_of_the_users_own_is_not_relabelled(name, error):
  def f(z):
    raise error('of the user')

  assert_reaches_the_user(lambda f: expectation(make(name), f), f)


@pytest.mark.parametrize('name', ['REBAR', 'GumbelSoftmax', 'ReinMax'])
@pytest.mark.parametrize(
  'f',
  [
    lambda z: tf.gather(tf.constant(LOGITS), tf.argmax(z, axis=-1)),
    lambda z: tf.reduce_sum(tf.cast(tf.cast(z, tf.int32), tf.float64), axis=-1),
  ],
  ids=['argmax', 'cast'],
)
def test_f_must_be_differentiable_by_its_atoms(name, f):
  with raises(ValueError, 'f'):
    expectation(make(name), f)


@restrictable
def test_products_cannot_be_restricted(name):
  q = tfd.Independent(tfd.Bernoulli(logits=np.float64([0.0, 1.0])), 1)
  estimator = tfp_rb.rao_blackwellize(make(name, restricted=True), num_summed=1)
  with raises(ValueError, 'restricted'):
    expectation(estimator, lambda z: tf.reduce_sum(z, axis=-1), q)


@restrictable
@pytest.mark.parametrize('restricted', ['yes', 2, 0.5], ids=str)
def test_restricted_must_be_a_bool_or_none(name, restricted):
  with raises(TypeError, 'restricted'):
    make(name, restricted=restricted)


def test_num_noises_must_be_a_positive_int():
  with raises(ValueError, 'num_noises'):
    tfp_rb.GumbelSoftmax(0.5, num_noises=0)
  with raises(TypeError, 'num_noises'):
    tfp_rb.GumbelSoftmax(0.5, num_noises=1.5)


def test_several_noises_need_straight_through():
  with raises(ValueError, 'num_noises'):
    tfp_rb.GumbelSoftmax(0.5, straight_through=False, num_noises=2)


@pytest.mark.parametrize('scale', ['x', None], ids=str)
def test_scale_must_be_a_number(scale):
  with raises(TypeError, 'scale'):
    tfp_rb.REBAR(0.5, scale=scale)


def test_schedule_of_keras_is_told_how_to_be_a_temperature():
  schedule = keras.optimizers.schedules.ExponentialDecay(1.0, 10, 0.9)
  with raises(TypeError, 'temperature'):
    expectation(tfp_rb.GumbelSoftmax(schedule))


def test_negative_temperature_is_found_in_a_graph_by_validate_args():
  temperature = tf.Variable(-0.5)
  temperature.assign(0.5)
  estimator = tfp_rb.GumbelSoftmax(temperature)
  temperature.assign(-0.5)
  f, _ = four_values(tf.constant(LOGITS))

  @tf.function
  def run():
    q = tfd.OneHotCategorical(logits=tf.constant(LOGITS), validate_args=True)
    return tfp_rb.expectation(f, q, estimator, seed=SEED)

  with raises(tf.errors.InvalidArgumentError, 'temperature'):
    run()


def test_temperature_of_gumbel_softmax_is_not_trained():
  temperature = tf.Variable(0.5)
  f, q = four_values(tf.constant(LOGITS))
  with tf.GradientTape() as tape:
    loss = tfp_rb.expectation(
      f, q, tfp_rb.GumbelSoftmax(temperature), seed=SEED
    )
  assert tape.gradient(loss, temperature) is None


def test_class_of_the_same_name_comes_back_from_its_own_module():
  # This is a class of the user, not the library's class of that name.
  REBAR = type('REBAR', (tfp_rb.REBAR,), {'__module__': __name__})
  estimator = tfp_rb.rao_blackwellize(REBAR(0.5), num_summed=1)
  assert type(copy_by_json(estimator).estimator) is REBAR
