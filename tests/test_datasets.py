# SPDX-License-Identifier: Apache-2.0
"""MNIST: the embedded images, those of TFDS, and the paper's split."""

import importlib
import socket
import sys
import threading
import time

import numpy as np
import pytest

from errors import raises
from internals import ask_server, patch_timeout
from tfp_rb import datasets


@pytest.fixture(scope='module')
def embedded():
  return datasets.load_mnist('embedded')


def test_embedded_subset_is_balanced_and_real(embedded):
  assert embedded.train_images.shape == (10_000, 28, 28)
  assert embedded.test_images.shape == (2_000, 28, 28)
  assert embedded.train_images.dtype == np.uint8
  np.testing.assert_array_equal(np.bincount(embedded.train_labels), [1000] * 10)
  np.testing.assert_array_equal(np.bincount(embedded.test_labels), [200] * 10)
  # Images of one digit are more similar to each other than to those of another
  # digit.
  means = np.stack(
    [
      embedded.train_images[embedded.train_labels == c].mean(0)
      for c in range(10)
    ]
  )
  distances = ((embedded.test_images[:, np.newaxis] - means) ** 2).sum((-2, -1))
  accuracy = np.mean(np.argmin(distances, axis=1) == embedded.test_labels)
  assert 0.75 < accuracy < 0.9  # the accuracy of the nearest mean on MNIST
  # No image is in both sets.
  both = {x.tobytes() for x in embedded.train_images} & {
    x.tobytes() for x in embedded.test_images
  }
  assert not both


def test_a_file_without_pickle_or_a_byte_of_it_changed(tmp_path, monkeypatch):
  for change in (lambda b: b[:1000], lambda b: b[:-1] + b'x', lambda b: b''):
    path = tmp_path / 'mnist_subset.npz'
    path.write_bytes(change(datasets._EMBEDDED.read_bytes()))
    monkeypatch.setattr(datasets, '_EMBEDDED', path)
    with raises(ValueError, 'SHA-256'):
      datasets.load_mnist('embedded')
    monkeypatch.undo()


def refuse(*args, **kwargs):
  raise OSError('no network')


def test_without_a_network_the_subset_stands_in_at_once(tmp_path, monkeypatch):
  monkeypatch.setattr(socket, 'create_connection', refuse)
  importlib.import_module('tensorflow_datasets')
  start = time.monotonic()
  with pytest.warns(UserWarning, match='MNIST'):
    mnist = datasets.load_mnist(data_dir=str(tmp_path))
  assert time.monotonic() - start < 60.0  # TFDS alone would take minutes
  assert mnist.source == 'MNIST subset (10,000 + 2,000)'
  with raises(RuntimeError, 'TFDS_DATA_DIR'):
    datasets.load_mnist('tfds', data_dir=str(tmp_path))


def test_a_missing_tfds_is_named_and_how_to_install_it(monkeypatch):
  monkeypatch.setitem(sys.modules, 'tensorflow_datasets', None)
  with raises(RuntimeError, 'pip install tensorflow-datasets'):
    datasets.load_mnist('tfds')
  with pytest.warns(UserWarning, match='pip install tensorflow-datasets'):
    mnist = datasets.load_mnist()
  for images, labels in (mnist[:2], mnist[2:4]):
    assert (images.dtype, labels.dtype) == (np.uint8, np.int32)
    assert (images.min(), images.max()) == (0, 255)
    assert (labels.min(), labels.max()) == (0, 9)


def test_host_is_given_three_seconds(tmp_path, monkeypatch):
  seen = []

  def connect(address, timeout):
    seen.append((address, timeout))
    raise TimeoutError

  monkeypatch.setattr(socket, 'create_connection', connect)
  with pytest.warns(UserWarning, match='storage.googleapis.com'):
    datasets.load_mnist(data_dir=str(tmp_path))
  assert seen == [(('storage.googleapis.com', 443), 3.0)]


def test_a_host_that_is_not_found_in_time_is_not_waited_for(monkeypatch):
  patch_timeout(monkeypatch, 0.1)
  is_over = threading.Event()

  def connect(*args, **kwargs):
    is_over.wait(30.0)
    raise TimeoutError

  monkeypatch.setattr(socket, 'create_connection', connect)
  start = time.monotonic()
  assert isinstance(ask_server('example.org'), TimeoutError)
  assert time.monotonic() - start < 10.0
  is_over.set()


def test_a_download_that_fails_leaves_the_subset(tmp_path, monkeypatch):
  monkeypatch.setattr(datasets, '_ask', lambda host: None)
  tfds = importlib.import_module('tensorflow_datasets')

  def fail(self, **kwargs):
    raise OSError('disk full')

  monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', fail)
  with pytest.warns(UserWarning, match='disk full'):
    mnist = datasets.load_mnist(data_dir=str(tmp_path))
  assert len(mnist.train_labels) == 10_000


def test_without_tfds_the_subset_stands_in(monkeypatch):
  def no_module(name):
    raise ImportError(name)

  monkeypatch.setattr(datasets.importlib, 'import_module', no_module)
  with pytest.warns(UserWarning, match='tensorflow_datasets'):
    assert len(datasets.load_mnist().train_labels) == 10_000


def test_source_must_be_known():
  with raises(ValueError, 'source'):
    datasets.load_mnist('web')


def test_split_has_no_image_twice_and_the_same_order_each_time(embedded):
  numbered = embedded._replace(train_labels=np.arange(10_000))
  split = datasets.split_mnist(numbered)
  indices = [labels for _, labels in split]
  assert [len(x) for x in indices] == [1000, 7334, 1666]
  assert len(np.unique(np.concatenate(indices))) == 10_000
  for index, (images, _) in zip(indices, split, strict=True):
    np.testing.assert_array_equal(images, embedded.train_images[index])
  again = datasets.split_mnist(numbered)
  np.testing.assert_array_equal(again.labeled[1], split.labeled[1])


def test_split_of_mnist_is_that_of_the_authors():
  images = np.broadcast_to(np.zeros([1, 28, 28], np.uint8), [60_000, 28, 28])
  mnist = datasets.MNIST(images, np.arange(60_000), images, None, 'none')
  split = datasets.split_mnist(mnist)
  assert [len(labels) for _, labels in split] == [5000, 45_000, 10_000]
  assert list(split.labeled[1][:4]) == [45872, 27715, 13311, 26431]
  assert list(split.validation[1][:4]) == [19914, 35206, 18642, 24940]


def test_number_of_labels_must_leave_some_out(embedded):
  with raises(ValueError, 'num_labeled'):
    datasets.split_mnist(embedded, num_labeled=9000)
