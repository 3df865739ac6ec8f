# SPDX-License-Identifier: Apache-2.0
"""Fits surrogate posteriors, close to the best one, in every set-up."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp
import tf_keras

from errors import raises
import tfp_rb

tfb = tfp.bijectors
tfd = tfp.distributions

SEED = (0, 1)
REPARAMETERIZATION = tfp.vi.GradientEstimators.REPARAMETERIZATION
RNG = np.random.default_rng(11)


def fit(target, q, num_steps, learning_rate=0.1, **kwargs):
  kwargs.setdefault('optimizer', keras.optimizers.Adam(learning_rate))
  kwargs.setdefault('seed', SEED)
  return tfp_rb.vi.fit_surrogate_posterior(
    target, q, num_steps=num_steps, **kwargs
  )


def divergence(log_q, log_p):
  """Returns `KL(q | p)`, where `p` need not be normalized."""
  log_q, log_p = (tf.cast(x, tf.float64) for x in (log_q, log_p))
  log_p -= tf.reduce_logsumexp(log_p)
  return tf.reduce_sum(tf.exp(log_q) * (log_q - log_p)).numpy()


# The divergence after the fit, compared with that of the best surrogate.


def test_categorical_becomes_the_target():
  log_p = tf.constant(RNG.normal(size=[6]), tf.float32)
  q = tfd.Categorical(logits=tf.Variable(tf.zeros([6])))
  losses = fit(lambda z: tf.gather(log_p, z), q, 300)
  assert losses.shape == [300]
  assert divergence(tf.nn.log_softmax(q.logits), log_p) < 1e-4


def test_product_of_bernoullis_is_as_good_as_coordinate_ascent():
  # The three bits attract each other; enumeration finds the best product.
  bits = np.array(np.meshgrid(*[[0, 1]] * 3, indexing='ij')).reshape([3, -1]).T
  pull = np.array([[0.0, 0.8, -0.5], [0.0, 0.0, 0.6], [0.0, 0.0, 0.0]])
  field = np.array([0.4, -0.7, 0.2])
  log_p = np.einsum('ni,ij,nj->n', bits, pull, bits) + bits @ field
  log_p = tf.constant(log_p, tf.float32)

  def log_product(logits):
    return -np.sum(np.log1p(np.exp(np.where(bits, -logits, logits))), axis=1)

  best = np.zeros(3)
  for _ in range(100):
    for i in range(3):
      others = np.delete(1.0 / (1.0 + np.exp(-best)), i)
      weights = np.delete(pull[i] + pull[:, i], i)
      best[i] = field[i] + weights @ others
  q = tfd.Independent(tfd.Bernoulli(logits=tf.Variable(tf.zeros([3]))), 1)
  index = lambda z: tf.linalg.matvec(z, tf.constant([4, 2, 1]))
  fit(lambda z: tf.gather(log_p, index(z)), q, 600, 0.01)
  fitted = divergence(log_product(q.distribution.logits.numpy()), log_p)
  assert fitted < divergence(log_product(best), log_p) + 2e-3


def test_shifted_negative_binomial_becomes_the_target():
  shift, best = 4.0, tfd.NegativeBinomial(3.0, logits=0.4)
  count = tfd.NegativeBinomial(
    tfp.util.TransformedVariable(1.0, tfb.Softplus()), logits=tf.Variable(0.0)
  )
  q = tfd.TransformedDistribution(count, tfb.Shift(shift))
  fit(
    lambda n: best.log_prob(n - shift),
    q,
    400,
    gradient_estimator=tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=2),
      num_summed=8,
    ),
  )
  counts = tf.range(200.0)
  assert divergence(count.log_prob(counts), best.log_prob(counts)) < 2e-3


def test_two_dependent_parts_become_the_target():
  log_p = tf.constant(RNG.normal(size=[3, 4]), tf.float32)
  first, second = tf.Variable(tf.zeros([3])), tf.Variable(tf.zeros([3, 4]))
  q = tfd.JointDistributionSequential([
    tfd.Categorical(logits=first),
    lambda x: tfd.Categorical(logits=tf.gather(second, x)),
  ])  # fmt: skip
  target = lambda x, y: tf.gather_nd(log_p, tf.stack([x, y], axis=-1))
  fit(
    target,
    q,
    300,
    gradient_estimator=tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=2),
      num_summed=3,
    ),
  )
  log_q = tf.nn.log_softmax(first)[:, tf.newaxis] + tf.nn.log_softmax(second)
  assert divergence(log_q, log_p) < 1e-3


# Cases that TFP's own fit cannot handle.


def test_reparameterization_has_no_gradient_on_discrete_parts():
  # With 100,000 draws, the standard error is .0015; the gradient is about .3.
  log_p = tf.math.log([0.1, 0.2, 0.7])
  logits = tf.Variable(tf.zeros([3]))
  gradients = []
  for module, kwargs in (
    (tfp.vi, {'gradient_estimator': REPARAMETERIZATION}),
    (tfp_rb.vi, {}),
  ):
    with tf.GradientTape() as tape, warnings.catch_warnings():
      warnings.simplefilter('ignore')  # TFP does warn that it may be biased
      loss = module.monte_carlo_variational_loss(
        lambda z: tf.gather(log_p, z),
        tfd.Categorical(logits=logits),
        sample_size=100_000,
        seed=SEED,
        **kwargs,
      )
    gradients.append(tape.gradient(loss, logits))
  np.testing.assert_allclose(gradients[0], np.zeros(3), atol=0.01)
  np.testing.assert_allclose(gradients[1], [0.2932, 0.0622, -0.3554], atol=0.01)


# Optimizers, compilation, tracing.


class PlainDescent:
  """An optimizer needs nothing except `apply_gradients`."""

  def apply_gradients(self, grads_and_vars):
    updates = [v.assign_sub(0.5 * g) for g, v in grads_and_vars]
    return tf.group(*updates)


@pytest.mark.parametrize(
  ('make_optimizer', 'jit_compile'),
  [
    (lambda: keras.optimizers.Adam(0.1), True),
    (lambda: keras.optimizers.SGD(0.5), None),
    (lambda: tf_keras.optimizers.Adam(0.1), False),
    pytest.param(
      lambda: tf_keras.optimizers.SGD(0.5), True, marks=pytest.mark.slow
    ),
    (PlainDescent, False),
  ],
  ids=['keras_jit', 'keras', 'tf_keras', 'tf_keras_jit', 'own'],
)
def test_optimizers(make_optimizer, jit_compile):
  log_p = tf.math.log([0.1, 0.2, 0.7])
  q = tfd.Categorical(logits=tf.Variable(tf.zeros([3])))
  fit(
    lambda z: tf.gather(log_p, z),
    q,
    100,
    optimizer=make_optimizer(),
    jit_compile=jit_compile,
  )
  np.testing.assert_allclose(q.probs_parameter(), [0.1, 0.2, 0.7], atol=0.01)


def test_a_second_fit_goes_on_with_the_same_optimizer():
  log_p = tf.math.log([0.1, 0.2, 0.7])
  q = tfd.Categorical(logits=tf.Variable(tf.zeros([3])))
  optimizer = keras.optimizers.Adam(0.1)
  for _ in range(2):
    fit(lambda z: tf.gather(log_p, z), q, 50, optimizer=optimizer)
  assert optimizer.iterations.numpy() == 100


def test_trace_fn_and_convergence_criterion():
  log_p = tf.math.log([0.1, 0.2, 0.7])
  q = tfd.Categorical(logits=tf.Variable(tf.zeros([3])))
  trace = fit(
    lambda z: tf.gather(log_p, z),
    q,
    2000,
    trace_fn=lambda t: {'loss': t.loss, 'is_done': t.has_converged},
    convergence_criterion=tfp.optimizer.convergence_criteria.LossNotDecreasing(
      atol=1e-3
    ),
  )
  assert trace['loss'].shape == trace['is_done'].shape == [2000]
  # The fit stopped early, so the last value is repeated.
  assert len(np.unique(trace['loss'])) < 1500


def test_variables_of_target_and_estimator_are_trained_as_well():
  scale = tf.Variable(1.0)
  level = tfp_rb.baselines.Learned(0.0)
  q = tfd.Categorical(logits=tf.Variable(tf.zeros([3])))

  def target(z):
    return -(scale**2) * tf.cast(z, tf.float32) - 4.0

  fit(target, q, 20, gradient_estimator=tfp_rb.REINFORCE(baseline=level))
  assert scale.numpy() != 1.0
  assert level.trainable_variables[0].numpy() != 0.0


def test_only_given_variables_are_trained():
  scale = tf.Variable(1.0)
  q = tfd.Categorical(logits=tf.Variable(tf.zeros([3])))
  fit(
    lambda z: -(scale**2) * tf.cast(z, tf.float32),
    q,
    5,
    trainable_variables=q.trainable_variables,
  )
  assert scale.numpy() == 1.0
  assert np.any(q.logits.numpy() != 0.0)


# Many sites.


@pytest.mark.slow
def test_fifty_sites_under_xla():
  # The sites attract their neighbors, in a random field.
  field = tf.constant(RNG.normal(size=[50, 4]), tf.float32)
  sizes = []

  def target(z):
    sizes.append(z.shape[0])
    own = tf.reduce_sum(tf.one_hot(z, 4) * field, axis=[-2, -1])
    same = tf.cast(z[:, 1:] == z[:, :-1], tf.float32)
    return own + 0.5 * tf.reduce_sum(same, axis=-1)

  logits = tf.Variable(tf.zeros([50, 4]))
  q = tfd.Independent(tfd.Categorical(logits=logits), 1)
  losses = fit(target, q, 500, 0.03, jit_compile=True)
  assert set(sizes) == {50 * (4 - 1) + 1}  # the number is linear in the sites
  # The reference is coordinate ascent from the same start.
  probs = np.full([50, 4], 0.25)
  for _ in range(50):
    for i in range(50):
      near = sum(probs[j] for j in (i - 1, i + 1) if 0 <= j < 50)
      weight = np.exp(field[i].numpy() + 0.5 * near)
      probs[i] = weight / np.sum(weight)

  def loss_of(p):
    neighbours = 0.5 * np.sum(p[1:] * p[:-1])
    return np.sum(p * np.log(p)) - np.sum(p * field.numpy()) - neighbours

  fitted = tf.nn.softmax(logits).numpy().astype(np.float64)
  assert loss_of(fitted) < loss_of(probs) + 0.2  # the loss is about 80
  assert losses[-1] < losses[0]


# Errors.


def test_there_must_be_something_to_train():
  with raises(ValueError, 'surrogate_posterior'):
    fit(lambda z: tf.zeros(z.shape), tfd.Categorical(logits=[0.0, 1.0]), 3)


@pytest.mark.parametrize(
  'optimizer', ['adam', None, keras.optimizers.Adam], ids=str
)
def test_optimizer_must_be_one(optimizer):
  q = tfd.Categorical(logits=tf.Variable([0.0, 1.0]))
  with raises(TypeError, 'optimizer'):
    fit(lambda z: tf.zeros(z.shape), q, 3, optimizer=optimizer)


def test_number_of_steps_must_be_an_int():
  q = tfd.Categorical(logits=tf.Variable([0.0, 1.0]))
  with raises(TypeError, 'num_steps'):
    fit(lambda z: tf.zeros(z.shape), q, 2.5)
