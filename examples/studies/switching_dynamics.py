# SPDX-License-Identifier: Apache-2.0
"""Fits a switching linear dynamical system with posteriors over whole paths.

Each of 8 series has 200 steps and 3 regimes. Given the regimes, the state is
Gaussian, and `f` is the log-likelihood of a Kalman filter that runs along the
whole path. `f` is not a sum over the steps, so its expectation has no closed
form. The script maximises the ELBO. It learns the dynamics, which all series
share, and for each series a posterior over its 3^200 paths. The posterior is a
mean field (independent regimes) or a chain (`CategoricalChain`). The estimators
are:

* by step: sums all three regimes of one step at a time, given the regimes of
  all other steps (`local_expectation`). For a chain the baseline is a running
  mean of the loss of each series;
* draws: draws whole paths, with a leave-one-out baseline;
* 8 best + draws: sums the 8 best paths, and draws from all others;
* pooled: spends one budget on all series.

In each optimizer step, the methods of the first group evaluate `f` 401 times
per series, as often as `local_expectation` requires. The methods of the second
group evaluate it 40 times, which is the most that a pooled budget can use, and
run ten times as many steps. So all runs have the same total number of
evaluations, which the script counts and prints. All runs start from the same
dynamics, found by clustering the angles of short windows, and from a uniform
distribution of the paths. Each method runs at every step size of the same grid
(Adam with cosine decay to 0; the dynamics have a fixed initial step size), and
the script reports the run with the best final ELBO.

A second part fits series of 8 steps at the true dynamics. There all 3^8 paths
can be listed, so the divergence from the posterior is exact, and the estimator
`Exact` shows how close each family can come.

  python -m examples.studies.switching_dynamics

If a run is stopped, start it again with the same flags: it continues where it
stopped, and ends with the same numbers.
"""

import functools
import pathlib
import time

from absl import app, flags
import keras
import numpy as np
import tensorflow as tf
import tqdm

from examples.shared import kept_files, training_runs
from examples.studies import (
  switching_methods,
  switching_model,
  switching_report,
)
import tfp_rb

FLAGS = flags.FLAGS
DYNAMICS_RATE = 0.02
LEVEL_DECAY = 0.9
NUM_EVALUATION_DRAWS = 200


