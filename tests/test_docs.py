# SPDX-License-Identifier: Apache-2.0
"""The API reference is made without a warning and has every public name."""

import warnings

import pdoc
import pytest

import tfp_rb
from tfp_rb import datasets, diagnostics, models

pytestmark = pytest.mark.all_cases

MODULES = [
  tfp_rb, tfp_rb.baselines, datasets, diagnostics, models, tfp_rb.samplers,
  tfp_rb.testing, tfp_rb.vi,
]  # fmt: skip


@pytest.fixture(scope='module')
def pages(tmp_path_factory):
  folder = tmp_path_factory.mktemp('docs')
  pdoc.render.configure(docformat='google')
  with warnings.catch_warnings():
    warnings.simplefilter('error', UserWarning)
    # As `make docs` does it.
    pdoc.pdoc(
      'tfp_rb', 'tfp_rb.datasets', 'tfp_rb.diagnostics', 'tfp_rb.models',
      output_directory=folder,
    )  # fmt: skip
  return folder


@pytest.mark.parametrize('module', MODULES, ids=lambda m: m.__name__)
def test_page_has_every_public_name(pages, module):
  name = module.__name__.replace('.', '/')
  text = (pages / f'{name}.html').read_text(encoding='utf-8')
  for public in module.__all__:
    assert f'id="{public}"' in text or f'{public}.html' in text, public
