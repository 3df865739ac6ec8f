# SPDX-License-Identifier: Apache-2.0
"""The script of the semi-supervised experiment: its data, and resumed runs."""

import csv
import os
import pathlib
import re
import shutil
import subprocess
import types

from absl.app import UsageError
import keras
import numpy as np
import pytest
import tensorflow as tf

from errors import raises
import scripts
from tfp_rb import datasets


@pytest.fixture(scope='module')
def script():
  from examples.paper import semisupervised_mnist  # it defines no flags

  return semisupervised_mnist


@pytest.fixture(scope='module')
def split():
  # The pixels of an image encode its number.
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
  """Returns the images of an epoch from data that begin at another epoch."""
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
  # An epoch leaves out only a few images.
  assert num_steps * 64 > 0.8 * num_images - 64


def test_networks_start_alike_whatever_the_estimator(script, tmp_path):
  first, second = (
    script.make_model(name, seed) for name, seed in (('NVIL', 1), ('RELAX', 2))
  )
  script.save_networks(first, tmp_path / 'x.npz')
  script.load_networks(second, tmp_path / 'x.npz')
  weights_of = script.training_runs.checkpoints.network_weights
  found = [weights_of(model) for model in (first, second)]
  assert len(found[0]) < len(first.weights)  # the weights of NVIL are left out
  for a, b in zip(*found, strict=True):
    np.testing.assert_array_equal(a.numpy(), b.numpy())


# Runs that are stopped at any moment.

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
  """Replaces a signal that kills the run at a chosen moment."""


@pytest.mark.parametrize(
  ('epoch', 'moved'),
  [
    (0, 'latest.weights.h5'),
    pytest.param(0, 'log.csv', marks=pytest.mark.slow),
    pytest.param(1, 'latest.weights.h5', marks=pytest.mark.slow),
    pytest.param(1, 'previous.weights.h5', marks=pytest.mark.slow),
    pytest.param(1, 'best.keras', marks=pytest.mark.slow),
  ],
)
@pytest.mark.parametrize(
  'is_before', [True, pytest.param(False, marks=pytest.mark.slow)]
)
def test_a_run_that_was_killed_ends_with_the_same_numbers(
  script, split, start, whole, epoch, moved, is_before, tmp_path, monkeypatch
):
  replace, seen = pathlib.Path.replace, []

  def replace_or_die(self, target):
    if pathlib.Path(target).name == moved:
      seen.append(target)
    # There is no previous file in the first epoch.
    last = epoch + (moved != 'previous.weights.h5')
    is_now = pathlib.Path(target).name == moved and len(seen) == last
    if is_now and is_before:
      raise Killed
    replace(self, target)
    if is_now:
      raise Killed

  with monkeypatch.context() as patch:
    patch.setattr(pathlib.Path, 'replace', replace_or_die)
    with pytest.raises(Killed):
      train(script, split, start, tmp_path)
  resumed, (uninterrupted, _) = train(script, split, start, tmp_path), whole
  for column in ('loss', 'val_negative_elbo', 'val_accuracy'):
    np.testing.assert_allclose(
      resumed[column], uninterrupted[column], rtol=1e-5, err_msg=column
    )
  assert len(np.unique(resumed['loss'])) == EPOCHS
  for name in ('best.keras', 'last.keras', 'log.csv'):
    assert not script.kept_files.problem_of(tmp_path / name)


def test_a_run_of_another_model_is_not_thrown_away(script, whole):
  _, folder = whole
  before = contents(folder)
  other = script.make_model(
    'RB-REINFORCE', 0, classifier_units=(9,), hidden_units=(8,)
  )
  with raises(UsageError, 'another model'):
    script.training_runs.resume(other, folder, 4, 'val_negative_elbo')
  assert contents(folder) == before


def contents(folder):
  return {
    path.relative_to(folder): path.read_bytes()
    for path in folder.rglob('*')
    if path.is_file() and path.suffix != '.lock'
  }


@pytest.fixture
def copy(whole, tmp_path):
  """Copies a finished run, so that a test can damage it."""
  return shutil.copytree(whole[1], tmp_path / 'run')


