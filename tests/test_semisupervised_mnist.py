"""The script of the semi-supervised experiment: data, runs that resume."""

import csv
import pathlib
import shutil
import sys

from absl.app import UsageError
import keras
import numpy as np
import pytest

from errors import raises
import scripts
from tfp_rb import datasets

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / 'examples'


@pytest.fixture(scope='module')
def script():
  sys.path.insert(0, str(EXAMPLES))
  try:
    return __import__('semisupervised_mnist')  # defines no flags
  finally:
    sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope='module')
def split():
  # Images that say which they are.
  def numbered(first, size):
    numbers = np.arange(first, first + size)
    images = np.zeros([size, 28, 28], np.uint8)
    images[:, 0, 0], images[:, 0, 1] = numbers // 256, numbers % 256
    return images, numbers.astype(np.int32)

  return datasets.SemiSupervised(
    numbered(0, 100), numbered(1000, 1300), numbered(5000, 10)
  )


def numbers_of(images):
  images = np.asarray(images).astype(int)
  return images[..., 0] * 256 + images[..., 1]


def epoch_of(script, split, number, first_epoch):
  """The images of an epoch, of data that begin at another one."""
  num_steps, per_call = script.steps_of(1300)
  calls = num_steps // per_call
  data = script.training_data(split, first_epoch, seed=3)
  data = data.skip((number - first_epoch) * calls).take(calls)
  parts = zip(*data.as_numpy_iterator())
  return [np.concatenate(part) for part in parts]


def test_an_epoch_shows_each_image_once_with_its_label(script, split):
  unlabeled, labeled, labels = epoch_of(script, split, 0, 0)
  assert unlabeled.shape[-2:] == (64, 784)
  seen = np.ravel(numbers_of(unlabeled))
  assert len(np.unique(seen)) == len(seen) == 1280
  assert np.all((seen >= 1000) & (seen < 2300))
  np.testing.assert_array_equal(numbers_of(labeled), labels)
  counts = np.bincount(np.ravel(labels), minlength=100)
  assert 12 <= np.min(counts) <= np.max(counts) <= 13


def test_an_epoch_is_the_same_whenever_a_run_begins(script, split):
  resumed = epoch_of(script, split, 2, 2)
  for whole, part in zip(epoch_of(script, split, 2, 0), resumed, strict=True):
    np.testing.assert_array_equal(whole, part)
  other = epoch_of(script, split, 1, 0)
  assert np.any(other[0] != resumed[0])


@pytest.mark.parametrize('num_images', [45_000, 7_334, 5_000, 1_000, 833, 130])
def test_steps_divide_into_calls(script, num_images):
  num_steps, per_call = script.steps_of(num_images)
  assert num_steps % per_call == 0
  # Few images are left out of an epoch.
  assert num_steps * 64 > 0.8 * num_images - 64


