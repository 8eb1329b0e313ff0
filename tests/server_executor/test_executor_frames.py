from __future__ import annotations

import json
import math
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.server.executor import frames
from assay.server.executor.frames import FrameError, pack, receive, send, unpack

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@pytest.fixture
def link() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def _soon() -> float:
    return time.monotonic() + 30


def _frame(text: bytes, sizes: tuple[int, ...] = (), rest: bytes = b"") -> bytes:
    head = struct.pack("<III", frames.MAGIC, len(text), len(sizes))
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + text + rest


@settings(max_examples=40)
@given(st.dictionaries(st.text(), _JSON), st.lists(st.binary()))
def test_what_is_packed_is_unpacked(head: dict[str, object], blobs: list[bytes]) -> None:
    assert unpack(b"".join(pack(head, blobs))) == (head, tuple(blobs))


def test_messages_follow_each_other_on_a_socket(
    link: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = link
    sent = [({"n": n}, (bytes([n]) * n * 100_000, b"")) for n in range(4)]

    def write() -> None:
        for head, blobs in sent:
            send(ours, pack(head, blobs), until=math.inf)
        ours.close()

    thread = threading.Thread(target=write)
    thread.start()
    assert [receive(theirs, until=_soon()) for _ in sent] == sent
    with pytest.raises(EOFError):
        receive(theirs, until=_soon())
    thread.join()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "begins with"),
        (struct.pack("<III", frames.MAGIC, frames.MAX_HEAD + 1, 0), "head of a message has"),
        (struct.pack("<III", frames.MAGIC, 2, frames.MAX_BLOBS + 1), "blobs; at most"),
        (struct.pack("<IIIQ", frames.MAGIC, 2, 1, frames.MAX_BYTES + 1), "bytes in blobs"),
        # Each below the limit, together above it; also where the sum does not fit 64 bits.
        (_frame(b"{}", (frames.MAX_BYTES // 2 + 1,) * 2), "bytes in blobs"),
        (_frame(b"{}", ((1 << 64) - 1, (1 << 64) - 1)), "bytes in blobs"),
        (_frame(b"[1]"), "a list; expected an object"),
        (_frame(b"{"), "not JSON"),
        (_frame(b'{"a": \xff\xff}'), "not JSON"),
        (_frame(b'{"a":' + b"[" * 1_000_000), "not JSON"),
        (_frame(b'{"a":' + b"9" * 10_000 + b"}"), "not JSON"),
        (_frame(b""), "not JSON"),
    ],
)
def test_hostile_frames_are_refused(
    link: tuple[socket.socket, socket.socket], data: bytes, reason: str
) -> None:
    ours, theirs = link
    threading.Thread(target=ours.sendall, args=(data,), daemon=True).start()
    with pytest.raises(FrameError, match=reason):
        receive(theirs, until=_soon())
    with pytest.raises(FrameError, match=reason):
        unpack(data)


def test_a_large_claim_takes_no_memory(link: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = link
    ours.sendall(_frame(b"{}", (frames.MAX_BYTES,), b"x" * 1000))
    ours.close()
    tracemalloc.start()
    try:
        with pytest.raises(EOFError):
            receive(theirs, until=_soon())
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cut", [0, 5, 12, 15, 20, 23, 30])
def test_a_frame_that_is_cut_off_is_an_end(
    link: tuple[socket.socket, socket.socket], cut: int
) -> None:
    whole = _frame(b"{}", (20,), b"x" * 20)
    ours, theirs = link
    ours.sendall(whole[:cut])
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs, until=_soon())
    with pytest.raises(FrameError, match="cut off"):
        unpack(whole[:cut])


def test_what_follows_a_message_is_refused() -> None:
    with pytest.raises(FrameError, match="3 bytes follow"):
        unpack(_frame(b"{}") + b"abc")


@settings(max_examples=150)
@given(st.data())
def test_a_changed_byte_never_does_harm(data: st.DataObject) -> None:
    whole = bytearray(b"".join(pack({"method": "x", "n": [1, 2]}, [b"ab", b"cde"])))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    try:
        head, blobs = unpack(bytes(whole))
    except FrameError:
        return
    assert isinstance(head, dict)
    assert sum(map(len, blobs)) <= len(whole)


def test_a_peer_that_says_nothing_is_given_up(link: tuple[socket.socket, socket.socket]) -> None:
    _, theirs = link
    with pytest.raises(TimeoutError):
        receive(theirs, until=time.monotonic() + 0.05)


def test_a_peer_that_trickles_is_given_up_as_a_whole(
    link: tuple[socket.socket, socket.socket],
) -> None:
    """The time is that of the message, not that of each of its bytes."""
    ours, theirs = link
    stop = threading.Event()

    def trickle() -> None:
        for byte in _frame(b"{}", (10_000,), b"x" * 10_000):
            if stop.wait(0.01):
                return
            ours.send(bytes([byte]))

    thread = threading.Thread(target=trickle)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            receive(theirs, until=time.monotonic() + 0.2)
    finally:
        stop.set()
        thread.join()


def test_a_peer_that_does_not_read_is_given_up(
    link: tuple[socket.socket, socket.socket],
) -> None:
    ours, _ = link
    with pytest.raises(TimeoutError):
        send(ours, pack({}, [bytes(8 << 20)]), until=time.monotonic() + 0.05)


def test_what_is_too_large_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_BYTES", 10)
    monkeypatch.setattr(frames, "MAX_HEAD", 20)
    monkeypatch.setattr(frames, "MAX_BLOBS", 2)
    assert pack({"a": 1}, [b"12345", b"12345"])
    for head, blobs in [({"a": "x" * 30}, []), ({}, [b"1234567", b"1234"]), ({}, [b""] * 3)]:
        with pytest.raises(FrameError, match="at most"):
            pack(head, blobs)
    with pytest.raises(FrameError, match="JSON"):
        pack({"a": object()})


def test_a_head_is_compact_json() -> None:
    (piece,) = pack({"a": [1, 2]})
    assert json.loads(piece[12:]) == {"a": [1, 2]}
