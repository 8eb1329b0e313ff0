"""What a registry keeps, whatever database it is in.

Policies, sessions, the index of batches, what the learner has consumed and published, channels,
quotas and tokens. SQLite is the embedded default. Another back end implements `Registry` and passes
`tests/server/registry_contract.py`.

Every method is atomic, safe to call from any thread, and durable when it returns, with one
exception: the index of batches (`add_batches`) may be lost by a crash, since the store brings it up
to date from the segments when it opens.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

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


class Registry(Protocol):
    """One small interface over the database.

    A refusal is a `RejectionError`; a database that cannot be written is a `StoreError`. In both
    cases nothing has changed.
    """

    @property
    def repairs(self) -> Sequence[str]:
        """Say what was found damaged and repaired when it was opened, a sentence each."""

    @property
    def broken(self) -> bool:
        """Return whether nothing can be written any more until it is opened again."""

    def close(self) -> None:
        """Let go of the database."""

    def claim(self, store: str) -> None:
        """Belong to one store from now on.

        Args:
            store: The store's id.

        Raises:
            StoreError: It belongs to another, whose batches it indexes.
        """

    # Policies

    def add_policy(self, spec: PolicySpec) -> bool:
        """Register a policy and return whether it is new.

        Raises:
            RejectionError: SPEC_CONFLICT with the first difference, or POLICY_DELETED.
        """

    def policy(self, name: str) -> Policy:
        """Return a policy; UNKNOWN_POLICY where there is none."""

    def state(self, name: str) -> PolicyState:
        """Return a policy's state; UNKNOWN_POLICY where there is none."""

    def policies(self) -> list[Policy]:
        """Return all policies by name."""

    def set_state(self, name: str, state: PolicyState) -> None:
        """Pause, resume or delete a policy; a deleted one stays so."""

    # Sessions

    def open_session(self, policy: str, client: str) -> int:
        """Return the next epoch of a client, which fences all earlier ones."""

    def epoch(self, policy: str, client: str) -> int:
        """Return a client's newest epoch; 0 where it never opened a session."""

    # The index of batches

    def add_batches(self, batches: Sequence[IndexedBatch]) -> None:
        """Index batches that are on the disk, all of them or none.

        Raises:
            RejectionError: MALFORMED, where a key or a position is there already.
        """

    def committed(self, policy: str, client: str, epoch: int) -> int:
        """Return the highest number that was committed in a session; 0 for none."""

    def batches(self, policy: str, after: int, limit: int) -> list[IndexedBatch]:
        """Return batches behind a position, in the order of the log."""

    def last_position(self, policy: str) -> int:
        """Return the position of the newest batch ever indexed; 0 for none."""

    def forget_batches_after(self, policy: str, position: int) -> list[IndexedBatch]:
        """Take batches off the index that the log has lost, and return them."""

    def trim(self, policy: str, before: int) -> int:
        """Take consumed batches off the index for good, and return how many.

        Their sessions stay committed as they were, also in an index that is built again.
        """

    def totals(self, policy: str) -> Totals:
        """Return how much was ever committed."""

    # The learner and its models

    def open_learner(self, policy: str) -> Learner:
        """Give a trainer the next epoch, which fences all earlier ones, and where to go on."""

    def learner(self, policy: str) -> Learner:
        """Return how far the learner is."""

    def advance(
        self,
        policy: str,
        epoch: int,
        position: int,
        *,
        checkpoint: str | None = None,
        model: NewModel | None = None,
    ) -> int:
        """Commit what was consumed and, with it, what was published.

        Args:
            policy: Whose learner.
            epoch: The trainer's own.
            position: Of the last batch consumed; never moves back.
            checkpoint: Of the learner's state at this position; None keeps the last one.
            model: Published as the next version.

        Returns:
            The newest version.

        Raises:
            RejectionError: FENCED, where a newer trainer has taken over; BAD_VERSION, where the
                position moves back or the parent does not exist.
        """

    def drop_checkpoint(self, policy: str, epoch: int, *, both: bool) -> Learner:
        """Give up the newest checkpoint, and return where to go on.

        Args:
            policy: Whose learner.
            epoch: The trainer's own.
            both: Whether the one before it is given up as well. The cursor stays then. Else it
                goes back to where the earlier checkpoint belongs.

        Raises:
            RejectionError: FENCED, where a newer trainer has taken over.
        """

    def model(self, policy: str, version: int) -> ModelVersion:
        """Return a version; UNKNOWN_VERSION where there is none."""

    def find_model(self, policy: str, sha256: str) -> ModelVersion | None:
        """Return the newest version that has the snapshot with this SHA-256, or None."""

    def models(self, policy: str, *, newest: int = 100) -> list[ModelVersion]:
        """Return the newest versions, newest first."""

    def prune_models(self, policy: str, keep: int, *, minutes: int = 0, hours: int = 0) -> int:
        """Forget old versions and return how many.

        Args:
            policy: Whose.
            keep: How many of the newest stay; so do those that a channel points to or can be
                rolled back to.
            minutes: The newest version of each of so many last minutes stays, too.
            hours: And the newest of each of so many last hours.
        """

    # Channels

    def channel(self, policy: str, channel: str) -> Channel:
        """Return where a channel points; version 0 where nothing was published on it."""

    def move(self, policy: str, channel: str, version: int) -> Channel:
        """Move a channel that is not pinned to a version, from where it may move on."""

    def pin(self, policy: str, channel: str, version: int) -> Channel:
        """Move a channel to a version and hold it there."""

    def unpin(
        self, policy: str, channel: str, *, failed: Collection[int] = (), known: bool = False
    ) -> Channel:
        """Let a channel go, to the newest version that it may point to.

        Where it stays at an old version, clients send steps that an on-policy learner leaves out
        as too old. Then nothing is published, and the channel would stay there for ever.

        Args:
            policy: Whose channel.
            channel: Pinned or not.
            failed: Versions that it must not point to.
            known: Whether it goes to none that it has not pointed to before.
        """

    def promote(self, policy: str, source: str, target: str) -> Channel:
        """Move a channel to where another one points."""

    def rollback(self, policy: str, channel: str) -> Channel:
        """Move a channel back to where it pointed before, and hold it there.

        Else the next publication would undo it. One that is pinned goes back as well.
        """

    # Quotas

    def set_quota(self, policy: str, client: str, quota: Quota | None) -> None:
        """Limit a client of a policy; `*` for every client that has no limit of its own."""

    def quota(self, policy: str, client: str) -> Quota | None:
        """Return the limit that applies to a client."""

    # Tokens

    def add_token(self, token: Token) -> None:
        """Keep a token."""

    def token(self, identifier: str) -> Token | None:
        """Return a token by its public part, unless it was revoked."""

    def tokens(self) -> list[Token]:
        """Return all tokens that were not revoked."""

    def revoke_token(self, identifier: str) -> bool:
        """Forget a token and return whether there was one."""


def check_channel(name: str) -> None:
    """Refuse a channel that does not exist."""
    if name not in CHANNELS:
        raise RejectionError(
            Reason.UNKNOWN_CHANNEL,
            f"There is no channel '{name}'; expected {' or '.join(CHANNELS)}.",
        )
