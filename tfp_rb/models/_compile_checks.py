# SPDX-License-Identifier: Apache-2.0
"""Checks what a model is compiled with."""

from collections.abc import Iterable, Mapping
from typing import Any

import keras

__all__ = ['check_averages', 'check_layers', 'check_no_losses']


def check_layers(layers: Iterable[keras.Layer]) -> None:
  """Raises unless all variables exist; the optimizer must know them."""
  names = [layer.name for layer in layers if not layer.built]
  if names:
    raise ValueError(
      f'All layers must be built before `compile`; got {names} without '
      'variables. Call their `build(input_shape)` in `__init__`.'
    )


def check_no_losses(arguments: Mapping[str, Any]) -> None:
  """Raises if losses or metrics of Keras are among the arguments."""
  for name in ('loss', 'loss_weights', 'metrics', 'weighted_metrics'):
    if arguments.get(name) is not None:
      raise ValueError(
        f'`{name}` must not be given; got {arguments[name]!r}. Return the loss '
        'and the metrics of this model from `compute_step_loss`.'
      )


def check_averages(
  optimizer: keras.Optimizer, estimator_optimizer: keras.Optimizer
) -> None:
  """Raises if Keras would average the variables of two optimizers as one."""
  optimizers = {
    'optimizer': optimizer,
    'estimator_optimizer': estimator_optimizer,
  }
  for name, value in optimizers.items():
    if value.use_ema:
      raise ValueError(
        f'`{name}` must not have `use_ema=True` if the estimator has an '
        'optimizer of its own; got both. Leave out `estimator_optimizer`, so '
        'that one optimizer averages all variables.'
      )
