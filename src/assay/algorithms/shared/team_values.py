"""What learners of the values of several agents share: networks, settings, update and loss.

Each agent has action values of its own, from what it sees; a mixer makes one value of all from
those of the actions that were taken. Values of agents that are not alive are 0 to the mixer.

With a memory, every agent has one of its own, also where agents share a network. Then sequences are
replayed, with the memories as they were when these were played. A sequence that begins its episode
is learned from as a whole, as in the papers' code; of one that begins later, the first `burn_in`
steps only bring the memories up to date. Mixing is the same at every step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from assay.algorithms.base import ReplayNeeds
from assay.algorithms.settings import MemorySettings, Unused, ValueSettings
from assay.algorithms.shared.central import central_state, unfold
from assay.algorithms.shared.sequences import (
    LONGEST_COMPILED,
    draw_sequences,
    learned_steps,
    require_n_step_within,
    sequence_priority,
    unroll,
)
from assay.algorithms.shared.value_learning import draw_transitions, learn_values
from assay.core.schedules import Schedule, constant
from assay.core.types import ALIVE, Problem, Spaces, tree_map, unpack
from assay.functional import losses, returns, targets
from assay.functional.recurrent import by_step
from assay.networks.encoders import make_encoder
from assay.networks.heads import DuelingHead
from assay.networks.mlp import mlp
from assay.networks.rnn import Kind, Remembering, make_memory
from assay.policies.team import Crew, Sharing, own_carry

_NEEDS_MEMORY = ("memory_size", "memory_layers", "head_hidden", "sequence", "burn_in")
# What agents with a memory learn with, without a preset: an update has whole sequences.
_REMEMBERING: dict[str, Any] = {
    "num_envs": 8, "batch_size": 32, "train_every": 16, "updates": 1, "hidden": (64,),
}  # fmt: skip


class TeamValueSettings(MemorySettings, ValueSettings):
    """Action values of several agents, learned together from the mean of their rewards."""

    lr: Schedule = Field(constant(5e-4), description="Learning rate or schedule.")
    batch_size: int = Field(
        32, gt=0, description="Transitions per gradient step; with memory, sequences."
    )
    sharing: Sharing = Field("type", description="Who shares a network: all, each type, or none.")
    agent_id: bool = Field(True, description="Tell a shared network which agent acts.")
    double: bool = Field(True, description="Choose with the online network (double DQN).")
    loss: Literal["huber", "mse"] = Field("mse", description="Loss of the TD error.")
    memory: Kind | None = Field(  # type: ignore[assignment]
        None, description="Kind of memory that each agent has; or none."
    )
    sequence: int = Field(
        24, gt=0, description="Steps of a sequence that are learned from (memory)."
    )
    burn_in: int = Field(8, ge=0, description="Steps before them that warm memories up (memory).")

    @classmethod
    def fitted(cls, problem: Problem, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return what DQN takes; with a memory, fewer updates of whole sequences."""
        fit = super().fitted(problem, given)
        return fit | _REMEMBERING if given.get("memory") else fit

    def unused(self, spaces: Spaces) -> Unused:
        """Yield what several agents do not use, and what they do not with or without a memory."""
        yield "normalize_obs", "with several agents"
        if self.sharing == "none":
            yield "agent_id", "with sharing=none"
        if self.memory is not None:
            yield "noisy", "with memory"
            return
        for name in _NEEDS_MEMORY:
            yield name, "without memory"

    def needs(self, **more: Any) -> ReplayNeeds:
        """Return a replay of transitions, or of sequences where agents have a memory.

        Raises:
            ConfigError: Returns are longer than sequences.
        """
        if self.memory is None:
            return super().needs(**more)
        require_n_step_within(self.n_step, self.sequence)
        length = self.burn_in + self.sequence
        # The loss sums the n steps.
        return super().needs(n_step=1, sequence=length, overlap=self.burn_in, **more)

    def auto_compiles(self) -> bool:
        """Return whether a step is short enough to be compiled unasked."""
        return self.memory is None or self.burn_in + self.sequence <= LONGEST_COMPILED


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
        make = _network if hp.memory is None else RecurrentValues
        self.nets = nn.ModuleList([make(crew, hp) for crew in crews])

    def forward(self, obs: dict[str, Tensor]) -> list[Tensor]:
        """Return the action values [B * k, n] of each crew."""
        return [net(crew.see(obs)) for crew, net in zip(self.crews, self.nets, strict=True)]

    def unrolled(self, obs: dict[str, Tensor], carry: Any, is_first: Tensor) -> list[Tensor]:
        """Return the action values [(L + 1) * B * k, n] of each crew in sequences.

        Args:
            obs: Joint observations [(L + 1) * B, ...], step by step.
            carry: All memories before the first step, [B, k, ...] of each crew.
            is_first: [L, B], 1 where an episode begins.
        """
        return [
            net(crew.see(obs), own_carry(crew, carry), is_first.repeat_interleave(crew.size, 1))
            for crew, net in zip(self.crews, self.nets, strict=True)
        ]

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


