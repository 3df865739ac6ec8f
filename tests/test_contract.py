# SPDX-License-Identifier: Apache-2.0
"""Promises that every estimator and every distribution of the zoo keeps."""

import functools
import itertools
import json
import math
import textwrap

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from cases import covering_pairs
from errors import raises
from foreign import EvenNumbers, partition_of_even
from internals import copy_registry, plain_class, registered_partitions
from modes import modes_of
import tfp_rb
from tfp_rb import baselines
import zoo

tfb = tfp.bijectors
tfd = tfp.distributions

SEED = (3, 1)
BATCH = (tf.float64, (2, 3))
DYNAMIC = ['Bernoulli', 'Categorical', 'Independent', 'OneHotCategorical']
ENUMERATED = [n for n, row in zoo.DISTRIBUTIONS.items() if row.is_enumerated]

every_distribution = pytest.mark.parametrize('name', zoo.DISTRIBUTIONS)
every_estimator = pytest.mark.parametrize('name', zoo.ESTIMATORS)


@pytest.fixture
def registry(monkeypatch):
  """Forgets, after a test, everything that the test registered."""
  copy_registry(monkeypatch)


def estimate(estimator, row, dtype=tf.float32, batch_shape=(), seed=SEED):
  """Returns the value and its gradient w.r.t. the distribution's parameter."""
  parameter = row.parameter(dtype, batch_shape)
  with tf.GradientTape() as tape:
    tape.watch(parameter)
    q = row.build(parameter, batch_shape)
    value = tfp_rb.expectation(zoo.cost(q, dtype), q, estimator, seed=seed)
  return value, tape.gradient(value, parameter)


def make(name, k=2, M=2):
  return zoo.ESTIMATORS[name].make(k, M)


@functools.cache
def estimate_of_a_batch(name):
  """Returns value and gradient of a batch of rank 2 in float64; caches them."""
  return estimate(make(name), zoo.DISTRIBUTIONS['Categorical'], *BATCH)


def some_num_summed(row):
  """Returns numbers of values to sum: none, some and, if finite, all."""
  last = 5 if row.num_values == math.inf else row.num_values
  return sorted({0, 1, min(3, last), last})


@functools.cache
def best(name, k):
  """Returns the distribution with a batch of 3, and its partition."""
  q = zoo.DISTRIBUTIONS[name].make(tf.float64, (3,))
  return q, tfp_rb.partition(q, k)


def event_axes(values, batch_rank):
  return tuple(range(1 + batch_rank, values.ndim))


# The zoo is complete.


def test_every_exported_estimator_has_a_row():
  exported = {
    item
    for item in map(vars(tfp_rb).get, tfp_rb.__all__)
    if isinstance(item, type) and issubclass(item, tfp_rb.GradientEstimator)
  } - {tfp_rb.GradientEstimator}
  q = zoo.DISTRIBUTIONS['OneHotCategorical'].make()
  rows = {type(make(name)) for name in zoo.ESTIMATORS}
  rows |= {type(row.make(1, q)) for row in zoo.DIFFERENTIATING.values()}
  rows |= {type(row.make(2)) for row in zoo.JOINT.values()}
  assert exported <= rows


def test_every_exported_baseline_has_a_row():
  exported = {
    item
    for item in map(vars(baselines).get, baselines.__all__)
    if issubclass(item, baselines.Baseline)
  } - {baselines.Baseline}
  rows = {type(make(f'REINFORCE-{n}').baseline) for n in zoo.BASELINES}
  assert exported <= rows


def test_every_exported_sampler_has_a_row():
  exported = {
    item
    for item in map(vars(tfp_rb.samplers).get, tfp_rb.samplers.__all__)
    if issubclass(item, tfp_rb.samplers.Sampler)
  } - {tfp_rb.samplers.Sampler}
  assert exported == set(zoo.SAMPLERS.values())


def test_every_registered_distribution_has_a_row():
  registered = registered_partitions()
  made = (type(row.make()) for row in zoo.DISTRIBUTIONS.values())
  assert registered <= {plain_class(kind) for kind in made}


# Shapes and dtypes.


def assert_shape_and_dtype(value, gradient, batch_shape, dtype):
  assert (value.shape, value.dtype) == (batch_shape, dtype)
  assert (gradient.shape, gradient.dtype) == ((*batch_shape, 5), dtype)


