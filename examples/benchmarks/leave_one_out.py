# SPDX-License-Identifier: Apache-2.0
"""Compares exact variances of several leave-one-out baselines.

For draw `j`, `tfp_rb.baselines.LeaveOneOut` uses the level
`a F + (1 - a) mu_j`, where `F` is the mean of `f` over the summed atoms, and
`mu_j` is its mean over the other draws. The script compares three choices of
`a`: 'rest' is a = 0, 'all' is a = 1 - R with R = q(rest), and 'mixed' is
a = (1 - R) R / (2 (M - 1)^2). With a single draw it compares four levels: 0,
B = (1 - R) F, F, and the mean of `f` over the summed atoms with weights
proportional to 1 / q. The script enumerates all draws, and uses only NumPy.

The problems have 3 to 10 values. `q` is flat (logits of scale 0.1 to 0.5),
medium (1 to 2) or concentrated (3 to 6). `f` is normal, normal plus 10, falling
with log q, low at the top atom, or has an outlier. There are k = 1 to 5 summed
atoms and M = 1 to 4 draws, and also the k and M that a budget of 2 to 6
evaluations chooses.

  python -m examples.benchmarks.leave_one_out
"""

import itertools

from absl import app, flags
import numpy as np
import tqdm

_PROBLEMS = flags.DEFINE_integer(
  'problems', 40, 'Number of problems of each kind.'
)
_SEED = flags.DEFINE_integer('seed', 1, 'Seed of the problems.')

SCALES = ((0.1, 0.5), (1.0, 2.0), (3.0, 6.0))
KINDS = ('normal', 'plus 10', 'falling', 'top low', 'outlier')
MOST_VALUES = {1: 10, 2: 10, 3: 8, 4: 7}
LEAST_REST = 1e-4


