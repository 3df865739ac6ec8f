# SPDX-License-Identifier: Apache-2.0
"""Fuzz test: checks random problems against a brute-force table.

Every problem consists of a distribution, an estimator and an integrand, all
made from one integer. The program checks the partition and the estimate with
its gradient. For a share of the problems it also checks the mean over all
outcomes, the law of the draws, graphs and XLA. It makes no statistical test: a
failure is a bug, either here or in the library. The program simplifies each
failing problem as long as the problem keeps failing.

```none
python tests/fuzz.py --problems=1000 --seed=0    # the seeds 0 to 999
python tests/fuzz.py --only=123                  # one seed
python tests/fuzz.py --family=Chain              # chains only
python tests/fuzz.py --problem='{"seed": 123, "family": "Zipf"}'
```
"""

import argparse
import collections
import copy
import itertools
import math
import multiprocessing
import os
import sys
import time
import traceback
from typing import NamedTuple

# As in `conftest.py`, this must be set before TensorFlow is imported.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')

import numpy as np
import tensorflow as tf

from fuzz_oracle import (
  LEAVE_ONE_OUT,
  Oracle,
  Row,
  levels,
  log_sum,
  shares_without_replacement,
)
from fuzz_problems import (
  HALF,
  Problem,
  distribution_of,
  estimator_of,
  num_values_of,
  random_problem,
  repair,
  simpler,
)
import internals
import tfp_rb

MOST_OUTCOMES = 1500


def eps(dtype):
  return 2.0**-7 if dtype == 'bfloat16' else float(np.finfo(dtype).eps)


def weight_dtype(problem):
  """Returns the dtype of the masses, which are never kept in half precision."""
  return 'float32' if problem.dtype in HALF else problem.dtype


class Seen:
  """Records what the library did in one call of `expectation`."""

  def __init__(self):
    self.values = []  # the values at which `f` was called
    self.atoms = None

  def spy(self, sample_atoms):
    """Returns a version of `sample_atoms` that records its result."""

    def kept(distribution, seed):
      self.atoms = sample_atoms(distribution, seed)
      return self.atoms

    return kept


class Case:
  """A problem with its oracle and its `Tensor`s."""

  def __init__(self, problem):
    self.problem = problem
    self.oracle = oracle = Oracle(problem)
    self.names = list(oracle.numbers.parameters)
    self.num_values = num_values_of(problem, oracle.layout)
    self.seed = [problem.seed % 2**31, 7]
    self.given = self._given() if problem.design == 'given' else None
    self.estimator = estimator_of(problem, self.given)
    # The rounding errors of a log-mass grow with the parameters.
    finite = [x[np.isfinite(x)] for x in oracle.base.values()]
    largest = max(float(np.max(np.abs(x), initial=1.0)) for x in finite)
    self.rtol = 60.0 * eps(weight_dtype(problem)) * (2.0 + largest)

  def arguments(self):
    """Returns parameters, shift and penalty as a list of arrays."""
    numbers = self.oracle.numbers
    result = [numbers.parameters[name] for name in self.names]
    result += [] if numbers.shift is None else [numbers.shift]
    return [*result, numbers.penalty]

  def distribution(self, arguments, num_copied=0):
    numbers = self.oracle.numbers
    # TFP would cast NumPy arrays to float32.
    arguments = [tf.convert_to_tensor(x) for x in arguments]
    parameters = dict(zip(self.names, arguments))
    shift = None if numbers.shift is None else arguments[len(self.names)]
    return distribution_of(self.problem, numbers, parameters, shift, num_copied)

  def _given(self):
    """Returns values to sum: some of the best, in any order, and wrong ones.

    A value may occur twice.
    """
    oracle, count = self.oracle, self.problem.num_summed
    rng = np.random.default_rng([self.problem.seed, 2])
    codes = np.zeros([count, oracle.num_rows, oracle.num_sites])
    for row in range(oracle.num_rows):
      listed = oracle.listed(row, 8).codes[:8]
      codes[:, row] = listed[rng.integers(0, len(listed), count)]
    values = oracle.encode(codes)
    is_number = oracle.family.is_integer and oracle.family.vectors is None
    if is_number and rng.random() < 0.3:
      # In every row, one value lies below the support.
      values[0] = np.reshape(oracle.shift - 1.0, values.shape[1:])
    return tf.cast(values, self.distribution(self.arguments()).dtype)

  def integrand(self, penalty, num_copied=0, seen=None):
    """Returns `f` in TensorFlow; `seen` is a `Seen` or `None`."""
    oracle, problem = self.oracle, self.problem
    numbers, layout = oracle.numbers, oracle.layout
    if num_copied:
      penalty = tf.reshape(penalty, [-1] + [1] * layout.batch_rank)

    def f(z):
      number = tf.cast(z, tf.float64)
      if oracle.family.vectors is not None:
        _, weights = oracle.family.vectors(numbers.settings)
        number = tf.reduce_sum(number * weights, axis=-1)
      feature = tf.reduce_sum(
        numbers.slopes * tf.math.floormod(number, 1009.0),
        axis=list(
          range(number.shape.rank - len(layout.sites), number.shape.rank)
        ),
      )
      value = tf.cos(feature) + penalty * 0.5 * (1.0 + tf.sin(feature))
      value = tf.cast(problem.offset + value, problem.f_dtype)
      if seen is None:
        return value
      seen.values.append(z.numpy())
      log_mass = oracle.log_mass(oracle.decode(z.numpy()))
      factor = np.where(log_mass > -np.inf, 1.0, float(problem.elsewhere))
      # Both `f` and its derivatives are corrupted at impossible values.
      return value * tf.cast(np.reshape(factor, value.shape), value.dtype)

    return f

  def run(self, arguments, seen=None):
    """Returns the value and the gradients.

    Args:
      arguments: As returned by `arguments()`.
      seen: `None`, or a `Seen` that records what the library does.

    Returns:
      value: `Tensor` of the batch shape.
      gradients: List of `Tensor`s.
    """
    estimator = self.estimator
    if seen is not None:
      estimator = copy.copy(estimator)
      estimator.sample_atoms = seen.spy(self.estimator.sample_atoms)
    arguments = [tf.convert_to_tensor(x) for x in arguments]
    with tf.GradientTape() as tape:
      tape.watch(arguments)
      value = tfp_rb.expectation(
        self.integrand(arguments[-1], seen=seen),
        self.distribution(arguments),
        estimator,
        seed=self.seed,
      )
      total = tf.reduce_sum(
        tf.cast(value, tf.float64) * self.oracle.numbers.upstream
      )
    watched = [x for x in arguments if x.dtype.is_floating]
    return value, tape.gradient(total, watched, unconnected_gradients='zero')


