"""What is public, documented, and imported by whom."""

import ast
import importlib
import inspect
import pathlib
import pkgutil
import re
import sys

import pytest

import tfp_rb

ROOT = pathlib.Path(tfp_rb.__file__).parent
MODULES = ['tfp_rb'] + [
  module.name for module in pkgutil.walk_packages([str(ROOT)], 'tfp_rb.')
]
# `version` is also read by setup.py and has nothing to export.
EXPORTING = [name for name in MODULES if name != 'tfp_rb.version']
PUBLIC = [
  name
  for name in EXPORTING
  if not any(part.startswith('_') for part in name.split('.'))
]


def path_of(name):
  """The file of a module."""
  path = ROOT.parent.joinpath(*name.split('.'))
  return path / '__init__.py' if path.is_dir() else path.with_suffix('.py')


def tree_of(name):
  return ast.parse(path_of(name).read_text())


def public_items(name):
  """Yields `(name, item)` of the functions and classes that are exported."""
  module = importlib.import_module(name)
  for item_name in module.__all__:
    item = getattr(module, item_name)
    if inspect.isclass(item) or inspect.isfunction(item):
      yield f'{name}.{item_name}', item


ITEMS = dict(pair for name in PUBLIC for pair in public_items(name))


# `__all__`.


@pytest.mark.parametrize('name', EXPORTING)
def test_all_is_sorted_and_exists(name):
  module = importlib.import_module(name)
  assert module.__all__ == sorted(module.__all__)
  assert all(hasattr(module, item) for item in module.__all__)


@pytest.mark.parametrize('name', PUBLIC)
def test_all_is_complete(name):
  module = importlib.import_module(name)
  if hasattr(module, '__path__'):
    # A package exports what it imports by name, but not its parts.
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
    internal = {
      'tfp_rb.baselines': {'as_baseline'},
      'tfp_rb.partitions.base': {'registered_function'},
    }
    assert found - internal.get(name, set()) <= set(module.__all__)


def test_public_names_of_the_parts_are_public_names_of_the_package():
  parts = ('tfp_rb.estimators', 'tfp_rb.partitions')
  exported = set().union(
    *(importlib.import_module(part).__all__ for part in parts)
  )
  assert exported <= set(tfp_rb.__all__)


# Docstrings.


def documented_arguments(item):
  """Arguments that a docstring has to explain, of a function or a class."""
  if inspect.isclass(item):
    own = vars(item).get('__init__')
    if own is None or '_fields' in vars(item):
      return []
    item = own
  arguments = inspect.signature(item).parameters
  return [name for name in arguments if name != 'self']


@pytest.mark.parametrize('name', ITEMS)
def test_public_item_has_a_docstring(name):
  assert inspect.getdoc(ITEMS[name])


@pytest.mark.parametrize(
  'name', [n for n, item in ITEMS.items() if documented_arguments(item)]
)
def test_every_argument_is_documented(name):
  item = ITEMS[name]
  text = inspect.getdoc(item.__init__ if inspect.isclass(item) else item) or ''
  _, found, section = text.partition('Args:\n')
  assert found
  missing = [
    argument
    for argument in documented_arguments(item)
    if not re.search(rf'  \*{{0,2}}{argument}: ', section)
  ]
  assert not missing


@pytest.mark.parametrize('name', MODULES)
def test_module_has_a_docstring(name):
  assert ast.get_docstring(tree_of(name))


# Layers: who may import whom, as prefixes of module names.

