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
import math
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
from assay.envs.env_errors import env_failure
from assay.envs.spaces import BadObservationError
from assay.envs.sync import success_of
from assay.envs.teams import AgentView, JointEnv, nothing_happened
from assay.envs.tuple_agents import TupleAgents, has_tuple_agents

_FAMILIES = ("butterfly", "classic", "sisl", "atari")
_RESET = ("observations", "infos")
_STEP = ("observations", "rewards", "terminations", "truncations", "infos")
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
    if len(set(agents)) < len(agents) or not all(isinstance(a, str) and a for a in agents):
        raise EnvError(
            f"'{name}' has possible_agents={agents}; different names, each a str, were expected.",
            "Name agents like ['agent_0', 'agent_1'], and use these names in every dict.",
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
        self.env, self.name = env, name
        self.metadata = dict(getattr(env, "metadata", {}) or {})
        self.render_mode = getattr(env, "render_mode", None)
        views = [AgentView(a, env.observation_space(a), env.action_space(a)) for a in agents]
        # A look at a first state tells whether there are masks in infos and a global state.
        masked = any(view.masked for view in views)
        call = "reset()"
        try:
            _, infos = self._first(0, None)
            call = "state()"
            state = _global_state(env)
        except Exception as error:
            raise env_failure(error, f"'{name}' failed in {call}") from error
        masked = masked or any("action_mask" in (infos.get(agent) or {}) for agent in agents)
        self._live: set[str] = set()
        self._has_state = state is not None
        width = np.size(state) if self._has_state else 0
        super().__init__(views, masked=masked, state=width, name=name)

    def _first(self, seed: int | None, options: Any) -> Any:
        """Start an episode; return what agents see, and the infos, by agent."""
        raise NotImplementedError

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

    def _require_agents(self) -> None:
        if not self.env.agents:
            raise EnvError(
                f"An episode of '{self.name}' is over before anybody has acted: agents is empty "
                "after reset().",
                "Let reset() set agents to those who act first, such as possible_agents[:].",
            )

    def _known(self, agents: Any) -> None:
        strange = [agent for agent in agents if agent not in self.index]
        if strange:
            raise EnvError(
                f"'{self.name}' has the agent '{strange[0]}', which is not in its possible_agents: "
                f"{', '.join(self.team.agents)}.",
                "List everybody who may appear in possible_agents.",
            )

    def _require_seen(self, seen: Any, agents: set[str]) -> None:
        for agent in agents:
            if seen.get(agent) is None:
                raise BadObservationError(f"agent '{agent}' is to act, and sees nothing")

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


def _team_success(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether all agents have succeeded whose last infos report it."""
    found = [success_of(own) for own in infos.values() if isinstance(own, Mapping)]
    reported = [success for success in found if not math.isnan(success)]
    return {"is_success": all(reported)} if reported else {}


class Parallel(_Wrapped):
    """A PettingZoo `ParallelEnv`."""

    def _first(self, seed: int | None, options: Any) -> Any:
        return self._by_agent(self.env.reset(seed=seed, options=options), _RESET, "reset()")

    def _by_agent(self, told: Any, names: tuple[str, ...], call: str) -> Any:
        """Return what a call returned, if it is dicts by agent."""
        if not isinstance(told, tuple) or len(told) != len(names):
            raise EnvError(
                f"'{self.name}' does not return ({', '.join(names)}) from {call}.",
                "Follow PettingZoo's interface; that of its versions before 1.22 is different.",
            )
        for name, values in zip(names, told, strict=True):
            if not isinstance(values, Mapping):
                raise EnvError(
                    f"'{self.name}' returned {values!r} as {name} from {call}; a dict with an "
                    "entry for each agent was expected.",
                    f"Return {name} as a dict: {{agent: ... for agent in self.agents}}.",
                )
        return told

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        self.steps = 0
        seen, infos = self._first(seed, options)
        self._require_agents()
        self._live = set(self.env.agents)
        self._known(self._live)
        self._require_seen(seen, self._live)
        return self.joint_obs(seen, infos, self._live, self._state()), {}

    def step(self, action: NDArray[Any]) -> _Step:
        """Step all agents that are alive."""
        self.steps += 1
        acted = [agent for agent in self.team.agents if agent in self._live]
        own = {a: self.views[self.index[a]].action(action[self.index[a]]) for a in acted}
        seen, rewards, terminated, truncated, infos = self._by_agent(
            self.env.step(own), _STEP, "step()"
        )
        self._known({*rewards, *self.env.agents})
        self.outcome = outcome = nothing_happened(self.team.size)
        for agent in {*acted, *rewards}:
            outcome.reward[self.index[agent]] = self.reward_of(agent, rewards)
        # Some environments keep those who are out in `agents`.
        alive = {a for a in self.env.agents if not (terminated.get(a) or truncated.get(a))}
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
            if agent not in alive and not (outcome.terminated[i] or outcome.truncated[i]):
                raise EnvError(
                    f"Agent '{agent}' of '{self.name}' has left, neither terminated nor truncated.",
                    "Say in terminated or truncated that an agent leaves.",
                )
        self._require_seen(seen, alive)
        over = not alive
        # Values are bootstrapped from a last observation on which agents would have gone on.
        last = {a for a in acted if outcome.truncated[self.index[a]] and a in seen}
        who = last if over else alive
        obs = self.joint_obs(seen, infos, who, self._state(), last=over)
        self._live = alive
        return self._result(obs, over, acted, {**_team_success(infos), **infos} if over else infos)


class Turns(_Wrapped):
    """A PettingZoo `AECEnv`: one agent acts at a time."""

    def _first(self, seed: int | None, options: Any) -> Any:
        self.env.reset(seed=seed, options=options)
        return {}, self.env.infos

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        self.steps = 0
        self._first(seed, options)
        self._known(self.env.agents)
        self.outcome, before = nothing_happened(self.team.size), self.outcome
        self._pass_the_dead()
        self._require_agents()
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
        if not gone:
            raise EnvError(
                f"step() of '{self.name}' emptied agents at once, so that nobody learns what the "
                "last step paid, or how the episode ended.",
                "Set terminations or truncations, and let step(None) of an agent that is out "
                "remove it from agents (AECEnv._was_dead_step does).",
            )
        last = {a for a in gone if self.outcome.truncated[self.index[a]]}
        obs = self.joint_obs(seen, infos, last, self._state(), last=True)
        return self._result(obs, True, gone, _team_success(infos))

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
            if agent not in env.agents:
                raise EnvError(
                    f"'{self.name}' has agent_selection={agent!r}; one of its agents was "
                    f"expected: {', '.join(env.agents)}.",
                    "Let reset() and step() set agent_selection to who acts next.",
                )
            raw, reward, terminated, truncated, info = env.last()
            i = self.index[agent]
            outcome.reward[i] = self.reward_of(agent, {agent: reward})
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
        self._require_seen(seen, {env.agent_selection})
        return self.joint_obs(seen, env.infos, {env.agent_selection}, self._state())
