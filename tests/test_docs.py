# SPDX-License-Identifier: Apache-2.0
"""The documentation site: pages, links and the names of the API reference."""

import os
import pathlib
import subprocess
import sys

import pytest
import yaml

import tfp_rb
from tfp_rb import datasets, diagnostics, models

pytestmark = pytest.mark.all_cases

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCS = ROOT / 'docs'
MODULES = [
  tfp_rb, tfp_rb.baselines, datasets, diagnostics, tfp_rb.distributions, models,
  tfp_rb.samplers, tfp_rb.testing, tfp_rb.vi,
]  # fmt: skip


def pages_of_navigation():
  """Returns the paths of all pages of `mkdocs.yml`, relative to `docs/`."""

  def leaves(item):
    if isinstance(item, str):
      return [item]
    values = item.values() if isinstance(item, dict) else item
    return [leaf for value in values for leaf in leaves(value)]

  config = yaml.safe_load((ROOT / 'mkdocs.yml').read_text(encoding='utf-8'))
  return leaves(config['nav'])


def test_the_navigation_has_every_page_and_notebook():
  files = [path.relative_to(DOCS) for path in DOCS.rglob('*.md')]
  files = {str(p) for p in files if p.parts[0] != 'notebooks'}
  files |= {f'notebooks/{p.name}' for p in (ROOT / 'colab').glob('*.ipynb')}
  assert files == set(pages_of_navigation())


@pytest.mark.parametrize('module', MODULES, ids=lambda m: m.__name__)
def test_every_public_module_has_a_page(module):
  name = module.__name__.partition('.')[2] or 'index'
  text = (DOCS / 'api' / f'{name}.md').read_text(encoding='utf-8')
  assert f'::: {module.__name__}\n' in text


@pytest.fixture(scope='module')
def site(tmp_path_factory):
  folder = tmp_path_factory.mktemp('site')
  # This runs what `make docs` runs: a warning, such as a broken link, is an
  # error.
  command = [sys.executable, '-m', 'mkdocs', 'build', '--strict']
  subprocess.run(
    [*command, '--site-dir', str(folder)],
    cwd=ROOT, env={**os.environ, 'NO_MKDOCS_2_WARNING': '1'}, check=True,
  )  # fmt: skip
  return folder


@pytest.mark.slow
@pytest.mark.parametrize('module', MODULES, ids=lambda m: m.__name__)
def test_the_site_has_every_public_name(site, module):
  name = module.__name__.partition('.')[2]
  text = (site / 'api' / name / 'index.html').read_text(encoding='utf-8')
  for public in set(module.__all__) - {'__version__'}:
    item = getattr(module, public)
    if type(item) is not type(tfp_rb):  # modules have pages of their own
      # A function with the name of its module appears under its full name.
      names = {f'{x}.{public}' for x in (module.__name__, item.__module__)}
      assert any(f'id="{n}"' in text for n in names), public
