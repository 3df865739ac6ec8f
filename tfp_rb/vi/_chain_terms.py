# SPDX-License-Identifier: Apache-2.0
"""Evaluates the functions of a `ChainTarget` at all steps and states."""

from collections.abc import Callable
import inspect
from typing import Any, TypeAlias

import tensorflow as tf

from tfp_rb.distributions import CategoricalChain
from tfp_rb.internal import shapes
from tfp_rb.internal.types import TensorLike

__all__ = ['Term', 'call_term', 'terms_of_path']

# A user's function that returns terms of the log-density.
Term: TypeAlias = Callable[..., TensorLike]


def call_term(
  function: Term,
  name: str,
  arguments: list[tf.Tensor],
  shape: list[Any],
  others: tuple[Any, ...],
  named: dict[str, Any],
) -> tf.Tensor:
  """Returns the terms of one function.

  Args:
    function: The user's function.
    name: Python `str`, the name of the function.
    arguments: List of the steps and states.
    shape: List, the shape to which the result must broadcast.
    others: Tuple of the continuous parts, if they have no names.
    named: Dictionary of the continuous parts, if they have names.

  Returns:
    terms: Floating-point `Tensor`.
  """
  _check_signature(function, name, [*arguments, *others], named)
  terms = function(*arguments, *others, **named)
  return _check_terms(terms, name, shape)


def terms_of_path(
  call: Callable[..., Any], chain: CategoricalChain, front: list[Any]
) -> tuple[tf.Tensor | None, tf.Tensor | None]:
  """Calls the functions of the path, each one once.

  Args:
    call: Callable that maps `(name, arguments, shape)` to terms.
    chain: A `CategoricalChain`.
    front: List, the batch shape of the terms.

  Returns:
    unary: `Tensor` that broadcasts to `front + [T, K]`, or `None`.
    pairwise: `Tensor` that broadcasts to `front + [T - 1, K, K]`, or `None`.
  """
  (num_steps,), num_states = shapes.event_shape(chain), chain.num_states
  step, z = tf.range(num_steps)[:, tf.newaxis], tf.range(num_states)
  initial = call('initial', [z], [*front, num_states])
  unary = call('emission', [step, z], [*front, num_steps, num_states])
  if initial is not None:
    initial = _with_rank(initial, 1)[..., tf.newaxis, :]
    nothing = tf.zeros([], initial.dtype)
    initial = tf.where(tf.equal(step, 0), initial, nothing)
    unary = initial if unary is None else unary + initial
  pairwise = call(
    'transition',
    [step[1:, tf.newaxis], z[:, tf.newaxis], z],
    [*front, num_steps - 1, num_states, num_states],
  )
  return (
    None if unary is None else _with_rank(unary, 2),
    None if pairwise is None else _with_rank(pairwise, 3),
  )


def _check_signature(
  function: Term, name: str, arguments: list[Any], named: dict[str, Any]
) -> None:
  """Raises if a function does not take the steps, states and other parts."""
  try:
    signature = inspect.signature(function)
  except ValueError:  # a built-in function may have none
    return
  try:
    signature.bind(*arguments, **named)
  except TypeError as e:
    parts = f' and the continuous parts {list(named)} by name' if named else ''
    advice = 'Every function takes all parts.'
    if name == 'emission':
      advice = 'A term of two successive states belongs in `transition`.'
    raise TypeError(
      f'`{name}` must take {len(arguments)} positional arguments{parts}; got '
      f'the signature {signature} ({e}). {advice}'
    ) from e


def _with_rank(x: tf.Tensor, rank: int) -> tf.Tensor:
  """Adds axes of size 1 in front, up to a rank."""
  shape = shapes.as_list(x)
  return tf.reshape(x, [1] * (rank - len(shape)) + shape)


def _check_terms(terms: Any, name: str, shape: list[Any]) -> tf.Tensor:
  """Returns terms as a `Tensor`, or raises if they have the wrong shape."""
  if terms is None:
    raise TypeError(f'`{name}` must return a Tensor; got None. Add a `return`.')
  terms = tf.convert_to_tensor(terms)
  if not terms.dtype.is_floating:
    raise TypeError(
      f'`{name}` must return a floating-point Tensor; got dtype '
      f'{terms.dtype.name}. Cast it.'
    )
  static = [n if isinstance(n, int) else None for n in shape]
  expected = tf.TensorShape(static)
  try:
    joint = tf.broadcast_static_shape(terms.shape, expected)
    is_right = joint.is_compatible_with(expected)
  except ValueError:
    is_right = False
  if not is_right:
    raise ValueError(
      f'`{name}` must return a Tensor that broadcasts to the shape {expected}; '
      f'got {terms.shape}. Let the last axes be those of the steps and states '
      'in its arguments, and put the batch before them.'
    )
  return terms
