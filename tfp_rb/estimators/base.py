# SPDX-License-Identifier: Apache-2.0
"""Defines the base class of gradient estimators."""

import abc
from collections.abc import Callable
import copy
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_rb.designs import Atoms, CheckedIntegrand, Whole, draw, whole_of
from tfp_rb.internal import checks, dtypes, random, shapes
from tfp_rb.internal.config import Configurable
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed

__all__ = ['Estimate', 'GradientEstimator', 'check_estimator']


class Estimate(NamedTuple):
  """Holds the result of an estimator at its atoms.

  Attributes:
    value: `Tensor` of shape `[m] + batch_shape`, `f(z)`.
    surrogate: `Tensor` of that shape whose gradient is `g(z)`.
    auxiliary: `Tensor` of `batch_shape`, an objective of the estimator's own
      variables, to be minimised; `None` if it has none.
  """

  value: tf.Tensor
  surrogate: tf.Tensor
  auxiliary: tf.Tensor | None = None


class GradientEstimator(Configurable, metaclass=abc.ABCMeta):
  """Base class of the estimators, which choose atoms and evaluate `f` there.

  ```none
  sum_i  w_i g(z_i)      atoms z_i and weights w_i: `sample_atoms`
                         gradient estimator g:      `evaluate`
  ```

  A new estimator implements `evaluate`, which receives the atoms and must not
  draw others instead. `tfp_rb.rao_blackwellize` then supports the estimator,
  because it only chooses the atoms. An estimator that needs special atoms, for
  example draws in pairs, overrides `choose_atoms`.

  #### Examples

  ```python
  class ScoreFunction(tfp_rb.GradientEstimator):

    def evaluate(self, f, distribution, atoms, seed):
      del distribution, seed
      value = f(atoms.values)
      score = tf.stop_gradient(value) * atoms.log_prob
      return tfp_rb.Estimate(value, surrogate=value + score)

  q = tfp.distributions.Categorical(logits=[0., 1., 2.])
  f = lambda z: tf.cast(z, tf.float32)**2
  tfp_rb.expectation(f, q, tfp_rb.rao_blackwellize(
      ScoreFunction(), num_summed=3))  # ==> 2.9057
  ```
  """

  # Whether `f` is called as `f(z, rows)`; see `pooled`.
  takes_rows: bool = False
  # Whether the atoms are all values. A model may then sum them in another way.
  sums_everything: bool = False

  def __init__(self, *, num_samples: int = 1, name: str | None = None) -> None:
    """Stores the number of draws.

    Args:
      num_samples: Python `int`, the number of draws. If the estimator is
        Rao-Blackwellized, it is the number of draws from the rest.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(name=name)
    self._num_samples = checks.check_int(num_samples, 'num_samples', minimum=1)

  @property
  def num_samples(self) -> int:
    """The number of draws."""
    return self._num_samples

  @property
  def differentiates_f(self) -> bool:
    """Whether `f` is differentiated w.r.t. its atoms.

    The atoms are then floating-point numbers.
    """
    return False

  def unwrap(self) -> 'GradientEstimator':
    """Returns the estimator inside any wrappers.

    `rao_blackwellize` and `local_expectation` return wrappers that only choose
    the atoms.
    """
    return self

  def replace(self, num_samples: int) -> 'GradientEstimator':
    """Returns a copy that draws `num_samples` and shares all variables."""
    # A shallow copy holds the same variables and networks.
    copied = copy.copy(self)
    copied._num_samples = checks.check_int(num_samples, 'num_samples', 1)
    return copied

  def bind(self, *inputs: Any) -> 'GradientEstimator':
    """Returns this estimator for the inputs of one step, such as images.

    Args:
      *inputs: The arguments of the estimator's own network. An estimator
        without a network ignores them.

    Returns:
      estimator: A `GradientEstimator` that shares all variables.
    """
    del inputs
    return self

  def at_step(self, step: int | tf.Tensor) -> 'GradientEstimator':
    """Sets the schedules of the estimator to a step.

    Args:
      step: The number of steps done so far, an `int` or a scalar `Tensor`.

    Returns:
      estimator: This estimator.
    """
    # Schedules may be nested, e.g. in the estimator inside a wrapper.
    for module in (self, *self.submodules):
      if hasattr(module, 'set_step'):
        module.set_step(step)
    return self

  @property
  def needs_vectors(self) -> bool:
    """Whether the atoms must be floating-point numbers or one-hot vectors.

    This is so if `f` is differentiated w.r.t. them, or if they are relaxed.
    """
    return self.differentiates_f

  @property
  def keeps_averages(self) -> bool:
    """Whether every call updates averages that all replicas exchange.

    Such a call cannot be compiled by each replica of `tf.distribute` alone.
    """
    return any(
      module.keeps_averages
      for module in self.submodules
      if isinstance(module, GradientEstimator)
    )

  @property
  def chooses_atoms(self) -> str | None:
    """The reason why the estimator chooses its own atoms, or `None`.

    `rao_blackwellize` raises an error that contains this reason.
    """
    # Estimators of version 0.1 override `sample_atoms` instead.
    own = type(self).choose_atoms is not GradientEstimator.choose_atoms
    own |= type(self).sample_atoms is not GradientEstimator.sample_atoms
    if not own:
      return None
    return f'`{type(self).__name__}` chooses its own atoms.'

  @property
  def evaluates_only_atoms(self) -> bool:
    """Whether `f` may be evaluated before `evaluate` is called.

    If so, `evaluate` must call `f` once, at `atoms.values` followed by
    `atoms.extra`, and must not differentiate `f` w.r.t. its argument.
    `local_expectation` then evaluates `f` only once at the value that all sites
    share.
    """
    return False

  @property
  def serves_dependent_sites(self) -> bool:
    """Whether `local_expectation` supports sites that depend on each other.

    Given the sites after it, the score of a site does not have mean 0. So the
    level that is subtracted from `f` must not depend on the atoms. The level
    may depend on `atoms.extra`, which are joint draws for such sites.
    """
    return False

  @property
  def why_not_pooled(self) -> str | None:
    """The reason why `pooled` does not support the estimator, or `None`.

    In a pool the atoms of all batch members share one axis. Set this to `None`
    if `evaluate` treats each atom separately.
    """
    return (
      f'`{type(self).__name__}` needs separate atoms for each batch member.'
    )

  def integrand(
    self, f: Callable[..., tf.Tensor], atoms: Atoms
  ) -> CheckedIntegrand:
    """Returns the user's `f`, with checks of its results."""
    return CheckedIntegrand(f, shapes.as_list(atoms.weights)[1:])

  def num_extra(self, num_atoms: int) -> int:
    """Returns the number of draws from `q` needed in addition to the atoms."""
    del num_atoms
    return 0

  def sample_atoms(
    self, distribution: Distribution, seed: StatelessSeed
  ) -> Atoms:
    """Chooses where `f` is evaluated.

    `expectation` derives its own seeds from the one that it is given, so these
    are not the atoms of `expectation` with the same seed.

    Args:
      distribution: A discrete `tfp.distributions.Distribution`.
      seed: Stateless seed, `int32[2]`.

    Returns:
      atoms: `Atoms`.
    """
    return self.atoms_of(whole_of(distribution), seed)

  def atoms_of(self, whole: Whole, seed: StatelessSeed) -> Atoms:
    """Returns the atoms, with the additional draws that the estimator needs.

    Args:
      whole: The whole `Partition` of the distribution.
      seed: Stateless seed, `int32[2]`.

    Returns:
      atoms: `Atoms`.
    """
    atom_seed, extra_seed = random.split_seed(seed, n=2)
    atoms = self.choose_atoms(whole, atom_seed)
    num_extra = self.num_extra(atoms.weights.shape[0])
    if not num_extra:
      return atoms
    # [num_extra] + batch_shape + event_shape, from the whole distribution.
    return atoms._replace(extra=whole.draw_rest(num_extra, extra_seed))

  def choose_atoms(self, whole: Whole, seed: StatelessSeed) -> Atoms:
    """Chooses the atoms; by default, `num_samples` independent draws.

    Args:
      whole: The whole `Partition` of the distribution.
      seed: Stateless seed, `int32[2]`.

    Returns:
      atoms: `Atoms`.
    """
    return draw(whole, self.num_samples, seed)

  @abc.abstractmethod
  def evaluate(
    self,
    f: Integrand,
    distribution: Distribution,
    atoms: Atoms,
    seed: StatelessSeed,
  ) -> Estimate:
    """Calls `f` once and returns the estimate at each atom.

    Args:
      f: Callable that maps values of shape `[m] + batch_shape + event_shape` to
        a `Tensor` of shape `[m] + batch_shape`.
      distribution: The distribution. Differentiate `atoms.log_prob`, not its
        `log_prob`.
      atoms: `Atoms`.
      seed: Stateless seed, `int32[2]`, for the estimator's own noise.

    Returns:
      estimate: An `Estimate`.
    """

  def combine(
    self, estimate: Estimate, atoms: Atoms
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sums `w_i g(z_i)` over the atoms.

    Args:
      estimate: The result of `evaluate`.
      atoms: `Atoms`.

    Returns:
      value: `Tensor` of `batch_shape`.
      surrogate: `Tensor` of `batch_shape`, which is differentiated.
      auxiliary: `Tensor` of `batch_shape`.
    """
    value, surrogate, auxiliary = _checked(estimate, atoms, self)  # [m] + batch
    # Values in half precision are summed in the dtype of the weights, float32.
    dtype = dtypes.widest([value, atoms.weights])
    weights = tf.cast(atoms.weights, dtype)
    total = self.sum_atoms(weights * tf.cast(value, dtype), atoms)
    surrogate = self.sum_atoms(weights * tf.cast(surrogate, dtype), atoms)
    if auxiliary is None:
      return total, surrogate, tf.zeros_like(total)
    # A pool has one objective for the whole batch.
    auxiliary = tf.cast(auxiliary, dtype)
    return total, surrogate, tf.broadcast_to(auxiliary, tf.shape(total))

  def sum_atoms(self, terms: tf.Tensor, atoms: Atoms) -> tf.Tensor:
    """Sums the terms of all atoms into a Tensor of `batch_shape`."""
    del atoms
    return tf.reduce_sum(terms, axis=0)

  # The type is `Any` because Keras variables are not `tf.Variable`s.

  @property
  def variables(self) -> tuple[Any, ...]:
    """All variables, including those of attached Keras networks."""
    return _merged(super().variables, self, 'variables')

  @property
  def trainable_variables(self) -> tuple[Any, ...]:
    """Trainable variables, including those of attached Keras networks."""
    return _merged(super().trainable_variables, self, 'trainable_variables')


def _merged(own: tuple[Any, ...], module: Any, kind: str) -> tuple[Any, ...]:
  """Adds the variables of attributes that are not `tf.Module`s.

  Keras 3 networks are such attributes. This function does not import Keras to
  recognise them: they have an attribute that lists their variables.

  Args:
    own: Tuple, the variables that `tf.Module` finds.
    module: The estimator.
    kind: Python `str`, 'variables' or 'trainable_variables'.

  Returns:
    variables: Tuple without repetitions.
  """
  found = list(own)
  for part in (module, *module.submodules):
    # TensorFlow stores its own bookkeeping in attributes `_self_...`.
    for attribute in tf.nest.flatten(
      [v for k, v in vars(part).items() if not k.startswith('_self_')]
    ):
      if not isinstance(attribute, (tf.Module, tf.Variable)):
        found += list(getattr(attribute, kind, None) or [])
  # Compare by identity, because `==` compares the values of variables.
  unique = {id(variable): variable for variable in found}
  return tuple(unique.values())


def _checked(
  estimate: Any, atoms: Atoms, estimator: GradientEstimator
) -> Estimate:
  """Returns an `Estimate`, or raises if it is not a valid one."""
  name = type(estimator).__name__
  if not isinstance(estimate, Estimate):
    raise TypeError(
      f'`{name}.evaluate` must return a `tfp_rb.Estimate`; got {estimate!r}. '
      'Write `tfp_rb.Estimate(value, surrogate)`.'
    )
  expected = atoms.weights.shape
  for part in ('value', 'surrogate'):
    shape = tf.convert_to_tensor(getattr(estimate, part)).shape
    if not shape.is_compatible_with(expected):
      raise ValueError(
        f'`{part}` of the `Estimate` of `{name}` must have shape '
        f'[m] + batch_shape, {expected}; got {shape}. Sum over the event only.'
      )
  return estimate


def check_estimator(estimator: Any, name: str = 'estimator') -> None:
  """Raises `TypeError` unless an argument is a `GradientEstimator`."""
  if not isinstance(estimator, GradientEstimator):
    raise TypeError(
      f'`{name}` must be a `tfp_rb.GradientEstimator`; got '
      f'{estimator!r}. Write, for example, `tfp_rb.REINFORCE()`.'
    )
