# SPDX-License-Identifier: Apache-2.0
"""Chooses which tests run, their order, and the settings of TensorFlow."""

import collections
import gc
import os
import pathlib
import sys
import zlib

import pytest

# On virtual machines that advertise AMX but do not allow it, oneDNN's kernels
# for half precision end in an illegal instruction. The variable must be set
# before TensorFlow is imported.
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')

# Compiling takes longer than running the compiled code, so XLA optimizes
# little: the tests check what XLA computes, not how fast.
os.environ.setdefault(
  'XLA_FLAGS',
  '--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true',
)

# The tests import `examples`, which is not installed. Another package of the
# same name may be installed (storchastic brings one), so ours is imported
# first. The folder does not stay on the path, so that `tfp_rb` is the installed
# package.
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import examples as _  # noqa: F401

sys.path.pop(0)

# These tests take ten seconds or more, so they start first: a long test that
# starts last leaves the other processes without work.
LONG = (
  'test_short_form_runs',
  'test_two_devices_make_the_step_of_one_but_draw_apart',
  'test_the_variance_benchmark_writes_what_it_prints',
  'test_several_steps_in_one_call_are_the_same_steps',
  'test_our_fit_is_near_cavi_and_the_score_function_is_not',
)


# If a test has more cases than this, `make test` runs an eighth of them, but at
# least this number.
MOST_CASES = 5


# This runs before the slow tests are deselected.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
  items.sort(key=lambda item: getattr(item, 'originalname', None) not in LONG)
  cases = collections.defaultdict(list)
  for item in items:
    cases[item.path, getattr(item, 'originalname', None)].append(item)
  for group in cases.values():
    if len(group) > MOST_CASES and not group[0].get_closest_marker('all_cases'):
      # Each run selects the same cases. Different tests leave out different
      # cases, so every distribution and every estimator takes part.
      group.sort(key=lambda item: zlib.crc32(item.nodeid.encode()))
      for item in group[max(MOST_CASES, len(group) // 8) :]:
        item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
  # TensorFlow's modules consist of millions of objects that are never freed.
  # Python's garbage collector would search them again and again, which takes a
  # tenth of the time of the tests.
  gc.collect()
  gc.freeze()
  gc.set_threshold(20_000, 20, 100)
