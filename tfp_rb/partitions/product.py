"""Products of independent sites: `Independent` and `Sample`.

Neither the best values nor the rest needs an enumeration of the product.

The `k` best joint values are found by merging the sites pairwise, a tree in
which each node keeps its `k` best: a joint value among the `k` best of a pair
consists of the `i`-th best of one and the `j`-th best of the other with
`(i + 1) (j + 1) <= k`.

The rest is a disjoint union of cylinders. For each prefix of a summed value
and each symbol that continues it but no summed value, one cylinder holds all
values that begin so; the later sites are free. The masses are sums of
positive terms: nothing is subtracted.
"""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb import _random
from tfp_rb.partitions import _shapes
from tfp_rb.partitions.base import Partition, RegisterPartition, find_partition

__all__ = []  # registers; there is nothing to call

tfd = tfp.distributions


@RegisterPartition(tfd.Sample)
def partition_sample(q, num_summed):
  sample_shape = tf.get_static_value(q.sample_shape)
  if sample_shape is None:
    raise ValueError(
      '`sample_shape` of a `Sample` must be known statically, but is '
      f'{q.sample_shape}. Pass a constant.'
    )
  sample_shape = [int(n) for n in np.reshape(sample_shape, [-1])]
  batch_shape = _shapes.batch_shape(q.distribution)
  sites = tfd.BatchBroadcast(
    tfd.BatchReshape(q.distribution, batch_shape + [1] * len(sample_shape)),
    to_shape=batch_shape + sample_shape,
  )
  return partition_independent(
    tfd.Independent(sites, len(sample_shape)), num_summed
  )


@RegisterPartition(tfd.Independent)
def partition_independent(q, num_summed):
  num_dims = tf.get_static_value(q.reinterpreted_batch_ndims)
  site_shape = _shapes.batch_shape(q.distribution)
  site_shape = site_shape[len(site_shape) - int(num_dims) :]
  if not all(isinstance(n, int) for n in site_shape):
    raise ValueError(
      'The number of sites of a product must be known statically, but the '
      f'batch shape of its factors is {q.distribution.batch_shape}. Set the '
      'static shape of their parameters.'
    )
  batch_shape = _shapes.batch_shape(q)
  axes = list(range(-len(site_shape), 0))
  sites = find_partition(q.distribution, num_summed)
  num_sites = _shapes.size(site_shape)
  num_values = None if sites.num_values is None else sites.num_values**num_sites
  if num_values is not None:
    num_summed = min(num_summed, num_values)

  # Every Tensor is [rows, ...] inside, [n] + batch_shape + ... outside.
  site_event = _shapes.event_shape(q.distribution)
  flat_event = _shapes.size(site_event)

  def flatten(values):  # [n] + batch + sites + event -> [rows, sites, n, e]
    n = _shapes.leading(values)
    values = tf.reshape(values, [n, -1, num_sites, flat_event])
    return tf.transpose(values, [1, 2, 0, 3])

  def unflatten(values):
    n = values.shape[2]
    values = tf.transpose(values, [2, 0, 1, 3])
    return tf.reshape(values, [n, *batch_shape, *site_shape, *site_event])

  common = {
    'num_values': num_values,
    'log_prob': lambda z: tf.reduce_sum(sites.log_prob(z), axes),
    'score_norm': sites.score_norm
    and (lambda z: tf.reduce_sum(sites.score_norm(z), axes)),
  }
  if num_summed == 0:
    return Partition(
      values=sites.values,
      log_weights=tf.reduce_sum(sites.log_weights, axes),
      log_rest=tf.reduce_sum(tf.zeros_like(sites.log_rest), axes),
      sample_rest=sites.sample_rest,
      **common,
    )

  site_values = flatten(sites.values)
  log_weights = tf.transpose(
    tf.reshape(sites.log_weights, [sites.values.shape[0], -1, num_sites]),
    [1, 2, 0],
  )  # [rows, sites, s]
  log_rest = tf.reshape(sites.log_rest, [-1, num_sites, 1])
  # One column more: the pseudo-symbol "none of the site's listed symbols".
  symbols = tf.concat([log_weights, log_rest], axis=-1)  # [rows, sites, s + 1]
  best, relative = _merge(log_weights, num_summed)
  joint = tf.reduce_sum(log_weights[..., 0], axis=-1, keepdims=True) + relative
  cylinders, continuations = _complement(best, symbols)
  log_rest = tf.reduce_logsumexp(cylinders, axis=[1, 2])

  def lookup(index):  # [rows, sites, n] -> values
    return tf.gather(site_values, index, batch_dims=2)

  def sample_rest(num_draws, seed):
    index_seed, rest_seed = _random.split_seed(seed, n=2)
    index = _draw_from_complement(
      best, symbols, cylinders, continuations, num_draws, index_seed
    )
    num_listed = log_weights.shape[-1]
    values = lookup(tf.minimum(index, num_listed - 1))
    if sites.sample_rest is not None:
      unlisted = flatten(sites.sample_rest(num_draws, rest_seed))
      is_listed = (index < num_listed)[..., tf.newaxis]
      values = tf.where(is_listed, values, unlisted)
    return unflatten(values)

  return Partition(
    values=unflatten(lookup(tf.transpose(best, [0, 2, 1]))),
    log_weights=tf.reshape(tf.transpose(joint), [num_summed, *batch_shape]),
    log_rest=tf.reshape(log_rest, batch_shape),
    sample_rest=None if num_summed == num_values else sample_rest,
    **common,
  )


