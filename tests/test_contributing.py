# SPDX-License-Identifier: Apache-2.0
"""Follows CONTRIBUTING's recipes with code from outside the package."""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
import tfp_rb
from tfp_rb import samplers

tfd = tfp.distributions

TEXT = (pathlib.Path(__file__).parents[1] / 'CONTRIBUTING.md').read_text()


def defined_in(title):
  """Returns the names that the code of a section of CONTRIBUTING defines."""
  section = TEXT.split(f'## {title}\n')[1].split('\n## ')[0]
  (code,) = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
  lines = [line for line in code.splitlines() if line.strip()]
  assert len(lines) <= 10
  names = {'tf': tf, 'tfp_rb': tfp_rb}
  exec(code, names)
  return names


@pytest.fixture(scope='module')
def toy():
  return defined_in('Add an estimator')['Centered']


@pytest.fixture(scope='module')
def paired():
  return defined_in('Add an estimator that chooses its atoms')['Paired']


def test_an_estimator_may_draw_in_pairs(paired):
  report = tfp_rb.testing.assert_unbiased(paired())
  assert not report.is_exact  # its draws depend on each other
  q = tfd.Categorical(probs=[0.25, 0.25, 0.25, 0.25])
  first, second = paired().sample_atoms(q, seed=[1, 2]).values
  assert first + second == 3


def test_an_estimator_that_chooses_its_atoms_is_refused_with_that_reason(
  paired,
):
  with raises(TypeError, 'Paired'):
    tfp_rb.rao_blackwellize(paired(), num_summed=1)


@pytest.mark.parametrize('num_samples', [1, 2])
@pytest.mark.parametrize('k', range(6))
def test_toy_estimator_is_rao_blackwellized_for_every_k(toy, k, num_samples):
  estimator = tfp_rb.rao_blackwellize(
    toy(1.5, num_samples=num_samples), num_summed=k
  )
  assert tfp_rb.testing.assert_unbiased(estimator).is_exact


@pytest.mark.parametrize(
  'arguments',
  [
    {'budget': 3},
    {'num_summed': 1, 'sampler': samplers.WithoutReplacement()},
    {'atoms': lambda q: tfp_rb.partition(q, 3).values[1:]},
  ],
  ids=['budget', 'without_replacement', 'atoms'],
)
def test_toy_estimator_takes_every_split_and_sampler(toy, arguments):
  estimator = tfp_rb.rao_blackwellize(toy(1.5, num_samples=2), **arguments)
  assert tfp_rb.testing.assert_unbiased(estimator).is_exact


def test_toy_estimator_has_a_config(toy):
  estimator = tfp_rb.rao_blackwellize(toy(1.5, num_samples=2), num_summed=1)
  config = json.loads(json.dumps(estimator.get_config()))
  copy = type(estimator).from_config(config)
  assert isinstance(copy.estimator, toy)
  assert (copy.estimator.center, copy.num_samples) == (1.5, 2)


def test_toy_estimator_works_without_end_of_the_support(toy):
  estimator = tfp_rb.rao_blackwellize(toy(1.5), num_summed=20)
  value = tfp_rb.expectation(lambda z: z, tfd.Poisson(2.5), estimator)
  np.testing.assert_allclose(value, 2.5, atol=1e-4)
