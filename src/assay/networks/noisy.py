"""Linear layers with learned, factorised Gaussian noise (arXiv:1706.10295).

The noise lives in buffers that `resample_noise` fills from a NumPy generator, so that a forward
pass is a pure function of parameters, buffers and input.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIGMA = 0.5  # each sigma starts at this, over sqrt(in_features)


class NoisyLinear(nn.Module):
    """y = (mu_w + sigma_w * eps_out eps_in^T) x + mu_b + sigma_b * eps_out.

    The noise is disabled (mu alone) in `eval()` mode and while `noise_off` is set.
    """

    eps_in: Tensor
    eps_out: Tensor

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.noise_off = False
        bound = 1.0 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(out_features).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), SIGMA * bound))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), SIGMA * bound))
        self.register_buffer("eps_in", torch.zeros(in_features))
        self.register_buffer("eps_out", torch.zeros(out_features))

    @property
    def noise_enabled(self) -> bool:
        """Return whether the noise is added."""
        return self.training and not self.noise_off

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output [..., out_features]."""
        y = F.linear(x, self.weight, self.bias)
        if not self.noise_enabled:
            return y
        # (sigma_w * eps_out eps_in^T) x = eps_out * (sigma_w (eps_in * x)): no noisy weight matrix
        return y + self.eps_out * F.linear(x * self.eps_in, self.weight_sigma, self.bias_sigma)


def resample_noise(module: nn.Module, rng: np.random.Generator) -> None:
    """Draw new noise for every `NoisyLinear` inside `module`."""
    layers = [child for child in module.modules() if isinstance(child, NoisyLinear)]
    buffers = [buffer for layer in layers for buffer in (layer.eps_in, layer.eps_out)]
    if not buffers:
        return
    # One draw for all layers: a draw for each costs an acting network more than its forward pass.
    sizes = [len(buffer) for buffer in buffers]
    x = rng.standard_normal(sum(sizes), dtype=np.float32)
    # f(x) = sign(x) sqrt(|x|)
    noise = torch.from_numpy(np.copysign(np.sqrt(np.abs(x)), x)).to(buffers[0].device)
    for buffer, part in zip(buffers, noise.split(sizes), strict=True):
        buffer.copy_(part)


def set_noise(module: nn.Module, on: bool) -> None:
    """Switch the noise of every `NoisyLinear` inside `module` on or off."""
    for child in module.modules():
        if isinstance(child, NoisyLinear):
            child.noise_off = not on


def has_noise(module: nn.Module) -> bool:
    """Return whether there is a `NoisyLinear` inside `module`."""
    return any(isinstance(child, NoisyLinear) for child in module.modules())
