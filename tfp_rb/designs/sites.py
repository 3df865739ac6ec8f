"""Atoms of the sites of a product, one site at a time."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs.atoms import Atoms
from tfp_rb.designs.integrand import Evaluation, evaluate
from tfp_rb.internal import dtypes, gradients

__all__ = ['SiteAtoms', 'SiteIntegrand', 'Sites', 'site_atoms']


class SiteAtoms(NamedTuple):
  """A joint value in which one site at a time is replaced.

  Attributes:
    values: `Tensor` of shape `[m] + batch_shape + event_shape`, where `f` is
      evaluated: group after group, and in a group of `S` sites atom `i` of
      site `s` stands at `i S + s`.
    weights: `Tensor` of shape `[m] + batch_shape`. The value of an estimate is
      the mean over all sites.
    joint: `Tensor` of shape `[1] + batch_shape + event_shape`, the joint value.
    groups: List of `Sites`.
    of_groups: List of `Atoms`, whose batch is `batch_shape + [S]`.
  """

  values: tf.Tensor
  weights: tf.Tensor
  joint: tf.Tensor
  groups: list
  of_groups: list[Atoms]

  @property
  def num_sites(self):
    """The number of sites of all groups together."""
    return sum(sites.size for sites in self.groups)


def site_atoms(joint, groups, of_groups):
  """Returns the `SiteAtoms`.

  Args:
    joint: `Tensor` of shape `[1] + batch_shape + event_shape`.
    groups: List of `Sites`.
    of_groups: List of `Atoms` of these sites.

  Returns:
    atoms: `SiteAtoms`.
  """
  pairs = list(zip(groups, of_groups, strict=True))
  num_sites = sum(sites.size for sites in groups)
  values = [
    sites.flatten(sites.substitute(joint, a.values)) for sites, a in pairs
  ]
  weights = [sites.flatten(sites.first(a.weights)) for sites, a in pairs]
  dtype = dtypes.widest(weights)
  weights = tf.concat([tf.cast(w, dtype) for w in weights], axis=0)
  return SiteAtoms(
    values=tf.concat(values, axis=0),
    weights=weights / tf.cast(num_sites, weights.dtype),
    joint=joint,
    groups=groups,
    of_groups=of_groups,
  )


def _reshape_first(x, num_dims, shape):
  """`x`, the first `num_dims` dimensions reshaped; others may be dynamic."""
  result = tf.reshape(x, tf.concat([shape, tf.shape(x)[num_dims:]], axis=0))
  return tf.ensure_shape(result, [*shape, *x.shape[num_dims:]])


class Sites:
  """A group of `S` sites: the last dimension of the batch of one factor.

  Values of sites are `[n] + batch_shape + [S] + event_shape_of_site`, joint
  values `[n] + batch_shape + event_shape`.

  Attributes:
    partition: The whole `Partition` of the sites.
    size: Python `int`, `S`.
  """

  def __init__(self, group):
    """Stores the group.

    Args:
      group: A `SiteGroup`.
    """
    self._group = group
    self.partition = group.partition
    self.size = group.partition.batch_shape[-1]
    self._batch_rank = len(group.partition.batch_shape) - 1

  def substitute(self, joint, x):
    """Joint values `[n, S] + ...` in which site `s` of `joint` is `x[:, s]`."""
    own = self._group.extract(joint)[:, tf.newaxis]  # [1, 1] + batch + [S] + ..
    own = tf.cast(own, x.dtype)
    x = x[:, tf.newaxis]
    shape = [1, self.size] + [1] * self._batch_rank + [self.size]
    shape += [1] * (x.shape.rank - len(shape))
    is_own = np.reshape(np.eye(self.size, dtype=bool), shape)
    values = self.flatten(tf.where(is_own, x, own))
    return self.unflatten(self._group.insert(joint, values))

  def flatten(self, x):
    """`[n, S] + ...` to `[n S] + ...`."""
    return _reshape_first(x, 2, [x.shape[0] * self.size])

  def unflatten(self, x):
    """`[n S] + ...` to `[n, S] + ...`."""
    return _reshape_first(x, 1, [x.shape[0] // self.size, self.size])

  def to_chunks(self, x, most_sites):
    """`[n, S] + ...` to `[N, n c] + ...`: `N` chunks of `c` sites.

    The chunks have equal size, for a loop; the last ones repeat the last site.

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


class SiteIntegrand:
  """`f` as a function of single sites, the others held at a joint value.

  Takes `[n] + batch_shape + [S] + event_shape_of_site` and returns
  `[n] + batch_shape + [S]`.
  """

  def __init__(self, f, sites, atoms, sites_per_call):
    """Stores what is held.

    Args:
      f: Callable of joint atoms.
      sites: `Sites`.
      atoms: `SiteAtoms`, the joint value and the number of sites.
      sites_per_call: Python `int`, or `None` for all sites in one call.
    """
    self.name = getattr(f, 'name', 'f')
    self._f = f
    self._sites = sites
    self._joint = atoms.joint
    self._num_sites = float(atoms.num_sites)
    self._sites_per_call = sites_per_call or sites.size

  def __call__(self, x):
    return self._apply(self._f, x)

  def evaluate(self, x):
    """Returns an `Evaluation`."""

    def stacked(values):
      return tf.stack(evaluate(self._f, values), axis=-1)

    value, signal = tf.unstack(self._apply(stacked, x), axis=-1)
    return Evaluation(value, signal)

  def _apply(self, f, x):
    sites = self._sites
    # The estimates of the sites are added up. Each site contributes its full
    # gradient w.r.t. its atoms, but only its share of the gradient w.r.t. the
    # variables of `f`, which all sites have in common.
    x = gradients.scale_gradient(x, self._num_sites)
    values = sites.substitute(self._joint, x)  # [n, S] + batch + event
    if self._sites_per_call >= sites.size:
      result = sites.unflatten(f(sites.flatten(values)))
    else:
      chunks = sites.to_chunks(values, self._sites_per_call)
      result = gradients.call_one_by_one(f, chunks)
      result = sites.from_chunks(result, x.shape[0])
    result = gradients.scale_gradient(result, 1.0 / self._num_sites)
    axis = 2 + len(sites.partition.batch_shape) - 1
    others = range(axis, result.shape.rank)
    return tf.transpose(result, [0, *range(2, axis), 1, *others])
