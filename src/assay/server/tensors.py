"""Batches of steps on the wire: one packed tensor per field, pinned by the registered spec.

The server takes what a client sends as hostile. So sizes are compared with what the spec allows
before anything is unpacked, the tensor map is read in place by a reader that allocates nothing,
and the arrays that come out are views of the message. Only then is the content looked at: NaN,
infinities, numbers so large that they would become infinite in a learner, and actions out of bounds
do not reach one.

A batch above the frame limit travels in parts (`split`, `Assembler`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.core.errors import MissingExtraError
from assay.core.types import pack
from assay.server.crc import crc32c
from assay.server.errors import Reason, RejectionError
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import (
    MOST_LOG_PROB,
    MOST_VALUE,
    Box,
    Discrete,
    Leaf,
    MultiDiscrete,
    PolicySpec,
    leaf_layout,
    leaves_of,
)
from assay.server.tensor_map import Packed, malformed, read_map, tensor_head

FRAME_BYTES = 4 << 20
TRAJECTORY_BYTES = 64 << 20
MAX_PATCHES = 1 << 16
ZSTD_LEVEL = 1

OBS = "obs"
BOOTSTRAP = "bootstrap"
EVENT = "event"
RAW_ACTION = "raw_action"
MOST_FLAGS = 31  # every bit of `assay.server.client.shield.Flag`

_HEADER_ROOM = 1024  # of a frame, for everything that is not the tensors
_TENSOR_ROOM = 96  # for a tensor's shape, tags and lengths, next to its name
_DTYPES = {name.lower(): code for name, code in pb.DType.items() if code}
_NAMES: dict[int, str] = {code: name for name, code in _DTYPES.items()}

Array = NDArray[Any]
# Returns where the first bad value is in the flattened array, or None where all are good.
Check = Callable[[Array], int | None]


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a batch."""

    name: str  # its name on the wire
    dtype: np.dtype[Any]  # little endian
    shape: tuple[int, ...]  # of one step
    check: Check | None  # finds the first value that must not be there
    reason: Reason = Reason.NOT_FINITE  # why that is refused
    optional: bool = False  # whether a batch may leave it out
    code: int = field(init=False)  # of the dtype, on the wire
    values: int = field(init=False)  # how many there are in a step
    step_bytes: int = field(init=False)  # how many bytes a step takes

    def __post_init__(self) -> None:
        values = math.prod(self.shape)
        object.__setattr__(self, "code", _DTYPES[self.dtype.name])
        object.__setattr__(self, "values", values)
        object.__setattr__(self, "step_bytes", values * self.dtype.itemsize)


