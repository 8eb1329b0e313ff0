"""Multi-agent PPO (Yu et al. 2022, arXiv:2103.01955).

Every agent learns with PPO by what it sees itself, and its advantages come from a critic that sees
the whole: the environment's state (or what all agents see), what the agent sees, and which it is.
Returns are standardised for the critic. A dead agent's actions are not learned from; where the
reward is the team's, its return goes on, and the critic sees zeros and its number in its place.

With `memory` every agent has an LSTM, a GRU or a gated transformer; the critic then sees what the
agent remembers beside the whole.

Deviations: the critic has no memory of its own; the squared error in place of the Huber loss;
returns are standardised by statistics that are updated once per rollout; values are clipped only
if `value_clip` says so.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, bound
from assay.algorithms.shared.central import central_state, central_width, member_codes, per_agent
from assay.algorithms.shared.proximal import clipped_loss, updates_per_rollout
from assay.algorithms.shared.team_memory import (
    TeamMemorySettings,
    learn_from_team,
    memory_team_loss,
)
from assay.algorithms.shared.team_rollout import ValueScales, crew_batch, named_metrics
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.types import AGENT_OBS, ALIVE, Spaces, Tree, unpack
from assay.functional.distributions import policy_distribution
from assay.networks.encoders import make_encoder
from assay.networks.heads import policy_head
from assay.networks.mlp import mlp
from assay.networks.recurrent import RecurrentActorCritic
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead
from assay.policies.team import Crew, TeamPolicy, make_crews


class _Central:
    """What the critic of a crew sees: the whole, what one agent sees, and which it is.

    Args:
        crew: Whose critic it is.
        state: Width of the whole.
        dead_matter: Whether it values the dead as well.
    """

    def __init__(self, crew: Crew, state: int, dead_matter: bool) -> None:
        own = crew.observation
        self.crew, self.dead_matter = crew, dead_matter
        self.seen = own.shape[0] if len(own.shape) == 1 else 0  # images are in the whole already
        self.width = state + self.seen + crew.size

    def __call__(self, obs: Tree) -> Tensor:
        """Return rows [B * k, width] of joint observations [B, ...]."""
        crew = self.crew
        parts = [per_agent(crew, central_state(obs))]
        if self.seen:
            parts.append(crew.fold(obs[AGENT_OBS])[:, : self.seen])
        whole = torch.cat(parts, 1)
        if self.dead_matter:  # death masking
            whole = whole * crew.fold(obs[ALIVE]).to(whole.dtype).unsqueeze(1)
        codes = member_codes(crew, len(obs[ALIVE]), whole.device)
        return torch.cat([whole, codes], 1)


class CentralActorCritic(nn.Module):
    """The policy of a crew, which sees what one agent sees, and its critic, which sees the whole.

    Args:
        crew: Who shares it.
        state: Width of the whole.
        hp: Settings of the networks.
    """

    def __init__(self, crew: Crew, state: int, hp: TeamMemorySettings) -> None:
        super().__init__()
        self.central = _Central(crew, state, hp.reward == "team")
        space, action = crew.spaces.observation, crew.spaces.action
        self.encoder = make_encoder(space, **hp.encoder())
        self.head = policy_head(
            policy_distribution(action), self.encoder.out_features, **hp.gaussian(action)
        )
        self.critic = mlp((self.central.width, *hp.hidden, 1), hp.activation)

    def actor(self) -> nn.Module:
        """Return the policy alone."""
        return nn.Sequential(self.encoder, self.head)

    def params(self, seen: Tree) -> Tensor:
        """Return the policy's parameters [B * k, P] for what single agents see."""
        return self.head(self.encoder(seen))

    def value(self, obs: Tree) -> Tensor:
        """Return values [B * k] of joint observations [B, ...]."""
        return self.critic(self.central(obs)).squeeze(1)


class RecurrentCentralActorCritic(RecurrentActorCritic):
    """The same with a memory of each agent, which the critic sees as well."""

    def __init__(self, crew: Crew, state: int, hp: TeamMemorySettings) -> None:
        action = crew.spaces.action
        super().__init__(
            crew.spaces.observation, policy_distribution(action), **hp.encoder(),
            **hp.gaussian(action), **hp.memory_options(),
        )  # fmt: skip
        self.central = _Central(crew, state, hp.reward == "team")
        self.value_head = nn.Sequential()  # the critic is in its place
        self.critic = mlp((self.central.width + hp.memory_size, *hp.hidden, 1), hp.activation)

    def value(self, obs: Tree, y: Tensor) -> Tensor:
        """Return values [B * k] of joint observations [B, ...] and of what agents remember."""
        return self.critic(torch.cat([self.central(obs), y], 1)).squeeze(1)


@register(
    loop="on_policy",
    actions=("MultiDiscrete", "Box"),
    family="multi-agent",
    paper="arXiv:2103.01955",
    agents="many",
    traits=("central", "recall"),
)
class MAPPO(Algorithm):
    """PPO with a critic that sees the whole. For teams, where acting takes little information."""

    class Hyperparameters(TeamMemorySettings):
        """Settings of MAPPO."""

        reward: Literal["own", "team"] = Field(
            "team", description="Learn from an agent's own reward, or from the mean of all."
        )

    policy: TeamPolicy  # type: ignore[assignment]
    central = True

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        hp.require_whole_chunks()
        updates = updates_per_rollout(hp, context.num_envs)
        self.needs = hp.needs(updates=updates, chunk=hp.chunk if hp.memory else 1)
        self.crews = make_crews(spaces, hp.sharing, told=hp.agent_id)
        width = central_width(spaces)
        kind = CentralActorCritic if hp.memory is None else RecurrentCentralActorCritic
        nets = [kind(crew, width, hp) for crew in self.crews]
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
        actors = [net.actor() if isinstance(net, CentralActorCritic) else net for net in nets]
        self.policy = self.make_team_policy(self.crews, actors, heads)

    def update(self, data: Rollout) -> None:
        """Run the epochs of clipped updates over one rollout."""
        learn_from_team(self, data)

    # ------------------------------------------------------------------ the mathematics

    def team_value(self, obs: Tree) -> np.ndarray:
        """Return V [B, A] of joint observations, in the units of rewards."""
        value, obs = np.zeros(obs[AGENT_OBS].shape[:2], np.float32), self.tensors(obs)
        for i, (crew, net) in enumerate(zip(self.crews, self.nets, strict=True)):
            assert isinstance(net, CentralActorCritic)
            own = net.value(obs).cpu().numpy().reshape(len(value), crew.size)
            value[:, list(crew.members)] = self.scales.real(i, own)
        return value

    def remembered_value(self, crew: Crew, net: Any, y: Tensor, joint: Tree) -> Tensor:
        """Return V [B * k] of the whole and of what agents remember."""
        return net.value(joint, y)

    def _loss(
        self, crew: Crew, net: Any, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.hp.memory is not None:
            return memory_team_loss(self, crew, net, batch)

        def both(seen: Tree) -> tuple[Tensor, Tensor]:
            return net.params(seen), net.value(unpack("obs", batch))

        distribution = policy_distribution(crew.spaces.action)
        loss, metrics = clipped_loss(both, distribution, self.hp, crew_batch(crew, batch))
        return loss, named_metrics(self.crews, crew, metrics)
