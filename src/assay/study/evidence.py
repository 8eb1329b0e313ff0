"""Check a whole study: that what is on record is what the files say, byte for byte.

The ledger's own chain, its anchors and state.json; every file that a run wrote, and its record;
the audits, reflections and probe summaries; and the evidence that was adopted from elsewhere.
Nothing is written, and a study that is still running can be checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.core.errors import AssayError
from assay.study import adopt, kinds, probe, reflection
from assay.study.layout import ROOT, Study, StudyError, is_flat, open_study, read_json_document
from assay.study.ledger import Event, Problem, digest
from assay.study.models import ResultAudit
from assay.study.runner import artifacts


def studies(root: Path) -> list[Study]:
    """Return every study below a directory that holds `.rlxp`.

    Raises:
        StudyError: There is none.
    """
    if is_flat(root):
        return [open_study(root)]
    paths = sorted((root / ROOT / "tasks").glob("*/studies/*/"))
    if not paths:
        raise StudyError(
            f"There is no study in '{root}'.", "Name a directory that holds .rlxp with studies."
        )
    return [Study(root, path.parent.parent.name, path.name) for path in paths]


def verify(study: Study) -> list[Problem]:
    """Find everything that is not as it was recorded.

    Returns:
        Problems, each with the ledger's line where there is one; none if all is well.
    """
    reading = study.examine()
    events = reading.events
    return [
        *reading.problems,
        *_runs(study, events),
        *_audits(study, events),
        *_documents(study, events),
        *adopt.problems(study, events),
    ]


def _runs(study: Study, events: Sequence[Event]) -> list[Problem]:
    """Hold the record and the files of every run that is over against the ledger."""
    measured = {e.data["run"]: e.data["metrics"] for e in events if e.kind == kinds.MEASURED}
    found = []
    for event in events:
        if event.kind == kinds.ENDED:
            reasons = _run(study, event, measured.get(event.data["run"]))
            found += [Problem(event.seq, reason) for reason in reasons]
    return found


def _run(study: Study, event: Event, measured: object) -> list[str]:
    name = str(event.data["run"])
    if not (study.path / "runs" / name).is_dir():
        return [f"the files of run {name} are gone"]
    try:
        record = study.run(name)
    except AssayError as error:
        return [f"the record of run {name} cannot be read: {error.message}"]
    reasons = []
    if digest(record.model_dump(mode="json")) != event.data.get("record"):
        reasons.append(f"the record of run {name} (run.json) was edited after it ended")
    if record.metrics != measured:
        reasons.append(f"the metrics in the record of run {name} are not those that were measured")
    now = artifacts(study.path / "runs" / name / "out")
    for path in sorted(now.keys() | record.artifacts.keys()):
        if path not in now:
            reasons.append(f"'{path}' of run {name} is gone")
        elif path not in record.artifacts:
            reasons.append(f"'{path}' of run {name} appeared after the run had ended")
        elif now[path] != record.artifacts[path]:
            reasons.append(f"'{path}' of run {name} was changed after the run had ended")
    return reasons


def _audits(study: Study, events: Sequence[Event]) -> list[Problem]:
    """Hold the file of every candidate's last audit against the ledger."""
    last = {str(e.data["candidate"]): e for e in events if e.kind == kinds.AUDITED}
    found = []
    for name, event in last.items():
        path = study.path / "audits" / f"{name}.json"
        try:
            told = read_json_document(path, ResultAudit).model_dump(mode="json")
        except AssayError as error:
            found.append(Problem(event.seq, f"the audit of {name} cannot be read: {error.message}"))
            continue
        if any(event.data.get(key) != told[key] for key in ("candidate", "passed", "checks")):
            found.append(Problem(event.seq, f"the audit of {name} was edited after it was made"))
    return found


def _documents(study: Study, events: Sequence[Event]) -> list[Problem]:
    """Hold reward reflections and probe summaries against the hashes on record."""
    found = []
    reflected = {str(e.data["run"]): e for e in events if e.kind == reflection.REFLECTED}
    summarised = {str(e.data["plan"]): e for e in events if e.kind == probe.SUMMARISED}
    for name, event in reflected.items():
        try:
            reflection.named(study, name)
        except AssayError as error:
            found.append(Problem(event.seq, error.message))
    for name, event in summarised.items():
        try:
            probe.named(study, name)
        except AssayError as error:
            found.append(Problem(event.seq, error.message))
    return found
