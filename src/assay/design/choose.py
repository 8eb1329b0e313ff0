"""The selector: from a problem to a ranked list of algorithms, with reasons.

What it knows of an algorithm is what the registry says: loop, family, actions, expert and traits.
Each consideration below gives or takes points for one of these, and says why. An algorithm that
cannot learn the problem at all is ruled out first (`fit`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Any

from assay.core.presets import preset
from assay.core.registry import TRAITS, AlgorithmSpec
from assay.design.fit import Facts, facts_of, specs, unfit
from assay.design.problem import Problem
from assay.design.reward_rules import FAR
from assay.design.sizes import assumed_steps

CHEAP, EXPENSIVE = 1000.0, 100.0  # steps per second of all copies
FEW_STEPS = 100_000  # a budget that only frugal algorithms make something of
CVAR, NOVELTY = 0.25, 1.0  # settings that the command switches on

Reasons = Iterator[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run will take.

    Attributes:
        count: Environment steps, or updates where there is only data.
        unit: "env_steps" or "updates".
        seconds: Of a run, or None if nothing says.
        source: Where the numbers are from.
    """

    count: int | None
    unit: str
    seconds: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Choice:
    """An algorithm that can learn a problem.

    Attributes:
        spec: What the registry says of it.
        points: How well it fits, for the order.
        reasons: What speaks for and against it, with points, the strongest first.
        settings: Settings that the problem asks for.
        preset: Whether settings are shipped for it on this environment.
        expected: What a run will take.
        command: What to type.
    """

    spec: AlgorithmSpec
    points: float
    reasons: tuple[tuple[float, str], ...]
    settings: dict[str, Any]
    preset: bool
    expected: Expected
    command: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "algorithm": self.spec.name,
            "family": self.spec.family,
            "points": self.points,
            "for": [text for points, text in self.reasons if points > 0],
            "against": [text for points, text in self.reasons if points < 0],
            "settings": self.settings,
            "preset": self.preset,
            "expected": asdict(self.expected),
            "command": self.command,
        }


def choose(problem: Problem) -> tuple[list[Choice], dict[str, str]]:
    """Return the algorithms that can learn a problem, best first, and why others cannot."""
    facts = facts_of(problem)
    fitting, ruled_out = [], {}
    for spec in specs():
        reason = unfit(spec, facts, problem)
        if reason is not None:
            ruled_out[spec.name] = reason
            continue
        reasons = sorted(_reasons(spec, facts, problem), key=lambda one: -abs(one[0]))
        settings = _settings(spec, facts, problem)
        fitting.append(
            Choice(
                spec,
                sum(points for points, _ in reasons),
                tuple(reasons),
                settings,
                problem.env is not None and bool(preset(spec.name, problem.env)),
                _expected(spec, problem),
                _command(spec, problem, settings),
            )
        )
    return sorted(fitting, key=lambda one: (-one.points, one.spec.name)), ruled_out


# ---------------------------------------------------------------------- considerations


def _reasons(spec: AlgorithmSpec, facts: Facts, problem: Problem) -> Reasons:
    if "first" in spec.traits:
        yield 2, TRAITS["first"]
    if "baseline" in spec.traits:
        yield -2, TRAITS["baseline"]
    yield from _memory(spec, facts, problem)
    yield from _steps(spec, facts, problem)
    yield from _actions(spec, facts)
    yield from _search_for_reward(spec, problem)
    yield from _data(spec, facts, problem)
    yield from _imitation(spec, facts, problem)
    yield from _team(spec, facts, problem)
    if problem.hierarchy is not None and "levels" in spec.traits:
        yield 6, TRAITS["levels"]
    rollout = problem.architecture.rollout if problem.architecture is not None else None
    if rollout is not None and rollout.lag:
        if "lag" in spec.traits:
            yield 6, TRAITS["lag"]
        elif spec.loop == "on_policy":
            yield -5, "actors lag behind, and it is on-policy without a correction"


def _past_matters(facts: Facts, problem: Problem) -> bool:
    """Return whether something has to be remembered that no history covers."""
    entries = problem.state.entries if problem.state is not None else ()
    stacked = max((entry.history for entry in entries), default=1)
    needed = problem.mdp.memory if problem.mdp is not None else None
    covered = stacked > 1 and needed is not None and stacked >= needed
    return facts.partial and not covered and not facts.game


