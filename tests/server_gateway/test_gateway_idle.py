"""Calls that are begun and left, and places that are taken: nobody is kept out by them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from gateway_support import SPEC, WAIT, Puppets, Running, batch, running, wait_for

from assay.core.errors import ConfigError
from assay.server.errors import Reason
from assay.server.gateway import ingest
from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb
from assay.server.rejections import rejection_of
from assay.server.tensors import TRAJECTORY_BYTES, split


class Silent:
    """A stream that says nothing."""

    def __init__(self, server: Running) -> None:
        self._over = threading.Event()
        self.call = server.client().ingest.Stream(self._requests(), timeout=WAIT)

    def _requests(self) -> Iterator[Any]:
        self._over.wait(2 * WAIT)
        return
        yield

    def refusal(self) -> Reason:
        """Return why the server has ended it."""
        try:
            with pytest.raises(grpc.RpcError) as caught:
                next(self.call)
        finally:
            self._over.set()
        found = rejection_of(caught.value)
        assert found is not None, caught.value
        return found.reason


def test_a_stream_without_a_credential_ends_before_it_says_anything(tmp_path: Path) -> None:
    with running(tmp_path, tokens=True) as server:
        assert Silent(server).refusal() is Reason.UNAUTHENTICATED


def test_a_stream_that_says_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "_FIRST_SECONDS", 0.1)
    with running(tmp_path) as server:
        assert Silent(server).refusal() is Reason.MALFORMED


def test_a_batch_that_is_left_unfinished_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest, "_PART_SECONDS", 0.2)
    with running(tmp_path) as server:
        client = server.client()
        client.register()
        epoch = client.open().epoch
        stream = client.stream()
        stream.send(*list(split(batch(epoch, 1, steps=300_000)))[:-1])
        assert stream.ended().reason is Reason.RESOURCE_EXHAUSTED
        wait_for(lambda: server.gateway.hub.assembling == 0, "its memory is free")
        stream = client.stream()  # the session itself goes on
        stream.send(batch(epoch, 1))
        stream.wait_committed(1)


def test_one_client_cannot_hold_the_memory_for_large_batches(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        hog, other = server.client("hog"), server.client("other")
        hog.register()
        epoch = hog.open().epoch
        large = batch(epoch, 1, steps=1_200_000)
        assert 2 * large.ByteSize() > TRAJECTORY_BYTES
        streams = [hog.stream() for _ in range(3)]
        for stream in streams:
            stream.send(*list(split(large))[:-1])
        refusals = [(1, Reason.RESOURCE_EXHAUSTED)] * 2
        wait_for(lambda: sum(bool(one.rejections) for one in streams) == 2, "two are refused")
        assert [one.rejections[0] for one in streams if one.rejections] == refusals
        assert server.gateway.hub.assembling <= TRAJECTORY_BYTES
        epoch = other.open().epoch
        stream = other.stream()
        stream.send(*split(batch(epoch, 1, steps=300_000)))
        stream.wait_committed(1)
        for one in streams:
            one.cancel()


def test_a_unix_socket_is_its_owners_alone_and_one_servers(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    before = os.umask(0)
    try:
        with running(tmp_path / "one", listen=f"unix:{path}") as server:
            assert path.stat().st_mode & 0o777 == 0o600
            with pytest.raises(ConfigError, match="another server listens there"):
                running(tmp_path / "two", listen=f"unix:{path}").__enter__()
            client = server.client(channel=grpc.insecure_channel(f"unix:{path}"))
            assert client.register().created
    finally:
        os.umask(before)


def test_a_unix_socket_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("somebody's")
    for path, why in ((tmp_path / "notes", "a file of this name"), (tmp_path / "no/s", "cannot")):
        with pytest.raises(ConfigError, match=why):
            running(tmp_path / "data", listen=f"unix:{path}").__enter__()
    assert (tmp_path / "notes").read_text() == "somebody's"


def test_policies_that_are_registered_at_once_are_not_more_than_allowed(tmp_path: Path) -> None:
    executor = Puppets()
    executor.validate_seconds = 0.3  # so that all of them have begun before the first is there
    with running(tmp_path, executor_object=executor, max_policies=2) as server:
        client = server.client()
        requests = [
            pb.RegisterRequest(protocol=PROTOCOL, spec_json=spec.canonical().decode())
            for spec in (SPEC.model_copy(update={"name": f"p{n}"}) for n in range(6))
        ]
        calls = [
            client.session.Register.future(one, metadata=client.metadata, timeout=WAIT)
            for one in requests
        ]
        refused = [rejection_of(error) for call in calls if (error := call.exception())]
        assert [one and one.reason for one in refused] == [Reason.QUOTA_EXCEEDED] * 4
        assert len(server.gateway.hub.policies) == 2
