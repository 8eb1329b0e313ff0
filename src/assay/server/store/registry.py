"""What a registry keeps, whatever database it is in."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from assay.server.errors import Reason, RejectionError
from assay.server.spec import PolicySpec
from assay.server.store.log import Place

STABLE = "stable"
CANARY = "canary"
CHANNELS = (STABLE, CANARY)
EVERY = "*"

PolicyState = Literal["active", "paused", "deleted"]


class Verb(enum.StrEnum):
    """What a principal may do with a policy."""

    REGISTER = "register"
    WRITE = "write"  # send experience
    READ = "read"  # watch and fetch models
    ACT = "act"  # ask the server for actions
    OPERATE = "operate"  # pin, promote, roll back, pause, resume, export
    ADMIN = "admin"  # delete, drain, tokens, quotas


@dataclass(frozen=True, slots=True)
class Policy:
    """A registered policy.

    Attributes:
        spec: What was registered.
        hash: Of the spec.
        state: A deleted policy keeps its name, so that its versions are never reused.
        created: Seconds since the epoch.
    """

    spec: PolicySpec
    hash: str
    state: PolicyState
    created: float

    @property
    def name(self) -> str:
        """Return its name."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class IndexedBatch:
    """One committed batch; the first four attributes are its key.

    Attributes:
        policy: Whose.
        client: Who sent it.
        epoch: Of the session.
        seq: In the session.
        steps: How many steps it holds.
        place: Where it lies in the policy's log.
    """

    policy: str
    client: str
    epoch: int
    seq: int
    steps: int
    place: Place


@dataclass(frozen=True, slots=True)
class Totals:
    """How much of a policy was ever committed.

    Attributes:
        batches: How many.
        steps: In them.
        bytes: Of their records.
    """

    batches: int = 0
    steps: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Learner:
    """How far a policy's learner is.

    Attributes:
        epoch: Of the trainer process; 0 before the first one.
        position: Of the last batch that it has consumed.
        version: The newest that was ever published; 0 for none.
        checkpoint: SHA-256 of the state that belongs to the position, or None.
        earlier: SHA-256 of the checkpoint before it, which it can go back to, or None.
    """

    epoch: int = 0
    position: int = 0
    version: int = 0
    checkpoint: str | None = None
    earlier: str | None = None


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model that is about to be published.

    Attributes:
        sha256: Of the snapshot.
        size: In bytes.
        architecture: JSON that describes it.
        parent: The version it grew from; 0 for none.
        metrics: What is known about it.
        channel: The one that moves to it, unless it is pinned; None for no channel.
    """

    sha256: str
    size: int
    architecture: str = "{}"
    parent: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    channel: str | None = STABLE


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A published model.

    Attributes:
        policy: Whose.
        version: Monotonic per policy, never reused.
        epoch: Of the trainer that published it.
        sha256: Of the snapshot.
        size: In bytes.
        architecture: JSON that describes it.
        parent: The version it grew from; 0 for none.
        metrics: What is known about it.
        created: Seconds since the epoch.
    """

    policy: str
    version: int
    epoch: int
    sha256: str
    size: int
    architecture: str
    parent: int
    metrics: Mapping[str, float]
    created: float


@dataclass(frozen=True, slots=True)
class Channel:
    """A name that clients follow.

    Attributes:
        version: What it points to.
        pinned: Whether it stays there when a model is published or promoted.
    """

    version: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a client may send.

    Attributes:
        steps: In `seconds`; None for any number.
        bytes: In `seconds`; None for any number.
        seconds: The stretch of time that the two are counted over.
    """

    steps: int | None = None
    bytes: int | None = None
    seconds: float = 1.0


@dataclass(frozen=True, slots=True)
class Token:
    """A credential; the secret itself is kept nowhere.

    Attributes:
        id: Its public part.
        digest: SHA-256 of its secret part.
        principal: Who bears it; the id of a client.
        grants: Verbs by policy; `*` stands for every policy.
        expires: Seconds since the epoch, or None.
    """

    id: str
    digest: str
    principal: str
    grants: Mapping[str, frozenset[Verb]]
    expires: float | None = None


def check_channel(name: str) -> None:
    """Refuse a channel that does not exist."""
    if name not in CHANNELS:
        raise RejectionError(
            Reason.UNKNOWN_CHANNEL,
            f"There is no channel '{name}'; expected {' or '.join(CHANNELS)}.",
        )
