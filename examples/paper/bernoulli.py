# SPDX-License-Identifier: Apache-2.0
"""Runs the Bernoulli experiment: section 5.1, Figures 1 and 2 of the paper.

The loss is `E sum_i (b_i - p_i)^2` over three independent Bernoulli variables
with one common logit `eta` and `p = (0.6, 0.51, 0.48)`, which makes 8 atoms.
`eta` starts at -4, where almost all mass is on the wrong atom.

Figure 1 shows the exact loss during SGD (step size 1), averaged over the
trials, when the k = 0, 1, 3 or 8 most probable atoms are summed. Figure 2 shows
the distribution and the variance of the gradient at eta = 0 and -4 for
k = 0, ..., 8, measured and exact.

The baseline of REINFORCE+ is `f` at an independent draw. The code of the paper
makes one such draw for every atom (`shared=False`), so that some noise remains
at k = 8. With one draw for all atoms (`shared=True`) no noise remains.

  python -m examples.paper.bernoulli --output_dir=outputs/bernoulli

Reference: Runjing Liu et al. Rao-Blackwellized stochastic gradients for
discrete distributions. ICML 2019. https://arxiv.org/abs/1810.04777
"""

import os

from absl import app, flags
import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

from examples.shared import tables
import tfp_rb

plt.style.use('seaborn-v0_8-colorblind')

_TRIALS = flags.DEFINE_integer('trials', 20, 'Number of independent SGD runs.')
_STEPS = flags.DEFINE_integer('steps', 1000, 'Number of SGD steps.')
_DRAWS = flags.DEFINE_integer('draws', 10_000, 'Gradients for each variance.')
_SEED = flags.DEFINE_integer('seed', 0, 'Seed for all runs.')
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'outputs/bernoulli', 'Folder for the CSV and PNG files.'
)
_SMOKE = flags.DEFINE_bool('smoke', False, 'Makes a short run as a test.')

tfd = tfp.distributions

TARGET = np.array([0.6, 0.51, 0.48])
INITIAL_ETA = -4.0
NUM_ATOMS = 8
SUMMED = (0, 1, 3, NUM_ATOMS)
CHUNK = 50
ESTIMATORS = {
  'REINFORCE': lambda: tfp_rb.REINFORCE(),
  'REINFORCE+ (as published)': lambda: tfp_rb.REINFORCE(
    baseline=tfp_rb.baselines.IndependentSample(shared=False)
  ),
  'REINFORCE+ (shared draw)': lambda: tfp_rb.REINFORCE(
    baseline=tfp_rb.baselines.IndependentSample(shared=True)
  ),
}
# Steps at which we read off the curves of the paper, and the values, which are
# means of the authors' 20 trials. Their k = 0 curve of REINFORCE+ is unusually
# low by chance.
PAPER_STEPS = (250, 300, 350, 400, 500)
PAPER_LOSSES = {
  ('REINFORCE', 0): (0.814, 0.799, 0.789, 0.785, 0.768),
  ('REINFORCE', 1): (0.833, 0.817, 0.781, 0.747, 0.706),
  ('REINFORCE', 3): (0.837, 0.817, 0.773, 0.724, 0.684),
  ('REINFORCE', 8): (0.8374, 0.8229, 0.7585, 0.6967, 0.6786),
  ('REINFORCE+ (as published)', 0): (0.790, 0.770, 0.746, 0.724, 0.696),
  ('REINFORCE+ (as published)', 1): (0.836, 0.818, 0.767, 0.714, 0.680),
  ('REINFORCE+ (as published)', 3): (0.837, 0.8236, 0.765, 0.702, 0.679),
  ('REINFORCE+ (as published)', 8): (0.837, 0.8205, 0.751, 0.697, 0.679),
}
# The authors' code prints these variances for REINFORCE+ and k = 0, ..., 8.
PAPER_VARIANCES = {
  0.0: (
    1.2746e-2, 7.562e-3, 6.334e-3, 5.251e-3, 3.633e-3,
    1.614e-3, 1.179e-3, 9.99e-4, 9.93e-4,
  ),
  -4.0: (
    7.703e-4, 3.285e-5, 2.100e-5, 4.820e-6, 2.688e-6,
    2.488e-6, 2.623e-6, 2.585e-6, 2.588e-6,
  ),
}  # fmt: skip


