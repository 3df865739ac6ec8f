# SPDX-License-Identifier: Apache-2.0
"""Learns to retrieve a similar image from a memory of 10,000 images.

This is hard attention. A query is a binary MNIST digit `x`. Its scores of all
images of the memory are the logits of `q(z | x)`, a categorical distribution
over 10,000 values. A decoder sees only the image `z`, and predicts the query.
The loss is the negative ELBO with a uniform prior of `z`. The scores are
cosines of linear embeddings, so similar images are likely from the start.

The model is trained with `budget=8`, which decides for each query how many
images to sum and how many to draw. The script prints the variance of the
gradient w.r.t. the scores for this estimator and for 8 independent draws with a
leave-one-out baseline, and the time per training step with each of them.

  python examples/retrieval.py
"""

import time

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb
from tfp_rb import datasets

tfd = tfp.distributions

FLAGS = flags.FLAGS
BATCH_SIZE = 64
NUM_PIXELS = 784
LEAVE_ONE_OUT = tfp_rb.baselines.LeaveOneOut()
DRAWS = tfp_rb.REINFORCE(LEAVE_ONE_OUT, num_samples=8)
BUDGET = tfp_rb.rao_blackwellize(tfp_rb.REINFORCE(LEAVE_ONE_OUT), budget=8)


class Retrieval(keras.Model):
  """Explains each image by one image of the memory."""

  def __init__(self, memory):
    super().__init__()
    self.memory = memory
    self.sharpness = self.add_weight(initializer='ones')
    self.embed = keras.layers.Dense(64)
    self.embed.build([None, NUM_PIXELS])
    hidden = keras.layers.Dense(128, activation='relu')
    self.decode = keras.Sequential([hidden, keras.layers.Dense(NUM_PIXELS)])
    # The axis of the atoms comes before that of the batch.
    self.decode.build([None, None, NUM_PIXELS])

  def scores(self, queries):
    """Returns the logits of `q(z | query)`, shape `[B, 10000]`."""
    keys, queries = (
      tf.math.l2_normalize(self.embed(x - 0.13), axis=-1)
      for x in (self.memory, queries)
    )
    cosines = tf.matmul(queries, keys, transpose_b=True)
    return 20.0 * self.sharpness * cosines

  def loss_at(self, queries, scores, estimator, seed):
    def log_joint(z):
      logits = self.decode(tf.gather(self.memory, z))  # [m, B, NUM_PIXELS]
      terms = queries * logits - tf.nn.softplus(logits)
      return tf.reduce_sum(terms, axis=-1) - np.log(len(self.memory))

    loss = tfp_rb.vi.monte_carlo_variational_loss(
      log_joint,
      tfd.Categorical(logits=scores),
      gradient_estimator=estimator,
      seed=seed,
    )
    return tf.reduce_mean(loss)


def make_step(model, estimator):
  """Returns a compiled training step."""
  optimizer = keras.optimizers.Adam(1e-3)
  optimizer.build(model.trainable_variables)

  @tf.function(jit_compile=True)
  def step(queries, seed):
    with tf.GradientTape() as tape:
      scores = model.scores(queries)
      loss = model.loss_at(queries, scores, estimator, seed)
    variables = [v.value for v in model.trainable_variables]
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss

  return step


def measure_variance(model, queries, estimator, seed):
  """Returns the total variance of the gradient w.r.t. the scores."""
  scores = tf.Variable(model.scores(queries))
  loss = lambda s: model.loss_at(queries, scores, estimator, s)
  moments = tfp_rb.diagnostics.sampled_moments(loss, [scores], 100, seed=seed)
  return moments.variance


def report(model, i, queries, loss, seed):
  q = tfd.Categorical(logits=model.scores(queries))
  rest = tf.reduce_mean(tfp_rb.diagnostics.rest_mass(q, 8)[-1])
  budget, draws = (
    measure_variance(model, queries, e, seed) for e in (BUDGET, DRAWS)
  )
  print(
    f'{i:6d}{loss:8.1f}{tf.reduce_mean(q.entropy()):10.2f}{rest:10.3f}'
    f'{budget:11.4g}{draws:11.4g}{draws / budget:8.2f}'
  )


def milliseconds_per_step(model, estimator, queries):
  """Returns the median time per step; the steps train the model further."""
  step, times = make_step(model, estimator), []
  for i in range(30):
    start = time.perf_counter()
    float(step(queries, tf.constant([0, i])))
    times.append(1e3 * (time.perf_counter() - start))
  return np.median(times[5:])


def main(argv):
  del argv
  mnist = datasets.load_mnist('embedded')
  memory, images = (
    (x.reshape([-1, NUM_PIXELS]) > 127).astype(np.float32)
    for x in (mnist.train_images, mnist.test_images)
  )
  keras.utils.set_random_seed(FLAGS.seed)
  rng = np.random.default_rng(FLAGS.seed)
  model = Retrieval(tf.constant(memory))
  step = make_step(model, BUDGET)
  print('  step    loss   entropy   q(rest)   budget=8    8 draws   ratio')
  for i in range(FLAGS.steps + 1):
    queries = tf.constant(images[rng.choice(len(images), BATCH_SIZE)])
    loss = step(queries, tf.constant([FLAGS.seed, i]))
    if i % max(FLAGS.steps // 8, 1) == 0:
      report(model, i, queries, loss, FLAGS.seed)
  for name, estimator in ('budget=8', BUDGET), ('8 draws', DRAWS):
    median = milliseconds_per_step(model, estimator, queries)
    print(f'{name}: {median:.1f} ms per step')


if __name__ == '__main__':
  flags.DEFINE_integer('steps', 800, 'Number of training steps.')
  flags.DEFINE_integer('seed', 0, 'Seed of weights, batches and draws.')
  app.run(main)
