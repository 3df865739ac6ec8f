# SPDX-License-Identifier: Apache-2.0
"""Closed forms of the variance w.r.t. the location, and the script for them."""

import csv
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import scripts
from tfp_rb import models
from tfp_rb.diagnostics import _closed_forms as closed_forms


@pytest.fixture(scope='module')
def script():
  from examples.benchmarks import moving_exact_variance

  return moving_exact_variance


def enumerate_independent_draws(q, f, num_summed, num_draws):
  """Returns the total variance of REINFORCE+ over all outcomes of its draws."""
  scores, size = np.eye(len(q)) - q, len(q)
  rest = range(num_summed, size)
  mass = q[num_summed:].sum()
  first = second = 0.0
  num_draws = num_draws if mass > 0.0 else 0
  for draws in itertools.product(rest, repeat=num_draws):
    atoms = [*range(num_summed), *draws]
    weights = [*q[:num_summed], *([mass / max(num_draws, 1)] * num_draws)]
    for others in itertools.product(range(size), repeat=len(atoms)):
      chance = np.prod(q[list(draws)] / mass) * np.prod(q[list(others)])
      gradient = sum(
        w * (f[z] - f[other]) * scores[z]
        for w, z, other in zip(weights, atoms, others, strict=True)
      )
      first = first + chance * gradient
      second += chance * gradient @ gradient
  np.testing.assert_allclose(first, (q * f) @ scores, atol=1e-12)
  return second - first @ first


@pytest.mark.parametrize(
  ('num_summed', 'num_draws'), [(0, 1), (0, 2), (1, 1), (2, 1), (1, 2), (3, 1)]
)
def test_reinforce_plus_by_enumeration(script, num_summed, num_draws):
  rng = np.random.default_rng(num_summed)
  q = np.sort(rng.dirichlet(np.ones(3)))[::-1]
  f = rng.normal(size=3) + 7.0
  row = script.Row(q, f)
  np.testing.assert_allclose(
    script.of_independent_draws(row, num_summed, num_draws),
    enumerate_independent_draws(q, f, num_summed, num_draws),
    rtol=1e-10,
  )


@pytest.mark.parametrize('budget', [1, 2, 3, 6])
def test_leave_one_out_has_the_variance_that_the_library_uses(script, budget):
  rng = np.random.default_rng(budget)
  q = np.sort(rng.dirichlet(0.3 * np.ones(40)))[::-1]
  row = closed_forms.Row(q, rng.normal(size=40) + 7.0)
  variance = lambda k, m: closed_forms.variance(row, k, m, leave_one_out=True)
  for k, m in [(1, 1), (3, 1), (0, 2), (2, 2), (4, 3)]:
    found = script.of_leave_one_out(row, k, m)
    np.testing.assert_allclose(found, variance(k, m), rtol=1e-10)
  if budget > 1:
    k = closed_forms.proposition_2(row, budget)
    np.testing.assert_allclose(
      script.of_budget(row, budget), variance(k, budget - k), rtol=1e-10
    )


@pytest.mark.slow
def test_f_is_evaluated_at_every_location(script):
  keras.utils.set_random_seed(0)
  model = models.MovingVAE(
    frame=10, window=4, channels=1, hidden_units=3, latent_dim=1
  )
  bias = model.encoder.layers[-1].bias
  bias.assign([0.3, -30.0])  # this leaves `z` hardly any noise
  kernel = model.encoder.layers[-1].kernel
  kernel.assign(np.where(np.arange(2) < 1, kernel, 0.0))
  pixels = np.random.default_rng(0).random([3, 10, 10]) > 0.6
  frames = tf.constant(pixels, tf.float32)
  rows = script.rows_of(model, frames, seed=0, most_windows=21)
  log_probs = model(frames).numpy()
  for b, row in enumerate(rows):
    order = np.argsort(-log_probs[b], kind='stable')
    q = np.exp(np.float64(log_probs[b][order]))
    np.testing.assert_allclose(row.q, q / q.sum(), rtol=1e-12)
    for i in (0, 41, 99):
      f = model.negative_bound(frames[b : b + 1], [[order[i]]], [5, 5])
      np.testing.assert_allclose(row.f[i], f[0, 0], rtol=1e-5)


def test_rows_are_those_of_the_sampled_variances(script):
  names = [row[:2] for row in script.ROWS]
  assert [*names[:-1]] == [row[:2] for row in script.moving_variance.ROWS]
  assert names[-1] == (12, 'budget=12')


def test_the_interval_of_a_ratio_is_that_of_pairs(script):
  base = np.random.default_rng(1).lognormal(sigma=2.0, size=200)
  # The frames differ by orders of magnitude, but the ratio is the same in all
  # of them.
  np.testing.assert_allclose(script.ratio_interval(0.3 * base, base), 0.3)


@pytest.mark.slow
def test_the_script_writes_a_table_and_a_figure(tmp_path):
  keras.utils.set_random_seed(0)
  model = models.MovingVAE(frame=36, channels=1, hidden_units=4)
  model.save(tmp_path / 'start.keras')
  printed = scripts.run_command(
    'examples/benchmarks/moving_exact_variance.py '
    '--checkpoint=outputs/moving_mnist/RB-REINFORCE+/1/last.keras',
    f'--output_dir={tmp_path}',
    f'--checkpoint={tmp_path / "start.keras"}',
    '--source=embedded',
    '--num_frames=3',
  )
  with (tmp_path / 'exact.csv').open() as file:
    rows = {(r['evaluations'], r['estimator']): r for r in csv.DictReader(file)}
  assert float(rows['12', 'RB-REINFORCE+']['over_base']) == 1.0
  plain, six = (float(rows[n, 'REINFORCE+']['logits']) for n in ('2', '12'))
  assert six == pytest.approx(plain / 6, rel=1e-9)  # six draws are averaged
  assert all('3 digits of MNIST subset' in r['data'] for r in rows.values())
  assert (tmp_path / 'exact.png').stat().st_size > 5_000
  assert 'RB-leave-one-out 4 + 2' in printed
