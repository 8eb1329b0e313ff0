"""Policies of several agents: who shares one, and how all of them act together.

Agents that share a policy are a `Crew`. A crew's policy is an ordinary `Policy` for one agent: the
agent axis is folded into the batch before it acts, and unfolded after. What such a policy sees is
the agent's own observation, without padding; which of the crew it is, if that is asked for; and its
own part of the action mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from assay.core.errors import ConfigError
from assay.core.types import (
    ACTION_MASK,
    AGENT_OBS,
    Action,
    Array,
    Spaces,
    Team,
    Tree,
    unpack,
)
from assay.policies.policy import Policy

Sharing = Literal["all", "type", "none"]
MEMBER = "agent"  # the entry of a policy's observation that says which of its crew acts


@dataclass(frozen=True)
class Crew:
    """Agents that share a policy, and its spaces.

    Attributes:
        name: Of the policy.
        members: [k] places of its agents in the team.
        spaces: What the policy sees and does.
        most: Actions of the agent of the team that has most; or numbers of its Box.
        team_size: A.
        told: Whether the policy is told which of the crew acts.
    """

    name: str
    members: tuple[int, ...]
    spaces: Spaces
    most: int
    team_size: int
    told: bool

    @property
    def size(self) -> int:
        """Return k, the number of its agents."""
        return len(self.members)

    @cached_property
    def _index(self) -> np.ndarray | slice:
        first, last = self.members[0], self.members[-1]
        whole = self.members == tuple(range(first, last + 1))
        return slice(first, last + 1) if whole else np.array(self.members)

    @property
    def observation(self) -> Any:
        """Return the space of what one agent sees, without its mask and number."""
        space = self.spaces.observation
        return space[AGENT_OBS] if isinstance(space, spaces.Dict) else space

    @property
    def discrete(self) -> bool:
        """Return whether actions are choices."""
        return isinstance(self.spaces.action, spaces.Discrete)

    def own(self, joint: Array) -> Array:
        """Return the crew's part [N, k, ...] of an array [N, A, ...]."""
        if isinstance(joint, Tensor) and not isinstance(self._index, slice):
            # An index would be a constant of a compiled step, which it may not have.
            return torch.stack([joint[:, i] for i in self.members], 1)
        return joint[:, self._index]

    def fold(self, joint: Array) -> Array:
        """Return the crew's part of an array [N, A, ...], as rows [N * k, ...]."""
        own = self.own(joint)
        return own.reshape(own.shape[0] * own.shape[1], *own.shape[2:])

    def see(self, obs: dict[str, Array]) -> Tree:
        """Return what the policy sees, rows [N * k, ...], of joint observations [N, ...].

        Both are NumPy arrays or both tensors.
        """
        parts: dict[str, Array] = {AGENT_OBS: self.fold(obs[AGENT_OBS])}
        space = self.spaces.observation
        inner = self.observation
        if len(inner.shape) == 1:
            parts[AGENT_OBS] = parts[AGENT_OBS][:, : inner.shape[0]]
        if not isinstance(space, spaces.Dict):
            return parts[AGENT_OBS]
        rows = obs[AGENT_OBS].shape[0]
        if ACTION_MASK in space.spaces:
            mask = obs[ACTION_MASK].reshape(rows, self.team_size, self.most)
            parts[ACTION_MASK] = self.fold(mask)[:, : int(self.spaces.action.n)]
        if self.told:
            if isinstance(parts[AGENT_OBS], Tensor):
                members = torch.arange(self.size, device=parts[AGENT_OBS].device)
                parts[MEMBER] = members.repeat(rows)
            else:
                parts[MEMBER] = _numbers(self.size, rows)
        return parts

    def actions(self, joint: Array) -> Array:
        """Return the crew's part of joint actions, as rows [N * k] or [N * k, d]."""
        if self.discrete:
            return self.fold(joint)
        width = self.spaces.action.shape[0]
        return self.fold(joint.reshape(joint.shape[0], self.team_size, self.most))[:, :width]


@lru_cache(maxsize=32)
def _numbers(size: int, rows: int) -> np.ndarray:
    """Return which of a crew of `size` each of [rows * size] is; nobody writes to it.

    It is not marked as read-only, because torch warns of such arrays.
    """
    return np.tile(np.arange(size), rows)


def team_of(joint: Spaces) -> Team:
    """Return the agents of joint spaces."""
    assert joint.team is not None
    return joint.team


def make_crews(joint: Spaces, sharing: Sharing, *, told: bool) -> tuple[Crew, ...]:
    """Return who shares a policy.

    Args:
        joint: The spaces of a team.
        sharing: "all" share one, those of one "type" do, or "none".
        told: Tell a policy of several agents which of them acts.

    Raises:
        ConfigError: Agents are to share a policy whose spaces differ.
    """
    team = team_of(joint)
    labels = {"all": ("all",) * team.size, "type": team.types, "none": team.agents}[sharing]
    return tuple(_crew(joint, team, sharing, name, told) for name in dict.fromkeys(labels))


