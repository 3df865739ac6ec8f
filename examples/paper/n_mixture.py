# SPDX-License-Identifier: Apache-2.0
"""Runs the N-mixture experiment: Appendix A of the paper.

The latent variable has infinitely many values. How many animals `N` are there,
if each of 1000 counts `y_i` is `Binomial(N, 0.2)`? The prior is `Poisson(10)`,
and the surrogate posterior is a negative binomial `q` shifted by `max(y)`. SGD
with step size 1e-4 minimises the negative ELBO w.r.t. `r` and the logit of the
success probability. The gradient estimator is REINFORCE+, with the k = 0, 1 or
3 best values summed. The data are those of the paper, read off its histogram;
`--data_seed` draws another data set.

By default the estimator is correct. With `--as_published` the script does the
same as the code of the paper, and draws its figure:

* Each summed value has the weight 1 instead of `q(z)`; only the draw has the
  correct weight. So the more values are summed, the longer the steps are, in a
  biased direction.
* With k = 3 the draw may be a neighbour of the mode that is already summed.
* The entropy term of `f` is `q log q` instead of `log q`, and the constant 10
  of the prior is missing, so the loss is 8 nats lower. The gradient of `f`
  itself is left out. The loss in the figure is a mean over 1000 new draws.
* Nothing keeps `r` positive, but it hardly moves from 7. By default the script
  uses a softplus; its slope at 7 is 0.999, so the steps remain the same.

These errors change the conclusion. As published, the loss falls faster the more
values are summed, and k = 3 ends higher. With the correct weights, the mean
paths for k = 0, 1 and 3 are nearly that of the exact gradient: summation does
not lengthen the steps. Instead it reduces noise. Along the path, k = 1 and 3
reduce the variance of the gradient by factors of 1.1 to 1.3 and 1.6 to 3.0, and
the standard deviation between 150 trials after 99 steps from 4.5 to 3.8 and 2.5
nats. These numbers are for one draw. Every value has its own draw `z'` for the
baseline, so k = 1 and 3 call `f` 4 and 8 times, not 2. It would be better to
spend these calls on an average of more draws: at equal calls of `f`, the
variance for k = 1 and 3 is 1.5 to 1.7 and 1.3 to 2.5 times higher than that of
such an average. At equal calls, two other choices do reduce the variance: a
free baseline (with leave-one-out the variance is about 2 times lower, and up to
5 times lower with 3 values summed), and a k so large that the summed values
hold most of the mass of `q`.

The committed results come from these commands, which take about a minute each
on two cores:

  python -m examples.paper.n_mixture --output_dir=examples/results/n_mixture
  python -m examples.paper.n_mixture --as_published \
    --output_dir=examples/results/n_mixture/as_published

and from both commands with `--num_trials=150 --num_draws=0`, in the folders
`.../150_trials` and `.../150_trials_as_published`. With 150 trials the means
are precise enough for a comparison.

Reference: Runjing Liu et al. Rao-Blackwellized stochastic gradients for
discrete distributions. ICML 2019. https://arxiv.org/abs/1810.04777
"""

import os
import time

from absl import app, flags
import matplotlib
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

from examples.shared import tables
import tfp_rb

matplotlib.use('Agg')
import matplotlib.pyplot as plt

tfb = tfp.bijectors
tfd = tfp.distributions

