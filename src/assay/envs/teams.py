"""Several agents as one environment: joint spaces with an agent axis.

The joint observation is a Dict: `obs` [A, ...] (rows padded with zeros to a common width), `alive`
[A], `action_mask` [A * n] where agents have masks or unequal numbers of actions, and `state` [S]
where the environment has one. The joint action is a MultiDiscrete [A], every agent with as many
choices as the one with most, or a Box [A, d]. The joint reward is the mean over all agents; what
each got is in `outcome`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from assay.core.errors import EnvError, SpaceError
from assay.core.images import is_image
from assay.core.types import (
    ACTION_MASK,
    AGENT_OBS,
    AGENT_REWARD,
    AGENT_TERMINATED,
    AGENT_TRUNCATED,
    ALIVE,
    STATE,
    State,
    Team,
)
from assay.envs.space_codec import space_from_state, space_to_state
from assay.envs.spaces import ActionMap, BadObservationError, ObservationMap, has_mask

_NUMBER = re.compile(r"[_-]?\d+$")


class Outcome(NamedTuple):
    """What a step did to each agent: [A] of one environment, [N, A] of several.

    Attributes:
        reward: 0 for an agent that is not there.
        terminated: The agent is out of the episode, in a terminal state.
        truncated: The agent is out of the episode, cut off.
    """

    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]

    def named(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by the names that collected data has them under."""
        return dict(zip((AGENT_REWARD, AGENT_TERMINATED, AGENT_TRUNCATED), self, strict=True))


def nothing_happened(*shape: int) -> Outcome:
    """Return an outcome of zeros."""
    return Outcome(np.zeros(shape, np.float32), np.zeros(shape, bool), np.zeros(shape, bool))


def team_of(env: Any) -> Team | None:
    """Return the team of an environment with an agent axis, under its wrappers; of others, None."""
    team = getattr(env.unwrapped, "team", None)
    return team if isinstance(team, Team) else None


def type_of(agent: str) -> str:
    """Return the type of an agent by its name: what stands before its number.

    Example:
        >>> type_of("adversary_0"), type_of("agent")
        ('adversary', 'agent')
    """
    return _NUMBER.sub("", agent) or agent


def joint_spaces(team: Team, state: int) -> tuple[spaces.Dict, gym.Space[Any]]:
    """Return the joint observation and action space of a team.

    Args:
        team: The agents.
        state: The width of the global state; 0 where there is none.

    Raises:
        SpaceError: Some agents have Discrete actions and others a Box, or images differ.
    """
    kinds = {type(space) for space in team.actions}
    if len(kinds) > 1:
        raise SpaceError(
            f"The actions of {team.agents[0]} are {team.actions[0]}, and others have "
            f"{next(a for a in team.actions if type(a) is not type(team.actions[0]))}.",
            "Give all agents Discrete actions, or all of them a Box.",
        )
    parts: dict[str, gym.Space[Any]] = {}
    first = team.observations[0]
    if is_image(first) or any(is_image(space) for space in team.observations):
        if any(space != first for space in team.observations):
            raise SpaceError(
                "Agents see images, and not all see the same kind: "
                f"{', '.join(sorted({str(space) for space in team.observations}))}.",
                "Give all of them images of one size, or none.",
            )
        low, high = (np.stack([bound] * team.size) for bound in (first.low, first.high))
        parts[AGENT_OBS] = spaces.Box(low, high, dtype=first.dtype.type)
    else:
        width = max(space.shape[0] for space in team.observations)
        parts[AGENT_OBS] = spaces.Box(-np.inf, np.inf, (team.size, width), np.float32)
    parts[ALIVE] = spaces.MultiBinary(team.size)
    action: gym.Space[Any]
    if kinds == {spaces.Discrete}:
        counts = [int(space.n) for space in team.actions]
        action = spaces.MultiDiscrete([max(counts)] * team.size)
        if team.masks or len(set(counts)) > 1:
            parts[ACTION_MASK] = spaces.MultiBinary(team.size * max(counts))
    else:
        width = max(space.shape[0] for space in team.actions)
        low, high = -np.ones((team.size, width)), np.ones((team.size, width))
        for row, space in enumerate(team.actions):
            low[row, : space.shape[0]], high[row, : space.shape[0]] = space.low, space.high
        action = spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    if state:
        parts[STATE] = spaces.Box(-np.inf, np.inf, (state,), np.float32)
    return spaces.Dict(parts), action


def team_to_state(team: Team | None) -> State | None:
    """Return a team for a checkpoint."""
    if team is None:
        return None
    return {
        "agents": list(team.agents),
        "types": list(team.types),
        "observations": [space_to_state(space) for space in team.observations],
        "actions": [space_to_state(space) for space in team.actions],
        "state": team.state,
        "masks": team.masks,
    }


