# SPDX-License-Identifier: Apache-2.0
"""The N-mixture experiment: exact sums, both estimators, committed results."""

import csv
import pathlib

import numpy as np
import pytest
from scipy import special, stats
import tensorflow as tf

import scripts

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / 'examples'
RESULTS = EXAMPLES / 'results' / 'n_mixture'


@pytest.fixture(scope='module')
def n_mixture():
  # It defines no flags unless it is run, so it can be imported next to others.
  from examples.paper import n_mixture

  return n_mixture


def read(path):
  with path.open(newline='') as file:
    return list(csv.DictReader(file))


# The naive version handles one observation at a time, with the paper's
# formulas.

OBSERVATIONS = np.repeat(np.arange(9), [105, 261, 318, 198, 80, 26, 11, 0, 1])


def naive_log_joint(N):
  return stats.binom.logpmf(OBSERVATIONS, N, 0.2).sum() + stats.poisson.logpmf(
    N, 10.0
  )


def naive_coded_f(n, r, p):
  N = n + 8
  log_q = stats.nbinom.logpmf(n, r, 1.0 - p)
  entropy = -np.exp(log_q) * log_q
  log_likelihood = stats.binom.logpmf(OBSERVATIONS, N, 0.2).sum()
  return -(log_likelihood + N * np.log(10) - special.gammaln(N + 1) + entropy)


def naive_score(n, r, p):
  """Returns the derivatives of `log q(n)` w.r.t. `r` and the logit of `p`."""
  return np.array([
    special.digamma(n + r) - special.digamma(r) + np.log1p(-p),
    n * (1.0 - p) - r * p,
  ])  # fmt: skip


def naive_losses(r, logit):
  p, n = special.expit(logit), np.arange(150)
  log_q = stats.nbinom.logpmf(n, r, 1.0 - p)
  joint = np.array([naive_log_joint(i + 8) for i in n])
  coded = np.array([naive_coded_f(i, r, p) for i in n])
  return np.exp(log_q) @ (log_q - joint), np.exp(log_q) @ coded


@pytest.mark.parametrize('as_published', [False, True])
def test_the_initial_losses_are_those_of_the_paper(n_mixture, as_published):
  model = n_mixture.NMixture(as_published=as_published)
  _, negative_elbo, coded = model.long_sums(tf.constant(model.initial(2)))
  np.testing.assert_allclose(negative_elbo, 1924.9, atol=0.05)
  np.testing.assert_allclose(coded, 1917.3, atol=0.05)
  expected = naive_losses(7.0, 0.0)
  np.testing.assert_allclose(negative_elbo, expected[0], rtol=1e-10)
  np.testing.assert_allclose(coded, expected[1], rtol=1e-10)


def test_long_sums_are_exact_elsewhere(n_mixture):
  # One point is the last one of the paper, where the losses are 1654.9 and
  # 1663.4; the other is arbitrary.
  model = n_mixture.NMixture(as_published=True)
  points = np.array([[6.851, 3.0], [-1.202, 0.5]])
  _, negative_elbo, coded = model.long_sums(tf.constant(points))
  expected = np.array([naive_losses(*point) for point in points.T])
  np.testing.assert_allclose(negative_elbo, expected[:, 0], rtol=1e-10)
  np.testing.assert_allclose(coded, expected[:, 1], rtol=1e-10)
  assert abs(coded[0] - 1654.9) < 0.05
  assert abs(negative_elbo[0] - 1663.4) < 0.05


def test_the_evidence_and_the_posterior(n_mixture):
  posterior, log_evidence = n_mixture.NMixture().posterior()
  joint = np.array([naive_log_joint(N) for N in range(8, 100)])
  np.testing.assert_allclose(log_evidence, special.logsumexp(joint), rtol=1e-12)
  assert abs(log_evidence + 1633.3) < 0.05
  assert abs(posterior[2] - 0.9999) < 5e-5  # N = 10
  np.testing.assert_allclose(posterior.sum(), 1.0, rtol=1e-12)


