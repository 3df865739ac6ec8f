# SPDX-License-Identifier: Apache-2.0
"""Draws random numbers that agree in eager mode, in graphs and under XLA.

For the same stateless seed, TensorFlow draws different floats in eager mode and
under XLA. The full-range integer bits of Philox agree everywhere, so this
module makes all randomness of the library from those bits. It does not use
`tfp.random.split_seed`, because this function does not specify the generator,
which TensorFlow would then choose depending on the device.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = ['search_index', 'split_seed', 'stratified_uniform', 'uniform']


def split_seed(seed, n):
  """Returns `n` stateless seeds.

  Args:
    seed: As in TFP: `int32[2]`, or an `int` or `None` for a stateful seed.
    n: Python `int`.

  Returns:
    seeds: List of `n` `Tensor`s, `int32[2]`.

  Raises:
    TypeError: `seed` does not consist of 32-bit integers.
    ValueError: `seed` is not a pair.
  """
  return tf.unstack(_bits([n, 2], _stateless(seed), tf.int32))


def _stateless(seed):
  expected = (
    '`seed` must be None, a Python int, or a stateless seed of two integers; '
    f'got {seed!r}. Write, for example, `seed=tf.constant([0, step])`.'
  )
  if tf.is_tensor(seed) and seed.dtype != tf.int32:
    raise TypeError(
      f'`seed` must be an int32 Tensor; got dtype {seed.dtype.name}. Write '
      '`tf.cast(seed, tf.int32)`.'
    )
  try:
    stateless = tfp.random.sanitize_seed(seed)
  except TypeError as error:
    raise TypeError(expected) from error
  # TensorFlow accepts any vector and ignores a third number.
  if not stateless.shape.is_compatible_with([2]):
    raise ValueError(expected)
  return stateless


def _bits(shape, seed, dtype):
  # Without bounds, the integers have full range and agree under XLA. Philox is
  # also much faster there than the default generator.
  return tf.random.stateless_uniform(
    shape, seed, minval=None, maxval=None, dtype=dtype, alg='philox'
  )


def uniform(shape, seed, dtype=tf.float64):
  """Returns uniforms strictly between 0 and 1.

  Args:
    shape: Shape of the result, a list of ints and scalar Tensors.
    seed: Stateless seed, `int32[2]`.
    dtype: `tf.float64` (52 random bits) or `tf.float32` (23 random bits).

  Returns:
    u: `Tensor` of `shape` and `dtype`; neither 0 nor 1 can occur.
  """
  integer, num_bits = (
    (tf.int64, 52) if tf.as_dtype(dtype) == tf.float64 else (tf.int32, 23)
  )
  # The sum below is exact: it needs one bit more than the integer has, and the
  # mantissa has 53 bits in float64 and 24 in float32.
  kept = tf.bitwise.bitwise_and(
    _bits(shape, seed, integer), tf.constant(2**num_bits - 1, integer)
  )
  return (tf.cast(kept, dtype) + 0.5) * 2.0**-num_bits


def stratified_uniform(shape, seed):
  """Returns stratified uniforms, one per stratum along the first axis.

  Each coordinate of the other axes has its own random order of the strata (a
  Latin hypercube), so each single draw is uniform.

  Args:
    shape: Shape of the result; the first entry is a Python `int`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    u: `float64` `Tensor` of `shape`.
  """
  order_seed, uniform_seed = split_seed(seed, n=2)
  key = uniform(shape, order_seed)
  # The ranks of independent uniforms form a random permutation.
  stratum = tf.argsort(tf.argsort(key, axis=0), axis=0)
  u = uniform(shape, uniform_seed)
  u = (tf.cast(stratum, u.dtype) + u) / shape[0]
  return tf.minimum(u, np.nextafter(1.0, 0.0))  # Rounding may reach 1.


def search_index(masses, u):
  """Returns the index at which the cumulative mass exceeds `u` times the total.

  The search is in float64, so that an entry with a share of 2^-52 of the total
  can be found, regardless of the dtype of the masses. An index of mass 0 is
  never returned unless all masses are 0; then any valid index is returned.

  Args:
    masses: Non-negative floating-point `Tensor` of shape `[..., size]`.
    u: `float64` `Tensor` of shape `[...]` with values in (0, 1).

  Returns:
    index: `int32` `Tensor` of shape `[...]`.
  """
  size = masses.shape[-1]
  cumulated = tf.cumsum(tf.cast(masses, tf.float64), axis=-1)
  threshold = u[..., tf.newaxis] * cumulated[..., -1:]
  # Use a minimum to find the first index beyond the threshold, because an
  # argmax is several times slower under XLA on a CPU.
  beyond = (cumulated > threshold) & (masses > 0.0)
  first = tf.reduce_min(tf.where(beyond, tf.range(size), size), axis=-1)
  # If rounding leaves no such index, take the heaviest one.
  heaviest = tf.argmax(masses, axis=-1, output_type=tf.int32)
  return tf.where(first < size, first, heaviest)
