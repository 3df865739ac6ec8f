# SPDX-License-Identifier: Apache-2.0
"""Runs the Gaussian mixture experiment: section 5.2 and Figure 3 of the paper.

The data are 200 observations in the plane from 10 clusters of unit variance,
whose means are draws from `N(0, 8^2)`. The model has point estimates of the
means, and a table of 10 free logits for each assignment. So `q` is a
`Categorical` with the trials and the observations as its batch, and
`f = |y - mean_z|^2 / 2` is evaluated at a few of the 10 clusters for each
observation. Prior and entropy are computed exactly, outside `f`. The authors
compute them inside `f`, where they cancel in `f(z) - f(z')`, so the gradient of
REINFORCE+ is the same. The optimizer is SGD with learning rate 0.01. The script
plots the log of the exact loss after each step, averaged over the trials.

It compares REINFORCE+ with `k` summed clusters to the average of `n` estimates
without sums. Both evaluate `f` `2 (k + n)` times, because the authors draw a
separate `z'` for every atom (`shared=False`). Two further methods are one `z'`
for all atoms (`shared=True`, `k + n + 1` evaluations), and the free
`LeaveOneOut` baseline, which spends the `2 (k + n)` evaluations on draws.
`--estimator` runs another estimator.

The loss is the negative ELBO as in the paper. With `--as_published` it is the
loss of the authors' code, in which the prior has 10 times too much weight, the
entropy has 10 times too little weight, and constants are left out. The logits
start at 3 for the cluster that k-means assigns, and at 0 for the others. The
means start at a draw from the prior (as in the code), or with `--init=kmeans`
at the means of k-means (as the text says).

The authors' data set cannot be drawn again. Ours uses the true and the initial
means that we read off their figure; assignments and noise come from seed 0, the
first that we tried. The paper does not say which initial mean belongs to which
label of k-means. We draw random orders, and take the first one whose initial
loss is within 1 % of the loss that the authors print. `--num_datasets=6` draws
everything from the model instead, with seeds 0 to 5. On some of these datasets
sums and averages of equal cost differ by less than two standard errors, but on
all of them k = 0 is the worst setting and k = 10 the best.

The folder `results/gaussian_mixture` contains a figure, paths and a table for
each of the following commands, in which `...` stands for `python -m
examples.paper.gaussian_mixture --output_dir=examples/results/gaussian_mixture`.
Each takes about 70 s on two cores:

  ...
  ... --as_published
  ... --init=kmeans
  ... --as_published --init=kmeans
  ... --as_published --num_datasets=6 --trials=16 --steps=100

Reference: Runjing Liu et al. Rao-Blackwellized stochastic gradients for
discrete distributions. ICML 2019. https://arxiv.org/abs/1810.04777
"""

import collections
import csv
import os
import time

from absl import app, flags
import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

import tfp_rb

tfd = tfp.distributions

