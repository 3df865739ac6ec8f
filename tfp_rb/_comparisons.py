# SPDX-License-Identifier: Apache-2.0
"""Looks up log-probabilities, and compares distributions."""

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import expectation
from tfp_rb.designs import (
  CheckedIntegrand,
  Whole,
  needs_rows,
  serve_rows,
  whole_of,
)
from tfp_rb.estimators.base import GradientEstimator, check_estimator
from tfp_rb.estimators.exact import Exact
from tfp_rb.internal import dtypes
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  Seed,
  TensorLike,
  do_not_convert,
)
from tfp_rb.partitions import check_discrete

__all__ = ['cross_entropy', 'entropy', 'kl_divergence', 'log_prob_at']

tfd = tfp.distributions

# Without a closed form, a support with at most this many values is summed.
_MOST_SUMMED = 1024


@do_not_convert
def log_prob_at(
  distribution: Distribution, values: TensorLike, name: str | None = None
) -> tf.Tensor:
  """Returns `log q(z)` at several values for each member of a batch.

  This is `distribution.log_prob(values)`, with less memory for large
  vocabularies: TFP copies logits of shape `batch_shape + [V]` once for each of
  the `m` values, whereas this function normalises them once and gathers.

  Args:
    distribution: A discrete `tfp.distributions.Distribution`.
    values: `Tensor` of shape `[m] + batch_shape + event_shape`.
    name: Python `str`, name of the scope of the operations.

  Returns:
    log_prob: `Tensor` of shape `[m] + batch_shape`, at least float32. It is
      differentiable with respect to the parameters, with gradient 0, not NaN,
      at impossible values.

  Raises:
    TypeError: `distribution` is not discrete.
    ValueError: `values` does not have the shape above.

  #### Examples

  ```python
  q = tfp.distributions.Categorical(logits=[[0., 1., 2.], [0., 0., 0.]])
  tfp_rb.log_prob_at(q, [[2, 0]])  # ==> [[-0.4076 -1.0986]]
  ```
  """
  check_discrete(distribution)
  with tf.name_scope(name or 'log_prob_at'):
    values = tf.convert_to_tensor(values, dtype_hint=distribution.dtype)
    expected = [None, *distribution.batch_shape, *distribution.event_shape]
    if not values.shape.is_compatible_with(expected):
      raise ValueError(
        '`values` must have shape [m] + batch_shape + event_shape, '
        f'{tf.TensorShape(expected)}; got shape {values.shape}. Add a first '
        'axis for the `m` values, and broadcast to the batch.'
      )
    return whole_of(distribution).log_prob_anywhere(values)


@do_not_convert
def kl_divergence(
  q: Distribution,
  p: Distribution | Integrand,
  estimator: GradientEstimator | None = None,
  seed: Seed = None,
  name: str | None = None,
) -> tf.Tensor:
  """Returns the divergence of `p` from `q`, `E_q[log q(z) - log p(z)]`.

  Without an estimator the divergence is exact if `q` and `p` list the same
  values (`Categorical`, `Bernoulli`, ..., and products with the same number of
  sites), if both are chains of the same size, or if `q` has at most 1024
  values. In all other cases `expectation` estimates it. An exact sum over a
  large vocabulary needs memory for a few Tensors of shape `batch_shape + [V]`.

  Args:
    q: A discrete `tfp.distributions.Distribution`.
    p: A `tfp.distributions.Distribution` over the same values, or a callable
      that returns `log p` of values `[m] + batch_shape + event_shape`, of shape
      `[m] + batch_shape`. A callable is enough if, for example, a teacher's
      log-probabilities are known at chosen values only. As in `expectation`, it
      may be a function `p(z, rows)`.
    estimator: A `GradientEstimator` that is not pooled and does not
      differentiate `f`. The
      default is the exact sum where described above, and otherwise the default
      of `expectation`.
    seed: As in `expectation`.
    name: Python `str`, name of the scope of the operations.

  Returns:
    divergence: `Tensor` of `batch_shape`, differentiable once with respect to
      the parameters of both.

  Raises:
    TypeError: `q` or `p` is not discrete, or `p` is not callable.
    ValueError: `estimator` differentiates `f` or is pooled, or `p` has another
      event shape.

  #### Examples

  ```python
  q = tfp.distributions.Categorical(logits=[0., 1., 2.])
  p = tfp.distributions.Categorical(logits=[0., 0., 0.])
  tfp_rb.kl_divergence(q, p)  # ==> 0.2662
  ```
  """
  with tf.name_scope(name or 'kl_divergence'):
    return _expected_logs(q, p, 1.0, -1.0, estimator, seed)