@dataclass(frozen=True, slots=True)
class Experience:
    """Consecutive steps of one client, as sent in one batch."""

    epoch: int  # of the session
    seq: int  # its number in the session, from 1
    fields: Mapping[str, Array]  # the arrays by name, as `Layout` says
    episode: int = 0  # of the first step
    start_step: int = 0  # of the first step, within its episode
    dropped: int = 0  # how many numbers right before `seq` will never be sent
    # Late rewards by the event id of their step.
    patches: Mapping[int, float] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Return how many steps there are."""
        return len(self.fields["reward"]) if self.fields else 0


class Layout:
    """The tensors that a batch of a policy has.

    Attributes:
        steps: The fields with one row per step.
        bootstrap: The observations to bootstrap from; see `bootstrap_rows`.
    """

    def __init__(self, spec: PolicySpec) -> None:
        tree: Any = dict(leaves_of(spec.observation))
        leaves = pack(OBS, tree[""] if "" in tree else tree)
        finals = pack(BOOTSTRAP, tree[""] if "" in tree else tree)
        flag = np.dtype(np.bool_)
        self.steps = (
            *(_observation(name, leaf) for name, leaf in leaves.items()),
            _action(spec),
            _limited("reward", MOST_VALUE, Reason.REWARD_OUT_OF_BOUNDS),
            _limited("log_prob", MOST_LOG_PROB, Reason.BAD_LOG_PROB),
            Field("version", _wire("int64"), (), _find_outside(0, None), Reason.BAD_VERSION),
            Field("flags", np.dtype(np.uint8), (), _find_outside(0, MOST_FLAGS), Reason.BAD_FLAG),
            *(
                Field(name, flag, (), _find_no_flag, Reason.BAD_FLAG)
                for name in ("terminated", "truncated")
            ),
            Field(EVENT, _wire("uint64"), (), None, optional=True),
            *_raw_action(spec),
        )
        self.bootstrap = tuple(_observation(name, leaf) for name, leaf in finals.items())
        self._by_name = {one.name: one for one in (*self.steps, *self.bootstrap)}
        self._required = frozenset(one.name for one in self._by_name.values() if not one.optional)
        self._step_bytes = sum(one.step_bytes for one in self.steps)
        self._head_bytes = sum(len(name.encode()) + _TENSOR_ROOM for name in self._by_name)
        self._row_bytes = sum(one.step_bytes for one in self.bootstrap)

    def max_bytes(self, steps: int) -> int:
        """Return the most that the tensor map of so many steps can take."""
        rows = steps * self._step_bytes + (steps + 1) * self._row_bytes
        return rows + self._head_bytes

    def write(self, fields: Mapping[str, Array]) -> bytes:
        """Serialise the arrays of a batch as a `TensorMap`.

        Raises:
            RejectionError: One is missing, unknown, or of another dtype or shape.
        """
        reward = fields.get("reward")
        steps = len(reward) if reward is not None and reward.ndim else 0
        parts: list[bytes] = []
        for one in self.steps:
            _write(one, fields, steps, parts)
        rows = bootstrap_rows(fields)
        for one in self.bootstrap:
            _write(one, fields, rows, parts)
        for name in fields:
            if name not in self._by_name:
                raise _unknown(name, self._by_name)
        return b"".join(parts)

    def read(self, raw: bytes, steps: int) -> dict[str, Array]:
        """Return read-only views of the arrays in a serialised `TensorMap`.

        Raises:
            RejectionError: They are not what the spec says, or hold what must not be there.
        """
        found, at = self._recognise(raw, steps)
        for packed in read_map(raw, at, len(self._by_name)):
            if packed.name not in self._by_name:
                raise _unknown(packed.name, self._by_name)
            if packed.name in found:
                raise malformed(f"the tensor '{packed.name}' is there twice")
            found[packed.name] = packed
        if not self._required <= found.keys():
            raise _missing(min(self._required - found.keys()))
        arrays = {
            one.name: _view(raw, found[one.name], one, steps)
            for one in self.steps
            if one.name in found
        }
        rows = bootstrap_rows(arrays)
        for one in self.bootstrap:
            arrays[one.name] = _view(raw, found[one.name], one, rows)
        return arrays

    def _recognise(self, raw: bytes, steps: int) -> tuple[dict[str, Packed], int]:
        """Find the tensors at the start that stand where `write` puts them, and where they end.

        That is most of a batch as a rule, and much quicker than reading it bit by bit.
        """
        found: dict[str, Packed] = {}
        at = 0
        for one in self.steps:
            shape, size = (steps, *one.shape), steps * one.step_bytes
            head = tensor_head(one.name, one.code, shape, size)
            if raw.startswith(head, at):
                start = at + len(head)
                if start + size > len(raw):
                    break
                at = start + size
                found[one.name] = Packed(one.name, one.code, shape, start, at)
            elif not one.optional:
                break
        return found, at


def bootstrap_rows(fields: Mapping[str, Array]) -> int:
    """Return how many observations there are to bootstrap from.

    One for each step that is truncated and not terminated, and one for the last step if its
    episode goes on.
    """
    terminated, truncated = fields["terminated"], fields["truncated"]
    if not len(terminated):
        return 0
    goes_on = not (terminated[-1] or truncated[-1])
    return int(np.count_nonzero(truncated & ~terminated)) + goes_on


def parts_of(ended: Array) -> Iterator[tuple[slice, bool]]:
    """Yield the rows of each episode in a batch of one step or more, and whether it ends there.

    Example:
        >>> list(parts_of(np.array([False, True, False])))
        [(slice(0, 2, None), True), (slice(2, 3, None), False)]
    """
    first = 0
    for last in np.flatnonzero(ended).tolist():
        yield slice(first, last + 1), True
        first = last + 1
    if first < len(ended):
        yield slice(first, len(ended)), False


# Batches


def encode(experience: Experience, layout: Layout, *, compress: bool = False) -> pb.Batch:
    """Pack steps into one batch message, whatever its size; `split` cuts it into frames.

    With `compress`, zstd is used where that makes it smaller.

    Raises:
        RejectionError: An array does not fit the layout, or the whole is above the limit.
    """
    steps = experience.steps
    if not steps and (experience.fields or not experience.patches):
        raise malformed("it has no steps; expected one or more, or late rewards alone")
    raw = layout.write(experience.fields) if steps else b""
    if len(raw) > TRAJECTORY_BYTES:
        raise _too_large(len(raw))
    data, codec = raw, pb.RAW
    if compress and raw:
        squeezed = _zstandard().ZstdCompressor(level=ZSTD_LEVEL).compress(raw)
        if len(squeezed) < len(raw):
            data, codec = squeezed, pb.ZSTD
    patch = None
    if experience.patches:
        patch = pb.RewardPatch(
            event_id=list(experience.patches), reward=list(experience.patches.values())
        )
    return pb.Batch(
        epoch=experience.epoch,
        seq=experience.seq,
        dropped=experience.dropped,
        episode=experience.episode,
        start_step=experience.start_step,
        version=int(experience.fields["version"][-1]) if steps else 0,
        steps=steps,
        codec=codec,
        crc32c=crc32c(data),
        size=len(data),
        raw_size=len(raw),
        tensors=data,
        patch=patch,
    )


def decode(batch: pb.Batch, layout: Layout) -> Experience:
    """Check a whole batch and unpack it.

    The arrays are read-only views of the message.

    Raises:
        RejectionError: Says by its reason what is wrong.
    """
    if batch.parts > 1:
        raise malformed("this is one part of a batch that was split; expected all parts joined")
    if not batch.seq or not batch.epoch:
        raise malformed("seq and epoch are 0; expected numbers from 1")
    steps, raw_size = batch.steps, batch.raw_size
    if not steps:
        if raw_size or batch.size or batch.tensors:
            raise malformed("a batch of no steps has tensors")
        patches = _read_patch(batch)
        if not patches:
            raise malformed("the batch holds neither steps nor late rewards")
        return _experience(batch, {}, patches)
    if raw_size > TRAJECTORY_BYTES:
        raise _too_large(raw_size)
    most = layout.max_bytes(steps)
    if raw_size > most:
        raise RejectionError(
            Reason.DECOMPRESSED_TOO_LARGE,
            f"The batch unpacks to {raw_size} bytes; {steps} steps of this policy take "
            f"{most} or fewer.",
        )
    data = batch.tensors
    if len(data) != batch.size:
        raise malformed(f"size says {batch.size} bytes, but {len(data)} came")
    if crc32c(data) != batch.crc32c:
        raise RejectionError(
            Reason.CHECKSUM_MISMATCH,
            "The tensors do not match their CRC32C: they were damaged on the way.",
            "Send the batch again.",
        )
    fields = layout.read(_unpack(data, batch.codec, raw_size), steps)
    last = int(fields["version"][-1])
    if last != batch.version:
        raise RejectionError(
            Reason.BAD_VERSION,
            f"The batch states version {batch.version}; its last step has {last}.",
        )
    return _experience(batch, fields, _read_patch(batch))


def _experience(batch: pb.Batch, fields: dict[str, Array], patches: dict[int, float]) -> Experience:
    return Experience(
        batch.epoch, batch.seq, fields, batch.episode, batch.start_step, batch.dropped, patches
    )


def _read_patch(batch: pb.Batch) -> dict[int, float]:
    if not batch.HasField("patch"):
        return {}
    events, rewards = batch.patch.event_id, batch.patch.reward
    if len(events) != len(rewards):
        raise malformed(f"the patch has {len(events)} event ids and {len(rewards)} rewards")
    if len(events) > MAX_PATCHES:
        raise malformed(f"the patch has {len(events)} rewards; expected {MAX_PATCHES} or fewer")
    patches = dict(zip(events, rewards, strict=True))
    if len(patches) != len(events):
        raise malformed("the patch names an event twice")
    for event, reward in patches.items():
        if not math.isfinite(reward):
            raise RejectionError(
                Reason.NOT_FINITE, f"The late reward of event {event} is {reward}."
            )
        if abs(reward) > MOST_VALUE:
            raise RejectionError(
                Reason.REWARD_OUT_OF_BOUNDS,
                f"The late reward of event {event} is {reward:g}; expected {MOST_VALUE:g} or less "
                "in size.",
                _SCALE,
            )
    return patches


def _unpack(data: bytes, codec: int, raw_size: int) -> bytes:
    if codec == pb.RAW:
        if len(data) != raw_size:
            raise malformed(f"raw_size says {raw_size} bytes, but {len(data)} came")
        return data
    if codec != pb.ZSTD:
        raise RejectionError(
            Reason.UNSUPPORTED_CODEC, f"The codec {codec} is unknown; expected RAW or ZSTD."
        )
    zstd = _zstandard()
    try:
        stated = zstd.get_frame_parameters(data).content_size
        # The library would allocate what the frame states, so that comes first.
        if stated != raw_size:
            raise RejectionError(
                Reason.DECOMPRESSED_TOO_LARGE,
                f"The zstd frame does not state that it unpacks to raw_size={raw_size} bytes.",
            )
        raw: bytes = zstd.ZstdDecompressor().decompress(
            data, max_output_size=raw_size, allow_extra_data=False
        )
    except zstd.ZstdError as error:
        raise malformed(f"the zstd frame cannot be read ({error})") from None
    if len(raw) != raw_size:
        raise malformed(f"raw_size says {raw_size} bytes, but {len(raw)} were unpacked")
    return raw


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingExtraError("zstandard", "server", "Compression of batches") from None
    return zstandard


def split(batch: pb.Batch, frame_bytes: int = FRAME_BYTES) -> Iterator[pb.Batch]:
    """Cut a batch into parts that fit a frame; one that fits is yielded as it is."""
    room = frame_bytes - _HEADER_ROOM - (batch.patch.ByteSize() if batch.HasField("patch") else 0)
    if len(batch.tensors) <= room:
        yield batch
        return
    data, head = batch.tensors, pb.Batch()
    head.CopyFrom(batch)
    head.parts = -(-len(data) // room)
    for part in range(head.parts):
        head.part, head.tensors = part, data[part * room : (part + 1) * room]
        frame = pb.Batch()
        frame.CopyFrom(head)
        yield frame


class Assembler:
    """Joins the parts of one stream's batches; holds at most one unfinished batch."""

    def __init__(self) -> None:
        self._head: pb.Batch | None = None
        self._data: list[bytes] = []
        self._size = 0

    def add(self, part: pb.Batch) -> pb.Batch | None:
        """Take the next message of a stream and return the batch that it completes, if it does.

        Raises:
            RejectionError: It is above a limit or does not continue the batch before it; that
                batch is forgotten.
        """
        try:
            return self._add(part)
        except RejectionError:
            self._forget()
            raise

    def _add(self, part: pb.Batch) -> pb.Batch | None:
        if len(part.tensors) > FRAME_BYTES:
            raise RejectionError(
                Reason.FRAME_TOO_LARGE,
                f"A frame holds {len(part.tensors)} bytes; expected {FRAME_BYTES} or fewer.",
            )
        if part.size > TRAJECTORY_BYTES:
            raise _too_large(part.size)
        if part.parts <= 1:
            if self._head is not None:
                raise _out_of_order("a new batch begins before the last one was complete")
            return part
        if part.part == 0:
            if self._head is not None:
                raise _out_of_order("a new batch begins before the last one was complete")
            self._head = part
        elif self._head is None or part.part != len(self._data):
            raise _out_of_order(f"part {part.part} came, expected part {len(self._data)}")
        elif not _same_batch(self._head, part):
            raise _out_of_order(f"part {part.part} belongs to another batch")
        self._size += len(part.tensors)
        if not part.tensors or self._size > part.size:
            raise malformed(f"the parts are empty or hold more than size={part.size} bytes")
        self._data.append(part.tensors)
        if part.part + 1 < part.parts:
            return None
        whole = self._head
        whole.tensors = b"".join(self._data)
        whole.part = whole.parts = 0
        self._forget()
        return whole

    def _forget(self) -> None:
        self._head, self._data, self._size = None, [], 0


