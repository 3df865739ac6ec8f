# SPDX-License-Identifier: Apache-2.0
"""The variational loss of joint distributions: discrete and mixed parts."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from internals import WithDraws, split_joint
from statistical import assert_follows
import tfp_rb
from tfp_rb import baselines

tfb = tfp.bijectors
tfd = tfp.distributions
Root = tfd.JointDistributionCoroutine.Root

SEED = (3, 1)
RNG = np.random.default_rng(5)
A = RNG.normal(size=[3])
B = RNG.normal(size=[3, 4])
C = RNG.normal(size=[4])
SCORES = RNG.normal(size=[3, 4, 2])
ALL = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=24)


def loss_of(target, q, **kwargs):
  return tfp_rb.vi.monte_carlo_variational_loss(target, q, **kwargs)


def flat(tensors):
  return tf.concat([tf.reshape(x, [-1]) for x in tensors], axis=0)


# The three parts each depend on the one before, in every kind of joint
# distribution.


def of_list(kind, a, b, c):
  return kind([
    tfd.Categorical(logits=a),
    lambda x: tfd.Categorical(logits=tf.gather(b, x)),
    lambda y: tfd.Bernoulli(logits=tf.gather(c, y)),
  ])  # fmt: skip


def of_dict(kind, a, b, c):
  return kind({
    # The parts are not listed in order.
    'z': lambda y: tfd.Bernoulli(logits=tf.gather(c, y)),
    'x': tfd.Categorical(logits=a),
    'y': lambda x: tfd.Categorical(logits=tf.gather(b, x)),
  })  # fmt: skip


def of_coroutine(kind, a, b, c):
  def model():
    x = yield Root(tfd.Categorical(logits=a, name='x'))
    y = yield tfd.Categorical(logits=tf.gather(b, x), name='y')
    yield tfd.Bernoulli(logits=tf.gather(c, y), name='z')

  return kind(model)


KINDS = {
  'sequential': (of_list, tfd.JointDistributionSequential),
  'sequential_auto': (of_list, tfd.JointDistributionSequentialAutoBatched),
  'named': (of_dict, tfd.JointDistributionNamed),
  'named_auto': (of_dict, tfd.JointDistributionNamedAutoBatched),
  'coroutine': (of_coroutine, tfd.JointDistributionCoroutine),
  'coroutine_auto': (of_coroutine, tfd.JointDistributionCoroutineAutoBatched),
}


def joint_of(name, *variables):
  build, kind = KINDS[name]
  return build(kind, *map(tf.convert_to_tensor, variables))


def score(x, y, z):
  index = tf.stack([tf.cast(v, tf.int32) for v in (x, y, z)], axis=-1)
  return tf.gather_nd(tf.constant(SCORES), index)


def log_joint(a, b, c):
  log_c = -tf.nn.softplus(tf.stack([c, -c], axis=-1))
  return (
    tf.nn.log_softmax(a)[:, tf.newaxis, tf.newaxis]
    + tf.nn.log_softmax(b)[:, :, tf.newaxis]
    + log_c[tf.newaxis]
  )


@pytest.mark.parametrize(
  ('name', 'discrepancy'),
  [(name, 'kl_reverse') for name in KINDS] + [('sequential', 'kl_forward')],
)
def test_dependent_parts_are_summed_jointly(name, discrepancy):
  discrepancy_fn = getattr(tfp.vi, discrepancy)
  variables = [tf.Variable(v) for v in (A, B, C)]
  with tf.GradientTape(persistent=True) as tape:
    actual = loss_of(
      score,
      joint_of(name, *variables),
      discrepancy_fn=discrepancy_fn,
      gradient_estimator=ALL,
      seed=SEED,
    )
    log_q = log_joint(*variables)
    terms = tf.exp(log_q) * discrepancy_fn(SCORES - log_q)
    expected = tf.reduce_sum(terms)
  np.testing.assert_allclose(actual, expected, atol=1e-12)
  for variable in variables:
    np.testing.assert_allclose(
      tf.convert_to_tensor(tape.gradient(actual, variable)),
      tf.convert_to_tensor(tape.gradient(expected, variable)),
      atol=1e-12,
    )


@functools.cache
def parts_of(name='sequential'):
  return split_joint(joint_of(name, A, B, C), tf.constant(SEED)).discrete


@pytest.mark.parametrize(
  'k',
  [0, 2, 7, 24, *(pytest.param(k, marks=pytest.mark.slow) for k in (1, 3, 23))],
)
def test_partition_of_parts(k):
  # The draws detect a total variation distance of 1 % with probability .99.
  q, probs = parts_of(), np.exp(log_joint(A, B, C)).ravel()
  part = tfp_rb.partition(q, k)
  number = lambda v: np.asarray(v) @ [8, 2, 1]
  summed = number(part.values)
  assert len(set(summed)) == k
  assert part.num_values == 24
  np.testing.assert_allclose(part.weights, probs[summed], atol=1e-12)
  rest = np.delete(np.arange(24), summed)
  np.testing.assert_allclose(part.rest_weight, np.sum(probs[rest]), atol=1e-12)
  if k == 24:
    assert part.sample_rest is None
    return
  draws = number(part.sample_rest(600_000, tf.constant([7, k])))
  law = probs[rest] / np.sum(probs[rest])
  assert_follows(draws, rest, law, num_tests=6, detectable=0.01)


def test_beam_of_independent_parts_finds_the_best():
  logits = RNG.normal(size=[3, 4])
  q = tfd.JointDistributionSequential(
    [tfd.Categorical(logits=row) for row in logits]
  )
  probs = np.exp(
    functools.reduce(
      lambda x, y: x[..., np.newaxis] + y, tf.nn.log_softmax(logits).numpy()
    )
  )
  part = tfp_rb.partition(split_joint(q, tf.constant(SEED)).discrete, 6)
  np.testing.assert_allclose(
    part.weights, np.sort(np.ravel(probs))[::-1][:6], atol=1e-12
  )


def test_log_prob_of_parts_is_that_of_the_joint_distribution():
  q = joint_of('sequential', A, B, C)
  sample = q.sample(50, seed=1)
  discrete = split_joint(q, tf.constant(SEED)).discrete
  np.testing.assert_allclose(
    discrete.log_prob(discrete.pack(sample)), q.log_prob(sample), atol=1e-12
  )
  assert discrete.sample(7, seed=SEED).shape == [7, 3]


@pytest.mark.parametrize(
  'kind',
  [
    # This checks a part of what the other case checks.
    pytest.param(tfd.JointDistributionNamed, marks=pytest.mark.slow),
    tfd.JointDistributionNamedAutoBatched,
  ],
)
def test_eager_and_xla_agree(kind):
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=2),
    num_summed=2,
  )

  def run(seed):
    variables = [tf.constant(v) for v in (A, B)]
    with tf.GradientTape() as tape:
      tape.watch(variables)
      a, b = variables
      q = kind({
        'x': tfd.Categorical(logits=a),
        'y': lambda x: tfd.Categorical(logits=tf.gather(b, x)),
      })  # fmt: skip
      target = lambda x, y: score(x, y, tf.zeros_like(x))
      loss = loss_of(target, q, gradient_estimator=estimator, seed=seed)
    gradients = tape.gradient(loss, variables)
    return [loss, *map(tf.convert_to_tensor, gradients)]

  seed = tf.constant(SEED)
  compiled = tf.function(run, jit_compile=True, autograph=False)(seed)
  for actual, expected in zip(compiled, run(seed), strict=True):
    np.testing.assert_allclose(actual, expected, atol=1e-10)


def test_mixed_dtypes_shapes_and_a_batch():
  # The parts are counts, a vector of bits and a class, two of each; some are
  # dependent.
  logits = tf.Variable(RNG.normal(size=[2, 3]))
  q = tfd.JointDistributionSequential([
    tfd.Independent(tfd.Bernoulli(logits=logits), 1),
    lambda bits: tfd.Binomial(
      total_count=tf.constant([2.0, 2.0], tf.float64),
      logits=tf.reduce_sum(tf.cast(bits, tf.float64), axis=-1),
    ),
    tfd.Categorical(logits=tf.zeros([2, 2], tf.float64)),
  ])  # fmt: skip
  seen = []

  def target(bits, count, label):
    seen.extend([bits, count, label])
    bits, label = tf.cast(bits, count.dtype), tf.cast(label, count.dtype)
    return tf.reduce_sum(bits, axis=-1) * count + label * count

  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=48)
  with tf.GradientTape() as tape:
    loss = loss_of(target, q, gradient_estimator=estimator)
  assert [x.dtype for x in seen] == [tf.int32, tf.float64, tf.int32]
  assert [x.shape for x in seen] == [(48, 2, 3), (48, 2), (48, 2)]
  assert loss.shape == [2]
  # The reference sums by hand, bit by bit.
  bits = np.array(np.meshgrid(*[[0, 1]] * 3, indexing='ij')).reshape([3, -1]).T
  expected = []
  for row in logits.numpy():
    q_bits = np.exp(
      np.sum(np.where(bits, -np.log1p(np.exp(-row)), -np.log1p(np.exp(row))), 1)
    )
    total = 0.0
    for b, qb in zip(bits, q_bits, strict=True):
      p = 1.0 / (1.0 + np.exp(-np.sum(b)))
      for n, qn in enumerate([(1 - p) ** 2, 2 * p * (1 - p), p**2]):
        for label in range(2):
          w = qb * qn * 0.5
          total += w * (np.log(w) - np.sum(b) * n - label * n)
    expected.append(total)
  np.testing.assert_allclose(loss, expected, atol=1e-10)
  assert np.all(np.isfinite(tape.gradient(loss, logits)))


# Mixed parts: point masses replace continuous parts, so that everything is
# exact.


def smooth_score(c, d):
  """Returns a score that depends on both parts; `d` has three values."""
  d = tf.cast(d, c.dtype)
  return tf.sin(c * (1.0 + d)) - 0.3 * d * c**2


def point_mass(loc):
  return tfd.Deterministic(loc)


MIXED_KINDS = [
  tfd.JointDistributionSequential,
  tfd.JointDistributionSequentialAutoBatched,
]


@pytest.mark.parametrize('kind', MIXED_KINDS)
def test_continuous_first(kind):
  loc, weight = tf.Variable(0.7, dtype=tf.float64), tf.Variable(A)
  with tf.GradientTape(persistent=True) as tape:
    q = kind([
      point_mass(tf.convert_to_tensor(loc)),
      lambda c: tfd.Categorical(logits=c[..., tf.newaxis] * weight),
    ])  # fmt: skip
    actual = loss_of(
      smooth_score,
      q,
      gradient_estimator=tfp_rb.rao_blackwellize(
        tfp_rb.REINFORCE(), num_summed=3
      ),
      seed=SEED,
    )
    log_q = tf.nn.log_softmax(loc * weight)
    scores = smooth_score(loc, tf.range(3))
    expected = tf.reduce_sum(tf.exp(log_q) * (log_q - scores))
  np.testing.assert_allclose(actual, expected, atol=1e-12)
  for variable in (loc, weight):
    np.testing.assert_allclose(
      tape.gradient(actual, variable),
      tape.gradient(expected, variable),
      atol=1e-12,
    )


@pytest.mark.parametrize('kind', MIXED_KINDS)
def test_discrete_first(kind):
  logits, locs = tf.Variable(A), tf.Variable(B[0, :3])
  with tf.GradientTape(persistent=True) as tape:
    of_d = tf.convert_to_tensor(locs)
    q = kind([
      tfd.Categorical(logits=tf.convert_to_tensor(logits)),
      lambda d: point_mass(tf.gather(of_d, d)),
    ])  # fmt: skip
    actual = loss_of(
      lambda d, c: smooth_score(c, d),
      q,
      gradient_estimator=tfp_rb.rao_blackwellize(
        tfp_rb.REINFORCE(), num_summed=3
      ),
      seed=SEED,
    )
    log_q = tf.nn.log_softmax(logits)
    scores = smooth_score(of_d, tf.range(3))
    expected = tf.reduce_sum(tf.exp(log_q) * (log_q - scores))
  np.testing.assert_allclose(actual, expected, atol=1e-12)
  for variable in (logits, locs):
    np.testing.assert_allclose(
      tf.convert_to_tensor(tape.gradient(actual, variable)),
      tf.convert_to_tensor(tape.gradient(expected, variable)),
      atol=1e-12,
    )


def test_continuous_before_and_after():
  first, logits, slope = (
    tf.Variable(x, dtype=tf.float64) for x in (0.4, A, -0.8)
  )

  def model():
    c = yield point_mass(tf.convert_to_tensor(first))
    d = yield tfd.Categorical(logits=c * logits)
    yield point_mass(slope * c * tf.cast(d, tf.float64))

  target = lambda c, d, e: smooth_score(c, d) + tf.cos(e)
  with tf.GradientTape(persistent=True) as tape:
    actual = loss_of(
      target,
      tfd.JointDistributionCoroutineAutoBatched(model),
      gradient_estimator=tfp_rb.rao_blackwellize(
        tfp_rb.REINFORCE(), num_summed=3
      ),
      seed=SEED,
    )
    log_q = tf.nn.log_softmax(first * logits)
    d = tf.range(3)
    scores = target(first, d, slope * first * tf.cast(d, tf.float64))
    expected = tf.reduce_sum(tf.exp(log_q) * (log_q - scores))
  np.testing.assert_allclose(actual, expected, atol=1e-12)
  for variable in (first, logits, slope):
    np.testing.assert_allclose(
      tape.gradient(actual, variable),
      tape.gradient(expected, variable),
      atol=1e-12,
    )


# Mixed parts with noise: the draws are recorded in the call of the target.


@pytest.mark.parametrize('discrepancy', ['kl_reverse', 'kl_forward'])
@pytest.mark.parametrize('order', ['continuous_first', 'discrete_first'])
def test_log_density_of_continuous_parts(order, discrepancy):
  discrepancy_fn = getattr(tfp.vi, discrepancy)
  loc, scale, logits = (tf.Variable(x, dtype=tf.float64) for x in (0.4, 1.3, A))
  seen = {}

  def target(c, d):
    seen.update(c=c, d=d)
    return smooth_score(c, d)

  def law(d):
    return tfd.Normal(loc * (1.0 + tf.cast(d, tf.float64)), scale)

  with tf.GradientTape(persistent=True) as tape:
    if order == 'continuous_first':
      q = tfd.JointDistributionNamed({
        'c': law(0),
        'd': lambda c: tfd.Categorical(logits=c[..., tf.newaxis] * logits),
      })  # fmt: skip
    else:
      q = tfd.JointDistributionNamed(
        {'d': tfd.Categorical(logits=logits), 'c': law}
      )
    actual = loss_of(
      target,
      q,
      discrepancy_fn=discrepancy_fn,
      gradient_estimator=tfp_rb.rao_blackwellize(
        tfp_rb.REINFORCE(), num_summed=3
      ),
      seed=SEED,
    )
    is_first = order == 'continuous_first'
    d = seen['d']
    of_c = law(tf.zeros_like(d) if is_first else d)
    noise = tf.stop_gradient((seen['c'] - of_c.loc) / of_c.scale)
    c = of_c.loc + noise * of_c.scale
    log_q_d = tf.nn.log_softmax(
      c[:1, tf.newaxis] * logits if is_first else logits[tf.newaxis]
    )[0]
    log_q_d = tf.gather(log_q_d, d)
    log_ratio = smooth_score(c, d) - log_q_d - of_c.log_prob(c)
    expected = tf.reduce_sum(tf.exp(log_q_d) * discrepancy_fn(log_ratio))
  assert seen['c'].shape == [3]
  # The part is drawn once if possible, otherwise for each atom.
  assert (len(set(seen['c'].numpy())) == 1) == is_first
  np.testing.assert_allclose(actual, expected, atol=1e-12)
  for variable in (loc, scale, logits):
    np.testing.assert_allclose(
      tape.gradient(actual, variable),
      tape.gradient(expected, variable),
      atol=1e-10,
    )


def test_stopped_surrogate_sticks_the_landing():
  # At q = p the path derivative is 0 for all draws.
  loc, logits = tf.Variable(0.4, dtype=tf.float64), tf.Variable(A)

  def build(loc, logits):
    return tfd.JointDistributionSequential([
      tfd.Normal(loc, 1.0), tfd.Categorical(logits=logits)
    ])  # fmt: skip

  target = build(loc.numpy(), logits.numpy()).log_prob
  for is_stopped in (False, True):
    with tf.GradientTape() as tape:
      q = build(tf.convert_to_tensor(loc), tf.convert_to_tensor(logits))
      stopped = build(tf.stop_gradient(loc), tf.stop_gradient(logits))
      loss = loss_of(
        lambda *parts: target(parts),
        q,
        stopped_surrogate_posterior=stopped if is_stopped else None,
        seed=SEED,
      )
    gradients = tape.gradient(loss, [loc, logits])
    np.testing.assert_allclose(gradients[1], 0.0, atol=1e-12)
    if is_stopped:
      np.testing.assert_allclose(gradients[0], 0.0, atol=1e-12)


# Order and independence.


def test_independent_parts_may_stand_in_any_order():
  normal, bit = tfd.Normal(0.0, 1.0), tfd.Bernoulli(0.3)
  seen = []

  def target(*parts):
    seen.extend(parts)
    return tf.zeros(parts[0].shape)

  loss_of(target, tfd.JointDistributionSequential([bit, normal, bit, normal]))
  # The part is drawn once for all atoms.
  assert len(set(seen[1].numpy())) == len(set(seen[3].numpy())) == 1


def test_interleaved_parts_are_refused():
  def model():
    a = yield tfd.Bernoulli(0.0, name='a')
    b = yield tfd.Normal(tf.cast(a, tf.float32), 1.0, name='b')
    yield tfd.Bernoulli(b, name='c')

  q = tfd.JointDistributionCoroutineAutoBatched(model)
  with raises(ValueError, 'c'):
    loss_of(lambda *parts: parts[1], q)


def test_a_part_of_neither_kind_is_refused():
  q = tfd.JointDistributionNamed({
    'a': tfd.Bernoulli(0.0),
    'b': tfd.Multinomial(3.0, logits=[0.0, 1.0]),
  })  # fmt: skip
  with raises(NotImplementedError, 'b'):
    loss_of(lambda a, b: tf.cast(a, tf.float32), q)


def test_a_joint_distribution_as_a_part_is_refused():
  inner = tfd.JointDistributionNamed(
    {'a': tfd.Normal(0.0, 1.0), 'b': tfd.Bernoulli(0.0)}
  )
  for q in (
    tfd.JointDistributionSequential([inner, tfd.Bernoulli(0.0)]),
    tfd.JointDistributionNamed({'x': inner, 'y': tfd.Bernoulli(0.0)}),
  ):
    with raises(NotImplementedError, 'joint distribution'):
      loss_of(lambda *parts, **named: tf.zeros([3]), q)


def test_placeholders_that_a_part_refuses_are_named():
  q = tfd.JointDistributionSequential([
    tfd.OneHotCategorical(logits=[0.0, 1.0], dtype=tf.float32),
    lambda z: tfd.Categorical(probs=z, validate_args=True),
  ])  # fmt: skip
  with raises(ValueError, 'validate_args'):
    loss_of(lambda z, y: tf.zeros(y.shape), q)


def test_stopped_surrogate_must_have_the_same_parts():
  parts = [tfd.Normal(0.0, 1.0), tfd.Bernoulli(0.0)]
  for stopped in (3, tfd.JointDistributionSequential(parts[::-1])):
    with raises(ValueError, 'stopped_surrogate_posterior'):
      loss_of(
        lambda x, y: x,
        tfd.JointDistributionSequential(parts),
        stopped_surrogate_posterior=stopped,
      )


def test_exact_entropy_names_the_part_that_has_none():
  q = tfd.JointDistributionSequential([
    tfb.Exp()(tfd.Normal(0.0, 1.0)), tfd.Bernoulli(0.0)
  ])  # fmt: skip
  with raises(NotImplementedError, 'exact_entropy'):
    loss_of(lambda x, y: x, q, exact_entropy=True)


@pytest.mark.slow
def test_parts_may_be_drawn_in_strata():
  # The test compares means of 2,000 draws within 5.5 standard errors.
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=2.0, num_samples=3),
    num_summed=2,
    sampler=tfp_rb.samplers.Stratified(),
  )

  @tf.function
  def run(seed, estimator):
    return loss_of(
      score, joint_of('sequential', A, B, C), gradient_estimator=estimator,
      seed=seed,
    )  # fmt: skip

  exact = run(tf.constant(SEED), ALL)
  draws = np.array([run(tf.constant([i, 5]), estimator) for i in range(2000)])
  error = np.std(draws) / np.sqrt(len(draws))
  assert 0.0 < error < 0.02
  assert np.abs(np.mean(draws) - exact) < 5.5 * error


@pytest.mark.parametrize(
  ('num_summed', 'num_samples', 'baseline', 'discrepancy'),
  [
    (0, 2, baselines.LeaveOneOut(), 'kl_reverse'),
    (1, 2, None, 'kl_forward'),
    pytest.param(  # this case draws everything that is left
      20, 4, baselines.LeaveOneOut(), 'kl_reverse', marks=pytest.mark.slow
    ),
  ],
)
def test_every_order_of_distinct_draws_of_parts_averages_to_the_sum(
  num_summed, num_samples, baseline, discrepancy
):
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples),
    num_summed=num_summed,
    sampler=tfp_rb.samplers.WithoutReplacement(),
  )
  discrepancy_fn = getattr(tfp.vi, discrepancy)
  variables = [tf.constant(v) for v in (A, B, C)]

  def with_gradient(loss):
    with tf.GradientTape() as tape:
      tape.watch(variables)
      value = loss()
    return flat([value, *tape.gradient(value, variables)])

  @tf.function
  def run(drawn):  # [num_samples, 3], one row for each draw
    rows = iter(tf.unstack(drawn))
    scripted = WithDraws(estimator, lambda *_: next(rows)[tf.newaxis])
    return with_gradient(
      lambda: loss_of(
        score,
        joint_of('sequential', *variables),
        discrepancy_fn=discrepancy_fn,
        gradient_estimator=scripted,
        seed=SEED,
      )
    )

  def explicit_sum():
    log_q = log_joint(*variables)
    return tf.reduce_sum(tf.exp(log_q) * discrepancy_fn(SCORES - log_q))

  summed = np.asarray(tfp_rb.partition(parts_of(), num_summed).values)
  summed = {tuple(value) for value in summed}
  rest = [z for z in np.ndindex(3, 4, 2) if z not in summed]
  probs = np.exp(log_joint(A, B, C))
  mean, total = 0.0, 0.0
  for drawn in itertools.permutations(rest, num_samples):
    left = sum(probs[z] for z in rest)
    chance = 1.0
    for z in drawn:
      chance *= probs[z] / left
      left -= probs[z]
    mean += chance * run(tf.constant(drawn, tf.int32)).numpy()
    total += chance
  np.testing.assert_allclose(total, 1.0, atol=1e-12)
  np.testing.assert_allclose(mean, with_gradient(explicit_sum), atol=1e-10)


def test_draws_given_values_of_parts_follow_the_law_of_the_others():
  q, probs = parts_of(), np.exp(log_joint(A, B, C)).ravel()
  given = [5, 0, 17]
  values = np.stack(np.unravel_index(given, [3, 4, 2]), axis=-1)
  part = tfp_rb.partition(q, 2).excluding(tf.constant(values, tf.int32))
  np.testing.assert_allclose(part.weights, probs[given], atol=1e-12)
  law = probs.copy()
  law[given] = 0.0
  np.testing.assert_allclose(part.rest_weight, np.sum(law), atol=1e-12)
  # Each value has an interval of uniforms, whose ends a grid finds up to 1 / n.
  n = 2**16
  u = (np.arange(n) + 0.5) / n
  drawn = np.asarray(part.rest_from_uniforms(u[:, np.newaxis])) @ [8, 2, 1]
  np.testing.assert_allclose(
    np.bincount(drawn, minlength=24) / n, law / np.sum(law), atol=1.5 / n
  )


def test_discrete_parts_have_the_batch_of_the_whole():
  q = tfd.JointDistributionNamed({
    'a': tfd.Bernoulli(0.0),
    'b': tfd.Normal(tf.zeros([5]), 1.0),
  })  # fmt: skip
  with raises(ValueError, 'a'):
    loss_of(lambda a, b: b, q)


# Shapes.


def test_auto_batched_joint_distribution_with_a_batch():
  seen = []

  def target(c, d):
    seen.extend([c, d])
    return tf.reduce_sum(c, axis=-1) + tf.cast(d, tf.float32)

  q = tfd.JointDistributionSequentialAutoBatched(
    [
      tfd.Normal(tf.zeros([4, 3]), 1.0),
      tfd.Categorical(logits=tf.zeros([4, 5])),
    ],
    batch_ndims=1,
  )
  assert loss_of(target, q).shape == [4]
  assert [x.shape for x in seen] == [(3, 4, 3), (3, 4)]


def test_sites_of_an_auto_batched_joint_distribution():
  seen = []

  def target(c, d):
    seen.append(d)
    return c * tf.reduce_sum(tf.cast(d, tf.float32), axis=-1)

  q = tfd.JointDistributionSequentialAutoBatched(
    [tfd.Normal(0.0, 1.0), tfd.Categorical(logits=tf.zeros([7, 5]))]
  )
  assert loss_of(target, q).shape == []
  assert seen[0].shape == [7 * (5 - 1) + 1, 7]


def test_a_continuous_part_for_a_whole_batch_of_sites():
  # The target has one term for each site, so there are as many atoms as for one
  # site.
  seen = []
  loc = tf.Variable(0.3)

  def target(c, d):
    seen.append(d)
    return -((c[:, tf.newaxis] - tf.cast(d, tf.float32)) ** 2)

  with tf.GradientTape() as tape:
    q = tfd.JointDistributionSequential(
      [tfd.Normal(loc, 1.0), tfd.Categorical(logits=tf.zeros([7, 5]))]
    )
    loss = loss_of(target, q)
  assert loss.shape == [7]
  assert seen[0].shape == [3, 7]
  assert tape.gradient(loss, loc).shape == []


def test_exact_entropy_of_parts():
  logits = tf.Variable(A)
  q = tfd.JointDistributionSequential(
    [tfd.Normal(tf.constant(0.0, tf.float64), 2.0),
     tfd.Categorical(logits=logits), tfd.Bernoulli(logits=C[0])]
  )  # fmt: skip
  with tf.GradientTape(persistent=True) as tape:
    loss = loss_of(
      lambda c, d, e: tf.zeros(c.shape, c.dtype), q, exact_entropy=True
    )
    entropies = [tf.cast(x.entropy(), tf.float64) for x in q.model]
    entropy = tf.add_n(entropies)
  np.testing.assert_allclose(loss, -entropy, atol=1e-6)  # one part is float32
  np.testing.assert_allclose(
    tape.gradient(loss, logits), -tape.gradient(entropy, logits), atol=1e-12
  )


def test_exact_entropy_of_dependent_parts_is_refused():
  with raises(NotImplementedError, 'exact_entropy'):
    loss_of(score, joint_of('sequential', A, B, C), exact_entropy=True)


def test_shift_is_trained_through_the_values():
  shift = tf.Variable(2.0, dtype=tf.float64)
  count = tfd.NegativeBinomial(tf.constant(3.0, tf.float64), logits=0.1)
  with tf.GradientTape() as tape:
    q = tfd.JointDistributionSequential([
      tfd.TransformedDistribution(count, tfb.Shift(shift)),
      tfd.Bernoulli(logits=tf.constant(0.0, tf.float64)),
    ])  # fmt: skip
    loss = loss_of(lambda n, _: -n, q)
  np.testing.assert_allclose(tape.gradient(loss, shift), 1.0, atol=1e-12)


# Part by part.


def several(logits, bits, c):
  return tfd.JointDistributionNamed({
    'label': tfd.Categorical(logits=logits),
    'bits': tfd.Independent(tfd.Bernoulli(logits=bits), 1),
    'c': tfd.Deterministic(c),
  })  # fmt: skip


def additive(label, bits, c):
  own = tf.gather(tf.constant(A), label)
  return c * (own + tf.reduce_sum(tf.cast(bits, c.dtype), axis=-1))


@pytest.mark.parametrize('name', ['kl_reverse', 'kl_forward'])
def test_independent_parts_go_one_by_one_if_one_has_sites(name):
  # A sum over parts is exact once all symbols of each part are summed. The
  # exception is its gradient w.r.t. variables that all parts share, which is
  # evaluated at one joint draw.
  logits, bits, c = (tf.Variable(x) for x in (A, B[0, :2], np.array(0.7)))
  seen = []

  def target(label, bits, c):
    seen.append(label.shape[0])
    return additive(label, bits, c)

  with tf.GradientTape(persistent=True) as tape:
    q = several(logits, bits, tf.convert_to_tensor(c))
    actual = loss_of(
      target,
      q,
      gradient_estimator=tfp_rb.local_expectation(
        tfp_rb.REINFORCE(), num_summed=2
      ),
      discrepancy_fn=getattr(tfp.vi, name),
      seed=SEED,
    )
  gradients = tape.gradient(actual, [logits, bits, c])
  # The atoms are the joint value, two other labels, and the other symbol of
  # each bit.
  assert seen == [1 + 2 + 2]
  assert all(np.all(np.isfinite(g)) for g in gradients)
  if name == 'kl_forward':
    return
  # The gradient w.r.t. the bits is exact, since all of their symbols were
  # summed.
  with tf.GradientTape() as tape:
    p = tf.sigmoid(bits)
    entropy = tf.reduce_sum(tfd.Bernoulli(logits=bits).entropy())
    expected = -entropy - c * tf.reduce_sum(p)
  np.testing.assert_allclose(
    gradients[1], tape.gradient(expected, bits), atol=1e-12
  )


def test_parts_that_go_one_by_one_are_unbiased():
  # The test compares means of 2,000 draws. A difference of 5.5 standard errors
  # fails; by chance, one of the 6 numbers does so with probability 1e-6.
  logits, bits, c = (tf.constant(x) for x in (A, B[0, :2], np.array(0.7)))
  interacting = lambda label, bits, c: additive(label, bits, c) ** 2

  @tf.function
  def run(seed, estimator):
    with tf.GradientTape() as tape:
      tape.watch([logits, bits, c])
      loss = loss_of(
        interacting,
        several(logits, bits, c),
        gradient_estimator=estimator,
        seed=seed,
      )
    return flat([loss, *tape.gradient(loss, [logits, bits, c])])

  exact = run(
    tf.constant(SEED),
    tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=12),
  )
  default = tfp_rb.local_expectation(
    tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=2),
    num_summed=1,
  )
  draws = np.array([run(tf.constant([i, 5]), default) for i in range(2000)])
  error = np.std(draws, axis=0) / np.sqrt(len(draws))
  np.testing.assert_array_less(
    np.abs(np.mean(draws, axis=0) - exact), 5.5 * error + 1e-12
  )
  # The errors are small, so the test can detect a relevant bias.
  assert np.max(error[1:]) < 0.03 * np.max(np.abs(exact[1:]))


def test_what_goes_one_by_one_must_be_independent():
  estimator = tfp_rb.local_expectation(tfp_rb.REINFORCE(), num_summed=1)
  with raises(TypeError, 'local_expectation'):
    loss_of(
      score, joint_of('sequential', A, B, C), gradient_estimator=estimator
    )
  with raises(ValueError, 'MuProp'):
    loss_of(
      additive,
      several(A, B[0, :2], np.array(0.7)),
      gradient_estimator=tfp_rb.local_expectation(
        tfp_rb.MuProp(), num_summed=1
      ),
    )
