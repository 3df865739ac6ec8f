# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the experiments on MNIST."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfp_rb import models


@pytest.fixture(scope='module')
def checkpoints():
  from examples.shared import checkpoints

  return checkpoints


@pytest.fixture
def model():
  model = models.MovingVAE(
    frame=12, window=4, latent_dim=2, hidden_units=3, channels=1
  )
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  return model


def names_in(folder):
  """Returns the files in a folder, except the digests and their lock."""
  names = {path.name for path in folder.iterdir()}
  return sorted(names - {'SHA256SUMS', 'SHA256SUMS.lock'})


def test_the_file_is_one_of_keras(checkpoints, model, tmp_path):
  digits = tf.fill([4, 4, 4], 255)
  model.train_step(digits)
  checkpoints.save(model, tmp_path / 'a.keras', tmp_path / 'b.keras')
  assert names_in(tmp_path) == ['a.keras', 'b.keras']
  model.train_step(digits)
  for name in ('a.keras', 'b.keras'):
    loaded = keras.models.load_model(tmp_path / name)  # loads in safe mode
    assert loaded.optimizer.iterations == 1
    loaded.train_step(digits)  # the loaded model continues like the original
    for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
      np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_the_best_one_is_kept(checkpoints, model, tmp_path):
  callback = checkpoints.Checkpoints(tmp_path, 'val_loss', best=7.0)
  callback.set_model(model)
  bias = model.decoder.layers[-1].bias

  def epoch_of(name):
    loaded = keras.models.load_model(tmp_path / name)
    return float(loaded.decoder.layers[-1].bias[0])

  found = []
  for epoch, loss in enumerate([8.0, 6.0, 6.5, 5.0, 5.0, np.nan]):
    bias.assign(tf.fill(bias.shape, float(epoch)))
    callback.on_epoch_end(epoch, {'val_loss': loss})
    assert epoch_of('last.keras') == epoch
    has_best = (tmp_path / 'best.keras').exists()
    found.append(epoch_of('best.keras') if has_best else None)
  assert found == [None, 1.0, 1.0, 3.0, 3.0, 3.0]


def test_a_file_that_is_not_finished_replaces_none(
  checkpoints, model, tmp_path, monkeypatch
):
  paths = tmp_path / 'best.keras', tmp_path / 'last.keras'
  checkpoints.save(model, *paths)
  before = paths[0].read_bytes()

  def stop(source, target):
    target.write_bytes(source.read_bytes()[:100])
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(checkpoints.shutil, 'copyfile', stop)
    with pytest.raises(KeyboardInterrupt):
      checkpoints.save(model, *paths)
  for path in paths:
    assert path.read_bytes() == before
  checkpoints.save(model, *paths)
  assert names_in(tmp_path) == ['best.keras', 'last.keras']
