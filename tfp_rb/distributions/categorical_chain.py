# SPDX-License-Identifier: Apache-2.0
"""Defines Markov chains over a finite set of states."""

from typing import Any

import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb.distributions import batches, checks, conversions
from tfp_rb.distributions.paths import PathDistribution
from tfp_rb.internal import shapes
from tfp_rb.internal.types import Distribution, TensorLike

__all__ = ['CategoricalChain']

tfd = tfp.distributions


class CategoricalChain(PathDistribution):
  """A Markov chain over `K` states and `T` steps.

  ```none
  q(z_1, ..., z_T) = q(z_1) q(z_2 | z_1) ... q(z_T | z_{T-1})
  ```

  The states are the integers `0, ..., K - 1`, and the transitions may differ
  between the steps. `log_prob`, `entropy`, `mode`, `marginals` and
  `kl_divergence` are exact. Their time and memory are linear in `T`.

  **Sums over the time steps need no sampling.** If `f(z)` is a sum of terms
  that depend on `z_t` or on `(z_{t-1}, z_t)` each, `expectation` computes
  `E[f]` and its gradient exactly. For an `f` of the whole path, for example a
  Kalman filter that runs along it, use `tfp_rb.expectation` with an estimator.

  #### Transitions that do not change

  Broadcast the logits: `tf.broadcast_to(logits, [T - 1, K, K])`.

  #### Series of different length

  Let every state go to state 0 with probability 1 once a series is over. The
  steps beyond the end then add nothing to `log_prob`, `entropy`, divergences
  and estimates, and each path of the shorter series has exactly one extension.
  Make `f` ignore these steps.

  ```python
  num_states, lengths = 3, tf.constant([5, 2])
  transition_logits = tf.zeros([2, 4, num_states, num_states])
  is_over = tf.range(1, 5) >= lengths[:, tf.newaxis]  # [2, T - 1]
  to_first = tf.math.log(tf.one_hot(0, num_states))  # [0, -inf, -inf]
  chain = tfp_rb.distributions.CategoricalChain(
      tf.zeros([2, num_states]),
      tf.where(is_over[..., tf.newaxis, tf.newaxis], to_first,
               transition_logits))
  chain.entropy() / np.log(3.)  # ==> [5. 2.]
  ```

  #### Categorical parts that form a chain

  `tfp_rb.vi` does not recognise that the parts of a joint distribution form a
  chain, and tracing one part per step takes long. Replace

  ```none
  z = yield Root(tfd.Categorical(logits=initial_logits))
  for t in range(T - 1):
    z = yield tfd.Categorical(logits=tf.gather(transition_logits[t], z))
  ```

  with a single part, `CategoricalChain(initial_logits, transition_logits)`,
  that has the same parameters. See also `tfp_rb.vi.ChainTarget`.

  #### Limits

  Chains with several variables per step (factorial chains) and trees are not
  supported. Combine the variables of a step into one state.

  #### Examples

  ```python
  chain = tfp_rb.distributions.CategoricalChain(
      initial_logits=tf.math.log([.8, .2]),
      transition_logits=tf.math.log([[[.9, .1], [.5, .5]],
                                     [[.9, .1], [0., 1.]]]))  # T = 3
  chain.event_shape  # ==> (3,)
  chain.mode()  # ==> [0 0 0]
  chain.prob([0, 0, 0])  # ==> 0.648
  unary, pairwise = chain.marginals()
  unary  # ==> [[0.8   0.2  ] [0.82  0.18 ] [0.738 0.262]]

  # The expected number of steps in state 1, exactly:
  chain.expectation(tf.constant([[0., 1.]] * 3))  # ==> 0.642

  # The two best paths, and one drawn from all others:
  p = tfp_rb.partition(chain, 2)
  p.values   # ==> [[0 0 0] [1 1 1]]
  p.weights  # ==> [0.648 0.1  ]
  p.sample_rest(1, seed=[0, 1]).shape  # ==> (1, 3)
  ```
  """

  def __init__(
    self,
    initial_logits: TensorLike,
    transition_logits: TensorLike,
    log_normalizer: TensorLike | None = None,
    validate_args: bool = False,
    allow_nan_stats: bool = True,
    name: str = 'CategoricalChain',
  ) -> None:
    """Makes a chain from unnormalised log-probabilities.

    Args:
      initial_logits: Floating-point `Tensor` of shape `[..., K]`, of the first
        state. `-inf` marks an impossible state.
      transition_logits: `Tensor` of shape `[..., T - 1, K, K]`. Row `i` of
        entry `t` belongs to state `i` before the transition; it is normalised
        along the last axis. `-inf` marks a forbidden transition. A state
        without any allowed transition ends all paths through it: their
        probability is 0. The dimensions in front are broadcast against those
        of `initial_logits`.
      log_normalizer: `Tensor` of the batch shape, which the chain keeps for
        you; `from_potentials` and `posterior` set it.
      validate_args: Python `bool`. If `True`, a NaN or `inf` among the logits,
        a row that allows no state, and paths with states outside `[0, K)` raise
        an error.
      allow_nan_stats: Python `bool`, as in TFP. It has no effect.
      name: Python `str`.

    Raises:
      TypeError: The logits have no common floating-point dtype.
      ValueError: The shapes are not as above; `K` must be known statically.
    """
    parameters = dict(locals())
    with tf.name_scope(name) as name:
      self._initial_logits, self._transition_logits = checks.convert(
        initial_logits=initial_logits, transition_logits=transition_logits
      )
      checks.check_chain_shapes(self._initial_logits, self._transition_logits)
      self._log_normalizer = None
      if log_normalizer is not None:
        (self._log_normalizer,) = checks.convert(log_normalizer=log_normalizer)
      super().__init__(
        dtype=tf.int32,
        reparameterization_type=tfd.NOT_REPARAMETERIZED,
        validate_args=validate_args,
        allow_nan_stats=allow_nan_stats,
        parameters=parameters,
        name=name,
      )

  @classmethod
  def from_potentials(
    cls,
    unary: TensorLike,
    pairwise: TensorLike,
    validate_args: bool = False,
    name: str = 'CategoricalChain',
  ) -> 'CategoricalChain':
    """Normalises a linear-chain conditional random field.

    ```none
    log q(z) = sum_t unary[t, z_t] + sum_t pairwise[t, z_t, z_{t+1}]
               - log_normalizer
    ```

    Args:
      unary: Floating-point `Tensor` of shape `[..., T, K]`. `-inf` forbids a
        state.
      pairwise: `Tensor` of shape `[..., T - 1, K, K]`; row: state before.
        `-inf` forbids a transition. A state without a continuation has
        probability 0; its transitions are arbitrary. If no path is possible,
        `log_normalizer` is `-inf` and the chain is arbitrary, but without NaN.
      validate_args: Python `bool`. If `True`, a NaN or `inf` among the
        potentials, or potentials that allow no path, raise an error.
      name: Python `str`.

    Returns:
      chain: A `CategoricalChain` with `log_normalizer`.

    Raises:
      TypeError: The potentials have no common floating-point dtype.
      ValueError: The shapes are not as above.
    """
    with tf.name_scope(name):
      unary, pairwise = checks.convert(unary=unary, pairwise=pairwise)
      logits = conversions.normalise(unary, pairwise, validate_args)
    return cls(*logits, validate_args=validate_args, name=name)

  @classmethod
  def posterior(
    cls,
    hmm: Distribution,
    observations: TensorLike,
    mask: TensorLike | None = None,
    validate_args: bool = False,
    name: str = 'CategoricalChain',
  ) -> 'CategoricalChain':
    """Returns the posterior over the paths of a hidden Markov model.

    `log_normalizer` of the result is `hmm.log_prob(observations)`, the
    evidence.

    Args:
      hmm: A `tfd.HiddenMarkovModel`.
      observations: `Tensor` of shape `[..., T]` plus the event shape of an
        observation.
      mask: Boolean `Tensor` of shape `[..., T]`, `True` for missing
        observations, as in TFP. `None` means `hmm.mask`.
      validate_args: Python `bool`, as in `from_potentials`.
      name: Python `str`.

    Returns:
      chain: A `CategoricalChain`. Its batch shape is that of the model,
        broadcast against those of `observations` and `mask`.

    Raises:
      TypeError: `hmm` is not a `tfd.HiddenMarkovModel`, or its states are not
        from `tfd.Categorical`.
      ValueError: `observations` or `mask` have another number of steps.

    #### Examples

    ```python
    hmm = tfp.distributions.HiddenMarkovModel(
        tfp.distributions.Categorical(probs=[.5, .5]),
        tfp.distributions.Categorical(probs=[[.9, .1], [.1, .9]]),
        tfp.distributions.Normal([-1., 1.], 1.), num_steps=4)
    x = tf.constant([-2., -1., .3, 1.])
    chain = tfp_rb.distributions.CategoricalChain.posterior(hmm, x)
    chain.mode()  # ==> [0 0 1 1]
    tf.abs(chain.log_normalizer - hmm.log_prob(x)) < 1e-5  # ==> True
    ```
    """
    with tf.name_scope(name):
      potentials = conversions.potentials_of(hmm, observations, mask)
    return cls.from_potentials(
      *potentials, validate_args=validate_args, name=name
    )

  @classmethod
  def from_markov_chain(
    cls, markov_chain: Distribution, name: str | None = None
  ) -> 'CategoricalChain':
    """Converts a `tfd.MarkovChain` over a finite set of states.

    Args:
      markov_chain: A `tfd.MarkovChain` whose parts are `tfd.Categorical` or
        `tfd.Bernoulli`. `transition_fn` is called once, with all steps and all
        states. A `CategoricalChain` is returned as it is.
      name: Python `str`; `None` means the name of `markov_chain`.

    Returns:
      chain: A `CategoricalChain`.

    Raises:
      TypeError: `markov_chain` is not a `tfd.MarkovChain` with such parts.
      ValueError: Its number of steps or of states is not known statically.
    """
    if isinstance(markov_chain, cls):
      return markov_chain
    initial, transitions = conversions.logits_of(markov_chain)
    return cls(
      initial,
      transitions,
      validate_args=markov_chain.validate_args,
      name=markov_chain.name if name is None else name,
    )

  @classmethod
  def _parameter_properties(
    cls, dtype: Any, num_classes: Any = None
  ) -> dict[str, Any]:
    properties = tfp.util.ParameterProperties
    return dict(
      initial_logits=properties(event_ndims=1),
      transition_logits=properties(event_ndims=3),
      log_normalizer=properties(event_ndims=0),
    )

  @property
  def initial_logits(self) -> Any:
    """The argument `initial_logits`."""
    return self._initial_logits

  @property
  def transition_logits(self) -> Any:
    """The argument `transition_logits`."""
    return self._transition_logits

  @property
  def log_normalizer(self) -> Any:
    """The argument `log_normalizer`; `None` if it was not given."""
    return self._log_normalizer

  @property
  def num_states(self) -> int:
    return self._initial_logits.shape[-1]

  def _event_shape(self) -> tf.TensorShape:
    num_transitions = self._transition_logits.shape[-3]
    return tf.TensorShape(
      [None if num_transitions is None else num_transitions + 1]
    )

  def _event_shape_tensor(self) -> tf.Tensor:
    return tf.shape(self._transition_logits)[-3:-2] + 1

  def log_factors(self) -> tf.Tensor:
    return batches.log_factors_of(
      self._initial_logits, self._transition_logits, shapes.batch_shape(self)
    )

  def _parameter_control_dependencies(self, is_init: bool) -> list[Any]:
    if not self.validate_args:
      return []
    return checks.checks_of_rows(
      is_init,
      initial_logits=self._initial_logits,
      transition_logits=self._transition_logits,
    )
