"""How often the gate errs, and how often it sees: a simulation of loops over candidates.

    python benchmarks/gate.py --store

Every loop has one baseline and 60 candidates that are no better. A rule is wrong in a loop if it
accepts one of them. Beside it stands what the rule is for: how often it accepts a candidate that
truly is better, by 0.5, 1 and 2 standard deviations of a seed's score.

A second table is of whole contracts: promotion at a share of alpha, then validation on fresh seeds,
as a study does it. A loop has as many useless candidates as the contract expects. It also says how
often a change is accepted that is no better on average and collapses on a fifth of its seeds, and
how many runs a candidate takes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from assay.study.agree import spending
from assay.study.agree.spending import spend
from assay.study.files.contract import Evaluation, MetricSource, Pools, PrimaryMetric
from assay.study.judge import verdict
from assay.study.judge.gate import decide

LOOPS = 400
CANDIDATES = 60
EFFECTS = (0.5, 1.0, 2.0)
EVIDENCE = Path(__file__).with_name("evidence") / "gate.json"


@dataclass(frozen=True, slots=True)
class Rule:
    """A way to accept candidates.

    Attributes:
        name: For the table.
        seeds: Per arm.
        accepts: `(baseline [seeds], candidate [seeds], number of the candidate) -> accepted`.
    """

    name: str
    seeds: int
    accepts: Callable[[np.ndarray, np.ndarray, int], bool]


def _evaluation(expected: int) -> Evaluation:
    pools = Pools(development=(0,), promotion=tuple(range(1, 6)), validation=tuple(range(6, 11)))
    return Evaluation(episodes=1, pools=pools, expected_candidates=expected, test="welch")


def _gate(
    minimum_effect: float, *, spending: bool
) -> Callable[[np.ndarray, np.ndarray, int], bool]:
    """Return the real gate, with or without alpha spending."""
    source = MetricSource(kind="json", key="score")
    metric = PrimaryMetric(name="score", source=source, minimum_effect=minimum_effect)
    evaluation = _evaluation(CANDIDATES)

    def accepts(baseline: np.ndarray, candidate: np.ndarray, k: int) -> bool:
        alpha = spend(evaluation, k) if spending else evaluation.alpha / 2
        arms = ({i: float(s) for i, s in enumerate(arm)} for arm in (baseline, candidate))
        before, after = arms
        verdict = decide(
            metric, before, after, alpha=alpha, evaluation=evaluation, noise_floor=1.0, advise=False
        )
        return verdict.outcome == "accept"

    return accepts


TINY = 1e-6  # no minimum effect to speak of
RULES = (
    Rule("one seed, keep what is higher", 1, lambda base, new, k: bool(new[0] > base[0])),
    Rule("Welch at 0.05, 5 seeds", 5, _gate(TINY, spending=False)),
    Rule("Welch with spending, 5 seeds", 5, _gate(TINY, spending=True)),
    Rule("the gate: spending, minimum effect 1, 10 seeds", 10, _gate(1.0, spending=True)),
)


def wrong_share(rule: Rule, loops: int, rng: np.random.Generator) -> float:
    """Return the share of loops in which a useless candidate is accepted."""
    wrong = 0
    for _ in range(loops):
        baseline = rng.standard_normal(rule.seeds)
        for k in range(CANDIDATES):
            if rule.accepts(baseline, rng.standard_normal(rule.seeds), k):
                wrong += 1
                break
    return wrong / loops


def accepted_share(rule: Rule, effect: float, trials: int, rng: np.random.Generator) -> float:
    """Return how often a candidate that is better by `effect` is accepted."""
    hits = 0
    for _ in range(trials):
        baseline = rng.standard_normal(rule.seeds)
        candidate = rng.standard_normal(rule.seeds) + effect
        hits += rule.accepts(baseline, candidate, 0)
    return hits / trials


def simulate(loops: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Return error rate and power of every rule."""
    table = {}
    for rule in RULES:
        rng = np.random.default_rng(seed)
        row = {"seeds": float(rule.seeds), "wrong": wrong_share(rule, loops, rng)}
        for effect in EFFECTS:
            row[f"power at {effect:g}"] = accepted_share(rule, effect, loops, rng)
        table[rule.name] = row
    return table


