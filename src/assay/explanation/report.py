"""Explain a run: play it, look at its states, and check that what is found can be believed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box
from numpy.typing import NDArray

from assay.agents import Agent, drawable, load, require_one_agent, require_spaces, required_vector
from assay.core.errors import AssayError, ConfigError, require_counts
from assay.core.images import is_image
from assay.core.types import action_mask
from assay.evaluation.video import frames
from assay.explanation.functions import Function, policy_function, policy_parameters, same_actions
from assay.explanation.look import Baseline, Feature, Look
from assay.explanation.memory import MemoryReport, forgotten, judge_memory
from assay.explanation.pictures import Frame
from assay.explanation.sanity import Check
from assay.explanation.states import Visited, visit
from assay.explanation.telling import choose, decisions, scores_of
from assay.explanation.values import ValueReport, judge_values, value_function
from assay.loops.config import RunConfig
from assay.networks.tensors import to_device
from assay.runs.directory import RunDirectory

Of = Literal["action", "value"]
_EACH = 2  # telling states for each reason
_SAME, _CLOSE = 0.99, 0.01  # share of actions that must agree, and how far apart Box ones may be


@dataclass(frozen=True, slots=True)
class Moment:
    """A telling state.

    Attributes:
        reason: Why it was chosen.
        episode: Of which episode, from 0.
        time: Its step, from 0.
        action: What was done.
        scores: What is explained there.
        value: What was expected, None if nothing is.
        realised: What followed, discounted.
        parts: The numbers that speak most for or against it: name, value, integrated gradient.
        pictures: Title -> picture.
    """

    reason: str
    episode: int
    time: int
    action: Any
    scores: list[float]
    value: float | None
    realised: float | None
    parts: list[tuple[str, float, float]]
    pictures: dict[str, Frame] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was found about a run.

    Attributes:
        run: Its path.
        algorithm: Who learned.
        env: Where.
        of: What is explained: the action, or the value.
        outputs: Names of the numbers that are explained.
        returns: [episodes] of what was played.
        states: How many states the maps are of.
        features: Most important first, by integrated gradients.
        checks: Whether the maps can be believed.
        cascade: Layer, and the correlation of the map after it and all later ones became random.
        values: Expectations against returns, or why there are none.
        memory: How a memory is used; None without one.
        moments: The most telling states.
        notes: What could not be done.
    """

    run: str
    algorithm: str
    env: str
    of: Of
    outputs: tuple[str, ...]
    returns: NDArray[np.float64]
    states: int
    features: tuple[Feature, ...]
    checks: tuple[Check, ...]
    cascade: tuple[tuple[str, float], ...]
    values: ValueReport | str
    memory: MemoryReport | None
    moments: tuple[Moment, ...]
    notes: tuple[str, ...]

    @property
    def believable(self) -> bool:
        """Return whether every check passed."""
        return all(check.passed for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without pictures."""
        values = self.values
        return {
            "run": self.run, "algorithm": self.algorithm, "env": self.env, "of": self.of,
            "outputs": list(self.outputs), "returns": self.returns.tolist(),
            "states": self.states, "believable": self.believable,
            "features": [{"name": one.name, **one.share} for one in self.features],
            "checks": [asdict(one) for one in self.checks],
            "cascade": [{"layer": name, "correlation": x} for name, x in self.cascade],
            "values": {"reason": values} if isinstance(values, str) else values.to_dict(),
            "memory": None if self.memory is None else self.memory.to_dict(),
            "moments": [
                {
                    "reason": one.reason, "episode": one.episode, "time": one.time,
                    "action": one.action, "scores": one.scores, "value": one.value,
                    "realised": one.realised,
                    "parts": [
                        {"name": name, "value": value, "integrated": part}
                        for name, value, part in one.parts
                    ],
                }
                for one in self.moments
            ],
            "notes": list(self.notes),
        }  # fmt: skip


def explain(
    path: Path | str,
    env: Any = None,
    *,
    of: Of = "action",
    episodes: int = 10,
    states: int = 64,
    seed: int = 0,
    baseline: Baseline = "mean",
    max_steps: int = 1000,
    names: tuple[str, ...] = (),
    pictures: bool = True,
) -> Explanation:
    """Explain the agent of a run by what it does in its environment.

    Args:
        path: The run.
        env: Its environment, where that was given as an object.
        of: Explain the action, or the value that the agent expects.
        episodes: How many are played, without exploring.
        states: How many of their states the maps are of, besides the telling ones.
        seed: Fixes episodes and draws.
        baseline: What a number is compared with: its mean over the states, or 0.
        max_steps: Where an episode is cut off.
        names: Of the numbers of an observation that is one array.
        pictures: Draw the telling states.

    Raises:
        ConfigError: The run has no gradient, no environment or no values; or a number is below 1.
    """
    require_counts(episodes=episodes, states=states, max_steps=max_steps)
    directory = RunDirectory.open(Path(path))
    config, agent = RunConfig.from_dict(directory.config), load(path)
    require_one_agent(agent, "Explaining")
    action = policy_function(agent.policy)
    value = value_function(agent.algorithm)
    if of == "value" and isinstance(value, str):
        raise ConfigError(f"There is no value to explain: {value}.", "Leave out --of value.")
    _check_names(names, agent)
    fix = "Give a function that makes it."
    forgot = None
    with required_vector(config, env, episodes, fix) as vector:
        require_spaces(agent.algorithm.spaces, vector)
        play: dict[str, Any] = {"episodes": episodes, "seed": seed, "max_steps": max_steps}
        visited = visit(agent.algorithm, vector, **play)
        if visited.states.carry is not None:
            forgot = visit(agent.algorithm, vector, **play, forget=True).returns
    judged = value if isinstance(value, str) else judge_values(agent.algorithm, value, visited)
    memory = None
    if forgot is not None:
        memory = judge_memory(agent.policy, action, visited, forgot, seed)
    function = action if of == "action" or isinstance(value, str) else value
    chosen = choose(_reasons(agent, action, visited, judged), visited, _EACH)
    look = Look(function, visited, [row for row, _ in chosen], states, baseline, names, seed)
    shown, notes = {}, []
    if pictures:
        moments = [(int(visited.episode[row]), int(visited.time[row])) for row, _ in chosen]
        try:
            make = drawable(config) if env is None else env
            wrappers = config.run.wrappers
            shown = frames(agent.policy, make, moments, seed=seed, wrappers=wrappers)
        except AssayError as error:
            reason = error.message.partition("\n")[0]  # a traceback may follow
            notes.append(f"The environment was not drawn: {reason}")
    checks = (_same_agent(agent, action, visited), *look.checks())
    return Explanation(
        run=str(directory.path), algorithm=config.algorithm, env=config.env, of=of,
        outputs=function.outputs, returns=visited.returns, states=look.count,
        features=look.features(), checks=checks, cascade=look.cascade(), values=judged,
        memory=memory, notes=tuple(notes),
        moments=tuple(
            _moment(look, place, row, reason, visited, judged, shown if pictures else None)
            for place, (row, reason) in enumerate(chosen)
        ),
    )  # fmt: skip


def _reasons(
    agent: Agent, function: Function, visited: Visited, values: ValueReport | str
) -> dict[str, NDArray[np.float64]]:
    """Return how telling each state is, by reason."""
    reasons = decisions(agent.policy, function, visited.states)
    if not isinstance(values, str):
        reasons |= {"expected too much": values.error, "expected too little": -values.error}
    if visited.states.carry is not None:
        empty = forgotten(visited.states, agent.policy)
        moved = scores_of(function, visited.states) - scores_of(function, empty)
        reasons["memory counts most"] = np.linalg.norm(moved, axis=1)
    return reasons


def _same_agent(agent: Agent, function: Function, visited: Visited) -> Check:
    """Check that what is explained acts as the agent did."""
    policy, states = agent.policy, visited.states
    mask = action_mask(to_device(states.obs, torch.device("cpu")))
    best = policy.head.best(policy_parameters(function, states), mask).numpy()
    same = float(same_actions(policy.spaces.action, best, states.action, _CLOSE).mean())
    detail = f"it acts as the agent did in {same:.1%} of {len(states)} states"
    return Check("same actions", same >= _SAME, detail)


def _moment(
    look: Look,
    place: int,
    row: int,
    reason: str,
    visited: Visited,
    values: ValueReport | str,
    shown: dict[tuple[int, int], Frame] | None,
) -> Moment:
    episode, time = int(visited.episode[row]), int(visited.time[row])
    pictures = {}
    if shown is not None:
        frame = shown.get((episode, time))
        pictures = {} if frame is None else {"the environment": frame}
        pictures |= look.pictures(place)
    action = np.asarray(visited.states.action[row]).tolist()
    value = realised = None
    if not isinstance(values, str):
        value, realised = float(values.value[row]), float(values.realised[row])
    scores, parts = look.scores[place].tolist(), look.parts(place)
    return Moment(reason, episode, time, action, scores, value, realised, parts, pictures)


def _check_names(names: tuple[str, ...], agent: Agent) -> None:
    if not names:
        return
    space = agent.policy.spaces.observation
    count = int(np.prod(space.shape)) if isinstance(space, Box) and not is_image(space) else None
    if count is None:
        raise ConfigError("--names: the observation is not one row of numbers.", "Leave it out.")
    if count != len(names):
        raise ConfigError(
            f"--names: {len(names)} names for {count} numbers of an observation.",
            "Give one for each, separated by commas.",
        )
