"""PettingZoo environments, parallel and turn by turn (AEC), as environments with an agent axis.

Gymnasium environments with one entry of a Tuple for each agent are made parallel ones first.
A parallel environment is stepped by all agents at once; an agent that died or has not appeared yet
is not alive. In an AEC environment one joint step is one turn: only the agent whose turn it is is
alive, and an agent gets what it has earned since its last turn when the next one comes.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from assay.core.errors import EnvError
from assay.core.images import is_image
from assay.core.types import AGENT_OBS, State
from assay.envs.spaces import BadObservationError
from assay.envs.teams import AgentView, JointEnv, nothing_happened
from assay.envs.tuple_agents import TupleAgents, has_tuple_agents

_FAMILIES = ("butterfly", "classic", "sisl", "atari")
_Step = tuple[dict[str, NDArray[Any]], float, bool, bool, dict[str, Any]]


def is_petting_zoo(env: Any) -> bool:
    """Return whether an object is an environment of PettingZoo's interface, parallel or AEC."""
    if isinstance(env, gym.Env | gym.vector.VectorEnv) or inspect.isclass(env):
        return False
    homes = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    named = hasattr(env, "possible_agents") or "pettingzoo" in homes
    return named and callable(getattr(env, "observation_space", None))


def as_joint(env: Any, name: str | None = None) -> Any:
    """Return an environment of several agents with an agent axis, and any other object as it is.

    Raises:
        EnvError: Its agents are not known before it is reset.
        SpaceError: An agent's space is not supported.
    """
    if has_tuple_agents(env):
        tuples = TupleAgents(env)
        joint = Parallel(tuples, tuples.possible_agents, tuples.name)
        joint.spec = env.spec
        return joint
    if not is_petting_zoo(env):
        return env
    name = name or str(getattr(env, "metadata", {}).get("name", type(env).__name__))
    turns = hasattr(env, "agent_iter") or hasattr(env, "last")
    try:
        agents = list(env.possible_agents)
    except AttributeError:
        agents = []
    if not agents:
        raise EnvError(
            f"'{name}' does not say who its agents are: possible_agents is empty or missing.",
            "Set possible_agents in its __init__, in a fixed order.",
        )
    return (Turns if turns else Parallel)(env, agents, name)


def make_joint(factory: Callable[..., Any], /, **kwargs: Any) -> Any:
    """Make an environment and return it with an agent axis if it is PettingZoo's."""
    return as_joint(factory(**kwargs))


