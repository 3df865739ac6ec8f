# SPDX-License-Identifier: Apache-2.0
"""The library's memory use, both read off programs and measured."""

import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from errors import raises
from modes import largest_array
import processes
import tfp_rb

tfd = tfp.distributions


# The sizes are a square, and a prime that no block size divides.
@pytest.mark.parametrize('size', [4624, 4621])
def test_no_array_is_larger_than_three_times_the_logits(size):
  rows = 8

  @tf.function(jit_compile=True)
  def loss_and_gradient(logits, seed):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Categorical(logits=logits)
      estimator = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(), num_summed=5)
      loss = tfp_rb.expectation(
        lambda z: tf.cast(z, tf.float32), q, estimator, seed=seed
      )
    return loss, tape.gradient(loss, logits)

  args = tf.zeros([rows, size]), tf.constant([0, 0])
  largest = largest_array(loss_and_gradient, *args)
  assert rows * size <= largest <= 3 * rows * size


def test_a_product_needs_no_array_of_all_its_values():
  rows, num_sites, num_summed = 4, 40, 8

  @tf.function(jit_compile=True)
  def partition(logits, seed):
    q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
    p = tfp_rb.partition(q, num_summed)
    return p.values, p.log_rest, p.sample_rest(1, seed)

  args = tf.zeros([rows, num_sites]), tf.constant([0, 0])
  # The largest arrays hold pairs of summed values at every site.
  limit = rows * num_sites * num_summed**2 * 3
  assert largest_array(partition, *args) <= limit


def test_an_exact_sum_over_a_product_needs_no_square_of_its_values():
  num_sites = 10

  @tf.function(jit_compile=True)
  def loss_and_gradient(logits):
    with tf.GradientTape() as tape:
      tape.watch(logits)
      q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
      loss = tfp_rb.expectation(
        lambda z: tf.reduce_sum(tf.cast(z, tf.float32), axis=-1),
        q,
        tfp_rb.Exact(),
      )
    return loss, tape.gradient(loss, logits)

  # All joint values take 10 numbers each; a square array would take 1,024 each.
  limit = 4 * num_sites * 2**num_sites
  assert largest_array(loss_and_gradient, tf.zeros([1, num_sites])) <= limit


EXACT_ON_PRODUCTS = """
import resource
import sys
import tensorflow as tf
import tensorflow_probability as tfp
import tfp_rb

tfd = tfp.distributions


def peak():  # in MB; macOS counts bytes, Linux kilobytes
  unit = 2**20 if sys.platform == 'darwin' else 2**10
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def run(num_sites):
  logits = tf.Variable(tf.linspace(-1., 1., num_sites)[tf.newaxis])
  position = tf.range(1., num_sites + 1.)
  with tf.GradientTape() as tape:
    q = tfd.Independent(tfd.Bernoulli(logits=logits), 1)
    value = tfp_rb.expectation(
      lambda z: tf.reduce_sum(position * tf.cast(z, tf.float32), axis=-1),
      q,
      tfp_rb.Exact(),
    )
  gradient = tape.gradient(value, logits)
  probs = tf.sigmoid(logits)
  tf.debugging.assert_near(value, tf.reduce_sum(position * probs, axis=-1))
  tf.debugging.assert_near(
    gradient, position * probs * (1. - probs), atol=1e-3
  )


imported = peak()
# 4,096 and 65,536 joint values. The second would not fit into memory if it took
# a square of that.
for num_sites, limit in ((12, 100), (16, 500)):
  run(num_sites)
  used = peak() - imported
  assert used < limit, (num_sites, used)
"""


@pytest.mark.slow
def test_the_memory_of_exact_on_a_product_is_linear():
  # This needs a separate process, because this process has already passed its
  # peak.
  processes.run(EXACT_ON_PRODUCTS)


def test_exact_says_how_much_memory_it_would_require():
  q = tfd.Independent(tfd.Bernoulli(logits=tf.zeros([100_000, 20])), 1)
  f = lambda z: tf.reduce_sum(tf.cast(z, tf.float32), axis=-1)
  # The memory is for 2^20 values of 20 numbers, and for 3 numbers per value;
  # each number takes 4 bytes.
  with raises(ValueError, 'distribution') as caught:
    tfp_rb.expectation(f, q, tfp_rb.Exact())
  assert f'{2**20 * 100_000 * 23 * 4 / 1e9:.1f} GB' in str(caught.value)
