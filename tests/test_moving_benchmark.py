# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the model with hard attention, run without PyTorch."""

import csv
import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import scripts


def load(name):
  # These define no flags unless they are run, so they can all be imported.
  return importlib.import_module(f'examples.benchmarks.{name}')


@pytest.fixture(scope='module')
def script():
  return load('moving')


@pytest.mark.parametrize('kind', ['WithoutEstimator', 'AttentionOnly'])
def test_what_is_compared_with_trains_what_it_says(script, kind):
  keras.utils.set_random_seed(0)
  model = getattr(script, kind)(
    frame=12, window=4, hidden_units=3, channels=4, latent_dim=2
  )
  model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
  networks = (model.convolutions, model.attention, model.encoder, model.decoder)
  values = lambda: [[np.array(w) for w in n.get_weights()] for n in networks]
  before = values()
  model.train_step(tf.fill([5, 4, 4], 255))
  changed = [
    any(np.any(a != b) for a, b in zip(x, y, strict=True))
    for x, y in zip(before, values(), strict=True)
  ]
  evaluates_f = kind == 'WithoutEstimator'
  assert changed == [True, True, evaluates_f, evaluates_f]


def test_weights_come_in_the_order_of_a_torch_network(script):
  kernels = [np.zeros([3, 3, 1, 7]), np.zeros([7]), np.zeros([3600, 4624])]
  shapes = [x.shape for x in script.as_torch(kernels)]
  assert shapes == [(7, 1, 3, 3), (7,), (4624, 3600)]


def test_shares_are_of_what_is_not_attention(script, capsys):
  times = {
    script.RB: np.array([4.0, 6.0]),
    script.ATTENTION_ONLY: np.array([3.0, 5.0]),
    ('torch', 'RB-REINFORCE+'): np.array([9.0, 9.0]),
  }
  script.print_shares(times)
  *_, line = capsys.readouterr().out.splitlines()
  assert line.split() == ['RB-REINFORCE+', '20.0%']


def test_without_torch_the_row_says_how_to_install(script, monkeypatch):
  monkeypatch.setattr(script.moving_torch, 'torch', None)
  rows, failed = script.moving_torch.rows(np.zeros([1, 64, 28, 28]))
  assert not rows
  assert "pip install -e '.[benchmarks]'" in failed['torch', '']


def test_memory_is_measured_of_all_methods(script):
  assert tuple(script.experiment.METHODS) == load('moving_memory').METHODS


@pytest.mark.slow
def test_peak_memory_is_that_of_a_process_of_its_own(tmp_path):
  scripts.run_command(
    'examples/benchmarks/moving_memory.py',
    '--smoke',
    '--methods=REINFORCE+',
    f'--output_dir={tmp_path}',
    in_process=False,
  )
  with (tmp_path / 'memory.csv').open() as file:
    (row,) = csv.DictReader(file)
  # TensorFlow alone takes 300 MB; a run with the frames of the paper takes some
  # 1,500 MB.
  assert 300 < int(row['megabytes']) < 1500
  assert 'MNIST' in row['data']