def make_named(module: str, /, **kwargs: Any) -> Any:
    """Make the environment of a PettingZoo module, parallel if it can be."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        home, *family, name = module.split(".")
        needed = f"'{error.name}'" if error.name else f"that it misses ({error})"
        extra = f"pettingzoo[{family[0]}]" if family else "assay[pettingzoo]"
        raise EnvError(
            f"The environment '{name}' of {home} needs the package {needed}, which is not "
            "installed.",
            f"Install what it needs: pip install '{extra}'",
        ) from None
    make = getattr(found, "parallel_env", None) or found.env
    joint = as_joint(make(**kwargs))
    if "render_mode" not in kwargs and _sees_only_what_it_draws(joint):
        joint.close()
        joint = as_joint(make(**kwargs, render_mode="rgb_array"))
    return joint


def _sees_only_what_it_draws(joint: JointEnv) -> bool:
    """Return whether agents see blank images, in a game that could draw (cooperative_pong_v6)."""
    if "rgb_array" not in joint.metadata.get("render_modes", ()) or not is_image(
        joint.views[0].space
    ):
        return False
    images = joint.reset(seed=0)[0][AGENT_OBS]
    return bool(images.min() == images.max())


def register_petting_zoo() -> None:
    """Register the ids of PettingZoo and MPE2 with Gymnasium, without importing any of them."""
    root = Path(importlib.import_module("pettingzoo").__file__ or "").parent
    found = {
        path.stem: f"pettingzoo.{family}.{path.stem}"
        for family in _FAMILIES
        for path in sorted((root / family).glob("*_v[0-9]*.py"))
    }
    particles = importlib.util.find_spec("mpe2")
    if particles is not None and particles.origin is not None:
        here = Path(particles.origin).parent
        found |= {path.stem: f"mpe2.{path.stem}" for path in sorted(here.glob("*_v[0-9]*.py"))}
    for name, module in found.items():
        if name not in gym.registry:
            gym.register(name, entry_point=partial(make_named, module))


class _Wrapped(JointEnv):
    """What both kinds share."""

    def __init__(self, env: Any, agents: list[str], name: str) -> None:
        self.env = env
        self.metadata = dict(getattr(env, "metadata", {}) or {})
        self.render_mode = getattr(env, "render_mode", None)
        views = [AgentView(a, env.observation_space(a), env.action_space(a)) for a in agents]
        # A look at a first state tells whether there are masks in infos and a global state.
        masked = any(view.masked for view in views)
        reset = env.reset(seed=0)
        infos = reset[1] if isinstance(reset, tuple) and len(reset) == 2 else env.infos
        masked = masked or any("action_mask" in (infos.get(agent) or {}) for agent in agents)
        self._live: set[str] = set()
        self._has_state = _global_state(env) is not None
        width = np.size(_global_state(env)) if self._has_state else 0
        super().__init__(views, masked=masked, state=width, name=name)

    def _state(self) -> Any:
        return _global_state(self.env) if self._has_state else None

    def get_state(self) -> State | None:
        """Return the state that the next steps depend on, if the environment can save itself."""
        if not (hasattr(self.env, "get_state") and hasattr(self.env, "set_state")):
            return None
        own = self.env.get_state()
        if own is None:
            return None
        return {"env": own, "live": sorted(self._live), "steps": self.steps}

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        self.env.set_state(state["env"])
        self._live = set(state["live"])
        self.steps = state.get("steps", 0)  # older checkpoints have none

    def render(self) -> Any:
        """Return a frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _known(self, agents: Any) -> None:
        strange = [agent for agent in agents if agent not in self.index]
        if strange:
            raise EnvError(
                f"'{self.name}' has the agent '{strange[0]}', which is not in its possible_agents: "
                f"{', '.join(self.team.agents)}.",
                "List everybody who may appear in possible_agents.",
            )

    def _result(
        self,
        obs: dict[str, NDArray[Any]],
        over: bool,
        acted: list[str],
        infos: Mapping[str, Any] | None = None,
    ) -> _Step:
        outcome = self.outcome
        cut = [i for i in map(self.index.__getitem__, acted) if outcome.truncated[i]]
        terminated = over and not cut
        reward, told = float(outcome.reward.mean()), dict(infos or {})
        return obs, reward, terminated, over and not terminated, told


def _global_state(env: Any) -> Any:
    """Return the state of the whole, or None where the environment has none."""
    space = getattr(env, "state_space", None)
    if not isinstance(space, gym.spaces.Box):
        return None
    try:
        return env.state()
    except (NotImplementedError, AttributeError):
        return None


