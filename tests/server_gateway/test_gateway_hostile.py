"""Messages that nobody should send: each is refused by name, and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from gateway_support import SPEC, Running, batch, running, wait_for

from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb

# An error that the code did not mean to make.
UNMEANT = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
EDGES = [0, 1, 2, 31, 63, 64, 255, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 64) - 1]
TEXTS = ["", "queue", "stable", "canary", "obs", "*", "..", "../x", "a/b-v0", "ö" * 50, "x" * 3000]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("server")
    with pytest.MonkeyPatch.context() as patch, running(path, announce_seconds=0.2) as here:
        # One of the names that are tried can be exported to.
        patch.setenv("MINARI_DATASETS_PATH", str(path / "datasets"))
        here.client().register()
        here.puppet().publish()
        wait_for(lambda: here.gateway.hub.policies["queue"].infos)
        yield here


def value(field: Any, rng: np.random.Generator, depth: int) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_MESSAGE:
        return filled(field.message_type, rng, depth + 1)
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return bytes(rng.bytes(int(rng.integers(0, 40))))
        return str(rng.choice(TEXTS))
    if kind in (field.CPPTYPE_DOUBLE, field.CPPTYPE_FLOAT):
        return float(rng.choice([0.0, -1.0, 1e30, np.nan, np.inf]))
    if kind == field.CPPTYPE_BOOL:
        return bool(rng.integers(2))
    number = int(EDGES[int(rng.integers(len(EDGES)))])
    if kind == field.CPPTYPE_ENUM:
        return number % (1 << 31)
    return number % (1 << (32 if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_INT32) else 64))


def filled(descriptor: Any, rng: np.random.Generator, depth: int = 0) -> Any:
    """Return a message with something in about half of its fields."""
    message = getattr(pb, descriptor.name)()
    for field in descriptor.fields:
        if rng.random() < 0.4 or depth > 4:
            continue
        try:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                continue
            if field.is_repeated:
                items = [value(field, rng, depth) for _ in range(int(rng.integers(0, 4)))]
                getattr(message, field.name).extend(items)
            elif field.cpp_type == field.CPPTYPE_MESSAGE:
                getattr(message, field.name).CopyFrom(value(field, rng, depth))
            else:
                setattr(message, field.name, value(field, rng, depth))
        except ValueError:
            continue
    return message


def methods() -> list[tuple[Any, Any]]:
    return [
        (service, method)
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.name not in ("Drain", "Delete")
    ]


@pytest.mark.parametrize("which", methods(), ids=lambda pair: pair[1].full_name)
def test_random_fields_are_refused_by_name(server: Running, which: tuple[Any, Any]) -> None:
    service, method = which
    channel = grpc.insecure_channel(server.address)
    server.channels.append(channel)
    path = f"/{service.full_name}/{method.name}"
    kind = ("stream" if method.client_streaming else "unary") + (
        "_stream" if method.server_streaming else "_unary"
    )
    call = getattr(channel, kind)(
        path,
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=bytes,
    )
    rng = np.random.default_rng(7)
    metadata = [("assay-client", "eve")]
    answered = 0
    for _ in range(30):
        request = filled(method.input_type, rng)
        if "policy" in method.input_type.fields_by_name and rng.random() < 0.7:
            request.policy = "queue"
        sent: Any = iter([request]) if method.client_streaming else request
        try:
            result = call(sent, metadata=metadata, timeout=0.5 if "stream" in kind else 10)
            if "stream" in kind:
                for _ in result:
                    break
                result.cancel()
            answered += 1
        except grpc.RpcError as error:
            assert error.code() not in UNMEANT, (error, request)
    healthy(server)


def healthy(server: Running) -> None:
    """Make sure that the server still does its work, also where it was told to pause."""
    server.store.registry.set_state("queue", "active")
    client = server.client("ada")
    epoch = client.open().epoch
    assert client.put(batch(epoch, 1)).committed == 1


def test_random_bytes_of_tensors_are_refused_by_name(server: Running) -> None:
    from assay.server.crc import crc32c

    client = server.client("mallory")
    epoch = client.open().epoch
    rng = np.random.default_rng(3)
    good = batch(epoch, 1)
    for _ in range(300):
        data = bytearray(good.tensors)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        if rng.random() < 0.3:
            del data[int(rng.integers(len(data))) :]
        bad = pb.Batch.FromString(good.SerializeToString())
        bad.tensors, bad.size, bad.raw_size = bytes(data), len(data), len(data)
        bad.crc32c = crc32c(bytes(data))
        ack = client.put(bad)
        if ack.committed:  # a flipped bit of a reward is a reward
            epoch = client.open().epoch
            good.epoch = epoch
    healthy(server)


def test_unparsable_messages_end_their_call_alone(server: Running) -> None:
    channel = grpc.insecure_channel(server.address)
    server.channels.append(channel)
    call = channel.unary_unary(
        "/assay.v1.Session/Open", request_serializer=bytes, response_deserializer=bytes
    )
    rng = np.random.default_rng(5)
    for size in (1, 10, 1000, 100_000):
        with pytest.raises(grpc.RpcError):
            call(rng.bytes(size), timeout=20)
    with pytest.raises(grpc.RpcError):
        channel.unary_unary("/assay.v1.Session/Nothing")(b"", timeout=20)
    healthy(server)


def test_random_metadata(server: Running, tmp_path: Path) -> None:
    rng = np.random.default_rng(11)
    request = pb.OpenRequest(protocol=PROTOCOL, policy="queue")
    client = server.client()
    for _ in range(60):
        raw = "".join(chr(int(code)) for code in rng.integers(33, 127, int(rng.integers(0, 200))))
        for metadata in (
            [("authorization", raw)],
            [("authorization", f"Bearer {raw}")],
            [("authorization", f"bearer assay_{raw}")],
            [("assay-client", raw)],
            [("authorization-bin", raw.encode())],
        ):
            try:
                client.session.Open(request, metadata=metadata, timeout=20)
            except grpc.RpcError as error:
                assert error.code() is grpc.StatusCode.UNAUTHENTICATED, (metadata, error)
    assert SPEC.name in server.gateway.hub.policies
    healthy(server)
