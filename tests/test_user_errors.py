# SPDX-License-Identifier: Apache-2.0
"""Mistakes that users easily make, and the errors that they get."""

import collections
import inspect
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import tfp_rb
from tfp_rb import baselines, diagnostics, samplers

tfb = tfp.bijectors
tfd = tfp.distributions


def _categorical():
  return tfd.Categorical(logits=[0.0, 1.0, 2.0])


def _cost(z):
  return tf.cast(z, tf.float32)


# Seeds.


@pytest.mark.parametrize('dtype', [tf.int64, tf.uint32, tf.float32])
@pytest.mark.parametrize('make', [tf.constant, tf.Variable])
def test_a_tensor_as_seed_must_be_int32(make, dtype):
  seed = make([0, 1], dtype=dtype)
  with raises(TypeError, 'seed'):
    tfp_rb.expectation(_cost, _categorical(), seed=seed)


def test_a_seed_of_another_integer_may_be_cast():
  seed = tf.constant([0, 1], tf.int64)
  expected = tfp_rb.expectation(_cost, _categorical(), seed=[0, 1])
  for same in (tf.cast(seed, tf.int32), seed.numpy()):
    value = tfp_rb.expectation(_cost, _categorical(), seed=same)
    assert value == expected


# The value that `f` returns.


@pytest.mark.parametrize(
  'wrap',
  [lambda x: {'cost': x}, lambda x: [x], lambda x: (x, x), lambda x: None],
)
@pytest.mark.parametrize(
  'estimator',
  [None, tfp_rb.Exact(), tfp_rb.REINFORCE()],
  ids=['default', 'Exact', 'REINFORCE'],
)
def test_f_must_return_one_tensor(wrap, estimator):
  with raises(TypeError, 'f'):
    tfp_rb.expectation(lambda z: wrap(_cost(z)), _categorical(), estimator)


def test_f_that_differentiates_must_return_one_tensor():
  q = tfd.OneHotCategorical(logits=[0.0, 1.0, 2.0])
  with raises(TypeError, 'f'):
    tfp_rb.expectation(
      lambda z: {'cost': tf.reduce_sum(z, axis=-1)}, q, tfp_rb.MuProp()
    )


# Constructors.


def test_a_bare_number_is_no_baseline():
  with raises(TypeError, 'num_samples'):
    tfp_rb.REINFORCE(5)
  assert tfp_rb.REINFORCE(baseline=5).num_samples == 1
  assert tfp_rb.REINFORCE(num_samples=5).num_samples == 5
  estimator = tfp_rb.REINFORCE(baselines.LeaveOneOut())
  assert type(estimator.baseline) is baselines.LeaveOneOut


def test_settings_are_given_by_keyword():
  with raises(TypeError, 'baseline'):
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), 2)
  with pytest.raises(TypeError):
    tfp_rb.GumbelSoftmax(0.5, False)


def _public_classes():
  for module in (
    tfp_rb,
    baselines,
    diagnostics,
    samplers,
    tfp_rb.models,
    tfp_rb.testing,
  ):
    for name in module.__all__:
      kind = getattr(module, name)
      if inspect.isclass(kind) and not issubclass(kind, tuple):
        yield kind


@pytest.mark.parametrize(
  'kind',
  # A `Partition` takes its parts as arguments, not settings.
  [kind for kind in _public_classes() if kind is not tfp_rb.Partition],
)
def test_a_constructor_takes_one_argument_without_keyword(kind):
  _, *parameters = inspect.signature(kind.__init__).parameters.values()
  positional = [
    p.name
    for p in parameters
    if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
  ]
  assert len(positional) <= 1


