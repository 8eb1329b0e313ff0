"""Independent PPO (de Witt et al. 2020, arXiv:2011.09533).

Every agent learns with PPO (arXiv:1707.06347) from what it sees itself, as if the others were a
part of its environment. Agents may share networks: all of them, those of one type, or none. With
`memory` every agent has an LSTM, a GRU or a gated transformer, as recurrent PPO has.

Deviations: returns are standardised for the value function (`normalize_value`, as in MAPPO,
arXiv:2103.01955), and a shared network is told which agent acts (`agent_id`). Where agents take
turns, a step of an agent goes from one of its turns to the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, bound
from assay.algorithms.shared.proximal import clipped_loss, updates_per_rollout
from assay.algorithms.shared.team_memory import (
    TeamMemorySettings,
    learn_from_team,
    memory_team_loss,
)
from assay.algorithms.shared.team_rollout import (
    ValueScales,
    crew_batch,
    crew_values,
    named_metrics,
)
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.types import Spaces, Tree
from assay.functional.distributions import policy_distribution
from assay.networks.actor_critic import ActorCritic
from assay.networks.recurrent import RecurrentActorCritic
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.forward import Forward
from assay.policies.heads import StochasticHead
from assay.policies.team import Crew, TeamPolicy, make_crews


@register(
    loop="on_policy",
    actions=("MultiDiscrete", "Box"),
    family="multi-agent",
    paper="arXiv:2011.09533",
    agents="many",
    traits=("first", "recall"),
)
class IPPO(Algorithm):
    """PPO for each of several agents. First choice for several agents, also against each other."""

    class Hyperparameters(TeamMemorySettings):
        """Settings of IPPO."""

    policy: TeamPolicy  # type: ignore[assignment]
    central = False

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        hp.require_whole_chunks()
        updates = updates_per_rollout(hp, context.num_envs)
        self.needs = hp.needs(updates=updates, chunk=hp.chunk if hp.memory else 1)
        self.crews = make_crews(spaces, hp.sharing, told=hp.agent_id)
        nets = [self._network(crew) for crew in self.crews]
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
        actors = [net.actor() if isinstance(net, ActorCritic) else net for net in nets]
        self.policy = self.make_team_policy(self.crews, actors, heads)
        plain = [net for net in nets if isinstance(net, ActorCritic)]  # all, or none
        self.critics = [Forward(net.critic(), self.device) for net in plain]

    def _network(self, crew: Crew) -> ActorCritic | RecurrentActorCritic:
        hp, action = self.hp, crew.spaces.action
        options = {**hp.encoder(), **hp.gaussian(action)}
        space, distribution = crew.spaces.observation, policy_distribution(action)
        if hp.memory is None:
            return ActorCritic(space, distribution, **options)
        return RecurrentActorCritic(space, distribution, **options, **hp.memory_options())

    def update(self, data: Rollout) -> None:
        """Run the epochs of clipped updates over one rollout."""
        learn_from_team(self, data)

    # ------------------------------------------------------------------ the mathematics

    def team_value(self, obs: Tree) -> np.ndarray:
        """Return V [B, A] of joint observations, in the units of rewards."""
        return crew_values(self.crews, self.critics, self.scales, obs)

    def remembered_value(self, crew: Crew, net: Any, y: Tensor, joint: Tree) -> Tensor:
        """Return V [B * k] of what agents remember."""
        return net.value_head(y).squeeze(-1)

    def _loss(
        self, crew: Crew, net: Any, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if self.hp.memory is not None:
            return memory_team_loss(self, crew, net, batch)
        distribution = policy_distribution(crew.spaces.action)
        loss, metrics = clipped_loss(net, distribution, self.hp, crew_batch(crew, batch))
        return loss, named_metrics(self.crews, crew, metrics)
