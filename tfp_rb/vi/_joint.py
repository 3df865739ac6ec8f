"""A joint distribution by its parts."""

from collections.abc import Mapping
import functools

import tensorflow as tf
import tensorflow_probability as tfp

__all__ = ['Joint']

tfd = tfp.distributions


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

  def laws(self, known, num_values):
    """The distributions of the parts given the known ones they depend on.

    Args:
      known: Dictionary of values of parts.
      num_values: The size of the first axis of these values, or `None` if they
        have none.

    Returns:
      laws: List of distributions.
    """
    value = self._filled(known, (), num_values)
    try:
      # Nothing is drawn, but without a seed XLA warns that it ignores some.
      laws, _ = self._q.sample_distributions(value=value, seed=(0, 0))
    except tf.errors.InvalidArgumentError as error:
      raise ValueError(
        'The parts of `surrogate_posterior` must accept zeros in place of the '
        'parts that they depend on, while these are not drawn yet, but one '
        f'does not: {error}. Leave out its `validate_args=True`.'
      ) from error
    return tf.nest.flatten(laws)

  def draw(self, indices, known, num_values, seed):
    """Draws parts, given the known ones: a dictionary of their values."""
    if not indices:
      return {}
    value = self._filled(known, indices, num_values)
    _, parts = self._q.sample_distributions(value=value, seed=seed)
    parts = tf.nest.flatten(parts)
    return {i: parts[i] for i in indices}

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
    dtype = max((x.dtype for x in measures), key=lambda dtype: dtype.size)
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
