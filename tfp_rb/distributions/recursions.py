# SPDX-License-Identifier: Apache-2.0
"""Runs the recursions over the time steps of chains.

A chain over `K` states and `T` steps is given by its *factors*, `[T, rows, K,
K]`: entry `[t, r, i, j]` belongs to state `i` before step `t` and state `j` at
step `t`. The chain starts in state 0 before step 0, so that the first factor
has the same shape as the others; its rows are all equal. Paths have shape
`[T, rows, n]`.

All loops run over the time steps. Their memory is linear in `T`, and the time
to trace and compile them does not depend on `T`.
"""

import numpy as np
import tensorflow as tf

from tfp_rb.internal import gradients, logspace, loops, random, shapes

__all__ = [
  'backward_messages',
  'best_log_prob',
  'best_paths',
  'draw_paths',
  'expected',
  'expected_along',
  'join_factors',
  'log_prob_of',
  'marginals',
  'own_rows',
  'terms_along',
  'unflatten',
]


def join_factors(first, others):
  """Returns the factors of a chain.

  Args:
    first: `Tensor` of shape `[rows, K]`, of the first state.
    others: `Tensor` of shape `[T - 1, rows, K, K]`, of the transitions.

  Returns:
    factors: `Tensor` of shape `[T, rows, K, K]`.
  """
  rows, num_states = shapes.as_list(first)
  first = tf.broadcast_to(
    first[tf.newaxis, :, tf.newaxis], [1, rows, num_states, num_states]
  )
  return tf.concat([first, others], axis=0)


def _before(paths):
  """Returns the state before each step, 0 before the first."""
  return tf.concat([tf.zeros_like(paths[:1]), paths[:-1]], axis=0)


def terms_along(factors, paths):
  """Gathers the entries of the factors along paths.

  Args:
    factors: Differentiable `Tensor` of shape `[T, rows, K, K]`.
    paths: `int32` `Tensor` of shape `[T, rows, n]`, states in `[0, K)`.

  Returns:
    terms: `Tensor` of shape `[T, rows, n]`.
  """
  num_steps, rows, num_states, _ = shapes.as_list(factors)
  table = tf.reshape(factors, [num_steps, rows, num_states**2])
  index = _before(paths) * num_states + paths
  return tf.gather(table, index, batch_dims=2)


def own_rows(table, paths):
  """Gathers the rows of a table that belong to the state before each step.

  Args:
    table: `Tensor` of shape `[T, rows, K, ...]`.
    paths: As in `terms_along`.

  Returns:
    rows: `Tensor` of shape `[T, rows, n, ...]`.
  """
  return tf.gather(table, _before(paths), batch_dims=2)


def log_prob_of(log_factors, paths):
  """Returns the log-probability of paths; `-inf` if a state is invalid.

  Args:
    log_factors: Differentiable `Tensor` of shape `[T, rows, K, K]`.
    paths: `int32` `Tensor` of shape `[T, rows, n]`.

  Returns:
    log_prob: `Tensor` of shape `[rows, n]`.
  """
  last = log_factors.shape[-1] - 1
  states = tf.clip_by_value(paths, 0, last)
  is_path = tf.reduce_all(tf.equal(states, paths), axis=0)
  log_prob = tf.reduce_sum(terms_along(log_factors, states), axis=0)
  return tf.where(is_path, log_prob, tf.constant(-np.inf, log_prob.dtype))