class Fit:
  """A method with given series, compiled once for all step sizes."""

  def __init__(
    self, method, y, start, num_evaluations, learns_dynamics, jit_compile=True
  ):
    """Creates variables, and traces one step to count its evaluations.

    Args:
      method: `Method`.
      y: Observations `[S, T, 2]`.
      start: `Dynamics` to start from.
      num_evaluations: Python `int`, evaluations per series and step.
      learns_dynamics: Python `bool`.
      jit_compile: Python `bool`.
    """
    num_series, num_steps = y.shape[:2]
    self.model = switching_model.Model(y, start)
    self.surrogate = switching_methods.make_surrogate(
      method.is_chain, num_series, num_steps
    )
    self._levels = tf.Variable(tf.zeros([num_series]))
    self._is_first = tf.Variable(True)
    self._make = functools.partial(method.make, num_evaluations, num_series)
    groups = [list(self.surrogate.trainable_variables)]
    if learns_dynamics:
      groups.append(list(self.model.trainable_variables))
    self._groups = [(keras.optimizers.Adam(), group) for group in groups]
    for optimizer, group in self._groups:
      optimizer.build(group)
    self._start = [v.numpy() for v in self.variables]
    compiled = functools.partial(
      tf.function, jit_compile=jit_compile, autograph=False
    )
    self._step, self._elbo = map(compiled, (self._one_step, self._estimate))
    self.evaluations = None  # The count per step and series, set below.
    self._step.get_concrete_function(tf.constant([0, 0]))

  @property
  def variables(self):
    """All variables that a checkpoint must contain."""
    own = [self._levels, self._is_first]
    for optimizer, group in self._groups:
      own += [*group, *(v for v in optimizer.variables if v.dtype != 'string')]
    return own

  def restart(self):
    """Resets all variables to their initial values."""
    for variable, value in zip(self.variables, self._start, strict=True):
      variable.assign(value)

  def _one_step(self, seed):
    counts = []

    def target(z, rows=None):
      own = 1 if rows is None else self.model.y.shape[0]
      counts.append(z.shape[0] / own)
      return self.model.log_joint(z, rows)

    variables = [v for _, group in self._groups for v in group]
    with tf.GradientTape() as tape:
      loss = tfp_rb.vi.monte_carlo_variational_loss(
        target,
        self.surrogate,
        gradient_estimator=self._make(self._levels.read_value()),
        seed=seed,
      )
      mean = tf.reduce_mean(loss)
    self.evaluations = sum(counts)
    gradients = iter(tape.gradient(mean, variables))
    for optimizer, group in self._groups:
      optimizer.apply_gradients([(next(gradients), v) for v in group])
    decay = tf.where(self._is_first, 0.0, LEVEL_DECAY)
    self._levels.assign(decay * self._levels + (1.0 - decay) * loss)
    self._is_first.assign(False)

  def _estimate(self, seed):
    """Estimates the ELBO of each series from new draws and exact entropies."""
    z = self.surrogate.sample(NUM_EVALUATION_DRAWS, seed=seed)
    log_joint = tf.reduce_mean(self.model.log_joint(z), axis=0)
    return log_joint + self.surrogate.entropy()

  def train(self, first, last, num_steps, rate, seed):
    """Runs steps, and returns the CPU seconds that they took.

    Other programs hardly affect CPU seconds.
    """
    start = time.process_time()
    for i in range(first, last):
      decay = 0.5 * (1.0 + np.cos(np.pi * i / num_steps))
      rates = (rate * decay, DYNAMICS_RATE * decay)
      for (optimizer, _), value in zip(self._groups, rates, strict=False):
        optimizer.learning_rate = value
      self._step(tf.constant([seed, i]))
    self._levels.numpy()  # This waits for the last step.
    return time.process_time() - start

  def elbo(self, seed):
    """Returns the estimated ELBO, averaged over the series."""
    return float(tf.reduce_mean(self._elbo(tf.constant([seed, 2**30]))))


def exact_divergence(fit, posterior):
  """Computes the mean of `KL(q || p)` over the series from all paths.

  Args:
    fit: `Fit`.
    posterior: Log-probabilities `[K^T, S]`.

  Returns:
    divergence: Python `float`.
  """
  paths = switching_model.all_paths(fit.model.y.shape[1])
  log_q = fit.surrogate.log_prob(paths[:, np.newaxis])
  terms = tf.math.multiply_no_nan(log_q - posterior, tf.exp(log_q))
  return float(tf.reduce_mean(tf.reduce_sum(terms, axis=0)))


def exact_posterior(y, dynamics):
  """Returns log-probabilities `[K^T, S]` of paths, and log evidences `[S]`."""
  model = switching_model.Model(y, dynamics)
  paths = switching_model.all_paths(y.shape[1])
  z = np.repeat(paths[:, np.newaxis], len(y), axis=1)
  log_joint = tf.function(model.log_joint)(tf.constant(z))
  evidence = tf.reduce_logsumexp(log_joint, axis=0)
  return log_joint - evidence, evidence


def run(fit, path, setting, measure, restart, bar):
  """Fits at one step size, or resumes a run that was stopped.

  Args:
    fit: `Fit`.
    path: `pathlib.Path` of the checkpoint.
    setting: Tuple of the step size, the number of steps, the number of steps
      between two measurements, and the seed.
    measure: Callable that maps a `Fit` to a dictionary of numbers.
    restart: Python `bool`, whether to start again if the file is damaged.
    bar: A progress bar, which advances by one for each measurement.

  Returns:
    rows: List of dictionaries, one for each measurement.
  """
  rate, num_steps, every, seed = setting
  fit.restart()
  rows = load(fit, path, restart)
  if not rows:
    rows = [{'step': 0, 'evaluations': 0.0, 'seconds': 0.0, **measure(fit)}]
    # The first step includes compilation, which must not be timed.
    fit.train(0, 1, num_steps, rate, seed)
    fit.restart()
  bar.update(len(rows) - 1)
  while (done := int(rows[-1]['step'])) < num_steps:
    last = min(done + every, num_steps)
    seconds = fit.train(done, last, num_steps, rate, seed)
    rows.append({
      'step': last, 'evaluations': last * fit.evaluations,
      'seconds': rows[-1]['seconds'] + seconds, **measure(fit),
    })  # fmt: skip
    save(fit, path, rows)
    bar.update()
  return rows


