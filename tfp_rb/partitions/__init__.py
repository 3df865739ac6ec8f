"""Partitions: the most probable values of a distribution, and its rest."""

# Importing the families registers them.
from tfp_rb.partitions import counts, product, table, wrappers  # noqa: F401
from tfp_rb.partitions.base import (
  NotRegisteredError,
  Partition,
  RegisterPartition,
  Sampled,
  check_discrete,
  check_num_summed,
  family_of,
  partition,
  partition_of,
)

__all__ = [
  'NotRegisteredError',
  'Partition',
  'RegisterPartition',
  'Sampled',
  'check_discrete',
  'check_num_summed',
  'family_of',
  'partition',
  'partition_of',
]
