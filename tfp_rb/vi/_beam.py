# SPDX-License-Identifier: Apache-2.0
"""Partitions several discrete variables, each given the previous ones.

A beam search finds the best values: it lists the `k` best continuations of each
of the `k` best beginnings, and keeps the `k` best of these. The result may miss
some of the `k` most probable values, but an estimator is unbiased with any set.

The rest is a disjoint union of cells. A cell fixes the first variables and
leaves the later ones free. There is one cell for each continuation that was
listed but not kept, and one for each beginning with the continuations that were
not listed. The masses of the cells are sums of positive terms.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import random, shapes
from tfp_rb.internal.types import StatelessSeed
from tfp_rb.partitions import Partition, SiteGroup, partition_of
from tfp_rb.partitions.registry import register
from tfp_rb.vi._discrete import DiscreteParts

__all__ = ['Parts']

tfd = tfp.distributions

# Maps the number of a part and its partition to draws.
_Draw: TypeAlias = Callable[[int, Partition], tf.Tensor]


class _Cells(NamedTuple):
  """Holds cells of the rest that leave the beam at the same part.

  Attributes:
    log_mass: `Tensor` of shape `[cells] + batch_shape`.
    values: List of `Tensor`s `[cells] + batch_shape + event_shape`, the parts
      that are fixed.
    part: `Partition` of the next part, with batch shape `[cells] + batch`. In
      these cells, the part takes values of its rest only. `None` if that part
      is free.
  """

  log_mass: tf.Tensor
  values: list[tf.Tensor]
  part: Partition | None


class _Listed(NamedTuple):
  """Holds joint values with their log-masses, and the cells of all others.

  Attributes:
    values: `Tensor` of shape `[k] + batch_shape + event_shape`.
    log_mass: `Tensor` of shape `[k] + batch_shape`.
    cells: List of `_Cells`.
  """

  values: tf.Tensor
  log_mass: tf.Tensor
  cells: list[_Cells]


def _nothing_listed(q: DiscreteParts) -> _Listed:
  """Returns no values, and one cell in which all parts are free."""
  batch_shape, dtype = q.batch_shape.as_list(), q.dtype_of_masses
  return _Listed(
    tf.zeros([0, *batch_shape, *q.event_shape], q.dtype),
    tf.zeros([0, *batch_shape], dtype),
    [_Cells(tf.zeros([1, *batch_shape], dtype), [], None)],
  )


@register(DiscreteParts, kind='parts')
class Parts(Partition):
  """Holds the best joint values of a beam search, and the cells of the rest."""

  def __init__(self, q: DiscreteParts, listed: _Listed | None = None) -> None:
    """Makes a partition.

    Args:
      q: A `DiscreteParts`.
      listed: The values that are summed. `None` makes the whole partition.
    """
    self.distribution = self._q = q
    self._dtype = q.dtype_of_masses
    batch_shape = q.batch_shape.as_list()
    values, log_mass, cells = listed or _nothing_listed(q)
    log_rest = tf.fill(batch_shape, tf.constant(-np.inf, self._dtype))
    if cells:
      log_cells = tf.concat([cell.log_mass for cell in cells], axis=0)
      log_rest = tf.reduce_logsumexp(log_cells, axis=0)
    super().__init__(
      values=values,
      log_weights=tf.stop_gradient(log_mass),
      log_rest=tf.stop_gradient(log_rest),
      sample_rest=None,
      num_values=q.num_values,
    )
    self.has_rest = bool(cells)
    self.num_sites = sum(whole.num_sites or 1 for whole in q.wholes)
    self._cells = cells
    self._num_uniforms_of_parts = _num_uniforms(q, cells)
    if self._num_uniforms_of_parts:
      # One more uniform chooses the cell.
      self.num_uniforms = 1 + sum(self._num_uniforms_of_parts)

  def best(self, num_summed: int) -> 'Parts':
    q, dtype = self._q, self._dtype
    if num_summed == 0:
      return Parts(q)
    # The beam starts with one empty beginning of mass 1.
    log_mass = tf.zeros([1, *q.batch_shape.as_list()], dtype)
    beam: list[tf.Tensor] = []
    cells: list[_Cells] = []
    for index in range(q.num_parts):
      # The batch of the part is [beam] + batch_shape.
      part = q.part_given(index, beam, log_mass.shape[0]).best(num_summed)
      part = part.replace(
        log_weights=tf.cast(part.log_weights, dtype),
        log_rest=tf.cast(part.log_rest, dtype),
      )
      if part.has_rest:
        cells.append(_Cells(log_mass + part.log_rest, beam, part))
      beam, log_mass, dropped = _extend(beam, log_mass, part, num_summed)
      if dropped is not None:
        cells.append(dropped)
    return Parts(q, _Listed(q.pack(beam), log_mass, cells))

  def draw_rest(self, num_draws: int, seed: StatelessSeed) -> tf.Tensor:
    if self.num_uniforms is not None:
      return super().draw_rest(num_draws, seed)
    # A user's partition draws from seeds, not from uniforms.
    num_parts = self._q.num_parts
    cell_seed, *seeds = random.split_seed(seed, n=1 + 2 * num_parts)
    return self._assemble(
      random.uniform([num_draws, *self.batch_shape], cell_seed),
      lambda index, part: part.draw_rest(1, seeds[index])[0],
      lambda index, part: part.draw_rest(num_draws, seeds[num_parts + index]),
    )

  def rest_from_uniforms(self, u: tf.Tensor) -> tf.Tensor:
    sizes = self._num_uniforms_of_parts
    cell, *of_parts = tf.split(u, [1, *sizes], axis=-1)

    # A part may need fewer uniforms than are reserved for it.
    def free(index: int, part: Partition) -> tf.Tensor:
      own = of_parts[index][..., : part.num_uniforms]
      return part.rest_from_uniforms(own[tf.newaxis])[0]

    def leaving(index: int, part: Partition) -> tf.Tensor:
      # Only one of the cells is taken, so they can share their uniforms.
      own = of_parts[index][:, tf.newaxis, ..., : part.num_uniforms]
      shape = [shapes.leading(u), *part.batch_shape, part.num_uniforms]
      return part.rest_from_uniforms(tf.broadcast_to(own, shape))

    return self._assemble(cell[..., 0], free, leaving)

  def _assemble(self, u: tf.Tensor, free: _Draw, leaving: _Draw) -> tf.Tensor:
    """Draws a cell, the part at which it leaves the beam, and the later parts.

    Args:
      u: `float64` `Tensor` of shape `[n] + batch_shape`, uniforms that choose
        the cell.
      free: Callable that maps the number and the whole partition of a part,
        with batch shape `[n] + batch_shape`, to a draw of that shape.
      leaving: Callable that maps the number and the partition of a part, with
        batch shape `[cells] + batch_shape`, to draws of shape
        `[n, cells] + batch_shape`.

    Returns:
      values: `Tensor` of shape `[n] + batch_shape + event_shape`.
    """
    q, n = self._q, shapes.leading(u)
    cell = _find_cell(self._cells, u)  # [n] + batch_shape
    values: list[tf.Tensor] = []
    for index in range(q.num_parts):
      value, start = None, 0
      if any(_is_free(group, index) for group in self._cells):
        value = free(index, q.part_given(index, values, n))
      # Each group of cells overwrites the draws that fell into its cells.
      for group in self._cells:
        size = group.log_mass.shape[0]
        own = tf.clip_by_value(cell - start, 0, size - 1)
        is_own = (cell >= start) & (cell < start + size)
        start += size
        if _is_free(group, index):
          continue
        of_group = _part_of_cells(group, index, own, leaving)
        if value is None:
          value = of_group
        is_own = shapes.with_event_rank(is_own, of_group)
        value = tf.where(is_own, of_group, value)
      values.append(value)
    return q.pack(values)

  def sites(self) -> list[SiteGroup]:
    q = self._q
    if any(q.depends):
      return []
    return [
      group
      for index, whole in enumerate(q.wholes)
      for group in _groups_of_part(q, index, whole)
    ]


def _part_of_cells(
  group: _Cells, index: int, own: tf.Tensor, leaving: _Draw
) -> tf.Tensor:
  """Returns the value of a part that is not free, in the cells of the draws.

  Args:
    group: `_Cells`.
    index: Python `int`, the number of the part.
    own: `int32` `Tensor` of shape `[n] + batch_shape`, the cell of each draw.
    leaving: As in `_assemble`.

  Returns:
    value: `Tensor` of shape `[n] + batch_shape + event_shape`.
  """
  if group.part is None or index < len(group.values):
    return shapes.take(group.values[index], own)
  drawn = leaving(index, group.part)  # [n, cells] + batch_shape + event_shape
  drawn = tf.transpose(drawn, [1, 0, *range(2, drawn.shape.rank)])
  return shapes.take(drawn, own[tf.newaxis])[0]


def _groups_of_part(
  q: DiscreteParts, index: int, whole: Partition
) -> Iterator[SiteGroup]:
  """Yields the sites of one part as sites of the whole."""
  for group in whole.sites() or [_one_site(whole)]:
    # Default arguments bind the group of this iteration.
    def extract(joint: tf.Tensor, group: SiteGroup = group) -> tf.Tensor:
      return group.extract(q.unpack(joint)[index])

    def insert(
      joint: tf.Tensor, values: tf.Tensor, group: SiteGroup = group
    ) -> tf.Tensor:
      parts = q.unpack(joint)
      values = group.insert(parts[index], values)
      n = shapes.leading(values)
      # The joint value has a first axis of size 1.
      parts = [tf.repeat(x, n, axis=0) for x in parts]
      return q.pack([*parts[:index], values, *parts[index + 1 :]])

    yield SiteGroup(group.partition, extract, insert)


def _one_site(whole: Partition) -> SiteGroup:
  """Returns a part that is not a product as a group of one site."""
  batch_shape = [*whole.batch_shape, 1]
  law = tfd.BatchReshape(whole.distribution, batch_shape)
  axis = len(batch_shape)
  return SiteGroup(
    partition_of(law),
    extract=lambda joint: tf.expand_dims(joint, axis),
    insert=lambda joint, values: tf.squeeze(values, axis),
  )


def _extend(
  beam: list[tf.Tensor], log_mass: tf.Tensor, part: Partition, num_summed: int
) -> tuple[list[tf.Tensor], tf.Tensor, _Cells | None]:
  """Extends the beam by one part and keeps the best continuations.

  Args:
    beam: List of `Tensor`s `[beam] + batch_shape + event_shape`.
    log_mass: `Tensor` of shape `[beam] + batch_shape`.
    part: `Partition` of the next part, with batch shape `[beam] + batch_shape`.
    num_summed: Python `int`, the number of continuations to keep.

  Returns:
    beam: List that is longer by one part.
    log_mass: `Tensor` of shape `[new beam] + batch_shape`.
    dropped: `_Cells` of the listed continuations that are not kept, or `None`.
  """
  num_listed, size = part.log_weights.shape[:2]

  def join(x: tf.Tensor) -> tf.Tensor:  # [listed, beam] + ... to [n] + ...
    shape = tf.concat([[num_listed * size], tf.shape(x)[2:]], axis=0)
    return tf.reshape(x, shape)

  masses = join(log_mass + part.log_weights)
  rank = masses.shape.rank
  # All continuations, the most probable first, [n] + batch_shape.
  order = tf.transpose(
    tf.math.top_k(
      tf.transpose(masses, [*range(1, rank), 0]), num_listed * size
    ).indices,
    [rank - 1, *range(rank - 1)],
  )
  masses = shapes.take(masses, order)
  # Continuation `i size + j` extends beginning `j`.
  candidates = [shapes.take(x, order % size) for x in beam]
  candidates.append(shapes.take(join(part.values), order))
  kept = [x[:num_summed] for x in candidates]
  if num_listed * size <= num_summed:
    return kept, masses, None
  dropped = [x[num_summed:] for x in candidates]
  return kept, masses[:num_summed], _Cells(masses[num_summed:], dropped, None)


def _num_uniforms(q: DiscreteParts, cells: list[_Cells]) -> list[int]:
  """Returns the number of uniforms of each part; `[]` if one needs a seed."""
  numbers = [[whole.num_uniforms] for whole in q.wholes]
  for group in cells:
    if group.part is not None:
      numbers[len(group.values)].append(group.part.num_uniforms)
  known = [[n for n in row if n is not None] for row in numbers]
  return [max(row) for row in known] if known == numbers else []


def _is_free(group: _Cells, index: int) -> bool:
  """Returns whether a part is free: drawn given only the previous parts."""
  num_bound = len(group.values) + (group.part is not None)
  return index >= num_bound


def _find_cell(cells: list[_Cells], u: tf.Tensor) -> tf.Tensor:
  """Returns a cell for each uniform, with probabilities given by the masses."""
  log_mass = tf.concat([group.log_mass for group in cells], axis=0)
  # Divide by the largest mass, so that not all masses underflow.
  largest = tf.reduce_max(log_mass, axis=0)
  is_possible = tf.math.is_finite(largest)
  largest = tf.where(is_possible, largest, tf.zeros_like(largest))
  masses = tf.exp(log_mass - largest)
  masses = tf.transpose(masses, [*range(1, masses.shape.rank), 0])
  return random.search_index(masses[tf.newaxis], u)
