# SPDX-License-Identifier: Apache-2.0
"""Measures the gradient variance during training at almost no cost.

As in the literature on this benchmark, the variance is computed from moving
averages of the first and the second moment of the gradient, with a decay of
0.999. It includes the noise of the batches and of the pixels, not only that of
the latent variables.
"""

import keras
import tensorflow as tf

DECAY = 0.999


@keras.saving.register_keras_serializable('tfp_rb_examples')
class AdamWithMoments(keras.optimizers.Adam):
  """Adam that also keeps a slow average of the gradient.

  Adam's own average of the squared gradient decays by 0.999, but its average of
  the gradient decays by 0.9. That is too fast to compute a variance from both.
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
    # The averages start at 0, which this weight corrects.
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
