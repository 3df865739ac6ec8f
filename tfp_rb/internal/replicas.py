# SPDX-License-Identifier: Apache-2.0
"""Exchanges Tensors between the replicas of `tf.distribute`."""

import tensorflow as tf

__all__ = ['sum_over_replicas']


def sum_over_replicas(x: tf.Tensor) -> tf.Tensor:
  """Returns the sum of a `Tensor` over all replicas, the same on each of them.

  Every replica must call this. Outside of `strategy.run`, and on a single
  replica, the result is `x` itself.

  Args:
    x: `Tensor` of the same shape on every replica.

  Returns:
    total: `Tensor` like `x`. It must not be differentiated.
  """
  context = tf.distribute.get_replica_context()
  if context is None or context.num_replicas_in_sync == 1:
    return x
  return context.all_reduce(tf.distribute.ReduceOp.SUM, x)