def _same_batch(one: pb.Batch, other: pb.Batch) -> bool:
    names = ("epoch", "seq", "crc32c", "size", "parts")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _write(one: Field, fields: Mapping[str, Array], rows: int, parts: list[bytes]) -> None:
    array = fields.get(one.name)
    if array is None:
        if not one.optional:
            raise _missing(one.name)
        return
    # Same kind only: a silent cast of 0.7 to 0 would change what was done.
    if array.dtype != one.dtype and not np.can_cast(array.dtype, one.dtype, "same_kind"):
        raise _wrong_dtype(one, str(array.dtype))
    if array.shape != (rows, *one.shape):
        raise _wrong_shape(one, rows, array.shape)
    data = array.astype(one.dtype, copy=False).tobytes()
    parts += (tensor_head(one.name, one.code, array.shape, len(data)), data)


def _view(raw: bytes, packed: Packed, one: Field, rows: int) -> Array:
    if packed.dtype != one.code:
        raise _wrong_dtype(one, _NAMES.get(packed.dtype, f"number {packed.dtype}"))
    if packed.shape != (rows, *one.shape):
        raise _wrong_shape(one, rows, packed.shape)
    size = packed.stop - packed.start
    if size != rows * one.step_bytes:
        raise malformed(
            f"the tensor '{one.name}' has {size} bytes; expected {rows * one.step_bytes}"
        )
    array = np.frombuffer(raw, one.dtype, rows * one.values, packed.start)
    if one.shape:
        array = array.reshape(packed.shape)
    if one.check is not None:
        bad = one.check(array)
        if bad is not None:
            raise bad_value(one, array, bad)
    return array


