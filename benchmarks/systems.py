"""Do learnt policies beat the rules that people use? The two tasks of `assay.envs.systems`.

    python benchmarks/systems.py --seeds 5 --jobs 12 --out runs/systems --store
    python benchmarks/systems.py --quick --seeds 1 --out runs/systems-quick

Every seed of every task is trained with the shipped preset on the training split, in a process of
its own on one thread. Then the deterministic policy of the last checkpoint and every rule play the
same episodes of the test split, which nothing was trained, tuned or chosen on. Rules that have
settings are tuned first, on the training split. The margin is that over the rule which turns out
best on the test episodes, so the choice among rules is made in the rules' favour.

What is there already, of the same code and settings, is not computed again. `--quick` shows that it
runs, on training traces, so that nobody sees the test by the way.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evidence
import numpy as np
from children import finish

from assay.envs.systems.splits import Split
from assay.evaluation.evaluate import episode_seed
from assay.evaluation.statistics import t_interval

EVIDENCE = evidence.ROOT / "evidence" / "systems.json"
TEST_SEED = 1  # of the evaluation; the traces are those of the test split whatever it is
RULES = "rules"
SIDE_BY_SIDE = 50
Found = dict[str, tuple[list[float], np.ndarray]]  # rule -> its settings, its returns


@dataclass(frozen=True, slots=True)
class Task:
    """A task and how its rules are judged.

    Attributes:
        env: Its id.
        algorithm: Whose preset is trained.
        episodes: Of the test.
        rules: `(seeds of the test episodes, quick) -> every rule's settings and returns`.
    """

    env: str
    algorithm: str
    episodes: int
    rules: Callable[[Sequence[int], bool], Found]


def split_of(quick: bool) -> Split:
    """Return the traces that everybody is judged on."""
    return "train" if quick else "test"


def scheduling_rules(seeds: Sequence[int], quick: bool) -> Found:
    """Return what the scheduling rules reach; a return is minus the mean bounded slowdown."""
    from assay.envs.systems.cluster import BASELINES, held_back
    from assay.envs.systems.scheduling import (
        judge,
        load_workload,
        tune_reserve,
        window_starts,
        windows_of,
    )

    options: dict[str, Any] = {"reserves": (0.5,), "limits": (1800.0, 3600.0)} if quick else {}
    tuned = tune_reserve(load_workload(), **options)
    test = load_workload(split=split_of(quick))
    windows = windows_of(seeds, window_starts(test, 256))
    found: Found = {name: ([], -judge(rule, test, windows)) for name, rule in BASELINES.items()}
    found["held back"] = (list(tuned), -judge(held_back(*tuned), test, windows))
    return found


def compaction_rules(seeds: Sequence[int], quick: bool) -> Found:
    """Return what the tuned controllers of the compaction rate reach."""
    from assay.envs.systems import tuning

    budget = {"trials": 10, "days": 10} if quick else {}
    found: Found = {}
    for name, (rule, _) in tuning.RULES.items():
        settings = tuning.tune(name, **budget)
        returns = tuning.judge(lambda r=rule, s=settings: r(*s), seeds, split_of(quick))  # type: ignore[misc]
        found[name] = (list(settings), returns)
    return found


TASKS = {
    "scheduling": Task("assay/JobScheduling-v0", "ppo", 400, scheduling_rules),
    "compaction": Task("assay/CompactionRate-v0", "ppo", 400, compaction_rules),
}


# ---------------------------------------------------------------------- one part, in a child


def settings_of(quick: bool, seed: int) -> dict[str, Any]:
    """Return what is set beside the preset."""
    # Looking on costs time and changes nothing, and so do logs that nobody reads.
    given: dict[str, Any] = {"seed": seed, "device": "cpu", "eval_episodes": 1, "sinks": ()}
    return given | ({"env_steps": 20_000} if quick else {})


def identity(name: str, part: str, quick: bool) -> dict[str, Any]:
    """Return what a stored part must agree with to be used again."""
    return {"task": name, "part": part, "quick": quick, "source": evidence.source_hash()}


def episodes_of(name: str, quick: bool) -> int:
    """Return how many episodes the test has."""
    return 8 if quick else TASKS[name].episodes


def compute(name: str, part: str, quick: bool, out: Path) -> None:
    """Judge the rules of a task, or train and judge one seed, and store what was found."""
    episodes, began = episodes_of(name, quick), time.perf_counter()
    content: dict[str, Any] = {"schema": evidence.SCHEMA, **identity(name, part, quick)}
    if part == RULES:
        seeds = [episode_seed(TEST_SEED, k) for k in range(episodes)]
        found = TASKS[name].rules(seeds, quick)
        content["rules"] = {
            rule: {"settings": evidence.rounded(settings, 6), "returns": evidence.rounded(returns)}
            for rule, (settings, returns) in found.items()
        }
    else:
        content |= train(name, int(part), quick, out, episodes)
    content["seconds"] = round(time.perf_counter() - began, 1)
    content["machine"] = evidence.machine()
    evidence.write_json(part_path(out, name, part), content)


def train(name: str, seed: int, quick: bool, out: Path, episodes: int) -> dict[str, Any]:
    """Train one seed and let it play the episodes of the test."""
    from assay import api
    from assay.envs.make import make_vector
    from assay.evaluation.evaluate import evaluate

    task = TASKS[name]
    run = api.train(task.algorithm, task.env, root=out / "runs", **settings_of(quick, seed))
    count = min(episodes, SIDE_BY_SIDE)
    split = {"split": split_of(quick)}
    with make_vector(task.env, count, env_kwargs=split, training=False) as envs:
        result = evaluate(run.agent().policy, envs, episodes=episodes, seed=TEST_SEED)
    config = run.config.to_dict()
    run.directory.delete()
    return {"seed": seed, "config": config, "returns": evidence.rounded(result.returns)}


# ---------------------------------------------------------------------- all of it


def part_path(out: Path, name: str, part: str) -> Path:
    """Return where a part of the evidence is kept."""
    return out / "parts" / f"{name}-{part}.json"


def is_done(out: Path, name: str, part: str, quick: bool) -> bool:
    """Return whether a part is there, of the same code."""
    try:
        content = evidence.read_json(part_path(out, name, part))
    except evidence.EvidenceError:
        return False
    return all(content.get(key) == value for key, value in identity(name, part, quick).items())


def run_part(name: str, part: str, options: argparse.Namespace) -> bool:
    """Compute a part in a process of its own, and return whether that went well."""
    if is_done(options.out, name, part, options.quick):
        return True
    log = options.out / "logs" / f"{name}-{part}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--one", name, part, "--out", str(options.out)]
    command += ["--quick"] if options.quick else []
    threads = {variable: "1" for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    with log.open("wb") as file:
        done = subprocess.run(
            command, env=os.environ | threads, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    ended = "done" if done.returncode == 0 else f"failed, see {log}"
    print(f"{name} {part}: {ended}", flush=True)
    return done.returncode == 0


def summary(rules: Mapping[str, Any], seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return means, intervals and the margin over the best rule.

    Args:
        rules: `returns` of every rule, and its settings.
        seeds: `returns` of every training seed, on the same episodes.

    Returns:
        `learnt` and `margin` with a mean and Student's 95% interval over seeds (null for a single
        seed), `margin_over_episodes` with the interval of the paired differences of episodes (each
        averaged over seeds), and the share of the best rule's cost that is saved.
    """
    means = {rule: float(np.mean(found["returns"])) for rule, found in rules.items()}
    best = max(means, key=lambda rule: means[rule])
    returns = np.array([seed["returns"] for seed in seeds])
    margins = returns.mean(axis=1) - means[best]
    paired = returns.mean(axis=0) - np.array(rules[best]["returns"])
    return {
        "rules": {rule: round(mean, 4) for rule, mean in means.items()},
        "best_rule": best,
        "learnt": _interval(returns.mean(axis=1)),
        "margin": _interval(margins),
        "margin_over_episodes": _interval(paired),
        "saved": round(float(margins.mean() / -means[best]), 4),
    }


