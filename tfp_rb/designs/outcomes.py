# SPDX-License-Identifier: Apache-2.0
"""Lists all outcomes of a pool, for exact moments."""

import itertools
import math

import numpy as np
import tensorflow as tf

__all__ = ['list_outcomes']


def list_outcomes(cells, allocation, num_left, most_outcomes):
  """Lists all outcomes of `select`, for exact moments.

  As a function of its uniform, the systematic sample is constant between the
  points at which the cells on its line end, taken modulo 1. A draw is constant
  on each of its cells.

  Args:
    cells: `Cells` without a rest, of eager Tensors.
    allocation: `Allocation`.
    num_left: As in `allocate`.
    most_outcomes: Python `int`.

  Returns:
    uniforms: Array of shape `[T, 1 + N]`, one row for each outcome.
    chances: Array of shape `[T]`, their probabilities. If there are more than
      `most_outcomes` outcomes, the function returns `None`, not a pair.
  """
  num_rows = cells.weights.shape[0]
  # The ends of the pieces of each uniform. The first uniform places the sample.
  pieces = [np.mod(allocation.line.numpy(), 1.0)]
  cumulated = allocation.masses.numpy()
  further = allocation.num_draws - tf.cast(allocation.draws_best, tf.int32)
  rows = np.repeat(np.arange(num_rows), further)
  # Map every slot that holds a draw to the row of the draw.
  first = num_rows + int(allocation.num_certain)
  of_slot = dict(zip(range(first, first + len(rows)), rows))
  of_slot |= {int(i): int(i) for i in np.flatnonzero(allocation.draws_best)}
  # A slot without a draw ignores its uniform, so it has a single piece.
  for slot in range(num_rows + int(num_left)):
    of_row = cumulated[of_slot[slot]] if slot in of_slot else np.ones([1])
    pieces.append(of_row / of_row[-1])
  pieces = [np.unique(np.concatenate([[0.0, 1.0], ends])) for ends in pieces]
  if math.prod(len(ends) - 1 for ends in pieces) > most_outcomes:
    return None
  # The middle of a piece stands for all its uniforms, which act alike.
  middles = [0.5 * (ends[1:] + ends[:-1]) for ends in pieces]
  chances = [np.diff(ends) for ends in pieces]
  return (
    np.array(list(itertools.product(*middles))),
    np.array([np.prod(c) for c in itertools.product(*chances)]),
  )
