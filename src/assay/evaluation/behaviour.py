"""Who acted in a dataset, where that was not recorded: behaviour cloning of the probabilities."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray
from torch import Tensor, nn

from assay.core.seeding import derive_rng, derive_seed
from assay.core.types import action_mask, pack, tree_map, unpack
from assay.evaluation.on_data import Recorded
from assay.functional.distributions import policy_distribution
from assay.networks.encoders import make_encoder
from assay.optim.rules import Adam
from assay.optim.update import Objective, Step

_BATCH, _LR, _HIDDEN = 256, 1e-3, (128, 128)
_LOG_STD = (-5.0, 2.0)  # of standardised actions: those that never vary have no density


class ClonedBehaviour:
    """mu(a|s), fitted by its likelihood: choices for discrete actions, a Gaussian for Box actions.

    Args:
        recorded: What was done.
        updates: Gradient steps.
        seed: Fixes initial weights and batches.
    """

    def __init__(self, recorded: Recorded, *, updates: int, seed: int) -> None:
        self.recorded = recorded
        space = recorded.spaces.action
        self.continuous = isinstance(space, Box)
        self.distribution = policy_distribution(space)
        seen = recorded.spaces.observation
        with torch.random.fork_rng(devices=[]):  # leave the caller's generator as it was
            torch.manual_seed(derive_seed(seed, "behaviour", "weights"))
            encoder = make_encoder(seen, hidden=_HIDDEN, activation="relu", init="torch")
            head = nn.Linear(encoder.out_features, self.distribution.param_size)
        self.net = nn.Sequential(encoder, head)
        step = Step([Objective("behaviour", self.net, self._loss, Adam())])
        rng = derive_rng(seed, "behaviour")
        for done in range(updates):
            index = rng.integers(len(recorded), size=_BATCH)
            step(self._batch(index), _LR * (1.0 - done / updates))

    @torch.no_grad()
    def log_prob(self) -> NDArray[np.float64]:
        """Return log mu(a|s) [N] of all recorded actions, in the environment's units."""
        found = []
        for first in range(0, len(self.recorded), 1 << 14):
            index = np.arange(first, min(first + (1 << 14), len(self.recorded)))
            found.append(self._log_prob(self._batch(index)).numpy())
        logs = np.concatenate(found).astype(np.float64)
        applied = self.recorded.action_norm.applied("")
        if applied is not None:  # the Jacobian of standardising
            logs += np.log(applied[1].astype(np.float64)).sum()
        return logs

    def _batch(self, index: NDArray[np.int64]) -> dict[str, Tensor]:
        obs = self.recorded.buffer.canonical(self.recorded.dataset.transitions(index)["obs"])
        obs = self.recorded.obs_norm.normalize(obs)
        action = self.recorded.action_norm.normalize(self.recorded.action[index])
        tensors = tree_map(torch.from_numpy, obs)
        return pack("obs", tensors) | {"action": torch.from_numpy(action)}

    def _log_prob(self, batch: dict[str, Tensor]) -> Tensor:
        obs = unpack("obs", batch)
        params = self.net(obs)
        if self.continuous:
            mean, log_std = params.chunk(2, dim=-1)
            params = torch.cat([mean, log_std.clamp(*_LOG_STD)], dim=-1)
        return self.distribution.log_prob(params, batch["action"], action_mask(obs))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        # L = -E[log mu(a|s)]
        return -self._log_prob(batch).mean(), {}
