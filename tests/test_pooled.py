# SPDX-License-Identifier: Apache-2.0
"""One budget for a whole batch: its allocation, its atoms, and unbiasedness."""

import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import internals
import tfp_rb
from tfp_rb import baselines

tfd = tfp.distributions

SEED = (3, 1)


def naive_level(priority, number):
  """Returns the `c` at which `sum(min(1, priority / c))` is `number`.

  The search is by bisection.
  """
  low, high = 0.0, np.sum(priority) + 1.0
  for _ in range(200):
    middle = 0.5 * (low + high)
    if np.sum(np.minimum(1.0, priority / middle)) > number:
      low = middle
    else:
      high = middle
  return high


def naive_priority(probs):
  """Returns `q(z) |e_z - q|` of all but the best value, best first.

  The result has shape `[K - 1, B]`.
  """
  ordered = -np.sort(-probs, axis=1)
  norm = np.sqrt(1.0 - 2.0 * ordered + np.sum(ordered**2, axis=1)[:, None])
  return (ordered * norm)[:, 1:].T


def random_logits(rng, num_rows, num_values):
  scale = rng.choice([0.2, 1.0, 4.0], size=[num_rows, 1])
  return scale * rng.normal(size=[num_rows, num_values])


def mean_over_outcomes(estimate, outcomes, variables):
  """Returns mean value and gradients of `estimate(outcome)`."""

  @tf.function(autograph=False)
  def run(u):
    with tf.GradientTape() as tape:
      value = estimate(u)
    gradients = tape.gradient(value, variables, unconnected_gradients='zero')
    return [value, *map(tf.convert_to_tensor, gradients)]

  totals = [0.0] * (1 + len(variables))
  for outcome, chance in outcomes:
    results = run(tf.constant(outcome, tf.float64))
    totals = [t + chance * r.numpy() for t, r in zip(totals, results)]
  return totals


ESTIMATORS = {
  'default': lambda: None,
  'constant': lambda: tfp_rb.REINFORCE(baseline=0.7),
  'constant_of_rows': lambda: tfp_rb.REINFORCE(
    baseline=tf.constant([0.7, -1.0, 0.2], tf.float64)
  ),
  'Learned': lambda: tfp_rb.REINFORCE(baselines.Learned(np.float64(0.4))),
  'NVIL': lambda: tfp_rb.NVIL(tf.constant([[0.3], [1.0], [-2.0]], tf.float64)),
}


@pytest.mark.parametrize('number', [4, 5, 7, 11, 12])
@pytest.mark.parametrize('name', ESTIMATORS)
def test_value_and_gradient_are_unbiased(name, number):
  rng = np.random.default_rng(number)
  logits = tf.Variable(random_logits(rng, 3, 4))
  cost = tf.Variable(5.0 + rng.normal(size=[3, 4]))
  estimator = tfp_rb.pooled(ESTIMATORS[name](), budget=number)

  def f(z, rows):
    # The scale depends on the parameters of `q` as well.
    scale = 1.0 + 0.1 * tf.gather(tf.reduce_sum(logits**2, axis=-1), rows)
    return scale * tf.gather_nd(cost, tf.stack([rows, z], axis=-1))

  def estimate(u):
    q = tfd.Categorical(logits=logits)
    return internals.pooled_estimate(f, q, estimator, u)

  q = tfd.Categorical(logits=logits)
  outcomes = internals.pooled_outcomes(q, estimator)
  actual = mean_over_outcomes(estimate, outcomes, [logits, cost])
  with tf.GradientTape() as tape:
    scale = 1.0 + 0.1 * tf.reduce_sum(logits**2, axis=-1)
    terms = tf.nn.softmax(logits) * scale[:, tf.newaxis] * cost
    value = tf.reduce_sum(terms, axis=-1)
  expected = [value, *tape.gradient(value, [logits, cost])]
  for a, e in zip(actual, expected, strict=True):
    np.testing.assert_allclose(a, e, atol=1e-10)


