"""Site by site: the local expectation gradient, Rao-Blackwellized."""

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tfp_rb import _checks, _gradient, _random
from tfp_rb._atoms import Atoms, draw_atoms, drawing_from
from tfp_rb._rao_blackwell import rao_blackwellize
from tfp_rb.estimators.base import Estimate, GradientEstimator
from tfp_rb.partitions import _shapes

__all__ = ['LocalExpectation', 'local_expectation', 'site_of']

tfd = tfp.distributions


def local_expectation(
  estimator: GradientEstimator,
  num_summed: int,
  sites_per_call: int | None = None,
) -> GradientEstimator:
  """Returns `estimator`, applied to each site of a product on its own.

  ```none
  sum over sites s of   sum_{a in C_s} q_s(a) g_s(a)  +  q_s(rest) g_s(v_s),
  g_s(a) = what `estimator` says of f(z_1, ..., a, ..., z_S) at site s
  ```

  One joint value `z` is drawn; at each site in turn the `k` most probable
  symbols are summed and `M` of the others drawn, while the other sites stay at
  `z`. Where no joint value has any mass to speak of, as with many sites, this
  is what Rao-Blackwellization can do: the joint one would sum nothing. It pays
  where `k` symbols hold nearly all the mass of a site, best with all of them
  summed: then only the noise of the other sites is left. Draws of single sites
  are no better than as many joint ones.

  Unbiased where `estimator` is. Costs `S (k + M)` evaluations of `f` for `S`
  sites, in one call, or in `ceil(S / sites_per_call)`. If `f` is a sum of one
  term for each site, make the sites the *batch* of the distribution instead,
  and the cost is `k + M`.

  The calls follow each other in a loop, forward and again in the backward pass,
  and hold what `f` computes for one chunk of sites only, in eager, graph and
  XLA; the `S (k + M)` atoms themselves are held at once. Value and gradient are
  those of a single call. This takes twice the evaluations, chunks of equal size
  (the last one repeats a site where `S` asks for it), and an `f` that
  `tf.function` can trace and that says the same when called again: no dropout,
  no `tf.random.normal`. A second derivative holds everything, and not all of
  `f` has one under XLA.

  Args:
    estimator: A `GradientEstimator` that only draws; `M` is its `num_samples`.
    num_summed: Python `int` `k`, at most the number of symbols of a site.
    sites_per_call: Python `int`, to how many sites at most `f` is applied at
      once, where memory asks for it. `None`: to all.

  Returns:
    estimator: A `GradientEstimator`, for `tfd.Independent` and `tfd.Sample`.

  Raises:
    TypeError: `estimator` is no estimator that only draws, or a number is not
      an `int`.
    ValueError: A number is out of range.

  #### Examples

  ```python
  logits = tf.Variable(tf.zeros([20, 10]))  # 20 sites, 10 symbols each
  estimator = tfp_rb.local_expectation(
      tfp_rb.REINFORCE(tfp_rb.baselines.LeaveOneOut()), num_summed=2)
  with tf.GradientTape() as tape:
    q = tfp.distributions.Independent(
        tfp.distributions.Categorical(logits=logits), 1)
    loss = tfp_rb.expectation(
        lambda z: tf.cast(tf.reduce_max(z, axis=-1), tf.float32), q, estimator,
        seed=[0, 1])
  tape.gradient(loss, logits).shape  # ==> (20, 10)
  ```

  #### References

  [1] Michalis K. Titsias, Miguel Lazaro-Gredilla. Local expectation gradients
      for black box variational inference. NeurIPS 2015.
      https://arxiv.org/abs/1503.01494
  [2] Runjing Liu et al. Rao-Blackwellized stochastic gradients for discrete
      distributions. ICML 2019, section 6. https://arxiv.org/abs/1810.04777
  """
  rao_blackwellized = rao_blackwellize(estimator, num_summed=num_summed)
  if sites_per_call is not None:
    sites_per_call = _checks.check_int(
      sites_per_call, 'sites_per_call', minimum=1
    )
  return LocalExpectation(
    estimator, rao_blackwellized.num_summed, sites_per_call
  )


