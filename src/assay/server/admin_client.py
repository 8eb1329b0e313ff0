"""An operator's view of a running server: what `assay server ...` calls.

    with AdminClient.open({"address": "127.0.0.1:50051"}) as server:
        for info in server.policies():
            print(info.policy, info.newest_version)

Address, certificates and token are those of a Python client, from the same settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from assay.core.errors import AssayError, MissingExtraError, nearest
from assay.server.client.config import read_config
from assay.server.errors import Reason, RejectionError
from assay.server.protocol import assay_pb2 as pb

try:
    import grpc

    from assay.server.client.grpc_transport import Endpoint
    from assay.server.protocol import assay_pb2 as pb
    from assay.server.protocol import assay_pb2_grpc as rpc
    from assay.server.rejections import rejection_of
except ImportError as error:
    raise MissingExtraError(error.name or "grpcio", "server", "Talking to a server") from None

T = TypeVar("T")

OPERATOR = "operator"
RETURN, EPISODES = "rollout/return_mean", "server/episodes"
_SECONDS = 10.0
_EXPORT_SECONDS = 3600.0
_ROOM = 10.0  # seconds that a call may take on top of what the server is given


class ServerAwayError(AssayError):
    """No server answers."""


class AdminClient(AbstractContextManager["AdminClient"]):
    """Calls a server's `Admin` and `Models`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.address = endpoint.address
        self._metadata = endpoint.metadata()
        self._channel = endpoint.channel()
        self._admin: Any = rpc.AdminStub(self._channel)  # type: ignore[no-untyped-call]
        self._models: Any = rpc.ModelsStub(self._channel)  # type: ignore[no-untyped-call]

    @classmethod
    def open(cls, given: Mapping[str, Any], config: str | Path | None = None) -> AdminClient:
        """Return a client for what the settings of a Python client say.

        Args:
            given: Any of `address`, `token`, `token_file`, `tls`, `client`; None counts as not
                given.
            config: Path of a client's YAML or JSON file, which `given` is laid over.

        Raises:
            ConfigError: A setting is unknown or does not make sense, or a file cannot be read.
        """
        settings = read_config(config, given)
        if settings.client is None:
            settings = settings.model_copy(update={"client": OPERATOR})
        return cls(Endpoint(settings))

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # Policies

    def policies(self) -> list[pb.PolicyInfo]:
        """Return the policies that we may read, by name; those that were deleted are left out."""
        reply = self._call(pb.ListPoliciesReply, self._admin.ListPolicies, pb.ListPoliciesRequest())
        return [one for one in reply.policies if one.state != pb.DELETED]

    def policy(self, name: str) -> pb.PolicyDetails:
        """Return everything about one policy."""
        return self._about(pb.PolicyDetails, self._admin.GetPolicy, pb.PolicyRequest(policy=name))

    def pause(self, name: str) -> pb.PolicyInfo:
        """Stop learning a policy; its clients keep their experience until it goes on."""
        return self._about(pb.PolicyInfo, self._admin.Pause, pb.PolicyRequest(policy=name))

    def resume(self, name: str) -> pb.PolicyInfo:
        """Go on learning, also with a learner that was given up."""
        return self._about(pb.PolicyInfo, self._admin.Resume, pb.PolicyRequest(policy=name))

    def delete(self, name: str) -> pb.PolicyInfo:
        """Delete a policy's experience and models for good."""
        return self._about(pb.PolicyInfo, self._admin.Delete, pb.PolicyRequest(policy=name))

    def export(self, name: str, dataset: str, after: int = 0) -> pb.ExportReply:
        """Write a policy's experience as a dataset, on the server's machine."""
        request = pb.ExportRequest(policy=name, dataset_id=dataset, after_position=after)
        return self._about(pb.ExportReply, self._admin.Export, request, _EXPORT_SECONDS)

    # Models

    def pin(self, name: str, version: int, channel: str = "") -> pb.ModelInfo:
        """Hold a channel at a version; 0 lets it go, to the newest that has not failed."""
        request = pb.PinRequest(policy=name, channel=channel, version=version)
        return self._about(pb.ModelInfo, self._models.Pin, request)

    def promote(self, name: str, source: str = "", target: str = "") -> pb.ModelInfo:
        """Move a channel to where another one points; from canary to stable by default."""
        request = pb.PromoteRequest(policy=name, from_channel=source, to_channel=target)
        return self._about(pb.ModelInfo, self._models.Promote, request)

    def rollback(self, name: str, channel: str = "", reason: str = "") -> pb.ModelInfo:
        """Move a channel back to where it pointed before, and hold it there."""
        request = pb.RollbackRequest(policy=name, channel=channel, reason=reason)
        return self._about(pb.ModelInfo, self._models.Rollback, request)

    # The server

    def drain(self, seconds: float) -> bool:
        """End the server in order; return whether everything was saved in time."""
        request = pb.DrainRequest(timeout_seconds=seconds)
        return self._call(pb.DrainReply, self._admin.Drain, request, seconds + _ROOM).complete

    def add_token(
        self,
        principal: str,
        grants: Mapping[str, Iterable[str]],
        *,
        expires: float | None = None,
    ) -> pb.AddTokenReply:
        """Make a token; the reply has the whole of it, which is kept nowhere else.

        In `grants` are verbs by policy, with `*` for every policy; `expires` is in seconds since
        the epoch.
        """
        request = pb.AddTokenRequest(
            principal=principal,
            grants=[pb.Grant(policy=policy, verbs=verbs) for policy, verbs in grants.items()],
            expires=expires or 0.0,
        )
        return self._call(pb.AddTokenReply, self._admin.AddToken, request)

    def tokens(self) -> list[pb.TokenInfo]:
        """Return all tokens, by their public parts."""
        return list(
            self._call(pb.ListTokensReply, self._admin.ListTokens, pb.ListTokensRequest()).tokens
        )

    def revoke_token(self, identifier: str) -> bool:
        """Forget a token; return whether there was one."""
        request = pb.RevokeTokenRequest(id=identifier)
        return self._call(pb.RevokeTokenReply, self._admin.RevokeToken, request).revoked

    # Calling

    def _about(self, kind: type[T], method: Any, request: Any, seconds: float = _SECONDS) -> T:
        """Call a method about a policy; a wrong name is answered with the nearest right one."""
        try:
            return self._call(kind, method, request, seconds)
        except RejectionError as error:
            if error.reason is not Reason.UNKNOWN_POLICY:
                raise
            known = [one.policy for one in self.policies()]
            name = request.policy
            hint = nearest(name, known) if known else "There is none yet: clients register them."
            raise RejectionError(error.reason, f"There is no policy '{name}'.", hint) from None

    def _call(self, kind: type[T], method: Any, request: Any, seconds: float = _SECONDS) -> T:
        try:
            reply: T = method(request, metadata=self._metadata, timeout=seconds)
            return reply
        except grpc.RpcError as error:
            raise self._failure(error, seconds) from None

    def _failure(self, error: Any, timeout: float) -> AssayError:
        refused = rejection_of(error)
        if refused is not None:
            return refused
        code, details = error.code(), str(error.details() or "")
        if code is grpc.StatusCode.FAILED_PRECONDITION:  # an error of ours that has no reason
            message, _, fix = details.partition("\n")
            return AssayError(message, fix or None)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServerAwayError(
                f"The server at {self.address} did not answer within {timeout:g} seconds."
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ServerAwayError(
                f"What answers at {self.address} is not a server of Assay's, or an older one.",
                "Give the address of another, or update the server.",
            )
        if code is grpc.StatusCode.UNAVAILABLE:
            return ServerAwayError(
                f"No server answers at {self.address}: {_last_part(details)}.",
                "Start one with `assay serve`, or give its address with --address HOST:PORT.",
            )
        return ServerAwayError(f"The server at {self.address} answers {code.name}: {details}")


def _last_part(details: str) -> str:
    """Return the cause at the end of what gRPC says, such as `connection refused`."""
    cause = " ".join(details.split()).rpartition(": ")[2].rstrip(".")
    return cause[:1].lower() + cause[1:160]


# Policies, models and tokens in plain words and numbers, for people and for JSON


def state_of(info: pb.PolicyInfo) -> str:
    """Return one word for how a policy is: what an operator set, or else what its learner does."""
    if info.state == pb.PAUSED:
        return "paused"
    if info.state == pb.DELETED:
        return "deleted"
    return info.learner.state or "active"


def policy_facts(info: pb.PolicyInfo) -> dict[str, Any]:
    """Return everything about a policy in JSON's own types."""
    learner, traffic = info.learner, info.traffic
    metrics = dict(sorted(learner.metrics.items()))
    return {
        "policy": info.policy,
        "state": state_of(info),
        "spec_hash": info.spec_hash,
        "newest_version": info.newest_version,
        "channels": dict(sorted(info.channels.items())),
        "pinned": list(info.pinned),
        "steps": info.steps,
        "batches": info.batches,
        "bytes": info.bytes,
        "position": info.position,
        "cursor": info.cursor,
        "episodes": int(metrics.get(EPISODES, 0)),
        "return_mean": metrics.get(RETURN),
        "notes": list(info.notes),
        "learner": {
            "state": learner.state,
            "behind_batches": learner.behind_batches,
            "behind_steps": learner.behind_steps,
            "restarts": learner.restarts,
            "memory_bytes": learner.memory_bytes,
            "pid": learner.pid or None,
            "where": learner.where,
            "last_error": learner.last_error or None,
            "metrics": metrics,
        },
        "traffic": {
            "steps_per_second": traffic.steps_per_second,
            "batches_per_second": traffic.batches_per_second,
            "version_lag": traffic.version_lag,
            "sessions": traffic.sessions,
            "watchers": traffic.watchers,
            "clients": list(traffic.clients),
            "ack_p50_seconds": traffic.ack_p50_seconds or None,
            "ack_p99_seconds": traffic.ack_p99_seconds or None,
            "duplicates": traffic.duplicates,
            "rejections": traffic.rejections,
        },
    }


def model_facts(info: pb.ModelInfo) -> dict[str, Any]:
    """Return everything about a model but its architecture."""
    return {
        "policy": info.policy,
        "version": info.version,
        "channel": info.channel or None,
        "pinned": info.pinned,
        "epoch": info.epoch,
        "parent": info.parent or None,
        "sha256": info.sha256,
        "size": info.size,
        "created": datetime.fromtimestamp(info.created, UTC).isoformat() if info.created else None,
        "metrics": dict(sorted(info.metrics.items())),
    }


def token_facts(info: pb.TokenInfo) -> dict[str, Any]:
    """Return a token without its secret."""
    expires = datetime.fromtimestamp(info.expires, UTC).isoformat() if info.expires else None
    return {
        "id": info.id,
        "principal": info.principal,
        "grants": {grant.policy: sorted(grant.verbs) for grant in info.grants},
        "expires": expires,
    }
