# SPDX-License-Identifier: Apache-2.0
"""Helpers that check the type of an error and the argument that it names."""

import re
import sys

import pytest


def raises(kind, argument):
  """Expects an error of the given type whose message names the argument.

  The rest of the message may change freely. A name of one letter has to appear
  in quotes, since the letter alone may be a word of the text.
  """
  name = rf'(?<!\w){re.escape(argument)}(?!\w)'
  if len(argument) == 1:
    name = f"[`']{name}"
  return pytest.raises(kind, match=name)


def assert_reaches_the_user(run, f, noted=None):
  """Asserts that an exception of the user's function arrives unchanged.

  Args:
    run: Callable that takes a function and calls it.
    f: Callable that raises an exception.
    noted: Python `str`, a name that a note of the exception must contain if
      Python supports notes (3.11 or newer); `None` if no note is required.
  """
  raised = []

  def recorded(*args):
    try:
      return f(*args)
    except Exception as error:
      raised.append(error)
      raise

  with pytest.raises(Exception) as caught:
    run(recorded)
  assert caught.value is raised[0]
  if noted is not None and sys.version_info >= (3, 11):
    assert noted in '\n'.join(caught.value.__notes__)
