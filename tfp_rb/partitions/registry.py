# SPDX-License-Identifier: Apache-2.0
"""Finds the partition of a distribution by its class."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import checks
from tfp_rb.internal.types import Distribution, do_not_convert
from tfp_rb.partitions.base import Partition

__all__ = [
  'Family',
  'NotRegisteredError',
  'RegisterPartition',
  'Sampled',
  'check_discrete',
  'check_num_summed',
  'family_of',
  'partition',
  'partition_of',
  'plain_class',
  'register',
]

tfd = tfp.distributions


class Sampled(Partition):
  """Represents a distribution without a partition, which allows only draws."""

  num_sites = None

  def __init__(self, distribution: Distribution, error: Exception) -> None:
    self.distribution = distribution
    # The error says how to register a partition. It is raised only if an
    # estimator asks for more than draws.
    self._error = error
    super().__init__(
      values=None,
      log_weights=None,
      log_rest=None,
      sample_rest=lambda n, seed: tf.stop_gradient(
        distribution.sample(n, seed=seed)
      ),
    )

  def best(self, num_summed: int) -> 'Partition':
    raise self._error

  def excluding(self, values: tf.Tensor) -> 'Partition':
    raise self._error

  def score_norm(self, values: tf.Tensor) -> tf.Tensor:
    raise self._error


class NotRegisteredError(NotImplementedError):
  """Raised for a distribution without a registered partition."""


class Family(NamedTuple):
  """Holds the registration of a class of distributions.

  Attributes:
    whole: Callable that maps a distribution to its whole `Partition`; `None` if
      only the kind is known.
    kind: Python `str`, the kind of values: 'bits', 'labels', 'vectors' (one
      of `K` unit vectors), 'numbers' (a finite set), 'successes' (0 to a known
      count), 'counts' (0, 1, ...), 'ranks' (1, 2, ...), 'paths' (of states),
      'parts' (several of these), 'wrapped' (those of the wrapped
      `distribution`) or 'transformed'. `None` if unknown.
    is_of_user: Python `bool`, whether `RegisterPartition` registered it.
  """

  whole: Callable[[Distribution], Partition] | None
  kind: str | None = None
  is_of_user: bool = False


# The modules of this package fill the registry when they are imported, and
# users add to it with `RegisterPartition`. Nothing else changes it.
_REGISTRY: dict[type, Family] = {}
_UNKNOWN = Family(None)


def plain_class(kind: type) -> type:
  """Returns the class under which a class of distributions is registered.

  A wrapper of TFP such as `tfd.Independent` returns an instance of its private
  base class `_Independent` if the distribution inside is not a
  `CompositeTensor`, for example because a user defined it.

  Args:
    kind: A class of distributions.

  Returns:
    kind: The private base class if there is one, else the class itself.
  """
  base = kind.__mro__[1]
  return base if base.__name__ == f'_{kind.__name__}' else kind


def register(distribution_class: type, kind: str) -> Callable[[Any], Any]:
  """Returns a decorator that registers a family of this library."""

  def decorate(whole: Any) -> Any:
    _REGISTRY[plain_class(distribution_class)] = Family(whole, kind)
    return whole

  return decorate


_Function = TypeVar('_Function', bound=Callable[[Any, int], Partition])


class RegisterPartition:
  """Decorates a function that partitions a class of distributions.

  The decorated function takes a distribution and a Python `int` `num_summed`
  and returns a `Partition` with the `num_summed` most probable values, or with
  all values if there are fewer. Subclasses of the class inherit the partition.

  #### Examples

  ```python
  class Vote(tfp.distributions.Multinomial):  # which has no partition
    pass

  @tfp_rb.RegisterPartition(Vote)
  def partition_vote(q, num_summed):
    num_values = q.logits.shape[-1]
    index = tfp_rb.partition(
        tfp.distributions.Categorical(logits=q.logits),
        min(num_summed, num_values))
    vector = lambda z: tf.one_hot(z, num_values, dtype=q.dtype)
    sample_rest = lambda n, seed: vector(index.sample_rest(n, seed))
    return tfp_rb.Partition(
        values=vector(index.values),
        log_weights=index.log_weights,
        log_rest=index.log_rest,
        sample_rest=None if index.sample_rest is None else sample_rest,
        num_values=num_values)

  q = Vote(total_count=1., logits=[0., 2., 1.])  # one trial: one-hot
  tfp_rb.partition(q, 1).values  # ==> [[0. 1. 0.]]
  ```
  """

  def __init__(self, distribution_class: type[Distribution]) -> None:
    """Takes the class to register.

    Args:
      distribution_class: A subclass of `tfp.distributions.Distribution`.

    Raises:
      TypeError: `distribution_class` is not a class of distributions.
      ValueError: The class has a partition already.
    """
    is_class = isinstance(distribution_class, type)
    if not is_class or not issubclass(distribution_class, tfd.Distribution):
      raise TypeError(
        '`distribution_class` must be a class of distributions; got '
        f'{distribution_class!r}. Write `@RegisterPartition(tfd.Categorical)`.'
      )
    distribution_class = plain_class(distribution_class)
    if _REGISTRY.get(distribution_class, _UNKNOWN).whole is not None:
      raise ValueError(
        '`distribution_class` must not have a partition yet; got '
        f'`{distribution_class.__name__.lstrip("_")}`, which has one. Register '
        'a subclass instead.'
      )
    self._distribution_class = distribution_class

  def __call__(self, function: _Function) -> _Function:
    """Registers `function` and returns it unchanged."""
    checks.check_callable(
      function, 'function', 'def f(distribution, num_summed)'
    )

    def whole(distribution: Distribution) -> Partition:
      # `best` needs a partition that knows the distribution and the function.
      empty = Partition(None, None, None, None).replace(
        distribution=distribution, _function=function
      )
      return empty.best(0)

    # The kind may be known already; see `kinds.py`.
    known = _REGISTRY.get(self._distribution_class, _UNKNOWN)
    _REGISTRY[self._distribution_class] = Family(whole, known.kind, True)
    return function


def family_of(distribution: Distribution) -> Family | None:
  """Returns the `Family` of the nearest class in the MRO, or `None`."""
  # A subclass, for example one that a user defines, inherits the partition.
  for kind in type(distribution).__mro__:
    if kind in _REGISTRY:
      return _REGISTRY[kind]
  return None


def partition_of(distribution: Distribution) -> Partition:
  """Returns the whole partition of a distribution.

  Args:
    distribution: A discrete `tfp.distributions.Distribution`.

  Returns:
    whole: A `Partition` with `k = 0`.

  Raises:
    NotRegisteredError: No partition is registered for the distribution.
  """
  family = family_of(distribution)
  if family is None or family.whole is None:
    kind = type(distribution).__name__
    known = ', '.join(
      sorted(c.__name__.lstrip('_') for c, f in _REGISTRY.items() if f.whole)
    )
    if isinstance(distribution, tfd.JointDistribution):
      raise NotRegisteredError(
        f'`distribution` must be a single distribution; got a `{kind}`. Pass '
        "one of its parts, for example `q.model['z']`, or use `tfp_rb.vi`."
      )
    raise NotRegisteredError(
      '`distribution` must have a registered partition, so that its most '
      f'probable values can be summed; got `{kind}`. Decorate a function with '
      f'`@tfp_rb.RegisterPartition({kind})` that takes the distribution and '
      '`num_summed` and returns a `tfp_rb.Partition`. To sample without a '
      'partition, use `num_summed=0` or `tfp_rb.REINFORCE(num_samples=...)`, '
      'which requires only `sample` and `log_prob`. Registered distributions: '
      f'{known}.'
    )
  whole = family.whole(distribution)
  whole.distribution = distribution
  return whole


def check_discrete(distribution: Any) -> None:
  """Raises unless `distribution` is a TFP distribution that may be discrete."""
  if not isinstance(distribution, tfd.Distribution):
    raise TypeError(
      '`distribution` must be a `tfp.distributions.Distribution`; got '
      f'{distribution!r}. Pass the distribution itself, e.g. '
      '`tfd.Categorical(logits=logits)`.'
    )
  # TFP has no flag for discrete distributions, but a reparameterized one is
  # certainly continuous.
  reparameterized = tfd.FULLY_REPARAMETERIZED
  if distribution.reparameterization_type == reparameterized:
    raise TypeError(
      '`distribution` must be discrete; got the continuous and '
      f'reparameterizable `{type(distribution).__name__}`. Use '
      '`tfp.monte_carlo.expectation` for it.'
    )


@do_not_convert
def partition(distribution: Distribution, num_summed: int) -> Partition:
  """Splits the support of `distribution` into its `k` best values and the rest.

  The `k` most probable values are exact, and a large or infinite support is not
  enumerated. Draws from the rest are exact and need no rejection.

  Masses are computed in float32 or wider, even for parameters in half
  precision. Values have the dtype of the distribution. If the number of values
  shows that this dtype cannot hold them, as for 300 classes in `uint8`,
  `partition` raises a `ValueError`. Other values that the dtype cannot hold are
  rounded, as for `Poisson(1e9)` or a shift of 1e8 in float32. Build the
  distribution with `validate_args=True` to get an error instead.

  A draw uses uniforms with 52 random bits, regardless of the dtype of the
  parameters. So a value can be drawn if it holds more than 2^-52 of the mass of
  the rest.

  Args:
    distribution: A discrete `tfp.distributions.Distribution` with a registered
      partition.
    num_summed: Python `int` `k >= 0`, at most the number of values.

  Returns:
    partition: A `Partition`.

  Raises:
    TypeError: `distribution` is not a discrete distribution, or `num_summed`
      is not an `int`.
    ValueError: `num_summed` is negative or exceeds the number of values.
    NotImplementedError: No partition is registered for the distribution.

  #### Examples

  ```python
  q = tfp.distributions.Poisson(rate=3.5)
  p = tfp_rb.partition(q, num_summed=3)
  p.values       # ==> [3. 4. 2.]
  p.weights      # ==> [0.2158 0.1888 0.185 ]
  p.rest_weight  # ==> 0.4104
  ```
  """
  check_discrete(distribution)
  num_summed = checks.check_int(num_summed, 'num_summed', minimum=0)
  return check_num_summed(
    partition_of(distribution).best(num_summed), num_summed
  )


def check_num_summed(result: Partition, num_summed: int) -> Partition:
  """Returns `result`, or raises if it has fewer than `num_summed` values."""
  found = result.values.shape[0]
  # For an empty batch, the number of values may be unknown and is irrelevant.
  if found < num_summed and not result.is_empty:
    raise ValueError(
      '`num_summed` must be at most the number of values of the distribution, '
      f'{found}; got {num_summed}. Use `num_summed={found}` or '
      '`tfp_rb.Exact()` to sum all of them.'
    )
  return result
