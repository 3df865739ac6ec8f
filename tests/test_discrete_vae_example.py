# SPDX-License-Identifier: Apache-2.0
"""The script that compares estimators on autoencoders with discrete codes."""

import csv

from absl.app import UsageError
import keras
import numpy as np
import pytest
import tensorflow as tf

import scripts
import tfp_rb


@pytest.fixture(scope='module')
def script():
  from examples.studies import discrete_vae  # it defines no flags

  return discrete_vae


@pytest.fixture(scope='module')
def protocol(script):
  return script.shortened(script.PROTOCOLS['bernoulli'])


def rows_of(folder):
  with (folder / 'log.csv').open(newline='') as file:
    return list(csv.DictReader(file))


def run_smoke(output, *flags):
  return scripts.run_command(
    'examples/studies/discrete_vae.py', '--smoke', '--source=embedded',
    f'--output_dir={output}', *flags,
  )  # fmt: skip


def test_a_run_writes_its_log_and_goes_on_with_more_steps(tmp_path):
  flags = ['--methods=NVIL', '--evaluations=2']
  run_smoke(tmp_path / 'parts', *flags, '--steps=4')
  printed = run_smoke(tmp_path / 'parts', *flags, '--steps=8')
  assert '1 epochs are done already.' in printed
  assert '\nNVIL-2 ' in printed
  run_smoke(tmp_path / 'whole', *flags, '--steps=8')
  parts, whole = (
    rows_of(tmp_path / name / 'bernoulli' / 'NVIL-2' / '0')
    for name in ('parts', 'whole')
  )
  assert len(parts) == len(whole) == 2
  for a, b in zip(parts, whole, strict=True):
    assert a.pop('data') == b.pop('data')
    a.pop('seconds'), b.pop('seconds')
    for column in a:
      np.testing.assert_allclose(float(a[column]), float(b[column]), rtol=1e-4)
  assert (tmp_path / 'whole/bernoulli/paths.png').stat().st_size > 10_000
  with (tmp_path / 'whole/bernoulli/paths.csv').open(newline='') as file:
    assert len(list(csv.DictReader(file))) == 3


@pytest.mark.slow
@pytest.mark.parametrize('latents', ['bernoulli', 'categorical'])
def test_all_methods_run(script, latents, tmp_path):
  methods = script.methods.methods_of(script.PROTOCOLS[latents].latents)
  printed = run_smoke(
    tmp_path, f'--latents={latents}', f'--methods={",".join(methods)}'
  )
  folders = [p for p in (tmp_path / latents).iterdir() if p.is_dir()]
  assert len(folders) == len(methods)
  for method in methods:
    assert f'\n{method}-' in printed


