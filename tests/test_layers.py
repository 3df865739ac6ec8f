# SPDX-License-Identifier: Apache-2.0
"""Modules inside the package import each other in one direction only."""

import ast
import pathlib
import sys

import pytest

import tfp_rb

pytestmark = pytest.mark.all_cases

ROOT = pathlib.Path(tfp_rb.__file__).parent

# A module may import its own layer and earlier ones. The layers of a tuple are
# side by side and may not import each other.
ORDER = [
  'version',
  'internal',
  'distributions',
  'partitions',
  'designs',
  'samplers',
  'baselines',
  'estimators',
  '_expectation',
  '_comparisons',
  'testing',
  ('vi', 'diagnostics', 'datasets'),
  'models',
]
RANKS = {
  layer: rank
  for rank, layers in enumerate(ORDER)
  for layer in ([layers] if isinstance(layers, str) else layers)
}
# Estimators decide what is evaluated at an atom, and partitions decide where
# the atoms are. Neither knows the other, although the order alone would allow
# it.
UNKNOWN = {'estimators': {'partitions'}, 'baselines': {'partitions'}}
FILES = {str(path.relative_to(ROOT)): path for path in ROOT.rglob('*.py')}


def layer_of(file):
  """Returns the first folder of a file's path, or the name of the file."""
  return pathlib.PurePath(file).parts[0].removesuffix('.py')


def imported_by(file):
  """Returns all modules that a file imports, also inside functions."""
  for node in ast.walk(ast.parse(FILES[file].read_text())):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      names = [f'{node.module}.{alias.name}' for alias in node.names]
      yield from names if node.module == 'tfp_rb' else [node.module]


@pytest.mark.parametrize('file', [f for f in FILES if f != '__init__.py'])
def test_a_module_imports_its_own_layer_and_those_before_it(file):
  own = layer_of(file)
  for module in imported_by(file):
    if module.split('.')[0] == 'tfp_rb':
      _, layer, *_ = module.split('.')
      assert layer == own or RANKS[layer] < RANKS[own], module
      assert layer not in UNKNOWN.get(own, ()), module


@pytest.mark.parametrize('file', FILES)
def test_the_core_imports_tensorflow_tfp_and_numpy_only(file):
  allowed = {'numpy', 'tensorflow', 'tensorflow_probability', 'tfp_rb'}
  allowed |= sys.stdlib_module_names
  # Only these modules may import packages that not every user has installed.
  if layer_of(file) == 'models' or file == 'diagnostics/callback.py':
    allowed.add('keras')
  if file == 'diagnostics/_plots.py':
    allowed.add('matplotlib')
  assert {module.split('.')[0] for module in imported_by(file)} <= allowed


def test_diagnostics_load_matplotlib_when_used():
  body = ast.parse(FILES['diagnostics/_plots.py'].read_text()).body
  loaded = [n for n in body if isinstance(n, (ast.Import, ast.ImportFrom))]
  assert 'matplotlib' not in ' '.join(map(ast.unparse, loaded))
