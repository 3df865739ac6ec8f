# SPDX-License-Identifier: Apache-2.0
"""Computes exact gradient variances for the location in moving MNIST.

The script loads a checkpoint and evaluates `f` at all 4,624 locations of a
frame, with one draw of `z` for each. Given these values, the variance of the
gradient w.r.t. the logits of the location has a closed form for almost every
estimator here, and only the choice of frames is random. The script can
therefore distinguish estimators even if pairs of gradients
(`moving_variance.py`) have heavy tails.

  python -m examples.benchmarks.moving_exact_variance \\
    --checkpoint=outputs/moving_mnist/RB-REINFORCE+/0/last.keras

The script prints the total variance per frame, as a mean over test frames with
a 95 % interval (normal, over the frames); the ratio of this variance to that of
RB-REINFORCE+, with a 95 % interval (bootstrap of frames); and the share of
frames in which it is lower than that of RB-REINFORCE+. The variance of a pooled
budget has no closed form; the script takes the mean over 300 estimates for
pools of 64 frames.
"""

import functools
import pathlib
from typing import NamedTuple

from absl import app, flags
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

from examples.benchmarks import gradient_variance, moving_variance
import tfp_rb
from tfp_rb import datasets, models

experiment = moving_variance.experiment
FLAGS = flags.FLAGS
BASE = 'RB-REINFORCE+'


class Row(NamedTuple):
  """One frame, with its locations in the order of their probabilities.

  Attributes:
    q: Array of probabilities, which sum to 1.
    f: Array of the same shape.
  """

  q: np.ndarray
  f: np.ndarray


def of_independent_draws(row, num_summed, num_draws):
  """Returns the variance of REINFORCE+ if every atom has its own draw `z'`.

  Each atom contributes the variance of its `f(z')`. The draws from the rest
  also contribute the variance of `(f - E[f]) s`, where `s` is the score.

  Args:
    row: `Row`, with values in the order of their probabilities.
    num_summed: Python `int`.
    num_draws: Python `int`, the number of draws from the rest.

  Returns:
    variance: Python `float`.
  """
  q, phi = row.q, row.f - row.q @ row.f
  of_f, norm = q @ phi**2, 1.0 - 2.0 * q + q @ q  # |e(z) - q|^2
  summed, rest = slice(None, num_summed), slice(num_summed, None)
  total = of_f * np.sum(q[summed] ** 2 * norm[summed])
  mass = np.sum(q[rest])
  if mass > 0.0:
    p = q[rest] / mass
    second_moment = p @ ((phi[rest] ** 2 + of_f) * norm[rest])
    mean = np.zeros_like(q)
    mean[rest] = p * phi[rest]
    mean -= np.sum(mean) * q
    total += mass**2 / num_draws * (second_moment - mean @ mean)
  return float(total)


def of_leave_one_out(row, num_summed, num_draws):
  """Returns the variance with the leave-one-out baseline of REINFORCE.

  Draw `j` has the level `b + a (mean of phi over the other draws)`, where `phi`
  is `f` minus its mean over the rest. The estimate is the sum of a constant, a
  mean over the draws, and a sum over pairs of draws. The last two are
  uncorrelated.

  Args:
    row: `Row`, with values in the order of their probabilities.
    num_summed: Python `int`, at least 1 if `num_draws` is 1.
    num_draws: Python `int`, the number of draws from the rest.

  Returns:
    variance: Python `float`.
  """
  q, mass = row.q, np.sum(row.q[num_summed:])
  if mass == 0.0:
    return 0.0
  p = q[num_summed:] / mass
  mean = p @ row.f[num_summed:]
  phi, above = row.f[num_summed:] - mean, row.f[:num_summed] - mean
  if num_draws == 1:  # With no other draw, the level comes from the atoms.
    distance, a = -np.average(above, weights=1.0 / q[:num_summed]), 0.0
  else:
    share = mass / (2.0 * (num_draws - 1) ** 2)
    distance, a = -share * (q[:num_summed] @ above), 1.0 - share * (1.0 - mass)
  # The score is `sigma + t`, where `sigma` is the mean of the score over the
  # rest, and `t` is `e(z) - p`. The entries of `sigma` are `p - q` for values
  # in the rest, and `-q` for summed values.
  sigma = p - q[num_summed:]
  along = sigma - p @ sigma  # `t . sigma`
  norm_of_mean = np.sum(sigma**2) + np.sum(q[:num_summed] ** 2)
  norm = 1.0 - 2.0 * p + p @ p  # `|t|^2`
  squared_mean = np.sum((p * phi) ** 2)
  psi = phi + distance
  of_draws = p @ (psi**2 * norm + 2 * psi * phi * along + phi**2 * norm_of_mean)
  of_pairs = a**2 * ((p @ phi**2) * (p @ norm) + squared_mean)
  of_draws += of_pairs / max(num_draws - 1, 1) - squared_mean
  return float(mass**2 / num_draws * max(of_draws, 0.0))