@every_estimator
def test_estimator_keeps_shape_and_dtype(name):
  row = zoo.DISTRIBUTIONS['Categorical']
  alone = estimate(make(name), row, tf.float64, ())
  assert_shape_and_dtype(*alone, (), tf.float64)
  assert_shape_and_dtype(*estimate_of_a_batch(name), (2, 3), tf.float64)


@pytest.mark.parametrize(
  ('name', 'batch_shape', 'dtype'),
  covering_pairs(
    itertools.product(
      zoo.DISTRIBUTIONS, [(), (3,), (2, 3)], ['float32', 'float64']
    )
  ),
  ids=str,
)
def test_distribution_keeps_shape_and_dtype(name, batch_shape, dtype):
  row = zoo.DISTRIBUTIONS[name]
  parameter = row.parameter(dtype, batch_shape)
  value, gradient = estimate(make('summed-mixed', k=1), row, dtype, batch_shape)
  assert (value.shape, value.dtype) == (batch_shape, dtype)
  assert (gradient.shape, gradient.dtype) == (parameter.shape, dtype)
  assert np.all(np.isfinite(gradient))


@every_distribution
def test_atoms_have_the_promised_shapes(name):
  q = zoo.DISTRIBUTIONS[name].make(batch_shape=(2, 3))
  atoms = make('summed-none', k=1, M=2).sample_atoms(q, tf.constant(SEED))
  assert atoms.values.dtype == q.dtype
  assert atoms.values.shape == (3, 2, 3, *q.event_shape)
  assert atoms.weights.shape == (3, 2, 3)
  assert atoms.log_prob.shape == (3, 2, 3)


@pytest.mark.parametrize(
  ('name', 'dtype'),
  [
    (name, dtype)
    for name in ENUMERATED
    for dtype in ('float16', 'bfloat16')
    # TFP's own constructor fails for this combination.
    if (name, dtype) != ('FiniteDiscrete', 'bfloat16')
  ],
)
def test_half_precision_agrees_with_float32(name, dtype):
  row = zoo.DISTRIBUTIONS[name]
  # Both precisions get the same numbers.
  rounded = row._replace(
    parameter=lambda d, b: tf.cast(row.parameter(dtype, b), d)
  )
  estimator = make('budget-mixed', k=1)
  value, gradient = estimate(estimator, rounded, dtype, (3,))
  expected_value, expected = estimate(estimator, rounded, tf.float32, (3,))
  assert (value.dtype, gradient.dtype) == (dtype, dtype)
  tolerance = 8 * {'float16': 2.0**-10, 'bfloat16': 2.0**-7}[dtype]
  np.testing.assert_allclose(
    tf.cast(value, tf.float32), expected_value, atol=tolerance
  )
  np.testing.assert_allclose(
    tf.cast(gradient, tf.float32), expected, atol=tolerance
  )


@pytest.mark.parametrize('form', ['summed', 'budget'])
@pytest.mark.parametrize('name', DYNAMIC)
def test_batch_size_may_be_unknown(name, form):
  row = zoo.DISTRIBUTIONS[name]
  parameter = row.parameter(tf.float32, (3,))
  estimator = make(f'{form}-mixed', k=1)

  @tf.function(
    input_signature=[tf.TensorSpec([None, *parameter.shape[1:]], tf.float32)]
  )
  def value_and_gradient(parameter):
    with tf.GradientTape() as tape:
      tape.watch(parameter)
      q = row.build(parameter, None)
      f = zoo.cost(q, tf.float32)
      value = tfp_rb.expectation(f, q, estimator, seed=SEED)
    return value, tape.gradient(value, parameter)

  expected_value, expected = estimate(estimator, row, batch_shape=(3,))
  value, gradient = value_and_gradient(parameter)
  np.testing.assert_allclose(value, expected_value, rtol=1e-5)
  np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


# Eager, graph and XLA.


def outcome(estimator, row, seed):
  """Returns the atoms at which `f` is called, the value and the gradient."""
  parameter, atoms = row.parameter(tf.float32, (3,)), []
  with tf.GradientTape() as tape:
    tape.watch(parameter)
    q = row.build(parameter, (3,))
    f = zoo.cost(q, tf.float32)

    def recorded(z):
      atoms.append(z)
      return f(z)

    value = tfp_rb.expectation(recorded, q, estimator, seed=seed)
  return atoms[0], value, tape.gradient(value, parameter)


