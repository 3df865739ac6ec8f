# SPDX-License-Identifier: Apache-2.0
"""The examples run, and reproduce the numbers of the paper."""

import csv
import pathlib
import runpy
import types

import numpy as np
import pytest

import scripts

pytestmark = pytest.mark.all_cases

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / 'examples'


@pytest.fixture(scope='module')
def bernoulli():
  from examples.paper import bernoulli

  return bernoulli


@pytest.mark.slow
def test_the_bernoulli_example_writes_tables_and_figures(tmp_path):
  printed = scripts.run_command(
    'examples/paper/bernoulli.py', '--smoke', f'--output_dir={tmp_path}'
  )
  assert 'Variance of the gradient' in printed
  for name in ('figure_1_loss_paths.png', 'figure_2_gradients.png'):
    assert (tmp_path / name).stat().st_size > 10_000
  with open(tmp_path / 'variances.csv') as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 3 * 2 * 2
  assert all(np.isfinite(float(row['measured'])) for row in rows)
  with open(tmp_path / 'paths.csv') as file:
    assert len(list(csv.DictReader(file))) == 3 * 2 * 100


def test_the_exact_path_is_that_of_the_paper(bernoulli):
  losses = bernoulli.loss_paths('REINFORCE', 8, trials=2, steps=1000, seed=0)
  steps = np.array([1, 50, 100, 200, 300, 350, 400, 500, 700, 1000])
  expected = [
    0.8473, 0.8467, 0.8458, 0.8422, 0.8229, 0.7585, 0.6967, 0.6786, 0.6737,
    0.6721,
  ]  # fmt: skip
  np.testing.assert_allclose(
    losses[steps - 1], np.repeat(np.array(expected)[:, None], 2, 1), atol=6e-5
  )


# Means of 2,000 trials of an independent simulation, and the standard error
# that a mean of 20 trials has there.
SIMULATED = {
  ('REINFORCE', 1): {
    300: (0.814, 0.009),
    350: (0.780, 0.013),
    400: (0.745, 0.014),
    500: (0.702, 0.011),
  },
  ('REINFORCE+ (as published)', 3): {
    300: (0.8216, 0.002),
    350: (0.762, 0.0065),
    400: (0.7015, 0.003),
  },
}


@pytest.mark.parametrize(('name', 'num_summed'), SIMULATED)
@pytest.mark.slow
def test_loss_paths_lie_on_the_simulated_ones(bernoulli, name, num_summed):
  # The limit is 5 standard errors of the difference, a false-fail rate of 6e-7
  # each. If a path is off by half the band of 20 trials, the test finds it with
  # probability 0.99.
  trials, expected = 2000, SIMULATED[name, num_summed]
  losses = bernoulli.loss_paths(name, num_summed, trials, max(expected), seed=1)
  for step, (mean, error_of_20) in expected.items():
    error = error_of_20 * np.sqrt(20 / trials + 20 / 2000)
    assert abs(losses[step - 1].mean() - mean) < 5.0 * error + 5e-4, step


# These variances come from enumeration; ties go to the first atom.
EXACT_VARIANCES = {
  ('REINFORCE+ (as published)', 0.0): [
    0.01252, 0.00773, 0.00636, 0.00520, 0.00362, 0.00213, 0.00147, 0.000984,
    0.000984,
  ],
  ('REINFORCE+ (as published)', -4.0): [
    7.52e-4, 3.31e-5, 1.39e-5, 3.32e-6, 2.58e-6, 2.54e-6,
  ],
  ('REINFORCE', 0.0): [
    0.438, 0.194, 0.130, 0.070, 0.055, 0.014, 0.0075, 0.0, 0.0,
  ],
  ('REINFORCE', -4.0): [0.0336, 5.06e-5, 2.78e-5, 1.16e-5, 3.8e-8],
}  # fmt: skip


@pytest.mark.parametrize(('name', 'eta'), EXACT_VARIANCES)
def test_exact_variances_are_those_of_the_enumeration(bernoulli, name, eta):
  expected = EXACT_VARIANCES[name, eta]
  found = [bernoulli.exact_variance(name, k, eta) for k in range(len(expected))]
  np.testing.assert_allclose(found, expected, rtol=0.03, atol=1e-12)