@dataclass(frozen=True, slots=True)
class Design:
    """A contract, as far as it decides.

    Attributes:
        name: For the table.
        seeds: Per arm and phase.
        expected: Candidates that alpha is split over.
        test: As in the contract.
        looks: As in the contract.
        correlation: Of the arms' scores by seed.
        chooses: Whether it pairs where the scores that it judges correlate by more than 0.5.
        collapses: Whether seeds that collapsed reject.
    """

    name: str
    seeds: int
    expected: int = 20
    test: Literal["welch", "paired"] = "welch"
    looks: tuple[int, ...] = ()
    correlation: float = 0.0
    chooses: bool = False
    collapses: bool = True

    def evaluation(self, arms: tuple[np.ndarray, np.ndarray]) -> Evaluation:
        """Return the contract's part; only a design that chooses looks at the scores for it."""
        test = self.test
        if self.chooses:
            test = "paired" if np.corrcoef(*arms)[0, 1] > 0.5 else "welch"
        n = self.seeds
        first, second = tuple(range(1, n + 1)), tuple(range(n + 1, 2 * n + 1))
        pools = Pools(development=(0,), promotion=first, validation=second)
        return Evaluation(
            episodes=1, pools=pools, expected_candidates=self.expected, test=test, looks=self.looks
        )


DESIGNS = (
    Design("until now: 5 + 5 seeds, paired", 5, test="paired", collapses=False),
    Design("5 + 5 seeds, Welch", 5),
    Design("the default: 10 + 10 seeds, Welch", 10),
    Design("the default with a look after 5 seeds", 10, looks=(5,)),
    Design("12 + 12 seeds with a look after 6", 12, looks=(6,)),
    Design("the default, expecting 5 candidates", 10, expected=5),
    Design("paired, arms that do not correlate", 10, test="paired"),
    Design("Welch, arms that correlate by 0.9", 10, correlation=0.9),
    Design("paired, arms that correlate by 0.9", 10, test="paired", correlation=0.9),
    Design("pairs where the judged scores correlate", 10, chooses=True),
)
CHANCE = 0.2  # that a seed of a change collapses
DEPTH = 20.0  # how far it then falls, in standard deviations
Shift = Callable[[np.random.Generator, int], np.ndarray]  # of every seed's score


def _better(effect: float) -> Shift:
    return lambda rng, n: np.full(n, effect)


def _collapsing(rng: np.random.Generator, n: int) -> np.ndarray:
    """Return shifts that are 0 on average: better on most seeds, and far worse on some."""
    fell = rng.random(n) < CHANCE
    return np.where(fell, -DEPTH * (1 - CHANCE), DEPTH * CHANCE)


def study_one(
    design: Design, baselines: list[np.ndarray], shift: Shift, rng: np.random.Generator
) -> tuple[int, int]:
    """Promote and validate a candidate by the gate.

    Returns:
        In how many phases it was accepted, and its runs.
    """
    source = MetricSource(kind="json", key="score")
    bound = None if design.collapses else -1e9
    metric = PrimaryMetric(name="score", source=source, minimum_effect=0.5, seed_bound=bound)
    runs, n = 0, design.seeds
    for phase, base in zip(("promotion", "validation"), baselines, strict=True):
        rho = design.correlation
        noise = rho * base + np.sqrt(1 - rho**2) * rng.standard_normal(n)
        new = noise + shift(rng, n)
        evaluation = design.evaluation((base, new))
        share = spend(evaluation, 0) if phase == "promotion" else evaluation.alpha
        looked, used = 0, 0.0
        while True:
            seeds = len(evaluation.stage(phase, looked))
            level = spending.level(share, used, seeds, n)
            arms = ({i: float(s) for i, s in enumerate(arm[:seeds])} for arm in (base, new))
            found = decide(
                metric, *arms, alpha=level, evaluation=evaluation, noise_floor=1.0, advise=False
            )
            outcome = verdict.early(found, seeds, n).outcome
            if outcome != "continue":
                break
            looked, used = seeds, used + level
        runs += seeds
        if outcome != "accept":
            return int(phase == "validation"), runs
    return 2, runs