# The comparisons that each check makes.


def assert_close(actual, desired, tolerance, what):
  # `np.asarray` fails for bfloat16.
  actual, desired = (
    x.numpy().astype(np.float64) if tf.is_tensor(x) else np.asarray(x)
    for x in (actual, desired)
  )
  desired, tolerance = np.broadcast_arrays(desired, tolerance)
  if actual.shape != desired.shape:
    raise AssertionError(
      f'{what}: shape {actual.shape} instead of {desired.shape}'
    )
  wrong = ~(np.abs(actual - desired) <= tolerance)
  if np.any(wrong):
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    raise AssertionError(
      f'{what}: {np.sum(wrong)} of {wrong.size} differ, first at {first}: '
      f'{actual[first]!r} instead of {desired[first]!r} '
      f'(tolerance {tolerance[first]:.1e})'
    )


def check_best(case, partition, num_summed):
  """Checks that the values are the best ones and have their masses."""
  oracle = case.oracle
  codes = oracle.decode(partition.values.numpy())
  shape = (num_summed, oracle.num_rows)
  log_weights = np.reshape(partition.log_weights.numpy(), shape)
  log_rest = np.reshape(partition.log_rest.numpy(), [oracle.num_rows])
  own = oracle.log_mass(codes)
  tiny = math.log(np.finfo(weight_dtype(case.problem)).tiny)
  for row in range(oracle.num_rows):
    listed = oracle.listed(row, num_summed)
    best = listed.log_masses[:num_summed]
    is_possible = best > -np.inf
    if np.any((log_weights[:, row] > -np.inf) != is_possible):
      raise AssertionError(
        f'row {row}: log-weights {log_weights[:, row]}, masses {best}'
      )
    possible = best[is_possible]
    rtol = case.rtol * (1.0 + np.abs(possible))
    assert_close(log_weights[is_possible, row], possible, rtol, 'log-weights')
    assert_close(own[is_possible, row], possible, rtol, 'mass of the values')
    kept = codes[is_possible, row]
    if len(np.unique(kept, axis=0)) < len(kept):
      raise AssertionError(f'row {row}: repeated values {kept}')
    if listed.is_complete:
      rest = log_sum(listed.log_masses[num_summed:], listed.beyond)
      if rest > tiny + 1.0 or log_rest[row] > tiny + 1.0:
        tolerance = max(case.rtol, 1e-9) * (1.0 + abs(rest))
        assert_close(log_rest[row], rest, tolerance, f'log_rest, row {row}')
  total = np.sum(np.exp(log_weights), axis=0) + np.exp(log_rest)
  tolerance = case.rtol + 1e-11
  assert_close(total, np.ones(oracle.num_rows), tolerance, 'total weight')