def loss_at(b):
  """Returns `f`, the squared distance of the bits from the target."""
  return tf.reduce_sum((tf.cast(b, tf.float64) - TARGET) ** 2, axis=-1)


def exact_loss(eta):
  return 0.8505 - 0.18 * tf.sigmoid(eta)


def summed(name, num_summed):
  return tfp_rb.rao_blackwellize(ESTIMATORS[name](), num_summed=num_summed)


def gradient(eta, estimator, seed):
  """Returns independent gradient estimates, one for each entry of `eta`."""
  with tf.GradientTape() as tape:
    tape.watch(eta)
    q = tfd.Sample(tfd.Bernoulli(logits=eta), 3)
    loss = tfp_rb.expectation(loss_at, q, estimator, seed=seed)
  return tape.gradient(loss, eta)


def loss_paths(
  name, num_summed, trials, steps, seed, progress=lambda n: None,
  jit_compile=True,
):  # fmt: skip
  """Returns exact losses after each step of SGD, of shape `[steps, trials]`."""
  estimator = summed(name, num_summed)

  @tf.function(jit_compile=jit_compile, autograph=False)
  def run(eta, seeds):
    def body(i, eta, losses):
      eta -= gradient(eta, estimator, seeds[i])
      return i + 1, eta, losses.write(i, exact_loss(eta))

    losses = tf.TensorArray(tf.float64, size=CHUNK)
    _, eta, losses = tf.while_loop(
      lambda i, *_: i < CHUNK, body, (0, eta, losses), maximum_iterations=CHUNK
    )
    return eta, losses.stack()

  # Every k uses the same seeds, so that only k differs.
  seeds = np.random.default_rng(seed).integers(2**31, size=[steps, 2])
  seeds = np.resize(seeds, [-(-steps // CHUNK) * CHUNK, 2]).astype(np.int32)
  eta, losses = tf.fill([trials], tf.constant(INITIAL_ETA, tf.float64)), []
  for chunk in np.split(seeds, len(seeds) // CHUNK):
    eta, new = run(eta, tf.constant(chunk))
    losses.append(new.numpy())
    progress(CHUNK)
  return np.concatenate(losses)[:steps]  # The last chunk may be too long.


def gradient_draws(name, num_summed, etas, num_draws, seed):
  """Returns independent gradient estimates of shape `[etas, num_draws]`."""
  estimator = summed(name, num_summed)
  # It is not compiled, because compilation takes longer than this one call.
  run = tf.function(lambda eta, seed: gradient(eta, estimator, seed))
  etas = np.repeat(np.array(etas)[:, np.newaxis], num_draws, axis=1)
  seeds = tf.constant([seed, num_summed], tf.int32)
  return run(tf.constant(etas), seeds).numpy()


def exact_variance(name, num_summed, eta):
  """Computes the variance by enumeration of atoms and baseline draws."""
  q = tfd.Sample(tfd.Bernoulli(logits=tf.constant(eta, tf.float64)), 3)
  every = tfp_rb.partition(q, NUM_ATOMS)
  atoms, probs = every.values.numpy(), every.weights.numpy()
  f = np.sum((atoms - TARGET) ** 2, axis=-1)
  score = np.sum(atoms, axis=-1) - 3 / (1 + np.exp(-eta))
  best, rest = slice(num_summed), slice(num_summed, None)
  mass = np.sum(probs[rest])
  given_rest = probs[rest] / mass if mass else probs[rest]

  def variance_of_draw(g):
    mean = np.sum(given_rest * g[rest])
    return mass**2 * np.sum(given_rest * (g[rest] - mean) ** 2)

  if name == 'REINFORCE':
    return variance_of_draw(f * score)
  if name == 'REINFORCE+ (shared draw)':
    # The estimate is unbiased given the baseline, so the variance of the
    # baseline itself adds nothing.
    return sum(
      p * variance_of_draw((f - level) * score) for p, level in zip(probs, f)
    )
  mean_f = np.sum(probs * f)
  var_f = np.sum(probs * (f - mean_f) ** 2)
  noise = var_f * score**2
  return (
    np.sum(probs[best] ** 2 * noise[best])
    + mass**2 * np.sum(given_rest * noise[rest])
    + variance_of_draw((f - mean_f) * score)
  )


def write_csv(path, rows):
  settings = {'seed': _SEED.value, 'smoke': _SMOKE.value}
  tables.write(path, [{**row, **settings} for row in rows], num_digits=7)


def plot_paths(paths, path):
  figure, axes = plt.subplots(
    1, len(ESTIMATORS), figsize=(13, 4), sharey=True, layout='constrained'
  )
  for axis, name in zip(axes, ESTIMATORS):
    for k, style in zip(SUMMED, ('-', '--', '-.', ':')):
      if (name, k) not in paths:
        continue
      losses = paths[name, k]
      axis.plot(
        np.arange(1, len(losses) + 1), losses.mean(axis=1), style,
        label=f'{k} summed', linewidth=1.8,
      )  # fmt: skip
    axis.axhline(0.6705, color='grey', linewidth=0.8)
    axis.set(title=name, xlabel='step of SGD')
    axis.legend()
  num_trials = next(iter(paths.values())).shape[1]
  axes[0].set_ylabel(f'exact loss, mean of {num_trials} trials')
  figure.savefig(path, dpi=150)
  plt.close(figure)


def plot_gradients(draws, variances, path):
  etas = (0.0, -4.0)
  figure, axes = plt.subplots(
    2, len(etas), figsize=(10, 7), layout='constrained'
  )
  ks = sorted({k for _, _, k in variances})
  for column, eta in enumerate(etas):
    slope = 1 / (1 + np.exp(-eta))
    top, bottom = axes[0, column], axes[1, column]
    top.boxplot(
      [draws['REINFORCE+ (as published)', eta, k] for k in ks],
      positions=ks, flierprops={'markersize': 2},
    )  # fmt: skip
    top.axhline(
      -0.18 * slope * (1 - slope), color='black', linestyle='--', linewidth=0.8
    )
    top.set(
      title=f'eta = {eta:g}',
      ylabel='gradient, REINFORCE+ as published' if column == 0 else None,
    )
    for name, marker in zip(ESTIMATORS, 'osD'):
      exact = np.array([variances[name, eta, k][1] for k in ks])
      measured = np.array([variances[name, eta, k][0] for k in ks])
      line = bottom.plot(ks, np.where(exact > 1e-30, exact, np.nan))[0]
      bottom.plot(
        ks, np.where(measured > 1e-30, measured, np.nan), marker,
        color=line.get_color(), fillstyle='none', label=name,
      )  # fmt: skip
    bottom.set(
      yscale='log', xlabel='number of atoms summed, k',
      ylabel='variance (lines: exact; 0 not shown)' if column == 0 else None,
    )  # fmt: skip
  axes[1, 0].legend()
  figure.savefig(path, dpi=150)
  plt.close(figure)


def print_paths(paths):
  num_trials = next(iter(paths.values())).shape[1]
  print(f'\nExact loss, mean of {num_trials} trials (in brackets: the paper)')
  print(f'{"":34s}' + ''.join(f'{f"step {s}":>17s}' for s in PAPER_STEPS))
  for (name, k), losses in paths.items():
    published = PAPER_LOSSES.get((name, k), (None,) * len(PAPER_STEPS))
    cells = []
    for step, value in zip(PAPER_STEPS, published):
      ours = losses[step - 1].mean() if step <= len(losses) else np.nan
      cells.append(f'{ours:9.4f} ({value:.3f})' if value else f'{ours:9.4f}')
    print(f'{name:26s} k = {k}  ' + ''.join(f'{c:>17s}' for c in cells))


def print_variances(variances):
  print('\nVariance of the gradient: measured / exact')
  for eta in PAPER_VARIANCES:
    print(f'eta = {eta:g}')
    titles = [
      *(f'{name:>28s}' for name in ESTIMATORS),
      '  the authors (ties!)',
    ]
    print('  k' + ''.join(titles))
    for k in sorted({k for _, _, k in variances}):
      cells = [
        # Variances that are squared rounding errors are printed as 0.
        '{:12.3e} / {:10.3e}'.format(
          *(x if x > 1e-30 else 0.0 for x in variances[name, eta, k])
        )
        for name in ESTIMATORS
      ]
      print(
        f'  {k}'
        + ''.join(f'{c:>28s}' for c in cells)
        + f'{PAPER_VARIANCES[eta][k]:22.3e}'
      )


def all_loss_paths(ks, trials, steps):
  """Returns exact losses, `{(estimator, k): array [steps, trials]}`."""
  settings = [(name, k) for name in ESTIMATORS for k in ks]
  paths = {}
  with tqdm.tqdm(total=len(settings) * steps, unit='step') as bar:
    for name, k in settings:
      bar.set_description(f'{name}, k = {k}')
      paths[name, k] = loss_paths(
        name, k, trials, steps, _SEED.value, progress=bar.update,
        # Compilation takes longer than a few steps.
        jit_compile=not _SMOKE.value,
      )  # fmt: skip
  return paths


def all_variances(ks, num_draws):
  """Returns draws of the gradient, and its variances.

  Args:
    ks: Numbers of atoms that are summed.
    num_draws: Python `int`, the number of draws for each variance.

  Returns:
    draws: `{(estimator, eta, k): array [num_draws]}`.
    variances: `{(estimator, eta, k): (measured, exact)}`.
  """
  draws, variances = {}, {}
  etas = list(PAPER_VARIANCES)
  cases = [(name, k) for name in ESTIMATORS for k in ks]
  for name, k in tqdm.tqdm(cases, unit='variance'):
    gradients = gradient_draws(name, k, etas, num_draws, _SEED.value)
    for eta, row in zip(etas, gradients):
      draws[name, eta, k] = row
      variances[name, eta, k] = np.var(row), exact_variance(name, k, eta)
  return draws, variances


def path_rows(paths):
  """Returns the rows of the table of losses."""
  return [
    {
      'estimator': name,
      'num_summed': k,
      'step': step + 1,
      'mean_loss': row.mean(),
      'standard_error': row.std() / len(row) ** 0.5,
      'trials': len(row),
    }
    for (name, k), losses in paths.items()
    for step, row in enumerate(losses)
  ]


def variance_rows(variances, num_draws):
  """Returns the rows of the table of variances."""
  return [
    {
      'estimator': name,
      'eta': eta,
      'num_summed': k,
      'measured': measured,
      'exact': exact,
      'draws': num_draws,
    }
    for (name, eta, k), (measured, exact) in variances.items()
  ]


def main(argv):
  del argv
  # TensorFlow would warn that there is one function for each k.
  tf.get_logger().setLevel('ERROR')
  trials, steps, num_draws = _TRIALS.value, _STEPS.value, _DRAWS.value
  path_ks, variance_ks = SUMMED, range(NUM_ATOMS + 1)
  if _SMOKE.value:
    trials, steps, num_draws = 4, 100, 500
    path_ks, variance_ks = (0, NUM_ATOMS), (0, NUM_ATOMS)
  os.makedirs(_OUTPUT_DIR.value, exist_ok=True)
  in_output = lambda name: os.path.join(_OUTPUT_DIR.value, name)
  paths = all_loss_paths(path_ks, trials, steps)
  draws, variances = all_variances(variance_ks, num_draws)
  write_csv(in_output('paths.csv'), path_rows(paths))
  write_csv(in_output('variances.csv'), variance_rows(variances, num_draws))
  plot_paths(paths, in_output('figure_1_loss_paths.png'))
  plot_gradients(draws, variances, in_output('figure_2_gradients.png'))
  print_paths(paths)
  print_variances(variances)
  print(f'\nThe figures and the CSV files are in {_OUTPUT_DIR.value}.')


if __name__ == '__main__':
  app.run(main)
