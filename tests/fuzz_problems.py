# SPDX-License-Identifier: Apache-2.0
"""Random problems as plain data: how they are made, repaired and simplified."""

import dataclasses
import json
import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from fuzz_chains import num_steps_of
from fuzz_families import FAMILIES, Settings
import tfp_rb

tfb = tfp.bijectors
tfd = tfp.distributions

HALF = ('bfloat16', 'float16')
MOST_SITES = 6
LEAVE_ONE_OUT = ('mixed', 'rest', 'all')
NEED_SECOND = (*LEAVE_ONE_OUT, 'optimal')


@dataclasses.dataclass(frozen=True)
class Problem:
  """A problem: the quantity to estimate, and the estimator.

  The numbers of the distribution are drawn from `seed`. Everything that decides
  their shapes and sizes is stored here, so that a problem can be simplified.

  Attributes:
    seed: Seed of the numbers.
    family: A key of `FAMILIES`.
    style: What the parameters look like: 'plain', 'flat', 'ties', 'peaked',
      'shifted' or 'impossible' (some values have no mass).
    size: Number of values of a table, or the largest total count plus one.
    dtype: Dtype of the parameters.
    batch: Batch shape of the innermost distribution.
    wrappers: Pairs `(name, how)`, starting with the innermost wrapper.
    design: 'draws', 'top_k', 'budget', 'given' or 'exact'.
    num_summed: The number of summed values, or of given values in the design
      'given'.
    num_samples: The number of draws.
    budget: The number of evaluations of the design 'budget'.
    sampler: 'iid', 'stratified' or 'without'.
    baseline: 'none', 'constant', 'independent', 'unshared', 'mixed', 'rest',
      'all' or 'optimal'.
    f_dtype: Dtype of the values of `f`.
    offset: A number added to `f`.
    elsewhere: The factor of `f` at impossible values, as text.
    checks: Checks in addition to the usual ones: 'outcomes', 'graph', 'xla',
      'lattice'.
  """

  seed: int
  family: str = 'Categorical.logits'
  style: str = 'plain'
  size: int = 3
  dtype: str = 'float64'
  batch: tuple = ()
  wrappers: tuple = ()
  design: str = 'draws'
  num_summed: int = 0
  num_samples: int = 1
  budget: int = 1
  sampler: str = 'iid'
  baseline: str = 'none'
  f_dtype: str = 'float64'
  offset: float = 0.0
  elsewhere: str = '0'
  checks: tuple = ()

  def to_json(self):
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text):
    def tuples(x):
      return tuple(map(tuples, x)) if isinstance(x, list) else x

    return cls(**{k: tuples(v) for k, v in json.loads(text).items()})

  def replace(self, **changes):
    return dataclasses.replace(self, **changes)


class Layout(NamedTuple):
  """Maps each site of the outermost distribution to numbers of the innermost.

  Attributes:
    rows: Integer array, `batch_shape + site_shape`: the row of the innermost
      distribution, flattened.
    shifts: `None`, or an array of the same shape: the index of the site's
      shift.
    batch_rank: The rank of `batch_shape`.
    shift_shape: The shape of the shift, or `None` if there is none.
  """

  rows: np.ndarray
  shifts: np.ndarray | None
  batch_rank: int
  shift_shape: tuple | None

  @property
  def batch(self):
    return self.rows.shape[: self.batch_rank]

  @property
  def sites(self):
    return self.rows.shape[self.batch_rank :]


def reshaped_batch(batch, how):
  """Returns the batch shape that a `BatchReshape` makes."""
  if how == 'flat':
    return (math.prod(batch),)
  if how == 'one':
    return (1, *batch)
  return tuple(reversed(batch))


def broadcast_batch(batch, how):
  """Returns the batch shape that a `BatchBroadcast` makes."""
  if how == 'front':
    return (2, *batch)
  # An entry is a Tensor if it is not known while tracing.
  return tuple(3 if isinstance(n, int) and n == 1 else n for n in batch)


