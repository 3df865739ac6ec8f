# SPDX-License-Identifier: Apache-2.0
"""Defines the semi-supervised autoencoder of section 5.3 of the paper."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import expectation
from tfp_rb.estimators import REINFORCE, GradientEstimator
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.internal import random, shapes
from tfp_rb.internal.types import Seed, StatelessSeed, TensorLike
from tfp_rb.models._layers import MLP, ConcatDense
from tfp_rb.models._pixels import binarize, log_likelihood
from tfp_rb.models.estimator_model import EstimatorModel

__all__ = ['SemiSupervisedVAE']

tfd = tfp.distributions


@keras.saving.register_keras_serializable('tfp_rb')
class SemiSupervisedVAE(EstimatorModel):
  """Implements a variational autoencoder for images with few labels.

  ```none
  p(y) = 1 / K,  p(z) = N(0, I),  p(x | y, z) = Bernoulli(decoder(y, z))
  q(y | x) = classifier(x),  q(z | x, y) = N(encoder(x, y))
  ```

  Let `f(x, y)` be the negative evidence lower bound given the label. The loss
  is

  ```none
  w E_unlabeled[ E_q(y | x) f(x, y) - H(q(y | x)) ]
    + (1 - w) E_labeled[ f(x, y) - alpha log q(y | x) ]
  ```

  `estimator` gives the gradient of the expectation over the label; the entropy
  is exact. `f` is called once with all labels that the estimator chooses, and
  the part of the encoder that depends on the image alone is computed once per
  image.

  `fit` takes a dataset of `(unlabeled, labeled, labels)`: images `[B, 784]`
  with values from 0 to 255, and integer labels. The model binarizes the images
  again at each step. With one more dimension in front, `[S, B, 784]`, the `S`
  steps run inside one compiled call, which takes half the time on a CPU.
  `evaluate` takes `(images, labels)`. `predict` takes images and returns the
  log-probabilities of the labels.

  The metric `rest` is the total probability of all labels except the most
  probable one, averaged over the unlabeled images.

  #### Examples

  ```python
  import keras

  model = tfp_rb.models.SemiSupervisedVAE(latent_dim=2)
  model.compile(keras.optimizers.Adam(1e-3))
  images = tf.zeros([8, 784], tf.uint8)
  data = tf.data.Dataset.from_tensors((images, images, tf.zeros([8], tf.int32)))
  history = model.fit(data, verbose=0)
  sorted(history.history)  # ==> ['loss', 'rest']
  model.generate(labels=[3, 5]).shape  # ==> (2, 784)
  ```
  """

  batch_rank = 2
  metric_names = ('loss', 'rest')

  def __init__(
    self,
    estimator: GradientEstimator | None = None,
    *,
    latent_dim: int = 8,
    num_classes: int = 10,
    num_pixels: int = 784,
    classifier_units: Sequence[int] = (256, 256, 256),
    hidden_units: Sequence[int] = (128, 128),
    unlabeled_weight: float = 0.9,
    alpha: float = 1.0,
    share_noise: bool = False,
    seed: int = 0,
    **kwargs: Any,
  ) -> None:
    """Makes the model.

    Args:
      estimator: A `GradientEstimator`. Default:
        `rao_blackwellize(REINFORCE(), num_summed=1)`, which sums the most
        probable label and draws another one.
      latent_dim: Python `int`, the dimension of `z`: 8 in the authors' code, 5
        in the paper.
      num_classes: Python `int`, the number of labels `K`.
      num_pixels: Python `int`, the number of pixels of an image.
      classifier_units: Sizes of the hidden layers of the classifier.
      hidden_units: Sizes of the hidden layers of encoder and decoder: two in
        the authors' code, one in the paper.
      unlabeled_weight: Python `float`, `w`: 0.9 in the authors' code (45,000 of
        50,000 images), 0.5 in the paper.
      alpha: Python `float`, the weight of the classification loss.
      share_noise: Python `bool`, whether all labels of an image share the noise
        of `z`.
      seed: Python `int`, from which the seeds of all steps are derived.
      **kwargs: Arguments of `keras.Model`.

    Raises:
      TypeError: `estimator` is not a `GradientEstimator`.
      ValueError: `unlabeled_weight` or `hidden_units` is out of range.
    """
    if estimator is None:
      estimator = rao_blackwellize(REINFORCE(), num_summed=1)
    if not 0.0 <= unlabeled_weight <= 1.0:
      raise ValueError(
        '`unlabeled_weight` must be between 0 and 1; got '
        f'{unlabeled_weight}. Labeled images get the remaining weight.'
      )
    if not hidden_units:
      raise ValueError(
        '`hidden_units` must contain at least one layer, because the first '
        'layer combines image and label; got none. Pass, for example, '
        '`(128,)`.'
      )
    super().__init__(estimator, seed=seed, **kwargs)
    self.latent_dim, self.num_classes = latent_dim, num_classes
    self.num_pixels = num_pixels
    self.unlabeled_weight, self.alpha = unlabeled_weight, alpha
    self.share_noise = share_noise
    self.classifier = MLP(num_pixels, classifier_units, num_classes)
    first, *others = hidden_units
    self.encoder_input = ConcatDense(first, num_pixels, num_classes)
    self.encoder = MLP(first, others, 2 * latent_dim)
    self.decoder_input = ConcatDense(first, latent_dim, num_classes)
    self.decoder = MLP(first, others, num_pixels)
    self._nelbo_metric = keras.metrics.Mean(name='negative_elbo')
    self._accuracy_metric = keras.metrics.Mean(name='accuracy')

  @property
  def serving_signature(self) -> tf.TensorSpec:
    return tf.TensorSpec([None, self.num_pixels], tf.float32)

  def call(self, images: tf.Tensor) -> tf.Tensor:
    """Returns the log-probabilities of the labels.

    Args:
      images: `Tensor` of shape `[B, pixels]`, values from 0 to 1.

    Returns:
      log_probs: `Tensor` of shape `[B, classes]`.
    """
    return tf.nn.log_softmax(self.classifier(images))

  def negative_bound(
    self,
    images: tf.Tensor,
    image_part: tf.Tensor,
    labels: tf.Tensor,
    seed: StatelessSeed,
    rows: tf.Tensor | None = None,
  ) -> tf.Tensor:
    """Returns `f(x, y)`, the negative bound with one draw of `z`.

    Args:
      images: Binary `Tensor` of shape `[B, pixels]`.
      image_part: Contribution of the images to the first layer of the encoder,
        `encoder_input.of_first(images)`, `[B, units]`.
      labels: One-hot vectors, or points between them, `[m, B, classes]`.
      seed: Stateless seed, `int32[2]`.
      rows: `int32` `Tensor` of shape `[N]`, the images to which labels of shape
        `[N, classes]` belong; see `tfp_rb.pooled`. Default: labels are given
        for each image.

    Returns:
      loss: `Tensor` of shape `[m, B]`, or `[N]`, without the constant `log K`
        of the prior of the label.
    """
    num_images = tf.shape(images)[0]
    at_rows = lambda x: x if rows is None else tf.gather(x, rows)
    images, image_part = at_rows(images), at_rows(image_part)
    hidden = tf.nn.relu(image_part + self.encoder_input.of_second(labels))
    mean, log_scale = tf.split(self.encoder(hidden), 2, axis=-1)
    shape = (
      [num_images, self.latent_dim] if self.share_noise else tf.shape(mean)
    )
    noise = tf.random.stateless_normal(shape, seed, alg='philox')
    if self.share_noise:
      noise = at_rows(noise)
    logits = self._decode(mean + tf.exp(log_scale) * noise, labels)
    divergence = tf.reduce_sum(
      0.5 * (mean**2 + tf.exp(2.0 * log_scale) - 1.0) - log_scale, axis=-1
    )
    return divergence - log_likelihood(images, logits)

  def losses_of(
    self,
    unlabeled: tf.Tensor,
    labeled: tf.Tensor,
    labels: tf.Tensor,
    seed: StatelessSeed,
    step: int | tf.Tensor = 0,
    estimator: GradientEstimator | None = None,
  ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the two terms of the objective for each image.

    Args:
      unlabeled: Binary images, `[B, pixels]`.
      labeled: Binary images.
      labels: Integers, the labels of `labeled`.
      seed: Stateless seed, `int32[2]`.
      step: The number of steps so far, on which temperatures depend.
      estimator: A `GradientEstimator`. Default: that of the model, at `step`.

    Returns:
      of_unlabeled: `Tensor` of shape `[B]`.
      of_labeled: `Tensor`, one number for each labeled image.
      log_probs: `Tensor` of shape `[B, classes]`, of the unlabeled images.
    """
    if estimator is None:
      estimator = self.estimator.at_step(step)
    atom_seed, noise_seed, labeled_seed = random.split_seed(seed, n=3)
    # Compute all images in one matrix product.
    size = shapes.leading(unlabeled)
    images = tf.concat([unlabeled, labeled], axis=0)
    log_probs, image_part = self(images), self.encoder_input.of_first(images)
    log_probs, log_probs_of_labeled = log_probs[:size], log_probs[size:]

    def f(y: tf.Tensor, rows: tf.Tensor | None = None) -> tf.Tensor:
      part = image_part[:size]
      return self.negative_bound(unlabeled, part, y, noise_seed, rows)

    of_unlabeled = expectation(
      f,
      # Estimators that relax the label need one-hot vectors in floating point.
      tfd.OneHotCategorical(logits=log_probs, dtype=tf.float32),
      estimator.bind(unlabeled),
      seed=atom_seed,
    )
    of_unlabeled += tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)
    one_hot = tf.one_hot(labels, self.num_classes)
    of_labeled = self.negative_bound(
      labeled, image_part[size:], one_hot[tf.newaxis], labeled_seed
    )[0]
    of_labeled -= self.alpha * tf.reduce_sum(
      one_hot * log_probs_of_labeled, axis=-1
    )
    return of_unlabeled, of_labeled, log_probs

  def compute_step_loss(
    self,
    batch: tuple[tf.Tensor, ...],
    estimator: GradientEstimator,
    seed: StatelessSeed,
  ) -> dict[str, tf.Tensor]:
    if len(batch) != 3:
      raise ValueError(
        'The data must be triples (unlabeled images, labeled images, labels); '
        f'got {len(batch)} elements in each batch. Pass a `tf.data.Dataset` of '
        'triples.'
      )
    unlabeled, labeled, labels = batch
    self._check(unlabeled, None, 'unlabeled')
    self._check(labeled, labels, 'labeled', 'labels')
    draw_seed, pixel_seed = random.split_seed(seed, n=2)
    # One call for all pixels saves a few percent of a step.
    size = shapes.leading(unlabeled)
    images = binarize(tf.concat([unlabeled, labeled], axis=0), pixel_seed)
    unlabeled, labeled = images[:size], images[size:]
    of_unlabeled, of_labeled, log_probs = self.losses_of(
      unlabeled, labeled, labels, draw_seed, estimator=estimator
    )
    loss = self.unlabeled_weight * tf.reduce_mean(of_unlabeled)
    loss += (1.0 - self.unlabeled_weight) * tf.reduce_mean(of_labeled)
    rest = 1.0 - tf.reduce_mean(tf.exp(tf.reduce_max(log_probs, axis=-1)))
    return {'loss': loss, 'rest': rest}

  def _check(
    self,
    images: tf.Tensor,
    labels: tf.Tensor | None,
    name: str,
    name_of_labels: str | None = None,
  ) -> None:
    if images.shape.rank != 2 or images.shape[-1] != self.num_pixels:
      raise ValueError(
        f'`{name}` must be images of shape [batch, {self.num_pixels}], or '
        f'stacks of them with one more dimension in front; got {images.shape} '
        'for a batch. Reshape them.'
      )
    if labels is None:
      return
    sizes = {x.shape[0] for x in (images, labels) if x.shape.rank} - {None}
    is_vector = labels.shape.rank == 1 and labels.dtype.is_integer
    if not is_vector or len(sizes) > 1:
      raise ValueError(
        f'`{name_of_labels}` must be integers of shape [batch], one for each '
        f'image; got {labels.dtype.name} of shape {labels.shape} for images of '
        f'shape {images.shape}. Cast or reshape them.'
      )

  def predict_step(self, data: tf.Tensor | tuple[tf.Tensor, ...]) -> tf.Tensor:
    images = data[0] if isinstance(data, tuple) else data
    self._check(images, None, 'images')
    if images.dtype.is_integer:
      images = tf.cast(images, tf.float32) / 255.0
    return self(images)

  def test_step(
    self, data: tuple[tf.Tensor, tf.Tensor]
  ) -> dict[str, tf.Tensor]:
    if not isinstance(data, tuple) or len(data) != 2:
      raise ValueError(
        'The data of `evaluate` must be pairs (images, labels); got batches of '
        f'the form {data!r}. Pass a `tf.data.Dataset` of pairs.'
      )
    images, labels = data
    self._check(images, labels, 'images', 'labels')
    pixel_seed, noise_seed = random.split_seed(self._test_seed(images), n=2)
    images = binarize(images, pixel_seed)
    guess = tf.argmax(self(images), axis=-1, output_type=tf.int32)
    loss = self.negative_bound(
      images,
      self.encoder_input.of_first(images),
      tf.one_hot(guess, self.num_classes)[tf.newaxis],
      noise_seed,
    )[0]
    self._nelbo_metric.update_state(loss)
    self._accuracy_metric.update_state(guess == tf.cast(labels, tf.int32))
    metrics = (self._nelbo_metric, self._accuracy_metric)
    return {m.name: m.result() for m in metrics}

  def generate(
    self, labels: TensorLike, z: TensorLike | None = None, seed: Seed = None
  ) -> tf.Tensor:
    """Returns the mean images of given labels.

    Args:
      labels: Integers of shape `[n]`, or one integer.
      z: Floating-point `Tensor` of shape `[n, latent_dim]`. Default: drawn from
        the prior.
      seed: Stateless seed, `int32[2]`, for that draw.

    Returns:
      images: `Tensor` of shape `[n, pixels]`, values from 0 to 1.

    Raises:
      ValueError: `labels` are out of range, or `z` has the wrong shape.
    """
    labels = tf.reshape(labels, [-1])
    known = tf.get_static_value(labels)
    if known is not None and not np.all(
      (known >= 0) & (known < self.num_classes)
    ):
      raise ValueError(
        f'`labels` must lie between 0 and {self.num_classes - 1}; got {known}.'
      )
    labels = tf.one_hot(labels, self.num_classes)
    if z is None:
      (seed,) = random.split_seed(seed, n=1)
      z = tf.random.stateless_normal(
        [tf.shape(labels)[0], self.latent_dim], seed
      )
    codes: tf.Tensor = tf.cast(z, tf.float32)
    if codes.shape[-1] != self.latent_dim or codes.shape.rank != 2:
      raise ValueError(
        f'`z` must have shape [n, {self.latent_dim}]; got {codes.shape}. '
        'Reshape it, or leave it out to draw from the prior.'
      )
    return tf.sigmoid(self._decode(codes, labels))

  def _decode(self, z: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    hidden = self.decoder_input.of_first(z)
    hidden += self.decoder_input.of_second(labels)
    return self.decoder(tf.nn.relu(hidden))
