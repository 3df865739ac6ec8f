# SPDX-License-Identifier: Apache-2.0
"""Families of the fuzz test: how TFP makes them, and their mass in naive NumPy.

Every function takes a dictionary `p` of float64 arrays, one entry for each
parameter, and base values `z` of shape `[m, rows, sites]`. A parameter has the
shape `z.shape[1:]` followed by the parameter's own axes. Nothing here uses
`tfp_rb`.
"""

from collections.abc import Callable
import math
from typing import NamedTuple

import numpy as np
from scipy import special
import tensorflow as tf
import tensorflow_probability as tfp

import fuzz_chains

tfd = tfp.distributions


class Family(NamedTuple):
  """A distribution in one parameterisation.

  Attributes:
    parameters: Callable that maps `(rng, style, batch, size, is_half)` to a
      dictionary of float64 arrays, w.r.t. which the estimate is differentiated.
    distribution: Callable that maps `(parameters, settings)` to a TFP
      distribution; `settings` is a `Settings`.
    log_mass: Callable of `(p, z, settings)`; returns `-inf` off the support.
    scores: Callable that maps `(p, z, settings)` to a dictionary of pairs. The
      first entry of a pair is the derivative of `log_mass`, of shape `z.shape`
      followed by the parameter's own axes. The second is the sum of the
      absolute values of its terms, which bounds the rounding errors.
    norm: Callable that returns the squared norm of the score w.r.t. the natural
      parameter.
    own_rank: Number of own axes of each parameter.
    support: Callable that maps `(settings)` to the values that are listed,
      `[n]`.
    tail: Callable that maps `(p, z, settings)` to the mass above `z`; `None` if
      `support` lists everything.
    is_integer: Whether the values have an integer dtype.
    vectors: `None` if the values are numbers. If they are vectors, a callable
      that maps `(settings)` to a pair: the vector of each listed base value,
      `[n, d]`, and numbers `[d]` whose inner product with a vector is its base
      value.
  """

  parameters: Callable
  distribution: Callable
  log_mass: Callable
  scores: Callable
  norm: Callable
  own_rank: dict
  support: Callable
  tail: Callable | None = None
  is_integer: bool = False
  vectors: Callable | None = None


class Settings(NamedTuple):
  """The quantities that are not differentiated.

  Attributes:
    size: Number of values of a table, or the largest total count plus one.
    counts: `None`, or an array of total counts: a scalar, or of `batch_shape`.
    site_counts: The total count of each site, `[rows, sites]`.
  """

  size: int
  counts: np.ndarray | None = None
  site_counts: np.ndarray | None = None


# Parameters.


def _logits(rng, style, shape):
  if style == 'flat':
    return np.zeros(shape)
  if style == 'ties':
    return rng.integers(0, 3, shape).astype(float)
  if style == 'peaked':
    return 15.0 * rng.normal(size=shape)
  logits = 1.5 * rng.normal(size=shape)
  return logits + 50.0 if style == 'shifted' else logits


def _table_logits(rng, style, batch, size, is_half):
  del is_half
  shape = (*batch, size)
  logits = _logits(rng, style, shape)
  if style == 'impossible':
    is_possible = rng.random(shape) < 0.6
    keep = rng.integers(0, size, (*batch, 1))
    is_possible |= np.arange(size) == keep
    logits = np.where(is_possible, logits, -np.inf)
  return {'logits': logits}


def _table_probs(rng, style, batch, size, is_half):
  logits = _table_logits(rng, style, batch, size, is_half)['logits']
  return {'probs': special.softmax(logits, axis=-1) if size else logits}


def _coin_logits(limit):
  def parameters(rng, style, batch, size, is_half):
    del size
    style = 'plain' if style == 'shifted' else style
    logits = _logits(rng, style, batch)
    return {'logits': np.clip(logits, -limit(is_half), limit(is_half))}

  return parameters


def _coin_probs(limit, low=0.0, high=1.0):
  def parameters(rng, style, batch, size, is_half):
    logits = _coin_logits(limit)(rng, style, batch, size, is_half)['logits']
    probs = special.expit(logits)
    if style == 'impossible':
      where = rng.random(batch)
      probs = np.where(where < 0.3, low, np.where(where > 0.7, high, probs))
    return {'probs': probs}

  return parameters


# Tables.


