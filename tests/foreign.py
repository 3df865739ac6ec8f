# SPDX-License-Identifier: Apache-2.0
"""A distribution that the library does not know, with a partition for it."""

import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

tfd = tfp.distributions


class EvenNumbers(tfd.Distribution):
  """Draws 0, 2, 4, ... with given logits; has only `sample` and `log_prob`.

  It is not a `CompositeTensor`, so TFP wraps it in other classes.
  """

  def __init__(self, logits):
    parameters = dict(locals())
    self.logits = tf.convert_to_tensor(logits)
    super().__init__(
      dtype=tf.int32,
      reparameterization_type=tfd.NOT_REPARAMETERIZED,
      validate_args=False,
      allow_nan_stats=False,
      parameters=parameters,
    )

  def _batch_shape(self):
    return self.logits.shape[:-1]

  def _batch_shape_tensor(self):
    return tf.shape(self.logits)[:-1]

  def _event_shape(self):
    return tf.TensorShape([])

  def _event_shape_tensor(self):
    return tf.constant([], tf.int32)

  def _sample_n(self, n, seed=None):
    return 2 * tfd.Categorical(logits=self.logits).sample(n, seed=seed)

  def _log_prob(self, value):
    return tfd.Categorical(logits=self.logits).log_prob(value // 2)


def partition_of_even(q, num_summed):
  inner = tfp_rb.partition(tfd.Categorical(logits=q.logits), num_summed)
  return inner._replace(
    values=2 * inner.values,
    sample_rest=inner.sample_rest
    and (lambda n, seed: 2 * inner.sample_rest(n, seed)),
    log_prob=None,
    score_norm=None,
  )
