# SPDX-License-Identifier: Apache-2.0
"""The switching linear dynamical system: density, resumed runs and results."""

import csv
import itertools
import pathlib

import numpy as np
import pytest
from scipy import special, stats
import tensorflow as tf

import scripts

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / 'examples'
RESULTS = EXAMPLES / 'results' / 'switching_dynamics'


@pytest.fixture(scope='module')
def switching():
  # It defines no flags unless it is run, so it can be imported next to others.
  from examples.studies import switching_dynamics

  return switching_dynamics


@pytest.fixture(scope='module')
def model(switching):
  return switching.switching_model


def read(path):
  with path.open(newline='') as file:
    return list(csv.DictReader(file))


# The naive version treats all observations of a path as one Gaussian vector.


def naive_log_joint(truth, z, y):
  num_steps = len(z)
  steps = np.eye(2 * num_steps)  # maps points to the terms added at each step
  added = np.ones(2 * num_steps)
  log_prior = -np.log(3.0)
  for t in range(1, num_steps):
    cos, sin = (f(truth.angle[z[t]]) for f in (np.cos, np.sin))
    turn = truth.radius[z[t]] * np.array([[cos, -sin], [sin, cos]])
    steps[2 * t : 2 * t + 2, 2 * t - 2 : 2 * t] = -turn
    added[2 * t : 2 * t + 2] = truth.scale[z[t]] ** 2
    log_prior += np.log(truth.transition[z[t - 1], z[t]])
  inverse = np.linalg.inv(steps)
  covariance = inverse @ np.diag(added) @ inverse.T
  covariance += truth.observation_scale**2 * np.eye(2 * num_steps)
  mean = np.zeros(2 * num_steps)
  return log_prior + stats.multivariate_normal(mean, covariance).logpdf(
    y.ravel()
  )


@pytest.fixture(scope='module')
def short_series(model):
  return model.simulate(2, 4, seed=3)


@pytest.fixture(scope='module')
def naive_posterior(model, short_series):
  _, y = short_series
  paths = list(itertools.product(range(3), repeat=4))
  log_joint = np.array(
    [[naive_log_joint(model.TRUTH, z, x) for x in y] for z in paths]
  )
  return log_joint - special.logsumexp(log_joint, axis=0), log_joint


def test_the_filter_is_the_density_of_a_gaussian_vector(
  model, short_series, naive_posterior
):
  _, y = short_series
  paths = model.all_paths(4)
  z = np.repeat(paths[:, np.newaxis], 2, axis=1)
  found = model.Model(y, model.TRUTH).log_joint(tf.constant(z))
  np.testing.assert_allclose(found, naive_posterior[1], atol=2e-4)


def test_rows_choose_the_series_of_a_path(model, short_series):
  z, y = short_series
  own = model.Model(y, model.TRUTH)
  paths, rows = tf.constant(z[[1, 0, 1]], tf.int32), tf.constant([1, 0, 1])
  expected = own.log_joint(tf.constant(z[np.newaxis], tf.int32))[0]
  found = own.log_joint(paths, rows)
  np.testing.assert_allclose(found, tf.gather(expected, rows), rtol=1e-5)


def test_divergence_and_evidence_are_those_of_the_enumeration(
  switching, model, short_series, naive_posterior
):
  _, y = short_series
  posterior, evidence = switching.exact_posterior(y, model.TRUTH)
  np.testing.assert_allclose(posterior, naive_posterior[0], atol=3e-4)
  log_joint = naive_posterior[1]
  expected = special.logsumexp(log_joint, axis=0)
  np.testing.assert_allclose(evidence, expected, atol=2e-4)
  # All fits start from the uniform law.
  method = switching.switching_methods.METHODS['chain, draws']
  fit = switching.Fit(method, y, model.TRUTH, 9, False, jit_compile=False)
  expected = -4.0 * np.log(3.0) - naive_posterior[0].mean(axis=0)
  found = switching.exact_divergence(fit, posterior)
  np.testing.assert_allclose(found, expected.mean(), atol=3e-4)


def test_the_first_guess_is_near_the_truth_but_not_at_it(model):
  _, y = model.simulate(8, 200, seed=0)
  guess = model.first_guess(y)
  errors = np.abs(guess.angle - model.TRUTH.angle)
  assert 0.02 < errors.max() < 0.35
  assert np.ptp(guess.scale) == np.ptp(guess.radius) == 0.0
  np.testing.assert_allclose(guess.transition.sum(axis=-1), 1.0)


def test_regimes_are_compared_up_to_their_names(model):
  true = np.array([[0, 0, 1, 2]])
  share, order = model.best_permutation(np.array([[1, 1, 2, 1]]), true)
  assert share == 0.75 and order[:2] == [1, 2]


# Runs that are stopped before their end.


