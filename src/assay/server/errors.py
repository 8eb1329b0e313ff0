"""Why the server refuses something: a code for the program, a sentence for the person."""

from __future__ import annotations

import enum

from assay.core.errors import AssayError
from assay.runs.files import run_error


class Reason(enum.IntEnum):
    """The enum `Reason` of the wire format; a test holds the two together."""

    REASON_UNSPECIFIED = 0
    FRAME_TOO_LARGE = 1
    TRAJECTORY_TOO_LARGE = 2
    DECOMPRESSED_TOO_LARGE = 3
    UNSUPPORTED_CODEC = 4
    CHECKSUM_MISMATCH = 5
    MALFORMED = 6
    PART_OUT_OF_ORDER = 7
    MISSING_TENSOR = 16
    UNKNOWN_TENSOR = 17
    WRONG_DTYPE = 18
    WRONG_SHAPE = 19
    NOT_FINITE = 20
    ACTION_OUT_OF_BOUNDS = 21
    OBSERVATION_OUT_OF_BOUNDS = 22
    BAD_FLAG = 23
    BAD_VERSION = 24
    REWARD_OUT_OF_BOUNDS = 25
    BAD_LOG_PROB = 26
    UNKNOWN_POLICY = 32
    UNKNOWN_SESSION = 33
    FENCED = 34
    SEQUENCE_GAP = 35
    SPEC_CONFLICT = 36
    BAD_SPEC = 37
    POLICY_PAUSED = 38
    POLICY_DELETED = 39
    RESOURCE_EXHAUSTED = 48
    QUOTA_EXCEEDED = 49
    DRAINING = 50
    UNAUTHENTICATED = 64
    PERMISSION_DENIED = 65
    UNSUPPORTED_PROTOCOL = 66
    UNKNOWN_VERSION = 80
    HASH_MISMATCH = 81
    BAD_WEIGHTS = 82
    UNKNOWN_CHANNEL = 83
    CHANNEL_PINNED = 84
    NO_EARLIER_VERSION = 85


class RejectionError(AssayError):
    """A request, a batch or a model that the server does not take.

    Attributes:
        reason: What a program decides on.
    """

    def __init__(self, reason: Reason, message: str, fix: str | None = None) -> None:
        super().__init__(message, fix)
        self.reason = reason


class StoreError(RejectionError):
    """The store cannot write, so that nothing is acknowledged."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(Reason.RESOURCE_EXHAUSTED, message, fix)

    @classmethod
    def of(cls, error: OSError, doing: str) -> StoreError:
        """Return the error for what the system reported; see `run_error`."""
        found = run_error(error, doing)
        return cls(found.message, found.fix)


class DamagedError(StoreError):
    """Something that was stored cannot be read any more, now or later."""


class StoreInUseError(StoreError):
    """Another process has the store."""
