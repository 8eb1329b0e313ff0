"""The registry in PostgreSQL, for those who run one anyway: it has the backups and the failover.

Segments and blobs stay files beside the server. PostgreSQL's own log makes a change durable, so
that there is no journal; what the index of batches misses comes from the segments, as ever.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from assay.core.errors import ConfigError, MissingExtraError
from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.store.sql import SCHEMA, Registry, statements

if TYPE_CHECKING:
    import psycopg

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,50}")
_LOCK_SECONDS = 5.0


class PostgresRegistry(Registry):
    """A registry in a schema of a PostgreSQL database.

    A connection that breaks is made again for the next call; the call that it broke in is refused,
    and whether it took effect shows in what is read next.

    Args:
        url: Such as `postgresql://user@host/database`.
        schema: Where the tables are; made if missing.
        clock: Seconds since the epoch.

    Raises:
        StoreError: It cannot be reached, or another server uses this schema.
    """

    def __init__(
        self, url: str, *, schema: str = "assay", clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(clock)
        if not _NAME.fullmatch(schema):
            raise ConfigError(
                f"'{schema}' cannot be the name of a schema.",
                "Use small letters, digits and _, and begin with a letter.",
            )
        try:
            import psycopg
        except ImportError:
            raise MissingExtraError("psycopg", "postgres", "A store in PostgreSQL") from None
        self._psycopg = psycopg
        self._url = url
        self._schema = schema
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        with self._failures(), self._lock:
            self._connected()

    @property
    def broken(self) -> bool:
        """Say no: a connection that fails is opened again."""
        return False

    def close(self) -> None:
        """Let go of the database."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is not None and not self._connection.broken:
            return self._connection
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        connection = self._psycopg.connect(
            self._url, autocommit=True, connect_timeout=10, application_name="assay"
        )
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        # An acknowledgement is a promise, whatever the server's default.
        connection.execute("SET synchronous_commit = on")
        # Held by the session: it goes when this process does, however that ends.
        digest = hashlib.sha256(f"assay registry {self._schema}".encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        # A server that has just stopped may hold it for another moment.
        end = time.monotonic() + _LOCK_SECONDS
        while True:
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", (number,)).fetchone()
            if (row is not None and row[0]) or time.monotonic() > end:
                break
            time.sleep(0.05)
        if row is None or not row[0]:
            raise StoreError(
                f"Another server uses the schema '{self._schema}' of this database.",
                "Stop that server, or choose another schema.",
            )
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {self._schema}".encode())
        connection.execute(f"SET search_path TO {self._schema}".encode())
        for statement in statements():
            connection.execute(statement.encode())
        row = connection.execute("SELECT value FROM meta WHERE name = 'schema'").fetchone()
        if row is None or row[0] != str(SCHEMA):
            raise StoreError(
                f"The registry has schema {row and row[0]}; this version of Assay knows {SCHEMA}.",
                "Use the version of Assay that wrote it.",
            )

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn the database's errors into ours."""
        try:
            yield
        except self._psycopg.IntegrityError as error:
            text = error.diag.message_primary or "it is there already"
            raise RejectionError(Reason.MALFORMED, f"The registry refused a row: {text}.") from None
        except self._psycopg.DataError as error:
            text = error.diag.message_primary or str(error)
            raise RejectionError(
                Reason.MALFORMED, f"The registry cannot keep this: {text}."
            ) from None
        except self._psycopg.Error as error:
            text = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
            raise StoreError(
                f"PostgreSQL failed: {text.rstrip('.')}.", "Check that it runs and has space."
            ) from None

    def _write(self, change: str, **arguments: Any) -> Any:
        with self._failures(), self._lock, self._connected().transaction():
            return getattr(self, f"_do_{change}")(**arguments)

    def _write_index(self, work: Callable[[], Any]) -> Any:
        with self._failures(), self._lock, self._connected().transaction():
            return work()

    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._failures(), self._lock:
            return self._connected().execute(_translated(sql), values).fetchall()

    def _run(self, sql: str, *values: Any) -> int:
        return self._connected().execute(_translated(sql), values).rowcount

    def _run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        with self._connected().cursor() as cursor:
            cursor.executemany(_translated(sql), rows)


def _translated(sql: str) -> bytes:
    # None of our statements has a question mark or a percent sign of its own.
    return sql.replace("?", "%s").encode()