def team_from_state(state: State | None) -> Team | None:
    """Read what `team_to_state` returned."""
    if state is None:
        return None
    return Team(
        tuple(state["agents"]),
        tuple(state["types"]),
        tuple(space_from_state(space) for space in state["observations"]),
        tuple(space_from_state(space) for space in state["actions"]),
        bool(state["state"]),
        bool(state["masks"]),
    )


class AgentView:
    """How the observations and actions of one agent become its row of the joint ones.

    Args:
        name: Of the agent.
        observation: Its declared space; a Dict may have an entry `action_mask`.
        action: Its declared space.

    Attributes:
        space: What it sees: a Box of one axis, or an image.
        actions: Maps its actions.
        masked: Whether its observations bring a mask.

    Raises:
        SpaceError: A space is not supported for one of several agents.
    """

    def __init__(self, name: str, observation: gym.Space[Any], action: gym.Space[Any]) -> None:
        self.name = name
        self.masked = has_mask(observation)
        self._inner = observation
        if isinstance(observation, spaces.Dict) and self.masked:
            rest = {k: v for k, v in observation.spaces.items() if k != ACTION_MASK}
            self._inner = spaces.Dict(rest)
        try:
            self._map = ObservationMap(self._inner)
            self.actions = ActionMap(action)
        except SpaceError as error:
            fix = str(error.fix).replace("MultiDiscrete", "Discrete")  # which agents cannot have
            raise SpaceError(f"Agent '{name}': {error.message}", fix) from None
        if not isinstance(self.actions.space, spaces.Discrete | spaces.Box):
            raise SpaceError(
                f"Agent '{name}' has the actions {action}; of several agents, Discrete and Box "
                "are supported.",
                "Give it one of these; a wrapper can number the choices through.",
            )
        leaves = self._map.leaves
        images = [leaf for leaf in leaves if is_image(leaf.space)]
        if images and len(leaves) > 1:
            raise SpaceError(
                f"Agent '{name}' sees an image beside other entries: {self._map.space}.",
                "Of several agents, let each see one image, or numbers alone.",
            )
        self._image = bool(images)
        self._sizes = [_choices(leaf.space) for leaf in leaves]
        width = sum(
            int(sizes.sum()) if sizes is not None else int(np.prod(leaf.shape))
            for leaf, sizes in zip(leaves, self._sizes, strict=True)
        )
        vector = spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.space: Any = leaves[0].space if self._image else vector

    def write(self, row: NDArray[Any], raw: Any) -> None:
        """Write an observation to the beginning of a row of zeros."""
        try:
            values = self._values(raw)
        except BadObservationError as error:
            raise BadObservationError(f"agent '{self.name}': {error}") from None
        if self._image:
            row[...] = values
        else:
            row[: len(values)] = values

    def _values(self, raw: Any) -> NDArray[Any]:
        leaves = self._map.leaves
        try:
            parts = [leaf.row(leaf.read(raw)) for leaf in leaves]
        except (KeyError, IndexError, TypeError) as error:
            raise BadObservationError(f"{error!r} while its observation was read") from None
        if self._image:
            return parts[0]
        flat = [
            np.asarray(part, np.float32).reshape(-1) if sizes is None else _one_hot(part, sizes)
            for part, sizes in zip(parts, self._sizes, strict=True)
        ]
        return flat[0] if len(flat) == 1 else np.concatenate(flat)

    def action(self, row: NDArray[Any]) -> Any:
        """Return the agent's own action, of its row of the joint one."""
        space, to_env = self.actions.space, self.actions.to_env
        if isinstance(space, spaces.Discrete):
            if not 0 <= row < space.n:
                raise EnvError(
                    f"Agent '{self.name}' was given the action {row}; it has {space.n}, from 0 on."
                )
            return int(row) if to_env is None else int(to_env(row))
        assert isinstance(space, spaces.Box)
        own = np.array(row[: space.shape[0]])
        return own if to_env is None else to_env(own[None])[0]

    def mask(self, raw: Any, info: Mapping[str, Any]) -> NDArray[np.int8] | None:
        """Return the mask that comes with an observation or its info, if any.

        Raises:
            BadObservationError: It has another length.
        """
        given = raw[ACTION_MASK] if self.masked else info.get(ACTION_MASK)
        if given is None:
            return None
        mask, size = np.asarray(given), self.actions.mask_size
        if size is None:
            raise BadObservationError(
                f"agent '{self.name}' gave an action mask, and its actions are "
                f"{self.actions.space}; only Discrete ones can be masked"
            )
        if mask.shape != (size,):
            raise BadObservationError(
                f"agent '{self.name}' gave an action mask of shape {mask.shape}; "
                f"{size} entries were expected"
            )
        return mask.astype(np.int8)


