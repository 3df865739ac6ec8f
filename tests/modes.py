"""A function as users run it: eagerly, as a graph, and compiled by XLA."""

import tensorflow as tf


def modes_of(function, *args):
  """`{'eager': ..., 'graph': ..., 'xla': ...}`, callables of such arguments.

  XLA compiles the graph that is there: tracing twice would take half the time
  of a test.

  Args:
    function: Callable.
    *args: `Tensor`s, of the shapes and dtypes of those to come.

  Returns:
    modes: Dictionary of callables.
  """
  traced = tf.function(function, autograph=False).get_concrete_function(*args)
  return {
    'eager': function,
    'graph': traced,
    'xla': tf.function(traced, autograph=False, jit_compile=True),
  }
