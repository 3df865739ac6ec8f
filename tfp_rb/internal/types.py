# SPDX-License-Identifier: Apache-2.0
"""Names the types that many signatures share."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = [
  'CompositeDistribution',
  'Distribution',
  'Integrand',
  'Numeric',
  'Optimizer',
  'Problem',
  'Seed',
  'StatelessSeed',
  'Temperature',
  'TensorLike',
  'do_not_convert',
]

Distribution: TypeAlias = tfp.distributions.Distribution
# A distribution that can be an argument of a `tf.function`.
CompositeDistribution: TypeAlias = (
  tfp.distributions.AutoCompositeTensorDistribution
)

# Maps atoms `[m] + batch_shape + event_shape` to values `[m] + batch_shape`; or
# values `[n] + event_shape` and rows `[n]` to `[n]`.
Integrand: TypeAlias = Callable[..., tf.Tensor]

# Maps parameters to a function and the distribution of its argument.
Problem: TypeAlias = Callable[..., tuple[Integrand, Distribution]]

StatelessSeed: TypeAlias = Sequence[int] | np.ndarray | tf.Tensor
Seed: TypeAlias = int | StatelessSeed | None

Numeric: TypeAlias = (
  float | np.generic | np.ndarray
  | tf.Tensor | tf.Variable | tfp.util.DeferredTensor
)  # fmt: skip
TensorLike: TypeAlias = Numeric | list[Any] | tuple[Any, ...]
Temperature: TypeAlias = Numeric | Callable[[], Numeric]


class Optimizer(Protocol):
  """Describes the part of an optimizer that `fit` functions use."""

  def apply_gradients(self, grads_and_vars: Any, /) -> Any: ...


_Function = TypeVar('_Function', bound=Callable[..., Any])


def do_not_convert(function: _Function) -> _Function:
  """Marks a function that AutoGraph must not convert.

  TensorFlow's own decorator hides the signature from type checkers.

  Args:
    function: Callable.

  Returns:
    function: Callable with the same signature.
  """
  return tf.autograph.experimental.do_not_convert(function)
