# SPDX-License-Identifier: Apache-2.0
"""Compares the gradient variances of all estimators on three problems.

A layer decodes a one-hot `z`, and `f` compares the result with a target `x`:
`f(z) = |2 tanh(z W) - x|^2`. The target is near the decoded best value, as in a
trained model. There are three distributions: concentrated (10 values, of which
the best has 3/4 of the mass), flat (10 values) and large (1000 values, of which
the best has about 1/8 of the mass).

For every estimator, number `k` of summed atoms and number of draws, the script
prints the number of evaluations of `f`, the variance of the gradient w.r.t. the
logits (summed over the logits, in units of the squared norm of the exact
gradient), the product of the two, and for biased estimators the bias in units
of that norm.

NVIL, REBAR and RELAX are trained first, at the fixed distribution; the other
estimators need no training. Variances are measured over `--draws` gradients,
with a relative standard error of about 2 % (more for heavy tails). If a run is
interrupted, start it again, and it continues where it stopped.

  python -m examples.benchmarks.variance
"""

import csv
import pathlib

from absl import app, flags
import keras
import matplotlib
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

import tfp_rb

matplotlib.use('Agg')
import matplotlib.pyplot as plt

plt.style.use('seaborn-v0_8-colorblind')

tfb = tfp.bijectors
tfd = tfp.distributions

_DRAWS = flags.DEFINE_integer('draws', 20_000, 'Gradients of each estimator.')
_STEPS = flags.DEFINE_integer(
  'steps', 1_500, 'Training steps for NVIL, REBAR and RELAX.'
)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of problems and draws.')
_OUTPUT_DIR = flags.DEFINE_string(
  'output_dir', 'outputs/variance', 'Folder for the CSV and PNG files.'
)
_SMOKE = flags.DEFINE_bool(
  'smoke', False, 'Makes a few draws of a few estimators.'
)

PROBLEMS = ('concentrated', 'flat', 'large')


def make_problem(name, seed):
  """Returns logits, a function of one-hot vectors, and the exact gradient."""
  rng = np.random.default_rng(seed)
  num_values = 1000 if name == 'large' else 10
  scale = {'concentrated': 1.0, 'flat': 0.2, 'large': 2.4}[name]
  logits = scale * rng.normal(size=num_values)
  best = np.argmax(logits)
  if name == 'concentrated':  # The best value has a mass of 3/4.
    others = np.exp(np.delete(logits, best)).sum()
    logits[best] = np.log(3.0 * others)
  decoder = rng.normal(size=[num_values, 5])
  target = 2.0 * np.tanh(decoder[best]) + 0.5 * rng.normal(size=5)
  logits = tf.constant(logits, tf.float32)
  decoder = tf.constant(decoder, tf.float32)
  target = tf.constant(target, tf.float32)

  def f(z):
    decoded = 2.0 * tf.tanh(z @ decoder)
    return tf.reduce_sum((decoded - target) ** 2, axis=-1)

  with tf.GradientTape() as tape:
    tape.watch(logits)
    q = tfd.OneHotCategorical(logits=logits, dtype=tf.float32)
    loss = tfp_rb.expectation(f, q, tfp_rb.Exact())
  return logits, f, tape.gradient(loss, logits).numpy()


def control_variate():
  return keras.Sequential(
    [keras.layers.Dense(16, activation='tanh'), keras.layers.Dense(1)]
  )


def temperature():
  return tfp.util.TransformedVariable(0.5, tfb.Exp())


def loo():
  return tfp_rb.baselines.LeaveOneOut()


