# SPDX-License-Identifier: Apache-2.0
"""Computes log-probabilities that are never NaN for impossible values.

An impossible value has the log-probability `-inf`, and its gradient is 0. TFP
and TensorFlow return NaN in some of these cases, because the gradient of a
logarithm at 0 is infinite, and 0 times infinity is NaN.
"""

import numpy as np
import tensorflow as tf

from tfp_rb.internal import dtypes

__all__ = [
  'bernoulli_log_probs',
  'categorical_logits',
  'log_of_probs',
  'log_softmax',
  'log_sum_exp',
]


def categorical_logits(distribution):
  """Returns unnormalised log-probabilities, `batch_shape + [K]`."""
  if distribution.logits is not None:
    return tf.convert_to_tensor(distribution.logits)
  # Cast first, because the logarithm has few digits in half precision.
  probs = dtypes.at_least_float32(tf.convert_to_tensor(distribution.probs))
  return log_of_probs(probs)


def bernoulli_log_probs(distribution):
  """Returns log-probabilities of 0 and 1, `batch_shape + [2]`."""
  if distribution.logits is not None:
    logits = dtypes.at_least_float32(tf.convert_to_tensor(distribution.logits))
    log_probs = [-tf.nn.softplus(logits), -tf.nn.softplus(-logits)]
  else:
    probs = dtypes.at_least_float32(tf.convert_to_tensor(distribution.probs))
    log_probs = [log_of_probs(1.0 - probs), log_of_probs(probs)]
  return tf.stack(log_probs, axis=-1)


def log_of_probs(probs):
  """Returns `log(probs)` with gradient 0, not NaN, at probabilities of 0."""
  # Masking the result alone is not enough: the gradient of the logarithm at 0
  # is infinite, and 0 times infinity is NaN.
  possible = probs > 0.0
  log_probs = tf.math.log(tf.where(possible, probs, tf.ones_like(probs)))
  return tf.where(possible, log_probs, tf.constant(-np.inf, probs.dtype))


def log_softmax(logits):
  """Returns `log_softmax` along the last axis; rows of `-inf` are unchanged.

  Args:
    logits: Floating-point `Tensor` of shape `[..., K]`.

  Returns:
    log_probs: `Tensor` of the same shape.
  """
  return _unless_impossible(logits, tf.nn.log_softmax, keepdims=True)


def log_sum_exp(x):
  """Returns `log(sum(exp(x)))` along the last axis; `-inf` if all are `-inf`.

  The gradient of an impossible row is 0, unlike the gradient of
  `tf.reduce_logsumexp`, which is NaN.

  Args:
    x: Floating-point `Tensor` of shape `[..., K]`.

  Returns:
    log_sum: `Tensor` of shape `[...]`.
  """
  sum_of_last = lambda x: tf.reduce_logsumexp(x, axis=-1)
  return _unless_impossible(x, sum_of_last, keepdims=False)


def _unless_impossible(x, function, keepdims):
  """Applies `function` to rows; the result is `-inf` for rows of `-inf`."""
  impossible = tf.constant(-np.inf, x.dtype)
  is_impossible = tf.reduce_all(tf.equal(x, impossible), axis=-1, keepdims=True)
  result = function(tf.where(is_impossible, tf.zeros_like(x), x))
  mask = is_impossible if keepdims else is_impossible[..., 0]
  return tf.where(mask, impossible, result)