# What may be in an array


def _wire(name: str) -> np.dtype[Any]:
    return np.dtype(name).newbyteorder("<")


def _observation(name: str, leaf: Leaf) -> Field:
    dtype, shape = leaf_layout(leaf)
    dtype = dtype.newbyteorder("<")
    if isinstance(leaf, Box):
        # Bounds of a float observation are often a guess, and one outside them does no harm.
        check = _find_beyond(MOST_VALUE, dtype) if dtype.kind == "f" else None
        return Field(name, dtype, shape, check, Reason.OBSERVATION_OUT_OF_BOUNDS)
    return Field(name, dtype, shape, _range_of(leaf), Reason.OBSERVATION_OUT_OF_BOUNDS)


def _action(spec: PolicySpec) -> Field:
    dtype, shape = leaf_layout(spec.action)
    dtype = dtype.newbyteorder("<")
    limits = spec.action_limits()
    if limits is None:
        check = _range_of(spec.action)
    else:
        # In the dtype of the actions, since that is what a client clips with.
        low, high = (_cast(limit, dtype) for limit in limits)
        check = _find_outside(low, high)
    return Field("action", dtype, shape, check, Reason.ACTION_OUT_OF_BOUNDS)


def _raw_action(spec: PolicySpec) -> tuple[Field, ...]:
    """Return the field of what a Box action was before it was clipped."""
    if not isinstance(spec.action, Box):
        return ()
    # Without the action's bounds, as the samples of a Gaussian are.
    one = _limited(RAW_ACTION, MOST_VALUE, Reason.ACTION_OUT_OF_BOUNDS)
    return (replace(one, shape=spec.action.shape, optional=True),)