def save(fit, path, rows):
  """Writes all variables and rows to one file, or leaves the old file."""
  content = {f'variable_{i}': v.numpy() for i, v in enumerate(fit.variables)}
  content |= {name: [row[name] for row in rows] for name in rows[0]}
  unfinished = path.with_suffix('.part')
  path.parent.mkdir(parents=True, exist_ok=True)
  num_bytes = sum(np.asarray(x).nbytes for x in content.values())
  with (
    kept_files.room_for(path, num_bytes, unfinished),
    unfinished.open('wb') as file,
  ):
    np.savez(file, **content)
  kept_files.put(unfinished, path)


def load(fit, path, restart):
  """Loads the file that `save` wrote; returns no rows if there is none."""
  if not kept_files.is_known(path):
    return []
  problem = kept_files.problem_of(path)
  if problem:
    message = f'`{path}` {problem}.'
    if not restart:
      raise kept_files.Refused(
        f'{message} Restore it from a copy, or pass `--restart` to fit again.'
      )
    print(f'{message} The fit starts again.')
    return []
  with np.load(path, allow_pickle=False) as content:
    for i, variable in enumerate(fit.variables):
      variable.assign(content[f'variable_{i}'])
    names = [x for x in content.files if not x.startswith('variable_')]
    columns = [content[name].tolist() for name in names]
  return [dict(zip(names, values)) for values in zip(*columns, strict=True)]


