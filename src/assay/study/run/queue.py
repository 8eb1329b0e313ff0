"""What waits to be run: a queue that several runners on several cores can share.

The queue says what is to be done and who is at it; whether a run has happened is only ever read
from the ledger. So a runner that dies between the two leaves nothing that could be done twice: its
lease ends with its process, or runs out if that was on another machine, and whoever looks next
finds the run on record or starts it.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import psutil

from assay.study.agree import budget
from assay.study.files.base import POOLS, Phase
from assay.study.files.documents import StudyError
from assay.study.files.records import QueueItem, QueueManifest, RunRecord
from assay.study.record.study import Study
from assay.study.run import launcher, recovery

PHASES: tuple[Phase, ...] = ("smoke", "short", "promotion", "validation")
LEASE_SECONDS = 60.0
ATTEMPTS = 3

_TABLE = """
CREATE TABLE IF NOT EXISTS items (
    id TEXT PRIMARY KEY,
    candidate TEXT NOT NULL,
    phase TEXT NOT NULL,
    seed INTEGER NOT NULL,
    state TEXT NOT NULL,
    owner TEXT NOT NULL DEFAULT '',
    pid INTEGER,
    until REAL NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    added REAL NOT NULL
)
"""


class Refused(StudyError):
    """The runner would not launch an item of a candidate."""

    def __init__(self, candidate: str, error: StudyError) -> None:
        super().__init__(error.message, error.fix)
        self.candidate = candidate


@dataclass(frozen=True, slots=True)
class Lease:
    """A runner's right to work on an item for a while."""

    item: str  # its name
    candidate: str  # what is tried
    phase: Phase  # what for
    seed: int  # the training seed
    owner: str  # who holds it