def _index_of(z, size):
  index = np.round(z).astype(int)
  is_possible = (index == z) & (index >= 0) & (index < size)
  return np.clip(index, 0, size - 1), is_possible


def _table_log_mass(log_probs, z):
  """Looks up `z` in `log_probs`, `z.shape[1:] + [K]`."""
  index, is_possible = _index_of(z, log_probs.shape[-1])
  log_probs = np.broadcast_to(log_probs, (*z.shape, log_probs.shape[-1]))
  taken = np.take_along_axis(log_probs, index[..., np.newaxis], -1)[..., 0]
  return np.where(is_possible, taken, -np.inf)


def _one_hot(z, size):
  return (np.round(z)[..., np.newaxis] == np.arange(size)).astype(float)


def _of_logits(p):
  return p['logits'] - special.logsumexp(p['logits'], axis=-1, keepdims=True)


def _of_probs(p):
  with np.errstate(divide='ignore'):
    return np.log(p['probs'] / np.sum(p['probs'], axis=-1, keepdims=True))


def _logits_scores(p, z, settings):
  del settings
  probs = np.exp(_of_logits(p))
  one_hot = _one_hot(z, probs.shape[-1])
  return {'logits': (one_hot - probs, one_hot + probs)}


def _probs_scores(p, z, settings):
  """Differentiates `log(p_z / sum(p))`.

  The result is 0 at impossible values, as documented.
  """
  del settings
  probs = p['probs']
  is_possible = probs > 0.0
  one_hot = _one_hot(z, probs.shape[-1])
  first = one_hot / np.where(is_possible, probs, 1.0)
  second = 1.0 / np.sum(probs, axis=-1, keepdims=True)
  mask = is_possible.astype(float)
  return {'probs': ((first - second) * mask, (first + second) * mask)}


def _table_norm(log_probs_of):
  def norm(p, z, settings):
    del settings
    log_probs = log_probs_of(p)
    q = np.exp(_table_log_mass(log_probs, z))
    return 1.0 - 2.0 * q + np.sum(np.exp(log_probs) ** 2, axis=-1)

  return norm


def _table_family(kind, name, **changes):
  """Returns a family with a table of logits or of probs."""
  parameters = {'logits': _table_logits, 'probs': _table_probs}[name]
  log_probs_of = {'logits': _of_logits, 'probs': _of_probs}[name]
  scores = {'logits': _logits_scores, 'probs': _probs_scores}[name]
  return Family(
    parameters=parameters,
    distribution=lambda p, settings: kind(**{name: p[name]}),
    log_mass=lambda p, z, settings: _table_log_mass(log_probs_of(p), z),
    scores=scores,
    norm=_table_norm(log_probs_of),
    own_rank={name: 1},
    support=lambda settings: np.arange(settings.size),
    is_integer=True,
  )._replace(**changes)


def outcomes_of(size):
  """Returns the values of a `FiniteDiscrete`: ascending, not equidistant."""
  index = np.arange(size)
  return 0.5 * index + np.where(index % 3 == 2, 0.25, 0.0) - 2.0


def _finite_family(name):
  """Returns a family of numbers, which the oracle represents by indices."""

  def distribution(p, settings):
    outcomes = tf.constant(outcomes_of(settings.size), p[name].dtype)
    return tfd.FiniteDiscrete(outcomes, **{name: p[name]})

  return _table_family(None, name)._replace(
    distribution=distribution, is_integer=False
  )


def _bernoulli_table(p):
  """Returns the log-probabilities of 0 and 1, `[..., 2]`."""
  if 'logits' in p:
    logits = p['logits']
    pair = [-np.logaddexp(0.0, logits), -np.logaddexp(0.0, -logits)]
  else:
    with np.errstate(divide='ignore'):
      pair = [np.log1p(-p['probs']), np.log(p['probs'])]
  return np.stack(np.broadcast_arrays(*pair), axis=-1)


def _bernoulli_scores(p, z, settings):
  del settings
  if 'logits' in p:
    first = z * special.expit(-p['logits'])
    second = (1.0 - z) * special.expit(p['logits'])
    return {'logits': (first - second, first + second)}
  probs = p['probs']
  inside = (probs > 0.0) & (probs < 1.0)
  safe = np.where(inside, probs, 0.5)
  first, second = z / safe, (1.0 - z) / (1.0 - safe)
  return {'probs': ((first - second) * inside, (first + second) * inside)}


