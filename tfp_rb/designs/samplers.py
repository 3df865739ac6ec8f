# SPDX-License-Identifier: Apache-2.0
"""Defines the samplers, which draw from the rest of a partition."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs import subsets
from tfp_rb.internal import random, shapes
from tfp_rb.internal.config import Configurable
from tfp_rb.internal.types import Distribution, StatelessSeed
from tfp_rb.partitions import Partition

__all__ = [
  'Antithetic',
  'Draws',
  'IID',
  'Sampler',
  'Stratified',
  'WithoutReplacement',
  'check_sampler',
]


class Draws(NamedTuple):
  """Holds draws from the rest, and the weights that average over them.

  Attributes:
    values: `Tensor` of shape `[M] + batch_shape + event_shape`.
    shares: `Tensor` of shape `[M] + batch_shape`, constants that sum to 1. The
      estimate of the mean of `x` over the rest is `sum_j shares[j] x[j]`.
    mean_of_others: Callable as in `Atoms`, but for the draws alone. It is
      `None` if the draws are independent.
  """

  values: tf.Tensor
  shares: tf.Tensor
  mean_of_others: Callable[[tf.Tensor], tf.Tensor] | None = None


class Sampler(Configurable, metaclass=abc.ABCMeta):
  """Base class of the samplers.

  #### Examples

  ```python
  estimator = tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(num_samples=3), num_summed=1,
      sampler=tfp_rb.samplers.WithoutReplacement())
  isinstance(estimator.sampler, tfp_rb.samplers.Sampler)  # ==> True
  ```
  """

  is_independent = False  # whether the draws are independent

  def check(self, num_draws: int) -> None:
    """Raises `ValueError` if the sampler cannot make this many draws."""
    del num_draws

  @abc.abstractmethod
  def draw(
    self,
    distribution: Distribution,
    partition: Partition,
    num_draws: int,
    seed: StatelessSeed,
  ) -> Draws:
    """Draws from the rest of a partition.

    Args:
      distribution: The distribution.
      partition: A `Partition` of it.
      num_draws: Python `int`.
      seed: Stateless seed, `int32[2]`.

    Returns:
      draws: `Draws`.
    """


def check_sampler(sampler: Any) -> None:
  """Raises `TypeError` unless an argument is a `Sampler`."""
  if not isinstance(sampler, Sampler):
    raise TypeError(
      f'`sampler` must be one of `tfp_rb.samplers`; got {sampler!r}. Write, '
      'for example, `tfp_rb.samplers.WithoutReplacement()`.'
    )


class IID(Sampler):
  """Draws independently, which is the default.

  This sampler is unbiased with every estimator and every baseline.

  #### Examples

  ```python
  tfp_rb.samplers.IID()  # ==> IID()
  ```
  """

  is_independent = True

  def draw(
    self,
    distribution: Distribution,
    partition: Partition,
    num_draws: int,
    seed: StatelessSeed,
  ) -> Draws:
    del distribution
    values = partition.draw_rest(num_draws, seed)
    return Draws(values, _equal_shares(partition, num_draws))


class Antithetic(Sampler):
  """Draws in pairs: one draw from the uniforms `u`, the other from `1 - u`.

  The first `ceil(M / 2)` draws come from independent uniforms. Draw
  `ceil(M / 2) + i` uses one minus the uniforms of draw `i`. In a product, every
  site has its own uniforms. Each draw alone follows `q` given the rest, so this
  sampler is unbiased with every estimator, and with every baseline except
  `Optimal`. `LeaveOneOut` then averages over the draws of the other pairs, so
  it needs at least three draws.

  Antithetic draws help if `f` is nearly monotone in each uniform: the errors of
  a pair then cancel in the value. In the gradient they may not cancel, because
  the score changes its sign as well. For bits, use `tfp_rb.DisARM`, whose
  gradient is designed for such pairs.

  #### Examples

  ```python
  estimator = tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(num_samples=2), num_summed=0,
      sampler=tfp_rb.samplers.Antithetic())
  q = tfp.distributions.Sample(tfp.distributions.Bernoulli(logits=0.), 5)
  first, second = estimator.sample_atoms(q, seed=[0, 1]).values
  first + second  # ==> [1 1 1 1 1]
  ```

  #### References

  [1] Art B. Owen. _Monte Carlo theory, methods and examples_, 2013, section
      8.2. https://artowen.su.domains/mc/
  """

  def draw(
    self,
    distribution: Distribution,
    partition: Partition,
    num_draws: int,
    seed: StatelessSeed,
  ) -> Draws:
    num_uniforms = _num_uniforms(self, distribution, partition)
    num_pairs = -(-num_draws // 2)  # rounded up
    shape = [num_pairs, *partition.batch_shape, num_uniforms]
    u = random.uniform(shape, seed)
    # `1 - u` is exact, and neither 0 nor 1 can occur.
    opposite = (1.0 - u)[: num_draws - num_pairs]
    values = partition.rest_from_uniforms(tf.concat([u, opposite], axis=0))

    def mean_of_others(x: tf.Tensor) -> tf.Tensor:
      pair = np.arange(num_draws) % num_pairs
      others = pair[:, np.newaxis] != pair  # [M, M]
      if not np.all(np.any(others, axis=1)):
        raise ValueError(
          '`num_samples` must be at least 3 for `baselines.LeaveOneOut` with '
          f'`samplers.Antithetic()`; got {num_draws}, a single pair, whose '
          'draws depend on each other. Increase it, or use `tfp_rb.DisARM`.'
        )
      weights = others / np.sum(others, axis=1, keepdims=True)
      return tf.einsum('ij,j...->i...', tf.constant(weights, x.dtype), x)

    return Draws(
      values,
      _equal_shares(partition, num_draws),
      mean_of_others if num_draws > 1 else None,
    )


class Stratified(Sampler):
  """Draws one value from each of `M` equal shares of the mass of the rest.

  This sampler is unbiased with every estimator, and with every baseline except
  `LeaveOneOut` and `Optimal`, which need the mean over the other draws given
  one of them. Each draw alone follows `q` given the rest. Some families make a
  draw from several uniforms (one for a block and one for a place in it, or one
  for each site of a product). Each of these uniforms is stratified, in its own
  random order. The variance can then exceed that of independent draws, by a
  factor of at most `M / (M - 1)`. With a single uniform per draw, the variance
  never exceeds that of independent draws.

  #### Examples

  ```python
  estimator = tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(num_samples=4), num_summed=0,
      sampler=tfp_rb.samplers.Stratified())
  q = tfp.distributions.Categorical(logits=tf.zeros([4]))
  atoms = estimator.sample_atoms(q, seed=[0, 1])
  tf.sort(atoms.values)  # ==> [0 1 2 3]
  ```

  #### References

  [1] Art B. Owen. _Monte Carlo theory, methods and examples_, 2013, sections
      8.4 and 10.3. https://artowen.su.domains/mc/
  """

  def draw(
    self,
    distribution: Distribution,
    partition: Partition,
    num_draws: int,
    seed: StatelessSeed,
  ) -> Draws:
    num_uniforms = _num_uniforms(self, distribution, partition)
    shape = [num_draws, *partition.batch_shape, num_uniforms]
    values = partition.rest_from_uniforms(
      random.stratified_uniform(shape, seed)
    )

    # Raise only when a baseline needs this mean: other baselines work.
    def mean_of_others(x: tf.Tensor) -> tf.Tensor:
      raise ValueError(
        '`sampler` must draw independently or without replacement with '
        '`baselines.LeaveOneOut`; got `samplers.Stratified()`, whose draws '
        'depend on each other. Use another baseline, e.g. '
        '`baselines.IndependentSample()`, or another sampler.'
      )

    return Draws(
      values,
      _equal_shares(partition, num_draws),
      # A single draw is independent, because there is no other draw.
      mean_of_others if num_draws > 1 else None,
    )


class WithoutReplacement(Sampler):
  """Draws distinct values, weighted so that their order does not matter.

  ```none
  share of s = probability that s was drawn first, given the set of all draws
  ```

  This sampler is unbiased with every estimator and every baseline except
  `Optimal`. The variance is never larger than that of a single draw. With
  `num_summed=0` this is the unordered set estimator of [1], and
  `baselines.LeaveOneOut()` is its built-in baseline; `num_summed=k` adds the
  summed atoms. `f` is never evaluated twice at the same value. This sampler
  helps most if the rest is spread over few values, and makes no difference if
  the rest is spread over very many.

  The shares need a recursion over all subsets of the draws, so you can draw at
  most 8 values.

  #### Examples

  ```python
  estimator = tfp_rb.rao_blackwellize(
      tfp_rb.REINFORCE(baseline=tfp_rb.baselines.LeaveOneOut(),
                       num_samples=3), num_summed=0,
      sampler=tfp_rb.samplers.WithoutReplacement())
  q = tfp.distributions.Categorical(logits=[0., 0., 0.])
  atoms = estimator.sample_atoms(q, seed=[0, 1])
  tf.sort(atoms.values)  # ==> [0 1 2]
  atoms.weights          # ==> [0.3333 0.3333 0.3333]
  ```

  #### References

  [1] Wouter Kool, Herke van Hoof, Max Welling. Estimating gradients for
      discrete random variables by sampling without replacement. ICLR 2020.
      https://arxiv.org/abs/2002.06043
  """

  def check(self, num_draws: int) -> None:
    if num_draws > subsets.MOST_DRAWS:
      raise ValueError(
        f'`num_samples` must be at most {subsets.MOST_DRAWS} without '
        'replacement, because the weights need a recursion over all subsets; '
        f'got {num_draws}. Draw fewer values, or use `samplers.IID()`.'
      )

  def draw(
    self,
    distribution: Distribution,
    partition: Partition,
    num_draws: int,
    seed: StatelessSeed,
  ) -> Draws:
    self.check(num_draws)
    num_summed, num_values = partition.values.shape[0], partition.num_values
    is_limited = num_values is not None and not partition.is_empty
    if is_limited and num_summed + num_draws > num_values:
      raise ValueError(
        f'`num_samples` must be at most {num_values - num_summed} without '
        f'replacement, because the distribution has {num_values} values and '
        f'{num_summed} are summed; got {num_draws}. Draw fewer values, or sum '
        'all of them.'
      )
    rest, is_possible = _draw_distinct(partition, num_draws, seed)
    values = rest.values[num_summed:]  # [M] + batch_shape + event_shape
    # Divide by the mass of the rest, to get the probabilities `p` of the first
    # draw.
    log_rest = partition.log_rest
    log_probs = tf.where(
      is_possible,
      tf.stop_gradient(partition.log_prob(values)) - log_rest,
      tf.constant(-np.inf, log_rest.dtype),
    )  # [M] + batch_shape
    shares, others = subsets.leave_one_out_weights(
      log_probs, rest.log_rest - log_rest
    )

    def mean_of_others(x: tf.Tensor) -> tf.Tensor:
      # Normalise in the dtype of `x`. Otherwise the weights sum to 1 only in
      # their own, narrower dtype, and a large offset of `x` would cost digits.
      own = tf.cast(others, x.dtype)
      own = tf.math.divide_no_nan(
        own, tf.reduce_sum(own, axis=1, keepdims=True)
      )
      # [M, M] + batch_shape times [M] + batch_shape.
      return tf.reduce_sum(own * x, axis=1)

    return Draws(values, shares, mean_of_others if num_draws > 1 else None)


def _draw_distinct(
  partition: Partition, num_draws: int, seed: StatelessSeed
) -> tuple[Partition, tf.Tensor]:
  """Draws from the rest, excluding each value once it is drawn.

  Args:
    partition: A `Partition`.
    num_draws: Python `int` `M`.
    seed: Stateless seed, `int32[2]`.

  Returns:
    rest: The `Partition` that lists the values of `partition` and then the
      draws; its rest is what remains.
    is_possible: Boolean `Tensor` of shape `[M] + batch_shape`, `False` where
      nothing was left to draw.
  """
  rest, is_possible = partition, []
  has_weight = shapes.with_event_rank(
    partition.log_weights > -np.inf, partition.values
  )
  taken = None
  for draw_seed in random.split_seed(seed, n=num_draws):
    # A row whose rest is empty draws an arbitrary value, which gets weight 0.
    is_possible.append(rest.rest_weight > 0.0)
    value = rest.draw_rest(1, draw_seed)
    if taken is None:
      # A listed value without weight is arbitrary and may be part of the rest.
      # Put the first draw in its place, because that draw is excluded anyway.
      taken = tf.where(has_weight, partition.values, value)
    taken = tf.concat([taken, value], axis=0)
    rest = partition.excluding(taken)
  return rest, tf.stack(is_possible)


def _num_uniforms(
  sampler: Sampler, distribution: Distribution, partition: Partition
) -> int:
  """Returns the number of uniforms per draw, or raises if there are none."""
  if partition.num_uniforms is None:
    raise NotImplementedError(
      f'`samplers.{type(sampler).__name__}` requires a partition that draws '
      f'from uniforms; the partition of `{type(distribution).__name__}` draws '
      'from a seed. Use `samplers.IID()`.'
    )
  return partition.num_uniforms


def _equal_shares(partition: Partition, num_draws: int) -> tf.Tensor:
  share = tf.constant(1.0 / num_draws, partition.log_rest.dtype)
  return tf.fill([num_draws, *partition.batch_shape], share)
