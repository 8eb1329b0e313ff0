"""Behaviour cloning (Pomerleau 1991, doi:10.1162/neco.1991.3.1.88).

Supervised learning of what the data did: the likelihood of Discrete actions, the squared error of
Box actions. No reward is read.

With `contrast`, contrastive preference learning (Hejna et al. 2023, arXiv:2310.13639): from pairs
of segments that somebody has compared, without a reward model, as DPO does it for language.

Deviations: a Box policy is deterministic, and ends in a tanh that is scaled to the bounds. With
`contrast`, sums over a segment are not discounted (as in the authors' code), and the optimizer goes
on after cloning (there it begins again).
"""

from __future__ import annotations

from typing import Any

import torch
from gymnasium.spaces import Box
from pydantic import Field
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
from assay.core.types import Spaces, action_mask, unpack
from assay.functional.distributions import policy_distribution
from assay.functional.preferences import contrastive_preference_loss
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

        contrast: float = Field(
            0.0, ge=0, description="Temperature of learning from pairs (prefer export); 0: clone."
        )
        contrast_bias: float = Field(
            0.5, gt=0, le=1, description="Weight of segments that were not preferred (lambda)."
        )
        clone_first: float = Field(
            0.4, ge=0, lt=1, description="Share of updates that clone both segments before that."
        )

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the discount: no reward is read. And what only pairs have."""
            yield "gamma", "because bc reads no rewards"
            if not self.contrast:
                for name in ("contrast_bias", "clone_first"):
                    yield name, "with contrast=0"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(pairs=hp.contrast > 0)
        if isinstance(spaces.action, Box):
            self.scale = ActionScale(spaces.action).to(self.device)
            loss = self._loss
        else:
            self.distribution = policy_distribution(spaces.action)
            loss = self._discrete_loss
        if hp.contrast:
            loss = self._contrast_loss
        self.net = clone_network(spaces, hp).to(self.device)
        rule = Adam(max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step([Objective("bc", self.net, loss, rule)])
        head = clone_head(spaces.action, lambda: hp.exploration_noise(self.clock.progress))
        self.policy = self.make_policy(self.net, head)

    def update(self, data: Any) -> None:
        """Take one gradient step on a batch of the dataset."""
        hp, progress = self.hp, self.clock.progress
        if not hp.contrast:
            self.step(self.replay_tensors(data.sample(hp.batch_size)), hp.lr(progress))
            return
        pairs = max(1, hp.batch_size // data.pair_steps)
        drawn = data.sample_pairs(pairs)
        batch = self.replay_tensors(drawn)
        batch["preferred"] = drawn.extras["preferred"].reshape(pairs, -1)[:, 0].contiguous()
        batch["cloning"] = torch.tensor(float(progress < hp.clone_first), device=self.device)
        self.step(batch, hp.lr(progress))

    def _loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return box_loss(self.net, self.scale, unpack("obs", batch), batch["action"]), {}

    def _discrete_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return choice_loss(self.net, self.distribution, unpack("obs", batch), batch["action"]), {}

    def _contrast_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, action, preferred = unpack("obs", batch), batch["action"], batch["preferred"]
        if isinstance(self.spaces.action, Box):
            # log pi(a|s) of a Gaussian of fixed variance, but for a constant: -||mu(s) - a||^2
            log_prob = -(self.net(obs) - self.scale.to_unit(action).flatten(1)).square().sum(1)
        else:
            log_prob = self.distribution.log_prob(self.net(obs), action, action_mask(obs))
        # A(segment) = alpha sum_t log pi(a_t|s_t), of both segments of each pair: [P, 2]
        sums = self.hp.contrast * log_prob.reshape(len(preferred), 2, -1).sum(2)
        left, right = sums.unbind(1)
        # L = -log sigmoid(A(preferred) - lambda A(other))
        loss = contrastive_preference_loss(left, right, preferred, self.hp.contrast_bias)
        cloning = batch["cloning"]
        right_way = ((left > right) == (preferred > 0.5)).float().mean()
        metrics = {"contrast_loss": loss.detach(), "pair_accuracy": right_way}
        return cloning * -log_prob.mean() + (1.0 - cloning) * loss, metrics
