"""What the native environments of several agents share: seeding, time limit, autoreset, saving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.core.seeding import rng_state, set_rng_state
from assay.core.types import ACTION_MASK, AGENT_OBS, ALIVE, STATE, State, Team, tree_map
from assay.envs.arguments import require_integer
from assay.envs.teams import Outcome, joint_spaces, nothing_happened, type_of

Obs = dict[str, NDArray[Any]]
_Step = tuple[Obs, NDArray[Any], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class NativeTeam(VectorEnv[Obs, NDArray[Any], NDArray[Any]]):
    """Copies of one task of several agents, stepped together in NumPy.

    All agents are there for the whole episode. Copy `i` of a reset with `seed` has the random
    stream of `seed + i`, which goes on from episode to episode. Rows that are done come back
    already reset, with their last observation in `info["final_obs"]`. All returned arrays are new.

    A subclass implements `_start`, `_advance` and `_look`.

    Attributes:
        team: The agents.
        outcome: What the last step did to each, [N, A].
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (typed so by Gymnasium)
        "render_modes": [],
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        num_envs: int,
        limit: int,
        agents: Mapping[str, tuple[int, gym.Space[Any]]],
        *,
        variables: int,
        state: int = 0,
        masks: bool = False,
    ) -> None:
        """Make the spaces.

        Args:
            num_envs: N.
            limit: Steps after which an episode is truncated.
            agents: How many numbers each sees, and its actions, by name.
            variables: How many numbers the state of a copy has.
            state: Width of the global state that agents' critics may see.
            masks: Whether actions may be forbidden; then the subclass says so in `_obs`.
        """
        require_integer("num_envs", num_envs)
        require_integer("max_episode_steps", limit)
        self.num_envs, self.max_episode_steps = num_envs, limit
        self.team = Team(
            tuple(agents),
            tuple(map(type_of, agents)),
            tuple(spaces.Box(-np.inf, np.inf, (n,), np.float32) for n, _ in agents.values()),
            tuple(action for _, action in agents.values()),
            state > 0,
            masks,
        )
        joint = joint_spaces(self.team, state)
        self.single_observation_space, self.single_action_space = joint
        self.observation_space, self.action_space = (batch_space(s, num_envs) for s in joint)
        self._counts = np.array([getattr(space, "n", 0) for space in self.team.actions])
        self._mask = None
        if ACTION_MASK in joint[0].spaces:
            counts = self._counts[:, None]
            self._mask = (np.arange(counts.max()) < counts).astype(np.int8).reshape(-1)
        self._variables = np.zeros((variables, num_envs)).T  # the copies lie one behind the other
        self._elapsed = np.zeros(num_envs, np.int64)
        self._rngs: list[np.random.Generator] = []
        self.outcome = nothing_happened(num_envs, self.team.size)

    # What a subclass provides.

    def _start(self, rng: np.random.Generator) -> NDArray[Any]:
        """Return how one episode begins, [variables]."""
        raise NotImplementedError

    def _advance(self, actions: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Move `_variables`; return rewards [N, A] and whether the episode has ended [N]."""
        raise NotImplementedError

    def _look(self, variables: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Return what agents see [n, A, width] in some states [n, variables], and the global state.

        Both as float32; the second is [n, state], or None.
        """
        raise NotImplementedError

    # Gymnasium's interface.

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict]:
        """Start an episode in every copy; without a seed each continues its stream."""
        if seed is not None or not self._rngs:
            seeds = seed if isinstance(seed, list | tuple) else None
            for row in range(self.num_envs):
                own = seeds[row] if seeds is not None else None if seed is None else seed + row
                if row == len(self._rngs):
                    self._rngs.append(np_random(own)[0])
                elif own is not None:
                    self._rngs[row] = np_random(own)[0]
        for row, rng in enumerate(self._rngs):
            self._variables[row] = self._start(rng)
        self._elapsed[:] = 0
        return self._obs(self._variables), {}

    def step(self, actions: NDArray[Any]) -> _Step:
        """Move every copy by one step and start those again that are done."""
        if not self._rngs:
            raise EnvError("The environment was stepped before its first reset.", "Call reset().")
        wanted = self.action_space.shape
        actions = np.asarray(actions)
        if actions.shape != wanted:
            raise EnvError(f"The actions have shape {actions.shape}; {wanted} was expected.")
        self._refuse_outside(actions)
        reward, terminated = self._advance(actions)
        self._elapsed += 1
        truncated = (self._elapsed >= self.max_episode_steps) & ~terminated
        done = terminated | truncated
        obs = self._obs(self._variables)
        info: dict[str, Any] = {}
        size = self.team.size
        self.outcome = Outcome(
            reward.astype(np.float32),
            np.repeat(terminated[:, None], size, 1),
            np.repeat(truncated[:, None], size, 1),
        )
        if np.count_nonzero(done):
            info = {"final_obs": tree_map(np.copy, obs), "_final_obs": done.copy()}
            rows = done.nonzero()[0]
            for row in rows.tolist():
                self._variables[row] = self._start(self._rngs[row])
            self._elapsed[rows] = 0
            fresh = self._obs(self._variables[rows])
            for key, part in fresh.items():
                obs[key][rows] = part
        return obs, np.add.reduce(reward, 1) / size, terminated, truncated, info

    def _refuse_outside(self, actions: NDArray[Any]) -> None:
        if actions.dtype.kind in "iu":
            bad = (actions < 0) | (actions >= self._counts)
        else:
            bad = ~np.isfinite(actions)
        if np.count_nonzero(bad):
            row, *agent = np.argwhere(bad)[0].tolist()
            raise EnvError(
                f"Environment {row} was given the action {actions[row][agent[0]]} for agent "
                f"'{self.team.agents[agent[0]]}', whose actions are {self.team.actions[agent[0]]}."
            )

    def _obs(self, variables: NDArray[Any]) -> Obs:
        seen, state = self._look(variables)
        rows = len(variables)
        obs = {AGENT_OBS: seen, ALIVE: np.ones((rows, self.team.size), np.int8)}
        if self._mask is not None:
            obs[ACTION_MASK] = np.repeat(self._mask[None], rows, 0)
        if state is not None:
            obs[STATE] = state
        return obs

    # Saving.

    def get_state(self) -> State:
        """Return the state that the next steps depend on."""
        return {
            "task": type(self).__name__,
            "variables": self._variables.copy(),
            "elapsed": self._elapsed.copy(),
            "rng": [rng_state(rng) for rng in self._rngs],
        }

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        variables = np.asarray(state.get("variables"))
        if state.get("task") != type(self).__name__ or variables.shape != self._variables.shape:
            raise EnvError(
                f"The saved state is of {state.get('task')} with {variables.shape}; "
                f"{type(self).__name__} with {self._variables.shape} was expected.",
                "Restore it into as many environments as it was saved from.",
            )
        self._variables[:] = variables
        self._elapsed[:] = state["elapsed"]
        self._rngs = [np_random(0)[0] for _ in range(self.num_envs)]
        for rng, saved in zip(self._rngs, state["rng"], strict=True):
            set_rng_state(rng, saved)


