# SPDX-License-Identifier: Apache-2.0
"""Splits a surrogate posterior into parts, and finds their dependencies."""

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import dtypes, shapes
from tfp_rb.internal.types import Distribution, StatelessSeed
from tfp_rb.partitions import family_of
from tfp_rb.vi._discrete import DiscreteParts

__all__ = ['Joint', 'Split', 'entropy_of', 'is_reparameterized', 'split']

tfd = tfp.distributions


class Split(NamedTuple):
  """Holds a surrogate posterior whose early continuous parts have been drawn.

  Attributes:
    discrete: The distribution of all discrete parts, given the drawn parts.
    complete: Callable `(values, seed)` that takes values of `discrete` of shape
      `[n] + batch_shape + event_shape`. It returns a sample of all parts, in
      the structure of the surrogate, and a list of the log-densities of the
      continuous parts, which broadcast to `[n] + batch_shape`.
    entropy: Callable without arguments that returns the entropy of all parts.
  """

  discrete: Distribution
  complete: Callable[[tf.Tensor, StatelessSeed], tuple[Any, list[tf.Tensor]]]
  entropy: Callable[[], tf.Tensor]


def is_reparameterized(surrogate: Distribution) -> bool:
  """Returns whether all parts are continuous and reparameterizable."""
  kinds = tf.nest.flatten(surrogate.reparameterization_type)
  return all(kind == tfd.FULLY_REPARAMETERIZED for kind in kinds)


def split(
  surrogate: Distribution,
  seed: StatelessSeed,
  stopped_surrogate: Distribution | None = None,
) -> Split:
  """Draws the continuous parts that do not depend on a discrete one.

  This runs the surrogate once, and `complete` runs it once more if continuous
  parts depend on discrete ones. (Discrete parts that depend on each other are
  found one after the other, which needs further runs; see `DiscreteParts`.)

  Args:
    surrogate: The surrogate posterior, a `tfd.Distribution`.
    seed: Stateless seed, `int32[2]`.
    stopped_surrogate: A copy with stopped parameters that computes the
      log-density of the continuous parts, or `None`.

  Returns:
    split: A `Split`.
  """
  if not isinstance(surrogate, tfd.JointDistribution):
    return Split(
      surrogate, lambda values, seed: (values, []), surrogate.entropy
    )
  joint = Joint(surrogate)
  laws, drawn = joint.run({}, joint.early, None, seed)
  early = {i: drawn[i] for i in joint.early}
  stopped = None if stopped_surrogate is None else Joint(stopped_surrogate)
  discrete = _discrete_of(joint, laws, early)

  def log_prob_of(
    indices: list[int],
    laws: list[Distribution],
    known: dict[int, tf.Tensor],
    num_values: Any,
  ) -> tf.Tensor:
    if stopped is not None:
      laws, _ = stopped.run(known, [], num_values, seed)
    log_probs = [laws[i].log_prob(known[i]) for i in indices]
    return joint.total(log_probs, num_values)

  def complete(
    values: tf.Tensor, seed: StatelessSeed
  ) -> tuple[Any, list[tf.Tensor]]:
    n = shapes.leading(values)
    known = {i: joint.repeat(x, i, n) for i, x in early.items()}
    known.update(zip(joint.discrete, _unpack(discrete, values), strict=True))
    log_probs = []
    if joint.early:  # All values share these parts, so one density is enough.
      log_probs.append(log_prob_of(joint.early, laws, early, None))
    if joint.late:
      late_laws, drawn = joint.run(known, joint.late, n, seed)
      known.update((i, joint.repeat(drawn[i], i, n)) for i in joint.late)
      log_probs.append(log_prob_of(joint.late, late_laws, known, n))
    return joint.pack([known[i] for i in range(joint.num_parts)]), log_probs

  return Split(discrete, complete, lambda: _entropy_of(joint, laws))


def _unpack(discrete: Distribution, values: tf.Tensor) -> list[tf.Tensor]:
  """Returns the values of the discrete parts."""
  # A single discrete part is not wrapped in `DiscreteParts`.
  unpack = getattr(discrete, 'unpack', None)
  return [values] if unpack is None else unpack(values)