def _bernoulli_family(name):
  parameters = {
    'logits': _coin_logits(lambda is_half: 30.0),
    'probs': _coin_probs(lambda is_half: 12.0),
  }[name]
  return Family(
    parameters=parameters,
    distribution=lambda p, settings: tfd.Bernoulli(**{name: p[name]}),
    log_mass=lambda p, z, settings: _table_log_mass(_bernoulli_table(p), z),
    scores=_bernoulli_scores,
    norm=_table_norm(_bernoulli_table),
    own_rank={name: 0},
    support=lambda settings: np.arange(2),
    is_integer=True,
  )


# Cutpoints.


def _cutpoints(rng, style, batch, size, is_half):
  del is_half
  gaps = rng.exponential(size=(*batch, size - 1)) + 0.125
  if style == 'ties':
    gaps = np.ones_like(gaps)
  if style == 'impossible':
    gaps = np.where(rng.random(gaps.shape) < 0.3, 0.0, gaps)
  scale = 8.0 if style == 'peaked' else 1.5
  loc = np.zeros(batch) if style == 'flat' else scale * rng.normal(size=batch)
  cutpoints = np.cumsum(gaps, axis=-1) - size / 2.0
  return {'cutpoints': cutpoints, 'loc': loc}


def _ordered_log_table(p):
  """Returns the logs of `s(c_z) - s(c_{z-1})`.

  Each difference is taken on the side that keeps its digits.
  """
  d = p['cutpoints'] - p['loc'][..., np.newaxis]
  end = np.full((*d.shape[:-1], 1), np.inf)
  lower, upper = np.concatenate([-end, d], -1), np.concatenate([d, end], -1)
  is_right = lower + upper > 0.0
  mass = np.where(
    is_right,
    special.expit(-lower) - special.expit(-upper),
    special.expit(upper) - special.expit(lower),
  )
  with np.errstate(divide='ignore'):
    return np.log(mass)


def _ordered_scores(p, z, settings):
  d = p['cutpoints'] - p['loc'][..., np.newaxis]
  slope = special.expit(d) * special.expit(-d)
  table = _ordered_log_table(p)
  size = table.shape[-1]
  index, _ = _index_of(z, size)
  mass = np.exp(_table_log_mass(table, z))[..., np.newaxis]
  mass = np.where(mass > 0.0, mass, np.inf)
  upper = _one_hot(index, size)[..., :-1] * slope / mass
  lower = _one_hot(index - 1, size - 1) * slope / mass
  return {
    'cutpoints': (upper - lower, upper + lower),
    'loc': (np.sum(lower - upper, -1), np.sum(lower + upper, -1)),
  }


# Counts.


def _counts_distribution(kind, names):
  def distribution(p, settings):
    count = tf.constant(settings.counts, p[names[0]].dtype)
    return kind(count, **{name: p[name] for name in names})

  return distribution


def _log_choose(n, z):
  return (
    special.gammaln(n + 1.0)
    - special.gammaln(z + 1.0)
    - special.gammaln(n - z + 1.0)
  )


def _coin_logs(p):
  """Returns `log(success)` and `log(failure)`."""
  if 'logits' in p:
    x = p['logits']
    return -np.logaddexp(0.0, -x), -np.logaddexp(0.0, x)
  with np.errstate(divide='ignore'):
    return np.log(p['probs']), np.log1p(-p['probs'])


def _times(count, log_mass):
  """Returns `count * log_mass`, where nothing to the power 0 is 1."""
  with np.errstate(invalid='ignore'):
    return np.where(count == 0.0, 0.0, count * log_mass)


def _coin_scores(p, successes, failures):
  """Differentiates `successes log p + failures log(1 - p)`."""
  if 'logits' in p:
    # `1 - expit(x)` would have no digits left if the coin is almost certain.
    first = successes * special.expit(-p['logits'])
    second = failures * special.expit(p['logits'])
    return {'logits': (first - second, first + second)}
  probs = np.clip(p['probs'], 1e-300, 1.0)
  with np.errstate(divide='ignore', invalid='ignore'):
    first = np.where(successes == 0.0, 0.0, successes / probs)
    second = np.where(failures == 0.0, 0.0, failures / (1.0 - probs))
  return {'probs': (first - second, first + second)}


def _success(p):
  return special.expit(p['logits']) if 'logits' in p else p['probs']