FLAGS = flags.FLAGS
HISTOGRAM = (105, 261, 318, 198, 80, 26, 11, 0, 1)  # Of y = 0, ..., 8.
DETECTION, RATE, TRUE_N = 0.2, 10.0, 10
INITIAL_R, INITIAL_LOGIT = 7.0, 0.0
LEARNING_RATE = 1e-4
SUMMED = (0, 1, 3)
NUM_TERMS = 500  # A check makes sure that the mass beyond them is negligible.
ITERATIONS = (10, 20, 30, 40, 60, 99)
# Means of 10 trials at these iterations, read off the figure of the paper.
PAPER = {
  0: (1773, 1738, 1693, 1680, 1668, 1653.3),
  1: (1765, 1705, 1683, 1672, 1659, 1651.7),
  3: (1715.5, 1677, 1664, 1659, 1654.3, 1654.3),
}
PAPER_Q = (
  0.165, 0.262, 0.237, 0.162, 0.092, 0.046, 0.021, 0.009, 0.0036, 0.0014,
)  # fmt: skip
# Means of 150 trials of an independent simulation, by `as_published` and k.
SIMULATED = {
  (True, 0): (1754, 1708, 1687, 1675, 1664, 1657),
  (True, 1): (1740, 1696, 1677, 1668, 1660, 1655),
  (True, 3): (1721, 1684, 1670, 1664, 1660, 1658),
  (False, 0): (1754, 1708, 1687, 1675, 1664, 1657),
  (False, 1): (1756, 1710, 1687, 1675, 1664, 1657),
  (False, 3): (1751, 1706, 1685, 1674, 1663, 1657),
}
# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = {0: '#E69F00', 1: '#0072B2', 3: '#D55E00', 10: '#009E73'}
STYLES = {0: ':', 1: '--', 3: '-', 10: '-.'}
EACH, SHARED, LEAVE_ONE_OUT = "a z' each", "one z'", 'leave-one-out'
# The rows of the variance table, by the number of calls of `f`. Each row has a
# baseline, a number of summed values and a number of draws.
ROWS = {
  2: [(EACH, 0, 1), (LEAVE_ONE_OUT, 0, 2)],
  4: [(EACH, 1, 1), (SHARED, 2, 1), (LEAVE_ONE_OUT, 0, 4),
      (LEAVE_ONE_OUT, 1, 3)],
  8: [(EACH, 3, 1), (SHARED, 6, 1), (LEAVE_ONE_OUT, 0, 8),
      (LEAVE_ONE_OUT, 1, 7), (LEAVE_ONE_OUT, 3, 5)],
  22: [(EACH, 10, 1), (SHARED, 20, 1), (LEAVE_ONE_OUT, 0, 22),
       (LEAVE_ONE_OUT, 10, 12)],
}  # fmt: skip
COLUMNS = (
  'iteration', 'calls', 'baseline', 'num_summed', 'num_draws', 'variance',
  'standard_error', 'relative_at_equal_calls',
)  # fmt: skip
ROW_TEXT = '{calls} calls: {baseline}, {num_summed} summed, {num_draws} drawn'


def make_estimator(baseline, num_summed, num_samples=1):
  level = {
    EACH: lambda: tfp_rb.baselines.IndependentSample(shared=False),
    SHARED: tfp_rb.baselines.IndependentSample,
    LEAVE_ONE_OUT: tfp_rb.baselines.LeaveOneOut,
  }[baseline]()
  return tfp_rb.rao_blackwellize(
    tfp_rb.REINFORCE(baseline=level, num_samples=num_samples),
    num_summed=num_summed,
  )


