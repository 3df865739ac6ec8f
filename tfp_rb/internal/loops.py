# SPDX-License-Identifier: Apache-2.0
"""Runs loops as graphs, even in eager mode."""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf

__all__ = ['as_graph']


def as_graph(function: Callable[..., Any]) -> Callable[..., Any]:
  """Traces a function of Tensors if it is called in eager mode.

  In eager mode, `tf.scan` and `tf.while_loop` are Python loops, which take
  milliseconds per step. In a graph, the function is called directly, so that
  XLA sees all shapes that are known statically.

  Args:
    function: Callable of Tensors and Python values.

  Returns:
    function: Callable.
  """
  traced = tf.function(function, autograph=False)

  @functools.wraps(function)
  def call(*args: Any) -> Any:
    return traced(*args) if tf.executing_eagerly() else function(*args)

  return call
