# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities at chosen values, divergences and entropies.

Expected values are explicit sums over the tables of `reference.py`.
"""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import assert_reaches_the_user, raises
import internals
from modes import largest_array, modes_of
import reference
import tfp_rb
from zoo import FAMILIES, chain_of

tfd = tfp.distributions

ATOL = 1e-10


def other_parameters(family):
  """Returns another law over the same values, with another first parameter."""
  first, *others = family.parameters
  return [0.6 * first + 0.2, *others]


def explicit(family, parameters, others, scale, scale_of_other):
  """Returns the batch sum of `E_q[scale log q + scale_of_other log p]`."""
  total = 0.0
  tables = zip(family.tables(*parameters), family.tables(*others), strict=True)
  for table, table_of_other in tables:
    for (_, q), (_, p) in zip(table, table_of_other, strict=True):
      if q != 0.0:
        total += q * (scale * np.log(q) + scale_of_other * np.log(p))
  return total


QUANTITIES = {
  'kl_divergence': (tfp_rb.kl_divergence, 1.0, -1.0),
  'cross_entropy': (tfp_rb.cross_entropy, 0.0, -1.0),
}


@pytest.mark.parametrize('quantity', QUANTITIES)
@pytest.mark.parametrize('name', FAMILIES)
def test_value_and_gradients_are_those_of_the_explicit_sum(name, quantity):
  function, *scales = QUANTITIES[quantity]
  family = FAMILIES[name]
  others = other_parameters(family)
  arrays = [*family.parameters, *others]
  num = len(family.parameters)
  variables = [tf.constant(x) for x in arrays]
  with tf.GradientTape() as tape:
    tape.watch(variables)
    q = family.distribution(*variables[:num])
    p = family.distribution(*variables[num:])
    total = tf.reduce_sum(function(q, p))
  gradients = tape.gradient(total, variables, unconnected_gradients='zero')
  expected = lambda *x: explicit(family, x[:num], x[num:], *scales)
  np.testing.assert_allclose(total, expected(*arrays), rtol=0, atol=ATOL)
  slopes = reference.complex_step_gradient(expected, arrays)
  for i in (0, num):  # a shift moves the values, and has no derivative here
    np.testing.assert_allclose(gradients[i], slopes[i], rtol=0, atol=ATOL)


@pytest.mark.parametrize('name', FAMILIES)
def test_entropy_is_that_of_the_explicit_sum(name):
  family = FAMILIES[name]
  variables = [tf.constant(x) for x in family.parameters]
  with tf.GradientTape() as tape:
    tape.watch(variables)
    total = tf.reduce_sum(tfp_rb.entropy(family.distribution(*variables)))
  gradient = tape.gradient(total, variables[0])
  expected = lambda *x: explicit(family, x, x, -1.0, 0.0)
  (slope, *_) = reference.complex_step_gradient(expected, family.parameters)
  np.testing.assert_allclose(
    total, expected(*family.parameters), rtol=0, atol=ATOL
  )
  np.testing.assert_allclose(gradient, slope, rtol=0, atol=ATOL)


@pytest.mark.parametrize('name', FAMILIES)
def test_log_prob_at_looks_up_the_table(name):
  family = FAMILIES[name]
  q = family.distribution(*map(tf.constant, family.parameters))
  tables = family.tables(*family.parameters)
  for i in (0, -1):
    values = [table[i][0] for table in tables]
    shape = [1, *q.batch_shape, *q.event_shape]
    values = tf.cast(np.reshape(values, shape), q.dtype)
    found = tf.reshape(tfp_rb.log_prob_at(q, values), [-1])
    expected = np.log([table[i][1] for table in tables])
    np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL)


def chains():
  x = tf.constant(np.linspace(-1.0, 1.3, 20), tf.float64)
  return chain_of(x[:10]), chain_of(x[10:])


def test_chains_are_compared_by_their_factors():
  q, p = chains()
  whole = tfp_rb.partition(q, 8)
  log_q, log_p = q.log_prob(whole.values), p.log_prob(whole.values)
  weights = tf.exp(log_q)
  expected = {
    'kl': tf.reduce_sum(weights * (log_q - log_p)),
    'cross': -tf.reduce_sum(weights * log_p),
    'entropy': -tf.reduce_sum(weights * log_q),
  }
  found = {
    'kl': tfp_rb.kl_divergence(q, p),
    'cross': tfp_rb.cross_entropy(q, p),
    'entropy': tfp_rb.entropy(q),
  }
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=0, atol=ATOL)


def test_the_batch_of_either_is_broadcast():
  logits = tf.constant([[0.3, 1.0, -0.5], [2.0, 0.0, 0.1]], tf.float64)
  many = tfd.Categorical(logits=logits)
  one = tfd.Categorical(logits=logits[1])
  for function in (tfp_rb.kl_divergence, tfp_rb.cross_entropy):
    for estimator in (None, tfp_rb.Exact()):
      for q, p in ((many, one), (one, many)):
        found = function(q, p, estimator)
        assert found.shape == [2]
        for i in range(2):
          row = [d[i] if d is many else d for d in (q, p)]
          np.testing.assert_allclose(found[i], function(*row), atol=ATOL)


def test_modes_agree_for_a_batch_of_unknown_size():
  def both(x, y):
    q, p = tfd.Categorical(logits=x), tfd.Categorical(logits=y)
    estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=2)
    return (
      tfp_rb.kl_divergence(q, p),
      tfp_rb.kl_divergence(q, p, estimator, seed=[0, 1]),
      tfp_rb.log_prob_at(q, tf.zeros([4, tf.shape(x)[0]], tf.int32)),
    )

  x, y = np.random.default_rng(0).normal(size=[2, 3, 5])
  eager = both(tf.constant(x), tf.constant(y))
  for run in modes_of(both, tf.constant(x), tf.constant(y)).values():
    for found, expected in zip(run(tf.constant(x), tf.constant(y)), eager):
      np.testing.assert_allclose(found, expected, rtol=0, atol=ATOL)
  unknown = tf.function(
    both, input_signature=[tf.TensorSpec([None, 5], tf.float64)] * 2
  )
  for size in (3, 0):
    found = unknown(x[:size], y[:size])
    for part, expected in zip(found, eager):
      np.testing.assert_allclose(part, expected[..., :size], atol=ATOL)


def test_the_divergence_from_itself_has_no_variance():
  logits = tf.Variable([1.0, 0.0, -2.0, 0.5])
  q, p = tfd.Categorical(logits=logits), tfd.Categorical(logits=logits.numpy())
  estimator = tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=3)
  for seed in range(5):
    with tf.GradientTape() as tape:
      loss = tfp_rb.kl_divergence(q, p, estimator, seed=[0, seed])
    np.testing.assert_allclose(loss, 0.0, atol=1e-6)
    np.testing.assert_allclose(tape.gradient(loss, logits), 0.0, atol=1e-6)


class Recording(tfp_rb.REINFORCE):
  """Records the integrand that it is asked to estimate."""

  def evaluate(self, f, distribution, atoms, seed):
    self.integrand_of_last_call = f
    return super().evaluate(f, distribution, atoms, seed)


@pytest.mark.parametrize('quantity', QUANTITIES)
def test_an_estimate_is_unbiased(quantity):
  function, *_ = QUANTITIES[quantity]
  logits = np.array([[0.3, 1.0, -0.5, 0.2]])
  other = lambda logits: tfd.Categorical(logits=tf.sin(3.0 * logits))

  def problem(logits):
    q, recording = tfd.Categorical(logits=logits), Recording()
    function(q, other(logits), recording, seed=[0, 0])
    return recording.integrand_of_last_call, q

  def exact(logits):
    return function(tfd.Categorical(logits=logits), other(logits))

  value, slope = tfp.math.value_and_gradient(exact, tf.constant(logits))
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(num_samples=2), num_summed=1
  )
  outcomes = internals.enumerate_outcomes(estimator, problem, [logits], 100)
  mean = np.sum(outcomes.probabilities * outcomes.values, axis=0)
  np.testing.assert_allclose(mean, value, rtol=0, atol=ATOL)
  np.testing.assert_allclose(
    np.sum(outcomes.weighted_gradients[0], axis=0), slope, rtol=0, atol=ATOL
  )


def test_a_callable_is_asked_at_chosen_values_only():
  asked = []

  def log_p(z):
    asked.append(z.shape)
    return tf.gather(tf.math.log([0.5, 0.3, 0.2]), z)

  q = tfd.Categorical(logits=[0.0, 1.0, 2.0])
  p = tfd.Categorical(probs=[0.5, 0.3, 0.2])
  np.testing.assert_allclose(
    tfp_rb.kl_divergence(q, log_p), tfp_rb.kl_divergence(q, p), rtol=1e-6
  )
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  tfp_rb.cross_entropy(q, log_p, estimator, seed=[0, 0])
  assert asked == [[3], [2]]


def test_a_callable_may_take_rows():
  rng = np.random.default_rng(3)
  q, p = (tfd.Categorical(logits=rng.normal(size=[2, 3])) for _ in range(2))
  log_p = tf.nn.log_softmax(p.logits)
  by_rows = lambda z, rows: tf.gather_nd(log_p, tf.stack([rows, z], axis=-1))
  np.testing.assert_allclose(
    tfp_rb.kl_divergence(q, by_rows),
    tfp_rb.kl_divergence(q, p),
    rtol=1e-12,
  )


def test_impossible_values_count_as_zero():
  logits = tf.Variable([0.0, -np.inf, 1.0], dtype=tf.float64)
  with tf.GradientTape(persistent=True) as tape:
    q = tfd.Categorical(logits=logits)
    p = tfd.Categorical(logits=tf.constant([1.0, -np.inf, 0.0], tf.float64))
    divergence, entropy = tfp_rb.kl_divergence(q, p), tfp_rb.entropy(q)
  a, b = reference.softmax(np.array([0.0, 1.0]))
  np.testing.assert_allclose(divergence, a * (-1) + b * 1, atol=ATOL)
  np.testing.assert_allclose(entropy, -a * np.log(a) - b * np.log(b), atol=ATOL)
  for value in (divergence, entropy):
    assert np.all(np.isfinite(tape.gradient(value, logits)))
  positive = tfd.Categorical(logits=tf.zeros([3], tf.float64))
  assert tfp_rb.kl_divergence(positive, q) == np.inf


@pytest.mark.parametrize('is_exact', [True, False])
def test_memory_does_not_grow_with_the_number_of_values(is_exact):
  rows, size, num_values = 4, 1000, 50

  @tf.function(jit_compile=True)
  def loss_and_gradient(x, y, seed):
    with tf.GradientTape() as tape:
      tape.watch((x, y))
      q, p = tfd.Categorical(logits=x), tfd.Categorical(logits=y)
      estimator = None
      if not is_exact:
        estimator = tfp_rb.REINFORCE(num_samples=num_values)
      loss = tfp_rb.kl_divergence(q, p, estimator, seed)
    return tape.gradient(loss, (x, y))

  args = tf.zeros([rows, size]), tf.zeros([rows, size]), tf.constant([0, 0])
  assert rows * size <= largest_array(loss_and_gradient, *args)
  # The limit is two copies; TFP makes `num_values` copies.
  assert largest_array(loss_and_gradient, *args) <= 2 * rows * size


def test_half_precision_has_the_digits_of_float32():
  probs = tf.constant([0.9, 0.05, 0.05])
  q = tfd.Categorical(probs=tf.cast(probs, tf.bfloat16))
  p = tfd.Categorical(logits=tf.zeros([3], tf.bfloat16))
  rounded = np.array(tf.cast(tf.cast(probs, tf.bfloat16), tf.float64))
  rounded /= rounded.sum()
  expected = np.log(3.0) + np.sum(rounded * np.log(rounded))
  np.testing.assert_allclose(tfp_rb.kl_divergence(q, p), expected, atol=1e-5)


def test_errors_name_the_argument():
  q = tfd.Categorical(logits=[0.0, 1.0])
  with raises(TypeError, 'p'):
    tfp_rb.kl_divergence(q, 3.0)
  with raises(TypeError, 'p'):
    tfp_rb.kl_divergence(q, lambda z: z)
  with raises(ValueError, 'p'):
    tfp_rb.kl_divergence(q, lambda z: tf.zeros([7]))
  with raises(ValueError, 'p'):  # Its 4 sites would be read as 2 times 2.
    tfp_rb.kl_divergence(tfd.Sample(q, 4), tfd.Sample(q, [2, 2]))
  with raises(ValueError, 'estimator'):
    tfp_rb.kl_divergence(q, q, tfp_rb.MuProp())
  with raises(ValueError, 'estimator'):
    tfp_rb.kl_divergence(q, q, tfp_rb.pooled(budget=2))
  with raises(ValueError, 'values'):
    tfp_rb.log_prob_at(q, 1)
  with raises(TypeError, 'distribution'):
    tfp_rb.log_prob_at(tfd.Normal(0.0, 1.0), [0.5])


def test_an_error_of_the_user_arrives_unchanged():
  def log_p(z):
    raise NotImplementedError('mine')

  q = tfd.Categorical(logits=[0.0, 1.0])
  assert_reaches_the_user(lambda f: tfp_rb.cross_entropy(q, f), log_p)


@pytest.mark.parametrize(
  ('q', 'p'),
  [
    (
      tfd.FiniteDiscrete([0.0, 1.0, 2.0], probs=[0.3, 0.3, 0.4]),
      tfd.FiniteDiscrete([0.0, 1.0, 5.0], probs=[0.3, 0.3, 0.4]),
    ),
    (tfd.Categorical(probs=[0.2] * 5), tfd.Categorical(probs=[0.3, 0.3, 0.4])),
    (tfd.Categorical(probs=[0.2] * 5), tfd.Binomial(3, probs=0.5)),
    (
      tfd.FiniteDiscrete([0.0, 0.5], probs=[0.3, 0.7]),
      tfd.Poisson(2.0),
    ),
    (
      tfd.Sample(tfd.Categorical(probs=[0.2] * 5), 2),
      tfd.Independent(tfd.Categorical(probs=[[0.5, 0.5]] * 2), 1),
    ),
  ],
  ids=lambda d: d.name,
)
def test_a_value_that_the_other_cannot_take_makes_it_infinite(q, p):
  q = q.copy(dtype=tf.float32) if q.dtype != p.dtype else q
  for run in modes_of(lambda: tfp_rb.kl_divergence(q, p)).values():
    assert run() == np.inf


def test_an_impossible_value_has_no_probability():
  for q, possible, impossible in (
    (tfd.Categorical(probs=[0.5, 0.5]), 1, [2, -1]),
    (tfd.FiniteDiscrete([0.0, 1.0], probs=[0.5, 0.5]), 1.0, [0.4, 7.0]),
    (tfd.Poisson(2.0), 3.0, [-1.0, 0.5]),
    (tfd.Binomial(4.0, probs=0.5), 4.0, [5.0, -2.0]),
  ):
    assert np.all(tfp_rb.log_prob_at(q, impossible) == -np.inf)
    np.testing.assert_allclose(
      tfp_rb.log_prob_at(q, [possible])[0], q.log_prob(possible), rtol=1e-6
    )
