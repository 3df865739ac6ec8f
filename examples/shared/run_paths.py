# SPDX-License-Identifier: Apache-2.0
"""Collects the logs of all runs in `paths.csv`, and draws them.

The reports of the experiments on MNIST use this module. `paths.csv` contains
the rows of all runs of `training_runs.py`; figures and tables are made from
this file alone.
"""

import csv
import io
import json

import numpy as np

from examples.shared import kept_files, training_runs

# Okabe and Ito's colours, which colour-blind readers can tell apart, and three
# more. Lines and markers differ as well, for printing in black and white.
COLOURS = (
  '#0072B2', 'black', '#D55E00', '#E69F00', '#CC79A7', '#009E73', '#56B4E9',
  '0.5', '#882255', '#B8A400',
)  # fmt: skip
LINES = ('-', '--', '-.', ':')
MARKERS = 'osD^vxP*'
ABOUT = 'mean and standard error (number of runs)'


def collect(output, columns, first):
  """Returns all runs in a folder: those in `paths.csv`, and those with a log.

  Args:
    output: `pathlib.Path` of the folder.
    columns: Names of columns of the logs.
    first: `{column: value}` before the first epoch, for the columns that have
      such a value.

  Returns:
    runs: `{method: {seed: {column: array}}}`; index 0 is before training.
  """
  runs = {}
  path = output / 'paths.csv'
  if kept_files.is_damaged(path):
    aside = path.with_name('paths.csv.damaged')
    print(f'`{path}` is damaged. It is renamed {aside.name} and written anew.')
    path.replace(aside)
  for row in training_runs.rows_of(path):
    of_seed = runs.setdefault(row['method'], {}).setdefault(
      int(row['seed']), {c: [] for c in columns}
    )
    for c in columns:
      of_seed[c].append(float(row[c] or 'nan'))
  for path in sorted(output.glob('*/*/log.csv')):
    if kept_files.is_damaged(path):
      print(f'`{path}` is damaged. The report leaves this run out.')
    elif training_runs.finished_epochs(path):
      log = training_runs.read_log(path)
      runs.setdefault(path.parts[-3], {})[int(path.parts[-2])] = {
        c: [first.get(c, np.nan), *log[c]] for c in columns
      }
  return {
    method: {seed: by_seed[seed] for seed in sorted(by_seed)}
    for method, by_seed in runs.items()
  }


def gather(path, columns, methods, about=lambda start: start['source']):
  """Rewrites `paths.csv`, and returns the runs and the title of a report.

  Args:
    path: `pathlib.Path` of the file that `training_runs.start_of` wrote, in the
      folder of the runs.
    columns: Names of columns of the logs.
    methods: The methods, in the order of the report; all others follow them.
    about: Callable that maps the content of this file to a title.

  Returns:
    runs: As `collect` returns them, but only the longest runs of each method.
    title: Python `str`.
  """
  if not path.exists():
    print(f'There are no runs in {path.parent} yet: {path.name} is missing.')
    return {}, ''
  kept_files.refuse_damaged(path)
  start = json.loads(path.read_text())
  first = {f'val_{name}': value for name, value in start.items()}
  runs = collect(path.parent, columns, first)
  order = [*methods, *sorted(runs.keys() - set(methods))]
  runs = {method: runs[method] for method in order if method in runs}
  if runs:
    write_paths(path.parent / 'paths.csv', runs, about(start))
  else:
    print(f'No run has finished an epoch in {path.parent} yet.')
  return longest(runs), about(start)


def longest(runs):
  """Keeps only the longest runs of each method, which have equal epochs."""
  length = lambda log: len(log['loss'])
  return {
    method: {
      seed: log
      for seed, log in by_seed.items()
      if length(log) == max(map(length, by_seed.values()))
    }
    for method, by_seed in runs.items()
  }


def write_paths(path, runs, source):
  """Writes one row for each method, seed and epoch."""
  file = io.StringIO(newline='')
  writer = csv.writer(file, lineterminator='\n')
  for method, by_seed in runs.items():
    for seed, log in by_seed.items():
      if file.tell() == 0:
        writer.writerow(['method', 'seed', 'epoch', *log, 'data'])
      for epoch, values in enumerate(zip(*log.values(), strict=True)):
        values = ['' if np.isnan(v) else f'{v:.6g}' for v in values]
        writer.writerow([method, seed, epoch, *values, source])
  kept_files.write(path, file.getvalue())


def seconds_of_epoch(log):
  """Returns the median seconds per epoch.

  If there are several epochs, the first one does not count, since it includes
  compilation.
  """
  seconds = np.asarray(log['seconds'])[1:]
  return np.median(seconds[1:] if len(seconds) > 1 else seconds)


def mean_and_error(values):
  """Returns the mean over runs and its standard error (NaN for one run)."""
  values = np.asarray(values)
  spread = values.std(axis=0, ddof=1) if len(values) > 1 else np.nan
  return values.mean(axis=0), spread / np.sqrt(len(values))


def plot_paths(axis, runs, column, every=1):
  """Draws the mean and the standard error of each method for each epoch.

  Args:
    axis: A matplotlib `Axes`.
    runs: As `collect` returns them.
    column: Name of the column.
    every: Python `int`, the distance between two epochs that are shown. If the
      runs are at most five times as long, all epochs are shown.
  """
  for i, (method, by_seed) in enumerate(runs.items()):
    length = min(len(log[column]) for log in by_seed.values())
    epochs = np.arange(0, length, every if length > 5 * every else 1)
    paths = np.array([log[column][:length] for log in by_seed.values()])
    mean, error = mean_and_error(paths[:, epochs])
    color = COLOURS[i % len(COLOURS)]
    axis.plot(
      epochs,
      mean,
      LINES[i % len(LINES)],
      color=color,
      marker=MARKERS[i % len(MARKERS)],
      markersize=4,
      markevery=max(1, len(epochs) // 20),
      label=f'{method} ({len(paths)})',
    )
    if len(paths) > 1:
      axis.fill_between(
        epochs, mean - error, mean + error, color=color, alpha=0.15, linewidth=0
      )
  axis.set_xlabel('epoch')