def test_the_hessian_is_unbiased():
  rng = np.random.default_rng(8)
  logits = tf.Variable(random_logits(rng, 2, 3))
  cost = tf.constant(rng.normal(size=[2, 3]))
  direction = tf.constant(rng.normal(size=[2, 3]))
  estimator = tfp_rb.pooled(budget=4)

  def product(value_of):
    with tf.GradientTape() as outer:
      with tf.GradientTape() as inner:
        value = tf.reduce_sum(value_of())
      along = tf.reduce_sum(inner.gradient(value, logits) * direction)
    return outer.gradient(along, logits).numpy()

  def f(z, rows):
    return tf.gather_nd(cost, tf.stack([rows, z], axis=-1)) + tf.gather(
      tf.reduce_sum(logits**3, axis=-1), rows
    )

  q = tfd.Categorical(logits=logits)
  actual = sum(
    chance
    * product(
      lambda u=u: internals.pooled_estimate(
        f, tfd.Categorical(logits=logits), estimator, u
      )
    )
    for u, chance in internals.pooled_outcomes(q, estimator)
  )
  expected = product(
    lambda: (
      tf.reduce_sum(tf.nn.softmax(logits) * cost, axis=-1)
      + tf.reduce_sum(logits**3, axis=-1)
    )
  )
  np.testing.assert_allclose(actual, expected, atol=1e-10)


def test_a_value_whose_natural_score_vanishes_is_included():
  # The score w.r.t. the logits is z (1 - p) - n p, which is 0 at z = 4.
  q = tfd.NegativeBinomial(
    total_count=np.array([4.0, 4.0]), logits=np.zeros([2])
  )
  estimator = tfp_rb.pooled(budget=4, num_candidates=8)
  found = {
    float(z)
    for u in np.linspace(0.01, 0.99, 50)
    for z in internals.pooled_sample(q, estimator, [u] * 5).values.numpy()
  }
  assert 4.0 in found


@pytest.mark.parametrize(
  'make',
  [
    lambda: tfd.Poisson(np.array([0.4, 3.0])),
    lambda: tfd.Independent(
      tfd.Bernoulli(logits=np.array([[0.3, 2.0, -1.0], [0.1, 0.2, 3.0]])), 1
    ),
    pytest.param(
      lambda: tfd.NegativeBinomial(
        total_count=np.array([4.0, 1.5]), logits=np.array([0.0, -0.4])
      ),
      marks=pytest.mark.slow,
    ),
  ],
  ids=['Poisson', 'product', 'NegativeBinomial'],
)
def test_values_beyond_the_candidates_enter_by_draws(make):
  # The draw of a row is one of many, so this is a calibrated test of the mean
  # value. At a false-fail rate of 1e-6 (4.9 standard errors), it finds a bias
  # of 19 % of the spread of one draw with probability .99.
  q = make()
  rank = len(q.event_shape)
  estimator = tfp_rb.pooled(budget=4, num_candidates=2)

  def feature(z):
    z = tf.cast(z, tf.float64)
    weights = tf.range(1.0, 4.0, dtype=tf.float64)
    return tf.reduce_sum(weights * z, axis=-1) if rank else z + 0.1 * z**2

  f = lambda z, rows: feature(z) + 2.0 * tf.cast(rows, tf.float64)
  run = tf.function(lambda seed: tfp_rb.expectation(f, q, estimator, seed=seed))
  values = np.array([run(tf.constant([i, 9])) for i in range(1500)])
  every = tfp_rb.partition(q, 8 if rank else 60)
  expected = np.sum(every.weights.numpy() * feature(every.values), axis=0)
  expected = expected + 2.0 * np.arange(2)
  error = np.std(values, axis=0) / np.sqrt(len(values))
  assert np.all(np.abs(np.mean(values, axis=0) - expected) < 4.9 * error + 1e-9)


@pytest.mark.parametrize('batch_shape', [[5], [2, 3], [1], []])
def test_weights_of_a_row_sum_to_one_and_atoms_are_as_many_as_the_budget(
  batch_shape,
):
  rng = np.random.default_rng(0)
  logits = 2.0 * rng.normal(size=[*batch_shape, 6])
  num_rows = int(np.prod(batch_shape))
  for number in (num_rows + 1, num_rows + 3):
    atoms = tfp_rb.pooled(budget=number).sample_atoms(
      tfd.Categorical(logits=logits), seed=SEED
    )
    assert atoms.values.shape == atoms.weights.shape == [number]
    rows = atoms.pool.rows.numpy()
    np.testing.assert_array_equal(rows[:num_rows], np.arange(num_rows))
    sums = np.bincount(rows, atoms.weights, num_rows)
    np.testing.assert_allclose(sums, 1.0, atol=1e-12)
    log_probs = tf.nn.log_softmax(np.reshape(logits, [num_rows, 6])).numpy()
    np.testing.assert_allclose(
      atoms.log_prob, log_probs[rows, atoms.values.numpy()], atol=1e-12
    )
    values, is_draw = atoms.values.numpy(), atoms.pool.is_draw.numpy()
    pairs = list(zip(rows[~is_draw], values[~is_draw], strict=True))
    assert len(set(pairs)) == len(pairs)  # Only independent draws may repeat.


