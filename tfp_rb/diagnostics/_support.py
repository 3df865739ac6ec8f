# SPDX-License-Identifier: Apache-2.0
"""Lists values of a distribution with `f` and the scores at them, as arrays."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs import Atoms, CheckedIntegrand, make_atoms
from tfp_rb.diagnostics._closed_forms import Row
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed
from tfp_rb.partitions import Partition, partition_of

__all__ = ['Support', 'tabulate']

_NEGLIGIBLE = 1e-12  # the mass of a countable support that may be left out
_MOST_SCORES = 2**25  # 256 MB in float64


class Support(NamedTuple):
  """Holds values of a distribution, and `f` at these values.

  Attributes:
    rows: List of `Row`, one for each member of the batch.
    num_values: Python `int`, the number of values in the support, or `None` for
      a countable support.
    num_evaluations: Python `int`, the number of values at which `f` was
      evaluated.
    is_whole: Python `bool`, whether all values with mass are listed.
  """

  rows: list[Row]
  num_values: int | None
  num_evaluations: int
  is_whole: bool


def tabulate(
  f: Integrand,
  distribution: Distribution,
  num_best: int,
  most_evaluations: int,
  seed: StatelessSeed,
) -> Support:
  """Evaluates `f` at all values, or at the best ones and a pilot of draws.

  Args:
    f: Callable, as in `expectation`.
    distribution: A discrete distribution with a registered partition.
    num_best: Python `int`, how many of the best values are listed if the
      support is too large to list all.
    most_evaluations: Python `int`, larger than `num_best`.
    seed: Stateless seed of the draws.

  Returns:
    support: A `Support`.
  """
  num_values = partition_of(distribution).num_values
  with tf.GradientTape() as tape:
    best, is_whole = _list(distribution, num_values, num_best, most_evaluations)
    values, weights = best.values, best.weights
    if not is_whole:
      # The empirical distribution of the draws stands for the rest.
      num_draws = most_evaluations - values.shape[0]
      draws = best.draw_rest(num_draws, tf.constant(seed))
      share = best.rest_weight / num_draws
      shares = tf.broadcast_to(share, [num_draws, *share.shape])
      values = tf.concat([values, draws], axis=0)
      weights = tf.concat([weights, shares], axis=0)
    # `f` is not evaluated at impossible values.
    atoms = make_atoms(best, best, values, weights, values.shape[0])
  scores = _scores(tape, atoms, distribution)  # [n, members, P]
  result = CheckedIntegrand(f, best.batch_shape)(atoms.values)
  size, members = values.shape[0], distribution.batch_shape.num_elements()
  values, weights, result = (
    np.reshape(np.asarray(x), [size, members, -1])  # [n, members, ...]
    for x in (atoms.values, atoms.weights, result)
  )
  if not np.all(np.isfinite(weights)):
    raise ValueError(
      '`distribution` must have finite probabilities; got '
      f'{np.ravel(weights)[:5]}, ... Check its parameters for NaN.'
    )
  if not np.all(np.isfinite(result)):
    raise ValueError(
      '`f` must be finite at all values with mass; got NaN or infinity at '
      f'{int(np.sum(~np.isfinite(result)))} of {result.size} values. Make '
      'it finite there: no estimator has a finite variance otherwise.'
    )
  rows = [
    _row(
      values[:, i],
      weights[:, i, 0].astype(np.float64),
      result[:, i, 0].astype(np.float64),
      None if scores is None else scores[:, i],
      num_distinct=best.values.shape[0],
    )
    for i in range(members)
  ]
  return Support(rows, num_values, size, is_whole)


def _list(
  distribution: Distribution,
  num_values: int | None,
  num_best: int,
  most_evaluations: int,
) -> tuple[Partition, bool]:
  """Lists all values with mass, or the best if there are too many.

  Args:
    distribution: A discrete distribution with a registered partition.
    num_values: Python `int`, or `None` for a countable support.
    num_best: As in `tabulate`.
    most_evaluations: As in `tabulate`.

  Returns:
    listed: A `Partition`.
    is_whole: Python `bool`, whether all values with mass are listed.
  """
  if num_values is not None and num_values <= most_evaluations:
    return partition_of(distribution).best(num_values), True
  # By doubling, find how many values of a countable support have mass.
  size = max(64, num_best + 1)
  while num_values is None and size <= most_evaluations:
    every = partition_of(distribution).best(size)
    if np.max(every.rest_weight) < _NEGLIGIBLE:
      return every, True
    size *= 2
  return partition_of(distribution).best(num_best), False


def _scores(
  tape: tf.GradientTape, atoms: Atoms, distribution: Distribution
) -> np.ndarray | None:
  """Returns gradients of `log q` w.r.t. all variables, `[n, members, P]`."""
  variables = distribution.trainable_variables
  if not variables:
    return None  # The closed forms use the logits of the values.
  num_rows = atoms.log_prob.shape.num_elements()
  num_components = sum(v.shape.num_elements() for v in variables)
  if num_rows * num_components > _MOST_SCORES:
    raise ValueError(
      '`distribution` must have fewer trainable variables; got '
      f'{num_components} components, and the scores of {num_rows} values with '
      'respect to them do not fit into memory. Reduce `most_evaluations`, or '
      'build the distribution from Tensors to measure the gradient with '
      'respect to the logits of its values.'
    )
  parts = tape.jacobian(atoms.log_prob, variables, unconnected_gradients='zero')
  size = atoms.log_prob.shape[0]
  parts = [np.reshape(g, [size, num_rows // size, -1]) for g in parts]
  return np.concatenate(parts, axis=-1).astype(np.float64)


def _row(
  values: np.ndarray,
  q: np.ndarray,
  f: np.ndarray,
  scores: np.ndarray | None,
  num_distinct: int,
) -> Row:
  """Returns the `Row` of one member, in which no value occurs twice.

  Args:
    values: Array of shape `[n, event_size]`; only draws may occur repeatedly.
    q: Array of shape `[n]`, the weights.
    f: Array of shape `[n]`.
    scores: Array of shape `[n, P]`, or `None`.
    num_distinct: Python `int`, the number of values in front of the draws.

  Returns:
    row: A `Row`.
  """
  _, first, inverse = np.unique(
    values[num_distinct:], axis=0, return_index=True, return_inverse=True
  )
  kept = np.append(np.arange(num_distinct), num_distinct + first)
  merged = np.bincount(inverse.ravel(), q[num_distinct:], len(first))
  q = np.append(q[:num_distinct], merged)
  q = q / np.sum(q)
  if scores is not None:
    scores = scores[kept]
    # The closed forms assume that the scores have mean 0. In a pilot this holds
    # only roughly, so subtract their mean.
    scores = scores - q @ scores
  return Row(q, f[kept], scores)
