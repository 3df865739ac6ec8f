# SPDX-License-Identifier: Apache-2.0
"""The script of the moving-MNIST experiment."""

import csv
import shutil

from absl import app
import numpy as np
import pytest
import tensorflow as tf

from errors import raises
import scripts
from tfp_rb import datasets


@pytest.mark.slow
def test_the_script_writes_rows_and_figures(tmp_path):
  run = lambda *args: scripts.run_command(
    'examples/paper/moving_mnist.py --as_published',
    f'--output_dir={tmp_path}',
    *args,
  )
  run(
    '--smoke', '--source=embedded', '--methods=RB-REINFORCE+', '--epochs=2',
    '--num_seeds=1',
  )  # fmt: skip
  with (tmp_path / 'paths.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 3
  assert all('subset' in row['data'] for row in rows)
  assert all('entropy x 64' in row['data'] for row in rows)
  # At first, the loss is 784 log 2 in the window, plus 18.42 for each lit pixel
  # elsewhere.
  assert 543 < float(rows[0]['val_negative_elbo']) < 3000
  assert 2 < float(rows[0]['val_distance']) < 30
  figures = [
    'figure_5.png', 'figure_6.png', 'RB-REINFORCE+/reconstructions.png'
  ]  # fmt: skip
  for name in figures:
    assert (tmp_path / name).stat().st_size > 5_000
    (tmp_path / name).unlink()
  # The report needs only the CSV files, not the logs or models.
  shutil.rmtree(tmp_path / 'RB-REINFORCE+' / '0')
  before = (tmp_path / 'paths.csv').read_text()
  table = run('--plot_only')
  assert (tmp_path / 'paths.csv').read_text() == before
  for name in figures:
    assert (tmp_path / name).stat().st_size > 5_000
  assert 'RB-REINFORCE+' in table


@pytest.fixture(scope='module')
def script():
  from examples.paper import moving_mnist  # it defines no flags

  return moving_mnist


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
  weights_of = script.training_runs.checkpoints.network_weights
  found = [weights_of(model) for model in (first, second)]
  for a, b in zip(*found, strict=True):
    np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_the_entropy_comes_down_to_its_weight(script, report):
  assert script.entropy_weight(2.0, num_steps=0) == 2.0
  schedule = script.entropy_weight(2.0, num_steps=10)
  weights = [float(schedule(step)) for step in (0, 5, 10, 99)]
  assert weights == pytest.approx([256.0, 2.0 + 254.0 / 8, 2.0, 2.0])
  start = {'source': 'MNIST', 'entropy_weight': 1.0, 'settings': {}}
  assert report.title_of(start) == 'MNIST, entropy x 1'
  start['settings'] |= {'anneal_epochs': 7, 'annealed_from': 256.0}
  assert (
    report.title_of(start) == 'MNIST, entropy x 1, from 256 within 7 epochs'
  )


@pytest.mark.slow
def test_annealed_runs_have_a_folder_of_their_own(tmp_path):
  short = (
    '--smoke', '--source=embedded', '--methods=pooled=6',
    '--epochs=1', '--num_seeds=1', f'--output_dir={tmp_path}',
  )  # fmt: skip
  printed = scripts.run_command(
    'examples/paper/moving_mnist.py --anneal_epochs=25 '
    '--methods=RB-REINFORCE+,RB-leave-one-out,pooled=6 --num_seeds=2 '
    '--output_dir=outputs/moving_mnist_annealed',
    *short,
  )
  assert 'entropy x 1, from 256 within 25 epochs' in printed
  with (tmp_path / 'paths.csv').open() as file:
    *_, last = csv.DictReader(file)
  # The loss is some 1,200 nats minus 7 times the weight, which is nearly 256 in
  # the first epoch.
  assert float(last['loss']) < 0.0
  with raises(app.UsageError, 'anneal_epochs'):
    scripts.run_command('examples/paper/moving_mnist.py', *short)


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_with_the_same_numbers(script, tmp_path):
  # RELAX has its own optimizer, whose state has to be restored, too.
  small = {'frame': 12, 'window': 4, 'hidden_units': 3, 'channels': 2}
  digits = np.random.default_rng(0).integers(256, size=[128, 4, 4])
  test_data = tf.data.Dataset.from_tensor_slices(digits).batch(64)

  small['entropy_weight'] = script.entropy_weight(1.0, num_steps=3)

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


@pytest.fixture
def report(script):
  return script.moving_report


def test_epochs_and_seconds_to_a_level(report):
  log = {
    'val_negative_elbo': [2000.0, 700.0, 499.0, 600.0],
    'seconds': [np.nan, 30.0, 4.0, 5.0],
  }
  # The 30 seconds are mostly compilation.
  assert report.to_reach(log) == (2, 9.0)
  assert np.all(np.isnan(report.to_reach(log, level=1.0)))
  never = {**log, 'val_negative_elbo': [2000.0, 900.0, 800.0, 700.0]}
  assert report.reached([log, never]) == '1 of 2: 2, 9 s'
  assert report.reached([never]) == '0 of 1'


def test_the_paper_is_beside_what_is_comparable(report, capsys):
  log = {
    'val_negative_elbo': np.linspace(2000.0, 200.0, 51),
    'val_distance': np.ones(51),
    'seconds': np.ones(51),
  }
  for is_comparable in (True, False):
    report.print_table({'NVIL': {0: log}}, 'a title', is_comparable)
    out = capsys.readouterr().out
    assert out.startswith('a title')
    assert ('200 / 268' in out) == is_comparable


@pytest.mark.parametrize('method', ['RELAXED', 'k=', 'k=5000', 'budget=1'])
def test_unknown_methods_are_named(script, method):
  with raises(app.UsageError, 'methods'):
    script.method_of(method)


def test_digits_are_of_their_own_part_of_the_data(script):
  images = np.arange(200)[:, np.newaxis, np.newaxis]
  mnist = datasets.MNIST(images, None, images + 1000, None, 'numbers')
  train, validation, test = script.split(mnist, 64, 50)
  assert len(np.unique(np.concatenate([train, validation]))) == 128
  assert len(np.unique(test)) == 50
  assert test.min() >= 1000 > train.max()
  for sizes in ((63, 50), (64, 0), (-1, 50)):
    with raises(app.UsageError, 'num_images'):
      script.split(mnist, *sizes)


@pytest.mark.slow
def test_step_sizes_are_compared_on_the_validation_images(
  script, tmp_path, monkeypatch, capsys
):
  def run(model, seed, digits, data, folder, epochs, source, restart):
    assert not restart
    assert [len(x) for x in data] == [9]
    size = float(model.optimizer.learning_rate)
    loss = {5e-3: np.nan, 5e-4: 3.0}.get(np.round(size, 6), 4.0)
    column = np.full([epochs], loss)
    names = ('epoch', 'val_negative_elbo', 'val_distance')
    return dict.fromkeys(names, column)

  monkeypatch.setattr(script, 'run', run)
  monkeypatch.setattr(script.step_sizes, 'ANNEALING_RATES', (1e-4, 1e-5))
  small = {'frame': 12, 'window': 4, 'hidden_units': 3, 'channels': 2}
  digits = np.full([64, 4, 4], 255)
  methods = ['Gumbel', 'budget=3']
  script.tune(methods, digits, digits[:9], tmp_path, 2, 'white', **small)
  with (tmp_path / 'tuning.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert [row['method'] for row in rows] == ['Gumbel'] * 10 + ['budget=3'] * 5
  lines = capsys.readouterr().out.splitlines()
  best = [line.split() for line in lines if 'best' in line]
  assert [line[1] for line in best] == ['0.0005', '0.0005']
