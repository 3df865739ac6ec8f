# SPDX-License-Identifier: Apache-2.0
"""Defines the switching linear dynamical system of `switching_dynamics.py`.

A point in the plane rotates about the origin and shrinks towards it. The regime
`z_t` determines how fast it does both, and how much noise is added:

  x_t = radius[z_t] * turn(angle[z_t]) x_{t-1} + scale[z_t] * noise
  y_t = x_t + observation_scale * noise

The noise has the same scale in both coordinates, so the covariance of `x_t`
given the regimes is a multiple of the identity. The Kalman filter therefore
keeps one number for the covariance, and two for the mean.
"""

import collections
import itertools

import numpy as np
import tensorflow as tf

NUM_REGIMES = 3
FIRST_SCALE = 1.0  # The standard deviation of the first point.
STAY = 0.95

Dynamics = collections.namedtuple(
  'Dynamics', 'angle radius scale observation_scale transition'
)
TRUTH = Dynamics(
  angle=np.array([-0.5, 0.1, 0.7]),
  radius=np.array([0.98, 0.9, 0.98]),
  scale=np.array([0.1, 0.3, 0.1]),
  observation_scale=0.25,
  transition=np.full([3, 3], 0.5 * (1.0 - STAY))
  + (STAY - 0.5 * (1.0 - STAY)) * np.eye(3),
)


def simulate(num_series, num_steps, seed):
  """Draws regimes `[S, T]` and observations `[S, T, 2]` from the true model."""
  rng = np.random.default_rng(seed)
  normal = lambda *shape: rng.normal(size=shape) + 1j * rng.normal(size=shape)
  z = np.zeros([num_series, num_steps], int)
  x = np.zeros([num_series, num_steps], complex)
  z[:, 0] = rng.integers(NUM_REGIMES, size=num_series)
  x[:, 0] = FIRST_SCALE * normal(num_series)
  for t in range(1, num_steps):
    below = np.cumsum(TRUTH.transition[z[:, t - 1]], axis=-1)
    z[:, t] = (rng.random([num_series, 1]) > below).sum(axis=-1)
    factor = TRUTH.radius * np.exp(1j * TRUTH.angle)
    x[:, t] = factor[z[:, t]] * x[:, t - 1]
    x[:, t] += TRUTH.scale[z[:, t]] * normal(num_series)
  y = x + TRUTH.observation_scale * normal(num_series, num_steps)
  return z, np.stack([y.real, y.imag], axis=-1).astype(np.float32)


