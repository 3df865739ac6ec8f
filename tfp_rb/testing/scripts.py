# SPDX-License-Identifier: Apache-2.0
"""Reads the draws of a partition from a script instead of making them."""

import math
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_rb.internal import shapes
from tfp_rb.internal.types import StatelessSeed
from tfp_rb.partitions import Partition, SiteGroup

__all__ = ['Counter', 'NotEnumerableError', 'Script', 'Scripted']


def _select(table: tf.Tensor, index: tf.Tensor, site_axis: int) -> tf.Tensor:
  """Takes `table[index[t, s, j], t, ..., s]`.

  Args:
    table: `Tensor` of shape `[K, T] + batch_shape + [S] + event_shape`.
    index: `Tensor` of shape `[T, S, draws]`.
    site_axis: Python `int`, the axis of the `S` sites.

  Returns:
    taken: `Tensor` of shape `[draws, T] + batch_shape + [S] + event_shape`.
  """
  others = [i for i in range(2, table.shape.rank) if i != site_axis]
  order = [1, site_axis, 0, *others]  # [T, S, K, ...]
  taken = tf.gather(tf.transpose(table, order), index, batch_dims=2)
  return tf.transpose(taken, np.argsort(order))


def _law_of_rest(every: Partition, part: Partition) -> tf.Tensor:
  """Returns the probability of each value, given that no summed value is drawn.

  Args:
    every: `Partition` that lists all `K` values.
    part: `Partition` of the same distribution, from which draws are made.

  Returns:
    law: `Tensor` of shape `[K] + batch_shape`.
  """
  batch_rank = part.log_rest.shape.rank
  equal = every.values[:, tf.newaxis] == part.values[tf.newaxis]
  equal = tf.reduce_all(
    equal, axis=list(range(2 + batch_rank, equal.shape.rank))
  )  # [K, k] + batch_shape
  # A listed value of weight 0 is impossible or repeated, and is not summed.
  is_summed = part.log_weights > -np.inf
  summed = tf.reduce_any(equal & is_summed, axis=1)
  masses = tf.where(summed, tf.zeros_like(every.weights), every.weights)
  total = tf.reduce_sum(masses, axis=0)
  # Draws from an empty rest have weight 0, so their distribution does not
  # matter.
  masses = tf.where(total > 0.0, masses, every.weights)
  return masses / tf.reduce_sum(masses, axis=0)


class NotEnumerableError(Exception):
  """Raised when the draws of an estimator cannot be enumerated one by one."""


class Counter:
  """Counts the draws that an estimator makes, and makes them at random."""

  def __init__(self, batch_rank: int) -> None:
    self._batch_rank = batch_rank
    self.num_values: list[int] = []  # one entry for each draw

  def draw(self, scripted: 'Scripted', num_draws: int) -> tf.Tensor:
    sites = scripted.inner.batch_shape[self._batch_rank :]
    num_values = [scripted.num_values] * (math.prod(sites) * num_draws)
    self.num_values.extend(num_values)
    # The estimate is discarded, so the seed does not matter.
    return scripted.inner.draw_rest(num_draws, tf.constant([0, 0]))


class Script:
  """Reads draws from a table of outcomes, and stores their probabilities."""

  def __init__(self, index: tf.Tensor, batch_rank: int) -> None:
    """Stores the outcomes.

    Args:
      index: `int32` `Tensor` of shape `[T, draws]`, the number of each drawn
        value.
      batch_rank: Python `int`, the rank of the batch without outcomes.
    """
    self._index = index
    self._batch_rank = batch_rank
    self._first = 0  # the first draw that is not read yet
    self.probabilities: float | tf.Tensor = 1.0  # [T] + batch_shape

  def draw(self, scripted: 'Scripted', num_draws: int) -> tf.Tensor:
    part = scripted.inner
    every = scripted.whole.best(scripted.num_values)
    # Sites, if any, follow the values, the outcomes and the batch.
    site_axis = 2 + self._batch_rank
    has_sites = part.log_rest.shape.rank > 1 + self._batch_rank
    num_sites = part.batch_shape[-1] if has_sites else 1
    stop = self._first + num_sites * num_draws
    chosen = tf.reshape(
      self._index[:, self._first : stop], [-1, num_sites, num_draws]
    )
    self._first = stop

    def select(table: tf.Tensor) -> tf.Tensor:
      if has_sites:
        return _select(table, chosen, site_axis)
      taken = _select(tf.expand_dims(table, site_axis), chosen, site_axis)
      return tf.squeeze(taken, site_axis)

    law = _law_of_rest(every, part)  # [K, T] + batch_shape (+ [S])
    chances, values = select(law), select(every.values)
    over = [0, site_axis] if has_sites else [0]
    self.probabilities *= tf.reduce_prod(chances, axis=over)
    # No sampler draws an impossible value, and `f` may be NaN there.
    likeliest = tf.argmax(law, axis=0, output_type=tf.int32)
    return tf.where(
      shapes.with_event_rank(chances > 0.0, values),
      values,
      shapes.take(every.values, likeliest[tf.newaxis]),
    )


class Scripted:
  """Acts as a partition whose draws are read from a script.

  Partitions that are made from it read from the same script, in the order in
  which the estimator draws.
  """

  # A script is read once and in order, so a search must not become a branch.
  is_search_costly = False

  def __init__(
    self, inner: Partition, whole: Partition, script: Counter | Script
  ) -> None:
    if whole.num_values is None:
      raise NotEnumerableError
    self.inner = inner
    self.whole = whole
    self.num_values = whole.num_values
    self._script = script

  def __getattr__(self, name: str) -> Any:
    return getattr(self.inner, name)

  def _around(self, inner: Partition) -> 'Scripted':
    return Scripted(inner, self.whole, self._script)

  def replace(self, **changes: Any) -> 'Scripted':
    return self._around(self.inner.replace(**changes))

  def best(self, num_summed: int) -> 'Scripted':
    return self._around(self.inner.best(num_summed))

  def excluding(self, values: tf.Tensor) -> 'Scripted':
    return self._around(self.inner.excluding(values))

  def truncated(self, num_summed: tf.Tensor) -> 'Scripted':
    return self._around(self.inner.truncated(num_summed))

  def sites(self) -> list[SiteGroup]:
    return self._scripted(self.inner.sites())

  def conditional_sites(self, joint: tf.Tensor) -> list[SiteGroup]:
    return self._scripted(self.inner.conditional_sites(joint))

  def _scripted(self, groups: list[SiteGroup]) -> list[SiteGroup]:
    def scripted(part: Partition) -> Any:
      return Scripted(part, part, self._script)

    return [
      group._replace(partition=scripted(group.partition)) for group in groups
    ]

  def draw_rest(self, num_draws: int, seed: StatelessSeed) -> tf.Tensor:
    del seed
    return self._script.draw(self, num_draws)

  @property
  def num_uniforms(self) -> int:
    # A sampler that reads this makes its own uniforms, which may be dependent.
    raise NotEnumerableError
