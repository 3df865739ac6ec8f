# SPDX-License-Identifier: Apache-2.0
"""Which operations a function is made of, and whether a GPU has them."""

import tensorflow as tf
from tensorflow.python.framework import kernels


def operations(function, *args):
  """The kinds of operations in the graph of a function and in its parts."""
  graph = tf.function(function).get_concrete_function(*args).graph
  graph = graph.as_graph_def()
  parts = [graph.node, *(f.node_def for f in graph.library.function)]
  return {node.op for part in parts for node in part}


def assert_all_run_on_a_gpu(kinds):
  """Without one at hand: the wheel has the kernels registered."""
  assert not kinds & {'PyFunc', 'EagerPyFunc', 'PyFuncStateless'}
  for kind in kinds:
    devices = {
      kernel.device_type
      for kernel in kernels.get_registered_kernels_for_op(kind).kernel
    }
    assert devices & {'GPU', 'DEFAULT'}, kind  # the latter is every device