def test_with_many_values_summed_the_gradient_is_exact(n_mixture):
  model = n_mixture.NMixture()
  points = np.array([[7.0, 6.5, 5.0], [0.0, -1.1, 0.3]])
  estimator = n_mixture.make_estimator(n_mixture.SHARED, 200)
  found = model.gradient(estimator, tf.constant(points), [1, 2])
  exact = model.exact_gradient(tf.constant(points))
  np.testing.assert_allclose(found, exact, rtol=1e-7)
  # The reference is finite differences of the naive sum, through softplus.
  step = 1e-5
  for point, gradient in zip(points.T, exact.numpy().T):
    for axis in range(2):
      moved = np.array([point, point])
      moved[:, axis] += step, -step
      up, down = (naive_losses(np.logaddexp(0.0, r), x)[0] for r, x in moved)
      np.testing.assert_allclose(gradient[axis], (up - down) / 2 / step, 1e-5)


@pytest.mark.parametrize('num_summed', [0, 1, 3])
def test_the_published_estimator_is_its_formula(n_mixture, num_summed):
  # The test fixes the draw and the baselines of two trials at once.
  model = n_mixture.NMixture(as_published=True)
  r, logits = np.array([7.0, 6.7]), np.array([0.0, -0.8])
  parameters = tf.constant(np.stack([r, logits]))
  drawn = np.array([[9.0, 10.0]])  # the second value is a neighbor of the mode
  others = np.array([[15.0, 8.0], [11.0, 9.0], [20.0, 12.0], [14.0, 8.0]])
  summed, random_draw, fresh = model.published_atoms(
    num_summed, parameters, tf.constant([3, 4])
  )
  assert random_draw.shape == [1, 2] and fresh.shape == [num_summed + 1, 2]
  found = model.published_gradient(
    parameters,
    summed,
    tf.constant(drawn),
    tf.constant(others[-num_summed - 1 :]),
  ).numpy()
  for trial in range(2):
    p = special.expit(logits[trial])
    mode = np.floor(p * (r[trial] - 1.0) / (1.0 - p))
    values = [[], [mode], [], [mode, mode - 1, mode + 1]][num_summed]
    weights = [1.0] * num_summed  # not q(z), as published
    rest = 1.0 - sum(stats.nbinom.pmf(n, r[trial], 1.0 - p) for n in values)
    expected = np.zeros(2)
    for n, weight, other in zip(
      [*values, drawn[0, trial] - 8.0],
      [*weights, rest],
      others[-num_summed - 1 :, trial] - 8.0,
    ):
      difference = naive_coded_f(n, r[trial], p)
      difference -= naive_coded_f(other, r[trial], p)
      expected += weight * difference * naive_score(n, r[trial], p)
    np.testing.assert_allclose(found[:, trial], expected, rtol=1e-8)


def test_only_the_mode_is_excluded_as_published(n_mixture):
  model = n_mixture.NMixture(as_published=True)
  parameters = tf.constant(model.initial(2000))
  summed, drawn, _ = model.published_atoms(3, parameters, tf.constant([5, 6]))
  np.testing.assert_array_equal(summed[:, 0], [14.0, 13.0, 15.0])
  assert not np.any(drawn == 14.0)
  assert np.any(drawn == 13.0) and np.any(drawn == 15.0)


@pytest.mark.parametrize(
  ('name', 'num_summed'),
  [('EACH', 1), pytest.param('SHARED', 3, marks=pytest.mark.slow)],
)
def test_exact_variances_are_those_of_the_library(n_mixture, name, num_summed):
  # The limit is 6 standard errors of many draws: one square can be 3,000 times
  # the mean.
  model, baseline = n_mixture.NMixture(), getattr(n_mixture, name)
  points = np.array([[7.0, 6.9], [0.0, -0.8]])
  measured, error = n_mixture.measured_variance(
    model, points, (baseline, num_summed, 1), 20_000, seed=1
  )
  for i, point in enumerate(points.T):
    exact = n_mixture.exact_variance(model, point, baseline, num_summed)
    assert abs(measured[i] - exact) < 6.0 * error[i]
    assert error[i] < 0.2 * exact


