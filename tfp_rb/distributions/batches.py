# SPDX-License-Identifier: Apache-2.0
"""Rearranges batches of chains for the recursions, and rearranges the results.

The recursions take factors `[T, rows, K, K]` and paths `[T, rows, n]`, where
`rows` is the flattened batch. Outside of this module, the batch comes first.
"""

from typing import Any

import tensorflow as tf

from tfp_rb.distributions import recursions
from tfp_rb.internal import dtypes, logspace, random, shapes

__all__ = ['draw', 'log_factors_of', 'log_prob_of']


def log_factors_of(
  initial_logits: Any, transition_logits: Any, batch_shape: list[Any]
) -> tf.Tensor:
  """Returns the normalised log-probabilities of a batch of chains.

  Args:
    initial_logits: As in `CategoricalChain`.
    transition_logits: As in `CategoricalChain`.
    batch_shape: List, the broadcast batch shape.

  Returns:
    log_factors: Differentiable `Tensor` of shape `[T, rows, K, K]`.
  """
  initial, transitions = (
    logspace.log_softmax(dtypes.at_least_float32(tf.convert_to_tensor(x)))
    for x in (initial_logits, transition_logits)
  )
  own = shapes.as_list(transitions)[-3:]
  rows, num_states = shapes.size(batch_shape), own[-1]
  initial = tf.broadcast_to(initial, [*batch_shape, num_states])
  transitions = tf.broadcast_to(transitions, [*batch_shape, *own])
  return recursions.join_factors(
    tf.reshape(initial, [rows, num_states]),
    tf.transpose(tf.reshape(transitions, [rows, *own]), [1, 0, 2, 3]),
  )


def draw(
  log_factors: tf.Tensor, n: Any, seed: Any, batch_shape: list[Any]
) -> tf.Tensor:
  """Draws paths.

  Args:
    log_factors: As returned by `log_factors_of`.
    n: The number of draws.
    seed: A seed, as in TFP.
    batch_shape: List.

  Returns:
    values: `int32` `Tensor` of shape `[n] + batch_shape + [T]`.
  """
  (seed,) = random.split_seed(seed, n=1)
  num_steps, rows = shapes.as_list(log_factors)[:2]
  static = tf.get_static_value(n)
  n = n if static is None else int(static)
  u = random.uniform([n, rows, num_steps], seed)
  paths = recursions.draw_paths(log_factors, tf.transpose(u, [2, 1, 0]))
  return tf.reshape(
    tf.transpose(paths, [2, 1, 0]), [n, *batch_shape, num_steps]
  )


def log_prob_of(
  log_factors: tf.Tensor, value: tf.Tensor, batch_shape: list[Any]
) -> tf.Tensor:
  """Returns the log-probability of paths, which may have a larger batch.

  Args:
    log_factors: As returned by `log_factors_of`.
    value: `Tensor` of shape `[..., T]`.
    batch_shape: List.

  Returns:
    log_prob: `Tensor`. Its shape is that of `value` without the last dimension,
      broadcast against `batch_shape`.
  """
  num_steps, rows, *tail = shapes.as_list(log_factors)
  value = tf.cast(value, tf.int32)
  shape = shapes.broadcast(shapes.as_list(value)[:-1], batch_shape)
  value = tf.broadcast_to(value, [*shape, num_steps])
  # If the values have a larger batch, repeat the factors.
  own, batch_shape = batch_shape, shape[len(shape) - len(batch_shape) :]
  if not shapes.is_same(batch_shape, own):
    log_factors = tf.reshape(log_factors, [num_steps, *own, *tail])
    log_factors = tf.broadcast_to(log_factors, [num_steps, *batch_shape, *tail])
    rows = shapes.size(batch_shape)
    log_factors = tf.reshape(log_factors, [num_steps, rows, *tail])
  n = shapes.size(shape[: len(shape) - len(own)])
  paths = tf.transpose(tf.reshape(value, [n, rows, num_steps]), [2, 1, 0])
  return tf.reshape(
    tf.transpose(recursions.log_prob_of(log_factors, paths)), shape
  )
