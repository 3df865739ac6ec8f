# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of chains."""

from typing import Any

import numpy as np
import tensorflow as tf

from tfp_rb.internal import shapes
from tfp_rb.internal.types import TensorLike

__all__ = [
  'check_chain_shapes',
  'check_observed',
  'check_path_shape',
  'check_potential_shapes',
  'check_same_event',
  'check_terms',
  'checks_of_paths',
  'checks_of_potentials',
  'checks_of_rows',
  'convert',
  'is_variable',
]


def convert(**arguments: TensorLike) -> list[Any]:
  """Converts arguments to floating-point Tensors of one dtype.

  Variables, and objects that behave like variables, are not converted, so that
  a tape sees when they are read.

  Args:
    **arguments: Objects that TensorFlow can convert, by name.

  Returns:
    tensors: List of `Tensor`s and variables.

  Raises:
    TypeError: The dtypes differ, or are not floating-point.
  """
  found = {
    name: tf.as_dtype(leaf.dtype)
    for name, x in arguments.items()
    for leaf in tf.nest.flatten(x)
    if hasattr(leaf, 'dtype') and not isinstance(leaf, np.generic)
  }
  kinds = set(found.values())
  if len(kinds) > 1 or not all(dtype.is_floating for dtype in kinds):
    names = ' and '.join(f'`{name}`' for name in arguments)
    got = ', '.join(f'{dtype.name} for `{n}`' for n, dtype in found.items())
    raise TypeError(
      f'{names} must have the same floating-point dtype; got {got}. Cast '
      'with `tf.cast`.'
    )
  dtype = kinds.pop() if kinds else tf.float32
  return [
    x if is_variable(x) else tf.convert_to_tensor(x, dtype, name=name)
    for name, x in arguments.items()
  ]


def is_variable(x: Any) -> bool:
  """Returns whether `x` is a variable or, as in TFP, behaves like one."""
  is_deferred = isinstance(x, tf.Module) and hasattr(x, 'shape')
  return isinstance(x, tf.Variable) or (is_deferred and hasattr(x, 'dtype'))


def _check_rank(x: Any, name: str, rank: int, form: str) -> None:
  if x.shape.rank is None or x.shape.rank < rank:
    raise ValueError(
      f'`{name}` must have the shape {form}; got {x.shape}. Reshape it, or set '
      'its static shape.'
    )


def _check_states(x: Any, name: str, rank: int, num_states: int) -> None:
  """Raises unless the last `rank` dimensions are the number of states."""
  found = x.shape[x.shape.rank - rank :]
  if not found.is_compatible_with([num_states] * rank):
    raise ValueError(
      f'`{name}` must end in {rank} dimension(s) of {num_states} states; got '
      f'the shape {x.shape}. Use the same number of states everywhere.'
    )


def _check_broadcast(
  first: Any, second: Any, ranks: tuple[int, int], names: tuple[str, str]
) -> list[Any]:
  """Returns the broadcast batch shape, or raises."""
  fronts = [
    shapes.as_list(x)[: x.shape.rank - rank]
    for x, rank in zip((first, second), ranks, strict=True)
  ]
  try:
    return shapes.broadcast(*fronts)
  except ValueError as error:
    raise ValueError(
      f'The batch dimensions of `{names[0]}` and `{names[1]}` must broadcast; '
      f'got the shapes {first.shape} and {second.shape}. Use the same batch '
      'shape.'
    ) from error


def check_chain_shapes(initial_logits: Any, transition_logits: Any) -> None:
  """Raises unless the logits of a chain have matching shapes."""
  names = 'initial_logits', 'transition_logits'
  _check_rank(initial_logits, names[0], 1, '[..., K]')
  _check_rank(transition_logits, names[1], 3, '[..., T - 1, K, K]')
  num_states = initial_logits.shape[-1]
  if not num_states:
    raise ValueError(
      'The last dimension of `initial_logits`, the number of states, must be '
      f'known statically and positive; got the shape {initial_logits.shape}. '
      'Set its static shape.'
    )
  _check_states(transition_logits, names[1], 2, num_states)
  static = [
    tf.TensorShape(x.shape[: x.shape.rank - rank])
    for x, rank in ((initial_logits, 1), (transition_logits, 3))
  ]
  if all(shape.is_fully_defined() for shape in static):
    _check_broadcast(initial_logits, transition_logits, (1, 3), names)


