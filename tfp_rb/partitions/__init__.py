"""Partitions: the most probable values of a distribution, and its rest."""

# Importing the families registers them.
from tfp_rb.partitions import (  # noqa: F401
  counts,
  kinds,
  product,
  table,
  wrappers,
)
from tfp_rb.partitions.base import (
  NotRegisteredError,
  Partition,
  RegisterPartition,
  Sampled,
  SiteGroup,
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
  'SiteGroup',
  'check_discrete',
  'check_num_summed',
  'family_of',
  'partition',
  'partition_of',
]
