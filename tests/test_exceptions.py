# SPDX-License-Identifier: Apache-2.0
"""An exception of the user's code reaches the user as the same object."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from cases import covering_values
import internals
import tfp_rb
from tfp_rb import baselines, diagnostics
import zoo

tfd = tfp.distributions


class OwnError(Exception):
  """An exception class of the user."""

  def __init__(self, code, *, hint):  # it cannot be rebuilt from its text alone
    super().__init__(code, hint)
    self.hint = hint


# Each entry makes a new exception, since an exception is raised only once.
EXCEPTIONS = {
  'TypeError': lambda: TypeError('mine'),
  'ValueError': lambda: ValueError('mine'),
  'NotImplementedError': lambda: NotImplementedError('mine'),
  'KeyError': lambda: KeyError('mine'),
  'OwnError': lambda: OwnError(7, hint='mine'),
}


def assert_raised(error, run):
  with pytest.raises(type(error)) as caught:
    run()
  assert caught.value is error


def raising(error, after=0, event_rank=0):
  """Returns an `f` that raises after `after` calls (0: at its first call)."""
  num_calls = 0

  def f(z):
    nonlocal num_calls
    num_calls += 1
    if num_calls > after:
      raise error
    axes = list(range(-event_rank, 0))
    return tf.reduce_sum(tf.cast(z, tf.float64), axis=axes)

  return f


LOGITS = np.array([0.3, 1.1, -0.5])
SITES = np.array([0.3, -1.1])


def _categorical():
  return tfd.Categorical(logits=LOGITS)


def _one_hot():
  return tfd.OneHotCategorical(logits=LOGITS, dtype=tf.float64)


def _product():
  return tfd.Independent(tfd.Bernoulli(logits=SITES), 1)


def _sites(**settings):
  return tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=1, **settings)


def _problem(f):
  return lambda logits: (f, tfd.Categorical(logits=logits))


def _sampled_moments(f):
  logits = tf.Variable(LOGITS)

  def loss(seed):
    q = tfd.Categorical(logits=logits)
    return tfp_rb.expectation(f, q, seed=seed)

  return diagnostics.sampled_moments(loss, [logits], num_pairs=2)


# Each entry calls `f`.
CALLS = {
  'expectation': lambda f: tfp_rb.expectation(f, _categorical()),
  'local_expectation': lambda f: tfp_rb.expectation(f, _product(), _sites()),
  'sites_per_call': lambda f: tfp_rb.expectation(
    f, _product(), _sites(sites_per_call=1)
  ),
  'variational_loss': lambda f: tfp_rb.vi.monte_carlo_variational_loss(
    f, _categorical()
  ),
  'variational_loss-product': lambda f: tfp_rb.vi.monte_carlo_variational_loss(
    f, _product()
  ),
  'exact_moments': lambda f: diagnostics.exact_moments(
    tfp_rb.REINFORCE(), _problem(f), [LOGITS]
  ),
  'sampled_moments': _sampled_moments,
  'suggest': lambda f: diagnostics.suggest(f, _categorical(), budget=2),
  'compare': lambda f: diagnostics.compare(
    {'plain': tfp_rb.REINFORCE()},
    lambda e: diagnostics.exact_moments(e, _problem(f), [LOGITS]),
  ),
  'assert_unbiased': lambda f: tfp_rb.testing.assert_unbiased(
    tfp_rb.REINFORCE(), _problem(f), [LOGITS]
  ),
}


@pytest.mark.parametrize('kind', EXCEPTIONS)
@pytest.mark.parametrize('call', CALLS)
def test_exception_of_f_arrives_from_every_entry_point(call, kind):
  error = EXCEPTIONS[kind]()
  assert_raised(error, lambda: CALLS[call](raising(error)))


# The first call belongs to the reference, the others to the outcomes.
@pytest.mark.parametrize('after', [1, 2])
@pytest.mark.parametrize('call', ['exact_moments', 'assert_unbiased'])
def test_exception_of_a_later_call_arrives_from_diagnostics(call, after):
  error = OwnError(7, hint='later')
  assert_raised(error, lambda: CALLS[call](raising(error, after)))


@pytest.mark.parametrize('kind', EXCEPTIONS)
@pytest.mark.parametrize(
  'call',
  [
    'expectation',
    'local_expectation',
    'sites_per_call',
    'variational_loss',
    'variational_loss-product',
  ],
)
def test_exception_of_f_arrives_from_a_graph(call, kind):
  error = EXCEPTIONS[kind]()
  function = tf.function(lambda: CALLS[call](raising(error)), autograph=False)
  assert_raised(error, function)


ESTIMATORS = {
  name: (row.make, _categorical) for name, row in zoo.ESTIMATORS.items()
} | {
  name: (lambda k, M, row=row: row.make(M, _one_hot()), _one_hot)
  for name, row in zoo.DIFFERENTIATING.items()
}


@pytest.mark.parametrize(
  'name, kind',
  covering_values(itertools.product(ESTIMATORS, EXCEPTIONS)),
)
def test_exception_of_f_arrives_from_every_estimator(name, kind):
  make, distribution = ESTIMATORS[name]
  error = EXCEPTIONS[kind]()
  estimator = make(1, 2)
  f = raising(error)
  assert_raised(error, lambda: tfp_rb.expectation(f, distribution(), estimator))


@pytest.mark.parametrize(
  'name, kind',
  covering_values(itertools.product(zoo.DIFFERENTIATING, EXCEPTIONS)),
)
def test_exception_of_f_arrives_from_a_graph_of_relaxed_estimators(name, kind):
  make, distribution = ESTIMATORS[name]
  error = EXCEPTIONS[kind]()
  estimator = tfp_rb.rao_blackwellize(make(1, 2), num_summed=1)
  f = raising(error)
  function = tf.function(
    lambda: tfp_rb.expectation(f, distribution(), estimator), autograph=False
  )
  assert_raised(error, function)


def test_exception_of_the_second_call_of_f_arrives():
  error = TypeError('relaxed')
  # REBAR also calls `f` at the relaxed atoms.
  f = raising(error, after=1, event_rank=1)
  assert_raised(
    error, lambda: tfp_rb.expectation(f, _one_hot(), tfp_rb.REBAR(0.5))
  )


# Other functions that the user provides.


def _raise(error):
  def function(*args, **kwargs):
    del args, kwargs
    raise error

  return function


def _late(error):
  """Returns a scale that the constructor can read, but later calls cannot."""
  results = iter([1.0])

  def scale():
    for result in results:
      return result
    raise error

  return scale


def _evaluate(estimator, distribution=None):
  q = _one_hot() if distribution is None else distribution
  axes = list(range(-q.event_shape.rank, 0))
  f = lambda z: tf.reduce_sum(tf.cast(z, tf.float64), axis=axes)
  return tfp_rb.expectation(f, q, estimator, seed=[0, 1])


class _Failing(baselines.Baseline):
  """A user's baseline that raises."""

  def __init__(self, error):
    super().__init__()
    self.error = error

  def evaluate(self, distribution, atoms, value, extra_value):
    raise self.error


