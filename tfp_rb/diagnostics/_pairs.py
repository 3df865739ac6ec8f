# SPDX-License-Identifier: Apache-2.0
"""Estimates mean, variance and bias of a gradient from pairs of gradients."""

from collections.abc import Callable, Sequence
import re
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_rb.designs.integrand import EVALUATION, POOL
from tfp_rb.diagnostics._moments import GradientMoments
from tfp_rb.internal import checks
from tfp_rb.internal.types import TensorLike
from tfp_rb.testing.enumeration import flat

__all__ = [
  'gradients_of',
  'mean_and_interval',
  'measure_pairs',
  'sampled_moments',
]

_NORMAL_95 = 1.959964  # the 97.5 % quantile of a standard normal


def sampled_moments(
  loss: Callable[[tf.Tensor], tf.Tensor],
  variables: Sequence[Any],
  num_pairs: int = 100,
  reference: Sequence[TensorLike] | None = None,
  seed: int = 0,
) -> GradientMoments:
  """Returns moments of the gradient of any loss, from pairs of gradients.

  The mean of half the squared distance between two independent gradients is the
  total variance. The pairs are independent, so this mean has a standard error,
  and `interval` is a normal interval. It is too narrow if rare pairs dominate
  the variance.

  The interval of the bias holds for every covariance: the distance of the mean
  of `n` normal gradients from its expectation exceeds
  `1.96 sqrt(variance / n)` with probability at most 5 %.

  Args:
    loss: Callable that takes a stateless seed (`int32[2]`) and returns a scalar
      `Tensor`. All its randomness must come from the seed. To measure several
      estimators, pass `lambda seed: loss(estimator, seed)` for each.
    variables: List of `tf.Variable`s or Keras variables.
    num_pairs: Python `int`, at least 2.
    reference: List of arrays with the shapes of the variables, the exact
      gradient. Default: `None`, so the bias is not known either.
    seed: Python `int`, the first number of all stateless seeds.

  Returns:
    moments: `GradientMoments`. The evaluations of `f` are counted in the graph
      of `loss`, not inside a `tf.function` or a loop that `loss` calls. They
      are counted per row of the batch: `pooled(budget=80)` with 64 rows counts
      as 1.25.

  Raises:
    TypeError: `loss` is not callable, `num_pairs` is not an `int`, or
      `variables` does not contain floating-point variables only.
    ValueError: `num_pairs` is too small, `variables` is not a list or is empty,
      the loss is not a scalar or depends on none of them, or `reference` has
      other shapes.

  #### Examples

  ```python
  logits, cost = tf.Variable([0., 1., 2.]), tf.constant([3., 1., 2.])

  def loss(estimator, seed):
    q = tfp.distributions.Categorical(logits=logits)
    f = lambda z: tf.gather(cost, z)
    return tfp_rb.expectation(f, q, estimator, seed=seed)

  estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=1)
  moments = tfp_rb.diagnostics.sampled_moments(
      lambda seed: loss(estimator, seed), [logits], num_pairs=200)
  low, high = moments.interval
  low < 0.2631 < high      # ==> True
  moments.num_evaluations  # ==> 2
  ```
  """
  checks.check_callable(loss, 'loss', 'lambda seed: loss(estimator, seed)')
  num_pairs = checks.check_int(num_pairs, 'num_pairs', minimum=2)
  variables = _as_tensorflow(variables)
  _check_reference(reference, variables)
  seed = checks.check_int(seed, 'seed', minimum=0)

  def gradient(seed: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
      # By default, a tape watches trainable variables only.
      tape.watch(variables)
      value = tf.convert_to_tensor(loss(seed))
      if value.shape.rank not in (None, 0):
        raise ValueError(
          f'`loss` must return a scalar; got shape {value.shape}. Return the '
          'mean of its values, `tf.reduce_mean(...)`.'
        )
    gradients = gradients_of(tape, value, variables)
    if gradients is None:
      raise ValueError(
        '`loss` must depend on at least one of the `variables`; got None as '
        'the gradient with respect to each. Pass the variables that `loss` '
        'reads, and build the distribution inside `loss`.'
      )
    return gradients

  traced = tf.function(gradient, autograph=False)
  variance, interval, mean = measure_pairs(traced, num_pairs, seed)
  return GradientMoments(
    mean=_like(mean, variables),
    variance=variance,
    interval=interval,
    # The mean of `n = 2 * num_pairs` gradients has 1 / n of the variance.
    **_bias_of(mean, reference, variance / (2 * num_pairs)),
    num_evaluations=_num_evaluations(traced),
    is_exact=False,
  )


def _num_evaluations(gradient: Any) -> float | None:
  """Counts the atoms at which a `tf.function` evaluates `f`, if any."""
  graph = gradient.get_concrete_function(tf.TensorSpec([2], tf.int32)).graph
  numbers = [
    _num_atoms_per_row(operation)
    for operation in graph.get_operations()
    if EVALUATION in operation.name.split('/')[-1]
  ]
  known = [number for number in numbers if number is not None]
  return (sum(known) or None) if len(known) == len(numbers) else None


def _num_atoms_per_row(operation: tf.Operation) -> float | None:
  """Returns the number of atoms that one row of the batch has on average."""
  # `CheckedIntegrand` names the operation whose output it passes to `f`. The
  # atoms are its first axis, which is None if it is known at run time only.
  num_atoms = operation.outputs[0].shape[0]
  # The rows of a pool share this axis.
  rows = re.search(POOL.format(r'(\d+)'), operation.name)
  if num_atoms is None or rows is None:
    return num_atoms
  return num_atoms / max(int(rows[1]), 1)


def _as_tensorflow(variables: Sequence[Any]) -> list[tf.Variable]:
  """Checks `variables`, and returns them as a list of `tf.Variable`s."""
  if not isinstance(variables, list | tuple) or not variables:
    raise ValueError(
      '`variables` must be a list with at least one variable; got '
      f'{variables!r}. Pass, for example, `[logits]`.'
    )
  # The `value` of a Keras variable is its `tf.Variable`.
  found = [
    v if isinstance(v, tf.Variable) else getattr(v, 'value', v)
    for v in variables
  ]
  for variable in found:
    if not isinstance(variable, tf.Variable):
      raise TypeError(
        '`variables` must contain `tf.Variable`s or Keras variables; got '
        f'{variable!r}. Make it a variable that `loss` reads.'
      )
    if not variable.dtype.is_floating:
      raise TypeError(
        '`variables` must have a floating-point dtype, because the loss is '
        f'differentiated with respect to them; got {variable.dtype.name}. '
        'Leave this variable out.'
      )
  return found


def _check_reference(reference: Any, variables: Sequence[tf.Variable]) -> None:
  if reference is None:
    return
  expected = [tuple(v.shape) for v in variables]
  is_list = isinstance(reference, list | tuple)
  shapes = [np.shape(x) for x in reference] if is_list else np.shape(reference)
  if not is_list or shapes != expected:
    raise ValueError(
      '`reference` must be a list of arrays with the shapes of `variables`, '
      f'{expected}; got {shapes}. Pass one exact gradient per variable.'
    )


def gradients_of(
  tape: tf.GradientTape, value: tf.Tensor, variables: Sequence[tf.Variable]
) -> list[tf.Tensor] | None:
  """Returns dense gradients, 0 for unused variables; `None` if none is used."""
  gradients = tape.gradient(value, variables)
  if all(g is None for g in gradients):
    return None
  # The gradient of an embedding is sparse (`tf.IndexedSlices`).
  return [
    tf.zeros_like(v) if g is None else tf.convert_to_tensor(g)
    for g, v in zip(gradients, variables, strict=True)
  ]


def measure_pairs(
  gradient: Callable[[tf.Tensor], list[tf.Tensor]], num_pairs: int, seed: int
) -> tuple[float, tuple[float, float], np.ndarray]:
  """Estimates the total variance of a gradient from pairs of gradients.

  Args:
    gradient: Callable that takes a stateless seed and returns a list of
      `Tensor`s.
    num_pairs: Python `int`, at least 2.
    seed: Python `int`, the first number of all stateless seeds.

  Returns:
    variance: Python `float`.
    interval: Pair of Python `float`s.
    mean: Array of shape `[P]`, all components of the mean gradient.
  """
  distances, total = [], np.zeros([])
  for i in range(num_pairs):
    # E|g - g'|^2 / 2 is the total variance. Unlike the sample variance of all
    # gradients, the terms of its mean are independent.
    first, second = (
      flat(gradient(tf.constant([seed, j]))) for j in (2 * i, 2 * i + 1)
    )
    distances.append(0.5 * float(np.sum((first - second) ** 2)))
    total = total + first + second
  return *mean_and_interval(distances), total / (2 * num_pairs)


def _bias_of(
  mean: np.ndarray, reference: Sequence[TensorLike] | None, noise: float
) -> dict[str, Any]:
  """Returns the bias of a mean whose own total variance is `noise`."""
  if reference is None:
    return {'bias': None, 'bias_interval': None}
  # E|error|^2 = |bias|^2 + noise.
  error = np.linalg.norm(mean - flat(reference))
  # One component of the error can have all of the noise, so no smaller margin
  # holds for every covariance.
  margin = _NORMAL_95 * np.sqrt(noise)
  return {
    'bias': float(np.sqrt(max(error**2 - noise, 0.0))),
    'bias_interval': (float(max(error - margin, 0.0)), float(error + margin)),
  }


def _like(
  vector: np.ndarray, variables: Sequence[tf.Variable]
) -> list[np.ndarray]:
  """Splits a vector into arrays with the shapes of the variables."""
  sizes = [v.shape.num_elements() for v in variables]
  parts = np.split(vector, np.cumsum(sizes)[:-1])
  return [p.reshape(v.shape) for p, v in zip(parts, variables, strict=True)]


def mean_and_interval(
  values: Sequence[float],
) -> tuple[float, tuple[float, float]]:
  """Returns the mean of independent values `>= 0` and its 95 % interval."""
  mean = float(np.mean(values))
  margin = float(_NORMAL_95 * np.std(values, ddof=1) / np.sqrt(len(values)))
  return mean, (max(mean - margin, 0.0), mean + margin)