def _discrete_of(
  joint: 'Joint', laws: list[Distribution], early: dict[int, tf.Tensor]
) -> Distribution:
  """Returns the distribution of all discrete parts, given the early ones."""
  alone = [joint.with_batch_of_whole(laws[i], 0) for i in joint.discrete]
  for i, law in zip(joint.discrete, alone, strict=True):
    family = family_of(law)
    if family is None or family.whole is None:
      raise NotImplementedError(
        f'Part `{joint.names[i]}` of `surrogate_posterior` must be discrete '
        'with a partition, or fully reparameterizable; got a '
        f'`{type(laws[i]).__name__}`. Register a partition with '
        '`@tfp_rb.RegisterPartition`, or use another distribution.'
      )
    if law.batch_shape != joint.batch_shape:
      raise ValueError(
        'The discrete parts of `surrogate_posterior` must have its full batch '
        f'shape, {joint.batch_shape}; got {law.batch_shape} for part '
        f'`{joint.names[i]}`. Broadcast it with `tfd.BatchBroadcast`, or make '
        'the batch of the other parts an event with `tfd.Independent`.'
      )
  if len(alone) == 1:
    return alone[0]

  def laws_given(values: list[tf.Tensor], n: Any) -> list[Distribution]:
    """Returns all discrete parts, given the values of the first ones."""
    known = {i: joint.repeat(x, i, n) for i, x in early.items()}
    known.update(zip(joint.discrete, values, strict=False))
    # Nothing is drawn, but without a seed XLA warns about stateful seeds.
    laws, _ = joint.run(known, [], n, seed=(0, 0))
    return [joint.with_batch_of_whole(laws[i], 1) for i in joint.discrete]

  return DiscreteParts(
    alone,
    [joint.depends(i, on=joint.discrete) for i in joint.discrete],
    laws_given,
  )


def _entropy_of(joint: 'Joint', laws: list[Distribution]) -> tf.Tensor:
  """Returns the entropy of all parts, if none depends on a discrete one."""
  # The result is the sum of the entropies, given the drawn early parts. The
  # entropy of a part that depends on a discrete one would need a mean over it.
  entropies = []
  for i, (law, name) in enumerate(zip(laws, joint.names, strict=True)):
    if joint.depends(i, on=joint.discrete):
      raise NotImplementedError(
        '`exact_entropy` must be False if a part of `surrogate_posterior` '
        f'depends on a discrete one; got True, and `{name}` may depend on one. '
        'Use `exact_entropy=False`.'
      )
    entropies.append(entropy_of(law, name))
  return joint.total(entropies, None)


def entropy_of(law: Distribution, name: str) -> tf.Tensor:
  """Returns the entropy of a part, or raises if it has none."""
  try:
    return law.entropy()
  except NotImplementedError as error:
    raise NotImplementedError(
      '`exact_entropy` must be False if a part has no `entropy`; got True, and '
      f'`{name}` is a `{type(law).__name__}`. Use `exact_entropy=False`.'
    ) from error