@pytest.mark.parametrize(
  ('function', 'expected'),
  [
    (
      tfp_rb.expectation,
      ['f', 'distribution', 'estimator', 'seed', 'name'],
    ),
    (tfp_rb.partition, ['distribution', 'num_summed']),
    (
      tfp_rb.vi.monte_carlo_variational_loss,
      [
        'target_log_prob_fn',
        'surrogate_posterior',
        'sample_size',
        'importance_sample_size',
        'discrepancy_fn',
      ],
    ),
    (
      tfp_rb.vi.fit_surrogate_posterior,
      ['target_log_prob_fn', 'surrogate_posterior', 'optimizer', 'num_steps'],
    ),
  ],
)
def test_functions_keep_their_positional_order(function, expected):
  parameters = list(inspect.signature(function).parameters.values())
  for parameter, name in zip(parameters, expected):
    assert parameter.name == name
    assert parameter.kind == parameter.POSITIONAL_OR_KEYWORD


# Diagnostics.


def _problem(logits):
  return lambda z: tf.cast(z, tf.float64), tfd.Categorical(logits=logits)


def _with_nan(logits):
  cost = tf.constant([3.0, np.nan, 2.0], tf.float64)
  return lambda z: tf.gather(cost, z), tfd.Categorical(logits=logits)


LOGITS = np.array([0.0, 1.0, 2.0])


@pytest.mark.parametrize(
  'wrap', [dict, collections.ChainMap, types.MappingProxyType]
)
def test_compare_takes_any_mapping(wrap):
  estimators = wrap({'plain': tfp_rb.REINFORCE(), 'exact': tfp_rb.Exact()})
  rows = diagnostics.compare(
    estimators, lambda e: diagnostics.exact_moments(e, _problem, [LOGITS])
  )
  assert [row.name for row in rows] == ['exact', 'plain']


@pytest.mark.parametrize('estimators', [{}, [('plain', tfp_rb.REINFORCE())]])
def test_compare_needs_names(estimators):
  with raises(ValueError, 'estimators'):
    diagnostics.compare(estimators, lambda e: None)


def test_nan_of_f_is_not_taken_for_noise():
  moments = diagnostics.exact_moments(tfp_rb.REINFORCE(), _with_nan, [LOGITS])
  assert np.isnan(moments.variance)
  with raises(ValueError, 'f'):
    tfp_rb.testing.assert_unbiased(tfp_rb.REINFORCE(), _with_nan, [LOGITS])


# Parameters outside of their range.

OUT_OF_RANGE = {
  'Poisson': lambda **v: tfd.Poisson(-1.0, **v),
  'Geometric': lambda **v: tfd.Geometric(probs=1.5, **v),
  'Binomial': lambda **v: tfd.Binomial(3.0, probs=-0.5, **v),
  'NegativeBinomial': lambda **v: tfd.NegativeBinomial(-2.0, logits=0.5, **v),
  'Bernoulli': lambda **v: tfd.Bernoulli(probs=1.5, **v),
  'Zipf': lambda **v: tfd.Zipf(0.5, **v),
}


def _nan_of(make):
  return lambda **v: make(tf.constant(np.nan), **v)


NAN = {
  'Poisson': _nan_of(lambda x, **v: tfd.Poisson(x, **v)),
  'Geometric': _nan_of(lambda x, **v: tfd.Geometric(probs=x, **v)),
  'Bernoulli': _nan_of(lambda x, **v: tfd.Bernoulli(probs=x, **v)),
  'Categorical': _nan_of(
    lambda x, **v: tfd.Categorical(probs=[x, 0.5, 0.5], **v)
  ),
}
CASES = [pytest.param(make, id=name) for name, make in OUT_OF_RANGE.items()]
CASES += [pytest.param(make, id=f'{name}-NaN') for name, make in NAN.items()]


@pytest.mark.parametrize('make', CASES)
def test_parameters_are_checked_with_validate_args_only(make):
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  evaluate = lambda q: tfp_rb.expectation(_cost, q, estimator, seed=[0, 1])
  evaluate(make(validate_args=False))
  with pytest.raises(tf.errors.InvalidArgumentError):
    evaluate(make(validate_args=True))
