"""What is integrated: a discrepancy, in which `log q` stands itself."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import expectation
from tfp_rb.designs import whole_of
from tfp_rb.internal import gradients

__all__ = ['expected_discrepancy', 'log_prob_of_values']

_LARGE = 1e30


def expected_discrepancy(discrepancy_fn, log_ratio, discrete, estimator, seed):
  """The expected discrepancy, whose gradient is that of the estimator.

  The estimator is given `F + dF/dlog q`, less its value at `q = p`, a constant;
  the value of the loss is the mean of `F`. What is missing from the one to the
  other rides along as the derivative by a number that is 0.

  Args:
    discrepancy_fn: Callable.
    log_ratio: Callable, values to `log p - log q`, where `log q` of the values
      is a constant.
    discrete: The distribution of the values.
    estimator: The `GradientEstimator`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    loss: `Tensor` of the batch shape.
  """

  if discrepancy_fn is tfp.vi.kl_reverse:
    # Its derivative by log q is 1: a constant, which changes nothing.
    return expectation(
      lambda values: -log_ratio(values), discrete, estimator, seed=seed
    )

  def value_at(log_ratio):
    # A value that the target excludes has u = 0, where u log u would be NaN.
    value = discrepancy_fn(tf.maximum(log_ratio, -_LARGE))
    infinity = tf.constant(np.inf, value.dtype)
    return tf.where(value > _LARGE**0.5, infinity, value)

  def value_and_signal(log_ratio):
    with tf.GradientTape() as tape:
      tape.watch(log_ratio)
      value = value_at(log_ratio)
    return value, value - tape.gradient(value, log_ratio)

  def signal(values):
    x = log_ratio(values)
    value, signal = value_and_signal(tf.stop_gradient(x))
    signal -= value_and_signal(tf.zeros([], x.dtype))[1]
    # Where the target excludes an atom, the derivative may be undefined.
    signal = tf.where(tf.math.is_nan(signal), value, signal)
    missing = tf.where(
      tf.math.is_finite(value - signal), value - signal, tf.zeros_like(value)
    )
    # Of the parameters of the target it is `F` that counts.
    signal = gradients.value_with_gradient_of(
      signal, value_at(x), tf.zeros_like(signal)
    )
    return signal + tf.cast(nothing, x.dtype) * missing

  nothing = tf.zeros(discrete.batch_shape, tf.float64)
  with tf.GradientTape() as tape:
    tape.watch(nothing)
    mean_signal = expectation(signal, discrete, estimator, seed=seed)
  missing = tape.gradient(mean_signal, nothing)
  return gradients.value_with_gradient_of(
    mean_signal + tf.cast(missing, mean_signal.dtype),
    mean_signal,
    tf.zeros_like(mean_signal),
  )


def log_prob_of_values(discrete, values, is_differentiated):
  """`log q` of atoms, a constant in its parameters.

  Args:
    discrete: The distribution.
    values: `Tensor` of shape `[n] + batch_shape + event_shape`.
    is_differentiated: Python `bool`, whether an estimator follows the gradient
      by the values, and may ask for points between them.

  Returns:
    log_prob: `Tensor` of shape `[n] + batch_shape`.
  """
  law = whole_of(discrete)
  if is_differentiated:
    relaxation = law.relaxation()
    if relaxation is not None:
      return relaxation.log_prob_between(values)
  if not is_differentiated:
    return tf.stop_gradient(law.log_prob(values))
  with tf.GradientTape() as tape:
    tape.watch(values)
    log_prob = law.log_prob(values)
  slope = tape.gradient(log_prob, values, unconnected_gradients='zero')
  path = tf.stop_gradient(slope) * (values - tf.stop_gradient(values))
  axes = list(range(log_prob.shape.rank, values.shape.rank))
  path = tf.cast(tf.reduce_sum(path, axis=axes), log_prob.dtype)
  return tf.stop_gradient(log_prob) + path
