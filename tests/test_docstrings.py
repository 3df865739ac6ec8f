# SPDX-License-Identifier: Apache-2.0
"""Runs the python blocks of the docstrings and checks the values they show.

A block may end a line with `expression  # ==> text`. The value of the
expression, or its printed output, must equal `text` except for the amount of
white space.
"""

import ast
import contextlib
import importlib
import inspect
import io
import linecache
import pkgutil
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from internals import copy_registry
import tfp_rb

pytestmark = pytest.mark.all_cases

ALIASES = {'np': np, 'tf': tf, 'tfp': tfp, 'tfp_rb': tfp_rb}
ALIASES.update(tfb=tfp.bijectors, tfd=tfp.distributions)
MARK = '# ==> '


def find_docstrings(module):
  """Yields `(name, docstring)` of a module and of what it defines."""
  yield module.__name__, module.__doc__
  for name, item in vars(module).items():
    defined_here = getattr(item, '__module__', None) == module.__name__
    if defined_here and not name.startswith('_'):
      yield f'{module.__name__}.{name}', item.__doc__
      members = vars(item) if inspect.isclass(item) else {}
      for member_name, member in members.items():
        if not member_name.startswith('_'):
          yield f'{module.__name__}.{name}.{member_name}', member.__doc__


def find_blocks():
  names = [m.name for m in pkgutil.walk_packages(tfp_rb.__path__, 'tfp_rb.')]
  for module in map(importlib.import_module, ['tfp_rb', *names]):
    for name, docstring in find_docstrings(module):
      text = inspect.cleandoc(docstring or '')
      blocks = re.findall(r'^ *```python\n(.*?)^ *```', text, re.DOTALL | re.M)
      for i, block in enumerate(blocks):
        yield pytest.param(inspect.cleandoc(block), id=f'{name}-{i}')


def to_text(value):
  value = value.numpy() if hasattr(value, 'numpy') else value
  if (
    isinstance(value, np.floating)
    or np.shape(value) == ()
    and isinstance(value, np.ndarray)
  ):
    return str(round(value.item(), 4))
  if isinstance(value, np.ndarray | np.generic):
    return np.array2string(np.asarray(value), precision=4, suppress_small=True)
  return str(value)


def run(code, name='<example>'):
  """Runs `code` and returns `(shown, actual)` for each of its marked lines."""
  namespace, lines, pairs = dict(ALIASES), code.splitlines(True), []
  # Tracebacks and AutoGraph look here for the source.
  linecache.cache[name] = len(code), None, lines, name
  for node in ast.parse(code).body:
    _, mark, shown = lines[node.end_lineno - 1].partition(MARK)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
      if mark and isinstance(node, ast.Expr):
        value = eval(
          compile(ast.Expression(node.value), name, 'eval'), namespace
        )
        actual = printed.getvalue() if value is None else to_text(value)
        pairs.append((' '.join(shown.split()), ' '.join(actual.split())))
      else:
        exec(compile(ast.Module([node], []), name, 'exec'), namespace)
  assert len(pairs) == code.count(MARK), f'`{MARK}` must follow an expression.'
  return pairs


BLOCKS = list(find_blocks())


def test_the_package_has_examples():
  assert BLOCKS


@pytest.mark.parametrize('code', BLOCKS)
def test_example_gives_what_it_shows(code, monkeypatch):
  # An example may register a distribution; the other tests must not see it.
  copy_registry(monkeypatch)
  for shown, actual in run(code):
    assert actual == shown
