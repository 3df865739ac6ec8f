"""All outcomes of an estimator, one by one: exact moments without a seed.

An estimator draws all its atoms from the partition that it is given. Here it is
given a partition whose draws are read from a script, one outcome after the
other along a further batch dimension.
"""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb._expectation import estimate_at
from tfp_rb.designs import CheckedIntegrand, make_atoms
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import random, shapes
from tfp_rb.partitions import NotRegisteredError, partition_of

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


def _law_of_rest(every, part):
  """Probabilities of all values given that none of the summed is drawn."""
  batch_rank = part.log_rest.shape.rank
  equal = every.values[:, tf.newaxis] == part.values[tf.newaxis]
  equal = tf.reduce_all(
    equal, axis=list(range(2 + batch_rank, equal.shape.rank))
  )
  # A listed value without weight is not summed: it is impossible, or repeated.
  is_summed = part.log_weights > -np.inf
  summed = tf.reduce_any(equal & is_summed, axis=1)
  masses = tf.where(summed, tf.zeros_like(every.weights), every.weights)
  total = tf.reduce_sum(masses, axis=0)
  # From an empty rest anything may be drawn; it will weigh 0.
  masses = tf.where(total > 0.0, masses, every.weights)
  return masses / tf.reduce_sum(masses, axis=0)


class _NotEnumerableError(Exception):
  """Raised where draws are not independent given those before."""


class _Counter:
  """Counts the independent draws, as a script with a single outcome."""

  def __init__(self, batch_rank):
    self._batch_rank = batch_rank
    self.num_values = []  # one entry for each draw

  def draw(self, scripted, num_draws):
    part = scripted.inner
    sites = part.batch_shape[self._batch_rank :]
    num_values = [part.num_values] * (math.prod(sites) * num_draws)
    self.num_values.extend(num_values)
    return part.draw_rest(num_draws, tf.constant([0, 0]))


class _Script:
  """Reads draws from a table of outcomes, and keeps their probabilities."""

  def __init__(self, index, batch_rank):
    """Stores the outcomes.

    Args:
      index: `int32` `Tensor` of shape `[T, draws]`, numbers of values.
      batch_rank: Python `int`, the rank of the batch without outcomes.
    """
    self._index = index
    self._batch_rank = batch_rank
    self._first = 0
    self.probabilities = 1.0

  def draw(self, scripted, num_draws):
    part = scripted.inner
    every = scripted.whole.best(part.num_values)
    # Behind the values, the outcomes and the batch there may be sites.
    site_axis = 2 + self._batch_rank
    has_sites = part.log_rest.shape.rank > 1 + self._batch_rank
    num_sites = part.batch_shape[-1] if has_sites else 1
    stop = self._first + num_sites * num_draws
    chosen = tf.reshape(
      self._index[:, self._first : stop], [-1, num_sites, num_draws]
    )
    self._first = stop
    widen = narrow = lambda x: x
    if not has_sites:
      widen = lambda x: tf.expand_dims(x, site_axis)
      narrow = lambda x: tf.squeeze(x, site_axis)
    chances = _select(widen(_law_of_rest(every, part)), chosen, site_axis)
    self.probabilities *= tf.reduce_prod(chances, axis=[0, site_axis])
    return narrow(_select(widen(every.values), chosen, site_axis))


class _Scripted:
  """A partition whose draws are read from a script."""

  def __init__(self, inner, whole, script):
    self.inner = inner
    self.whole = whole
    self._script = script

  def __getattr__(self, name):
    return getattr(self.inner, name)

  def _around(self, inner):
    return _Scripted(inner, self.whole, self._script)

  def replace(self, **changes):
    return self._around(self.inner.replace(**changes))

  def best(self, num_summed):
    return self._around(self.inner.best(num_summed))

  def excluding(self, values):
    return self._around(self.inner.excluding(values))

  def truncated(self, num_summed):
    return self._around(self.inner.truncated(num_summed))

  def sites(self):
    return [
      group._replace(
        partition=_Scripted(group.partition, group.partition, self._script)
      )
      for group in self.inner.sites()
    ]

  def draw_rest(self, num_draws, seed):
    del seed
    return self._script.draw(self, num_draws)

  @property
  def num_uniforms(self):
    raise _NotEnumerableError