class NMixture:
  """The data, the target and the surrogate posterior of the experiment.

  `parameters` have the shape `[2] + batch_shape`.
  """

  def __init__(self, counts=HISTOGRAM, as_published=False):
    self.counts = np.array(counts, np.float64)
    self.shift = len(counts) - 1.0  # This is the largest observation.
    self.as_published = as_published

  def initial(self, *batch_shape):
    r = INITIAL_R
    if not self.as_published:
      r = float(tfb.Softplus().inverse(np.float64(r)))
    point = np.array([r, INITIAL_LOGIT])
    return np.multiply.outer(point, np.ones(batch_shape))

  def log_joint(self, N):
    """Returns `log p(y, N)` for `N` of any shape."""
    y = np.arange(len(self.counts), dtype=np.float64)
    likelihood = tfd.Binomial(N[..., tf.newaxis], probs=np.float64(DETECTION))
    terms = self.counts * likelihood.log_prob(y)
    return tf.reduce_sum(terms, axis=-1) + tfd.Poisson(
      np.float64(RATE)
    ).log_prob(N)

  def surrogate(self, parameters):
    r, logits = tf.unstack(parameters)
    r = r if self.as_published else tf.nn.softplus(r)
    return tfd.TransformedDistribution(
      tfd.NegativeBinomial(r, logits=logits), tfb.Shift(np.float64(self.shift))
    )

  def coded_f(self, N, log_q):
    """Returns `f` as in the paper's code."""
    return tf.exp(log_q) * log_q - (self.log_joint(N) + RATE)

  def support(self, rank):
    N = self.shift + np.arange(NUM_TERMS, dtype=np.float64)
    return tf.reshape(tf.constant(N), [-1] + [1] * rank)

  def long_sums(self, parameters):
    """Returns `log q` of all values, and the exact -ELBO and coded loss."""
    N = self.support(parameters.shape.rank - 1)
    log_q = self.surrogate(parameters).log_prob(N)
    q = tf.exp(log_q)
    elbo = tf.reduce_sum(q * (self.log_joint(N) - log_q), axis=0)
    coded = tf.reduce_sum(q * self.coded_f(N, log_q), axis=0)
    return log_q, -elbo, coded

  def posterior(self):
    """Returns the exact posterior probabilities, and the log evidence."""
    log_joint = self.log_joint(self.support(0))
    evidence = tf.reduce_logsumexp(log_joint)
    return tf.exp(log_joint - evidence).numpy(), float(evidence)

  def exact_gradient(self, parameters, seed=None):
    del seed
    with tf.GradientTape() as tape:
      tape.watch(parameters)
      loss = self.long_sums(parameters)[1]
    return tape.gradient(loss, parameters)

  def gradient(self, estimator, parameters, seed):
    """Returns independent gradient estimates, one for each batch member."""
    with tf.GradientTape() as tape:
      tape.watch(parameters)
      loss = tfp_rb.vi.monte_carlo_variational_loss(
        self.log_joint,
        self.surrogate(parameters),
        gradient_estimator=estimator,
        seed=seed,
      )
    return tape.gradient(loss, parameters)

  def published_atoms(self, num_summed, parameters, seed):
    """Returns the values that the paper's code sums and draws, and its `z'`."""
    q = self.surrogate(parameters)
    r, logits = tf.unstack(parameters)
    # The mode is 0 if r < 1. The code does not check this, but no run reached
    # such a value.
    mode = self.shift + tf.maximum(tf.floor(tf.exp(logits) * (r - 1.0)), 0.0)
    steps = {0: [], 1: [0.0], 3: [0.0, -1.0, 1.0]}[num_summed]
    summed = tf.reshape(
      tf.constant(steps, tf.float64), [-1] + [1] * mode.shape.rank
    )
    draw_seed, other_seed = tfp.random.split_seed(seed, n=2)
    estimator = tfp_rb.REINFORCE()
    if num_summed:  # The code excludes only the mode, even with k = 3.
      estimator = tfp_rb.rao_blackwellize(
        estimator, atoms=lambda _: mode[tf.newaxis]
      )
    drawn = estimator.sample_atoms(q, draw_seed).values[-1:]
    others = tfp_rb.REINFORCE(num_samples=num_summed + 1)
    return mode + summed, drawn, others.sample_atoms(q, other_seed).values

  def published_gradient(self, parameters, summed, drawn, others):
    """Returns the gradient of the paper's code, given its atoms."""
    # For values below the support the code returns NaN. Here their weight is 0.
    inside = tf.cast(summed >= self.shift, tf.float64)
    summed = tf.maximum(summed, self.shift)
    with tf.GradientTape() as tape:
      tape.watch(parameters)
      q = self.surrogate(parameters)
      log_q = q.log_prob(tf.concat([summed, drawn], axis=0))
      # As in the code, the weights are constants. Those of the summed values
      # are 1, which is wrong.
      f = self.coded_f(tf.concat([summed, drawn], axis=0), log_q)
      f -= self.coded_f(others, q.log_prob(others))
      mass = tf.reduce_sum(inside * tf.exp(log_q[:-1]), axis=0, keepdims=True)
      weights = tf.concat([inside, 1.0 - mass], axis=0)
      loss = tf.reduce_sum(tf.stop_gradient(weights * f) * log_q, axis=0)
    return tape.gradient(loss, parameters)

  def gradient_fn(self, num_summed):
    if self.as_published:
      return lambda parameters, seed: self.published_gradient(
        parameters, *self.published_atoms(num_summed, parameters, seed)
      )
    estimator = make_estimator(EACH, num_summed)
    return lambda parameters, seed: self.gradient(estimator, parameters, seed)


