# SPDX-License-Identifier: Apache-2.0
"""Enumerates all outcomes of an estimator: exact moments without randomness.

An estimator draws all its atoms from the partition that it is given. Here that
is a partition whose draws are read from a script. All outcomes are evaluated at
once: outcome `t` is member `t` of a further batch dimension in front.
"""

from collections.abc import Iterable, Sequence
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb._expectation import estimate_at
from tfp_rb.designs import needs_rows, serve_rows
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import random
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  Problem,
  StatelessSeed,
  TensorLike,
)
from tfp_rb.partitions import NotRegisteredError, partition_of
from tfp_rb.testing.scripts import (
  Counter,
  NotEnumerableError,
  Script,
  Scripted,
)

__all__ = [
  'Outcomes',
  'RowOutcomes',
  'enumerate_outcomes',
  'enumerate_pool',
  'enumerate_rows',
  'enumerate_without_noise',
  'flat',
  'tile',
]


class Outcomes(NamedTuple):
  """Holds all `T` outcomes of the draws of an estimator.

  Attributes:
    probabilities: Array of shape `[T] + batch_shape` that sums to 1 over `T`.
    values: Array of shape `[T] + batch_shape`, the estimates of the value.
    weighted_gradients: List of arrays, `[T]` plus the shape of a parameter:
      gradients of `probabilities[t] * values[t]`, summed over the batch. Their
      sum over `t` is the expected gradient.
    num_evaluations: Python `int`, the number of atoms at which `f` is evaluated
      for one estimate, for each member of a batch. A `float` for a pool.
  """

  probabilities: np.ndarray
  values: np.ndarray
  weighted_gradients: list[np.ndarray]
  num_evaluations: float


class RowOutcomes(NamedTuple):
  """Holds all `T` outcomes of each of the `B` rows of a batch.

  Attributes:
    probabilities: Array of shape `[T, B]` that sums to 1 over `T`.
    gradients: List of arrays, `[T, B]` plus the shape of a parameter.
    num_evaluations: As in `Outcomes`.
  """

  probabilities: np.ndarray
  gradients: list[np.ndarray]
  num_evaluations: float


def tile(parameters: Sequence[TensorLike], num_copies: int) -> list[tf.Tensor]:
  """Copies every parameter along a new first axis, which becomes a batch."""
  return [
    tf.broadcast_to(p, [num_copies, *p.shape])
    for p in map(tf.convert_to_tensor, parameters)
  ]


def flat(arrays: Iterable[TensorLike]) -> np.ndarray:
  """Returns all components of a list of arrays as one vector, in float64."""
  return np.concatenate([np.ravel(np.asarray(a, np.float64)) for a in arrays])


def _estimate(
  estimator: GradientEstimator,
  f: Integrand,
  distribution: Distribution,
  script: Counter | Script,
  seed: StatelessSeed,
) -> tf.Tensor:
  """Returns the result of `expectation` with the draws of a script."""
  atom_seed, noise_seed = random.split_seed(seed, n=2)
  whole = partition_of(distribution)
  scripted: Any = Scripted(whole, whole, script)  # It acts as a `Partition`.
  atoms = estimator.atoms_of(scripted, atom_seed)
  integrand = estimator.integrand(f, atoms)
  return estimate_at(atoms, integrand, distribution, estimator, noise_seed)


def _count(
  estimator: GradientEstimator,
  f: Integrand,
  distribution: Distribution,
  seed: StatelessSeed,
) -> tuple[list[int], int]:
  """Makes one estimate, and counts what it draws and evaluates.

  Args:
    estimator: A `GradientEstimator`.
    f: Callable of atoms.
    distribution: A discrete distribution with a partition.
    seed: Stateless seed.

  Returns:
    num_values: List of Python `int`s, the number of values of each draw.
    num_evaluations: Python `int`, the number of atoms at which `f` is
      evaluated.
  """
  counter = Counter(distribution.batch_shape.rank)
  num_evaluations = 0

  def counted(values: tf.Tensor) -> tf.Tensor:
    nonlocal num_evaluations
    if tf.executing_eagerly():  # Tracing evaluates nothing.
      num_evaluations += values.shape[0]
    return f(values)

  if needs_rows(f):
    f = serve_rows(f, distribution.batch_shape)
  _estimate(estimator, counted, distribution, counter, seed)
  return counter.num_values, num_evaluations


