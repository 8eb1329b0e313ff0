"""The evidence of the diagnosis says what its cases say, and meets the goals."""

from __future__ import annotations

import json
from pathlib import Path

EVIDENCE = Path(__file__).parents[2] / "benchmarks" / "evidence" / "diagnosis.json"


def test_the_summary_is_that_of_the_cases() -> None:
    found = json.loads(EVIDENCE.read_text())
    cases, summary = found["cases"], found["summary"]
    healthy = [case for case in cases if case["kind"] == "healthy" and case["learned"]]
    broken = [case for case in cases if case["kind"] == "broken"]
    assert summary["healthy"] == len(healthy) and summary["broken"] == len(broken)
    assert summary["false_alarms"] == sum(bool(case["findings"]) for case in healthy)
    named = [any(f.endswith(f" {case['rule']}") for f in case["findings"]) for case in broken]
    assert summary["found"] == sum(named)
    assert summary["curves_with_alarms"] == len(found["curves"])


def test_the_goals_are_met() -> None:
    summary = json.loads(EVIDENCE.read_text())["summary"]
    assert summary["found"] >= 12
    assert summary["false_alarms"] <= 1
    assert summary["curves_with_alarms"] <= 0.02 * summary["curves"]