def in_three_modes(estimator, row):
  """Returns `{mode: outcome for each seed}`."""

  def run(seed):
    return outcome(estimator, row, seed)

  # The seeds are passed at run time, so that XLA cannot fold the draws.
  seeds = [tf.constant(seed) for seed in ([5, 3], [-7, -(2**31)])]
  return {
    mode: [go(seed) for seed in seeds]
    for mode, go in modes_of(run, seeds[0]).items()
  }


def assert_modes_agree(results):
  for mode in ('graph', 'xla'):
    for expected, actual in zip(results['eager'], results[mode]):
      atoms, value, gradient = actual
      np.testing.assert_array_equal(atoms, expected[0])
      np.testing.assert_allclose(value, expected[1], rtol=1e-5, atol=1e-5)
      np.testing.assert_allclose(gradient, expected[2], rtol=1e-4, atol=1e-4)


# XLA takes seconds to compile the windows of countable supports.
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[pytest.mark.slow] * (row.num_values == math.inf))
    for name, row in zoo.DISTRIBUTIONS.items()
    if '-' not in name  # one row of each class
  ],
)
def test_eager_graph_and_xla_agree(name):
  # The atoms are summed values, draws from the rest, and one draw from the
  # whole distribution.
  estimator = make('summed-independent', k=1, M=2)
  assert_modes_agree(in_three_modes(estimator, zoo.DISTRIBUTIONS[name]))


@pytest.mark.parametrize('name', ['Bernoulli', 'Categorical', 'Independent'])
def test_eager_graph_and_xla_agree_for_a_budget(name):
  estimator = make('budget-mixed', k=1, M=2)
  assert_modes_agree(in_three_modes(estimator, zoo.DISTRIBUTIONS[name]))


# Calls of `f`.


@every_estimator
@pytest.mark.parametrize(
  ('distribution', 'k', 'M'),
  [
    ('Categorical', 5, 2),
    ('Sample', 2, 3),
  ],
)
def test_f_is_called_once_with_the_promised_number(name, distribution, k, M):
  row = zoo.DISTRIBUTIONS[distribution]
  q = row.make(batch_shape=(2,))
  f, sizes = zoo.cost(q, tf.float32), []

  def counted(z):
    sizes.append(z.shape[0])
    return f(z)

  tfp_rb.expectation(counted, q, make(name, k, M), seed=SEED)
  promised = zoo.ESTIMATORS[name].num_evaluations(row.num_values, k, M)
  assert sizes == [promised]


# Seeds.


@pytest.mark.parametrize(
  'name', ['REINFORCE-mixed', 'summed-independent', 'budget-unshared']
)
def test_same_seed_gives_the_same_estimate(name):
  row = zoo.DISTRIBUTIONS['Categorical']
  first, second = (estimate(make(name), row, seed=SEED) for _ in range(2))
  np.testing.assert_array_equal(first[0], second[0])
  np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.parametrize('name', [n for n in zoo.ESTIMATORS if n != 'Exact'])
def test_other_seed_gives_another_estimate(name):
  row = zoo.DISTRIBUTIONS['Categorical']
  _, first = estimate_of_a_batch(name)
  _, second = estimate(make(name), row, *BATCH, seed=(3, 2))
  assert not np.array_equal(first, second)


@every_distribution
def test_other_seed_gives_other_draws(name):
  q = zoo.DISTRIBUTIONS[name].make(batch_shape=(2, 3))
  estimator = make('REINFORCE-none', M=20)
  first, second = (
    estimator.sample_atoms(q, tf.constant(seed)).values
    for seed in [(3, 1), (4, 1)]
  )
  assert not np.array_equal(first, second)


@pytest.mark.parametrize('seed', [None, 7, [1, 2], np.array([1, 2])], ids=str)
@pytest.mark.parametrize('name', ['REINFORCE-independent', 'budget-mixed'])
def test_seed_may_be_whatever_it_may_be_in_tfp(name, seed):
  row = zoo.DISTRIBUTIONS['Poisson']
  value, _ = estimate(make(name), row, batch_shape=(3,), seed=seed)
  assert np.all(np.isfinite(value))


