# SPDX-License-Identifier: Apache-2.0
"""Draws gradients of an expectation w.r.t. the logits of many sites."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

tfd = tfp.distributions


def draw(estimator, make_site, logits, f, num_draws, seed):
  """Returns independent gradients.

  Args:
    estimator: A `GradientEstimator`.
    make_site: Callable that maps logits to the distribution of a site.
    logits: Array with a row of logits for each gradient of a call.
    f: Callable, the cost of the values of all sites.
    num_draws: Python `int`, the least number of gradients.
    seed: Python `int`.

  Returns:
    gradients: float64 array of shape `[calls] + logits.shape`.
  """
  rows = tf.constant(logits, tf.float32)

  @tf.function(autograph=False)
  def gradients(seed):
    with tf.GradientTape() as tape:
      tape.watch(rows)
      q = tfd.Independent(make_site(rows), 1)
      loss = tfp_rb.expectation(f, q, estimator, seed=seed)
    return tape.gradient(loss, rows)

  return np.stack(
    [
      gradients(tf.constant([seed, i])).numpy().astype(float)
      for i in range(-(-num_draws // len(logits)))
    ]
  )