def cells_of(priority):
  """Returns the cells of one row.

  The best value contributes its mass and nothing else.
  """
  weights = tf.concat([[1.0], tf.constant(priority, tf.float64)], axis=0)
  weights = weights[tf.newaxis]
  return internals.allocation.Cells(weights, tf.ones_like(weights), False)


def test_inclusion_probabilities_are_those_of_least_variance():
  rng = np.random.default_rng(1)
  for _ in range(50):
    priority = rng.exponential(size=12) ** 3
    number = int(rng.integers(1, 12))
    cells = cells_of(priority)
    spent = internals.allocation.allocate(cells, number)
    p = np.where(
      spent.is_summed[0], 1.0, np.diff(spent.line.numpy(), prepend=0.0)
    )[1:]
    np.testing.assert_allclose(np.sum(p), number, atol=1e-9)
    np.testing.assert_allclose(
      p, np.minimum(1.0, priority / naive_level(priority, number)), atol=1e-9
    )
    bound = np.sum(priority**2 / p)
    other = np.clip(p + 0.1 * rng.normal(size=12), 1e-3, 1.0)
    for _ in range(20):  # this restores the sum
      other = np.clip(other + (number - np.sum(other)) / 12, 1e-3, 1.0)
    assert np.sum(priority**2 / other) >= bound * (1.0 - 1e-6)


@pytest.mark.parametrize('scale', [0.1, 3.0])
def test_many_candidates_of_float32_leave_no_mass_out_of_reach(scale):
  rng = np.random.default_rng(2)
  logits = tf.constant(scale * rng.normal(size=[64, 4624]), tf.float32)
  q = tfd.Categorical(logits=logits)
  estimator = tfp_rb.pooled(budget=384, num_candidates=4624)
  cells = internals.pooled_cells(q, estimator)
  spent = internals.allocation.allocate(cells, 320)
  # Each cell that is not summed has a length on one of the two lines, and each
  # line ends where it should.
  on_line = np.diff(spent.line.numpy(), prepend=0.0).reshape([64, 4624])
  drawn = np.diff(spent.masses.numpy(), prepend=0.0, axis=1)
  assert np.all(spent.is_summed.numpy() | (on_line > 0.0) | (drawn > 0.0))
  assert spent.line.numpy()[-1] == int(spent.num_points)
  slots = int(spent.num_certain) + int(spent.num_points)
  further = spent.num_draws - tf.cast(spent.draws_best, tf.int32)
  assert slots + np.sum(further) == 320
  for u in (1e-12, 0.3, 1.0 - 1e-12):
    chosen = internals.allocation.select(
      cells, spent, 320, tf.fill([385], tf.constant(u, tf.float64))
    )
    assert np.all(chosen.weights.numpy() > 0.0)
    rows = chosen.cell.numpy() // 4624
    np.testing.assert_array_equal(rows[:64], np.arange(64))
    points = chosen.cell.numpy()[384 - int(spent.num_points) :]
    # There is one point in each unit of the line.
    end = spent.line.numpy()[points]
    assert np.all(np.floor(end + 1.0 - u) >= np.arange(len(points)))
    assert len(set(points)) == len(points)


