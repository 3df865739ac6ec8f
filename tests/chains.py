# SPDX-License-Identifier: Apache-2.0
"""Chains for tests, with tables of their paths computed by brute force."""

import functools

import numpy as np

import reference

_random = np.random.default_rng(0)


def _chain(num_states, num_steps, scale=1.0):
  """Returns the logits of a batch of two chains."""
  return (
    scale * _random.normal(size=[2, num_states]),
    scale * _random.normal(size=[2, num_steps - 1, num_states, num_states]),
  )


def _forbidden():
  initial, transitions = _chain(3, 4)
  initial[0, 1] = -np.inf
  transitions[:, 0, 0, 2] = -np.inf
  transitions[:, 1, :, 1] = -np.inf  # A state that no path enters.
  transitions[1, 2, 0, 1:] = -np.inf  # A certain transition.
  return initial, transitions


def _with_end():
  """Returns logits of a state that no path enters and no transition leaves."""
  initial, transitions = _chain(3, 4)
  transitions[:, 0, :, 1] = -np.inf
  transitions[:, 1, 1] = -np.inf
  return initial, transitions


def _certain():
  """Returns the logits of chains that have a single possible path."""
  only = np.full([3, 3, 3], -np.inf)
  for t, (i, j) in enumerate([(1, 0), (0, 2), (2, 2)]):
    only[t, :, :] = np.where(np.eye(3, dtype=bool), 0.0, -np.inf)
    only[t, i] = np.where(np.arange(3) == j, 0.5, -np.inf)
  initial = np.array([[-np.inf, 2.0, -np.inf]] * 2)
  return initial, np.stack([only, only])


# Each entry holds `initial_logits` and `transition_logits` of a batch of two
# chains.
CHAINS = {
  'random': _chain(3, 4),
  'four states': _chain(4, 3),
  'long': _chain(2, 6),
  'concentrated': _chain(3, 5, scale=8.0),
  'uniform': (np.zeros([2, 3]), np.zeros([2, 4, 3, 3])),
  'forbidden': _forbidden(),
  'dead end': _with_end(),
  'certain': _certain(),
  'one step': _chain(4, 1),
  'one state': _chain(1, 3),
}


@functools.cache
def tables(name):
  """Returns the table of each chain of the batch."""
  return [reference.chain(*row) for row in zip(*CHAINS[name])]


@functools.cache
def paths(name):
  """Returns all paths, `[n, T]`, and their probabilities, `[n, 2]`."""
  probs = [[p for _, p in table] for table in tables(name)]
  return np.array([z for z, _ in tables(name)[0]]), np.array(probs).T


def number(num_states, values):
  """Returns the number of each path, `[..., T]`, in lexicographic order."""
  values = np.asarray(values)
  weights = num_states ** np.arange(values.shape[-1])[::-1]
  return np.sum(values * weights, axis=-1)
