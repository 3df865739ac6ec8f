# SPDX-License-Identifier: Apache-2.0
"""Computes probabilities of sets that are drawn without replacement.

Let `p` be the distribution of the first draw and `S` the set that was drawn.
`phi(C)` is the probability that the other members of `S` are drawn next, in any
order, once the members of `C` have been drawn:

```none
  phi(C) = sum_{s in S - C}  p(s) / (1 - p(C))  phi(C + s),      phi(S) = 1
```

One pass over the subsets `C` of `S`, from the largest down, gives all values.
`1 - p(C)` is computed as a sum of the masses that are left, never as a
difference. Kool, van Hoof and Welling (2020), https://arxiv.org/abs/2002.06043,
use these probabilities in their unordered set estimator.
"""

from collections.abc import Iterable
import itertools

import numpy as np
import tensorflow as tf

__all__ = ['MOST_DRAWS', 'leave_one_out_weights']

MOST_DRAWS = 8  # The recursion visits 2^M subsets.


def leave_one_out_weights(
  log_probs: tf.Tensor, log_beyond: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the weights of a set that was drawn without replacement.

  Args:
    log_probs: `Tensor` of shape `[M] + batch_shape`, `log p(s)`; `-inf` where
      there was nothing left to draw.
    log_beyond: `Tensor` of `batch_shape`, log-mass of all values outside the
      set.

  Returns:
    first: `Tensor` of shape `[M] + batch_shape`, the probability that `s` was
      drawn first, given the set. These probabilities sum to 1.
    others: `Tensor` of shape `[M, M] + batch_shape`. `others[s, s]` is `p(s)`;
      `others[s, t]` is `1 - p(s)` times the probability that `t` was drawn
      second, given the set and that `s` was drawn first.
  """
  size = log_probs.shape[0]
  levels = _log_phi(log_probs, log_beyond)

  def log_phi(*gone: int) -> tf.Tensor:
    return levels[_bits(set(range(size)) - set(gone))]

  # The ratio R(S, s) of Kool et al., times p(s).
  first = [_exp(log_probs[s] + log_phi(s) - log_phi()) for s in range(size)]
  # Given that `s` came first, `t` came second with probability
  # p(t) / (1 - p(s)) phi(s, t) / phi(s). The factor 1 - p(s) cancels.
  others = [
    [
      _exp(log_probs[t] + log_phi(s, t) - log_phi(s))
      if s != t
      else tf.exp(log_probs[s])
      for t in range(size)
    ]
    for s in range(size)
  ]
  return tf.stack(first), tf.stack([tf.stack(row) for row in others])


def _bits(members: Iterable[int]) -> int:
  """Returns a set of indices as the bits of an integer."""
  return sum(1 << s for s in members)


def _exp(x: tf.Tensor) -> tf.Tensor:
  """Returns `exp(x)`, or 0 where `x` is NaN as the result of `-inf - -inf`."""
  return tf.where(tf.math.is_nan(x), tf.zeros_like(x), tf.exp(x))


def _log_phi(
  log_probs: tf.Tensor, log_beyond: tf.Tensor
) -> dict[int, tf.Tensor]:
  """Returns `log phi` for the sets that leave out at most two members.

  Args:
    log_probs: As in `leave_one_out_weights`.
    log_beyond: As in `leave_one_out_weights`.

  Returns:
    log_phi: Dictionary whose keys are the members of `S` that are left, as the
      bits of an integer, and whose values are `Tensor`s of `batch_shape`.
  """
  size = log_probs.shape[0]
  position = {0: 0}  # maps the bits of a subset to its row in `level`
  level = tf.zeros_like(log_beyond)[tf.newaxis]  # [subsets] + batch_shape
  found = {0: level[0]}
  # `count` is the number of members that are left.
  for count in range(1, size + 1):
    subsets = list(itertools.combinations(range(size), count))
    smaller = [[position[_bits(c) & ~(1 << s)] for s in c] for c in subsets]
    probs = tf.gather(log_probs, np.array(subsets))  # [subsets, count] + batch
    drawn = probs + tf.gather(level, np.array(smaller))
    # The denominator 1 - p(C) is the mass of the members that are left and of
    # all values outside the set.
    own = tf.reduce_logsumexp(probs, axis=1)
    left = tf.reduce_logsumexp(
      tf.stack([own, tf.broadcast_to(log_beyond, tf.shape(own))]), axis=0
    )
    # If all members that are left are impossible, no further draw was needed.
    level = tf.where(
      tf.math.is_finite(own),
      tf.reduce_logsumexp(drawn, axis=1) - left,
      tf.zeros_like(own),
    )
    position = {_bits(c): i for i, c in enumerate(subsets)}
    if count >= size - 2:
      found |= {bits: level[i] for bits, i in position.items()}
  return found