def of_budget(row, budget):
  """Returns the variance of `rao_blackwellize(..., budget=budget)`."""
  left = np.cumsum(row.q[::-1])[::-1][:budget]  # The mass of the rest.
  num_summed = int(np.argmin(left / (budget - np.arange(budget))))
  return of_leave_one_out(row, num_summed, budget - num_summed)


def of_pools(rows, budget_per_row, num_frames=64, num_estimates=300):
  """Returns the variance for each frame, with one budget for every 64 frames.

  Args:
    rows: List of `Row`.
    budget_per_row: Python `float`.
    num_frames: Python `int`, the number of frames in a pool.
    num_estimates: Python `int`, the number of gradients that are compared with
      the exact one.

  Returns:
    variances: Array of shape `[len(rows)]`.
  """
  estimator = tfp_rb.pooled(budget_per_row=budget_per_row)
  found = []
  for first in range(0, len(rows), num_frames):
    q, f = (
      np.stack([getattr(row, name) for row in rows[first : first + num_frames]])
      for name in ('q', 'f')
    )
    # Subtracting a constant avoids rounding errors, and changes nothing else.
    f -= np.sum(q * f, axis=1, keepdims=True)
    found.append(_mean_squared_error(estimator, q, f, num_estimates))
  return np.concatenate(found)


def _mean_squared_error(estimator, q, f, num_estimates):
  """Returns the mean squared error of the gradient w.r.t. logits, per row."""
  logits, table = tf.constant(np.log(np.maximum(q, 1e-300))), tf.constant(f)

  @tf.function(autograph=False)
  def squared_error(seed):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      value = tfp_rb.expectation(
        lambda z, rows: tf.gather_nd(table, tf.stack([rows, z], axis=-1)),
        tfp.distributions.Categorical(logits=logits),
        estimator,
        seed=seed,
      )
    # The exact gradient is `q * f`, because E[f] is 0.
    error = tape.gradient(value, logits) - q * f
    return tf.reduce_sum(error**2, axis=-1)

  errors = [squared_error(tf.constant([0, i])) for i in range(num_estimates)]
  return np.mean(errors, axis=0)


plus, loo = of_independent_draws, of_leave_one_out
# Each row has the number of evaluations of `f`, a name, and a callable that
# returns the variance for a `Row`.
ROWS = [
  (2, 'REINFORCE+', lambda row: plus(row, 0, 1)),
  (2, 'leave-one-out', lambda row: loo(row, 0, 2)),
  (6, 'leave-one-out', lambda row: loo(row, 0, 6)),
  (6, 'RB-leave-one-out 4 + 2', lambda row: loo(row, 4, 2)),
  (6, 'RB-leave-one-out 5 + 1', lambda row: loo(row, 5, 1)),
  (6, 'budget=6', functools.partial(of_budget, budget=6)),
  (12, 'REINFORCE+', lambda row: plus(row, 0, 6)),
  (12, 'leave-one-out', lambda row: loo(row, 0, 12)),
  (12, BASE, lambda row: plus(row, 5, 1)),
  (12, 'RB-leave-one-out 10 + 2', lambda row: loo(row, 10, 2)),
  (12, 'budget=12', functools.partial(of_budget, budget=12)),
]  # fmt: skip

POOLS = (2, 4, 6, 12)  # The evaluations of `f` per frame.


