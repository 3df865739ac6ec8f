# SPDX-License-Identifier: Apache-2.0
"""Checks which names are public, and that they are documented."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import pydoc
import re
import types

import pytest

import tfp_rb

pytestmark = pytest.mark.all_cases

ROOT = pathlib.Path(tfp_rb.__file__).parent
MODULES = ['tfp_rb'] + [
  module.name for module in pkgutil.walk_packages([str(ROOT)], 'tfp_rb.')
]
# `version` is also read by setup.py and exports nothing; `internal` is a folder
# of modules that are imported one by one.
EXPORTING = [
  name for name in MODULES if name not in ('tfp_rb.version', 'tfp_rb.internal')
]
# The names of these modules have no underscore, although users do not import
# all of them.
OPEN = [
  name
  for name in EXPORTING
  if not any(part.startswith('_') for part in name.split('.'))
]
# The modules that users import.
PUBLIC = [
  'tfp_rb',
  'tfp_rb.baselines',
  'tfp_rb.datasets',
  'tfp_rb.diagnostics',
  'tfp_rb.diagnostics.callback',
  'tfp_rb.distributions',
  'tfp_rb.models',
  'tfp_rb.samplers',
  'tfp_rb.testing',
  'tfp_rb.vi',
]


def path_of(name):
  """Returns the file of a module."""
  path = ROOT.parent.joinpath(*name.split('.'))
  return path / '__init__.py' if path.is_dir() else path.with_suffix('.py')


def tree_of(name):
  return ast.parse(path_of(name).read_text())


def exported_items(name):
  """Yields `(name, item)` of the functions and classes that are exported."""
  module = importlib.import_module(name)
  for item_name in module.__all__:
    item = getattr(module, item_name)
    # In Python 3.10 an alias of a type counts as a class, but it has no
    # docstring.
    is_alias = isinstance(item, types.GenericAlias)
    if inspect.isfunction(item) or (inspect.isclass(item) and not is_alias):
      yield f'{name}.{item_name}', item


ITEMS = dict(pair for name in OPEN for pair in exported_items(name))
PUBLIC_ITEMS = dict(pair for name in PUBLIC for pair in exported_items(name))


# `__all__`.


@pytest.mark.parametrize('name', EXPORTING)
def test_all_is_sorted_and_exists(name):
  module = importlib.import_module(name)
  assert module.__all__ == sorted(module.__all__)
  assert all(hasattr(module, item) for item in module.__all__)


@pytest.mark.parametrize('name', OPEN)
def test_all_is_complete(name):
  module = importlib.import_module(name)
  if hasattr(module, '__path__'):
    # A package exports the names that it imports, but not its modules.
    found = {
      alias.asname or alias.name
      for node in tree_of(name).body
      if isinstance(node, ast.ImportFrom)
      for alias in node.names
      if not (
        inspect.ismodule(getattr(module, alias.name)) and name != 'tfp_rb'
      )
    }
    assert set(module.__all__) == found
  else:
    found = {
      node.name
      for node in tree_of(name).body
      if isinstance(node, (ast.ClassDef, ast.FunctionDef))
      and not node.name.startswith('_')
      # Partitions are found by their class, not by their name.
      and not any(
        'RegisterPartition' in ast.unparse(d) for d in node.decorator_list
      )
    }
    assert found <= set(module.__all__)


def test_every_estimator_is_a_public_name_of_the_package():
  exported = importlib.import_module('tfp_rb.estimators').__all__
  assert set(exported) <= set(tfp_rb.__all__)


def test_dir_lists_the_public_names_and_nothing_else():
  on_first_use = ['datasets', 'diagnostics', 'models']
  assert dir(tfp_rb) == sorted([*tfp_rb.__all__, *on_first_use])
  assert all(inspect.ismodule(getattr(tfp_rb, name)) for name in on_first_use)


def test_help_shows_the_public_names_and_nothing_else():
  text = pydoc.render_doc(tfp_rb, renderer=pydoc.plaintext)
  classes = re.findall(r'^    class (\w+)', text, flags=re.MULTILINE)
  functions = text.partition('\nFUNCTIONS\n')[2].partition('\nDATA\n')[0]
  shown = set(classes) | set(
    re.findall(r'^    (\w+)\(', functions, re.MULTILINE)
  )
  assert shown and shown <= set(tfp_rb.__all__)


# Docstrings.


def documented_arguments(item):
  """Returns the arguments of a function or class that need an explanation."""
  if inspect.isclass(item):
    own = vars(item).get('__init__')
    if own is None or '_fields' in vars(item):
      return []
    item = own
  arguments = inspect.signature(item).parameters
  return [name for name in arguments if name != 'self']


def explained_arguments(item):
  """Returns the `Args` section of a docstring, or '' if there is none."""
  own = item.__init__ if inspect.isclass(item) else item
  # Unlike `getdoc`, `__doc__` is never the docstring of a base class.
  text = own.__doc__ or ''
  return text.partition('Args:\n')[2]


@pytest.mark.parametrize('name', ITEMS)
def test_exported_item_has_a_docstring(name):
  assert inspect.getdoc(ITEMS[name])


@pytest.mark.parametrize(
  'name', [n for n, item in PUBLIC_ITEMS.items() if documented_arguments(item)]
)
def test_arguments_of_a_public_item_are_documented(name):
  assert explained_arguments(PUBLIC_ITEMS[name])


@pytest.mark.parametrize(
  'name', [n for n, item in ITEMS.items() if explained_arguments(item)]
)
def test_no_argument_is_left_out_of_a_docstring(name):
  item = ITEMS[name]
  missing = [
    argument
    for argument in documented_arguments(item)
    if not re.search(rf'  \*{{0,2}}{argument}: ', explained_arguments(item))
  ]
  assert not missing


@pytest.mark.parametrize('name', MODULES)
def test_module_has_a_docstring(name):
  assert ast.get_docstring(tree_of(name))


# Rules of the code.


@pytest.mark.parametrize('name', MODULES)
def test_custom_gradient_has_one_home(name):
  uses = any(
    isinstance(node, ast.Attribute) and node.attr == 'custom_gradient'
    for node in ast.walk(tree_of(name))
  )
  assert uses == (name == 'tfp_rb.internal.gradients')


@pytest.mark.parametrize('name', MODULES)
def test_nothing_is_asserted_in_the_library(name):
  found = [n for n in ast.walk(tree_of(name)) if isinstance(n, ast.Assert)]
  assert not found
