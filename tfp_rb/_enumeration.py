"""All outcomes of an estimator, one by one: exact moments without a seed."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb import _atoms
from tfp_rb._evaluations import count_evaluations
from tfp_rb._expectation import expectation
from tfp_rb.partitions.base import find_partition

__all__ = ['Outcomes', 'enumerate_outcomes', 'exact_reference', 'tile']


class Outcomes(NamedTuple):
  """Every outcome `t` of the draws of an estimator.

  Attributes:
    probabilities: Array of shape `[T] + batch_shape`, each row sums to 1.
    values: Array of shape `[T] + batch_shape`, the estimates of the value.
    weighted_gradients: List of arrays `[T] + shape` of the parameters: gradient
      of `sum(probabilities[t] * values[t])` over the batch. Their sum over `t`
      is the expected gradient.
    num_evaluations: Python `int`, the atoms at which `f` is evaluated for one
      estimate.
  """

  probabilities: np.ndarray
  values: np.ndarray
  weighted_gradients: list
  num_evaluations: int


def tile(parameters, num_copies):
  """Copies every parameter along a new first axis, which becomes a batch."""
  return [
    tf.broadcast_to(p, [num_copies, *p.shape])
    for p in map(tf.convert_to_tensor, parameters)
  ]


def _select(table, index, site_axis):
  """Takes `table[index[t, s, j], t, ..., s]`.

  Args:
    table: `Tensor` of shape `[K, T] + batch_shape + [S] + event_shape`.
    index: `Tensor` of shape `[T, S, draws]`.
    site_axis: Python `int`, the axis of the `S` sites.

  Returns:
    taken: `Tensor` of shape `[draws, T] + batch_shape + [S] + event_shape`.
  """
  others = [i for i in range(2, table.shape.rank) if i != site_axis]
  order = [1, site_axis, 0, *others]  # [T, S, K, ...]
  taken = tf.gather(tf.transpose(table, order), index, batch_dims=2)
  return tf.transpose(taken, np.argsort(order))


def _law_of_rest(every, part, num_summed):
  """Probabilities of all values given that none of the summed is drawn."""
  num_listed = part.values.shape[0]
  batch_rank = part.log_rest.shape.rank
  equal = every.values[:, tf.newaxis] == part.values[tf.newaxis]
  equal = tf.reduce_all(
    equal, axis=list(range(2 + batch_rank, equal.shape.rank))
  )
  slots = tf.reshape(tf.range(num_listed), [-1] + [1] * batch_rank)
  summed = tf.reduce_any(equal & (slots < num_summed), axis=1)
  masses = tf.where(summed, tf.zeros_like(every.weights), every.weights)
  total = tf.reduce_sum(masses, axis=0)
  # From an empty rest anything may be drawn; it will weigh 0.
  masses = tf.where(total > 0.0, masses, tf.ones_like(masses))
  return masses / tf.reduce_sum(masses, axis=0)


def enumerate_outcomes(
  estimator, problem, parameters, most_outcomes, seed=(0, 0)
):
  """Returns the `Outcomes` of an estimator, or `None` if they are too many.

  Args:
    estimator: A `GradientEstimator` whose draws all pass through
      `tfp_rb._atoms.draw_rest`, and that has no noise of its own.
    problem: Callable, parameters to `(f, distribution)`, for parameters with
      any further batch dimensions in front.
    parameters: List of `Tensor`s.
    most_outcomes: Python `int`.
    seed: Stateless seed of what noise there may be.

  Returns:
    outcomes: `Outcomes` or `None`.
  """
  f, distribution = problem(*map(tf.convert_to_tensor, parameters))
  try:
    num_values = find_partition(distribution, 0).num_values
  except NotImplementedError:  # its draws cannot be intercepted
    return None
  if num_values is None or num_values > most_outcomes:
    return None
  batch_rank = distribution.batch_shape.rank
  slots = []  # the number of values of each independent draw
  num_values_of = lambda drawn: find_partition(drawn, 0).num_values

  def count(part, num_summed, num_draws):
    del num_summed
    drawn = _atoms.drawn_from(distribution)
    num_sites = drawn.batch_shape[batch_rank:].num_elements()
    slots.extend([num_values_of(drawn)] * (num_sites * num_draws))
    return part.sample_rest(num_draws, tf.constant([0, 0]))

  try:
    with _atoms.intercept_draws(count), count_evaluations() as numbers:
      expectation(f, distribution, estimator, seed=tf.constant(seed))
  except _atoms.NotEnumerableError:
    return None
  num_outcomes = math.prod(slots)
  if num_outcomes > most_outcomes:
    return None

  index = np.indices(slots).reshape([len(slots), num_outcomes]).T
  index = tf.constant(index, tf.int32)
  tiled = tile(parameters, num_outcomes)
  with tf.GradientTape() as tape:
    tape.watch(tiled)
    f, distribution = problem(*tiled)
    every = find_partition(distribution, num_values)
    probabilities = tf.ones_like(every.log_rest)
    first_slot = 0
    site_axis = 2 + batch_rank  # after the values, the outcomes, the batch

    def script(part, num_summed, num_draws):
      nonlocal first_slot, probabilities
      drawn = _atoms.drawn_from(distribution)
      num_sites = drawn.batch_shape[1 + batch_rank :].num_elements()
      chosen = index[:, first_slot : first_slot + num_sites * num_draws]
      first_slot += num_sites * num_draws
      chosen = tf.reshape(chosen, [num_outcomes, num_sites, num_draws])
      if drawn is distribution:  # one site that is everything
        listed = every
        widen = lambda x: tf.expand_dims(x, site_axis)
        narrow = lambda x: tf.squeeze(x, site_axis)
      else:
        listed = find_partition(drawn, num_values_of(drawn))
        widen = narrow = lambda x: x
      law = widen(_law_of_rest(listed, part, num_summed))
      chances = _select(law, chosen, site_axis)
      probabilities *= tf.reduce_prod(chances, axis=[0, site_axis])
      return narrow(_select(widen(listed.values), chosen, site_axis))

    with _atoms.intercept_draws(script):
      values = expectation(f, distribution, estimator, seed=tf.constant(seed))
    probabilities = tf.cast(tf.stop_gradient(probabilities), values.dtype)
    total = tf.reduce_sum(probabilities * values)
  gradients = tape.gradient(total, tiled, unconnected_gradients='zero')
  return Outcomes(
    probabilities.numpy(),
    values.numpy(),
    [g.numpy() for g in gradients],
    sum(numbers),
  )


def exact_reference(problem, parameters, most_values=2**16):
  """Value and gradients of `sum_z q(z) f(z)`, written out.

  A countable support is cut where what is left has a mass below `1e-13`.

  Args:
    problem: As in `enumerate_outcomes`.
    parameters: List of `Tensor`s.
    most_values: Python `int`, the largest number of values that is summed.

  Returns:
    value: Array of `batch_shape`.
    gradients: List of arrays with the shapes of `parameters`.
  """
  parameters = [tf.convert_to_tensor(p) for p in parameters]
  with tf.GradientTape() as tape:
    tape.watch(parameters)
    f, distribution = problem(*parameters)
    num_values = find_partition(distribution, 0).num_values
    num_summed = 64 if num_values is None else min(num_values, most_values)
    every = find_partition(distribution, num_summed)
    while num_summed < most_values and np.max(every.rest_weight) > 1e-13:
      num_summed *= 2
      every = find_partition(distribution, num_summed)
    if np.max(every.rest_weight) > 1e-13:
      raise ValueError(
        f'`problem` must have a distribution whose mass lies on at most '
        f'{most_values} values, but a mass of {np.max(every.rest_weight):.1e} '
        'is left. Choose a more concentrated one.'
      )
    atoms = _atoms.make_atoms(every, every.values, every.weights, num_summed)
    probs = tf.exp(atoms.log_prob)
    probs = tf.where(atoms.weights > 0.0, probs, tf.zeros_like(probs))
    value = f(atoms.values)
    value = tf.reduce_sum(tf.cast(probs, value.dtype) * value, axis=0)
  gradients = tape.gradient(value, parameters, unconnected_gradients='zero')
  return value.numpy(), [g.numpy() for g in gradients]
