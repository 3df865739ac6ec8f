# SPDX-License-Identifier: Apache-2.0
"""All estimators and all registered distributions, for tests of contracts.

A new estimator, baseline or partition gets a row here; `test_contract.py` fails
if one is missing.
"""

from collections.abc import Callable, Sequence
import itertools
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import reference
import tfp_rb
from tfp_rb import baselines

tfb = tfp.bijectors
tfd = tfp.distributions


class BaselineRow(NamedTuple):
  """A baseline, and how often it evaluates `f` in addition to the `m` atoms.

  `needs_second` says that a single draw without summed atoms is not supported.
  """

  make: Callable  # () -> `baseline` of `REINFORCE`
  num_extra: Callable = lambda m: 0
  needs_second: bool = False


BASELINES = {
  'none': BaselineRow(lambda: None),
  'constant': BaselineRow(lambda: 1.5),
  'independent': BaselineRow(baselines.IndependentSample, lambda m: 1),
  'unshared': BaselineRow(
    lambda: baselines.IndependentSample(shared=False), lambda m: m
  ),
  'learned': BaselineRow(lambda: baselines.Learned(0.5)),
  'mixed': BaselineRow(baselines.LeaveOneOut, needs_second=True),
  'rest': BaselineRow(
    lambda: baselines.LeaveOneOut(form='rest'), needs_second=True
  ),
  'all': BaselineRow(
    lambda: baselines.LeaveOneOut(form='all'), needs_second=True
  ),
  'optimal': BaselineRow(baselines.Optimal, needs_second=True),
}


class EstimatorRow(NamedTuple):
  """An estimator with `k` summed atoms and `M` draws, if it supports them.

  `num_evaluations` is the promised number of atoms in the single call of `f`,
  for a support of `K` values (`math.inf` if the support is infinite).
  """

  make: Callable  # (k, M) -> estimator
  num_evaluations: Callable  # (K, k, M) -> int


def _reinforce(row):
  def make(k, M):
    del k
    return tfp_rb.REINFORCE(baseline=row.make(), num_samples=M)

  def num_evaluations(K, k, M):
    del K, k
    return M + row.num_extra(M)

  return EstimatorRow(make, num_evaluations)


def _summed(row):
  def make(k, M):
    return tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baseline=row.make(), num_samples=M), num_summed=k
    )

  def num_evaluations(K, k, M):
    m = k + (M if k < K else 0)
    return m + row.num_extra(m)

  return EstimatorRow(make, num_evaluations)


def _budget(row):
  def make(k, M):
    return tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baseline=row.make()), budget=k + M
    )

  def num_evaluations(K, k, M):
    m = min(k + M, K)
    return m + row.num_extra(m)

  return EstimatorRow(make, num_evaluations)


def _drawn(K, k, M):
  return k + (M if k < K else 0)


def _nvil(M):
  return tfp_rb.NVIL(tf.constant(0.5), num_samples=M)


def _without_replacement(name):
  def make(k, M):
    return tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baseline=BASELINES[name].make(), num_samples=M),
      num_summed=k,
      sampler=tfp_rb.samplers.WithoutReplacement(),
    )

  return EstimatorRow(make, _drawn)


# These estimators support every distribution.
ESTIMATORS = {
  'Exact': EstimatorRow(lambda k, M: tfp_rb.Exact(), lambda K, k, M: K),
  'NVIL': EstimatorRow(lambda k, M: _nvil(M), lambda K, k, M: M),
  'summed-NVIL': EstimatorRow(
    lambda k, M: tfp_rb.rao_blackwellize(_nvil(M), num_summed=k),
    _drawn,
  ),
  'without_replacement-none': _without_replacement('none'),
  'without_replacement-mixed': _without_replacement('mixed'),
  **{f'REINFORCE-{n}': _reinforce(row) for n, row in BASELINES.items()},
  **{f'summed-{n}': _summed(row) for n, row in BASELINES.items()},
  **{f'budget-{n}': _budget(row) for n, row in BASELINES.items()},
}


