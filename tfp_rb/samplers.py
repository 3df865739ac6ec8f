# SPDX-License-Identifier: Apache-2.0
"""Draws from the rest: independently, dependently, or without replacement."""

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
