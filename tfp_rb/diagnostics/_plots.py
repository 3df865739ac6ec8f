# SPDX-License-Identifier: Apache-2.0
"""Plots results, with series that can be distinguished without colours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tfp_rb.diagnostics._bounds import VarianceBound
from tfp_rb.diagnostics._compare import Comparison
from tfp_rb.internal.types import TensorLike

if TYPE_CHECKING:  # matplotlib is optional and slow to import.
  from matplotlib.axes import Axes

__all__ = ['plot_bounds', 'plot_evaluations', 'plot_mass', 'plot_variance']

_MARKERS = 'osD^vxP*'
_LINES = ('-', '--', '-.', ':')


def plot_variance(
  rows: Sequence[Comparison], ax: 'Axes | None' = None
) -> 'Axes':
  """Plots variances against evaluations of `f`, with their intervals.

  Args:
    rows: List of `Comparison`s from one or more calls of `compare`. A line
      joins the rows of one name. If all rows have the same number of
      evaluations, the names are on the y-axis.
    ax: A matplotlib `Axes`. Default: the axes of a new figure.

  Returns:
    ax: The `Axes`.

  Raises:
    ImportError: matplotlib is not installed.

  #### Examples

  ```python
  row = tfp_rb.diagnostics.Comparison(
      'plain', 2, variance=0.5, interval=(0.4, 0.6), bias=None, product=1.0)
  ax = tfp_rb.diagnostics.plot_variance(
      [row, row._replace(num_evaluations=4, variance=0.25)])
  ax.get_xlabel()  # ==> evaluations of f
  ```
  """
  ax = _axes('plot_variance') if ax is None else ax
  numbers = {row.num_evaluations for row in rows}
  if len(numbers) == 1 < len(rows):
    return _plot_names(rows, numbers.pop(), ax)
  # Sort the names, so that two plots of the same names use the same styles.
  for i, name in enumerate(sorted({row.name for row in rows})):
    own = sorted(
      (row for row in rows if row.name == name),
      key=lambda row: row.num_evaluations,
    )
    variances = np.array([row.variance for row in own])
    low, high = np.transpose([row.interval for row in own])
    ax.errorbar(
      [row.num_evaluations for row in own],
      variances,
      # matplotlib refuses a negative length, which rounding could give.
      yerr=np.maximum([variances - low, high - variances], 0.0),
      label=name,
      capsize=3,
      **_style(i),
    )
  ax.set(
    xlabel='evaluations of f',
    ylabel='total variance of the gradient, 95 % intervals',
  )
  ax.set_yscale(**_scale(rows))
  ax.legend()
  # A pool may evaluate, for example, 1.25 atoms per row.
  is_whole = all(float(number).is_integer() for number in numbers)
  return _with_whole_numbers(ax) if is_whole else ax


def _plot_names(
  rows: Sequence[Comparison], num_evaluations: float, ax: 'Axes'
) -> 'Axes':
  """Plots one variance for each name, with the first row on top."""
  for i, row in enumerate(rows):
    low, high = row.interval
    error = [[max(row.variance - low, 0.0)], [max(high - row.variance, 0.0)]]
    ax.errorbar(row.variance, i, xerr=error, capsize=3, **_style(i))
  ax.set_yticks(range(len(rows)), [row.name for row in rows])
  ax.invert_yaxis()
  ax.set(
    xlabel=(
      f'total variance of the gradient, {num_evaluations:g} evaluations of f, '
      '95 % intervals'
    )
  )
  ax.set_xscale(**_scale(rows))
  return ax


def _scale(rows: Sequence[Comparison]) -> dict[str, Any]:
  """Returns a logarithmic scale that can also show a variance of 0."""
  positive = [row.variance for row in rows if row.variance > 0.0]
  if len(positive) == len(rows) or not positive:
    return {'value': 'log' if positive else 'linear'}
  # The scale is linear from 0 to the least positive variance.
  return {'value': 'symlog', 'linthresh': min(positive)}


def plot_mass(
  masses: TensorLike, ax: 'Axes | None' = None, label: str | None = None
) -> 'Axes':
  """Plots `q(rest)` against the number of summed values.

  Args:
    masses: `Tensor` of shape `[k + 1] + batch_shape`, from `rest_mass`. The
      line is the mean over the batch, and the shaded area its range.
    ax: A matplotlib `Axes`, to which a line is added. Default: the axes of a
      new figure.
    label: Python `str`, the label in the legend. Default: no legend.

  Returns:
    ax: The `Axes`.

  Raises:
    ImportError: matplotlib is not installed.

  #### Examples

  ```python
  q = tfp.distributions.Poisson(rate=3.5)
  ax = tfp_rb.diagnostics.plot_mass(tfp_rb.diagnostics.rest_mass(q, 8))
  ax.get_ylabel()  # ==> q(rest), probability
  ```
  """
  ax = _axes('plot_mass') if ax is None else ax
  array = np.asarray(masses)
  array = array.reshape(len(array), -1)  # [k + 1, members]
  k = np.arange(len(array))
  # The style depends on the number of lines that the axes already have.
  ax.plot(k, array.mean(axis=1), label=label, **_style(len(ax.get_lines())))
  if array.shape[1] > 1:
    ax.fill_between(
      k, array.min(axis=1), array.max(axis=1), color='0.5', alpha=0.2
    )
  ax.set(xlabel='k, summed values', ylabel='q(rest), probability')
  ax.set_ylim(bottom=0.0)
  if label is not None:
    ax.legend()
  return _with_whole_numbers(ax)


def plot_evaluations(
  evaluations: TensorLike,
  masses: TensorLike,
  ax: 'Axes | None' = None,
  label: str | None = None,
) -> 'Axes':
  """Plots the evaluations of each row against the uncertainty of the row.

  Each marker is a row. The dashed line is the mean over the rows, which is the
  number that each row would get with a budget per row.

  Args:
    evaluations: Array of `batch_shape`, from `evaluations_per_row`.
    masses: `Tensor` of the same shape, `1 - q(best)` of each row: pass
      `rest_mass(q, 1)[1]`.
    ax: A matplotlib `Axes`, to which markers are added. Default: the axes of a
      new figure.
    label: Python `str`, the label in the legend. Default: no legend.

  Returns:
    ax: The `Axes`.

  Raises:
    ImportError: matplotlib is not installed.
    ValueError: `evaluations` and `masses` have different shapes.

  #### Examples

  ```python
  q = tfp.distributions.Categorical(
      logits=[[9., 0., 0.], [0., 0.5, 0.5], [7., 0., 0.]])
  evaluations = tfp_rb.diagnostics.evaluations_per_row(
      q, tfp_rb.pooled(budget=5))
  ax = tfp_rb.diagnostics.plot_evaluations(
      evaluations, tfp_rb.diagnostics.rest_mass(q, 1)[1])
  ax.get_ylabel()  # ==> evaluations of f
  ```
  """
  numbers, doubts = np.asarray(evaluations), np.asarray(masses)
  if numbers.shape != doubts.shape:
    raise ValueError(
      '`masses` must have the shape of `evaluations`, '
      f'{numbers.shape}; got {doubts.shape}. Pass `rest_mass(q, 1)[1]`.'
    )
  ax = _axes('plot_evaluations') if ax is None else ax
  # The style depends on the number of series that the axes already have.
  style = _style(len(ax.get_lines()) // 2) | {'linestyle': 'none'}
  (line,) = ax.plot(doubts.ravel(), numbers.ravel(), label=label, **style)
  mean = float(np.mean(numbers))
  ax.axhline(mean, color=line.get_color(), linestyle='--', linewidth=1.0)
  ax.set(
    xlabel='1 - q(best), probability',
    ylabel='evaluations of f',
  )
  ax.set_ylim(bottom=0.0, auto=True)  # A further series may be higher.
  if label is not None:
    ax.legend()
  return ax


def plot_bounds(
  rows: Sequence[VarianceBound], ax: 'Axes | None' = None
) -> 'Axes':
  """Plots variances and the bounds of the paper against summed atoms.

  Args:
    rows: List of `VarianceBound`s from `variance_bounds`.
    ax: A matplotlib `Axes`. Default: the axes of a new figure.

  Returns:
    ax: The `Axes`.

  Raises:
    ImportError: matplotlib is not installed.

  #### Examples

  ```python
  row = tfp_rb.diagnostics.VarianceBound(
      num_summed=1, num_samples=2, rest_mass=0.5, variance=0.1, bound=0.2)
  ax = tfp_rb.diagnostics.plot_bounds([row])
  [line.get_label() for line in ax.get_lines()]  # ==> ['variance', 'bound']
  ```
  """
  ax = _axes('plot_bounds') if ax is None else ax
  k = [row.num_summed for row in rows]
  ax.plot(k, [row.variance for row in rows], label='variance', **_style(0))
  ax.plot(k, [row.bound for row in rows], label='bound', **_style(1))
  ax.set(xlabel='k, summed atoms', ylabel='total variance of the gradient')
  ax.set_ylim(bottom=0.0)
  ax.legend()
  return _with_whole_numbers(ax)


def _with_whole_numbers(ax: 'Axes') -> 'Axes':
  # Evaluations and summed values are whole numbers.
  ax.locator_params(axis='x', integer=True)
  return ax


def _axes(name: str) -> 'Axes':
  try:
    import matplotlib.pyplot as plt
  except ImportError as error:
    raise ImportError(
      f'`{name}` requires matplotlib, which is not installed. Run '
      '`pip install matplotlib`.'
    ) from error
  return plt.subplots(layout='constrained')[1]


def _style(i: int) -> dict[str, Any]:
  """Returns the marker and line of series `i`; they differ for 32 series."""
  return {
    'marker': _MARKERS[i % len(_MARKERS)],
    # When the markers start again, the lines are shifted by one.
    'linestyle': _LINES[(i + i // len(_MARKERS)) % len(_LINES)],
    # Every other marker is hollow.
    'markerfacecolor': 'none' if i % 2 else None,
  }