def _estimate(estimator, f, distribution, script, seed):
  """`expectation`, with draws that are read from a script."""
  atom_seed, noise_seed = random.split_seed(seed, n=2)
  whole = partition_of(distribution)
  atoms = estimator.atoms_of(_Scripted(whole, whole, script), atom_seed)
  integrand = CheckedIntegrand(f, shapes.as_list(atoms.weights)[1:])
  return estimate_at(atoms, integrand, distribution, estimator, noise_seed)


def enumerate_outcomes(
  estimator, problem, parameters, most_outcomes, seed=(0, 0)
):
  """Returns the `Outcomes` of an estimator, or `None` if they are too many.

  Args:
    estimator: A `GradientEstimator` that draws from its partition alone, and
      that has no noise of its own.
    problem: Callable, parameters to `(f, distribution)`, for parameters with
      any further batch dimensions in front.
    parameters: List of `Tensor`s.
    most_outcomes: Python `int`.
    seed: Stateless seed of what noise there may be.

  Returns:
    outcomes: `Outcomes` or `None`.
  """
  if type(estimator).sample_atoms is not GradientEstimator.sample_atoms:
    return None  # it does not draw from a partition
  seed = tf.constant(seed)
  f, distribution = problem(*map(tf.convert_to_tensor, parameters))
  try:
    num_values = partition_of(distribution).num_values
  except NotRegisteredError:
    return None
  if num_values is None or num_values > most_outcomes:
    return None
  batch_rank = distribution.batch_shape.rank
  counter, num_evaluations = _Counter(batch_rank), 0

  def counted(values):
    nonlocal num_evaluations
    if tf.executing_eagerly():  # tracing evaluates nothing
      num_evaluations += values.shape[0]
    return f(values)

  try:
    _estimate(estimator, counted, distribution, counter, seed)
  except _NotEnumerableError:
    return None
  num_outcomes = math.prod(counter.num_values)
  if num_outcomes > most_outcomes:
    return None

  index = np.indices(counter.num_values, np.int32)
  index = index.reshape([len(counter.num_values), num_outcomes]).T
  script = _Script(tf.constant(index), batch_rank)
  tiled = tile(parameters, num_outcomes)
  with tf.GradientTape() as tape:
    tape.watch(tiled)
    f_of_tiled, distribution = problem(*tiled)
    values = _estimate(estimator, f_of_tiled, distribution, script, seed)
    probabilities = tf.cast(
      tf.stop_gradient(script.probabilities), values.dtype
    )
    probabilities = tf.broadcast_to(probabilities, tf.shape(values))
    total = tf.reduce_sum(probabilities * values)
  gradients = tape.gradient(total, tiled, unconnected_gradients='zero')
  return Outcomes(
    probabilities.numpy(),
    values.numpy(),
    [g.numpy() for g in gradients],
    num_evaluations,
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
    whole = partition_of(distribution)
    num_values = whole.num_values
    num_summed = 64 if num_values is None else min(num_values, most_values)
    every = whole.best(num_summed)
    while num_summed < most_values and np.max(every.rest_weight) > 1e-13:
      num_summed *= 2
      every = whole.best(num_summed)
    if np.max(every.rest_weight) > 1e-13:
      raise ValueError(
        f'`problem` must have a distribution whose mass lies on at most '
        f'{most_values} values, but a mass of {np.max(every.rest_weight):.1e} '
        'is left. Choose a more concentrated one.'
      )
    atoms = make_atoms(whole, every, every.values, every.weights, num_summed)
    probs = tf.exp(atoms.log_prob)
    probs = tf.where(atoms.weights > 0.0, probs, tf.zeros_like(probs))
    value = f(atoms.values)
    value = tf.reduce_sum(tf.cast(probs, value.dtype) * value, axis=0)
  gradients = tape.gradient(value, parameters, unconnected_gradients='zero')
  return value.numpy(), [g.numpy() for g in gradients]
