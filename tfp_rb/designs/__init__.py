# SPDX-License-Identifier: Apache-2.0
"""Defines the designs, which choose atoms and their weights."""

from tfp_rb.designs.atoms import (
  Atoms,
  Pool,
  Whole,
  draw,
  everything,
  is_draw,
  make_atoms,
  whole_of,
)
from tfp_rb.designs.budget import atoms_of_budget
from tfp_rb.designs.integrand import (
  CheckedIntegrand,
  Evaluation,
  evaluate,
  needs_rows,
  pool_scope,
  serve_rows,
)
from tfp_rb.designs.pooled import (
  PooledIntegrand,
  include,
  most_candidates,
  offer,
  outcomes,
  sum_by_row,
)
from tfp_rb.designs.samplers import IID, Antithetic, Sampler, check_sampler
from tfp_rb.designs.site_integrand import SiteIntegrand, known_integrands
from tfp_rb.designs.sites import (
  JointFirst,
  SiteAtoms,
  Sites,
  every_site_atom,
  shared_atoms,
)
from tfp_rb.designs.top_k import given, top_k

__all__ = [
  'Antithetic',
  'Atoms',
  'CheckedIntegrand',
  'Evaluation',
  'IID',
  'JointFirst',
  'Pool',
  'PooledIntegrand',
  'Sampler',
  'SiteAtoms',
  'SiteIntegrand',
  'Sites',
  'Whole',
  'atoms_of_budget',
  'check_sampler',
  'draw',
  'evaluate',
  'every_site_atom',
  'everything',
  'given',
  'include',
  'is_draw',
  'known_integrands',
  'make_atoms',
  'most_candidates',
  'needs_rows',
  'offer',
  'outcomes',
  'pool_scope',
  'serve_rows',
  'shared_atoms',
  'sum_by_row',
  'top_k',
  'whole_of',
]