class RecurrentValues(Remembering):
    """Action values of a crew's agents that remember: encoder, memory, head."""

    def __init__(self, crew: Crew, hp: TeamValueSettings) -> None:
        super().__init__()
        assert hp.memory is not None
        self.burn_in = hp.burn_in
        self.encoder = make_encoder(crew.spaces.observation, **hp.encoder(), init="torch")
        self.memory = make_memory(
            hp.memory, self.encoder.out_features, hp.memory_size, layers=hp.memory_layers,
            heads=hp.heads, context=hp.context,
        )  # fmt: skip
        width, actions = self.memory.out_features, int(crew.spaces.action.n)
        self.head = (
            DuelingHead(width, actions, hidden=hp.head_hidden, activation=hp.activation)
            if hp.dueling
            else mlp((width, *hp.head_hidden, actions), hp.activation, init="torch")
        )

    def forward(self, seen: Any, carry: dict[str, Tensor], is_first: Tensor) -> Tensor:
        """Return q [(L + 1) * B, n] of rows [(L + 1) * B, ...] and flags [L, B]."""
        return unroll(self, seen, carry, is_first, self.burn_in).flatten(0, 1)


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


def learn_team_values(learner: Any, data: Any) -> None:
    """Take one gradient step on a replay batch; move the target when it is due."""
    hp = learner.hp
    draw = draw_transitions if hp.memory is None else draw_sequences
    sample, batch = draw(learner, data)
    learn_values(learner, data, sample, batch, hp.lr(learner.clock.progress), noisy=hp.noisy)


def team_td_loss(
    learner: TeamLearner, batch: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of Q_tot on a batch of joint transitions, or of sequences of them."""
    return (_td_loss if learner.hp.memory is None else _sequence_loss)(learner, batch)


def _td_loss(learner: TeamLearner, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    hp, q = learner.hp, learner.q
    obs, next_obs = unpack("obs", batch), unpack("next_obs", batch)
    total = _taken(q, q(obs), obs, batch["action"])
    with torch.no_grad():
        evaluated = learner.target(next_obs)
        ahead = _best(learner, q(next_obs) if hp.double else evaluated, evaluated, next_obs)
        # y = r + gamma (1 - terminated) Q_tot'(s', argmax_a Q_a(s', a) for every agent)
        y = targets.td_target(batch["reward"], batch["discount"], batch["terminated"], ahead)
    error = total - y
    loss = (_penalty(hp, error) * batch.get("weight", 1.0)).mean()
    metrics = {"q_total": total.mean()}
    if hp.prioritized:
        metrics["priority"] = error
    return loss, metrics


def _sequence_loss(
    learner: TeamLearner, batch: dict[str, Tensor]
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the mean loss over the steps of sequences [B, L] that are learned from."""
    hp, q, carry = learner.hp, learner.q, unpack("carry", batch)
    names = ("reward", "terminated", "truncated", "valid", "is_first")
    reward, terminated, truncated, valid, is_first = (batch[k].t() for k in names)  # [L, B]
    columns = is_first.shape[1]
    joint = tree_map(by_step, unpack("obs", batch))  # [(L + 1) * B, ...]
    obs = tree_map(lambda x: x[:-columns], joint)
    next_obs = tree_map(lambda x: x[columns:], joint)
    online = q.unrolled(joint, carry, is_first)
    now = [x[: -columns * crew.size] for crew, x in zip(q.crews, online, strict=True)]
    total = _taken(q, now, obs, by_step(batch["action"])).view_as(reward)
    with torch.no_grad():
        target = learner.target.unrolled(joint, carry, is_first)
        choosing, evaluated = (
            [x[columns * crew.size :] for crew, x in zip(q.crews, values, strict=True)]
            for values in (online if hp.double else target, target)
        )
        ahead = _best(learner, choosing, evaluated, next_obs).view_as(reward)
        # y_t = sum_{j<n} gamma^j r_{t+j} + gamma^n (1 - terminated) Q_tot'
        y = returns.n_step_return(reward, ahead, terminated, truncated, hp.gamma, hp.n_step)
        learned = learned_steps(valid, is_first, hp.burn_in)
    error = (total - y) * learned
    loss = (_penalty(hp, error) * batch.get("weight", 1.0)).sum() / learned.sum()
    metrics = {"q_total": (total * learned).sum() / learned.sum()}
    if hp.prioritized:
        metrics["priority"] = sequence_priority(error, learned)
    return loss, metrics


def _taken(q: TeamQ, values: Sequence[Tensor], obs: Any, action: Tensor) -> Tensor:
    """Return Q_tot [B] of what was done."""
    chosen = [
        targets.action_value(own, crew.actions(action))
        for crew, own in zip(q.crews, values, strict=True)
    ]
    return q.total(obs, chosen)


def _best(
    learner: TeamLearner, choosing: Sequence[Tensor], evaluated: Sequence[Tensor], next_obs: Any
) -> Tensor:
    """Return the target's Q_tot [B] of the actions that each agent prefers."""
    best = [
        targets.double_q_value(one, other, _mask(crew, next_obs))
        for crew, one, other in zip(learner.q.crews, choosing, evaluated, strict=True)
    ]
    return learner.target.total(next_obs, best)


def _penalty(hp: Any, error: Tensor) -> Tensor:
    return losses.huber(error) if hp.loss == "huber" else 0.5 * error.square()


def _mask(crew: Crew, obs: dict[str, Tensor]) -> Tensor | None:
    seen = crew.see(obs)
    return seen.get("action_mask") if isinstance(seen, dict) else None
