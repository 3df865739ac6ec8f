# SPDX-License-Identifier: Apache-2.0
"""Defines the base class of chains: all that follows from their factors."""

import abc
from typing import Any

import tensorflow as tf

from tfp_rb.distributions import batches, checks, recursions
from tfp_rb.internal import shapes
from tfp_rb.internal.types import CompositeDistribution, TensorLike

__all__ = ['PathDistribution']


class PathDistribution(CompositeDistribution):
  """Base class of distributions over the paths of a Markov chain.

  A subclass holds the parameters and computes the log-probabilities of all
  transitions from them. Draws, densities, modes and exact expectations follow
  from these alone.
  """

  @property
  @abc.abstractmethod
  def num_states(self) -> int:
    """The number `K` of states, a Python `int`."""

  @abc.abstractmethod
  def log_factors(self) -> tf.Tensor:
    """Returns the normalised log-probabilities in one Tensor.

    Returns:
      log_factors: Differentiable `Tensor` of shape `[T, rows, K, K]`, `rows`
        the flattened batch, at least float32. All rows of the first entry are
        the probabilities of the first state.
    """

  def _unflatten(self, x: tf.Tensor) -> tf.Tensor:
    """Reshapes `[T, rows, ...]` to `batch_shape + [T, ...]`."""
    return recursions.unflatten(x, shapes.batch_shape(self))

  def _sample_n(self, n: Any, seed: Any = None) -> tf.Tensor:
    return batches.draw(self.log_factors(), n, seed, shapes.batch_shape(self))

  def _log_prob(self, value: tf.Tensor) -> tf.Tensor:
    checks.check_path_shape(self, value)
    return batches.log_prob_of(
      self.log_factors(), value, shapes.batch_shape(self)
    )

  def _mode(self) -> tf.Tensor:
    paths = recursions.best_paths(self.log_factors(), 1)
    return self._unflatten(paths[..., 0])

  def marginals(self) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the marginal probabilities of states and of pairs of states.

    Returns:
      unary: Differentiable `Tensor` of shape `batch_shape + [T, K]`.
      pairwise: `Tensor` of shape `batch_shape + [T - 1, K, K]`; row: state
        before.
    """
    with self._name_and_control_scope('marginals'):
      states, pairs = recursions.marginals(tf.exp(self.log_factors()))
      return self._unflatten(states), self._unflatten(pairs[1:])

  def expectation(
    self,
    unary_terms: TensorLike | None = None,
    pairwise_terms: TensorLike | None = None,
  ) -> tf.Tensor:
    """Computes the expectation of a sum over the time steps, exactly.

    ```none
    E_q[ sum_t unary_terms[t, z_t] + sum_t pairwise_terms[t, z_t, z_{t+1}] ]
    ```

    No sampling and no estimator is needed for such sums: evaluate the terms at
    all states and all pairs of states, in one call each. The gradient w.r.t.
    the chain and w.r.t. the terms is exact, too.

    Args:
      unary_terms: `Tensor` of shape `[..., T, K]`, or `None`.
      pairwise_terms: `Tensor` of shape `[..., T - 1, K, K]`; the row is the
        state before. `None` if there are none. An axis may have size 1 if the
        terms do not depend on it: pass `terms[tf.newaxis]` for terms `[K, K]`
        that are the same at all steps. Terms of states and transitions of
        probability 0 count as 0, even if they are infinite or NaN.

    Returns:
      expectation: Differentiable `Tensor`. Its shape is the batch shape,
        broadcast against the dimensions in front of the terms.

    Raises:
      TypeError: The terms are a function.
      ValueError: The terms have another number of steps or states, or there are
        none.
    """
    with self._name_and_control_scope('expectation'):
      terms = checks.check_terms(self, unary_terms, pairwise_terms)
      return sum(
        recursions.expected(probs, x, rank)
        for probs, x, rank in zip(self.marginals(), terms, (2, 3))
        if x is not None
      )

  def _entropy(self) -> tf.Tensor:
    log_factors = self.log_factors()
    batch_shape = shapes.batch_shape(self)
    terms = recursions.unflatten(log_factors, batch_shape)
    return -recursions.expected_along(log_factors, terms, batch_shape)

  def _default_event_space_bijector(self) -> None:
    return None

  def _sample_control_dependencies(self, value: tf.Tensor) -> list[Any]:
    if not self.validate_args:
      return []
    return checks.checks_of_paths(self, value)
