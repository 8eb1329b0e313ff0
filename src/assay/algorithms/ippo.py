"""Independent PPO (de Witt et al. 2020, arXiv:2011.09533).

Every agent learns with PPO (arXiv:1707.06347) from what it sees itself, as if the others were a
part of its environment. Agents may share networks: all of them, those of one type, or none.

Deviations: returns are standardised for the value function (`normalize_value`, as in MAPPO,
arXiv:2103.01955), and a shared network is told which agent acts (`agent_id`). Where agents take
turns, a step of an agent goes from one of its turns to the next.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, bound
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
from assay.core.types import AGENT_OBS, Spaces, Tree
from assay.functional.distributions import policy_distribution
from assay.networks.actor_critic import ActorCritic
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.heads import StochasticHead
from assay.policies.team import Crew, TeamPolicy, make_crews


@register(
    loop="on_policy",
    actions=("MultiDiscrete", "Box"),
    family="multi-agent",
    paper="arXiv:2011.09533",
    agents="many",
    traits=("first",),
)
class IPPO(Algorithm):
    """PPO for each of several agents. First choice for several agents, also against each other."""

    class Hyperparameters(TeamSettings):
        """Settings of IPPO."""

    policy: TeamPolicy  # type: ignore[assignment]

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        self.needs = hp.needs(updates=updates_per_rollout(hp, context.num_envs))
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
        actors = [net.actor() for net in nets]
        self.policy = self.make_team_policy(self.crews, actors, heads)

    def _network(self, crew: Crew) -> ActorCritic:
        hp, action = self.hp, crew.spaces.action
        return ActorCritic(
            crew.spaces.observation, policy_distribution(action), **hp.encoder(),
            **hp.gaussian(action),
        )  # fmt: skip

    def update(self, data: Rollout) -> None:
        """Run the epochs of clipped updates over one rollout."""
        run_epochs(self, self.step, prepare_team(self, data), data.length * data.num_envs)

    # ------------------------------------------------------------------ the mathematics

    def team_value(self, obs: Tree) -> np.ndarray:
        """Return V [B, A] of joint observations, in the units of rewards."""
        value = np.zeros(obs[AGENT_OBS].shape[:2], np.float32)
        for i, (crew, net) in enumerate(zip(self.crews, self.nets, strict=True)):
            assert isinstance(net, ActorCritic)
            own = net.value(crew.see(obs)).cpu().numpy().reshape(len(value), crew.size)
            value[:, list(crew.members)] = self.scales.real(i, own)
        return value

    def _loss(
        self, crew: Crew, net: ActorCritic, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        distribution = policy_distribution(crew.spaces.action)
        loss, metrics = clipped_loss(net, distribution, self.hp, crew_batch(crew, batch))
        return loss, named_metrics(self.crews, crew, metrics)
