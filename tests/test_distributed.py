# SPDX-License-Identifier: Apache-2.0
"""Training on several replicas, in one process and in two."""

import csv
import importlib.util
import json
import pathlib
import re
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from errors import raises
import processes
import small_autoencoder
import small_vae
from tfp_rb import models
import workers

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / 'examples'

# One process.


def make(estimator=None, **settings):
  model = small_autoencoder.make(estimator, **settings)
  model.compile(keras.optimizers.SGD(0.05), jit_compile=False)
  return model


DATA = small_autoencoder.data_of(small_autoencoder.X, small_autoencoder.X + 1.0)


def test_one_device_trains_as_fit_does():
  model, other = make(), make()
  history = model.fit(
    DATA.repeat(), epochs=2, steps_per_epoch=3, verbose=0, shuffle=False
  ).history
  found = models.distributed_fit(
    other, DATA, epochs=2, steps_per_epoch=3, verbose=0
  ).history
  for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
    np.testing.assert_array_equal(a, b)
  np.testing.assert_allclose(found['loss'], history['loss'], rtol=1e-6)


def test_a_stopped_run_ends_with_the_same_weights(tmp_path):
  data_anew = lambda: DATA.shuffle(2, seed=1)
  whole = make(small_autoencoder.nvil())
  models.distributed_fit(
    whole, data_anew(), epochs=3, steps_per_epoch=3, verbose=0
  )
  for epochs in (1, 3):
    model = make(small_autoencoder.nvil())
    history = models.distributed_fit(
      model, data_anew(), epochs=epochs, steps_per_epoch=3, directory=tmp_path,
      max_to_keep=1, verbose=0,
    )  # fmt: skip
  assert history.epoch == [1, 2]
  state = lambda m: [*m.weights, *m.estimator.variables]
  for a, b in zip(state(whole), state(model), strict=True):
    np.testing.assert_array_equal(a.numpy(), b.numpy())
  assert [p.name for p in tmp_path.glob('*.index')] == ['ckpt-9.index']
  with raises(ValueError, 'directory'):
    models.distributed_fit(make(units=5), DATA, directory=tmp_path, verbose=0)
  # An epoch would not end where a resumed run expects it.
  with raises(ValueError, 'steps_per_epoch'):
    models.distributed_fit(
      make(small_autoencoder.nvil()), DATA, epochs=9, steps_per_epoch=2,
      directory=tmp_path, verbose=0,
    )  # fmt: skip


def test_a_run_ends_with_the_moving_averages_of_the_weights(tmp_path):
  def make_averaged():
    model = small_autoencoder.make(small_autoencoder.nvil())
    optimizer = keras.optimizers.SGD(0.05, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, jit_compile=False)
    return model

  settings = {'steps_per_epoch': 2, 'verbose': 0}
  whole = make_averaged()
  whole.fit(DATA.repeat(), epochs=3, shuffle=False, **settings)
  # The run is stopped, resumed, and started again when it is finished.
  for epochs in (1, 3, 3):
    model = make_averaged()
    models.distributed_fit(
      model, DATA, epochs=epochs, directory=tmp_path, **settings
    )
  for a, b in zip(whole.weights, model.weights, strict=True):
    np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_damaged_checkpoint_is_refused(tmp_path):
  models.distributed_fit(make(), DATA, directory=tmp_path, verbose=0)
  (file,) = tmp_path.glob('*.data*')
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)
  with raises(ValueError, 'directory'):
    models.distributed_fit(make(), DATA, directory=tmp_path, verbose=0)


def test_a_stack_counts_as_its_batches():
  stack = DATA.batch(2, drop_remainder=True)
  model, other = make(), make()
  calls = []

  class Count(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
      calls.append(batch)

  models.distributed_fit(model, DATA, epochs=2, verbose=0)
  models.distributed_fit(other, stack, epochs=2, verbose=0, callbacks=[Count()])
  assert calls == [0, 0]
  for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)
  with raises(ValueError, 'steps_per_epoch'):
    models.distributed_fit(other, stack, steps_per_epoch=3)


