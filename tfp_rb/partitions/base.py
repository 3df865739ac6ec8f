# SPDX-License-Identifier: Apache-2.0
"""Defines partitions of a distribution into its best values and the rest."""

from collections.abc import Callable
import copy
from typing import Any, NamedTuple, TypeVar

import numpy as np
import tensorflow as tf

from tfp_rb.internal import dtypes, random, shapes
from tfp_rb.internal.types import Integrand, StatelessSeed
from tfp_rb.partitions.relaxation import Relaxation

__all__ = ['Partition', 'SiteGroup']

# The largest support that `Partition.excluding` lists. For a larger support, a
# family must override this method.
_MOST_LISTED = 2**16


_Self = TypeVar('_Self', bound='Partition')


class Partition:
  """Holds the `k` most probable values, and draws from the rest.

  ```none
  sum(exp(log_weights)) + exp(log_rest) = 1
  ```

  The values and the rest are the set `C_k` and its complement in Equation (8)
  of the paper. The log-weights are constants: no gradient passes through them.
  A value of weight 0 is arbitrary; the library replaces it before your function
  sees it.

  A partition with `k = 0` stands for the whole distribution. Its methods
  `best(k)` and `excluding(values)` return other partitions of the same
  distribution, which share its tables. The families of this library are
  subclasses that turn uniforms into draws (`num_uniforms`,
  `rest_from_uniforms`).

  Attributes:
    values: `Tensor` of shape `[k] + batch_shape + event_shape`, distinct and in
      order, the most probable first. Of equally probable values, the lowest is
      first; in a chain, the first path in lexicographic order; in a product,
      the value that differs from the best one at later sites.
    log_weights: `Tensor` of shape `[k] + batch_shape`, `log q(value)`.
    log_rest: `Tensor` of `batch_shape`, log of the mass of all other values.
    batch_shape: List, the batch shape: a Python `int` for each dimension that
      is known statically, a scalar Tensor for the others.
    num_values: Python `int`, the size of the support (the largest in the
      batch), or `None` if it is infinite or not known statically.
    distribution: The distribution; `partition_of` sets it.
    num_uniforms: Python `int`, the number of uniforms per draw from the rest;
      `None` if the partition draws from a seed.
    num_sites: Python `int`, the number of variables of which a value consists:
      1, the number of factors of a product, or the number of steps of a chain;
      `None` if it is not known.
  """

  distribution: Any = None  # `partition_of` sets it.
  num_uniforms: int | None = None
  num_sites: int | None = 1
  # Whether `excluding` accepts values with a larger batch shape. The result
  # then has that batch shape.
  broadcasts: bool = False
  # Whether `best` costs much more than a draw, and `log_mode_weight` does not.
  is_search_costly: bool = False

  def __init__(
    self,
    values: tf.Tensor,
    log_weights: tf.Tensor,
    log_rest: tf.Tensor,
    sample_rest: Callable[[int, StatelessSeed], tf.Tensor] | None,
    num_values: int | None = None,
    log_prob: Integrand | None = None,
    score_norm: Integrand | None = None,
    excluding: Callable[[tf.Tensor], 'Partition'] | None = None,
  ) -> None:
    """Makes a partition from functions, for use in `RegisterPartition`.

    Args:
      values: See the attributes.
      log_weights: See the attributes.
      log_rest: See the attributes.
      sample_rest: Callable `(num_draws, seed)` that returns independent draws
        from `q` given that they are none of `values`, of shape
        `[num_draws] + batch_shape + event_shape`; `None` if no other value
        exists.
      num_values: See the attributes.
      log_prob: Callable that returns the differentiable `log q` of values of
        shape `[m] + batch_shape + event_shape`; `None` stands for `log_prob` of
        the distribution.
      score_norm: Callable that returns, for the same values, the squared norm
        of the score with respect to the natural parameter (logits, log-rate,
        ...), up to a constant factor; only `baselines.Optimal` requires it.
      excluding: Callable that splits the same distribution into given values,
        `[n] + batch_shape + event_shape`, and all others. A family with an
        infinite support needs it to sum given atoms and to draw without
        replacement.
    """
    self.values = values
    self.log_weights = log_weights
    self.log_rest = log_rest
    # `Sampled` and the first step of `RegisterPartition` have no Tensors yet.
    self.batch_shape = [] if log_rest is None else shapes.as_list(log_rest)
    self.num_values = num_values
    self.has_rest = sample_rest is not None
    self._sample_rest_fn: Any = sample_rest
    self._log_prob_fn = log_prob
    self._score_norm_fn = score_norm
    self._excluding_fn = excluding
    self._function: Any = None  # `RegisterPartition` sets it.

  def replace(self: _Self, **changes: Any) -> _Self:
    """Returns a copy with some attributes changed."""
    # The copy is shallow, so all partitions of a distribution share its tables.
    # The constructor would compute them again.
    result = copy.copy(self)
    vars(result).update(changes)
    return result

  def _replace(self, **changes: Any) -> 'Partition':
    """Returns a partition made from functions, some of which are replaced.

    Use it in `RegisterPartition` to derive a family from another one. It is
    named like a method of named tuples because a partition used to be one.

    Args:
      **changes: Arguments of `Partition`.

    Returns:
      partition: A `Partition`.
    """
    present = {
      'values': self.values,
      'log_weights': self.log_weights,
      'log_rest': self.log_rest,
      'sample_rest': self.sample_rest,
      'num_values': self.num_values,
      'log_prob': self.log_prob,
      'score_norm': self.score_norm,
      'excluding': self.excluding,
    }
    return Partition(**(present | changes))

  @property
  def weights(self) -> tf.Tensor:
    """`Tensor` of shape `[k] + batch_shape`, the probabilities of `values`."""
    return tf.exp(self.log_weights)

  @property
  def rest_weight(self) -> tf.Tensor:
    """`Tensor` of `batch_shape`, the probability of all other values."""
    return tf.exp(self.log_rest)

  @property
  def is_empty(self) -> bool:
    """Whether the batch has no members, as far as is known statically."""
    return self.log_rest.shape.num_elements() == 0

  @property
  def sample_rest(self) -> Callable[[int, StatelessSeed], tf.Tensor] | None:
    """Callable `(num_draws, seed)` that draws independently from the rest.

    The draws have shape `[num_draws] + batch_shape + event_shape`. If there is
    no rest, this property is `None`.
    """
    return self.draw_rest if self.has_rest else None

  def draw_rest(self, num_draws: int, seed: StatelessSeed) -> tf.Tensor:
    """Returns independent draws from the rest."""
    if self.num_uniforms is None:
      return self._sample_rest_fn(num_draws, seed)
    # The uniforms are float64 for every dtype of the parameters. In float32, a
    # value with less than 2^-24 of the mass would never be drawn.
    shape = [num_draws, *self.batch_shape, self.num_uniforms]
    return self.rest_from_uniforms(random.uniform(shape, seed))

  def rest_from_uniforms(self, u: tf.Tensor) -> tf.Tensor:
    """Turns uniforms into draws from the rest.

    Args:
      u: `float64` `Tensor` of shape `[n] + batch_shape + [num_uniforms]`,
        strictly between 0 and 1.

    Returns:
      values: `Tensor` of shape `[n] + batch_shape + event_shape`.
    """
    raise NotImplementedError(
      '`sampler` must be `samplers.IID()` if a partition draws from a seed, '
      f'like the partition of `{self.name}`; got a sampler that uses uniforms. '
      'Use `samplers.IID()`.'
    )

  @property
  def name(self) -> str:
    """The name of the class of the distribution."""
    return type(self.distribution).__name__

  def log_prob(self, values: tf.Tensor) -> tf.Tensor:
    """Returns the differentiable `log q`, `[m] + batch_shape`."""
    if self.distribution is not None and self.distribution.validate_args:
      # The distribution checks its parameters and the values, as in TFP.
      with tf.control_dependencies([self.distribution.log_prob(values)]):
        return tf.identity(self._log_prob(values))
    return self._log_prob(values)

  def _log_prob(self, values: tf.Tensor) -> tf.Tensor:
    log_prob = self._log_prob_fn or self.distribution.log_prob
    return log_prob(values)

  def log_prob_anywhere(self, values: tf.Tensor) -> tf.Tensor:
    """Returns `log q`, with `-inf` for values outside the support.

    `log_prob` looks up values without a check, because the values that it gets
    come from a partition.

    Args:
      values: `Tensor` of shape `[m] + batch_shape + event_shape`.

    Returns:
      log_prob: `Tensor` of shape `[m] + batch_shape`.
    """
    return self.log_prob(values)

  def log_table(self) -> tuple[Any, tf.Tensor] | None:
    """Returns the log-probabilities of all values, in a known order.

    Returns:
      table: A description of the values, equal for families that list the same
        values in the same order, and the differentiable `log q`, of shape
        `batch_shape + [K]`; or `None` if there is no table.
    """
    return None

  def expect_log_probs(
    self, other: 'Partition', scale: float, scale_of_other: float
  ) -> tf.Tensor | None:
    """Returns `E_q[scale log q(z) + scale_of_other log p(z)]` exactly.

    Args:
      other: The whole `Partition` of `p`, with a batch shape that broadcasts.
      scale: Python `float`.
      scale_of_other: Python `float`.

    Returns:
      expected: Differentiable `Tensor` of `batch_shape`, or `None` if no
        formula for the two families is known.
    """
    table, table_of_other = self.log_table(), other.log_table()
    if table is None or table_of_other is None or table[0] != table_of_other[0]:
      return None
    dtype = dtypes.widest([table[1], table_of_other[1]])
    log_q, log_p = (tf.cast(x, dtype) for x in (table[1], table_of_other[1]))
    # An impossible value contributes 0. Mask the logarithms and not their sum,
    # to keep NaN out of the gradients.
    is_possible = log_q > -np.inf
    log_q, log_p = (
      tf.where(is_possible, x, tf.zeros_like(x)) for x in (log_q, log_p)
    )
    terms = tf.zeros_like(log_q)
    if scale:
      terms += scale * log_q
    if scale_of_other:
      terms += scale_of_other * log_p
    probs = tf.where(is_possible, tf.exp(log_q), tf.zeros_like(log_q))
    return tf.reduce_sum(probs * terms, axis=-1)

  def nearest(self, values: tf.Tensor) -> tf.Tensor:
    """Returns the possible value that is nearest to each given one, if known.

    `tfb.Shift` rounds, so a value that is shifted forth and back may change.

    Args:
      values: `Tensor` of shape `[n] + batch_shape + event_shape`.

    Returns:
      nearest: `Tensor` of the same shape.
    """
    return values

  def score_norm(self, values: tf.Tensor) -> tf.Tensor:
    """Returns the squared norm of the score, up to a constant factor."""
    if self._score_norm_fn is None:
      raise NotImplementedError(
        'The partition must have `score_norm` for `baselines.Optimal`; got a '
        f'partition of `{self.name}` without it. Add it to the `Partition` '
        'that you register, or use `baselines.LeaveOneOut`.'
      )
    return self._score_norm_fn(values)

  def best(self, num_summed: int) -> 'Partition':
    """Splits off the `num_summed` best values, or all if there are fewer."""
    # The families of this library override this method.
    return self._of_user(self._function(self.distribution, num_summed))

  def _of_user(self, result: Any) -> 'Partition':
    """Checks and completes the result of a user's function."""
    if not isinstance(result, Partition):
      raise TypeError(
        f'`{self._function.__name__}`, registered for `{self.name}`, must '
        f'return a `tfp_rb.Partition`; got {result!r}.'
      )
    return result.replace(
      distribution=self.distribution, _function=self._function
    )

  def log_mode_weight(self) -> tf.Tensor:
    """Returns the log-probability of the best value, `batch_shape`."""
    return self.best(1).log_weights[0]

  def excluding(self, values: tf.Tensor) -> 'Partition':
    """Splits the support into the given values and the rest.

    Args:
      values: `Tensor` of shape `[n] + batch_shape + event_shape`. A repeated
        value is excluded once, but each copy is listed with its full weight.

    Returns:
      partition: A `Partition` with these values.
    """
    if self._excluding_fn is not None:
      return self._of_user(self._excluding_fn(values))
    # Without `excluding`, the rest can only be drawn from a list of all values.
    if self.num_values is None or self.num_values > _MOST_LISTED:
      found = 'infinitely many' if self.num_values is None else self.num_values
      raise NotImplementedError(
        'The partition must have `excluding` to exclude values other than the '
        f'best; got a partition of `{self.name}` without it, and its {found} '
        'values are too many to list. Add it to the `Partition` that you '
        'register, or use `num_summed` and `samplers.IID()`.'
      )
    # `Listed` derives from this class, so an import above would be circular.
    from tfp_rb.partitions.restricted import Listed

    return Listed(self.best(self.num_values), values)

  def truncated(self, num_summed: tf.Tensor) -> 'Partition':
    """Returns a partition that sums fewer values; the number varies by row.

    Args:
      num_summed: `int32` `Tensor` of `batch_shape`, the number of `values` that
        are summed. The other values belong to the rest.

    Returns:
      partition: A `Partition` with the same `values`. Those that are not summed
        have weight 0.
    """
    from tfp_rb.partitions.restricted import Truncated

    return Truncated(self, num_summed)

  def mean(self) -> tf.Tensor:
    """Returns the differentiable mean, `batch_shape + event_shape`."""
    return tf.convert_to_tensor(self.distribution.mean())

  def relaxation(self) -> Relaxation | None:
    """Returns the relaxed form, or `None` if there is none."""
    return None

  def sites(self) -> 'list[SiteGroup]':
    """Returns the groups of independent sites; `[]` for a single site."""
    return []

  def conditional_sites(self, joint: tf.Tensor) -> 'list[SiteGroup]':
    """Returns the groups of sites that depend on each other.

    The weights of a site are its probabilities given all other sites. Its
    `log_prob` is the factor of the site given the earlier sites alone, because
    the sum of these factors is the log-probability of the joint value.

    Args:
      joint: `Tensor` of shape `[1] + batch_shape + event_shape`, the values of
        the other sites.

    Returns:
      groups: List of `SiteGroup`s; `[]` if there are none.
    """
    del joint
    return []


class SiteGroup(NamedTuple):
  """Holds `S` independent sites of a product that have the same family.

  Attributes:
    partition: Whole `Partition` of the sites, with batch shape
      `batch_shape + [S]`.
    extract: Callable that maps joint values `[n] + batch_shape + event_shape`
      to the values of the sites, `[n] + batch_shape + [S] + site_event_shape`.
    insert: Callable that takes joint values and values of the sites. It returns
      the joint values with the sites of this group replaced.
  """

  partition: Partition
  extract: Callable[[tf.Tensor], tf.Tensor]
  insert: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
