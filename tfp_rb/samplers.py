# SPDX-License-Identifier: Apache-2.0
"""Provides the samplers, which draw from the rest of a partition."""

from tfp_rb.designs.samplers import (
  IID,
  Antithetic,
  Draws,
  Sampler,
  Stratified,
  WithoutReplacement,
)

__all__ = [
  'Antithetic',
  'Draws',
  'IID',
  'Sampler',
  'Stratified',
  'WithoutReplacement',
]