# Partitions.


@every_distribution
def test_weights_sum_to_one(name):
  for k in some_num_summed(zoo.DISTRIBUTIONS[name]):
    _, p = best(name, k)
    total = np.sum(p.weights, axis=0) + p.rest_weight
    np.testing.assert_allclose(total, np.ones(3), rtol=1e-10)


@every_distribution
def test_log_weights_are_those_of_the_distribution(name):
  q, p = best(name, some_num_summed(zoo.DISTRIBUTIONS[name])[-1])
  possible = np.isfinite(p.log_weights)
  for log_prob in (q.log_prob(p.values), p.log_prob(p.values)):
    np.testing.assert_allclose(
      np.array(log_prob)[possible],
      np.array(p.log_weights)[possible],
      rtol=1e-9,
      atol=1e-12,
    )


@every_distribution
def test_most_probable_value_comes_first(name):
  _, p = best(name, some_num_summed(zoo.DISTRIBUTIONS[name])[-1])
  log_weights = np.array(p.log_weights)
  # Ties of products are equal only up to rounding.
  assert np.all(log_weights[1:] <= log_weights[:-1] + 1e-12)


@every_distribution
def test_values_of_positive_weight_are_distinct(name):
  _, p = best(name, some_num_summed(zoo.DISTRIBUTIONS[name])[-1])
  values, possible = np.array(p.values), np.array(p.weights) > 0.0
  for i in range(3):
    found = np.reshape(values[possible[:, i], i], [possible[:, i].sum(), -1])
    assert len(np.unique(found, axis=0)) == len(found) > 0


@every_distribution
def test_a_summed_value_is_never_drawn(name):
  q, p = best(name, min(3, zoo.DISTRIBUTIONS[name].num_values - 1))
  draws = np.array(p.sample_rest(200, tf.constant(SEED)))
  values = np.array(p.values)
  equal = draws[:, np.newaxis] == values
  equal = equal.all(axis=event_axes(equal, 2))  # [draws, k, rows]
  rest = np.array(p.rest_weight) > 0.0
  assert not np.any(equal[..., rest])
  assert np.all(np.isfinite(q.log_prob(draws))[:, rest])


@every_distribution
def test_summing_fewer_gives_the_same_best_values(name):
  k = some_num_summed(zoo.DISTRIBUTIONS[name])[-1]
  (_, few), (_, many) = best(name, k - 1), best(name, k)
  np.testing.assert_allclose(
    few.log_weights, many.log_weights[: k - 1], rtol=1e-12
  )


# Configurations.


def assert_same_behaviour(copy, estimator):
  row = zoo.DISTRIBUTIONS['Categorical']
  q = row.make(batch_shape=(3,))
  seed = tf.constant(SEED)
  assert type(copy) is type(estimator)
  for a, b in zip(
    copy.sample_atoms(q, seed)[:4], estimator.sample_atoms(q, seed)[:4]
  ):
    np.testing.assert_array_equal(a, b)
  results = [estimate(e, row, batch_shape=(3,)) for e in (copy, estimator)]
  for a, b in zip(*results):
    np.testing.assert_array_equal(a, b)
  assert_shape_and_dtype(*results[1], (3,), tf.float32)


def copy_by_json(item):
  return type(item).from_config(json.loads(json.dumps(item.get_config())))


@every_estimator
def test_estimator_comes_back_from_its_config(name):
  estimator = make(name, k=1, M=3)
  assert_same_behaviour(copy_by_json(estimator), estimator)


@pytest.mark.parametrize('name', zoo.BASELINES)
def test_baseline_comes_back_from_its_config(name):
  baseline = make(f'REINFORCE-{name}').baseline
  assert_same_behaviour(
    tfp_rb.REINFORCE(baseline=copy_by_json(baseline), num_samples=2),
    tfp_rb.REINFORCE(baseline=baseline, num_samples=2),
  )


@pytest.mark.parametrize(
  'baseline',
  [
    tf.constant([1.0, 2.0, 3.0]),
    np.array([1.0, 2.0, 3.0]),
    np.float64(0.1),
    3,
    baselines.Learned(tf.constant(0.1, tf.float64)),
    baselines.Learned(np.float64(0.1)),
  ],
  ids=['tensor', 'array', 'scalar', 'int', 'learned-tensor', 'learned-scalar'],
)
def test_numbers_of_any_kind_come_back_from_a_config(baseline):
  estimator = tfp_rb.REINFORCE(baseline=baseline, num_samples=2)
  copy = copy_by_json(estimator)
  assert_same_behaviour(copy, estimator)
  assert [v.dtype for v in copy.variables] == [
    v.dtype for v in estimator.variables
  ]


