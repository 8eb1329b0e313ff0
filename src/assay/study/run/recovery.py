"""How a run is closed: measured, settled and ended on record, also if its supervisor was killed."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from assay.study.agree import budget
from assay.study.agree.protocol import artifacts, fingerprint
from assay.study.files.documents import (
    StudyError,
    digest,
    digest_of,
    read_json_document,
    write_json_document,
)
from assay.study.files.records import RunRecord, Seen
from assay.study.measure import extractors
from assay.study.record.history import History, Transaction
from assay.study.record.kinds import DECIDING, ENDED, EXITED, MEASURED, UNSTARTED
from assay.study.record.study import Study
from assay.study.run.gpus import shown
from assay.study.run.processes import claim, hours_until_last_beat, kill_orphan, supervised

POLL_SECONDS = 0.2
SEEN = "seen.json"  # what the supervisor saw, until it is in the run's record
START_SECONDS = 30.0  # after which a run that nobody claimed is lost


class StillRunning(StudyError):
    """A run that was waited for is not over yet."""


def log_tail(place: Path, lines: int = 8) -> str:
    """Return the last lines that the run in a directory printed, under the path of its log."""
    path = place / "stdout.log"
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            text = file.read().decode(errors="replace").splitlines()
    except OSError:
        return f"  it left no log at {path}"
    return "\n".join([f"  log: {path}", *(f"  | {line[:300]}" for line in text[-lines:])])


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
        young = abs(time.time() - (place / "run.json").stat().st_mtime) < START_SECONDS
        if supervised(place) if claimed else young:
            return None
        recover(study)
        record = study.run(run)
    with study.transaction() as transaction:  # who closes the run then moves its candidate on
        found = transaction.history.runs.get(run)
    return record if found and found.ended else None


def exited(
    study: Study,
    run: str,
    outcome: str,
    reason: str,
    exit_code: int | None,
    hours: float,
    seen: Seen | None = None,
) -> None:
    """Put on record how a run ended, what it wrote and what it loaded, before anybody can touch it.

    What it loaded is a file beside its record, of which the ledger has the hash.
    """
    place = study.path / "runs" / run
    seen = seen or Seen()
    write_json_document(place / SEEN, seen)
    facts = {
        "run": run, "outcome": outcome, "reason": reason, "exit_code": exit_code,
        "hours": max(0.0, hours), "artifacts": digest(artifacts(place / "out")),
        "seen": digest_of(seen), "tampered": list(seen.tampered),
        "log": fingerprint(place / "stdout.log") if (place / "stdout.log").exists() else "",
    }  # fmt: skip
    study.ledger.append(EXITED, facts, actor="assay")


def finish(study: Study, run: str) -> None:
    """Bring the ledger and the record up to how the run exited; twice does no harm."""
    place = study.path / "runs" / run
    with study.transaction() as transaction:
        mine = transaction.history.runs[run]
        if mine.ended:
            return
        assert mine.exit is not None  # who finishes a run has put that on record
        facts = dict(mine.exit)
        record = study.run(run)
        values, missing = _measure(study, record)
        written = artifacts(place / "out")
        if facts["outcome"] == "done" and digest(written) != facts["artifacts"]:
            missing = "what it wrote was changed after it had ended"
        if facts["outcome"] == "done" and missing:
            facts |= {"outcome": "failed", "reason": missing}
        told = {key: facts[key] for key in ("outcome", "reason", "exit_code", "hours")}
        ended = datetime.now(UTC).isoformat(timespec="seconds")
        ordered = {key: tuple(mine.prepared.data[key]) for key in ("argv", "evaluation")}
        measured = {"ended": ended, "metrics": values, "artifacts": written}
        measured |= _seen(place, facts) | {"gpus": shown(mine.prepared.data.get("gpus", {}))}
        record = record.model_copy(update=told | ordered | measured)
        write_json_document(place / "run.json", record)
        (place / SEEN).unlink(missing_ok=True)
        gpus = study.contract().hardware.gpus if record.gpu else 0
        budget.settle(transaction, run, told["hours"], told["hours"] * gpus)
        if not mine.metrics:
            transaction.append(MEASURED, {"run": run, "metrics": values}, actor="assay")
        sealed = digest_of(record)
        transaction.append(ENDED, {"run": run, **told, "record": sealed}, actor="assay")
        _close_candidate(transaction, record)
    study.sync()


def _seen(place: Path, facts: dict[str, Any]) -> dict[str, Any]:
    """Return what was seen of a run, by the file that its supervisor wrote and nobody edited."""
    if "seen" not in facts:
        return {}
    try:
        seen = read_json_document(place / SEEN, Seen)
    except StudyError:
        seen = Seen()
    if digest_of(seen) != facts["seen"]:
        seen = Seen(
            unrecorded="what it loaded was changed after it had ended",
            tampered=tuple(facts["tampered"]),
        )
    return seen.model_dump(exclude={"schema_version"})


def _measure(study: Study, record: RunRecord) -> tuple[dict[str, float | None], str]:
    """Extract every metric of the contract, and say what is wrong with the deciding one."""
    place = study.path / "runs" / record.id
    metrics = study.contract().metrics
    values: dict[str, float | None] = {}
    wrong = ""
    for metric in metrics.all():
        try:
            values[metric.name] = extractors.extract(metric, place / "out", place / "stdout.log")
        except StudyError as error:
            values[metric.name] = None
            if metric == metrics.primary:
                wrong = error.message
                if not isinstance(error, extractors.ScoreError):  # it was looked for elsewhere
                    shows = f"assay study metrics --out runs/{record.id}/out shows what is there"
                    wrong = f"{wrong.rstrip('.')} ({shows}; metrics.primary.source says where)"
    return values, wrong


def _close_candidate(transaction: Transaction, last: RunRecord) -> None:
    """Move a candidate on when none of its runs is under way."""
    history, name = transaction.history, last.candidate
    busy = not all(run.ended for run in history.of_candidate(name))
    if busy or history.status.get(name) != "launched":
        return
    # In a deciding phase a seed that failed is a result like any other, and is judged.
    counted = last.outcome == "done" or (last.phase in DECIDING and last.outcome != "lost")
    why = last.reason or "its runs are over"
    transaction.move(name, "completed" if counted else "debug", actor="assay", why=why)


def recover(study: Study) -> list[str]:
    """Find runs whose supervisor is gone and bring the books in order; return their names.

    A run that was prepared and never claimed is claimed here, so that a supervisor that comes
    late cannot start it.
    """
    if study.flat:
        return []  # which is only read
    history = study.history()
    _release(study, history)
    found = []
    for run in history.runs.values():
        place = study.path / "runs" / run.id
        if run.ended:
            continue
        if not (place / "claim.json").exists():
            age = datetime.now(UTC) - datetime.fromisoformat(run.prepared.time)
            # Of a clock that was set back, it is far in the future.
            if abs(age.total_seconds()) < START_SECONDS or not claim(place, "recovery"):
                continue
            _lose(study, run.id, UNSTARTED, 0.0)
        elif supervised(place):
            continue
        else:
            kill_orphan(place)
            _lose(study, run.id, "its supervisor was killed", hours_until_last_beat(place))
        finish(study, run.id)
        found.append(run.id)
    _close_left(study, history)
    return found


def _close_left(study: Study, history: History) -> None:
    """Move candidates on whose last run was ended by someone who was killed before doing so."""
    for name, status in history.status.items():
        runs = history.of_candidate(name)
        if status == "launched" and runs and all(run.ended for run in runs):
            last = max(runs, key=lambda run: run.ended.seq if run.ended else 0)
            with study.transaction() as transaction:
                _close_candidate(transaction, study.run(last.id))


def _release(study: Study, history: History) -> None:
    """Settle what was held back for a run by a launch that was killed before it was prepared."""
    if history.held.keys() <= history.runs.keys():
        return
    with study.transaction() as transaction:  # no launch is half done while it is held
        history = transaction.history
        for run in [run for run in history.held if run not in history.runs]:
            budget.settle(transaction, run, 0.0, 0.0)


def _lose(study: Study, run: str, reason: str, hours: float) -> None:
    """Put on record that a run was lost, unless its supervisor said how it exited."""
    facts = {
        "run": run, "outcome": "lost", "reason": reason, "exit_code": None, "hours": hours,
        "artifacts": digest({}),
    }  # fmt: skip
    with study.transaction() as transaction:
        if transaction.history.runs[run].exit is None:
            transaction.append(EXITED, facts, actor="assay")
