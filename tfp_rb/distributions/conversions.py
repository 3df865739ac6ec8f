# SPDX-License-Identifier: Apache-2.0
"""Converts potentials, hidden Markov models and Markov chains to logits."""

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.distributions import recursions
from tfp_rb.distributions.checks import (
  check_observed,
  check_potential_shapes,
  checks_of_potentials,
)
from tfp_rb.internal import dtypes, logspace, shapes
from tfp_rb.internal.types import Distribution

__all__ = ['logits_of', 'normalise', 'potentials_of']

tfd = tfp.distributions


def normalise(
  unary: Any, pairwise: Any, validate_args: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Normalises a linear chain of potentials by a backward recursion.

  Args:
    unary: Differentiable `Tensor` of shape `[..., T, K]`.
    pairwise: Differentiable `Tensor` of shape `[..., T - 1, K, K]`.
    validate_args: Python `bool`, whether to check their values.

  Returns:
    initial_logits: `Tensor` of shape `batch_shape + [K]`.
    transition_logits: `Tensor` of shape `batch_shape + [T - 1, K, K]`.
    log_normalizer: `Tensor` of shape `batch_shape`.
  """
  unary, pairwise = (
    dtypes.at_least_float32(tf.convert_to_tensor(x)) for x in (unary, pairwise)
  )
  batch_shape = check_potential_shapes(unary, pairwise)
  rows = shapes.size(batch_shape)
  num_steps, num_states = shapes.as_list(unary)[-2:]
  last = shapes.as_list(pairwise)[-3:]
  unary = tf.broadcast_to(unary, [*batch_shape, num_steps, num_states])
  unary = tf.reshape(unary, [rows, num_steps, num_states])
  pairwise = tf.broadcast_to(pairwise, [*batch_shape, *last])
  pairwise = tf.reshape(pairwise, [rows, *last])
  # Each factor contains the potential of the state at its own step.
  pairs = pairwise + unary[:, 1:, tf.newaxis]
  factors = recursions.join_factors(
    unary[:, 0], tf.transpose(pairs, [1, 0, 2, 3])
  )
  messages, log_normalizer = recursions.backward_messages(factors)
  if validate_args:
    with tf.control_dependencies(
      checks_of_potentials(unary, pairwise, log_normalizer)
    ):
      log_normalizer = tf.identity(log_normalizer)
  # A row of `-inf` belongs to a state that no path goes through, or to
  # potentials that allow no path. Make it uniform, which is a valid row.
  logits = factors + messages[:, :, tf.newaxis]
  is_dead = tf.reduce_all(logits < logits.dtype.min, axis=-1, keepdims=True)
  logits = tf.where(is_dead, tf.zeros_like(logits), logits)
  return (
    tf.reshape(logits[0, :, 0], [*batch_shape, num_states]),
    tf.reshape(tf.transpose(logits[1:], [1, 0, 2, 3]), [*batch_shape, *last]),
    tf.reshape(log_normalizer, batch_shape),
  )


def potentials_of(
  hmm: Distribution, observations: Any, mask: Any
) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the potentials of the posterior of a hidden Markov model.

  Args:
    hmm: A `tfd.HiddenMarkovModel`.
    observations: `Tensor` of shape `[..., T]` plus the event shape of an
      observation.
    mask: Boolean `Tensor` of shape `[..., T]`, or `None`.

  Returns:
    unary: `Tensor` of shape `[..., T, K]`, the log of the joint density without
      the transitions.
    pairwise: `Tensor` of shape `[..., T - 1, K, K]`.
  """
  if not isinstance(hmm, tfd.HiddenMarkovModel):
    raise TypeError(
      f'`hmm` must be a `tfd.HiddenMarkovModel`; got {hmm!r}. For other models '
      'compute the log-potentials and use `from_potentials`.'
    )
  law = hmm.observation_distribution
  observations = tf.convert_to_tensor(observations, dtype_hint=law.dtype)
  mask = hmm.mask if mask is None else mask
  if mask is not None:
    mask = tf.convert_to_tensor(mask, tf.bool)
  num_steps = check_observed(hmm, observations, mask)
  if mask is not None:
    observations = _with_possible_values(hmm, observations, mask)
  likelihood = _log_likelihood(hmm, observations, num_steps)
  if mask is not None:
    # A missing observation contributes 0 to the potentials.
    likelihood = tf.where(
      mask[..., tf.newaxis], tf.zeros_like(likelihood), likelihood
    )
  initial = _log_probs(hmm.initial_distribution, '`initial_distribution`')
  initial = tf.cast(initial, likelihood.dtype)
  # The distribution of the first state belongs to the first step.
  is_first = tf.equal(tf.range(num_steps), 0)[:, tf.newaxis]
  unary = likelihood + tf.where(
    is_first, initial[..., tf.newaxis, :], tf.zeros([], initial.dtype)
  )
  pairwise = _log_probs(
    hmm.transition_distribution, '`transition_distribution`'
  )
  if not hmm.parameters['time_varying_transition_distribution']:
    pairwise = pairwise[..., tf.newaxis, :, :]
    *front, _, before, after = shapes.as_list(pairwise)
    shape = [*front, num_steps - 1, before, after]
    pairwise = tf.broadcast_to(pairwise, shape)
  return unary, tf.cast(pairwise, likelihood.dtype)


def _with_possible_values(
  hmm: Distribution, observations: tf.Tensor, mask: tf.Tensor
) -> tf.Tensor:
  """Replaces missing observations, which may be NaN, by possible values."""
  # Masking the likelihood is not enough: the gradient of the density of NaN is
  # NaN, and so is its product with 0.
  law = hmm.observation_distribution
  event_rank = law.event_shape.rank
  # A draw in any state is possible: the first state's is as good as another's.
  drawn = tf.gather(law.sample(seed=[0, 0]), 0, axis=-1 - event_rank)
  if not hmm.parameters['time_varying_observation_distribution']:
    drawn = tf.expand_dims(drawn, -1 - event_rank)  # the same at all steps
  is_missing = tf.reshape(mask, shapes.as_list(mask) + [1] * event_rank)
  return tf.where(is_missing, tf.stop_gradient(drawn), observations)


def _log_likelihood(
  hmm: Distribution, observations: tf.Tensor, num_steps: Any
) -> tf.Tensor:
  """Returns the log-densities of observations in all states, `[..., T, K]`."""
  law = hmm.observation_distribution
  event_rank = law.event_shape.rank
  if hmm.parameters['time_varying_observation_distribution']:
    # The last dimensions of the batch are those of steps and states.
    expanded = tf.expand_dims(observations, -1 - event_rank)
    return dtypes.at_least_float32(law.log_prob(expanded))
  # Move the steps in front of the batch, as if they were draws.
  batch_shape = shapes.as_list(observations)
  event_shape = batch_shape[len(batch_shape) - event_rank :]
  batch_shape = batch_shape[: len(batch_shape) - 1 - event_rank]
  batch_shape = shapes.broadcast(batch_shape, shapes.batch_shape(hmm))
  observations = tf.broadcast_to(
    observations, [*batch_shape, num_steps, *event_shape]
  )
  rank = len(batch_shape)
  observations = tf.transpose(
    observations,
    [rank, *range(rank), *range(rank + 1, rank + 1 + event_rank)],
  )
  expanded = tf.expand_dims(observations, -1 - event_rank)
  result = dtypes.at_least_float32(law.log_prob(expanded))
  return tf.transpose(result, [*range(1, rank + 1), 0, rank + 1])


def logits_of(markov_chain: Distribution) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the logits of a Markov chain over a finite set of states.

  Args:
    markov_chain: A `tfd.MarkovChain`.

  Returns:
    initial_logits: `Tensor` of shape `batch_shape + [K]`.
    transition_logits: `Tensor` of shape `batch_shape + [T - 1, K, K]`.
  """
  if not isinstance(markov_chain, tfd.MarkovChain):
    raise TypeError(
      f'`markov_chain` must be a `tfd.MarkovChain`; got {markov_chain!r}. '
      'Build a `CategoricalChain` from logits instead.'
    )
  prior = markov_chain.initial_state_prior
  initial = _log_probs(prior, '`initial_state_prior`')
  num_steps = tf.get_static_value(markov_chain.num_steps)
  *batch_shape, num_states = shapes.as_list(initial)
  if num_steps is None or not isinstance(num_states, int):
    raise ValueError(
      'The number of steps and of states of `markov_chain` must be known '
      f'statically; got `num_steps` {markov_chain.num_steps} and logits of '
      f'shape {initial.shape}. Pass a constant, or set the static shape.'
    )
  num_transitions = int(num_steps) - 1
  # Like `log_prob` of the Markov chain, pass the steps along the first axis of
  # the states. The second axis holds all states before the transition.
  states = tf.range(num_states)
  front = [num_transitions, num_states, *batch_shape]
  states = tf.reshape(states, [num_states] + [1] * len(batch_shape))
  states = tf.cast(tf.broadcast_to(states, front), prior.dtype)
  law = markov_chain.transition_fn(tf.range(num_transitions), states)
  logits = _log_probs(law, 'The result of `transition_fn`')
  if logits.shape[-1] != num_states:
    raise ValueError(
      '`transition_fn` of a `tfd.MarkovChain` must return a distribution over '
      f'the {num_states} states of `initial_state_prior`; got '
      f'{logits.shape[-1]} states. Use the same number of states.'
    )
  front = shapes.broadcast(front, shapes.as_list(logits)[:-1])
  logits = tf.broadcast_to(logits, [*front, num_states])
  rank = len(front)
  logits = tf.transpose(logits, [*range(2, rank), 0, 1, rank])
  return tf.cast(initial, logits.dtype), logits


def _log_probs(law: Distribution, name: str) -> tf.Tensor:
  """Returns the log-probabilities of all states, `batch_shape + [K]`."""
  if isinstance(law, tfd.Categorical):
    return logspace.log_softmax(
      dtypes.at_least_float32(logspace.categorical_logits(law))
    )
  if isinstance(law, tfd.Bernoulli):
    return logspace.bernoulli_log_probs(law)
  raise TypeError(
    f'{name} must be a `tfd.Categorical` or a `tfd.Bernoulli`; got '
    f'`{type(law).__name__}`. Only chains over a finite set of states can be '
    'converted.'
  )