def check_draws(case, partition, draws, what):
  """Checks that draws are possible values and none of the summed ones."""
  oracle = case.oracle
  codes = oracle.decode(draws.numpy())
  is_possible = oracle.log_mass(codes) > -np.inf
  summed = oracle.decode(partition.values.numpy())
  log_weights = np.reshape(
    partition.log_weights.numpy(), [len(summed), oracle.num_rows]
  )
  has_rest = np.reshape(partition.rest_weight.numpy(), [oracle.num_rows]) > 0.0
  for row in np.flatnonzero(has_rest):
    if not np.all(is_possible[:, row]):
      raise AssertionError(f'{what}: impossible in row {row}: {codes[:, row]}')
    taken = summed[log_weights[:, row] > -np.inf, row]
    same = np.all(codes[:, np.newaxis, row] == taken[np.newaxis], axis=-1)
    if np.any(same):
      raise AssertionError(
        f'{what}: row {row} draws summed values: {codes[:, row]}, {taken}'
      )


def check_partition(case):
  """Checks values, weights and draws of `tfp_rb.partition`.

  Returns:
    has_lattice: Whether the law of the draws was checked.
  """
  num_summed = case.problem.num_summed
  if case.problem.design not in ('top_k', 'given'):
    num_summed = min(2, case.num_values or 2)
  q = case.distribution(case.arguments())
  partition = tfp_rb.partition(q, num_summed)
  check_best(case, partition, num_summed)
  if partition.sample_rest is None:
    return False
  check_draws(
    case, partition, partition.sample_rest(4, case.seed), 'sample_rest'
  )
  shape = [4, *case.oracle.layout.batch, partition.num_uniforms]
  rng = np.random.default_rng([case.problem.seed, 3])
  ends = [2.0**-53, 1.0 - 2.0**-53, 1e-9, 0.5]
  u = tf.constant(rng.choice(ends, shape))
  check_draws(case, partition, partition.rest_from_uniforms(u), 'uniforms')
  if 'lattice' not in case.problem.checks:
    return False
  return check_lattice(case, partition, num_summed)


def check_lattice(case, partition, num_summed):
  """Checks that equidistant uniforms give each value its share of the rest."""
  oracle, side = case.oracle, 40
  if partition.num_uniforms > 2 or not 0 < oracle.num_rows <= 4:
    return False
  points = (np.arange(side) + 0.5) / side
  grid = np.stack(np.meshgrid(points, points), -1).reshape([-1, 2])
  grid = grid[:, : partition.num_uniforms]
  batch = oracle.layout.batch
  u = np.reshape(grid, [len(grid), *[1] * len(batch), grid.shape[-1]])
  u = np.broadcast_to(u, [len(grid), *batch, grid.shape[-1]])
  codes = oracle.decode(partition.rest_from_uniforms(tf.constant(u)).numpy())
  log_mass = oracle.log_mass(codes)
  for row in range(oracle.num_rows):
    listed = oracle.listed(row, num_summed)
    rest = log_sum(listed.log_masses[num_summed:], listed.beyond)
    if (
      not listed.is_complete
      or rest < -600.0
      or not float(np.ravel(partition.rest_weight)[row])
    ):
      continue
    found, counts = np.unique(codes[:, row, 0], return_counts=True)
    index = [np.flatnonzero(codes[:, row, 0] == z)[0] for z in found]
    expected = np.exp(log_mass[index, row] - rest)
    # Both uniforms are divided into `side` intervals.
    assert_close(counts / len(u), expected, 3.0 / side, f'law, row {row}')
  return True


def check_atoms(case, atoms):
  """Checks the atoms of the estimator and their weights.

  Returns:
    others: List with one entry for each row: `None`, or what
      `shares_without_replacement` gives to leave-one-out baselines.
  """
  oracle = case.oracle
  num_atoms = atoms.weights.shape[0]
  weights = np.reshape(
    atoms.weights.numpy().astype(np.float64), [num_atoms, oracle.num_rows]
  )
  codes = oracle.decode(atoms.values.numpy())
  log_mass = oracle.log_mass(codes)
  if not np.all(log_mass > -np.inf):
    raise AssertionError(f'impossible atoms {codes[log_mass == -np.inf]}')
  log_prob = np.reshape(atoms.log_prob.numpy(), log_mass.shape)
  rtol = case.rtol * (1.0 + np.abs(log_mass))
  assert_close(log_prob, log_mass, rtol + 1e-11, 'log_prob')
  num_summed = np.broadcast_to(
    np.asarray(atoms.num_summed), oracle.layout.batch
  ).ravel()
  check_split(case, num_summed, num_atoms)
  others = []
  for row in range(oracle.num_rows):
    others.append(
      check_row(
        case, row, codes[:, row], log_mass[:, row], weights[:, row],
        int(num_summed[row]),
      )
    )  # fmt: skip
  assert_close(
    np.sum(weights, axis=0), np.ones(oracle.num_rows), case.rtol + 1e-11,
    'sum of the weights',
  )  # fmt: skip
  return codes, weights, num_summed, others


