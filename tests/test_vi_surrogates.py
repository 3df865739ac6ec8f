# SPDX-License-Identifier: Apache-2.0
"""Surrogates have the shapes of the model's parts and start at its prior."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import copy_registry, find_partition, patch_num_pilot_draws
from tfp_rb import RegisterPartition, vi
from tfp_rb.vi import build_factored_surrogate_posterior as build

tfb = tfp.bijectors
tfd = tfp.distributions
SEED = [1, 2]


def innermost(q):
  while hasattr(q, 'distribution'):
    q = q.distribution
  return q


def check_draws(q, p):
  """Checks that `q` has draws like those of `p`, and all variables train."""
  assert (q.batch_shape, q.event_shape) == (p.batch_shape, p.event_shape)
  assert q.dtype == p.dtype
  with tf.GradientTape() as tape:
    draw = tf.stop_gradient(q.sample(5, seed=SEED))
    log_prob = q.log_prob(draw)
  assert draw.dtype == p.dtype
  assert draw.shape == [5, *p.batch_shape, *p.event_shape]
  assert log_prob.shape == [5, *p.batch_shape]
  assert np.all(np.isfinite(log_prob))
  assert q.trainable_variables
  gradients = tape.gradient(log_prob, q.trainable_variables)
  assert all(np.all(np.isfinite(g)) and np.any(g != 0.0) for g in gradients)


FINITE = [
  (lambda x: tfd.Bernoulli(probs=x([0.2, 0.9])), tfd.Bernoulli),
  (lambda x: tfd.ProbitBernoulli(probs=x(0.2)), tfd.Bernoulli),
  (lambda x: tfd.Categorical(probs=x([[0.2, 0.8, 0.0]])), tfd.Categorical),
  (lambda x: tfd.Categorical(x([0.0, 1.0]), dtype=tf.int64), tfd.Categorical),
  (
    lambda x: tfd.OrderedLogistic(x([0.0, 1.0]), x([0.0, 2.0])),
    tfd.Categorical,
  ),
  (lambda x: tfd.StoppingRatioLogistic(x([0.0, 1.0]), x(0.3)), tfd.Categorical),
  (
    lambda x: tfd.OneHotCategorical(probs=x([[0.2, 0.8, 0.0]] * 2)),
    tfd.OneHotCategorical,
  ),
  (
    lambda x: tfd.FiniteDiscrete(x([1.0, 5.0]), probs=x([0.3, 0.7])),
    tfd.FiniteDiscrete,
  ),
  (lambda x: tfd.Binomial(x([3.0, 0.0]), probs=x(0.4)), tfd.Binomial),
  (lambda x: tfd.BetaBinomial(x(3.0), x([2.0, 4.0]), x(1.0)), tfd.Binomial),
]


# The joint models below use float32.
@pytest.mark.parametrize('make, kind', FINITE)
def test_finite_part_starts_at_its_prior(make, kind):
  p = make(lambda x: tf.constant(x, tf.float64))
  q = build(p, seed=SEED)
  assert type(q) is kind
  assert q.name == p.name
  assert [v.dtype for v in q.trainable_variables] == [tf.float64]
  find_partition(q, 2)
  check_draws(q, p)
  if hasattr(p, 'categorical_probs'):
    expected, actual = p.categorical_probs(), q.probs_parameter()
  elif kind is tfd.Categorical:
    expected, actual = p.probs_parameter(), q.probs_parameter()
  else:
    expected, actual = p.mean(), q.mean()
  np.testing.assert_allclose(actual, expected, atol=0.03)


COUNTS = [
  lambda x: tfd.Poisson(x([1.0, 100.0])),
  lambda x: tfd.NegativeBinomial(x(2.0), logits=x(0.5)),
  lambda x: tfd.Geometric(probs=x(0.2)),
  lambda x: tfd.Zipf(x(3.5), dtype=x(0.0).dtype),
  lambda x: tfd.PoissonLogNormalQuadratureCompound(x(0.0), x(1.0)),
  lambda x: tfd.ZeroInflatedNegativeBinomial(
    total_count=x(2.0), logits=x(0.0), inflated_loc_logits=x(0.0)
  ),
]


@pytest.mark.parametrize('make', COUNTS)
def test_count_starts_at_the_moments_of_its_prior(make):
  p = make(lambda x: tf.constant(x, tf.float64))
  q = build(p, seed=SEED)
  assert isinstance(innermost(q), tfd.NegativeBinomial)
  assert [v.dtype for v in q.trainable_variables] == [tf.float64] * 2
  find_partition(q, 2)
  check_draws(q, p)
  start = 1.0 if isinstance(p, tfd.Zipf) else 0.0
  assert np.min(q.sample(99, seed=SEED)) == start
  np.testing.assert_allclose(q.mean(), p.mean(), rtol=0.05)
  variance = np.maximum(p.variance(), 1.1 * (p.mean() - start))
  if not isinstance(p, tfd.Zipf):  # its variance is bounded
    np.testing.assert_allclose(q.variance(), variance, rtol=0.08)


def test_count_without_moments_has_a_finite_start():
  q = build(tfd.Zipf([1.5, 2.5], dtype=tf.float32), seed=SEED)
  assert np.all(q.mean() < 10.0) and np.all(np.isfinite(q.variance()))


@pytest.mark.parametrize(
  'p, shift, lowest, mean',
  [
    (tfd.Poisson([5.0, 5.0]), [2.0, 9.0], [2.0, 9.0], [5.0, 10.0]),
    (tfd.Poisson([5.0, 5.0]), 1.5, [2.0, 2.0], [5.0, 5.0]),
    (tfd.Poisson([5.0, 5.0]), np.array([3, 4]), [3.0, 4.0], [5.0, 5.0]),
    (tfd.Zipf(3.5, dtype=tf.float32), 0, 1.0, 2.0),
    (tfd.Sample(tfd.Poisson([5.0]), 2), [1.0, 8.0], [[1.0, 8.0]], [[5.0, 9.0]]),
  ],
)
def test_shift_is_the_least_value(p, shift, lowest, mean):
  q = build(p, shifts={p.name: shift}, seed=SEED)
  draws = q.sample(2000, seed=SEED)
  np.testing.assert_array_equal(tf.reduce_min(draws, axis=0), lowest)
  np.testing.assert_allclose(q.mean(), mean, rtol=0.05)
  check_draws(q, p)
  find_partition(q, 2)


def test_shifted_counts_keep_the_dispersion_of_the_prior():
  q = build(tfd.Poisson(20.0), shifts={'Poisson': 30.0}, seed=SEED)
  np.testing.assert_allclose(q.variance() / (q.mean() - 30.0), 1.1, rtol=0.01)


CONTINUOUS = [
  lambda x: tfd.Normal(x([[0.0]]), x(1.0)),
  lambda x: tfd.Gamma(x(2.0), x([1.0, 1.0])),
  lambda x: tfd.Sample(tfd.Beta(x([2.0]), x(1.0)), [2, 3]),
  lambda x: tfd.MultivariateNormalDiag(x([[0.0, 1.0]])),
  lambda x: tfd.Dirichlet(x([[1.0, 2.0, 3.0]] * 2)),
  lambda x: tfd.Sample(tfd.Dirichlet(x([1.0, 2.0])), 4),
  lambda x: tfd.LogNormal(x(0.0), x(1.0)),
]


@pytest.mark.parametrize('make', CONTINUOUS)
def test_continuous_part_is_as_of_tfp(make):
  p = make(lambda x: tf.constant(x, tf.float64))
  q = build(p, seed=SEED)
  check_draws(q, p)
  assert np.all(np.isfinite(p.log_prob(q.sample(5, seed=SEED))))
  assert len(q.trainable_variables) == 2
  assert q.name == p.name


@pytest.mark.parametrize(
  'base',
  [
    lambda n: tfd.Bernoulli(probs=np.linspace(0.1, 0.9, n)),
    lambda n: tfd.OneHotCategorical(
      probs=np.linspace([0.1, 0.2, 0.7], [0.6, 0.4, 0.0], n)
    ),
    lambda n: tfd.Binomial(
      np.arange(2.0, 2.0 + n), probs=np.linspace(0.1, 0.9, n)
    ),
    lambda n: tfd.Poisson(np.linspace(1.0, 9.0, n)),
  ],
)
def test_wrappers_are_mirrored(base):
  for p in [
    tfd.Sample(base(2), [3, 4]),
    tfd.Sample(tfd.Independent(tfd.BatchBroadcast(base(2), [3, 2]), 1), 4),
  ]:
    q = build(p, seed=SEED)
    assert (q.batch_shape, q.event_shape) == (p.batch_shape, p.event_shape)
    if not isinstance(innermost(q), tfd.Binomial):  # a Binomial is slow to draw
      check_draws(q, p)
    np.testing.assert_allclose(q.mean(), p.mean(), rtol=0.05, atol=0.02)
    find_partition(q, 2)


def test_wrapper_around_what_is_no_composite_tensor():
  inner = tfd.Categorical(probs=[[0.1, 0.9]] * 2)
  p = tfd.Independent.__mro__[1](inner, 1, name='z')  # `_Independent`
  assert not isinstance(p, tfd.Independent)
  check_draws(build(p, seed=SEED), p)


def test_all_sites_and_values_start_differently():
  q = build(tfd.Categorical(tf.zeros([50, 4])), seed=SEED)
  logits = q.logits.numpy()
  assert len(np.unique(logits)) == logits.size
  np.testing.assert_allclose(np.std(logits), 0.01, rtol=0.2)
  again, other = (build(tfd.Bernoulli(0.0), seed=s).logits for s in (SEED, 3))
  assert again.numpy() != other.numpy()
  assert again.numpy() == build(tfd.Bernoulli(0.0), seed=SEED).logits.numpy()


def mixture():
  root = tfd.JointDistributionCoroutine.Root
  probs = yield root(tfd.Dirichlet([1.0, 1.0, 1.0], name='probs'))
  loc = yield root(tfd.Sample(tfd.Normal(0.0, 5.0), 3, name='loc'))
  z = yield tfd.Sample(tfd.Categorical(probs=probs), 4, name='z')
  loc = tf.gather(loc, z, axis=-1, batch_dims=loc.shape.rank - 1)
  yield tfd.Independent(tfd.Normal(loc, 1.0), 1, name='y')


def counts_of(batch):
  return [
    tfd.Gamma(4.0 * tf.ones(batch), 0.5),
    lambda rate: tfd.Sample(tfd.Poisson(rate), 4, name='n'),
    lambda n: tfd.Independent(tfd.Normal(n, 1.0), 1, name='y'),
  ]


def auto_batched_counts(batch):
  return [
    tfd.Gamma(4.0 * tf.ones(batch), 0.5),
    lambda rate: tfd.Poisson(rate[..., tf.newaxis] * tf.ones([4]), name='n'),
    lambda n: tfd.Normal(n, 1.0, name='y'),
  ]


def named(kind):
  rate, n, y = counts_of([])
  return kind([('rate', rate), ('n', n), ('y', y)])


Counts = collections.namedtuple('Counts', 'rate, n, y')
Sequential, Named = tfd.JointDistributionSequential, tfd.JointDistributionNamed
MODELS = {
  'coroutine': lambda: tfd.JointDistributionCoroutine(mixture),
  'coroutine auto': lambda: tfd.JointDistributionCoroutineAutoBatched(mixture),
  'sequential': lambda: Sequential(counts_of([2])),
  'tuple': lambda: Sequential(tuple(counts_of([]))),
  'sequential auto': lambda: tfd.JointDistributionSequentialAutoBatched(
    auto_batched_counts([])
  ),
  'sequential auto batch': lambda: tfd.JointDistributionSequentialAutoBatched(
    auto_batched_counts([2]), batch_ndims=1
  ),
  'dict': lambda: Named(named(dict)),
  'ordered': lambda: Named(named(collections.OrderedDict)),
  'namedtuple': lambda: Named(Counts(*counts_of([]))),
  'dict auto': lambda: tfd.JointDistributionNamedAutoBatched(named(dict)),
}


@pytest.mark.parametrize(
  'key, is_pinned',
  [*((key, True) for key in MODELS), ('dict', False)],
)
def test_surrogate_has_the_structure_of_the_model(key, is_pinned, monkeypatch):
  patch_num_pilot_draws(monkeypatch, 1)
  model = MODELS[key]()
  batch_shape = [2] if 'batch' in key or key == 'sequential' else []
  if is_pinned:
    model = model.experimental_pin(y=np.zeros([*batch_shape, 4], np.float32))
  q = build(model, seed=SEED)
  assert q.event_shape == model.event_shape
  assert q.dtype == model.dtype
  names = ['probs', 'loc', 'z'] if 'coroutine' in key else ['rate', 'n']
  names += [] if is_pinned else ['y']
  parts = q.model.values() if isinstance(q.model, dict) else q.model
  assert [d.name for d in parts] == names
  assert all(d.batch_shape == batch_shape for d in parts)

  draw = q.sample(5, seed=SEED)
  with tf.GradientTape() as tape:
    log_q = q.log_prob(draw)
  gradients = tape.gradient(log_q, q.trainable_variables)
  assert len(gradients) == ('coroutine' in key) + 4 + 2 * (not is_pinned)
  assert all(g is not None for g in gradients)
  log_p = model.unnormalized_log_prob(draw)
  assert log_q.shape == log_p.shape == [5, *batch_shape]
  assert np.all(np.isfinite(log_q)) and np.all(np.isfinite(log_p))
  if isinstance(draw, dict):
    again = model.unnormalized_log_prob(**draw)
  else:
    again = model.unnormalized_log_prob(*draw)
  np.testing.assert_allclose(again, log_p, rtol=1e-4)


def test_surrogate_works_in_graph_mode(monkeypatch):
  patch_num_pilot_draws(monkeypatch, 1)
  model = MODELS['coroutine auto']().experimental_pin(y=tf.zeros([4]))
  q = build(model, seed=SEED)

  @tf.function
  def log_ratio():
    draw = q.sample(5, seed=SEED)
    return model.unnormalized_log_prob(draw) - q.log_prob(draw)

  eager = log_ratio.python_function()
  np.testing.assert_allclose(log_ratio(), eager, rtol=1e-3)
  q.model.loc.trainable_variables[0].assign_add([1.0, 0.0, 0.0])
  assert np.any(np.abs(log_ratio() - eager) > 0.1)


def test_dependent_part_starts_at_its_marginal():
  model = tfd.JointDistributionNamed(
    dict(
      b=tfd.Bernoulli(probs=0.5),
      z=lambda b: tfd.Bernoulli(probs=0.9 - 0.8 * tf.cast(b, tf.float32)),
      n=lambda b: tfd.Poisson(4.0 + 12.0 * tf.cast(b, tf.float32)),
    )
  )
  q = build(model, seed=SEED).model
  assert 0.25 < q['z'].mean() < 0.75
  assert 6.0 < q['n'].mean() < 14.0
  assert q['n'].variance() > 25.0  # the variance of both laws together


def test_continuous_bijector_is_of_a_prior_draw():
  model = tfd.JointDistributionNamed(
    dict(high=tfd.Uniform(1.0, 2.0), x=lambda high: tfd.Uniform(0.0, high))
  )
  draw = build(model, seed=SEED).sample(9, seed=SEED)
  assert np.all((draw['x'] > 0.0) & (draw['x'] < 2.0))


@pytest.mark.parametrize(
  'constant',
  [
    tfd.Deterministic(2.0),
    tfd.Sample(tfd.Deterministic(2.0), 3),
    tfd.VectorDeterministic([2.0, 2.0]),
  ],
  ids=lambda p: p.name,
)
def test_a_constant_part_stays_as_it_is(constant):
  model = tfd.JointDistributionNamed(
    dict(c=constant, x=tfd.Normal(0.0, 1.0), z=tfd.Categorical(logits=[0.0, 1]))
  )
  q = build(model, seed=SEED)
  np.testing.assert_array_equal(q.sample(4, seed=SEED)['c'], 2.0)
  with tf.GradientTape() as tape:
    loss = vi.monte_carlo_variational_loss(
      model.log_prob, q, sample_size=3, seed=SEED
    )
  gradients = tape.gradient(loss, q.trainable_variables)
  assert all(np.all(np.isfinite(g)) for g in gradients)
  assert len(gradients) == 3


@pytest.mark.parametrize(
  'p',
  [
    tfd.Multinomial(3.0, [0.0, 0.0]),
    tfd.Skellam(1.0, 2.0),
    tfb.Shift(1.0)(tfd.Poisson(2.0)),
    tfd.Sample(tfd.PlackettLuce([1.0, 2.0]), 2),
    tfd.MarkovChain(tfd.Poisson(1.0), lambda _, x: tfd.Poisson(x), num_steps=2),
  ],
  ids=lambda p: p.name,
)
def test_part_without_a_surrogate(p):
  with raises(ValueError, p.name):
    build(p)


def test_errors():
  with raises(TypeError, 'model'):
    build(lambda: None)
  with raises(TypeError, 'Zipf'):
    build(tfd.Zipf(2.0))
  model = tfd.JointDistributionNamed(
    dict(n=tfd.Poisson(9.0), k=lambda n: tfd.Binomial(n, probs=0.5))
  )
  with raises(ValueError, 'total_count'):
    build(model, seed=SEED)
  pinned = model.experimental_pin(k=2.0)
  for wrong in ['k', 'm']:
    with raises(ValueError, wrong):
      build(pinned, shifts={wrong: 1.0})
  with raises(ValueError, 'Bernoulli'):
    build(tfd.Bernoulli(0.0), shifts={'Bernoulli': 1.0})


def test_a_family_of_which_only_the_kind_is_known_can_be_registered(
  monkeypatch,
):
  copy_registry(monkeypatch)
  RegisterPartition(tfd.ZeroInflatedNegativeBinomial)(lambda q, k: None)
  part = tfd.ZeroInflatedNegativeBinomial(0.3, total_count=2.0, logits=0.0)
  surrogate = build(part, seed=[1, 2])
  assert isinstance(surrogate, tfd.NegativeBinomial)
