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
from assay.server.store.registry import CANARY, STABLE, Channel, ModelVersion, Verb, check_channel

CHUNK = 1 << 20
_SEARCHED = 10_000  # versions that are looked through for a hash


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
        """Send a model file in chunks. It is always the whole one, whatever the client has."""
        hub = self.hub
        await hub.enter(context, request.policy, Verb.READ)
        hosted = hub.hosted(request.policy)
        model = await self._find(hosted, request)
        data = await hub.snapshot(hosted, model.sha256)
        info = model_info(model, "", Channel(model.version))
        for offset in range(0, max(len(data), 1), CHUNK):
            chunk = pb.ModelChunk(offset=offset, data=data[offset : offset + CHUNK])
            if not offset:
                chunk.info.CopyFrom(info)
            await context.write(chunk)
        hub.meters.fetches.add(1, hosted.name)

    async def _find(self, hosted: Hosted, request: pb.FetchRequest) -> ModelVersion:
        registry = self.hub.store.registry
        which = request.WhichOneof("which")
        if which == "version":
            return await self.hub.work(registry.model, hosted.name, request.version)
        if which == "sha256":
            # Among the models alone: checkpoints lie beside them, and are nobody's business.
            models = await self.hub.work(registry.models, hosted.name, newest=_SEARCHED)
            for model in models:
                if model.sha256 == request.sha256:
                    return model
            raise RejectionError(
                Reason.UNKNOWN_VERSION,
                f"'{hosted.name}' has no model with the SHA-256 '{request.sha256[:64]}'.",
            )
        raise RejectionError(Reason.MALFORMED, "The request names neither a version nor a hash.")

    @answers
    async def Pin(self, request: pb.PinRequest, context: Any) -> pb.ModelInfo:
        """Hold a channel at a version, or let go of it."""
        channel = request.channel or STABLE
        hosted = await self.hub.operate("pin", request, context)
        await self.hub.work(self.hub.store.registry.pin, hosted.name, channel, request.version)
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
        """Move a channel back to where it pointed before."""
        channel = request.channel or STABLE
        hosted = await self.hub.operate("rollback", request, context)
        await self.hub.work(self.hub.store.registry.rollback, hosted.name, channel)
        return await self._moved(hosted, channel)

    async def _moved(self, hosted: Hosted, channel: str) -> pb.ModelInfo:
        await self.hub.models_changed(hosted)
        info = hosted.infos.get(channel)
        return info if info is not None else pb.ModelInfo(policy=hosted.name, channel=channel)
