# SPDX-License-Identifier: Apache-2.0
"""Writes Figures 5 and 6, reconstructions and Table 2 of moving MNIST."""

import csv
import io

import matplotlib
import numpy as np

from examples.shared import kept_files, run_paths
from tfp_rb import models

matplotlib.use('Agg')
import matplotlib.pyplot as plt

# The paper's negative ELBO after 2, 10, 20 and 50 epochs (read off Figure 6),
# and its seconds per epoch on a V100 (Table 2).
PAPER = {
  'RB-REINFORCE+': ((735, 322, 250, 211), 15.4),
  'REINFORCE+': ((955, 925, 870, 790), 8.9),
  'RELAX': ((1390, 505, 408, 239), 11.1),
  'NVIL': ((860, 405, 331, 268), 9.5),
  'Gumbel': ((1365, 1440, 1670, 1610), 8.7),
}
EPOCHS = (2, 10, 20, 50)
COLUMNS = ('val_negative_elbo', 'val_distance', 'loss', 'rest', 'seconds')


def reconstruct(model, digits, path, source):
  """Writes frames with their attention maps and reconstructions."""
  frames, _ = model.frames.place(models.binarize(digits, [0, 1]), [0, 2])
  attention = np.exp(model(frames))
  images = model.reconstruct(frames)
  file = io.StringIO(newline='')
  writer = csv.writer(file, lineterminator='\n')
  for kind, rows in (
    ('frame', frames), ('attention', attention), ('reconstruction', images)
  ):  # fmt: skip
    for row in np.reshape(rows, [len(digits), -1]):
      writer.writerow([source, kind, *(f'{x:.4g}' for x in row)])
  path.parent.mkdir(parents=True, exist_ok=True)
  kept_files.write(path, file.getvalue())


def plot_reconstructions(csv_path, path, method):
  kept_files.refuse_damaged(csv_path)
  with csv_path.open(newline='') as file:
    rows = list(csv.reader(file))
  kinds = ('frame', 'attention', 'reconstruction')
  images = {
    kind: np.array([row[2:] for row in rows if row[1] == kind], float)
    for kind in kinds
  }
  num_images, num_pixels = images['frame'].shape
  size = int(num_pixels**0.5)
  figure, axes = plt.subplots(
    num_images,
    3,
    figsize=(6.5, 2.1 * num_images),
    layout='constrained',
    squeeze=False,
  )
  for i in range(num_images):
    for axis, kind in zip(axes[i], kinds, strict=True):
      axis.imshow(-images[kind][i].reshape([size, size]), cmap='gray')
      axis.set(xticks=[], yticks=[], title=kind if i == 0 else '')
  figure.suptitle(f'{method}, {rows[0][0]}', fontsize=9)
  figure.savefig(path, dpi=110)
  plt.close(figure)


def plot_examples(csv_path, path):
  """Plots some frames, as in Figure 5."""
  kept_files.refuse_damaged(csv_path)
  with csv_path.open(newline='') as file:
    rows = [row for row in csv.reader(file) if row[1] == 'frame']
  figure, axes = plt.subplots(
    1,
    len(rows),
    figsize=(2.4 * len(rows), 2.8),
    layout='constrained',
    squeeze=False,
  )
  for axis, row in zip(axes[0], rows, strict=True):
    size = int(len(row[2:]) ** 0.5)
    axis.imshow(-np.array(row[2:], float).reshape([size, size]), cmap='gray')
    axis.set(xticks=[], yticks=[])
  figure.suptitle(rows[0][0], fontsize=9)
  figure.savefig(path, dpi=110)
  plt.close(figure)


