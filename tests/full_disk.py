# SPDX-License-Identifier: Apache-2.0
"""Saves weights to a disk that has too little room for them."""

import contextlib
import resource
from unittest import mock

import keras

from errors import raises
from tfp_rb import models


@contextlib.contextmanager
def no_large_files():
  """Makes writing files above 100 kB fail, as if the disk were full."""
  _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
  try:
    yield
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def large_model():
  # The model has a Dense layer of 200 kB.
  model = models.MovingVAE(
    frame=12, window=4, latent_dim=2, hidden_units=300, channels=1
  )
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  model.optimizer.build(model.trainable_variables)
  return model


def check_weights(folder, is_known_before):
  """Fails unless old files remain and the error says how much room is needed.

  Args:
    folder: `pathlib.Path`, empty.
    is_known_before: Python `bool`, whether the system reports in advance that
      too little room is left; otherwise only writing fails.
  """
  from examples.shared import checkpoints, kept_files

  model = large_model()
  backup = checkpoints.Backup(folder / 'backup')
  backup.set_model(model)
  backup.on_epoch_end(0)
  checkpoints.save(model, folder / 'last.keras')
  kept = {p: p.read_bytes() for p in folder.rglob('*.[kh]*')}
  assert len(kept) == 2
  full = no_large_files()
  if is_known_before:
    full = mock.patch.object(
      kept_files.shutil, 'disk_usage', return_value=mock.Mock(free=1000)
    )
  needed = checkpoints.num_bytes(model) / 1e6
  with full:
    with raises(kept_files.Refused, f'requires {needed:.1f} MB'):
      backup.on_epoch_end(1)
    with raises(kept_files.Refused, f'requires {2 * needed:.1f} MB'):
      checkpoints.save(model, folder / 'last.keras')
  assert {p: p.read_bytes() for p in folder.rglob('*.[kh]*')} == kept
  assert not (folder / 'unfinished').exists()
