"""Measure learning from comparisons: SAC on Pendulum, beside SAC on the environment's reward.

    python benchmarks/preferences.py --seeds 5 --out runs/preferences
    python benchmarks/preferences.py --cases true,clean --seeds 1
    python benchmarks/preferences.py --collect --out runs/preferences

Each seed of a case is stored as soon as it is done and is not measured again; a loop that was
interrupted goes on. `--collect` writes `evidence/preferences.json` and prints the table.

A score is normalised: 0 is what random actions get, 1 what SAC gets from the environment's reward
with the same seeds, settings and steps, all on 100 episodes of the deterministic policy.

The cases `drift-...` are about the scale of a reward. What holds it by default besides the bound
(answers that are assumed to be errors, weight decay, few epochs) is turned off. The spread of the
learned reward over the steps of the first round's episodes, the same ones for every model, is
measured after each refit; its growth is that of the last model over that of the first.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evidence
import numpy as np
from children import finish
from training import trained

from assay.core.errors import ConfigError
from assay.envs.make import make_vector
from assay.evaluation.evaluate import evaluate
from assay.evaluation.play import Uniform
from assay.evaluation.statistics import iqm
from assay.experts.reward_model import FitSettings, load_model
from assay.preferences.files import PreferenceSet
from assay.preferences.online import Plan, learn
from assay.preferences.oracle import ask_oracle
from assay.preferences.pairs import make_buffer

EVIDENCE = evidence.ROOT / "evidence" / "preferences.json"
ENV = "Pendulum-v1"
FINAL_EPISODES, FINAL_SEED = 100, 1_000_000
PAIRS = 600
SETTINGS: dict[str, Any] = {
    "env_steps": 6000, "hidden": [64, 64], "batch_size": 128, "device": "cpu", "threads": 1,
    "sinks": (), "eval_every": 0, "eval_episodes": 10, "compile": False,
}  # fmt: skip
FIT: dict[str, Any] = {"hidden": (64, 64), "epochs": 20}
FREE: dict[str, Any] = {
    "hidden": (64, 64), "epochs": 200, "members": 1, "error": 0.0, "weight_decay": 0.0,
}  # fmt: skip
GROWTH = 2.0  # of the spread, from the first refit to the last: more is drift


@dataclass(frozen=True, slots=True)
class Case:
    """What is learned from.

    Attributes:
        name: Of the case.
        goal: What the score must reach; of a control, stay below; None where it is only shown.
        noise: Share of wrong answers; None for the environment's own reward.
        bound: Of the reward model.
        control: Whether this is a control.
        drift: Whether it is about the scale of the reward; with a control, growth is expected.
    """

    name: str
    goal: float | None = None
    noise: float | None = 0.0
    bound: Any = "tanh"
    control: bool = False
    drift: bool = False

    @property
    def fit(self) -> dict[str, Any]:
        """Return the settings of its reward models, but for bound and seed."""
        return FREE if self.drift else FIT


CASES = {
    case.name: case
    for case in (
        Case("true", noise=None),
        Case("clean", 0.9),
        Case("noisy", 0.9, noise=0.1),
        Case("wrong", 0.5, noise=1.0, control=True),
        Case("clip", 0.9, bound="clip"),
        Case("running", 0.9, bound="running"),
        Case("unbounded", bound="none"),
        Case("drift-none", GROWTH, bound="none", control=True, drift=True),
        *(Case(f"drift-{b}", GROWTH, bound=b, drift=True) for b in ("tanh", "clip", "running")),
    )
}


def run_seed(case: Case, seed: int, out: Path) -> dict[str, Any]:
    """Train and judge one seed of a case."""
    place, facts = out / "runs" / f"{case.name}-{seed}", {}
    if case.noise is None:
        run = trained(place, "sac", ENV, seed=seed, **SETTINGS)
    else:
        noise = case.noise

        def ask(found: PreferenceSet) -> None:
            ask_oracle(found, noise=noise, seed=seed)

        made = learn(
            "sac", ENV, place, ask, plan=Plan(PAIRS, actor="replay", seed=seed),
            settings=SETTINGS, fitting=FitSettings(bound=case.bound, seed=seed, **case.fit),
        )  # fmt: skip
        run, last = made.run, made.rounds[-1]
        facts = {
            "comparisons": PAIRS, "fitted_to": last.comparisons,
            "accuracy": _short(last.accuracy), "calibration_error": _short(last.calibration_error),
            "true_returns": [_short(one.true_return) for one in made.rounds],
            "learned_returns": [_short(one.learned_return) for one in made.rounds],
            "extra_steps": made.extra_steps,
        }  # fmt: skip
        if case.drift:
            facts["spreads"] = spreads(place, len(made.rounds))
    mean = run.evaluate(FINAL_EPISODES, seed=FINAL_SEED + seed).mean
    return {
        "schema": evidence.SCHEMA, "case": case.name, "seed": seed, "mean": round(mean, 3), **facts,
        "settings": {**SETTINGS, "fit": case.fit}, "machine": evidence.machine(),
    }  # fmt: skip


def spreads(place: Path, rounds: int) -> list[float]:
    """Return the standard deviation of each round's reward over the first round's steps."""
    first = make_buffer(PreferenceSet.open(place / "pairs").batches[0].dataset)
    batch = first.batch(np.arange(len(first)))
    models = (load_model(place / "models" / f"{number:02d}") for number in range(rounds))
    return [round(float(model.rewards(batch.obs, batch.action).std()), 4) for model in models]


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def random_return() -> float:
    """Return the mean return of random actions."""
    with make_vector(ENV, 10, training=False) as vector:
        chance = Uniform(vector.spaces.action, np.random.default_rng(0))
        return evaluate(chance, vector, episodes=FINAL_EPISODES, seed=FINAL_SEED).mean


def collect(out: Path) -> dict[str, Any]:
    """Return what was measured, by case: scores, their interquartile mean, and the verdict."""
    floor = round(random_return(), 3)
    read = {
        name: [evidence.read_json(p) for p in sorted((out / "seeds").glob(f"{name}-[0-9]*.json"))]
        for name in CASES
    }
    top = {one["seed"]: one["mean"] for one in read["true"]}
    found: dict[str, Any] = {"schema": evidence.SCHEMA, "random": floor, "cases": {}, "drift": {}}
    for name, seeds in read.items():
        case = CASES[name]
        if case.drift:
            found["drift"] |= {name: _drift(case, seeds)} if seeds else {}
            continue
        known = [one for one in seeds if one["seed"] in top]
        if not known:
            continue
        scores = [(one["mean"] - floor) / (top[one["seed"]] - floor) for one in known]
        middle = float(iqm(np.array(scores)))
        passed = None
        if case.goal is not None:
            passed = middle < case.goal if case.control else middle >= case.goal
        found["cases"][name] = {
            "goal": case.goal, "control": case.control, "iqm": round(middle, 4), "passed": passed,
            "scores": [round(score, 4) for score in scores], "seeds": known,
        }  # fmt: skip
    return found


def _drift(case: Case, seeds: list[Any]) -> dict[str, Any]:
    growth = [one["spreads"][-1] / one["spreads"][0] for one in seeds]
    middle = float(iqm(np.array(growth)))
    return {
        "bound": case.bound, "iqm": round(middle, 4), "seeds": seeds, "control": case.control,
        "growth": [round(one, 4) for one in growth],
        "passed": middle >= GROWTH if case.control else middle < GROWTH,
    }  # fmt: skip


def all_seeds(found: Mapping[str, Any]) -> list[Any]:
    """Return every seed."""
    cases = (*found["cases"].values(), *found.get("drift", {}).values())
    return [one for case in cases for one in case["seeds"]]


def table(found: Mapping[str, Any]) -> str:
    """Return the results as a table in Markdown."""
    lines = [
        "| case | goal | IQM | per seed | returns | held-out accuracy | calibration error | "
        "passed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found["cases"].items():
        seeds = one["seeds"]
        goal = "" if one["goal"] is None else f"{'<' if one['control'] else '≥'} {one['goal']:g}"
        cells = [
            name, goal, f"{one['iqm']:.2f}", ", ".join(f"{score:.2f}" for score in one["scores"]),
            ", ".join(f"{seed['mean']:.0f}" for seed in seeds),
            *(
                ", ".join(f"{seed[key]:.2f}" for seed in seeds if seed.get(key) is not None)
                for key in ("accuracy", "calibration_error")
            ),
            {None: "", True: "yes", False: "**no**"}[one["passed"]],
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    if drift := found.get("drift"):
        lines += ["", *_drift_lines(drift)]
    return "\n".join(lines)


def _drift_lines(drift: Mapping[str, Any]) -> list[str]:
    lines = [
        "| bound, with nothing else to hold the scale | spread, first and last refit | growth | "
        "IQM | goal | returns | passed |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in drift.values():
        seeds = one["seeds"]
        cells = [
            one["bound"],
            ", ".join(f"{s['spreads'][0]:.2f} to {s['spreads'][-1]:.2f}" for s in seeds),
            ", ".join(f"{growth:.2f}" for growth in one["growth"]), f"{one['iqm']:.2f}",
            f"{'≥' if one['control'] else '<'} {GROWTH:g}",
            ", ".join(f"{s['mean']:.0f}" for s in seeds), "yes" if one["passed"] else "**no**",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, or collect what was measured."""
    parser = argparse.ArgumentParser(description="Measure learning from comparisons.")
    parser.add_argument("--cases", default="all", help=f"all, or some of: {', '.join(CASES)}")
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds of each case")
    parser.add_argument("--first-seed", type=int, default=1, help="number of the first seed")
    parser.add_argument("--out", type=Path, default=Path("runs/preferences"), help="where to work")
    parser.add_argument("--collect", action="store_true", help="write the evidence, run nothing")
    options = parser.parse_args(arguments)
    names = list(CASES) if options.cases == "all" else options.cases.split(",")
    if unknown := [name for name in names if name not in CASES]:
        raise ConfigError(f"Unknown case '{unknown[0]}'.", f"Known: {', '.join(CASES)}.")
    if options.collect:
        found = collect(options.out)
        evidence.write_json(EVIDENCE, found)
        print(table(found))
        return 0
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in names:
            path = options.out / "seeds" / f"{name}-{seed}.json"
            if not path.exists():
                made = run_seed(CASES[name], seed, options.out)
                evidence.write_json(path, made)
                print(f"{name} {seed}: {made['mean']}", flush=True)
    return 0


if __name__ == "__main__":
    finish(main)
