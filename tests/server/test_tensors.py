"""Batches come out as they went in, and nothing else comes in."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from server_samples import SPECS, experience

from assay.server.crc import crc32c
from assay.server.errors import Reason, RejectionError
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import MOST_LOG_PROB, MOST_VALUE, Box
from assay.server.tensors import (
    FRAME_BYTES,
    TRAJECTORY_BYTES,
    Array,
    Assembler,
    Experience,
    Layout,
    bootstrap_rows,
    decode,
    encode,
    split,
)

FLOATS = st.floats(-(2.0**39), 2.0**39, width=32)
LAYOUTS = {name: Layout(spec) for name, spec in SPECS.items()}
GOES_ON = {name: np.zeros(5, np.bool_) for name in ("terminated", "truncated")}


def assert_same(one: Experience, other: Experience) -> None:
    assert one.fields.keys() == other.fields.keys()
    for name, array in one.fields.items():
        np.testing.assert_array_equal(array, other.fields[name])
        assert array.dtype == other.fields[name].dtype
    for name in ("epoch", "seq", "episode", "start_step", "dropped", "patches"):
        assert getattr(one, name) == getattr(other, name)


def forged(name: str = "vector", steps: int = 5, **changes: Array | None) -> pb.Batch:
    """Return a batch with a right checksum whose arrays were replaced, by the standard writer."""
    batch = encode(experience(SPECS[name], steps), LAYOUTS[name])
    tensors = pb.TensorMap.FromString(batch.tensors)
    kept = [one for one in tensors.tensors if changes.get(one.name, 0) is not None]
    for extra in changes.keys() - {one.name for one in kept}:
        if changes[extra] is not None:
            kept.append(pb.NamedTensor(name=extra))
    for one in kept:
        array = changes.get(one.name)
        if array is not None:
            one.tensor.data = array.tobytes()
            one.tensor.shape[:] = array.shape
            one.tensor.dtype = getattr(pb, array.dtype.name.upper())
    return sealed(batch, pb.TensorMap(tensors=kept).SerializeToString())


def sealed(batch: pb.Batch, raw: bytes) -> pb.Batch:
    """Put a tensor map into a batch with the numbers that belong to it."""
    batch.tensors, batch.size, batch.raw_size, batch.crc32c = raw, len(raw), len(raw), crc32c(raw)
    return batch


def reason_of(batch: pb.Batch, name: str = "vector") -> Reason:
    with pytest.raises(RejectionError) as refused:
        decode(batch, LAYOUTS[name])
    return refused.value.reason


@given(
    name=st.sampled_from(sorted(SPECS)),
    steps=st.integers(1, 40),
    seed=st.integers(0, 1000),
    compress=st.booleans(),
    event=st.booleans(),
    patches=st.dictionaries(st.integers(0, 2**64 - 1), FLOATS, max_size=3),
    frame=st.sampled_from([FRAME_BYTES, 1500]),
)  # fmt: skip
@settings(max_examples=50, deadline=None)
def test_a_batch_comes_out_as_it_went_in(
    name: str, steps: int, seed: int, compress: bool, event: bool, patches: Any, frame: int
) -> None:
    header = {"epoch": 3, "seq": 9, "episode": 2, "start_step": 7, "dropped": 1, "patches": patches}
    sent = experience(SPECS[name], steps, seed, event=event, **header)
    assembler = Assembler()
    whole = None
    for part in split(encode(sent, LAYOUTS[name], compress=compress), frame):
        data = part.SerializeToString()
        assert len(data) <= frame
        assert whole is None
        whole = assembler.add(pb.Batch.FromString(data))
    assert whole is not None
    assert_same(decode(whole, LAYOUTS[name]), sent)


@given(name=st.sampled_from(sorted(SPECS)), steps=st.integers(1, 300), seed=st.integers(0, 100))
@settings(max_examples=50, deadline=None)
def test_the_map_is_what_the_standard_serialiser_writes(name: str, steps: int, seed: int) -> None:
    layout = LAYOUTS[name]
    batch = encode(experience(SPECS[name], steps, seed), layout)
    standard = pb.TensorMap.FromString(batch.tensors)
    assert standard.SerializeToString() == batch.tensors
    # In another order it is the same map, which the quick way does not recognise.
    turned = pb.TensorMap(tensors=reversed(standard.tensors))
    assert_same(
        decode(sealed(batch, turned.SerializeToString()), layout),
        experience(SPECS[name], steps, seed),
    )


def test_late_rewards_can_travel_alone() -> None:
    sent = Experience(epoch=1, seq=4, fields={}, patches={7: 0.5})
    got = decode(encode(sent, LAYOUTS["vector"]), LAYOUTS["vector"])
    assert (got.steps, got.patches) == (0, {7: 0.5})
    with pytest.raises(RejectionError, match="no steps"):
        encode(Experience(epoch=1, seq=4, fields={}), LAYOUTS["vector"])


@pytest.mark.parametrize(
    ("terminated", "truncated", "rows"),
    [
        ([0, 0, 0], [0, 0, 0], 1),  # goes on
        ([0, 0, 1], [0, 0, 0], 0),
        ([0, 0, 0], [0, 0, 1], 1),
        ([0, 1, 0], [1, 0, 0], 2),
        ([1, 0, 1], [1, 0, 1], 0),  # where both are set, it is over
    ],
)
def test_what_is_bootstrapped_from(terminated: list[int], truncated: list[int], rows: int) -> None:
    flags = {"terminated": np.array(terminated, bool), "truncated": np.array(truncated, bool)}
    assert bootstrap_rows(flags) == rows


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("vector", {"obs": np.full((5, 8), np.nan, np.float32)}, Reason.NOT_FINITE),
        ("vector", {"reward": np.array([0, 0, np.inf, 0, 0], np.float32)}, Reason.NOT_FINITE),
        ("vector", {"log_prob": np.full(5, -np.inf, np.float32)}, Reason.NOT_FINITE),
        ("vector", {"action": np.array([0, 1, 2, 3, 4])}, Reason.ACTION_OUT_OF_BOUNDS),
        ("vector", {"action": np.array([0, 1, 2, 3, -1])}, Reason.ACTION_OUT_OF_BOUNDS),
        ("vector", {"action": np.zeros(5, np.int32)}, Reason.WRONG_DTYPE),
        ("vector", {"action": np.zeros((5, 1), np.int64)}, Reason.WRONG_SHAPE),
        ("vector", {"obs": np.zeros((6, 8), np.float32)}, Reason.WRONG_SHAPE),
        ("vector", {"version": np.array([0, 0, 0, 0, -1])}, Reason.BAD_VERSION),
        ("vector", {"version": np.array([0, 0, 0, 0, 99])}, Reason.BAD_VERSION),
        ("vector", {"reward": None}, Reason.MISSING_TENSOR),
        ("vector", {"bootstrap": None}, Reason.MISSING_TENSOR),
        ("vector", {"obs/extra": np.zeros(5)}, Reason.UNKNOWN_TENSOR),
        ("nested", {"action": np.full((5, 2), 0.51, np.float32)}, Reason.ACTION_OUT_OF_BOUNDS),
        ("nested", {"action": np.full((5, 2), -0.1, np.float32)}, Reason.ACTION_OUT_OF_BOUNDS),
        ("nested", {"action": np.full((5, 2), np.nan, np.float32)}, Reason.NOT_FINITE),
        ("free", {"action": np.full((5, 1), np.inf, np.float32)}, Reason.NOT_FINITE),
        ("free", {"action": np.full((5, 1), 1.1e12, np.float32)}, Reason.ACTION_OUT_OF_BOUNDS),
        ("free", {"raw_action": np.full((5, 1), -3e38, np.float32)}, Reason.ACTION_OUT_OF_BOUNDS),
        ("vector", {"reward": np.full(5, 3e38, np.float32)}, Reason.REWARD_OUT_OF_BOUNDS),
        ("vector", {"reward": np.full(5, -1.1e12, np.float32)}, Reason.REWARD_OUT_OF_BOUNDS),
        ("vector", {"log_prob": np.full(5, -1.1e6, np.float32)}, Reason.BAD_LOG_PROB),
        ("vector", {"log_prob": np.full(5, 3e38, np.float32)}, Reason.BAD_LOG_PROB),
        ("vector", {"obs": np.full((5, 8), 1e38, np.float32)}, Reason.OBSERVATION_OUT_OF_BOUNDS),
        (
            "vector",
            {"bootstrap": np.full((1, 8), -1e13, np.float32), **GOES_ON},
            Reason.OBSERVATION_OUT_OF_BOUNDS,
        ),
        ("nested", {"obs/mode/0": np.full(5, 1)}, Reason.OBSERVATION_OUT_OF_BOUNDS),
        ("nested", {"obs/mode/1": np.full((5, 3), 2, np.int8)}, Reason.OBSERVATION_OUT_OF_BOUNDS),
        ("multi", {"action": np.full((5, 3), 2)}, Reason.ACTION_OUT_OF_BOUNDS),
        ("bits", {"action": np.full((5, 6), -1, np.int8)}, Reason.ACTION_OUT_OF_BOUNDS),
    ],
)
def test_content_that_a_learner_must_not_see(
    name: str, changes: dict[str, Any], reason: Reason
) -> None:
    assert reason_of(forged(name, **changes), name) == reason


def test_what_is_just_within_the_limits_passes() -> None:
    most = np.full((5, 1), MOST_VALUE, np.float32)
    decode(forged("free", action=most, raw_action=-most), LAYOUTS["free"])
    large = {"reward": -most[:, 0], "log_prob": np.full(5, -MOST_LOG_PROB, np.float32)}
    decode(forged(obs=np.full((5, 8), MOST_VALUE, np.float32), **large), LAYOUTS["vector"])


def test_limits_hold_in_every_float_type() -> None:
    for dtype, good, bad in (
        ("float16", [np.finfo(np.float16).max], [np.inf]),
        ("float32", [1e12, -1e12], [1.01e12, -3e38]),
        ("float64", [1e12, -1e12], [1e12 + 1, 1e300]),
    ):
        layout = Layout(
            SPECS["vector"].model_copy(update={"observation": Box(shape=(1,), dtype=dtype)})
        )
        (check,) = [one.check for one in layout.steps if one.name == "obs"]
        assert check is not None
        for value in good:
            assert check(np.array([[0.0], [value]], dtype)) is None
        for value in [*bad, np.nan]:
            assert check(np.array([[0.0], [1.0], [value], [0.0]], dtype)) == 2
        assert check(np.zeros((0, 1), dtype)) is None


def test_a_flag_is_zero_or_one() -> None:
    batch = forged()
    tensors = pb.TensorMap.FromString(batch.tensors)
    for one in tensors.tensors:
        if one.name == "terminated":
            one.tensor.data = b"\0\0\2\0\0"
    assert reason_of(sealed(batch, tensors.SerializeToString())) == Reason.BAD_FLAG


def test_the_message_names_tensor_value_and_place() -> None:
    bad = np.zeros((5, 8), np.float32)
    bad[3, 2] = np.nan
    with pytest.raises(RejectionError, match=r"'obs' holds nan at \[3, 2\]"):
        decode(forged(obs=bad), LAYOUTS["vector"])
    large = np.array([0, 2e15, 0, 0, 0], np.float32)
    with pytest.raises(
        RejectionError, match=r"'reward' holds .* at \[1\]; expected 1e\+12"
    ) as caught:
        decode(forged(reward=large), LAYOUTS["vector"])
    assert "Scale it" in (caught.value.fix or "")


def test_numbers_around_the_tensors_must_fit() -> None:
    def changed(**values: Any) -> pb.Batch:
        batch = encode(experience(SPECS["vector"], 5), LAYOUTS["vector"])
        for key, value in values.items():
            setattr(batch, key, value)
        return batch

    assert reason_of(changed(crc32c=1)) == Reason.CHECKSUM_MISMATCH
    assert reason_of(changed(codec=7)) == Reason.UNSUPPORTED_CODEC
    assert reason_of(changed(seq=0)) == Reason.MALFORMED
    assert reason_of(changed(epoch=0)) == Reason.MALFORMED
    assert reason_of(changed(steps=0)) == Reason.MALFORMED
    assert reason_of(changed(size=3)) == Reason.MALFORMED
    assert reason_of(changed(steps=6)) == Reason.WRONG_SHAPE
    assert reason_of(changed(parts=2)) == Reason.MALFORMED
    assert reason_of(changed(raw_size=TRAJECTORY_BYTES + 1)) == Reason.TRAJECTORY_TOO_LARGE
    assert reason_of(changed(raw_size=100_000)) == Reason.DECOMPRESSED_TOO_LARGE
    assert reason_of(changed(version=12345)) == Reason.BAD_VERSION
    patched = changed()
    patched.patch.event_id.append(1)
    assert reason_of(patched) == Reason.MALFORMED
    patched.patch.reward.append(math.nan)
    assert reason_of(patched) == Reason.NOT_FINITE
    patched.patch.reward[-1] = -2e12
    assert reason_of(patched) == Reason.REWARD_OUT_OF_BOUNDS


@pytest.mark.parametrize("honest", [True, False])
def test_a_decompression_bomb_is_not_unpacked(honest: bool) -> None:
    size = 2 * TRAJECTORY_BYTES
    bomb = zstandard.ZstdCompressor().compress(bytes(size))
    batch = sealed(encode(experience(SPECS["vector"], 1000), LAYOUTS["vector"]), bomb)
    batch.codec = pb.ZSTD
    # Either it says what it is, or it claims to be as large as a batch may be.
    batch.raw_size = size if honest else 50_000
    tracemalloc.start()
    reason = reason_of(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason == (Reason.TRAJECTORY_TOO_LARGE if honest else Reason.DECOMPRESSED_TOO_LARGE)
    assert peak < 1 << 20


def test_a_frame_that_hides_its_size_is_refused() -> None:
    raw = encode(experience(SPECS["vector"], 5), LAYOUTS["vector"]).tensors
    writer = zstandard.ZstdCompressor(write_content_size=False)
    batch = sealed(encode(experience(SPECS["vector"], 5), LAYOUTS["vector"]), writer.compress(raw))
    batch.codec, batch.raw_size = pb.ZSTD, len(raw)
    assert reason_of(batch) == Reason.DECOMPRESSED_TOO_LARGE


def test_a_trajectory_above_the_limit_is_not_sent() -> None:
    image = Box(shape=(1 << 20,), dtype="uint8")
    layout = Layout(SPECS["vector"].model_copy(update={"observation": image}))
    fields = {one.name: np.zeros((65, *one.shape), one.dtype) for one in layout.steps}
    fields["bootstrap"] = np.zeros((1, 1 << 20), np.uint8)
    with pytest.raises(RejectionError) as refused:
        encode(Experience(epoch=1, seq=1, fields=fields), layout)
    assert refused.value.reason == Reason.TRAJECTORY_TOO_LARGE


def test_encode_refuses_what_does_not_fit() -> None:
    good = experience(SPECS["vector"], 5)
    for changes, reason in (
        ({"action": np.full(5, 0.7)}, Reason.WRONG_DTYPE),
        ({"obs": np.zeros((5, 9), np.float32)}, Reason.WRONG_SHAPE),
        ({"bootstrap": np.zeros((3, 8), np.float32)}, Reason.WRONG_SHAPE),
        ({"more": np.zeros(5)}, Reason.UNKNOWN_TENSOR),
    ):
        fields = {**good.fields, **changes}
        with pytest.raises(RejectionError) as refused:
            encode(Experience(epoch=1, seq=1, fields=fields), LAYOUTS["vector"])
        assert refused.value.reason == reason
    fields = {name: array for name, array in good.fields.items() if name != "obs"}
    with pytest.raises(RejectionError, match="'obs' is missing"):
        encode(Experience(epoch=1, seq=1, fields=fields), LAYOUTS["vector"])


class TestParts:
    def parts(self, seq: int = 1) -> list[pb.Batch]:
        sent = experience(SPECS["vector"], 100, seq=seq)
        return list(split(encode(sent, LAYOUTS["vector"]), 2048))

    def refused(self, assembler: Assembler, part: pb.Batch) -> Reason:
        with pytest.raises(RejectionError) as refused:
            assembler.add(part)
        return refused.value.reason

    def test_a_missing_part_is_noticed_and_the_next_batch_is_fine(self) -> None:
        first, second, third, *_ = self.parts()
        assembler = Assembler()
        assert assembler.add(first) is None
        assert self.refused(assembler, third) == Reason.PART_OUT_OF_ORDER
        assert self.refused(assembler, second) == Reason.PART_OUT_OF_ORDER
        whole = [assembler.add(part) for part in self.parts(2)]
        assert whole[-1] is not None
        assert whole[-1].seq == 2

    def test_parts_of_two_batches_do_not_mix(self) -> None:
        assembler = Assembler()
        assembler.add(self.parts(1)[0])
        assert self.refused(assembler, self.parts(2)[1]) == Reason.PART_OUT_OF_ORDER
        assembler.add(self.parts(1)[0])
        assert self.refused(assembler, self.parts(2)[0]) == Reason.PART_OUT_OF_ORDER

    def test_limits_hold_before_anything_is_kept(self) -> None:
        assembler = Assembler()
        huge = self.parts()[0]
        huge.size = TRAJECTORY_BYTES + 1
        assert self.refused(assembler, huge) == Reason.TRAJECTORY_TOO_LARGE
        wide = pb.Batch(parts=2, size=TRAJECTORY_BYTES, tensors=bytes(FRAME_BYTES + 1))
        assert self.refused(assembler, wide) == Reason.FRAME_TOO_LARGE

    def test_no_more_comes_in_than_was_announced(self) -> None:
        assembler = Assembler()
        first, second, *_ = self.parts()
        first.size = second.size = len(first.tensors) + 1
        assembler.add(first)
        assert self.refused(assembler, second) == Reason.MALFORMED

    def test_empty_parts_cannot_go_on_forever(self) -> None:
        part = self.parts()[0]
        part.tensors = b""
        assert self.refused(Assembler(), part) == Reason.MALFORMED


def outcome(data: bytes, name: str) -> Reason | None:
    """Do what the server does with a frame, and return why it was refused, if it was."""
    try:
        batch = pb.Batch.FromString(data)
    except Exception as error:  # what gRPC answers itself
        assert type(error).__name__ == "DecodeError"
        return Reason.MALFORMED
    try:
        whole = Assembler().add(batch)
        if whole is not None:
            decode(whole, LAYOUTS[name])
    except RejectionError as error:
        return error.reason
    return None


@given(st.binary(max_size=400), st.sampled_from(sorted(SPECS)))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(data: bytes, name: str) -> None:
    assert outcome(data, name) is not None
    batch = encode(experience(SPECS[name], 3), LAYOUTS[name])
    assert outcome(sealed(batch, data).SerializeToString(), name) is not None


def test_mutated_batches_crash_nothing_and_take_little_memory() -> None:
    rng = np.random.default_rng(0)
    seen: set[Reason | None] = set()
    frames = {name: encode(experience(spec, 20), LAYOUTS[name]) for name, spec in SPECS.items()}
    squeezed = encode(experience(SPECS["multi"], 200), LAYOUTS["multi"], compress=True)
    assert squeezed.codec == pb.ZSTD
    tracemalloc.start()
    for number in range(1500):
        name = sorted(frames)[number % len(frames)]
        batch = pb.Batch()
        batch.CopyFrom(squeezed if name == "multi" and number % 2 else frames[name])
        inside = number % 3 > 0  # with a right checksum, so that the reader gets to see it
        data = bytearray(batch.tensors if inside else batch.SerializeToString())
        for _ in range(rng.integers(1, 4)):
            kind, at = rng.integers(4), int(rng.integers(len(data)))
            if kind == 0:
                data[at] = rng.integers(256)
            elif kind == 1:
                del data[at : at + int(rng.integers(1, 9))]
            elif kind == 2:
                data[at:at] = rng.bytes(int(rng.integers(1, 9)))
            else:
                # The heads are where the lengths and shapes are.
                data[int(rng.integers(min(len(data), 40)))] = rng.integers(256)
            data = data or bytearray(b"\0")
        if inside:
            batch.tensors, batch.size, batch.crc32c = bytes(data), len(data), crc32c(bytes(data))
            if batch.codec == pb.RAW:
                batch.raw_size = len(data)
        seen.add(outcome(batch.SerializeToString() if inside else bytes(data), name))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20
    # The fuzz gets past the first door.
    assert {Reason.MALFORMED, Reason.WRONG_SHAPE, Reason.UNKNOWN_TENSOR, None} <= seen


@pytest.mark.parametrize(
    "raw",
    [
        b"\x0a\x00" * (1 << 20),  # a million empty tensors
        b"\x0a\xff\xff\xff\xff\x0f",  # one of 4 GiB
        b"\x0a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",  # a length without end
        b"\x0a\x08\x12\x06\x12\x04" + b"\xff" * 4,  # a shape without end
        b"\x0a\x0f\x12\x0d\x12\x0b" + b"\x01" * 11,  # eleven dimensions
    ],
)  # fmt: skip
def test_a_hostile_map_costs_no_memory(raw: bytes) -> None:
    batch = sealed(encode(experience(SPECS["vector"], 5), LAYOUTS["vector"]), raw)
    batch.steps = 1 << 20  # as many as a client may claim
    tracemalloc.start()
    reason = reason_of(batch)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reason in (Reason.MALFORMED, Reason.WRONG_SHAPE)
    # `batch.tensors` is a copy by itself.
    assert peak < len(raw) + (1 << 18)


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_map_that_ends_early_is_refused_wherever_it_ends(name: str) -> None:
    whole = encode(experience(SPECS[name], 3), LAYOUTS[name])
    for end in range(len(whole.tensors)):
        batch = pb.Batch()
        batch.CopyFrom(whole)
        assert outcome(sealed(batch, whole.tensors[:end]).SerializeToString(), name) is not None


def test_a_huge_shape_is_refused_by_its_number() -> None:
    batch = forged()
    tensors = pb.TensorMap.FromString(batch.tensors)
    tensors.tensors[0].tensor.shape[:] = [(1 << 32) - 1] * 2
    assert reason_of(sealed(batch, tensors.SerializeToString())) == Reason.WRONG_SHAPE
