"""Where a new problem comes from: answers, an environment, a run, or an interview."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import yaml

from assay.core.config import parse_assignments
from assay.core.errors import AssayError
from assay.core.registry import spec_of
from assay.core.types import ACTION_MASK, Team
from assay.design.checks import refuse_contradictions
from assay.design.documents import parse_text, render
from assay.design.problem import SECTIONS, Problem
from assay.design.rules import DesignError
from assay.envs.limits import EPISODE_BOUND
from assay.envs.make import look_at, make_env
from assay.envs.text import is_text
from assay.runs.directory import RunDirectory

Values = dict[str, Any]
_WATCHED = 0.2  # seconds in which steps of an environment are counted
_KINDS = {"on_policy": "rollout", "off_policy": "replay", "offline": "dataset"}


def from_assignments(items: Iterable[str]) -> Values:
    """Return the values of a problem from answers as they are typed, such as `action.kind=box`.

    Raises:
        DesignError: A field is answered twice, and not alike.
    """
    answers: Values = {}
    for item in items:
        for name, value in parse_assignments([item]).items():
            if name in answers and answers[name] != value:
                raise DesignError(
                    f"The answers contradict each other: '{name}' is {answers[name]!r} and "
                    f"{value!r}.",
                    "Answer it once.",
                )
            answers[name] = value
    return from_answers(answers)


def from_answers(answers: Mapping[str, Any]) -> Values:
    """Return the values of a problem from answers by dotted names, such as `action.kind`.

    Raises:
        DesignError: A field is answered twice, once as a whole and once in part.
    """
    values: Values = {}
    for name, value in answers.items():
        *parents, last = name.split(".")
        place = values
        for part in parents:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise DesignError(
                    f"The answers contradict each other: '{part}' is {inner!r}, and '{name}' is "
                    "inside of it.",
                    "Answer one of them.",
                )
            place = inner
        inner = place.get(last)
        if isinstance(inner, dict) and isinstance(value, dict):
            value = merged(inner, value)
        elif isinstance(inner, dict):
            raise DesignError(
                f"The answers contradict each other: '{name}' is {value!r}, and fields inside of "
                "it are answered.",
                "Answer one of them.",
            )
        place[last] = value
    return values


def from_env(env_id: str) -> Values:
    """Return what an environment tells: its spaces, agents, goals, time limit and speed.

    Raises:
        AssayError: There is no such environment, or it cannot be made.
    """
    sight = look_at(env_id, {})
    team = sight.spaces.team
    name = re.sub(r"[^a-z0-9]+", "_", env_id.rpartition(":")[2].lower()).strip("_")
    values: Values = {"name": name if name[:1].isalpha() else f"env_{name}", "env": env_id}
    mdp: Values = {"simulator": {"kind": "simulator"}}
    if sight.episode_steps not in (None, EPISODE_BOUND):  # the latter is ours, not its own
        mdp["limit"] = sight.episode_steps
    if team is not None:
        values["agents"] = _team(team)
        values["mdp"] = mdp
        return values
    seen = sight.spaces.observation
    masked = isinstance(seen, gym.spaces.Dict) and ACTION_MASK in seen.spaces
    raw, speed, relabels = _raw(env_id, seen)
    if speed is not None:
        mdp["simulator"]["steps_per_second"] = speed
    values["state"] = {"entries": _entries(raw)}
    values["action"] = _action(sight.spaces.action, masked)
    named = {e["name"] for e in values["state"]["entries"]}
    if relabels and {"achieved_goal", "desired_goal"} <= named:
        mdp["goals"] = True
    return values | {"mdp": mdp}


def _raw(env_id: str, canonical: Any) -> tuple[Any, float | None, bool]:
    """Return the space with its own names and bounds, steps per second, and if goals can change."""
    try:
        env = make_env(env_id)
    except AssayError:
        return canonical, None, False
    try:
        needed = ("compute_reward", "compute_terminated")  # of hindsight
        return env.observation_space, _speed(env), all(map(env.has_wrapper_attr, needed))
    finally:
        env.close()


def _speed(env: gym.Env[Any, Any]) -> float | None:
    """Return about how many random steps it takes per second; None where it refuses them."""
    steps, over = 0, True
    try:
        env.reset(seed=0)
        env.step(env.action_space.sample())  # the first may import and compile: not counted
        began = time.perf_counter()
        while time.perf_counter() - began < _WATCHED:
            if over:
                env.reset(seed=steps)
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
            steps += 1
    except Exception:
        return None
    return float(f"{steps / (time.perf_counter() - began):.1g}")


def _entries(space: Any, name: str = "observation") -> list[Values]:
    if isinstance(space, gym.spaces.Dict):
        return [e for key, part in space.items() for e in _entries(part, str(key))]
    if isinstance(space, gym.spaces.Tuple):
        return [e for i, part in enumerate(space) for e in _entries(part, f"{name}_{i}")]
    if name == ACTION_MASK:
        return []
    word = re.sub(r"\W+", "_", name)
    word = word if word[:1].isalpha() else f"entry_{word}"
    if isinstance(space, gym.spaces.Discrete):
        return [{"name": word, "kind": "category", "size": int(space.n)}]
    if isinstance(space, gym.spaces.MultiBinary):
        return [{"name": word, "kind": "binary", "shape": list(space.shape)}]
    if is_text(space):
        return [{"name": word, "kind": "text"}]
    if not isinstance(space, gym.spaces.Box):
        return [{"name": word, "shape": list(space.shape or (1,))}]
    image = len(space.shape) == 3 and space.dtype == np.uint8
    entry: Values = {"name": word, "kind": "image" if image else "vector"}
    entry |= {"shape": [int(n) for n in space.shape] or [1], "dtype": str(space.dtype)}
    return [entry if image else entry | _bounds(space)]


def _bounds(space: gym.spaces.Box) -> Values:
    """Return the bounds of a box, as one number where all are equal; none where one is missing."""
    found: Values = {}
    # Bounds of the size of the type's largest value are nobody's measurement.
    for key, array in (("low", space.low), ("high", space.high)):
        if np.all(np.abs(array) < 1e30):
            flat = [float(f"{v:.6g}") for v in np.ravel(array)]
            found[key] = flat[0] if len(set(flat)) == 1 else flat
    return found


def _action(space: Any, masked: bool) -> Values:
    mask = {"mask": True} if masked else {}
    if isinstance(space, gym.spaces.Discrete):
        return {"kind": "discrete", "n": int(space.n), **mask}
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {"kind": "multi_discrete", "sizes": [int(n) for n in space.nvec.ravel()], **mask}
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "multi_binary", "n": int(np.prod(space.shape)), **mask}
    assert isinstance(space, gym.spaces.Box)
    return {"kind": "box", "shape": [int(n) for n in space.shape], **_bounds(space)}


def _team(team: Team) -> Values:
    types: dict[str, Values] = {}
    for kind, seen, done in zip(team.types, team.observations, team.actions, strict=True):
        word = re.sub(r"\W+", "_", kind)
        one = types.setdefault(word, {"name": word, "count": 0})
        one["count"] += 1
        one |= {"observation": [int(n) for n in seen.shape], "action": _action(done, False)}
    return {"types": list(types.values()), "global_state": team.state}


def from_run(run: RunDirectory) -> Values:
    """Return what a run tells: its environment, and the layers that it was trained with.

    An environment that cannot be made here is named and not looked at.
    """
    config = run.config
    settings, hyper = dict(config.get("run") or {}), dict(config.get("hyperparameters") or {})
    env = str(config["env"])
    try:
        values = from_env(env) if not config.get("env_is_object") and env != "none" else {}
    except AssayError:
        values = {"env": env}
    values.setdefault("name", "problem")
    spec = spec_of(str(config["algorithm"]))
    device = settings.get("device")
    layers: Values = {
        "rollout": {"envs": settings.get("num_envs"), "horizon": hyper.get("horizon")},
        "buffer": {"kind": _KINDS.get(spec.loop), "capacity": hyper.get("buffer_size")},
        "learner": {
            "algorithm": spec.name,
            "device": device if device in ("cpu", "cuda") else None,
            "batch_size": hyper.get("minibatch_size") or hyper.get("batch_size"),
        },
        "evaluation": {
            "every": settings.get("eval_every") or None,
            "episodes": settings.get("eval_episodes"),
        },
        "budget": {"env_steps": settings.get("env_steps") or None},
    }
    if spec.loop in ("offline", "game"):
        layers["budget"] = {"updates": settings.get("updates")}
    values["architecture"] = {
        name: known
        for name, fields in layers.items()
        if (known := {key: value for key, value in fields.items() if value is not None})
    }
    if hyper.get("gamma") is not None:
        values.setdefault("mdp", {})["gamma"] = hyper["gamma"]
    if settings.get("data"):
        values["demonstrations"] = {"data": str(settings["data"])}
    return values


# ---------------------------------------------------------------------- the interview

Ask = Callable[[str], str]
# Field, question, and when it is asked: a field and one of its values, or None for always.
QUESTIONS: tuple[tuple[str, str, tuple[str, tuple[str, ...]] | None], ...] = (
    ("name", "A short name, such as drone_landing", None),
    ("description", "What does a solved problem look like", None),
    ("env", "The id of its environment, if there is one", None),
    ("action.kind", "Actions: discrete, multi_discrete, multi_binary or box", None),
    ("action.n", "How many choices", ("action.kind", ("discrete", "multi_binary"))),
    ("action.sizes", "Choices of each, such as [3, 5]", ("action.kind", ("multi_discrete",))),
    ("action.shape", "Shape of an action, such as [4]", ("action.kind", ("box",))),
    ("action.low", "Smallest action", ("action.kind", ("box",))),
    ("action.high", "Largest action", ("action.kind", ("box",))),
    ("mdp.observability", "Does the agent see all that matters: full or partial", None),
    ("mdp.memory", "How many steps must it remember", ("mdp.observability", ("partial",))),
    ("mdp.horizon", "Steps of a typical episode", None),
    ("mdp.limit", "Steps after which an episode is cut", None),
    ("mdp.simulator.kind", "Steps are taken in: simulator, real, or none", None),
    (
        "mdp.simulator.steps_per_second",
        "Steps per second of one copy",
        ("mdp.simulator.kind", ("simulator", "real")),
    ),
    (
        "mdp.simulator.parallel",
        "Copies that can run at once",
        ("mdp.simulator.kind", ("simulator",)),
    ),
    ("reward.source", "Is there a reward: known or none", None),
    ("demonstrations.data", "A dataset to learn from, if there is one", None),
    ("architecture.budget.env_steps", "Most environment steps of a run", None),
)  # fmt: skip


def interview(ask: Ask, say: Callable[[str], None]) -> Values:
    """Return the values that a person answers; an empty answer leaves a field open.

    What an environment tells is not asked for. An answer that cannot be is asked for again at once.

    Args:
        ask: Given a question, returns the answer.
        say: Told why an answer is asked for again.
    """
    answers: dict[str, Any] = {}
    told: Values = {}
    for field, question, condition in QUESTIONS:
        if condition is not None:
            given = answers.get(condition[0], _value(told, condition[0]))
            if given not in condition[1]:
                continue
        if _value(told, field) is not None:
            continue
        while text := ask(question).strip():
            try:
                value = parse_assignments([f"{field}={text}"])[field]
                seen = from_env(str(value)) if field == "env" else told
                _refuse(merged(seen, from_answers({**answers, field: value})))
            except AssayError as error:
                say(str(error))
                continue
            answers[field], told = value, seen
            break
    made = merged(told, from_answers(answers))
    return made if "state" in made else merged(made, _ask_entries(ask, say))


def _value(values: Any, field: str) -> Any:
    """Return the value of a dotted field, or None."""
    for part in field.split("."):
        values = values.get(part) if isinstance(values, dict) else None
    return values


def _refuse(values: Mapping[str, Any]) -> None:
    """Refuse values that are not those of a problem, or contradict each other."""
    refuse_contradictions(parse_text(render(values)))


def _ask_entries(ask: Ask, say: Callable[[str], None]) -> Values:
    while (count := ask("How many things does the agent see (state entries)").strip()) and (
        not count.isdigit()
    ):
        say(f"'{count}' is not a number.")
    entries: list[Values] = []
    for number in range(1, int(count or 0) + 1):
        while True:
            name = ask(f"Name of entry {number}").strip() or f"entry_{number}"
            shape = ask(f"Shape of {name}, such as [3], or [84, 84, 3] for an image").strip()
            try:
                value = parse_assignments([f"shape={shape or '[1]'}"])["shape"]
                shaped = value if isinstance(value, list) else [value]
                kind = "image" if len(shaped) == 3 else "vector"
                entry = {"name": name, "kind": kind, "shape": shaped}
                _refuse({"state": {"entries": [*entries, entry]}})
            except AssayError as error:
                say(str(error))
                continue
            entries.append(entry)
            break
    return {"state": {"entries": entries}} if entries else {}


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """Return values of which the second win, mapping by mapping."""
    made = dict(under)
    for key, value in over.items():
        both = isinstance(value, Mapping) and isinstance(made.get(key), Mapping)
        made[key] = merged(made[key], value) if both else value
    return made


def written(values: Mapping[str, Any]) -> str:
    """Return the text of a new `problem.yaml`, with a comment above every section.

    Raises:
        DesignError: A field or value is not one of a problem, or answers contradict each other.
    """
    _refuse(values)
    lines = [
        "# A problem to be learned. What is left out is not decided.",
        "# assay design check | choose | blueprint; fields: assay design schema",
    ]
    head = {key: value for key, value in values.items() if key not in SECTIONS}
    head = {"name": "problem", **head}
    lines += yaml.safe_dump(head, sort_keys=False, allow_unicode=True, width=100).splitlines()
    for name in SECTIONS:
        meaning = Problem.model_fields[name].description
        lines += ["", f"# {meaning}"]
        if name in values:
            lines += render({name: values[name]}).rstrip().splitlines()
        else:
            lines.append(f"# {name}:")
    return "\n".join(lines) + "\n"