def check_potential_shapes(unary: tf.Tensor, pairwise: tf.Tensor) -> list[Any]:
  """Raises unless potentials have matching shapes.

  Args:
    unary: `Tensor`.
    pairwise: `Tensor`.

  Returns:
    batch_shape: List, the broadcast batch shape.
  """
  _check_rank(unary, 'unary', 2, '[..., T, K]')
  _check_rank(pairwise, 'pairwise', 3, '[..., T - 1, K, K]')
  num_steps, num_states = unary.shape[-2:]
  if not num_states or num_steps == 0:
    raise ValueError(
      '`unary` must have the shape [..., T, K] with at least one step and a '
      'positive number of states that is known statically; got the shape '
      f'{unary.shape}. Set its static shape.'
    )
  _check_states(pairwise, 'pairwise', 2, num_states)
  num_transitions = pairwise.shape[-3]
  is_static = None not in (num_steps, num_transitions)
  if is_static and num_transitions != num_steps - 1:
    raise ValueError(
      f'`pairwise` must have {num_steps - 1} transitions, one less than '
      f'`unary` has steps; got the shape {pairwise.shape}. Use '
      '`tf.broadcast_to` to repeat potentials that do not change.'
    )
  return _check_broadcast(unary, pairwise, (2, 3), ('unary', 'pairwise'))


def check_terms(
  chain: Any,
  unary_terms: TensorLike | None,
  pairwise_terms: TensorLike | None,
) -> list[tf.Tensor | None]:
  """Converts the terms of an expectation and checks their shapes.

  Args:
    chain: A `CategoricalChain`.
    unary_terms: See `CategoricalChain.expectation`.
    pairwise_terms: See `CategoricalChain.expectation`.

  Returns:
    terms: List of two entries, each a `Tensor` or `None`.
  """
  if unary_terms is None and pairwise_terms is None:
    raise ValueError(
      '`unary_terms` or `pairwise_terms` must be given; got neither. Pass the '
      'terms of the sum.'
    )
  (num_steps,) = chain.event_shape
  num_states = chain.num_states
  num_transitions = None if num_steps is None else num_steps - 1
  wide = tf.float64 if chain.initial_logits.dtype == tf.float64 else tf.float32
  result: list[tf.Tensor | None] = []
  for name, terms, form in (
    ('unary_terms', unary_terms, [num_steps, num_states]),
    (
      'pairwise_terms',
      pairwise_terms,
      [num_transitions, num_states, num_states],
    ),
  ):
    if callable(terms):
      raise TypeError(
        f'`{name}` must be a Tensor; got {terms!r}. Evaluate the terms at all '
        'steps and states. For a function of the whole path, use '
        '`tfp_rb.expectation`.'
      )
    if terms is not None:
      (terms,) = convert(**{name: terms})
      terms = tf.cast(terms, wide)
      _check_rank(terms, name, len(form), str(['...', *form]))
      own = terms.shape[terms.shape.rank - len(form) :]
      if any(
        None not in (n, m) and n not in (1, m)
        for n, m in zip(own, form, strict=True)
      ):
        raise ValueError(
          f'`{name}` must broadcast to the shape {["...", *form]}; got '
          f'{terms.shape}. Evaluate the terms at all steps and states.'
        )
    result.append(terms)
  return result


def check_same_event(a: Any, b: Any) -> None:
  """Raises unless two chains have equally many steps and states."""
  if a.num_states != b.num_states or not a.event_shape.is_compatible_with(
    b.event_shape
  ):
    raise ValueError(
      '`other` must be a chain with the same number of steps and states; got '
      f'{b.event_shape[0]} steps and {b.num_states} states for a chain with '
      f'{a.event_shape[0]} steps and {a.num_states} states. Pass a chain of '
      'the same size.'
    )


