# SPDX-License-Identifier: Apache-2.0
"""Implements the autoencoder with hard attention in PyTorch, for `moving.py`.

The code is what a user would write: it gathers windows in a loop over the
locations.
"""

import functools
import math

try:
  import torch
except ImportError:
  torch = None

from examples.benchmarks import torch_estimators

FRAME, WINDOW, LATENT_DIM, HIDDEN, CHANNELS = 68, 28, 5, 256, 7
EPSILON, ENTROPY_WEIGHT = 1e-8, 64.0
INSTALL = "not installed: pip install -e '.[benchmarks]'"


def make_networks():
  """Returns the attention, the encoder and the decoder."""
  nn = torch.nn
  convolutions = []
  for before, after in ((1, CHANNELS), (CHANNELS,) * 2, (CHANNELS,) * 2):
    convolutions += [nn.Conv2d(before, after, 3), nn.ReLU()]
  return nn.ModuleDict({
    'attention': nn.Sequential(
      *convolutions,
      nn.Conv2d(CHANNELS, 1, 3),
      nn.Flatten(),
      nn.Linear((FRAME - 8) ** 2, FRAME**2),
    ),
    'encoder': nn.Sequential(
      nn.Linear(WINDOW**2, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * LATENT_DIM)
    ),
    'decoder': nn.Sequential(
      nn.Linear(LATENT_DIM, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, WINDOW**2)
    ),
  })  # fmt: skip


def place(digits):
  """Places digits at random locations of empty frames."""
  batch = torch.arange(len(digits))[:, None, None]
  starts = torch.randint(FRAME - WINDOW, [2, len(digits), 1])
  rows, columns = starts + torch.arange(WINDOW)
  frames = torch.zeros([len(digits), FRAME, FRAME])
  frames[batch, rows[:, :, None], columns[:, None, :]] = digits
  return frames


def negative_bound(networks, frames, locations):
  """Returns `f(x, l)` for binary frames and locations, with one draw of `z`."""
  half = WINDOW // 2
  padded = torch.nn.functional.pad(frames, [half, half - 1] * 2)
  rows, columns = (
    x[:, None] + torch.arange(WINDOW)
    for x in (locations // FRAME, locations % FRAME)
  )
  batch = torch.arange(len(frames))[:, None, None]
  windows = padded[batch, rows[:, :, None], columns[:, None, :]].flatten(1)
  inside = [((x >= half) & (x < FRAME + half)).float() for x in (rows, columns)]
  inside = (inside[0][:, :, None] * inside[1][:, None, :]).flatten(1)
  mean, log_scale = networks['encoder'](windows).chunk(2, -1)
  z = mean + log_scale.exp() * torch.randn_like(mean)
  probs = networks['decoder'](z).sigmoid()
  likelihood = inside * (
    windows * (probs + EPSILON).log()
    + (1.0 - windows) * (1.0 - probs + EPSILON).log()
  )
  num_lit = frames.sum([-2, -1])
  lit = num_lit - windows.sum(-1)
  unlit = FRAME**2 - num_lit - (inside - windows).sum(-1)
  outside = lit * math.log(EPSILON) + unlit * math.log1p(EPSILON)
  divergence = 0.5 * (mean**2 + (2.0 * log_scale).exp() - 1.0) - log_scale
  return divergence.sum(-1) - likelihood.sum(-1) - outside


def reinforce_plus(f, log_probs, location):
  """Returns the score function loss; the baseline is `f` at another draw."""
  value = f(location)
  with torch.no_grad():
    other = f(torch.multinomial(log_probs.exp(), 1)[:, 0])
  log_prob = log_probs.gather(1, location[:, None])[:, 0]
  return (value.detach() - other) * log_prob + value


def rao_blackwellized(f, log_probs, num_summed=5):
  """Sums the most probable locations, and draws another one from the rest."""
  return torch_estimators.rao_blackwellized(
    reinforce_plus, f, log_probs, num_summed
  )


def drawn(f, log_probs):
  location = torch.multinomial(log_probs.detach().exp(), 1)[:, 0]
  return reinforce_plus(f, log_probs, location)


def log_probs_of(networks, frames):
  return networks['attention'](frames[:, None]).log_softmax(-1)


def rows(digits):
  """Returns the rows of PyTorch, and the reasons for missing rows."""
  if torch is None:
    return {}, {('torch', ''): INSTALL}
  batches = [torch.tensor(batch).float() / 255.0 for batch in digits]

  def row(expectation):
    networks = make_networks()
    optimizer = torch.optim.Adam(networks.parameters(), 1e-3)

    def run(first=None):
      for batch in batches[:first]:
        frames = place(torch.bernoulli(batch))
        optimizer.zero_grad()
        log_probs = log_probs_of(networks, frames)
        f = functools.partial(negative_bound, networks, frames)
        negative_entropy = (log_probs.exp() * log_probs).sum(-1)
        loss = expectation(f, log_probs) + ENTROPY_WEIGHT * negative_entropy
        loss.mean().backward()
        optimizer.step()
      return loss.mean().item()

    return run, len(batches)

  return {
    ('torch', 'RB-REINFORCE+'): row(rao_blackwellized),
    ('torch', 'REINFORCE+'): row(drawn),
  }, {}
