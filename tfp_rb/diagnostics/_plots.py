"""Plots that can be told apart without colours."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tfp_rb.diagnostics._bounds import VarianceBound
from tfp_rb.diagnostics._compare import Comparison
from tfp_rb.internal.types import TensorLike

if TYPE_CHECKING:  # matplotlib is loaded when something is plotted
  from matplotlib.axes import Axes

__all__ = ['plot_bounds', 'plot_mass', 'plot_variance']

_MARKERS = 'osD^vxP*'
_LINES = ('-', '--', '-.', ':')


def plot_variance(
  rows: Sequence[Comparison], ax: 'Axes | None' = None
) -> 'Axes':
  """Plots variances against evaluations of `f`, with their intervals.

  Args:
    rows: List of `Comparison`s, those of several calls of `compare` if you
      like. Rows of one name are joined by a line. If all have one number of
      evaluations, the names are on the other axis.
    ax: A matplotlib `Axes`. Default: that of a new figure.

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
    return _plot_by_name(rows, *numbers, ax)
  # In the order of names: a name looks the same in two plots side by side.
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
  return _with_whole_numbers(ax)


def _plot_by_name(rows, num_evaluations, ax):
  """At equal evaluations: a line for each name, the first row on top."""
  for i, row in enumerate(rows):
    low, high = row.interval
    error = [[max(row.variance - low, 0.0)], [max(high - row.variance, 0.0)]]
    ax.errorbar(row.variance, i, xerr=error, capsize=3, **_style(i))
  ax.set_yticks(range(len(rows)), [row.name for row in rows])
  ax.invert_yaxis()
  ax.set(
    xlabel=(
      f'total variance of the gradient, {num_evaluations} evaluations of f, '
      '95 % intervals'
    )
  )
  ax.set_xscale(**_scale(rows))
  return ax


def _scale(rows):
  """Logarithmic; a variance of 0 has its place below the least other one."""
  positive = [row.variance for row in rows if row.variance > 0.0]
  if len(positive) == len(rows) or not positive:
    return {'value': 'log' if positive else 'linear'}
  return {'value': 'symlog', 'linthresh': min(positive)}


def plot_mass(
  masses: TensorLike, ax: 'Axes | None' = None, label: str | None = None
) -> 'Axes':
  """Plots `q(rest)` against the number of summed values.

  Args:
    masses: `Tensor` of shape `[k + 1] + batch_shape`, from `rest_mass`. Of a
      batch the mean is drawn, and the range from the least to the largest.
    ax: A matplotlib `Axes`, to which a line is added. Default: that of a new
      figure.
    label: Python `str`, for the legend.

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
  masses = np.asarray(masses)
  masses = masses.reshape([len(masses), -1])  # [k + 1, members]
  k = np.arange(len(masses))
  ax.plot(k, masses.mean(axis=1), label=label, **_style(len(ax.get_lines())))
  if masses.shape[1] > 1:
    ax.fill_between(
      k, masses.min(axis=1), masses.max(axis=1), color='0.5', alpha=0.2
    )
  ax.set(xlabel='k, summed values', ylabel='q(rest), probability')
  ax.set_ylim(bottom=0.0)
  if label is not None:
    ax.legend()
  return _with_whole_numbers(ax)


def plot_bounds(
  rows: Sequence[VarianceBound], ax: 'Axes | None' = None
) -> 'Axes':
  """Plots variances and the bounds of the paper against summed atoms.

  Args:
    rows: List of `VarianceBound`s, from `variance_bounds`.
    ax: A matplotlib `Axes`. Default: that of a new figure.

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
  for i, (name, values) in enumerate(
    {
      'variance': [row.variance for row in rows],
      'bound': [row.bound for row in rows],
    }.items()
  ):
    ax.plot(k, values, label=name, **_style(i))
  ax.set(xlabel='k, summed atoms', ylabel='total variance of the gradient')
  ax.set_ylim(bottom=0.0)
  ax.legend()
  return _with_whole_numbers(ax)


def _with_whole_numbers(ax):
  ax.locator_params(axis='x', integer=True)
  return ax


def _axes(name):
  try:
    import matplotlib.pyplot as plt
  except ImportError as error:
    raise ImportError(
      f'`{name}` needs matplotlib, but it is not installed. Install it, by '
      '`pip install matplotlib`.'
    ) from error
  return plt.subplots(layout='constrained')[1]


def _style(i):
  """Another marker and line for each of 32 series, whatever the colours."""
  marker = _MARKERS[i % len(_MARKERS)]
  return {
    'marker': marker,
    'linestyle': _LINES[(i + i // len(_MARKERS)) % len(_LINES)],
    # Every other one hollow.
    'markerfacecolor': 'none' if i % 2 else None,
  }