def resume(script, folder, **kwargs):
  model = script.make_model('RB-REINFORCE', 0, **SMALL)
  return script.training_runs.resume(
    model, folder, 4, 'val_negative_elbo', **kwargs
  )


def flip(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


def shorten(path):
  lines = path.read_text().splitlines(keepends=True)
  path.write_text(''.join(lines[:-1]))


def remove(path):
  path.unlink()


@pytest.mark.parametrize('hurt', [flip, shorten, remove])
def test_a_run_without_a_whole_log_is_refused_and_kept(script, copy, hurt):
  hurt(copy / 'log.csv')
  before = contents(copy)
  with raises(UsageError, 'log.csv') as caught:
    resume(script, copy)
  assert f'the backup has {EPOCHS} epochs' in str(caught.value)
  assert 'backup/latest.weights.h5 (is whole)' in str(caught.value)
  assert '--restart' in str(caught.value)
  assert 'Remove' not in str(caught.value)
  assert contents(copy) == before
  assert resume(script, copy, restart=True) == 0
  assert contents(copy / 'replaced-1') == before
  assert resume(script, copy, restart=True) == 0  # there is nothing to move
  assert not (copy / 'replaced-2').exists()


def test_restart_resumes_a_run_that_can_be_resumed(script, copy):
  before = contents(copy)
  assert resume(script, copy, restart=True) == EPOCHS
  assert contents(copy) == before


@pytest.mark.parametrize('hurt', [flip, remove])
def test_a_damaged_backup_is_replaced_by_the_one_before(
  script, split, start, whole, copy, hurt, capsys
):
  hurt(copy / 'backup' / 'latest.weights.h5')
  assert resume(script, copy) == EPOCHS - 1
  assert 'latest.weights.h5' in capsys.readouterr().out
  log = train(script, split, start, copy)
  np.testing.assert_allclose(log['loss'], whole[0]['loss'], rtol=1e-5)
  flip(copy / 'backup' / 'latest.weights.h5')
  flip(copy / 'backup' / 'previous.weights.h5')
  with raises(UsageError, 'previous.weights.h5'):
    resume(script, copy)


def test_a_damaged_backup_never_replaces_the_one_before(
  script, split, start, copy, monkeypatch
):
  backups = [
    copy / 'backup' / f'{name}.weights.h5' for name in ('latest', 'previous')
  ]
  flip(backups[0])
  before, put = backups[1].read_bytes(), script.kept_files.put

  def put_or_die(unfinished, path):
    if path == backups[0]:
      raise Killed
    put(unfinished, path)

  with monkeypatch.context() as patch:
    patch.setattr(script.kept_files, 'put', put_or_die)
    with pytest.raises(Killed):
      train(script, split, start, copy)
  assert backups[1].read_bytes() == before
  assert 'damaged' in script.kept_files.problem_of(backups[0])
  assert resume(script, copy) == EPOCHS - 1


def test_files_without_digests_are_refused_until_they_are_listed(script, copy):
  (copy / 'SHA256SUMS').unlink()
  with raises(UsageError, 'sha256sum') as caught:
    resume(script, copy)
  (command,) = re.findall('run `([^`]*)`', str(caught.value))
  subprocess.run(command, shell=True, check=True)
  assert resume(script, copy) == EPOCHS


@pytest.mark.parametrize('hurt', [flip, remove])
def test_a_damaged_last_model_is_written_again(script, whole, copy, hurt):
  hurt(copy / 'last.keras')
  assert resume(script, copy) == EPOCHS
  ours, theirs = (
    keras.models.load_model(folder / 'last.keras').get_weights()
    for folder in (copy, whole[1])
  )
  for a, b in zip(ours, theirs, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('best_epoch', [1, 2, 3])
def test_a_damaged_best_model_is_written_again_only_if_its_weights_are_there(
  script, copy, best_epoch
):
  log = copy / 'log.csv'
  rows = script.training_runs.rows_of(log)
  for row in rows:
    is_best = row['epoch'] == str(best_epoch - 1)
    row['val_negative_elbo'] = '1.0' if is_best else '2.0'
  script.training_runs.write_rows(log, rows)
  flip(copy / 'best.keras')
  if best_epoch == EPOCHS:
    assert resume(script, copy) == EPOCHS
    assert not script.kept_files.problem_of(copy / 'best.keras')
  else:
    with raises(UsageError, 'best.keras'):
      resume(script, copy)


def test_a_second_process_in_a_folder_is_refused(
  script, split, start, copy, monkeypatch
):
  before = contents(copy)
  with (
    script.kept_files.lock(copy / 'run.lock'),
    raises(UsageError, f'process {os.getpid()} on'),
  ):
    train(script, split, start, copy)
  assert contents(copy) == before
  train(script, split, start, copy)


def test_a_run_without_room_says_so_before_it_trains(
  script, split, start, tmp_path, monkeypatch
):
  kept_files = script.kept_files
  monkeypatch.setattr(
    kept_files.shutil, 'disk_usage', lambda _: types.SimpleNamespace(free=1000)
  )
  with raises(UsageError, 'requires'):
    train(script, split, start, tmp_path)
  assert {path.name for path in tmp_path.iterdir()} == {'run.lock'}


def test_only_a_full_disk_is_explained_as_one(script, copy):
  model = script.make_model('RB-REINFORCE', 0, **SMALL)
  room = script.training_runs._room_for_run
  for message, kind in (
    ('events.v2; No space left on device', UsageError),
    ('OOM when allocating tensor', tf.errors.ResourceExhaustedError),
  ):
    with pytest.raises(kind, match='space|OOM'), room(model, copy):
      raise tf.errors.ResourceExhaustedError(None, None, message)


# The warm start.


def warm_start(script, split, path):
  small = split._replace(labeled=tuple(np.tile(x, (3, *[1] * (x.ndim - 1)))
                                       for x in split.labeled))  # fmt: skip
  data = script.evaluation_data(*split.validation)
  return script.warm_start(small, data, 1, 901, path, **SMALL)


@pytest.mark.slow
def test_a_damaged_warm_start_is_repeated(script, split, tmp_path, capsys):
  path = tmp_path / 'warm_start.npz'
  metrics = warm_start(script, split, path)
  content = path.read_bytes()
  (tmp_path / 'paths.csv').write_text('')  # some runs began with the warm start
  for hurt in (flip, remove, lambda p: p.write_bytes(content[:1000])):
    hurt(path)
    capsys.readouterr()
    assert warm_start(script, split, path) == metrics
    assert 'the warm start is repeated' in capsys.readouterr().out
    assert path.read_bytes() == content
  sums = tmp_path / 'SHA256SUMS'
  sums.write_text(sums.read_text().translate(str.maketrans('012', '120')))
  assert warm_start(script, split, path) == metrics
  assert not script.kept_files.problem_of(path)
  model = script.make_model('REINFORCE', 5, **SMALL)
  flip(path)
  with raises(UsageError, 'warm_start.npz'):
    script.save_networks(model, path, same=True)


def test_a_finished_run_is_not_repeated(script, split, start, whole):
  _, folder = whole
  before = (folder / 'log.csv').stat().st_mtime_ns
  train(script, split, start, folder)  # it has the last weights nevertheless
  assert (folder / 'log.csv').stat().st_mtime_ns == before


# The whole script, run with `--smoke`.


@pytest.mark.slow
def test_the_script_writes_rows_and_figures(tmp_path):
  run = lambda *args: scripts.run_command(
    'examples/paper/semisupervised_mnist.py', f'--output_dir={tmp_path}', *args
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
  # The report needs only the CSV files, not the logs or models.
  for folder in tmp_path.glob('*/*/'):
    shutil.rmtree(folder)
  before = (tmp_path / 'paths.csv').read_text()
  table = scripts.run_command(
    'examples/paper/semisupervised_mnist.py --methods=Exact --num_seeds=1',
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
    'examples/paper/semisupervised_mnist.py '
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
  with raises(UsageError, 'methods'):
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
