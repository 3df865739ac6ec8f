# SPDX-License-Identifier: Apache-2.0
"""Distributions with a batch of any size, even one unknown while tracing."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from zoo import chain_of, markov_chain_of

tfb = tfp.bijectors
tfd = tfp.distributions


class Batched(NamedTuple):
  """A distribution whose batch may have any size.

  Attributes:
    build: Callable that maps parameters of shape `[B] + shape` to a
      distribution. It does not need the static size of the batch.
    shape: Tuple of Python `int`s, the shape of the parameters of one batch
      member.
    is_finite: Whether the support is finite and its size is static.
    low: Python `float`, the smallest parameter.
    high: Python `float`, the largest parameter.
    may_be_empty: Whether TFP accepts a batch that is statically known to be
      empty.
  """

  build: Callable
  shape: tuple = ()
  is_finite: bool = True
  low: float = -1.0
  high: float = 1.0
  may_be_empty: bool = True

  def parameter(self, size):
    """Returns the parameters of a batch as a `float64` array."""
    shape = (size, *self.shape)
    # The golden ratio spreads the numbers evenly, and no two are equal.
    x = np.modf(0.3 + 0.618034 * np.arange(np.prod(shape, dtype=int)))[0]
    return np.reshape(self.low + (self.high - self.low) * x, shape)


def _positive(build, *shape, is_finite=True):
  return Batched(build, shape, is_finite, low=0.2, high=0.8)


def _counts(build, *shape, low=-1.0, high=1.0):
  return Batched(build, shape, False, low, high)


def _constant(value):
  return tf.constant(value, tf.float64)


_OUTCOMES = [-1.0, 0.5, 2.0]
_CUTPOINTS = [-1.0, 0.25, 1.5]

PLAIN = {
  'Categorical': Batched(lambda x: tfd.Categorical(logits=x), (4,)),
  'Categorical-probs': _positive(lambda x: tfd.Categorical(probs=x), 4),
  'OneHotCategorical': Batched(
    lambda x: tfd.OneHotCategorical(logits=x, dtype=tf.float64), (4,)
  ),
  'OneHotCategorical-probs': _positive(
    lambda x: tfd.OneHotCategorical(probs=x, dtype=tf.float64), 4
  ),
  'Bernoulli': Batched(lambda x: tfd.Bernoulli(logits=x)),
  'Bernoulli-probs': _positive(lambda x: tfd.Bernoulli(probs=x)),
  'FiniteDiscrete': Batched(
    lambda x: tfd.FiniteDiscrete(_constant(_OUTCOMES), logits=x), (3,)
  ),
  'FiniteDiscrete-probs': _positive(
    lambda x: tfd.FiniteDiscrete(_constant(_OUTCOMES), probs=x), 3
  ),
  'OrderedLogistic': Batched(
    lambda x: tfd.OrderedLogistic(_constant(_CUTPOINTS), x)
  ),
  'BetaBinomial': _positive(
    lambda x: tfd.BetaBinomial(_constant(4.0), x, 2.0 * x)
  ),
  'Binomial': Batched(lambda x: tfd.Binomial(_constant(4.0), logits=x)),
  'Binomial-probs': _positive(lambda x: tfd.Binomial(_constant(4.0), probs=x)),
  'Binomial-total_count': _counts(
    lambda x: tfd.Binomial(tf.round(4.0 + x), logits=x)
  ),
  'Poisson': _counts(lambda x: tfd.Poisson(rate=x), low=0.5, high=4.0),
  'Poisson-log_rate': _counts(lambda x: tfd.Poisson(log_rate=x)),
  'NegativeBinomial': _counts(
    lambda x: tfd.NegativeBinomial(_constant(2.5), logits=x)
  ),
  'NegativeBinomial-probs': _positive(
    lambda x: tfd.NegativeBinomial(_constant(2.5), probs=x), is_finite=False
  ),
  'Geometric': _counts(lambda x: tfd.Geometric(logits=x)),
  'Geometric-probs': _positive(
    lambda x: tfd.Geometric(probs=x), is_finite=False
  ),
  'CategoricalChain': Batched(chain_of, (10,)),
  'MarkovChain': Batched(markov_chain_of, (4,)),
  'Zipf': _counts(lambda x: tfd.Zipf(power=x), low=2.5, high=4.0),
}


def _reshaped(x):
  """Builds a batch of shape `[1, B]` from parameters of shape `[B]`."""
  return tfd.BatchReshape(tfd.Categorical(logits=x), [1, tf.shape(x)[0]])


def _broadcast(x):
  """Builds three copies of each batch member."""
  one = tfd.OneHotCategorical(logits=x[:, tf.newaxis], dtype=tf.float64)
  return tfd.BatchBroadcast(one, to_shape=[tf.shape(x)[0], 3])


def _nested(x):
  shifted = tfb.Shift(_constant(1.0))(tfd.Geometric(logits=x))
  return tfd.Sample(tfd.Independent(shifted, 1), 2)


WRAPPED = {
  'Shift': _counts(
    lambda x: tfb.Shift(_constant(2.0))(tfd.Poisson(log_rate=x))
  ),
  # Only the shift has a batch.
  'Shift-batch': Batched(
    lambda x: tfb.Shift(x)(tfd.Binomial(_constant(3.0), logits=_constant(0.4)))
  ),
  # While tracing, it is not known whether one of the two is broadcast.
  'Shift-both': _counts(lambda x: tfb.Shift(x)(tfd.Poisson(log_rate=x))),
  'Shift-integers': Batched(
    lambda x: tfb.Shift(tf.constant(5))(tfd.Categorical(logits=x)), (4,)
  ),
  'Sample': Batched(lambda x: tfd.Sample(tfd.Bernoulli(logits=x), 3)),
  'Sample-counts': _counts(lambda x: tfd.Sample(tfd.Geometric(logits=x), 2)),
  'BatchReshape': Batched(_reshaped, (4,), may_be_empty=False),
  'BatchReshape-rest': Batched(
    lambda x: tfd.BatchReshape(
      tfd.OneHotCategorical(logits=x, dtype=tf.float64), [1, -1]
    ),
    (4,),
  ),
  'BatchBroadcast': Batched(_broadcast, (4,)),
  'BatchBroadcast-with': Batched(
    lambda x: tfd.BatchBroadcast(
      tfd.Binomial(_constant(3.0), logits=x), with_shape=[2, 1]
    )
  ),
  'Independent': Batched(
    lambda x: tfd.Independent(tfd.Categorical(logits=x), 1), (2, 3)
  ),
  'Independent-Bernoulli': Batched(
    lambda x: tfd.Independent(tfd.Bernoulli(logits=x), 1), (3,)
  ),
  'Independent-OneHotCategorical': Batched(
    lambda x: tfd.Independent(
      tfd.OneHotCategorical(logits=x, dtype=tf.float64), 1
    ),
    (2, 3),
  ),
  'Independent-Binomial': Batched(
    lambda x: tfd.Independent(tfd.Binomial(_constant(2.0), logits=x), 1), (2,)
  ),
  'nested': _counts(_nested, 2),
}
ALL = PLAIN | WRAPPED
