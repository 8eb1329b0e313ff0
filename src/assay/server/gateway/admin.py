"""The service `Admin`: what an operator does with policies, with tokens, and with the server."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from assay.server.errors import Reason, RejectionError
from assay.server.gateway.export import export_experience
from assay.server.gateway.hosted import Hosted, finite, model_info
from assay.server.gateway.hub import Hub, answers
from assay.server.gateway.metrics import quantile
from assay.server.protocol import assay_pb2 as pb
from assay.server.protocol.assay_pb2_grpc import AdminServicer
from assay.server.store.registry import (
    CHANNELS,
    EVERY,
    ModelVersion,
    Policy,
    PolicyState,
    Token,
    Verb,
)
from assay.server.store.tokens import make_token

MODELS_SHOWN = 20  # the newest; those before them only if they are half as old again
_MODELS_READ = 1000
_LONGEST_DRAIN = 3600.0

_STATES = {"active": pb.ACTIVE, "paused": pb.PAUSED, "deleted": pb.DELETED}


class Admin(AdminServicer):
    """Shows and moves policies, and keeps tokens.

    Args:
        hub: What the services share.
        drain: Ends the server in order, within some seconds.
    """

    def __init__(self, hub: Hub, drain: Callable[[float | None], Awaitable[bool]]) -> None:
        self.hub, self._drain = hub, drain

    # How a policy does

    @answers
    async def ListPolicies(
        self, request: pb.ListPoliciesRequest, context: Any
    ) -> pb.ListPoliciesReply:
        """List the policies that the caller may read."""
        principal = await self.hub.principal(context)
        policies = await self.hub.work(self.hub.store.registry.policies)
        return pb.ListPoliciesReply(
            policies=[
                await self.hub.work(self._info, policy)
                for policy in policies
                if any(principal.may(policy.name, verb) for verb in (Verb.READ, Verb.OPERATE))
            ]
        )

    @answers
    async def GetPolicy(self, request: pb.PolicyRequest, context: Any) -> pb.PolicyDetails:
        """Tell everything about one policy, its latest versions included."""
        await self.hub.enter(context, request.policy, Verb.READ)
        registry = self.hub.store.registry
        policy = await self.hub.work(registry.policy, request.policy)
        models = await self.hub.work(registry.models, policy.name, newest=_MODELS_READ)
        return pb.PolicyDetails(
            info=await self.hub.work(self._info, policy),
            models=[model_info(model) for model in _listed(models)],
        )

    def _info(self, policy: Policy) -> pb.PolicyInfo:
        registry, name = self.hub.store.registry, policy.name
        totals, learner = registry.totals(name), registry.learner(name)
        channels = {channel: registry.channel(name, channel) for channel in CHANNELS}
        info = pb.PolicyInfo(
            policy=name,
            spec_hash=policy.hash,
            spec_json=policy.spec.canonical().decode(),
            state=_STATES[policy.state],
            batches=totals.batches,
            steps=totals.steps,
            bytes=totals.bytes,
            position=registry.last_position(name),
            cursor=learner.position,
            newest_version=learner.version,
            channels={channel: at.version for channel, at in channels.items() if at.version},
            pinned=[channel for channel, at in channels.items() if at.pinned],
        )
        hosted = self.hub.policies.get(name)
        if hosted is not None:
            info.learner.CopyFrom(_learner(hosted))
            info.traffic.CopyFrom(traffic(self.hub, hosted))
            info.notes.extend(hosted.notes())
        return info

    # What an operator does

    @answers
    async def Pause(self, request: pb.PolicyRequest, context: Any) -> pb.PolicyInfo:
        """Stop learning; batches are refused with POLICY_PAUSED and wait with the clients."""
        hosted = await self._set("pause", request, context, "paused")
        hosted.supervisor.pause()
        return await self._shown(hosted.name)

    @answers
    async def Resume(self, request: pb.PolicyRequest, context: Any) -> pb.PolicyInfo:
        """Go on, also with a learner that was given up."""
        hosted = await self._set("resume", request, context, "active")
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
        """Write a policy's experience as a dataset, on the server."""
        hosted = await self.hub.operate("export", request, context)
        return await self.hub.wait(
            export_experience,
            self.hub.store,
            hosted.spec,
            request.dataset_id,
            after=request.after_position,
        )

    async def _set(self, what: str, request: Any, context: Any, state: PolicyState) -> Hosted:
        hosted = await self.hub.operate(what, request, context)
        await self.hub.work(self.hub.store.registry.set_state, hosted.name, state)
        return hosted

    async def _shown(self, name: str) -> pb.PolicyInfo:
        policy = await self.hub.work(self.hub.store.registry.policy, name)
        return await self.hub.work(self._info, policy)

    # Tokens

    @answers
    async def AddToken(self, request: pb.AddTokenRequest, context: Any) -> pb.AddTokenReply:
        """Make a token; only the caller ever has the whole of it."""
        await self.hub.enter(context, EVERY, Verb.ADMIN)
        grants: dict[str, frozenset[Verb]] = {}
        for grant in request.grants:
            before = grants.get(grant.policy, frozenset())
            grants[grant.policy] = before | read_verbs(grant.verbs)
        expires = request.expires if request.expires > 0 else None
        if expires is not None and not time.time() < expires < math.inf:
            raise RejectionError(
                Reason.MALFORMED, "The token would have expired already.", "Give a later time."
            )
        text, token = make_token(request.principal, grants, expires=expires)
        await self.hub.work(self.hub.store.registry.add_token, token)
        return pb.AddTokenReply(token=text, info=token_info(token))

    @answers
    async def ListTokens(self, request: pb.ListTokensRequest, context: Any) -> pb.ListTokensReply:
        """List the tokens by their public parts."""
        await self.hub.enter(context, EVERY, Verb.ADMIN)
        tokens = await self.hub.work(self.hub.store.registry.tokens)
        return pb.ListTokensReply(tokens=[token_info(token) for token in tokens])

    @answers
    async def RevokeToken(
        self, request: pb.RevokeTokenRequest, context: Any
    ) -> pb.RevokeTokenReply:
        """Forget a token. Calls that bear it end within `recheck_seconds`."""
        await self.hub.enter(context, EVERY, Verb.ADMIN)
        registry = self.hub.store.registry
        return pb.RevokeTokenReply(revoked=await self.hub.work(registry.revoke_token, request.id))


