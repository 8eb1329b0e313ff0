"""Differences between models: they come out exactly, or not at all."""

from __future__ import annotations

import hashlib
import random
import struct
import sys
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from assay.policies.model_file import MAX_HEADER
from assay.server.model_delta import (
    MAGIC,
    DeltaError,
    apply_delta,
    have_zstd,
    make_delta,
)

PREAMBLE = 8 + 32 + 32 + 8 + 8


def file(weights: np.ndarray, header: bytes = b'{"a":1}') -> bytes:
    return struct.pack("<Q", len(header)) + header + weights.astype("<f4").tobytes()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


RNG = np.random.default_rng(0)
WEIGHTS = RNG.normal(size=20_000) * 0.03
BASE = file(WEIGHTS)
RESULT = file(WEIGHTS + RNG.normal(size=20_000) * 3e-5, b'{"a":1,"b":2}   ')
FOUND = make_delta(BASE, RESULT)
assert FOUND is not None
DELTA: bytes = FOUND


def frame(raw: bytes, **options: object) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(raw)  # type: ignore[arg-type]


def preamble(**changes: object) -> bytes:
    """Return the head of a difference, with something in it changed."""
    values = {
        "magic": MAGIC,
        "base": hashlib.sha256(BASE).digest(),
        "result": hashlib.sha256(RESULT).digest(),
        "size": len(RESULT),
        "head": 8 + 16,
    } | changes
    return struct.pack("<8s32s32sQQ", *values.values())


def test_a_difference_leads_to_the_very_bytes() -> None:
    assert len(DELTA) < 0.7 * len(RESULT)  # low bits alone have changed
    assert apply_delta(BASE, DELTA, sha(RESULT)) == RESULT
    assert apply_delta(BASE, DELTA, sha(RESULT).upper(), most_bytes=len(RESULT)) == RESULT
    back = make_delta(RESULT, BASE)  # a rollback
    assert back is not None and apply_delta(RESULT, back, sha(BASE)) == BASE


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 400),
    st.binary(max_size=40),
    st.binary(max_size=40),
    st.integers(0, 2**32 - 1),
    st.floats(0, 1),
)
def test_any_two_of_equal_tensors(
    count: int, old: bytes, new: bytes, seed: int, share: float
) -> None:
    rng = np.random.default_rng(seed)
    before = rng.integers(0, 256, 4 * count, np.uint8)
    after = np.where(rng.random(4 * count) < share, rng.integers(0, 256, 4 * count), before)
    base = struct.pack("<Q", len(old)) + old + before.tobytes()
    result = struct.pack("<Q", len(new)) + new + after.astype(np.uint8).tobytes()
    delta = make_delta(base, result, margin=1e9)
    assert delta is not None
    assert apply_delta(base, delta, sha(result)) == result


def test_what_is_not_worth_it_or_not_alike_has_no_difference() -> None:
    assert make_delta(BASE, file(RNG.normal(size=20_000))) is None  # nearly as large as the whole
    assert make_delta(BASE, file(WEIGHTS[:-1])) is None
    assert make_delta(BASE, b"") is None
    assert make_delta(BASE, struct.pack("<Q", 2**60) + RESULT[8:]) is None
    assert make_delta(b"\0" * 7, RESULT) is None
    assert make_delta(file(WEIGHTS[:0]), file(WEIGHTS[:0]), margin=1e9) is None
    assert make_delta(BASE, BASE + b"\0", margin=1e9) is None


def test_another_base_or_result_is_refused() -> None:
    with pytest.raises(DeltaError, match="another base"):
        apply_delta(RESULT, DELTA, sha(RESULT))
    with pytest.raises(DeltaError, match="leads to"):
        apply_delta(BASE, DELTA, sha(BASE))
    with pytest.raises(DeltaError, match="not a SHA-256"):
        apply_delta(BASE, DELTA, "nothing")
    with pytest.raises(DeltaError, match="or fewer"):
        apply_delta(BASE, DELTA, sha(RESULT), most_bytes=len(RESULT) - 1)
    for cut in (0, 1, PREAMBLE):
        with pytest.raises(DeltaError, match="torn"):
            apply_delta(BASE, DELTA[:cut], sha(RESULT))


