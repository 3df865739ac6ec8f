# SPDX-License-Identifier: Apache-2.0
"""Trains the semi-supervised model with Ray Train, on several workers.

Ray starts the workers, sets `TF_CONFIG` in each of them, and restarts all of
them if one fails; `distributed_fit` trains, writes checkpoints and resumes. To
install Ray Train, run `pip install .[ray]`.

  python examples/ray_train.py --num_workers=2 --epochs=3

`--output_dir` must be a folder that all machines share. The images are the
2,000 digits that come with the package.
"""

import csv
import pathlib

from absl import app, flags
import ray
from ray import train
from ray.train.tensorflow import TensorflowTrainer

FLAGS = flags.FLAGS
BATCH_SIZE = 64  # The sum over all workers.


def train_worker(config):
  """Trains the model in one worker.

  Args:
    config: Dictionary with `epochs`, `directory`, `log` and `units`.
  """
  import keras
  import tensorflow as tf

  # The strategy comes first, because the first operation fixes the devices.
  strategy = tf.distribute.MultiWorkerMirroredStrategy()
  from tfp_rb import datasets, models

  class Report(keras.callbacks.Callback):
    """Reports to Ray after every epoch; all workers have the same metrics."""

    def on_epoch_end(self, epoch, logs=None):
      train.report({'epoch': epoch, **logs})

  callbacks = [Report()]
  if train.get_context().get_world_rank() == 0:
    callbacks.append(keras.callbacks.CSVLogger(config['log'], append=True))
  split = datasets.split_mnist(datasets.load_mnist('embedded'))
  flat = lambda images: images.reshape([len(images), -1])
  labeled = tf.data.Dataset.from_tensor_slices(
    (flat(split.labeled[0]), split.labeled[1])
  )
  unlabeled = tf.data.Dataset.from_tensor_slices(flat(split.unlabeled[0]))
  data = tf.data.Dataset.zip(
    unlabeled.shuffle(10_000, seed=0), labeled.shuffle(10_000, seed=1).repeat()
  )
  data = data.map(lambda x, y: (x, *y)).batch(BATCH_SIZE, drop_remainder=True)
  validation = tf.data.Dataset.from_tensor_slices(
    (flat(split.validation[0]), split.validation[1])
  )
  keras.utils.set_random_seed(0)
  with strategy.scope():
    units = [config['units']]
    model = models.SemiSupervisedVAE(
      classifier_units=units, hidden_units=units, alpha=500.0
    )
    model.compile(keras.optimizers.Adam(1e-3), jit_compile=False)
  models.distributed_fit(
    model,
    data,
    epochs=config['epochs'],
    validation_data=validation.batch(100),
    directory=config['directory'],
    callbacks=callbacks,
    verbose=2,
  )


def main(argv):
  del argv
  output = pathlib.Path(FLAGS.output_dir).resolve()
  output.mkdir(parents=True, exist_ok=True)
  ray.init(num_cpus=FLAGS.num_workers + 1, include_dashboard=False)
  trainer = TensorflowTrainer(
    train_worker,
    train_loop_config={
      'epochs': FLAGS.epochs,
      'directory': str(output / 'checkpoints'),
      'log': str(output / 'log.csv'),
      'units': FLAGS.units,
    },
    scaling_config=train.ScalingConfig(num_workers=FLAGS.num_workers),
    run_config=train.RunConfig(
      name='semisupervised_mnist',
      storage_path=str(output / 'ray'),
      failure_config=train.FailureConfig(max_failures=3),
    ),
  )
  trainer.fit()
  ray.shutdown()
  with open(output / 'log.csv') as file:
    *_, last = csv.DictReader(file)
  print(f'Last epoch: {last}')


if __name__ == '__main__':
  flags.DEFINE_integer('num_workers', 2, 'Number of processes that train.')
  flags.DEFINE_integer('epochs', 3, 'Passes over the unlabeled images.')
  flags.DEFINE_integer('units', 128, 'Number of units of every hidden layer.')
  flags.DEFINE_string(
    'output_dir', 'outputs/ray_train', 'Folder that all workers share.'
  )
  app.run(main)