def test_networks_start_alike_whatever_the_estimator(script, tmp_path):
  first, second = (
    script.make_model(name, seed) for name, seed in (('NVIL', 1), ('RELAX', 2))
  )
  script.save_networks(first, tmp_path / 'x.npz')
  script.load_networks(second, tmp_path / 'x.npz')
  for a, b in zip(first.weights, second.weights, strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


# A run that is stopped at any moment.

SMALL = {'classifier_units': (8,), 'hidden_units': (8,), 'jit_compile': False}
EPOCHS = 3


@pytest.fixture(scope='module')
def start(script, tmp_path_factory):
  path = tmp_path_factory.mktemp('start') / 'start.npz'
  script.save_networks(script.make_model('REINFORCE', 5, **SMALL), path)
  return path


def train(script, split, start, folder):
  split = split._replace(unlabeled=tuple(x[:256] for x in split.unlabeled))
  model = script.make_model('RB-REINFORCE', 0, **SMALL)
  data = script.evaluation_data(*split.validation)
  log = script.run(
    model, 0, split, data, start, folder, EPOCHS, 'numbered images'
  )
  assert list(log['epoch']) == list(range(EPOCHS))
  assert model.optimizer.iterations == 4 * EPOCHS
  return log


@pytest.fixture(scope='module')
def whole(script, split, start, tmp_path_factory):
  folder = tmp_path_factory.mktemp('whole')
  return train(script, split, start, folder), folder


class Killed(BaseException):
  """In place of a signal, at a chosen moment."""


def between_weights_and_count(callback):
  pathlib.Path(callback.backup_dir).mkdir()
  callback.model.save_weights(callback._weights_path, overwrite=True)
  raise Killed


def amid_the_weights(callback):
  weights = pathlib.Path(callback._weights_path)
  weights.with_name(weights.name + '.bkp').write_bytes(weights.read_bytes())
  callback.model.save_weights(weights, overwrite=True)
  weights.write_bytes(weights.read_bytes()[:-5000])
  raise Killed


def amid_a_row_of_the_log(callback):
  log = pathlib.Path(callback.backup_dir).parent / 'log.csv'
  log.write_text(log.read_text()[:-30])
  raise Killed


@pytest.mark.parametrize(
  ('epoch', 'kill'),
  [
    (0, between_weights_and_count),
    pytest.param(1, amid_the_weights, marks=pytest.mark.slow),
    pytest.param(1, amid_a_row_of_the_log, marks=pytest.mark.slow),
  ],
)
def test_a_run_that_was_killed_ends_with_the_same_numbers(
  script, split, start, whole, epoch, kill, tmp_path
):
  backup = keras.callbacks.BackupAndRestore
  save = backup._save_model

  def save_or_die(self):
    if self._current_epoch == epoch + 1:
      kill(self)
    save(self)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(backup, '_save_model', save_or_die)
    with pytest.raises(Killed):
      train(script, split, start, tmp_path)
  resumed, (uninterrupted, _) = train(script, split, start, tmp_path), whole
  for column in ('loss', 'val_negative_elbo', 'val_accuracy'):
    np.testing.assert_allclose(
      resumed[column], uninterrupted[column], rtol=1e-5, err_msg=column
    )
  assert len(np.unique(resumed['loss'])) == EPOCHS
  assert (tmp_path / 'best.keras').exists()


def test_a_run_of_another_model_is_not_thrown_away(script, whole):
  _, folder = whole
  weights = folder / 'backup' / 'latest.weights.h5'
  before = weights.read_bytes(), (folder / 'log.csv').read_text()
  other = script.make_model(
    'RB-REINFORCE', 0, classifier_units=(9,), hidden_units=(8,)
  )
  with raises(UsageError, 'epochs'):
    script.training_runs.resume(other, folder, 4)
  assert (weights.read_bytes(), (folder / 'log.csv').read_text()) == before
  assert not weights.with_name('whole.weights.h5').exists()


def test_a_finished_run_is_not_repeated(script, split, start, whole):
  _, folder = whole
  before = (folder / 'log.csv').stat().st_mtime_ns
  train(script, split, start, folder)  # has the last weights nevertheless
  assert (folder / 'log.csv').stat().st_mtime_ns == before


# The whole script, as `--smoke` runs it.


@pytest.mark.slow
def test_the_script_writes_rows_and_figures(tmp_path):
  run = lambda *args: scripts.run_command(
    'examples/semisupervised_mnist.py', f'--output_dir={tmp_path}', *args
  )
  run(
    '--smoke', '--source=embedded', '--methods=RB-REINFORCE', '--budget=2',
    '--epochs=2', '--num_seeds=1', '--warm_start_epochs=1',
  )  # fmt: skip
  with (tmp_path / 'paths.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert len(rows) == 2 * 3
  assert all('subset' in row['data'] for row in rows)
  assert {row['method'] for row in rows} == {'RB-REINFORCE', 'budget=2'}
  names = ('figure_4.png', 'figure_4_all.png', 'generated.png')
  for name in names:
    assert (tmp_path / name).stat().st_size > 10_000
    (tmp_path / name).unlink()
  # Of the CSV files alone: no logs, no models.
  for folder in tmp_path.glob('*/*/'):
    shutil.rmtree(folder)
  before = (tmp_path / 'paths.csv').read_text()
  table = scripts.run_command(
    'examples/semisupervised_mnist.py --methods=Exact --num_seeds=1',
    '--plot_only',
    f'--output_dir={tmp_path}',
  )
  assert (tmp_path / 'paths.csv').read_text() == before
  for name in names:
    assert (tmp_path / name).stat().st_size > 10_000
  assert 'RB-REINFORCE' in table
  with raises(UsageError, 'output_dir'):
    (tmp_path / 'warm_start.json').write_text('{"source": "other images"}')
    run('--smoke', '--source=embedded')


@pytest.mark.slow
def test_a_pooled_budget_is_trained_from_the_given_seed(tmp_path):
  scripts.run_command(
    'examples/semisupervised_mnist.py '
    '--methods=Exact,RB-REINFORCE,pooled=1.25 --num_seeds=3',
    '--smoke', '--source=embedded', '--epochs=1', '--warm_start_epochs=1',
    '--methods=pooled=1.25', '--num_seeds=1', '--first_seed=4',
    f'--output_dir={tmp_path}',
  )  # fmt: skip
  with (tmp_path / 'paths.csv').open() as file:
    *_, last = csv.DictReader(file)
  assert (last['method'], last['seed']) == ('pooled=1.25', '4')


def test_means_are_over_runs_of_equal_length(script):
  runs = {'a': {0: {'loss': [3, 2]}, 1: {'loss': [3]}, 2: {'loss': [4, 1]}}}
  found = script.semisupervised_report.run_paths.longest(runs)
  assert found == {'a': {0: {'loss': [3, 2]}, 2: {'loss': [4, 1]}}}


@pytest.mark.parametrize(
  'method', ['RELAXED', 'k=', 'k=11', 'budget=two', 'budget=1', 'budget=11']
)
def test_unknown_methods_are_named(script, method):
  with raises(UsageError, 'Methods'):
    script.method_of(method)


@pytest.mark.slow
def test_step_sizes_are_compared_on_the_validation_images(
  script, split, start, tmp_path, monkeypatch, capsys
):
  monkeypatch.setattr(script.step_sizes, 'STEP_SIZES', (1e-2, 1e-7))
  monkeypatch.setattr(script.step_sizes, 'ANNEALING_RATES', (1e-4,))
  split = split._replace(unlabeled=tuple(x[:256] for x in split.unlabeled))
  script.tune(['Gumbel'], split, start, tmp_path, 2, 'numbered', **SMALL)
  with (tmp_path / 'tuning.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert [float(row['step_size']) for row in rows] == [1e-2, 1e-7]
  losses = [float(row['val_negative_elbo']) for row in rows]
  assert losses[0] < losses[1]
  out = capsys.readouterr().out
  assert [line for line in out.splitlines() if 'best' in line][0].split()[
    1
  ] == '0.01'