def _wrapped(layout, name, how):
  """Returns the layout of a wrapper around a distribution."""
  rows, rank, batch, sites = (
    layout.rows,
    layout.batch_rank,
    layout.batch,
    layout.sites,
  )
  change = lambda x: x
  if name == 'BatchReshape':
    new_batch = reshaped_batch(batch, how)
    change = lambda x: np.reshape(x, new_batch + sites)
    rank = len(new_batch)
  elif name == 'BatchBroadcast':
    new_batch = broadcast_batch(batch, how)
    change = lambda x: np.broadcast_to(x, new_batch + sites)
    rank = len(new_batch)
  elif name == 'Independent':
    rank -= how
  elif name == 'Sample':
    ones = (1,) * len(how)
    change = lambda x: np.broadcast_to(
      np.reshape(x, batch + ones + sites), batch + how + sites
    )
  else:  # Shift
    shape = {'scalar': (), 'batch': batch, 'wider': (2, *batch)}[how]
    if how == 'wider':
      rows = np.broadcast_to(rows, shape + sites)
      rank += 1
    index = np.reshape(np.arange(math.prod(shape)), shape)
    index = np.reshape(index, shape + (1,) * (rows.ndim - len(shape)))
    return Layout(rows, np.broadcast_to(index, rows.shape), rank, shape)
  shifts = None if layout.shifts is None else change(layout.shifts)
  return Layout(change(rows), shifts, rank, layout.shift_shape)


def layout_of(problem):
  """Returns the `Layout`; raises a `ValueError` if the wrappers do not fit."""
  batch = problem.batch
  rows = np.reshape(np.arange(math.prod(batch)), batch)
  layout = Layout(rows, None, len(batch), None)
  family = FAMILIES[problem.family]
  for name, how in problem.wrappers:
    if name == 'Independent' and how > layout.batch_rank:
      raise ValueError('too few batch dimensions')
    if name == 'Shift' and (
      family.vectors is not None
      or layout.shifts is not None
      or (layout.sites and how != 'scalar')
    ):
      raise ValueError('a shift does not fit')
    if name == 'BatchReshape' and 0 in layout.batch:
      raise ValueError('TFP refuses to reshape an empty batch')
    layout = _wrapped(layout, name, how)
  if not 1 <= math.prod(layout.sites) <= MOST_SITES:
    raise ValueError('too many sites, or none')
  if layout.batch_rank > 4 or layout.rows.ndim > 6:
    raise ValueError('TensorFlow broadcasts at most 8 dimensions')
  return layout


class Numbers(NamedTuple):
  """Holds the numbers of a problem, rounded to its dtype.

  Attributes:
    parameters: Dictionary of arrays in the dtype of the problem.
    settings: `Settings`.
    shift: `None`, or an array in the dtype of the values.
    penalty: A number in `f` that is differentiated.
    slopes: Array of `site_shape`, in `f`.
    upstream: Array of `batch_shape`, which multiplies the result.
  """

  parameters: dict
  settings: Settings
  shift: np.ndarray | None
  penalty: np.ndarray
  slopes: np.ndarray
  upstream: np.ndarray


def numpy_dtype(name):
  return tf.as_dtype(name).as_numpy_dtype


def numbers_of(problem, layout):
  rng = np.random.default_rng([problem.seed, 1])
  family = FAMILIES[problem.family]
  is_half = problem.dtype in HALF
  parameters = family.parameters(
    rng, problem.style, problem.batch, problem.size, is_half
  )
  if 'probs' in parameters:
    # Gradients of smaller probabilities pass through numbers that underflow.
    is_wide = problem.dtype == 'float64'
    least = 1e8 * np.finfo(np.float64 if is_wide else np.float32).tiny
    probs = parameters['probs']
    parameters['probs'] = np.where(probs < least, 0.0, probs)
  dtype = numpy_dtype(problem.dtype)
  parameters = {k: np.asarray(v).astype(dtype) for k, v in parameters.items()}
  counts, site_counts = _total_counts(problem, layout, rng)
  shift = None
  if layout.shift_shape is not None:
    largest = 3 if is_half else 40
    shift = rng.integers(-largest, largest + 1, layout.shift_shape)
    if not (is_half or family.is_integer):
      # In half of the problems, the shift causes rounding.
      shift = shift + 0.3 * (problem.seed % 2)
    shift = np.asarray(shift).astype(np.int32 if family.is_integer else dtype)
  return Numbers(
    parameters,
    Settings(problem.size, counts, site_counts),
    shift,
    np.float64(rng.normal()),
    0.3 + rng.random(layout.sites),
    1.0 + rng.random(layout.batch),
  )