class Queue:
    """The queue of one study."""

    def __init__(self, study: Study, clock: Callable[[], float] = time.time) -> None:
        self.study = study
        self._clock = clock
        self._path = study.path / "queue.sqlite"
        self._renewed: dict[str, float] = {}

    @contextlib.contextmanager
    def _database(self) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction."""
        self.study.require_writable()
        try:
            connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        except sqlite3.Error as error:
            raise StudyError(f"Cannot open the queue '{self._path}': {error}.") from None
        connection.row_factory = sqlite3.Row
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_TABLE)
            yield connection
            connection.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise StudyError(
                f"The queue '{self._path}' cannot be used: {error}.",
                "It can be deleted: what has been run is in the ledger.",
            ) from None
        finally:
            connection.close()

    def add(self, candidate: str, phase: Phase, seeds: Iterable[int]) -> list[str]:
        """Queue seeds of a candidate; what waits, runs or is done already is passed over.

        An item that failed or was cancelled is queued again; whether its seed may be run again is
        the runner's to say.

        Raises:
            StudyError: The candidate is unknown or a seed is not of the phase's pool.
        """
        self.study.candidate(candidate)
        pool = self.study.contract().evaluation.pools.of(phase)
        added = []
        with self._database() as database:
            for seed in seeds:
                if seed not in pool:
                    raise StudyError(
                        f"Seed {seed} is not in the {POOLS[phase]} pool "
                        f"({', '.join(map(str, pool))})."
                    )
                item = f"{candidate}-{phase}-{seed}"
                done = database.execute(
                    "INSERT INTO items (id, candidate, phase, seed, state, added)"
                    " VALUES (?, ?, ?, ?, 'queued', ?) ON CONFLICT (id) DO UPDATE"
                    " SET state = 'queued', attempts = 0 WHERE state IN ('failed', 'cancelled')",
                    (item, candidate, phase, seed, self._clock()),
                )
                if done.rowcount:
                    added.append(item)
        return added

    def lease(self, owner: str) -> Lease | None:
        """Take the next item, earlier phases first, or None if nothing waits."""
        self.reap()
        order = " ".join(f"WHEN '{phase}' THEN {i}" for i, phase in enumerate(PHASES))
        with self._database() as database:
            row = database.execute(
                "SELECT * FROM items WHERE state = 'queued'"
                f" ORDER BY CASE phase {order} END, added, id LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            database.execute(
                "UPDATE items SET state = 'leased', owner = ?, pid = ?, until = ?,"
                " attempts = attempts + 1 WHERE id = ?",
                (owner, os.getpid(), self._clock() + LEASE_SECONDS, row["id"]),
            )
        return Lease(row["id"], row["candidate"], row["phase"], row["seed"], owner)

    def move(self, lease: Lease, state: str) -> None:
        """Say that a run is started or still going (`running`), which renews the lease, or over.

        What could not be started for want of room goes back (`queued`), and was not an attempt.

        Raises:
            StudyError: The lease has been lost to another runner.
        """
        with self._database() as database:
            done = database.execute(
                "UPDATE items SET state = ?, until = ?, attempts = attempts - ? WHERE id = ?"
                " AND owner = ? AND state IN ('leased', 'running', 'stale')",
                (state, self._clock() + LEASE_SECONDS, state == "queued", lease.item, lease.owner),
            )
            if not done.rowcount:
                raise StudyError(f"The lease of '{lease.item}' has passed to another runner.")

    def cancel(self, candidate: str) -> int:
        """Take a candidate's waiting items off the queue; return how many."""
        with self._database() as database:
            done = database.execute(
                "UPDATE items SET state = 'cancelled' WHERE candidate = ? AND state = 'queued'",
                (candidate,),
            )
            return done.rowcount

    def reap(self) -> None:
        """Bring items in line with the ledger whose lease ran out or whose owner is gone."""
        recovery.recover(self.study)
        with self._database() as database:
            rows = database.execute(
                "SELECT * FROM items WHERE state IN ('leased', 'running', 'stale')"
            ).fetchall()
            free = [row for row in rows if row["until"] < self._clock() or _is_abandoned(row)]
            # Read after that: whoever is gone has written all that it ever will.
            runs = self.study.history().runs.values() if free else ()
            # How the last attempt at every seed ended.
            outcomes = {(run.candidate, run.phase, run.seed): run.outcome for run in runs}
            for row in free:
                outcome = outcomes.get((row["candidate"], row["phase"], row["seed"]))
                if outcome == "":
                    state = "stale"  # nobody reports it, and its process is alive
                elif outcome is None or outcome == "lost":
                    state = "queued" if row["attempts"] < ATTEMPTS else "failed"
                else:
                    state = "done" if outcome == "done" else "failed"
                database.execute("UPDATE items SET state = ? WHERE id = ?", (state, row["id"]))

    def peek(self) -> QueueItem | None:
        """Return what would be leased next."""
        waiting = [item for item in self.manifest().items if item.state == "queued"]
        return min(waiting, key=lambda item: PHASES.index(item.phase), default=None)

    def manifest(self) -> QueueManifest:
        """Return all items."""
        if self.study.flat:
            return QueueManifest()
        with self._database() as database:
            rows = database.execute("SELECT * FROM items ORDER BY added, id").fetchall()
        names = ("id", "candidate", "phase", "seed", "state", "owner", "pid", "attempts")
        items = [QueueItem(**{name: row[name] for name in names}) for row in rows]
        return QueueManifest(items=tuple(items))

    def step(self, *, confirm: str | None = None, actor: str) -> RunRecord | None:
        """Run the next item to its end; return its record, or None if nothing waits.

        `confirm` is that of `start`.
        """
        begun = self.start(confirm=confirm, actor=actor)
        if begun is None:
            return None
        lease, run = begun
        while True:
            record = self.poll(lease, run)
            if record is not None:
                return record
            time.sleep(recovery.POLL_SECONDS)

    def start(self, *, confirm: str | None = None, actor: str) -> tuple[Lease, str] | None:
        """Launch the next item; return its lease and the run's name, or None if nothing waits.

        Args:
            confirm: The token of that item's dry run; None where a person has confirmed a loop,
                which launches whatever was approved.
            actor: In whose name.

        Raises:
            OverBudget: There is no budget for it; it waits on.
            Busy: Nothing more may run at the same time; it waits on.
            Refused: The launch is refused; the item is marked as failed.
        """
        lease = self.lease(_process_name(os.getpid()))
        if lease is None:
            return None
        try:
            planned = launcher.launch(
                self.study, lease.candidate, lease.phase, lease.seed, confirm=confirm, actor=actor
            )
        except (budget.OverBudget, budget.Busy):
            self.move(lease, "queued")
            raise
        except StudyError as error:
            self.move(lease, "failed")
            raise Refused(lease.candidate, error) from None
        self.move(lease, "running")
        self._renewed[lease.item] = self._clock()
        return lease, planned.run

    def poll(self, lease: Lease, run: str) -> RunRecord | None:
        """Return the record of a run that was started here if it is over; else keep its lease."""
        record = recovery.poll(self.study, run)
        if record is not None:
            self.move(lease, "done" if record.outcome == "done" else "failed")
        elif self._clock() - self._renewed.get(lease.item, 0.0) > LEASE_SECONDS / 4:
            self.move(lease, "running")
            self._renewed[lease.item] = self._clock()
        return record


def _process_name(pid: int) -> str:
    return f"{platform.node()}-{pid}"


def _is_abandoned(row: sqlite3.Row) -> bool:
    """Return whether the owner of an item was a process of this machine that has ended."""
    if row["owner"] != _process_name(row["pid"]):
        return False  # of another machine: only the end of its lease tells
    try:
        return bool(psutil.Process(row["pid"]).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