def check_split(case, num_summed, num_atoms):
  """Checks that as many atoms are summed and drawn as the design requires."""
  problem, oracle = case.problem, case.oracle
  most = math.inf if case.num_values is None else case.num_values
  if problem.design == 'exact':
    expected, total = case.num_values, case.num_values
  elif problem.design == 'budget':
    expected, total = None, min(problem.budget, most)
  else:
    expected = problem.num_summed
    has_rest = problem.design == 'given' or expected < most
    total = expected + (problem.num_samples if has_rest else 0)
  if num_atoms != total:
    raise AssertionError(f'{num_atoms} atoms instead of {total}')
  if expected is not None:
    if np.any(num_summed != expected):
      raise AssertionError(f'{num_summed} sums instead of {expected}')
    return
  for row in range(oracle.num_rows):
    masses = np.exp(oracle.listed(row, total).log_masses[:total])
    left = np.maximum(1.0 - np.cumsum(np.append(0.0, masses)), 0.0)
    bound = left[:total] / (total - np.arange(total))
    k = num_summed[row]
    # This check does not decide ties, or cases in which the rest is lost in
    # rounding. If every value has an atom, nothing is left, and the difference
    # is the rounding error of the table.
    if total < most and left[total] > 1e-12 and k == total:
      raise AssertionError(f'row {row}: all {k} summed, but {left[k]} is left')
    if k < total and bound[k] > np.min(bound) + case.rtol + 1e-11:
      raise AssertionError(f'row {row}: {k} summed, bounds {bound}')


def check_row(case, row, codes, log_mass, weights, num_summed):
  """Checks the weights of one row; returns the averages of `check_without`."""
  problem = case.problem
  tiny = float(np.finfo(weight_dtype(problem)).tiny)
  kept = np.flatnonzero(weights[:num_summed] > 0.0)
  masses = np.exp(log_mass)
  rtol = case.rtol * (1.0 + np.abs(log_mass)) + 1e-11
  assert_close(
    weights[kept], masses[kept], rtol[kept] * masses[kept] + 2.0 * tiny,
    'weights of summed atoms',
  )  # fmt: skip
  if len(np.unique(codes[kept], axis=0)) < len(kept):
    raise AssertionError(f'row {row}: an atom is summed twice: {codes[kept]}')
  check_which_are_summed(case, row, codes, weights, num_summed)
  rest = 1.0 - float(np.sum(masses[kept]))
  drawn = np.arange(num_summed, len(weights))
  drawn = drawn[weights[drawn] > 0.0]
  same = np.all(codes[drawn][:, np.newaxis] == codes[kept][np.newaxis], -1)
  if np.any(same):
    raise AssertionError(f'row {row}: draws summed atoms: {codes}')
  num_draws = len(weights) - num_summed
  if not num_draws:
    return None
  if problem.sampler != 'without':
    desired = np.full(num_draws, max(rest, 0.0) / num_draws)
    assert_close(
      weights[num_summed:], desired, case.rtol + 1e-11, 'weights of draws'
    )
    return None
  return check_without(case, row, codes, log_mass, weights, num_summed)


def check_which_are_summed(case, row, codes, weights, num_summed):
  """Checks that the summed values are the best ones, or the given ones."""
  problem, oracle = case.problem, case.oracle
  kept = weights[:num_summed] > 0.0
  tiny = float(np.finfo(weight_dtype(problem)).tiny)
  if problem.design != 'given':
    best = np.exp(oracle.listed(row, num_summed).log_masses[:num_summed])
    assert_close(
      weights[:num_summed], best,
      case.rtol * (1.0 + np.abs(np.log(best + tiny))) * best + 2.0 * tiny
      + 1e-15, 'weights of the best',
    )  # fmt: skip
    return
  given = oracle.decode(case.given.numpy())
  log_mass = oracle.log_mass(given)[:, row]
  wanted = {
    tuple(z) for z, m in zip(given[:, row], log_mass) if math.exp(m) > 2 * tiny
  }
  found = {tuple(z) for z in codes[:num_summed][kept]}
  if not wanted <= found:
    raise AssertionError(f'row {row}: {found} summed instead of {wanted}')