FLAGS = flags.FLAGS
NUM_OBSERVATIONS, NUM_CLUSTERS, PRIOR_SCALE = 200, 10, 8.0
RATE, LEVEL_RATE, FLOOR = 1e-2, 5e-2, -8.0
# Means read off the authors' figure, and the loss that their code prints.
PAPER_MEANS = np.array([
  (-14.4, -7.3), (-8.3, -5.4), (-6.1, 6.3), (0.4, 15.5), (0.6, 6.4),
  (-0.5, -0.8), (1.1, 1.6), (4.6, 9.4), (11.6, 3.2), (8.8, -9.8),
])  # fmt: skip
PAPER_INITIAL_MEANS = np.array([
  (-18.3, 1.1), (-13.2, 8.7), (-11.4, -7.2), (-5.5, -3.3), (-5.4, -9.9),
  (-4.8, -11.4), (0.7, -6.5), (5.7, -9.8), (6.9, 0.3), (9.8, 7.2),
])  # fmt: skip
PAPER_INITIAL_LOSS = 35518.1
# Log losses of the paper at these steps, by (k, n): summed clusters and draws.
PAPER_STEPS = (20, 30, 40, 60, 80, 98)
PAPER_LOG_LOSSES = {
  (0, 1): (8.50, 8.15, 7.93, 7.66, 7.51, 7.425),
  (0, 2): (8.46, 8.05, 7.80, 7.52, 7.36, 7.265),
  (1, 1): (8.44, 7.98, 7.70, 7.38, 7.22, 7.15),
  (0, 4): (8.39, 7.89, 7.585, 7.30, 7.17, 7.10),
  (3, 1): (8.33, 7.76, 7.45, 7.18, 7.06, 6.995),
  (10, 1): (8.29, 7.72, 7.42, 7.16, 7.04, 6.975),
}
SETTINGS = tuple(PAPER_LOG_LOSSES)
# For a worse and a better setting: the gap in the paper at step 98, and the
# range over the six datasets of an independent simulation.
GAPS = {
  ((0, 1), (10, 1)): (0.45, '.07 to .68'),
  ((0, 2), (1, 1)): (0.115, '.025 to .35'),
  ((0, 4), (3, 1)): (0.105, '.006 to .10'),
  ((1, 1), (0, 4)): (0.05, 'either sign'),
  ((3, 1), (10, 1)): (0.02, 'not given'),
}
# Colour (Okabe and Ito's), line and marker. Averages are dashed, and have the
# same colour as the sum of equal cost.
STYLES = {
  (0, 1): ('#000000', '-', ''),
  (0, 2): ('#0072B2', '--', ''),
  (1, 1): ('#0072B2', '-', 'o'),
  (0, 4): ('#D55E00', '-.', ''),
  (3, 1): ('#D55E00', '-', 's'),
  (10, 1): ('#009E73', ':', ''),
}
PUBLISHED = 'REINFORCE+ (as published)'
SHARED = 'REINFORCE+ (shared draw)'
LEAVE_ONE_OUT = 'LeaveOneOut'

# SGD starts at `means` and `logits`.
Problem = collections.namedtuple('Problem', 'y means logits true_means')


def reinforce(baseline):
  return lambda m, _: tfp_rb.REINFORCE(baseline=baseline, num_samples=m)


# Each entry maps a number of draws, and the level that NVIL learns, to an
# estimator.
_baselines = tfp_rb.baselines
MAKERS = {
  PUBLISHED: reinforce(_baselines.IndependentSample(shared=False)),
  SHARED: reinforce(_baselines.IndependentSample(shared=True)),
  LEAVE_ONE_OUT: reinforce(_baselines.LeaveOneOut()),
  'REINFORCE': reinforce(None),
  'NVIL': lambda m, level: tfp_rb.NVIL(level, num_samples=m),
  'MuProp': lambda m, _: tfp_rb.MuProp(num_samples=m),
  'DARN': lambda m, _: tfp_rb.DARN(num_samples=m),
  'GumbelSoftmax': lambda m, _: tfp_rb.GumbelSoftmax(0.5, num_samples=m),
  'ReinMax': lambda m, _: tfp_rb.ReinMax(num_samples=m),
  'REBAR': lambda m, _: tfp_rb.REBAR(0.5, num_samples=m),
}
REFUSED = {
  'Exact': 'sums all 10 clusters, as the other estimators do at k = 10',
  'Learned': 'learns one level for all trials, so the trials would not be '
  'independent; use NVIL, which learns a level per trial and observation here',
  'RELAX': 'trains a network, which all trials would share; use REBAR instead',
}


def check_estimator(name):
  if name and name not in MAKERS:
    why = f' `{name}` {REFUSED[name]}.' if name in REFUSED else ''
    raise flags.ValidationError(
      f'`--estimator` must be one of {list(MAKERS)}; got {name!r}.{why}'
    )
  return True


def num_draws(name, k, n):
  """Returns the number of draws from the rest.

  A free baseline spends the evaluations at `z'` on further draws.
  """
  if k == NUM_CLUSTERS:
    return 0
  return k + 2 * n if name == LEAVE_ONE_OUT else n


