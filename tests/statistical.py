# SPDX-License-Identifier: Apache-2.0
"""Calibrated tests of discrete samplers.

A test of random draws can fail by chance, and it can pass because it is weak.
This module states the probability of both, following TFP's
`statistical_testing`. The test is Pearson's: with `n` draws, `c` cells and
probabilities `p` of the cells, a right sampler fails with the probability
`FALSE_FAIL_RATE`, over all the `num_tests` tests of a file together
(Bonferroni). If a sampler follows `q` instead, the noncentrality of the
statistic is

```none
    n sum_i (q_i - p_i)^2 / p_i  >=  n (sum_i |q_i - p_i|)^2  =  4 n TV(q, p)^2
```

So the sampler fails with probability `POWER` or more if its total variation
distance is at least `smallest_detectable`. Every call states the distance that
it must be able to detect, and a test fails if it has too few draws to detect
it.
"""

import numpy as np
from scipy import optimize, stats

__all__ = [
  'FALSE_FAIL_RATE',
  'POWER',
  'assert_follows',
  'p_value',
  'smallest_detectable',
]

FALSE_FAIL_RATE = 1e-6
POWER = 0.99

# The statistic is close to chi-squared if every cell expects at least this many
# draws.
_MIN_EXPECTED = 20.0


def assert_follows(draws, values, probabilities, num_tests, detectable):
  """Asserts that integer `draws` follow a law on integers.

  Args:
    draws: Array, independent draws.
    values: Vector, distinct possible values. If the law has mass beyond the
      largest of them, that mass forms one more cell.
    probabilities: Vector, the probabilities of `values`.
    num_tests: The number of such tests in the file; they share the rate of
      false failures.
    detectable: The total variation distance that must be detected.
  """
  draws = np.ravel(np.asarray(draws))
  counts, expected = _pooled(*_tabulated(draws, values, probabilities))
  if counts.size == 1:
    return  # The event is certain: all there is to check is that it was drawn.
  level = FALSE_FAIL_RATE / num_tests
  smallest = smallest_detectable(draws.size, counts.size, level)
  assert smallest <= detectable, (
    f'{draws.size} draws detect a distance of {smallest:.3g} only.'
  )
  p = p_value(counts, expected)
  assert p >= level, (
    f'p-value {p:.3g}.\nCounts {counts}\nExpected {np.round(expected, 1)}'
  )


def p_value(counts, expected):
  """Returns the p-value of Pearson's test of `counts`."""
  statistic = np.sum((counts - expected) ** 2 / expected)
  return stats.chi2.sf(statistic, counts.size - 1)


def smallest_detectable(num_draws, num_cells, level):
  """Returns the variation distance that fails with probability `POWER`."""
  freedom = num_cells - 1
  critical = stats.chi2.isf(level, freedom)
  power = lambda noncentrality: stats.ncx2.sf(critical, freedom, noncentrality)
  noncentrality = optimize.brentq(
    lambda x: power(x) - POWER, 1e-3, 10.0 * (critical + 10.0)
  )
  return np.sqrt(noncentrality / (4.0 * num_draws))


def _tabulated(draws, values, probabilities):
  """Returns counts and expectations per value, and those above the largest."""
  order = np.argsort(values)
  values = np.asarray(values)[order]
  probabilities = np.asarray(probabilities, np.float64)[order]
  index = np.searchsorted(values, draws)
  is_known = values[np.minimum(index, values.size - 1)] == draws
  impossible = np.unique(draws[~is_known & (index < values.size)])
  assert impossible.size == 0, f'Impossible values were drawn: {impossible}.'
  counts = np.bincount(index, minlength=values.size + 1)
  beyond = 1.0 - np.sum(probabilities)
  beyond = beyond if beyond > 1e-9 else 0.0
  return counts, draws.size * np.append(probabilities, beyond)


def _pooled(counts, expected):
  """Pools rare cells, so that each expects enough draws."""
  assert np.all(counts[expected == 0.0] == 0), 'Impossible values were drawn.'
  order = np.argsort(-expected, kind='stable')
  counts, expected = counts[order], expected[order]
  is_rare = expected < _MIN_EXPECTED
  if np.sum(expected[is_rare]) < _MIN_EXPECTED:
    # The rare cells are too rare even together, so they join the rarest of the
    # others.
    is_rare[np.sum(~is_rare) - 1] = True
  keep = lambda x: np.append(x[~is_rare], np.sum(x[is_rare]))
  return keep(counts), keep(expected)
