"""The registry in SQLite: the contract, and what only it promises."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from registry_contract import MODEL, SPEC, P, RegistryContract, batch
from server_samples import SPECS

from assay.core.errors import ConfigError
from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.store.log import SegmentLog
from assay.server.store.registry import STABLE, Quota, Totals, Verb
from assay.server.store.sql import Registry
from assay.server.store.sqlite import DATABASE, JOURNAL, SqliteRegistry
from assay.server.store.tokens import authenticate, make_token


class TestSqliteRegistry(RegistryContract):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Callable[[], Registry]:
        return lambda: SqliteRegistry(tmp_path)


class TestRebuiltEveryTime(RegistryContract):
    """The same, with the database deleted whenever it is opened again: the journal knows all."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Callable[[], Registry]:
        def opened() -> Registry:
            for path in tmp_path.glob(f"{DATABASE}*"):
                path.unlink()
            return SqliteRegistry(tmp_path)

        return opened

    # The index of batches is built from the segments, which this registry has none of.
    test_batches_are_indexed_in_order = None
    test_trimmed_batches_stay_committed = None


class TestSnapshotEveryTime(RegistryContract):
    """The same, with a journal that begins again whenever it is opened again."""

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Callable[[], Registry]:
        return lambda: SqliteRegistry(tmp_path, snapshot_after=0)


def filled(directory: Path) -> tuple[SqliteRegistry, str]:
    registry = SqliteRegistry(directory)
    registry.add_policy(SPEC)
    registry.open_session(P, "ada")
    epoch = registry.open_learner(P).epoch
    registry.advance(P, epoch, 3, model=MODEL)
    registry.set_quota(P, "ada", Quota(steps=5))
    text, token = make_token("ada", {P: frozenset({Verb.READ})})
    registry.add_token(token)
    registry.add_batches([batch(n, n) for n in range(1, 4)])
    registry.trim(P, 3)
    return registry, text


def assert_filled(registry: SqliteRegistry, text: str) -> None:
    assert registry.policy(P).spec == SPEC
    assert registry.epoch(P, "ada") == 1
    assert registry.learner(P).position == 3
    assert registry.model(P, 1).sha256 == MODEL.sha256
    assert registry.channel(P, STABLE).version == 1
    assert registry.quota(P, "ada") == Quota(steps=5)
    assert authenticate(registry, text, now=0.0).principal == "ada"


def damage(path: Path, how: str) -> None:
    if how == "zeroed":
        path.write_bytes(bytes(path.stat().st_size))
    elif how == "cut":
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size // 2)
    elif how == "scrambled":
        data = bytearray(path.read_bytes())
        for start in range(4096, len(data), 4096):
            data[start : start + 64] = os.urandom(64)
        path.write_bytes(data)
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["zeroed", "cut", "scrambled", "gone"])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_damaged_database_is_built_again(tmp_path: Path, how: str, snapshot: bool) -> None:
    registry, text = filled(tmp_path)
    registry.close()
    if snapshot:
        SqliteRegistry(tmp_path, snapshot_after=0).close()
    damage(tmp_path / DATABASE, how)
    again = SqliteRegistry(tmp_path)
    assert bool(again.repairs) == (how != "gone")
    assert_filled(again, text)
    # Trimmed batches are nowhere else; the one that was kept is in the segments.
    assert again.committed(P, "ada", 1) == 2
    assert again.totals(P) == Totals(2, 20, 200)
    again.close()


def test_a_database_that_lost_its_last_changes_catches_up(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path)
    registry.add_policy(SPEC)
    registry.close()
    old = tmp_path / "old"
    shutil.copy(tmp_path / DATABASE, old)
    registry = SqliteRegistry(tmp_path)
    assert [registry.open_session(P, "ada") for _ in range(3)] == [1, 2, 3]
    registry.close()
    os.replace(old, tmp_path / DATABASE)
    again = SqliteRegistry(tmp_path)
    assert again.open_session(P, "ada") == 4
    assert again.repairs == []  # that is what a power cut looks like
    again.close()


def test_a_journal_that_lost_its_end_is_written_again(tmp_path: Path) -> None:
    registry, text = filled(tmp_path)
    registry.close()
    (segment,) = (tmp_path / JOURNAL).glob("*.seg")
    damage(segment, "cut")
    again = SqliteRegistry(tmp_path)
    assert any("lost changes" in repair for repair in again.repairs)
    assert_filled(again, text)
    again.close()
    (tmp_path / DATABASE).unlink()
    rebuilt = SqliteRegistry(tmp_path)
    assert rebuilt.repairs == []
    assert_filled(rebuilt, text)
    rebuilt.close()


