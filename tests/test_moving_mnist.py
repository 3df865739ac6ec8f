"""The script of the moving-MNIST experiment."""

import csv
import shutil

import numpy as np
import pytest
import tensorflow as tf

import scripts


def test_the_script_writes_rows_and_figures(tmp_path):
  run = lambda *args: scripts.run(
    'moving_mnist.py', f'--output_dir={tmp_path}', *args
  )
  run(
    '--smoke', '--source=embedded', '--methods=RB-REINFORCE+', '--epochs=2',
    '--num_seeds=1', '--as_published',
  )  # fmt: skip
  with (tmp_path / 'paths.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 3
  assert all('subset' in row['data'] for row in rows)
  assert all('entropy x 64' in row['data'] for row in rows)
  # At first 784 log 2 in the window, and 18.42 for each lit pixel elsewhere.
  assert 543 < float(rows[0]['val_negative_elbo']) < 3000
  assert 2 < float(rows[0]['val_distance']) < 30
  figures = [
    'figure_5.png', 'figure_6.png', 'RB-REINFORCE+/reconstructions.png'
  ]  # fmt: skip
  for name in figures:
    assert (tmp_path / name).stat().st_size > 5_000
    (tmp_path / name).unlink()
  # Of the CSV files alone: no logs, no models.
  shutil.rmtree(tmp_path / 'RB-REINFORCE+' / '0')
  before = (tmp_path / 'paths.csv').read_text()
  table = run('--plot_only')
  assert (tmp_path / 'paths.csv').read_text() == before
  for name in figures:
    assert (tmp_path / name).stat().st_size > 5_000
  assert 'RB-REINFORCE+' in table


@pytest.fixture(scope='module')
def script():
  with scripts.as_started(scripts.EXAMPLES / 'moving_mnist.py'):
    import moving_mnist  # defines no flags

    yield moving_mnist


def test_an_epoch_is_the_same_whenever_a_run_begins(script):
  digits = np.arange(300)[:, np.newaxis, np.newaxis]

  def epoch(first, skip):
    data = script.training_data(digits, first, 3).skip(skip).take(4)
    return np.concatenate([*data.as_numpy_iterator()])

  whole, resumed = epoch(0, 8), epoch(2, 0)
  np.testing.assert_array_equal(whole, resumed)
  assert len(np.unique(whole)) == 256
  assert np.any(epoch(0, 4) != whole)


def test_methods_start_alike(script):
  small = {'frame': 12, 'window': 4, 'hidden_units': 3, 'channels': 1}
  first, second = (
    script.make_model(name, seed, **small)
    for name, seed in (('RB-REINFORCE+', 0), ('NVIL', 1))
  )
  for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
    np.testing.assert_array_equal(a, b)


def test_a_run_that_was_stopped_ends_with_the_same_numbers(script, tmp_path):
  # RELAX has an optimizer of its own, whose state has to come back, too.
  small = {'frame': 12, 'window': 4, 'hidden_units': 3, 'channels': 2}
  digits = np.random.default_rng(0).integers(256, size=[128, 4, 4])
  test_data = tf.data.Dataset.from_tensor_slices(digits).batch(64)

  def run(folder, epochs):
    model = script.make_model('RELAX', 0, jit_compile=False, **small)
    log = script.run(
      model, 0, digits, test_data, tmp_path / folder, epochs, 'noise'
    )
    assert list(log['epoch']) == list(range(epochs))
    everything = [*model.weights, *model.estimator.variables]
    return log, [np.asarray(v) for v in everything]

  log, whole = run('whole', 2)
  run('stopped', 1)
  resumed_log, resumed = run('stopped', 2)
  for a, b in zip(resumed, whole, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
  for column in ('loss', 'val_negative_elbo', 'val_distance'):
    np.testing.assert_allclose(resumed_log[column], log[column], rtol=1e-5)


def test_epochs_and_seconds_to_a_level():
  with scripts.as_started(scripts.EXAMPLES / 'moving_mnist.py'):
    import moving_report
  log = {
    'val_negative_elbo': [2000.0, 700.0, 499.0, 600.0],
    'seconds': [np.nan, 3.0, 4.0, 5.0],
  }
  assert moving_report.to_reach(log) == (2, 7.0)
  assert np.all(np.isnan(moving_report.to_reach(log, level=1.0)))