def site_of(distribution):
  """The distribution of the sites of a product, which are its last batch."""
  return _Sites(distribution).distribution


class LocalExpectation(GradientEstimator):
  """The result of `local_expectation`."""

  def __init__(self, estimator, num_summed, sites_per_call=None, name=None):
    super().__init__(num_samples=estimator.num_samples, name=name)
    self.estimator = estimator
    self.num_summed = num_summed
    self.sites_per_call = sites_per_call

  def sample_atoms(self, distribution, seed):
    sites = _Sites(distribution)
    joint_seed, site_seed = _random.split_seed(seed, n=2)
    joint = draw_atoms(distribution, 1, joint_seed).values
    rao_blackwellized = rao_blackwellize(self.estimator, self.num_summed)
    with drawing_from(sites.distribution):
      atoms = rao_blackwellized.sample_atoms(sites.distribution, site_seed)
    return Atoms(
      values=sites.flatten(sites.substitute(joint, atoms.values)),
      weights=sites.flatten(sites.first(atoms.weights)) / float(sites.size),
      # So that the mean over the sites differentiates as their sum.
      log_prob=sites.flatten(sites.first(atoms.log_prob)) * float(sites.size),
      num_summed=self.num_summed * sites.size,
    )

  def evaluate(self, f, distribution, atoms, seed):
    sites = _Sites(distribution)
    size = float(sites.size)
    joint, own = sites.split(sites.unflatten(atoms.values))

    def f_of_site(x):  # [m] + batch + [S] + event -> [m] + batch + [S]
      # Of the estimate's gradient by the atoms the whole counts for a site, of
      # that by the variables of `f` its share.
      x = _gradient.scale_gradient(x, size)
      values = sites.substitute(joint, x)
      if self.sites_per_call is None or self.sites_per_call >= sites.size:
        result = sites.unflatten(f(sites.flatten(values)))
      else:
        chunks = sites.to_chunks(values, self.sites_per_call)
        result = _gradient.call_one_by_one(f, chunks)
        result = sites.from_chunks(result, x.shape[0])
      return _gradient.scale_gradient(sites.last(result), 1.0 / size)

    site_atoms = Atoms(
      values=own,
      weights=sites.last(sites.unflatten(atoms.weights)) * size,
      log_prob=sites.last(sites.unflatten(atoms.log_prob)) / size,
      num_summed=self.num_summed,
    )
    with drawing_from(sites.distribution):
      estimate = self.estimator.evaluate(
        f_of_site, sites.distribution, site_atoms, seed
      )
    value, surrogate = (
      sites.flatten(sites.first(x))
      for x in (estimate.value, estimate.surrogate)
    )
    auxiliary = estimate.auxiliary
    if auxiliary is not None:
      auxiliary = tf.reduce_sum(auxiliary, axis=-1)
    return Estimate(value, surrogate * size, auxiliary)


def _reshape_first(x, num_dims, shape):
  """`x`, the first `num_dims` dimensions reshaped; others may be dynamic."""
  result = tf.reshape(x, tf.concat([shape, tf.shape(x)[num_dims:]], axis=0))
  return tf.ensure_shape(result, [*shape, *x.shape[num_dims:]])