class StoppedError(Exception):
  pass


@pytest.fixture(scope='module')
def fit(switching, model, short_series):
  _, y = short_series
  method = switching.switching_methods.METHODS['chain, by step']
  start = model.first_guess(y, window=3)
  return switching.Fit(method, y, start, 9, True, jit_compile=False)


class Bar:
  def update(self, number=1):
    pass


def run(switching, fit, path, restart=False, most_calls=99):
  """Returns the rows without their times; stops after some measurements."""
  calls = []

  def measure(fit):
    calls.append(None)
    if len(calls) > most_calls:
      raise StoppedError
    return {'elbo': fit.elbo(0)}

  rows = switching.run(fit, path, (0.3, 6, 2, 1), measure, restart, Bar())
  return [{k: v for k, v in row.items() if k != 'seconds'} for row in rows]


def test_a_stopped_run_ends_with_the_same_numbers(switching, fit, tmp_path):
  whole = run(switching, fit, tmp_path / 'whole.npz')
  variables = [v.numpy() for v in fit.variables]
  assert [row['step'] for row in whole] == [0, 2, 4, 6]
  assert whole[0]['elbo'] < whole[-1]['elbo']
  path = tmp_path / 'stopped.npz'
  with pytest.raises(StoppedError):
    run(switching, fit, path, most_calls=3)
  assert run(switching, fit, path) == whole
  for variable, value in zip(fit.variables, variables, strict=True):
    np.testing.assert_array_equal(variable, value)


def test_a_damaged_checkpoint_is_refused_or_replaced(switching, fit, tmp_path):
  path = tmp_path / 'run.npz'
  whole = run(switching, fit, path)
  path.write_bytes(path.read_bytes()[:-100])
  with pytest.raises(switching.kept_files.Refused, match=r'run\.npz.*damaged'):
    run(switching, fit, path)
  assert run(switching, fit, path, restart=True) == whole


@pytest.mark.slow
def test_the_example_writes_tables_and_a_figure(tmp_path):
  arguments = '--smoke', f'--output_dir={tmp_path}'
  printed = scripts.run_command(
    'examples/studies/switching_dynamics.py', *arguments
  )
  assert 'chain, pooled' in printed
  assert (tmp_path / 'switching.png').stat().st_size > 10_000
  rows = read(tmp_path / 'paths.csv')
  assert len(rows) == 8 * 3
  assert all(np.isfinite(float(row['elbo'])) for row in rows)
  assert len(read(tmp_path / 'short.csv')) == 7 * 3
  assert len(read(tmp_path / 'dynamics.csv')) == (1 + 8) * 3
  # Finished work is not repeated.
  again = scripts.run_command(
    'examples/studies/switching_dynamics.py', *arguments
  )
  table = lambda text: text.split('The figure')[0]
  assert table(again) == table(printed)


# The committed results.


def best_of(rows, column, sign):
  """Returns the last value of each method at its best step size."""
  last = {(row['method'], row['step_size']): row for row in rows}
  best = {}
  for (name, _), row in last.items():
    value = float(row[column])
    best[name] = sign * max(sign * value, sign * best.get(name, value))
  return best, last.values()


def test_the_committed_fits_show_what_is_claimed(switching):
  elbo, last = best_of(read(RESULTS / 'paths.csv'), 'elbo', 1)
  assert set(elbo) == set(switching.switching_methods.METHODS)
  assert len(last) == 3 * len(elbo)
  evaluations = [float(row['evaluations']) for row in last]
  assert max(evaluations) < 1.01 * min(evaluations)
  # With the same estimator, the family matters most; next comes the number of
  # steps.
  assert elbo['chain, 40 draws'] > elbo['mean field, 40 draws'] + 5.0
  assert elbo['chain, draws'] > elbo['mean field, by step'] + 5.0
  assert elbo['chain, 40 draws'] > elbo['chain, draws'] + 1.0
  # In long series, summing hardly matters, and one draw is not enough.
  assert abs(elbo['chain, 8 best + draws'] - elbo['chain, draws']) < 2.0
  assert elbo['chain, by step'] < elbo['mean field, by step'] - 5.0
  assert (RESULTS / 'switching.png').stat().st_size > 10_000


def test_the_committed_divergences_show_what_is_claimed(switching):
  kl, _ = best_of(read(RESULTS / 'short.csv'), 'kl', -1)
  assert set(kl) == set(switching.switching_methods.SHORT_METHODS)
  chains = ('chain, draws', 'chain, 8 best + draws', 'chain, pooled')
  assert max(kl[name] for name in chains) < 0.05
  assert kl['chain, pooled'] < kl['chain, draws']
  assert 0.0 < kl['chain, exact'] < min(kl[name] for name in chains)
  assert kl['mean field, exact'] > 0.3
