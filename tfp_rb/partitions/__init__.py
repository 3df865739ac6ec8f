"""Partitions: the most probable values of a distribution, and its rest."""

# Importing the families registers them.
from tfp_rb.partitions import counts, finite, product, wrappers  # noqa: F401
from tfp_rb.partitions.base import Partition, RegisterPartition, partition

__all__ = ['Partition', 'RegisterPartition', 'partition']
