# SPDX-License-Identifier: Apache-2.0
"""The log-likelihood of binary pixels."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf

import internals

LOGITS = [-1e4, -90.0, -17.5, -1.0, 0.0, 1.0, 17.5, 90.0, 1e4]
PIXELS = [0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
  ('dtype', 'error'),
  [
    ('bfloat16', 2e-2),
    ('float16', 2e-3),
    ('float32', 2e-7),
    ('float64', 1e-15),
  ],
)
def test_log_likelihood_and_its_gradient_are_those_of_scipy(dtype, error):
  logits = tf.constant(LOGITS, dtype)[:, tf.newaxis]
  images = tf.constant(PIXELS)[:, tf.newaxis]
  with tf.GradientTape() as tape:
    tape.watch(logits)
    log_prob = internals.log_likelihood(images, logits)
  gradient = tf.cast(tape.gradient(log_prob, logits)[:, 0], tf.float64)
  # The exact value uses rounded logits, because half precision rounds the
  # logits themselves.
  exact = tf.cast(logits[:, 0], tf.float64).numpy()
  sign = 2.0 * np.array(PIXELS) - 1.0
  np.testing.assert_allclose(
    tf.cast(log_prob, tf.float64),
    scipy.special.log_expit(sign * exact),
    rtol=error,
    atol=error,
  )
  expected = PIXELS - scipy.special.expit(exact)
  np.testing.assert_allclose(gradient, expected, atol=error)
