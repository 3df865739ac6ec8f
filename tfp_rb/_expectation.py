# SPDX-License-Identifier: Apache-2.0
"""Defines the entry point `expectation`."""

import tensorflow as tf

from tfp_rb.designs import Atoms, whole_of
from tfp_rb.estimators.base import GradientEstimator, check_estimator
from tfp_rb.estimators.default import default_estimator
from tfp_rb.internal import checks, gradients, random
from tfp_rb.internal.types import (
  Distribution,
  Integrand,
  Seed,
  StatelessSeed,
  do_not_convert,
)
from tfp_rb.partitions import check_discrete

__all__ = ['estimate_at', 'expectation']


@do_not_convert
def expectation(
  f: Integrand,
  distribution: Distribution,
  estimator: GradientEstimator | None = None,
  seed: Seed = None,
  name: str | None = None,
) -> tf.Tensor:
  """Estimates `E_q[f(z)]` for a discrete `q`, with the estimator's gradient.

  ```none
  value     sum_i w_i f(z_i)
  gradient  sum_i w_i g(z_i)      g is the estimator's
  ```

  The value estimates the expectation itself; it is never a pseudo-loss, and it
  is unbiased if the estimator is. The gradient is taken with respect to
  everything: the parameters of `q`, the variables that `f` uses, and the
  estimator's own variables (a learned baseline). One loss and one tape train
  all of them.

  `f` is never called at a value of probability 0, so such a value contributes
  nothing to the gradient. At the boundary of the parameters this matters: with
  `Bernoulli(probs=0.)` the gradient with respect to `probs` is 0, although the
  derivative of the sum is `f(1) - f(0)`. Parameterize by `logits`, which have
  no boundary.

  Args:
    f: Callable that takes atoms of shape `[m] + batch_shape + event_shape` and
      returns a floating-point `Tensor` of shape `[m] + batch_shape`. It is
      called once, with all atoms together, unless the estimator's docstring
      says otherwise. You can also pass a function with a second argument named
      `rows`, as `pooled` requires and every estimator supports. Such a function
      is called with values `[n] + event_shape` and their rows in the flattened
      batch, `int32[n]`.
    distribution: A discrete `tfp.distributions.Distribution`, `q`. As in TFP,
      NaN or negative parameters are reported only with `validate_args=True`.
    estimator: A `GradientEstimator`. The default evaluates `f` three times,
      with a leave-one-out baseline. For a single variable or a product of at
      most 8 sites it is
      `rao_blackwellize(REINFORCE(baselines.LeaveOneOut()), budget=3)`, which
      sums a support of at most three values exactly. For a product of more
      sites, and for a distribution without a registered partition, it is
      `REINFORCE(baselines.LeaveOneOut(), num_samples=3)`. The steps of a chain
      count as sites.
    seed: As in TFP: a stateless seed (`int32[2]`) gives the same atoms in
      eager mode, in graphs and under XLA; an `int` or `None` is stateful.
    name: Python `str`, name of the scope of the operations.

  Returns:
    expectation: `Tensor` of `batch_shape`, in the dtype of `f`'s result.

  Raises:
    TypeError: `f` is not callable or returns integers, `distribution` is not
      discrete, or `estimator` is not a `GradientEstimator`.
    ValueError: `f` returns a shape other than `[m] + batch_shape`.

  #### Examples

  ```python
  logits = tf.Variable([0., 1., 2.])
  cost = tf.constant([3., 1., 2.])
  with tf.GradientTape() as tape:
    q = tfp.distributions.Categorical(logits=logits)
    loss = tfp_rb.expectation(
        lambda z: tf.gather(cost, z), q, tfp_rb.Exact())
  loss                         # ==> 1.8453
  tape.gradient(loss, logits)  # ==> [ 0.104  -0.2069  0.1029]
  ```
  """
  checks.check_callable(f, 'f', 'lambda z: tf.gather(cost, z)')
  check_discrete(distribution)
  with tf.name_scope(name or 'expectation'):
    if estimator is None:
      estimator = default_estimator(whole_of(distribution))
    check_estimator(estimator)
    atom_seed, noise_seed = random.split_seed(seed, n=2)
    # The estimator's design chooses the atoms z_i and their weights w_i.
    atoms = estimator.sample_atoms(distribution, atom_seed)
    # The weights have shape [m] + batch_shape.
    integrand = estimator.integrand(f, atoms)
    # The estimator determines what is summed, which is g at each atom.
    return estimate_at(atoms, integrand, distribution, estimator, noise_seed)


def estimate_at(
  atoms: Atoms,
  f: Integrand,
  distribution: Distribution,
  estimator: GradientEstimator,
  seed: StatelessSeed,
) -> tf.Tensor:
  """Returns the estimate at given atoms.

  Args:
    atoms: The result of `estimator.sample_atoms`.
    f: Callable of atoms that checks its results, such as a `CheckedIntegrand`.
    distribution: The distribution.
    estimator: A `GradientEstimator`.
    seed: Stateless seed, `int32[2]`, for the estimator's own noise.

  Returns:
    expectation: `Tensor` of `batch_shape`.
  """
  estimate = estimator.evaluate(f, distribution, atoms, seed)
  value, surrogate, auxiliary = estimator.combine(estimate, atoms)
  # The result has the value of `f` and the gradient of the surrogate. The
  # auxiliary objective trains the estimator's own variables.
  result = gradients.value_with_gradient_of(value, surrogate, auxiliary)
  # Sums have the dtype of the weights, at least float32. Cast the result to the
  # dtype of `f`, which is that of the first Tensor of an estimate, or of the
  # first estimate in a list.
  return tf.cast(result, tf.nest.flatten(estimate)[0].dtype)
