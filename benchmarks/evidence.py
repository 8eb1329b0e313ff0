"""Evidence files: written compactly, read back only if they are whole and agree with themselves."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import platform
import re
import statistics as plain
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import (
    CASES,
    COMPARISONS,
    FINAL_EPISODES,
    RACES,
    SAME_UPDATES,
    Case,
    Comparison,
)

import assay
from assay.core.errors import AssayError
from assay.evaluation.statistics import Interval, iqm, stratified_bootstrap, welch_test
from assay.runs.provenance import hardware

SCHEMA = 1
ROOT = Path(__file__).resolve().parent
LEARNING = ROOT / "evidence" / "learning"
SPEED_FILES = tuple(
    ROOT / "evidence" / f"{name}.json"
    for name in dict.fromkeys(race.file for race in RACES.values())
)
MEASURED = ROOT.parent / "src" / "assay" / "design" / "evidence.json"  # what is shipped of it
PRIORITIES = ROOT / "evidence" / "priorities.json"
MEMORY = ROOT / "evidence" / "memory.json"
PHASES = ROOT / "evidence" / "phases.md"

BOOTSTRAP_SEED, BOOTSTRAP_REPS = 0, 10_000
PACKAGES = (
    "torch", "numpy", "gymnasium", "stable-baselines3", "sb3-contrib", "skrl", "mujoco", "box2d",
    "gymnasium-robotics", "sheeprl", "benchmarl",
)  # fmt: skip


class EvidenceError(AssayError):
    """An evidence file is missing, damaged, or contradicts itself."""


# ---------------------------------------------------------------------- files


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write content with one line per list of plain values, so that diffs stay readable."""
    text = json.dumps(content, indent=1, allow_nan=False)
    text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text + "\n")
    temporary.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read an object of this schema.

    Raises:
        EvidenceError: The file is missing or is not one.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        raise EvidenceError(f"There is no evidence file '{path.name}'.") from None
    except (OSError, ValueError) as error:
        raise EvidenceError(f"'{path.name}' cannot be read: {error}", "Measure again.") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise EvidenceError(f"'{path.name}' is not evidence of schema {SCHEMA}.", "Measure again.")
    return content


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: processor, versions, and the code itself."""
    facts = hardware()
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": f"{facts['cpu']}{_family()}",
        "cores": facts["cores"],
        "gpus": [gpu["name"] for gpu in facts["gpus"]],
        "assay": assay.__version__,
        "source": source_hash(),
        "versions": versions,
    }


def _family() -> str:
    """Return the generation of the processor, which virtual machines leave out of its name."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    found = re.search(r"^cpu family\s*: (\d+)\nmodel\s*: (\d+)$", told, re.MULTILINE)
    return f", family {found[1]}, model {found[2]}" if found else ""


def source_hash() -> str:
    """Return a hash of the package's code and presets, for trees without Git."""
    root = Path(assay.__file__).parent
    digest = hashlib.sha256()
    for path in sorted([*root.rglob("*.py"), *root.rglob("*.yaml")]):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def config_hash(config: Mapping[str, Any]) -> str:
    """Return a name for a resolved configuration."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def rounded(values: Iterable[float], digits: int = 3) -> list[float]:
    """Return plain floats with few digits."""
    return [round(float(value), digits) for value in values]


_PER_SEED = ("seed", "device")  # in which the seeds of a case may differ


# ---------------------------------------------------------------------- learning


def seed_interval(means: Sequence[float]) -> Interval:
    """Return the interquartile mean over seeds with its 95% bootstrap interval."""
    return stratified_bootstrap(
        np.asarray(means), iqm, rng=BOOTSTRAP_SEED, reps=BOOTSTRAP_REPS, level=0.95
    )


def seed_score(case: Case, evaluation: Mapping[str, Any]) -> float:
    """Return what one seed is judged by: the mean return, or the share of successes."""
    return float(evaluation["success_rate" if case.measure == "success" else "mean"])


def difference(content: Mapping[str, Any], rival: Mapping[str, Any]) -> Interval:
    """Return by how much the seeds of one case are better than those of another, on average.

    Both must judge by the return. The interval is Welch's, at 95%.
    """
    x, y = ([entry["evaluation"]["mean"] for entry in side["seeds"]] for side in (content, rival))
    interval = welch_test(x, y).interval
    if interval is None:
        raise EvidenceError("Seeds that do not vary at all cannot be compared.")
    return interval


def aggregate(case: Case, results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Put the seeds of one case into one evidence object.

    Raises:
        EvidenceError: A seed is missing, comes twice, or was run with other settings.
    """
    ordered = sorted(results, key=lambda result: result["seed"])
    seeds = [result["seed"] for result in ordered]
    if seeds != sorted(set(seeds)) or len(seeds) < case.seeds:
        raise EvidenceError(
            f"{case.name} has seeds {seeds}; expected {case.seeds} or more, each once."
        )
    configs = [_shared_config(result["config"]) for result in ordered]
    for result, config in zip(ordered, configs, strict=True):
        if result["case"] != case.name or config != configs[0]:
            raise EvidenceError(
                f"Seed {result['seed']} of {case.name} was run with other settings than seed "
                f"{seeds[0]}.",
                "Run all seeds again with the same presets.",
            )
    shared = ("schema", "case", "algorithm", "env", "env_steps", "config")
    interval = seed_interval([seed_score(case, result["evaluation"]) for result in ordered])
    return {
        "schema": SCHEMA,
        "case": case.name,
        "algorithm": case.algorithm,
        "env": case.env,
        "env_steps": case.env_steps,
        "goal": case.goal,
        "iqm": round(interval.point, 4),
        "interval": rounded([interval.low, interval.high], 4),
        "passed": case.met(interval.point),
        "config": configs[0],
        "seeds": [
            {k: v for k, v in result.items() if k not in shared}
            | {"device": result["config"]["run"]["device"]}
            for result in ordered
        ],
    }


