# SPDX-License-Identifier: Apache-2.0
"""Seeded calls give equal numbers next to other threads and on replicas."""

from concurrent import futures
import itertools
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import processes
import seeded

NUM_SEEDS = 4
NUM_OTHERS = 2


@pytest.fixture
def short_turns():
  """Makes threads take turns so often that shared state would show."""
  interval = sys.getswitchinterval()
  sys.setswitchinterval(1e-5)
  yield
  sys.setswitchinterval(interval)


def _arrays(results):
  return [np.asarray(x) for x in results]


def _assert_same(actual, desired):
  for x, y in zip(actual, desired, strict=True):
    np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


def _work_until(done, first):
  """Runs all computations in turn until another thread has finished."""
  names = itertools.cycle(seeded.COMPUTATIONS)
  for name in itertools.islice(names, first, None):
    if done.is_set():
      return
    seeded.COMPUTATIONS[name](0)


@pytest.mark.parametrize('name', seeded.COMPUTATIONS)
def test_a_seeded_value_is_the_same_next_to_other_threads(name, short_turns):
  compute = seeded.COMPUTATIONS[name]
  alone = [_arrays(compute(i)) for i in range(NUM_SEEDS)]
  done = threading.Event()
  with futures.ThreadPoolExecutor(NUM_OTHERS + 2) as pool:
    others = [pool.submit(_work_until, done, 3 * i) for i in range(NUM_OTHERS)]
    try:
      own = [
        pool.submit(lambda: [_arrays(compute(i)) for i in range(NUM_SEEDS)])
        for _ in range(2)
      ]
      results = [future.result() for future in own]
    finally:
      done.set()
    for future in others:
      future.result()  # this raises an error if another thread failed
  for together in results:
    for actual, desired in zip(together, alone, strict=True):
      _assert_same(actual, desired)


@pytest.mark.parametrize('name', seeded.TRACEABLE)
def test_a_seeded_value_is_the_same_inside_a_dataset(name):
  compute = seeded.TRACEABLE[name]
  numbers = tf.data.Dataset.range(NUM_SEEDS, output_type=tf.int32)
  batches = numbers.map(
    lambda i: tuple(compute(i)), num_parallel_calls=2, deterministic=True
  )
  for i, actual in enumerate(batches):
    _assert_same(_arrays(actual), _arrays(compute(i)))


def test_two_datasets_that_are_traced_at_once_do_not_mix(short_turns):
  names = list(seeded.TRACEABLE)
  numbers = tf.data.Dataset.range(NUM_SEEDS, output_type=tf.int32)

  def collect(name):
    compute = seeded.TRACEABLE[name]
    batches = numbers.map(lambda i: tuple(compute(i)), num_parallel_calls=2)
    return [_arrays(batch) for batch in batches]

  with futures.ThreadPoolExecutor(len(names)) as pool:
    found = dict(zip(names, pool.map(collect, names)))
  for name in names:
    for i, actual in enumerate(found[name]):
      _assert_same(actual, _arrays(seeded.TRACEABLE[name](i)))


ON_TWO_REPLICAS = """
import numpy as np
import tensorflow as tf

cpu = tf.config.list_physical_devices('CPU')[0]
tf.config.set_logical_device_configuration(
  cpu, [tf.config.LogicalDeviceConfiguration()] * 2
)
import seeded

strategy = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])


def number():
  replica = tf.distribute.get_replica_context()
  return tf.cast(replica.replica_id_in_sync_group, tf.int32)


for name, compute in seeded.TRACEABLE.items():
  expected = [compute(i) for i in range(2)]
  for run in (
    lambda: strategy.run(lambda: compute(number())),
    tf.function(lambda: strategy.run(lambda: compute(number()))),
  ):
    for position, values in enumerate(run()):
      parts = strategy.experimental_local_results(values)
      assert len(parts) == 2
      for i, part in enumerate(parts):
        np.testing.assert_allclose(
          part, expected[i][position], rtol=1e-12, atol=1e-14, err_msg=name
        )
"""


@pytest.mark.slow
def test_a_seeded_value_is_the_same_on_two_replicas():
  # This needs a separate process, because devices are set before the first
  # operation.
  processes.run(ON_TWO_REPLICAS)