def check_without(case, row, codes, log_mass, weights, num_summed):
  """Checks draws without replacement: distinct, with the shares of the set."""
  oracle = case.oracle
  is_drawn = weights[num_summed:] > 0.0
  draws = codes[num_summed:]
  if len(np.unique(draws[is_drawn], axis=0)) < np.sum(is_drawn):
    raise AssertionError(f'row {row}: drawn twice: {draws}')
  listed = oracle.listed(row, len(weights))
  if not listed.is_complete:
    return 'unknown'
  atoms = {tuple(z) for z, w in zip(codes, weights) if w > 0.0}
  summed = {tuple(z) for z in codes[:num_summed][weights[:num_summed] > 0.0]}
  is_rest = np.array([tuple(z) not in summed for z in listed.codes])
  is_beyond = np.array([tuple(z) not in atoms for z in listed.codes])
  rest = log_sum(listed.log_masses[is_rest], listed.beyond)
  beyond = log_sum(listed.log_masses[is_beyond], listed.beyond)
  if rest == -np.inf:
    return np.zeros([len(draws)] * 2)
  masses = np.where(is_drawn, np.exp(log_mass[num_summed:] - rest), 0.0)
  shares, others = shares_without_replacement(masses, math.exp(beyond - rest))
  # Values whose mass is below the rounding error of the rest have no exact
  # share.
  if np.min(masses[is_drawn], initial=1.0) < 1e3 * case.rtol:
    return 'unknown'
  assert_close(
    weights[num_summed:], shares * math.exp(rest),
    case.rtol * 100.0 * (1.0 + abs(rest)) + 1e-10, 'shares',
  )  # fmt: skip
  return others


class Observed(NamedTuple):
  """The atoms of one call of `expectation`.

  Attributes:
    codes: Base values, `[m, rows, sites]`.
    weights: Array of shape `[m, rows]`.
    num_summed: Integer array of shape `[rows]`.
    others: What `check_row` returned, for each row.
    extra: Base values of the further draws, `[n, rows, sites]`.
  """

  codes: np.ndarray
  weights: np.ndarray
  num_summed: np.ndarray
  others: list
  extra: np.ndarray


def observe(case, seen):
  """Checks the atoms and where `f` was called, and returns an `Observed`."""
  oracle, atoms = case.oracle, seen.atoms
  codes, weights, num_summed, others = check_atoms(case, atoms)
  values = [atoms.values] + ([] if atoms.extra is None else [atoms.extra])
  values = np.concatenate([x.numpy() for x in values])
  if len(seen.values) != 1 or not np.array_equal(seen.values[0], values):
    raise AssertionError('f was not called once, at the atoms')
  extra = np.zeros([0, oracle.num_rows, oracle.num_sites])
  if atoms.extra is not None:
    extra = oracle.decode(atoms.extra.numpy())
    if not np.all(oracle.log_mass(extra) > -np.inf):
      raise AssertionError('impossible extra draws')
  return Observed(codes, weights, num_summed, others, extra)


def expected_levels(case, observed, offset):
  """Returns what the baseline subtracts, `[m, rows]`; `None` if not known."""
  baseline, oracle = case.problem.baseline, case.oracle
  is_unknown = any(isinstance(x, str) for x in observed.others)
  if is_unknown and baseline in LEAVE_ONE_OUT:
    return None
  norm = np.zeros_like(observed.weights)
  if baseline == 'optimal':
    norm = oracle.norm(observed.codes)
    scale = 1e4 * case.rtol * (1.0 + np.max(norm, initial=0.0))
    if np.min(norm, initial=1.0) < scale:
      return None  # a quotient of rounding errors
  f = offset + oracle.f(observed.codes)[0]
  extra_f = offset + oracle.f(observed.extra)[0]
  result = np.zeros_like(observed.weights)
  for i in range(oracle.num_rows):
    others = None if is_unknown else observed.others[i]
    num_summed = int(observed.num_summed[i])
    row = Row(
      observed.weights[:, i], f[:, i], num_summed, extra_f[:, i], norm[:, i],
      others,
    )  # fmt: skip
    result[:, i] = levels(baseline, row)
  return result


def centred_values(case, observed):
  """Returns `f` minus the level of the baseline, and the error it may have.

  If a baseline follows an offset of `f`, the offset is left out here. It then
  costs no more digits than `f` itself has lost.

  Args:
    case: A `Case`.
    observed: `Observed`.

  Returns:
    centred: Array of shape `[m, rows]`, or `None` if the level is not known.
    error: Array of the same shape.
  """
  problem, offset = case.problem, case.problem.offset
  g = case.oracle.f(observed.codes)[0]
  with_offset = expected_levels(case, observed, offset)
  without = expected_levels(case, observed, 0.0)
  if without is None:
    return None, None
  difference = np.abs(with_offset - without - offset)
  # An atom of weight 0 may have any level.
  follows = np.all(
    (difference <= 1e-9 * (1.0 + offset)) | (observed.weights == 0.0), axis=0
  )
  drawn = np.sum(
    observed.weights * (np.arange(len(g))[:, None] >= observed.num_summed), 0
  )
  num_draws = len(g) - observed.num_summed
  if problem.baseline in LEAVE_ONE_OUT:
    is_promised = (drawn > 0.0) & (num_draws > 1)
    if not np.all(follows | ~is_promised):
      raise AssertionError('a leave-one-out level does not follow an offset')
  centred = np.where(follows, g - without, offset + g - with_offset)
  size = np.abs(g) + np.abs(without) + 1.0
  size = np.where(follows, size, size + offset + np.abs(with_offset))
  relative = eps(problem.f_dtype) + eps(problem.dtype) + case.rtol
  error = relative * size + (1.0 + len(g)) * eps(problem.f_dtype) * offset
  return centred, 20.0 * error


