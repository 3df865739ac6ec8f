"""Mean, variance and bias of the gradient of any loss, from pairs of draws."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfp_rb.designs.integrand import EVALUATION
from tfp_rb.diagnostics._moments import GradientMoments, flat
from tfp_rb.internal import checks
from tfp_rb.internal.types import TensorLike

__all__ = [
  'gradients_of',
  'mean_and_interval',
  'measure_pairs',
  'sampled_moments',
]

_NORMAL_95 = 1.959964


def sampled_moments(
  loss: Callable[[tf.Tensor], tf.Tensor],
  variables: Sequence[Any],
  num_pairs: int = 100,
  reference: Sequence[TensorLike] | None = None,
  seed: int = 0,
) -> GradientMoments:
  """Returns moments of the gradient of any loss, from pairs of gradients.

  Half the squared distance of two independent gradients has the total variance
  for its mean. Pairs are independent, so that mean has a standard error, and
  the interval is normal: too narrow where a few pairs in thousands decide.

  The interval of the bias holds whatever the covariance: the mean of `n`
  normal gradients is farther than `1.96 sqrt(variance / n)` from what it
  estimates in at most 5 % of all cases.

  Args:
    loss: Callable, a stateless seed (`int32[2]`) to a scalar `Tensor`; all its
      randomness comes from the seed. To measure several estimators, write
      `lambda seed: loss(estimator, seed)` for each.
    variables: List of `tf.Variable`s or Keras variables.
    num_pairs: Python `int`, at least 2.
    reference: List of arrays like the variables, the exact gradient, where it
      is known.
    seed: Python `int`, the first part of the seeds.

  Returns:
    moments: `GradientMoments`. The evaluations of `f` are counted in the graph
      of `loss`; they are not seen where `loss` calls a `tf.function` or a loop.

  Raises:
    TypeError: `loss` is not callable, `num_pairs` is not an `int`, or
      `variables` has something else.
    ValueError: `num_pairs` is too small, `variables` is no list or empty, the
      loss depends on none of them, or `reference` has other shapes.

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
  if not callable(loss):
    raise TypeError(
      f'`loss` must be a callable of a seed, but is {loss!r}. Write, for '
      'example, `lambda seed: loss(estimator, seed)`.'
    )
  num_pairs = checks.check_int(num_pairs, 'num_pairs', minimum=2)
  variables = _as_tensorflow(variables)
  _check_reference(reference, variables)
  seed = checks.check_int(seed, 'seed', minimum=0)

  @tf.function(autograph=False)
  def gradient(seed):
    with tf.GradientTape() as tape:
      tape.watch(variables)  # also such that are not trainable
      value = loss(seed)
    gradients = gradients_of(tape, value, variables)
    if gradients is None:
      raise ValueError(
        '`loss` must depend on one of the `variables` at least, but its '
        'gradient with respect to all of them is None. Pass the variables '
        'that it reads, and build the distribution inside it.'
      )
    return gradients

  variance, interval, mean = measure_pairs(gradient, num_pairs, seed)
  return GradientMoments(
    mean=_like(mean, variables),
    variance=variance,
    interval=interval,
    **_bias_of(mean, reference, variance / (2 * num_pairs)),
    num_evaluations=_num_evaluations(gradient),
    is_exact=False,
  )


def _num_evaluations(gradient):
  """Counts the atoms at which a traced gradient evaluates `f`, if any."""
  graph = gradient.get_concrete_function(tf.TensorSpec([2], tf.int32)).graph
  numbers = [
    operation.outputs[0].shape[0]
    for operation in graph.get_operations()
    if EVALUATION in operation.name.split('/')[-1]
  ]
  return None if None in numbers else sum(numbers) or None


def _as_tensorflow(variables):
  """Checks a list of variables; Keras wraps its own."""
  if not isinstance(variables, list | tuple) or not variables:
    raise ValueError(
      '`variables` must be a list of the variables that the gradient is taken '
      f'by, with one at least, but is {variables!r}. Pass e.g. `[logits]`.'
    )
  found = [
    v if isinstance(v, tf.Variable) else getattr(v, 'value', v)
    for v in variables
  ]
  for variable in found:
    if not isinstance(variable, tf.Variable):
      raise TypeError(
        '`variables` must be `tf.Variable`s or those of Keras, but one is '
        f'{variable!r}. Make it a variable that `loss` reads.'
      )
    if not variable.dtype.is_floating:
      raise TypeError(
        '`variables` must be floating, since a gradient is taken with respect '
        f'to them, but one has dtype {variable.dtype.name}. Leave it out.'
      )
  return found


def _check_reference(reference, variables):
  if reference is None:
    return
  expected = [tuple(v.shape) for v in variables]
  is_list = isinstance(reference, list | tuple)
  shapes = [np.shape(x) for x in reference] if is_list else np.shape(reference)
  if not is_list or shapes != expected:
    raise ValueError(
      '`reference` must be a list of arrays like the variables, of shapes '
      f'{expected}, but is of {shapes}. Pass one exact gradient for each.'
    )


def gradients_of(tape, value, variables):
  """Gradients as dense `Tensor`s, 0 where there is none; `None` if all are."""
  gradients = tape.gradient(value, variables)
  if all(g is None for g in gradients):
    return None
  return [
    tf.zeros_like(v) if g is None else tf.convert_to_tensor(g)
    for g, v in zip(gradients, variables, strict=True)
  ]


def measure_pairs(gradient, num_pairs, seed):
  """Total variance of a gradient, by half squared distances of pairs.

  Args:
    gradient: Callable, a stateless seed to a list of `Tensor`s.
    num_pairs: Python `int`, at least 2.
    seed: Python `int`, the first part of the seeds.

  Returns:
    variance: Python `float`.
    interval: Pair of Python `float`s.
    mean: Array, all components of the mean gradient.
  """
  distances, total = [], 0.0
  for i in range(num_pairs):
    first, second = (
      flat(gradient(tf.constant([seed, j]))) for j in (2 * i, 2 * i + 1)
    )
    distances.append(0.5 * np.sum((first - second) ** 2))
    total = total + first + second
  return *mean_and_interval(distances), total / (2 * num_pairs)


def _bias_of(mean, reference, noise):
  """The bias of a mean whose own total variance is `noise`."""
  if reference is None:
    return {'bias': None, 'bias_interval': None}
  error = np.linalg.norm(mean - flat(reference))
  margin = _NORMAL_95 * np.sqrt(noise)
  return {
    'bias': float(np.sqrt(max(error**2 - noise, 0.0))),
    'bias_interval': (float(max(error - margin, 0.0)), float(error + margin)),
  }


def _like(flat, variables):
  """Cuts a vector into arrays with the shapes of the variables."""
  sizes = [v.shape.num_elements() for v in variables]
  parts = np.split(flat, np.cumsum(sizes)[:-1])
  return [p.reshape(v.shape) for p, v in zip(parts, variables, strict=True)]


def mean_and_interval(values):
  """Mean of independent non-negative values, and its normal 95 % interval."""
  mean = float(np.mean(values))
  margin = float(_NORMAL_95 * np.std(values, ddof=1) / np.sqrt(len(values)))
  return mean, (max(mean - margin, 0.0), mean + margin)
