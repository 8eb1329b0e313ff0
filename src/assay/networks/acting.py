"""Networks as policies: act fast on NumPy observations, and export as one module."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from assay.core.types import Array, Tree, action_mask, tree_map
from assay.networks.bridge import numpy_forward
from assay.networks.normalize import RunningNormalizer


class Forward:
    """Call a module on NumPy observations: in NumPy on a CPU where it can, else in torch.

    Build it after the parameters have been flattened (by `Step`), because it holds views of them.
    The result may be overwritten by the next call.
    """

    def __init__(self, module: nn.Module, device: torch.device) -> None:
        self.module = module
        self.device = device
        self._fast = numpy_forward(module) if device.type == "cpu" else None
        if self._fast is not None:
            self.__dict__["call"] = self._fast

    def call(self, obs: Tree) -> np.ndarray:
        """Return the module's output [N, ...]."""
        with torch.no_grad():
            return self.module(self.tensors(obs)).cpu().numpy()

    def tensors(self, obs: Tree) -> Tree:
        """Move observations to the module's device."""
        return tree_map(lambda x: torch.from_numpy(np.ascontiguousarray(x)).to(self.device), obs)


class Exported(nn.Module):
    """`observation -> deterministic action` as one module: normalisation, network, decision.

    Args:
        network: Observation to decision parameters.
        normalizer: The agent's observation statistics, if it has any.
        decide: `(parameters, action mask or None) -> action`.
        parts: Modules that `decide` uses, so that they move and save with this one.
    """

    def __init__(
        self,
        network: nn.Module,
        normalizer: RunningNormalizer | None,
        decide: Callable[[Tensor, Array | None], Tensor],
        *parts: nn.Module,
    ) -> None:
        super().__init__()
        self.network = network
        self.normalizer = normalizer
        self.decide = decide
        self.parts = nn.ModuleList(parts)

    def forward(self, obs: Tree) -> Tensor:
        """Return the deterministic action [B, ...]."""
        mask = action_mask(obs)
        if self.normalizer is not None:
            obs = self.normalizer.normalize_torch(obs)
        return self.decide(self.network(obs), mask)