def check_expectation(case):
  """Checks that value and gradient are the sums over the observed atoms."""
  problem, oracle = case.problem, case.oracle
  seen = Seen()
  value, gradients = case.run(case.arguments(), seen)
  observed = observe(case, seen)
  weights = observed.weights
  if value.dtype.name != problem.f_dtype:
    raise AssertionError(f'value has dtype {value.dtype.name}')
  f = problem.offset + oracle.f(observed.codes)[0]
  error = 20.0 * (eps(problem.f_dtype) + case.rtol)
  expected = np.reshape(np.sum(weights * f, axis=0), oracle.layout.batch)
  scale = np.reshape(np.sum(weights * np.abs(f), axis=0), oracle.layout.batch)
  assert_close(value, expected, error * (scale + 1.0), 'value')
  arrays = [x.numpy().astype(np.float64) for x in gradients]
  if not all(np.all(np.isfinite(x)) for x in arrays):
    raise AssertionError(f'gradients are not finite: {arrays}')
  centred, error = centred_values(case, observed)
  if centred is not None:
    check_gradients(case, observed, centred, error, arrays)


def is_at_boundary(case):
  """Returns whether a parameter makes the mass of some value exactly 0.

  At such a parameter, the derivative of the sum is not the sum of the
  derivatives. (Tables of logits and of probs have no gradient at impossible
  values, as documented, and are compared nevertheless.)
  """
  base, family = case.oracle.base, case.problem.family
  ends = {
    'probs': () if 'Categorical' in family or 'Finite' in family else (0, 1),
    'rate': (0,),
    'log_rate': (-np.inf,),
  }
  if 'cutpoints' in base and np.any(np.diff(base['cutpoints']) == 0.0):
    return True
  return any(
    np.any(base[name] == end)
    for name in ends.keys() & base.keys()
    for end in ends[name]
  )


def check_gradients(case, observed, centred, error, gradients):
  """Checks the gradients w.r.t. the parameters, the shift and the penalty."""
  problem, oracle = case.problem, case.oracle
  codes = observed.codes
  w = np.ravel(oracle.numbers.upstream) * observed.weights
  expected = oracle.gradients(w * centred, codes)
  bounds = oracle.gradients(w * error, codes)
  gradients = list(gradients)
  if is_at_boundary(case):
    gradients = gradients[len(case.names) :]
  else:
    for name in case.names:
      bound = bounds[name][1] + np.max(bounds[name][1], initial=1e-20)
      assert_close(
        gradients.pop(0), expected[name][0], bound, f'gradient w.r.t. {name}'
      )
  _, by_penalty, by_site = oracle.f(codes)
  rtol = 20.0 * (eps(problem.f_dtype) + eps(problem.dtype) + case.rtol)
  if oracle.numbers.shift is not None and not oracle.family.is_integer:
    total = oracle.shift_gradient(w, by_site)
    bound = oracle.shift_gradient(w, np.abs(by_site))
    assert_close(
      gradients.pop(0), total, rtol * (bound + 1.0), 'gradient w.r.t. shift'
    )
  assert_close(
    gradients.pop(0), np.sum(w * by_penalty), rtol * (np.sum(w) + 1.0),
    'gradient w.r.t. penalty',
  )  # fmt: skip


def has_outcomes(case):
  """Returns whether the outcomes can be listed and compared."""
  problem, oracle = case.problem, case.oracle
  # Another batch dimension in front would not align with these wrappers.
  misaligned = {('Shift', 'wider'), ('BatchBroadcast', 'front')}
  return (
    case.num_values is not None
    and problem.dtype == problem.f_dtype == 'float64'
    and problem.sampler != 'stratified'
    and problem.design != 'given'
    and 1 <= oracle.num_rows <= 4
    and not misaligned & {*problem.wrappers}
    and (oracle.numbers.shift is None or not oracle.family.is_integer)
    and not is_at_boundary(case)
  )


