# SPDX-License-Identifier: Apache-2.0
"""Defines a variational autoencoder with discrete latent variables."""

from collections.abc import Sequence
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb import baselines
from tfp_rb.estimators import REINFORCE, GradientEstimator
from tfp_rb.internal import checks, gradients, random, shapes
from tfp_rb.internal.types import Distribution, Seed, StatelessSeed
from tfp_rb.models._layers import built_network, dense_network
from tfp_rb.models._pixels import binarize, log_likelihood
from tfp_rb.models.estimator_model import EstimatorModel
from tfp_rb.vi import monte_carlo_variational_loss

__all__ = ['DiscreteVAE']

tfd = tfp.distributions

_MOST_CODES = 2**16  # The largest number of codes for an exact gradient.


@keras.saving.register_keras_serializable('tfp_rb')
class DiscreteVAE(EstimatorModel):
  """Implements a variational autoencoder with a code of discrete variables.

  ```none
  p(z) uniform,   p(x | z) = Bernoulli(decoder(z)),   q(z | x) = encoder(x)
  loss = E_q[log q(z | x) - log p(x, z)], the negative evidence lower bound
  ```

  The code `z` has independent variables given `x`: bits, or variables of `L`
  values each. `estimator` gives the gradient of the expectation with respect to
  the encoder. The decoder is called once per step, with the codes of all atoms
  together. `log q` is part of the expectation, and the estimator takes into
  account that the mean of the score is 0; see
  `tfp_rb.vi.monte_carlo_variational_loss`.

  With `tfp_rb.Exact()` the model decodes each of the `L**C` codes once per
  step, not once per image, because all images share the codes.

  `fit` and `evaluate` take a dataset of images `[B, num_pixels]`. Integers from
  0 to 255 are binarized again in each step; floating-point numbers from 0 to 1
  are used unchanged. With one more dimension in front, `[S, B, num_pixels]`,
  the `S` steps run inside one compiled call; see
  `tfp_rb.models.prepare_dataset`. `predict` returns the logits of `q`.

  The metric `rest` is the total probability of all codes except the most
  probable one, averaged over the images.

  #### Examples

  ```python
  import keras

  model = tfp_rb.models.DiscreteVAE(
      tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), num_samples=2),
      latents=20)
  model.compile(keras.optimizers.Adam(1e-3))
  images = tf.zeros([8, 784], tf.uint8)
  history = model.fit(tf.data.Dataset.from_tensors(images), verbose=0)
  sorted(history.history)  # ==> ['loss', 'rest']
  binary = tf.zeros([8, 784])
  model.importance_bound(binary, num_samples=100, seed=[0, 1]).shape  # ==> (8,)
  model.generate(3).shape  # ==> (3, 784)
  ```

  #### References

  [1] Michalis K. Titsias, Jiaxin Shi. Double control variates for gradient
      estimation in discrete latent variable models. AISTATS 2022, section 5:
      200 bits. https://arxiv.org/abs/2111.05300
  [2] Liyuan Liu, Chengyu Dong, Xiaodong Liu, Bin Yu, Jianfeng Gao. Bridging
      discrete and backpropagation: straight-through and beyond. NeurIPS 2023,
      section 6: 4 variables of 8 values. https://arxiv.org/abs/2304.08612
  """

  batch_rank = 2
  metric_names = ('loss', 'rest')

  def __init__(
    self,
    estimator: GradientEstimator | None = None,
    *,
    latents: int | Sequence[int] = 200,
    num_pixels: int = 784,
    encoder_units: Sequence[int] | None = None,
    decoder_units: Sequence[int] | None = None,
    encoder: keras.Layer | None = None,
    decoder: keras.Layer | None = None,
    seed: int = 0,
    **kwargs: Any,
  ) -> None:
    """Makes the model.

    Args:
      estimator: A `GradientEstimator`. Default: three draws with a
        leave-one-out baseline.
      latents: Python `int`, the number of bits of the code, or a pair `(C, L)`
        for `C` variables of `L` values each, which are passed on as one-hot
        vectors.
      num_pixels: Python `int`, the number of pixels of an image.
      encoder_units: Sizes of the hidden layers of the encoder. Default:
        `(200, 200)` with leaky ReLU for bits as in [1], `(512, 256)` with ReLU
        for other variables as in [2].
      decoder_units: Sizes of the hidden layers of the decoder. Default:
        `(200, 200)` for bits, `(256, 512)` for other variables.
      encoder: A Keras layer or model that maps images `[n, num_pixels]` to the
        logits of the code, `[n, num_bits]` or `[n, C * L]`. Default: a network
        with `encoder_units`.
      decoder: A Keras layer or model that maps codes, `[n, num_bits]` or
        `[n, C * L]`, to the logits of pixels, `[n, num_pixels]`. Codes are
        floating-point numbers; some estimators relax them. Default: a network
        with `decoder_units`.
      seed: Python `int`, from which the seeds of all steps are derived.
      **kwargs: Arguments of `keras.Model`.

    Raises:
      TypeError: `estimator` is not a `GradientEstimator`, or `latents` is not
        an `int` or a pair of them.
      ValueError: `latents` is out of range, or a network returns the wrong
        number of units.
    """
    if estimator is None:
      estimator = REINFORCE(baselines.LeaveOneOut(), num_samples=3)
    super().__init__(estimator, seed=seed, **kwargs)
    self.code_shape = _code_shape(latents)
    self.num_pixels = num_pixels
    are_bits = len(self.code_shape) == 1
    size, slope = math.prod(self.code_shape), 0.3 if are_bits else 0.0
    if encoder is None:
      units = encoder_units or ((200, 200) if are_bits else (512, 256))
      encoder = dense_network(units, size, slope, self.dtype_policy)
    if decoder is None:
      units = decoder_units or ((200, 200) if are_bits else (256, 512))
      decoder = dense_network(units, num_pixels, slope, self.dtype_policy)
    self.encoder = built_network(encoder, num_pixels, size, 'encoder')
    self.decoder = built_network(decoder, size, num_pixels, 'decoder')
    self._nelbo_metric = keras.metrics.Mean(name='negative_elbo')

  @property
  def serving_signature(self) -> tf.TensorSpec:
    return tf.TensorSpec([None, self.num_pixels], tf.float32)

  def call(self, images: tf.Tensor) -> tf.Tensor:
    """Returns the logits of `q(z | x)`.

    Args:
      images: `Tensor` of shape `[B, num_pixels]`, values from 0 to 1.

    Returns:
      logits: `Tensor` of shape `[B, num_bits]` or `[B, C, L]`.
    """
    dtype = tf.as_dtype(images.dtype)
    if not dtype.is_floating:
      raise TypeError(
        '`images` must be floating-point numbers from 0 to 1; got '
        f'{dtype.name}. Binarize them with `tfp_rb.models.binarize`.'
      )
    logits = self.encoder(images)
    return tf.reshape(logits, [-1, *self.code_shape])

  def posterior(self, images: tf.Tensor) -> Distribution:
    """Returns `q(z | x)`, whose values are floating-point numbers.

    Args:
      images: `Tensor` of shape `[B, num_pixels]`, values from 0 to 1.

    Returns:
      distribution: A `tfd.Independent` of batch shape `[B]`.
    """
    return self._codes_of(self(images))

  def log_joint(self, images: tf.Tensor, codes: tf.Tensor) -> tf.Tensor:
    """Returns `log p(x, z)`.

    Args:
      images: `Tensor` of shape `[B, num_pixels]`, values from 0 to 1.
      codes: `Tensor` of shape `[..., B, num_bits]` or `[..., B, C, L]`: bits,
        one-hot vectors, or points between them, integers or floating-point.

    Returns:
      log_prob: `Tensor` of shape `[..., B]`.
    """
    logits = self._decode(codes)
    return log_likelihood(images, logits) - self._log_num_codes

  def negative_bound(
    self,
    images: tf.Tensor,
    seed: Seed = None,
    estimator: GradientEstimator | None = None,
  ) -> tf.Tensor:
    """Estimates the negative evidence lower bound and its gradient.

    Args:
      images: `Tensor` of shape `[B, num_pixels]`, values from 0 to 1.
      seed: Stateless seed, `int32[2]`, or as in TFP.
      estimator: A `GradientEstimator`. Default: that of the model.

    Returns:
      loss: `Tensor` of shape `[B]`.
    """
    estimator = self.estimator if estimator is None else estimator
    if estimator.sums_everything:
      return self._exact_negative_bound(images)
    return self._estimated(images, self.posterior(images), seed, estimator)

  def _estimated(
    self,
    images: tf.Tensor,
    posterior: Distribution,
    seed: Seed,
    estimator: GradientEstimator,
  ) -> tf.Tensor:
    """Returns the bound at the atoms of the estimator."""

    def log_joint(z: tf.Tensor, rows: tf.Tensor | None = None) -> tf.Tensor:
      # In a pool, each code belongs to one image.
      x = images if rows is None else tf.gather(images, rows)
      return self.log_joint(x, z)

    return monte_carlo_variational_loss(
      log_joint,
      posterior,
      gradient_estimator=estimator.bind(images),
      seed=seed,
    )

  def _exact_negative_bound(self, images: tf.Tensor) -> tf.Tensor:
    """Returns the bound with all codes summed, each decoded once."""
    one_hot = self._all_codes()  # [N, C, L]
    codes = one_hot if len(self.code_shape) == 2 else one_hot[..., 1]
    logits = self._decode(codes)  # [N, num_pixels]
    images = tf.cast(images, logits.dtype)
    # Compute `log_joint` for all pairs of images and codes, [B, N].
    log_joint = tf.matmul(images, logits, transpose_b=True)
    log_joint -= tf.reduce_sum(gradients.softplus(logits), axis=-1)
    log_joint -= self._log_num_codes
    log_probs = tf.cast(self._site_log_probs(self(images)), logits.dtype)
    log_q = tf.einsum('bcl,ncl->bn', log_probs, tf.cast(one_hot, logits.dtype))
    return tf.reduce_sum(tf.exp(log_q) * (log_q - log_joint), axis=-1)

  def importance_bound(
    self, images: tf.Tensor, num_samples: int = 100, seed: Seed = None
  ) -> tf.Tensor:
    """Estimates a lower bound of `log p(x)` with several draws per image.

    ```none
    log(1 / M  sum_i p(x, z_i) / q(z_i | x)),   z_1, ..., z_M from q(z | x)
    ```

    Its mean rises with `M`. All `M * B` codes are decoded at once.

    Args:
      images: `Tensor` of shape `[B, num_pixels]`, values from 0 to 1.
      num_samples: Python `int` `M`.
      seed: Stateless seed, `int32[2]`, or as in TFP.

    Returns:
      bound: `Tensor` of shape `[B]`.
    """
    num_samples = checks.check_int(num_samples, 'num_samples', minimum=1)
    posterior = self.posterior(images)
    codes = posterior.sample(num_samples, seed=seed)
    log_ratio = self.log_joint(images, codes)  # [M, B]
    log_ratio -= tf.cast(posterior.log_prob(codes), log_ratio.dtype)
    return tf.reduce_logsumexp(log_ratio, axis=0) - math.log(num_samples)

  def generate(self, num_images: int, seed: Seed = None) -> tf.Tensor:
    """Draws codes from the prior, and returns their mean images.

    Args:
      num_images: Python `int`.
      seed: Stateless seed, `int32[2]`, or as in TFP.

    Returns:
      images: `Tensor` of shape `[num_images, num_pixels]`, values from 0 to 1.
    """
    prior = self._codes_of(tf.zeros([num_images, *self.code_shape]))
    return tf.sigmoid(self._decode(prior.sample(seed=seed)))

  def compute_step_loss(
    self,
    batch: tuple[tf.Tensor, ...],
    estimator: GradientEstimator,
    seed: StatelessSeed,
  ) -> dict[str, tf.Tensor]:
    draw_seed, pixel_seed = random.split_seed(seed, n=2)
    images = self._pixels(batch, pixel_seed)
    loss = self.negative_bound(images, draw_seed, estimator)
    log_best = tf.reduce_max(self._site_log_probs(self(images)), axis=-1)
    rest = -tf.math.expm1(tf.reduce_sum(log_best, axis=-1))
    return {'loss': tf.reduce_mean(loss), 'rest': tf.reduce_mean(rest)}

  def test_step(
    self, data: tf.Tensor | tuple[tf.Tensor, ...]
  ) -> dict[str, tf.Tensor]:
    batch = data if isinstance(data, tuple) else (data,)
    pixel_seed, draw_seed = random.split_seed(self._test_seed(batch[0]), n=2)
    images = self._pixels(batch, pixel_seed)
    # Use one draw per image: its mean is the bound for every estimator.
    bound = self.importance_bound(images, num_samples=1, seed=draw_seed)
    self._nelbo_metric.update_state(-bound)
    return {self._nelbo_metric.name: self._nelbo_metric.result()}

  def predict_step(self, data: tf.Tensor | tuple[tf.Tensor, ...]) -> tf.Tensor:
    images = data[0] if isinstance(data, tuple) else data
    self._check(images)
    if images.dtype.is_integer:
      images = tf.cast(images, tf.float32) / 255.0
    return self(images)

  def _pixels(
    self, batch: tuple[tf.Tensor, ...], seed: StatelessSeed
  ) -> tf.Tensor:
    """Returns the images of a batch. Integer images are binarized first."""
    if len(batch) != 1:
      raise ValueError(
        f'The data must consist of images only; got {len(batch)} elements in '
        'each batch. Pass a `tf.data.Dataset` of images.'
      )
    images = tf.convert_to_tensor(batch[0])
    self._check(images)
    return binarize(images, seed) if images.dtype.is_integer else images

  def _check(self, images: tf.Tensor) -> None:
    if images.shape.rank != 2 or images.shape[-1] != self.num_pixels:
      raise ValueError(
        f'`images` must have shape [batch, {self.num_pixels}], or one more '
        f'dimension in front for stacks of batches; got {images.shape} for a '
        'batch. Reshape them.'
      )

  def _codes_of(self, logits: tf.Tensor) -> Distribution:
    """Returns the distribution of codes with these logits."""
    kind = tfd.Bernoulli if len(self.code_shape) == 1 else tfd.OneHotCategorical
    return tfd.Independent(kind(logits=logits, dtype=logits.dtype), 1)

  @property
  def _log_num_codes(self) -> float:
    """The log of the number of codes, all of which are equally probable."""
    num_variables, num_values = (*self.code_shape, 2)[:2]
    return num_variables * math.log(num_values)

  def _decode(self, codes: tf.Tensor) -> tf.Tensor:
    """Returns the logits of the pixels, `[..., num_pixels]`."""
    codes = tf.cast(codes, self.compute_dtype)
    shape = shapes.as_list(codes)[: -len(self.code_shape)]
    # Pass a matrix, which networks of any kind accept and which is fastest.
    logits = self.decoder(tf.reshape(codes, [-1, math.prod(self.code_shape)]))
    return tf.reshape(logits, [*shape, self.num_pixels])

  def _site_log_probs(self, logits: tf.Tensor) -> tf.Tensor:
    """Returns the log-probabilities of each variable, `[B, C, L]`."""
    if len(self.code_shape) == 1:
      logits = tf.stack([tf.zeros_like(logits), logits], axis=-1)
    return tf.nn.log_softmax(logits)

  def _all_codes(self) -> tf.Tensor:
    """Returns all codes as one-hot vectors, `[N, C, L]`."""
    num_variables, num_values = (*self.code_shape, 2)[:2]
    number = num_values**num_variables
    if number > _MOST_CODES:
      raise ValueError(
        f'`latents` must have at most {_MOST_CODES} codes for `Exact`; got '
        f'{num_values}**{num_variables}. Use an estimator that draws, for '
        'example `tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut(), '
        'num_samples=3)`.'
      )
    digits = np.indices([num_values] * num_variables).reshape(
      [num_variables, number]
    )
    return tf.one_hot(digits.T, num_values)


def _code_shape(latents: Any) -> tuple[int, ...]:
  """Returns `(num_bits,)` or `(C, L)`."""
  if not isinstance(latents, Sequence):
    return (checks.check_int(latents, 'latents', minimum=1),)
  if len(latents) != 2:
    raise ValueError(
      '`latents` must be a number of bits, or a pair (number of variables, '
      f'number of values); got {latents!r}. Write, for example, `(4, 8)`.'
    )
  num_variables, num_values = latents
  return (
    checks.check_int(num_variables, 'latents[0]', minimum=1),
    checks.check_int(num_values, 'latents[1]', minimum=2),
  )
