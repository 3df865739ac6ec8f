"""Over which discrete parts a loss is estimated, all at once or in turn."""

import tensorflow as tf

from tfp_rb.designs import draw, whole_of
from tfp_rb.estimators.local_expectation import LocalExpectation
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.internal import shapes
from tfp_rb.vi._arguments import (
  default_estimator,
  differentiates_f,
  with_num_samples,
)

__all__ = ['views_of']


def is_product(distribution):
  """Whether a distribution is a product of independent sites."""
  return bool(whole_of(distribution).sites())


def views_of(parts, estimator, sample_size, seed):
  """What the expectations are taken over, and by which estimators.

  All parts together; or, if they go site by site, each part in turn while the
  others are held at one joint draw. The expectation is then the mean of theirs,
  and so is its gradient by all but the parts themselves: by these it is a sum.

  Args:
    parts: A `Split`.
    estimator: A `GradientEstimator`, or `None` for a good one.
    sample_size: Python `int`, how many draws it makes, or `None` for its own.
    seed: Stateless seed, `int32[2]`.

  Returns:
    views: List of tuples: a distribution, an estimator, and a function of
      values of the one to values of all parts.
  """
  if estimator is None:
    has_sites = any(map(is_product, parts.independent))
  else:
    has_sites = isinstance(estimator, LocalExpectation)
  if not has_sites or len(parts.independent) == 1:
    own = _own_estimator(estimator, parts.discrete, sample_size)
    return [(parts.discrete, own, lambda values: values)]
  if not parts.independent:
    raise ValueError(
      '`local_expectation` needs discrete parts of `surrogate_posterior` that '
      'do not depend on each other, but some may. Use '
      '`tfp_rb.rao_blackwellize`, which sums them jointly.'
    )
  if differentiates_f(estimator):
    kind = type(estimator.unwrap()).__name__
    raise ValueError(
      f'`gradient_estimator` must not be of `{kind}`, which differentiates by '
      'the atoms, where `surrogate_posterior` has several discrete parts. Use, '
      'for example, `tfp_rb.REINFORCE` with a baseline.'
    )
  joint = draw(whole_of(parts.discrete), 1, seed).values
  held = parts.discrete.unpack(joint)
  return [
    (
      distribution,
      _own_estimator(estimator, distribution, sample_size),
      _substitute(parts.discrete, held, index),
    )
    for index, distribution in enumerate(parts.independent)
  ]


def _own_estimator(estimator, distribution, sample_size):
  """The estimator for one part, or for all parts together."""
  if estimator is None:
    estimator = default_estimator(distribution)
  elif isinstance(estimator, LocalExpectation) and not is_product(distribution):
    estimator = rao_blackwellize(estimator.estimator, estimator.num_summed)
  if sample_size is None:
    return estimator
  return with_num_samples(estimator, sample_size)


def _substitute(discrete, held, index):
  def substituted(values):
    n = shapes.leading(values)
    everything = [tf.repeat(x, n, axis=0) for x in held]
    everything[index] = values
    return discrete.pack(everything)

  return substituted
