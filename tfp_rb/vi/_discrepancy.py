# SPDX-License-Identifier: Apache-2.0
"""Evaluates discrepancies between a target and a surrogate."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.designs import CheckedIntegrand, Evaluation
from tfp_rb.designs.integrand import EVALUATION

__all__ = ['Csiszar', 'Discrepancy', 'LogDensities']

# A Csiszar function `F` of `log p - log q`.
Csiszar: TypeAlias = Callable[[tf.Tensor], tf.Tensor]

# Maps atoms to `log p` and `log q`, both of shape `[m] + batch_shape`.
LogDensities: TypeAlias = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

# Stands for infinity where a function of infinity would be NaN.
_LARGE = 1e30


class Discrepancy(CheckedIntegrand):
  """Evaluates a Csiszar function `F` of `log p - log q`.

  Because `F` contains `log q`, the gradient of its expectation is
  `E[(F + dF/dlog q) grad log q]`. The first factor is the signal. This class
  subtracts its value at `q = p`, which is a constant.
  """

  def __init__(
    self,
    discrepancy_fn: Csiszar,
    log_densities: LogDensities,
    batch_shape: list[Any],
  ) -> None:
    self._discrepancy_fn = discrepancy_fn
    self._log_densities = log_densities
    super().__init__(self._value_of, batch_shape)

  def _value_at(self, log_ratio: tf.Tensor) -> tf.Tensor:
    # If the target is 0, then u = p / q is 0, and u log u would be NaN.
    value = self._discrepancy_fn(tf.maximum(log_ratio, -_LARGE))
    # If the function of -_LARGE is that large, its limit is infinite.
    infinity = tf.constant(np.inf, value.dtype)
    return tf.where(value > _LARGE**0.5, infinity, value)

  def _value_of(self, values: tf.Tensor) -> tf.Tensor:
    log_p, log_q = self._log_densities(values)
    return self._value_at(log_p - log_q)

  def _signal_at(self, log_ratio: tf.Tensor) -> tf.Tensor:
    """Returns `F + dF/dlog q`, a constant."""
    value, slope = tfp.math.value_and_gradient(
      self._value_at, tf.stop_gradient(log_ratio)
    )
    # The slope is w.r.t. log p - log q, so dF/dlog q has the opposite sign. The
    # slope may be undefined at atoms where the target is 0.
    return tf.where(tf.math.is_nan(value - slope), value, value - slope)

  def evaluate(self, values: tf.Tensor) -> Evaluation:
    """Returns the `Evaluation` at values of the discrete parts."""
    # The name lets diagnostics find the calls of the target in a graph.
    values = tf.identity(values, name=EVALUATION)
    log_p, log_q = self._log_densities(values)
    log_ratio = log_p - log_q  # [m] + batch_shape
    signal = self._signal_at(log_ratio)
    # With this constant, the signal and its variance are 0 at q = p.
    signal -= self._signal_at(tf.zeros([], log_ratio.dtype))
    return Evaluation(self._value_at(log_ratio), signal)
