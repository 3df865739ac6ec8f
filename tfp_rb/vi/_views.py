"""Over which discrete parts a loss is estimated, all at once or in turn."""

import tensorflow as tf

from tfp_rb._atoms import draw_atoms
from tfp_rb._checks import is_product
from tfp_rb._local_expectation import LocalExpectation
from tfp_rb._rao_blackwell import rao_blackwellize
from tfp_rb.partitions import _shapes
from tfp_rb.vi._arguments import innermost

__all__ = ['views_of']


def views_of(parts, estimator, seed):
  """What the expectations are taken over, and by which estimators.

  All parts together; or, if they go site by site, each part in turn while the
  others are held at one joint draw. The expectation is then the mean of theirs,
  and so is its gradient by all but the parts themselves: by these it is a sum.

  Args:
    parts: A `Split`.
    estimator: The `GradientEstimator` that was chosen.
    seed: Stateless seed, `int32[2]`.

  Returns:
    views: List of tuples: a distribution, an estimator, and a function of
      values of the one to values of all parts.
  """
  is_single = len(parts.independent) == 1
  if is_single or not isinstance(estimator, LocalExpectation):
    return [(parts.discrete, estimator, lambda values: values)]
  if not parts.independent:
    raise ValueError(
      '`local_expectation` needs discrete parts of `surrogate_posterior` that '
      'do not depend on each other, but some may. Use '
      '`tfp_rb.rao_blackwellize`, which sums them jointly.'
    )
  if innermost(estimator).differentiates_f:
    kind = type(innermost(estimator)).__name__
    raise ValueError(
      f'`gradient_estimator` must not be of `{kind}`, which differentiates by '
      'the atoms, where `surrogate_posterior` has several discrete parts. Use, '
      'for example, `tfp_rb.REINFORCE` with a baseline.'
    )
  joint = draw_atoms(parts.discrete, 1, seed).values
  held = parts.discrete.unpack(joint)
  return [
    (
      distribution,
      estimator
      if is_product(distribution)
      else rao_blackwellize(estimator.estimator, estimator.num_summed),
      _substitute(parts.discrete, held, index),
    )
    for index, distribution in enumerate(parts.independent)
  ]


def _substitute(discrete, held, index):
  def substituted(values):
    n = _shapes.leading(values)
    everything = [tf.repeat(x, n, axis=0) for x in held]
    everything[index] = values
    return discrete.pack(everything)

  return substituted
