# SPDX-License-Identifier: Apache-2.0
"""Shows which images a pooled budget evaluates more than once.

`tfp_rb.pooled(budget_per_row=1.25)` makes 80 evaluations of `f` for a batch of
64 images: one for each image, and 16 for uncertain labels. The script shows
which images receive these 16. It takes the classifier of the warm start of
`examples/paper/semisupervised_mnist.py` (or of `--checkpoint`) and the test
images of MNIST, and makes one estimate for each batch.

  python -m examples.benchmarks.pooled_images

The figure has a row for each number of evaluations, with the first such images
of the test set. Above each image are its two most probable labels. The table
has the number of images for each number of evaluations.
"""

import collections
import csv
import pathlib

from absl import app, flags
import matplotlib
import numpy as np
import tensorflow_probability as tfp

from examples.benchmarks import semisupervised_variance
import tfp_rb
from tfp_rb import datasets, models

matplotlib.use('Agg')
import matplotlib.pyplot as plt

FLAGS = flags.FLAGS
BATCH_SIZE = 64
BUDGET_PER_ROW = 1.25
SHOWN = (1, 2, 3, 5)  # The last row shows 5 or more evaluations.
NUM_COLUMNS = 10


def evaluate(start, images):
  """Makes one estimate per batch, and counts evaluations for each image.

  Args:
    start: `pathlib.Path` of the checkpoint.
    images: Array of integers of shape `[n, 784]`.

  Returns:
    binary: Array of shape `[n, 784]`, the pixels that the classifier sees.
    probs: Array of shape `[n, 10]`, the probabilities of the labels.
    evaluations: Array of integers of shape `[n]`.
  """
  estimator = tfp_rb.pooled(budget_per_row=BUDGET_PER_ROW)
  model = semisupervised_variance.model_of(estimator, False, start)
  found = []
  for i in range(len(images) // BATCH_SIZE):
    batch = images[BATCH_SIZE * i : BATCH_SIZE * (i + 1)]
    binary = models.binarize(batch, [0, i])
    q = tfp.distributions.OneHotCategorical(logits=model(binary))
    evaluations = tfp_rb.diagnostics.evaluations_per_row(
      q, estimator, num_estimates=1, seed=[1, i]
    )
    found.append((binary, q.probs_parameter(), evaluations.astype(int)))
  return tuple(np.concatenate(column) for column in zip(*found))


def percent(share):
  """Formats a share, without rounding it to 0 % or 100 %."""
  if share < 0.001:
    return '< 0.1 %'
  return '> 99.9 %' if share > 0.999 else f'{100.0 * share:.1f} %'


def group_of(evaluations, number):
  """Returns a mask of images with a number of evaluations, and its label."""
  if number == SHOWN[-1]:
    return evaluations >= number, f'{number} or more'
  return evaluations == number, str(number)


def draw_image(axis, pixels, probs):
  """Draws an image with its two most probable labels above it."""
  axis.imshow(pixels.reshape([28, 28]), cmap='gray_r', interpolation='nearest')
  first, second = np.argsort(-probs)[:2]
  place = {'ha': 'center', 'va': 'bottom', 'transform': axis.transAxes}
  axis.text(
    0.5, 1.2, f'{first}: {percent(probs[first])}', fontsize=8, **place
  )  # fmt: skip
  axis.text(
    0.5, 1.03, f'{second}: {percent(probs[second])}',
    fontsize=8, color='0.5', **place,
  )  # fmt: skip


def plot(path, binary, probs, evaluations):
  """Draws a row of images for each number of evaluations."""
  figure, axes = plt.subplots(
    len(SHOWN), NUM_COLUMNS, figsize=(9.6, 5.4), layout='none'
  )
  figure.subplots_adjust(0.11, 0.02, 0.99, 0.82, wspace=0.15, hspace=0.5)
  for row, number in zip(axes, SHOWN):
    chosen, name = group_of(evaluations, number)
    unit = 'evaluation' if number == 1 else 'evaluations'
    row[0].text(
      -0.25, 0.5, f'{name}\n{unit}', fontsize=10,
      ha='right', va='center', transform=row[0].transAxes,
    )  # fmt: skip
    for axis in row:
      axis.set(xticks=[], yticks=[])
      axis.spines[:].set_visible(False)  # A row may have too few images.
    for axis, i in zip(row, np.flatnonzero(chosen)):
      axis.spines[:].set(visible=True, color='0.8')
      draw_image(axis, binary[i], probs[i])
  groups = [group_of(evaluations, n) for n in range(1, SHOWN[-1] + 1)]
  shares = [f'{name}: {100.0 * mask.mean():.1f} %' for mask, name in groups]
  figure.suptitle(
    f'One budget per batch of {BATCH_SIZE} images: '
    f'{np.mean(evaluations):.2f} evaluations per image on average\n'
    f'Evaluations and share of images:  {",   ".join(shares)}',
    fontsize=11,
  )
  figure.savefig(path, dpi=130)
  plt.close(figure)


def write(path, evaluations):
  """Writes and prints the number of images for each number of evaluations."""
  counts = sorted(collections.Counter(evaluations.tolist()).items())
  with path.open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(['evaluations', 'images', 'share'])
    print('evaluations  images   share')
    for number, images in counts:
      share = images / len(evaluations)
      writer.writerow([number, images, f'{share:.6f}'])
      print(f'{number:11d}{images:8d}{share:8.4f}')


def main(argv):
  del argv
  output = pathlib.Path(FLAGS.output_dir)
  output.mkdir(parents=True, exist_ok=True)
  start = pathlib.Path(FLAGS.checkpoint)
  if not start.exists():
    raise app.UsageError(
      f'`--checkpoint` must be an existing file; got {start}. '
      'Run examples/paper/semisupervised_mnist.py, which writes a warm start.'
    )
  images = datasets.load_mnist(FLAGS.source).test_images
  images = semisupervised_variance.experiment.flat(images)
  binary, probs, evaluations = evaluate(start, images)
  write(output / 'images.csv', evaluations)
  plot(output / 'images.png', binary, probs, evaluations)
  print(f'The table and the figure are in {output}.')


def define_flags():
  flags.DEFINE_string(
    'checkpoint',
    'outputs/semisupervised_mnist/warm_start.npz',
    'A `.keras` file, or a warm start.',
  )
  flags.DEFINE_enum(
    'source', 'auto', ['auto', 'tfds', 'embedded'], 'Source of MNIST.'
  )
  flags.DEFINE_string(
    'output_dir', 'outputs/pooled_images', 'Folder for all output files.'
  )


if __name__ == '__main__':
  define_flags()
  app.run(main)
