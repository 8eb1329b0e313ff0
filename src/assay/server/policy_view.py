"""A policy of a running server in plain words and numbers, for people and for JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from assay.server.protocol import assay_pb2 as pb

RETURN = "rollout/return_mean"
EPISODES = "server/episodes"


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
