"""Turn committed evidence into studies, under `studies/.rlxp`.

    python benchmarks/adopt.py            # adopt what is new, and write it down
    python benchmarks/adopt.py --check    # change nothing; fail if something is to be adopted

What is a study, and who is compared with whom, is in `subjects.py`. The results were measured
before there was a study, so they are adopted: checked, compared and shown, but no gate has decided
on them. Ledgers are only ever appended to, and running this twice adds nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import evidence
import yaml
from children import finish
from subjects import subjects

from assay.core.errors import AssayError
from assay.study.agree.setup import initialise
from assay.study.files.base import VERSION
from assay.study.files.contract import Contract
from assay.study.files.documents import ROOT, write_json_document, write_text, write_yaml_document
from assay.study.files.records import Registry
from assay.study.judge import adopt
from assay.study.judge.verify import studies, verify
from assay.study.record.study import Study

STUDIES = evidence.ROOT / "studies"
ACTOR = "benchmarks"


# ---------------------------------------------------------------------- studies


def build(root: Path = STUDIES, directory: Path = evidence.LEARNING) -> dict[str, int]:
    """Bring the studies up to the evidence; return how many events each of them took.

    Raises:
        AssayError: The evidence contradicts itself, or a ledger is damaged.
    """
    root.mkdir(parents=True, exist_ok=True)
    taken = {}
    for subject in subjects(root, directory):
        study = Study(root, subject.task, subject.name)
        if not study.path.exists():
            initialise(root, subject.task, subject.name, actor=ACTOR, activate=True)
        made = adopt.adopt(study, subject.sources, subject.claims, actor=ACTOR)
        if _kept(study) != subject.contract:
            plain = subject.contract.model_dump(mode="json", exclude_defaults=True)
            text = yaml.safe_dump(
                {"schema_version": VERSION, **plain}, sort_keys=False, width=100, allow_unicode=True
            )
            write_text(study.contract_path, text)
        # Without the ledger's inode and times, which are other ones in every checkout.
        state = study.history().state(subject.task, subject.name)
        if made or not (study.path / "state.json").exists():
            write_json_document(study.path / "state.json", state)
        taken[f"{subject.task}/{subject.name}"] = len(made)
    # Not one of them is being worked on.
    registry = root / ROOT / "registry.yaml"
    write_yaml_document(registry, Registry())
    return taken


def check(root: Path = STUDIES, directory: Path = evidence.LEARNING) -> list[str]:
    """Return what is wrong: evidence that is not adopted, and studies that do not verify."""
    wrong = []
    for subject in subjects(root, directory):
        name = f"{subject.task}/{subject.name}"
        study = Study(root, subject.task, subject.name)
        if not study.path.exists():
            wrong.append(f"{name}: its evidence is not adopted")
            continue
        missing = adopt.due(study, study.history(), subject.sources, subject.claims)
        if missing or _kept(study) != subject.contract:
            wrong.append(f"{name}: {len(missing)} events are missing; run benchmarks/adopt.py")
    for study in studies(root):
        wrong += [f"{study.task}/{study.name}: {problem}" for problem in verify(study)]
    return wrong


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