def sgd_path(gradient_fn, initial, num_steps, seed, jit_compile=True):
  """Returns the parameters before and after each step: `[1 + num_steps]`."""

  @tf.function(jit_compile=jit_compile, autograph=False)
  def run(parameters, seeds):
    def body(i, parameters, path):
      parameters -= LEARNING_RATE * gradient_fn(parameters, seeds[i])
      return i + 1, parameters, path.write(i, parameters)

    path = tf.TensorArray(tf.float64, size=num_steps)
    return tf.while_loop(
      lambda i, *_: i < num_steps,
      body,
      (0, parameters, path),
      maximum_iterations=num_steps,
    )[2].stack()

  # Every k uses the same seeds, so that only k differs.
  seeds = np.random.default_rng(seed).integers(2**31, size=[num_steps, 2])
  path = run(tf.constant(initial), tf.constant(seeds.astype(np.int32)))
  return np.concatenate([initial[np.newaxis], path.numpy()])


def losses_along(model, path, seed):
  """Returns losses `[1 + num_steps, trials]` by name, and the last `q`."""
  sums = tf.function(model.long_sums)
  rng = np.random.default_rng([seed, 1])
  losses = {'negative_elbo': [], 'coded_loss': [], 'coded_loss_of_draws': []}
  for parameters in path:
    parameters = tf.constant(parameters)
    log_q, negative_elbo, coded = (x.numpy() for x in sums(parameters))
    q = np.exp(log_q).T
    if np.min(q.sum(axis=-1)) < 1.0 - 1e-9:
      raise ValueError(
        f'{NUM_TERMS} terms must contain all mass of q, but they do not. The '
        'run has diverged.'
      )
    losses['negative_elbo'].append(negative_elbo)
    losses['coded_loss'].append(coded)
    if model.as_published:
      # The counts of 1000 draws, for each value.
      draws = rng.multinomial(1000, q / q.sum(axis=-1, keepdims=True))
      f = model.coded_f(model.support(1), log_q).numpy()
      losses['coded_loss_of_draws'].append((draws * f.T).sum(axis=-1) / 1000)
  return {name: np.array(x) for name, x in losses.items() if x}, q


