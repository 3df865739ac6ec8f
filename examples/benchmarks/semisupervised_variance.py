"""Gradient variance of the semi-supervised model at one checkpoint.

Which estimator has the least variance for the same number of evaluations of
`f`, on a real model? The classifier, the encoder and the decoder are those of
the warm start of `examples/semisupervised_mnist.py` (or of `--checkpoint`), 64
unlabeled images are held fixed, and the gradient of their mean loss is taken
again and again with other labels and other Gaussian noise.

  python examples/benchmarks/semisupervised_variance.py

Printed is the total variance (the trace of the covariance), half the mean
squared distance of independent pairs of gradients, with an interval of 95 %
(normal, over the pairs), by the parameters of the classifier and by those of
encoder and decoder. 'shared' rows have one Gaussian draw for all labels of an
image instead of one for each. The networks of NVIL and RELAX are trained first,
the rest held fixed. The variance of Exact is that of the Gaussian noise alone.
"""

import functools
import pathlib
import sys

from absl import app, flags
import gradient_variance
import keras
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import semisupervised_mnist as experiment
import tfp_rb
from tfp_rb import baselines, datasets, models

FLAGS = flags.FLAGS


def _score(baseline=None, num_samples=1, **split):
  estimator = tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples)
  return tfp_rb.rao_blackwellize(estimator, **split) if split else estimator


def _with(estimator, num_samples=1, **split):
  """A method of the experiment, with other draws and sums."""
  config = {**estimator.get_config(), 'num_samples': num_samples}
  estimator = type(estimator).from_config(config)
  return tfp_rb.rao_blackwellize(estimator, **split) if split else estimator


def _method(name):
  return experiment.METHODS[name][0]()


loo = baselines.LeaveOneOut

# Evaluations of `f`, name, estimator, whether the labels share their noise.
ROWS = [
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
  """The model at the checkpoint, with this estimator."""
  keras.utils.set_random_seed(0)
  if start.suffix == '.keras':
    config = keras.models.load_model(start).get_config()
    config = {**config, 'share_noise': share_noise}
    del config['estimator']
    model = models.SemiSupervisedVAE(estimator, **config)
    model.set_weights(keras.models.load_model(start).get_weights())
  else:
    model = models.SemiSupervisedVAE(estimator, share_noise=share_noise)
    experiment.load_networks(model, start)
  return model


def train_estimator(model, data, num_steps):
  """Trains the variables of the estimator alone."""
  variables = model.estimator_layer.estimator_variables
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
  # One labeled image has to be there; it does not count.
  of_unlabeled, _, _ = model.losses_of(images, images[:1], [0], seed)
  return tf.reduce_mean(of_unlabeled)


def variable_groups(model):
  """Variables of the classifier, and of all other networks."""
  own = model.classifier.trainable_variables
  ids = {id(v) for v in own}
  others = [v for v in model.trainable_variables if id(v) not in ids]
  groups = {'classifier': own, 'others': others}
  return {name: [v.value for v in groups[name]] for name in groups}


def main(argv):
  del argv
  unknown = set(FLAGS.estimators) - {row[1] for row in ROWS}
  if unknown:
    raise app.UsageError(f'`--estimators` has {unknown}, which are no rows.')
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
  batch = models.binarize(images[:64], [0, 1])
  rows = []
  about = {
    'checkpoint': start.stem, 'data': f'64 images of {mnist.source}'
  }  # fmt: skip
  print(f'{"evaluations, estimator":32s}{"classifier":>22s}{"others":>22s}')
  for evaluations, name, make_estimator, share_noise in ROWS:
    if name not in FLAGS.estimators:
      continue
    model = model_of(make_estimator(), share_noise, start)
    train_estimator(model, data, FLAGS.train_steps)
    rows.append(
      gradient_variance.measure(
        evaluations,
        name,
        functools.partial(loss_of, model, batch),
        variable_groups(model),
        FLAGS.num_pairs,
        about,
      )
    )
    # Written after each row, so that a stopped run keeps its results.
    gradient_variance.write(output / 'variances.csv', rows)
    gradient_variance.plot(output / 'variances.png', rows, 'classifier')


def define_flags():
  names = list(dict.fromkeys(row[1] for row in ROWS))
  flags.DEFINE_list('estimators', names, f'Of {names}.')
  flags.DEFINE_integer('num_pairs', 1000, 'Pairs of gradients for each row.')
  flags.DEFINE_integer('train_steps', 3000, 'Of the networks of NVIL, RELAX.')
  flags.DEFINE_integer('warm_start_epochs', 100, 'On labeled images alone.')
  flags.DEFINE_string('checkpoint', None, '`.keras`, or a warm start.')
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Which MNIST.'
  )
  flags.DEFINE_string(
    'output_dir', 'outputs/semisupervised_variance', 'Where everything goes.'
  )


if __name__ == '__main__':
  define_flags()
  app.run(main)
