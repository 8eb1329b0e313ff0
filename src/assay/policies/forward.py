"""Networks on NumPy observations."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from assay.core.types import Tree, tree_map
from assay.networks.noisy import has_noise, set_noise
from assay.networks.quantile import ActionValues
from assay.networks.rnn import Remembering
from assay.networks.tensors import to_device
from assay.policies.from_torch import UnsupportedError, describe
from assay.policies.numpy_network import NumpyNetwork
from assay.policies.parts import Array


class Forward:
    """Call a network on NumPy observations: in NumPy on a CPU where it can, else in torch.

    Build it after the parameters have been flattened (by an optimizer step), because it may hold
    views of them. The result may be overwritten by the next call.

    Args:
        network: From observations to numbers [N, P].
        device: Where it lives.
        noisy: Run noisy layers with their noise, or by their means.
    """

    def __init__(self, network: nn.Module, device: torch.device, *, noisy: bool = False) -> None:
        self.network = network
        self.device = device
        self.silent = not noisy and has_noise(network)
        self._levels: Array | None = None
        if isinstance(network, ActionValues) and network.levels is not None:
            self._levels = network.levels.cpu().numpy()
        try:
            parts = network.parts if isinstance(network, Remembering) else (network,)
            fast = NumpyNetwork(describe(*parts, noisy=noisy))
        except UnsupportedError:
            return
        self.__dict__["step"] = fast.step
        self.__dict__["call"] = fast.call if self._levels is None else partial(self._at, fast)

    def _at(self, fast: NumpyNetwork, obs: Tree, levels: Array | None = None) -> Array:
        return fast.call(obs, self._levels if levels is None else levels)

    def call(self, obs: Tree, levels: Array | None = None) -> Array:
        """Return the parameters [N, P]."""
        inputs = [obs] if levels is None else [obs, levels]
        return self._torch(self.network, *inputs).cpu().numpy()

    def step(self, obs: Tree, carry: Tree) -> tuple[Array, Tree]:
        """Return the parameters [N, P] of one step, and the carry after it."""
        assert isinstance(self.network, Remembering)
        params, after = self._torch(self.network.step, obs, carry)
        return params.cpu().numpy(), tree_map(lambda x: x.cpu().numpy(), after)

    @torch.no_grad()
    def _torch(self, function: Callable[..., Any], *inputs: Tree) -> Any:
        if self.silent:
            set_noise(self.network, False)
        try:
            return function(*(to_device(tree, self.device) for tree in inputs))
        finally:
            if self.silent:  # learning needs it
                set_noise(self.network, True)
