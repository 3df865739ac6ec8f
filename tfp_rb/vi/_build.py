# SPDX-License-Identifier: Apache-2.0
"""Builds trainable mean-field surrogates of models with discrete parts."""

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.distributions import CategoricalChain
from tfp_rb.internal.random import split_seed
from tfp_rb.internal.types import Distribution, Seed, TensorLike
from tfp_rb.partitions import family_of

__all__ = ['build_factored_surrogate_posterior']

tfb = tfp.bijectors
tfd = tfp.distributions

_NUM_DRAWS = 16  # joint prior draws over which marginals are averaged
_NOISE = 1e-2  # standard deviation of the noise added to the logits
_SMOOTHING = 1e-3  # total mass added, so that no logit starts at -inf


def build_factored_surrogate_posterior(
  model: Distribution | tfp.experimental.distributions.JointDistributionPinned,
  shifts: Mapping[str, TensorLike] | None = None,
  seed: Seed = None,
  name: str | None = None,
) -> Distribution:
  """Builds a trainable surrogate whose parts are independent.

  This is the function of the same name in `tfp.experimental.vi`, for models
  that also have discrete parts. It takes the model instead of its event shape:

  ```none
  Bernoulli, ProbitBernoulli                           -> Bernoulli
  Binomial, BetaBinomial                               -> Binomial
  Categorical, OrderedLogistic, StoppingRatioLogistic  -> Categorical
  FiniteDiscrete                                       -> FiniteDiscrete
  OneHotCategorical                                    -> OneHotCategorical
  Geometric, NegativeBinomial, Poisson, Zipf,
    PoissonLogNormalQuadratureCompound,
    ZeroInflatedNegativeBinomial                       -> NegativeBinomial
  CategoricalChain, MarkovChain over a finite set      -> CategoricalChain
  continuous, with the default event-space bijector    -> Normal
  ```

  Parts may be wrapped in `Independent`, `Sample` and `BatchBroadcast`. Shapes
  and dtype are those of the part (in an auto-batched model all but
  `batch_ndims` dimensions belong to the event). Each variable has its own
  parameters.

  Discrete parts start at their prior marginal, averaged over 16 joint draws. (A
  part that depends on no other part starts at the prior itself.) Finite parts
  start at the probabilities of the marginal. Counts start at the mean of the
  marginal and at its ratio of variance to mean, which is raised to at least
  1.1. Noise with standard deviation 0.01 is added to the logits, because
  components of a mixture that start equal have equal gradients and stay equal.
  In a chain every transition has its own logits; transitions that the prior
  forbids stay forbidden. Continuous parts start at a random `loc`, as in TFP.
  If the bijector of a part depends on other parts, as for `Uniform(0., x)`, it
  is fixed at one prior draw.

  Args:
    model: `tfd.JointDistribution*`, or one with parts pinned by its
      `experimental_pin`, or any other `tfd.Distribution`.
    shifts: Optional `dict` that maps the names of counts to their smallest
      values: numbers, or `Tensor`s that broadcast to a draw. For example, an
      abundance is at least the number of individuals seen. The mean starts at
      least 1 above the shift.
    seed: As in TFP: `int32[2]`, or an `int` or `None` for a stateful seed.
    name: Python `str`, prefixed to the ops created here.

  Returns:
    surrogate: `tfd.JointDistributionNamed` or `Sequential`, with the structure
      of the unpinned parts, as `model.unnormalized_log_prob` takes it; a plain
      `tfd.Distribution` if `model` is one.

  Raises:
    TypeError: `model` is not a distribution, or a count has an integer dtype.
    ValueError: A part has no surrogate, such as a `Multinomial`; or its largest
      value depends on other parts; or `shifts` names a part that is not a
      count.

  #### Examples

  ```python
  model = tfd.JointDistributionNamedAutoBatched(dict(
    rate=tfd.Gamma(4., 0.5),
    abundance=lambda rate: tfd.Poisson(rate * tf.ones([3])),
    seen=lambda abundance: tfd.Binomial(abundance, probs=0.5)))
  seen = [4., 0., 2.]
  pinned = model.experimental_pin(seen=seen)
  surrogate = tfp_rb.vi.build_factored_surrogate_posterior(
    pinned, shifts=dict(abundance=seen), seed=[1, 2])
  draw = surrogate.sample(5, seed=[3, 4])
  pinned.unnormalized_log_prob(**draw).shape  # ==> (5,)
  len(surrogate.trainable_variables)          # ==> 4
  ```
  """
  pins = getattr(model, 'pins', {})
  joint = model.distribution if pins else model
  if not isinstance(joint, tfd.Distribution):
    raise TypeError(
      '`model` must be a `tfd.Distribution`, or a joint one with parts pinned; '
      f'got {model!r}. Pass, for example, `tfd.JointDistributionNamed(...)`.'
    )
  *draw_seeds, seed = split_seed(seed, n=_NUM_DRAWS + 1)
  # For each part, list its distribution in each of the joint draws.
  if not isinstance(joint, tfd.JointDistribution):
    priors, batch_ndims = {joint.name: [joint]}, None
  else:
    draws = [joint.sample_distributions(seed=s, **pins)[0] for s in draw_seeds]
    draws = [_by_name(joint, d) for d in draws]
    priors = {n: [d[n] for d in draws] for n in draws[0] if n not in pins}
    batch_ndims = joint.batch_ndims  # None if it is not auto-batched
  shifts = shifts or {}
  counts = [n for n, d in priors.items() if _is_count(d[0])]
  for n in shifts.keys() - counts:
    raise ValueError(
      '`shifts` must name unpinned parts that are unbounded counts: '
      f'{counts}; got {n!r}. Leave it out.'
    )
  with tf.name_scope(name or 'build_factored_surrogate_posterior'):
    parts = {
      n: _build(_Part(n, d, shifts.get(n), s), batch_ndims)
      for (n, d), s in zip(priors.items(), split_seed(seed, n=len(priors)))
    }
  if not isinstance(joint, tfd.JointDistribution):
    return parts[joint.name]
  # The structure of the unpinned parts: a dictionary, a tuple or a list.
  structure = type(model.dtype)
  if isinstance(model.dtype, dict) or hasattr(structure, '_fields'):
    return tfd.JointDistributionNamed(structure(**parts))
  return tfd.JointDistributionSequential(structure(parts.values()))


