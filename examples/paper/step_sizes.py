# SPDX-License-Identifier: Apache-2.0
"""Compares the step sizes of the paper's grid on validation images."""

import numpy as np

from examples.shared import training_runs

STEP_SIZES = (5e-3, 1e-3, 5e-4, 1e-4, 5e-5)
ANNEALING_RATES = (1e-5, 5e-5, 1e-4, 5e-4)  # Used by Gumbel-softmax only.


def compare(methods, run_one, columns, output, source):
  """Trains every method with every step size; writes `tuning.csv`.

  Args:
    methods: Names of methods.
    run_one: Callable that takes a method, a step size, an annealing rate (or
      `None`) and a folder, and returns the log of a run.
    columns: Names of columns of the logs; the least value of the first column
      is the best.
    output: `pathlib.Path` of the folder.
    source: Python `str`, a description of the data.
  """
  rows = []
  for method in methods:
    for rate in ANNEALING_RATES if method == 'Gumbel' else (None,):
      for step_size in STEP_SIZES:
        name = f'{step_size:g}' if rate is None else f'{step_size:g},{rate:g}'
        print(f'{method}, step size (and annealing rate) {name}')
        log = run_one(
          method, step_size, rate, output / 'tuning' / method / name
        )
        rows.append({
          'method': method, 'step_size': step_size,
          'annealing_rate': rate or '',
          **{column: log[column][-1] for column in columns},
          'epochs': len(log['epoch']), 'data': source,
        })  # fmt: skip
        training_runs.write_rows(output / 'tuning.csv', rows)
  print_table(rows, columns)


def print_table(rows, columns):
  """Prints the last values of all runs, and marks each method's best run."""
  names = [column.removeprefix('val_') for column in columns]
  header = ''.join(f'{name:>15s}' for name in names)
  print(f'\n{"":18s}{"step size":>10s}{"rate":>8s}{header}')
  score = lambda row: np.nan_to_num(row[columns[0]], nan=np.inf)
  for row in rows:
    best = min((r for r in rows if r['method'] == row['method']), key=score)
    values = ''.join(f'{row[column]:15.4f}' for column in columns)
    print(
      f'{row["method"]:18s}{row["step_size"]:10g}{row["annealing_rate"]!s:>8s}'
      f'{values}{"  best" if row is best else ""}'
    )
