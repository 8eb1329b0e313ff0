"""How a run is closed: measured, settled and ended on record, also if its supervisor was killed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from assay.study.agree import budget
from assay.study.agree.protocol import artifacts, fingerprint
from assay.study.files.base import Status
from assay.study.files.documents import StudyError, write_json_document
from assay.study.files.records import RunRecord
from assay.study.measure import extractors
from assay.study.record import states
from assay.study.record.kinds import DECIDING, ENDED, EXITED, MEASURED, PREPARED
from assay.study.record.ledger import Event, Writer, digest
from assay.study.record.study import Study
from assay.study.run.processes import claim, hours_until_last_beat, kill_orphan, supervised

POLL_SECONDS = 0.2
START_SECONDS = 30.0  # after which a run that nobody claimed is given up


class StillRunning(StudyError):
    """A run that was waited for is not over yet."""


def wait(study: Study, run: str, timeout: float | None = None) -> RunRecord:
    """Wait until a run is over and measured, and return its record.

    Raises:
        StillRunning: It is not over after `timeout` seconds.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        record = poll(study, run)
        if record is not None:
            return record
        if end is not None and time.monotonic() > end:
            raise StillRunning(f"Run '{run}' is not over after {timeout:g} s.")
        time.sleep(POLL_SECONDS)


def poll(study: Study, run: str) -> RunRecord | None:
    """Return the record of a run if it is over and in the ledger, else None.

    The ledger is read only once something has happened: a loop asks often.
    """
    place = study.path / "runs" / run
    record = study.run(run)
    if record.outcome == "running":
        claimed = (place / "claim.json").exists()
        young = time.time() - (place / "run.json").stat().st_mtime < START_SECONDS
        if supervised(place) if claimed else young:
            return None
        recover(study)
        record = study.run(run)
    over = any(e.kind == ENDED and e.data["run"] == run for e in study.ledger.events())
    return record if over else None


def exited(
    study: Study, run: str, outcome: str, reason: str, exit_code: int | None, hours: float
) -> None:
    """Put on record how a run ended and what it wrote, before anybody else can touch that."""
    place = study.path / "runs" / run
    facts = {
        "run": run, "outcome": outcome, "reason": reason, "exit_code": exit_code,
        "hours": max(0.0, hours), "artifacts": digest(artifacts(place / "out")),
        "log": fingerprint(place / "stdout.log") if (place / "stdout.log").exists() else "",
    }  # fmt: skip
    study.ledger.append(EXITED, facts, actor="assay")


# ---------------------------------------------------------------------- after a run


def finish(study: Study, run: str) -> None:
    """Bring the ledger and the record up to how the run exited; twice does no harm."""
    place = study.path / "runs" / run
    with study.ledger.transaction() as writer:
        events = list(writer.events())
        if any(e.kind == ENDED and e.data["run"] == run for e in events):
            return
        facts = next(dict(e.data) for e in events if e.kind == EXITED and e.data["run"] == run)
        orders = next(e for e in events if e.kind == PREPARED and e.data["run"] == run)
        record = study.run(run)
        values, missing = _measure(study, record)
        written = artifacts(place / "out")
        if facts["outcome"] == "done" and digest(written) != facts["artifacts"]:
            missing = "what it wrote was changed after it had ended"
        if facts["outcome"] == "done" and missing:
            facts |= {"outcome": "failed", "reason": missing}
        told = {key: facts[key] for key in ("outcome", "reason", "exit_code", "hours")}
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        ordered = {key: tuple(orders.data[key]) for key in ("argv", "evaluation")}
        measured = {"ended": ended, "metrics": values, "artifacts": written}
        record = record.model_copy(update=told | ordered | measured)
        write_json_document(place / "run.json", record)
        gpus = study.contract().hardware.gpus if record.gpu else 0
        budget.settle(writer, run, told["hours"], told["hours"] * gpus)
        if not any(e.kind == MEASURED and e.data["run"] == run for e in events):
            writer.append(MEASURED, {"run": run, "metrics": values}, actor="assay")
        sealed = digest(record.model_dump(mode="json"))
        writer.append(ENDED, {"run": run, **told, "record": sealed}, actor="assay")
        _close_candidate(writer, record.candidate, record)
    study.sync()


