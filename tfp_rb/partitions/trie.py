# SPDX-License-Identifier: Apache-2.0
"""Finds the best joint values of independent sites, and the complement of sets.

The symbols of a site are numbered; a joint value is a vector of such numbers.
`merge` combines the best symbols of the sites into the best joint values. The
complement of any set is a disjoint union of cylinders, one for each way to
leave the trie of the set. `complement` also supports sites that depend on
earlier sites.
"""

import numpy as np
import tensorflow as tf

from tfp_rb.internal import random, shapes

__all__ = ['choose_cylinder', 'complement', 'draw_from_complement', 'merge']


def merge(log_weights, num_summed):
  """Finds the best joint values of independent sites.

  Args:
    log_weights: `Tensor` of shape `[rows, sites, s]`, the log-probabilities of
      the best symbols of each site, best first.
    num_summed: Python `int`, the number of joint values to find.

  Returns:
    best: `int32` `Tensor` of shape `[rows, num_summed, sites]`.
    relative: `Tensor` of shape `[rows, num_summed]`, their log-probabilities
      minus that of the best. Equal products then compare equal, because most
      terms of the sums are exact zeros, and their order does not change the
      rounding.
  """
  num_sites, num_symbols = log_weights.shape[1:]
  relative = log_weights - log_weights[..., :1]
  # Pad to a power of two with sites that have a single symbol.
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
    pairs = _pairs(size, num_summed)  # [num_pairs, 2]
    left, right = relative[:, 0::2], relative[:, 1::2]
    sums = tf.gather(left, pairs[:, 0], axis=2) + tf.gather(
      right, pairs[:, 1], axis=2
    )
    # Ties go to the first pair. `k` is a Python int, since XLA would compile
    # again for each value of a Tensor.
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
  """Splits the rest into cylinders.

  Args:
    best: `int32` `Tensor` of shape `[rows, k, sites]`, the summed values. A
      value that contains a number without a symbol is impossible.
    symbols: `Tensor` of shape `[rows, k, sites, s]`, log-probabilities of the
      symbols at site `d` given the symbols of value `i` before it. The second
      axis may have size 1, for independent sites.

  Returns:
    cylinders: `Tensor` of shape `[rows, k, sites]`, the log-mass of the values
      that agree with summed value `i` before site `d`, but do not agree with
      any summed value up to and including site `d`. It is `-inf` if an earlier
      `i` has the same prefix.
    continuations: `Tensor` of shape `[rows, k, sites, s]`, the
      log-probabilities of the symbols at site `d` in that cylinder; `-inf` for
      the other symbols.
  """
  num_summed, num_sites = best.shape[1:]
  site = tf.range(num_sites)
  agree = best[:, :, tf.newaxis] == best[:, tf.newaxis]  # [rows, k, k, sites]
  first_difference = tf.reduce_min(tf.where(agree, num_sites, site), axis=-1)
  # Values i and j agree before site d; [rows, k, k, sites].
  same_prefix = first_difference[..., tf.newaxis] >= site
  earlier = np.tril(np.ones([num_summed, num_summed], bool), -1)
  is_repeated = tf.reduce_any(
    same_prefix & earlier[..., np.newaxis], axis=2
  )  # [rows, k, sites]
  is_symbol = tf.one_hot(best, symbols.shape[-1], True, False, dtype=tf.bool)
  # The number of summed values with the same prefix and this symbol at site d,
  # [rows, k, sites, s].
  num_taken = tf.einsum(
    'rijd,rjds->rids',
    tf.cast(same_prefix, symbols.dtype),
    tf.cast(is_symbol, symbols.dtype),
  )
  impossible = tf.constant(-np.inf, symbols.dtype)
  continuations = tf.where(num_taken > 0.5, impossible, symbols)
  own = tf.reduce_max(tf.where(is_symbol, symbols, impossible), axis=-1)
  # The later sites are free, so their total mass is 1.
  prefix = tf.cumsum(own, axis=-1, exclusive=True)
  cylinders = tf.where(
    is_repeated,
    impossible,
    prefix + tf.reduce_logsumexp(continuations, axis=-1),
  )
  return cylinders, continuations


def choose_cylinder(best, cylinders, continuations, u):
  """Draws a cylinder and the symbol that enters it by inverse CDF.

  Args:
    best: As in `complement`.
    cylinders: As returned by `complement`.
    continuations: As returned by `complement`.
    u: `float64` `Tensor` of shape `[rows, num_draws, 2]`, uniforms: the first
      chooses the cylinder, the second the symbol.

  Returns:
    prefix: `int32` `Tensor` of shape `[rows, num_draws, sites]`, a summed value
      that has the prefix of the cylinder.
    departure: `int32` `Tensor` of shape `[rows, num_draws]`, the site at which
      the draw leaves that value.
    leaving: `int32` `Tensor` of that shape, the symbol at that site.
  """
  num_summed, num_sites, num_symbols = continuations.shape[1:]
  rows = shapes.leading(best)
  cylinder = random.search_index(
    _masses(tf.reshape(cylinders, [rows, num_summed * num_sites]))[
      :, tf.newaxis
    ],
    u[..., 0],
  )
  prefix = tf.gather(best, cylinder // num_sites, batch_dims=1)
  flat = [rows, num_summed * num_sites, num_symbols]
  leaving = tf.gather(tf.reshape(continuations, flat), cylinder, batch_dims=1)
  leaving = random.search_index(_masses(leaving), u[..., 1])
  return prefix, cylinder % num_sites, leaving


def draw_from_complement(best, symbols, cylinders, continuations, u):
  """Draws the symbols of values of the rest of independent sites.

  Args:
    best: As in `complement`.
    symbols: `Tensor` of shape `[rows, sites, s]`, log-probabilities.
    cylinders: As returned by `complement`.
    continuations: As returned by `complement`.
    u: `float64` `Tensor` of shape `[rows, num_draws, sites + 2]`, uniforms: the
      first two are for `choose_cylinder`, the others for the free symbols.

  Returns:
    index: `int32` `Tensor` of shape `[rows, sites, num_draws]`.
  """
  prefix, departure, leaving = choose_cylinder(
    best, cylinders, continuations, u[..., :2]
  )
  departure = departure[..., tf.newaxis]
  # Every site gets a free symbol, but those up to the departure are not used.
  free = random.search_index(_masses(symbols)[:, tf.newaxis], u[..., 2:])
  site = tf.range(best.shape[-1])
  index = tf.where(
    site < departure,
    prefix,
    tf.where(site == departure, leaving[..., tf.newaxis], free),
  )
  return tf.transpose(index, [0, 2, 1])


def _masses(log_masses):
  """Returns masses relative to the largest; zeros if all are `-inf`."""
  # Without the test, -inf - (-inf) would be NaN.
  largest = tf.reduce_max(log_masses, axis=-1, keepdims=True)
  largest = tf.where(tf.math.is_finite(largest), largest, 0.0)
  return tf.exp(log_masses - largest)


def _pairs(size, num_summed):
  """Returns the ranks `(i, j)` of pairs that can be among the best."""
  # All (i', j') with i' <= i and j' <= j are at least as good as (i, j). So
  # (i, j) can be left out if there are more than `num_summed` of them, and
  # their number is (i + 1) (j + 1).
  second = [
    np.arange(min(size, num_summed // (i + 1)), dtype=np.int32)
    for i in range(min(size, num_summed))
  ]
  first = np.repeat(
    np.arange(len(second), dtype=np.int32), [len(row) for row in second]
  )
  return np.stack([first, np.concatenate(second)], axis=1)
