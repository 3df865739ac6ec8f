# SPDX-License-Identifier: Apache-2.0
"""Chains as families of the fuzz test, in naive NumPy.

The base value of a path is its number in lexicographic order, so a chain is a
table of `K^T` values. `K` is the size of the problem; the number of steps `T`
is part of the family's name.
"""

import numpy as np
from scipy import special
import tensorflow as tf
import tensorflow_probability as tfp

import tfp_rb

__all__ = ['chain_names', 'log_mass', 'make', 'norm', 'num_steps_of', 'scores']

tfd = tfp.distributions

_STEPS = {'CategoricalChain': (1, 2, 3, 5), 'MarkovChain': (2, 3)}


def chain_names():
  """Returns the names of the families."""
  return [f'{kind}.{t}' for kind, steps in _STEPS.items() for t in steps]


def num_steps_of(name):
  return int(name.split('.')[1])


def paths_of(num_states, num_steps):
  """Returns all paths in lexicographic order, `[n, T]`, and digit weights."""
  digits = num_states ** np.arange(num_steps)[::-1]
  number = np.arange(num_states**num_steps)[:, np.newaxis]
  return number // digits % num_states, digits


def with_dead_end(rng, initial, transitions):
  """Adds to chains a state that no transition leaves and no path enters."""
  num_steps, num_states = transitions.shape[-3] + 1, initial.shape[-1]
  if num_states == 1 or num_steps < 3 or rng.random() < 0.5:
    return transitions
  t, state = rng.integers(0, num_steps - 2), rng.integers(0, num_states)
  transitions = np.copy(transitions)
  transitions[..., t, :, state] = -np.inf
  other = (state + 1) % num_states
  is_empty = np.all(transitions[..., t, :, :] == -np.inf, axis=-1)
  transitions[..., t, :, other] = np.where(
    is_empty, 0.0, transitions[..., t, :, other]
  )
  transitions[..., t + 1, state, :] = -np.inf
  return transitions


def _table(p):
  """Returns normalized log-probabilities; rows of `-inf` stay unchanged."""
  tables = []
  for x in (p['initial_logits'], p['transition_logits']):
    total = special.logsumexp(x, axis=-1, keepdims=True)
    tables.append(x - np.where(total == -np.inf, 0.0, total))
  return tables


def _states(p, z):
  """Returns the states of numbered paths: `T` arrays of the shape of `z`."""
  *_, num_transitions, num_states, _ = p['transition_logits'].shape
  paths, _ = paths_of(num_states, num_transitions + 1)
  index = np.round(z).astype(int)
  is_possible = (index == z) & (index >= 0) & (index < len(paths))
  chosen = paths[np.clip(index, 0, len(paths) - 1)]
  return list(np.moveaxis(chosen, -1, 0)), is_possible


def _rows(p, z):
  """Yields, for each step, the row of log-probabilities used and the state."""
  initial, transitions = _table(p)
  states, _ = _states(p, z)
  yield np.broadcast_to(initial, (*z.shape, initial.shape[-1])), states[0]
  for t in range(transitions.shape[-3]):
    table = np.broadcast_to(
      transitions[..., t, :, :], (*z.shape, *transitions.shape[-2:])
    )
    before = states[t][..., np.newaxis, np.newaxis]
    row = np.take_along_axis(table, before, axis=-2)[..., 0, :]
    yield row, states[t + 1]


def log_mass(p, z, settings):
  del settings
  _, is_possible = _states(p, z)
  total = np.zeros(z.shape)
  for row, state in _rows(p, z):
    total += np.take_along_axis(row, state[..., np.newaxis], -1)[..., 0]
  return np.where(is_possible, total, -np.inf)


def scores(p, z, settings):
  del settings
  shapes = {name: (*z.shape, *x.shape[2:]) for name, x in p.items()}
  result = {name: (np.zeros(s), np.zeros(s)) for name, s in shapes.items()}
  states, _ = _states(p, z)
  size = p['initial_logits'].shape[-1]
  for t, (row, state) in enumerate(_rows(p, z)):
    one_hot = (state[..., np.newaxis] == np.arange(size)).astype(float)
    for sign, i in ((-1.0, 0), (1.0, 1)):
      own = one_hot + sign * np.exp(row)
      if t == 0:
        result['initial_logits'][i][...] = own
      else:
        is_before = states[t - 1][..., np.newaxis] == np.arange(size)
        result['transition_logits'][i][..., t - 1, :, :] = (
          is_before[..., np.newaxis] * own[..., np.newaxis, :]
        )
  return result


def norm(p, z, settings):
  """Returns the squared norm of a path's score w.r.t. the rows of logits."""
  return sum(
    np.sum(own**2, axis=tuple(range(z.ndim, own.ndim)))
    for own, _ in scores(p, z, settings).values()
  )


def make(name):
  """Returns a callable that maps `(parameters, settings)` to a distribution."""

  def markov_chain(p, settings):
    del settings
    transitions = p['transition_logits']

    def transition_fn(t, z):
      # `t` is either a scalar or has the first axis of `z`.
      z = tf.one_hot(
        z, transitions.shape[-1], dtype=tf.bool, on_value=True, off_value=False
      )
      t = tf.reshape(t, [-1] + [1] * (z.shape.rank - 2))
      t = tf.broadcast_to(t, tf.shape(z)[:-1])
      t = tf.one_hot(
        t, transitions.shape[-3], dtype=tf.bool, on_value=True, off_value=False
      )
      is_own = t[..., :, tf.newaxis] & z[..., tf.newaxis, :]
      # A product would not do, because the logits may be infinite.
      logits = tf.where(is_own[..., tf.newaxis], transitions, 0.0)
      return tfd.Categorical(logits=tf.reduce_sum(logits, axis=[-3, -2]))

    prior = tfd.Categorical(logits=p['initial_logits'])
    return tfd.MarkovChain(prior, transition_fn, num_steps_of(name))

  if name.startswith('MarkovChain'):
    return markov_chain
  return lambda p, settings: tfp_rb.distributions.CategoricalChain(**p)
