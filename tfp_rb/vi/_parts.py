"""Several discrete variables, each given those before it, as one.

The best values are found by a beam: of each of the `k` best beginnings the `k`
best continuations are listed, and the `k` best of these kept. They need not be
the `k` most probable values, but any set leaves an estimator unbiased.

The rest is a disjoint union of cells, each with its later variables free: the
continuations that were listed but not kept, and for each beginning those that
were not listed. Their masses are sums of positive terms.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import random, shapes
from tfp_rb.partitions.base import Partition, partition_of, register

__all__ = ['DiscreteParts']

tfd = tfp.distributions


class DiscreteParts(tfd.Distribution):
  """Discrete parts of a joint distribution, their values in one vector.

  Vectors of integers where all parts have integer values; of the parts' dtype
  where all have that; else of `float64`, which holds them all exactly.
  """

  def __init__(self, conditional, batch_shape, event_shapes, dtypes, name=None):
    """Makes the distribution.

    Args:
      conditional: Callable, `(index, values)` to the distribution of a part
        given the values, each `[n] + batch_shape + event_shape`, of the parts
        before it; its batch shape is `[n] + batch_shape`, or only `batch_shape`
        if it does not depend on them.
      batch_shape: List of Python `int`s.
      event_shapes: List of such lists, one for each part.
      dtypes: List of `tf.DType`s, one for each part.
      name: Python `str`, name of the distribution.
    """
    parameters = dict(locals())
    self._conditional = conditional
    self._static_batch_shape = batch_shape
    self._event_shapes = event_shapes
    self._dtypes = dtypes
    self._description = None
    self._offsets = np.cumsum([0, *map(shapes.size, event_shapes)])
    super().__init__(
      dtype=dtypes[0] if len(set(dtypes)) == 1 else tf.float64,
      reparameterization_type=tfd.NOT_REPARAMETERIZED,
      validate_args=False,
      allow_nan_stats=True,
      parameters=parameters,
      name=name or 'DiscreteParts',
    )

  @property
  def num_parts(self):
    """Number of parts."""
    return len(self._dtypes)

  def describe(self):
    """The size of the support, `None` if unknown, and the dtype of masses."""
    if self._description is not None:
      return self._description
    anything = self.unpack(
      tf.zeros([1, *self._static_batch_shape, self._offsets[-1]], self.dtype)
    )
    num_values, dtypes = 1, []
    for index in range(self.num_parts):
      law = self.conditional(index, anything[:index], 1)
      part = partition_of(law)
      num_values = (
        part.num_values and num_values and num_values * part.num_values
      )
      dtypes.append(part.log_rest.dtype)
    # Kept, since each conditional is a run of the user's model.
    self._description = num_values, max(dtypes, key=lambda dtype: dtype.size)
    return self._description

  def conditional(self, index, values, num_copies):
    """The distribution of a part, with batch shape `[num_copies] + batch`."""
    part = self._conditional(index, values)
    shape = [num_copies, *self._static_batch_shape]
    if part.batch_shape.rank == len(shape):
      return part
    return tfd.BatchBroadcast(part, to_shape=shape)

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
    parts = self.unpack(values)
    num_values = shapes.leading(values)
    _, dtype = self.describe()
    terms = []
    for index, part in enumerate(parts):
      law = self.conditional(index, parts[:index], num_values)
      term = partition_of(law).log_prob(part[tf.newaxis])[0]
      terms.append(tf.cast(term, dtype))
    return tf.add_n(terms)


class _Cells(NamedTuple):
  """Cells of the rest that leave the beam at the same part.

  Attributes:
    log_mass: `Tensor` of shape `[cells] + batch_shape`.
    values: List of `Tensor`s `[cells] + batch_shape + event_shape`, the parts
      that are given.
    source: Callable `(num_draws, seed)` to values of the next part, of shape
      `[num_draws, cells] + ...`; `None` where that part is free.
  """

  log_mass: tf.Tensor
  values: list
  source: object


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
    num_values, self._dtype = q.describe()
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
      sample_rest=(lambda n, seed: _draw(q, cells, n, seed)) if cells else None,
      num_values=num_values,
    )

  def best(self, num_summed):
    q, dtype = self.distribution, self._dtype
    if num_summed == 0:
      return Parts(q)
    log_mass = tf.zeros([1, *q.batch_shape.as_list()], dtype)
    beam, cells = [], []
    for index in range(q.num_parts):
      law = q.conditional(index, beam, log_mass.shape[0])
      part = partition_of(law).best(num_summed)
      part = part.replace(
        log_weights=tf.cast(part.log_weights, dtype),
        log_rest=tf.cast(part.log_rest, dtype),
      )
      if part.has_rest:
        cells.append(_Cells(log_mass + part.log_rest, beam, part.draw_rest))
      beam, log_mass, dropped = _extend(beam, log_mass, part, num_summed)
      if dropped is not None:
        cells.append(dropped)
    return Parts(q, q.pack(beam), log_mass, cells)


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


def _draw(q, cells, num_draws, seed):
  """Draws a cell, the part by which it leaves the beam, and the later parts."""
  # All seeds at once: under XLA a generator costs seconds of compilation.
  cell_seed, *seeds = random.split_seed(seed, n=1 + len(cells) + q.num_parts)
  sizes = [group.log_mass.shape[0] for group in cells]
  cell = _draw_cell(cells, num_draws, cell_seed)
  values = []
  for index in range(q.num_parts):
    value = None
    if any(_is_free(group, index) for group in cells):
      law = q.conditional(index, values, num_draws)
      free_seed = seeds[len(cells) + index]
      value = partition_of(law).draw_rest(1, free_seed)[0]
    start = 0
    for group, size, group_seed in zip(cells, sizes, seeds, strict=False):
      own = tf.clip_by_value(cell - start, 0, size - 1)
      is_own = (cell >= start) & (cell < start + size)
      start += size
      if _is_free(group, index):
        continue
      if index < len(group.values):
        of_group = shapes.take(group.values[index], own)
      else:
        drawn = group.source(num_draws, group_seed)  # [num_draws, size] + ...
        drawn = tf.transpose(drawn, [1, 0, *range(2, drawn.shape.rank)])
        of_group = shapes.take(drawn, own[tf.newaxis])[0]
      if value is None:
        value = of_group
      is_own = shapes.with_event_rank(is_own, of_group)
      value = tf.where(is_own, of_group, value)
    values.append(value)
  return q.pack(values)


def _is_free(group, index):
  """Whether a part is drawn given the parts before, without restriction."""
  num_bound = len(group.values) + (group.source is not None)
  return index >= num_bound


def _draw_cell(cells, num_draws, seed):
  """Numbers of cells, in proportion to their masses, for each draw and row."""
  log_mass = tf.concat([group.log_mass for group in cells], axis=0)
  largest = tf.reduce_max(log_mass, axis=0)
  is_possible = tf.math.is_finite(largest)
  largest = tf.where(is_possible, largest, tf.zeros_like(largest))
  masses = tf.exp(log_mass - largest)
  masses = tf.transpose(masses, [*range(1, masses.shape.rank), 0])
  u = random.uniform([num_draws, *shapes.as_list(largest)], seed)
  return random.search_index(masses[tf.newaxis], u)