def test_the_exact_path_descends(n_mixture):
  model, num_steps = n_mixture.NMixture(), 30
  path = n_mixture.sgd_path(model.exact_gradient, model.initial(), num_steps, 0)
  losses, _ = n_mixture.losses_along(model, path[..., np.newaxis], 0)
  assert np.all(np.diff(losses['negative_elbo'][:, 0]) < 0.0)
  for before, after in zip(path[:3], path[1:]):
    gradient = model.exact_gradient(tf.constant(before)).numpy()
    np.testing.assert_allclose(after, before - 1e-4 * gradient, rtol=1e-10)


# The committed results.


@pytest.mark.parametrize('as_published', [False, True])
def test_the_committed_paths_are_the_simulated_ones(n_mixture, as_published):
  # Both are means of 150 trials. The limit is 3 standard errors of the
  # difference, plus the rounding of the simulated values.
  folder = '150_trials_as_published' if as_published else '150_trials'
  rows = {
    (int(row['num_summed']), int(row['iteration'])): row
    for row in read(RESULTS / folder / 'paths.csv')
  }
  assert len(rows) == 3 * 100
  for k in n_mixture.SUMMED:
    assert abs(float(rows[k, 0]['coded_loss']) - 1917.3) < 0.05
    assert abs(float(rows[k, 0]['negative_elbo']) - 1924.9) < 0.05
    simulated = n_mixture.SIMULATED[as_published, k]
    for iteration, expected in zip(n_mixture.ITERATIONS, simulated):
      row = rows[k, iteration]
      assert row['trials'] == '150'
      unit = np.sqrt(2.0) * float(row['coded_loss_se'])
      assert abs(float(row['coded_loss']) - expected) < 3.0 * unit + 0.5


def test_the_committed_results_show_what_is_claimed(n_mixture):
  rows = read(RESULTS / 'variances.csv')
  relative = {
    (row['baseline'], int(row['num_summed']), int(row['num_draws'])): []
    for row in rows
  }
  for row in rows:
    key = row['baseline'], int(row['num_summed']), int(row['num_draws'])
    relative[key].append(float(row['relative_at_equal_calls']))
  assert {len(x) for x in relative.values()} == {4}
  # As in the paper, summing gives more variance, not less, at equal calls of f.
  assert min(relative[n_mixture.EACH, 1, 1]) > 1.4
  assert min(relative[n_mixture.EACH, 3, 1]) > 1.3
  # Draws that serve as each other's baseline, and larger k, reverse this.
  assert max(relative[n_mixture.LEAVE_ONE_OUT, 3, 5]) < 0.5
  assert max(relative[n_mixture.SHARED, 20, 1]) < 1e-2
  variance = {
    (row['baseline'], int(row['num_summed'])): float(row['variance'])
    for row in rows
    if row['iteration'] == '30' and row['num_draws'] == '1'
  }
  plain = variance[n_mixture.EACH, 0]
  assert variance[n_mixture.EACH, 1] < 0.85 * plain
  assert variance[n_mixture.EACH, 3] < 0.5 * plain
  for name in ('paths.png', 'variances.png', 'as_published/paths.png'):
    assert (RESULTS / name).stat().st_size > 10_000


@pytest.mark.parametrize('flags', [[], ['--as_published', '--data_seed=3']])
@pytest.mark.slow
def test_the_example_writes_tables_and_figures(tmp_path, flags):
  printed = scripts.run_command(
    'examples/paper/n_mixture.py', '--smoke', f'--output_dir={tmp_path}', *flags
  )
  assert 'evidence' in printed
  assert (tmp_path / 'paths.png').stat().st_size > 10_000
  rows = read(tmp_path / 'paths.csv')
  assert len(rows) == 11
  assert all(np.isfinite(float(row['coded_loss'])) for row in rows)
  assert (tmp_path / 'variances.csv').exists() == (not flags)
  assert ('paper' in read(tmp_path / 'final_q.csv')[0]) == (not flags)