def rows_of(model, frames, seed, most_windows=8192):
  """Evaluates `f` at all locations, and returns a `Row` for each frame.

  Args:
    model: A `MovingVAE`.
    frames: Binary `Tensor` of shape `[B, size, size]`.
    seed: Python `int`.
    most_windows: Python `int`, the maximum number of windows in one call.

  Returns:
    rows: List of `Row`, the most probable location first.
  """
  log_probs = np.asarray(model(frames), np.float64)
  bound = tf.function(model.negative_bound, reduce_retracing=True)
  per_call = max(1, most_windows // len(frames))
  found = []
  for first in tqdm.trange(
    0, log_probs.shape[1], per_call, desc='f everywhere', unit='call'
  ):
    locations = np.arange(first, min(first + per_call, log_probs.shape[1]))
    locations = np.tile(locations[:, np.newaxis], [1, len(frames)])
    found.append(bound(frames, tf.constant(locations), [seed, first]))
  f = np.concatenate(found).T.astype(np.float64)
  order = np.argsort(-log_probs, axis=-1, kind='stable')
  q = np.exp(np.take_along_axis(log_probs, order, axis=-1))
  f = np.take_along_axis(f, order, axis=-1)
  return [Row(p / np.sum(p), values) for p, values in zip(q, f, strict=True)]


def ratio_interval(values, base, num_resamples=4000):
  """Returns a bootstrap 95 % interval of the ratio of two means."""
  picks = np.random.default_rng(0).integers(
    len(values), size=[num_resamples, len(values)]
  )
  ratios = values[picks].mean(axis=1) / base[picks].mean(axis=1)
  return np.percentile(ratios, [2.5, 97.5])


def mean_and_margin(values):
  """Returns the mean over the images, and its 95 % margin of error."""
  error = values.std(ddof=1) / np.sqrt(len(values))
  return values.mean(), 1.959964 * error


def table(rows, about):
  """Prints the table; returns it for `gradient_variance.write` and `plot`."""
  found = {
    (calls, name): np.array([variance(row) for row in rows])
    for calls, name, variance in ROWS
  }
  found |= {(n, f'pooled={n}'): of_pools(rows, n) for n in POOLS}
  base = found[12, BASE]
  lines = []
  print(
    f'{"evaluations, estimator":32s}{"variance":>24s}{f"over {BASE}":>22s}'
    f'{"lower in":>10s}'
  )
  for (calls, name), values in found.items():
    mean, margin = mean_and_margin(values)
    ratio, (low, high) = np.mean(values) / np.mean(base), (1.0, 1.0)
    if values is not base:
      low, high = ratio_interval(values, base)
    lower = np.mean(values < base)
    lines.append({
      'evaluations': calls,
      'estimator': name,
      'logits': mean,
      'logits_95': margin,
      'over_base': ratio,
      'over_base_low': low,
      'over_base_high': high,
      'lower_than_base': lower,
      'frames': len(values),
      **about,
    })  # fmt: skip
    print(
      f'{calls:3d} {name:28s}{mean:12.4g} +- {margin:8.2g}'
      f'{ratio:10.3g} [{low:.2g}, {high:.2g}]{lower:10.0%}'
    )
  return lines


def main(argv):
  del argv
  output = pathlib.Path(FLAGS.output_dir)
  output.mkdir(parents=True, exist_ok=True)
  mnist = datasets.load_mnist(FLAGS.source)
  *_, digits = experiment.split(mnist, 64, FLAGS.num_frames)
  start = pathlib.Path(FLAGS.checkpoint)
  model = moving_variance.model_of(None, start)
  frames, _ = model.frames.place(models.binarize(digits, [0, 1]), [0, 2])
  about = {
    'checkpoint': '/'.join(start.parts[-3:]),
    'data': f'{len(digits)} digits of {mnist.source}',
  }
  lines = table(rows_of(model, frames, seed=0), about)
  gradient_variance.write(output / 'exact.csv', lines)
  gradient_variance.plot(output / 'exact.png', lines, 'logits')
  print(f'The table and the figure are in {output}.')


def define_flags():
  flags.DEFINE_integer('num_frames', 256, 'Number of test frames.')
  flags.DEFINE_string('checkpoint', None, 'A `.keras` file of a run.')
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Source of MNIST.'
  )
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_variance', 'Folder for all output files.'
  )
  flags.mark_flag_as_required('checkpoint')


if __name__ == '__main__':
  define_flags()
  app.run(main)
