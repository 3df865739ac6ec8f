# SPDX-License-Identifier: Apache-2.0
"""Implements the semi-supervised autoencoder in PyTorch and storchastic.

The code is what a user would write. `semisupervised.py` measures both versions.
"""

import functools
import itertools

try:
  import torch
except ImportError:
  torch = None

from examples.benchmarks import torch_estimators

NUM_CLASSES, NUM_PIXELS, LATENT_DIM = 10, 784, 8
INSTALL = "not installed: pip install -e '.[benchmarks]'"


def make_networks():
  """Returns the classifier, the encoder and the decoder."""

  def network(*sizes):
    layers = []
    for pair in itertools.pairwise(sizes):
      layers += [torch.nn.Linear(*pair), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])

  return torch.nn.ModuleDict({
    'classifier': network(NUM_PIXELS, 256, 256, 256, NUM_CLASSES),
    'encoder': network(NUM_PIXELS + NUM_CLASSES, 128, 128, 2 * LATENT_DIM),
    'decoder': network(LATENT_DIM + NUM_CLASSES, 128, 128, NUM_PIXELS),
  })  # fmt: skip


def one_hot(labels):
  return torch.nn.functional.one_hot(labels, NUM_CLASSES).float()


def negative_bound(networks, x, y):
  """Returns `f(x, y)` for images and one-hot labels, with one draw of `z`."""
  mean, log_scale = networks['encoder'](torch.cat([x, y], -1)).chunk(2, -1)
  z = mean + log_scale.exp() * torch.randn_like(mean)
  logits = networks['decoder'](torch.cat([z, y], -1))
  reconstruction = torch.nn.functional.binary_cross_entropy_with_logits(
    logits, x, reduction='none'
  )
  divergence = 0.5 * (mean**2 + (2.0 * log_scale).exp() - 1.0) - log_scale
  return reconstruction.sum(-1) + divergence.sum(-1)


def score_function(f, log_probs, label):
  value = f(label)
  log_prob = log_probs.gather(1, label[:, None])[:, 0]
  return value.detach() * log_prob + value


def rao_blackwellized(f, log_probs, num_summed=1):
  """Sums the most probable categories, and draws another one from the rest."""
  return torch_estimators.rao_blackwellized(
    score_function, f, log_probs, num_summed
  )


def exact(f, log_probs):
  total = 0.0
  for i in range(NUM_CLASSES):
    label = torch.full([len(log_probs)], i)
    total += log_probs[:, i].exp() * f(label)
  return total


def reinforce(f, log_probs):
  label = torch.multinomial(log_probs.detach().exp(), 1)[:, 0]
  return score_function(f, log_probs, label)


def other_terms(networks, x, labeled, labels):
  """Returns `log q(y | x)`, and the objective except the expectation."""
  log_probs = networks['classifier'](x).log_softmax(-1)
  negative_entropy = (log_probs.exp() * log_probs).sum(-1).mean()
  of_labeled = negative_bound(networks, labeled, one_hot(labels)).mean()
  of_labeled += torch.nn.functional.cross_entropy(
    networks['classifier'](labeled), labels
  )
  return log_probs, 0.9 * negative_entropy + 0.1 * of_labeled


def torch_loss(expectation, networks, x, labeled, labels):
  log_probs, others = other_terms(networks, x, labeled, labels)
  f = lambda label: negative_bound(networks, x, one_hot(label))
  return 0.9 * expectation(f, log_probs).mean() + others


def torch_gradient(loss, *args):
  """Stores the gradient in the networks, and returns the loss."""
  value = loss(*args)
  value.backward()
  return value


def storchastic_gradient(method, networks, x, labeled, labels):
  """Does the same as `torch_gradient` with storchastic's list of costs."""
  import storch

  log_probs, others = other_terms(networks, x, labeled, labels)
  by_image = lambda tensor: storch.denote_independent(tensor, 0, 'image')
  q = torch.distributions.OneHotCategorical(logits=by_image(log_probs))

  @storch.deterministic
  def cost(x, y):  # x: [64, 1, 784], y: [64, categories, 10]
    return 0.9 * negative_bound(networks, x.expand(*y.shape[:-1], -1), y)

  storch.add_cost(cost(by_image(x), method(q)), 'expectation')
  storch.add_cost(others, 'others')
  return storch.backward()


def peers(with_compile):
  """Returns functions from `(networks, *batch)` to a loss, one for each row.

  It also returns the reasons for missing rows.
  """
  if torch is None:
    return {}, {('torch', ''): INSTALL, ('storchastic', ''): INSTALL}
  gradient = functools.partial
  rows = {
    ('torch', name): gradient(torch_gradient, torch_loss, expectation)
    for name, expectation in (
      ('RB', rao_blackwellized), ('Exact', exact), ('REINFORCE', reinforce)
    )
  }  # fmt: skip
  if with_compile:
    rows['torch', 'RB, torch.compile'] = gradient(
      torch_gradient, torch.compile(torch_loss), rao_blackwellized
    )
  try:
    from storch.method import Expect, RaoBlackwellSF
  except Exception as error:  # A newer PyTorch may cause any error.
    reason = INSTALL if isinstance(error, ImportError) else repr(error)
    return rows, {('storchastic', ''): reason}
  for method in (RaoBlackwellSF('y', 2), Expect('y')):
    name = ('storchastic', type(method).__name__)
    rows[name] = gradient(storchastic_gradient, method)
  return rows, {}


def exact_versions(gradients):
  """Returns versions of the measured rows whose gradient has no noise.

  The Rao-Blackwellized ones sum nine categories, so only one is left to draw.
  """
  nearly_all = functools.partial(rao_blackwellized, num_summed=9)
  versions = {
    ('torch', 'Exact'): gradients.get(('torch', 'Exact')),
    ('torch', 'RB'): functools.partial(torch_gradient, torch_loss, nearly_all),
    ('storchastic', 'Expect'): gradients.get(('storchastic', 'Expect')),
  }
  if ('storchastic', 'RaoBlackwellSF') in gradients:
    from storch.method import RaoBlackwellSF

    versions['storchastic', 'RaoBlackwellSF'] = functools.partial(
      storchastic_gradient, RaoBlackwellSF('y', NUM_CLASSES)
    )
  return {name: versions[name] for name in versions if name in gradients}


def peer_rows(gradients, data, num_calls):
  """Returns rows with the given gradients, on the same images as floats."""
  *images, labels = (x[:num_calls].reshape([-1, *x.shape[2:]]) for x in data)
  images = [torch.tensor(x).float() / 255.0 for x in images]
  batches = list(zip(*images, torch.tensor(labels).long()))

  def row(gradient):
    networks = make_networks()
    optimizer = torch.optim.Adam(networks.parameters(), 1e-3)

    def run(first=None):
      for unlabeled, labeled, labels in batches[:first]:
        optimizer.zero_grad()
        x, labeled = torch.bernoulli(unlabeled), torch.bernoulli(labeled)
        loss = gradient(networks, x, labeled, labels)
        optimizer.step()
      return loss.item()

    return run, len(batches)

  return {name: row(gradient) for name, gradient in gradients.items()}