def _limited(name: str, most: float, reason: Reason) -> Field:
    dtype = _wire("float32")
    return Field(name, dtype, (), _find_beyond(most, dtype), reason)


def _cast(limit: NDArray[np.float64], dtype: np.dtype[Any]) -> Array:
    if dtype.kind == "f":
        # Also where the space has no bound.
        most = min(float(np.finfo(dtype).max), MOST_VALUE)
        return np.clip(limit, -most, most).astype(dtype)
    info = np.iinfo(dtype)
    # Through Python's integers: a float cannot hold the largest of 64 bits.
    values = [
        int(min(max(value, info.min), info.max)) if math.isfinite(value) else
        (info.max if value > 0 else info.min)
        for value in limit.ravel().tolist()
    ]  # fmt: skip
    return np.array(values, dtype).reshape(limit.shape)


def _range_of(leaf: Leaf) -> Check:
    if isinstance(leaf, Discrete):
        return _find_outside(leaf.start, leaf.start + leaf.n - 1)
    if isinstance(leaf, MultiDiscrete):
        return _find_outside(0, np.array(leaf.nvec, np.int64) - 1)
    return _find_outside(0, 1)


def _find_outside(low: Any, high: Any) -> Check:
    def check(array: Array) -> int | None:
        # Asked this way round, NaN is never inside.
        inside = array >= low
        if high is not None:
            inside &= array <= high
        return None if inside.all() else int(np.argmin(inside))

    return check


