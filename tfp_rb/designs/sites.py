"""Atoms that change one site of a product at a time."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs.atoms import Atoms
from tfp_rb.designs.integrand import Evaluation, evaluate
from tfp_rb.internal import dtypes, gradients
from tfp_rb.internal.types import Integrand
from tfp_rb.partitions import SiteGroup

__all__ = ['SiteAtoms', 'SiteIntegrand', 'Sites', 'site_atoms']


class SiteAtoms(NamedTuple):
  """A joint value, and copies of it that differ from it at one site each.

  Attributes:
    values: `Tensor` of shape `[m] + batch_shape + event_shape`, the points at
      which `f` is evaluated. The groups follow each other; in a group of `S`
      sites, atom `i` of site `s` has index `i S + s`.
    weights: `Tensor` of shape `[m] + batch_shape`. The value of an estimate is
      the mean over all sites.
    joint: `Tensor` of shape `[1] + batch_shape + event_shape`, the joint value.
    groups: List of `Sites`.
    of_groups: List of `Atoms`, one for each group, with the batch
      `batch_shape + [S]`.
  """

  values: tf.Tensor
  weights: tf.Tensor
  joint: tf.Tensor
  groups: list['Sites']
  of_groups: list[Atoms]

  @property
  def num_sites(self) -> int:
    """The number of sites in all groups."""
    return sum(sites.size for sites in self.groups)


def site_atoms(
  joint: tf.Tensor, groups: list['Sites'], of_groups: list[Atoms]
) -> SiteAtoms:
  """Returns the `SiteAtoms` of a joint value and atoms of its sites.

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
  of_sites = [sites.flatten(sites.first(a.weights)) for sites, a in pairs]
  dtype = dtypes.widest(of_sites)
  weights = tf.concat([tf.cast(w, dtype) for w in of_sites], axis=0)
  return SiteAtoms(
    values=tf.concat(values, axis=0),
    # The weights of each site sum to 1, and those of all atoms as well.
    weights=weights / tf.cast(num_sites, dtype),
    joint=joint,
    groups=groups,
    of_groups=of_groups,
  )


def _reshape_first(x: tf.Tensor, num_dims: int, shape: list[int]) -> tf.Tensor:
  """Reshapes the first `num_dims` dimensions; the others may be dynamic."""
  result = tf.reshape(x, tf.concat([shape, tf.shape(x)[num_dims:]], axis=0))
  # `tf.reshape` with a dynamic shape forgets the sizes that are known.
  return tf.ensure_shape(result, [*shape, *x.shape[num_dims:]])


class Sites:
  """A group of `S` sites: the last batch dimension of one factor.

  Values of sites have shape `[n] + batch_shape + [S] + event_shape_of_site`,
  joint values `[n] + batch_shape + event_shape`.

  Attributes:
    partition: The whole `Partition` of the sites.
    size: Python `int`, `S`.
  """

  def __init__(self, group: SiteGroup) -> None:
    """Stores the group.

    Args:
      group: A `SiteGroup`.
    """
    self._group = group
    self.partition = group.partition
    self.size: int = group.partition.batch_shape[-1]
    self._batch_rank = len(group.partition.batch_shape) - 1

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
    # An identity matrix between the new axis and that of the sites.
    shape = [1, self.size] + [1] * self._batch_rank + [self.size]
    shape += [1] * (x.shape.rank - len(shape))
    is_own = np.reshape(np.eye(self.size, dtype=bool), shape)
    values = self.flatten(tf.where(is_own, x, own))
    return self.unflatten(self._group.insert(joint, values))

  def flatten(self, x: tf.Tensor) -> tf.Tensor:
    """Reshapes `[n, S] + ...` to `[n S] + ...`."""
    return _reshape_first(x, 2, [x.shape[0] * self.size])

  def unflatten(self, x: tf.Tensor) -> tf.Tensor:
    """Reshapes `[n S] + ...` to `[n, S] + ...`."""
    return _reshape_first(x, 1, [x.shape[0] // self.size, self.size])

  def to_chunks(self, x: tf.Tensor, most_sites: int) -> tf.Tensor:
    """Splits `[n, S] + ...` into `N` chunks of `c` sites, `[N, n c] + ...`.

    The chunks have equal size, as a loop requires. The last chunk repeats the
    last site if necessary.

    Args:
      x: `Tensor`.
      most_sites: Python `int`, the maximal number of sites per chunk.

    Returns:
      chunks: `Tensor`.
    """
    num_chunks = -(-self.size // most_sites)  # rounded up
    # Chunks as even as possible repeat the fewest sites.
    num_sites = -(-self.size // num_chunks)
    num_missing = num_chunks * num_sites - self.size
    x = tf.concat([x] + [x[:, -1:]] * num_missing, axis=1)
    x = _reshape_first(x, 2, [x.shape[0], num_chunks, num_sites])
    x = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])  # [N, n, c] + ...
    return _reshape_first(x, 3, [num_chunks, x.shape[1] * num_sites])

  def from_chunks(self, x: tf.Tensor, num_atoms: int) -> tf.Tensor:
    """Inverts `to_chunks`: `[N, n c] + ...` to `[n, S] + ...`."""
    num_sites = x.shape[1] // num_atoms
    x = _reshape_first(x, 2, [x.shape[0], num_atoms, num_sites])
    x = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])  # [n, N, c] + ...
    x = _reshape_first(x, 3, [num_atoms, x.shape[1] * num_sites])
    return x[:, : self.size]  # without the repeated sites

  def first(self, x: tf.Tensor) -> tf.Tensor:
    """Transposes `[n] + batch_shape + [S]` to `[n, S] + batch_shape`."""
    rank = x.shape.rank
    return tf.transpose(x, [0, rank - 1, *range(1, rank - 1)])

  def last(self, x: tf.Tensor) -> tf.Tensor:
    """Transposes `[n, S] + batch_shape + ...` to `[n] + batch_shape + [S]`."""
    end = 2 + self._batch_rank
    return tf.transpose(x, [0, *range(2, end), 1, *range(end, x.shape.rank)])


class SiteIntegrand:
  """Calls `f` as a function of one site, with the others at a joint value.

  Takes `[n] + batch_shape + [S] + event_shape_of_site` and returns
  `[n] + batch_shape + [S]`.
  """

  def __init__(
    self,
    f: Integrand,
    sites: Sites,
    atoms: SiteAtoms,
    sites_per_call: int | None,
  ) -> None:
    """Stores the integrand and the joint value.

    Args:
      f: Callable of joint atoms.
      sites: `Sites`.
      atoms: `SiteAtoms`, which hold the joint value and the number of sites.
      sites_per_call: Python `int`, or `None` for all sites in one call.
    """
    self.name = getattr(f, 'name', 'f')
    self._f = f
    self._sites = sites
    self._joint = atoms.joint
    self._num_sites = float(atoms.num_sites)
    self._sites_per_call = sites_per_call or sites.size

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    return self._apply(self._f, x)

  def evaluate(self, x: tf.Tensor) -> Evaluation:
    """Returns the `Evaluation` at values of the sites."""

    # One Tensor, because a loop over chunks stacks a single result.
    def stacked(values: tf.Tensor) -> tf.Tensor:
      return tf.stack(evaluate(self._f, values), axis=-1)

    value, signal = tf.unstack(self._apply(stacked, x), axis=-1)
    return Evaluation(value, signal)

  def _apply(self, f: Integrand, x: tf.Tensor) -> tf.Tensor:
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
    return sites.last(result)  # [n] + batch_shape + [S]
