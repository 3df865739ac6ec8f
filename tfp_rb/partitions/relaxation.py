"""Distributions as sites of one-hot vectors, for estimators that relax them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf

__all__ = ['Relaxation']


class Relaxation(NamedTuple):
  """A distribution as sites of one-hot vectors.

  Attributes:
    dtype: Dtype of the logits, in which `f` is handed its atoms.
    log_probs: Differentiable `Tensor` of shape `batch_shape + sites + [K]`,
      normalised, at least float32.
    num_sites: Python `int`, the rank of `sites`.
    to_one_hot: Callable, atoms of the distribution to one-hot vectors of shape
      `[m] + batch_shape + sites + [K]` in the dtype of `log_probs`; linear, so
      that points between the atoms have vectors, too.
    to_event: Callable, vectors of that shape to what `f` takes, in `dtype`.
  """

  dtype: tf.DType
  log_probs: tf.Tensor
  num_sites: int
  to_one_hot: Callable[[tf.Tensor], tf.Tensor]
  to_event: Callable[[tf.Tensor], tf.Tensor]

  @property
  def site_axes(self) -> list[int]:
    """Axes of the sites and of the classes."""
    return list(range(-1 - self.num_sites, 0))

  def center(self) -> tf.Tensor:
    """The mean of the uniform distribution, `batch_shape + event_shape`."""
    uniform = tf.ones_like(self.log_probs) / self.log_probs.shape[-1]
    return self.to_event(uniform)

  def log_prob_between(self, values: tf.Tensor) -> tf.Tensor:
    """`log q` of atoms and of points between them, linear in their vectors.

    Args:
      values: `Tensor`, what `f` takes.

    Returns:
      log_prob: `Tensor` of shape `[m] + batch_shape`; by `values` it is
        differentiable, by the parameters it is a constant.
    """
    log_probs = tf.stop_gradient(self.log_probs)
    is_possible = log_probs > -np.inf
    log_probs = tf.where(is_possible, log_probs, tf.zeros_like(log_probs))
    terms = self.to_one_hot(values) * log_probs
    return tf.reduce_sum(terms, axis=self.site_axes)
