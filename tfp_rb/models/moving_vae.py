# SPDX-License-Identifier: Apache-2.0
"""Defines the autoencoder with hard attention of section 5.4 of the paper."""

import functools
import numbers
from typing import Any

import keras
from keras.optimizers import schedules
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb._expectation import expectation
from tfp_rb.baselines import IndependentSample
from tfp_rb.estimators import REINFORCE, GradientEstimator
from tfp_rb.estimators.rao_blackwell import rao_blackwellize
from tfp_rb.internal import random
from tfp_rb.internal.checks import check_int
from tfp_rb.internal.types import StatelessSeed
from tfp_rb.models._convolutions import Convolutions
from tfp_rb.models._frames import Frames
from tfp_rb.models._layers import MLP
from tfp_rb.models._pixels import binarize
from tfp_rb.models.estimator_model import EstimatorModel

__all__ = ['MovingVAE']

tfd = tfp.distributions


@keras.saving.register_keras_serializable('tfp_rb')
class MovingVAE(EstimatorModel):
  """Implements a variational autoencoder that first locates a digit.

  ```none
  q(l | x) = attention(x), over all pixels;  q(z | x, l) = N(encoder(window))
  p(x | l, z) = Bernoulli(decoder(z) in the window about l, 0 elsewhere)
  ```

  Let `f(x, l)` be the negative bound given the location. The loss is

  ```none
  E_q(l | x) f(x, l) - entropy_weight H(q(l | x))
  ```

  With `entropy_weight=1` this is the negative evidence lower bound, up to a
  constant.

  `f` is called once and gathers the windows at all locations that the estimator
  chooses. Outside of the window, the likelihood depends only on the number of
  lit pixels.

  `fit` takes a dataset of digits `[B, window, window]` with values from 0 to
  255. It splits stacks `[S, B, window, window]` into batches, because a loop
  around convolutions is slow under XLA on a CPU. The model binarizes the digits
  and places them again at each step, at whole pixels. As in the authors' code,
  a digit never reaches the last row or column.

  Between two locations `f` is not continuous: the encoder sees a mixture of
  windows, but the decoder's image lies at the most probable location. Therefore
  estimators that differentiate `f` with respect to the location (`REBAR`,
  `MuProp`, `DARN`, `GumbelSoftmax` and `ReinMax`) are biased with this model;
  `REINFORCE`, `NVIL` and `RELAX` are not.

  The metric `rest` is the total probability of all locations except the most
  probable one, averaged over the frames.

  #### Examples

  ```python
  import keras

  model = tfp_rb.models.MovingVAE(frame=12, window=4, latent_dim=2)
  model.compile(keras.optimizers.Adam(1e-3))
  digits = tf.fill([8, 4, 4], 255)
  history = model.fit(tf.data.Dataset.from_tensors(digits), verbose=0)
  sorted(history.history)  # ==> ['loss', 'rest']
  ```
  """

  batch_rank = 3
  loops_over_stacks = False
  metric_names = ('loss', 'rest')

  def __init__(
    self,
    estimator: GradientEstimator | None = None,
    *,
    frame: int = 68,
    window: int = 28,
    latent_dim: int = 5,
    hidden_units: int = 256,
    channels: int = 7,
    entropy_weight: float | schedules.LearningRateSchedule = 1.0,
    epsilon: float = 1e-8,
    seed: int = 0,
    **kwargs: Any,
  ) -> None:
    """Makes the model.

    Args:
      estimator: A `GradientEstimator`. Default:
        `rao_blackwellize(REINFORCE(IndependentSample()), num_summed=5)`, which
        sums the five most probable locations and draws another one.
      frame: Python `int`, height and width of the frames.
      window: Python `int`, height and width of the digits.
      latent_dim: Python `int`, the dimension of `z`.
      hidden_units: Python `int`, the size of the hidden layer of encoder and
        decoder.
      channels: Python `int`, the number of channels of the convolutions.
      entropy_weight: Python `float`. 1 is correct; the authors' code in effect
        uses 64, because it multiplies the entropy by the batch size once too
        often.
        A Keras learning rate schedule is also accepted. A schedule that falls
        from 256 to 1 first keeps the attention spread out until it finds the
        digits, and ends with the correct loss.
      epsilon: Python `float`, added to probabilities before taking logarithms.
        An unexpected lit pixel costs `-log(epsilon)`.
      seed: Python `int`, from which the seeds of all steps are derived.
      **kwargs: Arguments of `keras.Model`.

    Raises:
      TypeError: An argument has the wrong type.
      ValueError: A number is out of range.
    """
    if estimator is None:
      estimator = rao_blackwellize(REINFORCE(IndependentSample()), num_summed=5)
    # Four convolutions of 3 by 3 must leave at least one pixel.
    frame = check_int(frame, 'frame', minimum=9)
    window = check_int(window, 'window', minimum=1)
    if window > frame:
      raise ValueError(
        f'`window` must be at most `frame`, which is {frame}; got {window}. '
        'Pass the height of the digits, and a frame in which they can move.'
      )
    if not epsilon > 0.0:
      raise ValueError(
        '`epsilon` must be positive, because an unexpected lit pixel costs '
        f'-log(epsilon); got {epsilon}. Pass, for example, 1e-8.'
      )
    if not isinstance(
      entropy_weight, (numbers.Real, schedules.LearningRateSchedule)
    ):
      raise TypeError(
        '`entropy_weight` must be a number or a Keras schedule; got '
        f'{entropy_weight!r}. Pass, for example, 1.0, or '
        '`keras.optimizers.schedules.PolynomialDecay(256.0, num_steps, 1.0)`.'
      )
    if isinstance(entropy_weight, numbers.Real):
      entropy_weight = float(entropy_weight)
      if not 0.0 <= entropy_weight < np.inf:
        raise ValueError(
          '`entropy_weight` must be finite and not negative; got '
          f'{entropy_weight}. Pass 1.0 for the negative ELBO.'
        )
    super().__init__(estimator, seed=seed, **kwargs)
    self.frames = Frames(frame, window)
    self.entropy_weight, self.epsilon = entropy_weight, epsilon
    # Use the authors' initialization, which matters much without a warm start.
    self.convolutions = Convolutions(frame, (channels,) * 3 + (1,))
    network = functools.partial(MLP, activation='tanh', uniform=True)
    self.attention = network(self.convolutions.output_size**2, (), frame**2)
    self.encoder = network(window**2, [hidden_units], 2 * latent_dim)
    self.decoder = network(latent_dim, [hidden_units], window**2)
    self._nelbo_metric = keras.metrics.Mean(name='negative_elbo')
    self._distance_metric = keras.metrics.Mean(name='distance')

  @property
  def serving_signature(self) -> tf.TensorSpec:
    return tf.TensorSpec([None, self.frames.size, self.frames.size], tf.float32)

  def call(self, frames: tf.Tensor) -> tf.Tensor:
    """Returns the log-probabilities of the locations, `[B, frame * frame]`."""
    return tf.nn.log_softmax(self.attention(self.convolutions(frames)))

  def negative_bound(
    self, frames: tf.Tensor, locations: tf.Tensor, seed: StatelessSeed
  ) -> tf.Tensor:
    """Returns `f(x, l)`, the negative bound with one draw of `z`.

    Args:
      frames: Binary `Tensor` of shape `[B, frame, frame]`.
      locations: Numbers of pixels, integers of shape `[m, B]`; or one-hot
        vectors and points between them, `[m, B, frame * frame]`.
      seed: Stateless seed, `int32[2]`.

    Returns:
      loss: `Tensor` of shape `[m, B]`, without the constant of the prior of
        the location.
    """
    frames = tf.cast(frames, tf.float32)
    locations = tf.convert_to_tensor(locations)
    if locations.dtype.is_integer:
      windows = seen = self.frames.windows(frames, locations)
    else:
      weights, size = locations, self.frames.num_locations
      locations = tf.argmax(weights, axis=-1, output_type=tf.int32)
      windows = self.frames.windows(frames, locations)
      # The encoder sees a mixture of windows, but the decoder needs one place.
      seen = self.frames.soft_windows(
        frames, tf.ensure_shape(weights, [None, None, size])
      )
    mean, log_scale = tf.split(self.encoder(seen), 2, axis=-1)
    noise = tf.random.stateless_normal(tf.shape(mean), seed, alg='philox')
    logits = self.decoder(mean + tf.exp(log_scale) * noise)
    divergence = tf.reduce_sum(
      0.5 * (mean**2 + tf.exp(2.0 * log_scale) - 1.0) - log_scale, axis=-1
    )
    inside = self.frames.is_inside(locations)
    return divergence + self._reconstruction(frames, windows, inside, logits)

  def _reconstruction(
    self,
    frames: tf.Tensor,
    windows: tf.Tensor,
    inside: tf.Tensor,
    logits: tf.Tensor,
  ) -> tf.Tensor:
    """Returns the negative log-likelihood of the whole frame."""
    # Pixels are 0 or 1, so each needs only one of the two logarithms.
    probs = tf.sigmoid((2.0 * windows - 1.0) * logits)
    likelihood = inside * tf.math.log(probs + self.epsilon)
    # Outside of the window the mean is 0, and only the number of lit pixels
    # matters.
    num_lit = tf.reduce_sum(frames, axis=[-2, -1])
    lit = num_lit - tf.reduce_sum(windows, axis=-1)
    unlit = self.frames.num_locations - num_lit
    unlit -= tf.reduce_sum(inside - windows, axis=-1)
    outside = lit * np.log(self.epsilon) + unlit * np.log1p(self.epsilon)
    return -tf.reduce_sum(likelihood, axis=-1) - outside

  def losses_of(
    self,
    frames: tf.Tensor,
    seed: StatelessSeed,
    step: int | tf.Tensor = 0,
    estimator: GradientEstimator | None = None,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the loss of each frame.

    Args:
      frames: Binary `Tensor` of shape `[B, frame, frame]`.
      seed: Stateless seed, `int32[2]`.
      step: The number of steps so far, on which schedules depend; `model.step`
        for a trained model.
      estimator: A `GradientEstimator`. Default: that of the model, at `step`.

    Returns:
      losses: `Tensor` of shape `[B]`.
      log_probs: `Tensor` of shape `[B, frame * frame]`.
    """
    if estimator is None:
      estimator = self.estimator.at_step(step)
    atom_seed, noise_seed = random.split_seed(seed, n=2)
    log_probs = self(frames)
    if estimator.needs_vectors:
      q = tfd.OneHotCategorical(logits=log_probs, dtype=tf.float32)
    else:
      q = tfd.Categorical(logits=log_probs)

    def f(locations: tf.Tensor, rows: tf.Tensor | None = None) -> tf.Tensor:
      if not estimator.differentiates_f and q.event_shape.rank:
        locations = tf.argmax(locations, axis=-1, output_type=tf.int32)
      if rows is None:
        return self.negative_bound(frames, locations, noise_seed)
      # In a pool each location belongs to one frame; see `tfp_rb.pooled`.
      seen, at_seen = tf.gather(frames, rows), locations[tf.newaxis]
      return self.negative_bound(seen, at_seen, noise_seed)[0]

    inputs = self.frames.flat(frames)
    losses = expectation(f, q, estimator.bind(inputs), seed=atom_seed)
    entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)
    weight = self.entropy_weight
    if isinstance(weight, schedules.LearningRateSchedule):
      weight = weight(step)
    return losses - weight * entropy, log_probs

  def compute_step_loss(
    self,
    batch: tuple[tf.Tensor, ...],
    estimator: GradientEstimator,
    seed: StatelessSeed,
  ) -> dict[str, tf.Tensor]:
    digits = self._digits(batch)
    pixel_seed, place_seed, draw_seed = random.split_seed(seed, n=3)
    frames, _ = self.frames.place(binarize(digits, pixel_seed), place_seed)
    losses, log_probs = self.losses_of(frames, draw_seed, self.step, estimator)
    rest = 1.0 - tf.reduce_mean(tf.exp(tf.reduce_max(log_probs, axis=-1)))
    return {'loss': tf.reduce_mean(losses), 'rest': rest}

  def _digits(self, batch: Any) -> tf.Tensor:
    """Returns the only element of a batch; raises if its shape is wrong."""
    size = self.frames.window
    if len(batch) != 1 or batch[0].shape[1:] != [size, size]:
      shapes = ', '.join(str(x.shape) for x in batch)
      raise ValueError(
        f'The data must be digits of shape [batch, {size}, {size}] without '
        'labels, or stacks of them with one more dimension in front; got '
        f'{shapes} for a batch. Reshape the digits and drop the labels.'
      )
    return batch[0]

  def test_step(
    self, data: tf.Tensor | tuple[tf.Tensor, ...]
  ) -> dict[str, tf.Tensor]:
    digits = self._digits(data if isinstance(data, tuple) else (data,))
    seeds = random.split_seed(self._test_seed(digits), n=3)
    frames, truth = self.frames.place(binarize(digits, seeds[0]), seeds[1])
    guess = tf.argmax(self(frames), axis=-1, output_type=tf.int32)
    loss = self.negative_bound(frames, guess[tf.newaxis], seeds[2])[0]
    self._nelbo_metric.update_state(loss)
    self._distance_metric.update_state(self.frames.distance(guess, truth))
    metrics = (self._nelbo_metric, self._distance_metric)
    return {m.name: m.result() for m in metrics}

  def reconstruct(self, frames: tf.Tensor) -> tf.Tensor:
    """Returns the mean image, with the digit at its most probable location.

    Args:
      frames: Binary `Tensor` of shape `[B, frame, frame]`.

    Returns:
      images: `Tensor` of that shape, values from 0 to 1.
    """
    locations = tf.argmax(self(frames), axis=-1, output_type=tf.int32)
    windows = self.frames.windows(frames, locations[tf.newaxis])[0]
    mean, _ = tf.split(self.encoder(windows), 2, axis=-1)
    return self.frames.paste(tf.sigmoid(self.decoder(mean)), locations)