class DifferentiatingRow(NamedTuple):
  """An estimator that differentiates `f` w.r.t. its atoms.

  `make` accepts further settings, which replace those of the row.
  `num_evaluations` lists the promised numbers of atoms, one for each call of
  `f`, for `k` summed atoms and `M` draws of a single site or of a product.
  `has_noise` says that the estimator has noise in addition to the atoms.
  """

  make: Callable  # (M, distribution, **settings) -> estimator that only draws
  num_evaluations: Callable = lambda k, M, is_product: [k + M]
  is_unbiased: bool = False
  has_noise: bool = False
  has_temperature: bool = True


def control_variate_of(distribution):
  """Returns a function of relaxed atoms that is far from constant."""
  event_shape = distribution.event_shape

  def control_variate(x):
    size = event_shape.num_elements()
    position = tf.reshape(tf.range(1.0, size + 1.0), event_shape)
    position = tf.cast(position, x.dtype)
    terms = 2.0 * tf.sin(2.0 * position * x) + position * x**2
    return tf.reduce_sum(terms, axis=list(range(-event_shape.rank, 0)))

  return control_variate


def _estimator_of(kind, **defaults):
  def make(M, q, **settings):
    del q
    return kind(**(defaults | settings), num_samples=M)

  return make


def _relax(M, q, **settings):
  if 'control_variate' not in settings:
    settings['control_variate'] = control_variate_of(q)
  defaults = dict(temperature=0.5, scale=0.75)
  return tfp_rb.RELAX(**(defaults | settings), num_samples=M)


# These estimators support sites of one-hot vectors and of Bernoulli variables.
DIFFERENTIATING = {
  'MuProp': DifferentiatingRow(
    _estimator_of(tfp_rb.MuProp),
    lambda k, M, is_product: [k + M + 1],
    is_unbiased=True,
    has_temperature=False,
  ),
  'DARN': DifferentiatingRow(_estimator_of(tfp_rb.DARN), has_temperature=False),
  'ReinMax': DifferentiatingRow(
    _estimator_of(tfp_rb.ReinMax, temperature=1.25)
  ),
  'REBAR': DifferentiatingRow(
    _estimator_of(tfp_rb.REBAR, temperature=0.5, scale=0.75),
    lambda k, M, is_product: [k + M, k + M if is_product else M],
    is_unbiased=True,
    has_noise=True,
  ),
  'RELAX': DifferentiatingRow(_relax, is_unbiased=True, has_noise=True),
  'RELAX-with_f': DifferentiatingRow(
    lambda M, q, **settings: _relax(M, q, with_f=True, **settings),
    lambda k, M, is_product: [k + M, k + M if is_product else M],
    is_unbiased=True,
    has_noise=True,
  ),
  'GumbelSoftmax': DifferentiatingRow(
    _estimator_of(tfp_rb.GumbelSoftmax, temperature=0.75), has_noise=True
  ),
  'GumbelSoftmax-relaxed': DifferentiatingRow(
    _estimator_of(
      tfp_rb.GumbelSoftmax, temperature=0.75, straight_through=False
    ),
    has_noise=True,
  ),
  'GumbelSoftmax-averaged': DifferentiatingRow(
    _estimator_of(tfp_rb.GumbelSoftmax, temperature=0.75, num_noises=4),
    has_noise=True,
  ),
}

# These estimators relax only the distribution of the rest if atoms are summed.
RESTRICTABLE = [name for name, row in DIFFERENTIATING.items() if row.has_noise]


class JointRow(NamedTuple):
  """An estimator that draws joint values itself and sums nothing else.

  `make` takes the number of evaluations of `f`, which is even. `kinds` lists
  the relaxable distributions that it supports.
  """

  make: Callable  # num_evaluations -> estimator
  kinds: Sequence
  differentiates_f: bool = True