def num_calls(name, k, n):
  """Returns the number of evaluations of `f` per observation and step."""
  m = num_draws(name, k, n)
  extra = {PUBLISHED: k + m, SHARED: 1, 'MuProp': 1, 'REBAR': m}
  return k + m + extra.get(name, 0)


def kmeans(y, rng):
  """Returns labels and centres from the best of 10 runs of k-means++."""
  distances = lambda centres: np.sum((y[:, np.newaxis] - centres) ** 2, axis=-1)
  best = np.inf
  for _ in range(10):
    centres = y[rng.integers(len(y), size=1)]
    while len(centres) < NUM_CLUSTERS:
      nearest = distances(centres).min(axis=1)
      new = rng.choice(len(y), p=nearest / nearest.sum())
      centres = np.vstack([centres, y[new]])
    for _ in range(100):
      labels = distances(centres).argmin(axis=1)
      for j in np.unique(labels):
        centres[j] = y[labels == j].mean(axis=0)
    if distances(centres).min(axis=1).sum() < best:
      best, result = distances(centres).min(axis=1).sum(), (labels, centres)
  return result


def make_dataset(seed, init, like_paper):
  rng = np.random.default_rng(seed)
  draw_means = lambda: PRIOR_SCALE * rng.normal(size=[NUM_CLUSTERS, 2])
  true_means = PAPER_MEANS if like_paper else draw_means()
  z = rng.integers(NUM_CLUSTERS, size=NUM_OBSERVATIONS)
  y = true_means[z] + rng.normal(size=[NUM_OBSERVATIONS, 2])
  labels, centres = kmeans(y, rng)
  logits = 3.0 * np.eye(NUM_CLUSTERS)[labels]
  if init == 'kmeans':
    means = centres
  elif not like_paper:
    means = draw_means()
  else:
    loss = np.inf
    while abs(loss / PAPER_INITIAL_LOSS - 1.0) > 0.01:
      means = rng.permutation(PAPER_INITIAL_MEANS)
      loss = float(exact_loss(y, means, logits, as_published=True))
  return Problem(y, means, logits, true_means)


def log_probs_of(logits):
  """Returns log-probabilities of logits that are floored.

  As in the authors' code, logits below the floor get no gradient.
  """
  return tf.nn.log_softmax(tf.maximum(logits, FLOOR))


def analytic_part(means, log_probs, as_published):
  """Returns the sum of prior, entropy and constants, `[..., trials]`."""
  num_rows = log_probs.shape[-2]
  entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=[-2, -1])
  prior = tf.reduce_sum(means**2, axis=[-2, -1]) / (2.0 * PRIOR_SCALE**2)
  if as_published:
    # The authors take means over the tables of means and of logits, and count
    # them once per observation.
    prior += 2 * NUM_CLUSTERS * np.log(PRIOR_SCALE)
    return num_rows / (2 * NUM_CLUSTERS) * prior - entropy / NUM_CLUSTERS
  prior += NUM_CLUSTERS * np.log(2.0 * np.pi * PRIOR_SCALE**2)
  constant = num_rows * np.log(2.0 * np.pi * NUM_CLUSTERS)
  return prior - entropy + constant


def exact_loss(y, means, logits, as_published):
  """Returns the loss with all clusters summed, of shape `[..., trials]`."""
  log_probs = log_probs_of(logits)
  means = tf.convert_to_tensor(means)
  offsets = y[..., np.newaxis, :] - means[..., np.newaxis, :, :]
  half_squares = 0.5 * tf.reduce_sum(offsets**2, axis=-1)
  expected = tf.reduce_sum(tf.exp(log_probs) * half_squares, axis=[-2, -1])
  return expected + analytic_part(means, log_probs, as_published)


