# SPDX-License-Identifier: Apache-2.0
"""Splits a distribution into its most probable values and the rest."""

# These modules register their families when they are imported.
from tfp_rb.partitions import (  # noqa: F401
  chain,
  counts,
  kinds,
  product,
  table,
  wrappers,
)
from tfp_rb.partitions.base import Partition, SiteGroup
from tfp_rb.partitions.registry import (
  NotRegisteredError,
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
  'SiteGroup',
  'check_discrete',
  'check_num_summed',
  'family_of',
  'partition',
  'partition_of',
]
