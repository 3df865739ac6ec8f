"""What a compiled partition holds in memory, read off the program itself."""

import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from modes import largest_array
import tfp_rb

tfd = tfp.distributions


# A square, and a prime that no block size divides.
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
  # Pairs of summed values at every site are the most there is.
  limit = rows * num_sites * num_summed**2 * 3
  assert largest_array(partition, *args) <= limit
