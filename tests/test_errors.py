# SPDX-License-Identifier: Apache-2.0
"""Every error names the argument that is wrong."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import copy_registry
import tfp_rb
from tfp_rb import baselines

tfb = tfp.bijectors
tfd = tfp.distributions

Q = tfd.Categorical(logits=tf.zeros([2, 3]))


def cost(z):
  return tf.cast(z, tf.float32)


def reinforce(baseline=None, num_samples=1):
  return tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples)


def summed(k, baseline=None, num_samples=1):
  return tfp_rb.rao_blackwellize(reinforce(baseline, num_samples), num_summed=k)


# `seed`.


@pytest.mark.parametrize('value', [[1], [1, 2, 3], [[1, 2]]], ids=str)
def test_a_stateless_seed_must_be_a_pair(value):
  # TensorFlow accepts [1, 2, 3] and draws the same as for [1, 2].
  with raises(ValueError, 'seed'):
    tfp_rb.expectation(cost, Q, seed=value)


@pytest.mark.parametrize('value', [1.5, 'a', [1.0, 2.0]], ids=str)
def test_a_seed_must_be_made_of_integers(value):
  with raises(TypeError, 'seed'):
    tfp_rb.expectation(cost, Q, seed=value)


# `num_summed`, `budget`, `num_samples`.


@pytest.mark.parametrize('name', ['num_summed', 'budget'])
@pytest.mark.parametrize(
  'value', [1.5, '2', True, tf.constant(1), np.array([1, 2])], ids=str
)
def test_number_of_atoms_must_be_an_int(name, value):
  with raises(TypeError, name):
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), **{name: value})


@pytest.mark.parametrize('value', [1.5, None, tf.constant(1)], ids=str)
def test_number_of_values_of_a_partition_must_be_an_int(value):
  with raises(TypeError, 'num_summed'):
    tfp_rb.partition(Q, value)


@pytest.mark.parametrize(('name', 'value'), [('num_summed', -1), ('budget', 0)])
def test_number_of_atoms_must_be_large_enough(name, value):
  with raises(ValueError, name):
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), **{name: value})


def test_number_of_values_of_a_partition_must_not_be_negative():
  with raises(ValueError, 'num_summed'):
    tfp_rb.partition(Q, -2)


def test_numpy_integer_is_an_int():
  assert tfp_rb.partition(Q, np.int64(2)).values.shape == (2, 2)


@pytest.mark.parametrize(
  'use',
  [
    lambda: tfp_rb.partition(Q, 4),
    lambda: tfp_rb.expectation(cost, Q, summed(4)),
  ],
  ids=['partition', 'expectation'],
)
def test_num_summed_must_not_exceed_the_number_of_values(use):
  with raises(ValueError, 'num_summed'):
    use()


def test_num_summed_must_not_exceed_the_number_of_values_of_a_product():
  q = tfd.Sample(tfd.Bernoulli(logits=0.0), 3)
  with raises(ValueError, 'num_summed'):
    tfp_rb.partition(q, 9)


@pytest.mark.parametrize(
  'arguments',
  [{}, {'num_summed': 1, 'budget': 2}, {'num_summed': 1, 'atoms': len}],
  ids=['none', 'two', 'another_two'],
)
def test_one_of_num_summed_budget_and_atoms_must_be_given(arguments):
  with raises(ValueError, 'num_summed'):
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), **arguments)


@pytest.mark.parametrize(('value', 'kind'), [(0, ValueError), (1.0, TypeError)])
def test_num_samples_must_be_a_positive_int(value, kind):
  with raises(kind, 'num_samples'):
    tfp_rb.REINFORCE(num_samples=value)


# `estimator`.


@pytest.mark.parametrize(
  'estimator', [tfp_rb.REINFORCE, 'REINFORCE', None], ids=str
)
def test_only_an_estimator_is_rao_blackwellized(estimator):
  with raises(TypeError, 'estimator'):
    tfp_rb.rao_blackwellize(estimator, num_summed=1)


@pytest.mark.parametrize(
  'make', [lambda: summed(1), tfp_rb.Exact], ids=['RaoBlackwellized', 'Exact']
)
def test_what_sums_already_is_not_rao_blackwellized(make):
  with raises(TypeError, 'estimator'):
    tfp_rb.rao_blackwellize(make(), num_summed=1)


@pytest.mark.parametrize('estimator', [tfp_rb.REINFORCE, 'exact', 3], ids=str)
def test_expectation_needs_an_estimator(estimator):
  with raises(TypeError, 'estimator'):
    tfp_rb.expectation(cost, Q, estimator)


# `distribution`.


@pytest.mark.parametrize(
  'use',
  [
    lambda q: tfp_rb.partition(q, 1),
    lambda q: tfp_rb.expectation(lambda z: z, q),
    lambda q: tfp_rb.expectation(lambda z: z, q, tfp_rb.REINFORCE()),
  ],
  ids=['partition', 'default', 'reinforce'],
)
class TestDistribution:
  """Tests errors about `distribution` in every function that takes one."""

  @pytest.mark.parametrize(
    'q',
    [
      tfd.Normal(0.0, 1.0),
      tfd.MultivariateNormalDiag([0.0, 0.0]),
      tfd.Gamma(1.0, 1.0),
      tfd.RelaxedOneHotCategorical(1.0, logits=[0.0, 0.0]),
    ],
    ids=lambda q: type(q).__name__,
  )
  def test_must_be_discrete(self, use, q):
    with raises(TypeError, 'distribution'):
      use(q)

  @pytest.mark.parametrize('q', [[0.0, 1.0], None, tfd.Categorical], ids=str)
  def test_must_be_a_distribution(self, use, q):
    with raises(TypeError, 'distribution'):
      use(q)


def test_product_of_continuous_sites_is_not_discrete():
  q = tfd.Independent(tfd.Normal([0.0, 1.0], 1.0), 1)
  with raises(TypeError, 'distribution'):
    tfp_rb.partition(q, 1)


def test_a_joint_distribution_has_parts_to_choose_from():
  q = tfd.JointDistributionNamed({'z': Q})
  with raises(NotImplementedError, 'model'):
    tfp_rb.partition(q, 1)


def test_unregistered_distribution_is_told_how_to_register():
  q = tfd.Multinomial(total_count=2.0, logits=[0.0, 0.0])
  with raises(NotImplementedError, 'Multinomial'):
    tfp_rb.partition(q, 1)


def test_product_of_unregistered_sites_names_the_site():
  sites = tfd.Multinomial(total_count=2.0, logits=[[0.0, 0.0]] * 2)
  with raises(NotImplementedError, 'Multinomial'):
    tfp_rb.partition(tfd.Independent(sites, 1), 1)


def test_only_shifts_of_a_distribution_are_known():
  q = tfb.Scale(2.0)(tfd.Poisson(rate=1.0))
  with raises(NotImplementedError, 'bijector'):
    tfp_rb.partition(q, 1)


@pytest.mark.parametrize(
  'q',
  [
    tfd.Poisson(rate=1.0),
    tfd.Sample(tfd.Geometric(logits=0.0), 2),
    tfd.Sample(tfd.Bernoulli(logits=0.0), 30),
  ],
  ids=['Poisson', 'Sample-Geometric', 'Sample-Bernoulli'],
)
def test_exact_needs_a_distribution_of_few_values(q):
  f = lambda z: tf.zeros(z.shape[:1])
  with raises(ValueError, 'distribution'):
    tfp_rb.expectation(f, q, tfp_rb.Exact())


def test_number_of_values_must_be_static():
  @tf.function(input_signature=[tf.TensorSpec([None])])
  def partition(logits):
    return tfp_rb.partition(tfd.Categorical(logits=logits), 1).values

  with raises(ValueError, 'distribution'):
    partition(tf.zeros([3]))


# `f`.


@pytest.mark.parametrize('f', [None, tf.zeros([3]), 'cost'], ids=str)
def test_f_must_be_callable(f):
  with raises(TypeError, 'f'):
    tfp_rb.expectation(f, Q)


def test_f_must_return_floats():
  with raises(TypeError, 'f'):
    tfp_rb.expectation(lambda z: z, Q)


@pytest.mark.parametrize(
  'f',
  [
    lambda z: tf.reduce_sum(cost(z), axis=0),
    lambda z: tf.reduce_sum(cost(z)),
    lambda z: tf.zeros([3, 2, 5]),
    lambda z: tf.zeros([1, 2]),
  ],
  ids=['no_atoms', 'scalar', 'event', 'broadcast'],
)
def test_f_must_return_the_shape_of_the_atoms(f):
  with raises(ValueError, 'f'):
    tfp_rb.expectation(f, Q)


# `baseline`.


@pytest.mark.parametrize(
  'baseline',
  ['zero', baselines.LeaveOneOut, lambda z: z, [1.0]],
  ids=['string', 'class', 'function', 'list'],
)
def test_baseline_must_be_a_baseline_or_a_number(baseline):
  with raises(TypeError, 'baseline'):
    tfp_rb.REINFORCE(baseline=baseline)


@pytest.mark.parametrize('shape', [[3], [2, 2], [1, 2]], ids=str)
def test_constant_baseline_must_have_the_batch_shape(shape):
  with raises(ValueError, 'baseline'):
    tfp_rb.expectation(cost, Q, reinforce(tf.zeros(shape), num_samples=3))


@pytest.mark.parametrize('name', ['LeaveOneOut', 'Optimal'])
@pytest.mark.parametrize('form', ['plain', 'summed', 'budget'])
def test_leave_one_out_needs_a_second_evaluation(name, form):
  single = reinforce(getattr(baselines, name)())
  estimator = {
    'plain': single,
    'summed': tfp_rb.rao_blackwellize(single, num_summed=0),
    'budget': tfp_rb.rao_blackwellize(single, budget=1),
  }[form]
  with raises(ValueError, name):
    tfp_rb.expectation(cost, Q, estimator)


def test_form_of_leave_one_out_must_be_known():
  with raises(ValueError, 'form'):
    baselines.LeaveOneOut(form='some')


@pytest.fixture
def scoreless(monkeypatch):
  """Registers a class whose partition lacks `score_norm`."""
  copy_registry(monkeypatch)

  class Scoreless(tfd.Categorical):
    pass

  @tfp_rb.RegisterPartition(Scoreless)
  def partition_scoreless(q, num_summed):
    plain = tfd.Categorical(logits=q.logits)
    return tfp_rb.partition(plain, num_summed)._replace(score_norm=None)

  return Scoreless


def test_optimal_baseline_needs_scores(scoreless):
  estimator = reinforce(baselines.Optimal(), num_samples=2)
  with raises(NotImplementedError, 'score_norm'):
    tfp_rb.expectation(cost, scoreless(logits=tf.zeros([2, 3])), estimator)


# `RegisterPartition`.


@pytest.mark.parametrize('kind', [Q, 'Categorical', None], ids=str)
def test_only_a_class_is_registered(kind):
  with raises(TypeError, 'distribution_class'):
    tfp_rb.RegisterPartition(kind)


def test_only_a_class_of_distributions_is_registered():
  with raises(TypeError, 'distribution_class'):
    tfp_rb.RegisterPartition(int)


def test_a_class_is_registered_once():
  with raises(ValueError, 'Categorical'):
    tfp_rb.RegisterPartition(tfd.Categorical)


def test_a_function_is_registered():
  with raises(TypeError, 'function'):
    tfp_rb.RegisterPartition(tfd.Multinomial)(3)


@pytest.fixture
def careless(monkeypatch):
  """Registers a class whose function has no return value."""
  copy_registry(monkeypatch)

  class Careless(tfd.Categorical):
    pass

  tfp_rb.RegisterPartition(Careless)(lambda q, num_summed: None)
  return Careless


def test_registered_function_must_return_a_partition(careless):
  with raises(TypeError, 'Partition'):
    tfp_rb.partition(careless(logits=[0.0, 0.0]), 1)


# Configurations.


def test_class_of_a_config_must_be_known():
  config = {'baseline': {'class_name': 'Unheard', 'config': {}}}
  with raises(ValueError, 'class_name'):
    tfp_rb.REINFORCE.from_config(config)


def test_what_is_no_plain_data_cannot_be_configured():
  estimator = reinforce(baselines.Constant(level=object()))
  with raises(TypeError, 'level'):
    estimator.get_config()


# Values are checked only under `validate_args`, as in TFP.


def test_parameter_gone_bad_is_reported_by_validate_args():
  rate = tf.Variable(1.0)
  q = tfd.Poisson(rate=rate, validate_args=True)
  # TFP checks a variable whenever it is used, so here not only at construction.
  rate.assign(-1.0)
  with raises(tf.errors.InvalidArgumentError, 'rate'):
    tfp_rb.expectation(lambda z: z, q)


# Estimators that a user defines.


class Broken(tfp_rb.GradientEstimator):
  def __init__(self, answer):
    super().__init__()
    self.answer = answer

  def evaluate(self, f, distribution, atoms, seed):
    return self.answer(f(atoms.values))


@pytest.mark.parametrize(
  ('answer', 'kind', 'argument'),
  [
    (lambda x: (x, x), TypeError, 'evaluate'),
    (
      lambda x: tfp_rb.Estimate(x, x[..., tf.newaxis]),
      ValueError,
      'surrogate',
    ),
    (
      lambda x: tfp_rb.Estimate(x[0], x),
      ValueError,
      'value',
    ),
  ],
  ids=['pair', 'surrogate', 'value'],
)
def test_estimate_must_be_one_of_the_right_shape(answer, kind, argument):
  with raises(kind, argument):
    tfp_rb.expectation(
      lambda z: tf.cast(z, tf.float32),
      tfd.Categorical(logits=[0.0, 1.0]),
      Broken(answer),
    )


def test_f_must_return_something():
  with raises(TypeError, 'f'):
    tfp_rb.expectation(lambda z: None, tfd.Poisson(2.0), tfp_rb.REINFORCE())
