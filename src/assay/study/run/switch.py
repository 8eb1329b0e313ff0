"""The kill switch: a file that ends what runs, and events that say who turned it."""

from __future__ import annotations

import contextlib

from assay.study.files.documents import StudyError
from assay.study.record.kinds import RESUMED, STOP, STOPPED
from assay.study.record.study import Study


def refuse_stopped(study: Study) -> None:
    """Refuse to go on while the kill switch is on."""
    reason = stopped(study)
    if reason is not None:
        raise StudyError(
            f"The study is stopped: {reason or 'no reason given'}.",
            "A person lets it go on with: assay study stop --off",
        )


def stopped(study: Study) -> str | None:
    """Return why the study is stopped, by its switch or its ledger, or None if it is not."""
    switch = study.path / STOP
    return switch.read_text().strip() if switch.exists() else study.history().stopped


def stop(study: Study, reason: str, actor: str) -> None:
    """Turn the kill switch on: what runs is ended, and nothing is launched until it is off."""
    study.require_writable()
    switch = study.path / STOP
    switch.touch()  # which takes no room on a full disk
    with contextlib.suppress(OSError):
        switch.write_text(reason.strip() + "\n")
    study.ledger.append(STOPPED, {"reason": reason.strip()}, actor=actor)


def put_on_record(study: Study) -> None:
    """Record a kill switch that was turned on by its file alone, whoever made that.

    From then on it takes `assay study stop --off` to go on, not only the removal of the file.
    """
    with study.transaction() as transaction:
        if transaction.history.stopped is None:
            facts = {"reason": f"the file {STOP} was found in the study's directory"}
            transaction.append(STOPPED, facts, actor="assay")


def go_on(study: Study, actor: str) -> None:
    """Turn the kill switch off."""
    if stopped(study) is None:
        raise StudyError("The kill switch is not on.", "There is nothing to take off.")
    study.ledger.append(RESUMED, {}, actor=actor)
    (study.path / STOP).unlink(missing_ok=True)
