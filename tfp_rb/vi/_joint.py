"""A surrogate posterior by its parts, and how they depend on each other."""

from collections.abc import Callable, Mapping
import functools
from typing import NamedTuple

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import dtypes, shapes
from tfp_rb.partitions import family_of
from tfp_rb.vi._discrete import DiscreteParts

__all__ = ['Split', 'is_reparameterized', 'split']

tfd = tfp.distributions


class Split(NamedTuple):
  """A surrogate posterior whose early continuous parts have been drawn.

  Attributes:
    discrete: The distribution of all discrete parts, given what was drawn.
    complete: Callable `(values, seed)` of values of `discrete`, of shape
      `[n] + batch_shape + event_shape`: returns a sample of the surrogate,
      structured like it, that also has the continuous parts, and a list of
      log-densities of these, broadcasting to `[n] + batch_shape`.
    entropy: Callable, without arguments, to the entropy of all parts.
  """

  discrete: tfd.Distribution
  complete: Callable
  entropy: Callable


def is_reparameterized(surrogate):
  """Whether all parts are continuous and reparameterizable."""
  kinds = tf.nest.flatten(surrogate.reparameterization_type)
  return all(kind == tfd.FULLY_REPARAMETERIZED for kind in kinds)


def split(surrogate, seed, stopped_surrogate=None):
  """Draws the continuous parts that do not depend on a discrete one.

  The surrogate is run once here, and once more by `complete` if continuous
  parts depend on discrete ones. (Discrete parts that depend on each other are
  found one after the other, which takes further runs: see `DiscreteParts`.)

  Args:
    surrogate: The surrogate posterior, a `tfd.Distribution`.
    seed: Stateless seed, `int32[2]`.
    stopped_surrogate: The same with stopped parameters, or `None`: by which the
      log-density of the continuous parts is computed.

  Returns:
    split: A `Split`.
  """
  if not isinstance(surrogate, tfd.JointDistribution):
    complete = lambda values, seed: (values, [])
    return Split(surrogate, complete, surrogate.entropy)
  joint = Joint(surrogate)
  laws, values = joint.run({}, joint.early, None, seed)
  early = {i: values[i] for i in joint.early}
  stopped = None if stopped_surrogate is None else Joint(stopped_surrogate)
  discrete = _discrete_of(joint, laws, early)

  def log_prob_of(indices, laws, known, num_values):
    if stopped is not None:
      laws, _ = stopped.run(known, [], num_values, seed)
    log_probs = [laws[i].log_prob(known[i]) for i in indices]
    return joint.total(log_probs, num_values)

  def complete(values, seed):
    n = shapes.leading(values)
    known = {i: joint.repeat(x, i, n) for i, x in early.items()}
    known.update(zip(joint.discrete, _unpack(discrete, values), strict=True))
    log_probs = []
    if joint.early:  # once for all values
      log_probs.append(log_prob_of(joint.early, laws, early, None))
    if joint.late:
      late_laws, drawn = joint.run(known, joint.late, n, seed)
      known.update((i, joint.repeat(drawn[i], i, n)) for i in joint.late)
      log_probs.append(log_prob_of(joint.late, late_laws, known, n))
    return joint.pack([known[i] for i in range(joint.num_parts)]), log_probs

  return Split(discrete, complete, lambda: _entropy_of(joint, laws))


def _unpack(discrete, values):
  """Values of the discrete parts, of which one stands for itself."""
  unpack = getattr(discrete, 'unpack', None)
  return [values] if unpack is None else unpack(values)