@pytest.mark.parametrize(
  'logits',
  [
    [[0.0, 0.1, -0.1, 0.2, 0.1, 0.0], [9.0, 0.0, 1.0, 0.0, 0.5, 0.0]],
    [[0.0, 0.1, -0.1, 0.2, 0.1, 0.0], [0.3, 0.0, 0.1, 0.0, 0.2, 0.0]],
    [[3.0, 0.1, -0.1, 0.2, 0.1, 0.0], [0.3, 0.0, 0.1, 0.0, 0.2, 0.0]],
  ],
  ids=['one flat row', 'flat rows', 'a row in between'],
)
@pytest.mark.parametrize('number', [3, 4])
def test_flat_rows_are_drawn_with_the_others_as_baseline(logits, number):
  rng = np.random.default_rng(number)
  variable = tf.Variable(np.array(logits))
  cost = tf.constant(20.0 + rng.normal(size=[2, 6]))
  f = lambda z, rows: tf.gather_nd(cost, tf.stack([rows, z], axis=-1))
  estimator = tfp_rb.pooled(budget=number)
  q = tfd.Categorical(logits=variable)
  outcomes = internals.pooled_outcomes(q, estimator)

  def estimate(u):
    q = tfd.Categorical(logits=variable)
    return internals.pooled_estimate(f, q, estimator, u)

  actual = mean_over_outcomes(estimate, outcomes, [variable])
  with tf.GradientTape() as tape:
    value = tf.reduce_sum(tf.nn.softmax(variable) * cost, axis=-1)
  for a, e in zip(actual, [value, tape.gradient(value, variable)]):
    np.testing.assert_allclose(a, e, atol=1e-10)
  atoms = internals.pooled_sample(q, estimator, outcomes[0][0])
  pool = atoms.pool
  drawn = np.bincount(pool.rows.numpy()[pool.is_draw.numpy()], minlength=2)
  # With a single draw, there would be no baseline.
  assert not np.any(drawn == 1)
  if number == 4 and logits[1][0] < 1.0 and logits[0][0] < 1.0:
    np.testing.assert_array_equal(drawn, [2, 2])


def test_an_offset_of_f_does_not_matter():
  logits = np.array([[0.0, 0.1, -0.1, 0.2, 0.1], [6.0, 0.0, 1.0, 0.0, 0.5]])
  variable = tf.Variable(logits)
  estimator = tfp_rb.pooled(budget=4)
  gradients = []
  for offset in (0.0, 1e8):
    with tf.GradientTape() as tape:
      value = tfp_rb.expectation(
        lambda z, rows, c=offset: tf.cast(z, tf.float64) + c,
        tfd.Categorical(logits=variable),
        estimator,
        seed=SEED,
      )
    gradients.append(tape.gradient(value, variable).numpy())
  np.testing.assert_allclose(*gradients, atol=1e-6)


def test_spare_slots_repeat_a_best_value_without_weight():
  logits = np.array([[0.0, -np.inf, -np.inf], [0.0, 1.0, -np.inf]])
  seen = []

  def f(z, rows):
    seen.extend(zip(rows.numpy(), z.numpy(), strict=True))
    return tf.cast(z, tf.float64)

  estimator = tfp_rb.pooled(budget=5)
  q = tfd.Categorical(logits=logits)
  value = tfp_rb.expectation(f, q, estimator, seed=SEED)
  np.testing.assert_allclose(value, [0.0, tf.sigmoid(1.0)], atol=1e-6)
  assert len(seen) == 5
  assert set(seen) <= {(0, 0), (1, 0), (1, 1)}  # nothing else is possible
  weights = estimator.sample_atoms(q, seed=SEED).weights.numpy()
  assert np.count_nonzero(weights) == 3


def test_a_single_candidate_leaves_everything_to_draws():
  logits = np.random.default_rng(5).normal(size=[3, 4])
  estimator = tfp_rb.pooled(budget=9, num_candidates=1)
  atoms = estimator.sample_atoms(tfd.Categorical(logits=logits), seed=SEED)
  sums = np.bincount(atoms.pool.rows, atoms.weights, 3)
  np.testing.assert_allclose(sums, 1.0, atol=1e-12)


@pytest.mark.parametrize('jit_compile', [False, True])
def test_eager_graph_and_xla_agree(jit_compile):
  logits = tf.constant(np.random.default_rng(3).normal(size=[4, 5]))
  f = lambda z, rows: tf.cast(z, tf.float64) ** 2 + tf.cast(rows, tf.float64)
  estimator = tfp_rb.pooled(budget_per_row=1.5)

  def run(seed):
    q = tfd.Categorical(logits=logits)
    return tfp_rb.expectation(f, q, estimator, seed=seed)

  compiled = tf.function(run, jit_compile=jit_compile, autograph=False)
  for i in range(3):
    seed = tf.constant([i, 1])
    np.testing.assert_allclose(compiled(seed), run(seed), atol=1e-12)


