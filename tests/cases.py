# SPDX-License-Identifier: Apache-2.0
"""Which of many cases run in `make test`; `make test-all` runs all of them."""

import itertools

import pytest


def covering_pairs(cases):
  """Marks as `slow` the cases that the others make redundant by pairs.

  Any two values of different parameters that occur together in some case occur
  together in a case that is not slow.

  Args:
    cases: Iterable of tuples of one length, of values that hash.

  Returns:
    cases: List of cases for `pytest.mark.parametrize`, in the same order.
  """
  return _covering(cases, 2)


def covering_values(cases):
  """As `covering_pairs`, but for single values.

  For tests that take long: each value of each parameter occurs in a case that
  is not slow.

  Args:
    cases: Iterable of tuples of one length, of values that hash.

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
  # First the cases of which every part is new: then few of them are needed.
  for least in range(max(map(len, parts.values())), 0, -1):
    for case in cases:
      if len(parts[case] - seen) >= least:
        seen |= parts[case]
        quick.add(case)
  return [
    pytest.param(*case, marks=() if case in quick else pytest.mark.slow)
    for case in cases
  ]
