"""A trial, not a product: Q-learning on sequences with the stored carry."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, ReplayNeeds
from assay.buffers.replay_protocol import Replay
from assay.core.config import Settings
from assay.core.registry import register
from assay.core.types import Action, SequenceBatch, Spaces, Tree
from assay.optim.update import Objective, Polyak

WIDTH, GAMMA = 16, 0.9


@register(loop="off_policy", actions=("Discrete",), family="value", paper="trial")
class RecurrentQ(Algorithm):
    """Q-learning with a memory."""

    class Hyperparameters(Settings):
        """What the tests vary."""

        sequence: int = Field(3, gt=0, description="Steps of a sequence.")
        forget: bool = Field(False, description="Learn with an empty memory at every start.")

    def __init__(self, spaces: Spaces, hp: Any, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = ReplayNeeds(
            capacity=8000, learning_starts=64, train_every=8, sequence=hp.sequence, gamma=GAMMA
        )
        features, actions = spaces.observation.shape[0], int(spaces.action.n)
        self.net = nn.ModuleDict(
            {"cell": nn.GRUCell(features, WIDTH), "head": nn.Linear(WIDTH, actions)}
        )
        self.target = copy.deepcopy(self.net)
        objective, soft = Objective("q", self.net, self._loss), Polyak(self.target, self.net, 0.05)
        self.step = self.make_step([objective], polyak=[soft])

    def initial_carry(self, n: int) -> Tree:
        return {"hidden": np.zeros((n, WIDTH), np.float32)}

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        with torch.no_grad():
            hidden = self.net["cell"](torch.as_tensor(obs), torch.as_tensor(carry["hidden"]))
            action = self.net["head"](hidden).argmax(1).numpy()
        if explore:
            random = self.rng.random(len(action)) < 0.2
            action = np.where(random, self.rng.integers(0, 2, len(action)), action)
        return Action(action, {"hidden": hidden.numpy()})

    def update(self, data: Replay[SequenceBatch]) -> None:
        sample = data.sample(32)
        hidden = sample.carry["hidden"]
        batch = {
            "obs": sample.obs,
            "hidden": torch.zeros_like(hidden) if self.hp.forget else hidden,
            "action": sample.action,
            "reward": sample.reward,
            "terminated": sample.terminated,
            "valid": sample.valid,
        }
        self.step(batch, 0.01)

    def _unroll(self, net: nn.ModuleDict, obs: Tensor, hidden: Tensor) -> Tensor:
        steps = []
        for t in range(obs.shape[1]):
            hidden = net["cell"](obs[:, t], hidden)
            steps.append(net["head"](hidden))
        return torch.stack(steps, 1)  # [B, L + 1, A]

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        q = self._unroll(self.net, batch["obs"], batch["hidden"])[:, :-1]
        q = q.gather(2, batch["action"].unsqueeze(2)).squeeze(2)
        with torch.no_grad():
            ahead = self._unroll(self.target, batch["obs"], batch["hidden"])[:, 1:].amax(2)
            y = batch["reward"] + GAMMA * (1 - batch["terminated"]) * ahead
        return ((q - y).square() * batch["valid"]).sum() / batch["valid"].sum(), {}
