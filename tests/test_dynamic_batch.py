# SPDX-License-Identifier: Apache-2.0
"""A batch whose size is unknown while tracing, or that is empty."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from batched import ALL, WRAPPED
from cases import covering_values
from errors import raises
import tfp_rb
from tfp_rb import samplers
import zoo

tfd = tfp.distributions

_RATE = tf.constant(2.3, tf.float64)
REINFORCE = tfp_rb.REINFORCE(num_samples=2)
LEAVE_ONE_OUT = tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=2)
FORMS = {
  'summed': tfp_rb.rao_blackwellize(LEAVE_ONE_OUT, num_summed=1),
  'Exact': tfp_rb.Exact(),
  'budget': tfp_rb.rao_blackwellize(LEAVE_ONE_OUT, budget=2),
  'WithoutReplacement': tfp_rb.rao_blackwellize(
    LEAVE_ONE_OUT, num_summed=0, sampler=samplers.WithoutReplacement()
  ),
  'Antithetic': tfp_rb.rao_blackwellize(
    REINFORCE, num_summed=1, sampler=samplers.Antithetic()
  ),
  'Stratified': tfp_rb.rao_blackwellize(
    REINFORCE, num_summed=1, sampler=samplers.Stratified()
  ),
  'atoms': tfp_rb.rao_blackwellize(
    REINFORCE, atoms=lambda q: tfp_rb.partition(q, 2).values[1:]
  ),
  'local': tfp_rb.local_expectation(LEAVE_ONE_OUT, num_summed=1),
  'local-chunks': tfp_rb.local_expectation(
    REINFORCE, num_summed=1, sites_per_call=1
  ),
}


def _is_possible(family, form):
  if form == 'Exact':
    return ALL[family].is_finite
  if form.startswith('local'):
    return family.startswith(('Sample', 'Independent'))
  if form in ('WithoutReplacement', 'atoms'):
    # A `Sample` of counts supports excluding only the best values of its sites.
    return family not in ('Sample-counts', 'nested')
  return True


def loss_and_gradient(row, estimator):
  """Returns the function of the parameters that is traced."""

  def function(x):
    with tf.GradientTape() as tape:
      tape.watch(x)
      q = row.build(x)
      value = tfp_rb.expectation(
        zoo.cost(q, tf.float64), q, estimator, seed=[1, 2]
      )
    return value, tape.gradient(value, x)

  return function


def assert_size_does_not_matter(row, estimator):
  """Compares a function traced with `[None]` with one that knows the size."""
  function = loss_and_gradient(row, estimator)
  signature = [tf.TensorSpec([None, *row.shape], tf.float64)]
  dynamic = tf.function(function, input_signature=signature, autograph=False)
  for size in (3, 1):
    x = tf.constant(row.parameter(size))
    for actual, desired in zip(dynamic(x), function(x), strict=True):
      assert actual.shape == desired.shape
      np.testing.assert_allclose(actual, desired, rtol=1e-10, atol=1e-12)
  value, gradient = dynamic(tf.constant(row.parameter(0)))
  assert value.shape.num_elements() == 0
  assert gradient.shape == [0, *row.shape]


@pytest.mark.parametrize(
  'family, form',
  covering_values((a, b) for a in ALL for b in FORMS if _is_possible(a, b)),
)
def test_size_of_the_batch_may_be_unknown(family, form):
  assert_size_does_not_matter(ALL[family], FORMS[form])


@pytest.mark.parametrize(
  'family, name',
  covering_values(
    (a, b) for a in WRAPPED for b in zoo.ESTIMATORS if b != 'Exact'
  ),
)
def test_size_of_the_batch_may_be_unknown_to_every_estimator(family, name):
  if name.startswith('without_replacement') and not _is_possible(
    family, 'WithoutReplacement'
  ):
    pytest.skip('The sites of a `Sample` of counts cannot exclude values.')
  estimator = zoo.ESTIMATORS[name].make(1, 2)
  assert_size_does_not_matter(ALL[family], estimator)


RELAXABLE = [
  'OneHotCategorical-probs',
  'Bernoulli',
  'Sample',
  'BatchReshape-rest',
  'BatchBroadcast',
  'Independent-Bernoulli',
  'Independent-OneHotCategorical',
]


@pytest.mark.parametrize(
  'family, name, k',
  covering_values(
    (a, b, k) for a in RELAXABLE for b in zoo.DIFFERENTIATING for k in (0, 1)
  ),
)
def test_size_of_the_batch_may_be_unknown_where_f_is_differentiated(
  family, name, k
):
  row = ALL[family]
  q = row.build(tf.constant(row.parameter(1)))
  estimator = zoo.DIFFERENTIATING[name].make(2, q)
  if k:
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=k)
  assert_size_does_not_matter(row, estimator)


def test_copies_of_counts_exclude_values_of_their_own():
  copies = tfd.BatchBroadcast(tfd.Poisson(_RATE), to_shape=[3])
  rows = tfd.Poisson(tf.fill([3], _RATE))
  values = tf.constant([[0.0, 2.0, 7.0], [1.0, 1.0, 2.0]], tf.float64)
  found, expected = (
    tfp_rb.partition(q, 1).excluding(values) for q in (copies, rows)
  )
  np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-12)
  np.testing.assert_allclose(
    found.rest_weight, expected.rest_weight, rtol=1e-12
  )
  np.testing.assert_array_equal(
    found.sample_rest(50, [0, 1]), expected.sample_rest(50, [0, 1])
  )


EMPTY = [family for family in ALL if ALL[family].may_be_empty]


@pytest.mark.parametrize('family', EMPTY)
def test_empty_batch_has_an_empty_result(family):
  row = ALL[family]
  value, gradient = loss_and_gradient(row, FORMS['summed'])(
    tf.constant(row.parameter(0))
  )
  assert value.shape.num_elements() == 0
  assert gradient.shape == [0, *row.shape]


@pytest.mark.parametrize('family', EMPTY)
def test_empty_batch_has_an_empty_partition(family):
  row = ALL[family]
  q = row.build(tf.constant(row.parameter(0)))
  shape = [*tf.TensorShape(q.batch_shape_tensor()), *q.event_shape]
  assert tfp_rb.partition(q, 1).values.shape == [1, *shape]
  whole = tfp_rb.partition(q, 0)
  assert whole.sample_rest(3, [0, 1]).shape == [3, *shape]


@pytest.mark.parametrize(
  'q',
  [
    tfd.Binomial(tf.zeros([0]), logits=0.4),
    tfd.BetaBinomial(tf.zeros([0]), 0.4, 1.3),
  ],
)
@pytest.mark.parametrize('form', ['summed', 'Exact', 'WithoutReplacement'])
def test_empty_batch_does_not_ask_how_many_values_there_are(q, form):
  value = tfp_rb.expectation(lambda z: z, q, FORMS[form])
  assert value.shape == [0]


def test_distribution_without_values_is_refused():
  q = tfd.Categorical(logits=tf.zeros([2, 0]))
  with raises(ValueError, 'distribution'):
    tfp_rb.expectation(lambda z: tf.zeros(z.shape[:2]), q, FORMS['summed'])


def _sum_of_columns(z):
  """Sums columns, but keeps an axis that belongs to the batch: `[m, 1]`."""
  return tf.reduce_sum(tf.cast(z, tf.float32), axis=-1, keepdims=True)


@pytest.mark.parametrize('jit_compile', [False, True], ids=['graph', 'xla'])
def test_f_that_would_be_broadcast_is_refused_at_run_time(jit_compile):
  @tf.function(
    input_signature=[tf.TensorSpec([None, 3], tf.float32)],
    autograph=False,
    jit_compile=jit_compile,
  )
  def function(logits):
    q = tfd.Categorical(logits=logits)
    return tfp_rb.expectation(_sum_of_columns, q, seed=[0, 1])

  # XLA drops our assertion, and its own error does not name `f`.
  with raises(tf.errors.InvalidArgumentError, 'shape' if jit_compile else 'f'):
    function(tf.zeros([4, 3]))
  function(tf.zeros([1, 3]))  # this shape is right


@pytest.mark.parametrize('jit_compile', [False, True], ids=['graph', 'xla'])
@pytest.mark.parametrize(
  'make',
  [lambda level: tfp_rb.REINFORCE(baseline=level), tfp_rb.NVIL],
  ids=['REINFORCE', 'NVIL'],
)
def test_level_larger_than_the_batch_is_refused_at_run_time(make, jit_compile):
  level = tf.range(4.0)

  @tf.function(
    input_signature=[tf.TensorSpec([None, 3], tf.float32)],
    autograph=False,
    jit_compile=jit_compile,
  )
  def function(logits):
    q = tfd.Categorical(logits=logits)
    f = lambda z: tf.cast(z, tf.float32)
    return tfp_rb.expectation(f, q, make(level), seed=[0, 1])

  assert function(tf.zeros([4, 3])).shape == [4]
  with pytest.raises(tf.errors.InvalidArgumentError):
    function(tf.zeros([1, 3]))  # this would enlarge the estimate of one row


def test_f_of_unknown_rank_is_refused_at_run_time():
  @tf.function(
    input_signature=[tf.TensorSpec([None, 3], tf.float32)], autograph=False
  )
  def function(logits):
    q = tfd.Categorical(logits=logits)
    f = lambda z: tf.py_function(_sum_of_columns, [z], tf.float32)
    return tfp_rb.expectation(f, q, seed=[0, 1])

  with raises(tf.errors.InvalidArgumentError, 'f'):
    function(tf.zeros([4, 3]))
