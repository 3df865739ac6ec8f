# SPDX-License-Identifier: Apache-2.0
"""Computes variances of score-function gradients in closed form, in NumPy.

`k` values are summed and `M` are drawn from the rest, which has mass `R` and
probabilities `p = q / R`. All means are over the rest: `m` is the mean of `f`,
and `phi = f - m`; `sigma` is the mean of the score `s`, and `t = s - sigma`.
Draw `j` has the level

```none
  b_j = b + a (mean of phi over the draws other than j)
```

and a summed atom has the mean of the `b_j`. Then the estimate is a constant
plus

```none
  R / M sum_j y_j  -  a R / (M (M - 1)) sum_{i != j} phi_i t_j,    y = (f - b) s
```

The two sums are uncorrelated, so the total variance is

```none
  R^2 / M  ( Var[y] + a^2 / (M - 1) (Var[f] E|t|^2 + |E[phi t]|^2) )
```

`REINFORCE()` has `a = b = 0`; see `_levels` for `LeaveOneOut`.
"""

from typing import NamedTuple, TypeAlias

import numpy as np

__all__ = ['Row', 'proposition_2', 'variance']

# `|t|^2` and `t . sigma`, of shape `[K - k]`; `|sigma|^2` and `|E[phi t]|^2`.
_Geometry: TypeAlias = tuple[np.ndarray, np.ndarray, float, float]


class Row(NamedTuple):
  """Holds one member of a batch, with values in the order of a partition.

  Attributes:
    q: Array of shape `[K]`, probabilities that sum to 1.
    f: Array of shape `[K]`.
    scores: Array of shape `[K, P]`, gradients of `log q` w.r.t. `P` parameters.
      `None` stands for the logits of the values: `s(z) = e(z) - q`.
  """

  q: np.ndarray
  f: np.ndarray
  scores: np.ndarray | None = None


def variance(
  row: Row, num_summed: int, num_draws: int, leave_one_out: bool
) -> float:
  """Returns the total variance of the gradient.

  Args:
    row: A `Row`.
    num_summed: Python `int` `k`; the first `k` values are summed.
    num_draws: Python `int` `M`, at least 1 unless nothing is left to draw.
    leave_one_out: Python `bool`, whether the baseline is `LeaveOneOut()`.

  Returns:
    variance: Python `float`.
  """
  mass = np.sum(row.q[num_summed:])
  if mass == 0.0:
    return 0.0
  p, f = row.q[num_summed:] / mass, row.f[num_summed:]  # [K - k]
  mean = p @ f
  phi = f - mean
  distance, a = _levels(row, num_summed, num_draws, leave_one_out, mass, mean)
  if row.scores is None:
    geometry = _geometry_of_logits(row.q, num_summed, p, phi)
  else:
    geometry = _geometry_of_scores(row.scores[num_summed:], p, phi)
  norm, along, norm_of_mean, covariance = geometry
  # y = psi t + phi sigma, up to a constant. Its mean is E[phi t].
  psi = phi + distance
  of_y = p @ (psi**2 * norm + 2.0 * psi * phi * along + phi**2 * norm_of_mean)
  of_pairs = (p @ phi**2) * (p @ norm) + covariance
  pairs = a**2 / (num_draws - 1) * of_pairs if num_draws > 1 else 0.0
  total = mass**2 / num_draws * (of_y - covariance + pairs)
  return float(max(total, 0.0))  # Rounding can make it negative.


def _levels(
  row: Row,
  num_summed: int,
  num_draws: int,
  leave_one_out: bool,
  mass: float,
  mean: float,
) -> tuple[float, float]:
  """Returns `m - b` and `a`."""
  if not leave_one_out:
    return mean, 0.0
  summed = row.q[:num_summed]
  # Differences of `f` do not lose digits to a large constant in `f`.
  above = row.f[:num_summed] - mean
  excess = float(summed @ above)
  if num_draws == 1:
    # There is no other draw, so the level is a mean over the summed atoms. They
    # are possible because they are more probable than the values of the rest,
    # but the probability of a single path of a long chain can underflow to 0.
    possible = np.where(summed > 0.0, summed, 1.0)
    weights = np.where(summed > 0.0, summed[-1] / possible, 1.0)
    return -float(np.average(above, weights=weights)), 0.0
  share = mass / (2.0 * (num_draws - 1) ** 2)  # as in `form='mixed'`
  return -share * excess, 1.0 - np.sum(summed) * share


def _geometry_of_logits(
  q: np.ndarray, num_summed: int, p: np.ndarray, phi: np.ndarray
) -> _Geometry:
  """Returns the products of scores w.r.t. logits, for which `t = e - p`."""
  # The scores are never listed: they would be a matrix of shape [K - k, K].
  sigma = p - q[num_summed:]
  along = sigma - p @ sigma
  # At a summed value, `sigma` is `-q`.
  norm_of_mean = np.sum(sigma**2) + np.sum(q[:num_summed] ** 2)
  norm = 1.0 - 2.0 * p + p @ p
  return norm, along, norm_of_mean, np.sum((p * phi) ** 2)


def _geometry_of_scores(
  scores: np.ndarray, p: np.ndarray, phi: np.ndarray
) -> _Geometry:
  """Returns the products of any scores, given the scores of the rest."""
  sigma = p @ scores  # [P]
  t = scores - sigma  # [K - k, P]
  covariance = np.sum(((p * phi) @ t) ** 2)
  return np.sum(t**2, axis=-1), t @ sigma, np.sum(sigma**2), covariance


def proposition_2(row: Row, budget: int) -> int:
  """Returns how many values `rao_blackwellize(..., budget=budget)` sums."""
  # q(rest) after 0, 1, ..., K values; sums from the smallest are accurate.
  left = np.append(np.cumsum(row.q[::-1])[::-1], 0.0)  # [K + 1]
  # At k = N, the bound of Proposition 2 is 0 if nothing is left, else infinite.
  if budget >= len(row.q) or not left[budget] > 0.0:
    return min(budget, len(row.q))
  return int(np.argmin(left[:budget] / (budget - np.arange(budget))))