BODY = DELTA[PREAMBLE:]
BIG = 1 << 40


@pytest.mark.parametrize(
    ("delta", "why"),
    [
        (preamble(magic=b"AssayD02") + BODY, "begins with"),
        (preamble(size=BIG) + BODY, "or fewer"),
        (preamble(size=2**64 - 1) + BODY, "or fewer"),
        (preamble(size=len(RESULT) + 4) + BODY, "of tensors"),
        (preamble(head=7) + BODY, "header of 7"),
        (preamble(head=len(RESULT) + 8) + BODY, "header of"),
        (preamble(head=8 + MAX_HEADER + 1, size=8 + MAX_HEADER + 1 + 80_000) + BODY, "header of"),
        (preamble(head=28) + BODY, "of tensors"),
        (preamble() + b"no frame", "unpacked"),
        (preamble() + BODY[:-3], "unpacked"),
        (preamble() + BODY + b"more", "unpacked"),
        (preamble() + frame(bytes(1 << 24)), "states that it unpacks to 16777216"),
        (preamble() + frame(bytes(len(RESULT)), write_content_size=False), "states that it"),
        (preamble() + frame(bytes(len(RESULT))), "does not lead to"),
    ],
)
def test_hostile_differences_are_refused_by_name(delta: bytes, why: str) -> None:
    with pytest.raises(DeltaError, match=why):
        apply_delta(BASE, delta, sha(RESULT))


def test_a_window_larger_than_what_comes_out_is_refused() -> None:
    # Frame header: magic, a descriptor with an 8-byte content size, a window of 128 MiB.
    body = struct.pack("<IBBQ", 0xFD2FB528, 0xC0, (27 - 10) << 3, len(RESULT)) + b"\1\0\0"
    assert zstandard.get_frame_parameters(body).window_size == 1 << 27
    with pytest.raises(DeltaError, match="window of 134217728"):
        apply_delta(BASE, preamble() + body, sha(RESULT))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, len(DELTA) - 1), st.integers(0, 255)), min_size=1, max_size=8
    ),
    st.integers(0, len(DELTA)),
    st.binary(max_size=24),
)
@example([(PREAMBLE + 4, 0xFF)], len(DELTA), b"")
@example([(PREAMBLE - 9, 0xFF)], len(DELTA), b"")
def test_mutated_differences_never_crash_and_never_take_more_than_stated(
    changes: list[tuple[int, int]], keep: int, tail: bytes
) -> None:
    mutated = bytearray(DELTA)
    for at, value in changes:
        mutated[at] = value
    delta = bytes(mutated[:keep]) + tail
    tracemalloc.start()
    try:
        result: bytes | None = apply_delta(BASE, delta, sha(RESULT))
    except DeltaError:
        result = None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert result in (None, RESULT)  # the very bytes, or none
    assert peak < 2 * len(RESULT) + 2 * len(delta) + 200_000


def test_structured_nonsense_never_crashes() -> None:
    rng = random.Random(1)
    for _ in range(300):
        size = rng.choice([0, 1, 24, len(RESULT), len(RESULT) + 4, BIG, 2**64 - 1])
        head = rng.choice([0, 8, 24, 25, len(RESULT), BIG, 2**64 - 1])
        body = frame(rng.randbytes(rng.randrange(2000)))
        with pytest.raises(DeltaError):
            apply_delta(BASE, preamble(size=size, head=head) + body, sha(RESULT))


def test_without_zstandard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert not have_zstd()
    assert make_delta(BASE, RESULT) is None
    with pytest.raises(DeltaError, match="not installed"):
        apply_delta(BASE, DELTA, sha(RESULT))
