"""Log-probabilities of distributions that are given by logits or by probs."""

import numpy as np
import tensorflow as tf

__all__ = [
  'at_least_float32',
  'bernoulli_log_probs',
  'categorical_logits',
  'parameter_dtype',
]


def at_least_float32(x):
  """Casts float16 and bfloat16 up; masses are never kept in half precision."""
  return tf.cast(x, tf.float32) if x.dtype.size < 4 else x


def parameter_dtype(distribution):
  """The dtype of the logits or probs of a distribution."""
  given = distribution.logits
  return tf.convert_to_tensor(
    distribution.probs if given is None else given
  ).dtype


def categorical_logits(distribution):
  """Unnormalised log-probabilities, `batch_shape + [K]`."""
  if distribution.logits is not None:
    return tf.convert_to_tensor(distribution.logits)
  # Cast first: the logarithm of a half-precision number has few digits left.
  probs = at_least_float32(tf.convert_to_tensor(distribution.probs))
  return _log_of_probs(probs)


def bernoulli_log_probs(distribution):
  """Log-probabilities of 0 and of 1, `batch_shape + [2]`, at least float32."""
  if distribution.logits is not None:
    logits = at_least_float32(tf.convert_to_tensor(distribution.logits))
    log_probs = [-tf.nn.softplus(logits), -tf.nn.softplus(-logits)]
  else:
    probs = at_least_float32(tf.convert_to_tensor(distribution.probs))
    log_probs = [_log_of_probs(1.0 - probs), _log_of_probs(probs)]
  return tf.stack(log_probs, axis=-1)


def _log_of_probs(probs):
  """`log(probs)` whose gradient is 0, not NaN, where a probability is 0."""
  possible = probs > 0.0
  log_probs = tf.math.log(tf.where(possible, probs, tf.ones_like(probs)))
  return tf.where(possible, log_probs, tf.constant(-np.inf, probs.dtype))