@pytest.mark.slow
def test_variances_are_measured_at_three_checkpoints(tmp_path):
  runs, output = tmp_path / 'runs', tmp_path / 'variance'
  run_smoke(runs, '--methods=leave-one-out')
  command = 'examples/studies/discrete_vae_variance.py'
  flags = ['--smoke', '--source=embedded', f'--runs={runs}']
  flags += ['--methods=leave-one-out,RELAX', f'--output_dir={output}']
  scripts.run_command(command, *flags)
  with (output / 'bernoulli' / 'variances.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  assert [row['method'] for row in rows] == ['leave-one-out-3', 'RELAX-3'] * 3
  assert len({row['checkpoint'] for row in rows}) == 3
  for row in rows:
    assert 0 <= float(row['low']) <= float(row['variance'])
    assert float(row['variance']) <= float(row['high'])
    assert float(row['bias_low']) <= float(row['bias_high'])
  assert (output / 'bernoulli' / 'variances.png').stat().st_size > 10_000
  printed = scripts.run_command(command, *flags, '--plot_only')
  assert rows[0]['method'] in printed


def test_all_methods_start_alike(script, protocol):
  started = [
    script.make_model(method, protocol, 2, seed=3)[0]
    for method in ('leave-one-out', 'NVIL', 'RELAX')
  ]
  weights_of = script.training_runs.checkpoints.network_weights
  first, *others = [[w.numpy() for w in weights_of(model)] for model in started]
  for other in others:
    for a, b in zip(first, other, strict=True):
      np.testing.assert_array_equal(a, b)


def test_the_weights_depend_on_the_seed(script, protocol):
  first, second = (
    script.make_model('leave-one-out', protocol, 2, seed)[0] for seed in (0, 1)
  )
  assert np.any(first.get_weights()[0] != second.get_weights()[0])


def test_data_of_a_row_are_the_same_whenever_a_run_begins(script, protocol):
  images = np.arange(500, dtype=np.uint8)[:, None] * np.ones([1, 2], np.uint8)
  stacks = protocol.steps_per_row // protocol.steps_per_call

  def row(number, first_row):
    data = script.training_data(images, protocol, first_row, seed=3)
    data = data.skip((number - first_row) * stacks).take(stacks)
    return np.concatenate(list(data.as_numpy_iterator()))

  found = row(2, 2)
  assert found.shape == (4, 100, 2)
  np.testing.assert_array_equal(found, row(2, 0))
  assert np.any(found != row(1, 0))


def test_a_pass_shows_each_image_once(script, protocol):
  images = np.arange(200, dtype=np.uint8)[:, None]
  data = script.training_data(images, protocol, 0, seed=3)
  first_stack = next(data.as_numpy_iterator())  # two batches of 100
  np.testing.assert_array_equal(np.sort(np.ravel(first_stack)), np.arange(200))


def test_the_variance_along_the_path_is_that_of_moving_averages(script):
  gradients = np.random.default_rng(0).normal(1.0, 2.0, size=[40, 5])
  variables = [tf.Variable(tf.zeros([5])), tf.Variable(tf.zeros([2]))]
  optimizer = script.AdamWithMoments(1e-3)
  mean = square = 0.0
  for gradient in gradients:
    pair = [tf.constant(gradient, tf.float32), tf.zeros([2])]
    optimizer.apply(pair, variables)
    mean = 0.999 * mean + 0.001 * gradient
    square = 0.999 * square + 0.001 * gradient**2
  weight = 1.0 - 0.999**40
  expected = np.sum(square / weight - (mean / weight) ** 2)
  found = optimizer.variance(variables[:1])
  np.testing.assert_allclose(found, expected, rtol=1e-3)
  assert optimizer.variance(variables[1:]) == 0.0


def test_the_optimizer_makes_the_steps_of_adam(script):
  ends = []
  for kind in (script.AdamWithMoments, keras.optimizers.Adam):
    variable, optimizer = tf.Variable([1.0, 2.0]), kind(0.1)
    for step in range(3):
      optimizer.apply([tf.constant([1.0, step])], [variable])
    ends.append(variable.numpy())
  np.testing.assert_array_equal(*ends)
  config = script.AdamWithMoments(0.1).get_config()
  assert script.AdamWithMoments.from_config(config).learning_rate == 0.1


def test_the_test_bound_is_the_mean_over_all_images(script, protocol):
  model, _ = script.make_model('leave-one-out', protocol, 2, 0)
  # The images are black and white, so binarizing does not change them.
  images = np.zeros([150, 784], np.uint8)
  images[:, :400] = 255
  callback = script.TestBound(images, protocol, 4)
  callback.set_model(model)
  callback.on_train_begin()
  bounds = [
    model.importance_bound(
      tf.constant(images[start : start + 100] / 255.0, tf.float32),
      script.TEST_DRAWS,
      seed=[start, 2],
    )
    for start in (0, 100)
  ]
  np.testing.assert_allclose(
    callback.measure(), np.mean(np.concatenate(bounds)), rtol=1e-4
  )


def test_methods_that_are_impossible_are_refused(script):
  with pytest.raises(UsageError, match='--methods'):
    script.methods.estimator_of('Exact', 200, 3)
  with pytest.raises(UsageError, match='--methods'):
    script.methods.estimator_of('nonsense', (4, 8), 3)
  with pytest.raises(UsageError, match='--evaluations'):
    script.methods.estimator_of('leave-one-out', 200, 1)
  estimator, number = script.methods.estimator_of('REBAR', 200, 3)
  assert isinstance(estimator, tfp_rb.REBAR)
  assert number == 2