def _crew(joint: Spaces, team: Team, sharing: Sharing, name: str, told: bool) -> Crew:
    labels = {"all": ("all",) * team.size, "type": team.types, "none": team.agents}[sharing]
    members = tuple(i for i, label in enumerate(labels) if label == name)
    first = members[0]
    for i in members:
        for what, own in (("sees", team.observations), ("acts in", team.actions)):
            if own[i] != own[first]:
                other = "none"
                if sharing == "all" and team.types[i] != team.types[first]:
                    other = "type (or none)"
                raise ConfigError(
                    f"sharing={sharing}: agent '{team.agents[first]}' {what} {own[first]}, and "
                    f"'{team.agents[i]}' {what} {own[i]}. One policy cannot serve both.",
                    f"Use sharing={other}.",
                )
    observation, action = team.observations[first], team.actions[first]
    discrete = isinstance(action, spaces.Discrete)
    if discrete:
        most = int(joint.action.nvec[0])
    else:
        most = joint.action.shape[0] // team.size
    masked = discrete and team.masks
    told = told and len(members) > 1
    if masked or told:
        parts = {AGENT_OBS: observation}
        if masked:
            parts[ACTION_MASK] = spaces.MultiBinary(int(action.n))
        if told:
            parts[MEMBER] = spaces.Discrete(len(members))
        observation = spaces.Dict(parts)
    return Crew(name, members, Spaces(observation, action), most, team.size, told)


class TeamPolicy:
    """Act for all agents of a team.

    Attributes:
        spaces: The joint ones.
        crews: Who shares a policy.
        policies: By the name of the crew, each for one agent.
    """

    wants_rewards = False

    def __init__(self, joint: Spaces, crews: Sequence[Crew], policies: Sequence[Policy]) -> None:
        self.spaces, self.crews = joint, tuple(crews)
        self.policies = {c.name: p for c, p in zip(crews, policies, strict=True)}
        self._pairs = list(zip(self.crews, policies, strict=True))

    def act(self, obs: Tree, carry: Tree = None, explore: bool = False) -> Action:
        """Choose joint actions for N joint observations, as `Policy.act` does for one agent.

        Extras are [N, A, ...]. What an agent does that is not alive means nothing.
        """
        rows, size = obs[AGENT_OBS].shape[:2]
        crew = self.crews[0]
        discrete, most = crew.discrete, crew.most
        shape = (rows, size) if discrete else (rows, size, most)
        action = np.zeros(shape, np.int64 if discrete else np.float32)
        extras: dict[str, Array] = {}
        after: dict[str, Array] = {}
        for crew, policy in self._pairs:
            own = None if carry is None else own_carry(crew, carry)
            choice = policy.act(crew.see(obs), own, explore)
            if carry is not None:
                after |= _joint(crew, rows, choice.carry)
            places = crew._index
            if discrete:
                action[:, places] = choice.action.reshape(rows, crew.size)
            else:
                own = choice.action.reshape(rows, crew.size, -1)
                action[:, places, : own.shape[2]] = own
            for name, values in choice.extras.items():
                own = values.reshape(rows, crew.size, *values.shape[1:])
                if name not in extras:
                    wide = (most,) if own.ndim > 2 else ()
                    extras[name] = np.zeros((rows, size, *wide), own.dtype)
                if own.ndim > 2:
                    extras[name][:, places, : own.shape[2]] = own
                else:
                    extras[name][:, places] = own
        kept = None if carry is None else after
        return Action(action if discrete else action.reshape(rows, -1), kept, extras)

    def initial_carry(self, n: int) -> Tree:
        """Return what every agent carries at an episode's start, [n, k, ...] of each crew; or None.

        Either the policies of all crews have a memory, or none has.
        """
        found: dict[str, Array] = {}
        for crew, policy in self._pairs:
            own = policy.initial_carry(n * crew.size)
            if own is None:
                return None
            found |= _joint(crew, n, own)
        return found

    def rewarded(self, carry: Tree, reward: Array) -> Tree:
        """Return the carry as it is."""
        return carry

    def module(self) -> nn.Module:
        """Return a torch module from joint observations to the best joint actions."""
        return TeamModule(self)


def _joint(crew: Crew, rows: int, carry: Tree) -> dict[str, Array]:
    """Return a crew's memories [rows * k, ...] as a part of the joint carry [rows, k, ...]."""
    return {
        f"{crew.name}/{name}": x.reshape(rows, crew.size, *x.shape[1:]) for name, x in carry.items()
    }


def own_carry(crew: Crew, carry: Tree) -> Tree:
    """Return a crew's memories [rows * k, ...] of the joint carry."""
    own = unpack(crew.name, carry)
    return {name: x.reshape(-1, *x.shape[2:]) for name, x in own.items()}


class TeamModule(nn.Module):
    """The deterministic policies of a team as one torch module."""

    def __init__(self, policy: TeamPolicy) -> None:
        super().__init__()
        self.crews = policy.crews
        self.parts = nn.ModuleList([p.module() for p in policy.policies.values()])

    def forward(self, obs: dict[str, Tensor], carry: Tree = None) -> Any:
        """Return joint actions; with memories, and the joint carry after them."""
        rows, size = obs[AGENT_OBS].shape[:2]
        crew = self.crews[0]
        discrete, most = crew.discrete, crew.most
        shape = (rows, size) if discrete else (rows, size, most)
        action = torch.zeros(shape, dtype=torch.int64 if discrete else torch.float32)
        after: dict[str, Tensor] = {}
        for crew, part in zip(self.crews, self.parts, strict=True):
            seen = crew.see(obs)
            chosen = part(seen) if carry is None else part(seen, own_carry(crew, carry))
            if carry is not None:
                chosen, kept = chosen
                after |= _joint(crew, rows, kept)
            own = chosen.reshape(rows, crew.size, *([] if discrete else [-1]))
            if discrete:
                action[:, list(crew.members)] = own
            else:
                action[:, list(crew.members), : own.shape[2]] = own
        joint = action if discrete else action.reshape(rows, -1)
        return joint if carry is None else (joint, after)
