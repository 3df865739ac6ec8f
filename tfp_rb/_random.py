"""Random numbers that are the same in eager, graph and XLA.

All randomness of registered families passes through `uniform`. Float draws of
TensorFlow differ between eager mode and XLA for the same stateless seed, and so
do the seeds of `tfp.random.split_seed`, which does not name its generator. The
full-range integer bits of Philox agree, so all are made from those.
"""

import contextlib

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = [
  'draw_index',
  'search_index',
  'split_seed',
  'stratified',
  'uniform',
]

_strata = []


@contextlib.contextmanager
def stratified(num_draws):
  """Makes the uniforms of `num_draws` draws fall into different strata.

  Each uniform of a draw falls into a stratum of its own, in an order of its
  own (a Latin hypercube): so each draw alone follows its law as before.

  Args:
    num_draws: Python `int`, the number of strata.

  Yields:
    calls: List that grows by one for each array of uniforms that was made.
  """
  calls = []
  _strata.append((num_draws, calls))
  try:
    yield calls
  finally:
    _strata.pop()


def split_seed(seed, n):
  """Returns `n` stateless seeds, equal in eager, graph and XLA.

  Args:
    seed: As in TFP: `int32[2]`, or an `int` or `None` for a stateful one.
    n: Python `int`.

  Returns:
    seeds: List of `n` `Tensor`s, `int32[2]`.

  Raises:
    TypeError: `seed` is not made of integers.
    ValueError: `seed` is not a pair.
  """
  return tf.unstack(_bits([n, 2], _stateless(seed), tf.int32))


def _stateless(seed):
  """A pair; TensorFlow takes any vector, and ignores a third number."""
  expected = (
    '`seed` must be None, a Python int or a stateless seed, two integers, but '
    f'is {seed!r}. Write, for example, `seed=[0, step]`.'
  )
  try:
    stateless = tfp.random.sanitize_seed(seed)
  except TypeError as error:
    raise TypeError(expected) from error
  if not stateless.shape.is_compatible_with([2]):
    raise ValueError(expected)
  return stateless


def _bits(shape, seed, dtype):
  return tf.random.stateless_uniform(
    shape, seed, minval=None, maxval=None, dtype=dtype, alg='philox'
  )


def uniform(shape, seed, dtype, draw_axis=None):
  """Returns uniforms strictly between 0 and 1, equal in eager, graph and XLA.

  Args:
    shape: Shape of the result, a list of ints and scalar Tensors.
    seed: Stateless seed, `int32[2]`.
    dtype: `tf.float32` (23 random bits) or `tf.float64` (52 random bits).
    draw_axis: Python `int`, the axis along which the draws lie, of static size;
      inside `stratified` they are stratified along it.

  Returns:
    u: `Tensor` of `shape` and `dtype`; neither 0 nor 1 can occur.
  """
  # Where draws are made one by one, there is nothing to stratify.
  if _strata and draw_axis is not None and shape[draw_axis] >= _strata[-1][0]:
    return _stratified_uniform(shape, seed, dtype, draw_axis)
  return _plain_uniform(shape, seed, dtype)


def _stratified_uniform(shape, seed, dtype, draw_axis):
  num_draws, calls = _strata[-1]
  calls.append(draw_axis)
  # A broadcast distribution asks for several draws in one.
  split = [*shape]
  split[draw_axis : draw_axis + 1] = [
    num_draws,
    shape[draw_axis] // num_draws,
  ]
  order_seed, uniform_seed = split_seed(seed, n=2)
  key = _plain_uniform(split, order_seed, dtype)
  stratum = tf.argsort(tf.argsort(key, draw_axis), draw_axis)
  u = _plain_uniform(split, uniform_seed, dtype)
  u = (tf.cast(stratum, dtype) + u) / num_draws
  largest = np.nextafter(1.0, 0.0, dtype=tf.as_dtype(dtype).as_numpy_dtype)
  return tf.reshape(tf.minimum(u, largest), shape)


def _plain_uniform(shape, seed, dtype):
  integer, num_bits = (
    (tf.int64, 52) if tf.as_dtype(dtype) == tf.float64 else (tf.int32, 23)
  )
  kept = tf.bitwise.bitwise_and(
    _bits(shape, seed, integer), tf.constant(2**num_bits - 1, integer)
  )
  return (tf.cast(kept, dtype) + 0.5) * 2.0**-num_bits


def search_index(masses, u):
  """Returns the index at which the cumulated `masses` pass `u` of their total.

  An index of mass 0 is never returned, whatever the rounding of the sums,
  unless all masses are 0; then it is some valid index.

  Args:
    masses: Non-negative floating-point `Tensor` of shape `[..., size]`.
    u: `Tensor` of shape `[...]` with values in (0, 1), same dtype.

  Returns:
    index: `int32` `Tensor` of shape `[...]`.
  """
  size = masses.shape[-1]
  cumulated = tf.cumsum(masses, axis=-1)
  threshold = u[..., tf.newaxis] * tf.reduce_max(
    cumulated, axis=-1, keepdims=True
  )
  # The first index with mass beyond the threshold, as a plain minimum: an
  # argmax is several times slower under XLA on a CPU.
  beyond = (cumulated > threshold) & (masses > 0.0)
  first = tf.reduce_min(tf.where(beyond, tf.range(size), size), axis=-1)
  # Rounding can leave no such index. The heaviest one stands in.
  heaviest = tf.argmax(masses, axis=-1, output_type=tf.int32)
  return tf.where(first < size, first, heaviest)


def draw_index(masses, num_draws, seed):
  """Draws indices in proportion to `masses`, by inverse CDF.

  Args:
    masses: Non-negative floating-point `Tensor` of shape `[rows, size]`, not
      necessarily normalised; `size` is static.
    num_draws: Python `int`, independent draws for each row.
    seed: Stateless seed, `int32[2]`.

  Returns:
    index: `int32` `Tensor` of shape `[num_draws, rows]`.
  """
  u = uniform([num_draws, tf.shape(masses)[0]], seed, masses.dtype, draw_axis=0)
  return search_index(masses[tf.newaxis], u)
