"""Several discrete variables, each given those before it, as one.

The best values are found by a beam: of each of the `k` best beginnings the `k`
best continuations are listed, and the `k` best of these kept. They need not be
the `k` most probable values, but any set leaves an estimator unbiased.

The rest is a disjoint union of cells, each with its later variables free: the
continuations that were listed but not kept, and for each beginning those that
were not listed. Their masses are sums of positive terms.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import dtypes, random, shapes
from tfp_rb.partitions import Partition, SiteGroup, partition_of
from tfp_rb.partitions.base import register

__all__ = ['DiscreteParts']

tfd = tfp.distributions


class DiscreteParts(tfd.Distribution):
  """Discrete parts of a joint distribution, their values in one vector.

  Vectors of integers where all parts have integer values; of the parts' dtype
  where all have that; else of `float64`, which holds them all exactly.
  """

  def __init__(self, laws, depends, laws_given, name=None):
    """Makes the distribution.

    Args:
      laws: List of distributions of the parts, all of one batch shape. Of a
        part that depends on others only the family and the shapes count.
      depends: List of Python `bool`s, whether a part depends on those before.
      laws_given: Callable, `(values, n)` to the distributions of all parts.
        `values` is a list with those of the first parts, each of shape
        `[n] + batch_shape + event_shape`. A part that depends on these has
        batch shape `[n] + batch_shape`.
      name: Python `str`, name of the distribution.
    """
    parameters = dict(locals())
    self._laws = laws
    self._laws_given = laws_given
    self.depends = depends
    self.wholes = [partition_of(law) for law in laws]
    self._static_batch_shape = laws[0].batch_shape.as_list()
    self._event_shapes = [law.event_shape.as_list() for law in laws]
    self._dtypes = [law.dtype for law in laws]
    self._offsets = np.cumsum([0, *map(shapes.size, self._event_shapes)])
    super().__init__(
      dtype=self._dtypes[0] if len(set(self._dtypes)) == 1 else tf.float64,
      reparameterization_type=tfd.NOT_REPARAMETERIZED,
      validate_args=False,
      allow_nan_stats=True,
      parameters=parameters,
      name=name or 'DiscreteParts',
    )

  @property
  def num_parts(self):
    """Number of parts."""
    return len(self._laws)

  @property
  def num_values(self):
    """Python `int`, the size of the support; `None` if unknown."""
    numbers = [whole.num_values for whole in self.wholes]
    return None if None in numbers else math.prod(numbers)

  @property
  def dtype_of_masses(self):
    """The widest dtype of the parts' masses."""
    return dtypes.widest([whole.log_rest for whole in self.wholes])

  def part_given(self, index, values, num_copies):
    """The whole partition of a part, with batch shape `[num_copies] + batch`.

    Args:
      index: Python `int`, the number of the part.
      values: List of values of the parts before it, `[num_copies] + ...`.
      num_copies: The size of their first axis.
    """
    law = self._laws[index]
    if self.depends[index]:
      law = self._laws_given(values, num_copies)[index]
    return self._with_copies(law, num_copies)

  def _with_copies(self, law, num_copies):
    shape = [num_copies, *self._static_batch_shape]
    if law.batch_shape.rank < len(shape):
      law = tfd.BatchBroadcast(law, to_shape=shape)
    return partition_of(law)

  def pack(self, parts):
    """A list of `[n] + batch_shape + event_shape` to `[n] + batch + [size]`."""
    shape = [shapes.leading(parts[0]), *self._static_batch_shape, -1]
    flat = [tf.cast(tf.reshape(x, shape), self.dtype) for x in parts]
    return tf.concat(flat, axis=-1)

  def unpack(self, values):
    """The inverse of `pack`."""
    return [
      tf.cast(
        tf.reshape(
          values[..., start:stop],
          [shapes.leading(values), *self._static_batch_shape, *event_shape],
        ),
        dtype,
      )
      for start, stop, event_shape, dtype in zip(
        self._offsets[:-1],
        self._offsets[1:],
        self._event_shapes,
        self._dtypes,
        strict=True,
      )
    ]

  def _batch_shape(self):
    return tf.TensorShape(self._static_batch_shape)

  def _batch_shape_tensor(self):
    return tf.constant(self._static_batch_shape, tf.int32)

  def _event_shape(self):
    return tf.TensorShape([self._offsets[-1]])

  def _event_shape_tensor(self):
    return tf.constant([self._offsets[-1]], tf.int32)

  def _sample_n(self, num_draws, seed=None):
    whole = partition_of(self)
    return whole.draw_rest(num_draws, tfp.random.sanitize_seed(seed))

  def _log_prob(self, values):
    parts, n = self.unpack(values), shapes.leading(values)
    laws = self._laws_given(parts, n) if any(self.depends) else self._laws
    terms = []
    for index, value in enumerate(parts):
      if self.depends[index]:
        part = self._with_copies(laws[index], n)
        term = part.log_prob(value[tf.newaxis])[0]
      else:
        term = self.wholes[index].log_prob(value)
      terms.append(tf.cast(term, self.dtype_of_masses))
    return tf.add_n(terms)


