"""Measure what training in many worlds is worth in others: `assay test ood` is the judge.

    python benchmarks/randomisation.py --seeds 5 --out runs/randomisation
    python benchmarks/randomisation.py --cases pendulum --arms plain,wide --seeds 1
    python benchmarks/randomisation.py --collect --out runs/randomisation

Every arm has the same algorithm, settings and steps. `plain` trains in the environment as it is,
`narrow` in ranges of a tenth, `wide` in the ranges that it is judged in, and `adr` lets automatic
domain randomisation widen the ranges. Shifts are factors of the parameters, each by itself, in the
same episodes as the undisturbed environment. A loss is a share of what the arm is worth: its
undisturbed return less that of random actions. The table has the undisturbed returns beside it, so
that an arm which is bad everywhere does not look robust.
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
from assay.evaluation.statistics import t_interval, welch_test
from assay.robustness.ood import measure_shifts
from assay.robustness.shifts import read_shifts
from assay.runs.metrics import read_metrics

EVIDENCE = evidence.ROOT / "evidence" / "randomisation.json"
NARROW = 0.1


@dataclass(frozen=True)
class Case:
    """A problem: what is trained, which parameters vary, and the returns that ADR goes by."""

    algorithm: str
    env: str
    env_steps: int
    usual: Mapping[str, float]
    factors: tuple[float, ...]
    adr: tuple[float, float]
    settings: Mapping[str, Any]
    episodes: int = 50  # of each shift

    def arm(self, name: str) -> dict[str, Any]:
        """Return what an arm adds to the settings."""
        low, high = self.factors[0], self.factors[-1]
        wide = {n: {"log_uniform": [u * low, u * high]} for n, u in self.usual.items()}
        narrow = {n: [u * (1 - NARROW), u * (1 + NARROW)] for n, u in self.usual.items()}
        low_return, high_return = self.adr
        arms: dict[str, dict[str, Any]] = {
            "plain": {},
            "narrow": {"randomize": narrow},
            "wide": {"randomize": wide},
            "adr": {
                "randomize": {n: [u * low, u * high] for n, u in self.usual.items()},
                "curriculum": {"adr": {"low": low_return, "high": high_return}},
            },
        }
        return arms[name]


ARMS = ("plain", "narrow", "wide", "adr")
CASES = {
    "pendulum": Case(
        "ppo", "Pendulum-v1", 300_000, {"m": 1.0, "l": 1.0, "g": 10.0}, (0.5, 0.7, 1.4, 2.0),
        (-600, -300), {},
    ),
    "pendulum-sac": Case(
        "sac", "Pendulum-v1", 20_000, {"m": 1.0, "l": 1.0, "g": 10.0}, (0.5, 0.7, 1.4, 2.0),
        (-600, -300), {},
    ),
    # Chosen after the cases above: there, plain policies lose little but where gravity grows, and
    # twice of it is more than the motor can lift.
    "pendulum-gravity": Case(
        "ppo", "Pendulum-v1", 300_000, {"g": 10.0}, (0.7, 0.85, 1.2, 1.4), (-600, -300), {},
    ),
    # Chosen on seed 11, where a plain policy lost 0.61. With friction as well, in half a million
    # steps, `wide` lost half as much, but its mean return over these worlds was lower.
    "hopper": Case(
        "ppo", "Hopper-v5", 600_000, {"mass": 1.0}, (0.7, 0.85, 1.2, 1.4), (1000, 2000),
        {"num_envs": 8, "horizon": 256, "minibatch_size": 128, "lr": "linear:6e-4:0",
         "eval_every": 150_000, "eval_episodes": 5},
        episodes=20,
    ),
}  # fmt: skip


def run_seed(case: Case, arm: str, seed: int, place: Path) -> dict[str, Any]:
    """Train one seed of an arm, and play it under every shift."""
    settings = {**case.settings, **case.arm(arm), "env_steps": case.env_steps, "device": "cpu"}
    trained(place, case.algorithm, case.env, seed=seed, **settings)
    grid = {f"dynamics.{name}": list(case.factors) for name in case.usual}
    found = measure_shifts([place], read_shifts(grid), episodes=case.episodes, seed=seed)
    series = read_metrics(place / "metrics.jsonl") if arm == "adr" else {}
    return {
        "schema": evidence.SCHEMA, "arm": arm, "seed": seed,
        "nominal": round(found.nominal, 3), "floor": round(found.floor, 3),
        "shifted": {str(cell.point): round(cell.mean, 3) for cell in found.cells},
        "losses": {str(cell.point): round(cell.loss.point, 4) for cell in found.cells},
        "ranges": {
            name: [round(float(values[0]), 4), round(float(values[-1]), 4)]
            for name, (_, values) in series.items() if name.startswith("curriculum/")
        },
        "machine": evidence.machine(),
    }  # fmt: skip


def collect(out: Path) -> dict[str, Any]:
    """Return what was measured, by case and arm: the mean loss over all shifts, seed by seed.

    What was not measured again is kept from the evidence that is there.
    """
    found = evidence.read_json(EVIDENCE)
    for name, case in CASES.items():
        arms = dict(found["cases"].get(name, {}).get("arms", {}))
        for arm in ARMS:
            paths = sorted((out / "seeds").glob(f"{name}-{arm}-[0-9]*.json"))
            known = {one["seed"]: one for one in arms.get(arm, {}).get("seeds", [])}
            known |= {one["seed"]: one for one in map(evidence.read_json, paths)}
            if known:
                seeds = [known[seed] for seed in sorted(known)]
                losses = [float(np.mean(list(one["losses"].values()))) for one in seeds]
                arms[arm] = {"losses": [round(one, 4) for one in losses], "seeds": seeds}
        if arms:
            found["cases"][name] = {"algorithm": case.algorithm, "env": case.env, "arms": arms}
    return found


def all_seeds(found: Mapping[str, Any]) -> list[Any]:
    """Return every seed."""
    arms = [arm for case in found["cases"].values() for arm in case["arms"].values()]
    return [one for arm in arms for one in arm["seeds"]]


def table(found: Mapping[str, Any]) -> str:
    """Return the results as a table in Markdown."""
    lines = [
        "| algorithm | environment | shifts | trained | undisturbed | shifted | mean loss [95 %] "
        "| below half of plain's by | loss per seed |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, case in found["cases"].items():
        factors = CASES[name].factors
        shifts = f"{', '.join(CASES[name].usual)} x {factors[0]:g} to {factors[-1]:g}"
        for arm, one in case["arms"].items():
            shifted = np.mean([[*seed["shifted"].values()] for seed in one["seeds"]])
            nominal = np.mean([seed["nominal"] for seed in one["seeds"]])
            spread = t_interval(one["losses"]) if len(one["losses"]) > 1 else None
            loss = f"{np.mean(one['losses']):.2f}"
            loss += f" [{spread.low:.2f}, {spread.high:.2f}]" if spread else ""
            below = "" if arm == "plain" else _below_half(case["arms"]["plain"]["losses"], one)
            each = ", ".join(f"{value:.2f}" for value in one["losses"])
            lines.append(
                f"| {case['algorithm']} | {case['env']} | {shifts} | {arm} | {nominal:.0f} "
                f"| {shifted:.0f} | {loss} | {below} | {each} |"
            )
    return "\n".join(lines)


def _below_half(plain: Sequence[float], arm: Mapping[str, Any]) -> str:
    """Return by how much an arm loses less than half of what `plain` does (Welch, 95 %)."""
    found = welch_test(np.array(plain) / 2, arm["losses"]).interval
    return "" if found is None else f"{found.point:.2f} [{found.low:.2f}, {found.high:.2f}]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is missing, or collect what was measured."""
    parser = argparse.ArgumentParser(description="Measure training in randomised environments.")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--seeds", type=int, default=5, help="how many seeds of each arm")
    parser.add_argument("--first-seed", type=int, default=1, help="number of the first seed")
    parser.add_argument("--out", type=Path, default=Path("runs/randomisation"))
    parser.add_argument("--collect", action="store_true", help="write the evidence, run nothing")
    options = parser.parse_args(arguments)
    if options.collect:
        found = collect(options.out)
        evidence.write_json(EVIDENCE, found)
        print(table(found))
        return 0
    for name in options.cases.split(","):
        for arm in options.arms.split(","):
            if name not in CASES or arm not in ARMS:
                known = f"Cases: {', '.join(CASES)}. Arms: {', '.join(ARMS)}."
                raise ConfigError(f"Unknown case or arm '{name} {arm}'.", known)
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                path = options.out / "seeds" / f"{name}-{arm}-{seed}.json"
                if not path.exists():
                    place = options.out / "runs" / f"{name}-{arm}-{seed}"
                    evidence.write_json(path, run_seed(CASES[name], arm, seed, place))
    return 0


if __name__ == "__main__":
    finish(main)
