# SPDX-License-Identifier: Apache-2.0
"""The wheel holds only the package, and importing it loads few modules."""

from email import message_from_bytes
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

from packaging.requirements import Requirement
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]

# TensorFlow and TFP load some of these themselves. We count modules that ours
# import, and modules that appear only when ours are imported.
IMPORT = """
import builtins
import sys
import tensorflow as tf
import tensorflow_probability as tfp

# TFP loads its parts when they are first used.
for part in ('bijectors', 'distributions', 'math', 'monte_carlo', 'random'):
  dir(getattr(tfp, part))
before = set(sys.modules)
asked = set()
load = builtins.__import__

def recording_load(name, globals=None, locals=None, fromlist=(), level=0):
  asker = (globals or {}).get('__name__', '')
  if level == 0 and asker.split('.')[0] == 'tfp_rb':
    asked.add(name.split('.')[0])
  return load(name, globals, locals, fromlist, level)

builtins.__import__ = recording_load
import tfp_rb
ours = asked | (set(sys.modules) - before)
print(tfp_rb.__file__)
print(sorted(ours & {'keras', 'matplotlib', 'tensorflow_datasets', 'tf_keras'}))
"""


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
  folder = tmp_path_factory.mktemp('wheel')
  # The wheel is built from a copy, because the build leaves files behind and
  # would use old ones.
  ignore = shutil.ignore_patterns(
    '.*', '*.egg-info', '__pycache__', 'build', 'dist', 'outputs', 'venv'
  )
  shutil.copytree(ROOT, folder / 'source', ignore=ignore)
  command = [sys.executable, '-m', 'pip', 'wheel', str(folder / 'source')]
  command += ['--no-deps', '--no-build-isolation', '--no-index', '--quiet']
  command += ['--disable-pip-version-check', '--wheel-dir', str(folder)]
  subprocess.run(command, check=True)
  (path,) = folder.glob('*.whl')
  return path


def test_wheel_holds_the_package_and_nothing_else(wheel):
  with zipfile.ZipFile(wheel) as archive:
    names = set(archive.namelist())
  info = {n for n in names if n.split('/')[0].endswith('.dist-info')}
  modules = {
    path.relative_to(ROOT).as_posix() for path in ROOT.glob('tfp_rb/**/*.py')
  }
  assert modules <= names
  assert 'tfp_rb/py.typed' in names
  assert any(name.endswith('/LICENSE') for name in info)
  assert {name.split('/')[0] for name in names - info} == {'tfp_rb'}


@pytest.fixture(scope='module')
def metadata(wheel):
  with zipfile.ZipFile(wheel) as archive:
    (name,) = (n for n in archive.namelist() if n.endswith('/METADATA'))
    return message_from_bytes(archive.read(name))


def test_the_metadata_name_the_licence_of_the_digits_and_of_the_code(
  wheel, metadata
):
  assert metadata['License'] == 'Apache-2.0 AND CC-BY-SA-3.0'
  with zipfile.ZipFile(wheel) as archive:
    texts = [
      archive.read(name).decode()
      for name in archive.namelist()
      if '.dist-info/' in name and 'LICENSE' in name
    ]
  assert any('CC BY-SA 3.0' in text for text in texts)
  assert any('Apache License' in text for text in texts)


def test_the_metadata_link_to_the_repository(metadata):
  urls = dict(u.split(', ') for u in metadata.get_all('Project-URL'))
  assert {'Documentation', 'Changelog', 'Issues'} <= set(urls)
  links = re.findall(r'\]\(([^)]*)\)', metadata.get_payload())
  assert links
  assert not [link for link in links if not link.startswith('https://')]


def test_pip_installs_a_numpy_with_which_tfp_works(metadata):
  required = [Requirement(r) for r in metadata.get_all('Requires-Dist')]
  (numpy,) = (r.specifier for r in required if r.name == 'numpy')
  (tfp,) = (r.specifier for r in required if r.name == 'tensorflow-probability')
  assert tfp.contains('0.25.0')
  # NumPy 2.4 removed `np.reshape(newshape=...)`, which TFP 0.25 uses.
  assert [numpy.contains(v) for v in ('1.26.0', '2.3.5', '2.4.0')] == [1, 1, 0]


def test_import_loads_no_keras_matplotlib_or_datasets(wheel, tmp_path):
  with zipfile.ZipFile(wheel) as archive:
    archive.extractall(tmp_path)
  result = subprocess.run(
    [sys.executable, '-c', IMPORT],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(tmp_path)},
    stdout=subprocess.PIPE,
    text=True,
    check=True,
  )
  *_, file, loaded = result.stdout.splitlines()
  assert pathlib.Path(file).is_relative_to(tmp_path)
  assert loaded == '[]'


@pytest.mark.parametrize('folder', ['tfp_rb', 'tests', 'examples'])
def test_every_python_file_names_its_licence_in_the_first_line(folder):
  header = '# SPDX-License-Identifier: Apache-2.0'
  files = sorted(ROOT.glob(f'{folder}/**/*.py'))
  assert files
  assert not [f for f in files if f.read_text().splitlines()[:1] != [header]]
