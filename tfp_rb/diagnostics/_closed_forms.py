"""Variances of score-function gradients in closed form, in numpy.

`k` values are summed and `M` are drawn from the rest, of mass `R` and law
`p = q / R`. With `m` the mean of `f` over the rest and `phi = f - m`, `sigma`
the mean of the score `s` over the rest and `t = s - sigma`, and a level

```none
  b_j = b + a (mean of phi over the draws other than j)
```

for the draws and the mean of the `b_j` for the summed atoms, the estimate is a
constant plus

```none
  R / M sum_j y_j  -  a R / (M (M - 1)) sum_{i != j} phi_i t_j,    y = (f - b) s
```

The two sums are uncorrelated, so that the total variance is

```none
  R^2 / M  ( Var[y] + a^2 / (M - 1) (Var[f] E|t|^2 + |E[phi t]|^2) )
```

with all moments over the rest. `REINFORCE()` has `a = b = 0`; for `LeaveOneOut`
see `_levels`.
"""

from typing import NamedTuple

import numpy as np

__all__ = ['Row', 'proposition_2', 'variance']


class Row(NamedTuple):
  """One member of a batch, its values in the order of a partition.

  Attributes:
    q: Array of shape `[K]`, probabilities that sum to 1.
    f: Array of shape `[K]`.
    scores: Array of shape `[K, P]`, gradients of `log q`; `None` stands for
      those with respect to the logits of the values, `s(z) = e(z) - q`.
  """

  q: np.ndarray
  f: np.ndarray
  scores: np.ndarray | None = None


def variance(row, num_summed, num_draws, leave_one_out):
  """Total variance of the gradient.

  Args:
    row: A `Row`.
    num_summed: Python `int` `k`, of the first values.
    num_draws: Python `int` `M`, at least 1 unless nothing is left.
    leave_one_out: Python `bool`, whether the baseline is `LeaveOneOut()`.

  Returns:
    variance: Python `float`.
  """
  mass = np.sum(row.q[num_summed:])
  if mass == 0.0:
    return 0.0
  p, f = row.q[num_summed:] / mass, row.f[num_summed:]
  mean = p @ f
  phi = f - mean
  distance, a = _levels(row, num_summed, num_draws, leave_one_out, mass, mean)
  geometry = _by_logits if row.scores is None else _by_scores
  norm, along, norm_of_mean, covariance = geometry(row, num_summed, p, phi)
  # y = (phi + distance) (t + sigma), up to a constant; its mean is E[phi t].
  psi = phi + distance
  of_y = p @ (psi**2 * norm + 2.0 * psi * phi * along + phi**2 * norm_of_mean)
  of_pairs = (p @ phi**2) * (p @ norm) + covariance
  pairs = a**2 / (num_draws - 1) * of_pairs if num_draws > 1 else 0.0
  total = mass**2 / num_draws * (of_y - covariance + pairs)
  return float(max(total, 0.0))


def _levels(row, num_summed, num_draws, leave_one_out, mass, mean):
  """`m - b`, without the cancellation of a constant in `f`, and `a`."""
  if not leave_one_out:
    return mean, 0.0
  summed = row.q[:num_summed]
  excess = summed @ (row.f[:num_summed] - mean)
  if num_draws == 1:
    return -excess / np.sum(summed), 0.0
  share = mass / (2.0 * (num_draws - 1) ** 2)  # the form 'mixed'
  return -share * excess, 1.0 - np.sum(summed) * share


def _by_logits(row, num_summed, p, phi):
  """`|t|^2`, `t . sigma`, `|sigma|^2` and `|E[phi t]|^2`, where `t = e - p`."""
  sigma = p - row.q[num_summed:]
  along = sigma - p @ sigma
  norm_of_mean = np.sum(sigma**2) + np.sum(row.q[:num_summed] ** 2)
  norm = 1.0 - 2.0 * p + p @ p
  return norm, along, norm_of_mean, np.sum((p * phi) ** 2)


def _by_scores(row, num_summed, p, phi):
  """The same of any scores."""
  scores = row.scores[num_summed:]
  sigma = p @ scores
  t = scores - sigma
  covariance = np.sum(((p * phi) @ t) ** 2)
  return np.sum(t**2, axis=-1), t @ sigma, np.sum(sigma**2), covariance


def proposition_2(row, budget):
  """How many values `rao_blackwellize(..., budget=budget)` sums."""
  left = np.append(np.cumsum(row.q[::-1])[::-1], 0.0)
  if budget >= len(row.q) or not left[budget] > 0.0:
    return min(budget, len(row.q))
  return int(np.argmin(left[:budget] / (budget - np.arange(budget))))
