# SPDX-License-Identifier: Apache-2.0
"""Defines atoms that change one site of a product at a time."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs.atoms import Atoms
from tfp_rb.designs.samplers import IID, Draws, Sampler
from tfp_rb.internal import dtypes, shapes
from tfp_rb.internal.types import Distribution, StatelessSeed
from tfp_rb.partitions import Partition, SiteGroup

__all__ = [
  'JointFirst',
  'SiteAtoms',
  'Sites',
  'every_site_atom',
  'reshape_first',
  'shared_atoms',
  'with_joint',
]


class SiteAtoms(NamedTuple):
  """Holds a joint value, and copies that differ from it at one site each.

  Attributes:
    values: `Tensor` of shape `[m] + batch_shape + event_shape`, the points at
      which `f` is evaluated. If the joint value is shared, it comes first. The
      values of each group follow those of the group before. In a group of `S`
      sites, value `i` of site `s` has index `i S + s`.
    weights: `Tensor` of shape `[m] + batch_shape`. The value of an estimate is
      the mean over all sites.
    joint: `Tensor` of shape `[1] + batch_shape + event_shape`, the joint value.
    groups: List of `Sites`.
    of_groups: List of `Atoms`, one for each group, with the batch
      `batch_shape + [S]`.
    shared: List of `int32` `Tensor`s of shape `[1] + batch_shape + [S]`, one
      for each group: the index of the atom of a site that is the joint value.
      `values` does not repeat this atom for the site. `None` if `values` lists
      all atoms of every site.
  """

  values: tf.Tensor
  weights: tf.Tensor
  joint: tf.Tensor
  groups: list['Sites']
  of_groups: list[Atoms]
  shared: list[tf.Tensor] | None = None

  @property
  def num_sites(self) -> int:
    """The number of sites in all groups."""
    return sum(sites.size for sites in self.groups)

  @property
  def num_at_site(self) -> int:
    """The largest number of atoms of a site."""
    return max(a.values.shape[0] for a in self.of_groups)


def every_site_atom(
  joint: tf.Tensor, groups: list['Sites'], of_groups: list[Atoms]
) -> SiteAtoms:
  """Returns the `SiteAtoms` that list all atoms of every site.

  Args:
    joint: `Tensor` of shape `[1] + batch_shape + event_shape`.
    groups: List of `Sites`.
    of_groups: List of `Atoms` of these sites.

  Returns:
    atoms: `SiteAtoms`.
  """
  pairs = list(zip(groups, of_groups, strict=True))
  values = [sites.points(joint, a.values) for sites, a in pairs]
  weights = [sites.flatten(sites.first(a.weights)) for sites, a in pairs]
  return _site_atoms(values, weights, joint, groups, of_groups)


def shared_atoms(
  joint: tf.Tensor, groups: list['Sites'], of_groups: list[Atoms]
) -> SiteAtoms:
  """Returns the `SiteAtoms` in which all sites share the joint value.

  At each site, one atom is the symbol that the site has in the joint value.
  This atom is the joint value itself, so `f` is evaluated there only once for
  all sites.

  Args:
    joint: `Tensor` of shape `[1] + batch_shape + event_shape`.
    groups: List of `Sites`.
    of_groups: List of `Atoms` of these sites, drawn with `JointFirst`.

  Returns:
    atoms: `SiteAtoms`.
  """
  values, weights, shared = [joint], [], []
  of_joint = []
  for sites, atoms in zip(groups, of_groups, strict=True):
    index = sites.index_of(joint, atoms.values)
    shared.append(index)
    values.append(sites.points(joint, _without(atoms.values, index)))
    others = _without(atoms.weights, index)
    weights.append(sites.flatten(sites.first(others)))
    is_shared = tf.equal(_counter(atoms.weights.shape[0], index), index)
    own = tf.where(is_shared, atoms.weights, tf.zeros_like(atoms.weights))
    of_joint.append(tf.reduce_sum(own, axis=[0, -1]))
  dtype = dtypes.widest(of_joint)
  total = tf.add_n([tf.cast(w, dtype) for w in of_joint])
  weights = [total[tf.newaxis], *weights]
  return _site_atoms(values, weights, joint, groups, of_groups, shared)


def _site_atoms(
  values: list[tf.Tensor],
  weights: list[tf.Tensor],
  joint: tf.Tensor,
  groups: list['Sites'],
  of_groups: list[Atoms],
  shared: list[tf.Tensor] | None = None,
) -> SiteAtoms:
  dtype = dtypes.widest(weights)
  total = tf.concat([tf.cast(w, dtype) for w in weights], axis=0)
  num_sites = sum(sites.size for sites in groups)
  return SiteAtoms(
    values=tf.concat(values, axis=0),
    # The weights of each site sum to 1, so divide by the number of sites to
    # make the weights of all points sum to 1.
    weights=total / tf.cast(num_sites, dtype),
    joint=joint,
    groups=groups,
    of_groups=of_groups,
    shared=shared,
  )


class JointFirst(Sampler):
  """Draws from the rest of each site; the joint value is the first draw.

  If a site's symbol in the joint value is not summed, that symbol is a draw
  from the rest, independent of the other sites. The symbol serves as the first
  draw, because `f` is evaluated at the joint value anyway. If the symbol is
  summed, a new draw becomes the first one.
  """

  def __init__(self, own: tf.Tensor, name: str | None = None) -> None:
    """Stores the symbols.

    Args:
      own: `Tensor` of shape `[1] + batch_shape + [S] + event_shape_of_site`,
        the symbols of the joint value.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(name=name)
    self.own = own

  def draw(
    self,
    distribution: Distribution,
    partition: Partition,
    num_draws: int,
    seed: StatelessSeed,
  ) -> Draws:
    draws = IID().draw(distribution, partition, num_draws, seed)
    batch_rank = draws.shares.shape.rank
    is_listed = _is_same(partition.values, self.own, batch_rank)
    # A listed value without weight is arbitrary, and it is not summed.
    is_listed &= partition.log_weights > -np.inf
    is_summed = tf.reduce_any(is_listed, axis=0, keepdims=True)
    first = tf.where(
      shapes.with_event_rank(is_summed, self.own),
      draws.values[:1],
      self.own,
    )
    values = tf.concat([first, draws.values[1:]], axis=0)
    return draws._replace(values=values)