def _total_counts(problem, layout, rng):
  """Returns the total counts of the base rows and of each site, if any."""
  if 'Binomial' not in problem.family or 'Negative' in problem.family:
    return None, None
  counts = np.array(problem.size - 1)
  num_rows = math.prod(problem.batch)
  if num_rows > 1 and problem.style in ('plain', 'impossible'):
    # The rows differ; the first row has the largest count.
    counts = rng.integers(0, problem.size, num_rows)
    counts[0] = problem.size - 1
    counts = np.reshape(counts, problem.batch)
  of_rows = np.ravel(np.broadcast_to(counts, problem.batch)).astype(float)
  shape = (math.prod(layout.batch), math.prod(layout.sites))
  return counts, np.reshape(of_rows[layout.rows], shape)


# TFP's distribution and this library's estimator.


def _batch_list(q):
  """Returns the batch shape, with scalar Tensors for unknown sizes."""
  if q.batch_shape.is_fully_defined():
    return q.batch_shape.as_list()
  return [
    q.batch_shape_tensor()[i] if n is None else n
    for i, n in enumerate(q.batch_shape.as_list())
  ]


def _wrap(q, name, how, shift, num_copied):
  """Puts a wrapper of TFP around `q`.

  Args:
    q: The distribution.
    name: Name of the wrapper.
    how: As in `Problem.wrappers`.
    shift: The shift, a Tensor.
    num_copied: Number of leading batch dimensions that do not belong to the
      problem; the wrapper leaves them alone.

  Returns:
    q: The wrapped distribution.
  """
  batch = _batch_list(q)
  copied, batch = batch[:num_copied], batch[num_copied:]
  if name == 'Independent':
    return tfd.Independent(q, how)
  if name == 'Sample':
    return tfd.Sample(q, list(how))
  if name == 'Shift':
    if how == 'scalar' and num_copied:
      ones = [1] * (len(batch) + q.event_shape.rank)
      shift = tf.reshape(shift, copied + ones)
    return tfb.Shift(shift)(q)
  if name == 'BatchReshape':
    new_batch = list(reshaped_batch(batch, how))
    return tfd.BatchReshape(q, _stacked(copied + new_batch))
  return tfd.BatchBroadcast(
    q, to_shape=_stacked(copied + list(broadcast_batch(batch, how)))
  )


def _stacked(shape):
  if all(isinstance(n, int) for n in shape):
    return shape
  return tf.stack(shape)


def distribution_of(problem, numbers, parameters, shift, num_copied=0):
  """Returns the distribution of TFP for parameters given as Tensors."""
  q = FAMILIES[problem.family].distribution(parameters, numbers.settings)
  for name, how in problem.wrappers:
    q = _wrap(q, name, how, shift, num_copied)
  return q


def _baseline(name):
  return {
    'none': lambda: None,
    'constant': lambda: 1.5,
    'independent': tfp_rb.baselines.IndependentSample,
    'unshared': lambda: tfp_rb.baselines.IndependentSample(shared=False),
    'mixed': tfp_rb.baselines.LeaveOneOut,
    'rest': lambda: tfp_rb.baselines.LeaveOneOut(form='rest'),
    'all': lambda: tfp_rb.baselines.LeaveOneOut(form='all'),
    'optimal': tfp_rb.baselines.Optimal,
  }[name]()


def estimator_of(problem, given=None):
  """Returns the estimator; `given` holds the values of the design 'given'."""
  if problem.design == 'exact':
    return tfp_rb.Exact()
  estimator = tfp_rb.REINFORCE(
    baseline=_baseline(problem.baseline), num_samples=problem.num_samples
  )
  if problem.design == 'draws':
    return estimator
  sampler = {
    'iid': tfp_rb.samplers.IID,
    'stratified': tfp_rb.samplers.Stratified,
    'without': tfp_rb.samplers.WithoutReplacement,
  }[problem.sampler]()
  how = {
    'top_k': {'num_summed': problem.num_summed},
    'budget': {'budget': problem.budget},
    'given': {'atoms': lambda q: given},
  }[problem.design]
  return tfp_rb.rao_blackwellize(estimator, sampler=sampler, **how)


# Random problems.