def test_stacks_of_a_prepared_dataset_are_taken():
  batches = DATA.repeat(2)
  model, other = make(), make()
  models.distributed_fit(model, batches, verbose=0)
  stacks = models.prepare_dataset(batches, steps_per_call=2)
  models.distributed_fit(other, stacks, verbose=0)
  assert int(other.optimizer.iterations) == 4
  for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)
  with raises(ValueError, 'steps_per_call'):
    models.distributed_fit(
      other, models.prepare_dataset(batches, steps_per_call=3), verbose=0
    )


def test_a_function_gets_its_part_and_the_first_step(tmp_path):
  asked = []

  def data(context, first_step):
    asked.append((context.num_input_pipelines, first_step))
    return DATA.repeat().skip(first_step)

  for epochs in (1, 2):
    models.distributed_fit(
      make(), data, epochs=epochs, steps_per_epoch=2, directory=tmp_path,
      verbose=0,
    )  # fmt: skip
  assert asked == [(1, 0), (1, 2)]


def test_evaluation_is_that_of_keras():
  model = small_vae.make()
  model.compile(jit_compile=False)
  data = tf.data.Dataset.from_tensor_slices(
    (small_vae.IMAGES, small_vae.LABELS)
  )
  found = models.distributed_evaluate(model, data.batch(5))
  expected = model.evaluate(data.batch(5), verbose=0, return_dict=True)
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-6)


