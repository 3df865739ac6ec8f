# SPDX-License-Identifier: Apache-2.0
"""The Gaussian mixture experiment: its losses, gradients and results."""

import csv
import math
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from errors import raises
import scripts
import tfp_rb

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / 'examples'
RESULTS = EXAMPLES / 'results' / 'gaussian_mixture'


@pytest.fixture(scope='module')
def gmm():
  # It defines no flags unless it is run, so it can be imported next to others.
  from examples.paper import gaussian_mixture

  return gaussian_mixture


def make_state(num_rows=7, trials=1, scale=4.0, seed=0):
  """Returns `y`, means, logits (some below the floor) and levels.

  The shapes are those of the training loop.
  """
  rng = np.random.default_rng(seed)
  y = 8.0 * rng.normal(size=[1, 1, num_rows, 2])
  means = 8.0 * rng.normal(size=[1, 1, 10, 2])
  logits = scale * rng.normal(size=[1, 1, num_rows, 10])
  logits[..., 0, 3] = -11.0
  level = np.zeros([1, 1, num_rows])
  copies = [np.repeat(x, trials, axis=1) for x in (means, logits, level)]
  return [tf.constant(x) for x in (y, *copies)]


def naive_losses(y, means, logits):
  """Returns the negative ELBO and the authors' loss, term by term."""
  elbo, coded = 0.0, 0.0
  entries = [m for row in means for m in row]
  table = []
  for row in logits:
    weights = [math.exp(max(a, -8.0)) for a in row]
    table += [w / sum(weights) for w in weights]
  prior_mean = sum(m**2 / 128 + math.log(8) for m in entries) / len(entries)
  entropy_mean = -sum(p * math.log(p) for p in table) / len(table)
  for i, x in enumerate(y):
    for j, mean in enumerate(means):
      p = table[10 * i + j]
      square = sum((a - b) ** 2 for a, b in zip(x, mean))
      log_likelihood = -0.5 * square - math.log(2 * math.pi)
      elbo += p * (log_likelihood + math.log(0.1) - math.log(p))
      coded += p * (0.5 * square + prior_mean - entropy_mean)
  for m in entries:
    elbo += -(m**2) / 128 - math.log(8) - 0.5 * math.log(2 * math.pi)
  return -elbo, coded


def test_both_losses_are_those_of_the_naive_sums(gmm):
  y, means, logits, _ = make_state()
  expected = naive_losses(*(x.numpy()[0, 0] for x in (y, means, logits)))
  for as_published, value in zip((False, True), expected):
    loss = gmm.exact_loss(y, means, logits, as_published)
    np.testing.assert_allclose(loss, [[value]], rtol=1e-12)


def exact_gradients(gmm, y, means, logits, as_published):
  with tf.GradientTape() as tape:
    tape.watch([means, logits])
    loss = gmm.exact_loss(y, means, logits, as_published)
  return tape.gradient(loss, [means, logits])


@pytest.mark.parametrize('as_published', [False, True])
def test_all_clusters_summed_give_the_exact_gradient(gmm, as_published):
  y, means, logits, level = make_state(num_rows=50, trials=3)
  expected = exact_gradients(gmm, y, means, logits, as_published)
  # This logit lies below the floor.
  assert expected[1].numpy()[0, 0, 0, 3] == 0.0
  for name in (gmm.SHARED, gmm.LEAVE_ONE_OUT):
    found = gmm.gradients(
      y, means, logits, level, as_published, name, 10, 1, [0, 1]
    )
    for a, b in zip(found, expected):
      np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(('k', 'n'), [(0, 2), (1, 1), (3, 1), (10, 1)])
def test_gradients_are_unbiased(gmm, k, n):
  # With logits of scale 1, every cluster above the floor is drawn often enough.
  y, means, logits, level = make_state(num_rows=2, trials=5_000, scale=1.0)
  expected = exact_gradients(gmm, y, means[:, :1], logits[:, :1], False)
  for name in (gmm.PUBLISHED, gmm.LEAVE_ONE_OUT):
    found = gmm.gradients(y, means, logits, level, False, name, k, n, [3, k])
    for draws, exact in zip(found, expected):
      draws, exact = draws.numpy()[0], exact.numpy()[0, 0]
      error = draws.std(axis=0) / len(draws) ** 0.5
      # The limit is 6 standard errors, because the squares of distances are
      # skewed. No draw hits the one cluster at the floor, and without it the
      # gradient is 1e-3 off.
      assert np.all(np.abs(draws.mean(axis=0) - exact) < 6.0 * error + 2e-3)


def test_evaluations_are_those_that_are_reported(gmm, monkeypatch):
  counts = []
  expectation = tfp_rb.expectation

  def counting(f, *args):
    def counted(z):
      counts[-1] += z.shape[0]
      return f(z)

    return expectation(counted, *args)

  monkeypatch.setattr(tfp_rb, 'expectation', counting)
  state = make_state()
  for name in gmm.MAKERS:
    for k, n in ((0, 2), (3, 1), (10, 1)):
      counts.append(0)
      slopes = gmm.gradients(*state, False, name, k, n, [0, 1])
      assert all(np.all(np.isfinite(x)) for x in slopes)
      assert counts[-1] == gmm.num_calls(name, k, n), (name, k, n)
  # These are the averages and the sums that the paper compares, and the free
  # baseline.
  for a, b in (((0, 2), (1, 1)), ((0, 4), (3, 1))):
    for name in (gmm.PUBLISHED, gmm.LEAVE_ONE_OUT):
      assert gmm.num_calls(name, *a) == gmm.num_calls(gmm.PUBLISHED, *b)


