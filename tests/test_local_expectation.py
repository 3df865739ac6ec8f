"""Site by site: `local_expectation`."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from test_errors import raises
import tfp_rb
from tfp_rb import baselines

tfd = tfp.distributions

LOGITS = np.array([[[0.3, -0.2, 0.5], [1.0, 0.0, 0.2]]])
SEED = (3, 1)


def interacting(logits):
  """A cost of two sites that do not act apart, and of the logits as well."""
  scale = 1.0 + 0.1 * tf.reduce_sum(logits**2, axis=[-2, -1])
  weights = tf.constant([1.0, -2.0], logits.dtype)

  def f(z):
    z = tf.cast(z, logits.dtype)
    return scale * tf.reduce_sum(weights * tf.sin(1.3 * z), axis=-1) ** 2

  return f, tfd.Independent(tfd.Categorical(logits=logits), 1)


def one_hot_sites(logits):
  cost = tf.constant([[1.0, 0.2, -0.5], [0.4, -1.0, 0.8]], logits.dtype)

  def f(z):
    return tf.reduce_sum(tf.cast(z, logits.dtype) * cost, axis=[-2, -1]) ** 2

  return f, tfd.Independent(tfd.OneHotCategorical(logits=logits), 1)


def repeated_sites(logits):
  def f(z):
    return tf.reduce_sum(tf.cast(z, logits.dtype), axis=[-2, -1]) ** 2

  return f, tfd.Sample(tfd.Bernoulli(logits=logits), [2, 2])


# Each test finds a bias of 3 % of the gradient with probability 0.99, and fails
# by chance with probability 1e-6.


@pytest.mark.parametrize(
  ('estimator', 'k'),
  [
    (tfp_rb.REINFORCE(), 0),
    (tfp_rb.REINFORCE(), 1),
    (tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2), 1),
    (tfp_rb.REINFORCE(baselines.IndependentSample()), 2),
    (tfp_rb.REINFORCE(baselines.LeaveOneOut()), 3),
  ],
  ids=str,
)
def test_site_by_site_is_unbiased(estimator, k):
  tfp_rb.testing.assert_unbiased(
    tfp_rb.local_expectation(estimator, num_summed=k),
    interacting,
    [tf.constant(LOGITS)],
    detectable_bias=0.03,
  )


@pytest.mark.parametrize(
  'estimator', [tfp_rb.REBAR(0.5), tfp_rb.MuProp()], ids=['REBAR', 'MuProp']
)
def test_estimators_that_differentiate_f_are_unbiased(estimator):
  tfp_rb.testing.assert_unbiased(
    tfp_rb.local_expectation(estimator, num_summed=1),
    one_hot_sites,
    [tf.constant(LOGITS)],
    detectable_bias=0.03,
  )


def test_sites_of_a_sample_share_their_parameters():
  tfp_rb.testing.assert_unbiased(
    tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=1),
    repeated_sites,
    [tf.constant([0.4, -1.0], tf.float64)],
    detectable_bias=0.03,
  )


@pytest.mark.parametrize('batch_shape', [(), (3, 2)], ids=str)
def test_a_sum_over_sites_has_no_variance_when_all_symbols_are_summed(
  batch_shape,
):
  logits = np.broadcast_to(LOGITS[0], [*batch_shape, 2, 3])
  cost = np.array([[1.0, 3.0, -2.0], [0.5, 0.0, 2.0]])
  logits = tf.constant(logits)

  def f(z):
    sites = tf.one_hot(z, 3, dtype=tf.float64) * cost
    return tf.reduce_sum(sites, axis=[-2, -1])

  gradients = []
  for estimator in (
    tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=3),
    tfp_rb.Exact(),
  ):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Independent(tfd.Categorical(logits=logits), 1)
      value = tfp_rb.expectation(f, q, estimator, seed=SEED)
    assert value.shape == batch_shape
    gradients.append(tape.gradient(value, logits))
  np.testing.assert_allclose(*gradients, atol=1e-12)


@pytest.mark.parametrize('k', [0, 1, 3])
def test_f_is_called_once_for_all_sites(k):
  f, q = interacting(tf.constant(LOGITS))
  sizes = []

  def counted(z):
    sizes.append(z.shape[0])
    return f(z)

  estimator = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(num_samples=2), num_summed=k
  )
  tfp_rb.expectation(counted, q, estimator, seed=SEED)
  assert sizes == [2 * (k + (2 if k < 3 else 0))]


def test_atoms_differ_from_one_joint_value_in_one_site_at_most():
  _, q = interacting(tf.constant(np.zeros([4, 5, 3])))
  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=1)
  atoms = estimator.sample_atoms(q, tf.constant(SEED))
  values = np.reshape(atoms.values, [2, 5, 4, 5])
  for site in range(5):
    others = np.delete(np.arange(5), site)
    held = values[:, others][..., site]
    assert np.all(held == held[:1, :1])
  np.testing.assert_allclose(np.sum(atoms.weights, axis=0), np.ones(4))


def test_variables_of_f_see_the_mean_over_the_sites():
  scale = tf.Variable(2.0, dtype=tf.float64)
  f, q = interacting(tf.constant(LOGITS))
  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=1)
  with tf.GradientTape() as tape:
    value = tfp_rb.expectation(lambda z: scale * f(z), q, estimator, seed=SEED)
  np.testing.assert_allclose([scale * tape.gradient(value, scale)], value)


def test_eager_and_xla_agree():
  estimator = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2), num_summed=1
  )

  def run(seed):
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      f, q = interacting(logits)
      value = tfp_rb.expectation(f, q, estimator, seed=seed)
    return value, tape.gradient(value, logits)

  seed = tf.constant([5, 3])
  compiled = tf.function(run, jit_compile=True)
  for actual, expected in zip(compiled(seed), run(seed)):
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_estimator_comes_back_from_its_config():
  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(2.0), num_summed=1)
  copy = type(estimator).from_config(estimator.get_config())
  assert repr(copy) == repr(estimator)


def test_only_products_have_sites():
  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=1)
  with raises(TypeError, '`local_expectation` needs a product', 'Categorical'):
    tfp_rb.expectation(
      lambda z: tf.cast(z, tf.float32),
      tfd.Categorical(logits=[0.0, 1.0]),
      estimator,
    )


def test_what_sums_already_is_refused():
  summed = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  with raises(TypeError, '`estimator`', 'sums atoms already'):
    tfp_rb.local_expectation(summed, num_summed=1)
