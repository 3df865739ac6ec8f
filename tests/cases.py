# SPDX-License-Identifier: Apache-2.0
"""Selects the cases that run in `make test`; `make test-all` runs all cases."""

import itertools

import pytest


def covering_pairs(cases):
  """Marks as `slow` each case whose pairs of values other cases cover.

  If two values of different parameters occur together in some case, they also
  occur together in a case that is not slow.

  Args:
    cases: Iterable of tuples of equal length whose entries are hashable.

  Returns:
    cases: List of cases for `pytest.mark.parametrize`, in the same order.
  """
  return _covering(cases, 2)


def covering_values(cases):
  """Works like `covering_pairs`, but covers single values.

  Use it for tests that take long: each value of each parameter occurs in a case
  that is not slow.

  Args:
    cases: Iterable of tuples of equal length whose entries are hashable.

  Returns:
    cases: List of cases for `pytest.mark.parametrize`, in the same order.
  """
  return _covering(cases, 1)


def _covering(cases, size):
  cases = list(dict.fromkeys(cases))
  parts = {
    case: set(itertools.combinations(enumerate(case), size)) for case in cases
  }
  seen, quick = set(), set()
  # Start with the cases in which every part is new, so that few cases are
  # needed.
  for least in range(max(map(len, parts.values())), 0, -1):
    for case in cases:
      if len(parts[case] - seen) >= least:
        seen |= parts[case]
        quick.add(case)
  return [
    pytest.param(*case, marks=() if case in quick else pytest.mark.slow)
    for case in cases
  ]
