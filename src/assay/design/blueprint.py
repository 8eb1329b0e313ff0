"""The blueprint of a problem: its layers, and files that run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from assay.core.errors import nearest
from assay.core.registry import spec_of
from assay.design.checks import check
from assay.design.choose import Choice, choose
from assay.design.diagram import Layer, ascii_diagram, svg_diagram
from assay.design.environment import environment_files
from assay.design.problem import Architecture, Buffer, Evaluation, Learner, Problem, Rollout
from assay.design.rules import DesignError
from assay.design.sizes import transition_bytes

CONFIG, TEXT, PICTURE, PAGE, PROBLEM = (
    "config.yaml", "blueprint.txt", "blueprint.svg", "BLUEPRINT.md", "problem.yaml",
)  # fmt: skip
_SEEDS = 10  # of each pool in a study: below, only large effects show
_LR = {"kind": "float", "low": 1e-5, "high": 1e-2, "log": True}  # what candidates may change
_MANY = 1_000_000  # updates or steps above which a short trial is a hundredth, below a tenth
_STEPS_PER_SECOND = 50.0  # that a study reckons with where nothing says how fast a run is


@dataclass(frozen=True, slots=True)
class Draft:
    """What is tried before the rest is written.

    Attributes:
        choice: The algorithm, and why.
        env: The environment's id.
        config: Settings of the run, as `assay train --config` reads them.
        left_out: What the problem asks for and this algorithm has no setting for.
        files: The files so far, by their paths.
    """

    choice: Choice
    env: str
    config: dict[str, Any]
    left_out: dict[str, Any]
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """All that is written for a problem.

    Attributes:
        draft: What was tried.
        contract: Of a study, as `assay study contract check` reads it.
        files: All files by their paths, the contract left out.
        layers: The four layers.
    """

    draft: Draft
    contract: dict[str, Any]
    files: dict[str, str]
    layers: list[Layer]


def pick(problem: Problem, algorithm: str | None) -> Choice:
    """Return the algorithm that is asked for, or named in the problem, or the first choice.

    Raises:
        DesignError: The problem has errors, nothing fits, or the algorithm does not.
    """
    errors = [one for one in check(problem) if one.severity == "error"]
    if errors:
        rest = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        raise DesignError(
            f"The problem has errors: {errors[0].field}: {errors[0].message} "
            f"({errors[0].rule}){rest}.",
            f"{errors[0].fix} `assay design check` shows all of them.",
        )
    fitting, ruled_out = choose(problem)
    learner = problem.architecture.learner if problem.architecture is not None else None
    named = algorithm or (learner.algorithm if learner is not None else None)
    if named is not None:
        name = spec_of(named).name
        for one in fitting:
            if one.spec.name == name:
                return one
        raise DesignError(
            f"{name} cannot learn this problem: {ruled_out[name]}.",
            nearest("", [one.spec.name for one in fitting]),
        )
    if not fitting:
        reason = next(iter(ruled_out.values()))
        raise DesignError(f"No algorithm can learn this problem: {reason}.")
    return fitting[0]


def make_draft(problem: Problem, text: str, choice: Choice, settings: Collection[str]) -> Draft:
    """Return the environment and the configuration of a problem.

    Args:
        problem: The problem.
        text: Its file, of which a copy is kept.
        choice: What learns it.
        settings: The names of all settings that a run of that algorithm has.

    Raises:
        DesignError: No environment is named, and none can be written.
    """
    files: dict[str, str] = {}
    env = problem.env
    if env is None and (choice.spec.loop != "offline" or "data" not in choice.settings):
        env, files = environment_files(problem, choice.spec.name)
    wanted = _wanted(problem, choice)
    config = {k: v for k, v in wanted.items() if k in settings}
    same = (
        {"minibatch_size", "batch_size"} if {"minibatch_size", "batch_size"} & set(config) else ()
    )
    left_out = {k: v for k, v in wanted.items() if k not in settings and k not in same}
    config = {"algorithm": choice.spec.name, "env": env or "none", **config}
    written = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    head = f"# The problem {problem.name}. Train it with: assay train --config {CONFIG}\n"
    files |= {PROBLEM: text, CONFIG: head + written}
    return Draft(choice, config["env"], config, left_out, files)


def complete(problem: Problem, draft: Draft, resolved: Mapping[str, Any]) -> Blueprint:
    """Return the blueprint: the draft with its diagrams, its page and its contract.

    Args:
        problem: The problem.
        draft: What was tried.
        resolved: All settings of the run, as they came out.
    """
    title = f"{problem.name}: {draft.choice.spec.name} on {draft.env}"
    layers = _layers(problem, draft, resolved)
    drawn = ascii_diagram(layers, "weights")
    files = {
        **draft.files,
        TEXT: drawn + "\n",
        PICTURE: svg_diagram(title, layers, "weights"),
        PAGE: _page(problem, draft, title, drawn),
    }
    return Blueprint(draft, _contract(problem, draft, resolved), files, layers)


def _wanted(problem: Problem, choice: Choice) -> dict[str, Any]:
    """Return the settings of the run that the problem decides; others are presets or defaults."""
    architecture = problem.architecture or Architecture()
    rollout, buffer = architecture.rollout or Rollout(), architecture.buffer or Buffer()
    learner, judged = architecture.learner or Learner(), architecture.evaluation or Evaluation()
    mdp, budget = problem.mdp, architecture.budget
    unit = choice.expected.unit
    wanted: dict[str, Any] = {
        unit: (getattr(budget, unit) if budget is not None else None) or choice.expected.count,
        "num_envs": rollout.envs,
        "horizon": rollout.horizon if choice.spec.loop == "on_policy" else None,
        "gamma": mdp.gamma if mdp is not None else None,
        "max_episode_steps": mdp.limit if mdp is not None and problem.env is not None else None,
        "buffer_size": buffer.capacity,
        "minibatch_size": learner.batch_size,
        "batch_size": learner.batch_size,
        "device": learner.device,
        "eval_every": judged.every,
        "eval_episodes": judged.episodes,
        **choice.settings,
    }
    per_step = learner.updates_per_step
    if per_step is not None and choice.spec.loop == "off_policy":
        wanted |= {"train_every": max(1, round(1 / per_step)), "updates": max(1, round(per_step))}
    entries = [e for e in (problem.state.entries if problem.state else ()) if not e.privileged]
    if any(entry.normalise == "running" for entry in entries):
        wanted["normalize_obs"] = True
    if len(entries) == 1 and entries[0].history > 1:
        wanted["wrappers"] = [{"frame_stack": entries[0].history}]
    return {key: value for key, value in wanted.items() if value is not None}


def _layers(problem: Problem, draft: Draft, resolved: Mapping[str, Any]) -> list[Layer]:
    spec = draft.choice.spec
    architecture = problem.architecture or Architecture()
    rollout, buffer = architecture.rollout or Rollout(), architecture.buffer or Buffer()
    learner, judged = architecture.learner or Learner(), architecture.evaluation or Evaluation()
    unit = draft.choice.expected.unit
    kind = buffer.kind or {"on_policy": "rollout", "off_policy": "replay"}.get(spec.loop, "dataset")
    size = transition_bytes(problem, both=kind == "replay")
    copies = resolved.get("num_envs", 1)
    collected = [
        f"{copies} {'copy' if copies == 1 else 'copies'} of {draft.env}",
        f"environment on {rollout.env_device or 'cpu'}, "
        f"actions on {rollout.inference_device or 'cpu'}",
        f"{rollout.workers or 'no'} worker processes"
        + (f", {rollout.lag} updates behind" if rollout.lag else ""),
    ]
    capacity = resolved.get("buffer_size") or resolved.get("horizon", 0) * copies
    kept = f"{kind} of {capacity:,} steps, {_human(capacity * size)}"
    if unit == "updates":
        collected = ["nothing is collected"]
        kept = f"data: {resolved['data']}" if "data" in resolved else "the whole game"
    batch = resolved.get("minibatch_size") or resolved.get("batch_size")
    learns = [
        f"{spec.name} ({spec.family}, {spec.loop})",
        f"{resolved[unit]:,} {unit}"
        + (f", gamma {resolved['gamma']:g}" if "gamma" in resolved else ""),
        f"device {resolved.get('device', 'auto')}"
        + (f", {learner.gpus} GPUs by {learner.communication}" if learner.gpus else ""),
    ]
    judges = [
        f"{resolved['eval_episodes']} episodes every {resolved['eval_every']:,} {unit}, "
        "exploration off, environments of its own",
        f"{judged.seeds or _SEEDS} training seeds for a claim (assay study)",
    ]
    return [
        Layer("rollout", tuple(collected), f"steps ({rollout.communication or 'same process'})"),
        Layer(
            "buffer",
            (kept, f"{size:,} bytes per step, on {buffer.device or 'cpu'}"),
            f"batches of {batch:,}" if batch else "all of it",
        ),
        Layer("learner", tuple(learns), "a checkpoint"),
        Layer("evaluation", tuple(judges), ""),
    ]


def _human(size: float) -> str:
    """Return a number of bytes in the unit that suits it.

    Example:
        >>> _human(1536), _human(3.2e9)
        ('1.5 kB', '3.2 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.3g} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _contract(problem: Problem, draft: Draft, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return a contract that asks whether a change of settings beats this blueprint."""
    choice = draft.choice
    judged = problem.architecture.evaluation if problem.architecture is not None else None
    seeds = max(5, (judged.seeds if judged is not None else None) or _SEEDS)
    unit = choice.expected.unit
    short = max(1, resolved[unit] // (100 if resolved[unit] >= _MANY else 10))
    seconds = choice.expected.seconds or max(600.0, resolved[unit] / _STEPS_PER_SECOND)
    hours = max(0.05, seconds / 3600)
    command = ["{python}", "-m", "assay", "train", "--config", CONFIG, "--seed", "{seed}"]
    primary = {
        "name": "return",
        "direction": "maximize",
        "minimum_effect": 1.0,
        "source": {"kind": "assay", "key": "eval/return_mean"},
    }
    metrics: dict[str, Any] = {"primary": primary}
    if choice.spec.loop in ("on_policy", "off_policy"):
        source = {"kind": "assay", "key": "rollout/return_mean"}
        metrics["training_reward"] = {"name": "rollout", "source": source}
    runs = 4 * 2 * seeds  # a baseline and three candidates, each in two pools
    return {
        "schema_version": 1,
        "study": "first",
        "question": f"Which settings of {choice.spec.name} solve {problem.name} best?",
        "task": {
            "id": problem.name,
            "description": problem.description or f"The problem {problem.name} is solved.",
            "env": draft.env,
        },
        "metrics": metrics,
        "scope": {"parameters": {"lr": _LR} if "lr" in resolved else {}},
        "budget": {"wall_clock_hours": round(hours * runs, 2), "runs": runs},
        "hardware": {"kind": "cpu"},
        "baseline": {
            "command": [*command, "--root", "{out}", "--name", "run", "--quiet", "{parameters}"],
            "shortened": {"smoke": {unit: short}, "short": {unit: short}},
        },
        "evaluation": {
            "episodes": resolved["eval_episodes"],
            "files": [name for name in draft.files if name.endswith("/env.py")],
            "pools": {
                "development": [0],
                "promotion": list(range(1, seeds + 1)),
                "validation": list(range(seeds + 1, 2 * seeds + 1)),
            },
        },
    }


def _page(problem: Problem, draft: Draft, title: str, drawn: str) -> str:
    """Return the breakdown as a page."""
    choice, expected = draft.choice, draft.choice.expected
    cost = f", about {expected.seconds / 60:.0f} minutes a run" if expected.seconds else ""
    count = f"{expected.count:,} {expected.unit}" if expected.count else f"{expected.unit} open"
    findings = check(problem)
    lines = [
        f"# {title}",
        problem.description,
        "",
        "```text",
        drawn,
        "```",
        "",
        f"## Why {choice.spec.name}",
        *(f"- {'for' if points > 0 else 'against'}: {text}" for points, text in choice.reasons),
        "",
        f"Expected: {count}{cost} ({expected.source}).",
        "",
        "## What is left to think about",
        *(
            f"- {name}={value} is asked for, and {choice.spec.name} has no such setting."
            for name, value in draft.left_out.items()
        ),
        *(f"- {one.rule}: {one.field}: {one.message}. {one.fix}" for one in findings),
        *([] if findings or draft.left_out else ["Nothing that a rule knows."]),
        "",
        "## What to type here",
        "```console",
        f"assay train --config {CONFIG}",
        "assay study contract check",
        "```",
        "",
    ]
    return "\n".join(lines)
