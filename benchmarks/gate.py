"""How often the gate errs, and how often it sees: a simulation of loops over candidates.

    python benchmarks/gate.py --store

Every loop has one baseline and 60 candidates that are no better. A rule is wrong in a loop if it
accepts one of them. Beside it stands what the rule is for: how often it accepts a candidate that
truly is better, by 0.5, 1 and 2 standard deviations of a seed's score.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.study.files.contract import Evaluation, MetricSource, Pools, PrimaryMetric
from assay.study.judge.gate import decide, spend

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
        verdict = decide(metric, before, after, alpha=alpha, evaluation=evaluation, noise_floor=1.0)
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


def lines(content: Mapping[str, Any]) -> str:
    """Return the evidence as a Markdown table."""
    effects = [f"accepts a true effect of {effect:g} sd" for effect in EFFECTS]
    head = ["rule", "seeds per arm", "loops with a wrong acceptance", *effects]
    rows = [head, ["---"] * len(head)]
    for name, row in content["rules"].items():
        shares = [row["wrong"], *(row[f"power at {effect:g}"] for effect in EFFECTS)]
        rows.append([name, f"{row['seeds']:.0f}", *(f"{share:.1%}" for share in shares)])
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    loops, candidates = content["loops"], content["candidates"]
    return f"{table}\n\n{loops} loops of {candidates} candidates that are no better."


def main() -> None:
    """Print the table, and store it if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--loops", type=int, default=LOOPS)
    parser.add_argument("--store", action="store_true", help="write evidence/gate.json")
    options = parser.parse_args()
    table = simulate(options.loops)
    evidence = {"schema": 1, "loops": options.loops, "candidates": CANDIDATES, "rules": table}
    print(lines(evidence))
    if options.store:
        EVIDENCE.write_text(json.dumps(evidence, indent=1) + "\n")


if __name__ == "__main__":
    main()
