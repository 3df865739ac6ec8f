# SPDX-License-Identifier: Apache-2.0
"""A naive oracle: NumPy loops over every value, without using `tfp_rb`.

A distribution is a table: a list of pairs `(value, probability)`. Every
function is analytic in the parameters. They may therefore be complex, so that
`complex_step_gradient` differentiates to machine precision.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

# Tables of the families, each for one row of a batch.


def sigmoid(x):
  return 1.0 / (1.0 + np.exp(-x))


def softmax(logits):
  """Returns the softmax of moderate logits, which may be complex or `-inf`."""
  masses = np.exp(logits)
  return masses / np.sum(masses)


def categorical(logits):
  return list(enumerate(softmax(logits)))


def one_hot_categorical(logits):
  return list(zip(np.eye(len(logits)), softmax(logits)))


def finite_discrete(outcomes, logits):
  return list(zip(outcomes, softmax(logits)))


def bernoulli(logit):
  return [(0, sigmoid(-logit)), (1, sigmoid(logit))]


def ordered_logistic(cutpoints, location):
  exceed = [1.0, *(sigmoid(location - c) for c in cutpoints), 0.0]
  return [(z, exceed[z] - exceed[z + 1]) for z in range(len(cutpoints) + 1)]


def binomial(total_count, logit):
  n = int(total_count)
  success, failure = sigmoid(logit), sigmoid(-logit)
  return [
    (z, math.comb(n, z) * success**z * failure ** (n - z)) for z in range(n + 1)
  ]


def beta_binomial(total_count, concentration1, concentration0):
  """Uses the urn of Polya, so that no special function is needed."""
  n = int(total_count)

  def rising(x, m):
    return np.prod([x + i for i in range(m)])

  return [
    (
      z,
      math.comb(n, z)
      * rising(concentration1, z)
      * rising(concentration0, n - z)
      / rising(concentration1 + concentration0, n),
    )
    for z in range(n + 1)
  ]


def shifted(table, shift):
  return [(z + shift, p) for z, p in table]


def product(tables):
  """Combines independent sites; values are stacked along a new first axis."""
  return [
    (np.array([z for z, _ in pairs]), np.prod([p for _, p in pairs]))
    for pairs in itertools.product(*tables)
  ]


def chain(initial_logits, transition_logits):
  """Lists the paths of a Markov chain in lexicographic order.

  Args:
    initial_logits: Array of shape `[K]`.
    transition_logits: Array of shape `[T - 1, K, K]`; no path leaves a state
      whose row is `-inf`.

  Returns:
    table: List of pairs `(path, probability)`.
  """
  first = softmax(initial_logits)
  rows = [
    [
      np.zeros(len(first)) if np.all(np.real(r) == -np.inf) else softmax(r)
      for r in t
    ]
    for t in transition_logits
  ]
  return [
    (
      np.array(path),
      first[path[0]]
      * np.prod([rows[t][i][j] for t, (i, j) in enumerate(_steps(path))]),
    )
    for path in itertools.product(
      range(len(first)), repeat=len(transition_logits) + 1
    )
  ]


def _steps(path):
  return zip(path[:-1], path[1:])


def sum_along(path, unary, pairwise):
  """Returns the sum of the terms of states and transitions along a path."""
  return sum(unary[t][z] for t, z in enumerate(path)) + sum(
    pairwise[t][i][j] for t, (i, j) in enumerate(_steps(path))
  )


# Exact expectations and their derivatives.


def expectation(table, f):
  return sum(p * f(z) for z, p in table)


def complex_step_gradient(function, arrays):
  """Differentiates a real analytic function without cancellation.

  Args:
    function: Callable that maps arrays to a number; it must accept complex
      arrays.
    arrays: List of real arrays.

  Returns:
    gradients: List of arrays with the shapes of `arrays`.
  """
  step = 1e-30
  arrays = [np.asarray(a, np.float64) for a in arrays]
  gradients = [np.zeros_like(a) for a in arrays]
  for n, array in enumerate(arrays):
    for entry in np.ndindex(array.shape):
      moved = [a.astype(np.complex128) for a in arrays]
      moved[n][entry] += 1j * step
      gradients[n][entry] = np.imag(function(*moved)) / step
  return gradients


def softmax_scores(logits):
  """Returns gradients of `log q(z)` w.r.t. the logits, one row per value."""
  return np.eye(len(logits)) - softmax(logits)


def softmax_gradient(logits, f, df):
  """Returns the gradient of `sum_z q(z) f(z)` w.r.t. the logits.

  The gradient is in closed form.

  Args:
    logits: Array of shape `[K]`.
    f: Array of shape `[K]`, `f` at each value.
    df: Array of shape `[K, K]`, the gradient of `f` at each value.

  Returns:
    gradient: Array of shape `[K]`.
  """
  q, score = softmax(logits), softmax_scores(logits)
  return sum(q[z] * (f[z] * score[z] + df[z]) for z in range(len(q)))


def softmax_hessian(logits, f, df, d2f):
  """Returns the Hessian of `sum_z q(z) f(z)` w.r.t. the logits.

  The Hessian is in closed form.

  Args:
    logits: Array of shape `[K]`.
    f: Array of shape `[K]`.
    df: Array of shape `[K, K]`, the gradient of `f` at each value.
    d2f: Array of shape `[K, K, K]`, the Hessian of `f` at each value.

  Returns:
    hessian: Array of shape `[K, K]`.
  """
  q, score = softmax(logits), softmax_scores(logits)
  hessian_of_log_q = np.outer(q, q) - np.diag(q)
  hessian = np.zeros([len(q), len(q)])
  for z in range(len(q)):
    curvature = np.outer(score[z], score[z]) + hessian_of_log_q
    cross = np.outer(score[z], df[z])
    hessian += q[z] * (f[z] * curvature + cross + cross.T + d2f[z])
  return hessian


# The Rao-Blackwellized estimator, with a loop over all tuples of draws.


class Problem(NamedTuple):
  """One row of a problem; its values are numbered `0, ..., K - 1`.

  Attributes:
    q: Array of shape `[K]`, probabilities.
    f: Array of shape `[K]`.
    score: Array of shape `[K, P]`, gradients of `log q`.
    df: Array of shape `[K, P]`, gradients of `f`.
  """

  q: np.ndarray
  f: np.ndarray
  score: np.ndarray
  df: np.ndarray

  def most_probable(self, num_summed):
    """Returns the best values and the others; ties go to the lowest number."""
    order = sorted(range(len(self.q)), key=lambda z: (-self.q[z], z))
    return order[:num_summed], order[num_summed:]

  def gradient_at(self, z, level=0.0):
    return (self.f[z] - level) * self.score[z] + self.df[z]

  def exact_value(self):
    return sum(self.q * self.f)

  def exact_gradient(self):
    return sum(q * self.gradient_at(z) for z, q in enumerate(self.q))


def no_extra(num_atoms):
  del num_atoms
  return 0


class Levels(NamedTuple):
  """A baseline: `levels(problem, summed, draws, extra)` and its extra draws."""

  levels: object
  num_extra: object = no_extra


def constant_levels(level):
  def levels(problem, summed, draws, extra):
    del problem, extra
    return [level] * (len(summed) + len(draws))

  return Levels(levels)


def independent_sample_levels(shared):
  def levels(problem, summed, draws, extra):
    num_atoms = len(summed) + len(draws)
    extra = extra * num_atoms if shared else extra
    return [problem.f[z] for z in extra]

  return Levels(levels, lambda num_atoms: 1 if shared else num_atoms)


def _with_mean_for_summed(summed, of_draws):
  mean = np.mean(of_draws) if of_draws else 0.0
  return [mean] * len(summed) + of_draws


def leave_one_out_levels(form):
  def levels(problem, summed, draws, extra):
    del extra
    q, f = problem.q, problem.f
    known = sum(q[z] * f[z] for z in summed)
    rest = 1.0 - sum(q[z] for z in summed)
    of_draws = []
    for j in range(len(draws)):
      others = [f[z] for i, z in enumerate(draws) if i != j]
      if not others:
        inverse = [1.0 / q[z] for z in summed]
        level = sum(v * f[z] for v, z in zip(inverse, summed)) / sum(inverse)
        of_draws.append(level)
        continue
      mean = np.mean(others)
      share = rest / (2.0 * len(others) ** 2)
      mixed = share * known + (1.0 - (1.0 - rest) * share) * mean
      forms = {'rest': mean, 'all': known + rest * mean, 'mixed': mixed}
      of_draws.append(forms[form])
    return _with_mean_for_summed(summed, of_draws)

  return Levels(levels)


def optimal_levels():
  def levels(problem, summed, draws, extra):
    del extra
    q, f = problem.q, problem.f
    norm = np.sum(problem.score**2, axis=1)
    rest = 1.0 - sum(q[z] for z in summed)
    of_draws = []
    for j in range(len(draws)):
      others = [z for i, z in enumerate(draws) if i != j]
      weights = [q[z] for z in summed] + [rest / len(others) for _ in others]
      top = bottom = 0.0
      for z, w in zip(summed + others, weights):
        top += w * norm[z] * f[z]
        bottom += w * norm[z]
      of_draws.append(top / bottom if bottom else 0.0)
    return _with_mean_for_summed(summed, of_draws)

  return Levels(levels)


class Moments(NamedTuple):
  value: float
  gradient: np.ndarray
  variance: float  # total: the trace of the covariance


def rao_blackwellized_moments(problem, num_summed, num_draws, baseline):
  """Returns the moments of the estimate by looping over all tuples of draws.

  Args:
    problem: A `Problem`.
    num_summed: Python `int` `k`.
    num_draws: Python `int` `M`.
    baseline: `Levels`.

  Returns:
    moments: `Moments` of value and gradient.
  """
  summed, rest = problem.most_probable(num_summed)
  num_draws = num_draws if rest else 0
  mass = sum(problem.q[z] for z in rest)
  num_extra = baseline.num_extra(num_summed + num_draws)
  value, square = 0.0, 0.0
  gradient = np.zeros(problem.score.shape[1])
  for draws in itertools.product(rest, repeat=num_draws):
    for extra in itertools.product(range(len(problem.q)), repeat=num_extra):
      chance = np.prod([problem.q[z] / mass for z in draws])
      chance *= np.prod([problem.q[z] for z in extra])
      atoms = list(summed) + list(draws)
      weights = [problem.q[z] for z in summed] + [mass / max(num_draws, 1)] * (
        num_draws
      )
      levels = baseline.levels(problem, list(summed), list(draws), extra)
      estimate = sum(
        w * problem.gradient_at(z, b) for z, w, b in zip(atoms, weights, levels)
      )
      value += chance * sum(w * problem.f[z] for z, w in zip(atoms, weights))
      gradient += chance * estimate
      square += chance * np.sum(estimate**2)
  return Moments(value, gradient, square - np.sum(gradient**2))


def conditional_variance(problem, values, level=0.0):
  """Returns the total variance of `g(z)` given that `z` is one of `values`."""
  mass = sum(problem.q[z] for z in values)
  if not mass:
    return 0.0
  chances = [problem.q[z] / mass for z in values]
  gradients = [problem.gradient_at(z, level) for z in values]
  mean = sum(c * g for c, g in zip(chances, gradients))
  return sum(c * np.sum((g - mean) ** 2) for c, g in zip(chances, gradients))


def best_split(q, budget):
  """Returns how many atoms Proposition 2 sums, by trying every number.

  Args:
    q: Array of probabilities.
    budget: Python `int` `N`.

  Returns:
    num_summed: `N` if summing `N` atoms leaves nothing; otherwise the `k < N`
      with the smallest `q(rest) / (N - k)`.
  """
  ordered = sorted(q, reverse=True)
  if sum(ordered[budget:]) == 0.0:
    return budget
  best, least = None, np.inf
  for k in range(budget):
    bound = sum(ordered[k:]) / (budget - k)
    if bound < least:
      best, least = k, bound
  return best


# Estimators that relax one-hot atoms.


def reinmax_gradient(logits, df, temperature):
  """Returns the expected ReinMax gradient w.r.t. the logits of a single site.

  Follows Algorithm 2 of Liu et al. (2023) line by line, for every atom in turn.

  Args:
    logits: Array of shape `[K]`.
    df: Array of shape `[K, K]`, the gradient of `f` w.r.t. the one-hot vector
      at each of the `K` vectors.
    temperature: Python `float`.

  Returns:
    gradient: Array of shape `[K]`.
  """
  logits = np.asarray(logits, np.float64)
  gradient = np.zeros_like(logits)
  for atom, slope, q in zip(np.eye(len(logits)), df, softmax(logits)):
    pi1 = (atom + softmax(logits / temperature)) / 2.0
    held_fixed = np.log(pi1) - logits

    def along_atom(moved, held_fixed=held_fixed, slope=slope):
      pi0 = softmax(moved)
      pi2 = 2.0 * softmax(held_fixed + moved) - pi0 / 2.0
      return np.sum(slope * pi2)

    gradient += q * complex_step_gradient(along_atom, [logits])[0]
  return gradient


def mean_slope_of_relaxed_bernoulli(logit, temperature):
  """Returns the mean derivative of `sigmoid((logit + logistic) / temperature)`.

  Args:
    logit: Python `float`.
    temperature: Python `float`.

  Returns:
    slope: Python `float`, computed by the midpoint rule over the quantiles of
      the noise.
  """
  u = (np.arange(2**20) + 0.5) / 2**20
  x = sigmoid((logit + np.log(u) - np.log1p(-u)) / temperature)
  return np.mean(x * (1.0 - x)) / temperature


# Sets that are drawn without replacement, with a loop over all orders.


def chance_of_order(order, masses, beyond=0.0):
  """Returns the probability of drawing these values in this order.

  Args:
    order: Sequence of keys of `masses`, without repeats.
    masses: Mapping of values to masses, which need not sum to 1.
    beyond: Mass of values that `masses` does not list.

  Returns:
    chance: Python `float`.
  """
  left, chance = dict(masses), 1.0
  for value in order:
    # The remaining masses are summed again, because `1 - sum` would cancel.
    chance *= left[value] / math.fsum([*left.values(), beyond])
    del left[value]
  return chance


def chance_of_set(members, masses, beyond=0.0):
  """Returns the probability that these values are drawn, in any order."""
  return math.fsum(
    chance_of_order(order, masses, beyond)
    for order in itertools.permutations(members)
  )


def first_and_second(masses, beyond):
  """Returns the laws of the first and second draw, given the set of draws.

  Args:
    masses: Sequence of `M` masses, one for each member of the set.
    beyond: Mass of the values that are not in the set.

  Returns:
    first: Array of shape `[M]`.
    second: Array of shape `[M, M]`, the law of the second draw; one row for
      each first draw.
  """
  size = len(masses)
  table = dict(enumerate(masses))
  first, pair = np.zeros(size), np.zeros([size, size])
  for order in itertools.permutations(range(size)):
    chance = chance_of_order(order, table, beyond)
    first[order[0]] += chance
    if size > 1:
      pair[order[0], order[1]] += chance
  return first / np.sum(first), pair / first[:, np.newaxis]


def without(table, *gone):
  return {z: p for z, p in table.items() if z not in gone}


def unordered_set_gradient(problem, members):
  """Returns the gradient of Kool, van Hoof & Welling (2020) with baseline.

  Their policy gradient is

  ```none
  sum_s p(s) R(s) (grad log p(s) (f(s) - sum_t p(t) R^{-s}(t) f(t)) + grad f(s))
  R(s) = p^{-s}(S - s) / p(S)
  ```

  where `^{-s}` stands for the distribution without `s`, and `R^{-s}(s) = 1`.

  Args:
    problem: A `Problem`.
    members: The set `S` that was drawn.

  Returns:
    gradient: Array of shape `[P]`.
  """
  table = dict(enumerate(problem.q))
  chance = lambda gone: chance_of_set(
    [z for z in members if z not in gone], without(table, *gone)
  )
  gradient = 0.0
  for s in members:
    level = problem.q[s] * problem.f[s]
    for t in members:
      if t != s:
        ratio = chance([s, t]) / chance([s])
        level += problem.q[t] * ratio * problem.f[t]
    share = problem.q[s] * chance([s]) / chance([])
    gradient = gradient + share * problem.gradient_at(s, level)
  return gradient


def naive_window(frame, location, window):
  """Returns the pixels around a location, and which are in the frame.

  The pixels are read one by one.
  """
  size = len(frame)
  row, column = divmod(location, size)
  pixels, inside = np.zeros([2, window, window])
  for i in range(window):
    for j in range(window):
      r, c = row - window // 2 + i, column - window // 2 + j
      if 0 <= r < size and 0 <= c < size:
        pixels[i, j], inside[i, j] = frame[r, c], 1.0
  return pixels.ravel(), inside.ravel()
