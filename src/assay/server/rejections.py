"""How a refusal travels: as a message in an `Ack`, or in the trailing metadata of a status.

Both directions are here: a gateway writes what clients and operators read.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from assay.server.errors import Reason, RejectionError
from assay.server.protocol import assay_pb2 as pb

if TYPE_CHECKING:
    import grpc

TRAILER = "assay-rejection-bin"

# Metadata has about 8 KiB of room in all, and a person reads a sentence.
_MESSAGE, _FIX = 1000, 500
_OF_REASON = {
    Reason.UNKNOWN_POLICY: "NOT_FOUND",
    Reason.UNKNOWN_SESSION: "FAILED_PRECONDITION",
    Reason.FENCED: "ABORTED",
    Reason.SEQUENCE_GAP: "FAILED_PRECONDITION",
    Reason.SPEC_CONFLICT: "ALREADY_EXISTS",
    Reason.POLICY_PAUSED: "FAILED_PRECONDITION",
    Reason.POLICY_DELETED: "FAILED_PRECONDITION",
    Reason.RESOURCE_EXHAUSTED: "RESOURCE_EXHAUSTED",
    Reason.QUOTA_EXCEEDED: "RESOURCE_EXHAUSTED",
    Reason.DRAINING: "UNAVAILABLE",
    Reason.UNAUTHENTICATED: "UNAUTHENTICATED",
    Reason.PERMISSION_DENIED: "PERMISSION_DENIED",
    Reason.UNSUPPORTED_PROTOCOL: "FAILED_PRECONDITION",
    Reason.UNKNOWN_VERSION: "NOT_FOUND",
    Reason.HASH_MISMATCH: "DATA_LOSS",
    Reason.BAD_WEIGHTS: "DATA_LOSS",
    Reason.CHANNEL_PINNED: "FAILED_PRECONDITION",
    Reason.NO_EARLIER_VERSION: "FAILED_PRECONDITION",
}


def status_of(reason: Reason) -> grpc.StatusCode:
    """Return the status that fits a reason; a program decides on the reason itself."""
    import grpc

    return grpc.StatusCode[_OF_REASON.get(reason, "INVALID_ARGUMENT")]


def to_message(error: RejectionError, *, epoch: int = 0, seq: int = 0) -> pb.Rejection:
    """Write a refusal for the wire, with the batch that it is about, if it is about one."""
    return pb.Rejection(
        epoch=epoch,
        seq=seq,
        reason=error.reason.name,
        message=error.message[:_MESSAGE],
        fix=(error.fix or "")[:_FIX],
    )


def reason_of(message: pb.Rejection) -> Reason:
    """Return why something was refused; a newer server's reason becomes REASON_UNSPECIFIED."""
    try:
        return Reason(message.reason)
    except ValueError:
        return Reason.REASON_UNSPECIFIED


def trailer(error: RejectionError) -> tuple[tuple[str, bytes], ...]:
    """Return the trailing metadata of a call that is refused as a whole."""
    return ((TRAILER, to_message(error).SerializeToString()),)


def message_of(error: Any) -> pb.Rejection | None:
    """Return the refusal that a failed call carries, or None where it carries none.

    Args:
        error: A `grpc.RpcError` with a status, synchronous or not; anything else carries none.
    """
    read = getattr(error, "trailing_metadata", None)
    for key, value in (read() if read is not None else None) or ():
        if key == TRAILER:
            with contextlib.suppress(DecodeError, TypeError):  # whatever it is, it is not ours
                message: pb.Rejection = pb.Rejection.FromString(value)
                return message
    return None


def rejection_of(error: Any) -> RejectionError | None:
    """Return why a server refused a call, or None where the call failed on its way."""
    import grpc

    message = message_of(error)
    if message is not None:
        return RejectionError(reason_of(message), message.message, message.fix or None)
    code = error.code() if callable(getattr(error, "code", None)) else None
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # The library itself refuses a message above its limit, before the server sees it.
        detail = str(error.details() or "the server is out of resources")
        large = "larger than max" in detail
        return RejectionError(
            Reason.FRAME_TOO_LARGE if large else Reason.RESOURCE_EXHAUSTED,
            f"The call was refused: {detail}.",
        )
    return None
