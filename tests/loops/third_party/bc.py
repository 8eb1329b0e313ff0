"""Behaviour cloning (Pomerleau 1991), as a package of someone else would bring it.

It exists for the tests of the offline loop, which find it through the registry like any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, DatasetNeeds
from assay.core.config import Model
from assay.core.registry import register
from assay.core.schedules import Schedule
from assay.core.types import Action, Spaces, Tree
from assay.optim.update import Objective, Step


@register(loop="offline", actions=("Discrete", "Box"), family="imitation", paper="Pomerleau 1991")
class BC(Algorithm):
    """Behaviour cloning: do what the data did."""

    class Hyperparameters(Model):
        """Settings of BC."""

        lr: Schedule = Field(Schedule.parse(1e-2), description="Learning rate or schedule.")
        batch_size: int = Field(32, gt=0, description="Transitions per gradient step.")
        normalize_obs: bool = Field(False, description="Standardise float observations.")
        hidden: int = Field(16, gt=0, description="Width of the hidden layer.")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = DatasetNeeds()
        space = spaces.action
        self.box = space if isinstance(space, Box) else None
        outputs = space.shape[0] if isinstance(space, Box) else int(space.n)
        inputs = spaces.observation.shape[0]
        self.net = nn.Sequential(
            nn.Linear(inputs, hp.hidden), nn.Tanh(), nn.Linear(hp.hidden, outputs)
        ).to(self.device)
        mode = self.mode(context.clock.total)
        self.step = Step([Objective("bc", self.net, self._loss)], mode=mode, key=self.step_key)

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Take the likeliest action; with `explore`, add noise from the algorithm's stream."""
        with torch.no_grad():
            tensor = torch.from_numpy(self.normalized(obs)).to(self.device)
            out = self.net(tensor).cpu().numpy()
        if explore:
            out = out + self.rng.standard_normal(out.shape, dtype=np.float32)
        if self.box is None:
            return Action(out.argmax(1))
        return Action(np.clip(out, self.box.low, self.box.high))

    def update(self, data: Any) -> None:
        """Take one gradient step on a batch of the dataset."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        self.record(self.step, self.step(batch, self.hp.lr(self.clock.progress)))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        out = self.net(batch["obs"])
        if self.box is None:
            return nn.functional.cross_entropy(out, batch["action"]), {}
        return (out - batch["action"]).square().mean(), {}