def _discrete_of(joint, laws, early):
  """The distribution of all discrete parts, given the early ones."""
  alone = [joint.with_batch_of_whole(laws[i], 0) for i in joint.discrete]
  for i, law in zip(joint.discrete, alone, strict=True):
    family = family_of(law)
    if family is None or family.whole is None:
      raise NotImplementedError(
        f'Part `{joint.names[i]}` of `surrogate_posterior` must be discrete '
        'with a partition, or fully reparameterizable; got a '
        f'`{type(laws[i]).__name__}`. Register a partition by '
        '`@tfp_rb.RegisterPartition`, or use another distribution.'
      )
    if law.batch_shape != joint.batch_shape:
      raise ValueError(
        'The discrete parts of `surrogate_posterior` must have the batch shape '
        f'of the whole, {joint.batch_shape}; part `{joint.names[i]}` has '
        f'{law.batch_shape}. Broadcast it by `tfd.BatchBroadcast`, or make the '
        'batch of the others an event by `tfd.Independent`.'
      )
  if len(alone) == 1:
    return alone[0]

  def laws_given(values, n):
    """The distributions of all discrete parts, given values of the first."""
    known = {i: joint.repeat(x, i, n) for i, x in early.items()}
    known.update(zip(joint.discrete, values, strict=False))
    # Nothing is drawn, but without a seed XLA warns that it ignores some.
    laws, _ = joint.run(known, [], n, seed=(0, 0))
    return [joint.with_batch_of_whole(laws[i], 1) for i in joint.discrete]

  return DiscreteParts(
    alone,
    [joint.depends(i, on=joint.discrete) for i in joint.discrete],
    laws_given,
  )


def _entropy_of(joint, laws):
  """The entropy of all parts, if none depends on a discrete one."""
  entropies = []
  for i, (law, name) in enumerate(zip(laws, joint.names, strict=True)):
    if joint.depends(i, on=joint.discrete):
      raise NotImplementedError(
        '`exact_entropy=True` needs a `surrogate_posterior` of which no part '
        f'depends on a discrete one, but `{name}` may. Use '
        '`exact_entropy=False`.'
      )
    try:
      entropies.append(law.entropy())
    except NotImplementedError as error:
      raise NotImplementedError(
        f'`exact_entropy=True` needs the entropy of every part, but `{name}`, '
        f'a `{type(law).__name__}`, has none. Use `exact_entropy=False`.'
      ) from error
  return joint.total(entropies, None)