BITS = (
  'Bernoulli',
  'Bernoulli-probs',
  'Sample',
  'Independent-Bernoulli',
)
VECTORS = (
  'OneHotCategorical',
  'OneHotCategorical-probs',
  'Independent-OneHotCategorical',
)
# Distributions whose atoms have a relaxation.
RELAXABLE = (*VECTORS, *BITS)


def _stein(num_evaluations):
  estimator = tfp_rb.Stein(num_samples=num_evaluations)
  # The scale starts at 0, where the network has no effect.
  estimator.baseline_scale.assign(0.8)
  estimator.score_scale.assign(-0.6)
  return estimator


JOINT = {
  'ARMS': JointRow(tfp_rb.ARMS, BITS, differentiates_f=False),
  'DisARM': JointRow(
    lambda n: tfp_rb.DisARM(n // 2), BITS, differentiates_f=False
  ),
  'DoubleControlVariate': JointRow(
    lambda n: tfp_rb.DoubleControlVariate(0.75, num_samples=n), RELAXABLE
  ),
  'Stein': JointRow(_stein, RELAXABLE),
}


class DistributionRow(NamedTuple):
  """A distribution that is made from one parameter.

  `support` lists the values of the largest row of a batch. For a countable
  support, it lists the values with noticeable mass, or is `None`.
  `is_enumerated` marks the families that also work in half precision.
  """

  parameter: Callable  # (dtype, batch_shape) -> Tensor
  build: Callable  # (parameter, batch_shape) -> distribution
  support: Sequence | None
  is_countable: bool = False
  is_enumerated: bool = False

  @property
  def num_values(self):
    """Returns the size of the support, `math.inf` if it is countable."""
    return math.inf if self.is_countable else len(self.support)

  def make(self, dtype=tf.float32, batch_shape=()):
    return self.build(self.parameter(dtype, batch_shape), batch_shape)


def _numbers(*event, low=-1.0, high=1.0):
  """Returns parameters without ties in `[low, high]`.

  Their shape is `batch_shape + event`.
  """

  def parameter(dtype, batch_shape):
    shape = [*batch_shape, *event]
    # The golden ratio spreads the numbers evenly, and no two are equal.
    x = np.modf(0.3 + 0.618034 * np.arange(np.prod(shape, dtype=int)))[0]
    return tf.cast(np.reshape(low + (high - low) * x, shape), dtype)

  return parameter


def _probs(*event):
  """Works like `_numbers`, with positive results that sum to 1.

  The sum is along the last axis.
  """

  def parameter(dtype, batch_shape):
    x = _numbers(*event, low=0.2)(tf.float64, batch_shape)
    return tf.cast(x / tf.reduce_sum(x, axis=-1, keepdims=True), dtype)

  return parameter


def _finite_discrete(logits, batch_shape):
  del batch_shape
  outcomes = tf.constant([-1.0, 0.5, 2.0, 3.0], logits.dtype)
  return tfd.FiniteDiscrete(outcomes, logits=logits)


def _ordered_logistic(location, batch_shape):
  del batch_shape
  cutpoints = tf.constant([-1.0, 0.25, 1.5], location.dtype)
  return tfd.OrderedLogistic(cutpoints=cutpoints, loc=location)


def _beta_binomial(concentration, batch_shape):
  total_count = tf.cast(np.resize([4.0, 3.0], batch_shape), concentration.dtype)
  return tfd.BetaBinomial(
    total_count=total_count,
    concentration0=concentration,
    concentration1=tf.cast(1.5, concentration.dtype),
  )


def _binomial(logits, batch_shape):
  total_count = tf.cast(np.resize([4.0, 2.0], batch_shape), logits.dtype)
  return tfd.Binomial(total_count=total_count, logits=logits)


def _negative_binomial(logits, batch_shape):
  del batch_shape
  return tfd.NegativeBinomial(tf.cast(2.5, logits.dtype), logits=logits)


def _reshaped(logits, batch_shape):
  flat = tf.reshape(logits, [math.prod(batch_shape), logits.shape[-1]])
  return tfd.BatchReshape(tfd.Categorical(logits=flat), batch_shape)


def _broadcast(logits, batch_shape):
  one = tfd.OneHotCategorical(logits=logits[(0,) * len(batch_shape)])
  return tfd.BatchBroadcast(one, to_shape=batch_shape)


def _shifted(logits, batch_shape):
  del batch_shape
  # XLA compiles this count family fastest.
  return tfb.Shift(tf.cast(2.0, logits.dtype))(tfd.Geometric(logits=logits))


def _independent(logits, batch_shape):
  del batch_shape
  return tfd.Independent(tfd.Categorical(logits=logits), 1)


def _nested(logits, batch_shape):
  """Returns pairs of shifted counts, drawn twice."""
  pairs = tfd.Independent(_shifted(logits, batch_shape), 1)
  return tfd.Sample(pairs, 2)


def _nested_finite(logits, batch_shape):
  """Returns two sites that each draw one one-hot value of two classes twice."""
  rows = math.prod(batch_shape)
  flat = tf.reshape(logits, [rows, *logits.shape[len(batch_shape) :]])
  sites = tfd.Sample(tfd.OneHotCategorical(logits=flat), 2)
  return tfd.BatchReshape(tfd.Independent(sites, 1), batch_shape)


def chain_of(x, batch_shape=None):
  """Builds a chain over two states and three steps from ten numbers."""
  del batch_shape
  shape = tf.concat([tf.shape(x)[:-1], [2, 2, 2]], axis=0)
  transitions = tf.reshape(x[..., 2:], shape)
  transitions = tf.ensure_shape(transitions, [*x.shape[:-1], 2, 2, 2])
  return tfp_rb.distributions.CategoricalChain(x[..., :2], transitions)


def markov_chain_of(x, batch_shape=None):
  """Builds a Markov chain over two states and three steps from four numbers."""
  del batch_shape

  def transition_fn(t, z):
    del t
    z = tf.cast(z, x.dtype)[..., tf.newaxis]
    return tfd.Categorical(logits=(1.0 - 2.0 * z) * x[..., 2:])

  return tfd.MarkovChain(
    tfd.Categorical(logits=x[..., :2]), transition_fn, num_steps=3
  )


def _by(kind, **arguments):
  """Builds `kind` from one named parameter, as `_by(tfd.Poisson, rate=0)`."""
  ((name, _),) = arguments.items()
  return lambda parameter, batch_shape: kind(**{name: parameter})


def _one_hot(size):
  return list(np.eye(size))


def _arrays_of(site, *shape):
  """Returns all arrays of `shape` whose entries are values of `site`.

  If the site has its own shape, it follows `shape`.
  """
  values = itertools.product(site, repeat=math.prod(shape))
  return [np.reshape(z, [*shape, *np.shape(site[0])]) for z in values]


_BITS = (0, 1)


def _enumerated(parameter, build, support):
  return DistributionRow(parameter, build, support, is_enumerated=True)


def _countable(parameter, build, support):
  return DistributionRow(parameter, build, support, is_countable=True)


DISTRIBUTIONS = {
  'Categorical': _enumerated(
    _numbers(5), _by(tfd.Categorical, logits=0), range(5)
  ),
  'Categorical-probs': _enumerated(
    _probs(4), _by(tfd.Categorical, probs=0), range(4)
  ),
  'OneHotCategorical': _enumerated(
    _numbers(4), _by(tfd.OneHotCategorical, logits=0), _one_hot(4)
  ),
  'OneHotCategorical-probs': _enumerated(
    _probs(3), _by(tfd.OneHotCategorical, probs=0), _one_hot(3)
  ),
  'Bernoulli': _enumerated(_numbers(), _by(tfd.Bernoulli, logits=0), _BITS),
  'Bernoulli-probs': _enumerated(
    _numbers(low=0.1, high=0.9), _by(tfd.Bernoulli, probs=0), _BITS
  ),
  'FiniteDiscrete': _enumerated(
    _numbers(4), _finite_discrete, [-1.0, 0.5, 2.0, 3.0]
  ),
  'OrderedLogistic': _enumerated(_numbers(), _ordered_logistic, range(4)),
  'BetaBinomial': DistributionRow(
    _numbers(low=0.5, high=3.0), _beta_binomial, range(5)
  ),
  'Binomial': DistributionRow(_numbers(), _binomial, range(5)),
  'Poisson': _countable(
    _numbers(low=1.2, high=3.9), _by(tfd.Poisson, rate=0), range(60)
  ),
  'Poisson-log_rate': _countable(
    _numbers(), _by(tfd.Poisson, log_rate=0), range(60)
  ),
  'NegativeBinomial': _countable(_numbers(), _negative_binomial, range(300)),
  'Geometric': _countable(_numbers(), _by(tfd.Geometric, logits=0), range(300)),
  'Geometric-probs': _countable(
    _numbers(low=0.2, high=0.8), _by(tfd.Geometric, probs=0), range(300)
  ),
  'Zipf': _countable(
    _numbers(low=2.5, high=4.0), _by(tfd.Zipf, power=0), range(1, 3000)
  ),
  'Shift': _countable(_numbers(), _shifted, range(2, 300)),
  'BatchReshape': DistributionRow(_numbers(4), _reshaped, range(4)),
  'BatchBroadcast': DistributionRow(_numbers(4), _broadcast, _one_hot(4)),
  'Independent': DistributionRow(
    _numbers(2, 3), _independent, _arrays_of([0, 1, 2], 2)
  ),
  'Sample': DistributionRow(
    _numbers(),
    lambda logits, batch_shape: tfd.Sample(tfd.Bernoulli(logits=logits), 3),
    _arrays_of(_BITS, 3),
  ),
  'Independent-OneHotCategorical': DistributionRow(
    _numbers(2, 3),
    lambda x, batch_shape: tfd.Independent(tfd.OneHotCategorical(logits=x), 1),
    _arrays_of(_one_hot(3), 2),
  ),
  'Independent-Bernoulli': DistributionRow(
    _numbers(3),
    lambda x, batch_shape: tfd.Independent(tfd.Bernoulli(logits=x), 1),
    _arrays_of(_BITS, 3),
  ),
  'CategoricalChain': DistributionRow(
    _numbers(10), chain_of, _arrays_of(_BITS, 3)
  ),
  'MarkovChain': DistributionRow(
    _numbers(4), markov_chain_of, _arrays_of(_BITS, 3)
  ),
  'nested': _countable(_numbers(2), _nested, None),
  'nested-finite': DistributionRow(
    _numbers(2, 2), _nested_finite, _arrays_of(_one_hot(2), 2, 2)
  ),
}

SAMPLERS = {
  name: getattr(tfp_rb.samplers, name)
  for name in ('Antithetic', 'IID', 'Stratified', 'WithoutReplacement')
}


class Family(NamedTuple):
  """A batch of distributions in two forms.

  One form is a `tfd` distribution, the other one consists of tables.

  Attributes:
    parameters: List of arrays.
    distribution: Callable that maps `Tensor`s, with any leading dimensions, to
      a `tfd` distribution.
    tables: Callable that maps arrays to a list of tables, one per batch member.
    num_values: Python `int` `K`, the number of values of the largest row.
  """

  parameters: list
  distribution: Callable
  tables: Callable
  num_values: int


def _array(*rows):
  return np.array(rows, np.float64)


_LOGITS = _array([0.3, 1.1, -0.5, 0.0], [2.5, -1.0, 0.2, 0.9])
_OUTCOMES = _array(-1.0, 0.5, 2.0, 3.0)
_COUNTS = _array(2.0, 1.0)  # the supports of the rows differ
_U_SHAPED = _array(3.0, 1.0)


def _of_rows(table):
  """Returns tables of a family whose rows are those of its parameters."""
  return lambda *parameters: [table(*row) for row in zip(*parameters)]


def _sites_of(table):
  """Returns a table of a product of independent sites, one per parameter."""
  return lambda row: reference.product([table(p) for p in row])


def _repeated(table, num):
  return lambda row: reference.product([table(row)] * num)


FAMILIES = {
  'Categorical': Family(
    [_LOGITS],
    lambda logits: tfd.Categorical(logits=logits),
    _of_rows(reference.categorical),
    4,
  ),
  'Categorical_by_probs': Family(
    [_LOGITS],
    lambda logits: tfd.Categorical(probs=tf.nn.softmax(logits)),
    _of_rows(reference.categorical),
    4,
  ),
  'Categorical_of_3': Family(
    [_LOGITS[:, :3]],
    lambda logits: tfd.Categorical(logits=logits),
    _of_rows(reference.categorical),
    3,
  ),
  'OneHotCategorical': Family(
    [_LOGITS],
    lambda logits: tfd.OneHotCategorical(logits=logits, dtype=tf.float64),
    _of_rows(reference.one_hot_categorical),
    4,
  ),
  'Bernoulli': Family(
    [_array(0.4, -1.3)],
    lambda logits: tfd.Bernoulli(logits=logits),
    _of_rows(reference.bernoulli),
    2,
  ),
  'Bernoulli_by_probs': Family(
    [_array(0.4, -1.3)],
    lambda logits: tfd.Bernoulli(probs=tf.sigmoid(logits)),
    _of_rows(reference.bernoulli),
    2,
  ),
  'FiniteDiscrete': Family(
    [_LOGITS],
    lambda logits: tfd.FiniteDiscrete(tf.constant(_OUTCOMES), logits=logits),
    _of_rows(lambda row: reference.finite_discrete(_OUTCOMES, row)),
    4,
  ),
  'OrderedLogistic': Family(
    [_array([-0.7, 0.2, 1.4], [-1.0, -0.1, 0.3]), _array(0.3, -0.8)],
    lambda cutpoints, location: tfd.OrderedLogistic(cutpoints, location),
    _of_rows(reference.ordered_logistic),
    4,
  ),
  'BetaBinomial': Family(
    # The first row is U-shaped.
    [_array(0.4, 2.0), _array(0.3, 1.2)],
    lambda a, b: tfd.BetaBinomial(tf.constant(_U_SHAPED), a, b),
    lambda a, b: _of_rows(reference.beta_binomial)(_U_SHAPED, a, b),
    4,
  ),
  'Binomial': Family(
    [_array(0.4, -0.9)],
    lambda logits: tfd.Binomial(tf.constant(_COUNTS), logits=logits),
    lambda logits: _of_rows(reference.binomial)(_COUNTS, logits),
    3,
  ),
  'Binomial_by_probs': Family(
    [_array(0.4, -0.9)],
    lambda logits: tfd.Binomial(tf.constant(_COUNTS), probs=tf.sigmoid(logits)),
    lambda logits: _of_rows(reference.binomial)(_COUNTS, logits),
    3,
  ),
  'Shift_of_Binomial': Family(
    # The shift is a parameter too, and has a batch dimension that the base
    # lacks.
    [_array(0.4), _array(1.5, -0.5)],
    lambda logits, shift: tfb.Shift(shift)(
      tfd.Binomial(tf.constant(2.0, tf.float64), logits=logits)
    ),
    lambda logits, shift: [
      reference.shifted(reference.binomial(2, logits[0]), s) for s in shift
    ],
    3,
  ),
  'Shift_of_Categorical': Family(
    [_LOGITS],
    lambda logits: tfb.Shift(tf.constant(5))(tfd.Categorical(logits=logits)),
    _of_rows(lambda row: reference.shifted(reference.categorical(row), 5)),
    4,
  ),
  'BatchReshape': Family(
    [np.concatenate([_LOGITS, _LOGITS[:, ::-1]])[:, :3]],
    lambda logits: tfd.BatchReshape(
      tfd.Categorical(logits=logits), [*logits.shape[:-2], 2, 2]
    ),
    _of_rows(reference.categorical),
    3,
  ),
  'BatchBroadcast': Family(
    [_LOGITS[:, np.newaxis, :3]],
    lambda logits: tfd.BatchBroadcast(
      tfd.OneHotCategorical(logits=logits, dtype=tf.float64),
      [*logits.shape[:-3], 2, 3],
    ),
    lambda logits: [
      reference.one_hot_categorical(row[0]) for row in logits for _ in range(3)
    ],
    3,
  ),
  'Independent_Bernoulli': Family(
    [_array([0.4, -1.3], [2.1, 0.2])],
    lambda logits: tfd.Independent(tfd.Bernoulli(logits=logits), 1),
    _of_rows(_sites_of(reference.bernoulli)),
    4,
  ),
  'Independent_Categorical': Family(
    [np.stack([_LOGITS[:, :3], _LOGITS[:, 1:]])],
    lambda logits: tfd.Independent(tfd.Categorical(logits=logits), 1),
    _of_rows(_sites_of(reference.categorical)),
    9,
  ),
  'Independent_OneHotCategorical': Family(
    [np.stack([_LOGITS[:, :3], _LOGITS[:, 1:]])],
    lambda logits: tfd.Independent(
      tfd.OneHotCategorical(logits=logits, dtype=tf.float64), 1
    ),
    _of_rows(_sites_of(reference.one_hot_categorical)),
    9,
  ),
  'Independent_Binomial': Family(
    # The supports of the sites differ: 6 of the 9 pairs are possible.
    [_array([0.4, -0.9], [-1.5, 0.1])],
    lambda logits: tfd.Independent(
      tfd.Binomial(tf.constant(_COUNTS), logits=logits), 1
    ),
    _of_rows(
      lambda row: reference.product(
        [reference.binomial(n, p) for n, p in zip(_COUNTS, row)]
      )
    ),
    9,
  ),
  'CategoricalChain': Family(
    [_LOGITS[:, :2], np.reshape(np.sin(7.0 * np.arange(16)), [2, 2, 2, 2])],
    lambda *logits: tfp_rb.distributions.CategoricalChain(*logits),
    _of_rows(reference.chain),
    8,
  ),
  'CategoricalChain_of_3': Family(
    [_LOGITS[:, :3], np.reshape(np.sin(5.0 * np.arange(18)), [2, 1, 3, 3])],
    lambda *logits: tfp_rb.distributions.CategoricalChain(*logits),
    _of_rows(reference.chain),
    9,
  ),
  'Sample_Bernoulli': Family(
    [_array(0.4, -1.3)],
    lambda logits: tfd.Sample(tfd.Bernoulli(logits=logits), 3),
    _of_rows(_repeated(reference.bernoulli, 3)),
    8,
  ),
  'Sample_of_Independent': Family(
    [_array([0.4, -1.3], [2.1, 0.2])],
    lambda logits: tfd.Sample(
      tfd.Independent(tfd.Bernoulli(logits=logits), 1), 2
    ),
    _of_rows(_repeated(_sites_of(reference.bernoulli), 2)),
    16,
  ),
}


def cost(distribution, dtype):
  """Returns a function of the atoms: not symmetric, and of moderate size."""
  event_shape = distribution.event_shape

  def f(z):
    size = event_shape.num_elements()
    position = tf.reshape(tf.range(1.0, size + 1.0), event_shape)
    x = tf.cast(z, dtype)
    terms = tf.cast(position, dtype) * (tf.sin(2.0 * x) + 0.25 * x)
    return tf.reduce_sum(terms, axis=list(range(-event_shape.rank, 0)))

  return f
