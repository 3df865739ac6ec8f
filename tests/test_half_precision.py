# SPDX-License-Identifier: Apache-2.0
"""Half precision, and dtypes that cannot represent the values."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import tfp_rb
import zoo

tfb = tfp.bijectors
tfd = tfp.distributions


# Each entry is a callable of `c`, which makes the parameters: rounded to half
# precision, either in that dtype or in float64.
FAMILIES = {
  'Categorical': lambda c: tfd.Categorical(logits=c([0.3, 1.1, -0.5, 0.0])),
  'Categorical-probs': lambda c: tfd.Categorical(probs=c([0.1, 0.2, 0.3, 0.4])),
  'OneHotCategorical-probs': lambda c: tfd.OneHotCategorical(
    probs=c([0.1, 0.2, 0.3, 0.4]), dtype=tf.float64
  ),
  'Bernoulli': lambda c: tfd.Bernoulli(logits=c(0.3)),
  'Bernoulli-probs': lambda c: tfd.Bernoulli(probs=c(0.3)),
  'OrderedLogistic': lambda c: tfd.OrderedLogistic(c([-1.0, 0.2, 1.6]), c(0.3)),
  'BetaBinomial': lambda c: tfd.BetaBinomial(c(4.0), c(0.7), c(1.3)),
  'Binomial': lambda c: tfd.Binomial(c(4.0), logits=c(0.3)),
  'Binomial-probs': lambda c: tfd.Binomial(c(4.0), probs=c(0.3)),
  'Poisson': lambda c: tfd.Poisson(rate=c(3.3)),
  'Poisson-log_rate': lambda c: tfd.Poisson(log_rate=c(1.3)),
  'Geometric': lambda c: tfd.Geometric(logits=c(0.3)),
  'Geometric-probs': lambda c: tfd.Geometric(probs=c(0.3)),
  'NegativeBinomial': lambda c: tfd.NegativeBinomial(c(2.5), logits=c(0.3)),
  'Shift': lambda c: tfb.Shift(c(2.0))(tfd.Geometric(probs=c(0.3))),
  'Sample': lambda c: tfd.Sample(tfd.Bernoulli(probs=c(0.3)), 3),
  'Independent': lambda c: tfd.Independent(
    tfd.Categorical(probs=c([[0.1, 0.2, 0.7], [0.5, 0.2, 0.3]])), 1
  ),
  'FiniteDiscrete': lambda c: tfd.FiniteDiscrete(
    c([-1.0, 0.5, 2.0]), probs=c([0.2, 0.3, 0.5])
  ),
  'Zipf': lambda c: tfd.Zipf(power=c(2.5)),
}
# TFP builds these only in one of the dtypes.
CASES = [
  (name, dtype)
  for name in FAMILIES
  for dtype in ('bfloat16', 'float16')
  if (name, dtype) not in [('FiniteDiscrete', 'bfloat16'), ('Zipf', 'float16')]
]


def build(name, dtype, wide=False):
  """Returns the distribution in half precision, or its float64 version."""

  def make(x):
    rounded = tf.constant(x, dtype)
    return tf.cast(rounded, tf.float64) if wide else rounded

  return FAMILIES[name](make)


@pytest.mark.parametrize('name, dtype', CASES)
def test_weights_are_those_of_the_parameters(name, dtype):
  q, meant = build(name, dtype), build(name, dtype, wide=True)
  found = tfp_rb.partition(q, 2)
  values = tf.cast(found.values, meant.dtype)
  weights = tf.exp(tf.cast(meant.log_prob(values), tf.float64))
  np.testing.assert_allclose(found.weights, weights, rtol=1e-6)
  rest = tf.cast(found.rest_weight, tf.float64)
  np.testing.assert_allclose(
    rest, 1.0 - tf.reduce_sum(weights), rtol=1e-5, atol=1e-7
  )
  assert not np.array_equal(values[0], values[1])


@pytest.mark.parametrize('name, dtype', CASES)
def test_estimate_is_right_to_half_precision(name, dtype):
  q, meant = build(name, dtype), build(name, dtype, wide=True)
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=2)
  estimate = lambda q, dtype: tfp_rb.expectation(
    zoo.cost(q, dtype), q, estimator, seed=[0, 1]
  )
  value, expected = estimate(q, tf.as_dtype(dtype)), estimate(meant, tf.float64)
  assert value.dtype == dtype
  # Only the values of `f` and the result are rounded.
  precision = {'bfloat16': 2.0**-8, 'float16': 2.0**-11}[dtype]
  np.testing.assert_allclose(
    tf.cast(value, tf.float64), expected, rtol=0.0, atol=8.0 * precision
  )


TOO_NARROW = {
  'Categorical-uint8': lambda n: tfd.Categorical(
    logits=tf.zeros([n]), dtype=tf.uint8
  ),
  'Categorical-bfloat16': lambda n: tfd.Categorical(
    logits=tf.zeros([n]), dtype=tf.bfloat16
  ),
  'OrderedLogistic-uint8': lambda n: tfd.OrderedLogistic(
    tf.range(n - 1.0), 0.0, dtype=tf.uint8
  ),
  'BetaBinomial-bfloat16': lambda n: tfd.BetaBinomial(
    tf.constant(n - 1.0, tf.bfloat16),
    tf.constant(1.0, tf.bfloat16),
    tf.constant(1.0, tf.bfloat16),
  ),
}


@pytest.mark.parametrize('name', TOO_NARROW)
def test_dtype_that_cannot_hold_the_values_is_refused(name):
  assert tfp_rb.partition(TOO_NARROW[name](256), 256).values.shape == [256]
  with raises(ValueError, 'dtype'):
    tfp_rb.partition(TOO_NARROW[name](301), 1)
  with raises(ValueError, 'dtype'):
    tfp_rb.partition(tfd.Sample(TOO_NARROW[name](301), 2), 1)


@pytest.mark.parametrize('dtype', [np.uint8, np.float64])
@pytest.mark.parametrize('kind', ['Categorical', 'OneHotCategorical', 'Zipf'])
def test_dtype_may_be_that_of_numpy(kind, dtype):
  parameter = {'power': 2.5} if kind == 'Zipf' else {'logits': [0.0, 2.0, 1.0]}
  q = getattr(tfd, kind)(**parameter, dtype=dtype)
  part = tfp_rb.partition(q, 2)
  draws = part.sample_rest(3, tf.constant([0, 1]))
  assert part.values.dtype == draws.dtype == tf.as_dtype(dtype)


def test_bits_may_be_booleans():
  q = tfd.Bernoulli(logits=tf.constant([0.3, -1.0]), dtype=tf.bool)
  f = lambda z: 3.0 * tf.cast(z, tf.float32)
  np.testing.assert_allclose(
    tfp_rb.expectation(f, q, tfp_rb.Exact()),
    3.0 * tf.sigmoid([0.3, -1.0]),
    rtol=1e-6,
  )
  assert tfp_rb.partition(q, 1).values.dtype == tf.bool


def _categorical(dtype, **settings):
  return tfd.Categorical(logits=[0.0, 1.0, 2.0], dtype=dtype, **settings)


def _shifted(shift, base, **settings):
  return tfd.TransformedDistribution(base, tfb.Shift(shift), **settings)


# These values are known only at run time.
ROUNDED = {
  'Poisson': ('dtype', lambda **v: tfd.Poisson(1e9, **v)),
  'Poisson-float16': (
    'dtype',
    lambda **v: tfd.Poisson(tf.constant(3000.0, tf.float16), **v),
  ),
  'Geometric-float16': (
    'dtype',
    lambda **v: tfd.Geometric(logits=tf.constant(-10.0, tf.float16), **v),
  ),
  'Shift-float32': (
    'shift',
    lambda **v: _shifted(1e8, _categorical(tf.float32), **v),
  ),
  'Shift-int32': (
    'shift',
    lambda **v: _shifted(tf.constant(2**31 - 2), _categorical(tf.int32), **v),
  ),
}


def _draw(q):
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(num_samples=100), num_summed=1
  )
  return tfp_rb.expectation(
    lambda z: tf.cast(z, tf.float32), q, estimator, seed=[0, 1]
  )


@pytest.mark.parametrize('is_graph', [False, True])
@pytest.mark.parametrize('name', ROUNDED)
def test_values_that_do_not_fit_are_reported_by_validate_args(name, is_graph):
  argument, make = ROUNDED[name]
  run = tf.function(_draw, autograph=False) if is_graph else _draw
  with raises(tf.errors.InvalidArgumentError, argument):
    run(make(validate_args=True))
  run(make(validate_args=False))  # nothing is checked, as in TFP
