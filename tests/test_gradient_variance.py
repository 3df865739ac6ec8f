"""The benchmark of the gradient variance of a model."""

import csv

import numpy as np
import pytest
import tensorflow as tf

import scripts

SCRIPT = 'benchmarks/semisupervised_variance.py'


@pytest.fixture(scope='module')
def gradient_variance():
  with scripts.as_started(scripts.EXAMPLES / SCRIPT):
    import gradient_variance  # defines no flags

    yield gradient_variance


def test_distances_are_those_of_gradients_at_other_seeds(gradient_variance):
  groups = [[tf.Variable([1.0, 2.0])], [tf.Variable(3.0), tf.Variable([4.0])]]

  def loss(seed):
    noise = tf.cast(seed[1], tf.float32) ** 2
    (a,), (b, c) = groups
    return noise * tf.reduce_sum(a) + 2.0 * noise * b + tf.reduce_sum(c)

  actual = gradient_variance.half_squared_distances(loss, groups, num_pairs=3)
  apart = np.array([1.0, 9.0 - 4.0, 25.0 - 16.0])
  expected = np.stack([2.0 * apart**2, 4.0 * apart**2], axis=1) / 2.0
  np.testing.assert_allclose(actual, expected)


def test_an_interval_is_two_standard_errors_wide(gradient_variance):
  values = np.array([[1.0, 2.0], [3.0, 2.0], [5.0, 2.0], [7.0, 2.0]])
  mean, margin = gradient_variance.mean_and_interval(values)
  np.testing.assert_allclose(mean, [4.0, 2.0])
  np.testing.assert_allclose(
    margin, [1.959964 * np.sqrt(20.0 / 3.0 / 4.0), 0.0]
  )


def test_rows_of_the_semisupervised_model(tmp_path):
  with scripts.as_started(scripts.EXAMPLES / 'semisupervised_mnist.py'):
    import semisupervised_mnist as experiment
  start = tmp_path / 'start.npz'
  experiment.save_networks(experiment.make_model('Exact', seed=0), start)
  scripts.run(
    SCRIPT, f'--output_dir={tmp_path}', f'--checkpoint={start}',
    '--source=embedded', '--num_pairs=3', '--train_steps=2',
    '--estimators=RB-NVIL,Exact shared',
  )  # fmt: skip
  with (tmp_path / 'variances.csv').open() as file:
    rows = list(csv.DictReader(file))
  assert [row['estimator'] for row in rows] == ['RB-NVIL', 'Exact shared']
  for row in rows:
    assert float(row['classifier']) > 0.0 < float(row['others'])
    assert float(row['classifier_95']) > 0.0 < float(row['others_95'])
    assert 'subset' in row['data']
  assert (tmp_path / 'variances.png').stat().st_size > 10_000