class Joint:
  """Wraps a joint distribution, with parts numbered in the order of `tf.nest`.

  Attributes:
    batch_shape: `tf.TensorShape` to which the batch shapes of the parts
      broadcast.
    batch_sizes: List, the same shape as Python `int`s, with a scalar `Tensor`
      for each size that is not known statically.
    names: List of `str`.
    discrete: List of `int`s, in the order of their dependence.
    early: List of `int`s, continuous parts that depend on no discrete one.
    late: List of `int`s, the other continuous parts.
    num_parts: Python `int`.
  """

  def __init__(self, q: Distribution) -> None:
    self._q = q
    _check_flat(q)
    self._dtypes = tf.nest.flatten(q.dtype)
    self.num_parts = len(self._dtypes)
    # Auto-batched classes have one batch shape, others one for each part.
    self._is_auto_batched = isinstance(q.batch_shape, tf.TensorShape)
    batch_shapes = tf.nest.flatten(q.batch_shape)
    if self._is_auto_batched:
      batch_shapes *= self.num_parts
    self.batch_shape = functools.reduce(
      tf.broadcast_static_shape, batch_shapes, tf.TensorShape([])
    )
    self._read_shapes(batch_shapes)
    self._read_graph()
    kinds = tf.nest.flatten(q.reparameterization_type)
    self.discrete = [
      i for i in self._order if kinds[i] != tfd.FULLY_REPARAMETERIZED
    ]
    continuous = [i for i in self._order if i not in self.discrete]
    self.late = [i for i in continuous if self.depends(i, on=self.discrete)]
    self.early = [i for i in continuous if i not in self.late]
    self._check_order()

  def _read_shapes(self, batch_shapes: list[tf.TensorShape]) -> None:
    """Reads the shapes of the parts, in which some sizes may be dynamic."""
    q, event_shapes = self._q, tf.nest.flatten(self._q.event_shape)
    batches = [shape.as_list() for shape in batch_shapes]
    events = [shape.as_list() for shape in event_shapes]
    if any(None in sizes for sizes in batches + events):
      found = tf.nest.flatten(q.batch_shape_tensor())
      if self._is_auto_batched:
        found *= self.num_parts
      batches = [shapes.filled(*x) for x in zip(batch_shapes, found)]
      found = tf.nest.flatten(q.event_shape_tensor())
      events = [shapes.filled(*x) for x in zip(event_shapes, found)]
    self._shapes = [b + e for b, e in zip(batches, events, strict=True)]
    self.batch_sizes: list[Any] = functools.reduce(
      shapes.broadcast, batches, []
    )

  def _check_order(self) -> None:
    """Raises if a discrete part depends on a late continuous one."""
    # The discrete parts must have a joint distribution before the late parts
    # are drawn.
    for i in self.discrete:
      for j in self.late:
        if self.depends(i, on=[j]):
          raise ValueError(
            'The discrete parts of `surrogate_posterior` must not depend on a '
            'continuous part that depends on a discrete one; got '
            f'`{self.names[i]}` after `{self.names[j]}`, which comes after a '
            'discrete part. Put the continuous parts before or after all '
            'discrete ones. (A part of a list or a dictionary that is not a '
            'callable depends on nothing and may come anywhere. In a coroutine '
            'a part counts as depending on all previous ones.)'
          )

  def _read_graph(self) -> None:
    """Reads the names, the order and the parents of the parts."""
    structure, model = self._q.dtype, self._q.model
    numbers = range(self.num_parts)
    if isinstance(structure, Mapping):
      self.names = sorted(structure)  # the order of `tf.nest`
    else:
      unnamed = [f'var{i}' for i in numbers]
      self.names = list(getattr(structure, '_fields', unnamed))
    self._order = list(numbers)
    if callable(model):  # A coroutine reveals only the order of its parts.
      self._parents = [list(range(i)) for i in numbers]
      return
    graph = self._q.resolve_graph()
    if isinstance(model, Mapping) or hasattr(model, '_fields'):
      number = {name: i for i, name in enumerate(self.names)}
      self._order = [number[name] for name, _ in graph]
      parents = {number[name]: [number[p] for p in ps] for name, ps in graph}
      self._parents = [parents[i] for i in numbers]
    else:  # A callable in a list takes the previous parts, the last one first.
      self._parents = [
        list(range(i - len(ps), i)) for i, (_, ps) in enumerate(graph)
      ]

  def depends(self, index: int, on: list[int]) -> bool:
    """Returns whether a part may depend on one of the parts `on`."""
    return any(
      parent in on or self.depends(parent, on)
      for parent in self._parents[index]
    )

  def pack(self, parts: list[Any]) -> Any:
    """Returns a list of parts in the structure of the distribution."""
    return tf.nest.pack_sequence_as(self._q.dtype, parts)

  def repeat(self, value: tf.Tensor, index: int, num_values: Any) -> tf.Tensor:
    """Adds a first axis of size `num_values` to a part that has none yet."""
    shape = self._shapes[index]
    if value.shape.rank > len(shape):
      return value
    return tf.broadcast_to(value, [num_values, *shape])

  def _filled(
    self, known: dict[int, tf.Tensor], drawn: list[int], num_values: Any
  ) -> Any:
    """Returns values of all parts: `None` if to be drawn, 0 if not needed."""
    lead = [] if num_values is None else [num_values]

    def value_of(i: int) -> tf.Tensor | None:
      if i in known:
        return known[i]
      if i in drawn:
        return None
      # For `None`, TFP would draw the part, but it cannot draw every family
      # under XLA.
      return tf.zeros([*lead, *self._shapes[i]], self._dtypes[i])

    return self.pack([value_of(i) for i in range(self.num_parts)])

  def run(
    self,
    known: dict[int, tf.Tensor],
    drawn: list[int],
    num_values: Any,
    seed: StatelessSeed,
  ) -> tuple[list[Distribution], list[tf.Tensor]]:
    """Runs the joint distribution once.

    Args:
      known: Dictionary from the numbers of parts to their values.
      drawn: List of numbers of parts that are drawn.
      num_values: The size of the first axis of the values, or `None` if they
        have none.
      seed: Stateless seed, `int32[2]`.

    Returns:
      laws: List of the distributions of all parts, given those that they depend
        on. A part that is neither known nor drawn counts as 0.
      values: List of values of the parts.
    """
    value = self._filled(known, drawn, num_values)
    try:
      laws, values = self._q.sample_distributions(value=value, seed=seed)
    except tf.errors.InvalidArgumentError as error:
      raise ValueError(
        'The parts of `surrogate_posterior` must accept zeros in place of '
        f'parts that are not drawn yet; got the error: {error}. Leave out the '
        '`validate_args=True` of the part that raised it.'
      ) from error
    return tf.nest.flatten(laws), tf.nest.flatten(values)

  def with_batch_of_whole(
    self, law: Distribution, num_leading: int
  ) -> Distribution:
    """Returns a part with the batch shape of the joint distribution.

    Args:
      law: The distribution of the part.
      num_leading: Python `int`, the number of axes before the batch.

    Returns:
      law: The distribution. In an auto-batched model the further batch
        dimensions of a part belong to its event.
    """
    extra = law.batch_shape.rank - num_leading - self.batch_shape.rank
    if self._is_auto_batched and extra > 0:
      return tfd.Independent(law, extra)
    return law

  def total(self, measures: list[tf.Tensor], num_values: Any) -> tf.Tensor:
    """Adds log-densities or entropies of parts, summed over the event.

    Args:
      measures: List of `Tensor`s, one for each part.
      num_values: As in `run`.

    Returns:
      total: `Tensor` that broadcasts to `[num_values] + batch_shape`, in the
        widest of the dtypes.
    """
    dtype = dtypes.widest(measures)
    lead = [] if num_values is None else [num_values]
    rank = len(lead) + self.batch_shape.rank
    total = tf.zeros([], dtype)
    for measure in measures:
      if self._is_auto_batched:
        axes = range(rank, measure.shape.rank)
        measure = tf.reduce_sum(measure, axis=axes)
      else:
        # Batches broadcast from the right, but the first axis stays in front.
        shape = shapes.as_list(measure)[len(lead) :]
        ones = [1] * (self.batch_shape.rank - len(shape))
        measure = tf.reshape(measure, [*lead, *ones, *shape])
      total += tf.cast(measure, dtype)
    return total


def _check_flat(q: Distribution) -> None:
  """Raises if a part is a joint distribution itself."""
  model = q.model
  is_coroutine = callable(model)
  parts = q.dtype if is_coroutine else model
  kinds = q.dtype.values() if isinstance(q.dtype, Mapping) else q.dtype
  # A nested part has several dtypes.
  if len(parts) != len(tf.nest.flatten(q.dtype)) or any(
    tf.nest.is_nested(kind) for kind in kinds
  ):
    raise NotImplementedError(
      'The parts of `surrogate_posterior` must be single distributions; got a '
      f'part that is a joint distribution, with dtypes {q.dtype}. Make its '
      'parts direct parts of `surrogate_posterior`.'
    )
