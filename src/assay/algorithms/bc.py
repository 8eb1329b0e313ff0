"""Behaviour cloning (Pomerleau 1991, doi:10.1162/neco.1991.3.1.88).

Supervised learning of what the data did: the likelihood of Discrete actions, the squared error of
Box actions. No reward is read.

Deviations: a Box policy is deterministic, and ends in a tanh that is scaled to the bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.mixed_settings import NoiseSettings
from assay.algorithms.settings import (
    DatasetSettings,
    NetworkSettings,
    NormalizeObsSettings,
    Unused,
)
from assay.core.registry import register
from assay.core.types import Spaces, action_mask, unpack
from assay.functional.distributions import policy_distribution
from assay.networks.encoders import make_encoder
from assay.networks.heads import ActionScale
from assay.networks.mlp import mlp
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import DeterministicHead, Head, StochasticHead


@register(
    loop="offline",
    actions=("Discrete", "Box"),
    family="imitation",
    paper="doi:10.1162/neco.1991.3.1.88",
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
        self.continuous = isinstance(spaces.action, Box)
        size = int(np.prod(spaces.action.shape) if self.continuous else spaces.action.n)
        encoder = make_encoder(spaces.observation, **hp.encoder(), init="torch")
        parts: list[nn.Module] = [encoder, mlp((encoder.out_features, size), init="torch")]
        if self.continuous:
            self.scale = ActionScale(spaces.action).to(self.device)
            noise = hp.exploration_noise
            head: Head = DeterministicHead(spaces.action, lambda: noise(self.clock.progress))
            parts.append(nn.Tanh())
        else:
            self.distribution = policy_distribution(spaces.action)
            head = StochasticHead(spaces.action, log_prob=False)
        self.net = nn.Sequential(*parts).to(self.device)
        loss = self._loss if self.continuous else self._discrete_loss
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("bc", self.net, loss, rule)])
        self.policy = self.make_policy(self.net, head)

    def update(self, data: Any) -> None:
        """Take one gradient step on a batch of the dataset."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        self.step(batch, self.hp.lr(self.clock.progress))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        unit = self.scale.to_unit(batch["action"]).flatten(1)
        # L = E[(mu(s) - a)^2], the mean over the parts of an action
        return (self.net(unpack("obs", batch)) - unit).square().mean(), {}

    def _discrete_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        # L = -E[log pi(a|s)]
        log_pi = self.distribution.log_prob(self.net(obs), batch["action"], action_mask(obs))
        return -log_pi.mean(), {}