def marginals(factors):
  """Returns the marginal probabilities of states and of pairs of states.

  Args:
    factors: Differentiable `Tensor` of shape `[T, rows, K, K]`, probabilities.

  Returns:
    states: `Tensor` of shape `[T, rows, K]`.
    pairs: `Tensor` of shape `[T, rows, K, K]`, of the states before and at each
      step. Before the first step, the state is 0.
  """
  initial = factors[:1, :, 0]
  num_steps, rows, num_states, _ = shapes.as_list(factors)
  # A sum of products needs no logarithms: nothing is divided, and a probability
  # that underflows is negligible.
  nothing = tf.zeros([num_steps - 1, rows, num_states], factors.dtype)
  states = gradients.linear_scan(factors, tf.concat([initial, nothing], axis=0))
  start = tf.one_hot(tf.zeros([1, rows], tf.int32), num_states)
  before = tf.concat([tf.cast(start, states.dtype), states[:-1]], axis=0)
  return states, before[..., tf.newaxis] * factors


def unflatten(x, batch_shape):
  """Reshapes `[T, rows, ...]` to `batch_shape + [T, ...]`."""
  x = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])
  return tf.reshape(x, [*batch_shape, *shapes.as_list(x)[1:]])


def expected(probs, terms, rank):
  """Sums products with probabilities, where 0 times infinity or NaN is 0.

  Args:
    probs: `Tensor`, probabilities.
    terms: `Tensor` that broadcasts against `probs`.
    rank: Python `int`, the number of last axes to sum over.

  Returns:
    expected: `Tensor`.
  """
  is_counted = (probs > 0.0) | tf.math.is_finite(terms)
  # Mask the terms and not the products, to keep NaN out of the gradients.
  terms = tf.where(is_counted, terms, tf.zeros_like(terms))
  return tf.reduce_sum(probs * terms, axis=list(range(-rank, 0)))


def expected_along(log_factors, terms, batch_shape):
  """Returns the expected sum of terms along a path.

  Args:
    log_factors: Differentiable `Tensor` of shape `[T, rows, K, K]`.
    terms: `Tensor` of shape `[..., T, K, K]`.
    batch_shape: List, the shape of the rows.

  Returns:
    expected: `Tensor` of the broadcast batch shape.
  """
  _, pairs = marginals(tf.exp(log_factors))
  return expected(unflatten(pairs, batch_shape), terms, 3)


def backward_messages(factors):
  """Sums over the later states of a chain whose factors are not normalised.

  Args:
    factors: Differentiable `Tensor` of shape `[T, rows, K, K]`, logarithms.

  Returns:
    messages: `Tensor` of shape `[T, rows, K]`, the log of the sum over the
      states after step `t`, given the state at step `t`, up to a constant for
      each step; `-inf` for a state without a continuation.
    log_normalizer: `Tensor` of shape `[rows]`, the log of the sum over paths.
  """
  known, shift = _messages(tf.stop_gradient(factors))
  # Relative to the known messages, the recursion is linear and all messages are
  # 1. The derivatives of their logarithms are exact at any order.
  is_dead = tf.equal(known, tf.constant(-np.inf, known.dtype))
  scale = tf.where(is_dead, tf.zeros_like(known), known)
  last = tf.zeros_like(known[:1])
  after = tf.concat([known[1:], last], axis=0)
  relative = tf.exp(
    factors
    + after[:, :, tf.newaxis]
    - scale[..., tf.newaxis]
    - shift[..., tf.newaxis, tf.newaxis]
  )
  # The backward recursion uses the factor of the next step. The last step has
  # none, so its sum over the states enters as an input.
  ends = tf.reduce_sum(relative[-1:], axis=-1)
  x = gradients.linear_scan(
    tf.concat([tf.zeros_like(relative[:1]), relative[:-1]], axis=0),
    tf.concat([tf.zeros_like(relative[:-1, ..., 0]), ends], axis=0),
    backwards=True,
  )
  messages = scale + logspace.log_of_probs(x)  # before each step
  log_normalizer = messages[0, :, 0] + tf.reduce_sum(shift, axis=0)
  return tf.concat([messages[1:], last], axis=0), log_normalizer


