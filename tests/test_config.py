# SPDX-License-Identifier: Apache-2.0
"""Configs: what they hold, which classes they find, and files of 0.1."""

import json
import pathlib
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import internals
import tfp_rb
from tfp_rb import models

tfd = tfp.distributions

DATA = pathlib.Path(__file__).parent / 'data'


def define(module, code='', name='Mine'):
  """Returns a user's estimator, defined in a module of the given name."""
  scope = {'__name__': module, 'tfp_rb': tfp_rb, 'keras': keras}
  source = f"""
    {code}
    class {name}(tfp_rb.REINFORCE):
      pass
  """
  exec(textwrap.dedent(source), scope)
  return scope[name]


def by_json(value):
  return json.loads(json.dumps(internals.serialize(value)))


def as_of_0_1(config):
  """Returns the config without its registered name, as version 0.1 wrote it."""
  return {k: v for k, v in config.items() if k != 'registered_name'}


# Names.


def test_a_class_of_the_library_is_found_wherever_it_lives():
  config = by_json(tfp_rb.REINFORCE(num_samples=3))
  assert config['registered_name'] == 'tfp_rb>REINFORCE'
  config['module'] = 'tfp_rb.a_module_of_another_version'
  for moved in (config, as_of_0_1(config)):
    found = internals.deserialize(moved)
    assert type(found) is tfp_rb.REINFORCE
    assert found.num_samples == 3


def test_every_class_is_registered_under_one_name():
  classes = internals.registered_classes()
  assert len(set(classes.values())) == len(classes)
  for name in tfp_rb.__all__:
    kind = getattr(tfp_rb, name)
    if hasattr(kind, 'from_config'):
      assert classes[f'tfp_rb>{name}'] is kind


def test_two_classes_of_one_name_are_told_apart():
  kinds = [define('one.module'), define('other.module')]
  for kind in kinds:
    config = by_json(kind())
    assert type(internals.deserialize(config)) is kind
    assert type(internals.deserialize(as_of_0_1(config))) is kind


def test_the_class_defined_last_replaces_one_of_the_same_name_and_module():
  config = by_json(define('a.notebook')())
  newer = define('a.notebook')
  assert type(internals.deserialize(config)) is newer


def test_an_unknown_class_is_refused():
  config = by_json(define('known.module')())
  config['registered_name'] = 'unknown.module>Mine'
  with raises(ValueError, 'class_name'):
    internals.deserialize(config)
  for config in ({'class_name': 'Unheard', 'config': {}}, {'config': {}}):
    with raises(ValueError, 'class_name'):
      internals.deserialize(config)


def test_a_user_s_class_is_never_replaced_by_one_of_the_library():
  config = by_json(tfp_rb.REINFORCE())
  config['module'] = 'a.module.that.is.gone'
  with raises(ValueError, 'class_name'):
    internals.deserialize(as_of_0_1(config))


def test_a_class_that_moved_since_0_1_is_found_if_there_is_one():
  kind = define('new.place', name='Moved')
  config = {**as_of_0_1(by_json(kind())), 'module': 'old.place'}
  assert type(internals.deserialize(config)) is kind
  define('third.place', name='Moved')
  with raises(ValueError, 'class_name'):
    internals.deserialize(config)


def test_a_module_named_in_a_config_is_not_imported(tmp_path, monkeypatch):
  (tmp_path / 'never_imported.py').write_text('import tfp_rb\n')
  monkeypatch.syspath_prepend(tmp_path)
  config = {**by_json(tfp_rb.REINFORCE()), 'module': 'never_imported'}
  config['registered_name'] = 'never_imported>REINFORCE'
  for given in (config, as_of_0_1(config)):
    with raises(ValueError, 'class_name'):
      internals.deserialize(given)
  assert 'never_imported' not in sys.modules


# Keras' registry.


def test_a_name_registered_with_keras_is_the_one_in_the_config():
  code = "@keras.saving.register_keras_serializable('my_package')"
  config = by_json(define('first.module', code)())
  assert config['registered_name'] == 'my_package>Mine'
  moved = define('second.module', code)
  assert type(internals.deserialize(config)) is moved


def test_custom_objects_of_keras_are_found():
  config = by_json(define('gone.module')())
  config['registered_name'] = 'renamed.module>Mine'
  other = define('new.module', name='Other')
  with keras.saving.custom_object_scope({'Mine': other}):
    assert type(internals.deserialize(config)) is other


def test_a_layer_of_keras_is_no_estimator():
  layer = models.EstimatorLayer(tfp_rb.REINFORCE())
  config = keras.saving.serialize_keras_object(layer)
  assert config['registered_name'] == 'tfp_rb>EstimatorLayer'
  with raises(ValueError, 'class_name'):
    internals.deserialize(config)