def exact_variance(model, point, baseline, num_summed):
  """Computes the variance w.r.t. both parameters by long summation.

  Args:
    model: `NMixture`.
    point: Parameters of shape `[2]`.
    baseline: `EACH` or `SHARED`.
    num_summed: Python `int`; one further value is drawn.

  Returns:
    variance: Python `float`, the sum over both parameters.
  """
  N = model.support(0)
  parameters = tf.constant(np.repeat(point[:, np.newaxis], NUM_TERMS, axis=1))
  with tf.GradientTape() as tape:
    tape.watch(parameters)
    log_q = model.surrogate(parameters).log_prob(N)
  score = tape.gradient(log_q, parameters).numpy()  # [2, terms]
  log_q = log_q.numpy()
  f, q = log_q - model.log_joint(N).numpy(), np.exp(log_q)
  # If values tie, the lower one is summed first, as in `tfp_rb.partition`.
  order = np.argsort(-np.round(log_q, 9), kind='stable')
  best, rest = order[:num_summed], order[num_summed:]
  mass, given_rest = q[rest].sum(), q[rest] / q[rest].sum()

  def variance_of_draw(g):  # [..., terms]
    mean = np.sum(given_rest * g[..., rest], axis=-1, keepdims=True)
    return mass**2 * np.sum(given_rest * (g[..., rest] - mean) ** 2, axis=-1)

  if baseline == SHARED:
    # The estimate is unbiased given the baseline, so the variance of the
    # baseline itself adds nothing.
    by_level = (f - f[:, np.newaxis])[:, np.newaxis] * score  # [z', 2, terms]
    return float(q @ variance_of_draw(by_level).sum(axis=-1))
  mean = q @ f
  noise = q @ (f - mean) ** 2 * np.sum(score**2, axis=0)
  return float(
    q[best] ** 2 @ noise[best]
    + mass**2 * given_rest @ noise[rest]
    + np.sum(variance_of_draw((f - mean) * score))
  )


def measured_variance(model, points, row, num_draws, seed):
  """Estimates the variance from gradients, with standard errors: `[points]`."""
  estimator = make_estimator(*row)
  batch = np.repeat(points[..., np.newaxis], num_draws, axis=-1)
  # It is not compiled, because compilation takes longer than this one call.
  run = tf.function(lambda x, seed: model.gradient(estimator, x, seed))
  draws = run(tf.constant(batch), tf.constant([seed, 2], tf.int32)).numpy()
  squares = np.sum((draws - draws.mean(-1, keepdims=True)) ** 2, axis=0)
  return squares.mean(axis=-1), squares.std(axis=-1) / num_draws**0.5


def make_variance_rows(model, exact_path, iterations, calls, num_draws, seed):
  """Returns the variance table; only its leave-one-out rows are sampled."""
  points = np.moveaxis(exact_path[list(iterations)], 0, 1)  # [2, points]
  plain = [exact_variance(model, point, EACH, 0) for point in points.T]
  rows, work = [], [(n, row) for n in calls for row in ROWS[n]]
  for n, row in tqdm.tqdm(work, unit='variance'):
    if row[0] == LEAVE_ONE_OUT:
      found = measured_variance(model, points, row, num_draws, seed)
    else:
      found = [exact_variance(model, point, *row[:2]) for point in points.T]
      found = found, np.zeros(len(found))
    for i, variance, error, one in zip(iterations, *found, plain):
      values = i, n, *row, float(variance), float(error)
      # The ratio is 1 for an average of REINFORCE+ with as many calls in all.
      rows.append(dict(zip(COLUMNS, (*values, float(variance * n / one / 2)))))
  return rows


def write_csv(path, rows):
  settings = {'seed': FLAGS.seed, 'smoke': FLAGS.smoke}
  tables.write(path, [{**row, **settings} for row in rows], num_digits=7)


def mean_and_error(x):
  return x.mean(axis=-1), x.std(axis=-1, ddof=1) / x.shape[-1] ** 0.5


def path_rows(k, losses):
  columns = {}
  for name, x in losses.items():
    columns[name], columns[f'{name}_se'] = mean_and_error(x)
  fixed = {'num_summed': k, 'trials': x.shape[-1]}
  return [
    {**fixed, 'iteration': i, **dict(zip(columns, map(float, values)))}
    for i, values in enumerate(zip(*columns.values()))
  ]