def gradients(y, means, logits, level, as_published, name, k, n, seed):
  """Returns gradients w.r.t. means, logits and NVIL's level, for each trial."""

  def f(z):
    if z.dtype.is_integer:
      z = tf.one_hot(z, NUM_CLUSTERS, dtype=y.dtype)
    return 0.5 * tf.reduce_sum((y - z @ means) ** 2, axis=-1)

  with tf.GradientTape() as tape:
    tape.watch([means, logits, level])
    estimator = MAKERS[name](max(1, num_draws(name, k, n)), level)
    log_probs = log_probs_of(logits)
    if estimator.differentiates_f:
      q = tfd.OneHotCategorical(logits=log_probs, dtype=y.dtype)
    else:
      q = tfd.Categorical(logits=log_probs)
    estimator = tfp_rb.rao_blackwellize(estimator, num_summed=k)
    loss = tf.reduce_sum(tfp_rb.expectation(f, q, estimator, seed), axis=-1)
    loss += analytic_part(means, log_probs, as_published)
  return tape.gradient(
    loss, [means, logits, level], unconnected_gradients='zero'
  )


def loss_paths(
  problems, name, k, n, trials, steps, as_published, seed, jit_compile=True
):
  """Returns exact losses after each SGD step, `[steps, datasets, trials]`."""
  stack = lambda part: np.stack([getattr(p, part) for p in problems])[:, None]
  y = tf.constant(stack('y'))
  start = [
    tf.constant(np.repeat(x, trials, axis=1))
    for x in (stack('means'), stack('logits'), np.zeros(y.shape[:-1]))
  ]
  # Every setting uses the same seeds, so that only the setting differs.
  seeds = np.random.default_rng(seed).integers(2**31, size=[steps, 2])
  seeds = tf.constant(seeds, tf.int32)

  @tf.function(jit_compile=jit_compile, autograph=False)
  def run():
    def body(i, state, losses):
      slopes = gradients(y, *state, as_published, name, k, n, seeds[i])
      state = [
        x - rate * slope
        for x, rate, slope in zip(state, (RATE, RATE, LEVEL_RATE), slopes)
      ]
      loss = exact_loss(y, *state[:2], as_published)
      return i + 1, state, losses.write(i, loss)

    losses = tf.TensorArray(y.dtype, steps)
    return tf.while_loop(
      lambda i, *_: i < steps,
      body,
      (0, start, losses),
      maximum_iterations=steps,
    )[-1].stack()

  return run().numpy()


def log_means(losses):
  """Returns the log of the mean over the trials, `[steps, datasets]`."""
  return np.log(losses.mean(axis=-1))


def title_of(k, n):
  return f'k = {k}' if n == 1 else f'n = {n}'


