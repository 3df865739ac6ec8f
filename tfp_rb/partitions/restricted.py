# SPDX-License-Identifier: Apache-2.0
"""Defines partitions that sum values other than the best ones."""

import numpy as np
import tensorflow as tf

from tfp_rb.internal import random, shapes
from tfp_rb.internal.types import StatelessSeed
from tfp_rb.partitions.base import Partition

__all__ = ['Listed', 'Truncated']


class Listed(Partition):
  """Excludes given values, and draws the rest from a list of the support."""

  num_uniforms = 1

  def __init__(self, every: Partition, values: tf.Tensor) -> None:
    batch_rank = every.log_rest.shape.rank
    equal = tf.equal(values[:, tf.newaxis], every.values[tf.newaxis])
    # Compare whole events.
    equal = tf.reduce_all(
      equal, axis=list(range(2 + batch_rank, equal.shape.rank))
    )  # [n, num_values] + batch_shape
    masses = every.weights  # [num_values] + batch_shape
    self._masses = tf.where(
      tf.reduce_any(equal, axis=0), tf.zeros_like(masses), masses
    )
    # A long sum in float32 would be wrong in the fourth digit.
    rest = tf.reduce_sum(tf.cast(self._masses, tf.float64), axis=0)
    self._every = every
    self.distribution = every.distribution
    index = tf.argmax(tf.cast(equal, tf.int32), axis=1, output_type=tf.int32)
    # Take the listed copies: the gradient w.r.t. a shift passes through them,
    # and a value outside the support has no `log_prob`.
    values = shapes.take(every.values, index)
    super().__init__(
      values=values,
      log_weights=tf.where(
        tf.reduce_any(equal, axis=1),
        tf.stop_gradient(every.log_prob(values)),
        tf.constant(-np.inf, every.log_weights.dtype),
      ),
      log_rest=tf.cast(tf.math.log(rest), masses.dtype),
      sample_rest=None,
      num_values=every.num_values,
    )
    self.has_rest = True

  def rest_from_uniforms(self, u: tf.Tensor) -> tf.Tensor:
    rank = self.log_rest.shape.rank
    # The search runs along the last axis of `batch_shape + [num_values]`.
    rows = tf.transpose(self._masses, [*range(1, rank + 1), 0])
    index = random.search_index(rows[tf.newaxis], u[..., 0])
    return shapes.take(self._every.values, index)

  def _log_prob(self, values: tf.Tensor) -> tf.Tensor:
    return self._every.log_prob(values)

  def nearest(self, values: tf.Tensor) -> tf.Tensor:
    return self._every.nearest(values)

  def score_norm(self, values: tf.Tensor) -> tf.Tensor:
    return self._every.score_norm(values)

  def best(self, num_summed: int) -> 'Partition':
    return self._every.best(num_summed)

  def excluding(self, values: tf.Tensor) -> 'Partition':
    return Listed(self._every, values)


class Truncated(Partition):
  """Sums only the first values of a partition; the number varies by row."""

  def __init__(self, longer: Partition, num_summed: tf.Tensor) -> None:
    self._longer = longer
    self.distribution = longer.distribution
    weights = longer.weights
    slots = tf.reshape(
      tf.range(weights.shape[0]), [-1] + [1] * (weights.shape.rank - 1)
    )
    is_summed = slots < num_summed  # [k] + batch_shape
    nothing = tf.zeros_like(weights)
    # The rest holds the listed values that are not summed, and as its last
    # entry all values that are not listed.
    self._masses = tf.concat(
      [
        tf.where(is_summed, nothing, weights),
        longer.rest_weight[tf.newaxis],
      ],
      axis=0,
    )
    self._num_listed = weights.shape[0]
    # The first uniform chooses an entry of `_masses`.
    if longer.num_uniforms is not None:
      self.num_uniforms = 1 + longer.num_uniforms
    super().__init__(
      values=longer.values,
      log_weights=tf.where(
        is_summed, longer.log_weights, tf.constant(-np.inf, weights.dtype)
      ),
      log_rest=tf.math.log(tf.reduce_sum(self._masses, axis=0)),
      sample_rest=None,
      num_values=longer.num_values,
    )
    self.has_rest = longer.has_rest

  def draw_rest(self, num_draws: int, seed: StatelessSeed) -> tf.Tensor:
    if self.num_uniforms is not None:
      return super().draw_rest(num_draws, seed)
    choice_seed, rest_seed = random.split_seed(seed, n=2)
    u = random.uniform([num_draws, *self.batch_shape], choice_seed)
    return self._choose(u, self._longer.draw_rest(num_draws, rest_seed))

  def rest_from_uniforms(self, u: tf.Tensor) -> tf.Tensor:
    return self._choose(u[..., 0], self._longer.rest_from_uniforms(u[..., 1:]))

  def _choose(self, u: tf.Tensor, unlisted: tf.Tensor) -> tf.Tensor:
    """Chooses a listed value, or the given unlisted draw."""
    rank = self.log_rest.shape.rank
    masses = tf.transpose(self._masses, [*range(1, rank + 1), 0])
    index = random.search_index(masses[tf.newaxis], u)
    # The index `num_listed` stands for the unlisted value and must not be
    # gathered.
    listed = shapes.take(self.values, tf.minimum(index, self._num_listed - 1))
    is_listed = shapes.with_event_rank(index < self._num_listed, listed)
    return tf.where(is_listed, listed, unlisted)

  def _log_prob(self, values: tf.Tensor) -> tf.Tensor:
    return self._longer.log_prob(values)
