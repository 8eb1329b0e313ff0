"""The registry in SQL that SQLite and PostgreSQL both understand.

A change is a method `_do_<name>` whose result depends on the tables and its arguments alone. The
back end runs it in a transaction, and may note its name and arguments (plain JSON) to run it again.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.spec import PolicySpec, first_difference, read_spec
from assay.server.store.log import Place
from assay.server.store.registry import (
    EVERY,
    Channel,
    IndexedBatch,
    Learner,
    ModelVersion,
    NewModel,
    Policy,
    PolicyState,
    Quota,
    Token,
    Totals,
    Verb,
    check_channel,
)

SCHEMA = 1
KEPT_MOVES = 100  # of a channel, to roll back to
_ID = "TEXT NOT NULL"
_N = "BIGINT NOT NULL"
_MARK = (
    ("policy " + _ID, "client " + _ID, "epoch " + _N, "committed " + _N, "batches " + _N,
     "steps " + _N, "bytes " + _N, "position " + _N),
    "policy, client, epoch",
)  # fmt: skip
# By name: the columns, and the primary key. What is not in INDEX can be noted and run again.
TABLES = {
    "meta": (("name " + _ID, "value " + _ID), "name"),
    "owners": (("name " + _ID, "store " + _ID), "name"),
    "policies": (
        ("name " + _ID, "hash " + _ID, "spec " + _ID, "state " + _ID,
         "created DOUBLE PRECISION NOT NULL"),
        "name",
    ),
    "sessions": (
        ("policy " + _ID, "client " + _ID, "epoch " + _N, "opened DOUBLE PRECISION NOT NULL"),
        "policy, client",
    ),
    "learners": (
        ("policy " + _ID, "epoch " + _N, "position " + _N, "version " + _N, "checkpoint TEXT"),
        "policy",
    ),
    # The checkpoint before the newest one, to go back to.
    "earlier": (("policy " + _ID, "position " + _N, "checkpoint " + _ID), "policy"),
    "models": (
        ("policy " + _ID, "version " + _N, "epoch " + _N, "sha256 " + _ID, "size " + _N,
         "architecture " + _ID, "parent " + _N, "metrics " + _ID,
         "created DOUBLE PRECISION NOT NULL"),
        "policy, version",
    ),
    "channels": (
        ("policy " + _ID, "channel " + _ID, "depth " + _N, "pinned " + _N), "policy, channel",
    ),
    "moves": (
        ("policy " + _ID, "channel " + _ID, "depth " + _N, "version " + _N),
        "policy, channel, depth",
    ),
    "quotas": (
        ("policy " + _ID, "client " + _ID, "steps BIGINT", "bytes BIGINT",
         "seconds DOUBLE PRECISION NOT NULL"),
        "policy, client",
    ),
    "tokens": (
        ("id " + _ID, "digest " + _ID, "principal " + _ID, "grants " + _ID,
         "expires DOUBLE PRECISION"),
        "id",
    ),
    "trimmed": _MARK,
    "marks": _MARK,
    "batches": (
        ("policy " + _ID, "client " + _ID, "epoch " + _N, "seq " + _N, "position " + _N,
         "segment " + _N, "start " + _N, "size " + _N, "steps " + _N),
        "policy, client, epoch, seq",
    ),
}  # fmt: skip
INDEX = ("marks", "batches")  # what the segments say anyway
_BATCH = "policy, client, epoch, seq, steps, position, segment, start, size"


def statements() -> list[str]:
    """Return what creates the tables and notes their schema."""
    made = [
        f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(columns)}, PRIMARY KEY ({key}))"
        for name, (columns, key) in TABLES.items()
    ]
    return [
        *made,
        "CREATE UNIQUE INDEX IF NOT EXISTS batches_by_position ON batches (policy, position)",
        f"INSERT INTO meta (name, value) VALUES ('schema', '{SCHEMA}') ON CONFLICT DO NOTHING",
    ]


class Registry(ABC):
    """Policies, sessions, the index of batches, the learners' progress, channels, quotas, tokens.

    Every method is atomic, safe to call from any thread, and durable when it returns, with one
    exception: the index of batches (`add_batches`) may be lost by a crash, since the store brings
    it up to date from the segments when it opens. A back end passes
    `tests/server/registry_contract.py`.

    A refusal is a `RejectionError`; a database that cannot be written is a `StoreError`. In both
    cases nothing has changed.

    Args:
        clock: Seconds since the epoch.

    Attributes:
        repairs: What was found damaged and repaired when it was opened, a sentence each.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.repairs: list[str] = []

    # What a back end provides.

    @property
    @abstractmethod
    def broken(self) -> bool:
        """Return whether nothing can be written any more until it is opened again."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the database."""

    @abstractmethod
    def _write(self, change: str, **arguments: Any) -> Any:
        """Run `_do_<change>` in a transaction that is durable when this returns."""

    @abstractmethod
    def _write_index(self, work: Callable[[], Any]) -> Any:
        """Run work on the tables of INDEX in a transaction."""

    @abstractmethod
    def _rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""

    @abstractmethod
    def _run(self, sql: str, *values: Any) -> int:
        """Run a statement within a transaction and return how many rows it touched."""

    @abstractmethod
    def _run_many(self, sql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for many rows within a transaction."""

    def _insert(self, table: str, *values: Any) -> None:
        """Add a row to a table, with its values in the order of TABLES."""
        self._run(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", *values)

    def claim(self, store: str) -> None:
        """Belong to one store from now on.

        Raises:
            StoreError: It belongs to another, whose batches it indexes.
        """
        self._write("claim", store=store)

    def _do_claim(self, store: str) -> None:
        rows = self._rows("SELECT store FROM owners")
        if not rows:
            self._insert("owners", "store", store)
        elif rows[0][0] != store:
            raise StoreError(
                f"The registry belongs to another store ({rows[0][0]}, not {store}).",
                "Give the server the data directory that this registry was made with.",
            )

    # Policies

    def add_policy(self, spec: PolicySpec) -> bool:
        """Register a policy and return whether it is new.

        Raises:
            RejectionError: SPEC_CONFLICT with the first difference, or POLICY_DELETED.
        """
        text = spec.canonical().decode()
        return bool(self._write("add_policy", spec=text, now=self._clock()))

    def _do_add_policy(self, spec: str, now: float) -> bool:
        given = read_spec(spec)
        rows = self._rows("SELECT hash, spec, state FROM policies WHERE name = ?", given.name)
        if not rows:
            self._insert("policies", given.name, given.hash(), spec, "active", now)
            self._insert("learners", given.name, 0, 0, 0, None)
            return True
        known, registered, state = rows[0]
        if state == "deleted":
            raise RejectionError(
                Reason.POLICY_DELETED,
                f"The policy '{given.name}' was deleted, and its name is not used again.",
                "Register the policy under another name.",
            )
        if known != given.hash():
            difference = first_difference(read_spec(registered), given)
            raise RejectionError(
                Reason.SPEC_CONFLICT,
                f"The policy '{given.name}' is registered with another spec: {difference}.",
                "Register it under another name, or use the spec as registered.",
            )
        return False

    def policy(self, name: str) -> Policy:
        """Return a policy; UNKNOWN_POLICY where there is none."""
        rows = self._rows("SELECT spec, hash, state, created FROM policies WHERE name = ?", name)
        if not rows:
            raise no_policy(name)
        spec, digest, state, created = rows[0]
        return Policy(read_spec(spec), digest, state, created)

    def state(self, name: str) -> PolicyState:
        """Return a policy's state; UNKNOWN_POLICY where there is none."""
        rows = self._rows("SELECT state FROM policies WHERE name = ?", name)
        if not rows:
            raise no_policy(name)
        state: PolicyState = rows[0][0]
        return state

    def policies(self) -> list[Policy]:
        """Return all policies by name."""
        rows = self._rows("SELECT spec, hash, state, created FROM policies ORDER BY name")
        return [Policy(read_spec(row[0]), *row[1:]) for row in rows]

    def set_state(self, name: str, state: PolicyState) -> None:
        """Pause, resume or delete a policy; a deleted one stays so."""
        self._write("set_state", name=name, state=state)

    def _do_set_state(self, name: str, state: PolicyState) -> None:
        self._living(name)
        self._run("UPDATE policies SET state = ? WHERE name = ?", state, name)

    def _living(self, name: str) -> None:
        if self.state(name) == "deleted":
            raise RejectionError(Reason.POLICY_DELETED, f"The policy '{name}' was deleted.")

    # Sessions

    def open_session(self, policy: str, client: str) -> int:
        """Return the next epoch of a client, which fences all earlier ones."""
        return int(self._write("open_session", policy=policy, client=client, now=self._clock()))

    def _do_open_session(self, policy: str, client: str, now: float) -> int:
        self._living(policy)
        self._run(
            "INSERT INTO sessions (policy, client, epoch, opened) VALUES (?, ?, 1, ?) "
            "ON CONFLICT (policy, client) "
            "DO UPDATE SET epoch = sessions.epoch + 1, opened = excluded.opened",
            policy, client, now,
        )  # fmt: skip
        return self.epoch(policy, client)

    def epoch(self, policy: str, client: str) -> int:
        """Return a client's newest epoch; 0 where it never opened a session."""
        sql = "SELECT epoch FROM sessions WHERE policy = ? AND client = ?"
        return self._number(sql, policy, client)

    def _number(self, sql: str, *values: Any) -> int:
        rows = self._rows(sql, *values)
        return int(rows[0][0] or 0) if rows else 0

    # The index of batches

    def add_batches(self, batches: Sequence[IndexedBatch]) -> None:
        """Index batches that are on the disk, all of them or none.

        Raises:
            RejectionError: MALFORMED, where a key or a position is there already.
        """
        rows = [
            (
                one.policy, one.client, one.epoch, one.seq, one.steps,
                one.place.position, one.place.segment, one.place.offset, one.place.size,
            )
            for one in batches
        ]  # fmt: skip
        marks: dict[tuple[str, str, int], list[int]] = {}
        for one in batches:
            mark = marks.setdefault((one.policy, one.client, one.epoch), [0, 0, 0, 0, 0])
            mark[0] = max(mark[0], one.seq)
            mark[1] += 1
            mark[2] += one.steps
            mark[3] += one.place.size
            mark[4] = max(mark[4], one.place.position)

        def work() -> None:
            self._run_many(
                f"INSERT INTO batches ({_BATCH}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
            self._add_marks("marks", [(*key, *mark) for key, mark in marks.items()])

        self._write_index(work)

    def _add_marks(self, table: str, rows: list[tuple[Any, ...]]) -> None:
        def larger(column: str) -> str:
            mine, other = f"{table}.{column}", f"excluded.{column}"
            return f"{column} = CASE WHEN {mine} > {other} THEN {mine} ELSE {other} END"

        def sum_of(column: str) -> str:
            return f"{column} = {table}.{column} + excluded.{column}"

        changes = [larger("committed"), larger("position")]
        changes += [sum_of(column) for column in ("batches", "steps", "bytes")]
        self._run_many(
            f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
            f"ON CONFLICT (policy, client, epoch) DO UPDATE SET {', '.join(changes)}",
            rows,
        )

    def committed(self, policy: str, client: str, epoch: int) -> int:
        """Return the highest number that was committed in a session; 0 for none."""
        sql = "SELECT committed FROM marks WHERE policy = ? AND client = ? AND epoch = ?"
        return self._number(sql, policy, client, epoch)

    def batches(self, policy: str, after: int, limit: int) -> list[IndexedBatch]:
        """Return batches behind a position, in the order of the log."""
        rows = self._rows(
            f"SELECT {_BATCH} FROM batches WHERE policy = ? AND position > ? "
            "ORDER BY position LIMIT ?",
            policy, after, limit,
        )  # fmt: skip
        return [_batch(row) for row in rows]

    def last_position(self, policy: str) -> int:
        """Return the position of the newest batch ever indexed; 0 for none."""
        return self._number("SELECT MAX(position) FROM marks WHERE policy = ?", policy)

    def forget_batches_after(self, policy: str, position: int) -> list[IndexedBatch]:
        """Take batches off the index that the log has lost, and return them."""

        def work() -> list[IndexedBatch]:
            where = "WHERE policy = ? AND position > ?"
            sql = f"SELECT {_BATCH} FROM batches {where} ORDER BY position"
            lost = [_batch(row) for row in self._rows(sql, policy, position)]
            self._run(f"DELETE FROM batches {where}", policy, position)
            self._mark_again(policy)
            return lost

        found: list[IndexedBatch] = self._write_index(work)
        return found

    def _mark_again(self, policy: str) -> None:
        """Count the marks of a policy from what is indexed and what was trimmed."""
        self._run("DELETE FROM marks WHERE policy = ?", policy)
        counted = self._rows(
            "SELECT policy, client, epoch, MAX(seq), COUNT(*), SUM(steps), SUM(size), "
            "MAX(position) FROM batches WHERE policy = ? GROUP BY policy, client, epoch",
            policy,
        )
        trimmed = self._rows("SELECT * FROM trimmed WHERE policy = ?", policy)
        self._add_marks("marks", [tuple(row[:3]) + tuple(map(int, row[3:])) for row in counted])
        self._add_marks("marks", trimmed)

    def trim(self, policy: str, before: int) -> int:
        """Take consumed batches off the index for good, and return how many.

        Their sessions stay committed as they were, also in an index that is built again.
        """
        where = "WHERE policy = ? AND position < ?"
        rows = self._rows(
            "SELECT client, epoch, MAX(seq), COUNT(*), SUM(steps), SUM(size), MAX(position) "
            f"FROM batches {where} GROUP BY client, epoch",
            policy, before,
        )  # fmt: skip
        if not rows:
            return 0
        marks = [[str(row[0]), *map(int, row[1:])] for row in rows]
        self._write("trim", policy=policy, before=before, marks=marks)
        return sum(mark[3] for mark in marks if isinstance(mark[3], int))

    def _do_trim(self, policy: str, before: int, marks: list[list[Any]]) -> None:
        self._add_marks("trimmed", [(policy, *mark) for mark in marks])
        self._run("DELETE FROM batches WHERE policy = ? AND position < ?", policy, before)
        self._mark_again(policy)

    def totals(self, policy: str) -> Totals:
        """Return how much was ever committed."""
        sql = "SELECT SUM(batches), SUM(steps), SUM(bytes) FROM marks WHERE policy = ?"
        return Totals(*(int(value or 0) for value in self._rows(sql, policy)[0]))

    # The learner and its models

    def open_learner(self, policy: str) -> Learner:
        """Give a trainer the next epoch, which fences all earlier ones, and where to go on."""
        self._write("open_learner", policy=policy)
        return self.learner(policy)

    def _do_open_learner(self, policy: str) -> None:
        self._living(policy)
        self._run("UPDATE learners SET epoch = epoch + 1 WHERE policy = ?", policy)

    def learner(self, policy: str) -> Learner:
        """Return how far the learner is."""
        self.state(policy)
        sql = (
            "SELECT learners.epoch, learners.position, learners.version, learners.checkpoint, "
            "earlier.checkpoint FROM learners LEFT JOIN earlier "
            "ON earlier.policy = learners.policy WHERE learners.policy = ?"
        )
        return Learner(*self._rows(sql, policy)[0])

    def drop_checkpoint(self, policy: str, epoch: int, *, both: bool) -> Learner:
        """Give up the newest checkpoint, and return where to go on.

        With `both`, the one before it is given up as well, and the cursor stays. Else the cursor
        goes back to where the earlier checkpoint belongs.

        Raises:
            RejectionError: FENCED, where a newer trainer has taken over.
        """
        self._write("drop_checkpoint", policy=policy, epoch=epoch, both=both)
        return self.learner(policy)

    def _do_drop_checkpoint(self, policy: str, epoch: int, both: bool) -> None:
        self._living(policy)
        self._refuse_fenced(policy, epoch)
        rows = self._rows("SELECT position, checkpoint FROM earlier WHERE policy = ?", policy)
        if rows and not both:
            sql = "UPDATE learners SET position = ?, checkpoint = ? WHERE policy = ?"
            self._run(sql, *rows[0], policy)
        else:
            self._run("UPDATE learners SET checkpoint = NULL WHERE policy = ?", policy)
        self._run("DELETE FROM earlier WHERE policy = ?", policy)

    def _refuse_fenced(self, policy: str, epoch: int) -> None:
        newest = self.learner(policy).epoch
        if epoch != newest:
            raise RejectionError(
                Reason.FENCED,
                f"The trainer of '{policy}' has epoch {epoch}; epoch {newest} has taken over.",
                "Stop this trainer.",
            )

    def advance(
        self,
        policy: str,
        epoch: int,
        position: int,
        *,
        checkpoint: str | None = None,
        model: NewModel | None = None,
    ) -> int:
        """Commit what was consumed and, with it, what was published.

        Args:
            policy: Whose learner.
            epoch: The trainer's own.
            position: Of the last batch consumed; never moves back.
            checkpoint: Of the learner's state at this position; None keeps the last one.
            model: Published as the next version.

        Returns:
            The newest version.

        Raises:
            RejectionError: FENCED, where a newer trainer has taken over; BAD_VERSION, where the
                position moves back or the parent does not exist.
        """
        new = None
        if model is not None:
            if model.channel is not None:
                check_channel(model.channel)
            metrics = {name: float(value) for name, value in model.metrics.items()}
            new = asdict(replace(model, metrics=metrics)) | {"now": self._clock()}
        return int(
            self._write(
                "advance", policy=policy, epoch=epoch, position=position, checkpoint=checkpoint,
                model=new,
            )
        )  # fmt: skip

    def _do_advance(
        self,
        policy: str,
        epoch: int,
        position: int,
        checkpoint: str | None,
        model: dict[str, Any] | None,
    ) -> int:
        self._living(policy)
        self._refuse_fenced(policy, epoch)
        now = self.learner(policy)
        if position < now.position:
            raise RejectionError(
                Reason.BAD_VERSION,
                f"The learner of '{policy}' would go back from position {now.position} "
                f"to {position}.",
            )
        version = now.version
        if model is not None:
            if not 0 <= model["parent"] <= version:
                raise RejectionError(
                    Reason.BAD_VERSION,
                    f"The parent {model['parent']} was never published; the newest is {version}.",
                )
            version += 1
            described = (model[name] for name in ("sha256", "size", "architecture", "parent"))
            metrics = json.dumps(model["metrics"])
            self._insert("models", policy, version, epoch, *described, metrics, model["now"])
            channel = model["channel"]
            if channel is not None and not self.channel(policy, channel).pinned:
                self._move(policy, channel, version)
        if checkpoint is not None and now.checkpoint not in (None, checkpoint):
            self._run(
                "INSERT INTO earlier (policy, position, checkpoint) VALUES (?, ?, ?) "
                "ON CONFLICT (policy) DO UPDATE SET position = excluded.position, "
                "checkpoint = excluded.checkpoint",
                policy, now.position, now.checkpoint,
            )  # fmt: skip
        self._run(
            "UPDATE learners SET position = ?, version = ?, "
            "checkpoint = COALESCE(?, checkpoint) WHERE policy = ?",
            position, version, checkpoint, policy,
        )  # fmt: skip
        return version

    def model(self, policy: str, version: int) -> ModelVersion:
        """Return a version; UNKNOWN_VERSION where there is none."""
        rows = self._rows(f"{_MODEL} AND version = ?", policy, version)
        if not rows:
            raise self._no_version(policy, version)
        return _model(rows[0])

    def _no_version(self, policy: str, version: int) -> RejectionError:
        """Return the refusal of a version that was never there, or is there no more."""
        sql = "SELECT {} FROM models WHERE policy = ? AND version {} ?"
        before = self._number(sql.format("MAX(version)", "<"), policy, version)
        after = self._number(sql.format("MIN(version)", ">"), policy, version)
        kept = " and ".join(str(one) for one in (before, after) if one)
        return RejectionError(
            Reason.UNKNOWN_VERSION,
            f"The policy '{policy[:64]}' has no version {version}.",
            f"The nearest that it has: {kept}." if kept else None,
        )

    def find_model(self, policy: str, sha256: str) -> ModelVersion | None:
        """Return the newest version that has the snapshot with this SHA-256, or None."""
        rows = self._rows(f"{_MODEL} AND sha256 = ? ORDER BY version DESC LIMIT 1", policy, sha256)
        return _model(rows[0]) if rows else None

    def models(self, policy: str, *, newest: int = 100) -> list[ModelVersion]:
        """Return the newest versions, newest first."""
        rows = self._rows(f"{_MODEL} ORDER BY version DESC LIMIT ?", policy, newest)
        return [_model(row) for row in rows]

    def prune_models(self, policy: str, keep: int, *, minutes: int = 0, hours: int = 0) -> int:
        """Forget old versions and return how many.

        Args:
            policy: Whose.
            keep: How many of the newest stay; so do those that a channel points to or can be
                rolled back to.
            minutes: The newest version of each of so many last minutes stays, too.
            hours: And the newest of each of so many last hours.
        """
        return int(
            self._write(
                "prune_models", policy=policy, keep=keep, minutes=minutes, hours=hours,
                now=self._clock(),
            )
        )  # fmt: skip

    def _do_prune_models(
        self, policy: str, keep: int, minutes: int = 0, hours: int = 0, now: float = 0.0
    ) -> int:
        rows = self._rows(
            "SELECT version, created FROM models WHERE policy = ? AND version <= ? "
            "AND version NOT IN (SELECT version FROM moves WHERE policy = ?) ORDER BY version",
            policy, self.learner(policy).version - keep, policy,
        )  # fmt: skip
        newest: dict[tuple[int, float], int] = {}  # of each minute and hour
        for version, created in rows:
            for seconds, count in ((60, minutes), (3600, hours)):
                # A clock that was set back must not make versions stay for ever.
                if abs(now - created) < seconds * count:
                    newest[seconds, created // seconds] = version
        kept = set(newest.values())
        old = [(policy, version) for version, _ in rows if version not in kept]
        self._run_many("DELETE FROM models WHERE policy = ? AND version = ?", old)
        return len(old)

    # Channels

    def channel(self, policy: str, channel: str) -> Channel:
        """Return where a channel points; version 0 where nothing was published on it."""
        check_channel(channel)
        rows = self._rows(
            "SELECT moves.version, channels.pinned FROM channels JOIN moves ON "
            "moves.policy = channels.policy AND moves.channel = channels.channel "
            "AND moves.depth = channels.depth WHERE channels.policy = ? AND channels.channel = ?",
            policy, channel,
        )  # fmt: skip
        return Channel(rows[0][0], bool(rows[0][1])) if rows else Channel(0)

    def _move(self, policy: str, channel: str, version: int) -> None:
        if self.channel(policy, channel).version == version:
            return
        where = "WHERE policy = ? AND channel = ?"
        depth = 1 + self._number(f"SELECT depth FROM channels {where}", policy, channel)
        self._insert("moves", policy, channel, depth, version)
        self._run(
            "INSERT INTO channels (policy, channel, depth, pinned) VALUES (?, ?, ?, 0) "
            "ON CONFLICT (policy, channel) "
            "DO UPDATE SET depth = excluded.depth, pinned = excluded.pinned",
            policy, channel, depth,
        )  # fmt: skip
        self._run(f"DELETE FROM moves {where} AND depth <= ?", policy, channel, depth - KEPT_MOVES)

    def move(self, policy: str, channel: str, version: int) -> Channel:
        """Move a channel that is not pinned to a version, from where it may move on."""
        return self._change_channel("move", policy, channel, version=version)

    def _change_channel(self, change: str, policy: str, channel: str, **arguments: Any) -> Channel:
        check_channel(channel)
        self._write(change, policy=policy, channel=channel, **arguments)
        return self.channel(policy, channel)

    def _do_move(self, policy: str, channel: str, version: int) -> None:
        self._living(policy)
        self.model(policy, version)
        self._unpinned(policy, channel)
        self._move(policy, channel, version)

    def pin(self, policy: str, channel: str, version: int) -> Channel:
        """Move a channel to a version and hold it there."""
        return self._change_channel("pin", policy, channel, version=version)

    def _do_pin(self, policy: str, channel: str, version: int) -> None:
        self._living(policy)
        if not version:  # in journals of before there was `unpin`
            self._hold(policy, channel, False)
            return
        self.model(policy, version)
        self._move(policy, channel, version)
        self._hold(policy, channel, True)

    def _hold(self, policy: str, channel: str, pinned: bool) -> None:
        where = "WHERE policy = ? AND channel = ?"
        self._run(f"UPDATE channels SET pinned = ? {where}", int(pinned), policy, channel)

    def unpin(
        self, policy: str, channel: str, *, failed: Collection[int] = (), known: bool = False
    ) -> Channel:
        """Let a channel go, to the newest version that it may point to.

        Where it stays at an old version, clients send steps that an on-policy learner leaves out
        as too old. Then nothing is published, and the channel would stay there for ever.

        It does not go to `failed` versions, and with `known` to none that it has not pointed to
        before.
        """
        failing = sorted(failed)
        return self._change_channel("unpin", policy, channel, failed=failing, known=known)

    def _do_unpin(self, policy: str, channel: str, failed: list[int], known: bool) -> None:
        self._living(policy)
        self._hold(policy, channel, False)
        if known:  # pruning keeps the models of these
            sql = "SELECT version FROM moves WHERE policy = ? AND channel = ?"
            rows = self._rows(sql, policy, channel)
        else:
            rows = self._rows("SELECT version FROM models WHERE policy = ?", policy)
        newest = max({row[0] for row in rows}.difference(failed), default=0)
        if newest:
            self._move(policy, channel, newest)

    def promote(self, policy: str, source: str, target: str) -> Channel:
        """Move a channel to where another one points."""
        check_channel(source)
        check_channel(target)
        self._write("promote", policy=policy, source=source, target=target)
        return self.channel(policy, target)

    def _do_promote(self, policy: str, source: str, target: str) -> None:
        self._living(policy)
        version = self.channel(policy, source).version
        if not version:
            raise RejectionError(
                Reason.UNKNOWN_VERSION,
                f"Nothing was published on the channel '{source}' of '{policy}'.",
            )
        self._unpinned(policy, target)
        self._move(policy, target, version)

    def _unpinned(self, policy: str, channel: str) -> None:
        now = self.channel(policy, channel)
        if now.pinned:
            raise RejectionError(
                Reason.CHANNEL_PINNED,
                f"The channel '{channel}' of '{policy}' is pinned at version {now.version}.",
                f"Let it go first: assay server pin {policy} --channel {channel} --off",
            )

    def rollback(self, policy: str, channel: str) -> Channel:
        """Move a channel back to where it pointed before, and hold it there.

        Else the next publication would undo it. One that is pinned goes back as well.
        """
        return self._change_channel("rollback", policy, channel, pinned=True)

    def _do_rollback(self, policy: str, channel: str, pinned: bool = False) -> None:
        # Without `pinned` in journals of before a rollback held the channel.
        self._living(policy)
        where = "WHERE policy = ? AND channel = ?"
        depth = self._number(f"SELECT depth FROM channels {where}", policy, channel)
        earlier = self._number(
            f"SELECT COUNT(*) FROM moves {where} AND depth = ?", policy, channel, depth - 1
        )
        if not earlier:
            raise RejectionError(
                Reason.NO_EARLIER_VERSION,
                f"The channel '{channel}' of '{policy}' has no earlier version to go back to.",
            )
        self._run(f"DELETE FROM moves {where} AND depth = ?", policy, channel, depth)
        self._run(f"UPDATE channels SET depth = depth - 1 {where}", policy, channel)
        self._hold(policy, channel, pinned)

    # Quotas

    def set_quota(self, policy: str, client: str, quota: Quota | None) -> None:
        """Limit a client of a policy; `*` for every client that has no limit of its own."""
        limits = None if quota is None else [quota.steps, quota.bytes, quota.seconds]
        self._write("set_quota", policy=policy, client=client, limits=limits)

    def _do_set_quota(self, policy: str, client: str, limits: list[Any] | None) -> None:
        self._living(policy)
        self._run("DELETE FROM quotas WHERE policy = ? AND client = ?", policy, client)
        if limits is not None:
            self._insert("quotas", policy, client, *limits)

    def quota(self, policy: str, client: str) -> Quota | None:
        """Return the limit that applies to a client."""
        sql = "SELECT steps, bytes, seconds FROM quotas WHERE policy = ? AND client = ?"
        rows = self._rows(sql, policy, client) or self._rows(sql, policy, EVERY)
        return Quota(*rows[0]) if rows else None

    # Tokens

    def add_token(self, token: Token) -> None:
        """Keep a token."""
        grants = {policy: sorted(verbs) for policy, verbs in token.grants.items()}
        self._write(
            "add_token", identifier=token.id, digest=token.digest, principal=token.principal,
            grants=grants, expires=token.expires,
        )  # fmt: skip

    def _do_add_token(
        self,
        identifier: str,
        digest: str,
        principal: str,
        grants: dict[str, list[str]],
        expires: float | None,
    ) -> None:
        verbs = json.dumps(grants, sort_keys=True)
        self._insert("tokens", identifier, digest, principal, verbs, expires)

    def token(self, identifier: str) -> Token | None:
        """Return a token by its public part, unless it was revoked."""
        rows = self._rows(f"{_TOKEN} WHERE id = ?", identifier)
        return _token(rows[0]) if rows else None

    def tokens(self) -> list[Token]:
        """Return all tokens that were not revoked."""
        return [_token(row) for row in self._rows(f"{_TOKEN} ORDER BY principal, id")]

    def revoke_token(self, identifier: str) -> bool:
        """Forget a token and return whether there was one."""
        return bool(self._write("revoke_token", identifier=identifier))

    def _do_revoke_token(self, identifier: str) -> bool:
        return bool(self._run("DELETE FROM tokens WHERE id = ?", identifier))


_MODEL = (
    "SELECT policy, version, epoch, sha256, size, architecture, parent, metrics, created "
    "FROM models WHERE policy = ?"
)
_TOKEN = "SELECT id, digest, principal, grants, expires FROM tokens"


def no_policy(name: str) -> RejectionError:
    """Return the refusal of a policy that was never registered."""
    return RejectionError(
        Reason.UNKNOWN_POLICY, f"There is no policy '{name[:64]}'.", "Register it first."
    )


def _batch(row: tuple[Any, ...]) -> IndexedBatch:
    policy, client, epoch, seq, steps, position, segment, start, size = row
    return IndexedBatch(policy, client, epoch, seq, steps, Place(position, segment, start, size))


def _model(row: tuple[Any, ...]) -> ModelVersion:
    values = list(row)
    values[7] = json.loads(values[7])
    return ModelVersion(*values)


def _token(row: tuple[Any, ...]) -> Token:
    identifier, digest, principal, grants, expires = row
    verbs = {
        policy: frozenset(map(Verb, granted)) for policy, granted in json.loads(grants).items()
    }
    return Token(identifier, digest, principal, verbs, expires)
