"""The script of the semi-supervised experiment, without training."""

import pathlib
import sys

import numpy as np
import pytest

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


def test_of_an_epoch_that_was_repeated_the_last_row_counts(script, tmp_path):
  path = tmp_path / 'log.csv'
  assert script.finished_epochs(path) == 0
  path.write_text('epoch,loss\n0,5.0\n1,4.0\nepoch,loss\n1,3.0\n2,2.0\n')
  assert script.finished_epochs(path) == 3
  np.testing.assert_array_equal(script.read_log(path)['loss'], [5.0, 3.0, 2.0])


def test_networks_start_alike_whatever_the_estimator(script, tmp_path):
  first, second = (
    script.make_model(name, seed) for name, seed in (('NVIL', 1), ('RELAX', 2))
  )
  script.save_networks(first, tmp_path / 'x.npz')
  script.load_networks(second, tmp_path / 'x.npz')
  for a, b in zip(first.weights, second.weights, strict=True):
    np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