def simulate_designs(loops: int, seed: int = 0) -> dict[str, dict[str, float]]:
    """Return error rate, power and cost of every contract."""
    table = {}
    for design in DESIGNS:
        rng = np.random.default_rng(seed)

        def arms(rng: np.random.Generator = rng, n: int = design.seeds) -> list[np.ndarray]:
            return [rng.standard_normal(n) for _ in range(2)]

        promoted, wrong, cost = 0, 0, []
        for _ in range(loops):
            baselines = arms()
            tried = [
                study_one(design, baselines, _better(0.0), rng) for _ in range(design.expected)
            ]
            promoted += any(phases > 0 for phases, _ in tried)
            wrong += any(phases > 1 for phases, _ in tried)
            cost += [runs for _, runs in tried]
        row = {
            "seeds": float(design.seeds), "promoted": promoted / loops, "wrong": wrong / loops,
            "runs": float(np.mean(cost)),
        }  # fmt: skip
        trials = 5 * loops
        for effect in EFFECTS:
            hits = [study_one(design, arms(), _better(effect), rng) for _ in range(trials)]
            row[f"power at {effect:g}"] = float(np.mean([phases > 1 for phases, _ in hits]))
            row[f"runs at {effect:g}"] = float(np.mean([runs for _, runs in hits]))
        clear = [study_one(design, arms(), _better(4.0), rng)[1] for _ in range(loops)]
        row["runs at 4"] = float(np.mean(clear))
        fell = [study_one(design, arms(), _collapsing, rng)[0] > 1 for _ in range(trials)]
        table[design.name] = row | {"collapsing": float(np.mean(fell))}
    return table


def _design_lines(content: Mapping[str, Any]) -> str:
    """Return the contracts as a Markdown table."""
    effects = [f"accepts {effect:g} sd" for effect in EFFECTS]
    head = [
        "contract", "loops with a wrong promotion", "with a wrong acceptance", *effects,
        "accepts a change that collapses",
        "runs of a useless candidate", "runs at 2 sd", "runs at 4 sd",
    ]  # fmt: skip
    rows = [head, ["---"] * len(head)]
    for name, row in content.items():
        powers = (row[f"power at {effect:g}"] for effect in EFFECTS)
        shares = [row["promoted"], row["wrong"], *powers]
        cells = [f"{share:.1%}" for share in (*shares, row["collapsing"])]
        rows.append(
            [name, *cells, *(f"{row[key]:.1f}" for key in ("runs", "runs at 2", "runs at 4"))]
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def lines(content: Mapping[str, Any]) -> str:
    """Return the evidence as Markdown tables."""
    effects = [f"accepts a true effect of {effect:g} sd" for effect in EFFECTS]
    head = ["rule", "seeds per arm", "loops with a wrong acceptance", *effects]
    rows = [head, ["---"] * len(head)]
    for name, row in content["rules"].items():
        shares = [row["wrong"], *(row[f"power at {effect:g}"] for effect in EFFECTS)]
        rows.append([name, f"{row['seeds']:.0f}", *(f"{share:.1%}" for share in shares)])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    loops, candidates = content["loops"], content["candidates"]
    said = f"{table}\n\n{loops} loops of {candidates} candidates that are no better."
    return f"{said}\n\n{_design_lines(content['designs'])}"


def main() -> None:
    """Print the table, and store it if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--loops", type=int, default=LOOPS)
    parser.add_argument("--store", action="store_true", help="write evidence/gate.json")
    options = parser.parse_args()
    table = simulate(options.loops)
    evidence = {
        "schema": 1, "loops": options.loops, "candidates": CANDIDATES, "rules": table,
        "designs": simulate_designs(options.loops),
    }  # fmt: skip
    print(lines(evidence))
    if options.store:
        EVIDENCE.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main()
