"""The contract tests of algorithms for several agents, and environments for them.

class TestContract(TeamContract):
    algorithm = "qmix"
    settings = {"hidden": (16,), "batch_size": 8}
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest
from gymnasium import spaces

from assay.core import registry
from assay.core.errors import SpaceError
from assay.core.types import Clock, Spaces
from assay.envs.make import make_vector
from assay.loops.config import resolve
from assay.loops.training import build_algorithm
from assay.testing.algorithms import AlgorithmContract, plain_budget


class Signals:
    """Every agent is paid for answering a signal; PettingZoo's parallel interface.

    An agent's signal is a number below `n` of its actions, or the point of its Box that it is to
    reach. The first agent of several can leave early, and the last one come late.

    Args:
        actions: The action space of each agent. Agents with equal ones are of one type.
        observe: Whether a signal is shown as a vector or an image.
        masked: Forbid one wrong action to each agent; taking it is an error.
        moving: Whether the first agent leaves after two steps, and the last comes after one.
        state: Whether there is a global state.
        length: Steps of an episode.
        saves: Whether it can be saved.
    """

    def __init__(
        self,
        actions: Sequence[Any],
        *,
        observe: Literal["vector", "image"] = "vector",
        masked: bool = False,
        moving: bool = False,
        state: bool = False,
        length: int = 4,
        saves: bool = True,
    ) -> None:
        self.metadata = {"name": "signals"}
        self.own, self.saves = list(actions), saves
        kinds = list(dict.fromkeys(map(str, actions)))
        self.possible_agents = [
            f"kind{'abc'[kinds.index(str(space))]}_{i}" for i, space in enumerate(actions)
        ]
        self.agents: list[str] = []
        self.shown, self.masked, self.moving, self.length = observe, masked, moving, length
        if state:
            self.state_space = spaces.Box(-1.0, 1.0, (len(actions),), np.float32)
        self.rng = np.random.default_rng(0)
        self.signals = np.zeros(len(actions))
        self.time = 0

    def _width(self, i: int) -> int:
        space = self.own[i]
        return int(space.n) if isinstance(space, spaces.Discrete) else int(space.shape[0])

    def observation_space(self, agent: str) -> Any:
        """Return what an agent sees."""
        if self.shown == "image":
            return spaces.Box(0, 255, (1, 10, 10), np.uint8)
        width = self._width(self.possible_agents.index(agent))
        return spaces.Box(-np.inf, np.inf, (width,), np.float32)

    def action_space(self, agent: str) -> Any:
        """Return what an agent can do."""
        return self.own[self.possible_agents.index(agent)]

    def state(self) -> np.ndarray:
        """Return all signals."""
        return self.signals.astype(np.float32) / 10

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Start an episode."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.time = 0
        self.agents = list(self.possible_agents)
        if self.moving:
            self.agents.pop()
        self._draw()
        return self._seen(self.agents), self._infos(self.agents)

    def _draw(self) -> None:
        draws = self.rng.random(len(self.own))
        self.signals = np.array([int(x * self._width(i)) for i, x in enumerate(draws)], float)

    def _seen(self, agents: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for agent in agents:
            i = self.possible_agents.index(agent)
            shown = int(self.signals[i])
            if self.shown == "image":
                found[agent] = np.full((1, 10, 10), 40 * shown, np.uint8)
            else:
                found[agent] = np.eye(self._width(i), dtype=np.float32)[shown]
        return found

    def _infos(self, agents: Sequence[str]) -> dict[str, Any]:
        if not self.masked:
            return {agent: {} for agent in agents}
        return {agent: {"action_mask": self._mask(agent)} for agent in agents}

    def _mask(self, agent: str) -> np.ndarray:
        i = self.possible_agents.index(agent)
        mask = np.ones(self._width(i), np.int8)
        mask[(int(self.signals[i]) + 1) % len(mask)] = 0
        return mask

    def _paid(self, agent: str, action: Any) -> float:
        i = self.possible_agents.index(agent)
        if not self.own[i].contains(action):
            raise ValueError(f"{agent} did {action}, which is not in {self.own[i]}")
        if isinstance(self.own[i], spaces.Discrete):
            if self.masked and not self._mask(agent)[action]:
                raise ValueError(f"{agent} did {action}, which its mask forbids")
            return float(action == self.signals[i])
        low, high = self.own[i].low, self.own[i].high
        unit = (action - (low + high) / 2) / ((high - low) / 2)
        return float(1.0 - np.square(unit - np.eye(len(unit))[int(self.signals[i])]).mean())

    def step(self, actions: Mapping[str, Any]) -> Any:
        """Pay every agent that acted."""
        if set(actions) != set(self.agents):
            raise ValueError(f"{sorted(actions)} acted, and {sorted(self.agents)} were to")
        acted = list(self.agents)
        rewards = {agent: self._paid(agent, action) for agent, action in actions.items()}
        self.time += 1
        over = self.time >= self.length
        terminated = {agent: over for agent in acted}
        first, last = self.possible_agents[0], self.possible_agents[-1]
        if self.moving and self.time == 2 and first in acted:
            terminated[first] = True
        self.agents = [agent for agent in acted if not terminated[agent]]
        if self.moving and self.time == 1:
            self.agents.append(last)
        self._draw()
        told = list(dict.fromkeys([*acted, *self.agents]))
        truncated = {agent: False for agent in acted}
        return self._seen(told), rewards, terminated, truncated, self._infos(told)

    def get_state(self) -> dict[str, Any] | None:
        """Return where it is, if it is to be saved."""
        numbers = {k: str(v) for k, v in self.rng.bit_generator.state["state"].items()}
        state = {
            "time": self.time, "agents": list(self.agents), "signals": self.signals.copy(),
            "rng": numbers,
        }  # fmt: skip
        return state if self.saves else None

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.time, self.agents = int(state["time"]), list(state["agents"])
        self.signals = np.array(state["signals"])
        numbers = {k: int(v) for k, v in state["rng"].items()}
        self.rng.bit_generator.state = {**self.rng.bit_generator.state, "state": numbers}

    def close(self) -> None:
        """Nothing is open."""

    def render(self) -> None:
        """Nothing is shown."""


class TurnSignals(Signals):
    """`Signals` whose agents act one after the other; PettingZoo's AEC interface.

    An agent learns what its answer was worth when its next turn comes.
    """

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        """Start an episode."""
        super().reset(seed, options)
        self.infos = self._infos(self.agents)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.earned = dict.fromkeys(self.agents, 0.0)
        self.agent_selection = self.agents[0]

    def observe(self, agent: str) -> Any:
        """Return what an agent sees."""
        return self._seen([agent])[agent]

    def get_state(self) -> dict[str, Any] | None:
        """Return where it is, if it is to be saved."""
        state, ends = super().get_state(), dict(self.terminations)
        turn = {"earned": dict(self.earned), "ends": ends, "turn": self.agent_selection}
        return None if state is None else state | turn

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        super().set_state(state)
        self.earned, self.terminations = dict(state["earned"]), dict(state["ends"])
        self.truncations = dict.fromkeys(self.terminations, False)
        self.agent_selection = state["turn"]
        self.infos = self._infos(self.possible_agents)

    def last(self) -> Any:
        """Return what the agent sees whose turn it is, and what it has earned."""
        agent = self.agent_selection
        ends = self.terminations[agent], self.truncations[agent]
        return self.observe(agent), self.earned[agent], *ends, self.infos[agent]

    def step(self, action: Any) -> None:
        """Let one agent answer."""
        agent = self.agent_selection
        if self.terminations[agent]:
            if action is not None:
                raise ValueError(f"{agent} is out and did {action}")
            self.agents.remove(agent)
        else:
            self.earned[agent] = self._paid(agent, action)
            if agent == self.agents[-1]:
                self.time += 1
                self._draw()
                self.infos = self._infos(self.agents)
            if self.time >= self.length:
                self.terminations = dict.fromkeys(self.agents, True)
        if self.agents:
            order = self.possible_agents
            ahead = order[order.index(agent) + 1 :] + order
            self.agent_selection = next(one for one in ahead if one in self.agents)


@dataclass(frozen=True, slots=True)
class TeamCase:
    """An environment of several agents that the contract tries."""

    name: str
    actions: tuple[Any, ...]
    options: tuple[tuple[str, Any], ...] = ()
    turns: bool = False

    def factory(self, *, saves: bool = True) -> Callable[[], Any]:
        """Return a factory of the environment."""
        kind = TurnSignals if self.turns else Signals
        return partial(kind, self.actions, saves=saves, **dict(self.options))


_UNIT = spaces.Box(-1.0, 1.0, (2,), np.float32)
_WIDE = spaces.Box(np.array([0.0, -2.0, 1.0], np.float32), np.array([1.0, 2.0, 5.0], np.float32))


class TeamContract(AlgorithmContract):
    """The checks of `AlgorithmContract` for an algorithm of several agents."""

    def cases(self) -> Iterator[Any]:
        """Yield the environments to try."""
        three, four = spaces.Discrete(3), spaces.Discrete(4)
        declared = registry.get(self.algorithm).spec.actions
        if "MultiDiscrete" in declared:
            going = (("moving", True), ("masked", True))
            yield TeamCase("alike", (three, three))
            yield TeamCase("unequal_with_state", (three, three, four), (("state", True),))
            yield TeamCase("come_and_go_masked", (three, three, three), going)
            yield TeamCase("in_turns_masked", (four, four), (("masked", True),), turns=True)
            yield TeamCase("see_images", (three, three), (("observe", "image"),))
        if "Box" in declared:
            yield TeamCase("box", (_UNIT, _UNIT))
            yield TeamCase("box_unequal", (_UNIT, _WIDE), (("moving", True),))

    def normalised(self, case: Any) -> dict[str, Any]:
        """Return nothing: several agents do not normalise observations."""
        return {}

    def test_refuses_other_action_spaces(self) -> None:
        """One agent is refused, and so are actions that are not declared."""
        spec = registry.get(self.algorithm).spec
        budget = plain_budget(self.algorithm, 100)
        config = resolve(self.algorithm, "none", budget, self.settings, use_preset=False)
        observation = spaces.Box(-1.0, 1.0, (2,), np.float32)
        with pytest.raises(SpaceError, match="has one") as caught:
            build_algorithm(config, Spaces(observation, spaces.Discrete(2)), Clock(100))
        assert spec.name in caught.value.message and "ppo" in str(caught.value.fix)
        for other in ("td3", "iql", "cfr"):  # of Box actions, of recorded data, of whole games
            assert other not in str(caught.value.fix).replace(",", "").split()
        if "Box" not in spec.actions:
            with make_vector(TeamCase("box", (_UNIT, _UNIT)).factory()) as envs:
                with pytest.raises(SpaceError, match="Box"):
                    build_algorithm(config, envs.spaces, Clock(100))
