"""How much a client may send: a bucket that fills steadily and is emptied by what is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from assay.server.errors import Reason, RejectionError
from assay.server.store.registry import Quota


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


class Meter:
    """Counts what clients send against their quotas.

    A client may send a quota's worth at once and then as much as the quota allows in time. Counts
    begin again with the process.

    Args:
        clock: Steady seconds, so that a change of the wall clock means nothing.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._buckets: dict[tuple[str, str, str], _Bucket] = {}

    def charge(self, quota: Quota | None, key: tuple[str, str], *, steps: int, size: int) -> None:
        """Count a batch of a policy and client, if a quota applies to them.

        Raises:
            RejectionError: QUOTA_EXCEEDED; nothing was counted.
        """
        if quota is None:
            return
        now = self._clock()
        charged: list[tuple[_Bucket, int]] = []
        for name, limit, amount in (("steps", quota.steps, steps), ("bytes", quota.bytes, size)):
            if limit is None:
                continue
            bucket = self._buckets.setdefault((*key, name), _Bucket(limit, now))
            filled = bucket.level + (now - bucket.at) * limit / quota.seconds
            bucket.level, bucket.at = min(filled, float(limit)), now
            # A full bucket takes anything, or a batch above the limit could never be sent.
            needed = min(amount, limit) or amount
            if bucket.level < needed:
                wait = (needed - bucket.level) * quota.seconds / max(limit, 1)
                raise RejectionError(
                    Reason.QUOTA_EXCEEDED,
                    f"'{key[1]}' may send {limit} {name} in {quota.seconds:g} s to '{key[0]}'; "
                    f"this batch has {amount}.",
                    f"Send it again in {wait:.1f} s.",
                )
            charged.append((bucket, amount))
        for bucket, amount in charged:
            bucket.level -= amount
