# SPDX-License-Identifier: Apache-2.0
"""Runs the notebooks in their short form, and checks that they show figures."""

import json
import pathlib
import re

import matplotlib
import pytest

COLAB = pathlib.Path(__file__).resolve().parents[1] / 'colab'
NOTEBOOKS = sorted(COLAB.glob('*.ipynb'))
SHORT = 'short = False  # @param {type: "boolean"}'
SEED = 'seed = 0  # @param {type: "integer"}'
MAGIC = re.compile(r'^(\s*)[%!].*$', re.MULTILINE)


def read_cells(path):
  return json.loads(path.read_text(encoding='utf-8'))['cells']


def code_cells(path):
  cells = [c for c in read_cells(path) if c['cell_type'] == 'code']
  return [(''.join(c['source']), c) for c in cells]


def run_notebook(path, replace):
  """Runs all cells in one namespace.

  A kernel would import TensorFlow again for every notebook. Lines that begin
  with % or !, which only a kernel understands, are left out.

  Args:
    path: `pathlib.Path` of the notebook.
    replace: Dictionary that maps lines to their replacements.

  Returns:
    namespace: Dictionary of the names that the notebook defines.
  """
  namespace = {'__name__': '__main__'}
  for i, (code, _) in enumerate(code_cells(path)):
    for line, other in replace.items():
      code = code.replace(line, other)
    code = MAGIC.sub(r'\1pass', code)
    exec(compile(code, f'{path.name}, code cell {i}', 'exec'), namespace)
  return namespace


def named(paths):
  return pytest.mark.parametrize('path', paths, ids=[p.stem for p in paths])


def test_there_are_notebooks():
  assert len(NOTEBOOKS) == 7


@pytest.mark.slow
@named(NOTEBOOKS)
def test_short_form_runs(path, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.delenv('TFDS_DATA_DIR', raising=False)
  sources = [code for code, _ in code_cells(path)]
  assert sum(code.count(SHORT) for code in sources) == 1
  assert sum(code.count(SEED) for code in sources) == 1
  backend = matplotlib.get_backend()
  matplotlib.use('agg')
  try:
    run_notebook(path, {SHORT: SHORT.replace('False', 'True')})
  finally:
    matplotlib.pyplot.close('all')
    matplotlib.use(backend)


@named(NOTEBOOKS)
def test_begins_with_title_badge_and_installation(path):
  first, second = read_cells(path)[:2]
  title = ''.join(first['source'])
  assert title.startswith('# ')
  assert 'colab.research.google.com/assets/colab-badge.svg' in title
  assert f'/blob/main/colab/{path.name})' in title
  assert second['cell_type'] == 'code'
  assert '%pip install' in ''.join(second['source'])


@named(NOTEBOOKS)
def test_cells_are_few_and_short(path):
  assert len(read_cells(path)) <= 40
  for code, _ in code_cells(path):
    assert len(code.splitlines()) <= 15, code


@named(NOTEBOOKS)
def test_claims_are_checked(path):
  assert any('assert' in code for code, _ in code_cells(path))


@named(NOTEBOOKS)
def test_outputs_are_kept(path):
  counts, figures = [], 0
  for code, cell in code_cells(path):
    counts.append(cell['execution_count'])
    for output in cell['outputs']:
      assert output['output_type'] != 'error', code
      assert output.get('name') != 'stderr', code
      figures += 'image/png' in output.get('data', {})
  # The notebook was run once, from the top.
  assert counts == list(range(1, len(counts) + 1))
  assert figures >= 1
  assert path.stat().st_size < 1_500_000


@named(NOTEBOOKS)
def test_notebook_uses_public_names_only(path):
  private = re.compile(r'\btfp_rb(\.\w+)*\.\_[a-z]|from tfp_rb\S* import _')
  for code, _ in code_cells(path):
    assert not private.search(code), code
