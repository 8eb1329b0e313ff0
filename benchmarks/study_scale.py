"""How long a large study keeps its user waiting: what comes next, the report, the full check.

    python benchmarks/study_scale.py --candidates 1000 --directory /some/empty/place

A study is written whose ledger looks as the runner would have left it: every candidate with ten
runs, an audit and a verdict. Each question is then asked in a fresh process, as a command would
ask it, a few times; the median is shown, and its ratio to the bound that the project has set.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from assay.study.agree.protocol import protocol_hash, registration_hash
from assay.study.files.candidate import Candidate
from assay.study.files.contract import APPROVALS, Approval, Contract
from assay.study.files.documents import ROOT, canonical, digest, write_yaml_document
from assay.study.files.records import Registry, RunRecord
from assay.study.record.ledger import GENESIS
from assay.study.record.study import Study

SEEDS = {"promotion": range(1, 11), "validation": range(21, 31)}
TIME = "2026-01-01T00:00:00.000+00:00"

OPEN = (
    "from pathlib import Path; from assay.study.record.opening import open_study;"
    "s = open_study(Path({root!r}));"
)
NEXT = "from assay.study.steps.advice import next_step; next_step(s)"
GONE = OPEN + "(s.path / 'state.json').unlink(missing_ok=True);"
# What is asked: a name, the bound in seconds (None where the project has set none), and the code.
QUESTIONS: tuple[tuple[str, float | None, str], ...] = (
    ("import advice", None, "import assay.study.steps.advice"),
    ("next", 0.5, OPEN + NEXT),
    ("report", 5.0, OPEN + "from assay.study.report.pages import report; report(s)"),
    (
        "html report",
        5.0,
        OPEN + "from assay.study.report.pages import html_report; html_report(s)",
    ),
    ("an event and its note", None, OPEN + "s.ledger.append('note', {{}}, actor='a'); s.sync()"),
    ("next, state.json gone", None, GONE + NEXT),
    ("verify the books", None, OPEN + "assert not s.problems()"),
)


class _Book:
    """Writes a ledger's lines without waiting for the disk after each."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._last = GENESIS

    def add(self, kind: str, data: dict[str, Any], actor: str = "agent") -> None:
        event = {
            "schema": 1, "seq": len(self.lines) + 1, "time": TIME, "kind": kind,
            "actor": actor, "data": data, "prev": self._last,
        }  # fmt: skip
        body = canonical(event)
        self._last = hashlib.sha256(body).hexdigest()
        self.lines.append(body[:-1] + b',"hash":"' + self._last.encode() + b'"}\n')


def _contract(runs: int) -> Contract:
    source = {"kind": "jsonl", "path": "log.jsonl", "key": "return"}
    values: dict[str, Any] = {
        "study": "scale",
        "question": "Does it stay quick?",
        "task": {"id": "bench", "description": "Balance.", "env": "CartPole-v1"},
        "metrics": {"primary": {"name": "return", "source": source, "minimum_effect": 3.0}},
        "scope": {"parameters": {"lr": {"kind": "float", "low": 1e-5, "high": 1.0}}},
        "budget": {"wall_clock_hours": 1e6, "runs": 2 * runs, "parallel": 2},
        "hardware": {"kind": "cpu"},
        "baseline": {"command": ["python", "train.py", "--seed", "{seed}", "{parameters}"]},
        "evaluation": {
            "episodes": 20,
            "expected_candidates": 2000,
            "pools": {
                "development": [0],
                "promotion": list(SEEDS["promotion"]),
                "validation": list(SEEDS["validation"]),
            },
        },
    }
    return Contract(**values)


def _candidate(name: str, kind: str, number: int) -> Candidate:
    change = {} if kind == "baseline" else {"parameters": {"lr": 1e-4 * (1 + number % 97)}}
    values: dict[str, Any] = {
        "id": name, "task": "bench", "study": "scale", "kind": kind,
        "hypothesis": "A larger step learns faster.", "change": change,
        "budget": {"wall_clock_hours": 0.1}, "expected": "return rises", "rollback": "Set it back.",
    }  # fmt: skip
    return Candidate(**values)


def build(root: Path, count: int) -> Study:
    """Write a study of `count` candidates, all but the last of them decided."""
    study = Study(root, "bench", "scale")
    agreed = _contract(10 * (count + 2))
    book = _Book()
    approvals = {}
    for item in APPROVALS:
        given = {"by": "ada", "at": TIME, "hash": digest(agreed.part(item))}
        approvals[item] = Approval(**given)
        book.add("contract.approved", {"item": item, **given}, "ada")
    agreed = agreed.model_copy(update={"approvals": approvals})
    write_yaml_document(study.contract_path, agreed)
    write_yaml_document(root / ROOT / "registry.yaml", Registry(task="bench", study="scale"))
    (study.path / "candidates").mkdir(parents=True)
    measured = protocol_hash(root, agreed)
    for number in range(count):
        name, kind = (f"c{number:04}", "hyperparameter") if number else ("base", "baseline")
        candidate = _candidate(name, kind, number)
        dumped = json.dumps(candidate.model_dump(mode="json"), indent=1)
        study.candidate_path(name).write_text(dumped)  # JSON is YAML too, and quick to write
        frozen = registration_hash(candidate, agreed, measured)
        _life(study, book, candidate, frozen, measured, number, last=number == count - 1)
    study.ledger.path.write_bytes(b"".join(book.lines))
    study.sync()
    return study


