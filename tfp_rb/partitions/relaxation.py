# SPDX-License-Identifier: Apache-2.0
"""Represents distributions by one-hot vectors, for relaxed estimators."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

__all__ = ['Relaxation']


class Relaxation(NamedTuple):
  """Represents a distribution by sites with one-hot vectors.

  Attributes:
    dtype: Dtype of the logits, which is also that of the atoms passed to `f`.
    log_probs: Differentiable `Tensor` of shape `batch_shape + sites + [K]`,
      normalised, at least float32.
    num_sites: Python `int`, the rank of `sites`.
    to_one_hot: Callable that maps atoms to one-hot vectors of shape
      `[m] + batch_shape + sites + [K]` in the dtype of `log_probs`. It is
      linear, so it also maps points between the atoms.
    to_event: Callable that maps vectors of that shape to the argument of `f`,
      in `dtype`.
  """

  dtype: tf.DType
  log_probs: tf.Tensor
  num_sites: int
  to_one_hot: Callable[[tf.Tensor], tf.Tensor]
  to_event: Callable[[tf.Tensor], tf.Tensor]

  @property
  def site_axes(self) -> list[int]:
    """The axes of the sites and of the classes."""
    return list(range(-1 - self.num_sites, 0))

  def center(self) -> tf.Tensor:
    """Returns the mean of the uniform distribution.

    It has shape `batch_shape + event_shape`.
    """
    uniform = tf.ones_like(self.log_probs) / self.log_probs.shape[-1]
    return self.to_event(uniform)

  def log_prob_between(self, values: tf.Tensor) -> tf.Tensor:
    """Extends `log q` linearly to points between the atoms.

    Args:
      values: `Tensor`, an argument of `f`.

    Returns:
      log_prob: `Tensor` of shape `[m] + batch_shape`, differentiable with
        respect to `values`, but constant with respect to the parameters.
    """
    log_probs = tf.stop_gradient(self.log_probs)
    # Mask classes of probability 0, which would give 0 * -inf = NaN.
    is_possible = log_probs > -np.inf
    log_probs = tf.where(is_possible, log_probs, tf.zeros_like(log_probs))
    terms = self.to_one_hot(values) * log_probs  # [m] + batch + sites + [K]
    return tf.reduce_sum(terms, axis=self.site_axes)
