# SPDX-License-Identifier: Apache-2.0
"""`local_expectation`, which works site by site."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import (
  enumerate_outcomes,
  exact_reference,
  split_joint,
  split_seed,
)
from modes import largest_array, modes_of
import tfp_rb
from tfp_rb import baselines

tfd = tfp.distributions

LOGITS = np.array([[[0.3, -0.2, 0.5], [1.0, 0.0, 0.2]]])
SEED = (3, 1)


def interacting(logits):
  """Returns a cost of two interacting sites that also depends on the logits."""
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


def grid_of_sites(logits):
  """Returns four sites in two dimensions; each has its own logit."""
  weights = tf.constant([[1.0, -2.0], [0.5, 1.5]], logits.dtype)

  def f(z):
    z = tf.cast(z, logits.dtype)
    return tf.reduce_sum(weights * z, axis=[-2, -1]) ** 2

  return f, tfd.Independent(tfd.Bernoulli(logits=logits), 2)


SITES = tf.constant(np.concatenate([LOGITS, 2.0 * LOGITS[:, ::-1]]))
PROBLEMS = {
  'interacting': (interacting, SITES),
  'one_hot': (one_hot_sites, SITES),
  'repeated': (repeated_sites, tf.constant([0.4, -1.0], tf.float64)),
  'grid': (grid_of_sites, tf.constant([[0.4, -1.0], [2.0, 0.1]], tf.float64)),
}


def assert_mean_is_explicit_sum(estimator, name):
  """Compares the mean over all outcomes; returns the number of outcomes.

  The outcomes are all joint values with all draws at each site.
  """
  problem, parameter = PROBLEMS[name]
  outcomes = enumerate_outcomes(
    estimator, problem, [parameter], most_outcomes=7000
  )
  value, gradients = exact_reference(problem, [parameter])
  chances = outcomes.probabilities
  for actual, desired in (
    (np.sum(chances, axis=0), np.ones_like(value)),
    (np.sum(chances * outcomes.values, axis=0), value),
    (np.sum(outcomes.weighted_gradients[0], axis=0), gradients[0]),
  ):
    np.testing.assert_allclose(actual, desired, rtol=0.0, atol=1e-10)
  return len(chances)


@pytest.mark.parametrize('k', [0, 1, 3])
@pytest.mark.parametrize(
  'estimator',
  [
    tfp_rb.REINFORCE(),
    tfp_rb.REINFORCE(baseline=2.5),
    tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2),
    tfp_rb.REINFORCE(baselines.IndependentSample()),
  ],
  ids=str,
)
def test_site_by_site_is_unbiased(estimator, k):
  num_outcomes = assert_mean_is_explicit_sum(
    tfp_rb.local_expectation(estimator, num_summed=k), 'interacting'
  )
  # There are 9 joint values. For each draw, each of the 2 sites draws one of 3
  # symbols.
  num_draws = estimator.num_samples if k < 3 else 0
  num_draws += estimator.baseline.num_extra(k + num_draws)
  assert num_outcomes == 9 * 9**num_draws


@pytest.mark.parametrize(
  ('estimator', 'name', 'k'),
  [
    *((tfp_rb.REINFORCE(), 'repeated', k) for k in (0, 1, 2)),
    *((tfp_rb.REINFORCE(), 'grid', k) for k in (0, 1, 2)),
    *((tfp_rb.MuProp(), 'one_hot', k) for k in (0, 1, 3)),
    (tfp_rb.MuProp(), 'repeated', 1),
  ],
  ids=str,
)
def test_kinds_of_sites_are_unbiased(estimator, name, k):
  assert_mean_is_explicit_sum(
    tfp_rb.local_expectation(estimator, num_summed=k), name
  )


@pytest.mark.parametrize('name', ['interacting', 'grid'])
def test_sites_in_chunks_are_unbiased(name):
  assert_mean_is_explicit_sum(
    tfp_rb.local_expectation(
      tfp_rb.REINFORCE(), num_summed=1, sites_per_call=1
    ),
    name,
  )


def mixed_sites(labels, bits):
  """Returns a label of 3 symbols and 2 bits, in separate groups."""
  q = tfd.JointDistributionSequential(
    [
      tfd.Categorical(logits=labels),
      tfd.Independent(tfd.Bernoulli(logits=bits), 1),
    ]
  )
  found = split_joint(q, tf.constant(SEED))

  def f(values):
    (label, bits), _ = found.complete(values, tf.constant(SEED))
    label, bits = tf.cast(label, tf.float64), tf.cast(bits, tf.float64)
    return tf.sin(1.0 + label + 2.0 * bits[..., 0]) * (bits[..., 1] - 0.3)

  return f, found.discrete


@pytest.mark.parametrize('k', [1, 2, 3])
def test_groups_with_different_numbers_of_symbols_are_unbiased(k):
  labels = tf.constant([[0.3, -0.2, 0.5]], tf.float64)
  bits = tf.constant([[1.0, -0.4]], tf.float64)
  outcomes = enumerate_outcomes(
    tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=k),
    mixed_sites,
    [labels, bits],
    most_outcomes=7000,
  )
  value, gradients = exact_reference(mixed_sites, [labels, bits])
  chances = outcomes.probabilities
  np.testing.assert_allclose(np.sum(chances * outcomes.values), value)
  for actual, desired in zip(outcomes.weighted_gradients, gradients):
    np.testing.assert_allclose(np.sum(actual, axis=0), desired, atol=1e-10)


def one_hot_sample(logits):
  cost = tf.constant([[1.0, 0.2, -0.5], [0.4, -1.0, 0.8]], logits.dtype)

  def f(z):
    return tf.reduce_sum(tf.cast(z, logits.dtype) * cost, axis=[-2, -1]) ** 2

  return f, tfd.Sample(tfd.OneHotCategorical(logits=logits), 2)


@pytest.mark.slow
def test_an_estimator_with_noise_of_its_own_is_unbiased():
  # The test finds a bias of 3 % of the gradient with probability 0.99, and
  # fails by chance with probability 1e-6.
  report = tfp_rb.testing.assert_unbiased(
    tfp_rb.local_expectation(tfp_rb.REBAR(0.5), num_summed=1),
    one_hot_sample,
    [tf.constant(LOGITS[0, :1])],
    detectable_bias=0.03,
  )
  assert not report.is_exact


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


def shifted_sites(logits, shift):
  q = tfd.Bernoulli(logits=logits, dtype=tf.float64)
  q = tfd.Independent(tfp.bijectors.Shift(shift)(q), 1)
  return lambda z: tf.reduce_prod(z + 0.3, axis=-1) ** 2, q


@pytest.mark.parametrize('k', [0, 1, 2])
@pytest.mark.parametrize(
  'estimator', [tfp_rb.REINFORCE(num_samples=2), tfp_rb.MuProp()], ids=str
)
def test_a_shift_of_the_sites_is_differentiated_once(estimator, k):
  parameters = [
    tf.constant([[0.3, -0.5, 1.0]], tf.float64),
    tf.constant([[0.1, 0.2, 0.5]], tf.float64),
  ]
  outcomes = enumerate_outcomes(
    tfp_rb.local_expectation(estimator, num_summed=k),
    shifted_sites,
    parameters,
    most_outcomes=7000,
  )
  _, gradients = exact_reference(shifted_sites, parameters)
  for actual, desired in zip(outcomes.weighted_gradients, gradients):
    np.testing.assert_allclose(np.sum(actual, axis=0), desired, atol=1e-10)


@pytest.mark.parametrize('k', [1, 2, 4])
def test_impossible_symbols_stay_unbiased_and_unseen(k):
  logits = np.array([[[0.3, -np.inf, 0.5, 1.0], [-np.inf, 0.1, 0.4, -np.inf]]])
  seen = []

  def problem(logits):
    q = tfd.Independent(tfd.Categorical(logits=logits), 1)

    def f(z):
      seen.append(q.log_prob(z))
      z = tf.cast(z, tf.float64)
      return tf.sin(1.3 * z[..., 0] + 0.4) * (z[..., 1] - 0.7) ** 2

    return f, q

  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=k)
  logits = tf.constant(logits)
  outcomes = enumerate_outcomes(
    estimator, problem, [logits], most_outcomes=7000
  )
  # An enumeration also lists impossible draws, which have probability 0.
  value, gradients = exact_reference(problem, [logits])
  chances = outcomes.probabilities
  np.testing.assert_allclose(np.sum(chances * outcomes.values), value)
  np.testing.assert_allclose(
    np.sum(outcomes.weighted_gradients[0], axis=0), gradients[0], atol=1e-10
  )
  seen.clear()
  for seed in range(10):
    tfp_rb.expectation(*problem(logits), estimator, seed=[0, seed])
  assert np.all(np.isfinite(seen))


def test_slope_of_a_site_is_whole():
  # Any part of the slope would be unbiased; the whole slope leaves MuProp no
  # variance.
  logits = tf.constant(SITES)
  cost = tf.constant([[1.0, 0.2, -0.5], [0.4, -1.0, 0.8]], tf.float64)
  gradients = []
  for estimator in (
    tfp_rb.local_expectation(tfp_rb.MuProp(), num_summed=0),
    tfp_rb.Exact(),
  ):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Independent(
        tfd.OneHotCategorical(logits=logits, dtype=tf.float64), 1
      )
      value = tfp_rb.expectation(
        lambda z: tf.reduce_sum(z * cost, axis=[-2, -1]),
        q,
        estimator,
        seed=SEED,
      )
    gradients.append(tape.gradient(value, logits))
  np.testing.assert_allclose(*gradients, atol=1e-12)


def sizes_of_calls(estimator, distribution, dtype=tf.float64):
  """Returns the numbers of points at which `f` is evaluated, one per call."""
  sizes = []

  def f(z):
    sizes.append(z.shape[0])
    return tf.reduce_sum(tf.cast(z, dtype), axis=-1)

  value = tfp_rb.expectation(f, distribution, estimator, seed=SEED)
  assert value.shape == distribution.batch_shape
  return sizes


@pytest.mark.parametrize('M', [1, 2])
@pytest.mark.parametrize('k', [0, 1, 3])
def test_f_is_called_once_and_shares_the_joint_value(k, M):
  _, q = interacting(tf.constant(np.zeros([4, 5, 3])))
  estimator = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(num_samples=M), num_summed=k
  )
  num_at_site = k + M if k < 3 else 3
  assert sizes_of_calls(estimator, q) == [5 * (num_at_site - 1) + 1]


def test_200_bits_take_201_evaluations():
  q = tfd.Independent(tfd.Bernoulli(logits=tf.zeros([2, 200])), 1)
  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=2)
  assert sizes_of_calls(estimator, q) == [201]


def test_draws_of_a_baseline_are_evaluated_at_each_site():
  _, q = interacting(tf.constant(np.zeros([4, 5, 3])))
  estimator = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(baselines.IndependentSample()), num_summed=1
  )
  assert sizes_of_calls(estimator, q) == [5 * 2 + 1]


def test_who_may_evaluate_f_elsewhere_does_not_share_the_joint_value():
  class Halved(tfp_rb.REINFORCE):
    def evaluate(self, f, distribution, atoms, seed):
      value = 0.5 * (f(atoms.values) + f(atoms.values[::-1])[::-1])
      score = tf.stop_gradient(value) * atoms.log_prob
      return tfp_rb.Estimate(value, surrogate=value + score)

  _, q = interacting(tf.constant(np.zeros([4, 5, 3])))
  estimator = tfp_rb.local_expectation(Halved(), num_summed=1)
  assert sizes_of_calls(estimator, q) == [5 * 2] * 2
  assert_mean_is_explicit_sum(estimator, 'interacting')


@pytest.mark.parametrize('k', [0, 1, 2, 3])
def test_atoms_differ_from_one_joint_value_in_one_site_at_most(k):
  _, q = interacting(tf.constant(np.zeros([4, 5, 3])))
  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=k)
  atoms = estimator.sample_atoms(q, tf.constant(SEED))
  joint, others = atoms.values[:1], atoms.values[1:]
  num_others = min(k, 2)
  differs = np.reshape(others != joint, [num_others, 5, 4, 5])
  expected = np.eye(5, dtype=bool)[:, np.newaxis]
  np.testing.assert_array_equal(
    differs, np.broadcast_to(expected, differs.shape)
  )
  np.testing.assert_allclose(np.sum(atoms.weights, axis=0), np.ones(4))
  if k == 3:  # The summed atoms are both other symbols of each site.
    symbols = np.reshape(others, [2, 5, 4, 5])[:, range(5), :, range(5)]
    assert np.all(symbols[:, 0] != symbols[:, 1])


def test_weights_are_those_of_the_value():
  logits = tf.constant(np.random.default_rng(0).normal(size=[4, 5, 3]))
  f, q = interacting(logits[..., :2, :])
  for k in (0, 1, 3):
    estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=k)
    atom_seed, _ = split_seed(SEED, 2)
    atoms = estimator.sample_atoms(q, atom_seed)
    np.testing.assert_allclose(
      tf.reduce_sum(atoms.weights * f(atoms.values), axis=0),
      tfp_rb.expectation(f, q, estimator, seed=SEED),
    )


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
    # At a logit of 0, the terms of the gradient would cancel up to rounding.
    logits = tf.constant(LOGITS + 0.1)
    with tf.GradientTape() as tape:
      tape.watch(logits)
      f, q = interacting(logits)
      value = tfp_rb.expectation(f, q, estimator, seed=seed)
    return value, tape.gradient(value, logits)

  seed = tf.constant([5, 3])
  compiled = tf.function(run, jit_compile=True, autograph=False)
  for actual, expected in zip(compiled(seed), run(seed)):
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


# Sites in chunks.


def derivatives(sites_per_call, estimator=None, second=False):
  """Returns value and gradients.

  The gradients are w.r.t. the logits, a variable that `f` uses, and a scale.
  """
  parts = [
    tf.constant(np.linspace(-1.0, 2.0, 30).reshape([2, 5, 3])),
    tf.Variable(np.linspace(0.5, 1.5, 5)),
    tf.constant(1.3, tf.float64),
  ]
  estimator = tfp_rb.local_expectation(
    estimator or tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2),
    num_summed=1,
    sites_per_call=sites_per_call,
  )

  def run(seed):
    logits, variable, scale = parts
    with tf.GradientTape(persistent=second) as outer:
      outer.watch([logits, scale])
      with tf.GradientTape() as tape:
        tape.watch([logits, scale])
        # `f` captures two Tensors, a small one and a large one.
        rows = scale * tf.reduce_sum(logits**2, axis=[-2, -1])
        large = tf.sin(scale * tf.ones([5, 200], tf.float64))

        def f(z):
          features = tf.reduce_sum(
            z * tf.constant([0.3, 1.1, -0.7], z.dtype), -1
          )
          features = tf.tensordot(variable * features, large, 1)
          return rows * tf.reduce_mean(tf.tanh(features) ** 2, axis=-1)

        q = tfd.Independent(
          tfd.OneHotCategorical(logits=logits, dtype=tf.float64), 1
        )
        value = tfp_rb.expectation(f, q, estimator, seed=seed)
        loss = tf.reduce_sum(value**2)
      gradients = tape.gradient(loss, parts)
      total = tf.add_n([tf.reduce_sum(g**2) for g in gradients])
    return [value, *(outer.gradient(total, parts) if second else gradients)]

  return run


def assert_same(actual, desired):
  for x, y in zip(actual, desired, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-11, atol=1e-13)


# The 5 sites are taken one at a time, with an uneven last chunk, all at once,
# and with a chunk size above 5.
@pytest.mark.parametrize('sites_per_call', [1, 2, 5, 7])
def test_chunks_change_neither_value_nor_gradient(sites_per_call):
  seed = tf.constant(SEED)
  assert_same(derivatives(sites_per_call)(seed), derivatives(None)(seed))


def test_chunks_agree_when_compiled():
  seed = tf.constant(SEED)
  expected, modes = derivatives(None)(seed), modes_of(derivatives(2), seed)
  for mode in ('graph', 'xla'):
    assert_same(modes[mode](seed), expected)


@pytest.mark.parametrize(
  'estimator', [tfp_rb.MuProp(), tfp_rb.REBAR(0.5)], ids=['MuProp', 'REBAR']
)
def test_chunks_are_differentiated_by_their_atoms(estimator):
  seed = tf.constant(SEED)
  assert_same(
    derivatives(2, estimator)(seed), derivatives(None, estimator)(seed)
  )


def test_chunks_have_a_second_derivative():
  seed = tf.constant(SEED)
  assert_same(
    derivatives(2, second=True)(seed), derivatives(None, second=True)(seed)
  )


def test_tape_around_a_function_sees_what_chunks_capture():
  logits, scale = tf.constant(SITES), tf.constant(1.5, tf.float64)

  def gradients(sites_per_call):
    estimator = tfp_rb.local_expectation(
      tfp_rb.REINFORCE(), num_summed=1, sites_per_call=sites_per_call
    )
    with tf.GradientTape() as tape:
      tape.watch([logits, scale])
      square = scale**2  # computed outside of the function

      @tf.function(autograph=False)
      def loss(logits):
        f, q = interacting(logits)
        return tfp_rb.expectation(
          lambda z: square * f(z), q, estimator, seed=tf.constant(SEED)
        )

      value = loss(logits)
    return [value, *tape.gradient(value, [logits, scale])]

  assert_same(gradients(1), gradients(None))


def test_f_is_called_chunk_by_chunk_forward_and_backward():
  sizes = []
  logits = tf.Variable(tf.zeros([5, 3]))

  def f(z):
    if tf.executing_eagerly():  # not while it is traced
      sizes.append(z.shape[0])
    return tf.reduce_sum(tf.cast(z, tf.float32), axis=-1) * logits[0, 0]

  estimator = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(), num_summed=1, sites_per_call=2
  )
  with tf.GradientTape() as tape:
    q = tfd.Independent(tfd.Categorical(logits=logits), 1)
    value = tfp_rb.expectation(f, q, estimator, seed=SEED)
  # The 5 sites have 2 atoms each. One of them is the joint value, so there are
  # 6 points.
  assert sizes == [3, 3]
  tape.gradient(value, logits)
  assert sizes == [3, 3] * 2


def test_chunks_of_an_f_without_parameters():
  q = tfd.Independent(tfd.Categorical(logits=tf.constant(LOGITS)), 1)
  f = lambda z: tf.reduce_sum(tf.cast(z, tf.float64), axis=-1)
  values = [
    tfp_rb.expectation(
      f,
      q,
      tfp_rb.local_expectation(
        tfp_rb.REINFORCE(), num_summed=1, sites_per_call=c
      ),
      seed=SEED,
    )
    for c in (1, None)
  ]
  assert_same(*values)


def test_memory_is_that_of_a_chunk():
  num_rows, num_sites, num_hidden = 8, 24, 512
  estimator = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(num_samples=2), num_summed=1, sites_per_call=4
  )

  @tf.function(jit_compile=True)
  def gradient(logits, weights):
    with tf.GradientTape() as tape:
      tape.watch([logits, weights])
      q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)

      def f(z):
        hidden = tf.tanh(tf.tensordot(tf.cast(z, tf.float32), weights, 1))
        return tf.reduce_sum(hidden**2, axis=-1)

      loss = tfp_rb.expectation(f, q, estimator, seed=tf.constant(SEED))
    return tape.gradient(loss, [logits, weights])

  largest = largest_array(
    gradient, tf.zeros([num_rows, num_sites]), tf.zeros([num_sites, num_hidden])
  )
  # The largest array, forward or backward, holds the activations at 10 of the
  # 49 points, since 4 sites have at most 12.
  assert largest == 10 * num_rows * num_hidden


@pytest.mark.parametrize(
  ('sites_per_call', 'error'),
  [(0, ValueError), (2.0, TypeError)],
)
def test_wrong_size_of_chunks_is_refused(sites_per_call, error):
  with raises(error, 'sites_per_call'):
    tfp_rb.local_expectation(
      tfp_rb.REINFORCE(), num_summed=1, sites_per_call=sites_per_call
    )


@pytest.mark.parametrize('sites_per_call', [None, 4])
def test_estimator_comes_back_from_its_config(sites_per_call):
  estimator = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(baseline=2.0), num_summed=1, sites_per_call=sites_per_call
  )
  copy = type(estimator).from_config(estimator.get_config())
  assert repr(copy) == repr(estimator)
  assert copy.sites_per_call == sites_per_call


def test_only_products_have_sites():
  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=1)
  with raises(TypeError, 'local_expectation'):
    tfp_rb.expectation(
      lambda z: tf.cast(z, tf.float32),
      tfd.Categorical(logits=[0.0, 1.0]),
      estimator,
    )


def test_what_sums_already_is_refused():
  summed = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  with raises(TypeError, 'estimator'):
    tfp_rb.local_expectation(summed, num_summed=1)
