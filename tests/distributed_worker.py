# SPDX-License-Identifier: Apache-2.0
"""Runs one worker of `test_distributed.py`.

The worker trains small models and reports their weights. The commands are:

  python distributed_worker.py OUTPUT compare RB NVIL
  python distributed_worker.py OUTPUT train DIRECTORY EPOCHS
  python distributed_worker.py OUTPUT errors

Each worker writes `OUTPUT.<its number>.json`.
"""

import hashlib
import json
import os
import sys
import time

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

# This must come first, because the first operation fixes the devices.
STRATEGY = tf.distribute.MultiWorkerMirroredStrategy()
NUMBER = json.loads(os.environ['TF_CONFIG'])['task']['index']

import small_autoencoder  # noqa: E402
import small_vae  # noqa: E402
import tfp_rb  # noqa: E402
from tfp_rb import models  # noqa: E402

ESTIMATORS = {
  'RB': lambda: tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1),
  'NVIL': lambda: tfp_rb.NVIL(small_vae.network([None, 20]), center=True),
  'RELAX': lambda: tfp_rb.RELAX(
    models.ControlVariate(20, atom_size=3),
    temperature=tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp()),
    scale=tf.Variable(1.0),
  ),
  'Learned': lambda: tfp_rb.REINFORCE(tfp_rb.baselines.Learned()),
  'Gumbel': lambda: tfp_rb.GumbelSoftmax(tfp_rb.AnnealedTemperature(rate=0.1)),
  'pooled': lambda: tfp_rb.pooled(budget_per_row=1.5),
}


def vae(name):
  keras.utils.set_random_seed(2)  # seeds the networks of the estimator
  model = small_vae.make(ESTIMATORS[name](), seed=5)
  # A single step size serves all variables. Its magnitude suits the gradients
  # of this model.
  model.compile(keras.optimizers.SGD(0.125), jit_compile=False)
  return model


def batch_of(step):
  """Returns a global batch: 8 images of either kind, different in each step."""
  rng = np.random.default_rng(step)
  images = rng.integers(0, 256, size=[2, 8, 20]).astype(np.uint8)
  return (*images, rng.integers(0, 3, size=[8]).astype(np.int32))


def data_of(num_steps):
  batches = [batch_of(i) for i in range(num_steps)]
  return tf.data.Dataset.from_tensor_slices(
    tuple(np.stack(part) for part in zip(*batches, strict=True))
  )


def state_of(model):
  variables = [*model.weights, *model.estimator.variables]
  return [v.numpy() for v in variables]


def digest(state):
  return hashlib.sha256(b''.join(x.tobytes() for x in state)).hexdigest()


def step_of_both_halves(name):
  """Makes, in one process, a step with the mean of both replicas' gradients."""
  model = vae(name)
  trained = model.trainable_variables
  kept = [v for v in model.estimator.variables if not v.trainable]
  start = [v.numpy() for v in kept]
  gradients, averages = [], []
  for replica in range(2):
    half = slice(4 * replica, 4 * replica + 4)
    seed = tf.constant([5 + 1_000_003 * replica, 0])
    batch = tuple(tf.constant(x[half]) for x in batch_of(0))
    values = [v.value for v in trained]
    with tf.GradientTape() as tape:
      loss = model.step_metrics(batch, seed)['loss']
    gradients.append(tape.gradient(loss, values))
    averages.append([v.numpy() for v in kept])
    for variable, value in zip(kept, start, strict=True):
      variable.assign(value)
  for i, variable in enumerate(trained):
    variable.assign_sub(0.125 * (gradients[0][i] + gradients[1][i]) / 2.0)
  for i, variable in enumerate(kept):
    if variable.shape.rank == 0 and 'variance' not in variable.name:
      variable.assign((averages[0][i] + averages[1][i]) / 2.0)
  return state_of(model)


class AfterEpoch(keras.callbacks.Callback):
  """Keeps the state that the model has after the first epoch."""

  def on_epoch_end(self, epoch, logs=None):
    if epoch == 0:
      self.state = state_of(self.model)