def plot_paths(model, paths, exact, table, path):
  """Plots mean losses with standard errors, the spread, and the final `q`."""
  name, label = 'negative_elbo', 'negative ELBO [nats], exact'
  if model.as_published:
    name, label = 'coded_loss_of_draws', 'loss as coded [nats], 1000 draws'
  figure, (left, middle, right) = plt.subplots(
    1, 3, figsize=(15, 4.4), layout='constrained'
  )
  for k, losses in paths.items():
    mean, error = mean_and_error(losses[name])
    line = dict(color=COLOURS[k], linestyle=STYLES[k], linewidth=2.0)
    left.plot(mean, label='REINFORCE+' if k == 0 else f'{k} summed', **line)
    some = slice(5 + k, None, 10)  # Error bars of different k do not overlap.
    left.errorbar(np.arange(len(mean))[some], mean[some], error[some],
                  fmt='none', ecolor=COLOURS[k], capsize=2.5)  # fmt: skip
    # The spread is that of the exact loss, because 1000 draws add noise.
    spread = losses['coded_loss'].std(axis=-1, ddof=1)
    middle.plot(np.arange(1, len(spread)), spread[1:], **line)
    if model.as_published and 'paper' in table[0]:
      left.plot(
        ITERATIONS, PAPER[k], 'os^'[SUMMED.index(k)], color=COLOURS[k],
        markeredgecolor='black', label=f'the paper, k = {k}',
      )  # fmt: skip
  if not model.as_published:
    left.plot(exact, color='black', linewidth=0.8, label='exact gradient')
  low = min(x[name].mean(axis=-1).min() for x in paths.values())
  left.set(xlabel='iteration of SGD', ylabel=label, xlim=(3, None),
           ylim=(low - 5.0, low + 125.0))  # fmt: skip
  left.legend(fontsize=9)
  middle.set(xlabel='iteration of SGD', yscale='log',
             ylabel='standard deviation between trials [nats]')  # fmt: skip
  N = np.array([row['N'] for row in table])
  right.bar(N, [row['posterior'] for row in table], color='0.85',
            edgecolor='black', label='exact posterior')  # fmt: skip
  for k in paths:
    # Wide lines lie below narrow ones, because the three lines overlap.
    right.plot(
      N, [row[f'k = {k}'] for row in table], STYLES[k], color=COLOURS[k],
      linewidth=4.0 - k, label=f'q, k = {k}, mean of trials',
    )  # fmt: skip
  if 'paper' in table[0]:
    right.plot(N, PAPER_Q, 'k^', fillstyle='none', label='the paper, k = 3')
  right.set(xlabel='population size N', ylabel='probability', xticks=N)
  right.legend(fontsize=9)
  kind = 'As published' if model.as_published else 'Right weights'
  figure.suptitle(
    f'{kind}: mean and standard error of {num_trials_of(paths)} trials'
  )
  figure.savefig(path, dpi=130)
  plt.close(figure)


def num_trials_of(paths):
  return next(iter(paths.values()))['coded_loss'].shape[-1]


def plot_variances(model, exact_path, rows, path):
  """Plots variances along the path for each k, and at equal calls of `f`."""
  figure, (left, right) = plt.subplots(
    1, 2, figsize=(12, 4.6), layout='constrained'
  )
  iterations = range(0, len(exact_path), 3)
  for k, baseline in [(0, EACH), (1, EACH), (3, EACH), (10, EACH),
                      (1, SHARED), (3, SHARED), (10, SHARED)]:  # fmt: skip
    left.plot(
      iterations,
      [exact_variance(model, exact_path[i], baseline, k) for i in iterations],
      STYLES[k], color=COLOURS[k], linewidth=2.4 if baseline == EACH else 1.0,
      label=f'k = {k}, {baseline}' if k else 'k = 0: REINFORCE+',
    )  # fmt: skip
  left.set(xlabel='iteration of SGD with the exact gradient', yscale='log',
           ylabel='variance of the gradient, exact [nats²]')  # fmt: skip
  left.legend(fontsize=8, ncols=2)
  shown = sorted({row['iteration'] for row in rows})[-2]
  rows = [row for row in rows if row['iteration'] == shown]
  looks = {EACH: ('#E69F00', ''), SHARED: ('#56B4E9', '//'),
           LEAVE_ONE_OUT: ('#009E73', '..')}  # fmt: skip
  for i, row in enumerate(rows):
    colour, hatch = looks[row['baseline']]
    value = row['relative_at_equal_calls']
    right.barh(-i, value, color=colour, hatch=hatch, edgecolor='black')
    right.text(value + 0.02, -i, f'{value:.2g}', va='center', fontsize=8)
  right.margins(x=0.1)
  labels = [ROW_TEXT.format(**row) for row in rows]
  right.set_yticks(-np.arange(len(rows)), labels, fontsize=8)
  right.axvline(1.0, color='black', linewidth=0.8)
  right.set_xlabel(
    'variance relative to REINFORCE+ at equal calls of f\n'
    f'(iteration {shown}; left of the line is a gain)'
  )
  figure.savefig(path, dpi=130)
  plt.close(figure)