def _binomial_log_mass(p, z, settings):
  n = settings.site_counts
  is_possible = (z >= 0) & (z <= n) & (z == np.round(z))
  z = np.where(is_possible, z, 0.0)
  success, failure = _coin_logs(p)
  log_mass = _times(z, success) + _times(n - z, failure) + _log_choose(n, z)
  return np.where(is_possible, log_mass, -np.inf)


def _binomial_family(name):
  parameters = {
    'logits': _coin_logits(lambda is_half: 20.0),
    'probs': _coin_probs(lambda is_half: 8.0),
  }[name]
  return Family(
    parameters=parameters,
    distribution=_counts_distribution(tfd.Binomial, [name]),
    log_mass=_binomial_log_mass,
    scores=lambda p, z, s: _coin_scores(p, z, s.site_counts - z),
    norm=lambda p, z, s: (z - s.site_counts * _success(p)) ** 2,
    own_rank={name: 0},
    support=lambda settings: np.arange(settings.size),
  )


def _concentrations(rng, style, batch, size, is_half):
  del size, is_half
  if style in ('flat', 'ties'):
    return {'concentration1': np.ones(batch), 'concentration0': np.ones(batch)}
  scale = 3.0 if style == 'peaked' else 1.0
  first, second = np.exp(scale * rng.normal(size=(2, *batch)))
  return {'concentration1': first, 'concentration0': second}


def _beta_binomial_log_mass(p, z, settings):
  n = settings.site_counts
  a, b = p['concentration1'], p['concentration0']
  is_possible = (z >= 0) & (z <= n) & (z == np.round(z))
  z = np.where(is_possible, z, 0.0)
  log_mass = _log_choose(n, z) + special.betaln(z + a, n - z + b)
  return np.where(is_possible, log_mass - special.betaln(a, b), -np.inf)


def _beta_binomial_scores(p, z, settings):
  n = settings.site_counts
  a, b = p['concentration1'], p['concentration0']
  psi = special.digamma
  z = np.clip(z, 0.0, n)

  def pair(own, x):
    terms = [psi(own + x), -psi(own), -psi(a + b + n), psi(a + b)]
    terms = np.broadcast_arrays(*terms)
    return sum(terms), sum(map(np.abs, terms))

  return {'concentration1': pair(a, z), 'concentration0': pair(b, n - z)}


def _beta_binomial_norm(p, z, settings):
  table = np.stack(
    [
      _beta_binomial_log_mass(p, np.full(z.shape[1:], float(v)), settings)
      for v in range(settings.size)
    ],
    axis=-1,
  )
  return _table_norm(lambda p: table)(p, z, settings)


def _rates(rng, style, batch, size, is_half):
  del size
  if style == 'ties':
    return rng.integers(1, 6, batch).astype(float)
  if style == 'flat':
    return np.full(batch, 0.5)
  if style == 'peaked':
    return rng.choice([1e-3, 0.02, 20.0 if is_half else 60.0], batch)
  rates = np.exp(rng.normal(size=batch))
  if style == 'impossible':
    rates = np.where(rng.random(batch) < 0.4, 0.0, rates)
  return rates


def _log_rates(*args):
  with np.errstate(divide='ignore'):
    return {'log_rate': np.log(_rates(*args))}


def _is_count(z):
  return (z >= 0) & (z == np.round(z))


def _poisson_log_mass(p, z, settings):
  del settings
  is_possible = _is_count(z)
  z = np.where(is_possible, z, 0.0)
  with np.errstate(divide='ignore'):
    log_rate = p['log_rate'] if 'log_rate' in p else np.log(p['rate'])
  rate = np.exp(log_rate)
  log_mass = _times(z, log_rate) - rate - special.gammaln(z + 1.0)
  return np.where(is_possible, log_mass, -np.inf)


def _poisson_scores(p, z, settings):
  del settings
  if 'log_rate' in p:
    rate = np.exp(p['log_rate'])
    is_inside = rate > 0.0
    return {'log_rate': ((z - rate) * is_inside, (z + rate) * is_inside)}
  rate = np.where(p['rate'] > 0.0, p['rate'], 1.0)
  return {'rate': (z / rate - 1.0, z / rate + 1.0)}


