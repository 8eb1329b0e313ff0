"""CrossQ (Bhatt, Palenicek et al. 2024, arXiv:1902.05605): SAC without target networks.

Critics and actor are batch-(re)normalised. (s, a) and (s', a') go through the critics as one
batch, so that both are normalised by the statistics of their mixture, which is what lets the
live critics give stable targets:

    [Q_i(s, a), Q_i(s', a')] = critics([s, s'], [a, a']),   a' ~ pi(s')
    y = r + gamma (1 - d) (min_i Q_i(s', a') - alpha log pi(a'|s')), without gradient

The actor and the temperature move every `policy_delay` updates, against critics that use (and do
not learn) their running statistics. Adam's first beta is 0.5 for critics and actor.

Deviations: critics are 512 wide by default (and narrower in the presets, see there), for the
paper's 2048, which is made for a GPU. Batch
renormalisation is that of its paper (y = r x + d), where the authors' code folds r and d into
mean and variance and counts epsilon a little differently. Images go through a CNN without
normalisation, whose features are then normalised. As in our SAC, log-probabilities are those of
the action in (-1, 1) and the target entropy -dim(A) belongs to that space.
"""

from __future__ import annotations

from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context
from assay.algorithms.settings import (
    ActorCriticSettings,
    EntropySettings,
    HindsightSettings,
    NormalizeRewardSettings,
    Unused,
)
from assay.algorithms.shared import soft
from assay.buffers.replay_protocol import Replay
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import Batch, Spaces, Tree, tree_map, unpack
from assay.functional import targets
from assay.networks.batchnorm import batch_statistics, batchnorm_mlp
from assay.networks.custom import SIMBA
from assay.networks.encoders import make_encoder
from assay.networks.squashed import SquashedActor
from assay.networks.temperature import Temperature
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import SquashedHead


class NormalisedCritics(nn.Module):
    """Batch-normalised critics, each with statistics of its own: (obs, action) -> [members, B]."""

    def __init__(self, space: Any, action_size: int, hp: Any) -> None:
        super().__init__()
        self.encoder = make_encoder(space, **hp.encoder(hidden=()), init="torch")
        width = self.encoder.out_features + action_size
        self.members = nn.ModuleList(
            batchnorm_mlp(
                width, hp.critic_hidden, 1, hp.activation,
                momentum=hp.norm_momentum, warmup=hp.renorm_warmup,
            )
            for _ in range(hp.n_critics)
        )  # fmt: skip

    def forward(self, obs: Tree, action: Tensor) -> Tensor:
        """Return the value of each critic."""
        x = torch.cat([self.encoder(obs), action.reshape(action.shape[0], -1)], dim=1)
        return torch.stack([member(x).squeeze(1) for member in self.members])


