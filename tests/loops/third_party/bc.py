"""Behaviour cloning (Pomerleau 1991), as a package of someone else would bring it.

It exists for the tests of the offline loop, which find it through the registry like any other.
"""

from __future__ import annotations

from typing import Any

from gymnasium.spaces import Box
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, DatasetNeeds
from assay.algorithms.settings import LearningSettings, NetworkSettings, NormalizeObsSettings
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Spaces, action_mask, unpack
from assay.functional.distributions import policy_distribution
from assay.networks.encoders import make_encoder
from assay.networks.heads import ActionScale
from assay.networks.mlp import mlp
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import DeterministicHead, StochasticHead


@register(loop="offline", actions=("Discrete", "Box"), family="imitation", paper="Pomerleau 1991")
class BC(Algorithm):
    """Behaviour cloning: do what the data did."""

    class Hyperparameters(NormalizeObsSettings, NetworkSettings, LearningSettings):
        """Settings of BC."""

        lr: Schedule = Field(constant(1e-2), description="Learning rate or schedule.")
        hidden: tuple[int, ...] = Field((16,), description="Widths of the hidden layers.")
        batch_size: int = Field(32, gt=0, description="Transitions per gradient step.")

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = DatasetNeeds(hp.gamma)
        space = spaces.action
        self.scale = ActionScale(space).to(self.device) if isinstance(space, Box) else None
        size = space.shape[0] if isinstance(space, Box) else int(space.n)
        encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch")
        parts = [encoder, mlp((encoder.out_features, size), init="torch")]
        if self.scale is not None:
            parts.append(nn.Tanh())
        self.net = nn.Sequential(*parts).to(self.device)
        self.distribution = None if self.scale else policy_distribution(space)
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("bc", self.net, self._loss, rule)])
        head = DeterministicHead(space, lambda: 0.1) if self.scale else StochasticHead(space)
        self.policy = self.make_policy(self.net, head)

    def update(self, data: Any) -> None:
        """Take one gradient step on a batch of the dataset."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        self.step(batch, self.hp.lr(self.clock.progress))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        out = self.net(obs)
        if self.scale is not None:
            return (out - self.scale.to_unit(batch["action"])).square().mean(), {}
        # -E[log pi(a|s)]
        return -self.distribution.log_prob(out, batch["action"], action_mask(obs)).mean(), {}
