# SPDX-License-Identifier: Apache-2.0
"""Measures times per training step for several rows that take turns.

A row consists of a function and a number of steps. The function runs all steps,
or only the first ones, and waits for the last one. The name of a row is a pair
of the library and the method that it runs.
"""

import csv
import time

import numpy as np
import tqdm


def loop(step, batches, steps_per_call=1):
  """Returns a row that calls a compiled `train_step` on each batch."""

  def run(first=None):
    for batch in batches[:first]:
      logs = step(batch)
    return float(logs['loss'])

  return run, steps_per_call * len(batches)


def warm_up(rows):
  """Runs one step of each row.

  Args:
    rows: Dictionary of rows.

  Returns:
    able: Dictionary of the rows that ran.
    failed: Dictionary of the reasons why the other rows failed.
  """
  able, failed = {}, {}
  for name, row in tqdm.tqdm(rows.items(), desc='compile', unit='row'):
    try:
      row[0](1)
      able[name] = row
    except Exception as error:
      if name[0] == 'tfp_rb':
        raise
      failed[name] = f'{type(error).__name__}: {error}'.splitlines()[0]
  return able, failed


def measure(rows, num_rounds):
  """Measures milliseconds per step: an array `[num_rounds]` for each row."""
  times = {name: [] for name in rows}
  rng = np.random.default_rng(0)
  for _ in tqdm.trange(num_rounds, desc='measure', unit='round'):
    # The order changes in each round, because a row may affect the next one.
    for i in rng.permutation(len(rows)):
      name = list(rows)[i]
      run, num_steps = rows[name]
      start = time.perf_counter()
      run()
      times[name].append(1e3 * (time.perf_counter() - start) / num_steps)
  return {name: np.array(t) for name, t in times.items()}


def ratio(times, numerator, denominator):
  """Returns the median of the ratio of two rows over the rounds.

  Both times come from the same round, so a ratio changes little if the machine
  is slower for some minutes.
  """
  return np.median(times[numerator] / times[denominator])


def summarize(times, failed, base, source):
  """Returns the rows of the table, with quartiles and the ratio to `base`."""
  table = []
  for (library, method), t in times.items():
    low, median, high = np.percentile(t, [25, 50, 75])
    table.append({
      'library': library,
      'method': method,
      'milliseconds': f'{median:.3f}',
      'lower_quartile': f'{low:.3f}',
      'upper_quartile': f'{high:.3f}',
      'over_rb': f'{median / np.median(times[base]):.3f}',
      'rounds': len(t),
      'data': source,
      'note': '',
    })  # fmt: skip
  for (library, method), reason in failed.items():
    blank = dict.fromkeys(table[0], '')
    table.append(
      {**blank, 'library': library, 'method': method, 'note': reason}
    )
  return table


def verdicts(times, targets):
  """Returns a line for each target whose two rows were measured.

  Args:
    times: As `measure` returns it.
    targets: Tuples of the names of two rows, 'at least' or 'at most', and the
      target for the ratio of their times.

  Returns:
    lines: List of Python `str`.
  """
  lines = []
  for numerator, denominator, relation, bound in targets:
    if numerator in times and denominator in times:
      value = ratio(times, numerator, denominator)
      sign = 1.0 if relation == 'at least' else -1.0
      verdict = 'PASS' if sign * (value - bound) >= 0.0 else 'MISSED'
      names = ' / '.join(' '.join(name) for name in (numerator, denominator))
      lines.append(f'{verdict:7s}{names}: {value:.3f}, {relation} {bound}')
  return lines


def report(times, failed, base, source, targets, folder):
  """Writes `times.csv` and `rounds.csv`, and prints a table and verdicts."""
  table = summarize(times, failed, base, source)
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / 'times.csv').open('w', newline='') as file:
    writer = csv.DictWriter(file, table[0].keys())
    writer.writeheader()
    writer.writerows(table)
  with (folder / 'rounds.csv').open('w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(['library', 'method', *range(len(times[base]))])
    writer.writerows([*name, *t.round(3)] for name, t in times.items())
  print(f'\n{"":12s}{"":26s}{"ms":>8s}   {"quartiles":18s}{"ratio":>7s}')
  for row in table:
    quartiles = f'{row["lower_quartile"]:>8s} {row["upper_quartile"]:>8s}'
    print(
      f'{row["library"]:12s}{row["method"]:26s}{row["milliseconds"]:>8s} '
      f'{quartiles:20s}{row["over_rb"]:>7s} {row["note"]}'
    )
  print('', *verdicts(times, targets), sep='\n')
  print(f'\nThe table is in {folder}.')