def _merge(log_weights, num_summed):
  """Finds the best joint values of independent sites.

  Args:
    log_weights: `Tensor` of shape `[rows, sites, s]`, each site's best symbols,
      best first.
    num_summed: Python `int`, how many joint values are wanted.

  Returns:
    best: `int32` `Tensor` of shape `[rows, num_summed, sites]`.
    relative: `Tensor` of shape `[rows, num_summed]`: their log-probabilities
      relative to the best one. Relative, because equal products then compare
      equal: sums of exact zeros and few differences do not depend on order.
  """
  num_sites, num_symbols = log_weights.shape[1:]
  relative = log_weights - log_weights[..., :1]
  # Sites of a single symbol fill the tree up.
  num_leaves = 1 << (num_sites - 1).bit_length()
  idle = tf.constant([0.0] + [-np.inf] * (num_symbols - 1), log_weights.dtype)
  idle = tf.broadcast_to(
    idle, [tf.shape(relative)[0], num_leaves - num_sites, num_symbols]
  )
  relative = tf.concat([relative, idle], axis=1)
  index = tf.range(num_symbols) + tf.zeros_like(relative, tf.int32)
  index = index[..., tf.newaxis]  # [rows, nodes, s, sites of the node]
  while relative.shape[1] > 1:
    size = relative.shape[2]
    pairs = np.array([
      (i, j)
      for i in range(size)
      for j in range(size)
      if (i + 1) * (j + 1) <= num_summed
    ], np.int32)  # fmt: skip
    left, right = relative[:, 0::2], relative[:, 1::2]
    sums = tf.gather(left, pairs[:, 0], axis=2) + tf.gather(
      right, pairs[:, 1], axis=2
    )
    relative, chosen = tf.math.top_k(sums, min(num_summed, len(pairs)))
    index = tf.concat(
      [
        tf.gather(
          index[:, side::2], tf.gather(pairs[:, side], chosen), batch_dims=2
        )
        for side in (0, 1)
      ],
      axis=-1,
    )
  return index[:, 0, :, :num_sites], relative[:, 0]


def _complement(best, symbols):
  """The cylinders that make up the rest.

  Args:
    best: `int32` `Tensor` of shape `[rows, k, sites]`, the summed values.
    symbols: `Tensor` of shape `[rows, sites, s]`, log-probabilities.

  Returns:
    cylinders: `Tensor` of shape `[rows, k, sites]`: log-mass of the values that
      agree with summed value `i` before site `d` and leave all summed values
      at site `d`; `-inf` where an earlier `i` has the same prefix.
    continuations: `Tensor` of shape `[rows, k, sites, s]`: log-probabilities
      of the symbols by which they leave, `-inf` for the others.
  """
  num_summed, num_sites = best.shape[1:]
  site = tf.range(num_sites)
  agree = best[:, :, tf.newaxis] == best[:, tf.newaxis]  # [rows, k, k, sites]
  first_difference = tf.reduce_min(tf.where(agree, num_sites, site), axis=-1)
  same_prefix = first_difference[..., tf.newaxis] >= site
  earlier = np.tril(np.ones([num_summed, num_summed], bool), -1)
  is_repeated = tf.reduce_any(
    same_prefix & earlier[..., np.newaxis], axis=2
  )  # [rows, k, sites]
  is_symbol = tf.one_hot(best, symbols.shape[-1], dtype=symbols.dtype)
  num_taken = tf.einsum(
    'rijd,rjds->rids', tf.cast(same_prefix, symbols.dtype), is_symbol
  )
  impossible = tf.constant(-np.inf, symbols.dtype)
  continuations = tf.where(num_taken > 0.5, impossible, symbols[:, tf.newaxis])
  own = tf.gather(symbols, tf.transpose(best, [0, 2, 1]), batch_dims=2)
  prefix = tf.cumsum(tf.transpose(own, [0, 2, 1]), axis=-1, exclusive=True)
  cylinders = tf.where(
    is_repeated,
    impossible,
    prefix + tf.reduce_logsumexp(continuations, axis=-1),
  )
  return cylinders, continuations


def _draw_from_complement(
  best, symbols, cylinders, continuations, num_draws, seed
):
  """Draws symbols of values of the rest: `[rows, sites, num_draws]`."""
  num_summed, num_sites = best.shape[1:]
  # One call for all: under XLA a generator costs seconds of compilation.
  u = _random.uniform(
    [tf.shape(best)[0], num_draws, num_sites + 2], seed, symbols.dtype
  )
  flat = lambda x: tf.reshape(
    x, [-1, num_summed * num_sites, *x.shape[3:].as_list()]
  )
  cylinder = _random.search_index(
    _masses(flat(cylinders))[:, tf.newaxis], u[..., 0]
  )  # [rows, num_draws]
  prefix = tf.gather(best, cylinder // num_sites, batch_dims=1)
  departure = (cylinder % num_sites)[..., tf.newaxis]
  leaving = tf.gather(flat(continuations), cylinder, batch_dims=1)
  leaving = _random.search_index(_masses(leaving), u[..., 1])
  free = _random.search_index(_masses(symbols)[:, tf.newaxis], u[..., 2:])
  site = tf.range(num_sites)
  index = tf.where(
    site < departure,
    prefix,
    tf.where(site == departure, leaving[..., tf.newaxis], free),
  )
  return tf.transpose(index, [0, 2, 1])


def _masses(log_masses):
  """Masses in units of the largest; zeros where all are `-inf`."""
  largest = tf.reduce_max(log_masses, axis=-1, keepdims=True)
  largest = tf.where(tf.math.is_finite(largest), largest, 0.0)
  return tf.exp(log_masses - largest)
