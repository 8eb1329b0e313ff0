"""Behaviour cloning (Pomerleau 1991, doi:10.1162/neco.1991.3.1.88).

Supervised learning of what the data did: the likelihood of Discrete actions, the squared error of
Box actions. No reward is read.

Deviations: a Box policy is deterministic, and ends in a tanh that is scaled to the bounds.
"""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Box
from torch import Tensor

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    DatasetSettings,
    NetworkSettings,
    NormalizeObsSettings,
    Unused,
)
from assay.algorithms.shared.cloning import box_loss, choice_loss, clone_head, clone_network
from assay.algorithms.shared.mixed_settings import NoiseSettings
from assay.core.registry import register
from assay.core.types import Spaces, unpack
from assay.functional.distributions import policy_distribution
from assay.networks.heads import ActionScale
from assay.optim.rules import Adam
from assay.optim.update import Objective


@register(
    loop="offline",
    actions=("Discrete", "Box"),
    family="imitation",
    paper="doi:10.1162/neco.1991.3.1.88",
    traits=("baseline", "recorded"),
)
class BC(Algorithm):
    """Do what the data did. The baseline of offline learning; first choice for expert data."""

    takes_both = True

    class Hyperparameters(NoiseSettings, NormalizeObsSettings, NetworkSettings, DatasetSettings):
        """Settings of BC."""

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the discount: no reward is read."""
            yield "gamma", "because bc reads no rewards"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs()
        if isinstance(spaces.action, Box):
            self.scale = ActionScale(spaces.action).to(self.device)
            loss = self._loss
        else:
            self.distribution = policy_distribution(spaces.action)
            loss = self._discrete_loss
        self.net = clone_network(spaces, hp).to(self.device)
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("bc", self.net, loss, rule)])
        head = clone_head(spaces.action, lambda: hp.exploration_noise(self.clock.progress))
        self.policy = self.make_policy(self.net, head)

    def update(self, data: Any) -> None:
        """Take one gradient step on a batch of the dataset."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        self.step(batch, self.hp.lr(self.clock.progress))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return box_loss(self.net, self.scale, unpack("obs", batch), batch["action"]), {}

    def _discrete_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return choice_loss(self.net, self.distribution, unpack("obs", batch), batch["action"]), {}
