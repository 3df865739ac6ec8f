# SPDX-License-Identifier: Apache-2.0
"""Defines a Keras callback that measures gradients during training."""

import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfp_rb.diagnostics._pairs import gradients_of, measure_pairs
from tfp_rb.internal import checks
from tfp_rb.internal.types import TensorLike

__all__ = ['GradientVariance']


class GradientVariance(keras.callbacks.Callback):
  """Logs the variance of the gradient and `q(rest)` for TensorBoard.

  It works with every subclass of `tfp_rb.models.EstimatorModel`. The callback
  differentiates the loss of one fixed batch with respect to the model's
  trainable variables, with pairs of seeds as in `sampled_moments`. The variance
  covers everything that a step draws: the atoms and the model's own noise. The
  callback writes

  * `gradient_variance`, the total variance of the gradient of the loss, and
    `gradient_variance_low` and `_high`, its 95 % interval;
  * the mean of every other scalar that `compute_step_loss` returns, such as
    `rest` for the models of this library.

  Training is not affected. The seeds are stateless, and the callback restores
  the state of the estimator and the layers (the step of a temperature, moving
  averages).

  #### Examples

  ```python
  import tempfile

  model = tfp_rb.models.SemiSupervisedVAE(
      latent_dim=2, classifier_units=[8], hidden_units=[8, 8])
  model.compile('adam', jit_compile=False)
  images = tf.zeros([8, 784], tf.uint8)
  batch = (images, images, tf.zeros([8], tf.int32))
  callback = tfp_rb.diagnostics.GradientVariance(
      tempfile.mkdtemp(), batch=batch, num_pairs=2)
  history = model.fit(tf.data.Dataset.from_tensors(batch), verbose=0,
                      callbacks=[callback])
  ```
  """

  def __init__(
    self,
    log_dir: str | os.PathLike[str],
    *,
    batch: TensorLike,
    every: int = 1,
    num_pairs: int = 10,
    seed: int = 0,
  ) -> None:
    """Makes the callback.

    Args:
      log_dir: Python `str`, the directory of the summaries. It may be the
        `log_dir` of `keras.callbacks.TensorBoard`.
      batch: Tuple of arrays or `Tensor`s, one batch as `fit` receives it.
      every: Python `int`, the number of epochs per measurement.
      num_pairs: Python `int`, the number of pairs of gradients per measurement,
        at least 2.
      seed: Python `int`, the seed of these gradients.
    """
    super().__init__()
    self.log_dir = log_dir
    batch = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    self.batch = tuple(tf.convert_to_tensor(x) for x in batch)
    self.every = checks.check_int(every, 'every', minimum=1)
    self.num_pairs = checks.check_int(num_pairs, 'num_pairs', minimum=2)
    self.seed = checks.check_int(seed, 'seed', minimum=0)
    # `set_model` and `on_train_begin`, which Keras calls later, set these.
    self._writer: Any = None
    self._gradient: Any = None

  def set_model(self, model: keras.Model) -> None:
    if not hasattr(model, 'step_metrics'):
      raise TypeError(
        '`model` must be a subclass of `tfp_rb.models.EstimatorModel`; got a '
        f'`{type(model).__name__}`. For other models use '
        '`tfp_rb.diagnostics.sampled_moments`.'
      )
    if getattr(model, 'optimizer', None) is None:
      raise ValueError(
        '`model` must be compiled, because the loss depends on the step of its '
        f'optimizer; got a `{type(model).__name__}` without an optimizer. Call '
        '`compile` first.'
      )
    super().set_model(model)
    self._gradient = tf.function(self._gradient_and_others, autograph=False)

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    self._writer = tf.summary.create_file_writer(str(self.log_dir))

  def on_epoch_end(
    self, epoch: int, logs: dict[str, Any] | None = None
  ) -> None:
    if (epoch + 1) % self.every:
      return
    others = []  # what `step_metrics` returned for each seed

    def gradient(seed: tf.Tensor) -> list[tf.Tensor]:
      gradients, values = self._gradient(seed)
      others.append(values)
      return gradients

    # Keep these variables, to restore them: a model may store the step in a
    # variable of its estimator, and its layers may update moving averages.
    estimator = getattr(self.model, 'estimator', None)
    own = getattr(estimator, 'variables', ())
    state = (*own, *self.model.non_trainable_variables)
    kept = [(v, np.asarray(v)) for v in state]
    try:
      variance, (low, high), _ = measure_pairs(
        gradient, self.num_pairs, self.seed
      )
    finally:
      for variable, value in kept:
        variable.assign(value)
    # Enable summaries, which `keras.callbacks.TensorBoard` disables most of the
    # time.
    with tf.summary.record_if(True), self._writer.as_default(step=epoch):
      tf.summary.scalar('gradient_variance', variance)
      tf.summary.scalar('gradient_variance_low', low)
      tf.summary.scalar('gradient_variance_high', high)
      for name in others[0]:
        tf.summary.scalar(name, np.mean([values[name] for values in others]))
    self._writer.flush()

  def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
    self._writer.close()

  def _gradient_and_others(
    self, seed: tf.Tensor
  ) -> tuple[list[tf.Tensor] | None, dict[str, tf.Tensor]]:
    # Tapes know the variables of TensorFlow inside those of Keras.
    variables = [v.value for v in self.model.trainable_variables]
    with tf.GradientTape() as tape:
      values = self.model.step_metrics(self.batch, seed)
    loss = values.pop('loss')
    return gradients_of(tape, loss, variables), values