def _memory(spec: AlgorithmSpec, facts: Facts, problem: Problem) -> Reasons:
    has = "memory" in spec.traits
    if _past_matters(facts, problem):
        if facts.team:  # each of whom sees little by nature
            yield from [(2, TRAITS["recall"])] if "recall" in spec.traits else []
        else:
            yield (6, TRAITS["memory"]) if has else (-6, "it sees one moment, and the past matters")
    elif has:
        yield -2, "its memory costs time, and nothing has to be remembered"


def step_cost(problem: Problem) -> str | None:
    """Return whether environment steps are "cheap" or "expensive"; None in between or unknown."""
    simulator = problem.mdp.simulator if problem.mdp is not None else None
    budget = problem.architecture.budget if problem.architecture is not None else None
    total = None
    if simulator is not None and simulator.steps_per_second:
        total = simulator.steps_per_second * (simulator.parallel or 1)
    if simulator is not None and simulator.kind == "real":
        return "expensive"
    if total is not None and total >= CHEAP:
        return "cheap"
    few = budget is not None and budget.env_steps is not None and budget.env_steps <= FEW_STEPS
    return "expensive" if few or (total is not None and total < EXPENSIVE) else None


def _steps(spec: AlgorithmSpec, facts: Facts, problem: Problem) -> Reasons:
    if spec.loop not in ("on_policy", "off_policy"):
        return
    cost = step_cost(problem)
    frugal = "frugal" in spec.traits
    if cost == "expensive":
        if frugal:
            yield 4, f"steps are expensive, and {TRAITS['frugal']}"
        if spec.loop == "off_policy":
            yield 2, "it learns from every step many times"
        else:
            yield -4, "steps are expensive, and it uses each of them once"
    elif cost == "cheap":
        if spec.loop == "on_policy":
            yield 3, "steps are cheap, and it takes many of them at once"
        if frugal:
            yield -3, "steps are cheap, and its computing is not"
    elif spec.loop == "off_policy":
        yield 1, "it learns from every step many times"
    hardware = problem.architecture.hardware if problem.architecture is not None else None
    gpus = hardware.gpus if hardware is not None else None
    if facts.image and spec.family == "model-based":
        if gpus:
            yield 2, "it learns a model of the images, and there is a GPU"
        else:
            yield -2, "it learns a model of the images, which is slow without a GPU"


def _actions(spec: AlgorithmSpec, facts: Facts) -> Reasons:
    if spec.loop != "off_policy":
        return
    if facts.space == "Discrete" and spec.family == "value":
        yield 1, "it learns the value of each choice"
    if spec.family == "actor-critic":
        if facts.space == "Box":
            yield 1, "it learns an actor for continuous actions"
        elif facts.space is not None:
            yield -4, "it is made for continuous actions"


def _search_for_reward(spec: AlgorithmSpec, problem: Problem) -> Reasons:
    reward = problem.reward
    if reward is None:
        return
    if reward.risk == "averse" and "risk" in spec.traits:
        yield 5, TRAITS["risk"]
    rare = bool(reward.terms) and all(term.kind != "dense" for term in reward.terms)
    goals = problem.mdp is not None and bool(problem.mdp.goals)
    if goals and "hindsight" in spec.traits:
        yield (6 if rare else 2), TRAITS["hindsight"]
    elif rare and not goals and assumed_steps(problem) > FAR and "novelty" in spec.traits:
        yield 4, f"the reward is rare, and {TRAITS['novelty']}"


def _data(spec: AlgorithmSpec, facts: Facts, problem: Problem) -> Reasons:
    shown = problem.demonstrations
    if not facts.data or not facts.reward or shown is None:
        return
    if facts.steps:
        if "recorded" in spec.traits:
            yield 4, TRAITS["recorded"]
        elif spec.loop == "offline":
            yield -2, "it would not use the environment"
        else:
            yield -3, "it would not use the recorded data"
    if spec.loop != "offline":
        return
    imitates = spec.family == "imitation"
    if shown.quality == "expert":
        yield (5, "the data shows an expert") if imitates else (-1, "cloning an expert is simpler")
    elif imitates:
        yield -3, "it copies the data, which is no expert's"
    elif spec.family == "actor-critic":
        yield 1, "it improves on the data"