class _Cells(NamedTuple):
  """Cells of the rest that leave the beam at the same part.

  Attributes:
    log_mass: `Tensor` of shape `[cells] + batch_shape`.
    values: List of `Tensor`s `[cells] + batch_shape + event_shape`, the parts
      that are given.
    part: `Partition` of the next part, with batch shape `[cells] + batch`, of
      which only the rest is possible; `None` where that part is free.
  """

  log_mass: tf.Tensor
  values: list
  part: Partition | None


@register(DiscreteParts, kind='parts')
class Parts(Partition):
  """The best joint values of a beam, and the cells of the rest."""

  def __init__(self, q, values=None, log_mass=None, cells=None):
    """Makes the whole, unless values are given.

    Args:
      q: A `DiscreteParts`.
      values: `Tensor` of shape `[k] + batch_shape + event_shape`, or `None`.
      log_mass: `Tensor` of shape `[k] + batch_shape`, their log-masses.
      cells: List of `_Cells`.
    """
    self.distribution = q
    self._dtype = q.dtype_of_masses
    batch_shape = q.batch_shape.as_list()
    if values is None:  # the rest is everything
      values = tf.zeros([0, *batch_shape, *q.event_shape], q.dtype)
      log_mass = tf.zeros([0, *batch_shape], self._dtype)
      cells = [_Cells(tf.zeros([1, *batch_shape], self._dtype), [], None)]
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
    self._cells = cells
    self._num_uniforms_of_parts = _num_uniforms(q, cells)
    if None not in self._num_uniforms_of_parts:
      self.num_uniforms = 1 + sum(self._num_uniforms_of_parts)

  def best(self, num_summed):
    q, dtype = self.distribution, self._dtype
    if num_summed == 0:
      return Parts(q)
    log_mass = tf.zeros([1, *q.batch_shape.as_list()], dtype)
    beam, cells = [], []
    for index in range(q.num_parts):
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
    return Parts(q, q.pack(beam), log_mass, cells)

  def draw_rest(self, num_draws, seed):
    if self.num_uniforms is not None:
      return super().draw_rest(num_draws, seed)
    # A family of the user draws from seeds.
    num_parts = self.distribution.num_parts
    cell_seed, *seeds = random.split_seed(seed, n=1 + 2 * num_parts)
    return self._assemble(
      random.uniform([num_draws, *self.batch_shape], cell_seed),
      lambda index, part: part.draw_rest(1, seeds[index])[0],
      lambda index, part: part.draw_rest(num_draws, seeds[num_parts + index]),
    )

  def rest_from_uniforms(self, u):
    sizes = self._num_uniforms_of_parts
    cell, *of_parts = tf.split(u, [1, *sizes], axis=-1)

    def free(index, part):
      own = of_parts[index][..., : part.num_uniforms]
      return part.rest_from_uniforms(own[tf.newaxis])[0]

    def leaving(index, part):
      # Of the cells only one is taken, so they may share their uniforms.
      own = of_parts[index][:, tf.newaxis, ..., : part.num_uniforms]
      shape = [shapes.leading(u), *part.batch_shape, part.num_uniforms]
      return part.rest_from_uniforms(tf.broadcast_to(own, shape))

    return self._assemble(cell[..., 0], free, leaving)

  def _assemble(self, u, free, leaving):
    """Makes values of a cell, the part by which it leaves, and later parts.

    Args:
      u: `float64` `Tensor` of shape `[n] + batch_shape`, uniform: the cell.
      free: Callable, number and whole partition of a part, whose batch is
        `[n] + batch_shape`, to a draw of that shape.
      leaving: Callable, number and partition of a part, whose batch is
        `[cells] + batch_shape`, to draws `[n, cells] + batch_shape`.

    Returns:
      values: `Tensor` of shape `[n] + batch_shape + event_shape`.
    """
    q, n = self.distribution, shapes.leading(u)
    cell = _find_cell(self._cells, u)
    values = []
    for index in range(q.num_parts):
      value, start = None, 0
      if any(_is_free(group, index) for group in self._cells):
        value = free(index, q.part_given(index, values, n))
      for group in self._cells:
        size = group.log_mass.shape[0]
        own = tf.clip_by_value(cell - start, 0, size - 1)
        is_own = (cell >= start) & (cell < start + size)
        start += size
        if _is_free(group, index):
          continue
        if index < len(group.values):
          of_group = shapes.take(group.values[index], own)
        else:
          drawn = leaving(index, group.part)  # [n, cells] + ...
          drawn = tf.transpose(drawn, [1, 0, *range(2, drawn.shape.rank)])
          of_group = shapes.take(drawn, own[tf.newaxis])[0]
        if value is None:
          value = of_group
        is_own = shapes.with_event_rank(is_own, of_group)
        value = tf.where(is_own, of_group, value)
      values.append(value)
    return q.pack(values)

  def sites(self):
    q = self.distribution
    if any(q.depends):
      return []
    return [
      group
      for index, whole in enumerate(q.wholes)
      for group in _groups_of_part(q, index, whole)
    ]


