# SPDX-License-Identifier: Apache-2.0
"""The calibrated test accepts and rejects as often as it claims."""

import numpy as np
import pytest
from scipy import stats

import statistical

NUM_DRAWS = 20_000
NUM_EXPERIMENTS = 2000
LAW = stats.binom(20, 0.4).pmf(np.arange(21))


def is_accepted(draws, law, detectable=1.0):
  try:
    statistical.assert_follows(
      draws, np.arange(law.size), law, num_tests=1, detectable=detectable
    )
  except AssertionError:
    return False
  return True


def num_accepted(sampled, tested, seed):
  counts = np.random.default_rng(seed).multinomial(
    NUM_DRAWS, sampled, size=NUM_EXPERIMENTS
  )
  p_values = [statistical.p_value(c, NUM_DRAWS * tested) for c in counts]
  return np.sum(np.array(p_values) >= statistical.FALSE_FAIL_RATE)


def test_a_right_sampler_is_accepted():
  generator = np.random.default_rng(0)
  draws = generator.choice(LAW.size, size=[20, NUM_DRAWS], p=LAW)
  assert all(is_accepted(d, LAW, detectable=0.05) for d in draws)


def test_p_values_of_a_right_sampler_are_uniform():
  generator = np.random.default_rng(1)
  law = np.full(10, 0.1)
  counts = generator.multinomial(NUM_DRAWS, law, size=2000)
  p_values = [statistical.p_value(c, NUM_DRAWS * law) for c in counts]
  assert stats.kstest(p_values, 'uniform').pvalue > 1e-6


@pytest.mark.parametrize('num_values', [2, 10, 100])
def test_the_detectable_difference_is_detected(num_values):
  # All cells differ by the same factor, which is the hardest law at its
  # distance.
  law = np.full(num_values, 1.0 / num_values)
  distance = statistical.smallest_detectable(
    NUM_DRAWS, num_values, statistical.FALSE_FAIL_RATE
  )
  signs = np.where(np.arange(num_values) % 2 == 0, 1.0, -1.0)
  wrong = law * (1.0 + 2.0 * distance * signs)
  num_missed = num_accepted(wrong, law, seed=2)
  # A difference is missed once in a hundred cases; this test fails by chance
  # once in a million.
  miss_rate = 1.0 - statistical.POWER
  assert num_missed <= stats.binom.isf(1e-6, NUM_EXPERIMENTS, miss_rate)


def test_a_difference_far_below_the_detectable_one_passes():
  wrong = np.array([0.5 + 1e-4, 0.5 - 1e-4])
  assert num_accepted(wrong, np.array([0.5, 0.5]), seed=3) == NUM_EXPERIMENTS


def test_too_few_draws_for_the_wanted_difference_fail():
  draws = np.random.default_rng(4).choice(LAW.size, NUM_DRAWS, p=LAW)
  assert not is_accepted(draws, LAW, detectable=0.001)


def test_a_single_impossible_value_fails():
  generator = np.random.default_rng(5)
  draws = generator.choice(LAW.size, NUM_DRAWS, p=LAW)
  with pytest.raises(AssertionError, match=r'Impossible values .*-1'):
    statistical.assert_follows(
      np.append(draws, -1), np.arange(21), LAW, num_tests=1, detectable=1.0
    )


def test_a_single_value_beyond_a_complete_table_fails():
  draws = np.array([0, 1] * 1000 + [2])
  with pytest.raises(AssertionError, match='Impossible values'):
    statistical.assert_follows(
      draws, [0, 1], [0.5, 0.5], num_tests=1, detectable=1.0
    )


def test_the_tail_beyond_the_table_is_a_cell():
  generator = np.random.default_rng(6)
  draws = generator.geometric(0.5, NUM_DRAWS)
  truncated = 0.5 ** np.arange(1, 4)
  statistical.assert_follows(
    draws, [1, 2, 3], truncated, num_tests=1, detectable=0.05
  )
  with pytest.raises(AssertionError, match='p-value'):
    statistical.assert_follows(
      np.minimum(draws, 3), [1, 2, 3], truncated, num_tests=1, detectable=0.05
    )


def test_the_difference_is_smaller_with_more_draws_and_fewer_cells():
  few, many = (
    statistical.smallest_detectable(n, 10, 1e-6) for n in (1000, 100_000)
  )
  assert few == pytest.approx(10.0 * many)
  assert statistical.smallest_detectable(1000, 100, 1e-6) > few