@do_not_convert
def cross_entropy(
  q: Distribution,
  p: Distribution | Integrand,
  estimator: GradientEstimator | None = None,
  seed: Seed = None,
  name: str | None = None,
) -> tf.Tensor:
  """Returns the cross-entropy `-E_q[log p(z)]`.

  It is exact or estimated under the same conditions as `kl_divergence`.

  Args:
    q: A discrete `tfp.distributions.Distribution`.
    p: A distribution or a callable, as in `kl_divergence`.
    estimator: As in `kl_divergence`.
    seed: As in `expectation`.
    name: Python `str`, name of the scope of the operations.

  Returns:
    cross_entropy: `Tensor` of `batch_shape`.

  #### Examples

  ```python
  q = tfp.distributions.Bernoulli(probs=0.25)
  p = tfp.distributions.Bernoulli(probs=0.5)
  tfp_rb.cross_entropy(q, p)  # ==> 0.6931
  ```
  """
  with tf.name_scope(name or 'cross_entropy'):
    return _expected_logs(q, p, 0.0, -1.0, estimator, seed)


@do_not_convert
def entropy(
  q: Distribution,
  estimator: GradientEstimator | None = None,
  seed: Seed = None,
  name: str | None = None,
) -> tf.Tensor:
  """Returns the entropy `-E_q[log q(z)]`.

  It is exact or estimated under the same conditions as `kl_divergence`.

  Args:
    q: A discrete `tfp.distributions.Distribution`.
    estimator: As in `kl_divergence`.
    seed: As in `expectation`.
    name: Python `str`, name of the scope of the operations.

  Returns:
    entropy: `Tensor` of `batch_shape`.

  #### Examples

  ```python
  q = tfp.distributions.Categorical(logits=[0., 1., 2.])
  tfp_rb.entropy(q)  # ==> 0.8324
  ```
  """
  with tf.name_scope(name or 'entropy'):
    return _expected_logs(q, q, -1.0, 0.0, estimator, seed)


def _expected_logs(
  q: Distribution,
  p: Distribution | Integrand,
  scale_q: float,
  scale_p: float,
  estimator: GradientEstimator | None,
  seed: Seed,
) -> tf.Tensor:
  """Returns `E_q[scale_q log q(z) + scale_p log p(z)]`."""
  check_discrete(q)
  if isinstance(p, tfd.Distribution):
    check_discrete(p)
    if not p.event_shape.is_compatible_with(q.event_shape):
      raise ValueError(
        f'`p` must have the event shape of `q`, {q.event_shape}; got '
        f'{p.event_shape}. Use distributions over the same values.'
      )
    q, p = _same_batch(q, p)
    whole, whole_p = whole_of(q), whole_of(p)
    if estimator is None:
      exact = whole.expect_log_probs(whole_p, scale_q, scale_p)
      if exact is not None:
        return exact
    log_p = whole_p.log_prob_anywhere
  elif callable(p):
    whole = whole_of(q)
    log_p = _checked(p, whole)
  else:
    raise TypeError(
      '`p` must be a distribution, or a callable that returns `log p` of '
      f'values; got {p!r}. Pass, for example, `lambda z: tf.gather(log_p, z)`.'
    )
  if estimator is None:
    if whole.num_values is not None and whole.num_values <= _MOST_SUMMED:
      estimator = Exact()
  else:
    check_estimator(estimator)
    if estimator.takes_rows:
      raise ValueError(
        f'`estimator` must not be pooled; got `{estimator.name}`. Use '
        '`tfp_rb.expectation(lambda z, rows: ..., q, estimator)`.'
      )
    if estimator.differentiates_f:
      raise ValueError(
        '`estimator` must not differentiate `f` w.r.t. the values; got '
        f'`{estimator.name}`. Use, for example, '
        '`REINFORCE(baselines.LeaveOneOut(), num_samples=2)`.'
      )

  def f(z: tf.Tensor) -> tf.Tensor:
    terms = []
    if scale_p:
      terms.append(scale_p * log_p(z))
    if scale_q:
      # Stop the gradient of log q, which has mean 0. Without it, the gradient
      # of the divergence has no variance at q = p.
      terms.append(scale_q * tf.stop_gradient(whole.log_prob(z)))
    dtype = dtypes.widest(terms)
    return tf.add_n([tf.cast(term, dtype) for term in terms])

  return expectation(f, q, estimator, seed=seed)


def _checked(p: Integrand, whole: Whole) -> Integrand:
  """Returns `p` with checks of its results."""
  if needs_rows(p):
    p = serve_rows(p, whole.batch_shape)
  integrand = CheckedIntegrand(p, whole.batch_shape, name='p')
  return lambda z: integrand.check(p(z), z)


def _same_batch(
  q: Distribution, p: Distribution
) -> tuple[Distribution, Distribution]:
  """Broadcasts two distributions to their common batch shape, if static."""
  shape = tf.broadcast_static_shape(q.batch_shape, p.batch_shape)
  if not shape.is_fully_defined():
    return q, p
  q, p = (
    d if d.batch_shape == shape else tfd.BatchBroadcast(d, to_shape=shape)
    for d in (q, p)
  )
  return q, p
