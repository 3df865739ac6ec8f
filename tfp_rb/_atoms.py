"""Where `f` is evaluated: atoms and their weights."""

import contextlib
from typing import NamedTuple

import tensorflow as tf

from tfp_rb._types import Integrand
from tfp_rb.partitions.base import find_partition

__all__ = [
  'Atoms',
  'NotEnumerableError',
  'draw_atoms',
  'draw_rest',
  'drawing_from',
  'drawn_from',
  'intercept_draws',
  'is_draw',
  'make_atoms',
  'refuse_interception',
  'with_event_rank',
]


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
  """

  values: tf.Tensor
  weights: tf.Tensor
  log_prob: tf.Tensor
  num_summed: int | tf.Tensor
  mean_of_others: Integrand | None = None


def is_draw(atoms):
  """Which atoms are draws: Boolean `Tensor` of shape `[m] + batch_shape`."""
  num_atoms, rank = atoms.weights.shape[0], atoms.weights.shape.rank
  index = tf.reshape(tf.range(num_atoms), [-1] + [1] * (rank - 1))
  return tf.broadcast_to(index >= atoms.num_summed, tf.shape(atoms.weights))


_interceptors = []


@contextlib.contextmanager
def intercept_draws(interceptor):
  """Lets `interceptor(partition, num_summed, num_draws)` stand for all draws.

  Every draw of every estimator passes through `draw_rest`, so enumerating what
  an interceptor returns enumerates the outcomes of an estimator exactly.

  Args:
    interceptor: Callable that returns values of shape
      `[num_draws] + batch_shape + event_shape`.

  Yields:
    Nothing; the interceptor is in force inside the `with` block.
  """
  _interceptors.append(interceptor)
  try:
    yield
  finally:
    _interceptors.pop()


_drawn_from = []


@contextlib.contextmanager
def drawing_from(distribution):
  """Tells interceptors that draws inside the `with` block are of another one.

  Args:
    distribution: The distribution that is drawn from in place of that given to
      `expectation`: with the same batch, and further dimensions behind it whose
      members are drawn independently.

  Yields:
    Nothing.
  """
  _drawn_from.append(distribution)
  try:
    yield
  finally:
    _drawn_from.pop()


def drawn_from(distribution):
  """What an interceptor is asked to draw from, `distribution` unless told."""
  return _drawn_from[-1] if _drawn_from else distribution


class NotEnumerableError(Exception):
  """Raised where draws cannot be intercepted."""


def refuse_interception():
  """For draws that are not independent: they cannot be enumerated."""
  if _interceptors:
    raise NotEnumerableError


def draw_rest(partition, num_summed, num_draws, seed):
  """Draws from the values other than the first `num_summed` of `partition`."""
  if _interceptors:
    return _interceptors[-1](partition, num_summed, num_draws)
  return partition.sample_rest(num_draws, seed)


def draw_atoms(distribution, num_draws, seed):
  """Returns `Atoms` of independent draws from the whole distribution.

  A registered family is drawn by its partition, so that the draws agree in
  eager, graph and XLA; any other one by its own `sample`.

  Args:
    distribution: A discrete `tfp.distributions.Distribution`.
    num_draws: Python `int`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    atoms: `Atoms` with `num_summed=0` and weights `1 / num_draws`.
  """
  try:
    whole = find_partition(distribution, 0)
    values = draw_rest(whole, 0, num_draws, seed)
    log_prob = whole.log_prob(values)
  except NotImplementedError:  # not registered, or a part of it is not
    values = tf.stop_gradient(distribution.sample(num_draws, seed=seed))
    log_prob = distribution.log_prob(values)
  weights = tf.fill(
    tf.shape(log_prob), tf.constant(1.0 / num_draws, log_prob.dtype)
  )
  weights = tf.ensure_shape(weights, log_prob.shape)
  return Atoms(values, weights, log_prob, num_summed=0)


def make_atoms(best, values, weights, num_summed, mean_of_others=None):
  """Returns `Atoms` in which an atom of weight 0 is the most probable one.

  So neither `f` nor its derivative, nor that of `log q`, is ever evaluated at a
  value that cannot occur, and a weight of 0 always multiplies finite numbers.

  Args:
    best: `Partition` whose first value is the most probable one.
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.
    weights: `Tensor` of shape `[m] + batch_shape`.
    num_summed: Python `int` or `int32` `Tensor` of `batch_shape`.
    mean_of_others: As in `Atoms`.

  Returns:
    atoms: `Atoms`.
  """
  weights = tf.stop_gradient(weights)
  possible = with_event_rank(weights > 0.0, values)
  values = tf.where(possible, values, best.values[:1])
  log_prob = best.log_prob(values)
  return Atoms(values, weights, log_prob, num_summed, mean_of_others)


def with_event_rank(x, values):
  """Appends axes of size 1, so that `x` broadcasts against `values`."""
  shape = tf.concat(
    [tf.shape(x), tf.ones([values.shape.rank - x.shape.rank], tf.int32)], axis=0
  )
  return tf.reshape(x, shape)
