# SPDX-License-Identifier: Apache-2.0
"""Starts a program in several processes that train together over loopback."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parent


def _free_ports(number):
  sockets = [socket.socket() for _ in range(number)]
  try:
    for one in sockets:
      one.bind(('127.0.0.1', 0))
    return [one.getsockname()[1] for one in sockets]
  finally:
    for one in sockets:
      one.close()


@contextlib.contextmanager
def started(*args, number=2, program=TESTS / 'distributed_worker.py', **env):
  """Starts the workers, and kills those that are still running at the end.

  Args:
    *args: Command line of every worker.
    number: Python `int`, the number of workers.
    program: `pathlib.Path`.
    **env: Environment variables.

  Yields:
    processes: List of `subprocess.Popen`, the chief first.
  """
  ports = _free_ports(number)
  cluster = {'worker': [f'127.0.0.1:{port}' for port in ports]}
  path = os.pathsep.join([str(TESTS.parent), os.environ.get('PYTHONPATH', '')])
  processes = []
  try:
    for i in range(number):
      task = {'cluster': cluster, 'task': {'type': 'worker', 'index': i}}
      processes.append(
        subprocess.Popen(
          [sys.executable, str(program), *map(str, args)],
          env={
            **os.environ,
            'CUDA_VISIBLE_DEVICES': '-1',
            'PYTHONPATH': path,
            'TF_CONFIG': json.dumps(task),
            **env,
          },
          stdout=subprocess.PIPE,
          stderr=subprocess.STDOUT,
          text=True,
        )
      )
    yield processes
  finally:
    for process in processes:
      if process.poll() is None:
        process.send_signal(signal.SIGKILL)  # only this process, by its id
      process.communicate()


def run(*args, timeout=300, **settings):
  """Returns the output of each worker; fails if one of them fails."""
  with started(*args, **settings) as processes:
    printed = [p.communicate(timeout=timeout)[0] for p in processes]
  for process, text in zip(processes, printed, strict=True):
    assert process.returncode == 0, text[-4000:]
  return printed
