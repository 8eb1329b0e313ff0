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
    """A registered policy."""

    spec: PolicySpec  # what was registered
    hash: str  # of the spec
    state: PolicyState  # a deleted policy keeps its name, so that its versions are never reused
    created: float  # seconds since the epoch

    @property
    def name(self) -> str:
        """Return its name."""
        return self.spec.name


@dataclass(frozen=True, slots=True)
class IndexedBatch:
    """One committed batch; the first four attributes are its key."""

    policy: str  # whose
    client: str  # who sent it
    epoch: int  # of the session
    seq: int  # in the session
    steps: int  # how many steps it holds
    place: Place  # where it lies in the policy's log


@dataclass(frozen=True, slots=True)
class Totals:
    """How much of a policy was ever committed."""

    batches: int = 0  # how many
    steps: int = 0  # in them
    bytes: int = 0  # of their records


@dataclass(frozen=True, slots=True)
class Learner:
    """How far a policy's learner is."""

    epoch: int = 0  # of the trainer process; 0 before the first one
    position: int = 0  # of the last batch that it has consumed
    version: int = 0  # the newest that was ever published; 0 for none
    checkpoint: str | None = None  # SHA-256 of the state that belongs to the position, or None
    # SHA-256 of the checkpoint before it, which it can go back to, or None.
    earlier: str | None = None


@dataclass(frozen=True, slots=True)
class NewModel:
    """A model that is about to be published."""

    sha256: str  # of the snapshot
    size: int  # in bytes
    architecture: str = "{}"  # JSON that describes it
    parent: int = 0  # the version it grew from; 0 for none
    metrics: Mapping[str, float] = field(default_factory=dict)  # what is known about it
    # The one that moves to it, unless it is pinned; None for no channel.
    channel: str | None = STABLE


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A published model."""

    policy: str  # whose
    version: int  # monotonic per policy, never reused
    epoch: int  # of the trainer that published it
    sha256: str  # of the snapshot
    size: int  # in bytes
    architecture: str  # JSON that describes it
    parent: int  # the version it grew from; 0 for none
    metrics: Mapping[str, float]  # what is known about it
    created: float  # seconds since the epoch


@dataclass(frozen=True, slots=True)
class Channel:
    """A name that clients follow."""

    version: int  # what it points to
    pinned: bool = False  # whether it stays there when a model is published or promoted


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a client may send."""

    steps: int | None = None  # in `seconds`; None for any number
    bytes: int | None = None  # in `seconds`; None for any number
    seconds: float = 1.0  # the stretch of time that the two are counted over


@dataclass(frozen=True, slots=True)
class Token:
    """A credential; the secret itself is kept nowhere."""

    id: str  # its public part
    digest: str  # SHA-256 of its secret part
    principal: str  # who bears it; the id of a client
    grants: Mapping[str, frozenset[Verb]]  # verbs by policy; `*` stands for every policy
    expires: float | None = None  # seconds since the epoch, or None


def check_channel(name: str) -> None:
    """Refuse a channel that does not exist."""
    if name not in CHANNELS:
        raise RejectionError(
            Reason.UNKNOWN_CHANNEL,
            f"There is no channel '{name}'; expected {' or '.join(CHANNELS)}.",
        )
