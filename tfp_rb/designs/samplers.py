"""How the rest is drawn: independently, stratified, or without replacement."""

import abc
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfp_rb.designs import subsets
from tfp_rb.internal import random, shapes
from tfp_rb.internal.config import Configurable
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed
from tfp_rb.partitions import Partition

__all__ = [
  'Draws',
  'IID',
  'Sampler',
  'Stratified',
  'WithoutReplacement',
  'check_sampler',
]


class Draws(NamedTuple):
  """What a sampler draws from the rest.

  Attributes:
    values: `Tensor` of shape `[M] + batch_shape + event_shape`.
    shares: `Tensor` of shape `[M] + batch_shape`, constants that sum to 1; the
      mean of `x` over the rest is estimated by `sum_j shares[j] x[j]`.
    mean_of_others: Callable, as in `Atoms`, for the draws alone; `None` where
      they are independent.
  """

  values: tf.Tensor
  shares: tf.Tensor
  mean_of_others: Integrand | None = None


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
    """Raises where so many draws cannot be made."""
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


def check_sampler(sampler):
  """Raises `TypeError` unless an argument is a `Sampler`."""
  if not isinstance(sampler, Sampler):
    raise TypeError(
      f'`sampler` must be one of `tfp_rb.samplers`; got {sampler!r}. Write, '
      'for example, `tfp_rb.samplers.WithoutReplacement()`.'
    )


class IID(Sampler):
  """Independent draws, the default.

  Unbiased with every estimator and every baseline.

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


class Stratified(Sampler):
  """Draws spread over the rest: one from each of `M` equal shares of its mass.

  Unbiased with every estimator and every baseline but `LeaveOneOut` and
  `Optimal`, which need to know what the other draws say given one of them.
  Each draw alone follows `q` given the rest. Several uniforms make a draw of
  some families (a block and a place in it; the sites of a product): each is
  stratified, in an order of its own. Beside one inverse CDF the variance can
  then exceed that of independent draws, by a factor of at most `M / (M - 1)`.

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
    if partition.num_uniforms is None:
      raise NotImplementedError(
        '`samplers.Stratified` needs a partition of this library, but that of '
        f'`{type(distribution).__name__}` draws by other means. Use '
        '`samplers.IID()`.'
      )
    shape = [num_draws, *partition.batch_shape, partition.num_uniforms]
    values = partition.rest_from_uniforms(
      random.stratified_uniform(shape, seed)
    )

    def mean_of_others(x):
      raise ValueError(
        '`baselines.LeaveOneOut` needs draws that are independent or without '
        'replacement, but `sampler` is `samplers.Stratified()`, whose other '
        'draws avoid the stratum of the first. Use another baseline, e.g. '
        '`baselines.IndependentSample()`, or another sampler.'
      )

    return Draws(
      values,
      _equal_shares(partition, num_draws),
      mean_of_others if num_draws > 1 else None,
    )


class WithoutReplacement(Sampler):
  """Distinct draws, weighted so that their order does not matter.

  ```none
  share of s = probability that s was the first, given the set that was drawn
  ```

  Unbiased with every estimator and every baseline but `Optimal`, and never of
  more variance than a single draw. With `num_summed=0` this is the unordered
  set estimator of [1], and `baselines.LeaveOneOut()` its built-in baseline;
  `num_summed=k` adds the summed atoms. No evaluation of `f` is spent twice on
  one value: strong where the rest is spread over few values, without effect
  where it is spread over very many.

  The shares take a recursion over the subsets of the draws, hence at most 8.

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
        'replacement, since the weights take a recursion over all subsets, '
        f'but is {num_draws}. Draw fewer, or use `samplers.IID()`.'
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
    if num_values is not None and num_summed + num_draws > num_values:
      raise ValueError(
        f'`num_samples` must be at most {num_values - num_summed} without '
        f'replacement, since the distribution has {num_values} values and '
        f'{num_summed} are summed, but is {num_draws}. Draw fewer, or sum all.'
      )
    rest, is_possible, taken = partition, [], None
    # A value that is listed without weight may be any value. It stays in the
    # rest: in its place the first draw is excluded, once.
    has_weight = shapes.with_event_rank(
      partition.log_weights > -np.inf, partition.values
    )
    for draw_seed in random.split_seed(seed, n=num_draws):
      # From an empty rest nothing can be drawn, and what comes weighs 0.
      is_possible.append(rest.rest_weight > 0.0)
      value = rest.draw_rest(1, draw_seed)
      if taken is None:
        taken = tf.where(has_weight, partition.values, value)
      taken = tf.concat([taken, value], axis=0)
      rest = partition.excluding(taken)
    values = rest.values[num_summed:]
    log_rest = partition.log_rest
    log_probs = tf.where(
      tf.stack(is_possible),
      tf.stop_gradient(partition.log_prob(values)) - log_rest,
      tf.constant(-np.inf, log_rest.dtype),
    )
    shares, others = subsets.leave_one_out_weights(
      log_probs, rest.log_rest - log_rest
    )

    def mean_of_others(x):
      return tf.reduce_sum(tf.cast(others, x.dtype) * x, axis=1)

    return Draws(values, shares, mean_of_others if num_draws > 1 else None)


def _equal_shares(partition, num_draws):
  share = tf.constant(1.0 / num_draws, partition.log_rest.dtype)
  return tf.fill([num_draws, *partition.batch_shape], share)
