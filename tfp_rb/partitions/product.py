# SPDX-License-Identifier: Apache-2.0
"""Partitions products of independent sites: `Independent` and `Sample`.

Neither the best values nor the rest requires an enumeration of the product.

The `k` best joint values are found by merging the sites pairwise, in a tree
whose nodes keep their `k` best values: a joint value among the `k` best of a
pair consists of the `i`-th best of one and the `j`-th best of the other with
`(i + 1) (j + 1) <= k`.

The rest is a disjoint union of cylinders. Take a prefix of a summed value and a
symbol with which no summed value continues that prefix. The cylinder holds all
values that begin with the prefix and the symbol; the later sites are free. The
mass of the rest is a sum of positive terms, never a difference.
"""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import random, shapes
from tfp_rb.partitions.base import Partition, SiteGroup
from tfp_rb.partitions.registry import partition_of, register
from tfp_rb.partitions.trie import complement, draw_from_complement, merge
from tfp_rb.partitions.wrappers import Broadcast, Reshaped

__all__ = ['Product']

tfd = tfp.distributions


class Product(Partition):
  """Partitions the joint values of independent sites.

  Methods compute with Tensors of shape `[rows, sites, ...]`. Their arguments
  and results have shape `[n] + batch_shape + site_shape + site_event`. The
  "symbols" of a site are the numbers of the values that its partition lists.
  """

  # The best joint values come from a tree of merges, and the rest is a trie.
  is_search_costly = True

  def __init__(self, distribution, sites, site_shape):
    """Makes the partition with `k = 0`.

    Args:
      distribution: The distribution.
      sites: Whole `Partition` of the factors, with batch shape
        `batch_shape + site_shape`.
      site_shape: List of Python `int`s.
    """
    self.distribution = distribution
    self._sites = sites
    self._site_shape = site_shape
    self._num_sites = num_sites = shapes.size(site_shape)
    self.num_sites = num_sites * sites.num_sites  # Sites may be products.
    self._axes = list(range(-len(site_shape), 0))
    # The partition of the sites that defines their symbols.
    self._listed: Any = None
    self._summed = None  # symbols of `values`, [rows, k, sites]
    # The cylinders and continuations that `trie.complement` returns.
    self._complement: Any = None
    num_values = sites.num_values
    self._set_num_uniforms(sites)
    batch_shape = sites.batch_shape[: len(sites.batch_shape) - len(site_shape)]
    dtype = sites.log_rest.dtype
    super().__init__(
      values=sites.values,
      log_weights=tf.zeros([0, *batch_shape], dtype),
      log_rest=tf.zeros(batch_shape, dtype),
      sample_rest=None,
      num_values=None if num_values is None else num_values**num_sites,
    )
    self.has_rest = True

  def _set_num_uniforms(self, sites):
    """Gives each site its own uniforms, for draws from all joint values."""
    self.num_uniforms = None
    if sites.num_uniforms is not None:
      self.num_uniforms = self._num_sites * sites.num_uniforms

  def _flatten(self, values):
    """Reshapes `[n] + batch + sites + event` to `[rows, sites, n, e]`."""
    n, rank = shapes.leading(values), self._sites.log_rest.shape.rank
    event = shapes.size(shapes.as_list(values)[1 + rank :])
    rows = shapes.size(self.batch_shape)
    values = tf.reshape(values, [n, rows, self._num_sites, event])
    return tf.transpose(values, [1, 2, 0, 3])

  def _unflatten(self, values):
    """Inverts `_flatten`."""
    rank = self._sites.log_rest.shape.rank
    event = shapes.as_list(self._sites.values)[1 + rank :]
    values = tf.transpose(values, [2, 0, 1, 3])
    return tf.reshape(
      values,
      [shapes.leading(values), *self.batch_shape, *self._site_shape, *event],
    )

  def best(self, num_summed):
    if self.num_values is not None:
      num_summed = min(num_summed, self.num_values)
    if num_summed == 0:
      return self
    # A joint value among the `k` best consists of symbols among the `k` best.
    listed = self._sites.best(num_summed)
    of_sites = self._symbols(listed)[..., :-1]  # [rows, sites, s]
    best, relative = merge(of_sites, num_summed)  # [rows, k, sites], [rows, k]
    joint = tf.reduce_sum(of_sites[..., 0], axis=-1, keepdims=True) + relative
    values = tf.gather(
      self._flatten(listed.values),
      tf.transpose(best, [0, 2, 1]),
      batch_dims=2,
    )  # [rows, sites, k, e]
    return self._split(
      listed,
      best,
      self._unflatten(values),
      tf.transpose(joint),
      is_all=num_summed == self.num_values,
    )

  def log_mode_weight(self):
    return tf.reduce_sum(self._sites.log_mode_weight(), self._axes)

  def _split(self, listed, summed, values, log_weights, is_all=False):
    """Splits off the joint values with the symbols `summed`."""
    log_weights = tf.reshape(log_weights, [values.shape[0], *self.batch_shape])
    result = self.replace(
      values=values,
      log_weights=tf.stop_gradient(log_weights),
      has_rest=not is_all,
      _listed=listed,
      _summed=summed,
    )
    if is_all:
      # Do not build the empty complement: its memory is quadratic in the number
      # of summed values.
      result.log_rest = tf.fill(
        self.batch_shape, tf.constant(-np.inf, log_weights.dtype)
      )
      return result
    symbols = self._symbols(listed)[:, tf.newaxis]
    cylinders, continuations = complement(summed, symbols)
    log_rest = tf.reduce_logsumexp(cylinders, axis=[1, 2])
    result._complement = cylinders, continuations
    result.log_rest = tf.stop_gradient(tf.reshape(log_rest, self.batch_shape))
    # Two uniforms choose the cylinder and the symbol that enters it. One per
    # site chooses the free symbols. The others draw unlisted values.
    if listed.num_uniforms is not None:
      unlisted = self._num_sites * listed.num_uniforms
      result.num_uniforms = self._num_sites + 2 + unlisted
    return result

  def _symbols(self, listed):
    """Returns the log-probabilities of the symbols, `[rows, sites, s + 1]`.

    The last column is the pseudo-symbol that stands for all unlisted values.
    """
    log_weights = tf.concat(
      [listed.log_weights, listed.log_rest[tf.newaxis]], axis=0
    )
    rows = shapes.size(self.batch_shape)
    log_weights = tf.reshape(
      log_weights, [log_weights.shape[0], rows, self._num_sites]
    )
    return tf.transpose(log_weights, [1, 2, 0])

  def excluding(self, values):
    if self._sites.num_values is not None:
      listed = self._sites.best(self._sites.num_values)
    else:
      # In an infinite support, only the given values of a site become symbols.
      listed = _without_repeats(self._sites.excluding(values))
    site_values = self._flatten(listed.values)
    is_symbol = tf.reduce_all(
      tf.equal(
        self._flatten(values)[:, :, :, tf.newaxis],
        site_values[:, :, tf.newaxis],
      ),
      axis=-1,
    )  # [rows, sites, n, listed]
    index = tf.argmax(
      tf.cast(is_symbol, tf.int32), axis=-1, output_type=tf.int32
    )
    num_listed = listed.values.shape[0]
    # A value that is impossible at its site is not a symbol and has no mass.
    is_listed = tf.reduce_any(is_symbol, axis=-1)  # [rows, sites, n]
    index = tf.where(is_listed, index, num_listed)
    own = tf.gather(self._symbols(listed), index, batch_dims=2)
    own = tf.where(is_listed, own, tf.constant(-np.inf, own.dtype))
    # Take the listed copies: the gradient w.r.t. a shift passes through them.
    values = tf.gather(
      site_values, tf.minimum(index, num_listed - 1), batch_dims=2
    )
    return self._split(
      listed,
      tf.transpose(index, [0, 2, 1]),
      self._unflatten(values),
      tf.transpose(tf.reduce_sum(own, axis=1)),
    )

  def draw_rest(self, num_draws, seed):
    if self.num_uniforms is not None:
      return super().draw_rest(num_draws, seed)
    if self._complement is None:  # Nothing is summed, so the sites are free.
      return self._sites.draw_rest(num_draws, seed)
    index_seed, rest_seed = random.split_seed(seed, n=2)
    u = random.uniform(
      [num_draws, *self.batch_shape, self._num_sites + 2], index_seed
    )
    unlisted = None
    if self._listed.has_rest:
      unlisted = self._listed.draw_rest(num_draws, rest_seed)
    return self._assemble(u, unlisted)

  def rest_from_uniforms(self, u):
    # The first uniforms are for symbols, the others for values of the sites.
    num_own = 0 if self._complement is None else self._num_sites + 2
    sites = self._sites if self._complement is None else self._listed
    of_sites = tf.reshape(
      u[..., num_own:],
      [
        shapes.leading(u),
        *self.batch_shape,
        *self._site_shape,
        sites.num_uniforms,
      ],
    )
    if self._complement is None:
      return sites.rest_from_uniforms(of_sites)
    unlisted = sites.rest_from_uniforms(of_sites) if sites.has_rest else None
    return self._assemble(u[..., :num_own], unlisted)

  def _assemble(self, u, unlisted):
    """Builds joint values from drawn symbols and unlisted values.

    Args:
      u: `Tensor` of shape `[n] + batch_shape + [sites + 2]`, uniforms.
      unlisted: Draws of unlisted values at all sites, or `None` if all values
        are listed. Only sites with the pseudo-symbol use them.

    Returns:
      values: `Tensor`.
    """
    num_draws, rows = shapes.leading(u), shapes.size(self.batch_shape)
    u = tf.reshape(u, [num_draws, rows, self._num_sites + 2])
    cylinders, continuations = self._complement
    index = draw_from_complement(
      self._summed,
      self._symbols(self._listed),
      cylinders,
      continuations,
      tf.transpose(u, [1, 0, 2]),
    )  # [rows, sites, n]
    num_listed = self._listed.values.shape[0]
    draws = tf.gather(
      self._flatten(self._listed.values),
      tf.minimum(index, num_listed - 1),
      batch_dims=2,
    )
    if unlisted is not None:
      is_listed = (index < num_listed)[..., tf.newaxis]
      draws = tf.where(is_listed, draws, self._flatten(unlisted))
    return self._unflatten(draws)

  def _log_prob(self, values):
    return tf.reduce_sum(self._sites.log_prob(values), self._axes)

  def expect_log_probs(self, other, scale, scale_of_other):
    # If both are products of equally many sites, sum over the sites.
    if not isinstance(other, Product) or other._site_shape != self._site_shape:
      return None
    expected = self._sites.expect_log_probs(other._sites, scale, scale_of_other)
    return None if expected is None else tf.reduce_sum(expected, self._axes)

  def nearest(self, values):
    return self._sites.nearest(values)

  def log_prob_anywhere(self, values):
    return tf.reduce_sum(self._sites.log_prob_anywhere(values), self._axes)

  def score_norm(self, values):
    return tf.reduce_sum(self._sites.score_norm(values), self._axes)

  def mean(self):
    return self._sites.mean()

  def relaxation(self):
    inner = self._sites.relaxation()
    if inner is None:
      return None
    return inner._replace(num_sites=inner.num_sites + len(self._site_shape))

  def sites(self):
    factor, batch_shape = self._sites, [*self.batch_shape, self._num_sites]
    if len(self._site_shape) > 1:  # Flatten the sites to one axis.
      law = tfd.BatchReshape(factor.distribution, batch_shape)
      factor = Reshaped(factor, batch_shape, law)
    rank = self._sites.log_rest.shape.rank
    event_rank = self._sites.values.shape.rank - 1 - rank

    def extract(joint):
      return shapes.with_batch(joint, batch_shape, event_rank)

    def insert(joint, values):
      del joint  # There are no other sites to keep.
      shape = [*self.batch_shape, *self._site_shape]
      return shapes.with_batch(values, shape, event_rank)

    return [SiteGroup(factor, extract, insert)]