def _is_same(x: tf.Tensor, y: tf.Tensor, batch_rank: int) -> tf.Tensor:
  """Compares whole events; returns Booleans of `batch_rank` dimensions."""
  same = tf.equal(x, y)
  return tf.reduce_all(same, axis=list(range(batch_rank, same.shape.rank)))


def _counter(size: int, like: tf.Tensor) -> tf.Tensor:
  """Returns `0, ..., size - 1` on the first axis, with the rank of `like`."""
  return tf.reshape(tf.range(size), [size] + [1] * (like.shape.rank - 1))


def _without(x: tf.Tensor, index: tf.Tensor) -> tf.Tensor:
  """Leaves out entry `index` of the first axis.

  Args:
    x: `Tensor` of shape `[n] + batch_shape + [S] + ...`.
    index: `int32` `Tensor` of shape `[1] + batch_shape + [S]`.

  Returns:
    others: `Tensor` of shape `[n - 1] + batch_shape + [S] + ...`.
  """
  is_before = _counter(x.shape[0] - 1, index) < index
  return tf.where(shapes.with_event_rank(is_before, x), x[:-1], x[1:])


def with_joint(
  others: tf.Tensor, joint: tf.Tensor, index: tf.Tensor
) -> tf.Tensor:
  """Inverts `_without`: inserts a result at entry `index`.

  Args:
    others: `Tensor` of shape `[n - 1] + batch_shape + [S]`.
    joint: `Tensor` of shape `[1] + batch_shape + [1]`.
    index: `int32` `Tensor` of shape `[1] + batch_shape + [S]`.

  Returns:
    x: `Tensor` of shape `[n] + batch_shape + [S]`.
  """
  joint = tf.broadcast_to(joint, tf.shape(index))
  entry = _counter(others.shape[0] + 1, index)
  return tf.where(
    entry < index,
    tf.concat([others, joint], axis=0),
    tf.where(tf.equal(entry, index), joint, tf.concat([joint, others], axis=0)),
  )


def reshape_first(x: tf.Tensor, num_dims: int, shape: list[int]) -> tf.Tensor:
  """Reshapes the first `num_dims` dimensions; the others may be dynamic."""
  result = tf.reshape(x, tf.concat([shape, tf.shape(x)[num_dims:]], axis=0))
  # `tf.reshape` with a dynamic shape forgets the sizes that are known.
  return tf.ensure_shape(result, [*shape, *x.shape[num_dims:]])


