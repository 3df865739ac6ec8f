# SPDX-License-Identifier: Apache-2.0
"""Protects files with digests and locks, and checks the space on the disk.

Each folder has a file `SHA256SUMS`, which `sha256sum --check` can read. A file
is first written under a temporary name and then moved to its place. Its new
digest is recorded before the move, and the old one is removed after it. So a
file matches one of its digests even if the process is killed in between.
"""

import contextlib
import errno
import hashlib
import os
import shlex
import shutil
import socket

from absl import app

try:
  import fcntl
except ImportError:  # Windows has no such locks, so the scripts take none.
  fcntl = None

SUMS = 'SHA256SUMS'


class Refused(app.UsageError):
  """Raised when a file cannot be used; nothing has been changed."""


def digest_of(path):
  digest = hashlib.sha256()
  with path.open('rb') as file:
    while block := file.read(1 << 20):
      digest.update(block)
  return digest.hexdigest()


def listed(path):
  """Returns the recorded digests of a file.

  There are two if a process was killed while it wrote the file.
  """
  return _read_sums(path.parent).get(path.name, [])


def is_known(path):
  """Returns whether a file exists, or has existed."""
  return path.exists() or bool(listed(path))


def problem_of(path):
  """Returns what is wrong with a file, or '' if it matches its digest."""
  if not path.exists():
    return 'is missing'
  digests = listed(path)
  if not digests:
    # The user may trust the file; we cannot know whether it is damaged.
    folder, name = shlex.quote(str(path.parent)), shlex.quote(path.name)
    command = f'cd {folder} && sha256sum {name} >> {SUMS}'
    return f'has no digest (if you trust it, run `{command}`)'
  if digest_of(path) in digests:
    return ''
  if listed(path) != digests:  # Another process has just written the file.
    return problem_of(path)
  return f'is damaged: its SHA-256 digest is not the one in {SUMS}'


def is_damaged(path):
  """Returns whether a file differs from its digest; `False` if it has none."""
  return path.exists() and bool(listed(path)) and bool(problem_of(path))


def refuse_damaged(path):
  """Raises an error if a file differs from its digest."""
  if is_damaged(path):
    raise Refused(
      f'`{path}` {problem_of(path)}. Restore it from a copy, or remove it; the '
      'script that wrote it will write it again.'
    )


def write(path, text):
  """Writes a text file; if this is interrupted, the previous file remains."""
  unfinished = path.with_name(f'{path.name}.{os.getpid()}')
  content = text.encode()
  with room_for(path, len(content), unfinished):
    unfinished.write_bytes(content)
  put(unfinished, path)


def put(unfinished, path):
  """Moves a finished file to its place, and records its digest.

  Args:
    unfinished: `pathlib.Path` of a file on the same disk.
    path: `pathlib.Path` of its place; an older file there is replaced.
  """
  with unfinished.open('rb') as file:
    os.fsync(file.fileno())  # Otherwise a power failure may empty the file.
  digest = digest_of(unfinished)
  # Several processes may write different files of the same folder.
  with lock(path.with_name(f'{SUMS}.lock'), wait=True):
    sums = _read_sums(path.parent)
    _write_sums(
      path.parent, {**sums, path.name: [digest, *sums.get(path.name, [])]}
    )
    unfinished.replace(path)
    _write_sums(path.parent, {**sums, path.name: [digest]})


def _read_sums(folder):
  path = folder / SUMS
  sums = {}
  if path.exists():
    for line in path.read_text(errors='replace').splitlines():
      digest, _, name = line.partition('  ')
      sums.setdefault(name, []).append(digest)
  return sums


def _write_sums(folder, sums):
  lines = [
    f'{digest}  {name}\n'
    for name, digests in sorted(sums.items())
    for digest in dict.fromkeys(digests)
  ]
  unfinished = folder / f'{SUMS}.{os.getpid()}'
  with room_for(folder / SUMS, 100 * len(lines), unfinished):
    unfinished.write_text(''.join(lines))
  unfinished.replace(folder / SUMS)


@contextlib.contextmanager
def room_for(path, num_bytes, unfinished):
  """Raises an error that explains the problem if the disk is full.

  It does so before a file is written, and if writing fails.

  Args:
    path: `pathlib.Path` of the file.
    num_bytes: Python `int`, the least number of bytes that will be written.
    unfinished: `pathlib.Path` of the file or folder to remove if writing fails.
  """
  require_room(path, num_bytes)
  try:
    yield
  except OSError as error:
    if unfinished.is_dir():
      shutil.rmtree(unfinished)
    unfinished.unlink(missing_ok=True)
    raise no_room(path, num_bytes, error) from error


def require_room(path, num_bytes):
  """Raises an error if the disk of a path has less free space than required."""
  if shutil.disk_usage(path.parent).free < num_bytes:
    raise no_room(path, num_bytes, os.strerror(errno.ENOSPC))


def no_room(path, num_bytes, reason):
  """Returns an error that says how much space is needed."""
  free = shutil.disk_usage(path.parent).free
  return Refused(
    f'Writing `{path}` failed: {reason}. It requires {num_bytes / 1e6:.1f} MB, '
    f'and {free / 1e6:.1f} MB are free there. All files written before are '
    'kept. Free some space, then run the same command again.'
  )


@contextlib.contextmanager
def lock(path, wait=False):
  """Holds a lock; the system releases it when the process ends or dies.

  Args:
    path: `pathlib.Path` of the lock file, which remains.
    wait: Python `bool`, whether to wait if another process holds the lock.
  """
  path.parent.mkdir(parents=True, exist_ok=True)
  with path.open('a+') as file:
    if fcntl is not None:
      _acquire(file, path, wait)
    file.truncate(0)
    file.write(f'process {os.getpid()} on {socket.gethostname()}')
    file.flush()
    yield


def _acquire(file, path, wait):
  try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError as error:
    if wait:
      fcntl.flock(file, fcntl.LOCK_EX)
      return
    file.seek(0)
    raise Refused(
      f'Only one process may run in {path.parent}, but '
      f'{file.read() or "another process"} holds the lock {path.name}. Wait '
      'until it ends, or pass another `--output_dir`.'
    ) from error


def set_aside(folder):
  """Moves everything in a folder to its subfolder `replaced-<number>`."""
  number = 1
  while (aside := folder / f'replaced-{number}').exists():
    number += 1
  aside.mkdir()
  for path in sorted(folder.iterdir()):
    if not path.name.startswith('replaced-') and path.suffix != '.lock':
      path.rename(aside / path.name)
  print(f'The files in {folder} were moved to {aside}.')
