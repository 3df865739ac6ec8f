# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the semi-supervised model, without PyTorch or training."""

import numpy as np
import pytest


@pytest.fixture(scope='module')
def script():
  from examples.benchmarks import semisupervised  # it defines no flags

  return semisupervised


def test_without_torch_the_rows_of_others_say_how_to_install(
  script, monkeypatch
):
  monkeypatch.setattr(script.others, 'torch', None)
  rows, failed = script.others.peers(with_compile=True)
  assert not rows
  assert {library for library, _ in failed} == {'torch', 'storchastic'}
  table = script.step_times.summarize(
    {script.RB: np.array([2.0, 3.0])}, failed, script.RB, 'a subset'
  )
  assert [row['library'] for row in table] == ['tfp_rb', 'torch', 'storchastic']
  assert all("pip install -e '.[benchmarks]'" in r['note'] for r in table[1:])


def test_a_row_that_fails_is_reported_unless_it_is_ours(script):
  def fail(first=None):
    raise RuntimeError('too new\nand more')

  rows = {
    script.RB: (lambda first: None, 1),
    ('storchastic', 'Expect'): (fail, 1),
  }
  able, failed = script.step_times.warm_up(rows)
  assert list(able) == [script.RB]
  assert failed == {('storchastic', 'Expect'): 'RuntimeError: too new'}
  with pytest.raises(RuntimeError, match='too new'):
    script.step_times.warm_up({script.RB: (fail, 1)})


def test_times_are_by_step_and_rows_take_turns(script, monkeypatch):
  clock, order = [0.0], []
  monkeypatch.setattr(script.step_times.time, 'perf_counter', lambda: clock[0])

  def row(name, seconds):
    def run():
      order.append(name)
      clock[0] += seconds

    return run

  rows = {script.RB: (row('a', 0.5), 50), ('torch', 'RB'): (row('b', 2.0), 20)}
  times = script.step_times.measure(rows, num_rounds=3)
  for i in (0, 2, 4):
    assert {*order[i : i + 2]} == {'a', 'b'}
  np.testing.assert_allclose(times[script.RB], [10.0] * 3)
  np.testing.assert_allclose(times['torch', 'RB'], [100.0] * 3)
  assert (
    script.step_times.summarize(times, {}, script.RB, '')[1]['over_rb']
    == '10.000'
  )


def test_a_target_holds_or_is_missed_in_its_own_direction(script):
  exact, score = ('tfp_rb', 'Exact'), ('tfp_rb', 'REINFORCE')
  times = {
    script.RB: np.array([4.0, 5.0]),
    exact: np.array([6.0, 7.5]),
    score: np.array([4.0, 5.0]),
    ('torch', 'RB'): np.array([12.0, 20.0]),
  }
  lines = script.step_times.verdicts(
    times, script.TARGETS
  )  # the targets whose rows exist
  assert [line.split()[0] for line in lines] == ['PASS', 'MISSED', 'PASS']
  # The median of 3 and 4 is taken over rounds, not over all times.
  assert '3.500, at least 3.0' in lines[0]
  assert '0.667, at most 0.556' in lines[1]


def test_weights_come_in_the_order_of_a_torch_network(script):
  model = script.experiment.make_model('Exact', seed=0)
  shapes = [x.shape for x in script.as_torch(model.trainable_weights)]
  sizes = [(784, 256, 256, 256, 10), (794, 128, 128, 16), (18, 128, 128, 784)]
  expected = []
  for network in sizes:
    for inputs, outputs in zip(network, network[1:]):
      expected += [(outputs, inputs), (outputs,)]
  assert shapes == expected


def test_methods_of_the_targets_are_methods_of_the_experiment(script):
  ours = {
    name
    for target in script.TARGETS
    for name in target[:2]
    if name[0] == 'tfp_rb'
  } - {script.FIT, script.BARE, script.PRODUCTS}
  assert {method for _, method in ours} <= set(script.experiment.METHODS)


def test_the_products_of_a_step_are_those_of_the_model(script):
  model = script.models.SemiSupervisedVAE()
  kernels = [tuple(v.shape) for v in model.trainable_weights if v.ndim == 2]
  layers = script.matrix_products.layers_of_step(64, num_atoms=2)
  assert sorted(kernels) == sorted((n, m) for _, n, m, _ in layers)
  operations = script.matrix_products.num_operations(layers)
  # The encoder and the decoder process two labels of 64 images and one label of
  # 64 others.
  assert operations == pytest.approx(0.42e9, rel=0.02)