class Joint:
  """A joint distribution by the numbers of its parts, as `tf.nest` has them.

  Attributes:
    batch_shape: `tf.TensorShape` to which those of the parts broadcast.
    names: List of `str`.
    discrete: List of `int`s, in the order of their dependence.
    early: List of `int`s, continuous parts that depend on no discrete one.
    late: List of `int`s, the other continuous parts.
    num_parts: Python `int`.
  """

  def __init__(self, q):
    self._q = q
    _check_flat(q)
    self._dtypes = tf.nest.flatten(q.dtype)
    self.num_parts = len(self._dtypes)
    # The auto-batched kinds have one batch shape, the others one for each part.
    self._is_auto_batched = isinstance(q.batch_shape, tf.TensorShape)
    batch_shapes = tf.nest.flatten(q.batch_shape)
    if self._is_auto_batched:
      batch_shapes *= self.num_parts
    self._shapes = [
      batch_shape + event_shape
      for batch_shape, event_shape in zip(
        batch_shapes, tf.nest.flatten(q.event_shape), strict=True
      )
    ]
    self.batch_shape = functools.reduce(
      tf.broadcast_static_shape, batch_shapes, tf.TensorShape([])
    )
    self._read_graph()
    kinds = tf.nest.flatten(q.reparameterization_type)
    self.discrete = [
      i for i in self._order if kinds[i] != tfd.FULLY_REPARAMETERIZED
    ]
    continuous = [i for i in self._order if i not in self.discrete]
    self.late = [i for i in continuous if self.depends(i, on=self.discrete)]
    self.early = [i for i in continuous if i not in self.late]
    for i in self.discrete:
      for j in self.late:
        if self.depends(i, on=[j]):
          raise ValueError(
            'The discrete parts of `surrogate_posterior` must not depend on a '
            'continuous part that depends on a discrete one, but '
            f'`{self.names[i]}` comes after `{self.names[j]}`, which comes '
            'after a discrete part. Put the continuous parts before or after '
            'all discrete ones. (Parts of a list or a dictionary that are no '
            'callables depend on nothing, and may stand anywhere; in a '
            'coroutine a part counts as depending on all before it.)'
          )

  def _read_graph(self):
    """Names, order and parents of the parts."""
    structure, model = self._q.dtype, self._q.model
    numbers = range(self.num_parts)
    if isinstance(structure, Mapping):
      self.names = sorted(structure)
    else:
      unnamed = [f'var{i}' for i in numbers]
      self.names = list(getattr(structure, '_fields', unnamed))
    self._order = list(numbers)
    if callable(model):  # a coroutine: all that can be known is the order
      self._parents = [list(range(i)) for i in numbers]
      return
    graph = self._q.resolve_graph()
    if isinstance(model, Mapping) or hasattr(model, '_fields'):
      number = {name: i for i, name in enumerate(self.names)}
      self._order = [number[name] for name, _ in graph]
      parents = {number[name]: [number[p] for p in ps] for name, ps in graph}
      self._parents = [parents[i] for i in numbers]
    else:  # a callable of a list takes the parts before it, the last one first
      self._parents = [
        list(range(i - len(ps), i)) for i, (_, ps) in enumerate(graph)
      ]

  def depends(self, index, on):
    """Whether a part may depend on one of the parts `on`."""
    return any(
      parent in on or self.depends(parent, on)
      for parent in self._parents[index]
    )

  def pack(self, parts):
    """A sample, structured like the distribution, of a list of its parts."""
    return tf.nest.pack_sequence_as(self._q.dtype, parts)

  def repeat(self, value, index, num_values):
    """The value of a part with a first axis, if it has none yet."""
    shape = self._shapes[index]
    if value.shape.rank > shape.rank:
      return value
    return tf.broadcast_to(value, [num_values, *shape])

  def _filled(self, known, drawn, num_values):
    """Values for all parts; what is neither known nor drawn plays no part."""
    lead = [] if num_values is None else [num_values]
    return self.pack([
      known[i] if i in known
      else None if i in drawn
      # Not left to be drawn, since not every family can be drawn under XLA.
      else tf.zeros([*lead, *self._shapes[i]], self._dtypes[i])
      for i in range(self.num_parts)
    ])  # fmt: skip

  def run(self, known, drawn, num_values, seed):
    """Runs the joint distribution once.

    Args:
      known: Dictionary, numbers of parts to their values.
      drawn: List of numbers of parts that are drawn.
      num_values: The size of the first axis of the values, or `None` if they
        have none.
      seed: Stateless seed, `int32[2]`.

    Returns:
      laws: List of distributions, of each part given those that it depends on.
        A part that is neither known nor drawn counts as 0.
      values: List of values of the parts.
    """
    value = self._filled(known, drawn, num_values)
    try:
      laws, values = self._q.sample_distributions(value=value, seed=seed)
    except tf.errors.InvalidArgumentError as error:
      raise ValueError(
        'The parts of `surrogate_posterior` must accept zeros in place of the '
        'parts that they depend on, while these are not drawn yet, but one '
        f'does not: {error}. Leave out its `validate_args=True`.'
      ) from error
    return tf.nest.flatten(laws), tf.nest.flatten(values)

  def with_batch_of_whole(self, law, num_leading):
    """A part's distribution, what the whole has as an event made its event."""
    extra = law.batch_shape.rank - num_leading - self.batch_shape.rank
    if self._is_auto_batched and extra > 0:
      return tfd.Independent(law, extra)
    return law

  def total(self, measures, num_values):
    """Sums log-densities or entropies of parts over what is not the batch.

    Args:
      measures: List of `Tensor`s, of parts.
      num_values: As in `laws`.

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
      else:  # aligned at the right, as batches are, but for the first axis
        shape = measure.shape[len(lead) :]
        ones = [1] * (self.batch_shape.rank - shape.rank)
        measure = tf.reshape(measure, [*lead, *ones, *shape])
      total += tf.cast(measure, dtype)
    return total


def _check_flat(q):
  """Raises if a part is a joint distribution itself."""
  model = q.model
  is_coroutine = callable(model)
  parts = q.dtype if is_coroutine else model
  kinds = q.dtype.values() if isinstance(q.dtype, Mapping) else q.dtype
  if len(parts) != len(tf.nest.flatten(q.dtype)) or any(
    tf.nest.is_nested(kind) for kind in kinds
  ):
    raise NotImplementedError(
      'The parts of `surrogate_posterior` must be single distributions, but '
      f'one is a joint distribution itself: {q.dtype}. Make its parts parts of '
      'the whole.'
    )
