# SPDX-License-Identifier: Apache-2.0
"""The variance of a gradient along the path of training, nearly for free.

As in the literature on this benchmark, it is taken from moving averages of the
first and the second moment of the gradient, with a decay of 0.999. It contains
the noise of the batches and of the pixels, not of the latent variables alone.
"""

import keras
import tensorflow as tf

DECAY = 0.999


@keras.saving.register_keras_serializable('tfp_rb_examples')
class AdamWithMoments(keras.optimizers.Adam):
  """Adam that also keeps a slow average of the gradient.

  Adam's own average of the squares decays by 0.999, that of the gradient by
  0.9, which is too fast to subtract its square.
  """

  def __init__(self, learning_rate=1e-3, **kwargs):
    kwargs = {'name': 'adam_with_moments', **kwargs, 'beta_2': DECAY}
    super().__init__(learning_rate, **kwargs)

  def build(self, variables):
    if self.built:
      return
    super().build(variables)
    self._means = [
      self.add_variable_from_reference(v, name='mean') for v in variables
    ]

  def update_step(self, gradient, variable, learning_rate):
    mean = self._means[self._get_variable_index(variable)]
    self.assign_add(mean, (gradient - mean) * (1.0 - DECAY))
    super().update_step(gradient, variable, learning_rate)

  def variance(self, variables):
    """Returns the total variance of the gradient w.r.t. some variables."""
    # Averages that began at 0.
    weight = 1.0 - DECAY ** float(self.iterations)
    total = 0.0
    for variable in variables:
      i = self._get_variable_index(variable)
      square = tf.convert_to_tensor(self._velocities[i]) / weight
      mean = tf.convert_to_tensor(self._means[i]) / weight
      total += float(tf.reduce_sum(square - mean**2))
    return total


class PathVariance(keras.callbacks.Callback):
  """Logs the variance of the gradient w.r.t. the encoder after every epoch."""

  def on_epoch_end(self, epoch, logs=None):
    variables = [v.value for v in self.model.encoder.trainable_variables]
    logs['encoder_variance'] = self.model.optimizer.variance(variables)
