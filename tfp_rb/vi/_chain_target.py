# SPDX-License-Identifier: Apache-2.0
"""Declares targets that are sums over the time steps of a chain."""

from collections.abc import Mapping
import functools
from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.distributions import CategoricalChain
from tfp_rb.internal import checks, gradients, random, shapes
from tfp_rb.internal.types import Distribution, Seed, StatelessSeed
from tfp_rb.partitions import family_of
from tfp_rb.vi._chain_terms import Term, call_term, terms_of_path
from tfp_rb.vi._joint import Joint, entropy_of

__all__ = ['ChainTarget']

tfd = tfp.distributions


class ChainTarget:
  """Declares a log-density that is a sum over the time steps of a chain.

  ```none
  log p(z, x) = initial(z_0, x) + sum_{t >= 1} transition(t, z_{t-1}, z_t, x)
                + sum_{t >= 0} emission(t, z_t, x) + other(x)
  ```

  `z` is a path, and `x` stands for the continuous parts of the surrogate, if
  there are any. Pass the result as `target_log_prob_fn`. The sum over all paths
  and the entropy of the chain are then exact, at a cost that is linear in the
  number of steps, and so is their gradient: no path is drawn, and no
  `gradient_estimator` is needed. The continuous parts are drawn and
  reparameterized.

  The surrogate is a chain, or a joint distribution with one chain and
  reparameterizable parts that do not depend on it; the chain may depend on
  them. A chain is a `CategoricalChain`, a `tfd.MarkovChain` over a finite set
  of states, or several of these in a `tfd.Independent`, for several series with
  the same continuous parts. If `log p` does not split into such terms, or if a
  continuous part of the surrogate depends on the path, pass a function of the
  whole path instead.

  All functions are optional, and each one is called once, with all steps and
  states:

  ```none
  function                  shapes of its arguments     result broadcasts to
  initial(z)                [K]                         [..., K]
  transition(t, before, z)  [T - 1, 1, 1], [K, 1], [K]  [..., T - 1, K, K]
  emission(t, z)            [T, 1], [K]                 [..., T, K]
  other()                                               [...]
  ```

  The arguments are `int32` and broadcast against each other. The steps `t` are
  `0, ..., T - 1`; those of `transition` start at 1. A function may ignore its
  arguments and return, for example, a matrix `[K, K]` of transitions that do
  not change. `[...]` is the batch shape of the chain (in `tfd.Independent`,
  that of the chain inside; for `other`, that of the surrogate).

  The continuous parts follow as further arguments: by name if the surrogate is
  a dictionary, otherwise in their order. Each has the shape of a single draw,
  its batch shape plus its event shape.

  #### Examples

  A hidden Markov model whose means are unknown:

  ```python
  x = tf.constant([-2., -1.5, 1.8, 2.2, 2.])
  log_stay = tf.math.log([[.9, .1], [.1, .9]])
  target = tfp_rb.vi.ChainTarget(
      initial=lambda z, means: tf.math.log([.5, .5]),
      transition=lambda t, before, z, means: log_stay,
      emission=lambda t, z, means: tfd.Normal(
          tf.gather(means, z), 1.).log_prob(tf.gather(x, t)),
      other=lambda means: tf.reduce_sum(
          tfd.Normal([-1., 1.], 1.).log_prob(means)))
  q = tfd.JointDistributionNamed(dict(
      path=tfp_rb.distributions.CategoricalChain(
          tf.Variable([0., 0.]), tf.Variable(tf.zeros([4, 2, 2]))),
      means=tfd.Independent(tfd.Normal(tf.Variable([-1., 1.]), .5), 1)))
  loss = tfp_rb.vi.monte_carlo_variational_loss(target, q, seed=[0, 1])
  loss.shape  # ==> ()
  ```
  """

  def __init__(
    self,
    *,
    initial: Term | None = None,
    transition: Term | None = None,
    emission: Term | None = None,
    other: Term | None = None,
  ) -> None:
    """Stores the functions.

    Args:
      initial: Callable, the term of the first state, for example its prior.
      transition: Callable, the terms of two successive states.
      emission: Callable, the terms of one state, for example the log-likelihood
        of the observation at its step.
      other: Callable, the terms that do not depend on the path, for example the
        prior of the continuous parts.

    Raises:
      TypeError: An argument is not callable.
      ValueError: No term depends on the path.
    """
    self._terms = {
      'initial': initial,
      'transition': transition,
      'emission': emission,
      'other': other,
    }
    for name, term in self._terms.items():
      if term is not None and not callable(term):
        raise TypeError(
          f'`{name}` must be callable; got {term!r}. Write, for example, '
          '`lambda *_: log_probs`.'
        )
    if initial is transition is emission is None:
      raise ValueError(
        '`initial`, `transition` or `emission` must be given; got none. '
        'Pass at least one, because the target must depend on the path.'
      )

  def __repr__(self) -> str:
    given = [name for name, term in self._terms.items() if term is not None]
    return f'ChainTarget({", ".join(given)})'

  def exact_loss(
    self,
    surrogate: Distribution,
    sample_size: int | None,
    stopped: Distribution | None,
    exact_entropy: bool,
    seed: Seed,
  ) -> tf.Tensor:
    """Returns the loss of `monte_carlo_variational_loss`, without sampling `z`.

    Args:
      surrogate: The surrogate posterior, a chain or a joint distribution.
      sample_size: Python `int`, the number of draws of the continuous parts;
        `None` means 1.
      stopped: A copy with stopped parameters that computes the log-density of
        the continuous parts, or `None`.
      exact_entropy: Python `bool`, whether to use the entropies of the
        continuous parts.
      seed: As in TFP.

    Returns:
      loss: `Tensor` of the batch shape of the surrogate.
    """
    if sample_size is None:
      sample_size = 1
    sample_size = checks.check_int(sample_size, 'sample_size', minimum=1)
    if not isinstance(surrogate, tfd.JointDistribution):
      batch_shape = shapes.batch_shape(surrogate)
      return self._loss_of_path(surrogate, surrogate.name, batch_shape, (), {})
    joint = Joint(surrogate)
    path = _number_of_path(joint)
    stopped_joint = None if stopped is None else Joint(stopped)

    def one_loss(seed: StatelessSeed) -> tf.Tensor:
      laws, drawn = joint.run({}, joint.early, None, seed)
      _check_batch(laws[path], joint, path)
      loss = self._loss_of_path(
        joint.with_batch_of_whole(laws[path], 0),
        joint.names[path],
        joint.batch_sizes,
        *_arguments_besides(joint, drawn, path),
      )
      if exact_entropy:
        measures = [-entropy_of(laws[i], joint.names[i]) for i in joint.early]
      else:
        if stopped_joint is not None:
          known = {i: drawn[i] for i in joint.early}
          laws, _ = stopped_joint.run(known, [], None, seed)
        measures = [laws[i].log_prob(drawn[i]) for i in joint.early]
      return loss + tf.cast(joint.total(measures, None), loss.dtype)

    seeds = random.split_seed(seed, n=sample_size)
    if sample_size == 1:
      return one_loss(seeds[0])
    # The loop keeps no intermediate results. XLA could not differentiate draws
    # of a gamma distribution, and so of a Dirichlet, that a loop has kept.
    losses = gradients.call_one_by_one(one_loss, tf.stack(seeds))
    return tf.reduce_mean(losses, axis=0)

  def _loss_of_path(
    self,
    law: Distribution,
    name: str,
    batch_shape: list[Any],
    others: tuple[Any, ...],
    named: dict[str, Any],
  ) -> tf.Tensor:
    """Returns the loss given the continuous parts, without their density.

    Args:
      law: The distribution of the path.
      name: Python `str`, the name of this part.
      batch_shape: List, the batch shape of the surrogate.
      others: Tuple of the other parts, if they have no names.
      named: Dictionary of the other parts, if they have names.

    Returns:
      loss: `Tensor` of shape `batch_shape`.
    """
    chain, num_series_axes = _chain_of(law, name)
    series = shapes.batch_shape(chain)
    series = series[len(series) - num_series_axes :]
    entropy = chain.entropy()
    call = functools.partial(
      self._call, others=others, named=named, dtype=entropy.dtype
    )
    unary, pairwise = terms_of_path(call, chain, [*batch_shape, *series])
    loss = -entropy - chain.expectation(unary, pairwise)
    # Sum over the last axes, which hold several series, for a single loss.
    loss = tf.reduce_sum(loss, axis=list(range(-num_series_axes, 0)))
    other = call('other', [], batch_shape)
    if other is not None:
      loss -= other
    return tf.broadcast_to(loss, batch_shape)

  def _call(
    self,
    name: str,
    arguments: list[tf.Tensor],
    shape: list[Any],
    others: tuple[Any, ...],
    named: dict[str, Any],
    dtype: tf.DType,
  ) -> tf.Tensor | None:
    """Returns the terms of one function, or `None` if there is none.

    Args:
      name: Python `str`, the name of the function.
      arguments: List of the steps and states.
      shape: List, the shape to which the result must broadcast.
      others: As in `_loss_of_path`.
      named: As in `_loss_of_path`.
      dtype: The dtype of the result.

    Returns:
      terms: `Tensor` of the given dtype.
    """
    function = self._terms[name]
    if function is None:
      return None
    terms = call_term(function, name, arguments, shape, others, named)
    return tf.cast(terms, dtype)


