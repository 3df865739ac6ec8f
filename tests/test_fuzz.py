# SPDX-License-Identifier: Apache-2.0
"""The short form of the fuzz test, and problems that the fuzz test found."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import fuzz
from fuzz_families import FAMILIES
import fuzz_problems
from fuzz_problems import Problem, random_problem
import tfp_rb
from tfp_rb import baselines

tfb = tfp.bijectors
tfd = tfp.distributions


@pytest.mark.parametrize(
  'first', [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 40))]
)
def test_random_problems_agree_with_a_table(first):
  # A problem takes seconds to compile, which only `make fuzz` does.
  _, failures = fuzz.run_seeds(range(first, first + 20), without=('xla',))
  assert not failures, '\n'.join(text for _, text in failures)


def test_a_problem_can_be_printed_and_read_again():
  for seed in range(50):
    problem = random_problem(seed)
    assert Problem.from_json(problem.to_json()) == problem


def test_a_problem_depends_on_its_seed_alone():
  assert random_problem(7) == random_problem(7)
  assert len({random_problem(seed) for seed in range(50)}) == 50


def test_every_family_and_every_choice_occurs():
  cells = {cell for s in range(600) for cell in fuzz.cells(random_problem(s))}
  found = {
    name: {value for key, value in cells if key == name} for name, _ in cells
  }
  assert found['family'] == set(FAMILIES)
  assert found['baseline'] == set(fuzz_problems.BASELINES)
  assert found['sampler'] == {'iid', 'stratified', 'without'}
  assert found['design'] == {'draws', 'top_k', 'budget', 'given', 'exact'}
  assert {'[0]', '[]', '[2, 1, 2]'} <= found['batch']
  assert {'0', '1e+08'} <= found['offset']


def test_a_bug_is_found_and_its_problem_simplified(monkeypatch):
  right = baselines.LeaveOneOut.evaluate

  def wrong(self, **arguments):
    level = right(self, **arguments).level
    return baselines.Correction(1.01 * level)

  monkeypatch.setattr(baselines.LeaveOneOut, 'evaluate', wrong)
  problem = Problem(
    seed=3,
    family='OneHotCategorical.probs',
    size=6,
    dtype='float32',
    batch=(3, 2),
    wrappers=(('Independent', 1),),
    design='top_k',
    num_summed=2,
    num_samples=3,
    baseline='rest',
    offset=3.0,
    checks=('lattice',),
  )
  assert 'gradient' in fuzz.failure_of(problem)
  smallest = fuzz.shrink(problem)
  assert 'gradient' in fuzz.failure_of(smallest)
  assert smallest.baseline == 'rest'
  assert smallest.dtype == 'float64'
  assert (smallest.batch, smallest.wrappers, smallest.checks) == ((), (), ())


# Problems that the fuzz test has found.


def test_an_impossible_given_atom_stays_out_of_draws_without_replacement():
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(num_samples=2),
    atoms=lambda q: tf.constant([-1, 2]),
    sampler=tfp_rb.samplers.WithoutReplacement(),
  )
  q = tfd.Categorical(logits=np.log([0.4, 0.3, 0.2, 0.1]))
  for seed in range(20):
    weights = estimator.sample_atoms(q, seed=[0, seed]).weights
    np.testing.assert_allclose(np.sum(weights), 1.0)


def test_a_shifted_draw_does_not_pass_the_largest_integer():
  q = tfb.Shift(tf.constant(30))(tfd.Zipf(power=np.float64(2.0)))
  rest = tfp_rb.partition(q, num_summed=1)
  u = tf.constant(2.0**-53, tf.float64, shape=[1, rest.num_uniforms])
  assert rest.rest_from_uniforms(u).numpy() == [tf.int32.max]


@pytest.mark.parametrize('kind', [tfd.Categorical, tfd.OneHotCategorical])
@pytest.mark.parametrize('sampler', ['IID', 'WithoutReplacement'])
def test_atoms_may_be_given_for_a_batch_of_unknown_size(kind, sampler):
  values = tf.constant([[1, 0], [2, 2]])
  if kind is tfd.OneHotCategorical:
    values = tf.one_hot(values, 3, dtype=tf.int32)
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(num_samples=1),
    atoms=lambda q: values,
    sampler=getattr(tfp_rb.samplers, sampler)(),
  )

  @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float64)])
  def estimate(logits):
    f = lambda z: tf.ones([z.shape[0], tf.shape(z)[1]])
    return tfp_rb.expectation(f, kind(logits=logits), estimator, seed=[0, 1])

  np.testing.assert_allclose(estimate(tf.zeros([2, 3], tf.float64)), 1.0)


def test_an_impossible_atom_may_be_given_for_a_broadcast_batch():
  q = tfd.BatchBroadcast(tfd.Categorical(logits=np.zeros([4])), [2])
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(), atoms=lambda q: tf.constant([[-1, 4], [2, 0]])
  )
  weights = estimator.sample_atoms(q, seed=[0, 1]).weights
  np.testing.assert_allclose(weights, [[0.0] * 2, [0.25] * 2, [0.75] * 2])


def test_the_rest_of_many_listed_values_is_summed_precisely():
  sites = tfd.Independent(tfd.Categorical(logits=tf.zeros([3, 40])), 1)
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(), atoms=lambda q: tf.zeros([1, 2, 3], tf.int32)
  )
  q = tfd.BatchBroadcast(sites, [2])
  weights = estimator.sample_atoms(q, seed=[0, 1]).weights
  np.testing.assert_allclose(np.sum(weights, axis=0), 1.0, rtol=1e-6)


def test_copies_of_an_empty_batch_are_an_empty_batch():
  q = tfd.Sample(tfd.Categorical(logits=np.zeros([0, 3])), 2)
  f = lambda z: tf.reduce_sum(tf.cast(z, tf.float64), axis=-1)
  assert tfp_rb.expectation(f, q, seed=[0, 1]).shape == [0]


@pytest.mark.parametrize(
  'wrap',
  [
    lambda q, n: tfd.BatchReshape(q, [1, -1]),
    lambda q, n: tfd.BatchReshape(q, tf.stack([1, n])),
    lambda q, n: tfd.BatchBroadcast(q, to_shape=tf.stack([1, n])),
    lambda q, n: tfb.Shift(tf.constant(1))(tfd.BatchReshape(q, [1, -1])),
  ],
)
def test_a_batch_of_unknown_size_may_be_rearranged(wrap):
  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)

  def estimate(logits):
    q = wrap(tfd.Categorical(logits=logits), tf.shape(logits)[0])
    f = lambda z: tf.cast(z, tf.float64)
    return tfp_rb.expectation(f, q, estimator, seed=[0, 1])

  signature = [tf.TensorSpec([None, 3], tf.float64)]
  graph = tf.function(estimate, input_signature=signature)
  logits = tf.constant(np.random.default_rng(0).normal(size=[4, 3]))
  assert graph(logits).shape == [1, 4]
  np.testing.assert_allclose(graph(logits), estimate(logits))


def test_an_offset_costs_no_digits_of_f_without_replacement():
  def gradient(offset):
    logits = tf.constant([0.3, -0.2, 0.9])
    estimator = tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2),
      num_summed=0,
      sampler=tfp_rb.samplers.WithoutReplacement(),
    )
    f = lambda z: tf.cast(z, tf.float64) ** 2 + offset
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Categorical(logits=logits)
      value = tfp_rb.expectation(f, q, estimator, seed=[0, 1])
    return tape.gradient(value, logits)

  np.testing.assert_allclose(gradient(1e8), gradient(0.0), atol=1e-6)


def test_a_small_other_draw_keeps_its_digits_next_to_a_large_one():
  # In float32, the score of one draw is far larger than that of the other.
  problem = Problem(
    seed=100631,
    family='NegativeBinomial.probs',
    size=5,
    batch=(2, 1, 2),
    wrappers=(('Shift', 'wider'),),
    num_samples=2,
    baseline='optimal',
    f_dtype='float32',
    elsewhere='inf',
  )
  assert fuzz.failure_of(problem) is None
