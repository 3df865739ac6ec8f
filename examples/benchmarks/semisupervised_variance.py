# SPDX-License-Identifier: Apache-2.0
"""Measures gradient variances of the semi-supervised model at a checkpoint.

The script shows which estimator has the least variance for the same number of
evaluations of `f` on a real model. The classifier, the encoder and the decoder
are those of the warm start of `examples/paper/semisupervised_mnist.py` (or of
`--checkpoint`). For each of many batches of 64 unlabeled images the script
computes the gradient of the mean loss twice, with different labels and
different Gaussian noise. In a trained model few images have uncertain labels,
so the variance differs widely between batches.

  python -m examples.benchmarks.semisupervised_variance

The script prints the total variance (the trace of the covariance). This is half
the mean squared distance of the two gradients, with a normal 95 % interval over
the batches. There is one column each for the parameters of the classifier, the
encoder and the decoder. Their gradients include the Gaussian noise of the
encoder; the variance of Exact is due to this noise alone. In a further column
the noise is fixed: `f` is evaluated once at all labels of a batch, and the
variance is that of the gradient w.r.t. the logits of an image, due to the label
alone. Rows marked 'shared' use one Gaussian draw for all labels of an image,
and the other rows one draw for each label. The networks of NVIL and RELAX are
trained first.
"""

import functools
import pathlib

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from examples.benchmarks import gradient_variance
from examples.paper import semisupervised_mnist as experiment
from examples.paper.semisupervised_methods import NUM_CLASSES
import tfp_rb
from tfp_rb import baselines, datasets, models

FLAGS = flags.FLAGS


def _score(baseline=None, num_samples=1, **split):
  estimator = tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples)
  return tfp_rb.rao_blackwellize(estimator, **split) if split else estimator


def _with(estimator, num_samples=1, **split):
  """Returns an estimator with another number of draws and of summed values."""
  config = {**estimator.get_config(), 'num_samples': num_samples}
  estimator = type(estimator).from_config(config)
  return tfp_rb.rao_blackwellize(estimator, **split) if split else estimator


def _method(name):
  return experiment.METHODS[name][0]()


def _pooled(budget_per_row):
  return tfp_rb.pooled(budget_per_row=budget_per_row)


loo = baselines.LeaveOneOut

# Each row has the number of evaluations of `f`, a name, a callable that returns
# an estimator, and whether all labels share one Gaussian draw.
ROWS = [
  *(
    (n, f'pooled={n:g}', functools.partial(_pooled, n), False)
    for n in (1.1, 1.25, 1.5, 2, 3)
  ),
  (2, 'REINFORCE', lambda: _score(num_samples=2), False),
  (2, 'REINFORCE+', lambda: _method('REINFORCE+'), False),
  (2, 'leave-one-out', lambda: _score(loo(), 2), False),
  (2, 'NVIL', lambda: _with(_method('NVIL'), 2), False),
  (2, 'RELAX', lambda: _with(_method('RELAX'), 2), False),
  (2, 'Gumbel (biased)', lambda: _with(_method('Gumbel'), 2), False),
  (2, 'RB-REINFORCE', lambda: _score(num_summed=1), False),
  (2, 'RB-REINFORCE shared', lambda: _score(num_summed=1), True),
  (2, 'RB-leave-one-out', lambda: _score(loo(), num_summed=1), False),
  (2, 'RB-leave-one-out shared', lambda: _score(loo(), num_summed=1), True),
  (2, 'RB-NVIL', lambda: _with(_method('NVIL'), num_summed=1), False),
  (2, 'RB-RELAX', lambda: _with(_method('RELAX'), num_summed=1), False),
  (2, 'budget=2', lambda: _score(loo(), budget=2), False),
  (2, 'budget=2 shared', lambda: _score(loo(), budget=2), True),
  (3, 'leave-one-out', lambda: _score(loo(), 3), False),
  (3, 'RB-REINFORCE 1 + 2', lambda: _score(None, 2, num_summed=1), False),
  (3, 'RB-REINFORCE 2 + 1', lambda: _score(num_summed=2), False),
  (3, 'RB-leave-one-out 1 + 2', lambda: _score(loo(), 2, num_summed=1), False),
  (3, 'RB-leave-one-out 2 + 1', lambda: _score(loo(), num_summed=2), False),
  (3, 'budget=3', lambda: _score(loo(), budget=3), False),
  (10, 'Exact', tfp_rb.Exact, False),
  (10, 'Exact shared', tfp_rb.Exact, True),
]  # fmt: skip


def model_of(estimator, share_noise, start):
  """Returns the model at the checkpoint, with the given estimator."""
  keras.utils.set_random_seed(0)
  if start.suffix == '.keras':
    saved = keras.models.load_model(start)
    config = saved.get_config()
    config = {**config, 'share_noise': share_noise}
    del config['estimator']
    model = models.SemiSupervisedVAE(estimator, **config)
    gradient_variance.copy_networks(saved, model)
  else:
    model = models.SemiSupervisedVAE(estimator, share_noise=share_noise)
    experiment.load_networks(model, start)
  return model


def train_estimator(model, data, num_steps):
  """Trains only the variables of the estimator."""
  variables = model.estimator_layer.trainable_variables
  if not variables:
    return
  optimizer = keras.optimizers.Adam(1e-3)
  optimizer.build(variables)

  @tf.function(autograph=False)
  def step(images, i):
    images = models.binarize(images, tf.stack([5, i]))
    with tf.GradientTape() as tape:
      loss = loss_of(model, images, tf.stack([6, i]))
    optimizer.apply(tape.gradient(loss, variables), variables)

  for i, images in enumerate(data.take(num_steps)):
    step(images, tf.constant(i))


