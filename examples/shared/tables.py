# SPDX-License-Identifier: Apache-2.0
"""Writes the table of a benchmark as a CSV file."""

import csv


def write(path, rows, num_digits=6, **options):
  """Writes dictionaries with the same keys as a CSV file.

  Args:
    path: `pathlib.Path` or `str`, where the file goes.
    rows: List of dictionaries.
    num_digits: Python `int`, significant digits of floating-point numbers.
    **options: Further arguments of `csv.DictWriter`.
  """
  with open(path, 'w', newline='') as file:
    writer = csv.DictWriter(file, list(rows[0]), **options)
    writer.writeheader()
    for row in rows:
      cells = {
        name: f'{x:.{num_digits}g}' if isinstance(x, float) else x
        for name, x in row.items()
      }
      writer.writerow(cells)