OTHERS = {
  'control_variate': lambda e: tfp_rb.RELAX(_raise(e), temperature=0.5),
  'baseline of NVIL': lambda e: tfp_rb.NVIL(_raise(e)),
  'temperature': lambda e: tfp_rb.ReinMax(lambda: _raise(e)()),
  'scale': lambda e: tfp_rb.REBAR(0.5, scale=_late(e)),
  'Baseline': lambda e: tfp_rb.REINFORCE(_Failing(e)),
  'atoms': lambda e: tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(), atoms=_raise(e)
  ),
}


@pytest.mark.parametrize('kind', EXCEPTIONS)
@pytest.mark.parametrize('name', OTHERS)
def test_exception_of_another_function_arrives(name, kind):
  error = EXCEPTIONS[kind]()
  estimator = OTHERS[name](error)
  assert_raised(error, lambda: _evaluate(estimator))


# Distributions that the user defines.


class Own(tfd.Distribution):
  """A user's coin distribution, parts of which raise."""

  def __init__(self, of_log_prob=None, of_sample=None, of_mean=None):
    self._of_log_prob, self._of_sample = of_log_prob, of_sample
    self._of_mean = of_mean
    super().__init__(
      dtype=tf.float64,
      reparameterization_type=tfd.NOT_REPARAMETERIZED,
      validate_args=False,
      allow_nan_stats=True,
    )

  def _event_shape(self):
    return tf.TensorShape([])

  def _batch_shape(self):
    return tf.TensorShape([])

  def _sample_n(self, n, seed=None):
    if self._of_sample is not None:
      raise self._of_sample
    return tf.zeros([n], tf.float64)

  def _log_prob(self, value):
    if self._of_log_prob is not None:
      raise self._of_log_prob
    return tf.fill(tf.shape(value), np.log(0.5))

  def _mean(self):
    if self._of_mean is not None:
      raise self._of_mean
    return tf.zeros([], tf.float64)