def test_training_stops_where_a_callback_says_so():
  class Stop(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
      self.model.stop_training = epoch == 1

  history = models.distributed_fit(
    make(), DATA, epochs=5, callbacks=[Stop()], verbose=0
  )
  assert history.epoch == [0, 1]


@pytest.mark.parametrize(
  ('data', 'settings', 'kind', 'name'),
  [
    ([1, 2], {}, TypeError, 'data'),
    (DATA.repeat(), {}, ValueError, 'steps_per_epoch'),
    (DATA, {'steps_per_epoch': 0}, ValueError, 'steps_per_epoch'),
    (lambda context, step: DATA, {}, ValueError, 'steps_per_epoch'),
    (lambda context, step: DATA, {'steps_per_epoch': 3}, ValueError, 'data'),
  ],
  ids=['list', 'endless', 'no steps', 'function', 'too short'],
)
def test_wrong_data_are_refused(data, settings, kind, name):
  with raises(kind, name):
    models.distributed_fit(make(), data, verbose=0, **settings)


def test_a_model_must_be_compiled():
  with raises(ValueError, 'model'):
    models.distributed_fit(small_autoencoder.make(), DATA)


# Two replicas in one process.

ON_TWO_DEVICES = """
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(
  cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
from small_autoencoder import X, Reporting, data_of, make, nvil
import tfp_rb
from tfp_rb import models

one = tf.distribute.get_strategy()
two = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])

# The averages of a custom loop. A draw is always 0, so `f` is its row.
rows = tf.constant([1.0, 2.0, 5.0, 11.0])
halves = two.experimental_distribute_values_from_function(
  lambda c: tf.split(rows, 2)[c.replica_id_in_sync_group]
)


def step(estimator, x):
  q = tfp.distributions.Categorical(logits=tf.tile([[90.0, 0.0]], [len(x), 1]))
  f = lambda z: 0.0 * tf.cast(z, x.dtype) + x
  return tfp_rb.expectation(f, q, estimator, seed=[0, 1])


averages = []
for strategy, x in ((one, rows), (two, halves)):
  with strategy.scope():
    estimator = tfp_rb.NVIL(tf.constant(0.5), center=True, normalize=True)
  strategy.run(step, args=(estimator, x))  # eager
  tf.function(lambda: strategy.run(step, args=(estimator, x)))()
  averages.append([estimator.moving_mean, estimator.moving_variance])
for single, mirrored in zip(*averages, strict=True):
  a, b = mirrored.values
  assert a.numpy() == b.numpy(), (a, b)
  np.testing.assert_allclose(a, single, rtol=1e-6)

# The steps, the metrics and the evaluation of one device.
data, tests = data_of(X, X + 1.0), data_of(X[:4], X[4:8], X[8:])
found = []
for strategy in (one, two):
  with strategy.scope():
    model = make(tfp_rb.Exact(), kind=Reporting)
    model.compile(keras.optimizers.SGD(0.05), jit_compile=False)
  history = models.distributed_fit(
    model, data.batch(2, drop_remainder=True), epochs=2, validation_data=tests,
    verbose=0,
  ).history
  found.append((model.get_weights(), history))
(weights, history), (others, other_history) = found
for a, b in zip(weights, others, strict=True):
  np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
assert history.keys() == other_history.keys() >= {'val_loss', 'mean', 'step'}
for name, values in history.items():
  np.testing.assert_allclose(values, other_history[name], rtol=1e-5)

# What an estimator keeps is equal on both, and saved.
import tempfile
for make_estimator in (
  nvil,
  lambda: tfp_rb.REINFORCE(tfp_rb.baselines.Learned(2.0)),
  lambda: tfp_rb.GumbelSoftmax(tfp_rb.AnnealedTemperature(rate=0.1)),
):
  with two.scope():
    model = make(make_estimator())
    model.compile(keras.optimizers.SGD(0.05), jit_compile=True)
  models.distributed_fit(model, data, epochs=2, verbose=0)
  for variable in model.estimator.variables:
    if not hasattr(variable, 'values'):
      variable = variable.value  # Keras wraps its own
    a, b = (v.numpy() for v in variable.values)
    np.testing.assert_array_equal(a, b)
  path = tempfile.mkdtemp() + '/model.keras'
  model.save(path)
  loaded = keras.saving.load_model(path)
  for a, b in zip(
    model.estimator.variables, loaded.estimator.variables, strict=True
  ):
    np.testing.assert_array_equal(a.numpy(), b.numpy())
"""


@pytest.mark.slow
def test_two_devices_train_as_one():
  # This needs a separate process, because devices are set before the first
  # operation.
  processes.run(ON_TWO_DEVICES)


# Two processes.


def results_of(path, *args):
  workers.run(path / 'found', *args)
  return [read(path, i) for i in range(2)]


def read(path, number):
  return json.loads((path / f'found.{number}.json').read_text())


def check_pair(one, other):
  """Checks that both workers have the same weights and made a real step.

  `gap` is the distance of the first step from the mean of two gradients, which
  one process computes for the two halves of the batch, each with the draws of
  its replica. Each of the two is unbiased for its half, so the expectation of
  their mean is the gradient of the doubled batch, and nothing is left to
  chance.
  """
  assert one['digest'] == other['digest']
  assert one['loss'] == other['loss']
  assert one['gap'] < 1e-6
  assert one['moved'] > 1e-2


@pytest.mark.slow
def test_two_workers_have_equal_weights_and_averages(tmp_path):
  one, other = results_of(tmp_path, 'compare', 'NVIL')
  check_pair(one['NVIL'], other['NVIL'])


@pytest.mark.slow
def test_two_workers_train_with_every_kind_of_estimator(tmp_path):
  names = ('RB', 'RELAX', 'Learned', 'Gumbel', 'pooled')
  one, other = results_of(tmp_path, 'compare', *names)
  for name in names:
    check_pair(one[name], other[name])


@pytest.mark.slow
def test_two_workers_train_and_evaluate_as_one_process(tmp_path):
  one, other = (x['Exact'] for x in results_of(tmp_path, 'compare', 'Exact'))
  assert one['digest'] == other['digest']
  assert one['gap'] < 1e-5
  assert one['history'].keys() == {'loss', 'val_loss'}
  for name, values in one['history'].items():
    np.testing.assert_allclose(values, one['other_history'][name], rtol=1e-5)


@pytest.mark.slow
def test_two_workers_are_told_what_does_not_work(tmp_path):
  messages, _ = results_of(tmp_path, 'errors')
  assert messages.keys() == {'fit', 'evaluate', 'outside', 'rows'}
  assert 'distributed_fit' in messages['fit']
  assert 'distributed_evaluate' in messages['evaluate']
  # The message names the first variable of the network of `NVIL`, which was
  # made outside.
  assert '`model`' in messages['outside']
  assert 'dense/kernel' in messages['outside']
  assert '`data`' in messages['rows']


@pytest.mark.slow
@pytest.mark.parametrize('victim', [0, 1], ids=['chief', 'worker'])
def test_a_killed_worker_does_not_change_the_result(tmp_path, victim):
  epochs = 12
  whole = results_of(tmp_path, 'train', tmp_path / 'whole', epochs)
  assert whole[0]['digest'] == whole[1]['digest']
  assert whole[0]['epochs'] == list(range(epochs))
  folder = tmp_path / 'killed'
  with workers.started(tmp_path / 'found', 'train', folder, epochs) as running:
    deadline = time.monotonic() + 200
    while not list(folder.glob('ckpt-[69].index')):
      assert time.monotonic() < deadline
      assert all(p.poll() is None for p in running), running[0].communicate()
      time.sleep(0.05)
    running[victim].send_signal(signal.SIGKILL)
    assert running[victim].wait(10) == -signal.SIGKILL
    # The other worker raises an error or waits; it must not end as if it had
    # finished.
    time.sleep(3)
    assert running[1 - victim].poll() != 0
  again = results_of(tmp_path, 'train', folder, epochs)
  assert 0 < again[0]['epochs'][0] < epochs - 1
  assert again[0]['epochs'][-1] == epochs - 1
  assert {x['digest'] for x in again} == {whole[0]['digest']}
  assert not list(folder.glob('temporary*'))


# Examples.


@pytest.mark.slow
def test_the_mnist_example_trains_in_two_processes(tmp_path):
  for epochs in (1, 2):  # the second run continues the first
    chief, _ = workers.run(
      '--smoke',
      '--source=embedded',
      '--methods=RB-REINFORCE',
      '--num_seeds=1',
      '--warm_start_epochs=1',
      f'--epochs={epochs}',
      f'--output_dir={tmp_path}',
      program=EXAMPLES / 'paper' / 'semisupervised_mnist.py',
    )
  assert re.search(r'^RB-REINFORCE +1 +2 ', chief, re.MULTILINE)
  folder = tmp_path / 'RB-REINFORCE' / '0'
  with open(folder / 'log.csv') as file:
    rows = list(csv.DictReader(file))
  assert [row['epoch'] for row in rows] == ['0', '1']
  one, other = (
    keras.saving.load_model(path / 'last.keras')
    for path in (folder, folder / 'worker_1')
  )
  for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_benchmark_of_workers_writes_what_it_prints(tmp_path):
  printed = subprocess.run(
    [
      sys.executable,
      str(EXAMPLES / 'benchmarks' / 'workers.py'),
      '--smoke',
      '--num_images=64',
      '--batch_sizes=16',
      '--epochs=1',
      '--rounds=1',
      f'--output_dir={tmp_path}',
    ],
    capture_output=True,
    text=True,
    timeout=600,
    check=True,
  ).stdout
  with open(tmp_path / 'workers.csv') as file:
    rows = list(csv.DictReader(file))
  assert [row['workers'] for row in rows] == ['1', '2', 'none']
  for row in rows:
    assert f'seconds {row["seconds"]}' in printed
    assert float(row['seconds']) > 0.0


# Ray is an extra; if it is not installed, there is nothing to test.
if importlib.util.find_spec('ray') is not None:

  @pytest.mark.slow
  def test_ray_trains_with_two_workers(tmp_path):
    script = str(EXAMPLES / 'ray_train.py')
    flags = ['--epochs=2', '--units=16', f'--output_dir={tmp_path}']
    printed = subprocess.run(
      [sys.executable, script, *flags],
      capture_output=True,
      text=True,
      timeout=900,
      check=False,
    )
    assert printed.returncode == 0, printed.stderr[-4000:]
    assert "Last epoch: {'epoch': '1'" in printed.stdout
    assert "'val_accuracy'" in printed.stdout
    assert len(list((tmp_path / 'checkpoints').glob('*.index'))) == 2