def compare(part, methods, y, start, settings, measure, output):
  """Fits with all methods at all step sizes.

  Args:
    part: Python `str`, the name of the folder.
    methods: Dictionary of `Method`s.
    y: Observations `[S, T, 2]`.
    start: `Dynamics` to start from; they are learned if `part` is 'long'.
    settings: Dictionary with `rates`, `steps`, `every`, `seed`, `restart`
        and `jit_compile`.
    measure: Callable that maps a `Fit` to a dictionary of numbers.
    output: `pathlib.Path` of the folder.

  Returns:
    rows: List of dictionaries, the measurements of all runs.
    best: Dictionary that maps each method to its best step size, with the
      marginals and dynamics of this fit.
  """
  num_evaluations = y.shape[1] * (switching_model.NUM_REGIMES - 1) + 1
  rows, best = [], {}
  num_points = -(-settings['steps'] // settings['every'])
  total = num_points * len(methods) * len(settings['rates'])
  with tqdm.tqdm(total=total, unit='point') as bar:
    for name, method in methods.items():
      bar.set_description(f'{part}, {name}')
      fit = Fit(
        method, y, start, num_evaluations, part == 'long',
        settings['jit_compile'],
      )  # fmt: skip
      num_steps, every = settings['steps'], settings['every']
      # Methods with fewer evaluations per step run more steps, so that the
      # total number of evaluations is equal.
      if 'exact' not in name:
        every = max(1, round(every * num_evaluations / fit.evaluations))
        num_steps = num_points * every
      for rate in settings['rates']:
        found = run(
          fit, output / part / name / f'{rate:g}.npz',
          (rate, num_steps, every, settings['seed']), measure,
          settings['restart'], bar,
        )  # fmt: skip
        rows += [{'method': name, 'step_size': rate, **row} for row in found]
        loss = switching_report.loss_of(found[-1])
        if name not in best or loss < best[name]['loss']:
          best[name] = {
            'loss': loss, 'step_size': rate,
            'marginals': switching_methods.marginals_of(fit.surrogate).numpy(),
            'dynamics': fit.model.dynamics(),
          }  # fmt: skip
  return rows, best


def measure_long(z, seed, fit):
  found = switching_methods.marginals_of(fit.surrogate).numpy().argmax(axis=-1)
  share, order = switching_model.best_permutation(found, z)
  dynamics, truth = fit.model.dynamics(), switching_model.TRUTH
  error = lambda name: float(
    np.abs(getattr(dynamics, name)[order] - getattr(truth, name)).mean()
  )
  return {
    'elbo': fit.elbo(seed), 'right_regimes': share,
    **{f'{x}_error': error(x) for x in ('angle', 'radius', 'scale')},
  }  # fmt: skip


def main(argv):
  del argv
  # TensorFlow would warn that there is a function for each method.
  tf.get_logger().setLevel('ERROR')
  output = pathlib.Path(FLAGS.output_dir)
  about = {
    name: FLAGS[name].value
    for name in ('series', 'length', 'steps', 'short_steps', 'step_sizes',
                 'seed', 'smoke')
  }  # fmt: skip
  long_steps, short_steps, length, num_series = (
    FLAGS.steps, FLAGS.short_steps, FLAGS.length, FLAGS.series
  )  # fmt: skip
  settings = {
    'rates': [float(x) for x in FLAGS.step_sizes], 'seed': FLAGS.seed,
    'restart': FLAGS.restart, 'jit_compile': not FLAGS.smoke,
  }  # fmt: skip
  if FLAGS.smoke:
    long_steps, short_steps, length, num_series = 2, 2, 12, 2
    settings['rates'] = settings['rates'][:1]
  every = lambda steps: max(1, steps // 20)

  with kept_files.lock(output / 'run.lock'):
    training_runs.start_of(
      output / 'settings.json', about, dict, FLAGS.restart
    )  # fmt: skip
    z, y = switching_model.simulate(num_series, length, FLAGS.seed)
    long = compare(
      'long', switching_methods.METHODS, y, switching_model.first_guess(y),
      {**settings, 'steps': long_steps, 'every': every(long_steps)},
      functools.partial(measure_long, z, FLAGS.seed), output,
    )  # fmt: skip
    _, short_y = switching_model.simulate(8, 4 if FLAGS.smoke else 8, 1)
    posterior, _ = exact_posterior(short_y, switching_model.TRUTH)
    short = compare(
      'short', switching_methods.SHORT_METHODS, short_y, switching_model.TRUTH,
      {**settings, 'steps': short_steps, 'every': every(short_steps)},
      lambda fit: {'kl': exact_divergence(fit, posterior)}, output,
    )  # fmt: skip
    switching_report.report(output, long, short, z)
  print(
    f'The figure and the CSV files are in {output}. The script took '
    f'{time.process_time():.0f} CPU seconds, including compilation.'
  )


def define_flags():
  """Defines the flags of the script; an import of the module defines none."""
  flags.DEFINE_integer('series', 8, 'Number of series.')
  flags.DEFINE_integer('length', 200, 'Number of time steps.')
  flags.DEFINE_integer('steps', 300, 'Number of optimizer steps.')
  flags.DEFINE_integer(
    'short_steps', 600, 'Number of optimizer steps on short series.'
  )
  flags.DEFINE_list(
    'step_sizes', ['0.03', '0.1', '0.3'],
    "Adam's step sizes for the posterior; each method runs with each of them.",
  )  # fmt: skip
  flags.DEFINE_integer('seed', 0, 'Seed for data and fits.')
  flags.DEFINE_string(
    'output_dir', 'outputs/switching_dynamics', 'Folder for all output files.'
  )
  flags.DEFINE_bool('restart', False, training_runs.RESTART_HELP)
  flags.DEFINE_bool('smoke', False, 'Makes a short run as a test.')


if __name__ == '__main__':
  define_flags()
  app.run(main)