def num_values_of(problem, layout):
  """Returns the number of joint values, or `None` if it is infinite."""
  family = FAMILIES[problem.family]
  if family.tail is not None:
    return None
  return len(family.support(Settings(problem.size))) ** math.prod(layout.sites)


def repair(problem):
  """Returns the nearest problem that the library supports.

  Raises:
    ValueError: The wrappers do not fit.
  """
  layout = layout_of(problem)
  if problem.family == 'Zipf' and problem.dtype in HALF:
    # TFP does not support half precision here.
    problem = problem.replace(dtype='float32')
  if 'Finite' in problem.family and problem.dtype == 'bfloat16':
    # TFP does not support bfloat16 here.
    problem = problem.replace(dtype='float16')
  changes = {}
  if 'Chain' in problem.family:
    num_steps = num_steps_of(problem.family)
    changes['size'] = min(problem.size, int(300.0 ** (1.0 / num_steps)))
  if 'OrderedLogistic' in problem.family or 'Finite' in problem.family:
    changes['size'] = max(problem.size, 2)
  if problem.dtype in HALF:
    # Larger values cannot be represented.
    changes['size'] = min(changes.get('size', problem.size), 40)
  if problem.f_dtype in HALF:
    if problem.dtype not in HALF or problem.baseline == 'optimal':
      changes['f_dtype'] = 'float32'
    else:
      changes['offset'] = min(problem.offset, 100.0)
  if problem.dtype == 'float16':
    # Otherwise gradients would overflow.
    changes['offset'] = min(problem.offset, 100.0)
  problem = problem.replace(**changes)
  return _repair_design(problem, num_values_of(problem, layout))


def _is_copied(problem):
  return any(
    name in ('Sample', 'BatchBroadcast') or (name, how) == ('Shift', 'wider')
    for name, how in problem.wrappers
  )


def _repair_design(problem, num_values):
  """Makes the numbers of sums and draws fit the support and each other."""
  most = math.inf if num_values is None else num_values
  design, sampler = problem.design, problem.sampler
  if design == 'exact' and most > 512:
    design = 'draws'
  if design in ('draws', 'exact', 'budget'):
    sampler, num_summed = 'iid', 0
  else:
    num_summed = min(problem.num_summed, most)
  if design == 'given':
    num_summed = max(num_summed, 1)
  if most > 2**16 and _is_copied(problem):
    # Each copy would exclude other values, which the library does not support.
    sampler = 'iid' if sampler == 'without' else sampler
    design = 'top_k' if design == 'given' else design
  num_samples, budget = problem.num_samples, problem.budget
  if sampler == 'without' and num_summed + num_samples > most:
    # If all values are summed, no draws are needed.
    num_samples = max(most - num_summed, 1)
    if num_summed + num_samples > most:
      sampler = 'iid'
  baseline = problem.baseline
  if baseline in NEED_SECOND:
    if design == 'budget':
      budget = max(budget, 2)
    elif num_summed + num_samples < 2:
      num_samples = 2
    if design == 'budget' and most < 2:
      baseline = 'none'
    if sampler == 'without' and num_summed + num_samples > most:
      sampler = 'iid'
  if sampler == 'stratified' and baseline in NEED_SECOND:
    baseline = 'independent'
  if sampler == 'without' and baseline == 'optimal':
    baseline = 'mixed'
  if design == 'exact':
    baseline = 'none'
  return problem.replace(
    design=design,
    sampler=sampler,
    num_summed=int(num_summed),
    num_samples=int(num_samples),
    budget=int(budget),
    baseline=baseline,
  )


BATCHES = (
  (), (), (), (3,), (3,), (1,), (2, 2), (1, 3), (2, 1, 2), (0,), (2, 0),
)  # fmt: skip
SIZES = (1, 2, 2, 3, 3, 4, 4, 5, 6, 8, 12, 40, 300)
STYLES = ('plain', 'plain', 'flat', 'ties', 'peaked', 'shifted', 'impossible')
WRAPPERS = (
  ('Shift', 'scalar'),
  ('Shift', 'batch'),
  ('Shift', 'wider'),
  ('Independent', 1),
  ('Independent', 2),
  ('Sample', (2,)),
  ('Sample', (2, 1)),
  ('Sample', (3,)),
  ('Sample', ()),
  ('BatchReshape', 'flat'),
  ('BatchReshape', 'one'),
  ('BatchReshape', 'reversed'),
  ('BatchBroadcast', 'front'),
  ('BatchBroadcast', 'ones'),
)
BASELINES = (
  'none', 'constant', 'independent', 'unshared', 'mixed', 'rest', 'all',
  'optimal',
)  # fmt: skip


