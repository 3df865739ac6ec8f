# SPDX-License-Identifier: Apache-2.0
"""Runs Python code in a separate process."""

import pathlib
import subprocess
import sys


def run(code, timeout=300):
  """Returns what the code prints; fails if the code fails.

  Args:
    code: Python `str`, which may import the helpers of the tests.
    timeout: Python `float`, seconds.

  Returns:
    output: Python `str`.
  """
  done = subprocess.run(
    [sys.executable, '-c', code],
    cwd=pathlib.Path(__file__).parent,
    capture_output=True,
    text=True,
    check=False,
    timeout=timeout,
  )
  assert done.returncode == 0, done.stderr[-3000:]
  return done.stdout