def check_outcomes(case):
  """Checks that the mean over outcomes is the derivative of the explicit sum.

  Returns:
    is_done: Whether there were few enough outcomes to run the check.
  """
  problem, oracle = case.problem, case.oracle
  if not has_outcomes(case):
    return False

  def make(*arguments):
    num_copied = len(arguments[-1].shape)
    q = case.distribution(arguments, num_copied)
    return case.integrand(arguments[-1], num_copied), q

  outcomes = internals.enumerate_outcomes(
    case.estimator, make, case.arguments(), MOST_OUTCOMES
  )
  if outcomes is None:
    return False
  total = np.sum(outcomes.probabilities, axis=0)
  assert_close(total, np.ones(oracle.layout.batch), 1e-10, 'total probability')
  every = [oracle.listed(row, 1) for row in range(oracle.num_rows)]
  codes = np.stack([x.codes for x in every], axis=1)
  masses = np.exp(np.stack([x.log_masses for x in every], axis=1))
  g, by_penalty, by_site = oracle.f(codes)
  f = problem.offset + g
  error = 1e-9 + 50.0 * eps('float64') * problem.offset
  value = np.sum(outcomes.probabilities * outcomes.values, axis=0)
  expected = np.reshape(np.sum(masses * f, axis=0), oracle.layout.batch)
  assert_close(value, expected, error * (1.0 + np.abs(expected)), 'mean value')
  # The offset is left out, since the scores sum to 0.
  wanted = oracle.gradients(masses * g, codes)
  wanted = [wanted[name] for name in case.names]
  if oracle.numbers.shift is not None:
    wanted.append((oracle.shift_gradient(masses, by_site), 1.0))
  wanted.append((np.sum(masses * by_penalty), 1.0))
  for actual, (desired, scale) in zip(outcomes.weighted_gradients, wanted):
    assert_close(
      np.sum(actual, axis=0), desired, error * (1.0 + scale), 'mean gradient'
    )
  return True


def may_be_dynamic(case):
  """Returns whether the batch's first axis may be unknown while tracing."""
  problem = case.problem
  names = [name for name, _ in problem.wrappers]
  num_sites_axes = sum(
    how for name, how in problem.wrappers if name == 'Independent'
  )
  is_refused = (
    case.num_values is None
    and ('Shift', 'batch') in problem.wrappers
    and (problem.sampler == 'without' or problem.design == 'given')
  )
  return (
    # The problem may broadcast an axis of size 1.
    problem.batch[:1] not in ((), (1,))
    # The number of sites must be known.
    and num_sites_axes < len(problem.batch)
    # The library cannot know that such a shift does not repeat anything.
    and not is_refused
    # TFP forgets the shape of a batch that it has rearranged.
    and not {'BatchReshape', 'BatchBroadcast'} & {*names[:-1]}
  )


def check_graph(case, jit_compile):
  """Checks that a graph with a batch unknown while tracing gives the same."""
  arguments = [tf.convert_to_tensor(x) for x in case.arguments()]
  signature = []
  is_dynamic = may_be_dynamic(case) and not jit_compile
  is_sized = [True] * len(case.names)
  if case.oracle.numbers.shift is not None:
    is_sized.append(bool(case.oracle.layout.shift_shape))
    how = dict(case.problem.wrappers)['Shift']
    is_sized[-1] &= how == 'batch'
  for x, sized in zip(arguments, [*is_sized, False]):
    shape = list(x.shape)
    if is_dynamic and sized and shape:
      shape[0] = None
    signature.append(tf.TensorSpec(shape, x.dtype))
  function = tf.function(
    lambda *args: case.run(args),
    input_signature=signature,
    autograph=False,
    jit_compile=jit_compile,
  )
  value, gradients = function(*arguments)
  expected, expected_gradients = case.run(arguments)
  rtol = 100.0 * (case.rtol + eps(case.problem.f_dtype))
  scale = 1.0 + case.problem.offset
  what = 'XLA' if jit_compile else 'graph'
  assert_close(value, expected, rtol * scale, f'{what}: value')
  rtol += 10.0 * eps(case.problem.dtype)
  for actual, desired in zip(gradients, expected_gradients):
    desired = desired.numpy().astype(np.float64)
    assert_close(
      actual, desired, rtol * (scale + np.max(np.abs(desired), initial=0.0)),
      f'{what}: gradient',
    )  # fmt: skip


def check(problem):
  """Raises an error unless the library is right on a problem.

  Returns:
    done: Names of the optional checks that were made.
  """
  case = Case(problem)
  done = ['lattice'] if check_partition(case) else []
  check_expectation(case)
  if 'outcomes' in problem.checks and check_outcomes(case):
    done.append('outcomes')
  for name in ('graph', 'xla'):
    if name in problem.checks:
      check_graph(case, jit_compile=name == 'xla')
      done.append(name)
  return done


# The program.


def attempt(problem):
  """Returns the error of a problem as text, and the optional checks made."""
  try:
    return None, check(problem)
  except Exception as error:  # any error is reported
    frames = traceback.extract_tb(error.__traceback__)
    place = next(
      (f for f in reversed(frames) if '/tfp_rb/' in f.filename), frames[-1]
    )
    where = f'{os.path.basename(place.filename)}:{place.lineno}'
    text = ' '.join(str(error).split())[:400]
    return f'{type(error).__name__} at {where}: {text}', []


def failure_of(problem):
  """Returns the error of a problem as text, or `None` if it passes."""
  return attempt(problem)[0]