def print_paths(model, paths, is_papers_data):
  num_trials = num_trials_of(paths)
  print(
    f'\nLoss as in the code of the authors, exact sum, {num_trials} trials: '
    'mean ± standard error\n(with the mean of a simulation of 150 trials, and '
    'the difference in standard errors)'
  )
  for k, losses in paths.items():
    mean, error = mean_and_error(losses['coded_loss'])
    spread = losses['coded_loss'].std(axis=-1, ddof=1)
    for j, i in enumerate(ITERATIONS):
      if i >= len(mean):
        continue
      text = f'k = {k}  iteration {i:2d} {mean[i]:8.1f} ± {error[i]:4.1f}'
      if is_papers_data:
        simulated = SIMULATED[model.as_published, k][j]
        unit = spread[i] * (1 / num_trials + 1 / 150) ** 0.5
        z = (mean[i] - simulated) / unit
        text += (
          f'   paper {PAPER[k][j]:7.1f}   simulated {simulated} ({z:+.1f})'
        )
      elbo = losses['negative_elbo'][i].mean()
      print(text + f'   spread {spread[i]:5.1f}   exact -ELBO {elbo:7.1f}')


def print_variances(rows):
  iterations = sorted({row['iteration'] for row in rows})
  worst = max(row['standard_error'] / row['variance'] for row in rows)
  print(
    '\nVariance of the gradient along the exact path, at iterations '
    f'{", ".join(map(str, iterations))}\n(leave-one-out is sampled, with '
    f'standard errors up to {worst:.0%}). In brackets: relative to an\naverage '
    'of REINFORCE+ with as many calls of f; below 1 is a gain.'
  )
  for i in range(0, len(rows), len(iterations)):
    cells = [
      f'{row["variance"]:9.3g} ({row["relative_at_equal_calls"]:4.2f})'
      for row in rows[i : i + len(iterations)]
    ]
    print(f'{ROW_TEXT.format(**rows[i]):45s}' + '  '.join(cells))


def print_q(table):
  print('\nExact posterior, and the final q (mean of trials)')
  for row in table:
    numbers = [f'{name} {x:.4f}' for name, x in row.items() if name != 'N']
    print(f'N = {row["N"]:2d}  ' + '  '.join(numbers))


def model_of_flags():
  """Returns the model of the paper's data, or of data from `--data_seed`."""
  counts = HISTOGRAM
  if FLAGS.data_seed is not None:
    rng = np.random.default_rng(FLAGS.data_seed)
    counts = np.bincount(rng.binomial(TRUE_N, DETECTION, size=1000))
  return NMixture(counts, FLAGS.as_published)


def all_paths(model, ks, num_trials, settings):
  """Runs SGD for each number of summed values.

  Args:
    model: `NMixture`.
    ks: Numbers of values that are summed.
    num_trials: Python `int`, the number of independent runs.
    settings: Further arguments of `sgd_path`.

  Returns:
    paths: `{k: losses}`, as of `losses_along`.
    final_q: `{name: array}`, the mean over the trials of the last `q`.
  """
  paths, final_q = {}, {}
  for k in (bar := tqdm.tqdm(ks, unit='path')):
    bar.set_description(f'{num_trials} trials, k = {k}')
    path = sgd_path(model.gradient_fn(k), model.initial(num_trials), *settings)
    paths[k], q = losses_along(model, path, FLAGS.seed)
    final_q[f'k = {k}'] = q.mean(axis=0)
  return paths, final_q


