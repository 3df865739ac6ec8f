"""Where `f` is evaluated: atoms and their weights."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import tensorflow as tf

from tfp_rb.internal import shapes
from tfp_rb.partitions import (
  NotRegisteredError,
  Partition,
  Sampled,
  partition_of,
)

__all__ = [
  'Atoms',
  'Whole',
  'draw',
  'everything',
  'is_draw',
  'make_atoms',
  'whole_of',
]

# A distribution as estimators and designs see it: its partition, in which
# nothing is summed yet.
Whole: TypeAlias = Partition


class Atoms(NamedTuple):
  """Points `z_i` and weights `w_i` of an estimate `sum_i w_i g(z_i)`.

  Along the first axis the summed atoms come first, the draws after them.

  Attributes:
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.
    weights: `Tensor` of shape `[m] + batch_shape`, constants that sum to 1: the
      probability of a summed atom, the mass of the rest over the number of
      draws for a draw.
    log_prob: `Tensor` of shape `[m] + batch_shape`, the `log q(z_i)` that is
      differentiated.
    num_summed: Python `int`, or `int32` `Tensor` of `batch_shape` where the
      rows differ: how many atoms are summed, not drawn.
    mean_of_others: Callable, `x` of shape `[m] + batch_shape` to estimates of
      `E[x | rest]`, linear in `x`, of that shape: at draw `j` one that is
      unbiased given draw `j`. `None` where the draws are independent: then it
      is the mean over the others.
    partition: The whole `Partition` of the distribution: what is known of it.
    extra: `Tensor` of shape `[n] + batch_shape + event_shape`, independent
      draws from the whole distribution at which a baseline evaluates `f`;
      `None` if there are none.
  """

  values: tf.Tensor
  weights: tf.Tensor
  log_prob: tf.Tensor
  num_summed: int | tf.Tensor
  mean_of_others: Callable[[tf.Tensor], tf.Tensor] | None = None
  partition: Partition | None = None
  extra: tf.Tensor | None = None


def is_draw(atoms):
  """Which atoms are draws: Boolean `Tensor` of shape `[m] + batch_shape`."""
  num_atoms, rank = atoms.weights.shape[0], atoms.weights.shape.rank
  index = tf.reshape(tf.range(num_atoms), [-1] + [1] * (rank - 1))
  return tf.broadcast_to(index >= atoms.num_summed, tf.shape(atoms.weights))


def whole_of(distribution):
  """Returns the whole partition, or one that can only draw where none exists.

  Args:
    distribution: A discrete `tfp.distributions.Distribution`.

  Returns:
    whole: A `Partition`. A registered family draws alike in eager mode, in
      graphs and under XLA; any other one draws by its own `sample`.
  """
  try:
    return partition_of(distribution)
  except NotRegisteredError as error:
    return Sampled(distribution, error)


def draw(whole, num_draws, seed):
  """Returns `Atoms` of independent draws from the whole distribution.

  Args:
    whole: A whole `Partition`.
    num_draws: Python `int`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    atoms: `Atoms` with `num_summed=0` and weights `1 / num_draws`.
  """
  values = whole.draw_rest(num_draws, seed)
  log_prob = whole.log_prob(values)
  weights = tf.fill(
    shapes.as_list(log_prob), tf.constant(1.0 / num_draws, log_prob.dtype)
  )
  return Atoms(values, weights, log_prob, num_summed=0, partition=whole)


def everything(whole):
  """Returns `Atoms` of all values of a finite support."""
  every = whole.best(whole.num_values)
  return make_atoms(whole, every, every.values, every.weights, whole.num_values)


def make_atoms(whole, best, values, weights, num_summed, mean_of_others=None):
  """Returns `Atoms` in which an atom of weight 0 is the most probable one.

  So neither `f` nor its derivative, nor that of `log q`, is ever evaluated at a
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
  weights = tf.stop_gradient(weights)
  possible = shapes.with_event_rank(weights > 0.0, values)
  values = tf.where(possible, values, best.values[:1])
  log_prob = whole.log_prob(values)
  return Atoms(values, weights, log_prob, num_summed, mean_of_others, whole)
