# SPDX-License-Identifier: Apache-2.0
"""Writes the tables and the figure of `switching_dynamics.py`."""

import csv
import io

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

from examples.shared import kept_files, run_paths
from examples.studies import switching_model

matplotlib.use('Agg')

REGIME_COLOURS = ('#0072B2', '#E69F00', '#009E73')
NUMBER = '{:.6g}'.format


def loss_of(row):
  """Returns the loss that ranks runs; it is infinite for a failed run."""
  loss = -row['elbo'] if 'elbo' in row else row['kl']
  return loss if np.isfinite(loss) else np.inf


def write_rows(path, rows):
  """Writes a CSV file from dictionaries that have the same keys."""
  file = io.StringIO(newline='')
  writer = csv.writer(file, lineterminator='\n')
  writer.writerow(rows[0])
  for row in rows:
    writer.writerow(
      NUMBER(x) if isinstance(x, float) else x for x in row.values()
    )
  kept_files.write(path, file.getvalue())


def order_of(fit, z):
  """Returns the regime of a fit that corresponds to each true regime."""
  found = fit['marginals'].argmax(axis=-1)
  return switching_model.best_permutation(found, z)[1]


def dynamics_rows(best, z):
  """Returns the learned dynamics, one row for each method and regime.

  The first rows contain the true dynamics.
  """
  identity = list(range(switching_model.NUM_REGIMES))
  entries = [('truth', switching_model.TRUTH, identity)]
  entries += [
    (name, fit['dynamics'], order_of(fit, z)) for name, fit in best.items()
  ]
  return [
    {
      'method': name, 'regime': k,
      'angle': float(found.angle[order[k]]),
      'radius': float(found.radius[order[k]]),
      'scale': float(found.scale[order[k]]),
      'stay': float(found.transition[order[k], order[k]]),
      'observation_scale': float(found.observation_scale),
    }
    for name, found, order in entries for k in identity
  ]  # fmt: skip


def paths_of(rows, best):
  """Returns the rows of each method at its best step size."""
  return {
    name: [
      row for row in rows
      if row['method'] == name and row['step_size'] == fit['step_size']
    ]
    for name, fit in best.items()
  }  # fmt: skip


def style_of(i, name):
  colour = run_paths.COLOURS[i % len(run_paths.COLOURS)]
  line = run_paths.LINES[i % len(run_paths.LINES)]
  return dict(color=colour, linestyle=line, linewidth=1.8, label=name)


def draw_paths(axis, paths, x, y, scale=1.0):
  for i, (name, rows) in enumerate(paths.items()):
    # The first row is at 0, which a logarithmic axis cannot show.
    values = [[row[c] for row in rows[1:]] for c in (x, y)]
    axis.plot(np.array(values[0]) * scale, values[1], **style_of(i, name))


def draw_regimes(axis, best, z):
  """Draws the regimes of the first series: the truth, and each method's."""
  rows = [('truth', z[0])]
  for name, fit in best.items():
    inverse = np.argsort(order_of(fit, z))
    rows.append((name, inverse[fit['marginals'][0].argmax(axis=-1)]))
  colours = matplotlib.colors.ListedColormap(REGIME_COLOURS)
  axis.imshow(
    np.array([regimes for _, regimes in rows]), aspect='auto', cmap=colours,
    vmin=0, vmax=len(REGIME_COLOURS) - 1, interpolation='nearest',
  )  # fmt: skip
  axis.set_yticks(range(len(rows)), [name for name, _ in rows], fontsize=8)
  axis.set(xlabel='time step', title='regimes of one series')


def plot(path, long, short, z):
  """Plots ELBOs, the regimes of one series, and exact divergences."""
  figure, axes = plt.subplots(2, 2, figsize=(14, 9), layout='constrained')
  (by_calls, by_seconds), (regimes, exact) = axes
  paths = paths_of(*long)
  for axis, x, label, scale in (
    (by_calls, 'evaluations', 'evaluations of f per series, thousands', 1e-3),
    (by_seconds, 'seconds', 'CPU seconds of training', 1.0),
  ):
    draw_paths(axis, paths, x, 'elbo', scale)
    finals = [rows[-1]['elbo'] for rows in paths.values()]
    # The first points lie far below and would hide the differences.
    axis.set(xlabel=label, ylabel='ELBO of a series [nats]')
    axis.set_xscale('log')
    span = max(max(finals) - min(finals), 1.0)
    axis.set_ylim(min(finals) - 1.5 * span, max(finals) + 0.2 * span)
  by_calls.legend(fontsize=8, loc='lower right')
  draw_regimes(regimes, long[1], z)
  draw_paths(exact, paths_of(*short), 'seconds', 'kl')
  exact.set(
    xscale='log', yscale='log', xlabel='CPU seconds of training',
    ylabel='exact KL divergence of a series [nats]',
    title=f'{short_length(short)} steps, dynamics known',
  )  # fmt: skip
  exact.legend(fontsize=8)
  figure.savefig(path, dpi=110)
  plt.close(figure)


def short_length(short):
  return next(iter(short[1].values()))['marginals'].shape[1]


def table(long, short):
  """Returns the last rows of the best runs as text."""
  lines = [
    f'{"":26s}{"step size":>10s}{"steps":>7s}{"evaluations":>12s}{"ELBO":>9s}'
    f'{"CPU s":>9s}{"right":>7s}{"errors: angle":>15s}{"radius":>8s}'
    f'{"scale":>7s}'
  ]
  for name, rows in paths_of(*long).items():
    row = rows[-1]
    lines.append(
      f'{name:26s}{row["step_size"]:10g}{row["step"]:7g}'
      f'{row["evaluations"]:12.0f}{row["elbo"]:9.1f}{row["seconds"]:9.1f}'
      f'{row["right_regimes"]:7.3f}{row["angle_error"]:15.3f}'
      f'{row["radius_error"]:8.3f}{row["scale_error"]:7.3f}'
    )
  lines += [
    '',
    f'{short_length(short)} steps, exact KL divergence from the posterior, '
    'which is the gap to the log evidence [nats]',
    f'{"":26s}{"step size":>10s}{"steps":>7s}{"evaluations":>12s}{"KL":>9s}'
    f'{"CPU s":>9s}',
  ]
  for name, rows in paths_of(*short).items():
    row = rows[-1]
    lines.append(
      f'{name:26s}{row["step_size"]:10g}{row["step"]:7g}'
      f'{row["evaluations"]:12.0f}{row["kl"]:9.4f}{row["seconds"]:9.1f}'
    )
  return '\n'.join(lines)


def report(output, long, short, z):
  """Writes the CSV files and the figure, and prints the table.

  Args:
    output: `pathlib.Path` of the folder.
    long: Rows and best fits, as `compare` returns them.
    short: The same for the short series.
    z: True regimes `[S, T]`.
  """
  write_rows(output / 'paths.csv', long[0])
  write_rows(output / 'short.csv', short[0])
  write_rows(output / 'dynamics.csv', dynamics_rows(long[1], z))
  plot(output / 'switching.png', long, short, z)
  print(f'\n{table(long, short)}\n')