def _choices(space: gym.Space[Any]) -> NDArray[np.int64] | None:
    if isinstance(space, spaces.Discrete):
        return np.array([int(space.n)])
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.reshape(-1).astype(np.int64)
    return None


def _one_hot(values: NDArray[Any], sizes: NDArray[np.int64]) -> NDArray[np.float32]:
    flat = np.zeros(int(sizes.sum()), np.float32)
    flat[np.cumsum(sizes) - sizes + values.reshape(-1)] = 1.0
    return flat


class JointEnv(gym.Env[Any, Any]):
    """One environment of several agents, with joint spaces. A subclass steps it.

    Attributes:
        team: The agents.
        outcome: What the last step did to each; a reset leaves it.
        steps: Of this episode so far, which a subclass counts.
    """

    def __init__(self, views: Sequence[AgentView], *, masked: bool, state: int, name: str) -> None:
        self.name, self.views = name, tuple(views)
        names = tuple(view.name for view in self.views)
        self.team = Team(
            names,
            tuple(type_of(agent) for agent in names),
            tuple(view.space for view in self.views),
            tuple(view.actions.space for view in self.views),
            state > 0,
            masked,
        )
        self.index = {agent: i for i, agent in enumerate(names)}
        self.observation_space, self.action_space = joint_spaces(self.team, state)
        self.outcome = nothing_happened(self.team.size)
        self.steps = 0
        own = self.observation_space
        self._zeros: dict[str, tuple[Any, Any]] = {
            key: (space.shape, np.int8 if key in (ALIVE, ACTION_MASK) else space.dtype)
            for key, space in own.spaces.items()
        }
        self.most = 0  # actions of the agent that has most; 0 for a Box
        if isinstance(self.action_space, spaces.MultiDiscrete):
            self.most = int(self.action_space.nvec[0])

    def joint_obs(
        self,
        seen: Mapping[str, Any],
        infos: Mapping[str, Any],
        alive: set[str],
        state: Any = None,
        *,
        last: bool = False,
    ) -> dict[str, NDArray[Any]]:
        """Return the joint observation of what agents see.

        Args:
            seen: Raw observations by agent; the rows of others are zeros.
            infos: By agent.
            alive: Who acts on it.
            state: The global state, where there is one.
            last: Whether the episode is over: a mask that forbids all is then left out.
        """
        obs = {key: np.zeros(shape, dtype) for key, (shape, dtype) in self._zeros.items()}
        masks = obs[ACTION_MASK].reshape(self.team.size, -1) if ACTION_MASK in obs else None
        for i, view in enumerate(self.views):
            if masks is not None:
                masks[i, : view.actions.mask_size] = 1
            raw = seen.get(view.name)
            if raw is None:
                continue
            view.write(obs[AGENT_OBS][i], raw)
            if view.name in alive:
                obs[ALIVE][i] = 1
                mask = view.mask(raw, infos.get(view.name) or {})
                if mask is not None and masks is None:
                    raise BadObservationError(
                        f"agent '{view.name}' gave an action mask, and none at the first reset"
                    )
                if mask is not None and masks is not None and not (last and not mask.any()):
                    if not mask.any():
                        raise self._nothing_allowed(view.name, len(mask))
                    masks[i, : len(mask)] = mask
        if state is not None:
            row = np.asarray(state, np.float32).reshape(-1)
            if row.shape != obs[STATE].shape:
                raise BadObservationError(
                    f"state() has {row.size} entries, and had {obs[STATE].size} at the first reset"
                )
            obs[STATE][:] = row
        return obs

    def _nothing_allowed(self, agent: str, actions: int) -> EnvError:
        when = f"after step {self.steps} of an episode" if self.steps else "after reset()"
        return EnvError(
            f"'{self.name}': agent '{agent}' is to act {when}, and its action mask forbids all its "
            f"{actions} actions; expected at least one entry that is not 0.",
            f"Allow '{agent}' one action (one that does nothing, if need be), or terminate it; "
            "where agents take turns, give the turn to another one.",
        )

    def reward_of(self, agent: str, rewards: Mapping[str, Any]) -> float:
        """Return the reward of an agent that acted.

        Raises:
            EnvError: It is missing, or not a finite number.
        """
        if agent not in rewards:
            raise EnvError(
                f"'{self.name}' returned no reward for agent '{agent}', which acted; it has "
                f"rewards for: {', '.join(map(str, rewards)) or 'nobody'}.",
                "Return a reward for every agent of the step, 0 if there is none.",
            )
        try:
            reward = float(np.asarray(rewards[agent]).item())
        except (TypeError, ValueError):
            reward = math.nan
        if not math.isfinite(reward):
            raise EnvError(
                f"'{self.name}' returned the reward {rewards[agent]!r} for agent '{agent}'; a "
                "finite number was expected.",
                "Return one number for every agent.",
            )
        return reward
