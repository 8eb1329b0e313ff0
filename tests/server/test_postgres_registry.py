"""The registry in PostgreSQL: the contract, and a store on top of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer, run_postgres
from registry_contract import SPEC, P, RegistryContract

from assay.core.errors import ConfigError
from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.store.postgres import PostgresRegistry
from assay.server.store.sql import Registry
from assay.server.store.store import Ack, Incoming, Refused, Store, iterate


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


class TestPostgresRegistry(RegistryContract):
    @pytest.fixture
    def opener(self, server: PostgresServer) -> Callable[[], Registry]:
        schema = server.schema()
        return lambda: PostgresRegistry(server.url, schema=schema)


def incoming(seq: int) -> Incoming:
    return Incoming(P, "ada", 1, seq, 1, b"%d" % seq)


def contents(store: Store) -> list[int]:
    return [int(one.payload) for one in iterate(store, P)]


def test_a_store_works_the_same_on_it(server: PostgresServer, tmp_path: Path) -> None:
    schema = server.schema()
    with Store(tmp_path, PostgresRegistry(server.url, schema=schema)) as store:
        store.register(SPEC)
        store.open_session(P, "ada")
        assert store.append([incoming(1), incoming(1), incoming(2)])[2] == Ack(1, 2, 2)
        epoch = store.registry.open_learner(P).epoch
        assert store.publish(P, epoch, 1, b"weights") == 1
    with Store(tmp_path, PostgresRegistry(server.url, schema=schema)) as again:
        assert contents(again) == [1, 2]
        assert again.append([incoming(2), incoming(3)]) == [Ack(1, 2, 3, True), Ack(1, 3, 3)]


def test_an_index_behind_the_segments_catches_up(server: PostgresServer, tmp_path: Path) -> None:
    schema = server.schema()
    with Store(tmp_path, PostgresRegistry(server.url, schema=schema)) as store:
        store.register(SPEC)
        store.open_session(P, "ada")
        store.append([incoming(n) for n in range(1, 6)])
        store.registry.forget_batches_after(P, 2)  # as an old backup would have it
    with Store(tmp_path, PostgresRegistry(server.url, schema=schema)) as again:
        assert contents(again) == [1, 2, 3, 4, 5]


def test_a_restart_of_the_database_refuses_and_then_goes_on(
    server: PostgresServer, tmp_path: Path
) -> None:
    with Store(tmp_path, PostgresRegistry(server.url, schema=server.schema())) as store:
        store.register(SPEC)
        store.open_session(P, "ada")
        store.append([incoming(1)])
        server.stop()
        for _ in range(2):
            (refused,) = store.append([incoming(2)])
            assert isinstance(refused, Refused)
            assert refused.error.reason == Reason.RESOURCE_EXHAUSTED
        server.start()
        assert store.append([incoming(2)]) == [Ack(1, 2, 2)]
        assert contents(store) == [1, 2]


def test_a_commit_that_came_through_unheard_does_no_harm(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(tmp_path, PostgresRegistry(server.url, schema=server.schema())) as store:
        store.register(SPEC)
        store.open_session(P, "ada")
        store.append([incoming(1)])
        add = store.registry.add_batches

        def unheard(batches: object) -> None:
            add(batches)  # type: ignore[arg-type]
            raise StoreError("the connection broke")

        with monkeypatch.context() as patch:
            patch.setattr(store.registry, "add_batches", unheard)
            assert isinstance(store.append([incoming(2)])[0], Refused)
        assert store.append([incoming(2), incoming(3)]) == [Ack(1, 2, 3), Ack(1, 3, 3)]
        assert contents(store) == [1, 2, 3]


def test_one_server_per_schema(server: PostgresServer) -> None:
    schema = server.schema()
    first = PostgresRegistry(server.url, schema=schema)
    with pytest.raises(StoreError, match="Another server uses the schema"):
        PostgresRegistry(server.url, schema=schema)
    other = PostgresRegistry(server.url, schema=server.schema())
    first.close()
    PostgresRegistry(server.url, schema=schema).close()
    other.close()


def test_another_stores_registry_is_refused(server: PostgresServer, tmp_path: Path) -> None:
    schema = server.schema()
    with Store(tmp_path / "one", PostgresRegistry(server.url, schema=schema)) as store:
        store.register(SPEC)
    registry = PostgresRegistry(server.url, schema=schema)
    with pytest.raises(StoreError, match="belongs to another store"):
        Store(tmp_path / "two", registry)
    registry.close()


def test_what_postgresql_cannot_keep_is_refused(server: PostgresServer) -> None:
    registry = PostgresRegistry(server.url, schema=server.schema())
    registry.add_policy(SPEC)
    with pytest.raises(RejectionError) as refused:
        registry.open_session(P, "a\0b")
    assert refused.value.reason == Reason.MALFORMED
    assert registry.open_session(P, "ada") == 1
    registry.close()


def test_a_database_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(StoreError, match="PostgreSQL failed"):
        PostgresRegistry(f"postgresql:///x?host={tmp_path}")
    with pytest.raises(ConfigError, match="cannot be the name of a schema"):
        PostgresRegistry("postgresql:///x", schema='a"; DROP')
