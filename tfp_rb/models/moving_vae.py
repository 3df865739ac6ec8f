"""The autoencoder with hard attention of the paper, section 5.4."""

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
from tfp_rb.models._base import EstimatorModel
from tfp_rb.models._convolutions import Convolutions
from tfp_rb.models._frames import Frames
from tfp_rb.models._layers import MLP
from tfp_rb.models._pixels import binarize

__all__ = ['MovingVAE']

tfd = tfp.distributions


@keras.saving.register_keras_serializable('tfp_rb')
class MovingVAE(EstimatorModel):
  """A variational autoencoder of a digit somewhere in a frame.

  ```none
  q(l | x) = attention(x), over all pixels;  q(z | x, l) = N(encoder(window))
  p(x | l, z) = Bernoulli(decoder(z) in the window about l, 0 elsewhere)
  ```

  Minimised is, with `f(x, l)` the negative bound given the location,

  ```none
  E_q(l | x) f(x, l) - entropy_weight H(q(l | x))
  ```

  which is the negative ELBO where the entropy weighs 1, but for a constant.

  `f` gathers the windows at the atoms and evaluates them in one call. Outside
  of its window it is a closed form in the number of lit pixels there.

  `fit` takes a dataset of digits of values 0 to 255, `[B, window, window]`, or
  `[S, B, window, window]` for `S` steps inside one compiled call. They are
  binarized and placed anew at each step, at whole pixels. As published, the
  last row and column in which they would fit are left out.

  `f` is not continuous between atoms: the encoder sees a mixture of windows,
  but the decoder's image lies at the most probable of them. So estimators that
  differentiate `f` there (`REBAR`, `MuProp`, `DARN`, `GumbelSoftmax` and
  `ReinMax`) are biased with this model; `REINFORCE`, `NVIL`, `RELAX` are not.

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

  def __init__(
    self,
    estimator: GradientEstimator | None = None,
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
      estimator: A `GradientEstimator`. Default: the five most probable
        locations are summed, and one other drawn, with REINFORCE+.
      frame: Python `int`, height and width of the frames.
      window: Python `int`, height and width of the digits.
      latent_dim: Python `int`, the dimension of `z`.
      hidden_units: Python `int`, of encoder and decoder.
      channels: Python `int`, of the convolutions.
      entropy_weight: Python `float`: 1 is correct, 64 the authors' code, which
        multiplies the entropy by the size of the batch once too often. Or a
        schedule of Keras by steps, e.g. from 256 to 1: a spread attention finds
        the digits, and the loss is the correct one at the end.
      epsilon: Python `float`, added to probabilities before their logarithm:
        what an unexpected lit pixel costs.
      seed: Python `int`, of the noise of all steps.
      **kwargs: As of every model.
    """
    if estimator is None:
      estimator = rao_blackwellize(REINFORCE(IndependentSample()), num_summed=5)
    # Four convolutions of 3 by 3 must leave something.
    frame = check_int(frame, 'frame', minimum=9)
    window = check_int(window, 'window', minimum=1)
    if window > frame:
      raise ValueError(
        f'`window` must be at most `frame`, {frame}, but is {window}. Pass the '
        'height of the digits, and a frame in which they can move.'
      )
    if not epsilon > 0.0:
      raise ValueError(
        '`epsilon` must be positive, since an unexpected lit pixel costs '
        f'-log(epsilon), but is {epsilon}. Pass e.g. 1e-8.'
      )
    if not isinstance(
      entropy_weight, (numbers.Real, schedules.LearningRateSchedule)
    ):
      raise TypeError(
        '`entropy_weight` must be a number or a schedule of Keras, but is '
        f'{entropy_weight!r}. Pass e.g. 1.0, or '
        '`keras.optimizers.schedules.PolynomialDecay(256.0, num_steps, 1.0)`.'
      )
    if isinstance(entropy_weight, numbers.Real):
      entropy_weight = float(entropy_weight)  # what can be saved
      if not 0.0 <= entropy_weight < np.inf:
        raise ValueError(
          '`entropy_weight` must be finite and not negative, but is '
          f'{entropy_weight}. Pass 1.0 for the negative ELBO.'
        )
    settings = {
      'frame': frame,
      'window': window,
      'latent_dim': latent_dim,
      'hidden_units': hidden_units,
      'channels': channels,
      'entropy_weight': entropy_weight,
      'epsilon': epsilon,
    }
    super().__init__(estimator, seed, settings, **kwargs)
    self.frames = Frames(frame, window)
    self.entropy_weight, self.epsilon = entropy_weight, epsilon
    # Without a warm start much depends on the start: it is the authors'.
    self.convolutions = Convolutions(frame, (channels,) * 3 + (1,))
    network = functools.partial(MLP, activation='tanh', uniform=True)
    self.attention = network(self.convolutions.output_size**2, (), frame**2)
    self.encoder = network(window**2, [hidden_units], 2 * latent_dim)
    self.decoder = network(latent_dim, [hidden_units], window**2)
    self._nelbo_metric = keras.metrics.Mean(name='negative_elbo')
    self._distance_metric = keras.metrics.Mean(name='distance')
    self.built = True

  def get_config(self) -> dict[str, Any]:
    config = super().get_config()
    weight = keras.saving.serialize_keras_object(self.entropy_weight)
    return {**config, 'entropy_weight': weight}

  @classmethod
  def from_config(cls, config: dict[str, Any]) -> 'MovingVAE':
    weight = config.get('entropy_weight', 1.0)
    weight = keras.saving.deserialize_keras_object(weight)
    return super().from_config({**config, 'entropy_weight': weight})

  @property
  def batch_rank(self) -> int:
    return 3

  def call(self, frames: tf.Tensor) -> tf.Tensor:
    """Log-probabilities of the locations, `[B, frame * frame]`."""
    return tf.nn.log_softmax(self.attention(self.convolutions(frames)))

  def negative_bound(
    self, frames: tf.Tensor, locations: tf.Tensor, seed: StatelessSeed
  ) -> tf.Tensor:
    """`f(x, l)`: reconstruction and divergence, one draw of `z` each.

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
      # The encoder sees a mixture; the decoder's image has one place.
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

  def _reconstruction(self, frames, windows, inside, logits):
    """Minus the log-likelihood of the whole frame."""
    # Pixels are 0 or 1, so one of the two logarithms is enough.
    probs = tf.sigmoid((2.0 * windows - 1.0) * logits)
    likelihood = inside * tf.math.log(probs + self.epsilon)
    # Elsewhere the mean is 0, and only the number of lit pixels counts.
    num_lit = tf.reduce_sum(frames, axis=[-2, -1])
    lit = num_lit - tf.reduce_sum(windows, axis=-1)
    unlit = self.frames.num_locations - num_lit
    unlit -= tf.reduce_sum(inside - windows, axis=-1)
    outside = lit * np.log(self.epsilon) + unlit * np.log1p(self.epsilon)
    return -tf.reduce_sum(likelihood, axis=-1) - outside

  def losses_of(
    self, frames: tf.Tensor, seed: StatelessSeed, step: int | tf.Tensor = 0
  ) -> tuple[tf.Tensor, tf.Tensor]:
    """The loss of each frame.

    Args:
      frames: Binary `Tensor` of shape `[B, frame, frame]`.
      seed: Stateless seed, `int32[2]`.
      step: The number of steps before, which schedules follow; of a trained
        model `model.optimizer.iterations`.

    Returns:
      losses: `Tensor` of shape `[B]`.
      log_probs: `Tensor` of shape `[B, frame * frame]`.
    """
    atom_seed, noise_seed = random.split_seed(seed, n=2)
    log_probs = self(frames)
    if self.estimator_layer.needs_vectors:
      q = tfd.OneHotCategorical(logits=log_probs, dtype=tf.float32)
    else:
      q = tfd.Categorical(logits=log_probs)

    def f(locations):
      if not self.estimator_layer.differentiates_f and q.event_shape.rank:
        locations = tf.argmax(locations, axis=-1, output_type=tf.int32)
      return self.negative_bound(frames, locations, noise_seed)

    losses = expectation(
      f,
      q,
      self.estimator_layer.at_step(step, self.frames.flat(frames)),
      seed=atom_seed,
    )
    entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=-1)
    weight = self.entropy_weight
    if isinstance(weight, schedules.LearningRateSchedule):
      weight = weight(step)
    return losses - weight * entropy, log_probs

  def step_loss(
    self,
    batch: tuple[tf.Tensor, ...],
    seed: StatelessSeed,
    step: int | tf.Tensor,
  ) -> tuple[tf.Tensor, tf.Tensor]:
    digits = self._digits(batch)
    pixel_seed, place_seed, draw_seed = random.split_seed(seed, n=3)
    frames, _ = self.frames.place(binarize(digits, pixel_seed), place_seed)
    losses, log_probs = self.losses_of(frames, draw_seed, step)
    rest = 1.0 - tf.reduce_mean(tf.exp(tf.reduce_max(log_probs, axis=-1)))
    return tf.reduce_mean(losses), rest

  def _digits(self, batch):
    """The only element of a batch; of the right shape."""
    size = self.frames.window
    if len(batch) != 1 or batch[0].shape[1:] != [size, size]:
      shapes = ', '.join(str(x.shape) for x in batch)
      raise ValueError(
        f'The data must be digits of shape [batch, {size}, {size}] alone, or '
        f'of that with one axis in front, but each batch is {shapes}. Reshape '
        'them, and leave labels out.'
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
    """The means of the pixels, at the most probable location, without noise.

    Args:
      frames: Binary `Tensor` of shape `[B, frame, frame]`.

    Returns:
      images: `Tensor` of that shape, values 0 to 1.
    """
    locations = tf.argmax(self(frames), axis=-1, output_type=tf.int32)
    windows = self.frames.windows(frames, locations[tf.newaxis])[0]
    mean, _ = tf.split(self.encoder(windows), 2, axis=-1)
    return self.frames.paste(tf.sigmoid(self.decoder(mean)), locations)

  @property
  def metrics(self) -> list[keras.Metric]:
    return [
      self._loss_metric,
      self._rest_metric,
      self._nelbo_metric,
      self._distance_metric,
    ]
