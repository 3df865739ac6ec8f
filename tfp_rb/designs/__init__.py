"""Designs: which atoms get which weights."""

from tfp_rb.designs.atoms import (
  Atoms,
  CheckedIntegrand,
  draw,
  everything,
  is_draw,
  make_atoms,
  whole_of,
)
from tfp_rb.designs.budget import atoms_of_budget
from tfp_rb.designs.samplers import IID, Sampler
from tfp_rb.designs.sites import SiteAtoms, Sites
from tfp_rb.designs.top_k import given, top_k

__all__ = [
  'Atoms',
  'CheckedIntegrand',
  'IID',
  'Sampler',
  'SiteAtoms',
  'Sites',
  'atoms_of_budget',
  'draw',
  'everything',
  'given',
  'is_draw',
  'make_atoms',
  'top_k',
  'whole_of',
]
