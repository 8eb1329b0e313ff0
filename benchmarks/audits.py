"""How well `assay study audit` reads repositories of others: recall and precision by question.

    python benchmarks/audits.py DIRECTORY [--set twelfth] [--json FILE] [--misses]

DIRECTORY holds the unpacked source packages that `audits.yaml` names, each below its own name
(`pip download --no-deps --no-binary :all: NAME==VERSION`, then `tar -xf`). The truths were written
by reading the packages; none of their code is in this repository.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from assay.study.repo.audit import inspect

TRUTHS = Path(__file__).with_name("audits.yaml")
ORDER = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "thirteenth",
)
FIRST = ("train", "evaluate", "metrics")  # only the first answer counts
CODE = ("reward", "termination", "curriculum", "randomization")  # by file
SETS = ("config", "logging", *CODE, "launcher")
Case = tuple[str, set[str], set[str]]  # name, found, truth


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
    """Return the truth about one question, in the form of `items`."""
    values = truth.get(slot, [])
    if isinstance(values, dict):
        return {f"{file}::{name}" for file, names in values.items() for name in names}
    return set(values)


def table(
    scores: dict[str, list[Case]], threshold: float, *, misses: bool = True
) -> tuple[str, list[str]]:
    """Return the scores of every question as text, and the questions that fall short."""
    lines, short = ["", f"{'slot':14} recall precision  truth"], []
    for slot, cases in scores.items():
        recall, precision = score(cases)
        wanted = sum(len(truth) for *_, truth in cases)
        lines.append(f"{slot:14} {recall:6.2f} {precision:9.2f} {wanted:6}")
        for name, found, truth in cases if misses else ():
            lines += [f"    {name} missed {item}" for item in sorted(truth - found)]
            lines += [f"    {name} invented {item}" for item in sorted(found - truth)]
        if recall < threshold or precision < threshold:
            short.append(slot)
    return "\n".join(lines), short


def score(cases: list[Case]) -> tuple[float, float]:
    """Return recall and precision over all cases of a question."""
    right = sum(len(found & truth) for _, found, truth in cases)
    wanted = sum(len(truth) for *_, truth in cases)
    given = sum(len(found) for _, found, _ in cases)
    return right / max(wanted, 1), right / max(given, 1)


def is_right(slot: str, answers: Any, truth: list[str]) -> bool:
    """Return whether the first answer is right; none is right where the truth has none.

    A command is right if every word of one of the truth's commands matches one of its words.
    """
    if not answers or not truth:
        return not answers and not truth
    value = answers[0].value
    if slot == "metrics":
        return value in truth
    words = value["command"]
    return any(
        all(any(fnmatch.fnmatchcase(word, wanted) for word in words) for wanted in line.split())
        for line in truth
    )


def audit_all(place: Path, cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Audit every repository, and hold the answers against the truths."""
    firsts: dict[str, list[tuple[str, bool, str]]] = {slot: [] for slot in FIRST}
    sets: dict[str, list[Case]] = {slot: [] for slot in SETS}
    default: list[tuple[str, bool, str]] = []
    seconds: dict[str, float] = {}
    for case in cases:
        name, truth = case["package"], case["truth"]
        started = time.perf_counter()
        found = inspect(place / name).adapter
        seconds[name] = round(time.perf_counter() - started, 2)
        for slot in FIRST:
            answers = getattr(found, slot)
            given = answers[0].value if answers else "none"
            shown = " ".join(given["command"]) if isinstance(given, dict) else str(given)
            firsts[slot].append((name, is_right(slot, answers, truth.get(slot, [])), shown))
        for slot in SETS:
            if slot not in case.get("judged", SETS):
                continue
            answers = getattr(found, slot)
            values = {a.value["file"] if slot in CODE else str(a.value) for a in answers}
            sets[slot].append((name, values, set(truth.get(slot, []))))
        if truth.get("default_logger"):
            first = str(found.logging[0].value) if found.logging else "none"
            default.append((name, first in truth["default_logger"], first))
    firsts["default logger"] = default
    return {"first": firsts, "sets": sets, "seconds": seconds}


def main() -> None:
    """Score the audit on the repositories of a directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--set", default="twelfth", choices=ORDER)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--misses", action="store_true")
    args = parser.parse_args()
    cases = [c for c in yaml.safe_load(TRUTHS.read_text()) if c["set"] == args.set]
    missing = [c["package"] for c in cases if not (args.directory / c["package"]).is_dir()]
    if missing:
        sys.exit(f"'{args.directory}' has no directory {missing[0]}; unpack its source package.")
    scores = audit_all(args.directory, cases)
    for slot, rows in scores["first"].items():
        print(f"{slot:14} right first: {sum(ok for _, ok, _ in rows)} of {len(rows)}")
        for name, ok, shown in rows if args.misses else ():
            if not ok:
                print(f"    {name}: {shown}")
    print(table(scores["sets"], 0.85, misses=args.misses)[0])
    print("seconds: " + ", ".join(f"{name} {took}" for name, took in scores["seconds"].items()))
    if args.json:
        shares = {
            slot: [sum(ok for _, ok, _ in rows), len(rows)]
            for slot, rows in scores["first"].items()
        }
        ratios = {slot: [round(v, 3) for v in score(rows)] for slot, rows in scores["sets"].items()}
        args.json.write_text(json.dumps({"right_first": shares, "sets": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    main()
