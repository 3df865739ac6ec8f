"""A Keras callback that measures while a model is trained."""

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

  For the models of `tfp_rb.models`, and any other with their `step_loss`. The
  gradient with respect to the model's trainable variables is taken on one
  batch, the same all along, with other seeds, in pairs as in
  `sampled_moments`. The noise is all of `step_loss`: that of the atoms, and
  what else the model draws. Written are

  * `gradient_variance`, the total variance of the gradient of the mean loss of
    the batch, and `gradient_variance_low` and `_high`, its 95 % interval;
  * `rest`, the mean mass beside the most probable atom.

  Training goes on as it would without: seeds are stateless, and what estimator
  and layers keep (the step of a temperature, moving averages) is put back.

  #### Examples

  ```python
  import tempfile

  model = tfp_rb.models.SemiSupervisedVAE(
      latent_dim=2, classifier_units=[8], hidden_units=[8, 8])
  model.compile('adam', jit_compile=False)
  images = tf.zeros([8, 784], tf.uint8)
  batch = (images, images, tf.zeros([8], tf.int32))
  callback = tfp_rb.diagnostics.GradientVariance(
      tempfile.mkdtemp(), batch, num_pairs=2)
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
      log_dir: Python `str`, where the summaries go; the `log_dir` of
        `keras.callbacks.TensorBoard` will do.
      batch: Tuple of arrays or `Tensor`s, one batch as `fit` is given them.
      every: Python `int`, epochs from one measurement to the next.
      num_pairs: Python `int`, pairs of gradients of a measurement, at least 2.
      seed: Python `int`, of these gradients.
    """
    super().__init__()
    self.log_dir = log_dir
    batch = tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    self.batch = tuple(tf.convert_to_tensor(x) for x in batch)
    self.every = checks.check_int(every, 'every', minimum=1)
    self.num_pairs = checks.check_int(num_pairs, 'num_pairs', minimum=2)
    self.seed = checks.check_int(seed, 'seed', minimum=0)
    self._writer = None
    self._gradient = None

  def set_model(self, model: keras.Model) -> None:
    if not hasattr(model, 'step_loss'):
      raise TypeError(
        '`GradientVariance` needs a model with `step_loss`, such as those of '
        f'`tfp_rb.models`, but this is a `{type(model).__name__}`. Measure it '
        'by `tfp_rb.diagnostics.sampled_moments`.'
      )
    if getattr(model, 'optimizer', None) is None:
      raise ValueError(
        '`GradientVariance` needs a compiled model, since the step is that of '
        f'its optimizer, but this `{type(model).__name__}` has none. Call '
        '`compile` first.'
      )
    super().set_model(model)
    self._gradient = tf.function(self._gradient_and_rest, autograph=False)

  def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
    self._writer = tf.summary.create_file_writer(str(self.log_dir))

  def on_epoch_end(
    self, epoch: int, logs: dict[str, Any] | None = None
  ) -> None:
    if (epoch + 1) % self.every:
      return
    rests = []

    def gradient(seed):
      gradients, rest = self._gradient(seed)
      rests.append(float(rest))
      return gradients

    # A model may note the step in a variable of its estimator, and have
    # layers that keep averages.
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
    # Keras' `TensorBoard` lets summaries pass at some steps only.
    with tf.summary.record_if(True), self._writer.as_default(step=epoch):
      tf.summary.scalar('gradient_variance', variance)
      tf.summary.scalar('gradient_variance_low', low)
      tf.summary.scalar('gradient_variance_high', high)
      tf.summary.scalar('rest', np.mean(rests))
    self._writer.flush()

  def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
    self._writer.close()

  def _gradient_and_rest(self, seed):
    variables = [v.value for v in self.model.trainable_variables]
    step = tf.cast(self.model.optimizer.iterations, tf.int32)
    with tf.GradientTape() as tape:
      loss, rest = self.model.step_loss(self.batch, seed, step)
    return gradients_of(tape, loss, variables), rest