class Parallel(_Wrapped):
    """A PettingZoo `ParallelEnv`."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        self.steps = 0
        seen, infos = self.env.reset(seed=seed, options=options)
        self._live = set(self.env.agents)
        self._known(self._live)
        self._require_seen(seen, self._live)
        return self.joint_obs(seen, infos, self._live, self._state()), {}

    def step(self, action: NDArray[Any]) -> _Step:
        """Step all agents that are alive."""
        self.steps += 1
        acted = [agent for agent in self.team.agents if agent in self._live]
        own = {a: self.views[self.index[a]].action(action[self.index[a]]) for a in acted}
        told = self.env.step(own)
        if not isinstance(told, tuple) or len(told) != 5:
            raise EnvError(
                f"'{self.name}' does not return (observations, rewards, terminations, truncations, "
                "infos) from step().",
                "Follow PettingZoo's interface; that of its versions before 1.22 is different.",
            )
        seen, rewards, terminated, truncated, infos = told
        self._known({*rewards, *self.env.agents})
        self.outcome = outcome = nothing_happened(self.team.size)
        for agent in {*acted, *rewards}:
            outcome.reward[self.index[agent]] = self.reward_of(agent, rewards)
        alive = set(self.env.agents)
        for agent in acted:
            if agent not in terminated or agent not in truncated:
                raise EnvError(
                    f"'{self.name}' does not say whether agent '{agent}', which acted, is out of "
                    "the episode.",
                    "Return terminated and truncated for every agent of the step.",
                )
            i = self.index[agent]
            outcome.terminated[i] = bool(terminated[agent])
            outcome.truncated[i] = bool(truncated[agent]) and not outcome.terminated[i]
            if outcome.terminated[i] or outcome.truncated[i]:
                alive.discard(agent)
            elif agent not in alive:
                raise EnvError(
                    f"Agent '{agent}' of '{self.name}' has left, neither terminated nor truncated.",
                    "Say in terminated or truncated that an agent leaves.",
                )
        self._require_seen(seen, alive)
        over = not alive
        # Values are bootstrapped from a last observation on which agents would have gone on.
        last = {a for a in acted if outcome.truncated[self.index[a]] and a in seen}
        obs = self.joint_obs(seen, infos, last if over else alive, self._state())
        self._live = alive
        return self._result(obs, over, acted, infos)

    def _require_seen(self, seen: Any, agents: set[str]) -> None:
        for agent in agents:
            if agent not in seen:
                raise BadObservationError(f"agent '{agent}' is to act, and sees nothing")


class Turns(_Wrapped):
    """A PettingZoo `AECEnv`: one agent acts at a time."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        self.steps = 0
        self.env.reset(seed=seed, options=options)
        self._known(self.env.agents)
        self.outcome, before = nothing_happened(self.team.size), self.outcome
        self._pass_the_dead()
        if not self.env.agents:
            raise EnvError(f"An episode of '{self.name}' is over before anybody has acted.")
        self.outcome = before
        return self._look(), {}

    def step(self, action: NDArray[Any]) -> _Step:
        """Let the agent act whose turn it is."""
        self.steps += 1
        agent = self.env.agent_selection
        i = self.index[agent]
        self.outcome = nothing_happened(self.team.size)
        self.env.step(self.views[i].action(action[i]))
        self._known(self.env.agents)
        gone, seen, infos = self._pass_the_dead()
        if self.env.agents:
            return self._result(self._look(), False, gone)
        last = {a for a in gone if self.outcome.truncated[self.index[a]]}
        return self._result(self.joint_obs(seen, infos, last, self._state()), True, gone)

    def _pass_the_dead(self) -> tuple[list[str], dict[str, Any], dict[str, Any]]:
        """Take the empty turns of agents that are out; return who, and what they saw last.

        The agent whose turn comes gets what it has earned since its last one.
        """
        env, outcome = self.env, self.outcome
        gone: list[str] = []
        seen: dict[str, Any] = {}
        infos: dict[str, Any] = {}
        while env.agents:
            agent = env.agent_selection
            raw, reward, terminated, truncated, info = env.last()
            i = self.index[agent]
            outcome.reward[i] = reward
            if not (terminated or truncated):
                return gone, seen, infos
            if agent in gone:
                raise EnvError(
                    f"An episode of '{self.name}' does not end: agent '{agent}' is out, took its "
                    "empty turn, and is asked again.",
                    "Let step(None) of an agent that is out remove it from agents "
                    "(AECEnv._was_dead_step does).",
                )
            outcome.terminated[i] = bool(terminated)
            outcome.truncated[i] = bool(truncated) and not terminated
            gone.append(agent)
            seen[agent], infos[agent] = raw, info
            env.step(None)
        return gone, seen, infos

    def _look(self) -> dict[str, NDArray[Any]]:
        env = self.env
        seen = {agent: env.observe(agent) for agent in env.agents}
        return self.joint_obs(seen, env.infos, {env.agent_selection}, self._state())