def draw_lines(axis, paths, name, dataset, exact=0.0):
  for k, n in [setting for of, *setting in paths if of == name]:
    logs = log_means(paths[name, k, n])[:, dataset] - exact
    first = min(8, len(logs) // 2)  # The loss falls fast at the beginning.
    colour, line, marker = STYLES[k, n]
    axis.plot(
      np.arange(first, len(logs) + 1), logs[first - 1 :], color=colour,
      linestyle=line, marker=marker, markersize=4, markevery=(4 * k, 15),
      label=f'{title_of(k, n)} ({num_calls(name, k, n)})',
    )  # fmt: skip
  title = 'k summed, n averaged (evaluations of f)'
  axis.legend(title=title, fontsize=8, title_fontsize=8, ncols=2)
  axis.set(xlabel='step of SGD')


def plot(paths, exact, problems, as_published, path):
  """Plots the data, paths as in the paper, and distances to the exact path."""
  names = list(dict.fromkeys(name for name, _, _ in paths))
  panels = [(name, name, 0) for name in names]
  rows = ['AAABBB', 'CCDDEE' if len(names) == 3 else 'CCCDDD']
  if len(problems) > 1:
    panels = [(f'dataset {i}', names[0], i) for i in range(len(problems))]
    letters = [chr(ord('A') + i) for i in range(-(-len(panels) // 3) * 3)]
    rows = [''.join(letters[i : i + 3]) for i in range(0, len(letters), 3)]
  figure, axes = plt.subplot_mosaic(
    '\n'.join(rows), figsize=(13, 4.6 * len(rows)), layout='constrained'
  )
  loss = "authors' loss" if as_published else 'negative ELBO [nats]'
  if len(problems) == 1:
    data, axis = axes.pop('A'), axes.pop('B')
    y, initial, _, true = problems[0]
    data.plot(*y.T, '.', color='#999999', label='observations')
    data.plot(*true.T, 'kP', markersize=8, label='true means')
    data.plot(*initial.T, '^', color='#D55E00', label='initial means')
    data.set(title='data', xlabel='$y_1$', ylabel='$y_2$', aspect='equal')
    data.legend(fontsize=8, loc='upper left', bbox_to_anchor=(1, 1))
    draw_lines(axis, paths, PUBLISHED, 0)
    axis.set(
      title=PUBLISHED, ylabel=f'log of the {loss}, mean of the trials',
      xlim=(5, 103),  # The paper shows the same steps.
    )  # fmt: skip
  for axis, (title, name, dataset) in zip(axes.values(), panels):
    draw_lines(axis, paths, name, dataset, log_means(exact)[:, dataset])
    axis.set(title=title, yscale='log', ylim=(1e-4, 30.0))
    axis.set_ylabel(f'log of the {loss}, excess over exact gradients')
  figure.savefig(path, dpi=120)
  plt.close(figure)


def write_csv(path, paths, steps):
  """Writes one row for each setting, dataset and step."""
  with open(path, 'w', newline='') as file:
    writer = csv.writer(file)
    writer.writerow(
      ['estimator', 'num_summed', 'num_averaged', 'evaluations', 'dataset']
      + ['step', 'mean_loss', 'standard_error', 'trials', 'seed']
    )
    for (name, k, n), losses in paths.items():
      trials = losses.shape[-1]
      for dataset, step in np.ndindex(losses.shape[1], steps[-1]):
        if step + 1 in steps:
          row = losses[step, dataset]
          cells = [f'{x:.6g}' for x in (row.mean(), row.std() / trials**0.5)]
          cells = [num_calls(name, k, n), dataset, step + 1, *cells]
          writer.writerow([name, k, n, *cells, trials, FLAGS.seed])


def tables(paths, as_published):
  """Returns log losses of the first dataset, gaps, and the paper's numbers."""
  lines = [
    'Log of the mean loss, dataset 0'
    + as_published * ' (in brackets: the paper, with its own data)',
    f'{"":28s}{"calls":>14s}' + ''.join(f'{s:>15d}' for s in PAPER_STEPS),
  ]
  for (name, k, n), losses in paths.items():
    line = f'{name:28s}{title_of(k, n):8s}{num_calls(name, k, n):6d}'
    for step, paper in zip(PAPER_STEPS, PAPER_LOG_LOSSES[k, n]):
      ours = log_means(losses)[step - 1, 0] if step <= len(losses) else np.nan
      has_paper = as_published and name == PUBLISHED
      line += f'{f"{ours:.3f}" + has_paper * f" ({paper:.3f})":>15s}'
    lines.append(line)
  step, several = min(PAPER_STEPS[-1], len(losses)), losses.shape[1] > 1
  lines += [
    '',
    f'Gaps of the log loss at step {step}, by dataset'
    + several * ' (in brackets: standard errors)',
    f'{"":46s}{"paper":>7s}{"simulated":>14s}'
    + (several * 8 * ' ').join(f'{i:8d}' for i in range(losses.shape[1])),
  ]
  for name in dict.fromkeys(name for name, _, _ in paths):
    for (worse, better), (paper, simulated) in GAPS.items():
      if (name, *worse) in paths and (name, *better) in paths:
        high, low = (
          paths[(name, *setting)][step - 1] for setting in (worse, better)
        )
        gaps = log_means(high) - log_means(low)
        # The trials end in several local optima, so the errors are large.
        relative = [np.std(x, -1) / np.mean(x, -1) for x in (high, low)]
        errors = np.hypot(*relative) / high.shape[-1] ** 0.5
        title = f'{title_of(*worse)} minus {title_of(*better)}'
        others = f'{paper:7.3f}{simulated:>14s}' if name == PUBLISHED else ''
        line = f'{name:27s}{title:19s}{others:21s}'
        for gap, error in zip(gaps, errors):
          line += f'{gap:8.3f}' + several * f' ({error:.3f})'
        lines.append(line)
  return '\n'.join(lines)


def main(argv):
  del argv
  start = time.perf_counter()
  # TensorFlow would warn that there is one function for each k.
  tf.get_logger().setLevel('ERROR')
  trials, steps, settings = FLAGS.trials, FLAGS.steps, SETTINGS
  names = [PUBLISHED, SHARED, LEAVE_ONE_OUT]
  if FLAGS.estimator:
    names = list(dict.fromkeys([PUBLISHED, FLAGS.estimator]))
  if FLAGS.smoke:
    trials, steps, settings = 3, 20, (SETTINGS[0], SETTINGS[-1])
  problems = [
    make_dataset(FLAGS.seed + i, FLAGS.init, FLAGS.num_datasets == 0)
    for i in range(max(1, FLAGS.num_datasets))
  ]
  work = [(name, k, n) for name in names for k, n in settings]
  run = lambda name, k, n, trials: loss_paths(
    problems, name, k, n, trials, steps, FLAGS.as_published, FLAGS.seed,
    jit_compile=not FLAGS.smoke,  # Compilation takes longer than a few steps.
  )  # fmt: skip
  paths, exact = {}, run(LEAVE_ONE_OUT, NUM_CLUSTERS, 1, trials=1)
  for name, k, n in (bar := tqdm.tqdm(work, unit='path')):
    bar.set_description(f'{name}, {title_of(k, n)}')
    if (k, n) == (0, 1) and name == SHARED:
      paths[name, k, n] = paths[PUBLISHED, k, n]  # A single atom has one `z'`.
    elif k == NUM_CLUSTERS and name in (SHARED, LEAVE_ONE_OUT):
      # Without noise all trials are equal.
      paths[name, k, n] = np.repeat(exact, trials, axis=-1)
    else:
      paths[name, k, n] = run(name, k, n, trials)

  os.makedirs(FLAGS.output_dir, exist_ok=True)
  parts = ['as_published' if FLAGS.as_published else 'elbo', FLAGS.init]
  parts += [FLAGS.estimator] if FLAGS.estimator else []
  parts += [f'{len(problems)}_datasets'] if FLAGS.num_datasets else []
  prefix = os.path.join(FLAGS.output_dir, '_'.join(parts))
  # With several datasets only a few steps are written, to keep the file small.
  few = [s for s in (1, *PAPER_STEPS) if s <= steps]
  every = range(1, steps + 1)
  write_csv(f'{prefix}.csv', paths, few if len(problems) > 1 else every)
  plot(paths, exact, problems, FLAGS.as_published, f'{prefix}.png')
  text = tables(paths, FLAGS.as_published)
  with open(f'{prefix}.txt', 'w') as file:
    file.write(text + '\n')
  print(
    f'\n{text}\n\nThe results are in {prefix}.{{csv,png,txt}}. The script took '
    f'{time.perf_counter() - start:.0f} s.'
  )


def define_flags():
  """Defines the flags of the script; an import of the module defines none."""
  flags.DEFINE_integer('trials', 20, 'Number of independent runs of SGD.')
  flags.DEFINE_integer('steps', 200, 'Number of SGD steps.')
  flags.DEFINE_bool(
    'as_published', False, "Uses the loss of the authors' code."
  )
  flags.DEFINE_enum(
    'init', 'prior', ['prior', 'kmeans'], 'Initialization of the means.'
  )
  flags.DEFINE_integer(
    'num_datasets', 0, 'Datasets drawn from the model; 0: one like the paper.'
  )
  flags.DEFINE_string(
    'estimator', None, f'Further estimator, one of {list(MAKERS)}.'
  )
  flags.register_validator('estimator', check_estimator)
  flags.DEFINE_integer('seed', 0, 'Seed for data and runs.')
  flags.DEFINE_string(
    'output_dir', 'outputs/gaussian_mixture', 'Folder for the results.'
  )
  flags.DEFINE_bool('smoke', False, 'Makes a short run as a test.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
