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
from tfp_rb.partitions._trie import complement, draw_from_complement, merge
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

  def partition_of(sites, best, values, log_weights, is_all=False):
    """Splits off joint values, `best` by the symbols that `sites` lists."""
    symbols, num_listed = _symbols(sites, num_sites), sites.values.shape[0]
    site_values = flatten(sites.values)
    cylinders, continuations = complement(best, symbols)

    def sample_rest(num_draws, seed):
      index_seed, rest_seed = _random.split_seed(seed, n=2)
      index = draw_from_complement(
        best, symbols, cylinders, continuations, num_draws, index_seed
      )
      draws = tf.gather(
        site_values, tf.minimum(index, num_listed - 1), batch_dims=2
      )
      if sites.sample_rest is not None:
        unlisted = flatten(sites.sample_rest(num_draws, rest_seed))
        draws = tf.where((index < num_listed)[..., tf.newaxis], draws, unlisted)
      return unflatten(draws)

    return Partition(
      values=values,
      log_weights=tf.reshape(log_weights, [values.shape[0], *batch_shape]),
      log_rest=tf.reshape(
        tf.reduce_logsumexp(cylinders, axis=[1, 2]), batch_shape
      ),
      sample_rest=None if is_all else sample_rest,
      **common,
    )

  def excluding(values):
    if sites.num_values is not None:
      listed = find_partition(q.distribution, sites.num_values)
    elif sites.excluding is not None:
      listed = _without_repeats(sites.excluding(values), len(site_event))
    else:
      raise NotImplementedError(
        'Values other than the best cannot be excluded from a '
        f'`{type(q).__name__}` of infinitely many values, since its sites '
        'cannot. Use `num_summed` and `samplers.IID()`.'
      )
    is_symbol = tf.reduce_all(
      flatten(values)[:, :, :, tf.newaxis]
      == flatten(listed.values)[:, :, tf.newaxis],
      axis=-1,
    )  # [rows, sites, n, listed]
    index = tf.argmax(
      tf.cast(is_symbol, tf.int32), axis=-1, output_type=tf.int32
    )
    num_listed = listed.values.shape[0]
    # What a site cannot be is none of its symbols, and has no mass.
    index = tf.where(tf.reduce_any(is_symbol, axis=-1), index, num_listed)
    own = tf.gather(_symbols(listed, num_sites), index, batch_dims=2)
    log_weights = tf.stop_gradient(tf.transpose(tf.reduce_sum(own, axis=1)))
    # As listed, since the gradient by a shift passes through the values.
    values = unflatten(
      tf.gather(
        flatten(listed.values), tf.minimum(index, num_listed - 1), batch_dims=2
      )
    )
    return partition_of(
      listed, tf.transpose(index, [0, 2, 1]), values, log_weights
    )

  common = {
    'num_values': num_values,
    'log_prob': lambda z: tf.reduce_sum(sites.log_prob(z), axes),
    'score_norm': sites.score_norm
    and (lambda z: tf.reduce_sum(sites.score_norm(z), axes)),
    'excluding': excluding,
  }
  if num_summed == 0:
    return Partition(
      values=sites.values,
      log_weights=tf.reduce_sum(sites.log_weights, axes),
      log_rest=tf.reduce_sum(tf.zeros_like(sites.log_rest), axes),
      sample_rest=sites.sample_rest,
      **common,
    )
  of_sites = _symbols(sites, num_sites)[..., :-1]
  best, relative = merge(of_sites, num_summed)
  joint = tf.reduce_sum(of_sites[..., 0], axis=-1, keepdims=True) + relative
  values = tf.gather(
    flatten(sites.values), tf.transpose(best, [0, 2, 1]), batch_dims=2
  )
  return partition_of(
    sites,
    best,
    unflatten(values),
    tf.transpose(joint),
    is_all=num_summed == num_values,
  )


def _symbols(sites, num_sites):
  """Log-probabilities of a site's listed symbols, `[rows, sites, s + 1]`.

  The last column is the pseudo-symbol "none of the listed".
  """
  log_weights = tf.concat([sites.log_weights, sites.log_rest[tf.newaxis]], 0)
  return tf.transpose(
    tf.reshape(log_weights, [log_weights.shape[0], -1, num_sites]), [1, 2, 0]
  )


def _without_repeats(sites, event_rank):
  """Makes a symbol that is listed again impossible."""
  values = sites.values
  same = values[:, tf.newaxis] == values[tf.newaxis]
  same = tf.reduce_all(same, axis=list(range(-event_rank, 0)))
  size = values.shape[0]
  earlier = np.reshape(
    np.tril(np.ones([size, size], bool), -1),
    [size, size] + [1] * sites.log_rest.shape.rank,
  )
  is_repeated = tf.reduce_any(same & earlier, axis=1)
  return sites._replace(
    log_weights=tf.where(
      is_repeated,
      tf.constant(-np.inf, sites.log_weights.dtype),
      sites.log_weights,
    )
  )
