"""Hostile input, sent to a gateway in a process of its own whose memory is watched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
import zstandard
from gateway_support import SPEC, Client, batch, refused
from players import numbers_in
from served import Forge, peak_memory

from assay.server.crc import crc32c
from assay.server.errors import Reason
from assay.server.protocol import PROTOCOL
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import Box
from assay.server.tensors import FRAME_BYTES

MB = 1 << 20


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc to know how much memory a process had at most")
    with Forge(listen="127.0.0.1:0") as made:
        yield made.start()


@pytest.fixture(scope="module")
def channel(forge: Forge) -> Iterator[grpc.Channel]:
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(forge.address, options) as made:
        yield made


def resealed(one: pb.Batch, tensors: bytes, **fields: object) -> pb.Batch:
    """Return a batch with other bytes and a checksum that fits them."""
    copy = pb.Batch()
    copy.CopyFrom(one)
    copy.tensors, copy.size = tensors, len(tensors)
    copy.raw_size, copy.crc32c = len(tensors), crc32c(tensors)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def bomb(one: pb.Batch) -> pb.Batch:
    """Return a frame of some kilobytes that says honestly that it unpacks to 4 GB."""
    data = zstandard.ZstdCompressor().compress(bytes(64 * MB))
    return resealed(one, data, codec=pb.ZSTD, raw_size=4 << 30)


def lying_bomb(one: pb.Batch) -> pb.Batch:
    """Return the same, which says that it is small."""
    data = zstandard.ZstdCompressor().compress(bytes(128 * MB))
    return resealed(one, data, codec=pb.ZSTD, raw_size=1000)


def huge_shape(one: pb.Batch) -> pb.Batch:
    """Return a tensor of a few bytes whose shape has a trillion numbers."""
    tensors = pb.TensorMap.FromString(one.tensors)
    tensors.tensors[0].tensor.shape[:] = [1 << 20, 1 << 20]
    return resealed(one, tensors.SerializeToString())


def many_steps(one: pb.Batch) -> pb.Batch:
    return resealed(one, one.tensors, steps=2**32 - 1)


def many_tensors(one: pb.Batch) -> pb.Batch:
    tensors = pb.TensorMap()
    for i in range(100_000):
        tensors.tensors.add(name=str(i))
    return resealed(one, tensors.SerializeToString())


def many_parts(one: pb.Batch) -> pb.Batch:
    return resealed(one, one.tensors, parts=2**32 - 1, size=2**40)


ATTACKS = {
    bomb: Reason.TRAJECTORY_TOO_LARGE,
    lying_bomb: Reason.DECOMPRESSED_TOO_LARGE,
    huge_shape: Reason.WRONG_SHAPE,
    many_steps: Reason.WRONG_SHAPE,
    many_tensors: Reason.DECOMPRESSED_TOO_LARGE,
    many_parts: Reason.TRAJECTORY_TOO_LARGE,
}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_it_is_refused_before_memory_is_taken(
    forge: Forge, channel: grpc.Channel, attack: Callable[[pb.Batch], pb.Batch]
) -> None:
    client = Client(channel, attack.__name__)
    client.register()
    epoch = client.open().epoch
    client.put(batch(epoch, 1))  # whatever is loaded at the first batch is loaded now
    before = peak_memory(forge.pid)
    hostile = attack(batch(epoch, 2))
    ack = client.put(hostile)
    assert [one.reason for one in ack.rejections] == [ATTACKS[attack]]
    assert (ack.epoch, ack.committed) == (epoch, 1)
    stream = client.stream()
    stream.send(hostile, hostile)
    good = batch(epoch, 2)
    stream.send(good)
    stream.wait_committed(2)
    stream.cancel()
    assert peak_memory(forge.pid) - before < 32 * MB


def test_a_frame_above_the_limit_is_not_read(forge: Forge, channel: grpc.Channel) -> None:
    client = Client(channel, "large")
    client.register()
    epoch = client.open().epoch
    before = peak_memory(forge.pid)
    large = resealed(batch(epoch, 1), bytes(16 * FRAME_BYTES))
    assert refused(client.put, large).reason is Reason.FRAME_TOO_LARGE
    assert peak_memory(forge.pid) - before < 32 * MB


def test_a_spec_that_would_need_all_memory_is_refused(forge: Forge, channel: grpc.Channel) -> None:
    client = Client(channel, "spec")
    before = peak_memory(forge.pid)
    wide = SPEC.canonical().decode().replace('"shape":[3]', '"shape":[1000000,1000000]')
    assert wide != SPEC.canonical().decode()
    nested = '{"name":' + "[" * 50_000 + "]" * 50_000 + "}"
    for text in (wide, nested, "{" + '"a":1,' * 400_000 + '"b":2}'):
        request = pb.RegisterRequest(protocol=PROTOCOL, spec_json=text)
        error = refused(client.call, client.session.Register, request)
        assert error.reason in (Reason.BAD_SPEC, Reason.FRAME_TOO_LARGE), error
    assert peak_memory(forge.pid) - before < 32 * MB


def test_the_id_in_no_message_makes_anyone_somebody_else(
    forge: Forge, channel: grpc.Channel
) -> None:
    victim, thief = Client(channel, "victim"), Client(channel, "thief")
    victim.register()
    epoch = victim.open().epoch
    assert victim.put(batch(epoch, 1)).committed == 1
    thief.open()
    # The thief knows the victim's epoch and next number; they count for the thief's session alone.
    for stolen in (batch(epoch, 2), batch(epoch + 5, 2)):
        try:
            ack = thief.put(stolen)
            assert ack.committed == 0
        except grpc.RpcError as error:
            assert error.code() is not grpc.StatusCode.UNKNOWN, error
    assert victim.put(batch(epoch, 2)).committed == 2
    # Metadata that is not an id is refused, and not bent into one.
    for name in ("../victim", "victim\t", " ", "v" * 200, "-victim"):
        liar = Client(channel, name)
        with pytest.raises((grpc.RpcError, ValueError)):
            liar.open()


def test_other_spaces_under_a_known_name_are_refused(forge: Forge, channel: grpc.Channel) -> None:
    client = Client(channel, "spaces")
    client.register()
    other = SPEC.model_copy(update={"observation": Box(shape=(2,))})
    assert refused(client.register, other).reason is Reason.SPEC_CONFLICT
    error = refused(client.open, spec_hash=other.hash())
    assert error.reason is Reason.SPEC_CONFLICT


def test_afterwards_it_still_works(forge: Forge, channel: grpc.Channel) -> None:
    client = Client(channel, "after")
    client.register()
    epoch = client.open().epoch
    for seq in range(1, 20):
        one = batch(epoch, seq, rewards=np.arange(4) + 4 * (seq - 1))
        assert client.put(one).committed == seq
    forge.end()
    numbers = numbers_in(forge.config["data"])
    assert numbers["after"] == list(range(76))
    assert numbers["victim"] == [1] * 8 and "thief" not in numbers
