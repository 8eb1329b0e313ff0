"""The kill switch: a file that ends what runs, and events that say who turned it."""

from __future__ import annotations

import contextlib

from assay.core.errors import AssayError
from assay.study.files.documents import StudyError
from assay.study.record.kinds import RESUMED, STOP, STOPPED, SWITCHED
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


def current(study: Study) -> int:
    """Return the event that turned the kill switch on, 0 if it is off by the ledger."""
    with contextlib.suppress(AssayError):  # it ends what runs whatever the ledger is like
        history = study.history()
        return history.stop if history.stopped is not None else 0
    return 0


def put_on_record(study: Study, event: int) -> str:
    """Return why the kill switch ended a run: the event of that stop, or 0 if there was none.

    A switch that was turned on by its file alone, whoever made that, is recorded: from then on it
    takes `assay study stop --off` to go on, not only the removal of the file.
    """
    if not event:
        with study.transaction() as transaction:
            if transaction.history.stopped is None:
                facts = {"reason": f"the file {STOP} was found in the study's directory"}
                transaction.append(STOPPED, facts, actor="assay")
            event = transaction.history.stop
    return f"{SWITCHED} (event {event} of the ledger)"


def go_on(study: Study, actor: str) -> None:
    """Turn the kill switch off."""
    if stopped(study) is None:
        raise StudyError("The kill switch is not on.", "There is nothing to take off.")
    study.ledger.append(RESUMED, {}, actor=actor)
    (study.path / STOP).unlink(missing_ok=True)
