# SPDX-License-Identifier: Apache-2.0
"""Registers the divergences of chains."""

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.distributions import recursions
from tfp_rb.distributions.categorical_chain import CategoricalChain
from tfp_rb.distributions.checks import check_same_event
from tfp_rb.internal import shapes

__all__: list[str] = []

tfd = tfp.distributions


@tfd.RegisterKL(CategoricalChain, CategoricalChain)
def _kl_chain_chain(a, b, name=None):
  """Returns the divergence of two chains as a sum over the transitions."""
  check_same_event(a, b)
  with tf.name_scope(name or 'kl_chain_chain'):
    log_a, log_b = a.log_factors(), b.log_factors()
    batch_shape = shapes.batch_shape(a)
    # If both are `-inf`, the difference is NaN, and `expected_along` counts it
    # as 0.
    terms = recursions.unflatten(log_a, batch_shape) - recursions.unflatten(
      log_b, shapes.batch_shape(b)
    )
    return recursions.expected_along(log_a, terms, batch_shape)


@tfd.RegisterKL(CategoricalChain, tfd.MarkovChain)
def _kl_chain_markov(a, b, name=None):
  return _kl_chain_chain(a, CategoricalChain.from_markov_chain(b), name)


@tfd.RegisterKL(tfd.MarkovChain, CategoricalChain)
def _kl_markov_chain(a, b, name=None):
  return _kl_chain_chain(CategoricalChain.from_markov_chain(a), b, name)
