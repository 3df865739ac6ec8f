"""What a test expects of an error: its type, and the argument it names."""

import re

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
