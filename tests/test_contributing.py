"""CONTRIBUTING's recipes, followed by code from outside the package."""

import json
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb
from tfp_rb import samplers

tfd = tfp.distributions

TEXT = (pathlib.Path(__file__).parents[1] / 'CONTRIBUTING.md').read_text()


@pytest.fixture(scope='module')
def toy():
  """The class that "Add an estimator" defines."""
  section = TEXT.split('## Add an estimator')[1].split('\n## ')[0]
  (code,) = re.findall(r'```python\n(.*?)```', section, re.DOTALL)
  lines = [line for line in code.splitlines() if line.strip()]
  assert len(lines) == 10
  names = {'tf': tf, 'tfp_rb': tfp_rb}
  exec(code, names)
  return names['Centered']


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
