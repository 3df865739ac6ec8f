"""How the rest is drawn: independently, stratified, or without replacement."""

from tfp_rb.designs.samplers import (
  IID,
  Draws,
  Sampler,
  Stratified,
  WithoutReplacement,
)

__all__ = ['Draws', 'IID', 'Sampler', 'Stratified', 'WithoutReplacement']