def loss_of(model, images, seed):
  # `losses_of` requires a labeled image, whose loss is not used.
  of_unlabeled, _, _ = model.losses_of(images, images[:1], [0], seed)
  return tf.reduce_mean(of_unlabeled)


def batch_of(batches, seed):
  """Returns the batch of pair `i`, with seeds `[s, 2 i]` and `[s, 2 i + 1]`."""
  return batches[(seed[1] // 2) % len(batches)]


def variable_groups(model):
  """Returns the variables of each network, by its name."""
  networks = {
    'classifier': [model.classifier],
    'encoder': [model.encoder_input, model.encoder],
    'decoder': [model.decoder_input, model.decoder],
  }
  return {
    name: [v.value for layer in layers for v in layer.trainable_variables]
    for name, layers in networks.items()
  }


def tabulated_loss(model, batches):
  """Returns a loss in which only the label is random, and its parameters.

  `f` is a table of its values at all labels, with one Gaussian draw for each
  label.

  Args:
    model: A `SemiSupervisedVAE`.
    batches: Binary `Tensor` of shape `[n, 64, 784]`.

  Returns:
    loss: Callable that maps a stateless seed to a scalar `Tensor`.
    logits: `tf.Variable` of shape `[64, 10]`, which is added to the logits of
      the batch.
  """
  num_images, num_labels = batches.shape[1], NUM_CLASSES
  labels = tf.repeat(tf.eye(num_labels)[:, tf.newaxis], num_images, axis=1)
  logits = tf.Variable(tf.zeros([num_images, num_labels]))

  def loss(seed):
    images = batch_of(batches, seed)
    part = model.encoder_input.of_first(images)
    noise = tf.stack([3, seed[1] // 2])  # Both gradients have the same noise.
    table = tf.transpose(model.negative_bound(images, part, labels, noise))

    def f(z, rows=None):
      of_rows = table if rows is None else tf.gather(table, rows)
      return tf.reduce_sum(z * of_rows, axis=-1)  # one-hot `z`

    q = tfp.distributions.OneHotCategorical(
      logits=model(images) + logits, dtype=tf.float32
    )
    estimator = model.estimator.bind(images)
    losses = tfp_rb.expectation(f, q, estimator, seed=seed)
    # Each image has its own logits, so the variance of the gradient of this sum
    # is the mean of the variances over the images.
    return tf.reduce_sum(losses) / num_images**0.5

  return loss, logits


def main(argv):
  del argv
  unknown = set(FLAGS.estimators) - {row[1] for row in ROWS}
  if unknown:
    raise app.UsageError(
      '`--estimators` must be among the names that `--help` lists; got '
      f'{sorted(unknown)}.'
    )
  output = pathlib.Path(FLAGS.output_dir)
  output.mkdir(parents=True, exist_ok=True)
  mnist = datasets.load_mnist(FLAGS.source)
  split = datasets.split_mnist(mnist)
  start = pathlib.Path(FLAGS.checkpoint or output / 'warm_start.npz')
  if not FLAGS.checkpoint:
    test_data = experiment.evaluation_data(mnist.test_images, mnist.test_labels)
    experiment.warm_start(split, test_data, FLAGS.warm_start_epochs, 901, start)
  images = experiment.flat(split.unlabeled[0])
  data = tf.data.Dataset.from_tensor_slices(images)
  data = data.shuffle(len(images), seed=0).repeat().batch(64)
  order = np.random.default_rng(0).permutation(len(images))
  num_batches = min(FLAGS.num_pairs, len(images) // 64)
  batches = images[order[: 64 * num_batches]].reshape([num_batches, 64, -1])
  batches = models.binarize(batches, [0, 1])
  rows = []
  about = {
    'checkpoint': '/'.join(start.parts[-3:]),
    'data': f'{num_batches} batches of {mnist.source}',
  }  # fmt: skip
  columns = ('classifier', 'encoder', 'decoder', 'logits')
  header = ''.join(f'{name:>22s}' for name in columns)
  print(f'{"evaluations, estimator":32s}{header}')
  for evaluations, name, make_estimator, share_noise in ROWS:
    if name not in FLAGS.estimators:
      continue
    model = model_of(make_estimator(), share_noise, start)
    train_estimator(model, data, FLAGS.train_steps)
    of_labels, logits = tabulated_loss(model, batches)
    loss = lambda seed, model=model: loss_of(
      model, batch_of(batches, seed), seed
    )
    measured = [
      (loss, variable_groups(model)),
      (of_labels, {'logits': [logits]}),
    ]
    rows.append(
      gradient_variance.measure(
        evaluations, name, measured, FLAGS.num_pairs, about
      )
    )
    # The files are written after each row, so that a stopped run keeps them.
    gradient_variance.write(output / 'variances.csv', rows)
    gradient_variance.plot(output / 'variances.png', rows, 'classifier')
    gradient_variance.plot(output / 'variances_of_labels.png', rows, 'logits')


def define_flags():
  names = list(dict.fromkeys(row[1] for row in ROWS))
  flags.DEFINE_list(
    'estimators', names, f'Estimators to measure, among {names}.'
  )
  flags.DEFINE_integer(
    'num_pairs', 1000, 'Number of batches, each with a pair of gradients.'
  )
  flags.DEFINE_integer(
    'train_steps', 3000, 'Training steps of the networks of NVIL and RELAX.'
  )
  flags.DEFINE_integer(
    'warm_start_epochs', 100, 'Passes over labeled images in the warm start.'
  )
  flags.DEFINE_string(
    'checkpoint', None, 'A `.keras` file, or a warm start. Default: makes one.'
  )
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Source of MNIST.'
  )
  flags.DEFINE_string(
    'output_dir',
    'outputs/semisupervised_variance',
    'Folder for all output files.',
  )


if __name__ == '__main__':
  define_flags()
  app.run(main)
