# SPDX-License-Identifier: Apache-2.0
"""Evaluates `f` at the atoms of sites, in one call or in chunks."""

import tensorflow as tf

from tfp_rb.designs.integrand import Evaluation, evaluate
from tfp_rb.designs.sites import SiteAtoms, Sites, reshape_first, with_joint
from tfp_rb.internal import gradients
from tfp_rb.internal.types import Integrand

__all__ = ['KnownIntegrand', 'SiteIntegrand', 'known_integrands']


def known_integrands(
  f: Integrand, atoms: SiteAtoms, sites_per_call: int | None
) -> list['KnownIntegrand']:
  """Evaluates `f` at all atoms, but only once at the shared joint value.

  Args:
    f: Callable of joint atoms.
    atoms: `SiteAtoms` that share the joint value.
    sites_per_call: Python `int`, or `None` for all sites in one call.

  Returns:
    integrands: List of `KnownIntegrand`s, one for each group.
  """
  pairs = list(zip(atoms.groups, atoms.of_groups, strict=True))
  points = [atoms.values] + [
    sites.points_of_extra(atoms.joint, of_group.extra)
    for sites, of_group in pairs
    if of_group.extra is not None
  ]
  most = None
  if sites_per_call is not None:
    most = sites_per_call * atoms.num_at_site
  known = _evaluate(f, tf.concat(points, axis=0), most)
  # The estimates of all sites are added up. Each of them contains the full
  # gradient w.r.t. the variables of `f` and w.r.t. the joint value (for
  # example, through a shift of the distribution), so each contributes 1/S.
  share = 1.0 / atoms.num_sites
  values, signals = (
    _of_groups(gradients.scale_gradient(x, share), atoms) for x in known
  )
  return [
    KnownIntegrand(f, Evaluation(value, signal))
    for value, signal in zip(values, signals, strict=True)
  ]


def _of_groups(x: tf.Tensor, atoms: SiteAtoms) -> list[tf.Tensor]:
  """Arranges results at all points by group.

  Args:
    x: `Tensor` of shape `[m] + batch_shape`.
    atoms: `SiteAtoms` that share the joint value.

  Returns:
    results: List of `Tensor`s of shape `[n + e] + batch_shape + [S]`: at the
      atoms of a group and, after them, at the draws of the baseline.
  """
  joint, results, start = x[:1, ..., tf.newaxis], [], 1
  for sites, of_group, index in zip(
    atoms.groups, atoms.of_groups, atoms.shared or [], strict=True
  ):
    stop = start + (of_group.weights.shape[0] - 1) * sites.size
    others = sites.last(sites.unflatten(x[start:stop]))
    results.append(with_joint(others, joint, index))
    start = stop
  for i, (sites, of_group) in enumerate(
    zip(atoms.groups, atoms.of_groups, strict=True)
  ):
    if of_group.extra is None:
      continue
    stop = start + of_group.extra.shape[0] * sites.num_points_of_extra
    extra = sites.results_of_extra(x[start:stop])
    results[i] = tf.concat([results[i], extra], axis=0)
    start = stop
  return results


class KnownIntegrand:
  """Holds `f` at the atoms of the sites and at the draws of a baseline.

  It serves estimators that evaluate `f` nowhere else; see
  `GradientEstimator.evaluates_only_atoms`.
  """

  def __init__(self, f: Integrand, known: Evaluation) -> None:
    self.name = getattr(f, 'name', 'f')
    self._known = known

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    return self.evaluate(x).value

  def evaluate(self, x: tf.Tensor) -> Evaluation:
    """Returns the `Evaluation` at values of the sites."""
    del x  # `x` holds the atoms and draws at which `f` is already known.
    return self._known


class SiteIntegrand:
  """Calls `f` as a function of one site, with the others at the joint value.

  It maps `[n] + batch_shape + [S] + event_shape_of_site` to
  `[n] + batch_shape + [S]`. It serves the estimators that evaluate `f` between
  the atoms, or differentiate `f` w.r.t. the atoms.
  """

  def __init__(
    self,
    f: Integrand,
    sites: Sites,
    atoms: SiteAtoms,
    sites_per_call: int | None,
  ) -> None:
    """Stores the integrand and the joint value.

    Args:
      f: Callable of joint atoms.
      sites: `Sites`.
      atoms: `SiteAtoms`, which hold the joint value and the number of sites.
      sites_per_call: Python `int`, or `None` for all sites in one call.
    """
    self.name = getattr(f, 'name', 'f')
    self._f = f
    self._sites = sites
    # Each site contributes its own full gradient through its atoms. A gradient
    # through the joint value would count a shift of the distribution twice.
    self._joint = tf.stop_gradient(atoms.joint)
    self._num_sites = float(atoms.num_sites)
    self._sites_per_call = sites_per_call

  def __call__(self, x: tf.Tensor) -> tf.Tensor:
    return self.evaluate(x).value

  def evaluate(self, x: tf.Tensor) -> Evaluation:
    """Returns the `Evaluation` at values of the sites."""
    sites, most = self._sites, None
    if self._sites_per_call is not None:
      most = self._sites_per_call * x.shape[0]
    # The estimates of all sites are added up. Each site contributes its full
    # gradient w.r.t. its atoms, but only 1/S of the gradient w.r.t. the
    # variables of `f`, which all sites have in common.
    x = gradients.scale_gradient(x, self._num_sites)
    known = _evaluate(self._f, sites.points(self._joint, x), most)
    share = 1.0 / self._num_sites
    return Evaluation(
      *(
        sites.last(sites.unflatten(gradients.scale_gradient(y, share)))
        for y in known
      )
    )


def _evaluate(f: Integrand, points: tf.Tensor, most: int | None) -> Evaluation:
  """Evaluates `f` in one call, or in calls of equal size in a loop.

  Args:
    f: Callable of joint atoms.
    points: `Tensor` of shape `[m] + batch_shape + event_shape`.
    most: Python `int`, the largest number of points in a call, or `None`.

  Returns:
    evaluation: The `Evaluation`.
  """
  num_points = points.shape[0]
  if most is None or num_points <= most:
    return evaluate(f, points)
  num_calls = -(-num_points // most)  # rounded up
  # Calls of nearly equal size repeat the fewest points.
  size = -(-num_points // num_calls)
  num_missing = num_calls * size - num_points
  points = tf.concat([points] + [points[-1:]] * num_missing, axis=0)

  # `call_one_by_one` takes a function with a single result.
  def stacked(values: tf.Tensor) -> tf.Tensor:
    return tf.stack(evaluate(f, values), axis=-1)

  result = gradients.call_one_by_one(
    stacked, reshape_first(points, 1, [num_calls, size])
  )
  result = reshape_first(result, 2, [num_calls * size])[:num_points]
  return Evaluation(*tf.unstack(result, axis=-1))
