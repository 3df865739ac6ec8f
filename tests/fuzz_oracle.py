# SPDX-License-Identifier: Apache-2.0
"""Computes the right estimate of a fuzz problem by brute force in NumPy.

Inside, all arrays are flat: values have shape `[m, rows, sites]` and weights
`[m, rows]`. The base value of a `FiniteDiscrete` is an index into its outcomes,
that of a one-hot vector is the position of its 1, and otherwise the base value
is the value itself.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
from scipy import special

from fuzz_families import FAMILIES, outcomes_of
from fuzz_problems import LEAVE_ONE_OUT, layout_of, numbers_of
import reference

# At most this many joint values of a row are listed one by one.
MOST_LISTED = 5000


class Listed(NamedTuple):
  """The most probable joint values of one row, in descending order.

  Attributes:
    codes: Array of shape `[n, sites]`, base values.
    log_masses: Array of shape `[n]`.
    is_complete: Whether all values with mass are listed, except for `beyond`.
    beyond: The mass of the values that are not listed, if `is_complete`.
  """

  codes: np.ndarray
  log_masses: np.ndarray
  is_complete: bool
  beyond: float


class Oracle:
  """Represents the distribution of a problem."""

  def __init__(self, problem):
    self.problem = problem
    self.family = FAMILIES[problem.family]
    self.layout = layout_of(problem)
    self.numbers = numbers_of(problem, self.layout)
    self.num_rows = math.prod(self.layout.batch)
    self.num_sites = math.prod(self.layout.sites)
    shape = (self.num_rows, self.num_sites)
    self.rows = np.reshape(self.layout.rows, shape)
    self.base = {
      name: np.reshape(
        x.astype(np.float64),
        (math.prod(problem.batch), *x.shape[len(problem.batch) :]),
      )
      for name, x in self.numbers.parameters.items()
    }
    self.p = {name: x[self.rows] for name, x in self.base.items()}
    self.shift = np.zeros(shape)
    if self.layout.shifts is not None:
      flat = np.ravel(self.numbers.shift.astype(np.float64))
      self.shift = flat[np.reshape(self.layout.shifts, shape)]

  def decode(self, values):
    """Returns base values of `[m] + batch + sites (+ [K])`; NaN if none."""
    values = np.asarray(values).astype(np.float64)
    if self.family.vectors is not None:
      vectors, numbers = self.family.vectors(self.numbers.settings)
      index = np.clip(np.round(values @ numbers), 0, len(vectors) - 1)
      index = index.astype(int)
      is_listed = np.all(values == vectors[index], axis=-1)
      values = np.where(is_listed, index, np.nan)
    shape = (len(values), self.num_rows, self.num_sites)
    codes = np.reshape(values, shape) - self.shift
    if 'FiniteDiscrete' in self.problem.family and codes.size:
      distance = np.abs(codes[..., np.newaxis] - outcomes_of(self.problem.size))
      index = np.argmin(distance, axis=-1)
      codes = np.where(np.min(distance, axis=-1) < 1e-3, index, np.nan)
    elif self.layout.shifts is not None:
      # A fractional shift causes rounding: the sum minus the shift is only near
      # an integer.
      index = np.round(codes)
      codes = np.where(np.abs(codes - index) < 1e-3, index, np.nan)
    return codes

  def numbers_at(self, codes):
    """Returns the values as numbers, `[m, rows, sites]`."""
    if 'FiniteDiscrete' in self.problem.family:
      codes = outcomes_of(self.problem.size)[np.round(codes).astype(int)]
    return codes + self.shift

  def encode(self, codes):
    """Inverts `decode`: returns values as the distribution represents them."""
    values = np.reshape(
      self.numbers_at(codes),
      (len(codes), *self.layout.batch, *self.layout.sites),
    )
    if self.family.vectors is not None:
      vectors, _ = self.family.vectors(self.numbers.settings)
      return vectors[np.round(values).astype(int)]
    return values

  def site_log_mass(self, codes):
    is_nan = np.isnan(codes)
    codes = np.where(is_nan, 0.0, codes)
    log_mass = self.family.log_mass(self.p, codes, self.numbers.settings)
    return np.where(is_nan, -np.inf, log_mass)

  def log_mass(self, codes):
    """Returns `log q`, `[m, rows]`; `-inf` if a value is impossible."""
    return np.sum(self.site_log_mass(codes), axis=-1)

  def listed(self, row, num_best):
    """Returns a `Listed` of a row, whose first `num_best` values are right."""
    support = self.family.support(self.numbers.settings).astype(float)
    shape = (len(support), self.num_rows, self.num_sites)
    codes = np.broadcast_to(support[:, np.newaxis, np.newaxis], shape)
    table = self.site_log_mass(codes)[:, row]  # [n, sites]
    is_complete = len(support) ** self.num_sites <= MOST_LISTED
    per_site = []
    for site in range(self.num_sites):
      order = np.argsort(-table[:, site], kind='stable')
      per_site.append(order if is_complete else order[: num_best + 2])
    grid = np.array(list(itertools.product(*per_site)))
    log_masses = sum(table[grid[:, s], s] for s in range(self.num_sites))
    order = np.argsort(-log_masses, kind='stable')
    beyond = 0.0
    if self.family.tail is not None:
      tail = self.family.tail(self.p, support[-1], self.numbers.settings)
      beyond = float(np.sum(np.broadcast_to(tail, self.rows.shape)[row]))
    return Listed(support[grid[order]], log_masses[order], is_complete, beyond)

  # The integrand.

  def f(self, codes):
    """Returns `f` without offset, and its derivatives.

    The derivatives are w.r.t. the penalty and w.r.t. each site.
    """
    values = self.numbers_at(codes)
    slopes = np.ravel(self.numbers.slopes)
    penalty = self.numbers.penalty
    feature = np.sum(slopes * np.mod(values, 1009.0), axis=-1)
    by_penalty = 0.5 * (1.0 + np.sin(feature))
    by_feature = -np.sin(feature) + 0.5 * penalty * np.cos(feature)
    value = np.cos(feature) + penalty * by_penalty
    return value, by_penalty, by_feature[..., np.newaxis] * slopes

  def norm(self, codes):
    norms = self.family.norm(self.p, codes, self.numbers.settings)
    return np.sum(norms, axis=-1)

  def gradients(self, coefficients, codes):
    """Returns sums of `coefficients * score`, and of their absolute values.

    Args:
      coefficients: Array of shape `[m, rows]`.
      codes: Array of shape `[m, rows, sites]`, possible values.

    Returns:
      gradients: Dictionary of pairs of arrays with the shapes of the
        parameters.
    """
    result = {}
    scores = self.family.scores(self.p, codes, self.numbers.settings)
    for name, pair in scores.items():
      shape = (*codes.shape, *self.base[name].shape[1:])
      pair = [np.broadcast_to(x, shape) for x in pair]
      c = np.reshape(
        coefficients, (*coefficients.shape, *[1] * (len(shape) - 2))
      )
      sums = []
      for factor, x in zip((c, np.abs(c)), pair):
        total = np.zeros_like(self.base[name])
        # If several sites share a row, their scores add up.
        np.add.at(total, self.rows, np.sum(factor * x, axis=0))
        sums.append(np.reshape(total, self.numbers.parameters[name].shape))
      result[name] = tuple(sums)
    return result

  def shift_gradient(self, coefficients, by_site):
    """Returns the sum of `coefficients * df/dz` in the shape of the shift."""
    total = np.zeros(math.prod(self.layout.shift_shape))
    index = np.reshape(self.layout.shifts, self.rows.shape)
    np.add.at(
      total, index, np.sum(coefficients[..., np.newaxis] * by_site, axis=0)
    )
    return np.reshape(total, self.layout.shift_shape)


# Baselines, one row at a time.


class Row(NamedTuple):
  """The atoms of one row.

  Attributes:
    weights: Array of shape `[m]`.
    f: Array of shape `[m]`.
    num_summed: How many of the atoms are summed; these come first.
    extra_f: Array of shape `[n]`, `f` at the further draws.
    norm: Array of shape `[m]`, norms of the scores.
    others: `None`, or an array `[M, M]`: if draws are without replacement, the
      weights with which a draw averages over all draws.
  """

  weights: np.ndarray
  f: np.ndarray
  num_summed: int
  extra_f: np.ndarray
  norm: np.ndarray
  others: np.ndarray | None = None


def _mean_of_others(row, x, j):
  """Returns the average of `x` that draw `j` gets from the other draws."""
  draws = list(x[row.num_summed :])
  if row.others is not None:
    return float(np.dot(row.others[j], draws))
  others = draws[:j] + draws[j + 1 :]
  return sum(others) / len(others) if others else 0.0


def _leave_one_out(form, row, j):
  summed = slice(0, row.num_summed)
  known = np.sum(row.weights[summed] * row.f[summed])
  mass = np.sum(row.weights[summed])
  rest = np.sum(row.weights[row.num_summed :])
  num_draws = len(row.weights) - row.num_summed
  if num_draws == 1:
    possible = row.weights[summed] > 0.0
    inverse = 1.0 / row.weights[summed][possible]
    total = np.sum(inverse)
    return inverse @ row.f[summed][possible] / total if total > 0.0 else 0.0
  mean = _mean_of_others(row, row.f, j)
  if form == 'rest':
    return mean
  if form == 'all':
    return known + (1.0 - mass) * mean
  share = rest / (2.0 * (num_draws - 1) ** 2)
  return share * known + (1.0 - share * mass) * mean


def _optimal(row, j):
  summed = slice(0, row.num_summed)
  rest = np.sum(row.weights[row.num_summed :])

  def expected(x):
    known = np.sum(row.weights[summed] * x[summed])
    return known + rest * _mean_of_others(row, x, j)

  below = expected(row.norm)
  return expected(row.norm * row.f) / below if below > 0.0 else 0.0


def levels(baseline, row):
  """Returns what the baseline subtracts from each atom of a row, `[m]`."""
  num_atoms = len(row.weights)
  if baseline in ('none', 'constant'):
    return np.full(num_atoms, 1.5 if baseline == 'constant' else 0.0)
  if baseline in ('independent', 'unshared'):
    return np.broadcast_to(row.extra_f, [num_atoms])
  of_draw = _optimal
  if baseline in LEAVE_ONE_OUT:
    of_draw = lambda row, j: _leave_one_out(baseline, row, j)
  draws = np.array([of_draw(row, j) for j in range(num_atoms - row.num_summed)])
  weights = row.weights[row.num_summed :]
  rest = np.sum(weights)
  # Summed atoms get the mean level of the draws.
  mean = np.sum(weights * draws) / rest if rest > 0.0 else 0.0
  return np.concatenate([np.full(row.num_summed, mean), draws])


def shares_without_replacement(masses, beyond):
  """Returns the weights of draws without replacement.

  Args:
    masses: Array of shape `[M]`, masses of the distinct draws given the rest; 0
      if nothing was left to draw.
    beyond: Mass of the values that were not drawn, given the rest.

  Returns:
    shares: Array of shape `[M]`.
    others: Array of shape `[M, M]`.
  """
  drawn = np.flatnonzero(masses > 0.0)
  shares, others = np.zeros(len(masses)), np.zeros([len(masses)] * 2)
  if len(drawn):
    p = masses[drawn]
    first, second = reference.first_and_second(list(p), beyond)
    shares[drawn] = first
    # With probability `p`, a draw came first; otherwise it is not among the
    # others.
    pairs = np.diag(p) + (1.0 - p)[:, np.newaxis] * second
    others[np.ix_(drawn, drawn)] = pairs
  return shares, others


def log_sum(log_masses, beyond=0.0):
  """Returns `log(sum(exp(log_masses)) + beyond)`."""
  with np.errstate(divide='ignore'):
    return float(special.logsumexp(np.append(log_masses, np.log(beyond))))
