# SPDX-License-Identifier: Apache-2.0
"""Searches a long table of log-masses in two levels.

The best entries and a draw from the others need two passes over the table: a
maximum and a sum of exponentials for each block of about `sqrt(size)` entries.
All further work touches only a few blocks. (`tf.math.top_k` of the whole table
costs several such passes. `tf.random.stateless_categorical` draws one Gumbel
per entry.)
"""

import numpy as np
import tensorflow as tf

from tfp_rb.internal import random, shapes

__all__ = ['BlockedTable']


class BlockedTable:
  """Finds the best of `[rows, size]` log-masses, and draws from the rest."""

  def __init__(self, table):
    """Computes the maximum and the sum of each block.

    Args:
      table: Differentiable `Tensor` of shape `[rows, size]`, `size` static.
    """
    rows, size = shapes.as_list(table)
    self._rows = rows
    self._block_size = block_size = _block_size(size)
    num_blocks, remainder = divmod(size, block_size)
    whole = table[:, : num_blocks * block_size] if remainder else table
    self._parts = [tf.reshape(whole, [rows, num_blocks, block_size])]
    if remainder:
      # The remainder is a block of its own. Padding the whole table would
      # double the cost under XLA.
      last = tf.pad(
        table[:, num_blocks * block_size :],
        [[0, 0], [0, block_size - remainder]],
        constant_values=-np.inf,
      )
      self._parts.append(last[:, tf.newaxis])
    # This is a second pass over the table. Under XLA it is still faster than
    # waiting for the maxima of the blocks. A slice of the output of `top_k`
    # would make XLA sort the table, which is about 100 times slower.
    self._highest = tf.stop_gradient(
      tf.reduce_max(table, axis=-1, keepdims=True)
    )
    self._sums = self._by_block(self._sum_of_masses)  # [rows, blocks]
    self._log_sum = tf.math.log(
      tf.reduce_sum(self._sums, axis=-1, keepdims=True)
    )

  def normalised(self, entries):
    """Returns the log-probabilities of entries `[rows, n]`."""
    # Subtracting the sum `highest + log_sum` would round to the precision of
    # `highest`, which may be large.
    return (entries - self._highest) - self._log_sum

  def log_highest(self):
    """Returns the largest log-probability of each row, `[rows, 1]`."""
    # The masses are relative to the largest entry.
    return tf.stop_gradient(-self._log_sum)

  def _by_block(self, function):
    """Applies a reduction to every block, and returns `[rows, blocks]`."""
    return tf.concat([function(part) for part in self._parts], axis=-1)

  def _masses(self, part):
    # Masses are relative to the largest one, so that none overflows. An entry
    # that underflows has probability 0 in this precision anyway.
    return tf.exp(part - self._highest[..., tf.newaxis])

  def _sum_of_masses(self, part):
    return tf.reduce_sum(self._masses(part), axis=-1)

  def collision(self):
    """Returns `sum_i p_i^2` of the normalised masses, `[rows, 1]`."""
    squares = self._by_block(
      lambda part: tf.reduce_sum(self._masses(part) ** 2, axis=-1)
    )
    log_square = tf.math.log(tf.reduce_sum(squares, axis=-1, keepdims=True))
    return tf.exp(log_square - 2.0 * self._log_sum)

  def _take(self, block):
    """Returns the entries of blocks `[rows, n]` as `[rows, n, block_size]`."""
    whole = self._parts[0]
    last = whole.shape[1]
    # Gathering out of range raises an error in eager mode on a CPU.
    inside = tf.gather(whole, tf.minimum(block, last - 1), batch_dims=1)
    if len(self._parts) > 1:
      is_last = (block == last)[..., tf.newaxis]
      inside = tf.where(is_last, self._parts[1], inside)
    return tf.stop_gradient(inside)

  def split(self, num_best):
    """Finds the best entries, and sums the blocks without them.

    Args:
      num_best: Python `int`, at least 1 and at most the size of the table.

    Returns:
      best: `Tensor` of shape `[rows, num_best]`, entries, largest first.
      index: `int32` `Tensor` of that shape; the lowest index wins a tie.
      rest_sums: `Tensor` of shape `[rows, blocks]`, for `search`.
      log_rest: `Tensor` of shape `[rows, 1]`, log of the normalised mass of the
        other entries. It is a sum of their masses, never a difference.
    """
    tops = tf.stop_gradient(
      self._by_block(lambda part: tf.reduce_max(part, axis=-1))
    )
    # The best entries lie in the blocks with the largest maxima. Sorting the
    # blocks restores the order of the table, so the lowest index wins a tie.
    num_blocks = min(num_best, tops.shape[-1])
    _, block = tf.math.top_k(tops, num_blocks)
    block = tf.sort(block, axis=-1)
    inside = self._take(block)  # [rows, num_blocks, block_size]
    flat = tf.reshape(inside, [self._rows, num_blocks * self._block_size])
    best, position = tf.math.top_k(flat, num_best)
    index = (
      tf.gather(block, position // self._block_size, batch_dims=1)
      * self._block_size
      + position % self._block_size
    )
    # Only the touched blocks are summed again, without the best entries.
    left = _replace(tf.exp(flat - self._highest), position, tf.zeros_like(best))
    left = tf.reshape(left, tf.shape(inside))
    rest_sums = _replace(
      tf.stop_gradient(self._sums), block, tf.reduce_sum(left, axis=-1)
    )
    rest = tf.reduce_sum(rest_sums, axis=-1, keepdims=True)
    log_rest = tf.math.log(rest) - self._log_sum
    return best, index, rest_sums, tf.stop_gradient(log_rest)

  def exclude(self, index):
    """Sums the blocks without the entries `index`.

    Args:
      index: `int32` `Tensor` of shape `[rows, n]`; -1 excludes nothing.

    Returns:
      rest_sums: `Tensor` of shape `[rows, blocks]`, for `search`.
      log_rest: `Tensor` of shape `[rows, 1]`, as in `split`.
    """
    block = tf.maximum(index, 0) // self._block_size
    masses = tf.exp(self._take(block) - self._highest[..., tf.newaxis])
    left = tf.reduce_sum(self._without(masses, block, index), axis=-1)
    # Two entries of one block write the same sum, so their order is irrelevant.
    rest_sums = _replace(tf.stop_gradient(self._sums), block, left)
    rest = tf.reduce_sum(rest_sums, axis=-1, keepdims=True)
    return rest_sums, tf.stop_gradient(tf.math.log(rest) - self._log_sum)

  def _without(self, masses, block, index):
    """Sets masses `[rows, n, block_size]` to 0 at the entries `index`."""
    entry = block[..., tf.newaxis] * self._block_size + tf.range(
      self._block_size
    )
    # The operator `==` would lose the static shape if `rows` is unknown.
    is_excluded = tf.reduce_any(
      tf.equal(entry[..., tf.newaxis], index[:, tf.newaxis, tf.newaxis]),
      axis=-1,
    )
    return tf.where(is_excluded, tf.zeros_like(masses), masses)

  def search(self, index, rest_sums, u):
    """Finds entries other than `index` by inverse CDF.

    Args:
      index: `int32` `Tensor` of shape `[rows, k]`, or `None` to draw from all.
      rest_sums: As returned by `split`; `None` to draw from all.
      u: `float64` `Tensor` of shape `[num_draws, rows, 2]`, uniforms: the first
        chooses the block, the second the entry in the block.

    Returns:
      index: `int32` `Tensor` of shape `[num_draws, rows]`.
    """
    sums = tf.stop_gradient(self._sums) if rest_sums is None else rest_sums
    if sums.shape[-1] > 1:
      block = random.search_index(sums[tf.newaxis], u[..., 0])
    else:
      block = tf.zeros_like(u[..., 0], tf.int32)
    inside = self._take(tf.transpose(block))  # [rows, num_draws, block_size]
    masses = tf.exp(inside - self._highest[..., tf.newaxis])
    if index is not None:
      masses = self._without(masses, tf.transpose(block), index)
    position = random.search_index(tf.transpose(masses, [1, 0, 2]), u[..., 1])
    return block * self._block_size + position


def _block_size(size):
  """Returns about `sqrt(size)`, or `size` for a short table."""
  if size <= 128:
    return size
  # Prefer a divisor of `size`: a remainder would need a second Tensor.
  root = int(size**0.5)
  divisors = (n for n in range(root, root // 2, -1) if size % n == 0)
  return next(divisors, root)


def _replace(table, index, values):
  """Returns `table` with `values` at `table[row, index[row, :]]`."""
  rows = tf.range(tf.shape(table)[0])[:, tf.newaxis] * table.shape[-1]
  flat = tf.tensor_scatter_nd_update(
    tf.reshape(table, [-1]),
    tf.reshape(rows + index, [-1, 1]),
    tf.reshape(values, [-1]),
  )
  return tf.reshape(flat, tf.shape(table))
