# SPDX-License-Identifier: Apache-2.0
"""Runs a function as users do: eagerly, as a graph, and compiled by XLA."""

import re

import numpy as np
import tensorflow as tf


def modes_of(function, *args):
  """Returns callables: `{'eager': ..., 'graph': ..., 'xla': ...}`.

  XLA compiles the graph that already exists, because tracing twice would take
  half the time of a test.

  Args:
    function: Callable.
    *args: `Tensor`s with the shapes and dtypes of the later arguments.

  Returns:
    modes: Dictionary of callables.
  """
  traced = tf.function(function, autograph=False).get_concrete_function(*args)
  return {
    'eager': function,
    'graph': traced,
    'xla': tf.function(traced, autograph=False, jit_compile=True),
  }


def largest_array(function, *args):
  """Returns the number of elements of the compiled program's largest array."""
  program = function.experimental_get_compiler_ir(*args)(stage='optimized_hlo')
  shapes = re.findall(r'\b[a-z]+[0-9]+\[([0-9,]+)\]', program)
  return max(np.prod([int(n) for n in shape.split(',')]) for shape in shapes)
