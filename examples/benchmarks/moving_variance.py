# SPDX-License-Identifier: Apache-2.0
"""Measures gradient variances of the autoencoder with hard attention.

The script loads a checkpoint and keeps 64 frames of test digits fixed. It
computes the gradient of their mean loss many times, with different locations
and different Gaussian noise.

  python -m examples.benchmarks.moving_variance \\
    --checkpoint=outputs/moving_mnist/RB-REINFORCE+/0/last.keras

The script prints the number of evaluations of `f` per image, and the total
variance of the gradient (the trace of the covariance) w.r.t. the parameters of
the attention, and w.r.t. those of encoder and decoder. This variance is half
the mean squared distance of independent pairs of gradients, with a 95 %
interval (normal, over the pairs).
"""

import functools
import pathlib

from absl import app, flags
import keras
import tensorflow as tf

from examples.benchmarks import gradient_variance
from examples.paper import moving_mnist as experiment
import tfp_rb
from tfp_rb import baselines, datasets, models

FLAGS = flags.FLAGS
loo = baselines.LeaveOneOut
independent = functools.partial(baselines.IndependentSample, shared=False)


def _score(baseline, num_samples=1, **split):
  estimator = tfp_rb.REINFORCE(baseline=baseline, num_samples=num_samples)
  return tfp_rb.rao_blackwellize(estimator, **split) if split else estimator


# Each row has the number of evaluations of `f`, a name, and a callable that
# returns an estimator.
ROWS = [
  (2, 'REINFORCE+', lambda: _score(independent())),
  (2, 'leave-one-out', lambda: _score(loo(), 2)),
  (6, 'leave-one-out', lambda: _score(loo(), 6)),
  (6, 'RB-leave-one-out 4 + 2', lambda: _score(loo(), 2, num_summed=4)),
  (6, 'RB-leave-one-out 5 + 1', lambda: _score(loo(), 1, num_summed=5)),
  (6, 'budget=6', lambda: _score(loo(), budget=6)),
  (12, 'REINFORCE+', lambda: _score(independent(), 6)),
  (12, 'leave-one-out', lambda: _score(loo(), 12)),
  (12, 'RB-REINFORCE+', lambda: _score(independent(), num_summed=5)),
  (12, 'RB-leave-one-out 10 + 2', lambda: _score(loo(), 2, num_summed=10)),
]  # fmt: skip


def model_of(estimator, start):
  """Returns the model at the checkpoint, with the given estimator."""
  saved = keras.models.load_model(start)
  config = {**saved.get_config(), 'entropy_weight': saved.entropy_weight}
  if callable(saved.entropy_weight):  # It is a schedule of the step number.
    weight = saved.entropy_weight(saved.optimizer.iterations)
    config['entropy_weight'] = float(weight)
  del config['estimator']
  model = models.MovingVAE(estimator, **config)
  gradient_variance.copy_networks(saved, model)
  return model


def loss_of(model, frames, seed):
  return tf.reduce_mean(model.losses_of(frames, seed)[0])


def variable_groups(model):
  """Returns the variables of the attention, and those of the other networks."""
  groups = {
    'attention': (model.convolutions, model.attention),
    'others': (model.encoder, model.decoder),
  }
  return {
    name: [v.value for network in group for v in network.trainable_variables]
    for name, group in groups.items()
  }


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
  *_, digits = experiment.split(mnist, 64, 64)
  start = pathlib.Path(FLAGS.checkpoint)
  frames, _ = model_of(None, start).frames.place(
    models.binarize(digits, [0, 1]), [0, 2]
  )
  rows = []
  about = {
    'checkpoint': '/'.join(start.parts[-3:]),
    'data': f'64 digits of {mnist.source}',
  }
  print(f'{"evaluations, estimator":30s}{"attention":>24s}{"others":>22s}')
  for evaluations, name, make_estimator in ROWS:
    if name not in FLAGS.estimators:
      continue
    model = model_of(make_estimator(), start)
    rows.append(
      gradient_variance.measure(
        evaluations,
        name,
        [(functools.partial(loss_of, model, frames), variable_groups(model))],
        FLAGS.num_pairs,
        about,
      )
    )
    # The files are written after each row, so that a stopped run keeps them.
    gradient_variance.write(output / 'variances.csv', rows)
    gradient_variance.plot(output / 'variances.png', rows, 'attention')


if __name__ == '__main__':
  names = list(dict.fromkeys(row[1] for row in ROWS))
  flags.DEFINE_list(
    'estimators', names, f'Estimators to measure, among {names}.'
  )
  flags.DEFINE_integer('num_pairs', 500, 'Pairs of gradients for each row.')
  flags.DEFINE_string('checkpoint', None, 'A `.keras` file of a run.')
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Source of MNIST.'
  )
  flags.DEFINE_string(
    'output_dir', 'outputs/moving_variance', 'Folder for all output files.'
  )
  flags.mark_flag_as_required('checkpoint')
  app.run(main)