def test_the_number_of_rows_may_be_unknown_while_tracing():
  estimator = tfp_rb.pooled(budget_per_row=1.25)
  f = lambda z, rows: tf.cast(z, tf.float64) + tf.cast(rows, tf.float64)

  @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float64)])
  def run(logits):
    q = tfd.Categorical(logits=logits)
    return tfp_rb.expectation(f, q, estimator, seed=[0, 1])

  logits = np.random.default_rng(4).normal(size=[9, 4])
  static = tfp_rb.expectation(
    f, tfd.Categorical(logits=logits), estimator, seed=[0, 1]
  )
  np.testing.assert_allclose(run(logits), static, atol=1e-12)
  assert run(logits[:0]).shape == [0]


def test_a_large_budget_of_unknown_rows_evaluates_everything():
  estimator = tfp_rb.pooled(budget_per_row=3e9)

  @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float64)])
  def num_atoms(logits):
    q = tfd.Categorical(logits=logits)
    return tf.shape(estimator.sample_atoms(q, seed=[0, 1]).weights)[0]

  assert num_atoms(np.zeros([3, 4])) == 12


def test_an_empty_batch_has_an_empty_result():
  q = tfd.Categorical(logits=np.zeros([0, 3]))
  f = lambda z, rows: tf.cast(z, tf.float64)
  for estimator in (tfp_rb.pooled(budget=4), tfp_rb.pooled(budget_per_row=2.0)):
    assert tfp_rb.expectation(f, q, estimator).shape == [0]


def test_row_weights_move_evaluations_and_leave_every_row_unbiased():
  logits = np.tile([[0.0, 0.1, 0.3]], [4, 1])
  probs = np.exp(logits) / np.sum(np.exp(logits), axis=1, keepdims=True)
  weights = np.array([0.0, 1.0, 1.0, 6.0])
  estimator = tfp_rb.pooled(budget=7, row_weights=weights)
  q = tfd.Categorical(logits=logits)
  f = lambda z, rows: tf.cast(z, tf.float64)
  total, count = 0.0, 0.0
  for u, chance in internals.pooled_outcomes(q, estimator):
    value = internals.pooled_estimate(f, q, estimator, u)
    total = total + chance * value.numpy()
    atoms = internals.pooled_sample(q, estimator, u)
    count = count + chance * np.bincount(atoms.pool.rows, minlength=4)
  np.testing.assert_allclose(total, probs @ np.arange(3.0), atol=1e-10)
  assert count[3] == np.max(count) > 2.5 and np.argmin(count) == 0


@pytest.mark.parametrize('scale', [1e-300, 1e-170, 1e170, 1e308])
def test_the_common_scale_of_row_weights_does_not_matter(scale):
  q = tfd.Categorical(logits=np.zeros([3, 50]))
  atoms = [
    tfp_rb.pooled(budget=30, row_weights=[r] * 3).sample_atoms(q, seed=SEED)
    for r in (1.0, scale)
  ]
  np.testing.assert_array_equal(atoms[0].values, atoms[1].values)
  np.testing.assert_allclose(atoms[0].weights, atoms[1].weights, rtol=1e-12)


def test_the_largest_budget_sums_every_value():
  logits = 30.0 * np.random.default_rng(6).normal(size=[5, 8])
  estimator = tfp_rb.pooled(budget_per_row=1e308)
  atoms = estimator.sample_atoms(tfd.Categorical(logits=logits), seed=SEED)
  pairs = set(zip(atoms.pool.rows.numpy(), atoms.values.numpy()))
  assert len(pairs) == len(atoms.weights) == 40