def table_of_q(model, posterior, final_q, is_papers_data):
  """Returns rows with the probabilities of each `N`."""
  return [
    {'N': int(model.shift) + n, 'posterior': float(posterior[n]),
     **{name: float(q[n]) for name, q in final_q.items()},
     **({'paper': PAPER_Q[n]} if is_papers_data else {})}
    for n in range(len(PAPER_Q))
  ]  # fmt: skip


def main(argv):
  del argv
  # TensorFlow would warn that there is one function for each k.
  tf.get_logger().setLevel('ERROR')
  start = time.perf_counter()
  num_trials, num_steps, num_draws = (
    FLAGS.num_trials, FLAGS.num_steps, FLAGS.num_draws
  )  # fmt: skip
  ks, calls = SUMMED, list(ROWS)
  if FLAGS.smoke:
    num_trials, num_steps, num_draws, ks, calls = 3, 10, 50, (0,), [2]
  points = [i for i in (0, 10, 30, 99) if i <= num_steps]
  os.makedirs(FLAGS.output_dir, exist_ok=True)
  in_output = lambda name: os.path.join(FLAGS.output_dir, name)

  model, is_papers_data = model_of_flags(), FLAGS.data_seed is None
  # In a short run, compilation takes longer than the steps.
  settings = num_steps, FLAGS.seed, not FLAGS.smoke
  exact_path = sgd_path(model.exact_gradient, model.initial(), *settings)
  exact, _ = losses_along(model, exact_path[..., np.newaxis], 0)
  paths, final_q = all_paths(model, ks, num_trials, settings)
  posterior, log_evidence = model.posterior()
  table = table_of_q(model, posterior, final_q, is_papers_data)
  write_csv(
    in_output('paths.csv'),
    [row for k, losses in paths.items() for row in path_rows(k, losses)],
  )
  write_csv(in_output('final_q.csv'), table)
  plot_paths(
    model, paths, exact['negative_elbo'], table, in_output('paths.png')
  )  # fmt: skip
  print_paths(model, paths, is_papers_data)
  if not model.as_published and num_draws:
    rows = make_variance_rows(
      model, exact_path, points, calls, num_draws, FLAGS.seed
    )
    write_csv(in_output('variances.csv'), rows)
    plot_variances(model, exact_path, rows, in_output('variances.png'))
    print_variances(rows)
  print_q(table)
  print(
    f'\nThe negative log evidence is {-log_evidence:.1f}. Before training the '
    f'exact -ELBO is {exact["negative_elbo"][0, 0]:.1f}, and the loss as in '
    f"the authors' code is {exact['coded_loss'][0, 0]:.1f}.\nThe figures and "
    f'the CSV files are in {FLAGS.output_dir}. The script took '
    f'{time.perf_counter() - start:.0f} s.'
  )


def define_flags():
  """Defines the flags of the script; an import of the module defines none."""
  flags.DEFINE_bool(
    'as_published', False, 'Does the same as the code of the paper.'
  )
  flags.DEFINE_integer('num_trials', 10, 'Number of independent SGD runs.')
  flags.DEFINE_integer('num_steps', 99, 'Number of SGD steps.')
  flags.DEFINE_integer(
    'num_draws', 10_000, 'Gradients for each sampled variance; 0: no variances.'
  )
  flags.DEFINE_integer(
    'data_seed', None, "Seed of another data set. Default: the paper's data."
  )
  flags.DEFINE_integer('seed', 0, 'Seed for the runs.')
  flags.DEFINE_string(
    'output_dir', 'outputs/n_mixture', 'Folder for the CSV and PNG files.'
  )
  flags.DEFINE_bool('smoke', False, 'Makes a short run as a test.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