def make_problems(rng, num_values, count):
  """Returns sorted probabilities and costs, `[problems, num_values]` each."""
  all_q, all_f = [], []
  for (low, high), kind in itertools.product(SCALES, KINDS):
    scale = rng.uniform(low, high, [count, 1])
    q = np.exp(scale * rng.normal(size=[count, num_values]))
    q = -np.sort(-q / q.sum(axis=1, keepdims=True), axis=1)
    f = rng.normal(size=q.shape)
    if kind == 'plus 10':
      f += 10.0
    elif kind == 'falling':
      f = rng.uniform(0.1, 1.0, [count, 1]) * f
      f -= rng.uniform(0.5, 2.0, [count, 1]) * np.log(q)
    elif kind == 'top low':
      f[:, 0] -= rng.uniform(1.0, 5.0, count)
    elif kind == 'outlier':
      where = rng.integers(num_values // 2, num_values, count)
      f[np.arange(count), where] += rng.choice([-8.0, 8.0], count)
    all_q.append(q)
    all_f.append(f)
  return np.concatenate(all_q), np.concatenate(all_f)


def variances(q, f, num_summed, num_draws):
  """Returns exact total gradient variances w.r.t. the logits, for each form."""
  rest = np.minimum(q[:, num_summed:].sum(axis=1), 1.0)
  given_rest = q[:, num_summed:] / rest[:, None]
  tuples = np.array(
    list(itertools.product(range(given_rest.shape[1]), repeat=num_draws))
  )  # [outcomes, draws]
  probs = given_rest[:, tuples].prod(axis=2)  # [problems, outcomes]
  drawn = f[:, num_summed:][:, tuples]  # [problems, outcomes, draws]
  one_hot = np.eye(given_rest.shape[1])[tuples]
  gradient = q * (f - (q * f).sum(axis=1, keepdims=True))

  def variance(level):  # The shape is [problems, outcomes, draws].
    mean_level = level.mean(axis=2, keepdims=True)
    parts = np.concatenate(
      [
        q[:, None, :num_summed] * (f[:, None, :num_summed] - mean_level),
        np.einsum('ptm,tmz->ptz', drawn - level, one_hot)
        * (rest / num_draws)[:, None, None],
      ],
      axis=2,
    )
    estimate = parts - q[:, None] * parts.sum(axis=2, keepdims=True)
    error = np.sum((estimate - gradient[:, None]) ** 2, axis=2)
    return np.sum(probs * error, axis=1)

  nothing = np.zeros_like(drawn)
  summed = (q[:, :num_summed] * f[:, :num_summed]).sum(axis=1)
  mean_summed = summed / (1.0 - rest) if num_summed else summed
  spread = lambda x: x[:, None, None] + nothing
  if num_draws == 1:
    total = (1.0 / q[:, :num_summed]).sum(axis=1)
    return {
      'none': variance(nothing),
      'B': variance(spread(summed)),
      'B / (1 - R)': variance(spread(mean_summed)),
      '1 / q': variance(spread((f / q)[:, :num_summed].sum(axis=1) / total)),
    }
  others = (drawn.sum(axis=2, keepdims=True) - drawn) / (num_draws - 1)
  mix = lambda a: variance(spread(a * mean_summed) + (1 - spread(a)) * others)
  return {
    'rest': mix(0.0 * rest),
    'all': mix(1.0 - rest),
    'mixed': mix((1.0 - rest) * rest / (2.0 * (num_draws - 1) ** 2)),
    'none': variance(nothing),
    'unit': rest**2 * f.var(axis=1) / num_draws,
  }


def settings(rng, count):
  """Yields `(q, f, num_summed, num_draws)`."""
  for num_draws, most in MOST_VALUES.items():
    for num_values in range(3, most + 1):
      for num_summed in range(1, min(5, num_values - 2) + 1):
        yield *make_problems(rng, num_values, count), num_summed, num_draws
  for budget, num_values in itertools.product(range(2, 7), range(3, 11)):
    q, f = make_problems(rng, num_values, count)
    ks = np.arange(min(budget, num_values))
    left = 1.0 - np.cumsum(q, axis=1) + q  # The mass from atom k on.
    split = np.argmin(left[:, : len(ks)] / (budget - ks), axis=1)
    for k in ks:
      small = (num_values - k) ** (budget - k) <= 8000
      if small and num_values - k >= 2 and np.any(split == k):
        yield q[split == k], f[split == k], k, budget - k


def print_table(title, forms, reference):
  print(f'\n{title}: {len(reference)} problems')
  columns = ('geometric mean', 'median', '95 %', '99 %', 'largest')
  print(f'{"":12s}' + ''.join(f'{c:>16s}' for c in columns))
  for name, variance in forms.items():
    ratio = variance / reference
    numbers = [np.exp(np.mean(np.log(ratio)))]
    numbers += list(np.quantile(ratio, [0.5, 0.95, 0.99, 1.0]))
    print(f'{name:12s}' + ''.join(f'{x:16.3g}' for x in numbers))


def main(argv):
  del argv
  rng = np.random.default_rng(_SEED.value)
  one_draw, several = [], []
  for q, f, num_summed, num_draws in tqdm.tqdm(
    list(settings(rng, _PROBLEMS.value))
  ):
    kept = q[:, num_summed:].sum(axis=1) >= LEAST_REST
    if num_summed and np.any(kept):
      found = variances(q[kept], f[kept], num_summed, num_draws)
      (one_draw if num_draws == 1 else several).append(found)
  join = lambda parts: {
    name: np.concatenate([p[name] for p in parts]) for name in parts[0]
  }
  several, one_draw = join(several), join(one_draw)
  unit = several.pop('unit')
  print_table(
    "Several draws: variance relative to the better of 'rest' and 'all'",
    several,
    np.minimum(several['rest'], several['all']),
  )
  for name in ('all', 'mixed'):
    excess = np.max((several[name] - several['rest']) / unit)
    print(
      f"largest excess of '{name}' over 'rest', in units of R^2 Var[f] / M: "
      f'{excess:.2f}'
    )
  print_table(
    'One draw: variance relative to the least of the four',
    one_draw,
    np.min(list(one_draw.values()), axis=0),
  )


if __name__ == '__main__':
  app.run(main)