def check_observed(hmm: Any, observations: tf.Tensor, mask: Any) -> Any:
  """Raises unless observations have as many steps as their model.

  Args:
    hmm: A `tfd.HiddenMarkovModel`.
    observations: `Tensor`.
    mask: `Tensor` or `None`.

  Returns:
    num_steps: Python `int`, or a scalar Tensor.
  """
  event_rank = hmm.observation_distribution.event_shape.rank
  num_steps = tf.get_static_value(hmm.num_steps)
  _check_rank(observations, 'observations', 1 + event_rank, '[..., T] + event')
  found = {'observations': observations.shape[-1 - event_rank]}
  if mask is not None:
    _check_rank(mask, 'mask', 1, '[..., T]')
    found['mask'] = mask.shape[-1]
  for name, size in found.items():
    if None not in (size, num_steps) and size != num_steps:
      raise ValueError(
        f'`{name}` must have {num_steps} steps, like `hmm`; got {size}. Pass '
        'one entry per step.'
      )
  return hmm.num_steps if num_steps is None else int(num_steps)


def checks_of_rows(is_init: bool, **logits: Any) -> list[Any]:
  """Returns assertions that logits are numbers, and that rows allow a state.

  Args:
    is_init: Python `bool`, whether the chain is being constructed. Variables
      are checked whenever they are used, but not during construction.
    **logits: Logits by name.
  """
  assertions = []
  for name, x in logits.items():
    if is_init != is_variable(x):
      assertions += _checks_of_numbers(tf.convert_to_tensor(x), name)
      is_allowed = tf.reduce_any(tf.convert_to_tensor(x) > -np.inf, axis=-1)
      assertions.append(
        tf.debugging.assert_equal(
          is_allowed,
          True,
          message=f'`{name}` must allow at least one state in each row; got a '
          'row of `-inf`.',
        )
      )
  return assertions


def checks_of_potentials(
  unary: Any, pairwise: Any, log_normalizer: tf.Tensor
) -> list[Any]:
  """Returns assertions that potentials are numbers and allow a path."""
  return [
    *_checks_of_numbers(unary, 'unary'),
    *_checks_of_numbers(pairwise, 'pairwise'),
    tf.debugging.assert_greater(
      log_normalizer,
      tf.constant(-np.inf, log_normalizer.dtype),
      message='`unary` and `pairwise` must allow at least one path; got '
      'potentials of `-inf` on every path.',
    ),
  ]


def _checks_of_numbers(x: Any, name: str) -> list[Any]:
  # This is also `False` for NaN.
  is_number = tf.convert_to_tensor(x) < np.inf
  return [
    tf.debugging.assert_equal(
      is_number,
      True,
      message=f'`{name}` must not contain NaN or `inf`; got at least one.',
    )
  ]


def check_path_shape(chain: Any, value: tf.Tensor) -> None:
  """Raises unless paths have as many states as the chain has steps.

  A last dimension of size 1 would otherwise be broadcast.
  """
  _check_rank(value, 'value', 1, '[..., T]')
  num_steps, size = chain.event_shape[0], value.shape[-1]
  if None not in (num_steps, size) and num_steps != size:
    raise ValueError(
      f'`value` must have one state for each of the {num_steps} steps; got the '
      f'shape {value.shape}. Pass whole paths.'
    )


def checks_of_paths(chain: Any, value: tf.Tensor) -> list[Any]:
  """Returns assertions that paths consist of states of the chain."""
  value = tf.convert_to_tensor(value)
  message = (
    f'`value` must be a path of states, integers in [0, {chain.num_states}).'
  )
  largest = tf.cast(chain.num_states - 1, value.dtype)
  states = tf.clip_by_value(value, tf.cast(0, value.dtype), largest)
  if value.dtype.is_floating:
    states = tf.round(states)
  return [
    tf.debugging.assert_equal(value, states, message=message),
    tf.debugging.assert_equal(
      tf.shape(value)[-1:],
      chain.event_shape_tensor(),
      message='`value` must have one state per step.',
    ),
  ]
