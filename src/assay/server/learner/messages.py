"""What goes between a supervisor and its learner: plain heads and bytes, never a pickle.

Every message turns into a frame (`to_frame`: a JSON-able head and blobs) and back (`from_frame`),
so that any executor can carry it. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from assay.core.config import Model
from assay.server.executor.frames import Blobs, Head

Frame = tuple[Head, Blobs]

START, CONSUME, CHECKPOINT = "start", "consume", "checkpoint"
ON_POLICY_LAG = 8  # versions; what "auto" is for an on-policy learner


class LearnerSettings(Model):
    """How the server runs a learner. The client has no say in these."""

    seed: int = Field(
        1, ge=0, description="What the seeds of policies come from whose specs give none."
    )
    device: str = Field("cpu", description="cpu, or the GPU that is lent: cuda or cuda:N.")
    threads: int = Field(1, ge=1, description="Threads of torch and NumPy.")
    compile: Literal["auto"] | bool = Field(
        False, description="Compile optimizer steps: yes, no, or where that is possible."
    )
    max_lag: Annotated[int, Field(ge=0)] | Literal["auto"] | None = Field(
        "auto",
        description="Versions a step may be behind before it is left out; auto: 8 on-policy, "
        "else no limit (null).",
    )
    publish_steps: int = Field(
        500, gt=0, description="Off-policy: steps between versions. On-policy: every update."
    )
    checkpoint_every: int = Field(1, gt=0, description="Versions per checkpoint.")
    memory_mb: Annotated[int, Field(gt=0)] | Literal["auto"] | None = Field(
        "auto",
        description="Memory limit of the learner's process; auto: half of the machine's, for the "
        "executor 'process' on a CPU.",
    )
    imitate: bool = Field(
        True, description="On-policy: clone the heuristic where it acted (shadow, apprentice)."
    )


@dataclass(frozen=True, slots=True)
class _Message:
    """What a frame carries: bytes go into its blobs, all else into its head."""

    method: ClassVar[str] = ""  # of a call; an answer has none

    def to_frame(self) -> Frame:
        """Return the head and blobs that stand for this message."""
        head: Head = {"method": self.method} if self.method else {}
        blobs: list[bytes] = []
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bytes):
                blobs.append(value)
            elif one.name == "publications":
                frames = [publication.to_frame() for publication in value]
                head[one.name] = [inner for inner, _ in frames]
                blobs += [blob for _, parts in frames for blob in parts]
            else:
                head[one.name] = value
        return head, tuple(blobs)

    @classmethod
    def from_frame(cls, head: Mapping[str, Any], blobs: Sequence[bytes]) -> Self:
        """Read what `to_frame` returned."""
        in_blobs = [one.name for one in fields(cls) if one.type == "bytes"]
        values = {one.name: head[one.name] for one in fields(cls) if one.name not in in_blobs}
        values |= zip(in_blobs, map(bytes, blobs), strict=bool(in_blobs))
        if "publications" in values:
            values["publications"] = _read_publications(head["publications"], blobs)
        return cls(**values)


@dataclass(frozen=True, slots=True)
class Start(_Message):
    """What a learner begins with."""

    method = START
    spec: str  # canonical JSON of the `PolicySpec`
    settings: str  # JSON of the `LearnerSettings`
    epoch: int  # of the trainer
    version: int = 0  # the newest that was published; 0 for none
    position: int = 0  # the committed cursor
    checkpoint: bytes = b""  # what the last publication with one brought; b"" for none
    # Without a checkpoint: the model file of the last version that can be read, if there is one.
    weights: bytes = b""
    metrics: Mapping[str, float] = field(default_factory=dict)  # of that version


@dataclass(frozen=True, slots=True)
class Consume:
    """Committed batches, in the order of their positions."""

    batches: tuple[tuple[int, str, bytes], ...]  # (position, client, serialised `Batch`) each
    # They only fill the replay again: no updates (positions up to the cursor).
    replaying: bool = False

    def to_frame(self) -> Frame:
        """Return the head and blobs that stand for this message."""
        places = [[position, client] for position, client, _ in self.batches]
        head = {"method": CONSUME, "replaying": self.replaying, "batches": places}
        return head, tuple(payload for _, _, payload in self.batches)

    @classmethod
    def from_frame(cls, head: Mapping[str, Any], blobs: Sequence[bytes]) -> Consume:
        """Read what `to_frame` returned."""
        batches = tuple(
            (int(position), str(client), bytes(payload))
            for (position, client), payload in zip(head["batches"], blobs, strict=True)
        )
        return cls(batches, bool(head["replaying"]))


@dataclass(frozen=True, slots=True)
class Publication(_Message):
    """A model version, and where its learner stood."""

    version: int  # its number, one above the version before
    position: int  # of the last batch that it learned from
    snapshot: bytes = field(repr=False)  # the model file
    # The learner's state at the position; b"": the last one stays, and the cursor with it.
    checkpoint: bytes = field(repr=False)
    parent: int = 0  # the version it grew from; 0 for none
    metrics: dict[str, float] = field(default_factory=dict)  # what is known about it
    architecture: str = field(default="{}", repr=False)  # JSON that describes it


@dataclass(frozen=True, slots=True)
class Ready(_Message):
    """The answer to `Start`."""

    # The supervisor first sends the positions above this one, up to the cursor, with `replaying`.
    replay_from: int
    # Version 1 of a policy that has none: clients explore with it.
    publications: tuple[Publication, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome(_Message):
    """The answer to `Consume`."""

    position: int  # of the last batch that was consumed, in memory
    # The log must be kept behind this position: with the newest checkpoint that was handed out, the
    # replay is filled again from there.
    keep_after: int
    publications: tuple[Publication, ...] = ()  # new versions, oldest first
    metrics: dict[str, float] = field(default_factory=dict)  # the newest ones of the learner


def _read_publications(heads: Sequence[Head], blobs: Sequence[bytes]) -> tuple[Publication, ...]:
    if len(blobs) != 2 * len(heads):
        raise ValueError(
            f"{len(blobs)} blobs came with {len(heads)} publications; expected two each"
        )
    return tuple(
        Publication.from_frame(head, blobs[2 * i : 2 * i + 2]) for i, head in enumerate(heads)
    )