def _by_name(joint: Distribution, parts: Any) -> dict[str, Distribution]:
  """Returns the parts of a joint distribution as a dictionary."""
  if isinstance(parts, dict):
    return parts
  is_tuple = hasattr(parts, '_fields')
  names = parts._fields if is_tuple else [n for n, _ in joint.resolve_graph()]
  return dict(zip(names, parts))


class _Part(NamedTuple):
  """Holds a part of the model."""

  name: str
  priors: list[Distribution]  # its distribution in each of the joint draws
  shift: TensorLike | None  # as the user gave it
  seed: tf.Tensor

  def average(self, function: Callable[[Distribution], tf.Tensor]) -> tf.Tensor:
    """Returns the mean of a function over the joint draws."""
    return tf.add_n([function(d) for d in self.priors]) / len(self.priors)

  def trainable(self, logits: tf.Tensor) -> tf.Variable:
    """Returns a variable that starts near the given logits."""
    noise = tf.random.stateless_normal(logits.shape, self.seed, 0.0, _NOISE)
    return tf.Variable(logits + tf.cast(noise, logits.dtype), name=self.name)

  def trainable_share(self, total_count: Any) -> tf.Variable:
    """Returns logits whose probability is `mean / total_count`."""
    mean = self.average(lambda d: d.mean())
    probs = (mean + _SMOOTHING) / (total_count + 2.0 * _SMOOTHING)
    return self.trainable(tf.math.log(probs) - tf.math.log1p(-probs))


# Maps a part and its prior (without wrappers such as `Independent`) to a
# surrogate.
_Builder: TypeAlias = Callable[[_Part, Distribution], Distribution]


