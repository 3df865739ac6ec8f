# SPDX-License-Identifier: Apache-2.0
"""Loads MNIST, with or without a network connection."""

import hashlib
import importlib
import io
import os
import pathlib
import socket
import threading
from typing import Literal, NamedTuple
import warnings

import numpy as np

__all__ = ['MNIST', 'SemiSupervised', 'load_mnist', 'split_mnist']

_EMBEDDED = pathlib.Path(__file__).parent / 'data' / 'mnist_subset.npz'
_SHA256 = '13da5eaefb99642842f8c634c41c48b68a9539a3812ac10795764c5edf5635b4'
_HOST = 'storage.googleapis.com'  # the server from which TFDS downloads
_TIMEOUT = 3.0  # seconds; TFDS itself retries for minutes
_SOURCES = ('auto', 'embedded', 'tfds')
_PAPERS_SEED = 351245  # the seed in the authors' code


class MNIST(NamedTuple):
  """Holds images and labels.

  Attributes:
    train_images: `uint8` array of shape `[n, 28, 28]`, with gray values from 0
      (background) to 255.
    train_labels: `int32` array of shape `[n]`, with labels from 0 to 9.
    test_images: Like `train_images`.
    test_labels: Like `train_labels`.
    source: Python `str`, the name of this data. Show it in every title and
      table, because results on the subset are not results on MNIST.
  """

  train_images: np.ndarray
  train_labels: np.ndarray
  test_images: np.ndarray
  test_labels: np.ndarray
  source: str


class SemiSupervised(NamedTuple):
  """Holds a split of MNIST's training data, as pairs of images and labels.

  Attributes:
    labeled: Training data whose labels the model sees.
    unlabeled: Training data whose labels are for evaluation only.
    validation: Data for choosing step sizes and other settings.
  """

  labeled: tuple[np.ndarray, np.ndarray]
  unlabeled: tuple[np.ndarray, np.ndarray]
  validation: tuple[np.ndarray, np.ndarray]


def load_mnist(
  source: Literal['auto', 'embedded', 'tfds'] = 'auto',
  data_dir: str | os.PathLike[str] | None = None,
) -> MNIST:
  """Loads MNIST with TensorFlow Datasets, or a subset from this package.

  If TFDS has already prepared MNIST, the function uses that copy. Otherwise
  TFDS downloads it, provided that the server answers within 3 seconds. If that
  also fails, the function warns and returns the 10,000 training and 2,000 test
  images that come with this package.

  Args:
    source: Python `str`: 'tfds' for all of MNIST, 'embedded' for the subset,
      'auto' for all of MNIST if it is available and the subset if not.
    data_dir: Python `str`, the directory in which TFDS keeps its data. Default:
      the environment variable `TFDS_DATA_DIR`, or the default of TFDS.

  Returns:
    mnist: `MNIST`. Images are `uint8` from 0 to 255, not scaled; divide them by
      255 to get values from 0 to 1. Labels are `int32` from 0 to 9.

  Raises:
    ValueError: `source` is none of these, or the embedded file is damaged.
    RuntimeError: `source` is 'tfds', and TFDS is not installed, or MNIST can
      neither be found nor downloaded.

  #### Examples

  ```python
  mnist = tfp_rb.datasets.load_mnist('embedded')
  mnist.train_images.shape  # ==> (10000, 28, 28)
  mnist.train_images.dtype  # ==> uint8
  mnist.train_images.max()  # ==> 255
  mnist.source              # ==> MNIST subset (10,000 + 2,000)
  ```
  """
  if source not in _SOURCES:
    raise ValueError(
      f'`source` must be one of {_SOURCES}; got {source!r}. Write, for '
      "example, `load_mnist('embedded')`."
    )
  if source == 'embedded':
    return _load_embedded()
  try:
    return _load_tfds(data_dir)
  except _NotAvailableError as error:
    advice = (
      'To get all of MNIST, run `tfds.load("mnist")` on a machine with a '
      'network connection, and set `TFDS_DATA_DIR` or `data_dir`.'
    )
    if isinstance(error, _NotInstalledError):
      advice = (
        'To get all of MNIST, run `pip install tensorflow-datasets` or install '
        'the extra `tfp_rb[examples]`.'
      )
    if source == 'tfds':
      raise RuntimeError(f'{error} {advice}') from error
    # The capitals keep readers from mistaking these for results on MNIST.
    warnings.warn(
      f'{error} Using a SUBSET OF MNIST instead (10,000 + 2,000 images): the '
      f'results are not results on MNIST. {advice}',
      stacklevel=2,
    )
    return _load_embedded()


class _NotAvailableError(Exception):
  """Raised when TFDS cannot provide MNIST."""


