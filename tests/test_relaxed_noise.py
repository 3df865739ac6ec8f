# SPDX-License-Identifier: Apache-2.0
"""Gumbel noise given the atom: its law, and the gradients that it gives."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import internals
import reference
from relaxed import LOGITS, NUM_DRAWS, PRODUCTS, assert_uniform
import tfp_rb
import zoo

tfd = tfp.distributions


def gumbel_cells(x, num_cells):
  """Returns cells of equal probability under the standard Gumbel law."""
  return np.floor(num_cells * np.exp(-np.exp(-x))).astype(int)


def assert_independent_standard_gumbels(x):
  """Checks that each column, and each pair of columns, follows the law."""
  for i in range(x.shape[-1]):
    assert_uniform(gumbel_cells(x[..., i], 10), 10)
    for j in range(i):
      pair = 5 * gumbel_cells(x[..., i], 5) + gumbel_cells(x[..., j], 5)
      assert_uniform(pair, 25)


def noise_of(num_summed):
  """Returns atoms, log-probabilities given the rest, and perturbed values."""
  q = tfd.OneHotCategorical(logits=tf.constant(LOGITS))
  relaxation = internals.relaxation_of(q)
  estimator = tfp_rb.REINFORCE(num_samples=NUM_DRAWS)
  if num_summed:
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
  atoms = estimator.sample_atoms(q, tf.constant([1, 2]))
  one_hot = relaxation.to_one_hot(atoms.values)
  log_probs = relaxation.log_probs[tf.newaxis]
  if num_summed:
    log_probs, _, is_from_rest = internals.given_rest(
      relaxation.log_probs, atoms, one_hot
    )
    assert np.all(is_from_rest[num_summed:])
    assert not np.any(is_from_rest[:num_summed])
    log_probs, one_hot = log_probs[num_summed:], one_hot[num_summed:]
  noise = internals.draw_noise(log_probs, one_hot, tf.constant([3, 4]))
  return np.array(one_hot), np.array(log_probs[0]), np.array(noise.perturbed)


def test_noise_given_the_atom_is_gumbel_noise_whose_argmax_is_the_atom():
  one_hot, log_probs, perturbed = noise_of(num_summed=0)
  np.testing.assert_array_equal(perturbed.argmax(-1), one_hot.argmax(-1))
  np.testing.assert_allclose(np.exp(log_probs).sum(), 1.0, rtol=1e-12)
  assert_independent_standard_gumbels(perturbed - log_probs)


@pytest.mark.parametrize('num_summed', [1, 2])
def test_noise_given_the_rest_is_gumbel_noise_of_the_rest(num_summed):
  one_hot, log_probs, perturbed = noise_of(num_summed)
  rest = np.argsort(-LOGITS)[num_summed:]
  np.testing.assert_array_equal(perturbed.argmax(-1), one_hot.argmax(-1))
  summed = np.argsort(-LOGITS)[:num_summed]
  assert np.all(perturbed[:, summed] == -np.inf)
  np.testing.assert_allclose(
    np.exp(log_probs[rest]), reference.softmax(LOGITS[rest]), rtol=1e-12
  )
  assert_independent_standard_gumbels(perturbed[:, rest] - log_probs[rest])


@pytest.mark.parametrize('num_summed', [0, 1])
def test_largest_perturbed_value_does_not_depend_on_the_atom(num_summed):
  one_hot, _, perturbed = noise_of(num_summed)
  atom = one_hot.argmax(-1)
  for z in np.argsort(-LOGITS)[num_summed:]:
    assert_uniform(gumbel_cells(perturbed[atom == z].max(-1), 10), 10)


def test_noise_of_a_bernoulli_is_logistic():
  logit = 0.7
  q = tfd.Bernoulli(logits=np.float64(logit))
  relaxation = internals.relaxation_of(q)
  z = q.sample(NUM_DRAWS, seed=(5, 6))
  noise = internals.draw_noise(
    relaxation.log_probs[tf.newaxis],
    relaxation.to_one_hot(z),
    tf.constant([7, 8]),
  )
  difference = np.array(noise.perturbed[:, 1] - noise.perturbed[:, 0])
  np.testing.assert_array_equal(difference > 0.0, z)
  quantile = reference.sigmoid(difference - logit)
  assert_uniform(np.floor(20 * quantile).astype(int), 20)


# These numbers are exact in float32.
NOISE_TEMPERATURE, NOISE_SCALE = 0.75, 0.875


def wavy(x):
  """Evaluates a function that is far from linear and not symmetric.

  The function mixes sites and classes.
  """
  axes = list(range(x.shape.rank - wavy.event_rank, x.shape.rank))
  shape = x.shape[x.shape.rank - wavy.event_rank :]
  a = tf.reshape(tf.linspace(-1.0, 2.0, shape.num_elements()), shape)
  a = tf.cast(a, x.dtype)
  level = tf.reduce_sum(a * x, axis=axes)
  return tf.sin(2.0 * level) + level**2 + tf.reduce_sum(a * x**3, axis=axes)


def of_rank(function, event_rank):
  def ranked(x):
    function.event_rank = event_rank
    return function(x)

  return ranked


def tape_oracle(build, parameter, estimator, f, c, is_restricted, seed):
  """Returns the gradient of REBAR or RELAX by a tape that follows both paths.

  The perturbed values are functions of the log-probabilities: the free values
  are `log q + G` with `G` fixed, and the values given the atom keep the
  uniforms fixed. Given the rest, RELAX also subtracts `c` minus its mean from
  the part that the mass of the rest multiplies.
  """
  atom_seed, noise_seed = internals.split_seed(seed, n=2)
  noise_seed, reference_seed = internals.split_seed(noise_seed, n=2)
  tau, scale = NOISE_TEMPERATURE, NOISE_SCALE
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(parameter)
    q = build(parameter)
    relaxation = internals.relaxation_of(q)
    atoms = estimator.sample_atoms(q, atom_seed)
    hard = relaxation.to_one_hot(atoms.values)
    k = atoms.num_summed if is_restricted else 0
    L = relaxation.log_probs
    score = tf.reduce_sum(hard * L, axis=relaxation.site_axes)
    drawn = hard[k:]
    if k:
      is_summed = tf.reduce_sum(hard[:k], axis=0) > 0.0
      # A large negative number prevents an infinity from being multiplied by
      # zero.
      L = tf.where(is_summed, tf.constant(-200.0, L.dtype), L)
      log_rest = tf.reduce_logsumexp(L, axis=-1)
      L = tf.nn.log_softmax(L)
    uniform = internals.uniform(tf.shape(drawn), noise_seed, tf.float64)
    gumbel = -tf.math.log(-tf.math.log(uniform))
    top = tf.reduce_sum(drawn * gumbel, axis=-1, keepdims=True)
    below = -tf.math.log(tf.exp(-(L + gumbel)) + tf.exp(-top))
    given_atom = tf.where(drawn > 0.5, top, below)
    free = L + tf.stop_gradient(given_atom - L)
    path_u, path_v = (
      c(relaxation.to_event(tf.nn.softmax(x / tau))) for x in (free, given_atom)
    )
    score_of_c = tf.reduce_sum(drawn * L, axis=relaxation.site_axes)
    weights = atoms.weights
    plain = weights * tf.stop_gradient(f(relaxation.to_event(hard))) * score
    zero_mean = weights[k:] * (
      path_u - path_v - tf.stop_gradient(path_u) * score_of_c
    )
    num_references = estimator.estimator.num_references
    if k and num_references:
      shape = [num_references, *L.shape]
      uniform = internals.uniform(shape, reference_seed, tf.float64)
      references = L - tf.math.log(-tf.math.log(uniform))
      level = c(relaxation.to_event(tf.nn.softmax(references / tau)))
      level = tf.reduce_mean(level, axis=0)
      zero_mean += weights[k:] * tf.stop_gradient(level - path_u) * log_rest
    total = tf.reduce_sum(plain) + scale * tf.reduce_sum(zero_mean)
  return tape.gradient(total, parameter)


@pytest.mark.parametrize('name', ['REBAR', 'RELAX'])
@pytest.mark.parametrize('kind', zoo.RELAXABLE)
@pytest.mark.parametrize(
  ('num_summed', 'restricted'), [(0, None), (1, None), (1, False)]
)
def test_gradient_is_that_of_both_paths(kind, name, num_summed, restricted):
  row = zoo.DISTRIBUTIONS[kind]
  build = lambda parameter: row.build(parameter, None)
  parameter = row.parameter(tf.float64, (2,))
  wave = of_rank(wavy, build(parameter).event_shape.rank)
  f = lambda z: 2.0 * wave(z) + wave(z**2)
  c = f if name == 'REBAR' else (lambda z: wave(1.5 * z))
  settings = dict(restricted=restricted, num_samples=2)
  if name == 'REBAR':
    estimator = tfp_rb.REBAR(NOISE_TEMPERATURE, scale=NOISE_SCALE, **settings)
  else:
    estimator = tfp_rb.RELAX(
      c, temperature=NOISE_TEMPERATURE, scale=NOISE_SCALE, **settings
    )
  estimator = tfp_rb.rao_blackwellize(estimator, num_summed=num_summed)
  seed = tf.constant([11, 12])
  with tf.GradientTape() as tape:
    tape.watch(parameter)
    loss = tfp_rb.expectation(f, build(parameter), estimator, seed=seed)
  is_restricted = restricted is None and kind not in PRODUCTS
  expected = tape_oracle(
    build, parameter, estimator, f, c, is_restricted and num_summed > 0, seed
  )
  actual = tape.gradient(loss, parameter)
  np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10)
