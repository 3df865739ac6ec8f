# SPDX-License-Identifier: Apache-2.0
"""Lists the operations of a function, and checks that a GPU has them."""

import tensorflow as tf
from tensorflow.python.framework import kernels


def operations(function, *args):
  """Returns the kinds of operations in a function's graph and its parts."""
  graph = tf.function(function).get_concrete_function(*args).graph
  graph = graph.as_graph_def()
  parts = [graph.node, *(f.node_def for f in graph.library.function)]
  return {node.op for part in parts for node in part}


def assert_all_run_on_a_gpu(kinds):
  """Checks that the wheel has GPU kernels registered, without needing a GPU."""
  assert not kinds & {'PyFunc', 'EagerPyFunc', 'PyFuncStateless'}
  for kind in kinds:
    devices = {
      kernel.device_type
      for kernel in kernels.get_registered_kernels_for_op(kind).kernel
    }
    # 'DEFAULT' stands for every device.
    assert devices & {'GPU', 'DEFAULT'}, kind
