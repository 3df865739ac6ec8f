"""One-hot atoms on the simplex, and Gumbel noise given the atom.

A relaxed estimator works on sites of `K` classes each. A `Bernoulli` is a site
of two classes. With `L` the log-probabilities of a site and `z` its atom, the
perturbed log-probabilities `L + gumbel` given that `z` is their argmax are

```none
  T                                      at the class of z
  L + g - softplus(L + g - T)            at the others
```

with `T` and `g` standard Gumbel variables: the maximum does not depend on where
it is, and the others are Gumbel variables truncated below it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb import _checks, _logits, _random
from tfp_rb._atoms import is_draw

__all__ = ['Noise', 'Relaxation', 'linear_in', 'relaxation_of']

tfd = tfp.distributions


class Noise(NamedTuple):
  """Perturbed log-probabilities, given the atoms.

  Attributes:
    perturbed: `Tensor` of shape `[m] + batch_shape + sites + [K]`, constant.
    share: `Tensor` of that shape, in (0, 1]: how much of `L + noise`, with the
      noise held fixed, moves with `L` while the perturbed ones given the atom
      do not. The difference of the two paths is diagonal: it is
      `1` at the class of the atom and `sigmoid(L + g - T)` at the others.
  """

  perturbed: tf.Tensor
  share: tf.Tensor


class Relaxation(NamedTuple):
  """A distribution as sites of one-hot vectors.

  Attributes:
    dtype: Dtype of the logits, in which `f` is handed its atoms.
    log_probs: Differentiable `Tensor` of shape `batch_shape + sites + [K]`,
      normalised, at least float32.
    num_sites: Python `int`, the rank of `sites`.
    to_one_hot: Callable, atoms of the distribution to one-hot vectors of shape
      `[m] + batch_shape + sites + [K]` in the dtype of `log_probs`; linear, so
      that points between the atoms have vectors, too.
    to_event: Callable, vectors of that shape to what `f` takes, in `dtype`.
  """

  dtype: tf.DType
  log_probs: tf.Tensor
  num_sites: int
  to_one_hot: Callable
  to_event: Callable

  @property
  def site_axes(self):
    """Axes of the sites and of the classes."""
    return list(range(-1 - self.num_sites, 0))

  def log_prob_between(self, values):
    """`log q` of atoms and of points between them, linear in their vectors.

    Args:
      values: `Tensor`, what `f` takes.

    Returns:
      log_prob: `Tensor` of shape `[m] + batch_shape`; by `values` it is
        differentiable, by the parameters it is a constant.
    """
    log_probs = tf.stop_gradient(self.log_probs)
    is_possible = log_probs > -np.inf
    log_probs = tf.where(is_possible, log_probs, tf.zeros_like(log_probs))
    terms = self.to_one_hot(values) * log_probs
    return tf.reduce_sum(terms, axis=self.site_axes)

  def of_rest(self, atoms, one_hot):
    """Log-probabilities given the rest, for each atom, and where they count.

    Args:
      atoms: `Atoms` of a single site.
      one_hot: `Tensor` of shape `[m] + batch_shape + [K]`, their vectors.

    Returns:
      log_probs: `Tensor` of shape `[m] + batch_shape + [K]`: of `q` restricted
        to the rest at the draws, of `q` at the other atoms.
      log_rest: `Tensor` of shape `[m] + batch_shape`, the differentiable log
        of the mass of the rest; 0 at the other atoms.
      is_from_rest: Boolean `Tensor` of shape `[m] + batch_shape`.
    """
    is_possible = atoms.weights > 0.0
    drawn = is_draw(atoms)
    # Atoms of weight 0 stand where another one is, so they exclude nothing.
    listed = tf.cast(is_possible & ~drawn, one_hot.dtype)[..., tf.newaxis]
    is_summed = tf.reduce_any(listed * one_hot > 0.0, axis=0, keepdims=True)
    is_from_rest = drawn & is_possible
    excluded = is_summed & is_from_rest[..., tf.newaxis]
    log_probs = tf.where(
      excluded, tf.constant(-np.inf, one_hot.dtype), self.log_probs
    )
    log_rest = tf.reduce_logsumexp(log_probs, axis=-1)
    return log_probs - log_rest[..., tf.newaxis], log_rest, is_from_rest

  def noise(self, log_probs, one_hot, seed, num_noises=None):
    """Draws the `Noise` given the atoms.

    Args:
      log_probs: `Tensor` that broadcasts to the shape of `one_hot`.
      one_hot: `Tensor` of shape `[m] + batch_shape + sites + [K]`.
      seed: Stateless seed, `int32[2]`.
      num_noises: Python `int`, for that many in front; `None` for one.

    Returns:
      noise: `Noise`.
    """
    extra = [] if num_noises is None else [num_noises]
    gumbel = _gumbel(extra, one_hot, seed)
    is_atom = one_hot > 0.5
    top = tf.reduce_sum(one_hot * gumbel, axis=-1, keepdims=True)
    free = tf.stop_gradient(log_probs) + gumbel
    below = free - tf.math.softplus(free - top)
    return Noise(
      perturbed=tf.where(is_atom, top, below),
      share=tf.where(is_atom, tf.ones_like(free), tf.sigmoid(free - top)),
    )

  def free_noise(self, log_probs, num_noises, seed):
    """Perturbed log-probabilities without an atom, `num_noises` in front."""
    return tf.stop_gradient(log_probs) + _gumbel([num_noises], log_probs, seed)


def _gumbel(sample_shape, like, seed):
  """Standard Gumbel variables of shape `sample_shape + like.shape`."""
  shape = tf.concat([sample_shape, tf.shape(like)], axis=0)
  uniform = _random.uniform(shape, seed, like.dtype)
  uniform = tf.ensure_shape(uniform, sample_shape + like.shape.as_list())
  return -tf.math.log(-tf.math.log(uniform))


def linear_in(log_probs, coefficients):
  """Terms of a sum that differentiate to constant `coefficients` of `L`.

  Args:
    log_probs: Differentiable `Tensor`; `-inf` entries take no part.
    coefficients: `Tensor`, not differentiated.

  Returns:
    terms: `Tensor`, `coefficients * log_probs`, 0 at impossible classes.
  """
  is_possible = log_probs > -np.inf
  zeros = tf.zeros_like(coefficients)
  return tf.stop_gradient(
    tf.where(is_possible, coefficients, zeros)
  ) * tf.where(is_possible, log_probs, tf.zeros_like(log_probs))


def relaxation_of(distribution, name):
  """Returns the `Relaxation` of a distribution.

  Args:
    distribution: A `OneHotCategorical`, a `Bernoulli`, or `Independent` or
      `Sample` of them.
    name: Python `str`, the estimator that asks.

  Returns:
    relaxation: A `Relaxation`.
  """
  if _checks.is_a(distribution, tfd.Independent):
    inner = relaxation_of(distribution.distribution, name)
    num_dims = tf.get_static_value(distribution.reinterpreted_batch_ndims)
    return inner._replace(num_sites=inner.num_sites + int(num_dims))
  if _checks.is_a(distribution, tfd.Sample):
    return _of_sample(distribution, name)
  for kind in (tfd.BatchReshape, tfd.BatchBroadcast):
    if _checks.is_a(distribution, kind):
      return _of_batch(distribution, name)
  if isinstance(distribution, tfd.OneHotCategorical):
    logits = _logits.at_least_float32(_logits.categorical_logits(distribution))
    dtype = _logits.parameter_dtype(distribution)
    return Relaxation(
      dtype=dtype,
      log_probs=tf.nn.log_softmax(logits),
      num_sites=0,
      to_one_hot=lambda z: tf.cast(z, logits.dtype),
      to_event=lambda x: tf.cast(x, dtype),
    )
  if isinstance(distribution, tfd.Bernoulli):
    log_probs = _logits.bernoulli_log_probs(distribution)
    dtype = _logits.parameter_dtype(distribution)
    return Relaxation(
      dtype=dtype,
      log_probs=log_probs,
      num_sites=0,
      to_one_hot=lambda z: tf.stack(
        [1.0 - tf.cast(z, log_probs.dtype), tf.cast(z, log_probs.dtype)], -1
      ),
      to_event=lambda x: tf.cast(x[..., 1], dtype),
    )
  kind = type(distribution).__name__
  advice = {
    'Categorical': 'Use `tfd.OneHotCategorical`, and an `f` of one-hot vectors.'
  }.get(kind, 'Use `tfp_rb.REINFORCE`, which asks for nothing of the kind.')
  raise TypeError(
    f'`{name}` relaxes its atoms, so `distribution` must be a '
    '`tfd.OneHotCategorical`, a `tfd.Bernoulli`, or `tfd.Independent` or '
    f'`tfd.Sample` of them, but is a `{kind}`. {advice}'
  )


def _of_batch(distribution, name):
  """Another arrangement of the batch, or copies of it."""
  inner = relaxation_of(distribution.distribution, name)
  old, new = (
    d.batch_shape.as_list() for d in (distribution.distribution, distribution)
  )
  event = inner.log_probs.shape[len(old) :]
  log_probs = inner.log_probs
  if _checks.is_a(distribution, tfd.BatchReshape):
    log_probs = tf.reshape(log_probs, [*new, *event])
  return inner._replace(log_probs=tf.broadcast_to(log_probs, [*new, *event]))


def _of_sample(distribution, name):
  inner = relaxation_of(distribution.distribution, name)
  sample_shape = tf.get_static_value(distribution.sample_shape)
  sample_shape = [int(n) for n in np.reshape(sample_shape, [-1])]
  batch_rank = inner.log_probs.shape.rank - inner.num_sites - 1
  shape = tf.shape(inner.log_probs)
  ones = [1] * len(sample_shape)
  log_probs = tf.reshape(
    inner.log_probs,
    tf.concat([shape[:batch_rank], ones, shape[batch_rank:]], axis=0),
  )
  log_probs = tf.broadcast_to(
    log_probs,
    tf.concat([shape[:batch_rank], sample_shape, shape[batch_rank:]], axis=0),
  )
  static = inner.log_probs.shape.as_list()
  log_probs = tf.ensure_shape(
    log_probs, static[:batch_rank] + sample_shape + static[batch_rank:]
  )
  return inner._replace(
    log_probs=log_probs, num_sites=inner.num_sites + len(sample_shape)
  )
