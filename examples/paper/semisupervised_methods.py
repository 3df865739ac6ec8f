# SPDX-License-Identifier: Apache-2.0
"""Defines the methods of the semi-supervised experiment, and their models."""

import functools

from absl import app
import keras
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb
from tfp_rb import baselines, models

NUM_CLASSES = 10
NUM_PIXELS = 784


def _network(input_shape, units):
  """Returns a network with one output, which is built and has variables."""
  network = keras.Sequential([
    keras.layers.Dense(n, activation='relu') for n in units
  ] + [keras.layers.Dense(1)])  # fmt: skip
  network.build(input_shape)
  return network


def _relax(with_f=False):
  return tfp_rb.RELAX(
    models.ControlVariate(NUM_PIXELS, atom_size=NUM_CLASSES),
    temperature=tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp()),
    scale=tf.Variable(1.0),
    with_f=with_f,
  )


def _gumbel(rate=5e-4):
  # The authors anneal once per batch of labeled images, of which there is one
  # for nine of our steps.
  return tfp_rb.GumbelSoftmax(
    tfp_rb.AnnealedTemperature(rate=rate / 9.0), straight_through=False
  )


def _leave_one_out(**split):
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baselines.LeaveOneOut()), **split
  )


def _summed(k):
  return tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=k)


def _pooled(budget_per_row):
  return tfp_rb.pooled(budget_per_row=budget_per_row)


# Each entry has a callable that creates the estimator, the step size, and the
# step size for the variables of the estimator.
METHODS = {
  'RB-REINFORCE': (functools.partial(_summed, 1), 1e-3, None),
  'Exact': (tfp_rb.Exact, 1e-3, None),
  'REINFORCE': (tfp_rb.REINFORCE, 1e-4, None),
  'REINFORCE+': (
    lambda: tfp_rb.REINFORCE(baselines.IndependentSample()), 1e-3, None
  ),
  'RELAX': (_relax, 5e-4, 1e-2),
  # As in the authors' code, `f` is also evaluated at relaxed labels.
  'RELAX-with-f': (functools.partial(_relax, with_f=True), 5e-4, 1e-2),
  'NVIL': (
    lambda: tfp_rb.NVIL(_network([None, NUM_PIXELS], [512, 512, 512])),
    1e-3, None,
  ),
  'Gumbel': (_gumbel, 1e-3, None),
  'RB-leave-one-out': (
    functools.partial(_leave_one_out, num_summed=1), 1e-3, None
  ),
  'budget=2': (functools.partial(_leave_one_out, budget=2), 1e-3, None),
  'budget=3': (functools.partial(_leave_one_out, budget=3), 1e-3, None),
  'pooled=1.25': (functools.partial(_pooled, 1.25), 1e-3, None),
}  # fmt: skip

DEMO = ('RB-REINFORCE', 'REINFORCE', 'Exact')


def method_of(name):
  """Returns the entry of a method; `k=...` and `budget=...` work, too."""
  kind, _, number = name.partition('=')
  if name not in METHODS and number.isdigit() and int(number) <= NUM_CLASSES:
    if kind == 'k':
      return functools.partial(_summed, int(number)), 1e-3, None
    if kind == 'budget' and int(number) > 1:
      return functools.partial(_leave_one_out, budget=int(number)), 1e-3, None
  if name not in METHODS:
    raise app.UsageError(
      f'`--methods` must be among {list(METHODS)}, `k=0` to `k=10` (also '
      '`--k`) and `budget=2` to `budget=10` (also `--budget`); got '
      f'{name!r}.'
    )
  return METHODS[name]


def make_model(method, seed, learning_rate=None, rate=None, **settings):
  """Returns a compiled model for a method.

  Args:
    method: Name of the method.
    seed: Python `int`.
    learning_rate: Python `float`. Default: the step size in `METHODS`.
    rate: Python `float`, annealing rate of Gumbel. Default: the paper's rate.
    **settings: Arguments of `SemiSupervisedVAE`, or `jit_compile`.

  Returns:
    model: A `SemiSupervisedVAE`.
  """
  make_estimator, default, estimator_rate = method_of(method)
  keras.utils.set_random_seed(seed)
  estimator = make_estimator() if rate is None else make_estimator(rate)
  jit_compile = settings.pop('jit_compile', True)
  model = models.SemiSupervisedVAE(estimator, seed=seed, **settings)
  adam = keras.optimizers.Adam
  model.compile(
    adam(learning_rate or default),
    estimator_optimizer=estimator_rate and adam(estimator_rate),
    jit_compile=jit_compile,
  )
  return model
