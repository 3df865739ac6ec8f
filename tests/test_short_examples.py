# SPDX-License-Identifier: Apache-2.0
"""Scripts for users to copy: they run, and follow the rules of examples/."""

import ast
import re

import pytest

import scripts

pytestmark = pytest.mark.all_cases

# There is one script for each task; the number counts the steps of its short
# run. Ray Train has its own test.
SHORT = {
  'examples/binary_latents.py': 20,
  'examples/compare_estimators.py': 4,
  'examples/counts.py': 20,
  'examples/label_vae.py': 20,
  'examples/mixture_posterior.py': 20,
  'examples/own_estimator.py': 3,
  'examples/regime_switching.py': 20,
}
EVERY = sorted(scripts.EXAMPLES.rglob('*.py'))


@pytest.mark.slow
@pytest.mark.parametrize('command', SHORT)
def test_script_runs(command, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # the script writes to `outputs/`
  assert scripts.run_command(command, f'--steps={SHORT[command]}')


@pytest.mark.parametrize('command', SHORT)
def test_script_is_short_and_has_two_flags(command):
  text = (scripts.ROOT / command).read_text(encoding='utf-8')
  assert len(text.splitlines()) <= 150
  assert re.findall(r"DEFINE_\w+\('(\w+)'", text) == ['steps', 'seed']
  assert f'python {command}\n' in text
  assert 'from examples' not in text  # a user copies only one file


def imported_names(path):
  for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


@pytest.mark.parametrize('path', EVERY, ids=lambda path: path.stem)
def test_an_example_uses_public_names_and_leaves_the_path_alone(path):
  for name in imported_names(path):
    assert name.split('.')[0] != 'ctypes'
    private = name.startswith('tfp_rb.') and '._' in name
    assert not private, name
  text = path.read_text(encoding='utf-8')
  assert 'sys.path' not in text
  assert not re.search(r'\btfp_rb\.(\w+\.)*_\w', text)