@loops.as_graph
def _messages(factors):
  """Returns the messages before each step, without a gradient.

  Args:
    factors: As in `backward_messages`.

  Returns:
    messages: `Tensor` of shape `[T, rows, K]`, relative to their largest entry.
      Otherwise the messages would grow with the number of steps, and their
      differences would lose digits.
    shift: `Tensor` of shape `[T, rows]`, the largest entry that was subtracted
      at each step.
  """
  _, rows, num_states, _ = shapes.as_list(factors)

  def step(carry, factor):
    message, _ = carry
    message = logspace.log_sum_exp(factor + message[:, tf.newaxis])
    shift = tf.reduce_max(message, axis=-1)
    shift = tf.where(tf.math.is_finite(shift), shift, tf.zeros_like(shift))
    return message - shift[:, tf.newaxis], shift

  return tf.scan(
    step,
    factors,
    (
      tf.zeros([rows, num_states], factors.dtype),
      tf.zeros([rows], factors.dtype),
    ),
    reverse=True,
  )


@loops.as_graph
def best_log_prob(log_factors):
  """Returns the log-probability of the best path, `[rows]`."""
  _, rows, num_states, _ = shapes.as_list(log_factors)
  last = tf.zeros([rows, num_states], log_factors.dtype)
  best = tf.foldr(
    lambda best, factor: tf.reduce_max(factor + best[:, tf.newaxis], axis=-1),
    tf.stop_gradient(log_factors),
    last,
  )
  return best[:, 0]


@loops.as_graph
def best_paths(log_factors, num_paths):
  """Finds the most probable paths by dynamic programming, last step first.

  For each state, the recursion keeps the `k` best continuations. It merges the
  continuations of a state at step `t - 1` from those of the states at step `t`.
  Ties go to the lowest state, so paths of equal probability are in
  lexicographic order (as far as rounding leaves them equal).

  Args:
    log_factors: `Tensor` of shape `[T, rows, K, K]`, log-probabilities.
    num_paths: Python `int` `k`, at least 1 and at most the number of paths.

  Returns:
    paths: `int32` `Tensor` of shape `[T, rows, k]`, best first. If fewer than
      `k` paths are possible, the others are arbitrary.
  """
  log_factors = tf.stop_gradient(log_factors)
  num_steps, rows, num_states, _ = shapes.as_list(log_factors)
  # After the last step there is a single continuation, the empty one.
  empty = tf.one_hot(0, num_paths, 0.0, -np.inf, dtype=log_factors.dtype)
  lists = tf.broadcast_to(empty, [rows, num_states, num_paths])
  pointers = tf.TensorArray(
    tf.int32, num_steps, element_shape=[lists.shape[0], num_states * num_paths]
  )

  def step(t, lists, pointers):
    values, pointer = _merge(tf.gather(log_factors, t), lists)
    # Only differences matter, and they would lose digits without this shift.
    largest = tf.reduce_max(values, axis=[1, 2], keepdims=True)
    largest = tf.where(tf.math.is_finite(largest), largest, 0.0)
    values = tf.ensure_shape(values - largest, lists.shape)
    pointer = tf.reshape(pointer, [rows, num_states * num_paths])
    return t - 1, values, pointers.write(t, pointer)

  _, _, pointers = tf.while_loop(
    lambda t, lists, pointers: t >= 0,
    step,
    (tf.convert_to_tensor(num_steps) - 1, lists, pointers),
    maximum_iterations=num_steps,
  )
  # Entry `i k + s` of a list points to the state and rank of its continuation.
  # The best paths are those that continue state 0 before the first step.
  start = tf.broadcast_to(tf.range(num_paths), [rows, num_paths])
  chosen = tf.scan(
    lambda at, pointer: tf.gather(pointer, at, batch_dims=1),
    pointers.stack(),
    start,
  )
  return chosen // num_paths


