# SPDX-License-Identifier: Apache-2.0
"""Combines the discrete parts of a joint distribution into one distribution."""

from collections.abc import Callable
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.internal import dtypes, shapes
from tfp_rb.internal.types import Distribution
from tfp_rb.partitions import Partition, partition_of

__all__ = ['DiscreteParts']

tfd = tfp.distributions


class DiscreteParts(Distribution):
  """Combines the discrete parts of a joint distribution into one vector.

  If all parts have the same dtype, this is also the dtype of the vector.
  Otherwise it is `float64`, which holds all values exactly.
  """

  def __init__(
    self,
    laws: list[Distribution],
    depends: list[bool],
    laws_given: Callable[[list[tf.Tensor], Any], list[Distribution]],
    name: str | None = None,
  ) -> None:
    """Makes the distribution.

    Args:
      laws: List of distributions of the parts, all of one batch shape. If a
        part depends on others, only its family and its shapes are used.
      depends: List of Python `bool`s, whether a part depends on previous ones.
      laws_given: Callable that maps `(values, n)` to the distributions of all
        parts. `values` is a list with the values of the first parts, each of
        shape `[n] + batch_shape + event_shape`. A part that depends on these
        has batch shape `[n] + batch_shape`.
      name: Python `str`, name of the distribution.
    """
    parameters = dict(locals())  # TFP needs them for `copy`.
    self._laws = laws
    self._laws_given = laws_given
    self.depends = depends
    self.wholes = [partition_of(law) for law in laws]
    self._static_batch_shape = laws[0].batch_shape.as_list()
    self._event_shapes = [law.event_shape.as_list() for law in laws]
    self._dtypes = [law.dtype for law in laws]
    # Part `i` is the slice `offsets[i]:offsets[i + 1]` of the vector.
    self._offsets = np.cumsum([0, *map(shapes.size, self._event_shapes)])
    super().__init__(
      dtype=self._dtypes[0] if len(set(self._dtypes)) == 1 else tf.float64,
      reparameterization_type=tfd.NOT_REPARAMETERIZED,
      validate_args=False,
      allow_nan_stats=True,
      parameters=parameters,
      name=name or 'DiscreteParts',
    )

  @property
  def num_parts(self) -> int:
    """Number of parts."""
    return len(self._laws)

  @property
  def num_values(self) -> int | None:
    """The size of the support; `None` if unknown or infinite."""
    numbers = [whole.num_values for whole in self.wholes]
    known = [n for n in numbers if n is not None]
    return math.prod(known) if len(known) == len(numbers) else None

  @property
  def dtype_of_masses(self) -> tf.DType:
    """The widest dtype of the masses of the parts."""
    return dtypes.widest([whole.log_rest for whole in self.wholes])

  def part_given(
    self, index: int, values: list[tf.Tensor], num_copies: Any
  ) -> Partition:
    """Returns the whole partition of a part, given the previous parts.

    Args:
      index: Python `int`, the number of the part.
      values: List of values of the previous parts, `[num_copies] + ...`.
      num_copies: The size of their first axis.

    Returns:
      part: A `Partition` with batch shape `[num_copies] + batch_shape`.
    """
    law = self._laws[index]
    if self.depends[index]:
      law = self._laws_given(values, num_copies)[index]
    return self._with_copies(law, num_copies)

  def _with_copies(self, law: Distribution, num_copies: Any) -> Partition:
    # A part that depends on nothing has no axis for the copies yet.
    shape = [num_copies, *self._static_batch_shape]
    if law.batch_shape.rank < len(shape):
      law = tfd.BatchBroadcast(law, to_shape=shape)
    return partition_of(law)

  def pack(self, parts: list[tf.Tensor]) -> tf.Tensor:
    """Packs a list of `[n] + batch_shape + event_shape` into one `Tensor`.

    Args:
      parts: List of `Tensor`s, the values of all parts.

    Returns:
      values: `Tensor` of shape `[n] + batch_shape + [size]`.
    """
    shape = [shapes.leading(parts[0]), *self._static_batch_shape, -1]
    flat = [tf.cast(tf.reshape(x, shape), self.dtype) for x in parts]
    return tf.concat(flat, axis=-1)

  def unpack(self, values: tf.Tensor) -> list[tf.Tensor]:
    """Inverts `pack`."""
    return [
      tf.cast(
        tf.reshape(
          values[..., start:stop],
          [shapes.leading(values), *self._static_batch_shape, *event_shape],
        ),
        dtype,
      )
      for start, stop, event_shape, dtype in zip(
        self._offsets[:-1],
        self._offsets[1:],
        self._event_shapes,
        self._dtypes,
        strict=True,
      )
    ]

  def _batch_shape(self) -> tf.TensorShape:
    return tf.TensorShape(self._static_batch_shape)

  def _batch_shape_tensor(self) -> tf.Tensor:
    return tf.constant(self._static_batch_shape, tf.int32)

  def _event_shape(self) -> tf.TensorShape:
    return tf.TensorShape([self._offsets[-1]])

  def _event_shape_tensor(self) -> tf.Tensor:
    return tf.constant([self._offsets[-1]], tf.int32)

  def _sample_n(self, num_draws: int, seed: Any = None) -> tf.Tensor:
    whole = partition_of(self)
    return whole.draw_rest(num_draws, tfp.random.sanitize_seed(seed))

  def _log_prob(self, values: tf.Tensor) -> tf.Tensor:
    parts, n = self.unpack(values), shapes.leading(values)
    # A single run of the joint distribution gives all dependent parts.
    laws = self._laws_given(parts, n) if any(self.depends) else self._laws
    terms = []
    for index, value in enumerate(parts):
      if self.depends[index]:
        # The axis of the atoms is part of the batch of the distribution.
        part = self._with_copies(laws[index], n)
        term = part.log_prob(value[tf.newaxis])[0]
      else:
        term = self.wholes[index].log_prob(value)
      terms.append(tf.cast(term, self.dtype_of_masses))  # [n] + batch_shape
    return tf.add_n(terms)