def compare(name):
  """Trains three steps and compares the first one with that of one process."""
  with STRATEGY.scope():
    model = vae(name)
  first = AfterEpoch()
  history = models.distributed_fit(
    model, data_of(3), steps_per_epoch=1, epochs=3, callbacks=[first]
  )
  expected = step_of_both_halves(name)
  gaps = [
    float(np.max(np.abs(a - b)))
    for a, b, v in zip(
      first.state, expected, [*model.weights, *model.estimator.variables]
    )
    # Such variables describe the mean of both halves.
    if 'variance' not in v.name
  ]
  return {
    'digest': digest(state_of(model)),
    'gap': max(gaps),
    'moved': max(
      float(np.max(np.abs(a - b)))
      for a, b, v in zip(
        first.state,
        state_of(vae(name)),
        [*model.weights, *model.estimator.variables],
        strict=True,
      )
      if v.trainable
    ),
    'loss': history.history['loss'],
  }


def exact():
  """Checks that, without noise, two workers make the steps of one process."""
  x = small_autoencoder.X
  data = small_autoencoder.data_of(x, x + 1.0, x - 1.0)
  found = []
  for strategy in (STRATEGY, tf.distribute.get_strategy()):
    with strategy.scope():
      model = small_autoencoder.make(tfp_rb.Exact())
      model.compile(keras.optimizers.Adam(0.05), jit_compile=False)
    history = models.distributed_fit(
      model, data, epochs=2, validation_data=data.take(3), verbose=0
    ).history
    found.append((model.get_weights(), history))
  (weights, history), (others, other_history) = found
  return {
    'digest': digest(weights),
    'gap': max(float(np.max(np.abs(a - b))) for a, b in zip(weights, others)),
    'history': history,
    'other_history': other_history,
  }


class Slowly(keras.callbacks.Callback):
  """Slows training down, so that there is time to kill it."""

  def on_epoch_end(self, epoch, logs=None):
    print('epoch', epoch, flush=True)
    time.sleep(0.2)


def train(directory, epochs):
  with STRATEGY.scope():
    model = small_vae.make(ESTIMATORS['NVIL'](), seed=5)
    model.compile(keras.optimizers.Adam(0.01), jit_compile=False)
  data = data_of(4).shuffle(4, seed=3)
  history = models.distributed_fit(
    model,
    data,
    epochs=int(epochs),
    # This is not a multiple of the length, so a pass over the data ends within
    # an epoch.
    steps_per_epoch=3,
    directory=directory,
    callbacks=[Slowly()],
    verbose=2,
  )
  return {'digest': digest(state_of(model)), 'epochs': history.epoch}


def errors():
  """Returns the errors that a user gets who trains in an unsupported way."""
  outside = ESTIMATORS['NVIL']()
  with STRATEGY.scope():
    model = vae('RB')
    mixed = small_vae.make(outside)
    mixed.compile('sgd', jit_compile=False)
  attempts = {
    'fit': lambda: model.fit(data_of(1)),
    'evaluate': lambda: model.evaluate(data_of(1)),
    'outside': lambda: models.distributed_fit(mixed, data_of(1)),
    'rows': lambda: models.distributed_fit(
      model, data_of(1).unbatch().batch(3, drop_remainder=True)
    ),
  }
  messages = {}
  for name, attempt in attempts.items():
    try:
      attempt()
    except (RuntimeError, ValueError) as error:
      messages[name] = f'{type(error).__name__}: {error}'
  return messages


def main(output, kind, *args):
  if kind == 'compare':
    found = {
      name: exact() if name == 'Exact' else compare(name) for name in args
    }
  else:
    found = {'train': train, 'errors': errors}[kind](*args)
  with open(f'{output}.{NUMBER}.json', 'w') as file:
    json.dump(found, file)


if __name__ == '__main__':
  main(*sys.argv[1:])
