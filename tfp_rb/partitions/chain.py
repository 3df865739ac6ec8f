# SPDX-License-Identifier: Apache-2.0
"""Partitions the paths of chains over a finite set of states.

The `k` best paths are found by dynamic programming. The rest is a disjoint
union of cells. Take a prefix of a summed path, and a state with which no summed
path continues that prefix. The cell holds all paths that begin with this prefix
and this state; the later states follow the chain. The mass of the rest is a sum
of positive terms, never a difference, and a draw needs no rejection. Memory is
linear in the number of steps.
"""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.distributions import CategoricalChain, recursions
from tfp_rb.internal import shapes
from tfp_rb.partitions.base import Partition, SiteGroup
from tfp_rb.partitions.registry import NotRegisteredError, register
from tfp_rb.partitions.table import IntegerTable
from tfp_rb.partitions.trie import choose_cylinder, complement

__all__ = ['Chain', 'State']

tfd = tfp.distributions


@register(CategoricalChain, kind='paths')
class Chain(Partition):
  """Partitions the paths of a chain.

  Methods compute with paths of shape `[T, rows, n]`, as `recursions` does.
  """

  # The best paths come from a recursion that keeps lists.
  is_search_costly = True

  def __init__(self, distribution, chain=None):
    """Makes the partition with `k = 0`.

    Args:
      distribution: The distribution, whose values are paths.
      chain: A `CategoricalChain` that equals `distribution`; `None` if
        `distribution` is one itself.
    """
    self.distribution = distribution
    chain = distribution if chain is None else chain
    num_steps, num_states = chain.event_shape[0], chain.num_states
    if num_steps is None:
      raise ValueError(
        'The number of steps of `distribution`, a chain, must be known '
        'statically; got `transition_logits` of shape '
        f'{chain.transition_logits.shape}. Set their static shape.'
      )
    self.num_sites = self._num_steps = num_steps
    self.num_uniforms = num_steps
    self._num_states = num_states
    self._log_factors = log_factors = chain.log_factors()
    self._summed: Any = None  # `values` as paths; `K` marks an invalid state
    self._complement: Any = None  # as returned by `trie.complement`
    batch_shape = shapes.batch_shape(chain)
    self._rows = shapes.size(batch_shape)
    super().__init__(
      values=tf.zeros([0, *batch_shape, num_steps], distribution.dtype),
      log_weights=tf.zeros([0, *batch_shape], log_factors.dtype),
      log_rest=tf.zeros(batch_shape, log_factors.dtype),
      sample_rest=None,
      num_values=num_states**num_steps,
    )
    self.has_rest = True

  def _encode(self, paths):
    """Turns paths into values of the distribution."""
    values = tf.transpose(paths, [2, 1, 0])
    n = shapes.leading(values)
    values = tf.reshape(values, [n, *self.batch_shape, self._num_steps])
    return tf.cast(values, self.distribution.dtype)

  def _decode(self, values):
    """Turns values into paths; the inverse of `_encode`."""
    values = tf.convert_to_tensor(values)
    if values.dtype.is_floating:
      values = tf.round(values)
    values = shapes.with_batch(tf.cast(values, tf.int32), [self._rows], 1)
    return tf.transpose(values, [2, 1, 0])

  def _unflatten(self, x):
    """Reshapes `[rows, n]` to `[n] + batch_shape`."""
    return shapes.with_batch(tf.transpose(x), self.batch_shape)

  def best(self, num_summed):
    num_summed = min(num_summed, self.num_values)
    if num_summed == 0:
      return self
    # The recursion compares `k K^2` paths at each step. If the chain has no
    # more paths than that, list them all instead.
    if self.num_values <= num_summed * self._num_states**2:
      paths = self._best_of_list(num_summed)
    else:
      paths = recursions.best_paths(self._log_factors, num_summed)
    return self._split(
      paths,
      self._encode(paths),
      tf.stop_gradient(recursions.log_prob_of(self._log_factors, paths)),
      is_all=num_summed == self.num_values,
    )

  def _best_of_list(self, num_summed):
    """Finds the best paths in a list of all; breaks ties like `best_paths`."""
    num_states, num_steps = self._num_states, self._num_steps
    log_factors = tf.stop_gradient(self._log_factors)
    log_probs = log_factors[0, :, 0]
    # The loop is unrolled, with one round per step. A list this short has few
    # steps.
    for t in range(1, num_steps):
      prefixes = tf.reshape(log_probs, [self._rows, -1, num_states, 1])
      log_probs = prefixes + log_factors[t][:, tf.newaxis]
    log_probs = tf.reshape(log_probs, [self._rows, self.num_values])
    _, index = tf.math.top_k(log_probs, num_summed)  # [rows, k]
    digits = num_states ** np.arange(num_steps, dtype=np.int32)[::-1]
    digits = np.reshape(digits, [num_steps, 1, 1])
    return index // digits % num_states

  def log_mode_weight(self):
    best = recursions.best_log_prob(tf.stop_gradient(self._log_factors))
    return tf.reshape(best, self.batch_shape)

  def _split(self, paths, values, log_weights, is_all=False):
    """Splits off summed paths.

    Args:
      paths: `int32` `Tensor` of shape `[T, rows, k]`; `K` stands for a state
        that does not exist.
      values: `Tensor`, the values to list.
      log_weights: `Tensor` of shape `[rows, k]`.
      is_all: Python `bool`, whether there are no other paths.
    """
    result = self.replace(
      values=values,
      log_weights=self._unflatten(log_weights),
      has_rest=not is_all,
      _summed=paths,
    )
    if is_all:
      # Do not build the empty complement: its memory is quadratic in the number
      # of summed paths.
      result.log_rest = tf.fill(
        self.batch_shape, tf.constant(-np.inf, log_weights.dtype)
      )
      return result
    # The log-probabilities of the states at each step, given the state before
    # it on each summed path: [rows, k, T, K].
    symbols = tf.transpose(
      recursions.own_rows(
        tf.stop_gradient(self._log_factors),
        tf.minimum(paths, self._num_states - 1),
      ),
      [1, 2, 0, 3],
    )
    cylinders, continuations = complement(
      tf.transpose(paths, [1, 2, 0]), symbols
    )
    log_rest = tf.reduce_logsumexp(cylinders, axis=[1, 2])
    result.log_rest = tf.reshape(log_rest, self.batch_shape)
    result._complement = cylinders, continuations
    # One uniform chooses the cell, one the state that enters it, and one each
    # later state. The first state is never among these later states.
    result.num_uniforms = self._num_steps + 1
    return result

  def excluding(self, values):
    paths = self._decode(values)
    states = tf.clip_by_value(paths, 0, self._num_states - 1)
    log_weights = recursions.log_prob_of(self._log_factors, paths)
    # A path with an invalid state has no mass and excludes nothing.
    is_state = tf.equal(states, paths)
    return self._split(
      tf.where(is_state, paths, self._num_states),
      self._encode(states),
      tf.stop_gradient(log_weights),
    )

  def rest_from_uniforms(self, u):
    u = shapes.with_batch(u, [self._rows], 1)  # [n, rows, uniforms]
    if self._complement is None:
      u = tf.transpose(u, [2, 1, 0])
      return self._encode(recursions.draw_paths(self._log_factors, u))
    cylinders, continuations = self._complement
    summed = tf.minimum(self._summed, self._num_states - 1)
    prefix, departure, leaving = choose_cylinder(
      tf.transpose(summed, [1, 2, 0]),
      cylinders,
      continuations,
      tf.transpose(u[..., :2], [1, 0, 2]),
    )
    # States up to the departure are given, the later ones are drawn.
    step = tf.reshape(tf.range(self._num_steps), [self._num_steps, 1, 1])
    given = tf.where(
      step < departure,
      tf.transpose(prefix, [2, 0, 1]),
      tf.where(tf.equal(step, departure), leaving, -1),
    )
    # The uniform of the first state, which is given, is not used.
    u = tf.transpose(u[..., 1:], [2, 1, 0])
    return self._encode(recursions.draw_paths(self._log_factors, u, given))

  def expect_log_probs(self, other, scale, scale_of_other):
    if not isinstance(other, Chain) or (
      (other._num_steps, other._num_states)
      != (self._num_steps, self._num_states)
    ):
      return None
    terms = tf.zeros([], self._log_factors.dtype)
    for partition, factor in ((self, scale), (other, scale_of_other)):
      if factor:
        log_factors = tf.cast(partition._log_factors, terms.dtype)
        terms += factor * recursions.unflatten(
          log_factors, partition.batch_shape
        )
    return recursions.expected_along(self._log_factors, terms, self.batch_shape)

  def _log_prob(self, values):
    paths = self._decode(values)
    return self._unflatten(recursions.log_prob_of(self._log_factors, paths))

  def score_norm(self, values):
    # Each step adds the norm of the score w.r.t. the row of logits that it
    # uses: 1 - 2 q(z_t | z_{t-1}) + sum_j q(j | z_{t-1})^2.
    paths = tf.clip_by_value(self._decode(values), 0, self._num_states - 1)
    factors = tf.exp(self._log_factors)
    own = recursions.terms_along(factors, paths)
    collision = recursions.own_rows(tf.reduce_sum(factors**2, axis=-1), paths)
    return self._unflatten(tf.reduce_sum(1.0 - 2.0 * own + collision, axis=0))

  def conditional_sites(self, joint):
    paths = self._decode(joint)
    log_factors = self._log_factors
    own = recursions.own_rows(log_factors, paths)[:, :, 0]  # [T, rows, K]
    following = tf.gather(log_factors[1:], paths[1:], axis=3, batch_dims=2)
    # No state follows the last one.
    following = tf.concat([following[..., 0], tf.zeros_like(own[:1])], axis=0)
    logits, own = (
      recursions.unflatten(x, self.batch_shape)
      for x in (tf.stop_gradient(own + following), own)
    )
    law = tfd.Categorical(logits=logits, dtype=self.distribution.dtype)
    return [SiteGroup(State(law, logits, own), _extract, _insert)]