def _interval(values: np.ndarray) -> dict[str, Any]:
    found: dict[str, Any] = {"mean": round(float(values.mean()), 4), "low": None, "high": None}
    if len(values) > 1:
        interval = t_interval(values)
        found |= {"low": round(interval.low, 4), "high": round(interval.high, 4)}
    return found


def collect(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """Return the evidence of all parts."""
    tasks = {}
    for name in names:
        rules = evidence.read_json(part_path(options.out, name, RULES))
        parts = [
            evidence.read_json(part_path(options.out, name, str(seed)))
            for seed in range(1, options.seeds + 1)
        ]
        task = TASKS[name]
        tasks[name] = {
            "env": task.env,
            "algorithm": task.algorithm,
            "split": split_of(options.quick),
            "episodes": episodes_of(name, options.quick),
            "test_seed": TEST_SEED,
            **summary(rules["rules"], parts),
            "config": parts[0]["config"],
            "by_seed": [
                {key: part[key] for key in ("seed", "seconds", "returns")} for part in parts
            ],
            "by_rule": rules["rules"],
        }
    return {
        "schema": evidence.SCHEMA,
        "quick": options.quick,
        "tasks": tasks,
        "machine": evidence.machine(),
    }


def lines(content: Mapping[str, Any]) -> str:
    """Return the evidence as a Markdown table."""
    rows = [["task", "best rule", "its return", "learnt", "margin", "saved"], ["---"] * 6]
    for name, task in content["tasks"].items():
        rule = task["best_rule"]
        cells = [name, rule, f"{task['rules'][rule]:.2f}"]
        cells += [_shown(task["learnt"], ""), _shown(task["margin"], "+"), f"{task['saved']:.1%}"]
        rows.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def _shown(interval: Mapping[str, Any], sign: str) -> str:
    if interval["low"] is None:
        return f"{interval['mean']:{sign}.2f}"
    low, high = (f"{interval[end]:{sign}.2f}" for end in ("low", "high"))
    return f"{interval['mean']:{sign}.2f} [{low}, {high}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, judge and report; return the exit code."""
    parser = argparse.ArgumentParser(description="Learnt policies against rules.")
    parser.add_argument("--tasks", default=",".join(TASKS), help="separated by commas")
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 1")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--out", type=Path, required=True, help="where parts and logs are kept")
    parser.add_argument("--quick", action="store_true", help="tiny budgets, to see that it runs")
    parser.add_argument("--store", action="store_true", help="write evidence/systems.json")
    parser.add_argument("--one", nargs=2, metavar=("TASK", "PART"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.one:
        name, part = options.one
        compute(name, part, options.quick, options.out)
        return 0
    names = options.tasks.split(",")
    if unknown := [name for name in names if name not in TASKS]:
        parser.error(f"unknown task '{unknown[0]}'; known are {', '.join(TASKS)}")
    if options.seeds < 1 or options.jobs < 1:
        parser.error("--seeds and --jobs must be at least 1")
    if options.store and options.quick:
        parser.error("what --quick measures is not evidence; leave out --store")
    parts = [RULES, *map(str, range(1, options.seeds + 1))]
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(run_part, name, part, options) for part in parts for name in names]
        ended = [one.result() for one in waiting]
    if not all(ended):
        return 1
    content = collect(options, names)
    evidence.write_json(options.out / "systems.json", content)
    if options.store:
        evidence.write_json(EVIDENCE, content)
    print(lines(content))
    return 0


if __name__ == "__main__":
    finish(main)