def enumerate_outcomes(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[TensorLike],
  most_outcomes: int,
  seed: StatelessSeed = (0, 0),
) -> Outcomes | None:
  """Returns the `Outcomes` of an estimator, or `None` if that is not possible.

  Args:
    estimator: A `GradientEstimator`.
    problem: Callable that takes the parameters, with any further batch
      dimensions in front, and returns the pair `(f, distribution)`.
    parameters: List of `Tensor`s.
    most_outcomes: Python `int`, the largest number of outcomes to enumerate.
    seed: Stateless seed of noise other than the draws, which is not enumerated.

  Returns:
    outcomes: `Outcomes`; `None` if there are too many, or if the estimator does
      not draw from a partition, or makes its draws from uniforms.
  """
  if type(estimator).sample_atoms is not GradientEstimator.sample_atoms:
    return None  # Its draws need not come from a partition.
  seed = tf.constant(seed)
  if estimator.takes_rows:
    return enumerate_pool(estimator, problem, parameters, most_outcomes, seed)
  f, distribution = problem(*map(tf.convert_to_tensor, parameters))
  listed = _list_draws(estimator, f, distribution, most_outcomes, seed)
  if listed is None:
    return None
  index, num_evaluations = listed
  script = Script(tf.constant(index), distribution.batch_shape.rank)
  tiled = tile(parameters, len(index))
  with tf.GradientTape() as tape:
    tape.watch(tiled)
    f_of_tiled, distribution = problem(*tiled)
    values = _estimate(estimator, f_of_tiled, distribution, script, seed)
    # Stop the gradient of the probability of a draw, as sampling does: the
    # gradient of each outcome is that of its estimate alone.
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


def _list_draws(
  estimator: GradientEstimator,
  f: Integrand,
  distribution: Distribution,
  most_outcomes: int,
  seed: StatelessSeed,
) -> tuple[np.ndarray, int] | None:
  """Lists which values are drawn in each outcome.

  Args:
    estimator: A `GradientEstimator`.
    f: Callable of atoms.
    distribution: A discrete distribution.
    most_outcomes: Python `int`.
    seed: Stateless seed.

  Returns:
    index: `int32` array of shape `[T, draws]`.
    num_evaluations: Python `int`. If the outcomes cannot be listed, the
      function returns `None` instead of the pair.
  """
  try:
    num_values = partition_of(distribution).num_values
  except NotRegisteredError:
    return None
  # A single draw has as many outcomes as there are values.
  if num_values is None or num_values > most_outcomes:
    return None
  try:
    sizes, num_evaluations = _count(estimator, f, distribution, seed)
  except NotEnumerableError:
    return None
  num_outcomes = math.prod(sizes)  # T
  if num_outcomes > most_outcomes:
    return None
  index = np.indices(sizes, np.int32).reshape([len(sizes), num_outcomes])
  return index.T, num_evaluations


