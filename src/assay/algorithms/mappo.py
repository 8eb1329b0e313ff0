"""Multi-agent PPO (Yu et al. 2022, arXiv:2103.01955).

Every agent learns with PPO by what it sees itself, and its advantages come from a critic that sees
the whole: the environment's state (or what all agents see), what the agent sees, and which it is.
Returns are standardised for the critic. A dead agent's actions are not learned from; where the
reward is the team's, its return goes on, and the critic sees zeros and its number in its place.

Deviations: no recurrent memory; the squared error in place of the Huber loss; returns are
standardised by statistics that are updated once per rollout; values are clipped only if
`value_clip` says so.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, bound
from assay.algorithms.shared.central import central_state, central_width, member_codes, per_agent
from assay.algorithms.shared.proximal import clipped_loss, run_epochs, updates_per_rollout
from assay.algorithms.shared.team_rollout import (
    TeamSettings,
    ValueScales,
    crew_batch,
    named_metrics,
    prepare_team,
)
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.types import AGENT_OBS, ALIVE, Spaces, Tree, unpack
from assay.functional.distributions import policy_distribution
from assay.networks.encoders import make_encoder
from assay.networks.heads import policy_head
from assay.networks.mlp import mlp
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead
from assay.policies.team import Crew, TeamPolicy, make_crews


class CentralActorCritic(nn.Module):
    """The policy of a crew, which sees what one agent sees, and its critic, which sees the whole.

    Args:
        crew: Who shares it.
        state: Width of the whole.
        hp: Settings of the networks.
    """

    def __init__(self, crew: Crew, state: int, hp: TeamSettings) -> None:
        super().__init__()
        self.crew, self.dead_matter = crew, hp.reward == "team"
        space, action = crew.spaces.observation, crew.spaces.action
        self.encoder = make_encoder(space, **hp.encoder())
        self.head = policy_head(
            policy_distribution(action), self.encoder.out_features, **hp.gaussian(action)
        )
        own = crew.observation
        self.seen = own.shape[0] if len(own.shape) == 1 else 0  # images are in the whole already
        width = state + self.seen + crew.size
        self.critic = mlp((width, *hp.hidden, 1), hp.activation)

    def actor(self) -> nn.Module:
        """Return the policy alone."""
        return nn.Sequential(self.encoder, self.head)

    def params(self, seen: Tree) -> Tensor:
        """Return the policy's parameters [B * k, P] for what single agents see."""
        return self.head(self.encoder(seen))

    def value(self, obs: Tree) -> Tensor:
        """Return values [B * k] of joint observations [B, ...]."""
        crew = self.crew
        parts = [per_agent(crew, central_state(obs))]
        if self.seen:
            parts.append(crew.fold(obs[AGENT_OBS])[:, : self.seen])
        whole = torch.cat(parts, 1)
        if self.dead_matter:  # death masking
            whole = whole * crew.fold(obs[ALIVE]).to(whole.dtype).unsqueeze(1)
        codes = member_codes(crew, len(obs[ALIVE]), whole.device)
        return self.critic(torch.cat([whole, codes], 1)).squeeze(1)


@register(
    loop="on_policy",
    actions=("MultiDiscrete", "Box"),
    family="multi-agent",
    paper="arXiv:2103.01955",
    agents="many",
    traits=("central",),
)
class MAPPO(Algorithm):
    """PPO with a critic that sees the whole. For teams, where acting takes little information."""

    class Hyperparameters(TeamSettings):
        """Settings of MAPPO."""

        reward: Literal["own", "team"] = Field(
            "team", description="Learn from an agent's own reward, or from the mean of all."
        )

    policy: TeamPolicy  # type: ignore[assignment]

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(updates=updates_per_rollout(hp, context.num_envs))
        self.crews = make_crews(spaces, hp.sharing, told=hp.agent_id)
        width = central_width(spaces)
        nets = [CentralActorCritic(crew, width, hp) for crew in self.crews]
        self.nets = nn.ModuleList(nets).to(self.device)
        rule = Adam(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [
                Objective(f"ppo_{crew.name}", net, bound(self._loss, crew, net), rule)
                for crew, net in zip(self.crews, self.nets, strict=True)
            ]
        )
        self.scales = ValueScales(len(self.crews), hp.normalize_value)
        heads = [StochasticHead(crew.spaces.action) for crew in self.crews]
        self.policy = self.make_team_policy(self.crews, [net.actor() for net in nets], heads)

    def update(self, data: Rollout) -> None:
        """Run the epochs of clipped updates over one rollout."""
        run_epochs(self, self.step, prepare_team(self, data), data.length * data.num_envs)

    # ------------------------------------------------------------------ the mathematics

    def team_value(self, obs: Tree) -> np.ndarray:
        """Return V [B, A] of joint observations, in the units of rewards."""
        value = np.zeros(obs[AGENT_OBS].shape[:2], np.float32)
        for i, (crew, net) in enumerate(zip(self.crews, self.nets, strict=True)):
            assert isinstance(net, CentralActorCritic)
            own = net.value(obs).cpu().numpy().reshape(len(value), crew.size)
            value[:, list(crew.members)] = self.scales.real(i, own)
        return value

    def _loss(
        self, crew: Crew, net: CentralActorCritic, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        def both(seen: Tree) -> tuple[Tensor, Tensor]:
            return net.params(seen), net.value(unpack("obs", batch))

        distribution = policy_distribution(crew.spaces.action)
        loss, metrics = clipped_loss(both, distribution, self.hp, crew_batch(crew, batch))
        return loss, named_metrics(self.crews, crew, metrics)