class Sites:
  """Holds a group of `S` sites: the last batch dimension of one factor.

  Values of sites have shape `[n] + batch_shape + [S] + event_shape_of_site`,
  and joint values have shape `[n] + batch_shape + event_shape`.

  Attributes:
    partition: The whole `Partition` of the sites.
    size: Python `int`, `S`.
    are_dependent: Python `bool`, whether the distribution of a site depends on
      the values of other sites.
  """

  def __init__(self, group: SiteGroup, are_dependent: bool = False) -> None:
    """Stores the group.

    Args:
      group: A `SiteGroup`.
      are_dependent: Python `bool`.
    """
    self._group = group
    self.are_dependent = are_dependent
    self.partition = group.partition
    self.size: int = group.partition.batch_shape[-1]
    self._batch_rank = len(group.partition.batch_shape) - 1

  def extract(self, joint: tf.Tensor) -> tf.Tensor:
    """Returns the values of the sites in joint values."""
    return self._group.extract(joint)

  def index_of(self, joint: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns, for each site, which of `values` the joint value has there.

    Args:
      joint: `Tensor` of shape `[1] + batch_shape + event_shape`.
      values: `Tensor` of shape `[n] + batch_shape + [S] +
        event_shape_of_site`, one of which equals the joint value.

    Returns:
      index: `int32` `Tensor` of shape `[1] + batch_shape + [S]`.
    """
    own = tf.cast(self.extract(joint), values.dtype)
    same = _is_same(values, own, 2 + self._batch_rank)  # [n] + batch + [S]
    last = values.shape[0] - 1
    entry = _counter(last + 1, same)
    # Take a minimum: an argmax is several times slower under XLA on a CPU.
    return tf.reduce_min(tf.where(same, entry, last), axis=0, keepdims=True)

  def points(self, joint: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Returns `substitute(joint, x)` as `[n S] + batch_shape + event_shape`."""
    return self.flatten(self.substitute(joint, x))

  def points_of_extra(self, joint: tf.Tensor, extra: tf.Tensor) -> tf.Tensor:
    """Returns the points at which a baseline evaluates `f`.

    For sites that depend on each other, the points are joint draws. For other
    sites, each point changes one site of the joint value, so that `f` at the
    points resembles `f` at the atoms.

    Args:
      joint: `Tensor` of shape `[1] + batch_shape + event_shape`.
      extra: `Tensor` of shape `[e] + batch_shape + [S] + event_shape_of_site`.

    Returns:
      points: `Tensor` of shape `[e] + batch_shape + event_shape`, or
        `[e S] + batch_shape + event_shape`.
    """
    if self.are_dependent:
      return self._group.insert(joint, extra)
    return self.points(joint, extra)

  @property
  def num_points_of_extra(self) -> int:
    """The number of points of each draw of a baseline."""
    return 1 if self.are_dependent else self.size

  def results_of_extra(self, x: tf.Tensor) -> tf.Tensor:
    """Arranges `f` at the draws of a baseline as `[e] + batch_shape + [S]`."""
    if not self.are_dependent:
      return self.last(self.unflatten(x))
    return tf.repeat(x[..., tf.newaxis], self.size, axis=-1)

  def substitute(self, joint: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Replaces one site of the joint value at a time.

    Args:
      joint: `Tensor` of shape `[1] + batch_shape + event_shape`.
      x: `Tensor` of shape `[n] + batch_shape + [S] + event_shape_of_site`.

    Returns:
      values: `Tensor` of shape `[n, S] + batch_shape + event_shape`. Entry
        `[i, s]` is the joint value with atom `i` of `x` at site `s`.
    """
    own = self._group.extract(joint)[:, tf.newaxis]  # [1, 1] + batch + [S] + ..
    own = tf.cast(own, x.dtype)
    x = x[:, tf.newaxis]  # [n, 1] + batch_shape + [S] + ...
    # `is_own` is an identity matrix over the new axis and that of the sites.
    shape = [1, self.size] + [1] * self._batch_rank + [self.size]
    shape += [1] * (x.shape.rank - len(shape))
    is_own = np.reshape(np.eye(self.size, dtype=bool), shape)
    values = self.flatten(tf.where(is_own, x, own))
    return self.unflatten(self._group.insert(joint, values))

  def flatten(self, x: tf.Tensor) -> tf.Tensor:
    """Reshapes `[n, S] + ...` to `[n S] + ...`."""
    return reshape_first(x, 2, [x.shape[0] * self.size])

  def unflatten(self, x: tf.Tensor) -> tf.Tensor:
    """Reshapes `[n S] + ...` to `[n, S] + ...`."""
    return reshape_first(x, 1, [x.shape[0] // self.size, self.size])

  def first(self, x: tf.Tensor) -> tf.Tensor:
    """Transposes `[n] + batch_shape + [S]` to `[n, S] + batch_shape`."""
    rank = x.shape.rank
    return tf.transpose(x, [0, rank - 1, *range(1, rank - 1)])

  def last(self, x: tf.Tensor) -> tf.Tensor:
    """Transposes `[n, S] + batch_shape + ...` to `[n] + batch_shape + [S]`."""
    end = 2 + self._batch_rank
    return tf.transpose(x, [0, *range(2, end), 1, *range(end, x.shape.rank)])
