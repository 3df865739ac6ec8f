# SPDX-License-Identifier: Apache-2.0
"""Chooses dtypes that are precise enough."""

import tensorflow as tf

__all__ = ['at_least_float32', 'largest_integer', 'widest']


def at_least_float32(x):
  """Casts float16 and bfloat16 to float32."""
  # In bfloat16, the weights of a partition would not sum to 1: they would be
  # off by 0.004.
  return tf.cast(x, tf.float32) if x.dtype.size < 4 else x


def largest_integer(dtype):
  """Returns the largest `n` such that a dtype holds all integers up to `n`."""
  dtype = tf.as_dtype(dtype)  # The dtype of a distribution may be NumPy's.
  if dtype.is_integer:
    return dtype.max
  if dtype.is_bool:
    return 1
  # A floating-point number holds integers with as many bits as its mantissa.
  return {2: 2**8 if dtype == tf.bfloat16 else 2**11, 4: 2**24, 8: 2**53}[
    dtype.size
  ]


def widest(tensors):
  """Returns the widest of the dtypes of floating-point Tensors."""
  return max((x.dtype for x in tensors), key=lambda dtype: dtype.size)
