"""A trial, not a product: Q_tot = sum_a Q_a with one network for all agents (VDN)."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, ReplayNeeds
from assay.buffers.replay_protocol import Replay
from assay.core.config import Settings
from assay.core.registry import register
from assay.core.types import Action, Batch, Spaces, Tree, unpack
from assay.functional import targets
from assay.functional.distributions import mask_logits
from assay.networks.encoders import make_encoder
from assay.networks.mlp import mlp
from assay.optim.update import Objective, Polyak


@register(loop="off_policy", actions=("MultiDiscrete",), family="value", paper="trial")
class ValueDecomposition(Algorithm):
    """Value decomposition: the agent axis is folded into the batch."""

    class Hyperparameters(Settings):
        """What the tests vary."""

        gamma: float = Field(0.9, ge=0, le=1, description="Discount; 0 does not bootstrap.")

    def __init__(self, spaces: Spaces, hp: Any, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = ReplayNeeds(capacity=4000, learning_starts=64, train_every=4, gamma=hp.gamma)
        self.agents, *own = spaces.observation["obs"].shape
        self.own = tuple(own)
        one = gym.spaces.Box(-np.inf, np.inf, self.own, np.float32)
        encoder = make_encoder(one, hidden=(32,), activation="relu", cnn="nature")
        self.net = nn.Sequential(encoder, mlp((32, int(spaces.action.nvec[0]))))
        self.target = copy.deepcopy(self.net)
        objective, soft = Objective("q", self.net, self._loss), Polyak(self.target, self.net, 0.05)
        self.step = self.make_step([objective], polyak=[soft])

    def values(self, net: nn.Module, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return Q [B, agents, actions], and the same far down where an action is masked."""
        q = net(obs["obs"].reshape(-1, *self.own)).unflatten(0, (-1, self.agents))
        return q, mask_logits(q, obs["action_mask"].reshape(q.shape))

    def initial_carry(self, n: int) -> Tree:
        return None

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        tensors = {name: torch.as_tensor(part) for name, part in obs.items()}
        with torch.no_grad():
            action = self.values(self.net, tensors)[1].argmax(-1).numpy()  # [N, agents]
        if explore:
            allowed = obs["action_mask"].reshape(*action.shape, -1)
            drawn = np.argmax(self.rng.random(allowed.shape) * allowed, -1)
            action = np.where(self.rng.random(action.shape) < 0.2, drawn, action)
        return Action(action)

    def update(self, data: Replay[Batch]) -> None:
        self.step(self.replay_tensors(data.sample(64)), 0.01)

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        q, _ = self.values(self.net, unpack("obs", batch))
        total = q.gather(2, batch["action"].unsqueeze(2)).sum((1, 2))
        with torch.no_grad():
            _, ahead = self.values(self.target, unpack("next_obs", batch))
            value = ahead.amax(2).sum(1)
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], value)
        return (total - y).square().mean(), {"q_total": total.mean()}
