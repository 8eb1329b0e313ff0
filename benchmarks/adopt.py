"""Turn the committed evidence of the learning cases into studies, under `studies/.rlxp`.

    python benchmarks/adopt.py            # adopt what is new, and write it down
    python benchmarks/adopt.py --check    # change nothing; fail if something is to be adopted

Every case that is not a control is a study: does it reach its goal, and where it has a control or
a rival, is it better than that one? The results were measured before there was a study, so they
are adopted: checked, compared and shown, but no gate has decided on them. Ledgers are only ever
appended to, and running this twice adds nothing.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import evidence
import yaml
from cases import CASES, FINAL_EPISODES, GROUPS, Case
from children import finish

from assay.core.errors import AssayError
from assay.study.agree.setup import initialise
from assay.study.files.base import VERSION
from assay.study.files.contract import Contract
from assay.study.files.documents import ROOT, write_json_document, write_text, write_yaml_document
from assay.study.files.records import Registry
from assay.study.judge import adopt
from assay.study.judge.adopt import Claim, Source
from assay.study.judge.verify import studies, verify
from assay.study.record.study import Study

STUDIES = evidence.ROOT / "studies"
ACTOR = "benchmarks"
WAIVED = "The results were measured before the study and adopted; the gate decides on none of them."


# ---------------------------------------------------------------------- what is to be adopted


def subjects(directory: Path = evidence.LEARNING) -> list[tuple[str, Case]]:
    """Return the cases that become studies, each with its task: those with evidence."""
    return [
        (_slug(title), case)
        for title, group in GROUPS.items()
        for case in group
        if case.control_of is None and (directory / f"{case.name}.json").exists()
    ]


def opponents(case: Case, directory: Path = evidence.LEARNING) -> list[Case]:
    """Return what a case is compared with, as far as it was measured: control and rival."""
    names = [c.name for c in CASES.values() if c.control_of == case.name]
    names += [case.rival] if case.rival else []
    return [CASES[name] for name in names if (directory / f"{name}.json").exists()]


def sources(case: Case, root: Path, directory: Path = evidence.LEARNING) -> Iterator[Source]:
    """Yield every seed of a case, as the study at `root` adopts it.

    Raises:
        EvidenceError: The evidence contradicts itself.
    """
    path = directory / f"{case.name}.json"
    content = evidence.read_learning(path)
    key = "success_rate" if case.measure == "success" else "mean"
    for i, entry in enumerate(content["seeds"]):
        measured = entry["evaluation"]
        yield Source(
            candidate=case.name,
            seed=entry["seed"],
            path=_relative(path, root),
            pointer=f"/seeds/{i}/evaluation/{key}",
            metric=case.measure,
            config=entry["config_hash"],
            protocol={
                "env": case.env,
                "env_steps": case.env_steps,
                "episodes": measured["episodes"],
                "evaluation_seed": measured["seed"],
                "deterministic": True,
                "checkpoint": "last",
                "device": entry["device"],
                "code": entry["machine"]["source"],
                "torch": entry["machine"]["versions"]["torch"],
            },
        )


def claims(case: Case, directory: Path = evidence.LEARNING) -> list[Claim]:
    """Return what the study of a case is to show: its goal, and that of its rival."""
    others = opponents(case, directory)
    return [
        *(_claim(case, rival.name) for rival in others),
        *([] if others else [_claim(case)]),
        *(_claim(other) for other in others if other.control_of == case.name),
    ]


def _claim(case: Case, rival: str = "") -> Claim:
    relation = "<" if case.control_of is not None else ">=" if case.inclusive else ">"
    return Claim(case.name, case.measure, "maximize", rival, relation, case.threshold)


def contract(task: str, case: Case) -> Contract:
    """Return the contract of a case's study: how it would be run again. Nobody has approved it."""
    controls = [c for c in CASES.values() if c.control_of == case.name]
    # Between the goals of a case and its control, or a twentieth of the goal.
    effect = case.threshold - controls[0].threshold if controls else abs(case.threshold) / 20
    key = "success_rate" if case.measure == "success" else "mean"
    question = f"Does {case.title} reach {case.goal} in {case.env_steps:,} environment steps"
    against = [*controls, *([CASES[case.rival]] if case.rival else [])]
    names = [other.title.removeprefix("control: ") for other in against]
    question += "".join(f", and is it better than {name}" for name in names) + "?"
    source = {"kind": "json", "path": "seeds/*.json", "key": f"evaluation.{key}"}
    values: dict[str, Any] = {
        "study": case.name,
        "question": question,
        "task": {"id": task, "description": f"{case.goal} on {case.env}", "env": case.env},
        "metrics": {
            "primary": {"name": case.measure, "source": source, "minimum_effect": round(effect, 6)}
        },
        "scope": {},
        "budget": {"wall_clock_hours": round(case.minutes, 2), "runs": 60},
        "hardware": {"kind": "cpu"},
        "baseline": {
            "command": ["{python}", "../learning.py", "--one", (against or [case])[0].name,
                        "{seed}", "--out", "{out}"],
        },
        "evaluation": {
            "episodes": FINAL_EPISODES,
            "pools": {
                "development": [0],
                "promotion": [1, 2, 3, 4, 5],
                "validation": [11, 12, 13, 14, 15],
            },
        },
        "experiment": {"exceptions": {"adopted": WAIVED}},
    }  # fmt: skip
    return Contract(**values)


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _relative(path: Path, root: Path) -> str:
    return Path(os.path.relpath(path.resolve(), root.resolve())).as_posix()


