"""What learners of the values of several agents share: networks, settings and the loss.

Each agent has action values of its own, from what it sees; a mixer makes one value of all from
those of the actions that were taken. Values of agents that are not alive are 0 to the mixer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.settings import Unused, ValueSettings
from assay.algorithms.shared.central import central_state, unfold
from assay.core.schedules import Schedule, constant
from assay.core.types import ALIVE, Spaces, unpack
from assay.functional import losses, targets
from assay.networks.encoders import make_encoder
from assay.networks.heads import DuelingHead
from assay.networks.mlp import mlp
from assay.policies.team import Crew, Sharing


class TeamValueSettings(ValueSettings):
    """Action values of several agents, learned together from the mean of their rewards."""

    lr: Schedule = Field(constant(5e-4), description="Learning rate or schedule.")
    sharing: Sharing = Field("type", description="Who shares a network: all, each type, or none.")
    agent_id: bool = Field(True, description="Tell a shared network which agent acts.")
    double: bool = Field(True, description="Choose with the online network (double DQN).")
    loss: Literal["huber", "mse"] = Field("mse", description="Loss of the TD error.")

    def unused(self, spaces: Spaces) -> Unused:
        """Yield what several agents do not use."""
        yield "normalize_obs", "with several agents"
        if self.sharing == "none":
            yield "agent_id", "with sharing=none"


class TeamQ(nn.Module):
    """The action values of all agents, and what mixes them.

    Args:
        crews: Who shares a network.
        hp: Settings of the networks.
        mixer: From values [B, A] and states [B, S] to [B].
    """

    def __init__(self, crews: Sequence[Crew], hp: TeamValueSettings, mixer: nn.Module) -> None:
        super().__init__()
        self.crews, self.mixer = tuple(crews), mixer
        self.nets = nn.ModuleList([_network(crew, hp) for crew in crews])

    def forward(self, obs: dict[str, Tensor]) -> list[Tensor]:
        """Return the action values [B * k, n] of each crew."""
        return [net(crew.see(obs)) for crew, net in zip(self.crews, self.nets, strict=True)]

    def total(self, obs: dict[str, Tensor], chosen: Sequence[Tensor]) -> Tensor:
        """Return Q_tot [B] of the values [B * k] that each crew's chosen actions have."""
        alive = obs[ALIVE].to(torch.float32)
        values = unfold(self.crews, chosen)
        return self.mixer(values * alive, central_state(obs))


def _network(crew: Crew, hp: TeamValueSettings) -> nn.Module:
    encoder = make_encoder(crew.spaces.observation, **hp.encoder(), init="torch", noisy=hp.noisy)
    actions = int(crew.spaces.action.n)
    if hp.dueling:
        head: nn.Module = DuelingHead(encoder.out_features, actions, noisy=hp.noisy)
    else:
        head = mlp((encoder.out_features, actions), init="torch", noisy=hp.noisy)
    return nn.Sequential(encoder, head)


class TeamLearner(Protocol):
    """What `team_td_loss` needs of an algorithm."""

    hp: Any

    @property
    def q(self) -> TeamQ:
        """Return the values that are learned."""

    @property
    def target(self) -> TeamQ:
        """Return the values that are bootstrapped from."""


def target_of(q: TeamQ) -> TeamQ:
    """Return a copy to bootstrap from."""
    return copy.deepcopy(q)


def team_td_loss(
    learner: TeamLearner, batch: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of Q_tot on a batch of joint transitions."""
    hp, q = learner.hp, learner.q
    obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
    chosen = [
        targets.action_value(values, crew.actions(batch["action"]))
        for crew, values in zip(q.crews, q(obs), strict=True)
    ]
    total = q.total(obs, chosen)
    with torch.no_grad():
        evaluated = learner.target(next_obs)
        choosing = q(next_obs) if hp.double else evaluated
        best = [
            targets.double_q_value(one, other, _mask(crew, next_obs))
            for crew, one, other in zip(q.crews, choosing, evaluated, strict=True)
        ]
        ahead = learner.target.total(next_obs, best)
        # y = r + gamma (1 - terminated) Q_tot'(s', argmax_a Q_a(s', a) for every agent)
        y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], ahead)
    error = total - y
    item = losses.huber(error) if hp.loss == "huber" else 0.5 * error.square()
    loss = (item * batch.get("weight", 1.0)).mean()
    metrics = {"q_total": total.mean()}
    if hp.prioritized:
        metrics["priority"] = error
    return loss, metrics


def _mask(crew: Crew, obs: dict[str, Tensor]) -> Tensor | None:
    seen = crew.see(obs)
    return seen.get("action_mask") if isinstance(seen, dict) else None
