"""What a gradient estimator is."""

import abc
import copy
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_rb.designs import Atoms, Whole, draw, whole_of
from tfp_rb.internal import checks, dtypes, random
from tfp_rb.internal.config import Configurable
from tfp_rb.internal.types import Distribution, Integrand, StatelessSeed

__all__ = ['Estimate', 'GradientEstimator', 'check_estimator']


class Estimate(NamedTuple):
  """What an estimator says at its atoms.

  Attributes:
    value: `Tensor` of shape `[m] + batch_shape`, `f(z)`.
    surrogate: `Tensor` of that shape that differentiates to `g(z)`.
    auxiliary: `Tensor` of `batch_shape`, an objective of the estimator's own
      variables, to be minimised; `None` if it has none.
  """

  value: tf.Tensor
  surrogate: tf.Tensor
  auxiliary: tf.Tensor | None = None


class GradientEstimator(Configurable, metaclass=abc.ABCMeta):
  """Base class: where `f` is evaluated, and what is made of its values there.

  ```none
  sum_i  w_i g(z_i)      atoms z_i and weights w_i: `sample_atoms`
                         gradient estimator g:      `evaluate`
  ```

  A new estimator implements `evaluate`. It is handed its atoms and must not
  draw others in their place: then `tfp_rb.rao_blackwellize`, which only
  chooses the atoms, applies to it. An estimator that needs atoms of its own,
  draws in pairs for example, overrides `choose_atoms`.

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

  differentiates_f = False  # by the atoms: then these are floating-point

  def __init__(self, *, num_samples: int = 1, name: str | None = None) -> None:
    """Stores how many atoms are drawn.

    Args:
      num_samples: Python `int`, the number of draws; when Rao-Blackwellized,
        the number of draws from the rest.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(name=name)
    self._num_samples = checks.check_int(num_samples, 'num_samples', minimum=1)

  @property
  def num_samples(self) -> int:
    """Number of draws."""
    return self._num_samples

  def unwrap(self) -> 'GradientEstimator':
    """Returns the estimator that says what an estimate is.

    `rao_blackwellize` and `local_expectation` put others around it, which say
    where an estimate is made.
    """
    return self

  def replace(self, num_samples: int) -> 'GradientEstimator':
    """Returns a copy that draws `num_samples` and shares all variables."""
    copied = copy.copy(self)
    copied._num_samples = checks.check_int(num_samples, 'num_samples', 1)
    return copied

  def bind(self, *inputs: Any) -> 'GradientEstimator':
    """Returns this estimator for the inputs of one step, images for example.

    Args:
      *inputs: What the estimator's own network is called with. An estimator
        without a network ignores them.

    Returns:
      estimator: A `GradientEstimator` that shares all variables.
    """
    del inputs
    return self

  def at_step(self, step: int | tf.Tensor) -> 'GradientEstimator':
    """Moves the schedules of the estimator to a step.

    Args:
      step: The number of steps before, an `int` or a scalar `Tensor`.

    Returns:
      estimator: This estimator.
    """
    for module in (self, *self.submodules):
      if hasattr(module, 'set_step'):
        module.set_step(step)
    return self

  @property
  def needs_vectors(self) -> bool:
    """Whether atoms have to be one-hot vectors, or numbers, of floating point.

    So they are where `f` is differentiated by them, or where they are relaxed.
    """
    return self.differentiates_f

  @property
  def chooses_atoms(self) -> str | None:
    """Why the atoms must be the estimator's own; `None` where they need not.

    Then `rao_blackwellize` refuses the estimator and gives this reason.
    """
    own = type(self).choose_atoms is not GradientEstimator.choose_atoms
    own |= type(self).sample_atoms is not GradientEstimator.sample_atoms
    if not own:
      return None
    return f'`{type(self).__name__}` chooses its own atoms.'

  def num_extra(self, num_atoms: int) -> int:
    """Returns how many draws from the whole are needed beside the atoms."""
    del num_atoms
    return 0

  def sample_atoms(
    self, distribution: Distribution, seed: StatelessSeed
  ) -> Atoms:
    """Chooses where `f` is evaluated.

    Args:
      distribution: A discrete `tfp.distributions.Distribution`.
      seed: Stateless seed, `int32[2]`.

    Returns:
      atoms: `Atoms`.
    """
    return self.atoms_of(whole_of(distribution), seed)

  def atoms_of(self, whole: Whole, seed: StatelessSeed) -> Atoms:
    """Returns the atoms and the draws that the estimator needs beside them.

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
    return atoms._replace(extra=whole.draw_rest(num_extra, extra_seed))

  def choose_atoms(self, whole: Whole, seed: StatelessSeed) -> Atoms:
    """Chooses the atoms; here, `num_samples` independent draws.

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
    """Evaluates `f`, once, and makes an estimate at each atom.

    Args:
      f: Callable, values `[m] + batch_shape + event_shape` to `Tensor` of
        shape `[m] + batch_shape`.
      distribution: The distribution. Differentiate `atoms.log_prob`, not its
        `log_prob`.
      atoms: `Atoms`.
      seed: Stateless seed, `int32[2]`, for noise of the estimator's own.

    Returns:
      estimate: An `Estimate`.
    """

  def combine(
    self, estimate: Estimate, atoms: Atoms
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Sums over the atoms.

    Args:
      estimate: What `evaluate` returned.
      atoms: `Atoms`.

    Returns:
      value: `Tensor` of `batch_shape`.
      surrogate: `Tensor` of `batch_shape`, which is differentiated.
      auxiliary: `Tensor` of `batch_shape`.
    """
    value, surrogate, auxiliary = _checked(estimate, atoms, self)
    # Half precision is summed in the dtype of the weights.
    dtype = dtypes.widest([value, atoms.weights])
    weights = tf.cast(atoms.weights, dtype)
    total = tf.reduce_sum(weights * tf.cast(value, dtype), axis=0)
    surrogate = tf.reduce_sum(weights * tf.cast(surrogate, dtype), axis=0)
    if auxiliary is None:
      return total, surrogate, tf.zeros_like(total)
    return total, surrogate, tf.cast(auxiliary, dtype)

  # Of any type, since those of Keras are no `tf.Variable`s.

  @property
  def variables(self) -> tuple[Any, ...]:
    """All variables, those of attached Keras networks included."""
    return _merged(super().variables, self, 'variables')

  @property
  def trainable_variables(self) -> tuple[Any, ...]:
    """Trainable variables, those of attached Keras networks included."""
    return _merged(super().trainable_variables, self, 'trainable_variables')


def _merged(own, module, kind):
  """Adds variables of attributes that carry some but are no `tf.Module`."""
  found = list(own)
  for part in (module, *module.submodules):
    for attribute in tf.nest.flatten(
      [v for k, v in vars(part).items() if not k.startswith('_self_')]
    ):
      if not isinstance(attribute, (tf.Module, tf.Variable)):
        found += list(getattr(attribute, kind, None) or [])
  unique = {id(variable): variable for variable in found}
  return tuple(unique.values())


def _checked(estimate, atoms, estimator):
  """Returns an `Estimate`; raises unless a user's estimator made it right."""
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


def check_estimator(estimator, name='estimator'):
  """Raises `TypeError` unless an argument is a `GradientEstimator`."""
  if not isinstance(estimator, GradientEstimator):
    raise TypeError(
      f'`{name}` must be a `tfp_rb.GradientEstimator`; got '
      f'{estimator!r}. Write, for example, `tfp_rb.REINFORCE()`.'
    )
