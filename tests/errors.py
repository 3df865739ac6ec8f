# SPDX-License-Identifier: Apache-2.0
"""What a test expects of an error: its type, and the argument it names."""

import re
import sys

import pytest


def raises(kind, argument):
  """Expects an error of a type whose message names an argument.

  The rest of the message may change freely. A name of one letter has to stand
  in quotes, since it may be a word of the text.
  """
  name = rf'(?<!\w){re.escape(argument)}(?!\w)'
  if len(argument) == 1:
    name = f"[`']{name}"
  return pytest.raises(kind, match=name)


def assert_reaches_the_user(run, f, noted=None):
  """Asserts that what the user's function raises arrives as it is.

  Args:
    run: Callable of a function, which calls it.
    f: Callable that raises an exception.
    noted: Python `str`, a name that a note of the exception must contain where
      Python has notes (3.11); `None` if there need not be one.
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