def _life(
    study: Study, book: _Book, candidate: Candidate, frozen: str, measured: str, number: int,
    last: bool,
) -> None:  # fmt: skip
    """Append what happens to a candidate from its proposal to its end."""
    name = candidate.id

    def move(before: str | None, to: str) -> None:
        data: dict[str, Any] = {"candidate": name, "from": before, "to": to, "why": "it is so"}
        if before is None:
            data |= {"kind": candidate.kind, "parameters": candidate.change.parameters}
        book.add("candidate.state", data)

    move(None, "draft")
    move("draft", "validated")
    book.add("candidate.registered", {"candidate": name, "hash": frozen, "protocol": measured})
    phases = ("promotion", "validation") if candidate.kind == "baseline" else ("promotion",)
    for phase in phases:
        seeds = list(SEEDS[phase])[: 7 if last else None]
        for seed in seeds:
            _run(study, book, name, phase, seed, frozen, measured, 100 + (seed * 7 + number) % 5)
    move("validated", "launched")
    move("launched", "completed")
    if candidate.kind == "baseline" or last:
        return
    checks = [{"name": f"check {i}", "passed": True, "detail": ""} for i in range(8)]
    audit = {"candidate": name, "phase": "promotion", "passed": True, "checks": checks}
    book.add("result.audited", audit)
    comparison = {
        "test": "paired t", "seeds": [10, 10], "effect": 0.1, "low": -1.0, "high": 1.0,
        "p_better": 0.4, "p_worse": 0.6, "standardised": 0.1, "improvement": 0.5,
        "worst": [3, 99.0], "failures": 0.0,
    }  # fmt: skip
    book.add(
        "verdict.given",
        {
            "candidate": name, "phase": "promotion", "outcome": "reject", "rival": "base",
            "metric": "return", "minimum_effect": 3.0, "noise_floor": 1.4,
            "reasons": ["The effect is below the minimum."], "alpha": 2.5e-5, "seeds_needed": 12,
            "comparison": comparison, "guardrails": {},
        },
    )  # fmt: skip
    move("completed", "rejected")


def _run(
    study: Study, book: _Book, name: str, phase: str, seed: int, frozen: str, measured: str,
    score: float,
) -> None:  # fmt: skip
    run = f"{name}-{phase}-{seed}"
    place = study.path / "runs" / run
    (place / "out").mkdir(parents=True)
    argv = ["python", "train.py", "--seed", str(seed), "lr=0.001"]
    record = RunRecord(
        id=run, candidate=name, phase=phase, seed=seed, argv=argv, cwd=".", out="out",
        commit="0" * 40, host="node1", protocol=measured, outcome="done", exit_code=0, hours=0.1,
        metrics={"return": score},
    )  # fmt: skip
    (place / "run.json").write_text(record.model_dump_json())
    rows = ({"step": 100 * i, "return": score * i / 20} for i in range(21))
    (place / "out" / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    hours = {"run": run, "wall_clock_hours": 0.1, "gpu_hours": 0.0}
    facts = {
        "run": run, "candidate": name, "phase": phase, "seed": seed, "argv": argv,
        "protocol": measured, "registration": frozen,
    }  # fmt: skip
    book.add("budget.reserved", hours)
    book.add("run.prepared", facts)
    book.add("run.launched", {"run": run, "pid": 1, "host": "node1"})
    book.add("budget.settled", hours, "assay")
    book.add("run.measured", {"run": run, "metrics": {"return": score}}, "assay")
    ended = {"run": run, "outcome": "done", "exit_code": 0, "reason": "", "hours": 0.1}
    book.add("run.ended", ended, "assay")


def ask(code: str, times: int) -> tuple[float, float]:
    """Return the median of the seconds and of the CPU seconds of a fresh process."""
    wall, busy = [], []
    for _ in range(times):
        before, start = os.times(), time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        wall.append(time.perf_counter() - start)
        after = os.times()
        children = after.children_user + after.children_system
        busy.append(children - before.children_user - before.children_system)
    return statistics.median(wall), statistics.median(busy)


def main() -> None:
    """Build the study and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=1000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where to; kept, and used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.directory or Path(temporary)
        if (root / ROOT).exists():
            study = Study(root, "bench", "scale")
            study.sync()
        else:
            study = build(root, options.candidates)
        with open(study.ledger.path, "rb") as file:
            events = sum(1 for _ in file)
        size = study.ledger.path.stat().st_size / 1e6
        print(f"{len(study.candidates()):,} candidates, {events:,} events, {size:.1f} MB of ledger")
        print(f"{'question':21} {'seconds':>8} {'CPU':>8} {'bound':>6} {'ratio':>6}")
        for name, bound, code in QUESTIONS:
            wall, busy = ask(code.format(root=str(root)), options.times)
            limit = f"{bound:6.1f} {wall / bound:6.2f}" if bound else f"{'-':>6} {'-':>6}"
            print(f"{name:21} {wall:8.3f} {busy:8.3f} {limit}")


if __name__ == "__main__":
    main()
