# SPDX-License-Identifier: Apache-2.0
"""Writes Table 1, Figure 4 and generated digits of semi-supervised MNIST."""

import csv
import io

import keras
import matplotlib
import numpy as np

from examples.shared import kept_files, run_paths

matplotlib.use('Agg')
import matplotlib.pyplot as plt

NUM_CLASSES = 10
NUM_PIXELS = 784

# The paper's negative ELBO (read off Figure 4) and accuracy (Table 1) after 100
# epochs.
PAPER = {
  'RB-REINFORCE': ('98.75', '.9650'),
  'Exact': ('98.6', '.9663'),
  'REINFORCE': ('101.7', '.9399'),
  'REINFORCE+': ('99.1', '.9535'),
  'RELAX': ('99.5', '.9664'),
  'RELAX-with-f': ('99.5', '.9664'),
  'NVIL': ('99.05', '.9562'),
  'Gumbel': ('99.1', '.9545'),
}

# Figure 4 shows only these methods, because ten paths are hard to tell apart.
FEW = ('RB-REINFORCE', 'Exact', 'REINFORCE', 'REINFORCE+')


def plot(path, runs, source):
  figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout='constrained')
  for axis, column, label in (
    (axes[0], 'val_negative_elbo', 'negative ELBO at the best label [nats]'),
    (axes[1], 'val_accuracy', 'accuracy'),
  ):
    # The paper also shows every fifth epoch.
    run_paths.plot_paths(axis, runs, column, every=5)
    values = np.concatenate([
      log[column] for by_seed in runs.values() for log in by_seed.values()
    ])  # fmt: skip
    # A run that diverges must not hide the others.
    low, high = np.nanquantile(values, [0.0, 1.0])
    if column == 'val_accuracy':
      low = np.nanquantile(values, 0.02)
    else:
      high = min(high, np.nanmax([log[column][0] for by_seed in runs.values()
                                  for log in by_seed.values()]))  # fmt: skip
    margin = 0.03 * (high - low)
    axis.set(ylabel=label, ylim=(low - margin, high + margin))
  axes[0].legend(fontsize=8)
  figure.suptitle(f'Test images of {source}, {run_paths.ABOUT}')
  figure.savefig(path, dpi=130)
  plt.close(figure)


def print_table(runs, source):
  print(f'\nTest images of {source}:')
  print(
    f'{"":18s}{"runs":>5s}{"epochs":>8s}{"-ELBO":>9s}{"(SE)":>7s}{"paper*":>8s}'
    f'{"accuracy":>10s}{"(SE)":>8s}{"paper*":>8s}{"s/epoch":>9s}'
  )
  for method, by_seed in runs.items():
    logs = list(by_seed.values())
    loss, accuracy = (
      run_paths.mean_and_error([log[column][-1] for log in logs])
      for column in ('val_negative_elbo', 'val_accuracy')
    )
    seconds = np.median([run_paths.seconds_of_epoch(log) for log in logs])
    paper = PAPER.get(method, ('', ''))
    errors = ('', '')
    if len(logs) > 1:
      errors = (f'{loss[1]:.2f}', f'{accuracy[1]:.4f}')
    print(
      f'{method:18s}{len(logs):5d}{len(logs[0]["loss"]) - 1:8d}'
      f'{loss[0]:9.2f}{errors[0]:>7s}{paper[0]:>8}'
      f'{accuracy[0]:10.4f}{errors[1]:>8s}{paper[1]:>8}{seconds:9.1f}'
    )
  print('* after 100 epochs on the full MNIST')


def generate(model, path, source, num_rows=6):
  """Writes generated digits of each label; each row has the same `z`."""
  z = np.repeat(
    np.random.default_rng(0).standard_normal([num_rows, model.latent_dim]),
    NUM_CLASSES,
    axis=0,
  )
  labels = np.tile(np.arange(NUM_CLASSES), num_rows)
  images = np.rint(255.0 * model.generate(labels, z=z))
  file = io.StringIO(newline='')
  writer = csv.writer(file)
  writer.writerow(['data', 'label', *range(NUM_PIXELS)])
  for label, image in zip(labels, images.astype(int), strict=True):
    writer.writerow([source, label, *image])
  kept_files.write(path, file.getvalue())


def plot_generated(csv_path, path):
  kept_files.refuse_damaged(csv_path)
  with csv_path.open(newline='') as file:
    _, *rows = csv.reader(file)
  images = np.array([row[2:] for row in rows], float)
  images = images.reshape([-1, NUM_CLASSES, 28, 28])
  grid = images.transpose([0, 2, 1, 3]).reshape([-1, NUM_CLASSES * 28])
  figure, axis = plt.subplots(figsize=(7, 4.6), layout='constrained')
  axis.imshow(255.0 - grid, cmap='gray')
  axis.set(
    xticks=np.arange(NUM_CLASSES) * 28 + 14, xticklabels=range(NUM_CLASSES),
    yticks=[], xlabel='label', ylabel='one z for each row',
  )  # fmt: skip
  figure.suptitle(f'Generated, {rows[0][0]}')
  figure.savefig(path, dpi=110)
  plt.close(figure)


def report(output, methods):
  """Writes tables and figures of all runs, with `methods` in this order."""
  columns = ('val_negative_elbo', 'val_accuracy', 'loss', 'rest', 'seconds')
  runs, source = run_paths.gather(output / 'warm_start.json', columns, methods)
  if not runs:
    return
  few = {method: runs[method] for method in FEW if method in runs}
  plot(output / 'figure_4.png', few or runs, source)
  plot(output / 'figure_4_all.png', runs, source)
  saved = [output / m / '0' / 'last.keras' for m in runs]
  whole = lambda path: path.exists() and not kept_files.is_damaged(path)
  for path in [path for path in saved if whole(path)][:1]:
    try:
      model = keras.models.load_model(path)
    except (OSError, KeyError, ValueError) as error:
      print(
        f'{path} cannot be read. Another process may be writing it: {error}'
      )
    else:
      about = f'{path.parts[-3]}, {source}'
      generate(model, output / 'generated.csv', about)
  if (output / 'generated.csv').exists():
    plot_generated(output / 'generated.csv', output / 'generated.png')
  print_table(runs, source)