LAYERS = {
  'tfp_rb._checks': [],
  'tfp_rb._config': [],
  'tfp_rb._evaluations': [],
  'tfp_rb._gradient': [],
  'tfp_rb._logits': [],
  'tfp_rb._random': [],
  'tfp_rb._subsets': [],
  'tfp_rb._types': [],
  'tfp_rb.version': [],
  'tfp_rb.partitions': [
    'tfp_rb._checks',
    'tfp_rb._logits',
    'tfp_rb._random',
    'tfp_rb._types',
    'tfp_rb.partitions',
  ],
  'tfp_rb._atoms': ['tfp_rb._types', 'tfp_rb.partitions.base'],
  'tfp_rb.baselines': [
    'tfp_rb.baselines',
    'tfp_rb._atoms',
    'tfp_rb._config',
    'tfp_rb._types',
    'tfp_rb.partitions.base',
  ],
  'tfp_rb.estimators': [
    'tfp_rb._atoms',
    'tfp_rb._checks',
    'tfp_rb._config',
    'tfp_rb._gradient',
    'tfp_rb._logits',
    'tfp_rb._random',
    'tfp_rb._types',
    'tfp_rb.baselines',
    'tfp_rb.estimators',
    'tfp_rb.partitions.base',
  ],
  'tfp_rb.samplers': [
    'tfp_rb._atoms',
    'tfp_rb._config',
    'tfp_rb._random',
    'tfp_rb._subsets',
    'tfp_rb._types',
    'tfp_rb.partitions.base',
    'tfp_rb.partitions.exclusion',
  ],
  'tfp_rb._summed_sets': [
    'tfp_rb._atoms',
    'tfp_rb._random',
    'tfp_rb.partitions._shapes',
    'tfp_rb.partitions.base',
    'tfp_rb.partitions.exclusion',
  ],
  'tfp_rb._rao_blackwell': [
    'tfp_rb._atoms',
    'tfp_rb._checks',
    'tfp_rb._summed_sets',
    'tfp_rb._types',
    'tfp_rb.estimators.base',
    'tfp_rb.partitions.base',
    'tfp_rb.samplers',
  ],
  'tfp_rb._local_expectation': [
    'tfp_rb._atoms',
    'tfp_rb._checks',
    'tfp_rb._gradient',
    'tfp_rb._random',
    'tfp_rb._rao_blackwell',
    'tfp_rb.estimators.base',
    'tfp_rb.partitions._shapes',
  ],
  'tfp_rb._expectation': [
    'tfp_rb._checks',
    'tfp_rb._evaluations',
    'tfp_rb._gradient',
    'tfp_rb._random',
    'tfp_rb._rao_blackwell',
    'tfp_rb._types',
    'tfp_rb.baselines',
    'tfp_rb.estimators',
  ],
  'tfp_rb._enumeration': [
    'tfp_rb._atoms',
    'tfp_rb._evaluations',
    'tfp_rb._expectation',
    'tfp_rb.partitions.base',
  ],
  'tfp_rb.testing': [
    'tfp_rb._enumeration',
    'tfp_rb._expectation',
    'tfp_rb._random',
    'tfp_rb._types',
    'tfp_rb.estimators.base',
    'tfp_rb.partitions.base',
  ],
  'tfp_rb.datasets': [],
  'tfp_rb.diagnostics': [
    'tfp_rb._atoms',
    'tfp_rb._checks',
    'tfp_rb._enumeration',
    'tfp_rb._evaluations',
    'tfp_rb._rao_blackwell',
    'tfp_rb._types',
    'tfp_rb.baselines',
    'tfp_rb.diagnostics',
    'tfp_rb.estimators',
    'tfp_rb.partitions.base',
  ],
  'tfp_rb.models': [
    'tfp_rb._checks',
    'tfp_rb._config',
    'tfp_rb._expectation',
    'tfp_rb._random',
    'tfp_rb._rao_blackwell',
    'tfp_rb._types',
    'tfp_rb.baselines',
    'tfp_rb.estimators',
    'tfp_rb.models',
  ],
  'tfp_rb.vi': [
    'tfp_rb._atoms',
    'tfp_rb._checks',
    'tfp_rb._expectation',
    'tfp_rb._gradient',
    'tfp_rb._local_expectation',
    'tfp_rb._random',
    'tfp_rb._rao_blackwell',
    'tfp_rb._types',
    'tfp_rb.baselines',
    'tfp_rb.estimators',
    'tfp_rb.estimators._relaxation',
    'tfp_rb.estimators.base',
    'tfp_rb.partitions._shapes',
    'tfp_rb.partitions.base',
    'tfp_rb.vi',
  ],
}
CORE = [name for name in MODULES if name != 'tfp_rb']


def imported_by(name):
  """The modules that a module names in its imports."""
  found = set()
  for node in ast.walk(tree_of(name)):
    if isinstance(node, ast.Import):
      found |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      for alias in node.names:
        full = f'{node.module}.{alias.name}'
        found.add(full if full in MODULES else node.module)
  return found


def is_within(name, prefix):
  return name == prefix or name.startswith(f'{prefix}.')


@pytest.mark.parametrize('name', CORE)
def test_imports_point_downward(name):
  (layer,) = [prefix for prefix in LAYERS if is_within(name, prefix)]
  ours = {found for found in imported_by(name) if is_within(found, 'tfp_rb')}
  wrong = {
    found
    for found in ours
    if not any(is_within(found, allowed) for allowed in LAYERS[layer])
  }
  assert not wrong


@pytest.mark.parametrize('name', MODULES)
def test_core_imports_tensorflow_tfp_and_numpy_only(name):
  allowed = {'numpy', 'tensorflow', 'tensorflow_probability', 'tfp_rb'}
  allowed |= sys.stdlib_module_names
  if is_within(name, 'tfp_rb.models') or name == 'tfp_rb.diagnostics.callback':
    allowed.add('keras')
  if name == 'tfp_rb.diagnostics._plots':
    allowed.add('matplotlib')
  assert {found.split('.')[0] for found in imported_by(name)} <= allowed


def test_diagnostics_load_matplotlib_when_used():
  body = tree_of('tfp_rb.diagnostics._plots').body
  loaded = [n for n in body if isinstance(n, (ast.Import, ast.ImportFrom))]
  assert 'matplotlib' not in ' '.join(map(ast.unparse, loaded))


@pytest.mark.parametrize('name', MODULES)
def test_custom_gradient_has_one_home(name):
  uses = any(
    isinstance(node, ast.Attribute) and node.attr == 'custom_gradient'
    for node in ast.walk(tree_of(name))
  )
  assert uses == (name == 'tfp_rb._gradient')


@pytest.mark.parametrize('name', MODULES)
def test_nothing_is_asserted_in_the_library(name):
  found = [n for n in ast.walk(tree_of(name)) if isinstance(n, ast.Assert)]
  assert not found
