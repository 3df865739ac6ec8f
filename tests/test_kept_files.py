# SPDX-License-Identifier: Apache-2.0
"""Files with digests, locks, and the behavior when the disk is full."""

import os
import pathlib
import re
import resource
import subprocess

import pytest

from errors import raises
import processes
import scripts


@pytest.fixture(scope='module')
def kept_files():
  from examples.shared import kept_files

  return kept_files


def test_a_file_that_was_written_has_no_problem(kept_files, tmp_path):
  path = tmp_path / 'a.txt'
  assert not kept_files.is_known(path)
  for text in ('one', 'two'):
    kept_files.write(path, text)
    assert path.read_text() == text
    assert kept_files.problem_of(path) == ''
  # The format is that of the command `sha256sum`.
  subprocess.run(
    ['sha256sum', '--check', 'SHA256SUMS'], cwd=tmp_path, check=True
  )


@pytest.mark.parametrize('size', [0, 1, 3_000_000])
def test_every_damage_is_found(kept_files, tmp_path, size):
  path = tmp_path / 'a.txt'
  kept_files.write(path, 'x' * size)
  whole = path.read_bytes()
  for content in (whole + b'x', whole[:-1], whole[:-1] + b'y'):
    if content != whole:
      path.write_bytes(content)
      assert 'damaged' in kept_files.problem_of(path)
      with raises(kept_files.Refused, 'a.txt'):
        kept_files.refuse_damaged(path)
  path.unlink()
  assert 'missing' in kept_files.problem_of(path)
  assert kept_files.is_known(path)


def test_a_file_that_is_not_listed_may_be_trusted(kept_files, tmp_path):
  path = tmp_path / 'it is mine.txt'
  path.write_text('content')
  problem = kept_files.problem_of(path)
  assert 'no digest' in problem
  assert not kept_files.is_damaged(path)
  kept_files.refuse_damaged(path)
  (command,) = re.findall('`(.*)`', problem)
  subprocess.run(command, shell=True, check=True)
  assert kept_files.problem_of(path) == ''


@pytest.mark.parametrize('moves', range(4))
def test_a_kill_during_a_write_leaves_a_file_that_matches(
  kept_files, tmp_path, monkeypatch, moves
):
  path, replace, done = tmp_path / 'a.txt', pathlib.Path.replace, []
  kept_files.write(tmp_path / 'b.txt', 'another')
  kept_files.write(path, 'before')

  def replace_or_die(self, target):
    if len(done) == moves:
      raise KeyboardInterrupt
    done.append(target)
    replace(self, target)

  with monkeypatch.context() as patch:
    patch.setattr(pathlib.Path, 'replace', replace_or_die)
    if moves < 3:
      with pytest.raises(KeyboardInterrupt):
        kept_files.write(path, 'after')
    else:
      kept_files.write(path, 'after')
  assert path.read_text() == ('before' if moves < 2 else 'after')
  for name in ('a.txt', 'b.txt'):
    assert kept_files.problem_of(tmp_path / name) == ''
  kept_files.write(path, 'at last')
  assert len(kept_files.listed(path)) == 1


# Locks.

# The code does not import TensorFlow, which takes long.
HOLD = f"""
import pathlib
import sys
sys.path.insert(0, {str(scripts.ROOT)!r})
from examples.shared import kept_files
"""


def test_only_one_process_holds_a_lock_and_is_named(kept_files, tmp_path):
  path = tmp_path / 'run.lock'
  code = f"""{HOLD}
try:
  with kept_files.lock(pathlib.Path({str(path)!r})):
    print('no error')
except kept_files.Refused as error:
  print(error)
"""
  with kept_files.lock(path):
    printed = processes.run(code)
  assert f'process {os.getpid()} on ' in printed
  assert 'no error' in processes.run(code)


def test_a_lock_of_a_dead_process_is_stale(kept_files, tmp_path):
  path = tmp_path / 'run.lock'
  code = f"""{HOLD}
import os
with kept_files.lock(pathlib.Path({str(path)!r})):
  os.kill(os.getpid(), 9)
"""
  with pytest.raises(AssertionError):  # the process was killed
    processes.run(code)
  assert path.read_text().startswith('process ')
  with kept_files.lock(path):
    assert f'process {os.getpid()} ' in path.read_text()


def test_what_was_there_is_moved_not_removed(kept_files, tmp_path, capsys):
  for number in (1, 2):
    with kept_files.lock(tmp_path / 'run.lock'):
      kept_files.write(tmp_path / 'a.txt', str(number))
      kept_files.set_aside(tmp_path)
    aside = tmp_path / f'replaced-{number}'
    assert str(aside) in capsys.readouterr().out
    assert (aside / 'a.txt').read_text() == str(number)
    assert kept_files.problem_of(aside / 'a.txt') == ''
  assert not kept_files.is_known(tmp_path / 'a.txt')


# A full disk.


@pytest.fixture
def no_large_files():
  """Makes writing files above 100 kB fail, as if the disk were full."""
  _, hard = limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
  yield
  resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_text_that_does_not_fit_leaves_the_one_before(
  kept_files, tmp_path, no_large_files
):
  path = tmp_path / 'a.txt'
  kept_files.write(path, 'before')
  with raises(kept_files.Refused, 'requires 2.0 MB'):
    kept_files.write(path, 'x' * 2_000_000)
  assert path.read_text() == 'before'
  assert kept_files.problem_of(path) == ''
  assert len(list(tmp_path.iterdir())) == 3  # nothing unfinished is left


@pytest.mark.slow
def test_weights_that_do_not_fit_leave_the_ones_before():
  # This needs a separate process: HDF5 keeps the file that it could not write,
  # and crashes when another file is closed.
  code = f"""
import sys
sys.path.insert(0, {str(scripts.ROOT)!r})
import pathlib
import tempfile
import full_disk
for is_known_before in (True, False):
  with tempfile.TemporaryDirectory() as folder:
    full_disk.check_weights(pathlib.Path(folder), is_known_before)
print('checked', flush=True)
import os
os._exit(0)
"""
  assert processes.run(code).endswith('checked\n')
