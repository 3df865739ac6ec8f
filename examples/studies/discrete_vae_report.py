# SPDX-License-Identifier: Apache-2.0
"""Figures and the table of `discrete_vae.py`, made from its CSV files alone."""

import csv
import json
import pathlib

import matplotlib
import numpy as np

from examples.shared import run_paths

matplotlib.use('Agg')
import matplotlib.pyplot as plt

COLUMNS = (
  'loss', 'rest', 'encoder_variance', 'val_negative_elbo', 'test_bound',
  'seconds',
)  # fmt: skip

# Train ELBO with 200 bits after 10^6 steps, by method and evaluations. (Those
# of RELAX count as three in the literature.)
PUBLISHED = {
  'DisARM-2': -102.75, 'double-CV-2': -102.14, 'Stein-2': -101.89,
  'ARMS-3': -100.84, 'double-CV-3': -100.94, 'Stein-3': -100.46,
  'RELAX-with-f-2': -101.99,
}  # fmt: skip


# Written by `examples/benchmarks/discrete_vae.py` on an idle machine. Runs take
# hours and share the machine, so their own seconds cannot be compared.
TIMES = pathlib.Path('examples/results/discrete_vae_times')


def order_of(methods):
  """Returns names of runs in the order of the methods, 1 to 9 evaluations."""
  return [f'{method}-{n}' for method in methods for n in range(1, 10)]


def milliseconds_of_steps(latents, folder=TIMES):
  """Returns the measured milliseconds per training step.

  Args:
    latents: Python `str`, the name of the protocol.
    folder: `pathlib.Path` with a folder for each protocol.

  Returns:
    milliseconds: Dictionary, the name of a run to a `float`; empty if nothing
      was measured.
  """
  path = folder / latents / 'times.csv'
  if not path.exists():
    return {}
  with path.open(newline='') as file:
    return {
      row['method']: float(row['milliseconds'])
      for row in csv.DictReader(file)
      if row['library'] == 'tfp_rb' and row['milliseconds']
    }


def style(i):
  """Returns colour and line of the `i`-th method."""
  colour = run_paths.COLOURS[i % len(run_paths.COLOURS)]
  return {'color': colour, 'linestyle': run_paths.LINES[i % 4]}


def values_of(log, column):
  """Returns a column without the row before training."""
  return np.asarray(log[column], float)[1:]


def plot_panels(axes, runs, steps_per_row, milliseconds):
  """Draws the training ELBO, by step and by minute, variance and rest."""
  panels = (
    ('loss', 'ELBO of the training images [nats]', 'step'),
    ('loss', 'ELBO of the training images [nats]', 'minutes (idle machine)'),
    ('encoder_variance', 'variance of the gradient w.r.t. the encoder', 'step'),
    ('rest', 'probability of all codes but the best', 'step'),
  )
  for axis, (column, label, unit) in zip(axes, panels, strict=True):
    for i, (name, by_seed) in enumerate(runs.items()):
      for seed, log in by_seed.items():
        y = values_of(log, column)
        x = steps_per_row * np.arange(1, len(y) + 1)
        if unit != 'step':
          x = x * milliseconds.get(name, np.nan) / 60e3
        y = -y if column == 'loss' else y
        first = seed == min(by_seed)
        axis.plot(x, y, label=name if first else None, **style(i))
    axis.set(xlabel=unit, ylabel=label)
    if column == 'encoder_variance':
      axis.set_yscale('log')


def focus(axis, runs):
  """Hides the start of training, where all methods improve quickly."""
  ends = [
    -values_of(log, 'loss') for by_seed in runs.values()
    for log in by_seed.values()
  ]  # fmt: skip
  low = min(np.min(y[len(y) // 10 :]) for y in ends)
  high = max(np.max(y) for y in ends)
  margin = 0.05 * (high - low) + 0.01
  axis.set_ylim(low - margin, high + margin)


def plot(path, runs, title, steps_per_row, milliseconds):
  figure, axes = plt.subplots(2, 2, figsize=(12, 9), layout='constrained')
  plot_panels(axes.flat, runs, steps_per_row, milliseconds)
  for axis in axes.flat[:2]:
    focus(axis, runs)
  axes.flat[2].legend(fontsize=8)
  figure.suptitle(title)
  figure.savefig(path, dpi=120)
  plt.close(figure)


def last_measured(values):
  """Returns the last number that is not NaN."""
  known = values[np.isfinite(values)]
  return known[-1] if known.size else np.nan


def print_table(runs, title, steps_per_row, published, milliseconds):
  print(f'\n{title}:')
  print(
    f'{"method-evaluations":24s}{"seeds":>6s}{"steps":>9s}{"train ELBO":>12s}'
    f'{"published*":>11s}{"test bound":>12s}{"variance":>10s}{"rest":>8s}'
    f'{"ms/step":>9s}'
  )
  for name, by_seed in runs.items():
    logs = list(by_seed.values())
    loss, variance, rest, bound = (
      np.mean([last_measured(values_of(log, column)) for log in logs])
      for column in ('loss', 'encoder_variance', 'rest', 'test_bound')
    )
    num_steps = steps_per_row * len(values_of(logs[0], 'loss'))
    print(
      f'{name:24s}{len(logs):6d}{num_steps:9d}{-loss:12.2f}'
      f'{published.get(name, ""):>11}{bound:12.2f}{variance:10.3g}{rest:8.3f}'
      f'{milliseconds.get(name, np.nan):9.2f}'
    )
  if published:
    print('* train ELBO after 1,000,000 steps, in the papers')


def report(about, methods):
  """Prints the table and draws the figure of all runs in a folder.

  Args:
    about: `pathlib.Path` of `about.json` in the folder of the runs, which has
      the name of the protocol.
    methods: List of Python `str`s, the names of the methods in their order.
  """
  runs, source = run_paths.gather(about, COLUMNS, order_of(methods))
  if not runs:
    return
  common = json.loads(about.read_text())
  latents = common['latents']
  what = f'{latents} bits' if isinstance(latents, int) else (
    f'{latents[0]} variables of {latents[1]} values'
  )  # fmt: skip
  title = f'{what}, {source}'
  milliseconds = milliseconds_of_steps(about.parent.name)
  every = common['steps_per_row']
  plot(about.parent / 'paths.png', runs, title, every, milliseconds)
  published = PUBLISHED if latents == 200 else {}
  print_table(runs, title, every, published, milliseconds)