# ---------------------------------------------------------------------- studies


def build(root: Path = STUDIES, directory: Path = evidence.LEARNING) -> dict[str, int]:
    """Bring the studies up to the evidence; return how many events each of them took.

    Raises:
        AssayError: The evidence contradicts itself, or a ledger is damaged.
    """
    root.mkdir(parents=True, exist_ok=True)
    taken = {}
    for task, case in subjects(directory):
        study = Study(root, task, case.name)
        if not study.path.exists():
            initialise(root, task, case.name, actor=ACTOR, activate=True)
        made = adopt.adopt(study, *_content(case, root, directory), actor=ACTOR)
        wanted = contract(task, case)
        if _kept(study) != wanted:
            plain = wanted.model_dump(mode="json", exclude_defaults=True)
            text = yaml.safe_dump(
                {"schema_version": VERSION, **plain}, sort_keys=False, width=100, allow_unicode=True
            )
            write_text(study.contract_path, text)
        # Without the ledger's inode and times, which are other ones in every checkout.
        state = study.history().state(task, case.name)
        if made or not (study.path / "state.json").exists():
            write_json_document(study.path / "state.json", state)
        taken[f"{task}/{case.name}"] = len(made)
    # Not one of them is being worked on.
    registry = root / ROOT / "registry.yaml"
    write_yaml_document(registry, Registry())
    return taken


def check(root: Path = STUDIES, directory: Path = evidence.LEARNING) -> list[str]:
    """Return what is wrong: evidence that is not adopted, and studies that do not verify."""
    wrong = []
    for task, case in subjects(directory):
        name = f"{task}/{case.name}"
        study = Study(root, task, case.name)
        if not study.path.exists():
            wrong.append(f"{name}: its evidence is not adopted")
            continue
        missing = adopt.due(study, study.history(), *_content(case, root, directory))
        if missing or _kept(study) != contract(task, case):
            wrong.append(f"{name}: {len(missing)} events are missing; run benchmarks/adopt.py")
    for study in studies(root):
        wrong += [f"{study.task}/{study.name}: {problem}" for problem in verify(study)]
    return wrong


def _content(case: Case, root: Path, directory: Path) -> tuple[list[Source], list[Claim]]:
    arms = (case, *opponents(case, directory))
    found = [source for one in arms for source in sources(one, root, directory)]
    return found, claims(case, directory)


def _kept(study: Study) -> Contract | None:
    try:
        return study.contract()
    except AssayError:
        return None  # the template that a new study begins with


def main(arguments: Sequence[str] | None = None) -> int:
    """Adopt, or check."""
    parser = argparse.ArgumentParser(description="Turn the committed evidence into studies.")
    parser.add_argument("--check", action="store_true", help="change nothing")
    options = parser.parse_args(arguments)
    if options.check:
        wrong = check()
        print("\n".join(wrong) or "All evidence is adopted, and all studies verify.")
        return 1 if wrong else 0
    taken = build()
    for name, count in taken.items():
        if count:
            print(f"{name}: {count} events")
    print(f"{len(taken)} studies, {sum(taken.values())} new events")
    return 0


if __name__ == "__main__":
    finish(main)
