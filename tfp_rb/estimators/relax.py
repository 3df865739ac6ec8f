# SPDX-License-Identifier: Apache-2.0
"""Defines RELAX, with any control variate of the relaxed atom."""

from collections.abc import Callable
import copy
from typing import Any

import tensorflow as tf

from tfp_rb.designs import CheckedIntegrand
from tfp_rb.estimators.control_variate import RelaxedControlVariate
from tfp_rb.estimators.relaxed import value_and_slope
from tfp_rb.internal import checks
from tfp_rb.internal.types import Integrand, Numeric, Temperature

__all__ = ['RELAX']


class RELAX(RelaxedControlVariate):
  """Uses the score function, with any control variate of the relaxed atom.

  ```none
  g(z) = (f(z) - s c(x)) grad log q(z) + s (grad_u c(x) - grad_v c(x)) + grad f
  x    = softmax((log q + gumbel) / temperature) given that its argmax is z
  ```

  This is `REBAR` with any differentiable function `c` in place of `f`, for
  example a neural network. The gradient is unbiased for every `c`, temperature
  and scale `s`, with or without Rao-Blackwellization. With `k` summed and `M`
  drawn atoms, `f` is called once, at these `k + M` atoms. `c` is evaluated at
  one relaxed atom for each draw (`M`, or `k + M` if the relaxation is not
  restricted; see `REBAR`). If the relaxation is restricted, `c` is also
  evaluated at 8 more relaxed atoms, which estimate its mean.

  `with_f=True` uses `c(x) = f(x) + control_variate(x)`: this is `REBAR` plus a
  network that corrects it. The authors of [1] do so if `f` is differentiable.
  `f` must then be differentiable; it is called twice, with as many evaluations
  as in `REBAR`. Start with a network whose output is nearly 0.

  A control variate can depend on more than the atom, for example on the image
  of each batch member. Pass such inputs to `with_inputs`.

  The variance objective of `REBAR` also trains the variables of `c`. (A Keras
  network has no variables until it is built: build it, for atoms of shape
  `[n] + batch_shape + event_shape`, before you ask for
  `estimator.trainable_variables`.) If `control_variate` is a lambda, it hides
  the variables of its network. In that case also store the network on this
  estimator, not on the result of `rao_blackwellize`: `relax.network = network`.

  #### Examples

  ```python
  slope = tf.Variable([0.1, 0., -0.1])
  estimator = tfp_rb.RELAX(lambda x: tf.reduce_sum(slope * x, axis=-1),
                           temperature=tfp.util.TransformedVariable(
                               0.5, tfp.bijectors.Exp()))
  estimator.slope = slope  # so that it is trained as well
  cost = tf.constant([3., 1., 2.])
  with tf.GradientTape() as tape:
    q = tfp.distributions.OneHotCategorical(logits=[0., 1., 2.])
    loss = tfp_rb.expectation(
        lambda z: tf.reduce_sum(z * cost, axis=-1), q, estimator, seed=[0, 1])
  gradients = tape.gradient(loss, estimator.trainable_variables)
  len(gradients)  # ==> 2
  ```

  #### References

  [1] Will Grathwohl, Dami Choi, Yuhuai Wu, Geoffrey Roeder, David Duvenaud.
      Backpropagation through the void: optimizing control variates for
      black-box gradient estimation. ICLR 2018, section 3.2, equation (8);
      the objective: section 3.1, equation (6); algorithm 2.
      https://arxiv.org/abs/1711.00123
  """

  def __init__(
    self,
    control_variate: Callable[..., tf.Tensor],
    *,
    temperature: Temperature,
    scale: Numeric = 1.0,
    with_f: bool = False,
    restricted: bool | None = None,
    num_samples: int = 1,
    name: str | None = None,
  ) -> None:
    """Makes the estimator.

    Args:
      control_variate: Callable that maps relaxed atoms of shape
        `[n] + batch_shape + event_shape` to a `Tensor` of shape
        `[n] + batch_shape`, for example a Keras network. (An output of shape
        `[n] + batch_shape + [1]` is accepted as well.) The arguments of
        `with_inputs` follow the atoms.
      temperature: A positive number, a scalar `Tensor` or variable, or a
        callable without arguments that returns one.
      scale: A number, scalar `Tensor` or variable that multiplies the control
        variate.
      with_f: Python `bool`, whether to add `f` at the relaxed atoms to the
        control variate.
      restricted: Python `bool`, as in `REBAR`.
      num_samples: Python `int`, the number of draws.
      name: Python `str`, name of the `tf.Module`.

    Raises:
      TypeError: `control_variate` is not callable, or another argument has the
        wrong type.
      ValueError: `temperature` is not a positive scalar.
    """
    super().__init__(
      temperature,
      scale=scale,
      restricted=restricted,
      num_samples=num_samples,
      name=name,
    )
    if not callable(control_variate):
      raise TypeError(
        '`control_variate` must be a callable of relaxed one-hot vectors; got '
        f'{control_variate!r}. Pass a Keras network, for example.'
      )
    self.control_variate = control_variate
    self.with_f = bool(with_f)
    self._inputs: tuple[Any, ...] = ()

  needs_vectors = True  # The atoms are relaxed.

  @property
  def differentiates_f(self) -> bool:
    return self.with_f

  @property
  def num_references(self) -> int:
    # Calls of a network are cheap compared with calls of `f`.
    return 0 if self.with_f else 8

  def bind(self, *inputs: Any) -> 'RELAX':
    # A control variate with one argument takes the atoms only.
    has_inputs = checks.num_arguments(self.control_variate) > 1
    return self.with_inputs(*inputs) if has_inputs else self

  def with_inputs(self, *inputs: Any) -> 'RELAX':
    """Returns this estimator with `control_variate(atoms, *inputs)`.

    Args:
      *inputs: The arguments of the control variate after the relaxed atoms, for
        example the images of this step.

    Returns:
      estimator: A `RELAX` that shares all variables with this one.
    """
    # A closure around the network would hide its variables.
    bound = copy.copy(self)
    bound._inputs = inputs
    return bound

  def control_variate_at(
    self, f: Integrand, relaxed: tf.Tensor, batch_shape: list[Any]
  ) -> tuple[tf.Tensor, tf.Tensor]:
    def network(x: tf.Tensor) -> tf.Tensor:
      value = tf.convert_to_tensor(self.control_variate(x, *self._inputs))
      # A network with one output unit returns an axis of size 1.
      has_unit = value.shape.rank == len(batch_shape) + 2
      return (
        tf.squeeze(value, -1) if has_unit and value.shape[-1] == 1 else value
      )

    value, slope = value_and_slope(
      CheckedIntegrand(network, batch_shape, 'control_variate'), relaxed, self
    )
    if not self.with_f:
      return value, slope
    value_of_f, slope_of_f = value_and_slope(f, relaxed, self)
    return tf.cast(value, value_of_f.dtype) + value_of_f, slope + slope_of_f
