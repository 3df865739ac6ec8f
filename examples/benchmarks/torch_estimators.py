# SPDX-License-Identifier: Apache-2.0
"""Rao-Blackwellizes estimators in PyTorch, as a user would write it.

In a loop over the values. For `moving_torch.py` and `semisupervised_torch.py`.
"""

try:
  import torch
except ImportError:
  torch = None


def rao_blackwellized(estimate, f, log_probs, num_summed):
  """The most probable values are summed, another drawn from the rest.

  Args:
    estimate: Callable that maps `f`, `log_probs` and a value to the estimate.
    f: Callable of values `[B]`.
    log_probs: Tensor of shape `[B, K]`.
    num_summed: Python `int`, the number of values that are summed.

  Returns:
    total: Tensor of shape `[B]`.
  """
  probs = log_probs.detach().exp()
  top_probs, top = probs.topk(num_summed)
  others = (probs + 1e-12).scatter(1, top, 0.0)
  values = torch.cat([top, torch.multinomial(others, 1)], 1)
  rest = 1.0 - top_probs.sum(1, keepdim=True)
  weights = torch.cat([top_probs, rest], 1)
  total = 0.0
  for i in range(values.shape[1]):
    total += weights[:, i] * estimate(f, log_probs, values[:, i])
  return total
