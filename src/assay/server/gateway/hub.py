"""What all services share: the store, the policies, who may do what, and the orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import grpc

from assay.core.errors import AssayError
from assay.server.errors import Reason, RejectionError
from assay.server.executor.base import Executor
from assay.server.gateway.auth import Access, Presented, Principal
from assay.server.gateway.config import ServerConfig
from assay.server.gateway.guard import Guard, Verdict, Verdicts
from assay.server.gateway.hosted import Hosted, Supervise, model_info
from assay.server.gateway.journal import Journal
from assay.server.gateway.kept import Kept
from assay.server.gateway.metrics import Meters
from assay.server.model_delta import make_delta
from assay.server.protocol import PROTOCOL
from assay.server.rejections import status_of, trailer
from assay.server.spec import PolicySpec
from assay.server.store.group import GroupCommitter
from assay.server.store.registry import CANARY, CHANNELS, EVERY, STABLE, ModelVersion, Verb
from assay.server.store.sql import no_policy
from assay.server.store.store import Store

log = logging.getLogger("assay.server")

_THREADS = 16
_PULSE_SECONDS = 0.1
SERVING, DEGRADED, NOT_SERVING = "serving", "degraded", "not serving"
_TOLD_BEFORE = frozenset({"failed", "stopped", "unsaved"})  # troubles that a supervisor logs
# What the log says when a trouble is over.
_OVER = {
    "failed": "the learner is begun again",
    "refusing": "batches are taken again",
    "starving": "the learner gets steps again that it can learn from",
}
_KEPT_BYTES = 64 << 20  # of snapshots in memory, and as much of differences

T = TypeVar("T")


class Hub:
    """The part of a gateway that knows no gRPC service."""

    def __init__(
        self,
        config: ServerConfig,
        store: Store,
        executor: Executor,
        supervise: Supervise,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config, self.store, self.executor = config, store, executor
        self._supervise = supervise
        self.access = Access(store.registry, config, clock)
        self.meters = Meters()
        self.committer = GroupCommitter(store)
        self.policies: dict[str, Hosted] = {}
        self.draining = False
        self.drained = asyncio.Event()
        self.assembling = 0  # bytes of unfinished batches, of all streams together
        self.under_way = 0  # bytes of batches that wait for their commitment
        self.on_change: Callable[[Hosted], None] = lambda hosted: None
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="assay-gateway")
        # Learners take their time, and nobody else may wait for a thread because of them.
        self._patient = ThreadPoolExecutor(
            config.max_policies + _THREADS, thread_name_prefix="assay-learners"
        )
        # By name; one that nobody holds is forgotten.
        self._registering: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._beginning: set[str] = set()  # policies whose learner is being begun
        self._tasks: set[asyncio.Task[None]] = set()
        self.snapshots, self.deltas = Kept(_KEPT_BYTES), Kept(_KEPT_BYTES)
        self._comparing = asyncio.Lock()

    # Work

    async def work(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Do something that waits for a lock or a disk, beside the event loop."""
        call = functools.partial(function, *args, **options)
        return await self._loop.run_in_executor(self._threads, call)

    async def wait(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Do something that may take as long as a learner does."""
        call = functools.partial(function, *args, **options)
        return await self._loop.run_in_executor(self._patient, call)

    def spawn(self, work: Awaitable[None]) -> None:
        """Do something in the background; what goes wrong with it is logged."""

        async def run() -> None:
            try:
                await work
            except Exception:
                log.exception("A background task of the gateway failed")

        task = self._loop.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def from_thread(self, function: Callable[..., None], *args: Any) -> None:
        """Call something in the event loop, from another thread."""
        with contextlib.suppress(RuntimeError):  # the loop may have ended before a learner
            self._loop.call_soon_threadsafe(function, *args)

    # Who may do what

    async def enter(self, context: Any, policy: str, verb: Verb) -> Principal:
        """Return who makes a call, if they may.

        Raises:
            RejectionError: UNAUTHENTICATED or PERMISSION_DENIED.
        """
        principal = await self.principal(context)
        principal.allow(policy, verb)
        return principal

    async def principal(self, context: Any) -> Principal:
        """Return who makes a call.

        Raises:
            RejectionError: UNAUTHENTICATED.
        """
        return await self.work(self.access.principal, Presented.of(context))

    async def operate(self, what: str, request: Any, context: Any) -> Hosted:
        """Return the policy that an operator wants to move, if they may; the log has who it was.

        Raises:
            RejectionError: UNAUTHENTICATED, PERMISSION_DENIED or UNKNOWN_POLICY.
        """
        principal = await self.enter(context, request.policy, Verb.OPERATE)
        hosted = self.hosted(request.policy)
        fields = [(one.name, value) for one, value in request.ListFields() if one.name != "policy"]
        given = "".join(f", {name} {str(value)[:200]!r}" for name, value in fields)
        log.info("%s: %s by %s%s", hosted.name, what, principal.name, given)
        return hosted

    def refuse_draining(self) -> None:
        """Refuse new work once the server is on its way out."""
        if self.draining:
            raise draining()

    # Policies

    async def host_all(self) -> None:
        """Serve what is registered."""
        for policy in await self.work(self.store.registry.policies):
            if policy.state == "deleted":
                continue
            hosted = self._make(policy.spec)
            await self._host(hosted)
            hosted.supervisor.start()
            if policy.state == "paused":
                hosted.supervisor.pause()

    def _make(self, spec: PolicySpec) -> Hosted:
        def published(model: ModelVersion) -> None:
            self.from_thread(self._published, spec.name, model)

        directory = self.store.directory / "policies" / spec.name
        journal = Journal(
            directory,
            seconds=self.config.journal_seconds,
            beside=lambda: self.meters.of_policy(spec.name),
        )

        def reported(metrics: Mapping[str, float]) -> None:
            journal.report(metrics)
            for name, value in metrics.items():
                self.meters.learner.set(value, spec.name, name)

        # The channel is asked for when a version is published, and the policy is known by then.
        def channel() -> str | None:
            hosted = self.policies.get(spec.name)
            return STABLE if hosted is None else hosted.publish_channel()

        supervisor = self._supervise(
            self.store,
            self.executor,
            spec.name,
            self.config.learner_of(spec.name),
            on_published=published,
            on_metrics=reported,
            channel=channel,
        )
        return Hosted(spec, self.config, supervisor, journal, Verdicts(directory))

    async def _host(self, hosted: Hosted) -> None:
        quota = self.config.quota_of(hosted.name)
        if quota is not None:
            await self.work(self.store.registry.set_quota, hosted.name, EVERY, quota)
        totals = await self.work(self.store.registry.totals, hosted.name)
        for meter, value in (
            (self.meters.batches, totals.batches),
            (self.meters.steps, totals.steps),
            (self.meters.bytes, totals.bytes),
        ):
            meter.set(value, hosted.name)
        for failed in hosted.verdicts.newest(1):
            self.meters.canary_failed.set(failed.version, hosted.name)
        await self.refresh(hosted)
        self.policies[hosted.name] = hosted

    def hosted(self, name: str) -> Hosted:
        """Return a policy.

        Raises:
            RejectionError: UNKNOWN_POLICY.
        """
        if name not in self.policies:
            raise no_policy(name)
        return self.policies[name]

    async def register(self, spec: PolicySpec) -> bool:
        """Register a policy and begin to learn it; return whether it is new.

        Raises:
            RejectionError: SPEC_CONFLICT, POLICY_DELETED, or BAD_SPEC where the learner does not
                take it.
        """
        lock = self._registering.setdefault(spec.name, asyncio.Lock())
        async with lock:
            if spec.name in self.policies or await self._is_known(spec.name):
                return await self.work(self.store.register, spec)
            taken = len(self.policies.keys() | self._beginning)
            if taken >= self.config.max_policies:
                raise RejectionError(
                    Reason.QUOTA_EXCEEDED,
                    f"This server trains {taken} policies, which is as many as it may.",
                    "Delete one, or raise max_policies in the server's config.",
                )
            self._beginning.add(spec.name)
            try:
                return await self._begin(spec)
            finally:
                self._beginning.discard(spec.name)

    async def _begin(self, spec: PolicySpec) -> bool:
        """Host a policy that is new, if a learner takes it; return whether it is registered now."""
        hosted = self._make(spec)
        try:
            await self.wait(hosted.supervisor.validate, spec)
            created = await self.work(self.store.register, spec)
            await self._host(hosted)
        except BaseException:
            self.policies.pop(spec.name, None)
            await self.wait(hosted.supervisor.stop)
            raise
        hosted.supervisor.start()
        self.on_change(hosted)
        log.info("%s: registered, learns by %s", spec.name, spec.algorithm)
        return created

    async def _is_known(self, name: str) -> bool:
        try:
            await self.work(self.store.registry.state, name)
        except RejectionError as error:
            if error.reason is Reason.UNKNOWN_POLICY:
                return False
            raise
        return True

    async def delete(self, name: str) -> None:
        """Delete a policy: its learner, experience and models."""
        hosted = self.hosted(name)
        del self.policies[name]
        gone = RejectionError(Reason.POLICY_DELETED, f"The policy '{name}' was deleted.")
        for stream in hosted.open_streams():
            stream.finish(gone)
        hosted.changed.fire()
        await self.wait(hosted.supervisor.stop)
        await self.work(hosted.journal.close)
        await self.work(self.store.delete, name)
        self.meters.forget(name)
        log.info("%s: deleted", name)
        self.on_change(hosted)

    # Models

    def _published(self, name: str, model: ModelVersion) -> None:
        hosted = self.policies.get(name)
        if hosted is not None:
            hosted.newest = max(hosted.newest, model.version)
            self.meters.publications.add(1, name)
            self.spawn(self.models_changed(hosted))

    async def models_changed(self, hosted: Hosted) -> None:
        """Tell everyone who waits for a policy's models that a channel may have moved."""
        await self.refresh(hosted)
        hosted.changed.fire()
        if hosted.guard is not None:
            await self.guard(hosted)

    async def refresh(self, hosted: Hosted) -> None:
        """Look up where a policy's channels point."""
        async with hosted.refreshing:  # an older answer must not come last
            newest, hosted.infos = await self.work(self._look_up, hosted.name)
        hosted.newest = max(hosted.newest, newest)
        self.meters.version.set(hosted.newest, hosted.name)

    def _look_up(self, name: str) -> tuple[int, dict[str, Any]]:
        registry = self.store.registry
        infos = {}
        for channel in CHANNELS:
            where = registry.channel(name, channel)
            if where.version:
                infos[channel] = model_info(
                    registry.model(name, where.version), channel, where.pinned
                )
        return registry.learner(name).version, infos

    async def guard(self, hosted: Hosted) -> None:
        """Begin or end the trial of a version, if it is time to."""
        if hosted.guard is None:
            return
        async with hosted.guarding:
            try:
                while await self._guard_once(hosted, hosted.guard):
                    await self.refresh(hosted)
                    hosted.changed.fire()
            except RejectionError as error:
                if error.reason is not Reason.CHANNEL_PINNED:  # an operator was faster
                    raise

    async def _guard_once(self, hosted: Hosted, guard: Guard) -> bool:
        """Move a channel, if it is time to; return whether one was moved."""
        registry = self.store.registry
        stable, canary = hosted.version_of(STABLE), hosted.version_of(CANARY)
        if not stable or any(info.pinned for info in hosted.infos.values()):
            return False
        if canary > stable and canary in hosted.verdicts:
            # The server ended between the verdict and the move that follows from it.
            await self.work(registry.promote, hosted.name, STABLE, CANARY)
            return True
        if hosted.on_trial():
            if hosted.is_trying() and canary != hosted.told_trial:
                # After a restart a trial waits until the stable version is known again.
                hosted.told_trial = canary
                hosted.changed.fire()
            verdict = guard.judge(stable, canary)
            if verdict is not None:
                await self._obey(hosted, guard, verdict)
            return verdict is not None
        new = hosted.newest > stable and hosted.newest not in hosted.verdicts
        if new and guard.has_baseline(stable):
            await self.work(registry.move, hosted.name, CANARY, hosted.newest)
            return True
        return False

    async def _obey(self, hosted: Hosted, guard: Guard, verdict: Verdict) -> None:
        """Promote the version on trial, or take it back for good."""
        stable, canary = hosted.version_of(STABLE), hosted.version_of(CANARY)
        forwards = verdict == "promote"
        judge, judge_mean = stable, guard.mean(stable) or 0.0
        if not forwards:
            failure = guard.failure(stable, canary)
            judge, judge_mean = failure.stable, failure.stable_mean
            # First, so that it is never tried again whatever happens now.
            await self.work(hosted.verdicts.add, failure)
            self.meters.canary_failed.set(canary, hosted.name)
        mean = guard.mean(canary)
        way = (CANARY, STABLE) if forwards else (STABLE, CANARY)
        await self.work(self.store.registry.promote, hosted.name, *way)
        self.meters.canary_decisions.add(1, hosted.name, verdict)
        self.meters.canary_return.set(mean or 0.0, hosted.name, "tried")
        self.meters.canary_return.set(judge_mean, hosted.name, "stable")
        log.info(
            "%s: version %d is %s (mean return %s against %.4g of version %d)",
            hosted.name, canary, "promoted" if forwards else "rolled back",
            "-" if mean is None else f"{mean:.4g}", judge_mean, judge,
        )  # fmt: skip

    async def snapshot(self, hosted: Hosted, digest: str) -> bytes:
        """Return a model file; the latest ones are kept in memory.

        Raises:
            RejectionError: UNKNOWN_VERSION or HASH_MISMATCH.
        """

        async def read() -> bytes:
            blobs = await self.work(self.store.blobs, hosted.name)
            return await self.work(blobs.get, digest)

        data = await self.snapshots.get((hosted.name, digest), read)
        assert data is not None
        return data

    async def difference(self, hosted: Hosted, base: str, digest: str) -> bytes | None:
        """Return how a model differs from another of the policy; None if the full one is better."""

        async def make() -> bytes | None:
            async with self._comparing:  # one at a time: it takes a core
                try:
                    before = await self.snapshot(hosted, base)
                except RejectionError:
                    return None  # damaged, or gone: not a reason to refuse the model itself
                after = await self.snapshot(hosted, digest)
                return await self.work(make_delta, before, after)

        return await self.deltas.get((hosted.name, base, digest), make)

    def serves(self) -> bool:
        """Return whether the server takes work: not while it drains, nor after its disk failed."""
        return not self.draining and not any(one.broken for one in self.policies.values())

    def health(self) -> str:
        """Say how the server is: serving, degraded (something of it is not) or not serving."""
        if not self.serves():
            return NOT_SERVING
        paused = [one for one in self.policies.values() if one.state == "paused"]
        ill = [one for one in self.policies.values() if not one.works and one not in paused]
        return DEGRADED if ill else SERVING

    def troubles(self) -> list[str]:
        """Say what is wrong with policies, a line each."""
        hosted = list(self.policies.values())
        return [f"{one.name}: {line}" for one in hosted for line in one.troubles().values()]

    # Time

    async def pulse(self) -> None:
        """Keep an eye on the learners, for ever."""
        await self._every(_PULSE_SECONDS, self.look_at, "look at the learner")

    async def retain(self) -> None:
        """Forget what retention says, for ever."""
        await self._every(self.config.retention.every, self.forget_past, "forget the past")

    async def _every(
        self, seconds: float, work: Callable[[Hosted], Awaitable[None]], what: str
    ) -> None:
        while True:
            await asyncio.sleep(seconds)
            for hosted in list(self.policies.values()):
                try:
                    await work(hosted)
                except Exception:
                    log.exception("Cannot %s of '%s'", what, hosted.name)

    async def look_at(self, hosted: Hosted) -> None:
        """Learn how far a policy's learner is, and tell its clients if they may send again."""
        status = await self.work(hosted.supervisor.status)
        before = hosted.credits()
        hosted.behind_steps, hosted.state = status.behind_steps, status.state
        hosted.last_error, hosted.unsaved = status.last_error, status.unsaved
        hosted.skipped, hosted.recovered = status.skipped, status.recovered
        hosted.broken = await self.work(self.store.is_broken, hosted.name)
        after = hosted.credits()
        name, meters = hosted.name, self.meters
        meters.behind.set(status.behind, name)
        meters.behind_steps.set(status.behind_steps, name)
        meters.restarts.set(status.restarts, name)
        meters.skipped.set(hosted.skipped, name)
        meters.broken.set(float(hosted.broken), name)
        meters.refusing.set(float(hosted.refusing is not None), name)
        meters.credit.set(after[0], name)
        health = status.health
        meters.learner_up.set(float(health is not None and health.alive), name)
        meters.learner_failed.set(float(hosted.state == "failed"), name)
        meters.learner_memory.set(0 if health is None else health.rss, name)
        hosted.rates.sample(time.monotonic(), (meters.steps.get(name), meters.batches.get(name)))
        if hosted.freshness.look(status.metrics, reachable=hosted.is_reachable()):
            meters.starving.set(float(hosted.freshness.starving), name)
            if hosted.freshness.catching_up:
                log.info(
                    "%s: %d of the last %d steps were left out as too old; clients can have a "
                    "newer version, so this may be what they had kept",
                    name, hosted.freshness.left_out, hosted.freshness.of,
                )  # fmt: skip
        self._log_changes(hosted)
        if hosted.journal.due:
            await self.work(hosted.journal.write_due)
        if after != before:
            for stream in hosted.open_streams():
                stream.wake()
        self.on_change(hosted)

    def _log_changes(self, hosted: Hosted) -> None:
        """Leave a line about each trouble that has begun or is over."""
        troubles = hosted.troubles()
        for kind in troubles.keys() - hosted.told - _TOLD_BEFORE:
            log.warning("%s: %s", hosted.name, troubles[kind])
        for kind in hosted.told - troubles.keys():
            if kind in _OVER:
                log.info("%s: %s", hosted.name, _OVER[kind])
        hosted.told = frozenset(troubles)

    async def forget_past(self, hosted: Hosted) -> None:
        """Delete a policy's old versions."""
        keep = self.config.retention
        await self.work(
            self.store.prune_models,
            hosted.name,
            keep=keep.versions,
            minutes=keep.minutes,
            hours=keep.hours,
        )

    # The end

    async def close(self) -> None:
        """Let go of the threads; what was handed in is committed first."""
        for task in list(self._tasks):
            task.cancel()
        await self.work(self.committer.close)
        for hosted in self.policies.values():
            await self.work(hosted.journal.close)
        self._threads.shutdown(wait=False)
        self._patient.shutdown(wait=False)


def draining() -> RejectionError:
    """Return the refusal of a server on its way out."""
    return RejectionError(
        Reason.DRAINING, "The server is shutting down.", "Try again in a while, or elsewhere."
    )


def check_protocol(stated: int) -> None:
    """Refuse a peer of another protocol.

    Raises:
        RejectionError: UNSUPPORTED_PROTOCOL.
    """
    if stated != PROTOCOL:
        older = stated < PROTOCOL
        raise RejectionError(
            Reason.UNSUPPORTED_PROTOCOL,
            f"The client speaks protocol {stated}; this server speaks {PROTOCOL}.",
            f"Update the {'client' if older else 'server'} to the other's version of Assay.",
        )


async def refuse(context: Any, error: RejectionError) -> None:
    """End a call with a refusal."""
    details = f"{error.message} {error.fix}" if error.fix else error.message
    await context.abort(status_of(error.reason), details[:1500], trailer(error))


def answers(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Turn what a service's method raises into a status.

    The object needs a `hub`. What nobody expected is logged and tells the client nothing.
    """

    @functools.wraps(method)
    async def call(self: Any, request: Any, context: Any) -> Any:
        try:
            return await method(self, request, context)
        except RejectionError as error:
            hub: Hub = self.hub
            name = getattr(request, "policy", "")
            hub.meters.rejections.add(1, name if name in hub.policies else "", error.reason.name)
            await refuse(context, error)
        except AssayError as error:
            line = f"{error.message} {error.fix or ''}".strip()
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, line[:1500])
        except grpc.aio.BaseError:
            raise
        except Exception:
            if not context.cancelled() and not context.done():
                log.exception("%s failed", method.__qualname__)
                await context.abort(
                    grpc.StatusCode.INTERNAL, "The server failed. Its log has the reason."
                )

    return call