class State(IntegerTable):
  """Partitions one state of a chain given the states before and after it.

  The weights are the probabilities given both neighbours. The `log_prob` is the
  factor of the state given only the state before it: the factor of the next
  state belongs to the next site, and would otherwise be counted twice.
  """

  def __init__(self, distribution, logits, own):
    """Makes the partition with `k = 0`.

    Args:
      distribution: The distribution.
      logits: `Tensor` of shape `batch_shape + [T, K]`, the logits of each state
        given both neighbours.
      own: Differentiable `Tensor` of that shape, the log-probabilities given
        only the state before.
    """
    super().__init__(distribution, logits)
    self._own = tf.reshape(own, [self._num_rows, self.num_values])

  def excluding(self, values):
    raise NotImplementedError(
      '`sampler` must be `samplers.IID()` for single states of a chain, '
      'because given states cannot be excluded there. Use `num_summed` and '
      '`samplers.IID()`.'
    )

  def _log_prob(self, values):
    index = tf.transpose(self._flatten(self.decode(values)))  # [rows, m]
    chosen = tf.gather(self._own, index, batch_dims=1)
    return self._unflatten(tf.transpose(chosen))


def _extract(joint):
  return joint  # A path is the vector of its states.


def _insert(joint, values):
  del joint  # There are no other sites to keep.
  return values


@register(tfd.MarkovChain, kind='paths')
def _of_markov_chain(q):
  prior = q.initial_state_prior
  if not isinstance(prior, tfd.Categorical | tfd.Bernoulli):
    raise NotRegisteredError(
      'A partition of a `tfd.MarkovChain` requires parts that are '
      '`tfd.Categorical` or `tfd.Bernoulli`; got an `initial_state_prior` of '
      f'`{type(prior).__name__}`. To sample without a partition, use '
      '`num_summed=0` or `tfp_rb.REINFORCE(num_samples=...)`.'
    )
  return Chain(q, CategoricalChain.from_markov_chain(q))