def _pick(rng, options):
  return options[int(rng.integers(len(options)))]


def _random_wrappers(rng, problem):
  """Adds fitting wrappers, one at a time."""
  for _ in range(_pick(rng, (0, 0, 1, 1, 1, 2, 2, 3))):
    longer = problem.replace(wrappers=(*problem.wrappers, _pick(rng, WRAPPERS)))
    try:
      layout_of(longer)
    except ValueError:
      continue
    problem = longer
  return problem


def _random_checks(rng):
  shares = {'outcomes': 0.15, 'graph': 0.03, 'xla': 0.002, 'lattice': 0.05}
  return tuple(k for k, share in shares.items() if rng.random() < share)


def random_problem(seed):
  """Returns the problem of the given seed."""
  rng = np.random.default_rng([seed, 0])
  dtype = _pick(
    rng, ('float64',) * 5 + ('float32',) * 4 + ('bfloat16', 'float16')
  )
  family = _pick(rng, sorted(FAMILIES))
  size = _pick(rng, SIZES)
  problem = Problem(
    seed=seed,
    family=family,
    style=_pick(rng, STYLES),
    # A count of 300 requires a wider dtype than float16.
    size=min(size, 40) if 'Binomial' in family else size,
    dtype=dtype,
    batch=_pick(rng, BATCHES),
    design=_pick(
      rng,
      (
        'draws',
        'top_k',
        'top_k',
        'top_k',
        'top_k',
        'budget',
        'budget',
        'given',
        'exact',
      ),
    ),
    num_summed=_pick(rng, (0, 1, 1, 2, 3, 5)),
    num_samples=_pick(rng, (1, 1, 2, 2, 3, 4)),
    budget=_pick(rng, (1, 2, 3, 4, 6)),
    sampler=_pick(rng, ('iid', 'iid', 'stratified', 'without')),
    baseline=_pick(rng, BASELINES),
    f_dtype=_pick(rng, ('float64', 'float64', 'float32', dtype)),
    offset=_pick(rng, (0.0, 0.0, 3.0, 1e4, 1e8)),
    elsewhere=_pick(rng, ('0', 'nan', 'inf')),
    checks=_random_checks(rng),
  )
  if 'outcomes' in problem.checks:
    # The outcomes are few enough to list, and precise enough to compare.
    problem = problem.replace(
      size=min(problem.size, 4),
      dtype='float64',
      num_samples=min(problem.num_samples, 2),
      f_dtype='float64',
    )
  return repair(_random_wrappers(rng, problem))


def simpler(problem):
  """Yields problems that are simpler than `problem` in one respect."""
  for i in range(len(problem.wrappers)):
    yield problem.replace(
      wrappers=problem.wrappers[:i] + problem.wrappers[i + 1 :]
    )
  for batch in ((), (1,), (2,), problem.batch[:-1], problem.batch[1:]):
    if len(batch) < len(problem.batch) or batch < problem.batch:
      yield problem.replace(batch=batch)
  for i in range(len(problem.checks)):
    yield problem.replace(checks=problem.checks[:i] + problem.checks[i + 1 :])
  simplest = {
    'dtype': ('float64', 'float32'),
    'f_dtype': ('float64', 'float32'),
    'offset': (0.0,),
    'elsewhere': ('0',),
    'sampler': ('iid',),
    'baseline': ('none', 'constant'),
    'design': ('draws', 'top_k'),
    'style': ('flat', 'plain'),
    'family': ('Categorical.logits', 'Poisson.rate'),
  }
  for key, options in simplest.items():
    now = getattr(problem, key)
    options = options[: options.index(now)] if now in options else options
    for option in options:
      yield problem.replace(**{key: option})
  for key, least in (
    ('num_samples', 1), ('num_summed', 0), ('budget', 1), ('size', 1),
  ):  # fmt: skip
    now = getattr(problem, key)
    for number in sorted({least, now // 2, now - 1}):
      if least <= number < now:
        yield problem.replace(**{key: number})