@pytest.mark.parametrize('num_summed', [1, 4, 8])
def test_measured_variance_agrees_with_the_exact_one(bernoulli, num_summed):
  name = 'REINFORCE+ (as published)'
  etas, num_draws = [0.0, -4.0], 20_000
  draws = bernoulli.gradient_draws(name, num_summed, etas, num_draws, seed=3)
  for eta, row in zip(etas, draws):
    centred = (row - row.mean()) ** 2
    error = centred.std() / np.sqrt(num_draws)
    exact = bernoulli.exact_variance(name, num_summed, eta)
    # The limit is 6 standard errors, because the squares are skewed.
    assert abs(centred.mean() - exact) < 6.0 * error


def test_a_shared_draw_leaves_no_noise_when_all_atoms_are_summed(bernoulli):
  name = 'REINFORCE+ (shared draw)'
  draws = bernoulli.gradient_draws(name, 8, [0.0, -4.0], 50, seed=0)
  np.testing.assert_allclose(draws[0], -0.045, atol=1e-12)
  np.testing.assert_allclose(draws[1], -0.003179, atol=1e-6)
  assert np.ptp(draws[1]) < 1e-12


# The variances of all estimators.


@pytest.mark.slow
def test_the_variance_benchmark_writes_what_it_prints(tmp_path):
  # This script runs in a separate process, as a user starts it from a command
  # line. One script has to run like this, and this one sets the seeds of the
  # process.
  printed = scripts.run_command(
    'examples/benchmarks/variance.py',
    '--smoke',
    f'--output_dir={tmp_path}',
    in_process=False,
  )
  assert 'ReinMax' in printed
  assert (tmp_path / 'variance.png').stat().st_size > 10_000
  with open(tmp_path / 'variance.csv') as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 3 * 2
  assert all(float(row['variance']) > 0.0 for row in rows)


def test_the_page_of_benchmarks_shows_the_committed_variances():
  results = EXAMPLES / 'results' / 'variance' / 'variance.csv'
  script = EXAMPLES / 'benchmarks' / 'variance.py'
  with scripts.no_flags_but_those_of_absl(), scripts.as_started(script):
    variance = types.SimpleNamespace(**runpy.run_path(str(script)))
    rows = variance.read(results)
    assert {row['problem'] for row in rows} == set(variance.PROBLEMS)
    assert {row['estimator'] for row in rows} == set(variance.ESTIMATORS)
    summary = variance.summary(rows).strip()
  page = EXAMPLES.parent / 'docs' / 'benchmarks.md'
  assert summary in page.read_text(encoding='utf-8')


@pytest.mark.slow
def test_pools_are_compared_with_budgets_per_row(tmp_path):
  printed = scripts.run_command(
    'examples/benchmarks/pooled.py',
    f'--output_dir={tmp_path}', '--batches=3', '--estimates=20',
  )  # fmt: skip
  with open(tmp_path / 'pooled.csv') as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 27
  assert all(float(row['ratio']) > 0.0 for row in rows)
  assert (tmp_path / 'pooled.png').stat().st_size > 10_000
  assert 'quantiles' in printed


@pytest.mark.slow
def test_images_in_doubt_get_more_evaluations_of_a_pool(tmp_path):
  from examples.paper import semisupervised_mnist as experiment

  start = tmp_path / 'start.npz'
  experiment.save_networks(experiment.make_model('Exact', seed=0), start)
  printed = scripts.run_command(
    'examples/benchmarks/pooled_images.py',
    f'--output_dir={tmp_path}', f'--checkpoint={start}', '--source=embedded',
  )  # fmt: skip
  with open(tmp_path / 'images.csv') as file:
    rows = list(csv.DictReader(file))
  images = sum(int(row['images']) for row in rows)
  spent = sum(int(row['evaluations']) * int(row['images']) for row in rows)
  assert spent == 1.25 * images
  assert np.isclose(sum(float(row['share']) for row in rows), 1.0, atol=1e-4)
  assert (tmp_path / 'images.png').stat().st_size > 10_000
  assert 'evaluations' in printed