def flip_record(directory: Path, number: int) -> None:
    """Damage one change of the journal."""
    log = SegmentLog(directory / JOURNAL)
    place = [one[0] for one in log.scan() if isinstance(one, tuple)][number]
    log.close()
    path = log.path_of(place.segment)
    data = bytearray(path.read_bytes())
    data[place.offset + place.size - 1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_flipped_bit_in_the_journal_loses_nothing(tmp_path: Path, number: int) -> None:
    registry, text = filled(tmp_path)
    registry.close()
    flip_record(tmp_path, number)
    again = SqliteRegistry(tmp_path)
    assert again.repairs
    assert_filled(again, text)
    again.close()
    (tmp_path / DATABASE).unlink()  # the journal is whole again
    rebuilt = SqliteRegistry(tmp_path)
    assert rebuilt.repairs == []
    assert_filled(rebuilt, text)
    rebuilt.close()


def test_a_journal_with_a_hole_gives_what_it_can(tmp_path: Path) -> None:
    registry, text = filled(tmp_path)
    registry.close()
    flip_record(tmp_path, 2)  # the learner's first epoch
    (tmp_path / DATABASE).unlink()
    again = SqliteRegistry(tmp_path)
    assert any("Changes of the registry are lost" in one for one in again.repairs)
    assert any("('advance') cannot be made" in one for one in again.repairs)
    assert again.policy(P).spec == SPEC and again.learner(P).version == 0
    assert again.quota(P, "ada") == Quota(steps=5)
    assert authenticate(again, text, now=0.0).principal == "ada"
    again.close()
    assert SqliteRegistry(tmp_path).repairs == []


def test_a_snapshot_keeps_the_journal_short(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path, snapshot_after=5)
    registry.add_policy(SPEC)
    for _ in range(20):
        registry.open_session(P, "ada")
    assert len(list(registry._journal.scan())) <= 6
    registry.close()
    assert len(list((tmp_path / JOURNAL).glob("*.seg"))) == 1
    (tmp_path / DATABASE).unlink()
    again = SqliteRegistry(tmp_path, snapshot_after=5)
    assert again.open_session(P, "ada") == 21
    again.close()


def test_a_change_that_changes_nothing_is_not_noted(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path)
    registry.add_policy(SPEC)
    size = sum(path.stat().st_size for path in (tmp_path / JOURNAL).iterdir())
    for _ in range(3):
        registry.add_policy(SPEC)
        with pytest.raises(RejectionError):
            registry.set_state("nobody", "paused")
    assert sum(path.stat().st_size for path in (tmp_path / JOURNAL).iterdir()) == size
    registry.close()


@pytest.mark.parametrize("fails", [1, 2])
def test_a_change_whose_sync_fails_did_not_happen(tmp_path: Path, fails: int) -> None:
    left = [0]

    def sync(descriptor: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(5, "Input/output error")
        os.fdatasync(descriptor)

    registry = SqliteRegistry(tmp_path, sync=sync)
    registry.add_policy(SPEC)
    assert registry.open_session(P, "ada") == 1
    left[0] = fails
    with pytest.raises(StoreError) as failed:
        registry.open_session(P, "ada")
    assert failed.value.reason == Reason.RESOURCE_EXHAUSTED
    assert registry.epoch(P, "ada") == 1
    if fails == 1:
        assert registry.open_session(P, "ada") == 2
    else:  # taking it back failed as well, so that nobody knows what is on the disk
        with pytest.raises(StoreError, match="takes nothing"):
            registry.open_session(P, "ada")
    registry.close()
    again = SqliteRegistry(tmp_path)
    assert again.open_session(P, "ada") >= 2
    again.close()


def test_the_journal_holds_no_secret(tmp_path: Path) -> None:
    registry, text = filled(tmp_path)
    registry.close()
    secret = text.rpartition("_")[2].encode()
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes()
            assert path.stat().st_mode & 0o077 == 0, path


def test_another_schema_is_refused(tmp_path: Path) -> None:
    SqliteRegistry(tmp_path).close()
    with sqlite3.connect(tmp_path / DATABASE) as database:
        database.execute("UPDATE meta SET value = '99' WHERE name = 'schema'")
    with pytest.raises(StoreError, match="schema 99"):
        SqliteRegistry(tmp_path)


def test_a_change_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    log = SegmentLog(tmp_path / JOURNAL)
    log.write([(b'{"change": "make_coffee", "arguments": {}}',)])
    log.sync()
    log.commit()
    log.close()
    with pytest.raises(StoreError, match="'make_coffee', which this version"):
        SqliteRegistry(tmp_path)


def test_the_journal_can_be_read_by_a_person(tmp_path: Path) -> None:
    registry, _ = filled(tmp_path)
    changes = [
        json.loads(found[1])["change"] for found in registry._journal.scan()
        if isinstance(found, tuple)
    ]  # fmt: skip
    assert changes == [
        "add_policy", "open_session", "open_learner", "advance", "set_quota", "add_token", "trim"
    ]  # fmt: skip
    registry.close()


@pytest.mark.parametrize("name", ["", "a b", "x" * 200, "a\n"])
def test_a_bad_principal_gets_no_token(name: str) -> None:
    with pytest.raises(ConfigError):
        make_token(name, {P: frozenset({Verb.READ})})
    with pytest.raises(ConfigError):
        make_token("ada", {P: frozenset()})


def test_specs_of_the_samples_register(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path)
    for spec in SPECS.values():
        assert registry.add_policy(spec)
    registry.close()


def test_a_disk_that_fails_at_the_start_is_no_damage(tmp_path: Path) -> None:
    registry = SqliteRegistry(tmp_path)
    registry.add_policy(SPEC)
    registry.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # files cannot grow: much like full
    try:
        with pytest.raises(StoreError, match="database failed"):
            SqliteRegistry(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.glob("*.damaged"))
    registry = SqliteRegistry(tmp_path)
    assert registry.repairs == [] and registry.policy(P).spec == SPEC
    registry.close()
