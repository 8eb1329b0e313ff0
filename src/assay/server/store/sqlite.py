"""The registry in SQLite: the embedded default, which can be built again from plain files.

Every change is noted in a journal (a segment log) and synced before the database commits it. So
the database is a view: one that is damaged, deleted, or lost its last transactions in a power cut
is brought up to date from the journal, and the index of batches from the segments. That is also
why SQLite itself need not wait for the disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.store.log import Damage, SegmentLog, Sync
from assay.server.store.sql import INDEX, SCHEMA, TABLES, Registry, statements

DATABASE = "registry.sqlite"
JOURNAL = "journal"
# Primary codes of trouble that passes, and that a new file would have as well.
_TROUBLE = frozenset(
    {
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)
SNAPSHOT_AFTER = 20_000  # changes; then the journal begins again with a copy of the tables


class SqliteRegistry(Registry):
    """A registry in a directory of its own.

    Args:
        directory: Made if missing. One process uses it at a time; the store sees to that.
        clock: Seconds since the epoch.
        sync: How the journal is brought to the disk.
        snapshot_after: How many changes the journal holds before it begins again.

    Raises:
        StoreError: The directory cannot be written, or is of a newer version of Assay.
    """

    def __init__(
        self,
        directory: Path,
        *,
        clock: Callable[[], float] = time.time,
        sync: Sync = os.fdatasync,
        snapshot_after: int = SNAPSHOT_AFTER,
    ) -> None:
        super().__init__(clock)
        self._directory = directory
        self._lock = threading.RLock()
        try:
            self._journal = SegmentLog(directory / JOURNAL, sync=sync)
            self._database = self._open()
        except OSError as error:
            doing = f"open the registry '{directory}'"
            raise StoreError.of(error, doing) from None
        self.repairs += map(str, self._journal.damage)
        self._catch_up()
        self._snapshot_after = snapshot_after
        self._shorten_journal()

    @property
    def broken(self) -> bool:
        """Return whether the journal could not be repaired after a failure."""
        return self._journal.broken

    def close(self) -> None:
        """Let go of the database."""
        with self._lock:
            self._database.close()
            self._journal.close()

    # Opening

    def _open(self) -> sqlite3.Connection:
        path = self._directory / DATABASE
        try:
            return self._connect(path)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise _failed(error) from None
            # A view of the journal and the segments is not worth repairing.
            aside = path.with_name(f"{path.name}.damaged")
            for end in ("", "-wal", "-shm"):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(f"{path}{end}", f"{aside}{end}")
            self.repairs.append(
                f"The index '{path.name}' was damaged ({error}). It was moved to '{aside.name}' "
                "and built again from the journal and the segments"
            )
            try:
                return self._connect(path)
            except sqlite3.DatabaseError as again:
                raise _failed(again) from None

    def _connect(self, path: Path) -> sqlite3.Connection:
        # Transactions are begun by hand; the lock of this class orders the threads.
        database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            os.chmod(path, 0o600)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            found = database.execute("PRAGMA quick_check(1)").fetchone()[0]
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            for statement in statements():
                database.execute(statement)
            sql = "SELECT value FROM meta WHERE name = 'schema'"
            schema = database.execute(sql).fetchone()[0]
        except BaseException:
            database.close()
            raise
        if schema != str(SCHEMA):
            database.close()
            raise StoreError(
                f"'{path}' has schema {schema}; this version of Assay knows {SCHEMA}.",
                "Use the version of Assay that wrote it.",
            )
        return database

    def _catch_up(self) -> None:
        """Run the changes that the database has missed."""
        applied = self._noted("journal")
        if applied > self._journal.last:
            self.repairs.append(
                f"The journal '{self._journal.directory}' lost changes {self._journal.last + 1} "
                f"to {applied}, which the index still knew; it was written again"
            )
            self._journal.skip_to(applied)
            self._begin_journal_again()
            return
        lost = False
        for found in self._journal.scan(applied):
            if isinstance(found, Damage):
                self.repairs.append(f"Changes of the registry are lost: {found}")
                lost = True
                continue
            place, body = found
            change = json.loads(body)
            try:
                with self._transaction():
                    # Refused then would be refused now, and was not noted.
                    self._apply(change["change"], change["arguments"])
                    self._note("journal", place.position)
                    if change["change"] == "snapshot":
                        self._note("snapshot", place.position)
            except (RejectionError, sqlite3.Error) as error:
                if not lost:
                    raise
                self.repairs.append(
                    f"Change {place.position} of the registry ('{change['change']}') cannot be "
                    f"made without those that are lost: {error}"
                )
        if lost or any(not one.cut for one in self._journal.damage):
            # It could not be built again from what the journal has now.
            self._begin_journal_again()

    def _shorten_journal(self) -> None:
        if self._journal.last - self._noted("snapshot") > self._snapshot_after:
            self._begin_journal_again()

    def _begin_journal_again(self) -> None:
        """Write all tables into a new segment, and drop the segments before it."""
        tables = {
            name: self._rows(f"SELECT * FROM {name}")
            for name in TABLES
            if name not in INDEX and name != "meta"
        }
        self._journal.skip_to(self._journal.last + 1)  # begins a segment
        body = _render("snapshot", {"tables": tables})
        try:
            (place,) = self._journal.write([(body,)])
            self._journal.sync()
            self._journal.commit()
            with self._transaction():
                self._note("journal", place.position)
                self._note("snapshot", place.position)
            self._journal.drop_before(place.position)
        except (OSError, sqlite3.Error) as error:
            self._journal.rollback()
            raise _failed(error) from None

    def _do_snapshot(self, tables: dict[str, list[list[Any]]]) -> None:
        for name, rows in tables.items():
            places = ", ".join("?" * len(TABLES[name][0]))
            self._run(f"DELETE FROM {name}")
            self._run_many(f"INSERT INTO {name} VALUES ({places})", rows)
        for row in self._rows("SELECT name FROM policies"):
            self._mark_again(row[0])

    def _noted(self, name: str) -> int:
        return self._number("SELECT value FROM meta WHERE name = ?", name)

    def _note(self, name: str, value: int) -> None:
        self._run(
            "INSERT INTO meta (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            name, str(value),
        )  # fmt: skip

    # What the shared SQL runs on

    def _apply(self, change: str, arguments: dict[str, Any]) -> Any:
        work = getattr(self, f"_do_{change}", None)
        if work is None:
            raise StoreError(
                f"The journal '{self._journal.directory}' holds a change '{change}', which this "
                "version of Assay does not know.",
                "Use the version of Assay that wrote it.",
            )
        return work(**arguments)

    def _write(self, change: str, **arguments: Any) -> Any:
        with self._lock:
            try:
                with self._transaction():
                    before = self._database.total_changes
                    result = self._apply(change, arguments)
                    if self._database.total_changes == before:
                        return result
                    (place,) = self._journal.write([(_render(change, arguments),)])
                    self._journal.sync()
                    self._note("journal", place.position)
            except (OSError, OverflowError, sqlite3.Error) as error:
                self._journal.rollback()
                raise _failed(error) from None
            except BaseException:
                self._journal.rollback()
                raise
            self._journal.commit()
            # The change stands, whether or not there is room for this.
            with contextlib.suppress(RejectionError):
                self._shorten_journal()
            return result

    def _write_index(self, work: Callable[[], Any]) -> Any:
        try:
            with self._lock, self._transaction():
                return work()
        except sqlite3.IntegrityError as error:
            raise RejectionError(
                Reason.MALFORMED, f"A batch is indexed already ({error})."
            ) from None
        except (OverflowError, sqlite3.Error) as error:
            raise _failed(error) from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._database.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # some errors have rolled back already
                self._database.execute("ROLLBACK")
            raise

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                return self._database.execute(sql, values).fetchall()
        except (OverflowError, sqlite3.Error) as error:
            raise _failed(error) from None

    def _run(self, sql: str, *values: Any) -> int:
        return self._database.execute(sql, values).rowcount

    def _run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        self._database.executemany(sql, rows)


def _render(change: str, arguments: dict[str, Any]) -> bytes:
    return json.dumps({"change": change, "arguments": arguments}, separators=(",", ":")).encode()


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return whether it is the file that is wrong, and not a disk that is full or fails."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF not in _TROUBLE


def _failed(error: OSError | OverflowError | sqlite3.Error) -> RejectionError:
    if isinstance(error, OverflowError):
        return RejectionError(Reason.MALFORMED, "A number does not fit 64 bits with a sign.")
    if isinstance(error, OSError):
        return StoreError.of(error, "write the registry")
    return StoreError(
        f"The registry's database failed: {str(error).rstrip('.')}.",
        "Free some space; if that is not it, start the server again, which repairs the database.",
    )