class _NotInstalledError(_NotAvailableError):
  """Raised when TFDS cannot be imported."""


def _load_tfds(data_dir: str | os.PathLike[str] | None) -> MNIST:
  try:
    # TFDS is optional, and slow to import.
    tfds = importlib.import_module('tensorflow_datasets')
  except ImportError as error:
    raise _NotInstalledError(
      f'`tensorflow_datasets` cannot be imported: {error}.'
    ) from error
  data_dir = data_dir or os.environ.get('TFDS_DATA_DIR')
  builder = tfds.builder('mnist', data_dir=data_dir)
  if not builder.is_prepared():
    failure: Exception | None = _ask(_HOST)
    if failure is None:
      try:
        builder.download_and_prepare()
      except Exception as error:  # The network, the disk or a checksum failed.
        failure = error
    if failure is not None:
      raise _NotAvailableError(
        f'MNIST is not prepared in {builder.data_dir}, and downloading it from '
        f'{_HOST} failed: {failure}.'
      ) from failure

  def read(split: str) -> tuple[np.ndarray, np.ndarray]:
    # Read in a fixed order, so that a split by index is always the same.
    data = tfds.as_numpy(
      builder.as_dataset(split=split, batch_size=-1, shuffle_files=False)
    )
    # TFDS has images [n, 28, 28, 1] and int64 labels.
    return data['image'][..., 0], data['label'].astype(np.int32)

  return MNIST(*read('train'), *read('test'), source='MNIST (60,000 + 10,000)')


def _ask(host: str) -> OSError | None:
  """Returns an error if a host does not answer in time, otherwise `None`."""
  answers: list[OSError | None] = []

  def connect() -> None:
    try:
      socket.create_connection((host, 443), timeout=_TIMEOUT).close()
      answers.append(None)
    except OSError as error:
      answers.append(error)

  # The time limit of a socket applies to each address of the host, and the
  # lookup of the addresses has no limit. So wait for a thread instead.
  thread = threading.Thread(target=connect, daemon=True)
  thread.start()
  thread.join(_TIMEOUT + 0.5)
  return answers[0] if answers else TimeoutError('timed out')


def _load_embedded() -> MNIST:
  content = _EMBEDDED.read_bytes() if _EMBEDDED.exists() else b''
  # A truncated download or checkout would otherwise change results silently.
  digest = hashlib.sha256(content).hexdigest()
  if digest != _SHA256:
    raise ValueError(
      f'`{_EMBEDDED.name}` must have the SHA-256 sum {_SHA256}; got {digest} '
      f'({len(content):,} bytes). The file is missing, truncated or altered: '
      'install the package again.'
    )
  with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
    return MNIST(
      arrays['train_images'],
      arrays['train_labels'].astype(np.int32),
      arrays['test_images'],
      arrays['test_labels'].astype(np.int32),
      source='MNIST subset (10,000 + 2,000)',
    )


def split_mnist(
  mnist: MNIST, num_labeled: int | None = None, seed: int = _PAPERS_SEED
) -> SemiSupervised:
  """Splits the training images as in the semi-supervised experiment of [1].

  A sixth of the images is for validation, and 5,000 of the others are labeled.
  The indices equal those of the authors' code. The images differ, because TFDS
  stores them in a different order.

  Args:
    mnist: `MNIST`.
    num_labeled: Python `int`. Default: 5,000 for MNIST, 1,000 for the subset.
    seed: Python `int`. Default: the seed of the authors.

  Returns:
    split: `SemiSupervised`.

  #### Examples

  ```python
  split = tfp_rb.datasets.split_mnist(tfp_rb.datasets.load_mnist('embedded'))
  [len(labels) for _, labels in split]  # ==> [1000, 7334, 1666]
  ```

  #### References

  [1] Runjing Liu et al. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019, section 5.3. https://arxiv.org/abs/1810.04777
  """
  size = len(mnist.train_labels)
  if num_labeled is None:
    num_labeled = 5000 if size == 60_000 else size // 10
  # Use the authors' generator. NumPy guarantees that its numbers never change.
  rng = np.random.RandomState(seed)
  validation = rng.choice(size, size // 6, replace=False)
  rest = np.setdiff1d(np.arange(size), validation)
  if not 0 < num_labeled < len(rest):
    raise ValueError(
      f'`num_labeled` must be between 1 and {len(rest) - 1}; got '
      f'{num_labeled}. At least one training image must stay unlabeled.'
    )
  labeled = rng.choice(rest, num_labeled, replace=False)
  unlabeled = np.setdiff1d(rest, labeled)
  return SemiSupervised(
    *(
      (mnist.train_images[index], mnist.train_labels[index])
      for index in (labeled, unlabeled, validation)
    )
  )