@pytest.mark.parametrize('kind', EXCEPTIONS)
@pytest.mark.parametrize('part', ['of_log_prob', 'of_sample'])
def test_exception_of_a_distribution_arrives(part, kind):
  error = EXCEPTIONS[kind]()
  q = Own(**{part: error})
  assert_raised(error, lambda: _evaluate(tfp_rb.REINFORCE(), q))


@pytest.mark.parametrize('kind', EXCEPTIONS)
@pytest.mark.parametrize('wrap', ['alone', 'Independent'])
def test_exception_of_a_mean_arrives(wrap, kind):
  error = EXCEPTIONS[kind]()
  q = Own(of_mean=error)
  if wrap == 'Independent':
    q = tfd.Independent(q, 0)
  assert_raised(error, lambda: _evaluate(tfp_rb.MuProp(), q))


def _partition(q, num_summed):
  """Returns a correct partition of a coin."""
  del q
  log_weights = np.log([0.5] * num_summed)
  return tfp_rb.Partition(
    values=tf.range(float(num_summed), dtype=tf.float64),
    log_weights=tf.constant(log_weights, tf.float64),
    log_rest=tf.math.log(tf.constant(1.0 - 0.5 * num_summed, tf.float64)),
    sample_rest=lambda n, seed: tf.fill([n], np.float64(num_summed)),
    num_values=2,
  )


@pytest.mark.parametrize('kind', EXCEPTIONS)
@pytest.mark.parametrize('num_summed', [0, 1])
@pytest.mark.parametrize('wrap', ['alone', 'Independent', 'Sample'])
def test_exception_of_a_registered_partition_arrives(
  monkeypatch, wrap, num_summed, kind
):
  internals.copy_registry(monkeypatch)
  error = EXCEPTIONS[kind]()
  tfp_rb.RegisterPartition(Own)(_raise(error))
  q = {
    'alone': lambda: Own(),
    'Independent': lambda: tfd.Independent(Own(), 0),
    'Sample': lambda: tfd.Sample(Own(), 2),
  }[wrap]()
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=num_summed)
  assert_raised(error, lambda: _evaluate(estimator, q))
  # An error in the user's code does not mean that the family is not registered.
  assert_raised(error, lambda: _evaluate(tfp_rb.REINFORCE(), q))


@pytest.mark.parametrize('kind', EXCEPTIONS)
@pytest.mark.parametrize('part', ['sample_rest', 'log_prob'])
def test_exception_of_a_part_of_a_partition_arrives(monkeypatch, part, kind):
  internals.copy_registry(monkeypatch)
  error = EXCEPTIONS[kind]()

  @tfp_rb.RegisterPartition(Own)
  def partition(q, num_summed):
    return _partition(q, num_summed)._replace(**{part: _raise(error)})

  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  assert_raised(error, lambda: _evaluate(estimator, Own()))