def read_learning(path: Path) -> dict[str, Any]:
    """Read the evidence of one case, checking that its summary follows from its episodes.

    Raises:
        EvidenceError: Names the first thing that does not hold.
    """
    content = read_json(path)

    def refuse(reason: str) -> EvidenceError:
        return EvidenceError(f"'{path.name}' is refused: {reason}.", "Measure the case again.")

    try:
        case = CASES.get(content["case"])
        if case is None or path.stem != content["case"]:
            raise refuse(f"it holds the case {content['case']!r}")
        for name in ("algorithm", "env", "env_steps", "goal"):
            if content[name] != getattr(case, name):
                raise refuse(f"{name} is {content[name]!r}, the case asks {getattr(case, name)!r}")
        seeds = content["seeds"]
        numbers = [entry["seed"] for entry in seeds]
        if len(set(numbers)) != len(numbers) or len(numbers) < case.seeds:
            raise refuse(f"its seeds are {numbers}")
        for entry in seeds:
            returns = np.asarray(entry["evaluation"]["returns"], np.float64)
            mean = entry["evaluation"]["mean"]
            if returns.shape != (FINAL_EPISODES,) or not np.isfinite(returns).all():
                raise refuse(f"seed {entry['seed']} has no {FINAL_EPISODES} finite returns")
            if not math.isclose(returns.mean(), mean, rel_tol=1e-4, abs_tol=1e-2):
                raise refuse(f"the mean of seed {entry['seed']} is not that of its returns")
            if case.measure == "success":
                successes = entry["evaluation"]["success"]
                if len(successes) != FINAL_EPISODES or not set(successes) <= {0, 1}:
                    raise refuse(f"seed {entry['seed']} lacks episodes that succeed or fail")
                rate = entry["evaluation"]["success_rate"]
                if not math.isclose(sum(successes) / FINAL_EPISODES, rate, abs_tol=1e-3):
                    raise refuse(f"the success rate of seed {entry['seed']} is another")
            config = seed_config(content["config"], entry)
            if config_hash(config) != entry["config_hash"]:
                raise refuse(f"seed {entry['seed']} was run with another configuration")
        interval = seed_interval([seed_score(case, entry["evaluation"]) for entry in seeds])
        found = [content["iqm"], *content["interval"]]
        if not np.allclose(found, [interval.point, interval.low, interval.high], atol=1e-3):
            raise refuse("its interquartile mean or interval is not that of its seeds")
        if content["passed"] is not case.met(interval.point):
            raise refuse("`passed` does not follow from its numbers")
    except (KeyError, TypeError, ValueError) as error:
        raise refuse(f"a field is missing or malformed ({error})") from None
    return content


def measured(directory: Path = LEARNING) -> dict[str, Any]:
    """Return what `assay design choose` says about steps and cost, by case.

    Cases that show what does not work are left out.
    """
    rows = {}
    for path in sorted(directory.glob("*.json")):
        content = read_learning(path)
        if not content["passed"] or content["goal"].startswith("<"):
            continue
        seconds = plain.median(entry["train_seconds"] for entry in content["seeds"])
        names = ("algorithm", "env", "env_steps", "goal", "iqm")
        rows[content["case"]] = {
            **{name: content[name] for name in names},
            "seeds": len(content["seeds"]),
            "seconds": round(seconds, 1),
        }
    return {"schema": SCHEMA, "cases": rows}