# The registry.


class AlsoUnregistered(EvenNumbers):
  pass


UNREGISTERED = {
  'Multinomial': lambda x: tfd.Multinomial(total_count=2.0, logits=x),
  'own': EvenNumbers,
}
# These are objects of registered classes that contain an unregistered object.
UNREGISTERED_INSIDE = {
  'Independent': lambda x: tfd.Independent(
    EvenNumbers(tf.stack([x, -x], axis=-2)), 1
  ),
  'Sample': lambda x: tfd.Sample(EvenNumbers(x), 2),
  'BatchReshape': lambda x: tfd.BatchReshape(EvenNumbers(x), x.shape[:-1]),
  'Scale': lambda x: tfb.Scale(2.0)(tfd.Poisson(rate=tf.exp(x[..., 0]))),
}


@pytest.mark.parametrize('kind', UNREGISTERED | UNREGISTERED_INSIDE)
@pytest.mark.parametrize('name', ['REINFORCE-mixed', 'summed-mixed'])
def test_nothing_summed_works_without_registration(kind, name):
  build = (UNREGISTERED | UNREGISTERED_INSIDE)[kind]
  row = zoo.DistributionRow(
    zoo.DISTRIBUTIONS['OneHotCategorical-probs'].parameter,
    lambda logits, batch_shape: build(logits),
    support=None,
  )
  value, gradient = estimate(make(name, k=0), row, batch_shape=(2,))
  assert value.shape == (2,)
  assert np.any(gradient)


@pytest.mark.parametrize('kind', UNREGISTERED)
def test_error_of_unregistered_distribution_shows_what_to_do(kind):
  q = UNREGISTERED[kind](tf.constant([0.0, 1.0, 2.0]))
  f = zoo.cost(q, tf.float32)
  with raises(NotImplementedError, 'RegisterPartition'):
    tfp_rb.expectation(f, q, make('summed-none', k=1))