def test_keras_itself_reads_and_writes_estimators():
  estimator = tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=2),
    num_summed=1,
  )
  config = keras.saving.serialize_keras_object(estimator)
  assert config == internals.serialize(estimator)
  config = json.loads(json.dumps(config))
  copy = keras.saving.deserialize_keras_object(config)
  assert internals.serialize(copy) == config


# Files of version 0.1.

OF_0_1 = json.loads((DATA / 'estimators_of_0_1.json').read_text())


def settings_of(value):
  """Returns a config without the entries that locate classes."""
  if isinstance(value, dict) and 'class_name' in value:
    names = ('class_name', 'config')
    return {name: settings_of(value[name]) for name in names}
  if isinstance(value, dict):
    return {name: settings_of(part) for name, part in value.items()}
  return value


def assert_contains(found, expected):
  """Checks each setting of `expected`; newer versions may have more."""
  if isinstance(expected, dict):
    for name, part in expected.items():
      assert_contains(found[name], part)
  elif isinstance(expected, list):
    assert len(found) == len(expected)
    for one, part in zip(found, expected):
      assert_contains(one, part)
  else:
    assert found == expected


@pytest.mark.parametrize('name', OF_0_1)
def test_estimator_of_0_1_has_its_settings(name):
  estimator = internals.deserialize(OF_0_1[name])
  found = json.loads(json.dumps(internals.serialize(estimator)))
  assert_contains(settings_of(found), settings_of(OF_0_1[name]))


@pytest.mark.parametrize('name', OF_0_1)
def test_estimator_of_0_1_gives_the_sum_where_everything_is_summed(name):
  estimator = internals.deserialize(OF_0_1[name]).unwrap()
  if estimator.chooses_atoms is None:
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=3)
  estimator = estimator.bind(tf.ones([2, 20]))
  q = tfd.OneHotCategorical(
    logits=[[0.0, 1.0, 2.0], [1.0, 0.0, -1.0]], dtype=tf.float32
  )
  cost = tf.constant([1.0, -2.0, 5.0])
  value = tfp_rb.expectation(
    lambda z: tf.reduce_sum(z * cost, axis=-1), q, estimator, seed=[0, 1]
  )
  expected = tf.reduce_sum(q.probs_parameter() * cost, axis=-1)
  np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize(
  'name',
  ['semisupervised_summed', 'semisupervised_nvil', 'semisupervised_relax',
   'moving'],
)  # fmt: skip
def test_model_of_0_1_predicts_as_it_did(name):
  model = keras.models.load_model(DATA / f'{name}_of_0_1.keras')
  stored = np.load(DATA / f'{name}_of_0_1.npz')
  inputs, seed = stored['inputs'], [3, 1]
  np.testing.assert_allclose(model(inputs), stored['outputs'], rtol=1e-5)
  if name == 'moving':
    bound = model.negative_bound(inputs, tf.constant([[7, 60]]), seed)
    assert float(model.entropy_weight(5)) == pytest.approx(32.5)
  else:
    one_hot = tf.one_hot(stored['labels'], 3)[tf.newaxis]
    part = model.encoder_input.of_first(inputs)
    bound = model.negative_bound(inputs, part, one_hot, seed)
  np.testing.assert_allclose(bound[0], stored['bound'], rtol=1e-5)
  for i, variable in enumerate(model.estimator.variables):
    expected = stored[f'estimator_{i}']
    np.testing.assert_array_equal(np.asarray(variable), expected)
  assert model.optimizer.iterations == 2


@pytest.mark.parametrize('name', ['semisupervised_relax', 'moving'])
def test_model_of_0_1_goes_on_training_and_is_saved_again(name, tmp_path):
  model = keras.models.load_model(DATA / f'{name}_of_0_1.keras')
  batch = tf.fill([4, 4, 4], 255)
  if name != 'moving':
    images = tf.fill([4, 20], 255)
    batch = (images, images, tf.constant([0, 1, 2, 1]))
  before = model.get_weights()
  model.fit(tf.data.Dataset.from_tensors(batch), verbose=0)
  assert model.optimizer.iterations == 3
  assert any(np.any(a != b) for a, b in zip(before, model.get_weights()))
  model.save(tmp_path / 'model.keras')
  loaded = keras.models.load_model(tmp_path / 'model.keras')
  for a, b in zip(model.get_weights(), loaded.get_weights(), strict=True):
    np.testing.assert_array_equal(a, b)