def _build(part: _Part, batch_ndims: int | None) -> Distribution:
  """Returns the surrogate of a part, with the part's batch and event shape."""
  d = part.priors[0]
  build = _builder_of(d)
  surrogate = build(part, _unwrapped(d))
  batch_ndims = d.batch_shape.rank if batch_ndims is None else batch_ndims
  event_ndims = surrogate.batch_shape.rank - batch_ndims
  if event_ndims == 0 and build is not _continuous:
    return surrogate.copy(name=part.name)
  # Copying TFP's surrogate to rename it would lose its variables. So the
  # wrapper names a continuous part even if `event_ndims` is 0.
  return tfd.Independent(surrogate, event_ndims, name=part.name)


def _builder_of(d: Distribution) -> _Builder:
  kind = _kind_of(_unwrapped(d))
  return _continuous if kind is None else _BUILDERS.get(kind, _continuous)


def _is_count(d: Distribution) -> bool:
  return _kind_of(_unwrapped(d)) in ('counts', 'ranks')


def _kind_of(d: Distribution) -> str | None:
  """Returns the kind of values that is registered for a family, or `None`."""
  family = family_of(d)
  return None if family is None else family.kind


def _unwrapped(d: Distribution) -> Distribution:
  """Returns the distribution inside `Independent`, `Sample` and the like."""
  return _unwrapped(d.distribution) if _kind_of(d) == 'wrapped' else d


def _rewrapped(
  d: Distribution, function: Callable[[Distribution], Distribution]
) -> Distribution:
  """Applies `function` to the distribution inside the wrappers of `d`."""
  if _kind_of(d) == 'wrapped':
    return d.copy(distribution=_rewrapped(d.distribution, function))
  return function(d)


def _bernoulli(part: _Part, base: Distribution) -> Distribution:
  return tfd.Bernoulli(logits=part.trainable_share(1.0), dtype=base.dtype)


def _binomial(part: _Part, base: Distribution) -> Distribution:
  del base

  # The mean of a `Deterministic` is its value. So the wrappers of the part
  # broadcast and repeat the count like any mean.
  def total_count(q: Distribution) -> Distribution:
    return tfd.Deterministic(tf.broadcast_to(q.total_count, q.batch_shape))

  n, *others = (_rewrapped(d, total_count).mean() for d in part.priors)
  if any(np.any(n != other) for other in others):
    raise ValueError(
      f'`total_count` of {part.name!r} must not depend on other parts, because '
      'the possible values would depend on them, too; got values that differ '
      'between prior draws. Pin the part, or sum over it in the model.'
    )
  return tfd.Binomial(n, logits=part.trainable_share(n))


def _logits_of_labels(part: _Part) -> tf.Variable:
  """Returns logits that start at the averaged prior probabilities."""

  # The mean of one-hot vectors holds the probabilities.
  def one_hot(q: Distribution) -> Distribution:
    is_ordinal = hasattr(q, 'categorical_probs')  # e.g. `OrderedLogistic`
    probs = q.categorical_probs() if is_ordinal else q.probs_parameter()
    return tfd.OneHotCategorical(probs=probs)

  probs = part.average(lambda d: _rewrapped(d, one_hot).mean())
  return part.trainable(tf.math.log(probs + _SMOOTHING / probs.shape[-1]))


def _categorical(part: _Part, base: Distribution) -> Distribution:
  return tfd.Categorical(logits=_logits_of_labels(part), dtype=base.dtype)


def _one_hot_categorical(part: _Part, base: Distribution) -> Distribution:
  return tfd.OneHotCategorical(logits=_logits_of_labels(part), dtype=base.dtype)


def _paths(part: _Part, base: Distribution) -> Distribution:
  """Returns a chain that starts at the averaged probabilities of the prior."""
  first = getattr(base, 'initial_state_prior', None)
  if first is not None and not isinstance(
    first, tfd.Categorical | tfd.Bernoulli
  ):
    raise ValueError(
      f'{part.name!r} must have a finite set of states; got a '
      f'`{type(base).__name__}` that starts with a `{type(first).__name__}`. '
      'Pin it, or build the surrogate by hand.'
    )

  def logits_of(function: Callable[[CategoricalChain], tf.Tensor]) -> tf.Tensor:
    probs = part.average(
      lambda d: tf.nn.softmax(
        function(CategoricalChain.from_markov_chain(_unwrapped(d)))
      )
    )
    # Transitions that the prior forbids must stay forbidden: if the surrogate
    # allowed one, its divergence would be infinite.
    is_possible = tf.cast(probs > 0.0, probs.dtype)
    smoothing = _SMOOTHING / probs.shape[-1] * is_possible
    return part.trainable(tf.math.log(probs + smoothing))

  return CategoricalChain(
    logits_of(lambda chain: chain.initial_logits),
    logits_of(lambda chain: chain.transition_logits),
  )


