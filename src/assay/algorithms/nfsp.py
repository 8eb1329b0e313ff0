"""Neural fictitious self-play (Heinrich and Silver 2016, arXiv:1603.01121).

Every agent has two policies. One learns to be a best response to what the others do. The other one
is the average of all best responses so far: it is learned by imitation, from a reservoir of what
best responses did. In each episode an agent follows its best response with the probability `eta`,
and its average policy otherwise, so that best responses are learned against averages that hardly
move. In zero-sum games of two, fictitious play converges in its averages: the average policy is
what was learned, and what acts after training.

Deviations: best responses are learned with PPO (arXiv:1707.06347), from the episodes in which they
were followed, in place of DQN from a replay of all episodes. Agents may share networks.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import Algorithm, Context, bound
from assay.algorithms.shared.cloning import choice_loss, clone_network
from assay.algorithms.shared.proximal import clipped_loss, run_epochs, updates_per_rollout
from assay.algorithms.shared.team_rollout import (
    TeamSettings,
    ValueScales,
    crew_batch,
    crew_values,
    named_metrics,
    prepare_team,
)
from assay.buffers.reservoir import Reservoir
from assay.buffers.rollout import Rollout
from assay.core.registry import register
from assay.core.schedules import Schedule, constant
from assay.core.types import ALIVE, Action, Spaces, Tree, pack, tree_map, unpack
from assay.functional.distributions import policy_distribution
from assay.networks.actor_critic import ActorCritic
from assay.optim.rules import Adam
from assay.optim.update import Objective
from assay.policies.forward import Forward
from assay.policies.heads import StochasticHead
from assay.policies.team import Crew, TeamPolicy, make_crews

_UNDECIDED, _BEST, _AVERAGE = 0, 1, 2  # which policy an agent follows in an episode


@register(
    loop="on_policy",
    actions=("MultiDiscrete",),
    family="multi-agent",
    paper="arXiv:1603.01121",
    agents="many",
    traits=("rivals",),
)
class NFSP(Algorithm):
    """Best responses and their average, in self-play. For games of hidden information."""

    class Hyperparameters(TeamSettings):
        """Settings of NFSP."""

        eta: float = Field(
            0.2, gt=0, le=1, description="Share of episodes in which an agent plays its best."
        )
        reservoir_size: int = Field(200_000, gt=0, description="Choices kept for the average.")
        average_lr: Schedule = Field(constant(1e-3), description="Learning rate of the average.")
        average_batch: int = Field(256, gt=0, description="Choices per step of the average.")
        average_updates: int = Field(16, gt=0, description="Average updates per rollout.")

    policy: TeamPolicy  # type: ignore[assignment]
    central = False

    def __init__(self, spaces: Spaces, hp: Hyperparameters, context: Context) -> None:
        super().__init__(spaces, hp, context)
        updates = updates_per_rollout(hp, context.num_envs)
        self.needs = hp.needs(updates=updates + hp.average_updates)
        self.crews = make_crews(spaces, hp.sharing, told=hp.agent_id)
        nets = [
            ActorCritic(
                crew.spaces.observation, policy_distribution(crew.spaces.action), **hp.encoder()
            )
            for crew in self.crews
        ]
        averages = [clone_network(crew.spaces, hp) for crew in self.crews]
        self.nets = nn.ModuleList(nets).to(self.device)
        self.averages = nn.ModuleList(averages).to(self.device)
        rule = Adam(eps=1e-5, max_grad_norm=hp.max_grad_norm)
        self.step = self.make_step(
            [
                Objective(f"ppo_{crew.name}", net, bound(self._loss, crew, net), rule)
                for crew, net in zip(self.crews, self.nets, strict=True)
            ]
        )
        self.average_step = self.make_step(
            [
                Objective(f"average_{crew.name}", net, bound(self._average_loss, crew, net), rule)
                for crew, net in zip(self.crews, self.averages, strict=True)
            ]
        )
        self.scales = ValueScales(len(self.crews), hp.normalize_value)
        self.reservoir = Reservoir(hp.reservoir_size, self.rng)
        heads = [StochasticHead(crew.spaces.action) for crew in self.crews]
        self.policy = self.make_team_policy(self.crews, averages, heads)
        self.best = self.make_team_policy(self.crews, [net.actor() for net in nets], heads)
        self.critics = [Forward(net.critic(), self.device) for net in nets]

    def initial_carry(self, n: int) -> Tree:
        """Return which policy each agent follows in its episode: none is chosen yet."""
        assert self.spaces.team is not None
        return {"follows": np.full((n, self.spaces.team.size), _UNDECIDED, np.int8)}

    def act(self, obs: Tree, carry: Tree, explore: bool) -> Action:
        """Choose joint actions: by the average, or while training by what each agent follows."""
        if not explore:
            return Action(self.policy.act(obs, None, False).action, carry)
        follows = carry["follows"]
        drawn = np.where(self.rng.random(follows.shape) < self.hp.eta, _BEST, _AVERAGE)
        follows = np.where(follows == _UNDECIDED, drawn, follows).astype(np.int8)
        best = self.best.act(obs, None, True)
        average = self.policy.act(obs, None, True)
        action = np.where(follows == _BEST, best.action, average.action)
        extras = {"log_prob": best.extras["log_prob"], "best": follows == _BEST}
        return Action(action, {"follows": follows}, extras)

    def update(self, data: Rollout) -> None:
        """Learn best responses from the episodes that followed them, and their average."""
        hp, best = self.hp, data.extras["best"]
        rows = data.length * data.num_envs
        run_epochs(self, self.step, prepare_team(self, data, only=best), rows)
        self._remember(data, best)
        names = [crew.name for crew in self.crews]
        if min(map(self.reservoir.size, names)) == 0:
            return  # somebody has not played its best response yet
        for _ in range(hp.average_updates):
            batch: dict[str, Tensor] = {}
            for name in names:
                batch |= pack(name, self.tensors(self.reservoir.sample(name, hp.average_batch)))
            self.average_step(batch, hp.average_lr(self.clock.progress))

    def _remember(self, data: Rollout, best: np.ndarray) -> None:
        """Put what best responses saw and did into the reservoir."""
        acted = best & (data.obs[ALIVE] != 0) & data.valid[..., None]  # [T, N, A]
        flat = tree_map(lambda x: x.reshape(-1, *x.shape[2:]), data.obs)
        action, acted = (x.reshape(-1, x.shape[2]) for x in (data.action, acted))
        for crew in self.crews:
            rows = crew.fold(acted)
            seen = pack("obs", crew.see(flat)) | {"action": crew.actions(action)}
            self.reservoir.add(crew.name, {name: part[rows] for name, part in seen.items()})

    # ------------------------------------------------------------------ the mathematics

    def team_value(self, obs: Tree) -> np.ndarray:
        """Return V [B, A] of joint observations, in the units of rewards."""
        return crew_values(self.crews, self.critics, self.scales, obs)

    def _loss(
        self, crew: Crew, net: ActorCritic, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        distribution = policy_distribution(crew.spaces.action)
        loss, metrics = clipped_loss(net, distribution, self.hp, crew_batch(crew, batch))
        return loss, named_metrics(self.crews, crew, metrics)

    def _average_loss(
        self, crew: Crew, net: nn.Module, batch: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        own = unpack(crew.name, batch)
        distribution = policy_distribution(crew.spaces.action)
        # L = -E[log Pi(a|s)], (s, a) of the reservoir
        loss = choice_loss(net, distribution, unpack("obs", own), own["action"])
        return loss, named_metrics(self.crews, crew, {"average_loss": loss})