def test_it_is_silent_where_the_target_is_reached():
  # At q = p, vi's signal is 0 for each row.
  log_p = tf.constant(np.log([[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]))
  logits = tf.Variable(log_p)
  estimator = tfp_rb.pooled(budget=4)
  with tf.GradientTape() as tape:
    q = tfd.Categorical(logits=logits)
    loss = tfp_rb.vi.monte_carlo_variational_loss(
      lambda z, rows: tf.gather_nd(log_p, tf.stack([rows, z], axis=-1)),
      q,
      gradient_estimator=estimator,
      seed=SEED,
    )
  np.testing.assert_allclose(loss, 0.0, atol=1e-12)
  np.testing.assert_allclose(tape.gradient(loss, logits), 0.0, atol=1e-12)


def test_learned_offsets_are_regressed_on_what_is_included():
  estimator = tfp_rb.pooled(
    tfp_rb.REINFORCE(baselines.Learned(np.float64(0.0))), budget=4
  )
  q = tfd.Categorical(logits=np.array([[2.0, 0.0], [2.0, 0.0]]))
  f = lambda z, rows: 10.0 + 3.0 * tf.cast(z, tf.float64)
  (offset,) = estimator.trainable_variables
  with tf.GradientTape() as tape:
    loss = tf.reduce_mean(tfp_rb.expectation(f, q, estimator, seed=SEED))
  # Everything is included, so the level is the mean, 10 + 3 q(1), and `f` at
  # the other values lies 3 q(0) above the level.
  expected = -2.0 * 3.0 * tf.sigmoid(2.0).numpy()
  np.testing.assert_allclose(tape.gradient(loss, offset), expected, rtol=1e-6)


@pytest.mark.parametrize('shape', [[], [1], [3], [2, 1], [2, 3], [2, 3, 1]])
def test_a_level_of_each_row_is_broadcast_to_the_batch(shape):
  level = tf.reshape(tf.range(2.0, 2.0 + np.prod(shape, dtype=int)), shape)
  full = level[..., 0] if len(shape) == 3 else level
  full = tf.broadcast_to(full, [2, 3])
  logits = np.random.default_rng(5).normal(size=[2, 3, 4])
  q = tfd.Categorical(logits=logits)
  f = lambda z, rows: tf.cast(z, tf.float64)

  def surrogate(level):
    with tf.GradientTape() as tape:
      tape.watch(logits := tf.constant(q.logits))
      value = tfp_rb.expectation(
        f,
        tfd.Categorical(logits=logits),
        tfp_rb.pooled(tfp_rb.REINFORCE(baseline=level), budget=10),
        seed=SEED,
      )
    return tape.gradient(value, logits)

  np.testing.assert_array_equal(surrogate(level), surrogate(full))


@pytest.mark.parametrize('shape', [[4], [9], [1, 3], [3, 1, 1]], ids=str)
@pytest.mark.parametrize(
  'make',
  [lambda level: tfp_rb.REINFORCE(baseline=level), tfp_rb.NVIL],
  ids=['REINFORCE', 'NVIL'],
)
def test_a_level_must_have_the_batch_shape(make, shape):
  q = tfd.Categorical(logits=np.zeros([3, 4]))
  f = lambda z, rows: tf.cast(z, tf.float64)
  with raises(ValueError, 'baseline'):
    tfp_rb.expectation(
      f, q, tfp_rb.pooled(make(tf.zeros(shape)), budget=5), seed=SEED
    )


def test_a_config_round_trips():
  estimator = tfp_rb.pooled(
    tfp_rb.REINFORCE(baseline=2.0),
    budget_per_row=np.float32(1.25),
    num_candidates=5,
    row_weights=[1.0, 2.0],
  )
  config = json.loads(json.dumps(estimator.get_config()))
  copy = type(estimator).from_config(config)
  assert copy.budget_per_row == 1.25 and isinstance(copy.budget_per_row, float)
  np.testing.assert_array_equal(copy.row_weights, [1.0, 2.0])
  assert copy.num_candidates == 5
  assert repr(copy.estimator) == repr(estimator.estimator)


Q = tfd.Categorical(logits=np.zeros([3, 4]))


def pooled_f(z, rows):
  del rows
  return tf.cast(z, tf.float64)


@pytest.mark.parametrize(
  ('kind', 'argument', 'call'),
  [
    (ValueError, 'budget', lambda: tfp_rb.pooled()),
    (
      ValueError,
      'num_samples',
      lambda: tfp_rb.pooled(tfp_rb.REINFORCE(num_samples=2), budget=4),
    ),
    (ValueError, 'budget', lambda: tfp_rb.pooled(budget=4, budget_per_row=2.0)),
    (ValueError, 'budget_per_row', lambda: tfp_rb.pooled(budget_per_row=1.0)),
    (TypeError, 'budget', lambda: tfp_rb.pooled(budget=4.0)),
    (ValueError, 'budget_per_row', lambda: tfp_rb.pooled(budget_per_row='2')),
    (
      TypeError,
      'row_weights',
      lambda: tfp_rb.pooled(budget=4, row_weights=['1', '2']),
    ),
    (
      ValueError,
      'budget_per_row',
      lambda: tfp_rb.pooled(budget_per_row=np.inf),
    ),
    (
      ValueError,
      'row_weights',
      lambda: tfp_rb.pooled(budget=4, row_weights=[np.inf, 1.0]),
    ),
    (
      ValueError,
      'row_weights',
      lambda: tfp_rb.expectation(
        pooled_f, Q, tfp_rb.pooled(budget=5, row_weights=[[1.0, 2.0, 3.0]])
      ),
    ),
    (
      ValueError,
      'budget',
      lambda: tfp_rb.expectation(pooled_f, Q, tfp_rb.pooled(budget=3)),
    ),
    (
      ValueError,
      'num_candidates',
      lambda: tfp_rb.expectation(
        pooled_f, Q, tfp_rb.pooled(budget=5, num_candidates=9)
      ),
    ),
    (
      TypeError,
      'rows',
      lambda: tfp_rb.expectation(
        lambda z: tf.cast(z, tf.float64), Q, tfp_rb.pooled(budget=5)
      ),
    ),
    (
      ValueError,
      'f',
      lambda: tfp_rb.expectation(
        lambda z, rows: tf.zeros([5, 1]), Q, tfp_rb.pooled(budget=5)
      ),
    ),
    (
      TypeError,
      'rows',
      lambda: tfp_rb.expectation(
        lambda z, y=2: tf.cast(z + y, tf.float64), Q, tfp_rb.pooled(budget=5)
      ),
    ),
  ]
  + [
    (TypeError, 'estimator', lambda e=e: tfp_rb.pooled(e, budget=5))
    for e in (
      tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=2),
      tfp_rb.REINFORCE(baselines.IndependentSample()),
      tfp_rb.MuProp(),
      tfp_rb.Exact(),
      tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1),
      tfp_rb.pooled(budget=3),
    )
  ],
)
def test_bad_input_is_refused(kind, argument, call):
  with raises(kind, argument):
    call()


