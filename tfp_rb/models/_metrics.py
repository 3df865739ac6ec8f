# SPDX-License-Identifier: Apache-2.0
"""Computes the metrics of a model, which are means over steps."""

from collections.abc import Sequence

import keras
import tensorflow as tf

__all__ = ['Trackers']


class Trackers:
  """Holds the means of the reported scalars over steps, as Keras metrics."""

  def __init__(self, names: Sequence[str]) -> None:
    self.by_name = {name: keras.metrics.Mean(name=name) for name in names}

  def update(self, values: dict[str, tf.Tensor]) -> list[str]:
    """Adds the values of one step, and returns their names."""
    for name, value in values.items():
      if name not in self.by_name:
        with tf.init_scope():  # The variables must outlive the traced function.
          self.by_name[name] = keras.metrics.Mean(name=name)
      self.by_name[name].update_state(value)
    return list(values)

  def results(self, names: list[str]) -> dict[str, tf.Tensor]:
    return {name: self.by_name[name].result() for name in names}