# Each entry has a callable that maps a number of draws to an estimator, a
# callable that maps `k` summed atoms and `M` draws to the number of evaluations
# of `f`, and a sampler.
IID = tfp_rb.samplers.IID()
SET = tfp_rb.samplers.WithoutReplacement()
STRATA = tfp_rb.samplers.Stratified()
plain = lambda k, m: k + m
ESTIMATORS = {
  'REINFORCE': (lambda m: tfp_rb.REINFORCE(num_samples=m), plain, IID),
  'REINFORCE+': (
    lambda m: tfp_rb.REINFORCE(
      tfp_rb.baselines.IndependentSample(), num_samples=m
    ),
    lambda k, m: k + m + 1,
    IID,
  ),
  'leave-one-out': (
    lambda m: tfp_rb.REINFORCE(baseline=loo(), num_samples=m),
    plain,
    IID,
  ),
  'leave-one-out, without replacement': (
    lambda m: tfp_rb.REINFORCE(baseline=loo(), num_samples=m),
    plain,
    SET,
  ),
  'NVIL': (
    lambda m: tfp_rb.REINFORCE(tfp_rb.baselines.Learned(), num_samples=m),
    plain,
    IID,
  ),
  'NVIL, stratified': (
    lambda m: tfp_rb.REINFORCE(tfp_rb.baselines.Learned(), num_samples=m),
    plain,
    STRATA,
  ),
  'MuProp': (
    lambda m: tfp_rb.MuProp(num_samples=m),
    lambda k, m: k + m + 1,
    IID,
  ),
  'REBAR': (
    lambda m: tfp_rb.REBAR(
      temperature(), scale=tf.Variable(1.0), num_samples=m
    ),
    lambda k, m: k + 2 * m,
    IID,
  ),
  'REBAR, not restricted': (
    lambda m: tfp_rb.REBAR(
      temperature(), scale=tf.Variable(1.0), restricted=False, num_samples=m
    ),
    lambda k, m: 2 * (k + m),
    IID,
  ),
  'RELAX': (
    lambda m: tfp_rb.RELAX(
      control_variate(),
      temperature=temperature(),
      scale=tf.Variable(1.0),
      num_samples=m,
    ),
    plain,
    IID,
  ),
  'RELAX, not restricted': (
    lambda m: tfp_rb.RELAX(
      control_variate(),
      temperature=temperature(),
      scale=tf.Variable(1.0),
      restricted=False,
      num_samples=m,
    ),
    plain,
    IID,
  ),
  'DARN': (lambda m: tfp_rb.DARN(num_samples=m), plain, IID),
  'Gumbel-softmax, straight-through': (
    lambda m: tfp_rb.GumbelSoftmax(0.5, num_samples=m),
    plain,
    IID,
  ),
  'Gumbel-softmax, straight-through, not restricted': (
    lambda m: tfp_rb.GumbelSoftmax(0.5, restricted=False, num_samples=m),
    plain,
    IID,
  ),
  'Gumbel-Rao, 16 noises': (
    lambda m: tfp_rb.GumbelSoftmax(0.5, num_noises=16, num_samples=m),
    plain,
    IID,
  ),
  'Gumbel-softmax, relaxed': (
    lambda m: tfp_rb.GumbelSoftmax(0.5, straight_through=False, num_samples=m),
    plain,
    IID,
  ),
  'ReinMax': (lambda m: tfp_rb.ReinMax(1.0, num_samples=m), plain, IID),
}
BIASED = ('DARN', 'Gumbel', 'ReinMax')
# (k, M): one draw with 0 to 3 summed atoms, and all splits of 4 evaluations.
SPLITS = ((0, 1), (1, 1), (2, 1), (3, 1), (2, 2), (1, 3), (0, 4))


def gradients_fn(estimator, logits, f, num_rows):
  """Returns a function that maps a seed to `num_rows` independent gradients."""

  @tf.function(autograph=False)
  def gradients(seed):
    rows = tf.broadcast_to(logits, [num_rows, *logits.shape])
    with tf.GradientTape() as tape:
      tape.watch(rows)
      q = tfd.OneHotCategorical(logits=rows, dtype=tf.float32)
      loss = tfp_rb.expectation(f, q, estimator, seed=seed)
    return tape.gradient(loss, rows)

  return gradients