def enumerate_rows(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[TensorLike],
  most_outcomes: int,
  seed: StatelessSeed = (0, 0),
) -> RowOutcomes | None:
  """Returns the outcomes of each row of a batch, which are independent.

  In outcome `t`, every row draws its value number `t`. So there are no more
  outcomes than for a single row, and the parameters are not tiled.

  Args:
    estimator: A `GradientEstimator` that is not pooled.
    problem: Callable that takes the parameters and returns the pair
      `(f, distribution)`, with a batch, and an `f(z)` or `f(z, rows)` that
      works in a `tf.function`.
    parameters: List of `Tensor`s.
    most_outcomes: Python `int`, the largest number of outcomes of a row.
    seed: As in `enumerate_outcomes`.

  Returns:
    outcomes: `RowOutcomes`, or `None` as in `enumerate_outcomes`.
  """
  if type(estimator).sample_atoms is not GradientEstimator.sample_atoms:
    return None
  parameters = [tf.convert_to_tensor(p) for p in parameters]
  seed = tf.constant(seed)
  f, distribution = problem(*parameters)
  listed = _list_draws(estimator, f, distribution, most_outcomes, seed)
  if listed is None:
    return None
  index, num_evaluations = listed
  batch_shape = distribution.batch_shape

  def gradients_of(draws: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
    # The first dimension of the batch stands for the outcomes of a script.
    draws = tf.broadcast_to(draws, [batch_shape[0], draws.shape[0]])
    script = Script(draws, batch_shape.rank - 1)
    with tf.GradientTape() as tape:
      tape.watch(parameters)
      f, distribution = problem(*parameters)
      values = _estimate(estimator, f, distribution, script, seed)
      values = tf.reshape(values, [-1])  # [B]
    chances = tf.broadcast_to(script.probabilities, batch_shape)
    gradients = tape.jacobian(values, parameters, unconnected_gradients='zero')
    return tf.reshape(chances, [-1]), gradients

  traced = tf.function(gradients_of, autograph=False)
  results = [traced(tf.constant(draws)) for draws in index]
  chances, gradients = zip(*results, strict=True)
  return RowOutcomes(
    np.stack(chances),
    [np.stack(g) for g in zip(*gradients, strict=True)],
    num_evaluations,
  )


def enumerate_pool(
  estimator: Any,
  problem: Problem,
  parameters: Sequence[TensorLike],
  most_outcomes: int,
  seed: StatelessSeed = (0, 0),
  traced: bool = False,
) -> Outcomes | None:
  """Returns the `Outcomes` of a pooled estimator, with one call for each.

  The parameters are not tiled: that would change the pool.

  Args:
    estimator: A `GradientEstimator` that is pooled.
    problem: Callable that takes the parameters and returns the pair
      `(f, distribution)`, with an `f(z, rows)`.
    parameters: List of `Tensor`s.
    most_outcomes: Python `int`, the largest number of outcomes to enumerate.
    seed: As in `enumerate_outcomes`.
    traced: Python `bool`, whether to call a `tf.function`, which takes less
      time if there are many outcomes. Then `problem` must not need eager mode.

  Returns:
    outcomes: As in `enumerate_outcomes`.
  """
  parameters = [tf.convert_to_tensor(p) for p in parameters]
  seed = tf.constant(seed)
  _, distribution = problem(*parameters)
  found = estimator.outcomes(partition_of(distribution), most_outcomes)
  if found is None:
    return None

  def estimate(u: tf.Tensor, chance: tf.Tensor) -> tuple[Any, Any, tf.Tensor]:
    with tf.GradientTape() as tape:
      tape.watch(parameters)
      f, distribution = problem(*parameters)
      atoms = estimator.atoms_at(partition_of(distribution), u)
      integrand = estimator.integrand(f, atoms)
      value = estimate_at(atoms, integrand, distribution, estimator, seed)
      total = tf.cast(chance, value.dtype) * tf.reduce_sum(value)
    own = tape.gradient(total, parameters, unconnected_gradients='zero')
    return value, own, tf.shape(atoms.weights)[0]

  if traced:
    estimate = tf.function(estimate, autograph=False)
  results = [
    estimate(tf.constant(u, tf.float64), tf.constant(chance, tf.float64))
    for u, chance in zip(*found, strict=True)
  ]
  values, gradients, num_atoms = zip(*results, strict=True)
  shape = [-1] + [1] * distribution.batch_shape.rank
  return Outcomes(
    np.reshape(found[1], shape),
    np.stack(values),
    [np.stack(g) for g in zip(*gradients, strict=True)],
    # As for other estimators, the number counts evaluations per batch member.
    int(num_atoms[0]) / distribution.batch_shape.num_elements(),
  )


def enumerate_without_noise(
  estimator: GradientEstimator,
  problem: Problem,
  parameters: Sequence[TensorLike],
  most_outcomes: int,
) -> Outcomes | None:
  """Returns the `Outcomes`; `None` also if an outcome depends on the seed."""
  found = []
  for seed in ((0, 0), (0, 1)):
    outcomes = enumerate_outcomes(
      estimator, problem, parameters, most_outcomes, seed
    )
    if outcomes is None:
      return None
    found.append(outcomes)
  first, second = (flat(o.weighted_gradients) for o in found)
  # A gradient that is NaN with both seeds does not indicate noise.
  is_same = np.array_equal(first, second, equal_nan=True)
  return found[0] if is_same else None
