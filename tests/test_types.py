# SPDX-License-Identifier: Apache-2.0
"""Public signatures have types, which type checkers and editors read."""

import importlib
import inspect
import typing

from matplotlib.axes import Axes
import pytest

pytestmark = pytest.mark.all_cases

MODULES = [
  'tfp_rb', 'tfp_rb.baselines', 'tfp_rb.datasets', 'tfp_rb.diagnostics',
  'tfp_rb.models', 'tfp_rb.samplers', 'tfp_rb.testing', 'tfp_rb.vi',
]  # fmt: skip


def public_items():
  """Yields the public functions and classes."""
  for name in MODULES:
    module = importlib.import_module(name)
    for item in (getattr(module, public) for public in module.__all__):
      if inspect.isclass(item) or inspect.isfunction(item):
        yield item


def methods_of(kind):
  """Yields public methods defined in this package, also inherited ones."""
  for base in kind.__mro__:
    if not base.__module__.startswith('tfp_rb.'):
      continue
    for name, member in vars(base).items():
      if isinstance(member, property):
        member = member.fget
      member = getattr(member, '__func__', member)  # unwraps class methods
      is_public = not name.startswith('_') or name in ('__call__', '__init__')
      if is_public and inspect.isfunction(member):
        yield member


def functions():
  for item in public_items():
    yield from methods_of(item) if inspect.isclass(item) else [item]


def hints_of(item):
  """Returns the types by name.

  `Axes` is imported only where something is plotted.
  """
  return typing.get_type_hints(item, localns={'Axes': Axes})


FUNCTIONS = {f'{f.__module__}.{f.__qualname__}': f for f in functions()}
TUPLES = [item for item in public_items() if hasattr(item, '_fields')]


@pytest.mark.parametrize('name', FUNCTIONS)
def test_every_argument_and_result_has_a_type(name):
  expected = {'return'} | {
    p.name
    for p in inspect.signature(FUNCTIONS[name]).parameters.values()
    if p.name not in ('self', 'cls')
    and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
  }
  assert not expected - set(hints_of(FUNCTIONS[name]))


@pytest.mark.parametrize('kind', TUPLES, ids=lambda kind: kind.__name__)
def test_every_field_says_what_it_holds(kind):
  vague = (dict, list, tuple, typing.Any)
  kinds = {name: hint for name, hint in hints_of(kind).items() if hint in vague}
  assert not kinds
