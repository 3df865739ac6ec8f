"""The entry point."""

import tensorflow as tf

from tfp_rb import _checks, _evaluations, _gradient, _random, baselines
from tfp_rb._rao_blackwell import rao_blackwellize
from tfp_rb._types import Distribution, Integrand, Seed, do_not_convert
from tfp_rb.estimators import REINFORCE
from tfp_rb.estimators.base import Estimate, GradientEstimator

__all__ = ['expectation']


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
  if not callable(f):
    raise TypeError(
      f'`f` must be callable, but is {f!r}. Pass a function of the atoms, e.g. '
      '`lambda z: tf.gather(cost, z)`.'
    )
  _checks.check_discrete(distribution)
  if estimator is None:
    estimator = rao_blackwellize(
      REINFORCE(baseline=baselines.LeaveOneOut(), num_samples=2), num_summed=1
    )
  if not isinstance(estimator, GradientEstimator):
    raise TypeError(
      '`estimator` must be a `tfp_rb.GradientEstimator`, but is '
      f'{estimator!r}. Write, for example, `tfp_rb.REINFORCE()`.'
    )
  with tf.name_scope(name or 'expectation'):
    atom_seed, noise_seed = _random.split_seed(seed, n=2)
    atoms = estimator.sample_atoms(distribution, atom_seed)
    f = _checks.checked_function(_evaluations.counted(f), distribution)
    estimate = estimator.evaluate(f, distribution, atoms, noise_seed)
    _check_estimate(estimate, atoms, estimator)
    value, surrogate, auxiliary = estimate
    # Half precision is summed in the dtype of the weights.
    dtype = max(value.dtype, atoms.weights.dtype, key=lambda d: d.size)
    weights = tf.cast(atoms.weights, dtype)
    total, surrogate = (
      tf.reduce_sum(weights * tf.cast(x, dtype), axis=0)
      for x in (value, surrogate)
    )
    if auxiliary is None:
      auxiliary = tf.zeros_like(total)
    result = _gradient.value_with_gradient_of(
      total, surrogate, tf.cast(auxiliary, dtype)
    )
    return tf.cast(result, value.dtype)


def _check_estimate(estimate, atoms, estimator):
  """Raises unless an estimator of the user's does what it has to."""
  name = type(estimator).__name__
  if not isinstance(estimate, Estimate):
    raise TypeError(
      f'`{name}.evaluate` must return a `tfp_rb.Estimate`, but returned '
      f'{estimate!r}. Write `tfp_rb.Estimate(value, surrogate)`.'
    )
  expected = atoms.weights.shape
  for part in ('value', 'surrogate'):
    shape = tf.convert_to_tensor(getattr(estimate, part)).shape
    if not shape.is_compatible_with(expected):
      raise ValueError(
        f'`{part}` of the `Estimate` of `{name}` must have shape '
        f'[m] + batch_shape, {expected}, but has {shape}. Sum over the event '
        'only.'
      )
