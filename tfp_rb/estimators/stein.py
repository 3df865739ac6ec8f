# SPDX-License-Identifier: Apache-2.0
"""Defines RODEO, with control variates from a discrete Stein operator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_rb.estimators.joint_draws import Draws, JointDraws, mean_of_others
from tfp_rb.internal import random, shapes

__all__ = ['Stein']


class Stein(JointDraws):
  """Uses leave-one-out draws, and a learned function under a Stein operator.

  ```none
  g(z_i) = (f(z_i) - mean_{j != i} (f(z_j) + a (A h_j)(z_j))) grad log q(z_i)
           + b (A h'_i grad log q)(z_i) + grad f(z_i)
  (A h)(z) = 1/S sum_s ( E[h(z) | all sites but s] - h(z) )
  h_i(y), h'_i(y) = mean_{j != i} H( f'(z_j) . (y - z_j), f(z_j) )
  ```

  `A` is the Gibbs Stein operator: `A h` has mean 0 under `q` for every `h`. The
  network `H` maps two numbers to two numbers, one for `h` and one for `h'`, so
  it serves any `f`. Its inputs are `f(z_j)`, and the first-order change of `f`
  from a draw `z_j` to a neighbour `y` of another draw. This estimator is called
  RODEO in [1]. Unbiased in value and gradient for every network and all scales
  `a` and `b`, but not in the Hessian.

  Costs `m = num_samples` evaluations of `f`, at least 2, in one call, and the
  gradient of `f` at each of them. So `f` takes floating-point atoms and must be
  differentiable w.r.t. them. The network is evaluated for all pairs of draws
  and all neighbours: `m (m - 1) (1 + S (K - 1))` times for each batch member
  with `S` sites of `K` classes. Supports `OneHotCategorical` and `Bernoulli`,
  and `Independent` and `Sample` of them. All draws must be independent, so it
  cannot be Rao-Blackwellized.

  The network and the scales, which start at 0, minimise the squared gradient of
  the whole estimate w.r.t. the logits, as in `REBAR`. Give the optimizer
  `estimator.trainable_variables` as well. Without training, this is
  `REINFORCE(LeaveOneOut())`.

  #### Examples

  ```python
  logits = tf.Variable(tf.zeros([20]))
  estimator = tfp_rb.Stein(num_samples=2)
  with tf.GradientTape() as tape:
    q = tfp.distributions.Independent(
        tfp.distributions.Bernoulli(logits=logits), 1)
    loss = tfp_rb.expectation(
        lambda z: (tf.reduce_mean(z, axis=-1) - 0.3)**2, q, estimator,
        seed=[0, 1])
  gradients = tape.gradient(loss, [logits, *estimator.trainable_variables])
  len(gradients)  # ==> 7
  ```

  #### References

  [1] Jiaxin Shi, Yuhao Zhou, Jessica Hwang, Michalis K. Titsias, Lester
      Mackey. Gradient estimation with discrete Stein operators. NeurIPS 2022,
      section 4. https://arxiv.org/abs/2202.09497
  """

  def __init__(
    self,
    network: Callable[[tf.Tensor], tf.Tensor] | None = None,
    *,
    num_samples: int = 2,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      network: Callable that maps a `Tensor` of shape `[n, 2]` to one of shape
        `[n, 2]`, a Keras network for example. The default has one layer of 100
        units with leaky rectifiers, as in [1].
      num_samples: Python `int`, the number of draws, at least 2.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      TypeError: `network` is not callable.
    """
    super().__init__(num_samples=num_samples, name=name)
    if network is not None and not callable(network):
      raise TypeError(
        '`network` must be a callable from [n, 2] to [n, 2]; got '
        f'{network!r}. Pass a Keras network, for example.'
      )
    self.network = network
    self._network: Any = _Network() if network is None else network
    self.baseline_scale = tf.Variable(0.0, name='baseline_scale')  # a
    self.score_scale = tf.Variable(0.0, name='score_scale')  # b

  def by_log_probs(self, draws: Draws) -> tf.Tensor:
    one_hot, dtype = draws.one_hot, draws.one_hot.dtype
    others, chances = _neighbours(draws)
    here, there = self._surrogates(draws, others)
    # 1/S q(neighbour | the other sites), [m] + batch_shape + sites + [K - 1].
    num_sites = np.prod(one_hot.shape[-1 - draws.num_sites : -1], dtype=int)
    chances /= tf.cast(num_sites, dtype)

    def apply_operator(output: int) -> tf.Tensor:
      change = there[..., output] - draws.over_sites(here[..., output])
      return draws.sum_sites(chances * change)  # [m] + batch_shape

    a = tf.cast(self.baseline_scale, dtype)
    b = tf.cast(self.score_scale, dtype)
    level = mean_of_others(draws.value + a * apply_operator(0))
    advantage = draws.value - level + b * apply_operator(1)
    # The score of a neighbour differs from that of the draw at one site.
    moved = (chances * there[..., 1])[..., tf.newaxis] * others
    moved = b * tf.reduce_sum(moved, axis=-2)
    return draws.over_sites(advantage) * one_hot + moved

  def _surrogates(
    self, draws: Draws, others: tf.Tensor
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns both outputs of `h_i` at the draw `z_i` and at its neighbours.

    Args:
      draws: `Draws`.
      others: As returned by `_neighbours`.

    Returns:
      here: `Tensor` of shape `[m] + batch_shape + [2]`.
      there: `Tensor` of shape `[m] + batch_shape + sites + [K - 1, 2]`.
    """
    size = draws.value.shape[0]
    first, second = np.nonzero(~np.eye(size, dtype=bool))  # all pairs i, j
    slope = tf.gather(draws.slope, second)  # [m (m - 1)] + ...
    step = tf.gather(draws.one_hot, first) - tf.gather(draws.one_hot, second)
    here = draws.sum_sites(slope * step)  # [m (m - 1)] + batch_shape
    steps = tf.gather(others, first)  # ... + sites + [K - 1, K]
    there = tf.reduce_sum(slope[..., tf.newaxis, :] * steps, axis=-1)
    there += draws.over_sites(here)
    num_rows = shapes.size(shapes.as_list(here))
    shape = tf.shape(there)
    inputs = tf.concat(
      [tf.reshape(x, [num_rows, -1]) for x in (here, there)], axis=-1
    )
    level = tf.reshape(tf.gather(draws.value, second), [num_rows, 1])
    pairs = tf.stack([inputs, tf.broadcast_to(level, tf.shape(inputs))], -1)
    outputs = self._call_network(tf.reshape(pairs, [-1, 2]))
    outputs = tf.reshape(outputs, tf.concat([tf.shape(inputs), [2]], axis=0))

    def mean(x: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
      shape = tf.concat([[size, size - 1], shape[1:], [2]], axis=0)
      return tf.reduce_mean(tf.reshape(x, shape), axis=1)

    return mean(outputs[:, 0], tf.shape(here)), mean(outputs[:, 1:], shape)

  def _call_network(self, x: tf.Tensor) -> tf.Tensor:
    """Returns the two outputs of the network, or raises."""
    result = tf.convert_to_tensor(self._network(x))
    if not result.shape.is_compatible_with([x.shape[0], 2]):
      raise ValueError(
        f'`network` must return shape [n, 2] for {x.shape}; got '
        f'{result.shape}. Give it two output units.'
      )
    return tf.cast(result, x.dtype)


def _neighbours(draws: Draws) -> tuple[tf.Tensor, tf.Tensor]:
  """Returns the steps to all values that differ at one site.

  Args:
    draws: `Draws`.

  Returns:
    steps: `Tensor` of shape `[m] + batch_shape + sites + [K - 1, K]`, the other
      one-hot vectors of a site minus its own.
    chances: `Tensor` of shape `[m] + batch_shape + sites + [K - 1]`, their
      probabilities.
  """
  num_classes = draws.one_hot.shape[-1]
  others = tf.stack(
    [tf.roll(draws.one_hot, i, axis=-1) for i in range(1, num_classes)], -2
  )
  chances = tf.reduce_sum(others * draws.probs[..., tf.newaxis, :], axis=-1)
  return others - draws.one_hot[..., tf.newaxis, :], chances


class _Network(tf.Module):
  """A network from two numbers to two numbers, with one hidden layer."""

  _NUM_UNITS = 100

  def __init__(self) -> None:
    super().__init__(name='network')
    seeds = random.split_seed([0, 0], n=2)
    self.hidden = tf.Variable(_glorot([2, self._NUM_UNITS], seeds[0]))
    self.hidden_bias = tf.Variable(tf.zeros([self._NUM_UNITS]))
    self.output = tf.Variable(_glorot([self._NUM_UNITS, 2], seeds[1]))
    self.output_bias = tf.Variable(tf.zeros([2]))

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    hidden, hidden_bias, output, output_bias = (
      tf.cast(v, x.dtype)
      for v in (self.hidden, self.hidden_bias, self.output, self.output_bias)
    )
    y = tf.nn.leaky_relu(x @ hidden + hidden_bias, alpha=0.3)
    return y @ output + output_bias


def _glorot(shape: list[int], seed: tf.Tensor) -> tf.Tensor:
  limit = np.sqrt(6.0 / sum(shape))
  return limit * (2.0 * random.uniform(shape, seed, tf.float32) - 1.0)