def _finite_discrete(part: _Part, base: Distribution) -> Distribution:
  return tfd.FiniteDiscrete(base.outcomes, logits=_logits_of_labels(part))


def _counts(
  part: _Part, base: Distribution, start: float = 0.0
) -> Distribution:
  """Returns a negative binomial with the moments of the prior, from `start`."""
  if not base.dtype.is_floating:
    raise TypeError(
      f'{part.name!r} must have a floating-point dtype, like its surrogate; '
      f'got {base.dtype.name}. Write, e.g., `Zipf(2., dtype=tf.float32)`.'
    )
  mean = part.average(lambda d: d.mean())
  variance = part.average(lambda d: d.variance() + d.mean() ** 2) - mean**2
  mean = tf.maximum(mean - start, 0.05)
  # A heavy tail, as in `Zipf`, may have no moments. If the variance is
  # infinite, start at a geometric distribution, whose excess equals the mean.
  mean = tf.where(mean < np.inf, mean, tf.ones_like(mean))
  excess = tf.where(variance < np.inf, variance / mean - 1.0, mean)
  # The variance is `mean (1 + excess)` and `total_count` is `mean / excess`,
  # which would be infinite at an excess of 0 (a Poisson distribution).
  excess = tf.clip_by_value(excess, 0.1, 10.0 * mean)
  shift = tf.cast(start if part.shift is None else part.shift, mean.dtype)
  shift = tf.broadcast_to(tf.maximum(tf.math.ceil(shift), start), mean.shape)
  if part.shift is not None:
    mean = tf.maximum(mean + start - shift, 1.0)
  total_count = tfp.util.TransformedVariable(mean / excess, tfb.Exp())
  logits = part.trainable(tf.math.log(excess))
  surrogate = tfd.NegativeBinomial(total_count, logits=logits)
  is_shifted = start > 0.0 or part.shift is not None
  return tfb.Shift(shift)(surrogate) if is_shifted else surrogate


def _continuous(part: _Part, base: Distribution) -> Distribution:
  """Returns TFP's surrogate, a transformed normal."""
  d, bijector, cause = part.priors[0], None, None
  if isinstance(base, tfd.Deterministic | tfd.VectorDeterministic):
    return d  # There is nothing to fit; TFP's `tfb.Pad` fails with NumPy 2.4.
  try:
    if isinstance(base, tfd.Dirichlet | tfd.RelaxedOneHotCategorical):
      # TFP's default, `tfb.SoftmaxCentered`, fails with NumPy 2.4.
      bijector = tfb.IteratedSigmoidCentered()
    else:
      bijector = d.experimental_default_event_space_bijector()
  except (AttributeError, NotImplementedError, TypeError) as error:
    cause = error
  if bijector is None or not base.dtype.is_floating:
    raise ValueError(
      f'{part.name!r} must belong to a discrete family that has a surrogate, '
      'or have a default event-space bijector; got a '
      f'`{type(base).__name__}`. Pin it, or build the surrogate by hand.'
    ) from cause
  return tfp.experimental.vi.build_factored_surrogate_posterior(
    d.event_shape, bijector, d.batch_shape, dtype=d.dtype, seed=part.seed
  )


# The keys are the kinds of values of `Family.kind`.
_BUILDERS: dict[str, _Builder] = {
  'bits': _bernoulli,
  'successes': _binomial,
  'labels': _categorical,
  'paths': _paths,
  'vectors': _one_hot_categorical,
  'numbers': _finite_discrete,
  'counts': _counts,
  'ranks': functools.partial(_counts, start=1.0),
}