def train(estimator, logits, f, num_steps, num_rows=32):
  """Trains the estimator's own variables at the fixed distribution."""
  if not estimator.trainable_variables:
    return
  # This call creates the variables of networks.
  gradients_fn(estimator, logits, f, num_rows)(tf.constant([0, 0]))
  variables = estimator.trainable_variables
  optimizer = keras.optimizers.Adam(
    keras.optimizers.schedules.CosineDecay(0.03, num_steps)
  )

  optimizer.build(variables)

  def step(i):
    rows = tf.broadcast_to(logits, [num_rows, *logits.shape])
    with tf.GradientTape() as tape:
      q = tfd.OneHotCategorical(logits=rows, dtype=tf.float32)
      loss = tfp_rb.expectation(f, q, estimator, seed=tf.stack([7, i]))
      loss = tf.reduce_mean(loss)
    gradients = tape.gradient(loss, variables)
    optimizer.apply_gradients(zip(gradients, variables, strict=True))
    return (i + 1,)

  @tf.function(autograph=False, jit_compile=True)
  def run():  # It runs all steps in one compiled loop.
    return tf.while_loop(lambda i: i < num_steps, step, (tf.constant(0),))

  run()


def measure(estimator, logits, f, exact, num_draws, seed):
  """Returns variance and bias, in units of the norm of the exact gradient."""
  num_rows = min(num_draws, 500 if logits.shape[0] > 100 else 5000)
  gradients = gradients_fn(estimator, logits, f, num_rows)
  num_calls = max(1, num_draws // num_rows)
  total, squares = 0.0, 0.0
  for i in range(num_calls):
    errors = gradients(tf.constant([seed, i])).numpy().astype(float) - exact
    total = total + errors.sum(axis=0)
    squares = squares + (errors**2).sum()
  n, norm = num_calls * num_rows, np.sum(exact**2)
  bias = np.sum((total / n) ** 2)
  variance = (squares / n - bias) * n / (n - 1)
  # The noise alone adds this much to the squared mean.
  bias = max(bias - variance / n, 0.0)
  return variance / norm, np.sqrt(bias / norm)


def read(path):
  """Returns the rows of a CSV file, or no rows if there is no file."""
  if not path.exists():
    return []
  with path.open(newline='') as file:
    rows = list(csv.DictReader(file))
  for row in rows:
    for key in ('k', 'M', 'evaluations', 'draws', 'steps', 'seed'):
      row[key] = int(row[key])
    for key in ('variance', 'variance_times_calls'):
      row[key] = float(row[key])
    row['bias'] = float(row['bias']) if row['bias'] else ''
  return rows


def write(rows, output_dir):
  output_dir.mkdir(parents=True, exist_ok=True)
  with (output_dir / 'variance.csv').open('w', newline='') as file:
    writer = csv.DictWriter(file, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)


def plot(rows, output_dir):
  """Plots variances against evaluations, in one panel per problem."""
  figure, axes = plt.subplots(1, 3, figsize=(13, 4.5), sharex=True)
  for axis, problem in zip(axes, PROBLEMS, strict=True):
    for i, name in enumerate(ESTIMATORS):
      if name.startswith(BIASED) or 'not restricted' in name:
        continue
      best = {}
      for row in rows:
        if row['problem'] == problem and row['estimator'] == name:
          calls = row['evaluations']
          best[calls] = min(row['variance'], best.get(calls, np.inf))
      if best:
        calls = sorted(best)
        axis.plot(
          calls,
          [best[c] for c in calls],
          marker='osv^Dx+*P'[i % 9],
          linestyle=('-', '--', ':', '-.')[i % 4],
          label=name,
        )
    axis.set(title=problem, yscale='log', xlabel='evaluations of f')
  axes[0].set_ylabel('variance of the gradient / |gradient|^2, best k')
  figure.suptitle('Estimators without bias, decoder of a one-hot z (simulated)')
  handles, labels = axes[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc='lower center', ncols=5, fontsize=8)
  figure.tight_layout(rect=(0.0, 0.1, 1.0, 1.0))
  figure.savefig(output_dir / 'variance.png', dpi=120)


def show(rows):
  for problem in PROBLEMS:
    chosen = [row for row in rows if row['problem'] == problem]
    if not chosen:
      continue
    print(
      f'\n{problem}\n{"estimator":50s} k  M  calls  variance  x calls  bias'
    )
    for row in sorted(chosen, key=lambda r: r['variance_times_calls']):
      bias = f'{row["bias"]:.3f}' if row['bias'] != '' else ''
      print(
        f'{row["estimator"]:50s} {row["k"]}  {row["M"]}  '
        f'{row["evaluations"]:5d}  {row["variance"]:8.4f}  '
        f'{row["variance_times_calls"]:7.3f}  {bias}'
      )


def summary(rows):
  """Returns a Markdown table of variance times evaluations.

  For each problem it has a column without sums, and one with the best sums.
  """

  def cell(chosen, with_split):
    if not chosen:
      return ''
    row = min(chosen, key=lambda r: r['variance_times_calls'])
    product = row['variance_times_calls']
    text = f'{product:.2f}' if product < 10.0 else f'{product:.0f}'
    if row['bias'] != '':
      text += f' (bias {row["bias"]:.2f})'
    return text + (f' at {row["k"]}, {row["M"]}' if with_split else '')

  lines = [
    '| estimator | ' + ' | '.join(f'{p} | summed' for p in PROBLEMS) + ' |',
    '|---' * (1 + 2 * len(PROBLEMS)) + '|',
  ]
  for name in ESTIMATORS:
    cells = [name]
    for problem in PROBLEMS:
      own = [
        r for r in rows if (r['problem'], r['estimator']) == (problem, name)
      ]
      cells += [
        cell([r for r in own if r['k'] == 0], False),
        cell([r for r in own if r['k'] > 0], True),
      ]
    if any(cells[1:]):
      lines.append('| ' + ' | '.join(cells) + ' |')
  return '\n'.join(lines)


def is_needed(name, k, m):
  """Returns whether a case makes sense and takes at most 6 evaluations."""
  _, evaluations, sampler = ESTIMATORS[name]
  is_alone = name.startswith('leave-one-out') and k + m < 2
  is_same = m == 1 and sampler is not IID
  is_whole = 'restricted' in name and k == 0
  return not (is_alone or is_same or is_whole) and evaluations(k, m) <= 6


def row_of(problem, made, name, k, m, num_draws, num_steps):
  """Trains an estimator, measures it, and returns a row of the table."""
  make, evaluations, sampler = ESTIMATORS[name]
  keras.utils.clear_session()
  keras.utils.set_random_seed(_SEED.value)
  estimator = tfp_rb.rao_blackwellize(make(m), num_summed=k, sampler=sampler)
  logits, f, exact = made
  train(estimator, logits, f, num_steps)
  variance, bias = measure(estimator, logits, f, exact, num_draws, _SEED.value)
  return {
    'problem': problem,
    'estimator': name,
    'k': k,
    'M': m,
    'evaluations': evaluations(k, m),
    'variance': variance,
    'variance_times_calls': variance * evaluations(k, m),
    'bias': bias if name.startswith(BIASED) else '',
    'draws': num_draws,
    'steps': num_steps,
    'seed': _SEED.value,
  }


def main(_):
  tf.get_logger().setLevel('ERROR')  # TensorFlow would warn of many graphs.
  num_draws, num_steps = _DRAWS.value, _STEPS.value
  problems, splits, names = PROBLEMS, SPLITS, list(ESTIMATORS)
  if _SMOKE.value:
    num_draws, num_steps = 100, 3
    problems, splits = PROBLEMS[:1], ((0, 1), (1, 1))
    names = ['REINFORCE', 'NVIL', 'ReinMax']
  output_dir = pathlib.Path(_OUTPUT_DIR.value)
  # Rows of an earlier run with the same flags are not measured again.
  rows = [
    row
    for row in read(output_dir / 'variance.csv')
    if (row['draws'], row['steps'], row['seed'])
    == (num_draws, num_steps, _SEED.value)
  ]
  done = {(r['problem'], r['estimator'], r['k'], r['M']) for r in rows}
  work = [
    (problem, name, k, m)
    for problem in problems
    for name in names
    for k, m in splits
    if is_needed(name, k, m) and (problem, name, k, m) not in done
  ]
  last, made = None, None
  for problem, name, k, m in tqdm.tqdm(work, disable=None):
    if problem != last:
      last, made = problem, make_problem(problem, _SEED.value)
    rows.append(row_of(problem, made, name, k, m, num_draws, num_steps))
    write(rows, output_dir)
  plot(rows, output_dir)
  show(rows)
  print(
    '\nVariance times evaluations, for k = 0 and for the best k and M:\n'
    f'{summary(rows)}'
  )
  print(f'\nThe table and the plot are in {output_dir}.')


if __name__ == '__main__':
  app.run(main)
