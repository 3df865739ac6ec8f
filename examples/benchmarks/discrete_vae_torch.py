# SPDX-License-Identifier: Apache-2.0
"""Implements the autoencoder with a code of bits in PyTorch.

The code is what a user would write. `discrete_vae.py` compares its time with
that of `tfp_rb`.
"""

import itertools

import numpy as np

try:
  import torch
except ImportError:
  torch = None

NUM_PIXELS, UNITS = 784, (200, 200)
INSTALL = "not installed: pip install -e '.[benchmarks]'"


def as_tensor(x):
  return torch.tensor(np.asarray(x))


def make_networks(num_bits, weights=None):
  """Returns encoder and decoder, with the given weights if there are any."""

  def network(*sizes):
    layers = []
    for pair in itertools.pairwise(sizes):
      layers += [torch.nn.Linear(*pair), torch.nn.LeakyReLU(0.3)]
    return torch.nn.Sequential(*layers[:-1])

  networks = torch.nn.ModuleDict(
    {
      'encoder': network(NUM_PIXELS, *UNITS, num_bits),
      'decoder': network(num_bits, *UNITS, NUM_PIXELS),
    }
  )
  if weights is not None:
    # Keras stores a kernel as [inputs, outputs], PyTorch as its transpose.
    for p, value in zip(networks.parameters(), weights, strict=True):
      p.data = as_tensor(np.transpose(value)).contiguous()
  return networks


def gradients(networks):
  """Returns the gradients of all parameters, in the layout of Keras."""
  return [np.transpose(p.grad.numpy()) for p in networks.parameters()]


def leave_one_out_loss(networks, images, num_draws=3, codes=None):
  """Returns a loss whose gradient is that of REINFORCE with leave-one-out.

  Args:
    networks: As `make_networks` returns them.
    images: Tensor of shape `[B, NUM_PIXELS]` of zeros and ones.
    num_draws: Python `int`.
    codes: Tensor of shape `[num_draws, B, num_bits]`, or `None` to draw codes.

  Returns:
    loss: Scalar tensor.
  """
  q = torch.distributions.Bernoulli(logits=networks['encoder'](images))
  if codes is None:
    codes = q.sample([num_draws])
  log_q = q.log_prob(codes).sum(-1)
  logits = networks['decoder'](codes)
  log_likelihood = -torch.nn.functional.binary_cross_entropy_with_logits(
    logits, images.expand_as(logits), reduction='none'
  ).sum(-1)
  value = log_q - log_likelihood + codes.shape[-1] * np.log(2.0)
  others = (value.sum(0) - value) / (len(codes) - 1)
  return (value + (value - others).detach() * log_q).mean()


def row(num_bits, stacks, num_draws, learning_rate):
  """Returns a row that binarizes images and makes training steps."""
  networks = make_networks(num_bits)
  optimizer = torch.optim.Adam(networks.parameters(), lr=learning_rate)
  batches = [as_tensor(batch) for stack in stacks for batch in stack]

  def run(first=None):
    for pixels in batches[:first]:
      images = torch.bernoulli(pixels.float() / 255.0)
      optimizer.zero_grad()
      loss = leave_one_out_loss(networks, images, num_draws)
      loss.backward()
      optimizer.step()
    return loss.item()

  return run, len(batches)
