"""Whether a change reached its runs at all, before anyone asks whether it is better."""

from __future__ import annotations

from assay.study.agree.scope import changed_files
from assay.study.files.base import Phase
from assay.study.files.contract import Contract
from assay.study.files.documents import StudyError
from assay.study.record.history import History
from assay.study.record.study import Study


def no_effect(
    study: Study, history: History, agreed: Contract, name: str, other: str, phase: Phase
) -> str:
    """Return why a candidate's change had no effect in a phase, or "" if it may have had one."""
    unloaded = _never_loaded(study, history, name, phase)
    if unloaded:
        return f"The change had no effect: no run loaded {unloaded}, which the patch changes."
    mine, theirs = (history.arm(who, phase, agreed.metrics.primary.name) for who in (name, other))
    both = mine.keys() & theirs.keys()
    if both and all(mine[seed] is not None and mine[seed] == theirs[seed] for seed in both):
        metric = agreed.metrics.primary.name
        return (
            f"The change had no effect: {metric} equals that of {other} to the last digit on all "
            f"{len(both)} seeds."
        )
    return ""


def _never_loaded(study: Study, history: History, name: str, phase: Phase) -> str:
    """Return the changed files if it is certain that no run of a phase loaded one of them.

    That can be known of Python files, of runs whose Python was watched. Another file may be read
    by a program that says nothing; of a deleted one nothing can be loaded.
    """
    patch = study.candidate(name).change.patch
    if not patch:
        return ""
    paths = changed_files(study.root, patch)
    if not all(path.endswith(".py") for path in paths) or "\n+++ /dev/null" in f"\n{patch}":
        return ""
    for run in history.selected(name, phase):
        try:
            record = study.run(run.id)
        except StudyError:
            return ""
        if run.outcome != "done" or record.unrecorded or not record.loaded:
            return ""
        if record.loaded.keys() & set(paths):
            return ""
    return " or ".join(f"'{path}'" for path in paths) if history.selected(name, phase) else ""
