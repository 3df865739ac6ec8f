# SPDX-License-Identifier: Apache-2.0
"""Writes the files of version 0.1 that `test_config.py` loads.

It ran once, with version 0.1 of the package on the path:

  PYTHONPATH=<a checkout of 0.1> python tests/data/make_files_of_0_1.py
"""

import json
import pathlib

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb
from tfp_rb import _config, baselines, models, samplers

FOLDER = pathlib.Path(__file__).parent
SEED = [3, 1]
RNG = np.random.default_rng(3)
IMAGES = RNG.integers(0, 256, size=[12, 20]).astype(np.uint8)
BINARY = (IMAGES > 127).astype(np.float32)
LABELS = RNG.integers(0, 3, size=[12]).astype(np.int32)
DIGITS = RNG.integers(0, 256, size=[6, 4, 4]).astype(np.uint8)
FRAMES = RNG.integers(0, 2, size=[2, 11, 11]).astype(np.float32)


def network(input_size):
  keras.utils.set_random_seed(1)
  built = keras.Sequential([keras.layers.Dense(1)])
  built.build([None, input_size])
  return built


def positive(value):
  return tfp.util.TransformedVariable(value, tfp.bijectors.Exp())


def relax():
  keras.utils.set_random_seed(2)
  return tfp_rb.RELAX(
    models.ControlVariate(20, atom_size=3, units=4), temperature=positive(0.5)
  )


def estimators():
  """Every estimator, baseline, sampler and wrapper of 0.1."""
  reinforce, summed = tfp_rb.REINFORCE, tfp_rb.rao_blackwellize
  plain = {
    'REINFORCE': reinforce(num_samples=3),
    'NVIL': tfp_rb.NVIL(network(20), center=True, normalize=True),
    'NVIL of a variable': tfp_rb.NVIL(tf.Variable(1.5), num_samples=2),
    'MuProp': tfp_rb.MuProp(num_samples=2),
    'DARN': tfp_rb.DARN(center=0.25),
    'REBAR': tfp_rb.REBAR(positive(0.3), scale=tf.Variable(0.7)),
    'RELAX': relax(),
    'GumbelSoftmax': tfp_rb.GumbelSoftmax(
      tfp_rb.AnnealedTemperature(rate=1e-3, floor=0.2), straight_through=False
    ),
    'ReinMax': tfp_rb.ReinMax(1.25, num_samples=2),
    'Exact': tfp_rb.Exact(),
  }
  given = {
    'a number': 1.5,
    'a tensor': tf.constant([1.0, 2.0], tf.float64),
    'Constant': baselines.Constant(tf.Variable(0.5)),
    'IndependentSample': baselines.IndependentSample(shared=False),
    'LeaveOneOut': baselines.LeaveOneOut(form='rest'),
    'Learned': baselines.Learned(0.5),
    'Optimal': baselines.Optimal(),
  }
  drawn = {
    'IID': samplers.IID(),
    'Stratified': samplers.Stratified(),
    'WithoutReplacement': samplers.WithoutReplacement(),
  }
  wrapped = {
    'budget': summed(reinforce(), budget=3),
    'RELAX, summed': summed(relax(), num_summed=1),
    'local_expectation': tfp_rb.local_expectation(
      reinforce(baselines.LeaveOneOut(), num_samples=2), 1, sites_per_call=2
    ),
  }
  return {
    **plain,
    **{
      f'REINFORCE with {name}': reinforce(baseline=x, num_samples=2)
      for name, x in given.items()
    },
    **{
      f'REINFORCE by {name}': summed(
        reinforce(num_samples=2), num_summed=1, sampler=x
      )
      for name, x in drawn.items()
    },
    **wrapped,
  }


def semisupervised(estimator):
  keras.utils.set_random_seed(0)
  model = models.SemiSupervisedVAE(
    estimator,
    latent_dim=2,
    num_classes=3,
    num_pixels=20,
    classifier_units=(8,),
    hidden_units=(7, 6),
    unlabeled_weight=0.8,
    alpha=2.0,
    share_noise=True,
    seed=5,
  )
  model.compile(
    keras.optimizers.Adam(0.01),
    estimator_optimizer=keras.optimizers.SGD(0.01),
    jit_compile=False,
  )
  data = tf.data.Dataset.from_tensors((IMAGES[:8], IMAGES[8:], LABELS[8:]))
  model.fit(data.repeat(2), verbose=0)
  return model


def moving():
  keras.utils.set_random_seed(0)
  model = models.MovingVAE(
    frame=11,
    window=4,
    latent_dim=2,
    hidden_units=3,
    channels=2,
    entropy_weight=keras.optimizers.schedules.PolynomialDecay(64.0, 10, 1.0),
    epsilon=1e-3,
  )
  model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  model.fit(tf.data.Dataset.from_tensors(DIGITS).repeat(2), verbose=0)
  return model


def main():
  configs = {name: _config.serialize(x) for name, x in estimators().items()}
  path = FOLDER / 'estimators_of_0_1.json'
  path.write_text(json.dumps(configs, indent=1) + '\n')

  expected = {}
  summed = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  nvil = tfp_rb.NVIL(network(20), center=True)
  for name, estimator in (
    ('summed', summed), ('nvil', nvil), ('relax', relax())
  ):  # fmt: skip
    model = semisupervised(estimator)
    name = f'semisupervised_{name}_of_0_1'
    model.save(FOLDER / f'{name}.keras')
    bound = model.negative_bound(
      BINARY,
      model.encoder_input.of_first(BINARY),
      np.eye(3, dtype=np.float32)[LABELS][np.newaxis],
      SEED,
    )
    expected[name] = {
      'inputs': BINARY,
      'labels': LABELS,
      'outputs': model(BINARY),
      'bound': bound[0],
    }
    for i, variable in enumerate(estimator.variables):
      expected[name][f'estimator_{i}'] = variable

  model = moving()
  model.save(FOLDER / 'moving_of_0_1.keras')
  expected['moving_of_0_1'] = {
    'inputs': FRAMES,
    'outputs': model(FRAMES),
    'bound': model.negative_bound(FRAMES, tf.constant([[7, 60]]), SEED)[0],
  }
  for name, arrays in expected.items():
    arrays = {key: np.asarray(value) for key, value in arrays.items()}
    np.savez(FOLDER / f'{name}.npz', **arrays)


if __name__ == '__main__':
  main()
