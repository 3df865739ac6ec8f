"""Probabilities of sets that are drawn without replacement.

With `p` the law of the first draw and `S` the set drawn, let `phi(C)` be the
probability that what is left of `S` is drawn next, in any order, once `C` is
gone:

```none
  phi(C) = sum_{s in S - C}  p(s) / (1 - p(C))  phi(C + s),      phi(S) = 1
```

One pass over the subsets of `S`, from the largest down, gives all that is
needed. `1 - p(C)` is a sum of what is left, never a difference.
"""

import itertools

import numpy as np
import tensorflow as tf

__all__ = ['MOST_DRAWS', 'leave_one_out_weights']

MOST_DRAWS = 8


def leave_one_out_weights(log_probs, log_beyond):
  """Weights of a set that was drawn without replacement.

  Args:
    log_probs: `Tensor` of shape `[M] + batch_shape`, `log p(s)`; `-inf` where
      there was nothing left to draw.
    log_beyond: `Tensor` of `batch_shape`, log-mass of what is not in the set.

  Returns:
    first: `Tensor` of shape `[M] + batch_shape`: the probability that `s` was
      the first, given the set. They sum to 1.
    others: `Tensor` of shape `[M, M] + batch_shape`, `others[s, t]`: `p(s)` at
      `t = s`, else `1 - p(s)` times the probability that `t` was the second,
      given the set and that `s` was the first.
  """
  size = log_probs.shape[0]
  levels = _log_phi(log_probs, log_beyond)
  log_phi = lambda *gone: levels[_bits(set(range(size)) - set(gone))]
  first = [_exp(log_probs[s] + log_phi(s) - log_phi()) for s in range(size)]
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


def _bits(members):
  return sum(1 << s for s in members)


def _exp(x):
  """`exp`, and 0 for what is left of `-inf - -inf`."""
  return tf.where(tf.math.is_nan(x), tf.zeros_like(x), tf.exp(x))


def _log_phi(log_probs, log_beyond):
  """`log phi` by the bits of what is left, for the three largest sizes."""
  size = log_probs.shape[0]
  position = {0: 0}
  level = tf.zeros_like(log_beyond)[tf.newaxis]  # [subsets] + batch_shape
  found = {0: level[0]}
  for count in range(1, size + 1):
    subsets = list(itertools.combinations(range(size), count))
    smaller = [[position[_bits(c) & ~(1 << s)] for s in c] for c in subsets]
    probs = tf.gather(log_probs, np.array(subsets))
    drawn = probs + tf.gather(level, np.array(smaller))
    own = tf.reduce_logsumexp(probs, axis=1)
    left = tf.reduce_logsumexp(
      tf.stack([own, tf.broadcast_to(log_beyond, tf.shape(own))]), axis=0
    )
    # Where nothing possible is left, nothing more had to be drawn.
    level = tf.where(
      tf.math.is_finite(own),
      tf.reduce_logsumexp(drawn, axis=1) - left,
      tf.zeros_like(own),
    )
    position = {_bits(c): i for i, c in enumerate(subsets)}
    if count >= size - 2:
      found |= {bits: level[i] for bits, i in position.items()}
  return found
