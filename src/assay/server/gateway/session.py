"""The service `Session`: who trains what, and the right to write."""

from __future__ import annotations

from typing import Any

from assay import __version__
from assay.server.errors import Reason, RejectionError
from assay.server.gateway.hub import Hub, answers, check_protocol
from assay.server.protocol import assay_pb2 as pb
from assay.server.protocol.assay_pb2_grpc import SessionServicer
from assay.server.spec import read_spec
from assay.server.store.registry import Verb
from assay.server.store.store import taken_over
from assay.server.tensors import FRAME_BYTES, TRAJECTORY_BYTES


class Session(SessionServicer):
    """Registers policies and opens sessions."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    @answers
    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterReply:
        """Register a policy; the same spec again changes nothing."""
        check_protocol(request.protocol)
        # First who asks: reading a spec is work.
        principal = await self.hub.principal(context)
        spec = await self.hub.work(read_spec, request.spec_json)
        principal.allow(spec.name, Verb.REGISTER)
        self.hub.refuse_draining()
        created = await self.hub.register(spec)
        return pb.RegisterReply(policy=spec.name, spec_hash=spec.hash(), created=created)

    @answers
    async def Open(self, request: pb.OpenRequest, context: Any) -> pb.OpenReply:
        """Give a client the next epoch, which ends its earlier sessions."""
        hub = self.hub
        check_protocol(request.protocol)
        principal = await hub.enter(context, request.policy, Verb.WRITE)
        hub.refuse_draining()
        hosted = hub.hosted(request.policy)
        if request.spec_hash and request.spec_hash != hosted.hash:
            raise RejectionError(
                Reason.SPEC_CONFLICT,
                f"The client's spec of '{hosted.name}' has the hash {request.spec_hash[:16]}; "
                f"the registered one has {hosted.hash[:16]}.",
                "Register the spec, which names the difference, or choose another name.",
            )
        session = await hub.work(
            hub.store.open_session,
            hosted.name,
            principal.name,
            resume_epoch=request.resume_epoch,
        )
        hub.meters.sessions_opened.add(1, hosted.name)
        for stream in list(hosted.streams.get(principal.name, ())):
            if stream.epoch < session.epoch:
                stream.finish(taken_over(principal.name, stream.epoch, session.epoch))
        batches, size = hosted.credits()
        return pb.OpenReply(
            epoch=session.epoch,
            resumed_committed=session.resumed_committed,
            limits=pb.Limits(
                frame_bytes=FRAME_BYTES,
                trajectory_bytes=TRAJECTORY_BYTES,
                codecs=[pb.RAW, pb.ZSTD],
            ),
            credit_bytes=size,
            credit_batches=batches,
            newest_version=hosted.newest,
            server_version=__version__,
        )
