"""A surrogate posterior as its discrete and its continuous parts."""

from collections.abc import Callable
from typing import NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import shapes
from tfp_rb.partitions import family_of
from tfp_rb.vi._joint import Joint
from tfp_rb.vi._parts import DiscreteParts

__all__ = ['Split', 'is_reparameterized', 'split']

tfd = tfp.distributions


class Split(NamedTuple):
  """A surrogate posterior whose early continuous parts have been drawn.

  Attributes:
    discrete: The distribution of all discrete parts, given what was drawn.
    independent: List of the distributions of the discrete parts, if these do
      not depend on each other; else empty.
    complete: Callable `(values, seed)` of values of `discrete`, of shape
      `[n] + batch_shape + event_shape`: returns a sample of the surrogate,
      structured like it, with the continuous parts put beside the values, and
      a list of log-densities of these, broadcasting to `[n] + batch_shape`.
    entropy: Callable, without arguments, to the entropy of all parts.
  """

  discrete: tfd.Distribution
  independent: list
  complete: Callable
  entropy: Callable


def is_reparameterized(surrogate):
  """Whether all parts are continuous and reparameterizable."""
  kinds = tf.nest.flatten(surrogate.reparameterization_type)
  return all(kind == tfd.FULLY_REPARAMETERIZED for kind in kinds)


def split(surrogate, seed, stopped_surrogate=None):
  """Draws the continuous parts that do not depend on a discrete one.

  Args:
    surrogate: The surrogate posterior, a `tfd.Distribution`.
    seed: Stateless seed, `int32[2]`.
    stopped_surrogate: The same with stopped parameters, or `None`: by which the
      log-density of the continuous parts is computed.

  Returns:
    split: A `Split`.
  """
  if not isinstance(surrogate, tfd.JointDistribution):
    return Split(
      surrogate,
      [surrogate],
      lambda values, seed: (values, []),
      surrogate.entropy,
    )
  joint = Joint(surrogate)
  stopped = joint if stopped_surrogate is None else Joint(stopped_surrogate)
  early = joint.draw(joint.early, {}, None, seed)
  alone = _discrete_laws(joint, early)
  discrete = _discrete(joint, early, alone)
  is_independent = not any(
    joint.depends(i, on=joint.discrete) for i in joint.discrete
  )

  def log_prob_of(indices, known, n):
    laws = stopped.laws(known, n)
    return joint.total([laws[i].log_prob(known[i]) for i in indices], n)

  def complete(values, seed):
    n = shapes.leading(values)
    parts = discrete.unpack(values) if len(joint.discrete) > 1 else [values]
    known = {i: joint.repeat(x, i, n) for i, x in early.items()}
    known.update(zip(joint.discrete, parts, strict=True))
    late = joint.draw(joint.late, known, n, seed)
    known.update((i, joint.repeat(x, i, n)) for i, x in late.items())
    sample = joint.pack([known[i] for i in range(joint.num_parts)])
    log_probs = []
    if early:  # once for all values
      log_probs.append(log_prob_of(joint.early, early, None))
    if late:
      log_probs.append(log_prob_of(joint.late, known, n))
    return sample, log_probs

  def entropy():
    for i in range(joint.num_parts):
      if joint.depends(i, on=joint.discrete):
        raise NotImplementedError(
          '`exact_entropy=True` needs a `surrogate_posterior` of which no part '
          f'depends on a discrete one, but `{joint.names[i]}` may. Use '
          '`exact_entropy=False`.'
        )
    entropies = []
    for law, name in zip(joint.laws(early, None), joint.names, strict=True):
      try:
        entropies.append(law.entropy())
      except NotImplementedError as error:
        raise NotImplementedError(
          f'`exact_entropy=True` needs an entropy of every part, but `{name}`, '
          f'a `{type(law).__name__}`, has none. Use `exact_entropy=False`.'
        ) from error
    return joint.total(entropies, None)

  return Split(discrete, alone if is_independent else [], complete, entropy)


def _discrete_laws(joint, early):
  """The distributions of the discrete parts, given the early ones."""
  laws = joint.laws(early, None)
  alone = [joint.with_batch_of_whole(laws[i], 0) for i in joint.discrete]
  for i, law in zip(joint.discrete, alone, strict=True):
    if family_of(law) is None:
      raise NotImplementedError(
        f'Part `{joint.names[i]}` of `surrogate_posterior` must be discrete '
        'with a partition, or fully reparameterizable, but is a '
        f'`{type(laws[i]).__name__}`. Register a partition by '
        '`@tfp_rb.RegisterPartition`, or use another distribution.'
      )
    if law.batch_shape != joint.batch_shape:
      raise ValueError(
        'The discrete parts of `surrogate_posterior` must have the batch shape '
        f'of the whole, {joint.batch_shape}, but part `{joint.names[i]}` has '
        f'{law.batch_shape}. Broadcast it by `tfd.BatchBroadcast`, or make the '
        'batch of the others an event by `tfd.Independent`.'
      )
  return alone


def _discrete(joint, early, alone):
  """The distribution of all discrete parts, given the early ones."""
  if len(alone) == 1:
    return alone[0]

  def conditional(number, values):
    i, before = joint.discrete[number], joint.discrete[:number]
    if not joint.depends(i, on=before):
      return alone[number]
    n = shapes.leading(values[0])
    known = {i: joint.repeat(x, i, n) for i, x in early.items()}
    known.update(zip(before, values, strict=True))
    return joint.with_batch_of_whole(joint.laws(known, n)[i], 1)

  return DiscreteParts(
    conditional,
    batch_shape=joint.batch_shape.as_list(),
    event_shapes=[law.event_shape.as_list() for law in alone],
    dtypes=[law.dtype for law in alone],
  )
