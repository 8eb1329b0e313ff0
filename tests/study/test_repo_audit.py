"""The audit finds what is there, and says none where there is none."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from assay.study.layout import StudyError
from assay.study.models import Adapter
from assay.study.repo_audit import audit, profiles, task_card

REPOSITORIES = Path(__file__).parent / "repositories"
NAMES = sorted(path.stem for path in REPOSITORIES.glob("*.yaml"))
SLOTS = [name for name in Adapter.model_fields if name not in ("schema_version", "profile")]
THRESHOLD = 0.9


def items(slot: str, answers: Any) -> set[str]:
    """Return an audit's answers to one question, each as one string."""
    found = set()
    for answer in answers:
        if slot in ("train", "evaluate"):
            found.add(" ".join(answer.value["command"]))
        elif isinstance(answer.value, dict):
            found |= {f"{answer.value['file']}::{name}" for name in answer.value["names"]}
        else:
            found.add(str(answer.value))
    return found


def expected(truth: dict[str, Any], slot: str) -> set[str]:
    values = truth.get(slot, [])
    if isinstance(values, dict):
        return {f"{file}::{name}" for file, names in values.items() for name in names}
    return set(values)


def table(scores: dict[str, list[tuple[str, set[str], set[str]]]]) -> tuple[str, list[str]]:
    """Return the scores of every question as text, and the questions that fall short."""
    lines, short = ["", f"{'slot':14} recall precision  truth"], []
    for slot, cases in scores.items():
        right = sum(len(found & truth) for _, found, truth in cases)
        wanted = sum(len(truth) for *_, truth in cases)
        given = sum(len(found) for _, found, _ in cases)
        recall, precision = right / max(wanted, 1), right / max(given, 1)
        lines.append(f"{slot:14} {recall:6.2f} {precision:9.2f} {wanted:6}")
        for name, found, truth in cases:
            lines += [f"    {name} missed {item}" for item in sorted(truth - found)]
            lines += [f"    {name} invented {item}" for item in sorted(found - truth)]
        if recall < THRESHOLD or precision < THRESHOLD:
            short.append(slot)
    return "\n".join(lines), short


def test_recall_and_precision_of_every_question() -> None:
    scores: dict[str, list[tuple[str, set[str], set[str]]]] = {slot: [] for slot in SLOTS}
    for name in NAMES:
        truth = yaml.safe_load((REPOSITORIES / f"{name}.yaml").read_text())
        found = audit(REPOSITORIES / name)
        for slot in SLOTS:
            scores[slot].append((name, items(slot, getattr(found, slot)), expected(truth, slot)))
    text, short = table(scores)
    assert not short, text
    # Every question has an answer somewhere, or its score would mean nothing.
    assert all(any(truth for *_, truth in cases) for cases in scores.values())