class SingleTeam(gym.Env[Obs, NDArray[Any]]):
    """One copy of a native task of several agents, with the same episodes.

    Attributes:
        team: The agents.
        outcome: What the last step did to each, [A].
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (typed so by Gymnasium)

    def __init__(self, envs: NativeTeam) -> None:
        self.envs, self.team = envs, envs.team
        self.observation_space = envs.single_observation_space
        self.action_space = envs.single_action_space
        self.outcome = nothing_happened(self.team.size)
        self._begun: Obs | None = None  # the first observation of the next episode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        obs = self._begun
        if obs is None or seed is not None:
            obs = _first(self.envs.reset(seed=seed)[0])
        self._begun = None
        return obs, {}

    def step(self, action: NDArray[Any]) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Move by one step."""
        if self._begun is not None:
            raise EnvError("The episode is over.", "Call reset() before the next step.")
        obs, reward, terminated, truncated, info = self.envs.step(np.asarray(action)[None])
        self.outcome = Outcome(*(array[0] for array in self.envs.outcome))
        shown = _first(obs)
        if info:
            self._begun, shown = shown, _first(info["final_obs"])
        return shown, float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def get_state(self) -> State:
        """Return the state that the next steps depend on."""
        return {"task": self.envs.get_state(), "begun": self._begun}

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        self.envs.set_state(state["task"])
        self._begun = state["begun"]


def _first(obs: Obs) -> Obs:
    return {key: part[0] for key, part in obs.items()}
