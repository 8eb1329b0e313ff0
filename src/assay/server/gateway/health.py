"""The standard service `grpc.health.v1.Health`: the server as a whole, and each policy.

The whole ("") can be asked by anyone, as load balancers do; it does not serve once the disk of a
policy has failed, for only a restart helps then. A policy, `assay.policy/NAME`, is told to those
who may read it; it does not serve while its learner has failed or is paused, or while the disk has
no room. Its troubles are in the trailer `assay-detail` of `Check`, also those with which it serves.
"""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio

from assay.server.gateway.hosted import Hosted
from assay.server.gateway.hub import Hub, answers
from assay.server.store.registry import Verb

PREFIX = "assay.policy/"
DETAIL = "assay-detail"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Says whether the server and its policies take work."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._inner = aio.HealthServicer()
        self._told: dict[str, bool] = {}

    @answers
    async def Check(self, request: Any, context: Any) -> Any:
        """Answer once."""
        await self._enter(request, context)
        hosted = self.hub.policies.get(request.service.removeprefix(PREFIX))
        troubles = hosted.troubles() if hosted is not None else {}
        if troubles:
            # The answer itself has no room for it.
            detail = " ".join(troubles.values()).encode("ascii", "replace").decode()
            context.set_trailing_metadata(((DETAIL, detail),))
        return await self._inner.Check(request, context)

    @answers
    async def Watch(self, request: Any, context: Any) -> None:
        """Answer at every change."""
        await self._enter(request, context)
        await self._inner.Watch(request, context)

    async def _enter(self, request: Any, context: Any) -> None:
        if request.service:
            await self.hub.enter(context, request.service.removeprefix(PREFIX), Verb.READ)

    def look_at(self, hosted: Hosted, serving: bool) -> None:
        """Note how a policy is."""
        self._tell(PREFIX + hosted.name, serving)
        # Whoever restarts servers that are ill looks at the whole.
        self._tell("", self.hub.serves())

    def _tell(self, service: str, serving: bool) -> None:
        if self._told.get(service) is not serving:
            self._told[service] = serving
            self.hub.spawn(self._inner.set(service, SERVING if serving else NOT_SERVING))

    async def drain(self) -> None:
        """Say that nothing takes work any more."""
        await self._inner.enter_graceful_shutdown()