@pytest.mark.usefixtures('registry')
@pytest.mark.parametrize(
  ('name', 'kind'),
  [
    (name, kind)
    for name in ('Exact', 'summed-mixed', 'budget-unshared')
    for kind in (EvenNumbers, AlsoUnregistered)
  ],
)
def test_third_party_distribution_is_unbiased_once_registered(kind, name):
  # The partition is registered for the base class; the subclass is found by its
  # MRO.
  tfp_rb.RegisterPartition(EvenNumbers)(partition_of_even)
  cost = tf.constant([2.0, -1.0, 0.5], tf.float64)
  report = tfp_rb.testing.assert_unbiased(
    make(name, k=1),
    problem=lambda logits: (lambda z: tf.gather(cost, z // 2), kind(logits)),
    parameters=[tf.constant([[0.1, 1.0, -0.5], [2.0, 0.0, 0.3]], tf.float64)],
  )
  # The report uses draws as well, since the sampler is not one of the
  # library's.
  assert not report.is_exact


@pytest.mark.usefixtures('registry')
def test_nearest_registered_class_decides():
  class Fair(tfd.Categorical):
    pass

  class Fairer(Fair):
    pass

  @tfp_rb.RegisterPartition(Fair)
  def partition_fair(q, num_summed):
    fair = tfd.Categorical(logits=tf.zeros_like(q.logits))
    return tfp_rb.partition(fair, num_summed)

  p = tfp_rb.partition(Fairer(logits=[0.0, 5.0, 0.0, 0.0]), 1)
  np.testing.assert_allclose(p.weights, [0.25])


def test_registration_returns_the_function(registry):
  del registry
  decorated = tfp_rb.RegisterPartition(EvenNumbers)(partition_of_even)
  assert decorated is partition_of_even


# The variables that the gradient reaches.


@every_estimator
def test_gradient_reaches_parameters_and_variables_of_f(name):
  logits, slope = tf.Variable([0.0, 1.0, 2.0]), tf.Variable(2.0)
  with tf.GradientTape() as tape:
    value = tfp_rb.expectation(
      lambda z: slope * tf.cast(z, tf.float32) ** 2,
      tfd.Categorical(logits=logits),
      make(name, k=1),
      seed=SEED,
    )
  by_logits, by_slope = tape.gradient(value, [logits, slope])
  assert np.any(by_logits)
  np.testing.assert_allclose(slope * by_slope, value, rtol=1e-6)


@pytest.mark.parametrize('name', ['Exact', 'summed-mixed', 'budget-optimal'])
def test_gradient_by_a_shift_is_pathwise(name):
  shift, probs = tf.Variable([2.0, -1.0]), tf.constant([0.2, 0.6])
  with tf.GradientTape() as tape:
    q = tfb.Shift(shift)(tfd.Binomial(total_count=3.0, probs=probs))
    value = tfp_rb.expectation(lambda z: 3.0 * z, q, make(name, k=1), seed=SEED)
  # The result is the slope of `f`, which is the same everywhere, for all draws.
  np.testing.assert_allclose(tape.gradient(value, shift), [3, 3], rtol=1e-6)


def test_shift_moves_the_expectation_and_its_gradient():
  shift, log_rate = tf.Variable(0.7), tf.Variable(0.2)
  with tf.GradientTape() as tape:
    q = tfb.Shift(shift)(tfd.Poisson(log_rate=log_rate))
    value = tfp_rb.expectation(
      lambda z: z**2, q, make('summed-mixed', k=40), seed=SEED
    )
  rate = np.exp(0.2)
  np.testing.assert_allclose(value, rate + (rate + 0.7) ** 2, rtol=1e-5)
  by_shift, by_log_rate = tape.gradient(value, [shift, log_rate])
  np.testing.assert_allclose(by_shift, 2 * (rate + 0.7), rtol=1e-5)
  np.testing.assert_allclose(
    by_log_rate, rate * (1 + 2 * (rate + 0.7)), rtol=1e-4
  )


@pytest.mark.parametrize('form', ['REINFORCE', 'summed', 'budget'])
@pytest.mark.parametrize('scale', [1.0, -1.0, 7.0])
def test_learned_baseline_moves_downhill_whatever_the_loss(form, scale):
  estimator = make(f'{form}-learned', k=1)
  q = tfd.Categorical(logits=[0.0, 1.0, 2.0, 0.5])
  with tf.GradientTape() as tape:
    loss = scale * tfp_rb.expectation(
      lambda z: 3.0 + 0.0 * tf.cast(z, tf.float32), q, estimator, seed=SEED
    )
  (variable,) = estimator.trainable_variables
  # This is the derivative of (3 - level)^2 at the level 0.5.
  np.testing.assert_allclose(
    tape.gradient(loss, variable), -5.0 * abs(scale), rtol=1e-6
  )


def test_an_estimator_shows_its_settings():
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2), num_summed=3
  )
  assert repr(estimator) == (
    "RaoBlackwellized(estimator=REINFORCE(baseline=LeaveOneOut(form='mixed'), "
    'num_samples=2), num_summed=3, sampler=IID())'
  )


def test_the_recipe_for_a_partition_serves_every_estimator(monkeypatch):
  copy_registry(monkeypatch)
  text = tfp_rb.RegisterPartition.__doc__
  code = text.split('```python\n')[1].split('```')[0]
  names = {'tf': tf, 'tfp': tfp, 'tfp_rb': tfp_rb}
  exec(textwrap.dedent(code), names)
  q = names['Vote'](1.0, logits=[[0.0, 2.0, 1.0], [1.0, 0.0, 0.0]])
  f = lambda z: tf.reduce_sum(z * [1.0, 2.0, 4.0], axis=-1)
  exact = tfp_rb.expectation(f, q, tfp_rb.Exact())
  for arguments in ({'num_summed': 3}, {'budget': 5}):
    estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), **arguments)
    value = tfp_rb.expectation(f, q, estimator, seed=[1, 2])
    np.testing.assert_allclose(value, exact, rtol=1e-6)
  pooled = tfp_rb.pooled(budget_per_row=3.0)
  value = tfp_rb.expectation(lambda z, rows: f(z), q, pooled, seed=[1, 2])
  np.testing.assert_allclose(value, exact, rtol=1e-6)