def _poisson_family(name):
  rate_of = lambda p: np.exp(p['log_rate']) if 'log_rate' in p else p['rate']
  parameters = {
    'rate': lambda *args: {'rate': _rates(*args)},
    'log_rate': _log_rates,
  }[name]
  return Family(
    parameters=parameters,
    distribution=lambda p, settings: tfd.Poisson(**{name: p[name]}),
    log_mass=_poisson_log_mass,
    scores=_poisson_scores,
    norm=lambda p, z, settings: (z - rate_of(p)) ** 2,
    own_rank={name: 0},
    support=lambda settings: np.arange(250),
    tail=lambda p, z, settings: special.pdtrc(z, rate_of(p)),
  )


def _negative_binomial_parameters(name):
  def parameters(rng, style, batch, size, is_half):
    limit = lambda is_half: 0.8 if is_half else 3.0
    make = {'logits': _coin_logits, 'probs': _coin_probs}[name]
    # With a success probability of 1, a draw would never end.
    options = {'high': 0.5} if name == 'probs' else {}
    coin = make(limit, **options)(rng, style, batch, size, is_half)
    count = np.exp(rng.normal(size=batch))
    if style in ('ties', 'flat'):
      count = rng.integers(1, 5, batch).astype(float)
    return {'total_count': count, **coin}

  return parameters


def _negative_binomial_log_mass(p, z, settings):
  del settings
  n, is_possible = p['total_count'], _is_count(z)
  z = np.where(is_possible, z, 0.0)
  success, failure = _coin_logs(p)
  choose = (
    special.gammaln(n + z) - special.gammaln(n) - special.gammaln(z + 1.0)
  )
  log_mass = _times(z, success) + n * failure + choose
  return np.where(is_possible, log_mass, -np.inf)


def _negative_binomial_scores(p, z, settings):
  del settings
  n, psi = p['total_count'], special.digamma
  _, failure = _coin_logs(p)
  terms = np.broadcast_arrays(psi(n + z), -psi(n), failure)
  return {
    'total_count': (sum(terms), sum(map(np.abs, terms))),
    **_coin_scores(p, z, n),
  }


def _negative_binomial_family(name):
  return Family(
    parameters=_negative_binomial_parameters(name),
    distribution=lambda p, settings: tfd.NegativeBinomial(**p),
    log_mass=_negative_binomial_log_mass,
    scores=_negative_binomial_scores,
    norm=lambda p, z, settings: (
      (z * (1.0 - _success(p)) - p['total_count'] * _success(p)) ** 2
    ),
    own_rank={'total_count': 0, name: 0},
    support=lambda settings: np.arange(1000),
    tail=lambda p, z, settings: special.betainc(
      z + 1.0, p['total_count'], _success(p)
    ),
  )


def _geometric_log_mass(p, z, settings):
  del settings
  is_possible = _is_count(z)
  z = np.where(is_possible, z, 0.0)
  success, failure = _coin_logs(p)
  return np.where(is_possible, success + _times(z, failure), -np.inf)


def _geometric_family(name):
  limit = lambda is_half: 0.8 if is_half else 3.0
  parameters = {
    'logits': _coin_logits(limit),
    # With a success probability of 0, a draw would never end.
    'probs': _coin_probs(limit, low=0.5),
  }[name]
  return Family(
    parameters=parameters,
    distribution=lambda p, settings: tfd.Geometric(**{name: p[name]}),
    log_mass=_geometric_log_mass,
    scores=lambda p, z, settings: _coin_scores(p, np.ones_like(z), z),
    norm=lambda p, z, settings: (1.0 - _success(p) - z * _success(p)) ** 2,
    own_rank={name: 0},
    support=lambda settings: np.arange(1000),
    tail=lambda p, z, settings: np.exp(_times(z + 1.0, _coin_logs(p)[1])),
  )


def _powers(rng, style, batch, size, is_half):
  del size, is_half
  if style in ('flat', 'ties'):
    return {'power': np.full(batch, 2.0)}
  scale = 2.0 if style == 'peaked' else 0.5
  return {'power': 1.75 + np.minimum(np.exp(scale * rng.normal(size=batch)), 9)}


def _zipf_log_mass(p, z, settings):
  del settings
  is_possible = _is_count(z) & (z >= 1)
  z = np.where(is_possible, z, 1.0)
  log_mass = -p['power'] * np.log(z) - np.log(special.zeta(p['power'], 1.0))
  return np.where(is_possible, log_mass, -np.inf)


