"""Sets of joint values of independent sites, and what lies outside of them.

Symbols of a site are numbered; a joint value is a vector of them. The best
joint values are merged from those of the sites, and the complement of any set
is a disjoint union of cylinders, one for each way to leave the trie of the set.
"""

import numpy as np
import tensorflow as tf

from tfp_rb.internal import random, shapes

__all__ = ['complement', 'draw_from_complement', 'merge']


def merge(log_weights, num_summed):
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
    pairs = _pairs(size, num_summed)
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


def complement(best, symbols):
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


def draw_from_complement(best, symbols, cylinders, continuations, u):
  """Finds symbols of values of the rest by inverse CDF.

  Args:
    best: As in `complement`.
    symbols: As in `complement`.
    cylinders: As returned by `complement`.
    continuations: As returned by `complement`.
    u: `float64` `Tensor` of shape `[rows, num_draws, sites + 2]`, uniform: the
      cylinder, the symbol by which it is entered, one for each free site.

  Returns:
    index: `int32` `Tensor` of shape `[rows, sites, num_draws]`.
  """
  num_summed, num_sites = best.shape[1:]
  rows = shapes.leading(best)
  cylinder = random.search_index(
    _masses(tf.reshape(cylinders, [rows, num_summed * num_sites]))[
      :, tf.newaxis
    ],
    u[..., 0],
  )  # [rows, num_draws]
  prefix = tf.gather(best, cylinder // num_sites, batch_dims=1)
  departure = (cylinder % num_sites)[..., tf.newaxis]
  flat = [rows, num_summed * num_sites, symbols.shape[-1]]
  leaving = tf.gather(tf.reshape(continuations, flat), cylinder, batch_dims=1)
  leaving = random.search_index(_masses(leaving), u[..., 1])
  free = random.search_index(_masses(symbols)[:, tf.newaxis], u[..., 2:])
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


def _pairs(size, num_summed):
  """Ranks `(i, j)` of a pair that can be among the `num_summed` best."""
  # The pair (i, j) is beaten by all (i', j') with i' <= i and j' <= j.
  second = [
    np.arange(min(size, num_summed // (i + 1)), dtype=np.int32)
    for i in range(min(size, num_summed))
  ]
  first = np.repeat(
    np.arange(len(second), dtype=np.int32), [len(row) for row in second]
  )
  return np.stack([first, np.concatenate(second)], axis=1)
