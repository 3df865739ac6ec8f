# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a model's gradient variance."""

import csv
import importlib

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import scripts
import tfp_rb
from tfp_rb import models

NETWORKED = (tfp_rb.NVIL, tfp_rb.RELAX)


def test_a_row_has_the_variance_for_each_group_of_variables():
  from examples.benchmarks import gradient_variance

  groups = {'a': [tf.Variable([1.0, 2.0])], 'b': [tf.Variable(3.0)]}

  def loss(seed):
    noise = tf.cast(seed[1], tf.float32) ** 2
    return noise * tf.reduce_sum(groups['a'][0]) + 2.0 * noise * groups['b'][0]

  row = gradient_variance.measure(2, 'name', [(loss, groups)], 3, {'data': 'd'})
  apart = np.array([1.0, 9.0 - 4.0, 25.0 - 16.0])  # of 0 and 1, 4 and 9, ...
  for name, scale in {'a': 2.0, 'b': 4.0}.items():
    distances = scale * apart**2 / 2.0
    np.testing.assert_allclose(row[name], distances.mean(), rtol=1e-6)
    margin = 1.959964 * distances.std(ddof=1) / np.sqrt(3.0)
    np.testing.assert_allclose(row[f'{name}_95'], margin, rtol=1e-6)
  assert row['pairs'] == 3 and row['data'] == 'd'


@pytest.mark.slow
def test_rows_of_the_semisupervised_model(tmp_path):
  from examples.paper import semisupervised_mnist as experiment

  start = tmp_path / 'start.npz'
  experiment.save_networks(experiment.make_model('Exact', seed=0), start)
  scripts.run_command(
    'examples/benchmarks/semisupervised_variance.py',
    f'--output_dir={tmp_path}', f'--checkpoint={start}',
    '--source=embedded', '--num_pairs=3', '--train_steps=2',
    '--estimators=RB-NVIL',
  )  # fmt: skip
  with (tmp_path / 'variances.csv').open() as file:
    rows = list(csv.DictReader(file))
  (row,) = rows
  assert row['estimator'] == 'RB-NVIL'
  for column in ('classifier', 'encoder', 'decoder', 'logits'):
    assert float(row[column]) > 0.0 < float(row[f'{column}_95'])
  assert 'subset' in row['data']
  assert (tmp_path / 'variances.png').stat().st_size > 10_000


@pytest.mark.slow
def test_rows_of_the_moving_model(tmp_path):
  keras.utils.set_random_seed(0)
  model = models.MovingVAE(frame=36, channels=1, hidden_units=4)
  model.save(tmp_path / 'start.keras')
  scripts.run_command(
    'examples/benchmarks/moving_variance.py '
    '--checkpoint=outputs/moving_mnist/RB-REINFORCE+/0/last.keras '
    '--num_pairs=200',
    f'--output_dir={tmp_path}',
    f'--checkpoint={tmp_path / "start.keras"}', '--source=embedded',
    '--num_pairs=2', '--estimators=RB-leave-one-out 4 + 2',
  )  # fmt: skip
  with (tmp_path / 'variances.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert [row['evaluations'] for row in rows] == ['6']
  assert all(float(row['attention']) > 0.0 for row in rows)
  assert all('subset' in row['data'] for row in rows)
  assert (tmp_path / 'variances.png').stat().st_size > 5_000


def test_an_annealed_model_is_measured_as_it_stands(tmp_path):
  script = importlib.import_module('examples.benchmarks.moving_variance')
  schedule = keras.optimizers.schedules.PolynomialDecay(256.0, 4, 2.0)
  model = models.MovingVAE(
    frame=12, window=4, channels=1, hidden_units=4, entropy_weight=schedule
  )
  model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
  model.optimizer.iterations.assign(3)
  model.save(tmp_path / 'last.keras')
  found = script.model_of(None, tmp_path / 'last.keras')
  assert found.entropy_weight == 2.0 + 254.0 / 4


@pytest.mark.parametrize(
  'script', ['semisupervised_variance', 'moving_variance']
)
def test_rows_evaluate_f_as_often_as_they_say(script):
  rows = importlib.import_module(f'examples.benchmarks.{script}').ROWS
  logits = np.tile(np.linspace(0.0, 3.0, 20), [40, 1])  # 40 rows
  q = tfp.distributions.OneHotCategorical(logits=logits, dtype=tf.float64)
  for evaluations, name, make_estimator, *_ in rows:
    estimator = make_estimator()
    if isinstance(estimator.unwrap(), NETWORKED):
      continue  # it needs images, but sums and draws as often as the others
    count = []

    def f(z, rows=None, count=count):
      count.append(z.shape[0] if rows is None else z.shape[0] / 40)
      return tf.reduce_sum(z * np.arange(20.0), axis=-1)

    with tf.GradientTape():
      tfp_rb.expectation(f, q, estimator, seed=[0, 1])
    expected = 20 if evaluations == 10 else evaluations
    assert sum(count) == expected, name
