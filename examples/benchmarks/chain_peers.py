# SPDX-License-Identifier: Apache-2.0
"""Compares chains with torch-struct and hmmlearn on random problems.

* torch-struct: log-partition, scores of the k best paths, marginals of pairs of
  states, entropy, and the log-probability of paths that `tfp_rb` draws, for
  linear-chain conditional random fields (`CategoricalChain.from_potentials`).
* hmmlearn: evidence, the score of the mode, and marginals of the states, for
  hidden Markov models (`CategoricalChain.posterior`).

  pip install -e '.[benchmarks]'
  python -m examples.benchmarks.chain_peers

All computations are in float64. The script prints the largest absolute
difference of each quantity, and writes the table to `--output_dir`. It fails if
a difference is larger than 1e-8. If a library is not installed, the script says
so and skips it.
"""

import csv
import pathlib

from absl import app, flags
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
import tqdm

import tfp_rb

try:
  import torch
  import torch_struct
except ImportError:
  torch_struct = None
try:
  from hmmlearn import hmm as hmmlearn
except ImportError:
  hmmlearn = None

FLAGS = flags.FLAGS
INSTALL = "not installed: pip install -e '.[benchmarks]'"
MOST = 1e-8
NUM_PATHS = 8
# Numbers of states, of steps and of rows. There are few combinations, because
# each of them is traced once.
SIZES = ((2, 4, 3), (3, 40, 2), (4, 3, 1), (5, 12, 1), (7, 25, 2))

tfd = tfp.distributions
CategoricalChain = tfp_rb.distributions.CategoricalChain


def difference(a, b):
  return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


def random_field(rng):
  """Returns random log-potentials of a batch of linear chains."""
  num_states, num_steps, rows = SIZES[rng.integers(len(SIZES))]
  scale = rng.choice([0.2, 1.0, 4.0])
  unary = scale * rng.normal(size=[rows, num_steps, num_states])
  shape = [rows, num_steps - 1, num_states, num_states]
  return unary, scale * rng.normal(size=shape)


def edges_of(paths, num_states):
  """Returns the one-hot pairs of successive states of paths.

  Rows are the states after a transition, and columns those before.
  """
  one_hot = np.eye(num_states)[paths]
  return np.ascontiguousarray(
    one_hot[..., 1:, :, np.newaxis] * one_hot[..., :-1, np.newaxis, :]
  )


def against_torch_struct(rng):
  """Returns differences on a random problem, by quantity."""
  unary, pairwise = random_field(rng)
  num_states = unary.shape[-1]
  chain = CategoricalChain.from_potentials(unary, pairwise)
  # torch-struct adds the first unary potential to the first edge. Columns are
  # states before the transition.
  edges = pairwise + unary[:, 1:, np.newaxis]
  edges[:, 0] += unary[:, 0, :, np.newaxis]
  edges = torch.tensor(
    np.ascontiguousarray(np.swapaxes(edges, -1, -2)), requires_grad=True
  )
  field = torch_struct.LinearChainCRF(edges)
  num_paths = min(NUM_PATHS, num_states ** unary.shape[1])
  best = tfp_rb.partition(chain, num_paths)
  of_torch = lambda x: x.detach().numpy()
  scores = of_torch(field.kmax(num_paths) - field.partition)
  draws = chain.sample(5, seed=[0, int(rng.integers(2**30))])
  drawn = [
    of_torch(field.log_prob(torch.tensor(edges_of(z, num_states))))
    for z in draws.numpy()
  ]
  _, pairs = chain.marginals()
  return {
    'log-partition': difference(
      chain.log_normalizer, of_torch(field.partition)
    ),
    'log-weights of the best paths': difference(best.log_weights, scores),
    'marginals of pairs': difference(
      np.swapaxes(pairs, -1, -2), of_torch(field.marginals)
    ),
    'entropy': difference(chain.entropy(), of_torch(field.entropy)),
    'log_prob of draws': difference(chain.log_prob(draws), np.array(drawn)),
  }


def against_hmmlearn(rng):
  """Returns differences on a random problem, by quantity."""
  num_states, num_steps, _ = SIZES[rng.integers(len(SIZES))]
  num_symbols = rng.integers(2, 7)
  initial = rng.dirichlet(np.ones(num_states))
  transitions = rng.dirichlet(np.ones(num_states), num_states)
  emissions = rng.dirichlet(np.ones(num_symbols), num_states)
  x = rng.integers(0, num_symbols, num_steps)
  model = tfd.HiddenMarkovModel(
    tfd.Categorical(probs=tf.constant(initial)),
    tfd.Categorical(probs=tf.constant(transitions)),
    tfd.Categorical(probs=tf.constant(emissions)),
    num_steps=num_steps,
  )
  chain = CategoricalChain.posterior(model, tf.constant(x, tf.int32))
  peer = hmmlearn.CategoricalHMM(num_states, n_features=num_symbols)
  peer.startprob_, peer.transmat_ = initial, transitions
  peer.emissionprob_ = emissions
  column = x[:, np.newaxis]
  evidence = peer.score(column)
  # Several paths may be equally good, since a change of state costs the same
  # before and after a repeated symbol. So the script compares the scores.
  score, _ = peer.decode(column)
  unary, _ = chain.marginals()
  return {
    'log-evidence': difference(chain.log_normalizer, evidence),
    'log_prob of the mode': difference(
      chain.log_prob(chain.mode()), score - evidence
    ),
    'marginals of states': difference(unary, peer.predict_proba(column)),
  }


PEERS = {
  'torch-struct': (torch_struct, against_torch_struct),
  'hmmlearn': (hmmlearn, against_hmmlearn),
}


def compare(num_problems, seed):
  """Returns the rows of the table: the largest difference by quantity."""
  table = []
  for peer, (module, compare_once) in PEERS.items():
    if module is None:
      print(f'{peer} is {INSTALL}')
      continue
    rng, largest = np.random.default_rng(seed), {}
    for _ in tqdm.trange(num_problems, desc=peer, unit='problem'):
      for quantity, x in compare_once(rng).items():
        largest[quantity] = max(largest.get(quantity, 0.0), x)
    table += [
      {'library': peer, 'quantity': quantity, 'problems': num_problems,
       'largest_difference': x}
      for quantity, x in largest.items()
    ]  # fmt: skip
  return table


def main(argv):
  del argv
  table = compare(3 if FLAGS.smoke else FLAGS.problems, FLAGS.seed)
  if not table:
    return
  output_dir = pathlib.Path(FLAGS.output_dir)
  output_dir.mkdir(parents=True, exist_ok=True)
  with (output_dir / 'peers.csv').open('w', newline='') as file:
    writer = csv.DictWriter(file, list(table[0]), lineterminator='\n')
    writer.writeheader()
    for row in table:
      x = row['largest_difference']
      writer.writerow({**row, 'largest_difference': f'{x:.2g}'})
      print(f'{row["library"]:14s}{row["quantity"]:32s}{x:10.2g}')
  wrong = [r for r in table if not r['largest_difference'] <= MOST]
  if wrong:
    raise SystemExit(f'Differences must be at most {MOST}; got {wrong}.')


if __name__ == '__main__':
  flags.DEFINE_integer('problems', 200, 'Random problems for each library.')
  flags.DEFINE_integer('seed', 0, 'Seed of the problems.')
  flags.DEFINE_bool('smoke', False, 'Runs only three problems.')
  flags.DEFINE_string('output_dir', 'outputs/chains', 'Folder for the table.')
  app.run(main)
