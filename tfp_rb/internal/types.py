"""Names for the types that many signatures share."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

__all__ = [
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

# Atoms, `[m] + batch_shape + event_shape`, to values, `[m] + batch_shape`.
Integrand: TypeAlias = Callable[[tf.Tensor], tf.Tensor]

# Parameters to a function and the distribution of what it is given.
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
  """What a fit asks of an optimizer."""

  def apply_gradients(self, grads_and_vars: Any, /) -> Any: ...


_Function = TypeVar('_Function', bound=Callable[..., Any])


def do_not_convert(function: _Function) -> _Function:
  """As TensorFlow's, which would hide the signature from type checkers."""
  return tf.autograph.experimental.do_not_convert(function)