def _listed(models: Sequence[ModelVersion]) -> list[ModelVersion]:
    """Choose from versions, the newest first: the latest, then fewer and fewer."""
    shown = list(models[:MODELS_SHOWN])
    for model in models[MODELS_SHOWN:]:
        newest = models[0].created
        if newest - model.created >= max(60.0, 1.5 * (newest - shown[-1].created)):
            shown.append(model)
    return shown


def _learner(hosted: Hosted) -> pb.LearnerInfo:
    status = hosted.supervisor.status()
    health = status.health
    # A learner that has just begun has reported nothing yet; then the last it ever did counts.
    return pb.LearnerInfo(
        state=status.state,
        behind_batches=status.behind,
        behind_steps=status.behind_steps,
        restarts=status.restarts,
        memory_bytes=0 if health is None else health.rss,
        pid=0 if health is None else health.pid,
        where="" if health is None else health.where,
        last_error=status.last_error or "",
        metrics=finite({**hosted.journal.latest, **status.metrics}),
    )


def traffic(hub: Hub, hosted: Hosted) -> pb.Traffic:
    """Return what clients do with a policy now."""
    name, meters = hosted.name, hub.meters
    steps, batches = hosted.rates.per_second() or (0.0, 0.0)
    recent = meters.ack_seconds.recent(name)
    return pb.Traffic(
        steps_per_second=steps,
        batches_per_second=batches,
        sessions=int(meters.sessions.get(name)),
        watchers=int(meters.watchers.get(name)),
        ack_p50_seconds=quantile(recent, 0.5),
        ack_p99_seconds=quantile(recent, 0.99),
        duplicates=int(meters.duplicates.get(name)),
        rejections=int(meters.rejections.total(name)),
        clients=sorted(hosted.streams),
        version_lag=hosted.lag,
    )


def token_info(token: Token) -> pb.TokenInfo:
    """Describe a token for the wire, without its digest."""
    return pb.TokenInfo(
        id=token.id,
        principal=token.principal,
        grants=[
            pb.Grant(policy=policy, verbs=sorted(verbs)) for policy, verbs in token.grants.items()
        ],
        expires=token.expires or 0.0,
    )


def read_verbs(names: Iterable[str]) -> frozenset[Verb]:
    """Return verbs by their names.

    Raises:
        RejectionError: MALFORMED, where there is no such verb.
    """
    try:
        return frozenset(Verb(name) for name in names)
    except ValueError as error:
        raise RejectionError(
            Reason.MALFORMED, f"A grant has a verb that does not exist: {error}.",
            f"Use {', '.join(Verb)}.",
        ) from None  # fmt: skip
