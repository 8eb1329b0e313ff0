"""Gymnasium environments of several agents: Tuple spaces with one entry for each agent.

Level-based foraging and the robotic warehouse have this interface: observations, actions and
rewards come one for each agent, in a fixed order, and an episode is over for all at once. Two
things in which these two differ from what they declare are put right.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from assay.core.errors import EnvError
from assay.envs.limits import own_limit


def has_tuple_agents(env: Any) -> bool:
    """Return whether an object is a Gymnasium environment with Tuple spaces of equal length."""
    if not isinstance(env, gym.Env):
        return False
    seen, done = (getattr(env, f"{kind}_space", None) for kind in ("observation", "action"))
    if not (isinstance(seen, spaces.Tuple) and isinstance(done, spaces.Tuple)):
        return False
    return len(seen.spaces) == len(done.spaces) > 0


class TupleAgents:
    """Such an environment by PettingZoo's parallel interface.

    Args:
        env: The environment.

    Attributes:
        possible_agents: agent_0, agent_1 and so on.
        agents: All of them until the episode is over.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        self.env = env
        self.name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        self.metadata, self.render_mode = env.metadata, env.render_mode
        seen, done = env.observation_space, env.action_space
        assert isinstance(seen, spaces.Tuple) and isinstance(done, spaces.Tuple)
        self.possible_agents = [f"agent_{i}" for i in range(len(done.spaces))]
        self._seen = dict(zip(self.possible_agents, seen.spaces, strict=True))
        self._done = dict(zip(self.possible_agents, done.spaces, strict=True))
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space[Any]:
        """Return what an agent sees."""
        return self._seen[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        """Return what an agent does."""
        return self._done[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """Start an episode."""
        seen, info = self.env.reset(seed=seed, options=options)
        self.agents = list(self.possible_agents)
        return self._by_agent("observations", seen), info

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """Step all agents."""
        own = tuple(actions[agent] for agent in self.possible_agents)
        seen, rewards, terminated, truncated, info = self.env.step(own)
        for what, flags in (("terminated", terminated), ("truncated", truncated)):
            if np.size(flags) > 1:
                self._by_agent(what, flags)
        ends = [np.broadcast_to(flag, len(self.agents)) for flag in (terminated, truncated)]
        over = bool((ends[0] | ends[1]).all())
        # An agent that is done goes on, unheard, until all are.
        dead, cut = (dict(zip(self.possible_agents, flag & over, strict=True)) for flag in ends)
        paid = self._by_agent("rewards", rewards)
        if over:
            self.agents = []
        return self._by_agent("observations", seen), paid, dead, cut, info

    def render(self) -> Any:
        """Return a frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _by_agent(self, what: str, values: Any) -> dict[str, Any]:
        expected = len(self.possible_agents)
        found = len(values) if isinstance(values, tuple | list | np.ndarray) else None
        if found != expected:
            told = repr(values) if found is None else f"{found} of them"
            raise EnvError(
                f"'{self.name}' has Tuple spaces of {expected} entries, one for each agent, and "
                f"returned {told} as {what}; {expected} were expected.",
                "Return one for each agent, in the order of the spaces. An environment of one "
                "agent needs another action space, such as MultiDiscrete.",
            )
        return dict(zip(self.possible_agents, values, strict=True))


def put_right(env: gym.Env[Any, Any], spec: EnvSpec) -> gym.Env[Any, Any]:
    """Return level-based foraging and the warehouse put right, and others as they are."""
    home = str(spec.entry_point)
    if home.startswith("lbforaging."):
        return Foraging(env)
    return Warehouse(env) if home.startswith("rware.") else env


class Foraging(gym.Wrapper[Any, Any, Any, Any]):
    """Level-based foraging that forgets the last episode, and truncates at its time limit.

    It places players where nobody of the last episode stood, so that a reset with a seed depends
    on what was before it; and it calls its time limit the end of the game. A limit that is given
    replaces its own: Gymnasium keeps `max_episode_steps` to itself.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        game: Any = self.unwrapped
        game._max_episode_steps = own_limit(env) or game._max_episode_steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        game: Any = self.unwrapped
        for player in game.players:
            player.position = None
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step; all food eaten is the end, and everything else a limit."""
        obs, reward, over, cut, info = self.env.step(action)
        game: Any = self.unwrapped
        eaten = not game.field.any()
        return obs, reward, eaten, bool(over or cut) and not eaten, info


class Warehouse(gym.Wrapper[Any, Any, Any, Any]):
    """The robotic warehouse, whose work never ends: every end is a time limit.

    A limit that is given replaces its own.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        work: Any = self.unwrapped
        work.max_steps = own_limit(env) or work.max_steps

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step."""
        obs, reward, over, cut, info = self.env.step(action)
        return obs, reward, False, bool(over or cut), info