@register(
    loop="off_policy",
    actions=("Box",),
    family="actor-critic",
    paper="arXiv:1902.05605",
    traits=("frugal", "hindsight"),
)
class CrossQ(Algorithm):
    """SAC with batch norm and no target networks. Needs few steps, at one update per step."""

    class Hyperparameters(
        EntropySettings, HindsightSettings, NormalizeRewardSettings, ActorCriticSettings
    ):
        """Settings of CrossQ."""

        lr: Schedule = Field(constant(1e-3), description="Learning rate or schedule.")
        batch_size: int = Field(256, gt=1, description="Transitions per gradient step.")
        learning_starts: int = Field(5000, ge=0, description="Random steps before learning.")
        hidden: tuple[int, ...] = Field((256, 256), description="Hidden widths of the actor.")
        critic_hidden: tuple[int, ...] = Field(
            (512, 512), description="Hidden widths of the critics."
        )
        policy_delay: int = Field(3, gt=0, description="Critic updates per actor update.")
        n_critics: int = Field(2, gt=0, description="Critics, of which the smallest counts.")
        beta1: float = Field(
            0.5, ge=0, lt=1, description="Adam's decay of the mean gradient, critics and actor."
        )
        norm_momentum: float = Field(
            0.99, gt=0, lt=1, description="Decay of the running statistics of normalisation."
        )
        renorm_warmup: int = Field(
            100_000, ge=0, description="Batches of plain normalisation before renormalisation."
        )

        def unused(self, spaces: Spaces) -> Unused:
            """Yield the network with layer norms, because it has batch norms."""
            if self.network == SIMBA:
                yield "network", "because the networks of CrossQ are normalised by batches"

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(her=hp.hindsight())
        encoder = make_encoder(spaces.observation, **hp.encoder(hidden=()), init="torch")
        trunk = batchnorm_mlp(
            encoder.out_features, hp.hidden, None, hp.activation,
            momentum=hp.norm_momentum, warmup=hp.renorm_warmup,
        )  # fmt: skip
        width = (encoder.out_features, *hp.hidden)[-1]
        self.actor = SquashedActor(nn.Sequential(encoder, trunk), width, spaces.action)
        self.actor.to(self.device)
        size, self.target_entropy = self.actor.size, soft.target_entropy(hp, self.actor)
        self.critic = NormalisedCritics(spaces.observation, size, hp).to(self.device)
        self.temperature = Temperature(hp.first_alpha).to(self.device)
        self._make_steps()
        self.policy = self.make_policy(self.actor.net, SquashedHead(spaces.action))

    def _make_steps(self) -> None:
        hp = self.hp
        rule = Adam(betas=(hp.beta1, 0.999), max_grad_norm=hp.max_grad_norm)
        critic = Objective("critic", self.critic, self._critic_loss, rule)
        slow = [Objective("actor", self.actor, self._actor_loss, rule)]
        if hp.alpha == "auto":
            slow.append(Objective("alpha", self.temperature, self._alpha_loss))
        self.critic_step = self.make_step([critic])
        self.full_step = self.make_step([critic, *slow], share=self.critic_step)

    def update(self, data: Replay[Batch]) -> None:
        """Move the critics; every `policy_delay` updates also the actor and the temperature."""
        batch = self.replay_tensors(data.sample(self.hp.batch_size))
        shape = (self.hp.batch_size, *self.actor.distribution.noise_shape)
        due = (self.updates + 1) % self.hp.policy_delay == 0
        batch["next_noise"] = self.noise(*shape)
        if due:
            batch["noise"] = self.noise(*shape)
        step = self.full_step if due else self.critic_step
        step(batch, self.hp.rates(step, self.clock.progress))

    _alpha_loss = soft.alpha_loss

    def _critic_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
        with torch.no_grad():
            next_action, next_log_pi = self.actor.sample(next_obs, batch["next_noise"])
        both_obs = tree_map(lambda *pair: torch.cat(pair), obs, next_obs)
        action = self.actor.scale.to_unit(batch["action"])
        with batch_statistics(self.critic):
            both = self.critic(both_obs, torch.cat([action, next_action]))  # both: [members, 2B]
        q, next_q = both.chunk(2, dim=1)
        # The targets carry no gradient, but s' and a' have their part in the normalisation of q.
        with torch.no_grad():
            soft_q = next_q.amin(0) - self.temperature() * next_log_pi
            y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], soft_q)
        return 0.5 * (q - y).square().mean(1).sum(), {"q_mean": q.mean()}

    def _actor_loss(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        obs = unpack("obs", batch)
        with batch_statistics(self.actor):
            action, log_pi = self.actor.sample(obs, batch["noise"])
        alpha = self.temperature().detach()
        # J = E[alpha log pi(a|s) - min_i Q_i(s, a)], the critics with their running statistics
        loss = (alpha * log_pi - self.critic(obs, action).amin(0)).mean()
        batch["entropy"] = -log_pi.detach().mean()  # the temperature's loss reads it
        return loss, {"entropy": batch["entropy"], "alpha": alpha}
