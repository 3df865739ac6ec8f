# SPDX-License-Identifier: Apache-2.0
"""Checks that REBAR and RELAX are unbiased, and how much noise is left."""

import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from cases import covering_values
from errors import raises
import reference
from relaxed import (
  LOGITS,
  SEED,
  SITE_LOGITS,
  exact_gradient,
  four_values,
  gradients_of,
  steep,
  total_variance,
)
import tfp_rb
import zoo

tfd = tfp.distributions

# An unbiased estimator fails with probability 1e-6; a bias of `DETECTABLE`
# times the gradient's norm is found with probability 0.99.
DETECTABLE = 0.03


def unbiased(name, restricted=None, num_samples=1, control_variate=steep):
  if name == 'REBAR':
    return tfp_rb.REBAR(
      0.6, scale=0.75, restricted=restricted, num_samples=num_samples
    )
  return tfp_rb.RELAX(
    control_variate,
    temperature=0.6,
    scale=0.75,
    with_f=name == 'RELAX-with_f',
    restricted=restricted,
    num_samples=num_samples,
  )


def assert_unbiased(estimator, problem=four_values, parameters=(LOGITS,)):
  return tfp_rb.testing.assert_unbiased(
    estimator,
    problem,
    [tf.constant(p) for p in parameters],
    detectable_bias=DETECTABLE,
  )


NAMES = ('REBAR', 'RELAX', 'RELAX-with_f')


@pytest.mark.parametrize(
  ('name', 'k'), covering_values(itertools.product(NAMES, range(5)))
)
def test_restricted_control_variate_is_unbiased(name, k):
  estimator = tfp_rb.rao_blackwellize(unbiased(name, True), num_summed=k)
  report = assert_unbiased(estimator)
  # A rest of one value has no noise, and an empty rest has no draw.
  assert report.is_exact == (k >= 3)


@pytest.mark.parametrize(
  ('name', 'k'), covering_values(itertools.product(NAMES, range(5)))
)
def test_unrestricted_control_variate_is_unbiased(name, k):
  estimator = tfp_rb.rao_blackwellize(unbiased(name, False), num_summed=k)
  assert not assert_unbiased(estimator).is_exact


UNBIASED_FORMS = {
  'several-draws': lambda e: e(num_samples=3),
  'summed-several-draws': lambda e: tfp_rb.rao_blackwellize(
    e(num_samples=2), num_summed=1
  ),
  'budget': lambda e: tfp_rb.rao_blackwellize(e(), budget=2),
  'without-replacement': lambda e: tfp_rb.rao_blackwellize(
    e(num_samples=2),
    num_summed=1,
    sampler=tfp_rb.samplers.WithoutReplacement(),
  ),
  'atoms': lambda e: tfp_rb.rao_blackwellize(
    e(),
    # The best value is not among the atoms, and one atom is repeated.
    atoms=lambda q: tf.broadcast_to(
      tf.reshape(
        tf.one_hot([2, 3, 2], 4, dtype=q.dtype),
        [3] + [1] * q.batch_shape.rank + [4],
      ),
      [3, *q.batch_shape, 4],
    ),
  ),
}


@pytest.mark.parametrize(
  ('name', 'form'), covering_values(itertools.product(NAMES, UNBIASED_FORMS))
)
def test_control_variate_is_unbiased_however_the_atoms_are_chosen(name, form):
  estimator = UNBIASED_FORMS[form](functools.partial(unbiased, name))
  assert not assert_unbiased(estimator).is_exact


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_budget_is_unbiased_where_the_rows_differ(name):
  """Uses two rows: one draws both atoms, the other sums one of them."""
  logits = np.array([[0.4, 0.6, 0.5, 0.1], [0.3, 2.0, -0.6, 0.1]])
  estimator = tfp_rb.rao_blackwellize(unbiased(name), budget=2)
  q = tfd.OneHotCategorical(logits=logits)
  atoms = estimator.sample_atoms(q, tf.constant(SEED))
  np.testing.assert_array_equal(atoms.num_summed, [0, 1])
  assert_unbiased(estimator, parameters=[logits])


@pytest.mark.parametrize(
  ('kind', 'name', 'k'),
  covering_values(itertools.product(SITE_LOGITS, NAMES, [0, 1, 3, 'all'])),
)
def test_control_variate_is_unbiased_on_products(kind, name, k):
  problem, logits = SITE_LOGITS[kind]
  if k == 'all':
    k = zoo.DISTRIBUTIONS[f'Independent-{kind}'].num_values
  control_variate = steep
  if kind == 'OneHotCategorical':
    control_variate = lambda x: tf.reduce_sum(steep(x), axis=-1)
  estimator = unbiased(name, control_variate=control_variate)
  estimator = tfp_rb.rao_blackwellize(estimator, num_summed=k)
  assert_unbiased(estimator, problem, [logits])


class DoublyCounted(tfp_rb.RELAX):
  """Counts the score term of the control variate twice, an easy mistake."""

  def control_variate_at(self, f, relaxed, distribution):
    control, slope = super().control_variate_at(f, relaxed, distribution)
    return 2.0 * control, slope


class Unconditional(tfp_rb.RELAX):
  """Uses a relaxed atom that does not match the atom: classes are rolled."""

  def control_variate_at(self, f, relaxed, distribution):
    rolled = tf.roll(relaxed, 1, axis=-1)
    control, slope = super().control_variate_at(f, rolled, distribution)
    return control, slope


@pytest.mark.parametrize(
  ('wrong', 'k'),
  covering_values(itertools.product([DoublyCounted, Unconditional], [0, 1])),
)
def test_a_wrong_control_variate_is_found_to_be_biased(wrong, k):
  estimator = tfp_rb.rao_blackwellize(
    wrong(steep, temperature=0.6, scale=0.75), num_summed=k
  )
  with raises(AssertionError, 'gradient'):
    assert_unbiased(estimator)


@pytest.mark.parametrize('name', NAMES)
def test_nothing_is_left_to_chance_where_all_is_summed(name):
  estimator = tfp_rb.rao_blackwellize(unbiased(name), num_summed=4)
  _, gradients = gradients_of(estimator, 3)
  _, others = gradients_of(estimator, 3, seed=(9, 9))
  np.testing.assert_array_equal(gradients, others)
  np.testing.assert_allclose(
    gradients, [exact_gradient()] * 3, rtol=1e-12, atol=1e-14
  )


@pytest.mark.parametrize('name', NAMES)
def test_unrestricted_floor_is_that_of_the_noise_at_the_atoms(name):
  """Checks that the variance at k = K is `sum_z q(z)^2 Var[g(z)]`.

  Over 50000 rows a variance has a relative standard error of about 1 %.
  """
  num_rows = 50_000
  estimator = unbiased(name, restricted=False)
  summed = tfp_rb.rao_blackwellize(estimator, num_summed=4)
  actual = total_variance(gradients_of(summed, num_rows)[1])
  # `f` has a different value at each atom.
  values, gradients = gradients_of(estimator, num_rows, seed=(8, 8))
  corners, _ = four_values(tf.constant(LOGITS))
  expected = 0.0
  for q, f in zip(reference.softmax(LOGITS), corners(np.eye(4)).numpy()):
    expected += q**2 * total_variance(gradients[np.isclose(values, f)])
  assert actual > 0.1
  np.testing.assert_allclose(actual, expected, rtol=0.06)