def _merge(log_factor, lists):
  """Finds the best continuations of each state from those of the next states.

  Every next state has a sorted list. The heads of these lists compete `k`
  times, and each time the next entry of its list replaces the winner. This
  touches `k K` entries for each state; `tf.math.top_k` of all of them takes
  about four times as long under XLA on a CPU.

  Args:
    log_factor: `Tensor` of shape `[rows, K, K]`.
    lists: `Tensor` of shape `[rows, K, k]`, log-probabilities of the best
      continuations after each state, best first.

  Returns:
    values: `Tensor` of shape `[rows, K, k]`.
    pointer: `int32` `Tensor` of that shape, `j k + s` for entry `s` of the list
      of state `j`.
  """
  rows, num_states, num_paths = shapes.as_list(lists)
  size = num_states * num_paths
  flat = tf.reshape(lists, [rows, size])
  flat = tf.pad(flat, [[0, 0], [0, 1]], constant_values=-np.inf)
  # The next state comes first, [K, rows, K]: a reduction over the first axis is
  # vectorised.
  state = tf.range(num_states)[:, tf.newaxis, tf.newaxis]
  heads = tf.transpose(log_factor, [2, 0, 1]) + tf.transpose(
    lists[..., 0]
  )[..., tf.newaxis]  # fmt: skip
  places = tf.zeros_like(heads, tf.int32) + state * num_paths
  static = [*heads.shape[1:]]

  def step(s, heads, places, values, pointer):
    best = tf.reduce_max(heads, axis=0)
    # Take the lowest of equal places, so that the lowest state wins a tie.
    place = tf.reduce_min(tf.where(tf.equal(heads, best), places, size), axis=0)
    place = tf.minimum(place, size - 1)  # `place` is `size` if `best` is NaN.
    winner = place // num_paths
    following = tf.gather(flat, place + 1, batch_dims=1)
    following += tf.gather(log_factor, winner, batch_dims=2)
    # Beyond the end of a list, `flat` holds the list of another state.
    is_last = tf.equal(place % num_paths, num_paths - 1)
    following = tf.where(is_last, tf.constant(-np.inf, heads.dtype), following)
    is_winner = tf.equal(state, winner)
    return (
      s + 1,
      tf.ensure_shape(tf.where(is_winner, following, heads), heads.shape),
      tf.ensure_shape(tf.where(is_winner, place + 1, places), places.shape),
      values.write(s, best),
      pointer.write(s, place),
    )

  arrays = [
    tf.TensorArray(dtype, num_paths, element_shape=static)
    for dtype in (heads.dtype, tf.int32)
  ]
  *_, values, pointer = tf.while_loop(
    lambda s, *_: s < num_paths,
    step,
    (tf.constant(0), heads, places, *arrays),
    maximum_iterations=num_paths,
  )
  return (
    tf.transpose(values.stack(), [1, 2, 0]),
    tf.transpose(pointer.stack(), [1, 2, 0]),
  )


@loops.as_graph
def draw_paths(log_factors, u, forced=None):
  """Draws paths by inverse CDF.

  Args:
    log_factors: `Tensor` of shape `[T, rows, K, K]`, log-probabilities.
    u: `float64` `Tensor` of shape `[T, rows, n]`, uniforms.
    forced: `int32` `Tensor` of shape `[T, rows, n]`, the given states; -1 marks
      a state to be drawn. `None` draws all states.

  Returns:
    paths: `int32` `Tensor` of shape `[T, rows, n]`.
  """
  log_factors = tf.stop_gradient(log_factors)
  start = tf.zeros_like(u[0], tf.int32)
  if forced is None:
    forced = tf.broadcast_to(-1, tf.shape(u))

  def step(state, elements):
    log_factor, u, forced = elements
    # Only the rows of the drawn states are exponentiated, [rows, n, K].
    own = tf.exp(tf.gather(log_factor, state, batch_dims=1))
    drawn = random.search_index(own, u)
    return tf.ensure_shape(tf.where(forced < 0, drawn, forced), start.shape)

  return tf.scan(step, (log_factors, u, forced), start)
