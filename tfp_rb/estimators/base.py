"""What a gradient estimator is."""

import abc
from typing import Any, NamedTuple

import tensorflow as tf

from tfp_rb import _checks
from tfp_rb._atoms import Atoms, draw_atoms
from tfp_rb._config import Configurable
from tfp_rb._types import Distribution, Integrand, StatelessSeed

__all__ = ['Estimate', 'GradientEstimator', 'innermost']


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
  chooses the atoms, applies to it.

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

  def __init__(self, num_samples: int = 1, name: str | None = None) -> None:
    """Stores how many atoms are drawn.

    Args:
      num_samples: Python `int`, the number of draws; when Rao-Blackwellized,
        the number of draws from the rest.
      name: Python `str`, name of the `tf.Module`.
    """
    super().__init__(name=name)
    self._num_samples = _checks.check_int(num_samples, 'num_samples', minimum=1)

  @property
  def num_samples(self) -> int:
    """Number of draws."""
    return self._num_samples

  def sample_atoms(
    self, distribution: Distribution, seed: StatelessSeed
  ) -> Atoms:
    """Chooses where `f` is evaluated.

    Args:
      distribution: A discrete `tfp.distributions.Distribution`.
      seed: Stateless seed, `int32[2]`.

    Returns:
      atoms: `Atoms`; here, `num_samples` independent draws.
    """
    return draw_atoms(distribution, self.num_samples, seed)

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


def innermost(estimator):
  """What says what an estimate is, inside what says where it is made.

  Args:
    estimator: A `GradientEstimator`, Rao-Blackwellized or not.

  Returns:
    estimator: The one that evaluates.
  """
  while hasattr(estimator, 'estimator'):
    estimator = estimator.estimator
  return estimator
