# SPDX-License-Identifier: Apache-2.0
"""The promises of the relaxed estimators: shapes, dtypes, calls, configs."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import softmax
from modes import modes_of
from relaxed import (
  FORMS,
  NUM_SAMPLES,
  PRODUCTS,
  SEED,
  copy_by_json,
  estimate,
  every_combination,
  every_distribution,
  every_row,
  make,
  result_of,
)
import tfp_rb
import zoo

tfd = tfp.distributions


@every_combination
def test_value_and_gradient_keep_shape_and_dtype(name, kind, form):
  dtype, batch_shape = FORMS[form]
  value, gradient, _ = result_of(name, kind, form)
  parameter = zoo.DISTRIBUTIONS[kind].parameter(dtype, batch_shape)
  assert (value.shape, value.dtype) == (batch_shape, dtype)
  assert (gradient.shape, gradient.dtype) == (parameter.shape, dtype)
  assert np.all(np.isfinite(value))
  assert np.all(np.isfinite(gradient))


@every_combination
def test_f_meets_the_promised_number_of_atoms(name, kind, form):
  _, _, atoms = result_of(name, kind, form)
  is_product = kind in PRODUCTS
  if form == 'budget':
    num_values = zoo.DISTRIBUTIONS[kind].num_values
    k, M = (num_values, 0) if num_values <= 3 else (0, 3)
  else:
    k, M = (0 if form == 'plain' else 1), NUM_SAMPLES
  promised = zoo.DIFFERENTIATING[name].num_evaluations(k, M, is_product)
  # If nothing is drawn, there is no relaxed atom either.
  assert [z.shape[0] for z in atoms] == [n for n in promised if n]


@every_combination
def test_f_meets_atoms_in_the_dtype_of_the_logits(name, kind, form):
  dtype, batch_shape = FORMS[form]
  _, _, atoms = result_of(name, kind, form)
  event_shape = zoo.DISTRIBUTIONS[kind].make().event_shape
  for z in atoms:
    assert z.dtype == dtype
    assert z.shape[1:] == (*batch_shape, *event_shape)


@pytest.mark.parametrize(
  'name', ['REBAR', 'RELAX', 'RELAX-with_f', 'GumbelSoftmax', 'ReinMax']
)
@every_distribution
def test_f_meets_the_atoms_themselves_first(name, kind):
  _, _, atoms = result_of(name, kind, 'summed')
  hard = np.array(atoms[0])
  np.testing.assert_allclose(hard, np.round(hard), atol=1e-6)
  if 'OneHot' in kind:
    np.testing.assert_allclose(hard.sum(axis=-1), 1.0, atol=1e-6)


@pytest.mark.parametrize('name', ['REBAR', 'RELAX-with_f'])
@every_distribution
def test_f_meets_relaxed_atoms_of_the_same_argmax(name, kind):
  found = estimate(make(name, kind), kind, 'float64', ())
  hard, relaxed = (np.array(z) for z in found[2])
  assert np.all((relaxed >= 0.0) & (relaxed <= 1.0))
  assert not np.any(relaxed == hard)
  if 'OneHot' in kind:
    np.testing.assert_allclose(relaxed.sum(axis=-1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(relaxed.argmax(-1), hard.argmax(-1))
  else:
    np.testing.assert_array_equal(relaxed > 0.5, hard > 0.5)


@every_row
def test_a_seed_decides_the_estimate(name):
  kind = 'OneHotCategorical'
  estimator = make(name, kind, 'summed')
  dtype, batch_shape = FORMS['summed']
  first = result_of(name, kind, 'summed')
  again = estimate(estimator, kind, dtype, batch_shape)
  other = estimate(estimator, kind, dtype, batch_shape, seed=(3, 2))
  for a, b in zip(first[:2], again[:2]):
    np.testing.assert_array_equal(a, b)
  assert not np.array_equal(first[1], other[1])


@pytest.mark.parametrize(
  'name', [n for n, row in zoo.DIFFERENTIATING.items() if row.has_noise]
)
def test_noise_is_drawn_beside_the_atoms(name):
  """Checks that at the same atoms, another seed gives another gradient."""
  logits = tf.constant([0.0, 0.3], tf.float64)
  gradients, values = [], []
  for seed in ([0, 1], [0, 1], [0, 2]):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
      estimator = zoo.DIFFERENTIATING[name].make(1, q)
      atoms = estimator.sample_atoms(q, tf.constant([0, 0]))
      found = estimator.evaluate(
        zoo.cost(q, tf.float64), q, atoms, tf.constant(seed)
      )
    values.append(atoms.values)
    gradients.append(tape.gradient(found.surrogate, logits))
  np.testing.assert_array_equal(values[0], values[2])
  np.testing.assert_array_equal(gradients[0], gradients[1])
  assert not np.any(gradients[0] == gradients[2])


@pytest.mark.parametrize('name', ['REBAR', 'GumbelSoftmax'])
def test_eager_graph_and_xla_agree(name):
  estimator = make(name, 'OneHotCategorical', 'summed')

  def run(seed):
    return estimate(estimator, 'OneHotCategorical', 'float32', (3,), seed)

  seed = tf.constant(SEED)
  expected = run(seed)
  modes = modes_of(run, seed)
  for mode in ('graph', 'xla'):
    value, gradient, atoms = modes[mode](seed)
    np.testing.assert_allclose(value, expected[0], rtol=1e-5)
    np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5)
    for z, expected_z in zip(atoms, expected[2]):
      np.testing.assert_allclose(z, expected_z, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    ('REBAR', 'OneHotCategorical'),
    ('RELAX', 'Independent-Bernoulli'),
    ('GumbelSoftmax', 'Bernoulli'),
    ('ReinMax', 'Independent-OneHotCategorical'),
  ],
)
def test_batch_size_may_be_unknown(name, kind):
  row, estimator = zoo.DISTRIBUTIONS[kind], make(name, kind, 'summed')
  parameter = row.parameter(tf.float32, (3,))

  @tf.function(
    autograph=False,
    input_signature=[tf.TensorSpec([None, *parameter.shape[1:]], tf.float32)],
  )
  def value_and_gradient(parameter):
    with tf.GradientTape() as tape:
      tape.watch(parameter)
      q = row.build(parameter, None)
      f = zoo.cost(q, tf.float32)
      value = tfp_rb.expectation(f, q, estimator, seed=SEED)
    return value, tape.gradient(value, parameter)

  expected = estimate(estimator, kind, 'float32', (3,))
  value, gradient = value_and_gradient(parameter)
  np.testing.assert_allclose(value, expected[0], rtol=1e-5)
  np.testing.assert_allclose(gradient, expected[1], rtol=1e-4, atol=1e-5)


@every_row
@pytest.mark.parametrize(
  ('kind', 'dtype'),
  [('OneHotCategorical', 'float16'), ('Independent-Bernoulli', 'bfloat16')],
)
def test_half_precision_is_finite(name, kind, dtype):
  estimator = make(name, kind, 'summed')
  value, gradient, atoms = estimate(estimator, kind, dtype, (3,))
  assert {x.dtype for x in (value, gradient, *atoms)} == {tf.as_dtype(dtype)}
  assert np.all(np.isfinite(tf.cast(value, tf.float32)))
  assert np.all(np.isfinite(tf.cast(gradient, tf.float32)))


TEMPERATURES = {
  'number': lambda: 0.5,
  'variable': lambda: tf.Variable(0.6),
  'annealed': lambda: tfp_rb.AnnealedTemperature(rate=0.01, floor=0.25),
}


def configurable(name, temperature):
  """Returns a row of the zoo with settings that a config has to keep."""
  settings = {
    'REBAR': lambda: dict(restricted=False),
    # This uses a network, since a config cannot contain a function.
    'RELAX': lambda: dict(
      control_variate=keras.Sequential(
        [keras.layers.Dense(3, 'tanh'), keras.layers.Dense(1)]
      ),
      scale=tf.Variable(0.8),
    ),
  }.get(name.removesuffix('-with_f'), dict)
  return zoo.DIFFERENTIATING[name].make(
    2, None, temperature=temperature, **settings()
  )


@pytest.mark.parametrize(
  'name', [n for n, row in zoo.DIFFERENTIATING.items() if row.has_temperature]
)
@pytest.mark.parametrize('temperature', TEMPERATURES)
def test_estimator_comes_back_from_its_config(name, temperature):
  estimator = configurable(name, TEMPERATURES[temperature]())
  copy = copy_by_json(tfp_rb.rao_blackwellize(estimator, num_summed=1))
  assert copy.num_summed == 1
  copy = copy.estimator
  assert type(copy) is type(estimator)
  assert type(copy.temperature) is type(estimator.temperature)
  results = [
    # The variables of a network are not part of a config.
    estimate(e, 'OneHotCategorical', 'float32', (2,))
    for e in (estimator, copy)
  ]
  if name.startswith('RELAX'):
    assert copy.with_f == estimator.with_f
    assert len(copy.trainable_variables) == len(estimator.trainable_variables)
    pairs = zip(estimator.control_variate.weights, copy.control_variate.weights)
    assert all(a.shape == b.shape and a is not b for a, b in pairs)
    np.testing.assert_array_equal(results[0][0], results[1][0])
    copy.control_variate.set_weights(estimator.control_variate.get_weights())
    results[1] = estimate(copy, 'OneHotCategorical', 'float32', (2,))
  for a, b in zip(results[0][:2], results[1][:2]):
    np.testing.assert_array_equal(a, b)


def test_variables_come_back_as_variables_of_their_own():
  estimator = tfp_rb.REBAR(
    tf.Variable(0.6), scale=tf.Variable(0.7, trainable=False)
  )
  copy = copy_by_json(estimator)
  assert len(copy.variables) == 2
  assert [v.numpy() for v in copy.trainable_variables] == [np.float32(0.6)]
  copy.temperature.assign(0.9)
  assert estimator.temperature.numpy() == np.float32(0.6)


def test_trained_temperature_does_not_come_back_as_a_constant():
  """Uses `TransformedVariable`, as the errors of a temperature recommend."""
  temperature = tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp())
  estimator = tfp_rb.REBAR(temperature)
  copy = copy_by_json(estimator)
  assert len(copy.trainable_variables) == 1
  np.testing.assert_allclose(copy.temperature, 0.5, rtol=1e-6)


class Exp(tfp.bijectors.Softplus):
  """A bijector that has the name of another one."""


@pytest.mark.parametrize(
  'bijector',
  [
    tfp.bijectors.Square(),
    # A config would lose the settings, or name another class.
    tfp.bijectors.Softplus(low=0.25),
    Exp(),
  ],
  ids=['unknown', 'with_settings', 'named_alike'],
)
def test_temperature_whose_bijector_a_name_does_not_tell_has_no_config(
  bijector,
):
  estimator = tfp_rb.REBAR(tfp.util.TransformedVariable(0.5, bijector))
  with raises(TypeError, 'temperature'):
    estimator.get_config()


@pytest.mark.parametrize(
  'bijector', [tfp.bijectors.Exp, tfp.bijectors.Softplus]
)
def test_temperature_of_a_config_may_be_named(bijector):
  value = tfp.util.TransformedVariable(0.5, bijector(validate_args=True))
  copy = copy_by_json(tfp_rb.REBAR(value))
  assert type(copy.temperature.bijector) is bijector


@pytest.mark.parametrize(
  'name', ['Invert', 'Square', 'prefer_static', '__doc__', None, ['Exp']]
)
def test_configs_name_bijectors_that_are_listed_only(name):
  value = tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp())
  config = tfp_rb.REBAR(value).get_config()
  config['temperature']['bijector'] = name
  with raises(ValueError, 'bijector') as caught:
    tfp_rb.REBAR.from_config(config)
  assert repr(name) in str(caught.value)


def test_softmax_of_many_axes_is_that_of_its_rows():
  # oneDNN, which TensorFlow uses on some processors, supports at most five
  # axes.
  logits = np.random.default_rng(0).normal(size=[2, 1, 3, 1, 2, 2, 4])
  expected = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
  for x in (tf.constant(logits), tf.constant(logits[0, 0])):
    actual = softmax(x)
    assert actual.shape == x.shape
    np.testing.assert_allclose(
      actual, expected if x.shape.rank == 7 else expected[0, 0], atol=1e-12
    )
