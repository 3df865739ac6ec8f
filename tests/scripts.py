# SPDX-License-Identifier: Apache-2.0
"""Runs a script of `examples/` in this process, which has loaded TensorFlow.

A separate process would take 7 seconds to import TensorFlow. Everything that a
script changes, above all flags, is restored.
"""

import contextlib
import io
import os
import pathlib
import runpy
import subprocess
import sys
from unittest import mock

from absl import app, flags
import tensorflow as tf

ROOT = pathlib.Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / 'examples'


@contextlib.contextmanager
def no_flags_but_those_of_absl():
  """Hides the flags of other scripts, which may conflict with new ones."""
  hidden = {
    name: flags.FLAGS[name]
    for name in list(flags.FLAGS)
    if not str(flags.FLAGS.find_module_defining_flag(name)).startswith('absl')
  }
  for name in hidden:
    delattr(flags.FLAGS, name)
  kept = set(flags.FLAGS)
  try:
    yield
  finally:
    for name in set(flags.FLAGS) - kept:
      delattr(flags.FLAGS, name)
    for name, flag in hidden.items():
      flags.FLAGS[name] = flag
    flags.FLAGS.unparse_flags()


@contextlib.contextmanager
def as_started(path, *args):
  """Sets `sys.argv` and `sys.path` as `python path args` does.

  Restores them and the environment at the end.
  """
  level = tf.get_logger().level
  with (
    mock.patch.object(sys, 'argv', [str(path), *args]),
    mock.patch.object(sys, 'path', [str(path.parent), *sys.path]),
    mock.patch.dict(os.environ),
  ):
    try:
      yield
    finally:
      tf.get_logger().setLevel(level)


def run_command(command, *args, in_process=True):
  """Returns what a command of the README prints, given flags that shorten it.

  `test_readme.py` searches the calls of this function for the commands of the
  README.

  Args:
    command: Python `str`, exactly as in the README.
    *args: Further Python `str`s of the command line.
    in_process: Python `bool`; if false, the command runs in a separate process.

  Returns:
    printed: Python `str`.
  """
  path, *flags = command.split()
  if in_process:
    return run(path.removeprefix('examples/'), *flags, *args)
  module = path.removesuffix('.py').replace('/', '.')
  line = [sys.executable, '-m', module, *flags, *args]
  return subprocess.run(line, cwd=ROOT, stdout=-1, text=True, check=True).stdout


def run(script, *args):
  """Returns what `python examples/script args` prints.

  Args:
    script: Python `str`, the path below `examples/`.
    *args: Python `str`s of the command line.

  Returns:
    printed: Python `str`.
  """
  path, printed = EXAMPLES / script, io.StringIO()

  def call_main(main, argv=None):
    assert not main(flags.FLAGS(argv or sys.argv)), 'exit status is not 0'

  with (
    no_flags_but_those_of_absl(),
    as_started(path, *args),
    mock.patch.object(app, 'run', call_main),
    contextlib.redirect_stdout(printed),
  ):
    runpy.run_path(str(path), run_name='__main__')
  return printed.getvalue()