def _mean_of_log(s, num_terms=2000):
  """Returns `E[log z] = -zeta'(s) / zeta(s)`: a sum, then Euler-Maclaurin."""
  n = np.arange(1.0, num_terms)
  s = np.asarray(s)[..., np.newaxis]
  total = np.sum(np.log(n) * n**-s, axis=-1)
  s, N, log_n = s[..., 0], float(num_terms), math.log(num_terms)
  total += N ** (1.0 - s) * (log_n / (s - 1.0) + 1.0 / (s - 1.0) ** 2)
  total += 0.5 * log_n * N**-s + (s * log_n - 1.0) * N ** (-s - 1.0) / 12.0
  return total / special.zeta(s, 1.0)


def _zipf_score(p, z):
  log_z, expected = np.log(np.maximum(z, 1.0)), _mean_of_log(p['power'])
  return expected - log_z, expected + log_z


ZIPF = Family(
  parameters=_powers,
  distribution=lambda p, settings: tfd.Zipf(power=p['power']),
  log_mass=_zipf_log_mass,
  scores=lambda p, z, settings: {'power': _zipf_score(p, z)},
  norm=lambda p, z, settings: _zipf_score(p, z)[0] ** 2,
  own_rank={'power': 0},
  support=lambda settings: np.arange(1, 400),
  tail=lambda p, z, settings: (
    special.zeta(p['power'], z + 1.0) / special.zeta(p['power'], 1.0)
  ),
  is_integer=True,
)

ORDERED_LOGISTIC = Family(
  parameters=_cutpoints,
  distribution=lambda p, settings: tfd.OrderedLogistic(**p),
  log_mass=lambda p, z, settings: _table_log_mass(_ordered_log_table(p), z),
  scores=_ordered_scores,
  norm=_table_norm(_ordered_log_table),
  own_rank={'cutpoints': 1, 'loc': 0},
  support=lambda settings: np.arange(settings.size),
  is_integer=True,
)

BETA_BINOMIAL = Family(
  parameters=_concentrations,
  distribution=_counts_distribution(
    tfd.BetaBinomial, ['concentration1', 'concentration0']
  ),
  log_mass=_beta_binomial_log_mass,
  scores=_beta_binomial_scores,
  norm=_beta_binomial_norm,
  own_rank={'concentration1': 0, 'concentration0': 0},
  support=lambda settings: np.arange(settings.size),
)

FAMILIES = {
  'BetaBinomial': BETA_BINOMIAL,
  'OrderedLogistic': ORDERED_LOGISTIC,
  'Poisson.log_rate': _poisson_family('log_rate'),
  'Poisson.rate': _poisson_family('rate'),
  'Zipf': ZIPF,
}
for _name in ('logits', 'probs'):
  FAMILIES |= {
    f'Bernoulli.{_name}': _bernoulli_family(_name),
    f'Binomial.{_name}': _binomial_family(_name),
    f'Categorical.{_name}': _table_family(tfd.Categorical, _name),
    f'FiniteDiscrete.{_name}': _finite_family(_name),
    f'Geometric.{_name}': _geometric_family(_name),
    f'NegativeBinomial.{_name}': _negative_binomial_family(_name),
    f'OneHotCategorical.{_name}': _table_family(
      tfd.OneHotCategorical,
      _name,
      vectors=lambda settings: (
        np.eye(settings.size),
        np.arange(settings.size),
      ),
    ),
  }


# Chains.


def _chain_parameters(num_steps):
  def parameters(rng, style, batch, size, is_half):
    def logits(shape):
      return _table_logits(rng, style, shape, size, is_half)['logits']

    initial = logits(batch)
    transitions = logits((*batch, num_steps - 1, size))
    if style == 'impossible':
      transitions = fuzz_chains.with_dead_end(rng, initial, transitions)
    return {'initial_logits': initial, 'transition_logits': transitions}

  return parameters


def _chain_family(name):
  num_steps = fuzz_chains.num_steps_of(name)
  paths = lambda settings: fuzz_chains.paths_of(settings.size, num_steps)
  return Family(
    parameters=_chain_parameters(num_steps),
    distribution=fuzz_chains.make(name),
    log_mass=fuzz_chains.log_mass,
    scores=fuzz_chains.scores,
    norm=fuzz_chains.norm,
    own_rank={'initial_logits': 1, 'transition_logits': 3},
    support=lambda settings: np.arange(settings.size**num_steps),
    is_integer=True,
    vectors=paths,
  )


for _name in fuzz_chains.chain_names():
  FAMILIES[_name] = _chain_family(_name)