def plot(path, runs, source):
  """Plots negative ELBO and distance from the true location, as in Figure 6."""
  figure, axes = plt.subplots(1, 2, figsize=(12, 4.8), layout='constrained')
  for axis, column, label in (
    (axes[0], 'val_negative_elbo', 'negative ELBO at the best location [nats]'),
    (axes[1], 'val_distance', 'distance of the best location [pixels]'),
  ):
    run_paths.plot_paths(axis, runs, column)
    axis.set(ylabel=label, yscale='log')
    axis.yaxis.set_major_formatter('{x:g}')
    axis.yaxis.set_minor_formatter('{x:g}')
  axes[0].axhline(500, color='0.7', linewidth=0.8)
  axes[0].legend(fontsize=8)
  figure.suptitle(f'Test images of {source}\n{run_paths.ABOUT}')
  figure.savefig(path, dpi=130)
  plt.close(figure)


def to_reach(log, level=500.0):
  """Returns the epochs and seconds until a run falls below a level, or NaNs.

  The seconds are epochs times the median seconds per epoch, because a run may
  have been stopped for a while.
  """
  below = np.flatnonzero(np.asarray(log['val_negative_elbo']) < level)
  if not len(below):
    return np.nan, np.nan
  return below[0], below[0] * run_paths.seconds_of_epoch(log)


def reached(logs):
  """Returns how many runs fell below 500, and their median epochs and time."""
  found = np.array([to_reach(log) for log in logs])
  found = found[~np.isnan(found[:, 0])]
  if not len(found):
    return f'0 of {len(logs)}'
  epochs, seconds = np.median(found, axis=0)
  return f'{len(found)} of {len(logs)}: {epochs:.0f}, {seconds:.0f} s'


def print_table(runs, about, is_comparable):
  """Prints our results, and the paper's if the settings are the same."""
  print(f'{about}\nNegative ELBO{", ours / the paper" * is_comparable}:')
  print(
    f'{"":18s}{"runs":>5s}'
    + ''.join(f'{f"epoch {e}":>14s}' for e in EPOCHS)
    + f'{"pixels":>8s}{"s/epoch":>9s}{"paper*":>8s}'
    + f'{"epochs, s to 500":>20s}'
  )
  for method, by_seed in runs.items():
    logs = list(by_seed.values())
    paper, of_epoch = PAPER.get(method, (('',) * len(EPOCHS), ''))
    cells = ''
    for epoch, theirs in zip(EPOCHS, paper, strict=True):
      there = [x['val_negative_elbo'] for x in logs]
      there = [x[epoch] for x in there if len(x) > epoch]
      cell = f'{np.mean(there):.0f}' if there else ''
      cells += f'{f"{cell} / {theirs}" if is_comparable else cell:>14s}'
    pixels = np.mean([log['val_distance'][-1] for log in logs])
    seconds = np.median([run_paths.seconds_of_epoch(log) for log in logs])
    print(
      f'{method:18s}{len(logs):5d}{cells}{pixels:8.2f}{seconds:9.1f}'
      f'{of_epoch!s:>8s}{reached(logs):>20s}'
    )
  print('* on a V100. The last column has medians of the runs below 500.')


def title_of(start):
  """Returns a description of the data and of the weight of the entropy."""
  title = f'{start["source"]}, entropy x {start["entropy_weight"]:g}'
  settings = start['settings']
  if 'anneal_epochs' in settings:
    title += f', from {settings["annealed_from"]:g}'
    title += f' within {settings["anneal_epochs"]} epochs'
  return title


def report(output, methods):
  """Writes tables and figures of all runs, with `methods` in this order."""
  runs, about = run_paths.gather(
    output / 'start.json',
    COLUMNS,
    methods,
    title_of,
  )
  if not runs:
    return
  plot(output / 'figure_6.png', runs, about)
  for path in sorted(output.glob('*/reconstructions.csv')):
    method = path.parent.name
    plot_reconstructions(path, path.with_suffix('.png'), method)
    plot_examples(path, output / 'figure_5.png')
  # The paper uses 6,000 digits, and a weight of 64 for the entropy.
  is_comparable = ', 6000 + ' in about and about.endswith('entropy x 64')
  print_table(runs, about, is_comparable)
