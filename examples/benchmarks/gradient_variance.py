# SPDX-License-Identifier: Apache-2.0
"""Tables and figures of the gradient variance of a model."""

import csv

import matplotlib
import tensorflow as tf

from tfp_rb import diagnostics

matplotlib.use('Agg')
import matplotlib.pyplot as plt

plt.style.use('seaborn-v0_8-colorblind')


def copy_networks(source, target):
  """Copies the weights of a model to another one, except the estimator's."""
  for old, new in zip(source.layers, target.layers, strict=True):
    if new is not target.estimator_layer:
      new.set_weights(old.get_weights())


def measure(evaluations, name, measured, num_pairs, about):
  """Measures a row of the table, and prints it.

  Args:
    evaluations: Number of evaluations of `f` per image.
    name: Python `str`, name of the estimator.
    measured: List of pairs of a loss and a dictionary `{name: variables}`. A
      loss is a callable that maps a stateless seed to a scalar `Tensor`.
    num_pairs: Python `int`.
    about: Dictionary with `checkpoint` and `data`.

  Returns:
    row: Dictionary, in which `<name>_95` is half the width of an interval.
  """
  row, cells = {'evaluations': evaluations, 'estimator': name}, ''
  for loss, groups in measured:
    compiled = tf.function(loss, autograph=False, jit_compile=True)
    for group, variables in groups.items():
      # The same seeds serve all groups.
      moments = diagnostics.sampled_moments(
        compiled, variables, num_pairs, seed=1
      )
      margin = moments.interval[1] - moments.variance
      row |= {group: moments.variance, f'{group}_95': margin}
      cells += f'{moments.variance:12.4g} +- {margin:6.2g}'
  print(f'{evaluations:4g} {name:27s}{cells}', flush=True)
  return {**row, 'pairs': num_pairs, **about}


def write(path, rows):
  with path.open('w', newline='') as file:
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)


def plot(path, rows, column):
  """Draws a column of the rows, with the interval in `<column>_95`."""
  figure, axis = plt.subplots(
    figsize=(8, 1.2 + 0.23 * len(rows)), layout='constrained'
  )
  evaluations = sorted({row['evaluations'] for row in rows})
  for i, row in enumerate(rows):
    number = evaluations.index(row['evaluations'])
    if not row[column]:  # A logarithmic axis cannot show 0.
      axis.text(0.01, i, '0', transform=axis.get_yaxis_transform(), va='center')
      continue
    axis.errorbar(
      row[column], i, xerr=row[f'{column}_95'], capsize=3,
      fmt='os^D'[number % 4], color=f'C{number}',
    )  # fmt: skip
  axis.set(
    yticks=range(len(rows)),
    yticklabels=[f'{r["evaluations"]:g}: {r["estimator"]}' for r in rows],
    xscale='log' if any(row[column] for row in rows) else 'linear',
    xlabel=f'variance of the gradient w.r.t. the {column}, 95 % intervals',
  )
  axis.set_title(
    f'at {rows[0]["checkpoint"]}, {rows[0]["data"]}', fontsize=8, loc='right'
  )
  axis.set_ylabel('evaluations of f: estimator')
  axis.invert_yaxis()
  axis.grid(axis='x', alpha=0.3)
  figure.savefig(path, dpi=120)
  plt.close(figure)