class _Sites:
  """A product as its sites: the last dimension of the batch of one factor.

  `S` is their number. Beside the sites, values are `[n] + batch + [S] + event`,
  with the event of a site; joint values `[n] + batch_shape + event_shape`.
  """

  def __init__(self, q):
    if _checks.is_a(q, tfd.Independent):
      factor = q.distribution
      num_dims = int(tf.get_static_value(q.reinterpreted_batch_ndims))
      shape = _shapes.batch_shape(factor)
      site_shape = shape[len(shape) - num_dims :]
      batch_shape = shape[: len(shape) - num_dims]
    elif _checks.is_a(q, tfd.Sample):
      batch_shape = _shapes.batch_shape(q.distribution)
      site_shape = np.reshape(tf.get_static_value(q.sample_shape), [-1])
      site_shape = [int(n) for n in site_shape]
      ones = [1] * len(site_shape)
      factor = tfd.BatchBroadcast(
        tfd.BatchReshape(q.distribution, batch_shape + ones),
        to_shape=batch_shape + site_shape,
      )
    else:
      raise TypeError(
        '`local_expectation` needs a product, `tfd.Independent` or '
        f'`tfd.Sample`, but `distribution` is a `{type(q).__name__}`. Use '
        '`tfp_rb.rao_blackwellize`.'
      )
    self.size = _shapes.size(site_shape)
    if len(site_shape) != 1:
      factor = tfd.BatchReshape(factor, batch_shape + [self.size])
    self.distribution = factor
    self._batch_rank = len(batch_shape)
    self._joint = [*batch_shape, *_shapes.event_shape(q)]
    self._by_site = [*batch_shape, self.size, *_shapes.event_shape(factor)]

  def _is_own(self, shift, rank):
    """`[1, S] + batch of ones + [S] + ...`: whether the site is replaced."""
    own = np.roll(np.eye(self.size, dtype=bool), shift, axis=0)
    shape = [1, self.size] + [1] * self._batch_rank + [self.size]
    return np.reshape(own, shape + [1] * (rank - len(shape)))

  def substitute(self, joint, x):
    """Joint values `[n, S] + ...` in which site `s` of `joint` is `x[:, s]`."""
    joint = tf.cast(tf.reshape(joint, [1, 1, *self._by_site]), x.dtype)
    x = x[:, tf.newaxis]
    values = tf.where(self._is_own(0, x.shape.rank), x, joint)
    return tf.reshape(values, [values.shape[0], self.size, *self._joint])

  def split(self, values):
    """The inverse of `substitute`: the joint value, and those of the sites."""
    values = tf.reshape(values, [values.shape[0], self.size, *self._by_site])
    zero = tf.zeros([], values.dtype)

    def pick(shift, x):
      is_own = self._is_own(shift, values.shape.rank)
      return tf.reduce_sum(tf.where(is_own, x, zero), axis=1)

    # A site of the joint value is seen where another one is replaced.
    return pick(1, values[:1])[0], pick(0, values)

  def flatten(self, x):
    """`[n, S] + ...` to `[n S] + ...`."""
    return _reshape_first(x, 2, [x.shape[0] * self.size])

  def unflatten(self, x):
    """`[n S] + ...` to `[n, S] + ...`."""
    return _reshape_first(x, 1, [x.shape[0] // self.size, self.size])

  def to_chunks(self, x, most_sites):
    """`[n, S] + ...` to `[N, n c] + ...`: `N` chunks of `c` sites.

    Of equal size, for a loop; the last ones repeat the last site.

    Args:
      x: `Tensor`.
      most_sites: Python `int`, the most sites of a chunk.

    Returns:
      chunks: `Tensor`.
    """
    num_chunks = -(-self.size // most_sites)
    num_sites = -(-self.size // num_chunks)
    num_missing = num_chunks * num_sites - self.size
    x = tf.concat([x] + [x[:, -1:]] * num_missing, axis=1)
    x = _reshape_first(x, 2, [x.shape[0], num_chunks, num_sites])
    x = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])
    return _reshape_first(x, 3, [num_chunks, x.shape[1] * num_sites])

  def from_chunks(self, x, num_atoms):
    """The inverse of `to_chunks`."""
    num_sites = x.shape[1] // num_atoms
    x = _reshape_first(x, 2, [x.shape[0], num_atoms, num_sites])
    x = tf.transpose(x, [1, 0, *range(2, x.shape.rank)])
    x = _reshape_first(x, 3, [num_atoms, x.shape[1] * num_sites])
    return x[:, : self.size]

  def first(self, x):
    """`[n] + batch_shape + [S]` to `[n, S] + batch_shape`."""
    rank = x.shape.rank
    return tf.transpose(x, [0, rank - 1, *range(1, rank - 1)])

  def last(self, x):
    """The inverse of `first`."""
    rank = x.shape.rank
    return tf.transpose(x, [0, *range(2, rank), 1])
