"""The gateway with its registry in PostgreSQL, also while that is away."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from gateway_support import Running, batch, refused, running, wait_for

from assay.server.errors import Reason
from assay.server.store.store import iterate

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from postgres_server import PostgresServer, run_postgres


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with run_postgres() as server:
        yield server


def with_postgres(
    directory: Path, postgres: PostgresServer, schema: str
) -> AbstractContextManager[Running]:
    from assay.server.store.postgres import PostgresRegistry

    registry = PostgresRegistry(postgres.url, schema=schema)
    return running(directory, store_options={"registry": registry})


def test_a_restart_finds_everything_again(tmp_path: Path, postgres: PostgresServer) -> None:
    schema = postgres.schema()
    with with_postgres(tmp_path, postgres, schema) as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        stream = ada.stream()
        stream.send(*(batch(epoch, seq) for seq in range(1, 21)))
        stream.wait_committed(20)
        server.puppet().publish()
        assert next(ada.watch()).version == 1
        stream.cancel()
    with with_postgres(tmp_path, postgres, schema) as server:
        ada = server.client()
        reply = ada.open(resume_epoch=epoch)
        assert (reply.epoch, reply.resumed_committed) == (epoch + 1, 20)
        assert next(ada.watch()).version == 1
        assert [one.seq for one in iterate(server.store, "queue")] == list(range(1, 21))


def test_nothing_is_acknowledged_while_the_database_is_away(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    with with_postgres(tmp_path, postgres, postgres.schema()) as server:
        ada = server.client()
        ada.register()
        epoch = ada.open().epoch
        stream = ada.stream()
        stream.send(batch(epoch, 1))
        stream.wait_committed(1)
        postgres.stop()
        try:
            stream.send(batch(epoch, 2))
            wait_for(lambda: stream.rejections)
            assert stream.rejections == [(2, Reason.RESOURCE_EXHAUSTED)]
            assert stream.committed == 1
            assert refused(ada.open).reason is Reason.RESOURCE_EXHAUSTED
        finally:
            postgres.start()

        def again() -> bool:
            stream.send(batch(epoch, 2))
            count = len(stream.rejections)
            wait_for(lambda: stream.committed == 2 or len(stream.rejections) > count)
            return stream.committed == 2

        wait_for(again)
        assert [one.seq for one in iterate(server.store, "queue")] == [1, 2]
        stream.cancel()