def _groups_of_part(q, index, whole):
  """The sites of one part, as sites of the whole."""
  for group in whole.sites() or [_one_site(whole)]:

    def extract(joint, group=group):
      return group.extract(q.unpack(joint)[index])

    def insert(joint, values, group=group):
      parts = q.unpack(joint)
      values = group.insert(parts[index], values)
      n = shapes.leading(values)
      parts = [tf.repeat(x, n, axis=0) for x in parts]
      return q.pack([*parts[:index], values, *parts[index + 1 :]])

    yield SiteGroup(group.partition, extract, insert)


def _one_site(whole):
  """A part that is no product, as a group of one site."""
  batch_shape = [*whole.batch_shape, 1]
  law = tfd.BatchReshape(whole.distribution, batch_shape)
  axis = len(batch_shape)
  return SiteGroup(
    partition_of(law),
    extract=lambda joint: tf.expand_dims(joint, axis),
    insert=lambda joint, values: tf.squeeze(values, axis),
  )


def _extend(beam, log_mass, part, num_summed):
  """Keeps the best continuations: beam, masses, and the cells of the others."""
  num_listed, size = part.log_weights.shape[:2]
  join = lambda x: tf.reshape(
    x, tf.concat([[num_listed * size], tf.shape(x)[2:]], axis=0)
  )
  masses = join(log_mass + part.log_weights)
  rank = masses.shape.rank
  order = tf.transpose(
    tf.math.top_k(
      tf.transpose(masses, [*range(1, rank), 0]), num_listed * size
    ).indices,
    [rank - 1, *range(rank - 1)],
  )
  masses = shapes.take(masses, order)
  candidates = [shapes.take(x, order % size) for x in beam]
  candidates.append(shapes.take(join(part.values), order))
  kept = [x[:num_summed] for x in candidates]
  if num_listed * size <= num_summed:
    return kept, masses, None
  dropped = [x[num_summed:] for x in candidates]
  return kept, masses[:num_summed], _Cells(masses[num_summed:], dropped, None)


def _num_uniforms(q, cells):
  """How many uniforms each part takes at most; `None` if one takes a seed."""
  numbers = [[whole.num_uniforms] for whole in q.wholes]
  for group in cells:
    if group.part is not None:
      numbers[len(group.values)].append(group.part.num_uniforms)
  return [None if None in row else max(row) for row in numbers]


def _is_free(group, index):
  """Whether a part is drawn given the parts before, without restriction."""
  num_bound = len(group.values) + (group.part is not None)
  return index >= num_bound


def _find_cell(cells, u):
  """Numbers of cells, in proportion to their masses, for each draw and row."""
  log_mass = tf.concat([group.log_mass for group in cells], axis=0)
  largest = tf.reduce_max(log_mass, axis=0)
  is_possible = tf.math.is_finite(largest)
  largest = tf.where(is_possible, largest, tf.zeros_like(largest))
  masses = tf.exp(log_mass - largest)
  masses = tf.transpose(masses, [*range(1, masses.shape.rank), 0])
  return random.search_index(masses[tf.newaxis], u)
