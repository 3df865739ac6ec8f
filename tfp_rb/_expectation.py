"""The entry point."""

import tensorflow as tf

from tfp_rb import baselines
from tfp_rb.designs import CheckedIntegrand
from tfp_rb.estimators import REINFORCE
from tfp_rb.estimators.base import GradientEstimator, check_estimator
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.internal import checks, gradients, random, shapes
from tfp_rb.internal.types import Distribution, Integrand, Seed, do_not_convert
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
  """Estimates `E_q[f(z)]` over a discrete `q`, and how it is differentiated.

  ```none
  value     sum_i w_i f(z_i)
  gradient  sum_i w_i g(z_i)      g is the estimator's
  ```

  The value is an estimate of the expectation itself, unbiased where the
  estimator is, never a pseudo-loss. The gradient reaches everything: the
  parameters of `q`, variables that `f` uses, and the estimator's own variables
  (a learned baseline). One loss and one tape train all of them.

  Args:
    f: Callable. Takes atoms of shape `[m] + batch_shape + event_shape` and
      returns a floating-point `Tensor` of shape `[m] + batch_shape`. It is
      called once, with all atoms together, unless the estimator's docstring
      says otherwise.
    distribution: A discrete `tfp.distributions.Distribution`, `q`.
    estimator: A `GradientEstimator`. Default: the most probable value is summed
      and two of the rest are drawn, with a leave-one-out baseline, i.e.
      `rao_blackwellize(REINFORCE(baseline=baselines.LeaveOneOut(),
      num_samples=2), num_summed=1)`.
    seed: As in TFP: a stateless seed (`int32[2]`) gives the same atoms in
      eager, graph and XLA; an `int` or `None` is stateful.
    name: Python `str`, name of the scope of the operations.

  Returns:
    expectation: `Tensor` of `batch_shape`, in the dtype of `f`'s result.

  Raises:
    TypeError: `f` is not callable or returns integers, `distribution` is not
      discrete, or `estimator` is no estimator.
    ValueError: `f` returns another shape than `[m] + batch_shape`.

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
  if estimator is None:
    estimator = rao_blackwellize(
      REINFORCE(baselines.LeaveOneOut(), num_samples=2), num_summed=1
    )
  check_estimator(estimator)
  with tf.name_scope(name or 'expectation'):
    atom_seed, noise_seed = random.split_seed(seed, n=2)
    atoms = estimator.sample_atoms(distribution, atom_seed)
    integrand = CheckedIntegrand(f, shapes.as_list(atoms.weights)[1:])
    return estimate_at(atoms, integrand, distribution, estimator, noise_seed)


def estimate_at(atoms, f, distribution, estimator, seed):
  """Returns the estimate, given the atoms.

  Args:
    atoms: What `estimator.sample_atoms` returned.
    f: Callable of atoms, as `CheckedIntegrand`.
    distribution: The distribution.
    estimator: A `GradientEstimator`.
    seed: Stateless seed, `int32[2]`, of noise beside the atoms.

  Returns:
    expectation: `Tensor` of `batch_shape`.
  """
  estimate = estimator.evaluate(f, distribution, atoms, seed)
  value, surrogate, auxiliary = estimator.combine(estimate, atoms)
  result = gradients.value_with_gradient_of(value, surrogate, auxiliary)
  # Sums are in the dtype of the weights; the result is in that of `f`.
  return tf.cast(result, tf.nest.flatten(estimate)[0].dtype)
