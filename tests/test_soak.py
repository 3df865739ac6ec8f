# SPDX-License-Identifier: Apache-2.0
"""The soak test notices what it should notice; a short form of it runs."""

import pathlib
import random
import re
import shutil
import subprocess
import sys
import zipfile

import h5py
import numpy as np
import pytest

import soak

SCRIPT = pathlib.Path(soak.__file__)


@pytest.fixture
def reference(tmp_path):
  """Makes a folder like that of a run."""
  folder = tmp_path / 'reference'
  run = folder / soak.RUN
  (run / 'backup').mkdir(parents=True)
  np.savez(folder / 'warm_start.npz', a=np.arange(3.0))
  weights = run / 'backup' / 'latest.weights.h5'
  with h5py.File(weights, 'w') as file:
    file['layers/a'] = np.arange(4.0)
  for name in ('last.keras', 'best.keras'):
    with zipfile.ZipFile(run / name, 'w') as archive:
      archive.write(weights, 'model.weights.h5')
  for name in soak.TABLES:
    (folder / name).write_text('epoch,loss,seconds\n0,1.5,2.5\n1,1.25,2.5\n')
  for name in soak.TEXTS:
    (folder / name).write_text('{}')
  return folder


def test_equal_folders_do_not_differ(reference, tmp_path):
  copy = shutil.copytree(reference, tmp_path / 'copy')
  assert soak.differences(copy, reference) == []
  log = copy / soak.RUN / 'log.csv'
  log.write_text(log.read_text().replace('2.5', '9.5'))  # these are the seconds
  assert soak.differences(copy, reference) == []


@pytest.mark.parametrize('name', [*soak.TABLES, *soak.TEXTS, *soak.WEIGHTS])
def test_every_difference_is_found(reference, tmp_path, name):
  copy = shutil.copytree(reference, tmp_path / 'copy')
  path = copy / name
  if path.suffix == '.npz':
    np.savez(path, a=np.arange(3.0) + [0.0, 0.0, 1e-15])
  elif path.suffix == '.h5':
    with h5py.File(path, 'a') as file:
      file['layers/a'][3] = np.nextafter(3.0, 4.0)
  elif path.suffix == '.keras':
    with h5py.File(tmp_path / 'new.h5', 'w') as file:
      file['layers/b'] = np.arange(4.0)
    with zipfile.ZipFile(path, 'w') as archive:
      archive.write(tmp_path / 'new.h5', 'model.weights.h5')
  else:
    path.write_text(path.read_text().replace('1.5', '1.6') + ' ')
  assert soak.differences(copy, reference) == [str(name)]
  path.unlink()
  assert soak.differences(copy, reference) == [str(name)]


def test_damage_changes_one_file(reference, tmp_path):
  rng, kinds = random.Random(0), set()
  for i in range(20):
    copy = shutil.copytree(reference, tmp_path / f'copy_{i}')
    kind, path = soak.damage(rng, copy)
    kinds.add(kind)
    changed = [
      p
      for p in sorted(reference.rglob('*'))
      if p.is_file()
      and not (
        (copy / p.relative_to(reference)).exists()
        and (copy / p.relative_to(reference)).read_bytes() == p.read_bytes()
      )
    ]
    assert [p.relative_to(reference) for p in changed] == [
      path.relative_to(copy)
    ]
  assert kinds == {'flip', 'truncate', 'delete'}


@pytest.mark.slow
def test_a_short_soak_ends_without_failures():
  done = subprocess.run(
    [sys.executable, str(SCRIPT), '--minutes=0.5', '--seed=3', '--epochs=3'],
    stdout=subprocess.PIPE,
    text=True,
    check=True,
    timeout=600,
  )
  counts = {
    name: int(number)
    for number, name in re.findall(r'^ +(\d+) (.+)$', done.stdout, re.MULTILINE)
  }
  assert counts['trials'] > 0
  assert 'FAILURES' not in counts
  assert sum(n for name, n in counts.items() if 'ended equal' in name) > 0
