# SPDX-License-Identifier: Apache-2.0
"""Defines the methods that `discrete_vae.py` compares."""

import math
from typing import NamedTuple

from absl import app
import keras
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb
from tfp_rb import baselines, samplers

NUM_PIXELS = 784
# `local_expectation` passes at most this many sites to one decoder call.
MOST_SITES = 20


class Problem(NamedTuple):
  """The properties of a problem that the estimators depend on.

  `latents` is the number of bits, or a pair of the number of variables and the
  number of values of each.
  """

  latents: int | tuple[int, int]
  num_evaluations: int

  @property
  def code_size(self):
    return math.prod(tf.nest.flatten(self.latents))

  @property
  def num_values(self):
    """The number of values of each variable."""
    return 2 if isinstance(self.latents, int) else self.latents[1]

  @property
  def num_sites(self):
    return self.code_size if isinstance(self.latents, int) else self.latents[0]


def _temperature():
  return tfp.util.TransformedVariable(0.5, tfp.bijectors.Exp())


def _leave_one_out(num_samples):
  return tfp_rb.REINFORCE(baselines.LeaveOneOut(), num_samples=num_samples)


def _relax(problem, num_samples, **settings):
  # The network has one hidden layer of 137 units, as in RODEO's experiments.
  control_variate = keras.Sequential([
    keras.layers.Reshape([-1, problem.code_size]),
    keras.layers.Dense(137), keras.layers.LeakyReLU(0.3), keras.layers.Dense(1),
  ])  # fmt: skip
  event = tf.nest.flatten(problem.latents)
  control_variate.build([None, None, *event])
  return tfp_rb.RELAX(
    control_variate, temperature=_temperature(), scale=tf.Variable(1.0),
    num_samples=num_samples, **settings,
  )  # fmt: skip


def _nvil(num_samples):
  network = keras.Sequential([
    keras.layers.Dense(200, activation='relu'), keras.layers.Dense(1),
  ])  # fmt: skip
  network.build([None, NUM_PIXELS])
  return tfp_rb.NVIL(network, num_samples=num_samples)


def _local(problem):
  return tfp_rb.local_expectation(
    tfp_rb.REINFORCE(), num_summed=problem.num_values,
    sites_per_call=min(MOST_SITES, problem.num_sites),
  )  # fmt: skip


def _pooled(problem, n):
  # None of the 2^200 codes has much mass, and to list the 64 best ones (the
  # default) takes 40 times as long as the rest of a step.
  most = 4 if problem.num_values**problem.num_sites > 2**16 else None
  return tfp_rb.pooled(budget_per_row=n, num_candidates=most)


def _unordered(n):
  return tfp_rb.rao_blackwellize(
    _leave_one_out(n), num_summed=0, sampler=samplers.WithoutReplacement()
  )


# Each entry maps a `Problem` and a requested number of evaluations of the
# decoder per image to an estimator and its actual number. If the requested
# number is impossible, the actual one is the next smaller one: DisARM takes
# pairs, and REBAR evaluates the decoder twice per draw.
METHODS = {
  'leave-one-out': lambda p, n: (_leave_one_out(n), n),
  'DisARM': lambda p, n: (tfp_rb.DisARM(num_pairs=n // 2), n // 2 * 2),
  'ARMS': lambda p, n: (tfp_rb.ARMS(num_samples=n), n),
  'double-CV': lambda p, n: (tfp_rb.DoubleControlVariate(num_samples=n), n),
  'Stein': lambda p, n: (tfp_rb.Stein(num_samples=n), n),
  'RB-top-1': lambda p, n: (
    tfp_rb.rao_blackwellize(_leave_one_out(n - 1), num_summed=1), n
  ),
  'budget': lambda p, n: (
    tfp_rb.rao_blackwellize(_leave_one_out(1), budget=n), n
  ),
  'pooled': lambda p, n: (_pooled(p, n), n),
  'unordered-set': lambda p, n: (_unordered(n), n),
  'REBAR': lambda p, n: (
    tfp_rb.REBAR(
      _temperature(), scale=tf.Variable(1.0), num_samples=n // 2
    ), n // 2 * 2,
  ),
  'RELAX': lambda p, n: (_relax(p, n), n),
  'RELAX-with-f': lambda p, n: (
    _relax(p, n // 2, with_f=True), n // 2 * 2
  ),
  'NVIL': lambda p, n: (_nvil(n), n),
  'Gumbel-softmax': lambda p, n: (
    tfp_rb.GumbelSoftmax(0.5, num_samples=n), n
  ),
  'Gumbel-Rao': lambda p, n: (
    tfp_rb.GumbelSoftmax(0.5, num_noises=10, num_samples=n), n
  ),
  'ReinMax': lambda p, n: (
    # Its authors use 1.3 for 4 variables of 8 values.
    tfp_rb.ReinMax(1.0 if p.num_values == 2 else 1.3, num_samples=n), n
  ),
  'local-expectation': lambda p, n: (
    _local(p), p.num_sites * (p.num_values - 1) + 1
  ),
  'Exact': lambda p, n: (tfp_rb.Exact(), p.num_values**p.num_sites),
}  # fmt: skip


def methods_of(latents):
  """Returns the names of the methods that can be used with these variables."""
  return [m for m in METHODS if m != 'Exact' or not isinstance(latents, int)]


def estimator_of(method, latents, num_evaluations):
  """Returns an estimator, and its number of evaluations.

  Args:
    method: Python `str`, a key of `METHODS`.
    latents: As in `tfp_rb.models.DiscreteVAE`.
    num_evaluations: Python `int`, at least 2.

  Returns:
    estimator: A `tfp_rb.GradientEstimator`.
    num_evaluations: Python `int`.
  """
  if method not in methods_of(latents):
    raise app.UsageError(
      f'`--methods` must be among {methods_of(latents)}; got {method!r}.'
    )
  if num_evaluations < 2:
    raise app.UsageError(
      f'`--evaluations` must be at least 2; got {num_evaluations}.'
    )
  problem = Problem(latents, num_evaluations)
  return METHODS[method](problem, num_evaluations)
