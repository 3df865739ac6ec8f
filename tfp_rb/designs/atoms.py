# SPDX-License-Identifier: Apache-2.0
"""Defines atoms, the points at which `f` is evaluated, and their weights."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from tfp_rb.internal import shapes
from tfp_rb.internal.types import Distribution, StatelessSeed
from tfp_rb.partitions import (
  NotRegisteredError,
  Partition,
  Sampled,
  partition_of,
)

__all__ = [
  'Atoms',
  'Pool',
  'Whole',
  'draw',
  'everything',
  'is_draw',
  'make_atoms',
  'whole_of',
]

# Estimators and designs see a distribution as its partition with k = 0, whose
# rest is the whole support.
Whole: TypeAlias = Partition


class Pool(NamedTuple):
  """Holds the rows to which the atoms of a pool belong.

  Attributes:
    rows: `int32` `Tensor` of shape `[N]`, an index into the flattened batch.
    anchors: `Tensor` of shape `[N]`. The anchor of a summed atom is its
      probability, divided by the sum over the summed atoms of its row. The
      anchor of any other atom is 0. So the sum of `anchors * f` over a row is a
      constant.
    is_draw: Boolean `Tensor` of shape `[N]`, whether an atom is one of several
      independent draws of its row.
  """

  rows: tf.Tensor
  anchors: tf.Tensor
  is_draw: tf.Tensor


class Atoms(NamedTuple):
  """Holds points `z_i` and weights `w_i` of an estimate `sum_i w_i g(z_i)`.

  The summed atoms come first along the first axis, then the draws.

  Attributes:
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.
    weights: `Tensor` of shape `[m] + batch_shape`, constants that sum to 1. The
      weight of a summed atom is its probability. The weight of a draw is the
      mass of the rest divided by the number of draws.
    log_prob: `Tensor` of shape `[m] + batch_shape`, the `log q(z_i)` that is
      differentiated.
    num_summed: Python `int`, or `int32` `Tensor` of `batch_shape` where the
      rows differ: the number of atoms that are summed, not drawn.
    partition: The whole `Partition` of the distribution.
    mean_of_others: Callable that maps `x` of shape `[m] + batch_shape` to
      estimates of `E[x | rest]` of the same shape. They are linear in `x`, and
      the one at draw `j` is unbiased given draw `j`. `None` if the draws are
      independent: the mean over the other draws is then such an estimate.
    extra: `Tensor` of shape `[n] + batch_shape + event_shape`, independent
      draws from the whole distribution at which a baseline evaluates `f`;
      `None` if there are none.
    pool: `Pool` if one budget serves all rows of the batch, otherwise `None`.
      With a pool, `values` has shape `[N] + event_shape`, and `weights` and
      `log_prob` have shape `[N]`.
  """

  values: tf.Tensor
  weights: tf.Tensor
  log_prob: tf.Tensor
  num_summed: int | tf.Tensor
  mean_of_others: Callable[[tf.Tensor], tf.Tensor] | None = None
  # A user's `sample_atoms` may leave it out, if `evaluate` does not need it.
  partition: Whole = None  # type: ignore[assignment]
  extra: tf.Tensor | None = None
  pool: Pool | None = None


def is_draw(atoms: Atoms) -> tf.Tensor:
  """Returns which atoms are draws, Booleans of shape `[m] + batch_shape`."""
  num_atoms, rank = shapes.leading(atoms.weights), atoms.weights.shape.rank
  index = tf.reshape(tf.range(num_atoms), [-1] + [1] * (rank - 1))
  return tf.broadcast_to(index >= atoms.num_summed, tf.shape(atoms.weights))


def whole_of(distribution: Distribution) -> Whole:
  """Returns the whole partition of any discrete distribution.

  Args:
    distribution: A discrete `tfp.distributions.Distribution`.

  Returns:
    whole: A `Partition`. A registered family draws the same values in eager
      mode, in graphs and under XLA. The partition of any other distribution
      can only draw, with the `sample` method of the distribution.
  """
  try:
    return partition_of(distribution)
  except NotRegisteredError as error:
    # REINFORCE without sums needs only `sample` and `log_prob`. The error is
    # raised when an estimator asks for more.
    return Sampled(distribution, error)


def draw(whole: Whole, num_draws: int, seed: StatelessSeed) -> Atoms:
  """Returns `Atoms` of independent draws from the whole distribution.

  Args:
    whole: A whole `Partition`.
    num_draws: Python `int`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    atoms: `Atoms` with `num_summed=0` and weights `1 / num_draws`.
  """
  # The whole partition sums no value, so its rest is the whole support.
  values = whole.draw_rest(num_draws, seed)  # [m] + batch_shape + event_shape
  log_prob = whole.log_prob(values)  # [m] + batch_shape
  weights = tf.fill(
    shapes.as_list(log_prob), tf.constant(1.0 / num_draws, log_prob.dtype)
  )
  return Atoms(values, weights, log_prob, num_summed=0, partition=whole)


def everything(whole: Whole, num_values: int) -> Atoms:
  """Returns `Atoms` of all `num_values` values of a finite support."""
  every = whole.best(num_values)
  return make_atoms(whole, every, every.values, every.weights, num_values)


def make_atoms(
  whole: Whole,
  best: Partition,
  values: tf.Tensor,
  weights: tf.Tensor,
  num_summed: int | tf.Tensor,
  mean_of_others: Callable[[tf.Tensor], tf.Tensor] | None = None,
) -> Atoms:
  """Returns `Atoms` in which the mode replaces every atom of weight 0.

  So neither `f` nor the derivatives of `f` and `log q` are ever evaluated at a
  value that cannot occur, and a weight of 0 always multiplies finite numbers.

  Args:
    whole: The whole `Partition`.
    best: `Partition` whose first value is the most probable one.
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.
    weights: `Tensor` of shape `[m] + batch_shape`.
    num_summed: Python `int` or `int32` `Tensor` of `batch_shape`.
    mean_of_others: As in `Atoms`.

  Returns:
    atoms: `Atoms`.
  """
  # The gradient enters through `log_prob` and `f` only. Gradients through the
  # weights would count it twice.
  weights = tf.stop_gradient(weights)
  possible = shapes.with_event_rank(weights > 0.0, values)
  values = tf.where(possible, values, best.values[:1])
  log_prob = whole.log_prob(values)  # [m] + batch_shape
  return Atoms(values, weights, log_prob, num_summed, mean_of_others, whole)
