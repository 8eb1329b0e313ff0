"""The service `Admin`: what an operator does with policies, and with the server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from assay.server.gateway.export import export_minari
from assay.server.gateway.hosted import Hosted
from assay.server.gateway.hub import Hub, answers
from assay.server.gateway.operations import OperationsAdmin
from assay.server.protocol import assay_pb2 as pb
from assay.server.store.registry import EVERY, PolicyState, Verb

_LONGEST_DRAIN = 3600.0


class Admin(OperationsAdmin):
    """Shows and moves policies.

    Args:
        hub: What the services share.
        drain: Ends the server in order, within some seconds.
    """

    def __init__(self, hub: Hub, drain: Callable[[float | None], Awaitable[bool]]) -> None:
        super().__init__(hub)
        self._drain = drain

    @answers
    async def Pause(self, request: pb.PolicyRequest, context: Any) -> pb.PolicyInfo:
        """Stop learning; batches are refused with POLICY_PAUSED and wait with the clients."""
        hosted = await self.hub.operate("pause", request, context)
        await self._set(hosted, "paused")
        hosted.supervisor.pause()
        return await self._shown(hosted.name)

    @answers
    async def Resume(self, request: pb.PolicyRequest, context: Any) -> pb.PolicyInfo:
        """Go on, also with a learner that was given up."""
        hosted = await self.hub.operate("resume", request, context)
        await self._set(hosted, "active")
        hosted.supervisor.resume()
        return await self._shown(hosted.name)

    @answers
    async def Delete(self, request: pb.PolicyRequest, context: Any) -> pb.PolicyInfo:
        """Delete a policy's experience and models for good."""
        await self.hub.enter(context, request.policy, Verb.ADMIN)
        self.hub.hosted(request.policy)
        await self.hub.delete(request.policy)
        return await self._shown(request.policy)

    @answers
    async def Drain(self, request: pb.DrainRequest, context: Any) -> pb.DrainReply:
        """End the server in order."""
        await self.hub.enter(context, EVERY, Verb.ADMIN)
        seconds = request.timeout_seconds
        timeout = min(seconds, _LONGEST_DRAIN) if seconds > 0 else None
        return pb.DrainReply(complete=await self._drain(timeout))

    @answers
    async def Export(self, request: pb.ExportRequest, context: Any) -> pb.ExportReply:
        """Write a policy's experience as a Minari dataset, on the server."""
        hosted = await self.hub.operate("export", request, context)
        return await self.hub.wait(
            export_minari,
            self.hub.store,
            hosted.spec,
            request.dataset_id,
            after=request.after_position,
        )

    async def _set(self, hosted: Hosted, state: PolicyState) -> None:
        await self.hub.work(self.hub.store.registry.set_state, hosted.name, state)

    async def _shown(self, name: str) -> pb.PolicyInfo:
        policy = await self.hub.work(self.hub.store.registry.policy, name)
        return await self.hub.work(self._info, policy)