def _imitation(spec: AlgorithmSpec, facts: Facts, problem: Problem) -> Reasons:
    shown = problem.demonstrations
    if shown is None:
        return
    if facts.reward:
        if spec.expert is not None:
            yield -3, "there is a reward, and it imitates without one"
        return
    if spec.expert == "policy":
        yield 6, "the teacher answers in the states that the learner comes to"
    if spec.expert == "episodes" and facts.steps:
        cost = step_cost(problem)
        yield (1 if cost == "expensive" else 4), "few episodes suffice, because it can try things"
    if "reward" in spec.traits:
        wanted = shown.reward_wanted
        yield (5, TRAITS["reward"]) if wanted else (-1, "the reward behind it is not wanted")


def _team(spec: AlgorithmSpec, facts: Facts, problem: Problem) -> Reasons:
    agents = problem.agents
    if not facts.team or agents is None:
        return
    central = "central" in spec.traits
    if agents.training in ("central", "independent"):
        right = central == (agents.training == "central")
        yield (4 if right else -4), f"training is to be {agents.training}"
    if agents.relation == "cooperative" or agents.reward == "team":
        if central:
            yield 3, f"agents have one goal, and {TRAITS['central']}"
        if "team" in spec.traits:
            yield 1, "it divides one reward among the agents"
    elif central and agents.global_state:
        yield 1, TRAITS["central"]


# ---------------------------------------------------------------------- what to type


def _settings(spec: AlgorithmSpec, facts: Facts, problem: Problem) -> dict[str, Any]:
    """Return the settings that the problem asks for, all of which the algorithm has."""
    mdp, shown, reward = problem.mdp, problem.demonstrations, problem.reward
    made: dict[str, Any] = {}
    goals = mdp is not None and bool(mdp.goals)
    if goals and "hindsight" in spec.traits:
        made["her"] = "future"
    if any(text.startswith("the reward is rare") for _, text in _search_for_reward(spec, problem)):
        made["rnd"] = NOVELTY
    if "recall" in spec.traits and _past_matters(facts, problem):
        made["memory"] = "gru"
    if reward is not None and reward.risk == "averse" and "risk" in spec.traits:
        made["cvar"] = CVAR
    if shown is not None and shown.data and (spec.loop == "offline" or "recorded" in spec.traits):
        made["data"] = shown.data
    if shown is not None and spec.expert is not None:
        made["expert"] = shown.teacher if spec.expert == "policy" else shown.data
    return made


def _command(spec: AlgorithmSpec, problem: Problem, settings: dict[str, Any]) -> str:
    env = problem.env or ("" if spec.loop == "offline" else "ENV")
    words = ["assay train", spec.name, env, *(f"{k}={v}" for k, v in settings.items())]
    return " ".join(word for word in words if word)


@cache
def evidence() -> list[dict[str, Any]]:
    """Return what was measured of our algorithms: `benchmarks/report.py` writes it."""
    text = resources.files("assay.design").joinpath("evidence.json").read_text(encoding="utf-8")
    return list(json.loads(text)["cases"].values())


def _expected(spec: AlgorithmSpec, problem: Problem) -> Expected:
    """Return steps and time: measured on this environment, else by the budget or the preset."""
    unit = "updates" if spec.loop in ("offline", "game") else "env_steps"
    own = [row for row in evidence() if row["algorithm"] == spec.name]
    here = next((row for row in own if row["env"] == problem.env), None)
    if here is not None:
        said = f"measured: {here['goal']} on {here['env']}, {here['seeds']} seeds"
        return Expected(here["env_steps"], unit, here["seconds"], said)
    budget = problem.architecture.budget if problem.architecture is not None else None
    count = getattr(budget, unit) if budget is not None else None
    source = "the problem's budget"
    if count is None and problem.env is not None:
        count, source = preset(spec.name, problem.env).get(unit), "the preset"
    if not own:
        said = source if count is not None else "nothing was measured of it yet"
        return Expected(count, unit, None, said)
    nearest = min(own, key=lambda row: row["env_steps"])
    other = nearest["env"]
    if count is None:
        count, source = nearest["env_steps"], f"what it took on {other}"
    simulator = problem.mdp.simulator if problem.mdp is not None else None
    if simulator is None or simulator.steps_per_second is None:
        # How fast another environment was says nothing of one that may be a thousand times slower.
        return Expected(count, unit, None, f"{source}; the environment's speed is not known")
    learned = nearest["env_steps"] / nearest["seconds"]
    played = simulator.steps_per_second * (simulator.parallel or 1)
    if played < learned:
        said = f"{source}; the environment's {played:,.0f} steps/s, learning not counted"
    else:
        said = f"{source}; at the {learned:,.0f} steps/s that were measured on {other}"
    return Expected(count, unit, round(count / min(learned, played), 1), said)