def _shared_config(config: Mapping[str, Any]) -> dict[str, Any]:
    run = {name: value for name, value in config["run"].items() if name not in _PER_SEED}
    return {**config, "run": run}


def seed_config(config: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of one seed from the one that all seeds share."""
    return {**config, "run": {**config["run"], **{name: entry[name] for name in _PER_SEED}}}


# ---------------------------------------------------------------------- speed


@dataclass(frozen=True, slots=True)
class Ratio:
    """What became of one comparison.

    Attributes:
        comparison: What was compared.
        ours: Median of our measurements; infinite seconds where the goal was not reached.
        peer: Median of the peer's.
        ratio: How many times faster we are, by the medians.
        low: The smallest ratio of two neighbours in time.
        high: The largest.
        our_return: Median of our final evaluations: speed without learning is worth nothing.
        peer_return: Median of the peer's.
    """

    comparison: Comparison
    ours: float
    peer: float
    ratio: float
    low: float
    high: float
    our_return: float
    peer_return: float

    @property
    def met(self) -> bool | None:
        """Return whether the target was reached; None where there is none."""
        target = self.comparison.target
        return None if target is None else self.ratio >= target


def compare(comparison: Comparison, runs: Sequence[Mapping[str, Any]]) -> Ratio | None:
    """Compare two entries over their repeats, or return None if one of them did not run."""

    def of(entry: str) -> dict[int, Mapping[str, Any]]:
        found = [run for run in runs if (run["race"], run["entry"]) == (comparison.race, entry)]
        return {run["repeat"]: run for run in found}

    ours, peer = of(comparison.ours), of(comparison.peer)
    turns = sorted(ours.keys() & peer.keys())
    if not turns:
        return None

    def value(run: Mapping[str, Any]) -> float:
        found = run[comparison.measure]
        return math.inf if found is None else float(found)

    def ratio(a: float, b: float) -> float:
        return _over(b, a) if comparison.measure == "seconds_to_return" else _over(a, b)

    pairs = [ratio(value(ours[turn]), value(peer[turn])) for turn in turns]
    a, b = (plain.median(map(value, side.values())) for side in (ours, peer))
    returns = [
        plain.median(float(run["final_return"]) for run in side.values()) for side in (ours, peer)
    ]
    return Ratio(comparison, a, b, ratio(a, b), min(pairs), max(pairs), *returns)


def _over(a: float, b: float) -> float:
    # inf / inf: neither side reached its goal, and nothing is shown.
    return math.nan if math.isinf(a) and math.isinf(b) else a / b


def read_speed(path: Path) -> dict[str, Any]:
    """Read a file of speed evidence, checking that all its races are there in full.

    Raises:
        EvidenceError: Names the first thing that does not hold.
    """
    content = read_json(path)

    def refuse(reason: str) -> EvidenceError:
        return EvidenceError(f"'{path.name}' is refused: {reason}.", "Run `make bench` again.")

    try:
        if content["quick"]:
            raise refuse("it comes from --quick, which measures nothing")
        found = {(run["race"], run["entry"], run["repeat"]) for run in content["runs"]}
        races = [race for race in RACES.values() if race.file == path.stem]
        if not races or {run["race"] for run in content["runs"]} != {race.name for race in races}:
            raise refuse("it does not hold the races that belong into it")
        for race in races:
            for entry in race.entries:
                missing = [
                    k for k in range(race.repeats) if (race.name, entry.name, k) not in found
                ]
                if missing:
                    raise refuse(f"{entry.name} lacks the repeats {missing}")
        for run in content["runs"]:
            rate = run["env_steps"] / run["seconds"]
            if not math.isclose(rate, run["env_steps_per_second"], rel_tol=0.01):
                raise refuse(f"{run['entry']} has a rate that is not its steps by its seconds")
        updates = {run["entry"]: run["updates"] for run in content["runs"]}
        for name, peer in SAME_UPDATES.items():
            if name in updates and updates[name] != updates[peer]:
                raise refuse(f"{name} made {updates[name]} updates, {peer} {updates[peer]}")
        for comparison in COMPARISONS:
            compare(comparison, content["runs"])
        if not {"cpu", "versions"} <= content["machine"].keys():
            raise refuse("it does not name the machine")
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise refuse(f"a field is missing or malformed ({error})") from None
    return content
