# SPDX-License-Identifier: Apache-2.0
"""Helpers shared by the tests of the relaxed estimators."""

import functools
import itertools
import json

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from cases import covering_pairs
import internals
import statistical
import tfp_rb
import zoo

tfd = tfp.distributions

SEED = (3, 1)

PRODUCTS = ('Independent-OneHotCategorical', 'Independent-Bernoulli', 'Sample')

NUM_SAMPLES = 2

# Every form, both batch shapes and both dtypes occur, but not in all
# combinations.
FORMS = {
  'plain': ('float64', ()),
  'summed': ('float32', (2, 3)),
  'budget': ('float64', (2, 3)),
}

every_row = pytest.mark.parametrize('name', zoo.DIFFERENTIATING)

every_distribution = pytest.mark.parametrize('kind', zoo.RELAXABLE)

every_combination = pytest.mark.parametrize(
  ('name', 'kind', 'form'),
  covering_pairs(itertools.product(zoo.DIFFERENTIATING, zoo.RELAXABLE, FORMS)),
)


def in_form(estimator, form):
  return {
    'plain': lambda: estimator,
    'summed': lambda: tfp_rb.rao_blackwellize(estimator, num_summed=1),
    'summed-more': lambda: tfp_rb.rao_blackwellize(estimator, num_summed=2),
    'budget': lambda: tfp_rb.rao_blackwellize(estimator, budget=3),
  }[form]()


def estimate(estimator, kind, dtype, batch_shape, seed=SEED):
  """Returns value, parameter gradient, and the atoms of every call of `f`."""
  row, atoms = zoo.DISTRIBUTIONS[kind], []
  parameter = row.parameter(dtype, batch_shape)
  with tf.GradientTape() as tape:
    tape.watch(parameter)
    q = row.build(parameter, batch_shape)
    f = zoo.cost(q, parameter.dtype)

    def recorded(z):
      atoms.append(z)
      return f(z)

    value = tfp_rb.expectation(recorded, q, estimator, seed=seed)
  return value, tape.gradient(value, parameter), atoms


def make(name, kind, form='plain'):
  q = zoo.DISTRIBUTIONS[kind].make()
  return in_form(zoo.DIFFERENTIATING[name].make(NUM_SAMPLES, q), form)


@functools.cache
def result_of(name, kind, form):
  """Returns the estimate of a form in its dtype and batch shape; caches it."""
  return estimate(make(name, kind, form), kind, *FORMS[form])


def copy_by_json(estimator):
  config = json.loads(json.dumps(estimator.get_config()))
  return type(estimator).from_config(config)


NUM_DRAWS = 100_000

# All calls of `assert_standard_gumbel` together make at most this many tests.
NUM_LAW_TESTS = 60

LOGITS = np.array([0.4, 1.2, -0.6, 0.1])


def assert_uniform(cells, num_cells):
  statistical.assert_follows(
    cells,
    np.arange(num_cells),
    np.full(num_cells, 1.0 / num_cells),
    NUM_LAW_TESTS,
    detectable=0.06,
  )


def four_values(logits):
  """Returns a problem whose `f` is nonlinear in the one-hot vector.

  The second summand vanishes at the corners, so only estimators that evaluate
  `f` inside the simplex see it. The four values at the corners are arbitrary.
  """
  a = tf.constant([2.0, -1.0, 0.5, 1.5], logits.dtype)
  b = tf.constant([1.0, -2.0, 2.5, 0.5], logits.dtype)

  def f(z):
    z = tf.cast(z, logits.dtype)
    return tf.reduce_sum(a * z + 2.0 * b * z * (1.0 - z), axis=-1)

  return f, tfd.OneHotCategorical(logits=logits)


def steep(x):
  """Evaluates a control variate that is not nearly constant or near any `f`."""
  size = x.shape[-1]
  position = tf.cast(tf.range(1, size + 1), x.dtype)
  return tf.reduce_sum(tf.sin(2.0 * position * x), axis=-1)


def two_one_hot_sites(logits):
  a = tf.constant([[2.0, -1.0, 0.5], [1.0, 0.0, -1.5]], logits.dtype)

  def f(z):
    z = tf.cast(z, logits.dtype)
    level = tf.reduce_sum(a * z, axis=[-2, -1])
    return level + 0.5 * level**2 + tf.reduce_sum(z[..., 0] ** 3, axis=-1)

  return f, tfd.Independent(tfd.OneHotCategorical(logits=logits), 1)


def three_bernoulli_sites(logits):
  a = tf.constant([2.0, -1.0, 0.5], logits.dtype)

  def f(z):
    z = tf.cast(z, logits.dtype)
    return tf.reduce_sum(a * z, axis=-1) + 0.5 * tf.reduce_sum(z, axis=-1) ** 3

  return f, tfd.Independent(tfd.Bernoulli(logits=logits), 1)


SITE_LOGITS = {
  'OneHotCategorical': (
    two_one_hot_sites, np.array([[0.4, 1.2, -0.6], [0.1, -0.2, 0.9]])
  ),
  'Bernoulli': (three_bernoulli_sites, np.array([0.4, -0.8, 1.1])),
}  # fmt: skip


def gradients_of(estimator, num_rows, problem=four_values, logits=LOGITS,
                 seed=SEED):  # fmt: skip
  """Returns independent estimates: values `[n]`, gradients `[n] + shape`."""
  tiled = tf.tile(
    tf.constant(logits)[tf.newaxis], [num_rows] + [1] * np.ndim(logits)
  )
  with tf.GradientTape() as tape:
    tape.watch(tiled)
    f, q = problem(tiled)
    values = tfp_rb.expectation(f, q, estimator, seed=seed)
  return values.numpy(), tape.gradient(values, tiled).numpy()


def total_variance(gradients):
  return np.sum(np.var(np.reshape(gradients, [len(gradients), -1]), axis=0))


def exact_gradient(problem=four_values, logits=LOGITS):
  return internals.exact_reference(problem, [tf.constant(logits)])[1][0]


def mean_and_radius(x):
  """Returns the mean over rows, and a radius that bounds the error of its norm.

  The error of the mean is normal. Its norm exceeds 6 times its root mean square
  with probability below 1e-8.
  """
  flat = np.reshape(x, [len(x), -1])
  return flat.mean(0), 6.0 * np.sqrt(total_variance(flat) / len(flat))


def at_atoms(estimator, seed=SEED, num_rows=5, f=None):
  """Returns value, gradient, the drawn atoms, and the arguments of `f`."""
  logits = tf.constant(np.tile(LOGITS, [num_rows, 1]))
  problem_f, _ = four_values(logits)
  f, handed = f or problem_f, []

  def recorded(z):
    handed.append(z)
    return f(z)

  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = tfd.OneHotCategorical(logits=logits)
    value = tfp_rb.expectation(recorded, q, estimator, seed=seed)
  atom_seed, _ = internals.split_seed(seed, n=2)
  atoms = estimator.sample_atoms(q, atom_seed)
  values = tf.cast(atoms.values, tf.float64)
  return value, tape.gradient(value, logits), values, handed[0]