def test_the_exact_path_falls_and_does_not_depend_on_its_batch(gmm):
  problems = [
    gmm.make_dataset(0, 'prior', like_paper=True),
    gmm.make_dataset(1, 'kmeans', like_paper=False),
  ]
  run = lambda problems, trials: gmm.loss_paths(
    problems, gmm.SHARED, 10, 1, trials, 25, False, 0, jit_compile=False
  )
  both = run(problems, 2)
  assert both.shape == (25, 2, 2)
  assert np.all(np.diff(both, axis=0) < 0.0)
  np.testing.assert_allclose(both[:, :, 0], both[:, :, 1], rtol=1e-12)
  np.testing.assert_allclose(both[:, 1, :1], run(problems[1:], 1)[:, 0])


def test_the_start_is_that_of_the_paper(gmm):
  problem = gmm.make_dataset(0, 'prior', like_paper=True)
  probs = tf.nn.softmax(problem.logits).numpy()
  np.testing.assert_allclose(probs.max(axis=1), 0.6906, atol=1e-4)
  loss = gmm.exact_loss(problem.y, problem.means, problem.logits, True)
  np.testing.assert_allclose(loss, 35518.1, rtol=0.01)
  kmeans = gmm.make_dataset(0, 'kmeans', like_paper=True)
  np.testing.assert_array_equal(kmeans.logits, problem.logits)
  nearest = np.sum((kmeans.y[:, None] - kmeans.means) ** 2, axis=-1).argmin(1)
  np.testing.assert_array_equal(nearest, kmeans.logits.argmax(axis=1))


# The script and its committed results.


@pytest.mark.slow
def test_the_script_writes_tables_and_a_figure(tmp_path):
  printed = scripts.run_command(
    'examples/paper/gaussian_mixture.py --as_published',
    '--smoke',
    f'--output_dir={tmp_path}',
  )
  assert 'Gaps of the log loss' in printed
  assert (tmp_path / 'as_published_prior.png').stat().st_size > 10_000
  with open(tmp_path / 'as_published_prior.csv', newline='') as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 3 * 2 * 20
  assert all(float(row['mean_loss']) > 0.0 for row in rows)


def test_an_estimator_that_is_refused_is_told_why(gmm):
  assert gmm.check_estimator(None) and gmm.check_estimator('NVIL')
  with raises(Exception, 'RELAX'):
    gmm.check_estimator('RELAX')
  with raises(Exception, 'SFE'):
    gmm.check_estimator('SFE')


def read_losses(name):
  """Returns mean losses and standard errors.

  The keys are estimator, setting, dataset and step.
  """
  with open(RESULTS / f'{name}.csv', newline='') as file:
    return {
      (
        row['estimator'],
        (int(row['num_summed']), int(row['num_averaged'])),
        int(row['dataset']),
        int(row['step']),
      ): (float(row['mean_loss']), float(row['standard_error']))
      for row in csv.DictReader(file)
    }


@pytest.mark.parametrize('name', ['elbo_prior', 'as_published_prior'])
def test_committed_paths_have_the_order_of_the_paper(gmm, name):
  losses = read_losses(name)
  # k = 1 and n = 4 win on some datasets and lose on others.
  pairs = (
    ((0, 1), (0, 2)),
    ((0, 2), (1, 1)),
    ((0, 2), (0, 4)),
    ((1, 1), (3, 1)),
    ((0, 4), (3, 1)),
    ((3, 1), (10, 1)),
  )
  for step in range(16, 101):
    at = lambda of, setting, step=step: losses[of, setting, 0, step][0]
    for worse, better in pairs:
      assert at(gmm.PUBLISHED, worse) > at(gmm.PUBLISHED, better), step
    # The free baseline gives less noise with the same number of evaluations.
    for setting in gmm.SETTINGS:
      free = at(gmm.LEAVE_ONE_OUT, setting)
      assert free < 1.001 * at(gmm.PUBLISHED, setting), (step, setting)


def test_committed_gaps_are_those_of_the_paper_within_their_errors(gmm):
  losses = read_losses('as_published_prior_6_datasets')

  def gap(worse, better, name=gmm.PUBLISHED):
    high, low = (
      np.array([losses[name, setting, i, 98] for i in range(6)]).T
      for setting in (worse, better)
    )
    error = np.hypot(high[1] / high[0], low[1] / low[0])
    return np.log(high[0] / low[0]), error

  to_exact, _ = gap((0, 1), (10, 1))
  assert to_exact.min() > 0.05 and to_exact.max() < 0.9
  for worse, better in (((0, 2), (1, 1)), ((0, 4), (3, 1))):
    by_dataset, error = gap(worse, better)
    assert np.all(by_dataset > -2.0 * error)
    assert by_dataset.mean() > 0.0
    # With the free baseline there is no doubt: the sums win on every dataset.
    by_dataset, _ = gap(worse, better, gmm.LEAVE_ONE_OUT)
    assert np.all(by_dataset > 0.0)