def shrink(problem, most_tries=150):
  """Simplifies a failing problem greedily as long as it keeps failing."""
  tries, is_smaller = 0, True
  while is_smaller and tries < most_tries:
    is_smaller = False
    for candidate in simpler(problem):
      try:
        candidate = repair(candidate)
      except ValueError:
        continue
      if candidate == problem:
        continue
      tries += 1
      if failure_of(candidate) is not None:
        problem, is_smaller = candidate, True
        break
  return problem


def report(problem, error, is_shrunk=True):
  """Returns the text about a failing problem."""
  lines = [f'FAILED seed {problem.seed}: {error}', f'  {problem.to_json()}']
  if is_shrunk:
    smallest = shrink(problem)
    lines += [
      f'  smallest: {failure_of(smallest)}',
      f"  python tests/fuzz.py --problem='{smallest.to_json()}'",
    ]
  lines.append(f'  python tests/fuzz.py --only={problem.seed}')
  return '\n'.join(lines)


def limit_threads():
  """Sets one thread, with which small `Tensor`s are fastest."""
  tf.config.threading.set_intra_op_parallelism_threads(1)
  tf.config.threading.set_inter_op_parallelism_threads(1)


def run_seeds(seeds, without=()):
  """Runs the given seeds.

  Args:
    seeds: Iterable of integers.
    without: Names of optional checks that are left out.

  Returns:
    coverage: `collections.Counter` of the results of `cells`.
    failures: List of pairs of a seed and the text about its failure.
  """
  coverage, failures = collections.Counter(), []
  for seed in seeds:
    problem = random_problem(seed)
    kept = tuple(name for name in problem.checks if name not in without)
    problem = problem.replace(checks=kept)
    error, done = attempt(problem)
    coverage.update([*cells(problem), *(('check', name) for name in done)])
    if error is not None:
      failures.append((seed, report(problem, error)))
  return coverage, failures


def cells(problem):
  """Returns what a problem covers, as pairs of a dimension and a value."""
  wrappers = '+'.join(name for name, _ in problem.wrappers) or 'none'
  yield 'family', problem.family
  yield 'wrapper', wrappers if problem.wrappers[2:] == () else 'three or more'
  yield 'dtype', problem.dtype
  yield 'batch', str(list(problem.batch))
  yield 'style', problem.style
  yield 'design', problem.design
  yield 'sampler', problem.sampler
  yield 'baseline', problem.baseline
  yield 'offset', f'{problem.offset:g}'
  yield 'elsewhere', problem.elsewhere


def print_coverage(coverage):
  """Prints how many problems had each property."""
  for dimension in dict.fromkeys(key for key, _ in sorted(coverage)):
    found = {v: n for (k, v), n in sorted(coverage.items()) if k == dimension}
    print(f'{dimension}: ' + ', '.join(f'{v} {n}' for v, n in found.items()))


def run(seeds, jobs):
  """Runs many seeds, and returns the seeds that failed."""
  chunks = [seeds[i : i + 20] for i in range(0, len(seeds), 20)]
  coverage, failed, num_done, start = collections.Counter(), [], 0, time.time()
  pool, results = None, map(run_seeds, chunks)
  if jobs > 1:
    # Processes are replaced from time to time, because graphs leave memory
    # behind.
    pool = multiprocessing.get_context('spawn').Pool(
      jobs, initializer=limit_threads, maxtasksperchild=100
    )
    results = pool.imap_unordered(run_seeds, chunks)
  for some, failures in results:
    num_done += sum(n for (k, _), n in some.items() if k == 'family')
    coverage.update(some)
    for seed, text in failures:
      failed.append(seed)
      print(text, flush=True)
    rate = num_done / (time.time() - start)
    if num_done % 500 < 20 or num_done == len(seeds):
      print(
        f'{num_done} of {len(seeds)} problems, {rate:.1f} per second, '
        f'{len(failed)} failed',
        flush=True,
      )
  if pool is not None:
    pool.close()
  print_coverage(coverage)
  return failed


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--problems', type=int, default=1000)
  parser.add_argument('--seed', type=int, default=0, help='the first seed')
  parser.add_argument('--jobs', type=int, default=1)
  parser.add_argument('--family', default='', help='a part of its name')
  parser.add_argument('--only', type=int, help='run one seed')
  parser.add_argument('--problem', help='run one problem, given as JSON')
  arguments = parser.parse_args()
  limit_threads()
  if arguments.only is not None or arguments.problem:
    problem = (
      Problem.from_json(arguments.problem)
      if arguments.problem
      else random_problem(arguments.only)
    )
    print(problem.to_json())
    check(problem)
    print('passed')
    return 0
  seeds = (
    seed
    for seed in itertools.count(arguments.seed)
    if arguments.family in random_problem(seed).family
  )
  seeds = list(itertools.islice(seeds, arguments.problems))
  failed = run(seeds, arguments.jobs)
  print(f'failed seeds: {sorted(failed) or "none"}')
  return 1 if failed else 0


if __name__ == '__main__':
  sys.exit(main())