def first_guess(y, window=20):
  """Returns dynamics to start from, by clustering the angles of short windows.

  Args:
    y: Observations `[S, T, 2]`.
    window: Python `int`, the number of steps in a window.

  Returns:
    dynamics: `Dynamics` with the centres of three clusters as angles, in
      increasing order; all other values are equal in all regimes.
  """
  points = y[..., 0] + 1j * y[..., 1]
  turns = points[:, 1:] * np.conj(points[:, :-1])
  num_windows = max(1, turns.shape[1] // window)
  parts = np.array_split(turns, num_windows, axis=1)
  sums = np.concatenate([part.sum(axis=1) for part in parts])
  angles, weights = np.angle(sums), np.abs(sums)
  centres = np.quantile(angles, [0.1, 0.5, 0.9])
  for _ in range(100):  # These are iterations of k-means.
    nearest = np.abs(angles[:, np.newaxis] - centres).argmin(axis=-1)
    for k in set(nearest):
      own = nearest == k
      centres[k] = np.average(angles[own], weights=weights[own])
  ones = np.ones(NUM_REGIMES)
  return Dynamics(
    np.sort(centres), 0.9 * ones, 0.2 * ones, 0.2,
    0.1 / 2 * np.ones([3, 3]) + (0.9 - 0.1 / 2) * np.eye(3),
  )  # fmt: skip


class Model(tf.Module):
  """The log joint density of regimes and observations, with variables."""

  def __init__(self, y, start):
    """Creates the model.

    Args:
      y: Observations `[S, T, 2]`.
      start: `Dynamics`, the initial values of the variables.
    """
    super().__init__()
    self.y = tf.constant(y, tf.float32)
    variable = lambda x: tf.Variable(x, dtype=tf.float32)
    self.angle = variable(start.angle)
    self.radius_logit = variable(np.log(start.radius / (1.0 - start.radius)))
    self.log_scale = variable(np.log(start.scale))
    self.log_observation_scale = variable(np.log(start.observation_scale))
    self.transition_logits = variable(np.log(start.transition))

  def dynamics(self):
    """Returns the `Dynamics` as arrays."""
    return Dynamics(
      self.angle.numpy(),
      tf.sigmoid(self.radius_logit).numpy(),
      tf.exp(self.log_scale).numpy(),
      float(tf.exp(self.log_observation_scale)),
      tf.nn.softmax(self.transition_logits).numpy(),
    )

  def log_joint(self, z, rows=None):
    """Runs a Kalman filter along each path, and adds the log prior.

    Args:
      z: Regimes of shape `[m, S, T]`; with `rows`, `[N, T]`.
      rows: `int32[N]`, the series of each path, as passed by `tfp_rb.pooled`.

    Returns:
      log_joint: `log p(y, z)`, of shape `[m, S]` or `[N]`.
    """
    y = self.y if rows is None else tf.gather(self.y, rows)
    return self.log_prior(z) + self.log_likelihood(z, y)

  def log_prior(self, z):
    index = z[..., :-1] * NUM_REGIMES + z[..., 1:]
    counts = tf.reduce_sum(tf.one_hot(index, NUM_REGIMES**2), axis=-2)
    log_probs = tf.nn.log_softmax(self.transition_logits)
    log_probs = tf.reshape(log_probs, [NUM_REGIMES**2])
    return tf.linalg.matvec(counts, log_probs) - np.log(NUM_REGIMES)

  def log_likelihood(self, z, y):
    """Returns `log p(y | z)` for observations of shape `[..., T, 2]`."""
    num_steps = z.shape[-1]
    z, y = (tf.transpose(x, _time_first(x, n)) for x, n in ((z, 1), (y, 2)))
    radius = tf.sigmoid(self.radius_logit)
    table = [
      radius * tf.cos(self.angle), radius * tf.sin(self.angle), radius**2,
      tf.exp(2.0 * self.log_scale),
    ]  # fmt: skip
    noise = tf.exp(2.0 * self.log_observation_scale)

    def step(t, mean_0, mean_1, variance, result):
      # This selects one of three values. XLA fuses it with the next lines.
      is_regime = [tf.cast(z[t] == k, tf.float32) for k in range(NUM_REGIMES)]
      cos, sin, shrink, added = (
        sum(is_regime[k] * values[k] for k in range(NUM_REGIMES))
        for values in table
      )
      predicted_0 = cos * mean_0 - sin * mean_1
      predicted_1 = sin * mean_0 + cos * mean_1
      variance = shrink * variance + added
      # The first point does not depend on its regime.
      first = tf.cast(t == 0, tf.float32)
      variance = first * FIRST_SCALE**2 + (1.0 - first) * variance
      total = variance + noise
      gain = variance / total
      error_0 = y[t, ..., 0] - predicted_0
      error_1 = y[t, ..., 1] - predicted_1
      squares = (error_0**2 + error_1**2) / total
      result -= np.log(2.0 * np.pi) + tf.math.log(total) + 0.5 * squares
      mean_0 = predicted_0 + gain * error_0
      mean_1 = predicted_1 + gain * error_1
      return t + 1, mean_0, mean_1, gain * noise, result

    zeros = tf.zeros_like(z[0], tf.float32)
    return tf.while_loop(
      lambda t, *_: t < num_steps,
      step,
      (0, zeros, zeros, zeros, zeros),
      maximum_iterations=num_steps,
    )[-1]


def _time_first(x, num_last):
  """Returns the permutation that moves the axis of time steps to the front."""
  first = x.shape.rank - num_last
  return [first, *range(first), *range(first + 1, x.shape.rank)]


def all_paths(num_steps):
  """Returns all paths, an array `int32[K^T, T]`."""
  states = range(NUM_REGIMES)
  return np.array(list(itertools.product(states, repeat=num_steps)), np.int32)


def best_permutation(found, true):
  """Renames regimes so that most time steps agree.

  Args:
    found: Regimes `[S, T]`.
    true: Regimes `[S, T]`.

  Returns:
    share: Python `float`, the share of time steps with the correct regime.
    order: List of the found regime that corresponds to each true regime.
  """
  orders = itertools.permutations(range(NUM_REGIMES))
  share = lambda order: float(np.mean(np.array(order)[true] == found))
  return max((share(order), list(order)) for order in orders)