def _measure(study: Study, record: RunRecord) -> tuple[dict[str, float | None], str]:
    """Extract every metric of the contract, and say what is wrong with the deciding one."""
    place = study.path / "runs" / record.id
    metrics = study.contract().metrics
    values: dict[str, float | None] = {}
    missing = ""
    for metric in metrics.all():
        try:
            values[metric.name] = extractors.extract(metric, place / "out", place / "stdout.log")
        except StudyError as error:
            values[metric.name] = None
            if metric == metrics.primary:
                missing = error.message
    return values, missing


def _close_candidate(writer: Writer, name: str, last: RunRecord) -> None:
    """Move a candidate on when none of its runs is under way."""
    events = list(writer.events())
    if states.current(events).get(name) != "launched":
        return
    mine = {e.data["run"] for e in events if e.kind == PREPARED and e.data["candidate"] == name}
    if mine - {e.data["run"] for e in events if e.kind == ENDED}:
        return
    # In a deciding phase a seed that failed is a result like any other, and is judged.
    counted = last.outcome == "done" or (last.phase in DECIDING and last.outcome != "lost")
    to: Status = "completed" if counted else "debug"
    why = last.reason or "its runs are over"
    states.move(writer, name, to, actor="assay", why=why)


def recover(study: Study) -> list[str]:
    """Find runs whose supervisor is gone and bring the books in order; return their names.

    A run that was prepared and never claimed is claimed here, so that a supervisor that comes
    late cannot start it.
    """
    if study.flat:
        return []  # which is only read
    events = list(study.ledger.events())
    over = {e.data["run"] for e in events if e.kind == ENDED}
    _release(study, events)
    found = []
    for event in events:
        if event.kind != PREPARED or event.data["run"] in over:
            continue
        run = str(event.data["run"])
        place = study.path / "runs" / run
        if not (place / "claim.json").exists():
            age = (datetime.now(UTC) - datetime.fromisoformat(event.time)).total_seconds()
            if age < START_SECONDS or not claim(place, "recovery"):
                continue
            _lose(study, run, "it was prepared and never started", 0.0)
        elif supervised(place):
            continue
        else:
            kill_orphan(place)
            _lose(study, run, "its supervisor was killed", hours_until_last_beat(place))
        finish(study, run)
        found.append(run)
    _close_left(study, events)
    return found


def _close_left(study: Study, events: Sequence[Event]) -> None:
    """Move candidates on whose last run was ended by someone who was killed before doing so."""
    over = [str(e.data["run"]) for e in events if e.kind == ENDED]
    owner = {e.data["run"]: str(e.data["candidate"]) for e in events if e.kind == PREPARED}
    waiting = {name for name, status in states.current(events).items() if status == "launched"}
    waiting -= {name for run, name in owner.items() if run not in set(over)}
    for name in waiting:
        mine = [run for run in over if owner[run] == name]
        if mine:
            with study.ledger.transaction() as writer:
                _close_candidate(writer, name, study.run(mine[-1]))


def _release(study: Study, events: Sequence[Event]) -> None:
    """Settle what was held back for a run by a launch that was killed before it was prepared."""
    prepared = {e.data["run"] for e in events if e.kind == PREPARED}
    if set(budget.usage(events).open) <= prepared:
        return
    with study.ledger.transaction() as writer:  # no launch is half done while it is held
        prepared = {e.data["run"] for e in writer.events() if e.kind == PREPARED}
        for run in budget.usage(writer.events()).open:
            if run not in prepared:
                budget.settle(writer, run, 0.0, 0.0)


def _lose(study: Study, run: str, reason: str, hours: float) -> None:
    """Put on record that a run was lost, unless its supervisor said how it exited."""
    facts = {
        "run": run, "outcome": "lost", "reason": reason, "exit_code": None, "hours": hours,
        "artifacts": digest({}),
    }  # fmt: skip
    with study.ledger.transaction() as writer:
        if not any(e.kind == EXITED and e.data["run"] == run for e in writer.events()):
            writer.append(EXITED, facts, actor="assay")
