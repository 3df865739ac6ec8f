"""What a partition is, and the registry that finds one for a distribution."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb import _checks
from tfp_rb._types import Distribution, Integrand, StatelessSeed, do_not_convert

__all__ = ['Partition', 'RegisterPartition', 'find_partition', 'partition']

tfd = tfp.distributions

_REGISTRY = {}


class Partition(NamedTuple):
  """The `k` most probable values of a distribution, and a way to draw the rest.

  ```none
  sum(exp(log_weights)) + exp(log_rest) = 1
  ```

  The log-weights are constants: no gradient passes through them. A value of
  weight 0 may be anything; it is replaced before a user's function sees it.

  Attributes:
    values: `Tensor` of shape `[k] + batch_shape + event_shape`: distinct, most
      probable first. Ties go to the lowest value; in a product, to the one that
      departs from the best value at the later sites.
    log_weights: `Tensor` of shape `[k] + batch_shape`, `log q(value)`.
    log_rest: `Tensor` of `batch_shape`, log of the mass of all other values.
    sample_rest: Callable `(num_draws, seed) -> values` of shape
      `[num_draws] + batch_shape + event_shape`, independent draws from `q`
      given that none of `values` is drawn; `None` if no other value exists.
    num_values: Python `int`, the size of the support (the largest in the
      batch), or `None` where it is infinite or not known statically.
    log_prob: Callable, the differentiable `log q` of values of shape
      `[m] + batch_shape + event_shape`; `None` stands for the distribution's.
    score_norm: Callable, the squared norm of the score with respect to the
      natural parameter (logits, log-rate, ...), up to a constant factor, of
      the same values; needed by `baselines.Optimal` only.
    excluding: Callable, the partition of the same distribution into given
      values, `[n] + batch_shape + event_shape`, and all others; needed for a
      set other than the best, and to draw without replacement, where the
      support is not finite.
  """

  values: tf.Tensor
  log_weights: tf.Tensor
  log_rest: tf.Tensor
  sample_rest: Callable[[int, StatelessSeed], tf.Tensor] | None
  num_values: int | None = None
  log_prob: Integrand | None = None
  score_norm: Integrand | None = None
  excluding: Callable[[tf.Tensor], Any] | None = None  # to a `Partition`

  @property
  def weights(self) -> tf.Tensor:
    """`Tensor` of shape `[k] + batch_shape`, the probabilities of `values`."""
    return tf.exp(self.log_weights)

  @property
  def rest_weight(self) -> tf.Tensor:
    """`Tensor` of `batch_shape`, the probability of all other values."""
    return tf.exp(self.log_rest)


_Function = TypeVar('_Function', bound=Callable[[Distribution, int], Partition])


class RegisterPartition:
  """Decorator that registers how a class of distributions is partitioned.

  The decorated function takes a distribution and a Python `int` `num_summed`
  and returns a `Partition` of the `num_summed` most probable values, or of all
  where the support has fewer. It serves the subclasses of the class, too.

  #### Examples

  ```python
  class Vote(tfp.distributions.Multinomial):  # which has no partition
    pass

  @tfp_rb.RegisterPartition(Vote)
  def partition_vote(q, num_summed):
    index = tfp_rb.partition(
        tfp.distributions.Categorical(logits=q.logits), num_summed)
    vector = lambda z: tf.one_hot(z, q.logits.shape[-1], dtype=q.dtype)
    return tfp_rb.Partition(
        values=vector(index.values),
        log_weights=index.log_weights,
        log_rest=index.log_rest,
        sample_rest=lambda n, seed: vector(index.sample_rest(n, seed)))

  q = Vote(total_count=1., logits=[0., 2., 1.])  # one trial: one-hot
  tfp_rb.partition(q, 1).values  # ==> [[0. 1. 0.]]
  ```
  """

  def __init__(self, distribution_class: type[Distribution]) -> None:
    """Names the class to register for.

    Args:
      distribution_class: A subclass of `tfp.distributions.Distribution`.

    Raises:
      TypeError: `distribution_class` is not a class of distributions.
      ValueError: The class has a partition already.
    """
    is_class = isinstance(distribution_class, type)
    if not is_class or not issubclass(distribution_class, tfd.Distribution):
      raise TypeError(
        '`distribution_class` must be a class of distributions, but is '
        f'{distribution_class!r}. Write `@RegisterPartition(tfd.Categorical)`.'
      )
    distribution_class = _checks.plain_class(distribution_class)
    if distribution_class in _REGISTRY:
      raise ValueError(
        f'`{distribution_class.__name__.lstrip("_")}` has a partition already, '
        f'`{_REGISTRY[distribution_class].__name__}`. Register a subclass '
        'instead.'
      )
    self._distribution_class = distribution_class

  def __call__(self, function: _Function) -> _Function:
    """Registers `function` and returns it unchanged."""
    if not callable(function):
      raise TypeError(
        '`RegisterPartition` must decorate a function '
        f'`(distribution, num_summed) -> Partition`, but got {function!r}.'
      )
    _REGISTRY[self._distribution_class] = function
    return function


def registered_function(distribution):
  """The function registered for the nearest class in the MRO, or `None`."""
  for kind in type(distribution).__mro__:
    if kind in _REGISTRY:
      return _REGISTRY[kind]
  return None


def find_partition(distribution, num_summed):
  """As `partition`, but returns fewer values where the support has fewer.

  Args:
    distribution: A discrete `tfp.distributions.Distribution`.
    num_summed: Python `int`.

  Returns:
    partition: A `Partition`, its `log_prob` filled in.
  """
  function = registered_function(distribution)
  if function is None:
    kind = type(distribution).__name__
    known = ', '.join(sorted(c.__name__.lstrip('_') for c in _REGISTRY))
    raise NotImplementedError(
      f'No partition is registered for `{kind}`, so its most probable values '
      'cannot be summed. Decorate a function with '
      f'`@tfp_rb.RegisterPartition({kind})` that takes the distribution and '
      '`num_summed` and returns a `tfp_rb.Partition`; or only draw, with '
      '`num_summed=0` or by `tfp_rb.REINFORCE(num_samples=...)`, which needs '
      f'`sample` and `log_prob` alone. Registered: {known}.'
    )
  result = function(distribution, num_summed)
  if not isinstance(result, Partition):
    raise TypeError(
      f'`{function.__name__}`, registered for `{type(distribution).__name__}`, '
      f'must return a `tfp_rb.Partition`, but returned {result!r}.'
    )
  if result.log_prob is None:
    return result._replace(log_prob=distribution.log_prob)
  if distribution.validate_args:
    return result._replace(log_prob=_validated(distribution, result.log_prob))
  return result


def _validated(distribution, log_prob):
  """Lets the distribution check itself and the values, as TFP would."""

  def validated(values):
    with tf.control_dependencies([distribution.log_prob(values)]):
      return tf.identity(log_prob(values))

  return validated


@do_not_convert
def partition(distribution: Distribution, num_summed: int) -> Partition:
  """Splits the support of `distribution` into its `k` best values and the rest.

  The `k` most probable values are found exactly and without enumerating the
  support where that is large or infinite; the rest is drawn exactly and
  without rejection.

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
  _checks.check_discrete(distribution)
  num_summed = _checks.check_int(num_summed, 'num_summed', minimum=0)
  result = find_partition(distribution, num_summed)
  if result.values.shape[0] < num_summed:
    found = result.values.shape[0]
    raise ValueError(
      '`num_summed` must be at most the number of values of the distribution, '
      f'{found}, but is {num_summed}. Use `num_summed={found}` or '
      '`tfp_rb.Exact()` to sum all.'
    )
  return result