def _find_beyond(most: float, dtype: np.dtype[Any]) -> Check:
    limit = dtype.type(min(most, float(np.finfo(dtype).max)))

    def check(array: Array) -> int | None:
        # The extremes of an array with a NaN in it are NaN, and NaN is never inside.
        if not array.size or (array.min() >= -limit and array.max() <= limit):
            return None
        return int(np.argmin(np.abs(array) <= limit))

    return check


def _find_no_flag(array: Array) -> int | None:
    values = array.view(np.uint8)
    return None if not values.size or values.max() <= 1 else int(np.argmax(values > 1))


# Rejections

_SCALE = "Scale it to be near 1, as learning wants it: divide it by a constant before it is sent."


def _out_of_order(what: str) -> RejectionError:
    return RejectionError(
        Reason.PART_OUT_OF_ORDER,
        f"The parts of a batch are out of order: {what}.",
        "Send the batch again from its first part.",
    )


def _too_large(size: int) -> RejectionError:
    return RejectionError(
        Reason.TRAJECTORY_TOO_LARGE,
        f"The batch has {size} bytes; expected {TRAJECTORY_BYTES} or fewer.",
        "Send fewer steps at a time.",
    )


def _missing(name: str) -> RejectionError:
    return RejectionError(Reason.MISSING_TENSOR, f"The tensor '{name}' is missing.")


def _unknown(name: str, known: Mapping[str, Field]) -> RejectionError:
    return RejectionError(
        Reason.UNKNOWN_TENSOR,
        f"The tensor '{name[:60]}' is not part of the registered spec; "
        f"expected {', '.join(known)}.",
    )


def _wrong_dtype(one: Field, dtype: str) -> RejectionError:
    return RejectionError(
        Reason.WRONG_DTYPE, f"The tensor '{one.name}' is of {dtype}; expected {one.dtype.name}."
    )


def _wrong_shape(one: Field, rows: int, shape: tuple[int, ...]) -> RejectionError:
    return RejectionError(
        Reason.WRONG_SHAPE,
        f"The tensor '{one.name}' has the shape {list(shape)}; expected {[rows, *one.shape]}.",
    )


def bad_value(one: Field, array: Array, index: int) -> RejectionError:
    """Return the refusal of a number that a field's `check` has found."""
    values = array.view(np.uint8) if array.dtype == np.bool_ else array
    where = [int(i) for i in np.unravel_index(index, array.shape)]
    found = values.ravel()[index]
    reason, fix = one.reason, None
    text = {
        Reason.ACTION_OUT_OF_BOUNDS: "that is out of the bounds of the action",
        Reason.OBSERVATION_OUT_OF_BOUNDS: "that is out of the bounds of the observation",
        Reason.BAD_FLAG: "expected 0 or 1"
        if array.dtype == np.bool_
        else f"expected 0 to {MOST_FLAGS}",
        Reason.BAD_VERSION: "expected 0 or more",
        Reason.BAD_LOG_PROB: f"expected {MOST_LOG_PROB:g} or less in size",
    }.get(reason, "")
    if array.dtype.kind == "f" and not np.isfinite(found):
        reason, text = Reason.NOT_FINITE, "expected a finite number"
    elif array.dtype.kind == "f" and one.name not in ("action", "log_prob"):
        text, fix = f"expected {MOST_VALUE:g} or less in size", _SCALE
    return RejectionError(reason, f"The tensor '{one.name}' holds {found} at {where}; {text}.", fix)