def _chain_of(law: Distribution, name: str) -> tuple[CategoricalChain, int]:
  """Returns the chain of a part, and the number of axes of several series."""
  num_axes, inner = 0, law
  while isinstance(inner, tfd.Independent):
    num_axes += int(tf.get_static_value(inner.reinterpreted_batch_ndims))
    inner = inner.distribution
  family = family_of(inner)
  if family is None or family.kind != 'paths':
    raise TypeError(
      f'`surrogate_posterior` must have a chain as its discrete part for a '
      f'`ChainTarget`: a `CategoricalChain` or a `tfd.MarkovChain`; got '
      f'`{type(inner).__name__}` for `{name}`. Use a chain, or pass a function '
      'of the whole path as `target_log_prob_fn`.'
    )
  return CategoricalChain.from_markov_chain(inner), num_axes


def _number_of_path(joint: Joint) -> int:
  """Returns the number of the only discrete part, or raises."""
  if len(joint.discrete) != 1:
    raise ValueError(
      '`surrogate_posterior` must have one discrete part, a chain, for a '
      f'`ChainTarget`; got {[joint.names[i] for i in joint.discrete]}. Combine '
      'them into one chain, or pass a function of all parts as '
      '`target_log_prob_fn`.'
    )
  if joint.late:
    raise ValueError(
      '`surrogate_posterior` must not have continuous parts that depend on the '
      'path for a `ChainTarget`; got '
      f'{[joint.names[i] for i in joint.late]}. Put these parts before the '
      'chain, or pass a function of all parts as `target_log_prob_fn`. (In a '
      'coroutine a part counts as depending on all previous ones.)'
    )
  return joint.discrete[0]


def _check_batch(law: Distribution, joint: Joint, path: int) -> None:
  """Raises if other parts have batch dimensions that the chain lacks."""
  own, whole = law.batch_shape, tf.TensorShape(joint.batch_shape)
  if own.rank is not None and own.rank < (whole.rank or 0):
    raise ValueError(
      '`surrogate_posterior` must have the batch shape of its chain for a '
      f'`ChainTarget`; got {whole}, and {own} for `{joint.names[path]}`. Wrap '
      'the other parts in `tfd.Independent`, so that their dimensions are '
      'part of the event.'
    )


def _arguments_besides(
  joint: Joint, parts: list[tf.Tensor], index: int
) -> tuple[tuple[tf.Tensor, ...], dict[str, tf.Tensor]]:
  """Returns all parts but one, as arguments without and with a name."""
  others = {
    name: part
    for i, (name, part) in enumerate(zip(joint.names, parts, strict=True))
    if i != index
  }
  if isinstance(joint.pack(parts), Mapping):
    return (), others
  return tuple(others.values()), {}
