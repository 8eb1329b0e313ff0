"""The service `Models`: what clients act with."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from assay.server.errors import Reason, RejectionError
from assay.server.gateway.hosted import Hosted, model_info
from assay.server.gateway.hub import Hub, answers
from assay.server.protocol import assay_pb2 as pb
from assay.server.protocol.assay_pb2_grpc import ModelsServicer
from assay.server.store.registry import CANARY, STABLE, Verb, check_channel

CHUNK = 1 << 20


class Models(ModelsServicer):
    """Announces, hands out and moves models."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    @answers
    async def Watch(self, request: pb.WatchRequest, context: Any) -> None:
        """Tell a client what to use, now, at every change, and now and then in between."""
        hub, config = self.hub, self.hub.config
        principal = await hub.enter(context, request.policy, Verb.READ)
        if request.channel:
            check_channel(request.channel)
        hosted = hub.hosted(request.policy)
        hosted.join(principal.name)
        hub.meters.watchers.add(1, hosted.name)
        step = min(config.announce_seconds, config.recheck_seconds)
        last: tuple[Any, ...] | None = None
        spoke = checked = time.monotonic()
        try:
            while True:
                change = hosted.changed.next()
                hub.refuse_draining()
                if hub.policies.get(hosted.name) is not hosted:
                    raise RejectionError(
                        Reason.POLICY_DELETED, f"The policy '{hosted.name}' was deleted."
                    )
                now = time.monotonic()
                if now - checked >= config.recheck_seconds:
                    await hub.enter(context, request.policy, Verb.READ)
                    checked = now
                info = hosted.info_for(principal.name, request.channel)
                if info is not None:
                    state = (info.version, info.channel, info.pinned)
                    if state != last or now - spoke >= config.announce_seconds:
                        await context.write(info)
                        last, spoke = state, now
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(step):
                        await change.wait()
        finally:
            hub.meters.watchers.add(-1, hosted.name)
            hosted.leave(principal.name)

    @answers
    async def Fetch(self, request: pb.FetchRequest, context: Any) -> None:
        """Send a model file in chunks, or its difference to one that the client has."""
        hub = self.hub
        await hub.enter(context, request.policy, Verb.READ)
        hosted = hub.hosted(request.policy)
        info = await self._find(hosted, request)
        data = await self._difference(hosted, request.base_sha256, info)
        is_full = data is None
        if data is None:
            data = await hub.snapshot(hosted, info.sha256)
        for offset in range(0, max(len(data), 1), CHUNK):
            chunk = pb.ModelChunk(offset=offset, data=data[offset : offset + CHUNK])
            if not offset:
                chunk.info.CopyFrom(info)
                chunk.base_sha256 = "" if is_full else request.base_sha256
            await context.write(chunk)
        name, meters = hosted.name, hub.meters
        meters.fetches.add(1, name)
        meters.fetched_bytes.add(len(data), name)
        meters.differences.add(not is_full, name)

    async def _difference(self, hosted: Hosted, base: str, info: pb.ModelInfo) -> bytes | None:
        """Return a model's difference to a base; None where it is sent in full."""
        settings = self.hub.config.differences
        if (
            not base
            or base == info.sha256
            or settings.above is None
            or info.size < settings.above
            or info.version % settings.anchor == 0
        ):
            return None
        known = (hosted.name, base, info.sha256) in self.hub.deltas
        if not known and await self._by_digest(hosted, base) is None:
            return None
        return await self.hub.difference(hosted, base, info.sha256)

    async def _find(self, hosted: Hosted, request: pb.FetchRequest) -> pb.ModelInfo:
        registry = self.hub.store.registry
        which = request.WhichOneof("which")
        if which == "version":
            model = await self.hub.work(registry.model, hosted.name, request.version)
            return model_info(model)
        if which == "sha256":
            found = await self._by_digest(hosted, request.sha256)
            if found is not None:
                return found
            raise RejectionError(
                Reason.UNKNOWN_VERSION,
                f"'{hosted.name}' has no model with the SHA-256 '{request.sha256[:64]}'.",
            )
        raise RejectionError(Reason.MALFORMED, "The request names neither a version nor a hash.")

    async def _by_digest(self, hosted: Hosted, digest: str) -> pb.ModelInfo | None:
        # What a channel points to is what nearly everyone asks for, and is never pruned.
        for known in hosted.infos.values():
            if known.sha256 == digest:
                info = pb.ModelInfo()
                info.CopyFrom(known)
                info.ClearField("channel")
                info.ClearField("pinned")
                return info
        # Among the models alone: checkpoints lie beside them, and are nobody's business.
        model = await self.hub.work(self.hub.store.registry.find_model, hosted.name, digest)
        return None if model is None else model_info(model)

    @answers
    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.ModelInfo:
        """Hold a channel at a version, or let it go to the newest that has not failed."""
        channel, registry = request.channel or STABLE, self.hub.store.registry
        hosted = await self.hub.operate("pin" if request.version else "unpin", request, context)
        if request.version:
            await self.hub.work(registry.pin, hosted.name, channel, request.version)
        else:
            # Where versions have to pass a trial, what is new is not for everybody yet.
            known = hosted.guard is not None and channel == STABLE
            failed = tuple(hosted.verdicts.failed)
            await self.hub.work(registry.unpin, hosted.name, channel, failed=failed, known=known)
        return await self._moved(hosted, channel)

    @answers
    async def Promote(self, request: pb.PromoteRequest, context: Any) -> pb.ModelInfo:
        """Move a channel to where another one points."""
        source, target = request.from_channel or CANARY, request.to_channel or STABLE
        hosted = await self.hub.operate("promote", request, context)
        await self.hub.work(self.hub.store.registry.promote, hosted.name, source, target)
        return await self._moved(hosted, target)

    @answers
    async def Rollback(self, request: pb.RollbackRequest, context: Any) -> pb.ModelInfo:
        """Move a channel back to where it pointed before, and hold it there."""
        channel = request.channel or STABLE
        hosted = await self.hub.operate("rollback", request, context)
        await self.hub.work(self.hub.store.registry.rollback, hosted.name, channel)
        return await self._moved(hosted, channel)

    async def _moved(self, hosted: Hosted, channel: str) -> pb.ModelInfo:
        if hosted.guard is not None and channel == STABLE:
            hosted.guard.forget_best()
        await self.hub.models_changed(hosted)
        info = hosted.infos.get(channel)
        return info if info is not None else pb.ModelInfo(policy=hosted.name, channel=channel)
