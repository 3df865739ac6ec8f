"""Atoms of the sites of a product, one site at a time."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs.atoms import Atoms
from tfp_rb.internal import shapes
from tfp_rb.partitions import Partition

__all__ = ['SiteAtoms', 'Sites']


class SiteAtoms(NamedTuple):
  """A joint value in which one site at a time is replaced.

  Attributes:
    values: `Tensor` of shape `[n S] + batch_shape + event_shape`, where `f` is
      evaluated: atom `i` of site `s` stands at `i S + s`.
    weights: `Tensor` of shape `[n S] + batch_shape`. The value of an estimate
      is the mean over the sites, so the weights of a site sum to `1 / S`.
    joint: `Tensor` of shape `[1] + batch_shape + event_shape`, the joint value.
    of_sites: `Atoms` of the sites, whose batch is `batch_shape + [S]`.
    whole: The whole `Partition` of the product.
  """

  values: tf.Tensor
  weights: tf.Tensor
  joint: tf.Tensor
  of_sites: Atoms
  whole: Partition

  @property
  def num_summed(self):
    """How many atoms are summed, not drawn."""
    return self.of_sites.num_summed * (
      self.weights.shape[0] // self.of_sites.weights.shape[0]
    )


def _reshape_first(x, num_dims, shape):
  """`x`, the first `num_dims` dimensions reshaped; others may be dynamic."""
  result = tf.reshape(x, tf.concat([shape, tf.shape(x)[num_dims:]], axis=0))
  return tf.ensure_shape(result, [*shape, *x.shape[num_dims:]])


class Sites:
  """A product as its sites: the last dimension of the batch of one factor.

  `S` is their number. Beside the sites, values are `[n] + batch + [S] + event`,
  with the event of a site; joint values `[n] + batch_shape + event_shape`.
  """

  def __init__(self, whole):
    self._whole = whole
    self.partition = whole.sites()
    if self.partition is None:
      raise TypeError(
        '`distribution` must be a product for `local_expectation`, '
        f'`tfd.Independent` or `tfd.Sample`; got `{whole.name}`. Use '
        '`tfp_rb.rao_blackwellize`.'
      )
    batch_shape = whole.batch_shape
    self.size = self.partition.batch_shape[-1]
    self._batch_rank = len(batch_shape)
    event = shapes.event_shape(whole.distribution)
    own = shapes.as_list(self.partition.values)[2 + self._batch_rank :]
    self._joint = [*batch_shape, *event]
    self._by_site = [*batch_shape, self.size, *own]

  def atoms_of(self, joint, of_sites):
    """Returns the `SiteAtoms`."""
    weights = self.flatten(self.first(of_sites.weights))
    return SiteAtoms(
      values=self.flatten(self.substitute(joint, of_sites.values)),
      weights=weights / tf.cast(self.size, weights.dtype),
      joint=joint,
      of_sites=of_sites,
      whole=self._whole,
    )

  def substitute(self, joint, x):
    """Joint values `[n, S] + ...` in which site `s` of `joint` is `x[:, s]`."""
    joint = tf.cast(tf.reshape(joint, [1, 1, *self._by_site]), x.dtype)
    x = x[:, tf.newaxis]
    shape = [1, self.size] + [1] * self._batch_rank + [self.size]
    shape += [1] * (x.shape.rank - len(shape))
    is_own = np.reshape(np.eye(self.size, dtype=bool), shape)
    values = tf.where(is_own, x, joint)
    return tf.reshape(values, [values.shape[0], self.size, *self._joint])

  def flatten(self, x):
    """`[n, S] + ...` to `[n S] + ...`."""
    return _reshape_first(x, 2, [x.shape[0] * self.size])

  def unflatten(self, x):
    """`[n S] + ...` to `[n, S] + ...`."""
    return _reshape_first(x, 1, [x.shape[0] // self.size, self.size])

  def to_chunks(self, x, most_sites):
    """`[n, S] + ...` to `[N, n c] + ...`: `N` chunks of `c` sites.

    Of equal size, for a loop; the last ones repeat the last site.

    Args:
      x: `Tensor`.
      most_sites: Python `int`, the most sites of a chunk.

    Returns:
      chunks: `Tensor`.
    """
    num_chunks = -(-self.size // most_sites)
    num_sites = -(-self.size // num_chunks)
    num_missing = num_chunks * num_sites - self.size
    x = tf.concat([x] + [x[:, -1:]] * num_missing, axis=1)
    x = _reshape_first(x, 2, [x.shape[0], num_chunks, num_sites])
    x = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])
    return _reshape_first(x, 3, [num_chunks, x.shape[1] * num_sites])

  def from_chunks(self, x, num_atoms):
    """The inverse of `to_chunks`."""
    num_sites = x.shape[1] // num_atoms
    x = _reshape_first(x, 2, [x.shape[0], num_atoms, num_sites])
    x = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])
    x = _reshape_first(x, 3, [num_atoms, x.shape[1] * num_sites])
    return x[:, : self.size]

  def first(self, x):
    """`[n] + batch_shape + [S]` to `[n, S] + batch_shape`."""
    rank = x.shape.rank
    return tf.transpose(x, [0, rank - 1, *range(1, rank - 1)])

  def last(self, x):
    """The inverse of `first`."""
    rank = x.shape.rank
    return tf.transpose(x, [0, *range(2, rank), 1])