def pool_problem(logits):
  cost = tf.constant([[3.0, 1.0, 2.0], [0.0, 4.0, 1.0]], tf.float64)
  scale = 1.0 + 0.1 * tf.reduce_sum(logits**2, axis=-1)

  def f(z, rows):
    index = tf.stack([rows, z], axis=-1)
    return tf.gather(scale, rows) * tf.gather_nd(cost, index)

  return f, tfd.Categorical(logits=logits)


LOGITS = tf.constant([[0.0, 1.0, 2.0], [3.0, 0.0, 0.5]], tf.float64)


@pytest.mark.parametrize(
  'number', [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5))]
)
def test_diagnostics_enumerate_a_pool(number):
  estimator = tfp_rb.pooled(budget=number)
  report = tfp_rb.testing.assert_unbiased(estimator, pool_problem, [LOGITS])
  assert report.is_exact
  moments = tfp_rb.diagnostics.exact_moments(estimator, pool_problem, [LOGITS])
  assert moments.bias < 1e-12
  assert moments.num_evaluations == number / 2

  @tf.function(autograph=False)
  def gradient(seed):
    with tf.GradientTape() as tape:
      tape.watch(LOGITS)
      f, q = pool_problem(LOGITS)
      loss = tf.reduce_sum(tfp_rb.expectation(f, q, estimator, seed=seed))
    return tape.gradient(loss, LOGITS)

  gradients = [gradient(tf.constant([i, 4])).numpy() for i in range(2000)]
  drawn = np.sum(np.var(gradients, axis=0))
  np.testing.assert_allclose(drawn, moments.variance, rtol=0.2)


def test_a_biased_pool_is_found():
  class WithoutLevel(tfp_rb.REINFORCE):
    why_not_pooled = None

    def evaluate(self, f, distribution, atoms, seed):
      estimate = super().evaluate(f, distribution, atoms, seed)
      return estimate._replace(surrogate=1.1 * estimate.surrogate)

  with raises(AssertionError, 'gradient'):
    tfp_rb.testing.assert_unbiased(
      tfp_rb.pooled(WithoutLevel(), budget=4), pool_problem, [LOGITS]
    )