@register(tfd.Sample, kind='wrapped')
def _of_sample(q):
  sample_shape = tf.get_static_value(q.sample_shape)
  if sample_shape is None:
    raise ValueError(
      '`sample_shape` of a `Sample` must be known statically; got '
      f'{q.sample_shape}. Pass a constant.'
    )
  sample_shape = [int(n) for n in np.reshape(sample_shape, [-1])]
  base = partition_of(q.distribution)
  # In the shape of a sample, `sample_shape` follows the batch shape.
  batch_shape = base.batch_shape
  ones = [1] * len(sample_shape)
  to_shape = batch_shape + sample_shape
  # TFP cannot reshape an empty batch, so its sites refer to the factor itself.
  with_ones = of_sites = q.distribution
  if not any(isinstance(n, int) and n == 0 for n in batch_shape):
    with_ones = tfd.BatchReshape(q.distribution, batch_shape + ones)
    of_sites = tfd.BatchBroadcast(with_ones, to_shape=to_shape)
  sites = Broadcast(
    Reshaped(base, batch_shape + ones, with_ones), to_shape, of_sites
  )
  return Product(q, sites, sample_shape)


@register(tfd.Independent, kind='wrapped')
def _of_independent(q):
  num_dims = tf.get_static_value(q.reinterpreted_batch_ndims)
  sites = partition_of(q.distribution)
  site_shape = sites.batch_shape
  site_shape = site_shape[len(site_shape) - int(num_dims) :]
  if not all(isinstance(n, int) for n in site_shape):
    raise ValueError(
      'The number of sites of `distribution`, a product, must be known '
      'statically; got factors with the batch shape '
      f'{q.distribution.batch_shape}. Set the static shape of their parameters.'
    )
  return Product(q, sites, site_shape)


def _without_repeats(sites):
  """Makes repeated symbols impossible."""
  values = sites.values
  same = tf.equal(values[:, tf.newaxis], values[tf.newaxis])
  batch_rank = sites.log_rest.shape.rank
  same = tf.reduce_all(same, axis=list(range(2 + batch_rank, same.shape.rank)))
  # A symbol counts as repeated if an earlier one has the same value.
  size = values.shape[0]
  earlier = np.reshape(
    np.tril(np.ones([size, size], bool), -1), [size, size] + [1] * batch_rank
  )
  is_repeated = tf.reduce_any(same & earlier, axis=1)
  return sites.replace(
    log_weights=tf.where(
      is_repeated,
      tf.constant(-np.inf, sites.log_weights.dtype),
      sites.log_weights,
    )
  )
