"""The values of a distribution, `f` at them, and the scores, as arrays."""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs import CheckedIntegrand, make_atoms
from tfp_rb.diagnostics._closed_forms import Row
from tfp_rb.partitions import partition_of

__all__ = ['Support', 'tabulate']

_NEGLIGIBLE = 1e-12
_MOST_SCORES = 2**25


class Support(NamedTuple):
  """What is known of `f` and `q`.

  Attributes:
    rows: List of `Row`, one for each member of the batch.
    num_values: Python `int`, or `None` for a countable support.
    num_evaluations: Python `int`, the values at which `f` was evaluated.
    is_whole: Python `bool`, whether they are all that have any mass.
  """

  rows: list
  num_values: int | None
  num_evaluations: int
  is_whole: bool


def tabulate(f, distribution, num_best, most_evaluations, seed):
  """Evaluates `f` at all values, or at the best ones and a pilot of draws.

  Args:
    f: Callable, as in `expectation`.
    distribution: A discrete distribution with a registered partition.
    num_best: Python `int`, how many of the best values are listed if not all.
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
      num_draws = most_evaluations - values.shape[0]
      draws = best.sample_rest(num_draws, tf.constant(seed))
      share = best.rest_weight / num_draws
      shares = tf.broadcast_to(share, [num_draws, *share.shape])
      values = tf.concat([values, draws], axis=0)
      weights = tf.concat([weights, shares], axis=0)
    atoms = make_atoms(best, best, values, weights, values.shape[0])
  scores = _scores(tape, atoms, distribution)
  result = CheckedIntegrand(f, best.batch_shape)(atoms.values)
  # Of members of a batch: [n, members, ...].
  size, members = values.shape[0], distribution.batch_shape.num_elements()
  flat = lambda x: np.reshape(np.asarray(x), [size, members, -1])
  values, weights, result = map(flat, (atoms.values, atoms.weights, result))
  if not np.all(np.isfinite(weights)):
    raise ValueError(
      '`distribution` must have finite parameters, but probabilities of its '
      f'values are not finite: {np.ravel(weights)[:5]}, ... Look for NaN in '
      'its logits or rates.'
    )
  if not np.all(np.isfinite(result)):
    raise ValueError(
      '`f` must be finite wherever the distribution has mass, but is not at '
      f'{int(np.sum(~np.isfinite(result)))} of {result.size} values. Repair it '
      'first: no estimator survives it.'
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


def _list(distribution, num_values, num_best, most_evaluations):
  """A partition into all values that have mass; else, into the best."""
  if num_values is not None and num_values <= most_evaluations:
    return partition_of(distribution).best(num_values), True
  size = max(64, num_best + 1)
  while num_values is None and size <= most_evaluations:
    every = partition_of(distribution).best(size)
    if np.max(every.rest_weight) < _NEGLIGIBLE:
      return every, True
    size *= 2
  return partition_of(distribution).best(num_best), False


def _scores(tape, atoms, distribution):
  """Gradients of `log q` by the variables, `[n, members, P]`, or `None`."""
  variables = distribution.trainable_variables
  if not variables:
    return None
  num_rows = atoms.log_prob.shape.num_elements()
  num_components = sum(v.shape.num_elements() for v in variables)
  if num_rows * num_components > _MOST_SCORES:
    raise ValueError(
      f'`distribution` must have fewer trainable variables: the scores of '
      f'{num_rows} values with respect to {num_components} of them do not fit '
      'into memory. Build it from plain Tensors, for the gradient with respect '
      'to the logits of its values, or lower `most_evaluations`.'
    )
  parts = tape.jacobian(atoms.log_prob, variables, unconnected_gradients='zero')
  size = atoms.log_prob.shape[0]
  parts = [np.reshape(g, [size, num_rows // size, -1]) for g in parts]
  return np.concatenate(parts, axis=-1).astype(np.float64)


def _row(values, q, f, scores, num_distinct):
  """A `Row`: a value that was drawn more than once is one value."""
  _, first, inverse = np.unique(
    values[num_distinct:], axis=0, return_index=True, return_inverse=True
  )
  kept = np.append(np.arange(num_distinct), num_distinct + first)
  merged = np.bincount(inverse.ravel(), q[num_distinct:], len(first))
  q = np.append(q[:num_distinct], merged)
  q = q / np.sum(q)
  if scores is not None:
    scores = scores[kept]
    scores = scores - q @ scores  # their mean is 0, but for a pilot's noise
  return Row(q, f[kept], scores)
