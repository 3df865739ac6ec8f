# SPDX-License-Identifier: Apache-2.0
"""Antithetic draws, DisARM and ARMS: exact sums over outcomes of the uniforms.

A draw is constant while its uniforms stay between two neighboring cumulative
probabilities. An antithetic pair is constant between neighboring points of the
set that holds these probabilities and one minus each of them, so the pair has
finitely many outcomes. The outcomes of different sites are independent.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import internals
import reference
import statistical
import tfp_rb
from tfp_rb import baselines, samplers
import variances
from variances import PROBLEMS

tfd = tfp.distributions

ATOL = 1e-10
SEED = tf.constant([3, 1])


def pieces_of_pair(probs):
  """Returns the middles of the pieces of (0, 1) where a pair is constant."""
  cuts = np.cumsum(probs)[:-1]
  ends = np.unique(np.concatenate([[0.0, 1.0], cuts, 1.0 - cuts]))
  lengths = np.diff(ends)
  # Two ends that should be equal may differ by rounding.
  keep = lengths > 1e-12
  return list(zip(((ends[1:] + ends[:-1]) / 2.0)[keep], lengths[keep]))


def pieces_of_one(probs):
  ends = np.concatenate([[0.0], np.cumsum(probs)[:-1], [1.0]])
  return list(zip((ends[1:] + ends[:-1]) / 2.0, np.diff(ends)))


def outcomes_of(laws, num_draws):
  """Returns uniforms `[num_pairs, T, sites]` and chances `[T]` of outcomes."""
  num_pairs = -(-num_draws // 2)
  pieces = []
  for pair in range(num_pairs):
    is_pair = pair + num_pairs < num_draws
    for law in laws:
      pieces.append(pieces_of_pair(law) if is_pair else pieces_of_one(law))
  outcomes = list(itertools.product(*pieces))
  middles = np.array([[m for m, _ in outcome] for outcome in outcomes])
  chances = np.array([np.prod([c for _, c in outcome]) for outcome in outcomes])
  middles = np.reshape(middles, [len(outcomes), num_pairs, len(laws)])
  return np.transpose(middles, [1, 0, 2]), chances


def enumerate_pairs(problem, parameter, estimator, laws):
  """Returns chances `[T]`, values `[T]`, gradients `[T, ...]` of outcomes."""
  num_draws = estimator.num_samples
  uniforms, chances = outcomes_of(laws, num_draws)
  num_pairs = len(uniforms)

  def from_uniforms(partition, u):
    # The sampler passes pairs like those that are enumerated.
    np.testing.assert_allclose(
      u[num_pairs:], 1.0 - u[: num_draws - num_pairs], rtol=0.0, atol=1e-15
    )
    assert len({float(x) for x in tf.reshape(u[:num_pairs], [-1])}) > 1
    # A table draws from its last uniform only.
    own = np.repeat(uniforms, u.shape[-1] // len(laws), axis=-1)
    opposite = 1.0 - own[: num_draws - num_pairs]
    return partition.rest_from_uniforms(tf.concat([own, opposite], axis=0))

  tiled = tf.tile(
    tf.constant(parameter)[tf.newaxis],
    [len(chances)] + [1] * np.ndim(parameter),
  )
  with tf.GradientTape() as tape:
    tape.watch(tiled)
    f, q = problem(tiled)
    values = internals.estimate_with_draws(
      f, q, estimator, from_uniforms=from_uniforms
    )
  return chances, values.numpy(), tape.gradient(values, tiled).numpy()


def mean_of(chances, x):
  return np.tensordot(chances, x, axes=1)


def assert_unbiased(problem, parameter, estimator, laws):
  chances, values, gradients = enumerate_pairs(
    problem, parameter, estimator, laws
  )
  value, (gradient,) = internals.exact_reference(
    problem, [tf.constant(parameter)]
  )
  np.testing.assert_allclose(np.sum(chances), 1.0, rtol=1e-12)
  np.testing.assert_allclose(mean_of(chances, values), value, atol=ATOL)
  np.testing.assert_allclose(
    mean_of(chances, gradients), gradient, rtol=0.0, atol=ATOL
  )


# The sampler.


def of_row(row):
  costs = variances.COSTS[row]
  return variances.make_problem(costs), variances.LOGITS[row]


@pytest.mark.parametrize('row', [1, 3])
@pytest.mark.parametrize(
  ('num_summed', 'num_draws', 'baseline'),
  [
    (0, 1, None),
    (0, 2, 2.5),
    (1, 2, 2.5),
    (0, 3, baselines.LeaveOneOut()),
    (1, 3, baselines.LeaveOneOut()),
    (0, 4, baselines.LeaveOneOut()),
    (2, 5, baselines.LeaveOneOut('rest')),
  ],
)
def test_antithetic_draws_are_unbiased(row, num_summed, num_draws, baseline):
  problem, logits = of_row(row)
  _, rest = PROBLEMS[row].most_probable(num_summed)
  law = np.where(np.isin(np.arange(4), rest), PROBLEMS[row].q, 0.0)
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=baseline, num_samples=num_draws),
    num_summed=num_summed,
    sampler=samplers.Antithetic(),
  )
  assert_unbiased(problem, logits, estimator, [law / np.sum(law)])


def test_both_draws_of_a_pair_follow_the_distribution():
  q = tfd.Categorical(logits=np.tile([0.3, 1.1, -0.5, 0.0], [50_000, 1]))
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(num_samples=2), 0, sampler=samplers.Antithetic()
  )
  values = estimator.sample_atoms(q, SEED).values.numpy()
  probs = reference.softmax(np.array([0.3, 1.1, -0.5, 0.0]))
  for draws in values:
    shares = np.bincount(draws, minlength=4) / draws.size
    # The radius is six standard errors.
    radius = 6.0 * np.sqrt(probs * (1.0 - probs) / draws.size)
    assert np.all(np.abs(shares - probs) < radius)
  # The two ends of the table never occur together.
  assert not np.any((values[0] == 0) & (values[1] == 0))


def test_leave_one_out_averages_over_the_other_pairs():
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(num_samples=5), 1, sampler=samplers.Antithetic()
  )
  q = tfd.Categorical(logits=np.zeros([3, 9]))
  atoms = estimator.sample_atoms(q, SEED)
  x = tf.random.stateless_normal([6, 3], [0, 1], dtype=tf.float64)
  found = atoms.mean_of_others(x)[1:]
  # The pairs are draws 0 and 3, and 1 and 4; draw 2 is alone.
  for own, pair in enumerate([(0, 3), (1, 4), (2,), (0, 3), (1, 4)]):
    others = [1 + i for i in range(5) if i not in pair]
    np.testing.assert_allclose(
      found[own], np.mean(x.numpy()[others], axis=0), rtol=1e-12
    )


@pytest.mark.parametrize('num_summed', [0, 1])
def test_one_pair_has_no_leave_one_out_baseline(num_summed):
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2),
    num_summed=num_summed,
    sampler=samplers.Antithetic(),
  )
  q = tfd.Categorical(logits=[0.0, 1.0, 2.0])
  with raises(ValueError, 'num_samples'):
    tfp_rb.expectation(lambda z: tf.cast(z, tf.float32), q, estimator)


def test_the_optimal_baseline_refuses_antithetic_draws():
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.Optimal(), num_samples=4),
    num_summed=0,
    sampler=samplers.Antithetic(),
  )
  q = tfd.Categorical(logits=[0.0, 1.0, 2.0])
  with raises(ValueError, 'sampler'):
    tfp_rb.expectation(lambda z: tf.cast(z, tf.float32), q, estimator)


# DisARM.

LOGITS = np.array([0.4, -0.8, 3.0])


def cost_of_bits(logits):
  """Returns an `f` that has its own gradient, with no two equal terms."""
  weights = tf.constant([2.0, -1.0, 0.5], tf.float64)
  penalty = 1.0 + 0.1 * tf.reduce_sum(logits**2, axis=-1)

  def f(z):
    z = tf.cast(z, tf.float64)
    level = tf.reduce_sum(weights * z, axis=-1)
    return penalty * (level + 0.5 * level**3) + level**2

  return f


def bits_by_logits(logits):
  law = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
  return cost_of_bits(logits), law


def bits_by_probs(probs):
  return cost_of_bits(probs), tfd.Independent(tfd.Bernoulli(probs=probs), 1)


def classes(logits):
  """Returns the same problem with one-hot vectors instead of bits."""
  pairs = tf.stack([tf.zeros_like(logits), logits], axis=-1)
  f = cost_of_bits(logits)
  law = tfd.Independent(tfd.OneHotCategorical(logits=pairs), 1)
  return lambda z: f(z[..., 1]), law


def law_of(probs):
  return np.array([1.0 - probs, probs])


PROBS = 1.0 / (1.0 + np.exp(-LOGITS))


@pytest.mark.parametrize(
  ('problem', 'parameter'),
  [(bits_by_logits, LOGITS), (bits_by_probs, PROBS), (classes, LOGITS)],
)
def test_disarm_is_unbiased(problem, parameter):
  laws = [law_of(p) for p in PROBS]
  assert_unbiased(problem, parameter, tfp_rb.DisARM(), laws)


def test_several_pairs_are_unbiased_and_independent():
  laws = [law_of(p) for p in PROBS[:2]]

  def problem(logits):
    f = cost_of_bits(logits)
    wide = lambda z: tf.concat([z, tf.zeros_like(z[..., :1])], axis=-1)
    law = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
    return lambda z: f(wide(z)), law

  found = {}
  for num_pairs in (1, 2):
    estimator = tfp_rb.DisARM(num_pairs)
    assert_unbiased(problem, LOGITS[:2], estimator, laws)
    chances, _, gradients = enumerate_pairs(
      problem, LOGITS[:2], estimator, laws
    )
    mean = mean_of(chances, gradients)
    found[num_pairs] = mean_of(chances, (gradients - mean) ** 2)
  np.testing.assert_allclose(found[2], found[1] / 2.0, rtol=1e-9)


def test_one_bit_and_repeated_bits_are_unbiased():
  f = lambda z: tf.cast(z, tf.float64) * 3.0 - 1.0
  assert_unbiased(
    lambda logits: (f, tfd.Bernoulli(logits=logits)),
    np.array(0.7),
    tfp_rb.DisARM(),
    [law_of(1.0 / (1.0 + np.exp(-0.7)))],
  )
  assert_unbiased(
    lambda logits: (
      lambda z: tf.reduce_sum(f(z), axis=-1) ** 2,
      tfd.Sample(tfd.Bernoulli(logits=logits), 3),
    ),
    np.array(-0.4),
    tfp_rb.DisARM(),
    [law_of(1.0 / (1.0 + np.exp(0.4)))] * 3,
  )


def test_disarm_is_the_estimator_of_its_paper():
  """Compares DisARM with equation (9) of its paper, site by site in NumPy."""
  f, q = bits_by_logits(tf.constant(LOGITS))
  estimator = tfp_rb.DisARM()
  for number in range(20):
    seed = tf.constant([5, number])
    logits = tf.constant(LOGITS)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      law = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
      value = tfp_rb.expectation(f, law, estimator, seed=seed)
    atom_seed, _ = internals.split_seed(seed, n=2)
    first, second = estimator.sample_atoms(q, atom_seed).values.numpy()
    f_first, f_second = f(np.stack([first, second])).numpy()
    factors = (
      (-1.0) ** second * (first != second) * np.maximum(PROBS, 1 - PROBS)
    )
    expected = 0.5 * (f_first - f_second) * factors
    np.testing.assert_allclose(tape.gradient(value, logits), expected)
    np.testing.assert_allclose(value, 0.5 * (f_first + f_second))


def test_a_pair_varies_less_than_two_leave_one_out_draws():
  laws = [law_of(p) for p in PROBS]
  chances, _, gradients = enumerate_pairs(
    bits_by_logits, LOGITS, tfp_rb.DisARM(), laws
  )
  mean = mean_of(chances, gradients)
  own = np.sum(mean_of(chances, (gradients - mean) ** 2))
  leave_one_out = tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2)
  other = tfp_rb.diagnostics.exact_moments(
    leave_one_out, bits_by_logits, [tf.constant(LOGITS)]
  )
  assert own < 0.8 * other.variance


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_certain_bits_have_finite_gradients_and_no_variance(dtype):
  logits = tf.constant([1e4, -1e4, 80.0, np.inf, -np.inf], dtype)
  for build in (
    lambda x: tfd.Bernoulli(logits=x),
    lambda x: tfd.Bernoulli(probs=tf.sigmoid(x)),
  ):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Independent(build(logits), 1)
      value = tfp_rb.expectation(
        lambda z: 1e3 * tf.reduce_sum(tf.cast(z, dtype), axis=-1),
        q,
        tfp_rb.DisARM(3),
        seed=SEED,
      )
    np.testing.assert_array_equal(value, 3e3)
    np.testing.assert_array_equal(tape.gradient(value, logits), np.zeros(5))


@pytest.mark.parametrize(
  'q',
  [
    tfd.Categorical(logits=[0.0, 1.0]),
    tfd.Poisson(rate=1.0),
    tfd.OneHotCategorical(logits=[0.0, 1.0, 2.0]),
    tfd.Multinomial(total_count=2.0, logits=[0.0, 1.0]),
  ],
)
def test_disarm_refuses_what_is_not_made_of_bits(q):
  with raises(TypeError, 'distribution'):
    tfp_rb.expectation(lambda z: tf.cast(z, tf.float32), q, tfp_rb.DisARM())


def test_the_number_of_draws_is_even():
  assert tfp_rb.DisARM(3).num_samples == 6
  assert tfp_rb.DisARM().replace(num_samples=4).num_pairs == 2
  for wrong in (3, 1):
    with raises(ValueError, 'num_samples'):
      tfp_rb.DisARM().replace(num_samples=wrong)
  with raises(ValueError, 'num_pairs'):
    tfp_rb.DisARM(0)


# ARMS.


def law_of_patterns(rarer, num_draws):
  """Returns probabilities of the `2^n` sets of draws with the rarer value.

  The result has shape `[2^n]`.

  All draws of a set of `k` have the rarer value with probability
  `max(1 - k t, 0)^(n - 1)`, where `t` is such that a single draw has it with
  probability `(1 - t)^(n - 1)`. The law follows by inclusion and exclusion. Bit
  `i` of an index says whether draw `i` is in the set.
  """
  t = 1.0 - rarer ** (1.0 / (num_draws - 1.0))
  sets = np.arange(2**num_draws)
  sizes = np.array([bin(s).count('1') for s in sets])
  of_all = np.maximum(1.0 - sizes * t, 0.0) ** (num_draws - 1)
  law = np.zeros(len(sets))
  for own in sets:
    for larger in sets[(sets & own) == own]:
      sign = (-1.0) ** (sizes[larger] - sizes[own])
      law[own] += sign * of_all[larger]
  return law


class Listed(tfp_rb.ARMS):
  """ARMS with given draws, `[n, T, sites]`."""

  def __init__(self, values):
    super().__init__(num_samples=len(values))
    self.values = values

  def choose_atoms(self, whole, seed):
    del seed
    values = tf.constant(self.values, tf.int32)
    log_prob = whole.log_prob(values)
    weights = tf.ones_like(log_prob) / len(self.values)
    return tfp_rb.Atoms(
      values, weights, log_prob, num_summed=0, partition=whole
    )


@pytest.mark.parametrize(
  ('problem', 'parameter'), [(bits_by_logits, LOGITS), (bits_by_probs, PROBS)]
)
@pytest.mark.parametrize('num_draws', [2, 3, 4])
def test_arms_is_unbiased(problem, parameter, num_draws):
  laws, draws = [], []
  for p in PROBS:
    law = law_of_patterns(min(p, 1.0 - p), num_draws)
    possible = np.flatnonzero(law > 1e-15)
    is_rarer = (possible[:, np.newaxis] >> np.arange(num_draws)) & 1
    laws.append(law[possible])
    draws.append(is_rarer if p < 0.5 else 1 - is_rarer)  # [sets, n]
  index = np.indices([len(law) for law in laws]).reshape([3, -1])
  chances = np.prod([law[i] for law, i in zip(laws, index)], axis=0)
  values = np.stack([d[i] for d, i in zip(draws, index)], axis=-1)
  values = np.transpose(values, [1, 0, 2])  # [n, T, sites]
  tiled = tf.constant(np.tile(parameter, [len(chances), 1]))
  with tf.GradientTape() as tape:
    tape.watch(tiled)
    f, q = problem(tiled)
    value = tfp_rb.expectation(f, q, Listed(values), seed=SEED)
  expected, (gradient,) = internals.exact_reference(
    problem, [tf.constant(parameter)]
  )
  np.testing.assert_allclose(np.sum(chances), 1.0, rtol=1e-12)
  np.testing.assert_allclose(mean_of(chances, value), expected, atol=ATOL)
  np.testing.assert_allclose(
    mean_of(chances, tape.gradient(value, tiled)), gradient, atol=ATOL, rtol=0.0
  )


@pytest.mark.parametrize('num_draws', [2, 3, 5])
@pytest.mark.parametrize('p', [0.2, 0.5, 0.6])
def test_draws_of_arms_follow_their_law(p, num_draws):
  q = tfd.Bernoulli(probs=np.full([50_000], p))
  values = tfp_rb.ARMS(num_draws).sample_atoms(q, SEED).values.numpy()
  # At a probability of 0.5, 0 counts as the rarer value.
  is_rarer = values if p < 0.5 else 1 - values
  sets = np.sum(is_rarer << np.arange(num_draws)[:, np.newaxis], axis=0)
  law = law_of_patterns(min(p, 1.0 - p), num_draws)
  law = np.where(law > 1e-15, law, 0.0)
  statistical.assert_follows(
    sets, np.arange(2**num_draws), law, num_tests=9, detectable=0.05
  )


def test_two_draws_of_arms_are_those_of_disarm():
  logits = tf.constant(LOGITS)
  values = np.array([[[1, 0, 1]], [[0, 0, 1]]])
  found = []
  for kind in (tfp_rb.ARMS(2), tfp_rb.DisARM()):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      f, q = bits_by_logits(logits[tf.newaxis])
      atoms = Listed(values).sample_atoms(q, SEED)
      estimate = kind.evaluate(f, q, atoms, SEED)
      _, surrogate, _ = kind.combine(estimate, atoms)
    found.append(tape.gradient(surrogate, logits))
  np.testing.assert_allclose(*found, rtol=1e-12)


@pytest.mark.parametrize('dtype', ['float32', 'float64'])
def test_certain_bits_of_arms_have_finite_gradients(dtype):
  logits = tf.constant([1e4, -1e4, 80.0, np.inf, -np.inf], dtype)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
    f = lambda z: tf.reduce_sum(tf.cast(z, dtype), axis=-1)
    value = tfp_rb.expectation(f, q, tfp_rb.ARMS(4), seed=SEED)
  np.testing.assert_array_equal(value, 3.0)
  np.testing.assert_array_equal(tape.gradient(value, logits), np.zeros(5))


def test_arms_refuses_a_single_draw_and_other_values():
  for make in (lambda: tfp_rb.ARMS(1), lambda: tfp_rb.ARMS().replace(1)):
    with raises(ValueError, 'num_samples'):
      make()
  q = tfd.Categorical(logits=[0.0, 1.0])
  with raises(TypeError, 'distribution'):
    tfp_rb.expectation(lambda z: tf.cast(z, tf.float32), q, tfp_rb.ARMS())
