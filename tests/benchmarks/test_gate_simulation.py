"""The gate's error rate, simulated: what it is for, and that it controls what it promises."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import evidence  # noqa: E402
import gate  # noqa: E402

GREEDY, WELCH, SPENDING, GATE = gate.RULES


@pytest.mark.slow
def test_greed_is_nearly_always_wrong_and_spending_hardly_ever() -> None:
    """Of 12 loops over 60 useless candidates; a gate without spending errs in about half."""
    shares = {}
    for rule in (GREEDY, WELCH, SPENDING, GATE):
        shares[rule.name] = gate.wrong_share(rule, 12, np.random.default_rng(7))
    assert shares[GREEDY.name] >= 0.8
    assert shares[WELCH.name] >= 0.2
    assert shares[SPENDING.name] <= 0.15
    assert shares[GATE.name] <= 0.1


def test_a_large_true_effect_is_seen() -> None:
    rng = np.random.default_rng(7)
    assert gate.accepted_share(GATE, 4.0, 20, rng) >= 0.9
    assert gate.accepted_share(GATE, 0.0, 20, rng) == 0


def test_the_committed_evidence_keeps_the_promise() -> None:
    found = evidence.read_json(gate.EVIDENCE)
    assert (found["loops"], found["candidates"]) == (400, 60)
    rules = found["rules"]
    assert rules[GREEDY.name]["wrong"] > 0.9 and rules[WELCH.name]["wrong"] > 0.3
    # 0.05 is promised; three standard errors of 400 loops are 0.033.
    assert rules[SPENDING.name]["wrong"] < 0.05 + 0.033
    assert rules[GATE.name]["wrong"] <= 0.05
    powers = [rules[GATE.name][f"power at {effect:g}"] for effect in gate.EFFECTS]
    assert powers == sorted(powers)
    assert gate.lines(found).count("\n") >= 6


def test_the_committed_contracts_keep_theirs() -> None:
    designs = evidence.read_json(gate.EVIDENCE)["designs"]
    assert designs.keys() == {design.name for design in gate.DESIGNS}
    assert all(row["wrong"] <= 0.05 for row in designs.values())
    # 0.05 is promised of promotion; three standard errors of 400 loops are 0.033.
    assert all(row["promoted"] < 0.05 + 0.033 for row in designs.values())
    _, few, default, early, *_ = designs.values()
    assert default["power at 2"] >= 0.8 > few["power at 2"]
    assert default["collapsing"] <= 0.02 < few["collapsing"]
    assert early["power at 2"] >= 0.8 and early["runs at 4"] < default["runs at 4"]


def test_a_contract_promotes_and_validates() -> None:
    rng, design = np.random.default_rng(7), gate.DESIGNS[2]
    baselines = [rng.standard_normal(design.seeds) for _ in range(2)]
    assert gate.study_one(design, baselines, gate._better(6.0), rng) == (2, 20)
    assert gate.study_one(design, baselines, gate._better(-6.0), rng) == (0, 10)
