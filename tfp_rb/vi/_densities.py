# SPDX-License-Identifier: Apache-2.0
"""Evaluates the densities of target and surrogate at discrete values."""

from collections.abc import Callable
import functools
from typing import Any

import tensorflow as tf

from tfp_rb.designs import serve_rows, whole_of
from tfp_rb.estimators.base import GradientEstimator
from tfp_rb.internal import shapes
from tfp_rb.internal.types import Distribution, StatelessSeed
from tfp_rb.vi._arguments import call_target, check_target
from tfp_rb.vi._discrepancy import LogDensities
from tfp_rb.vi._joint import Split

__all__ = ['log_densities_in_pool', 'log_densities_of_parts', 'without_rows']


def without_rows(
  target: Callable[..., tf.Tensor], distribution: Distribution
) -> Callable[..., tf.Tensor]:
  """Returns a target `fn(z, rows)`, written for a pool, as `fn(z)`."""
  batch_shape = shapes.batch_shape(distribution)

  def call(values: tf.Tensor, **further: Any) -> tf.Tensor:
    by_rows = lambda z, rows: target(z, rows=rows, **further)
    return serve_rows(by_rows, batch_shape)(values)

  # `call_target` looks for an argument `seed`.
  return functools.wraps(target)(call)


def log_densities_of_parts(
  call: Callable[[Any], tf.Tensor],
  parts: Split,
  estimator: GradientEstimator,
  exact_entropy: bool,
  seed: StatelessSeed,
) -> LogDensities:
  """Returns the densities as a function of the values of the discrete parts.

  Args:
    call: Callable that evaluates the user's target at a sample of all parts.
    parts: The `Split` of the surrogate.
    estimator: A `GradientEstimator`.
    exact_entropy: Python `bool`, whether to leave `log q` out.
    seed: Stateless seed of the continuous parts that depend on discrete ones.

  Returns:
    log_densities: Callable that maps values of the discrete parts to `log p`
      minus the log-density of the continuous parts, and to the log-probability
      of the discrete parts.
  """

  def log_densities(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    sample, log_probs = parts.complete(values, seed)
    result = call(sample)
    expected = values.shape[:1] + parts.discrete.batch_shape
    log_p = check_target(result, expected)  # [m] + batch_shape
    if exact_entropy:
      return log_p, tf.zeros_like(log_p)
    # Here pathwise gradients flow through the continuous parts.
    log_p -= sum(tf.cast(x, log_p.dtype) for x in log_probs)
    log_q = _log_prob_at(parts.discrete, values, estimator.differentiates_f)
    return log_p, tf.cast(log_q, log_p.dtype)

  return log_densities


def log_densities_in_pool(
  target: Callable[..., tf.Tensor],
  atoms: Any,
  exact_entropy: bool,
  seed: StatelessSeed,
) -> LogDensities:
  """Returns the densities as a function of the atoms of a pool, `[N]` each."""
  rows = atoms.pool.rows

  def log_densities(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    result = call_target(functools.partial(target, rows=rows), values, seed)
    log_p = check_target(result, values.shape[:1])  # [N]
    if exact_entropy:
      return log_p, tf.zeros_like(log_p)
    # A pool evaluates `f` only at its atoms, whose `log q` is known.
    log_q = tf.stop_gradient(atoms.log_prob)
    return log_p, tf.cast(log_q, log_p.dtype)

  return log_densities


def _log_prob_at(
  discrete: Distribution, values: tf.Tensor, is_differentiated: bool
) -> tf.Tensor:
  """Returns `log q` at atoms, as a constant w.r.t. its parameters.

  Args:
    discrete: The distribution.
    values: `Tensor` of shape `[n] + batch_shape + event_shape`.
    is_differentiated: Python `bool`, whether an estimator differentiates w.r.t.
      the values, and may evaluate `f` at points between them.

  Returns:
    log_prob: `Tensor` of shape `[n] + batch_shape`.
  """
  whole = whole_of(discrete)
  if not is_differentiated:
    return tf.stop_gradient(whole.log_prob(values))
  relaxation = whole.relaxation()
  if relaxation is not None:
    return relaxation.log_prob_between(values)
  # Add a linear path, with a gradient w.r.t. the values but not the parameters.
  with tf.GradientTape() as tape:
    tape.watch(values)
    log_prob = whole.log_prob(values)  # [n] + batch_shape
  slope = tape.gradient(log_prob, values, unconnected_gradients='zero')
  path = tf.stop_gradient(slope) * (values - tf.stop_gradient(values))
  axes = list(range(log_prob.shape.rank, values.shape.rank))  # the event's axes
  path = tf.cast(tf.reduce_sum(path, axis=axes), log_prob.dtype)
  return tf.stop_gradient(log_prob) + path
