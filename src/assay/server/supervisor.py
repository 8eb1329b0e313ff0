"""One policy's supervisor: it feeds the learner and commits what comes back.

The learner may die at any moment, and its supervisor makes sure that this changes nothing but the
time. It reads committed batches from the store, sends them to the learner, and commits each version
together with the learner's state and the position that it had consumed: one transaction. A new
learner begins from that state and position, so each batch is in the committed state exactly once,
however often the one before was killed. There are two exceptions. A batch that kills each learner
that gets it is passed over after some deaths, for one client's nonsense must not end the policy.
Neither must a disk that has lost a batch: one that cannot be read is passed over at once.

```
open_learner (a new epoch fences the last one)
  -> spawn -> start (checkpoint) -> replay (what fills the learner's replay again)
  -> consume (new batches) -> publish ... -> consume ... -> drain
```
The supervisor runs in a thread of its own. All its public methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from assay.core.errors import AssayError
from assay.server.errors import Reason, RejectionError, StoreError
from assay.server.executor.base import (
    Executor,
    ExecutorError,
    Handle,
    Health,
    LearnerCrashed,
    LearnerRefused,
)
from assay.server.learner.messages import (
    CHECKPOINT,
    Consume,
    LearnerSettings,
    Outcome,
    Publication,
    Ready,
    Start,
)
from assay.server.spec import PolicySpec
from assay.server.store.registry import STABLE, Learner, ModelVersion
from assay.server.store.store import Store, Stored
from assay.server.unconsumed import Backlog, Poison

T = TypeVar("T")
State = Literal["starting", "learning", "idle", "paused", "failed", "stopped"]

_log = logging.getLogger(__name__)
_OVER = (Reason.FENCED, Reason.POLICY_DELETED, Reason.UNKNOWN_POLICY)
_DAMAGED = (Reason.HASH_MISMATCH, Reason.UNKNOWN_VERSION)
_FIRST = Learner(epoch=1)  # what a trainer finds that is the first of its policy
_FIRST_PORTION = 16  # batches


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a supervisor waits for what."""

    start_seconds: float = 300.0  # for a learner to begin: loading its libraries, its checkpoint
    # For a learner to answer before it counts as hung; None for as long as it takes.
    call_seconds: float | None = 600.0
    stop_seconds: float = 5.0  # for a learner to end in good order
    # Before a crashed learner is begun again; doubled with every crash in a row.
    first_pause: float = 0.5
    longest_pause: float = 30.0  # the most that this grows to
    # In a row, after which the policy has failed. Whatever is committed in between ends the row.
    crashes: int = 8
    # Learners in a row that have died of the same batch, which was sent alone, after which it is
    # passed over. If the next ones die of another batch, with nothing committed in between, then
    # everything up to it is: the culprit may have come before.
    poison: int = 3
    # A learner that dies while it has nothing to do ends the row as well, if it has lived this
    # long.
    steady_seconds: float = 60.0
    # A version is asked for when nothing was published for so long although there was something to
    # learn; None to leave it to the learner, whose versions then depend on the experience alone.
    publish_seconds: float | None = None
    # Between two looks for experience that is no longer needed; None to keep all.
    trim_seconds: float | None = 60.0
    poll_seconds: float = 1.0  # between two looks at a learner that has nothing to do
    # That one call to the learner should take. A long one keeps its versions from being published
    # and orders from being obeyed, so less is sent at a time then.
    answer_seconds: float = 1.0
    batches: int = 256  # the most that one call to the learner brings
    bytes: int = 16 << 20  # the most that they have together, unless a single one has more

    def pause(self, crashes: int) -> float:
        """Return how long to wait after so many crashes in a row.

        Example:
            >>> [Patience().pause(crashes) for crashes in (1, 2, 3, 50)]
            [0.5, 1.0, 2.0, 30.0]
        """
        return min(self.longest_pause, self.first_pause * 2.0 ** min(crashes - 1, 60))


@dataclass(frozen=True, slots=True)
class SupervisorStatus:
    """How a policy's learning goes."""

    policy: str  # whose
    # "starting" includes filling the replay again and waiting after a crash; "failed" waits for
    # `Supervisor.resume`.
    state: State
    restarts: int  # how often a learner was begun again
    last_error: str | None  # what is wrong, or was until the learner has recovered
    unsaved: str | None  # why what was learned cannot be saved now, if it cannot
    # What a learner went on from as its checkpoint could not be read, in a sentence.
    recovered: str | None
    skipped: int  # batches that are passed over, as learners died of them or they cannot be read
    epoch: int  # of the trainer
    position: int  # of the last batch that the learner has consumed, in memory
    committed: int  # of the last batch that its committed state has consumed
    version: int  # the newest that was published
    behind: int  # batches that are committed and not consumed
    behind_steps: int  # the steps in them
    keep_after: int  # the log is kept behind this position
    health: Health | None  # of the learner, if there is one
    metrics: Mapping[str, float]  # the newest of the learner


class _Ended(Exception):
    """The supervisor was told to stop."""


class Supervisor:
    """Keeps one policy's learner going.

    Args:
        store: Which the supervisor reads experience from and publishes to.
        executor: Gives the learner a place.
        policy: Its name.
        settings: How the server runs the learner.
        on_published: Called with each version that was committed, from the supervisor's thread.
        on_metrics: Called with the learner's metrics, from the supervisor's thread.
        channel: Asked at each publication for the channel that moves to it; None for no channel.
        patience: How long to wait for what.
        host: `module:class` of the learner's host, if it is not the usual one.

    Example:
        A server does this for a policy that is new::

            supervisor = Supervisor(store, executor, spec.name, LearnerSettings())
            supervisor.validate(spec)  # raises BAD_SPEC
            store.register(spec)
            supervisor.start()
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        policy: str,
        settings: LearnerSettings,
        *,
        on_published: Callable[[ModelVersion], None] = lambda model: None,
        on_metrics: Callable[[Mapping[str, float]], None] = lambda metrics: None,
        channel: Callable[[], str | None] = lambda: STABLE,
        patience: Patience | None = None,
        host: str | None = None,
    ) -> None:
        self._store = store
        self._executor = executor
        self._policy = policy
        self._settings = settings
        self._on_published = on_published
        self._on_metrics = on_metrics
        self._channel = channel
        self._patience = patience or Patience()
        self._host = {} if host is None else {"host": host}
        self._thread = threading.Thread(target=self._run, name=f"assay-{policy}", daemon=True)
        self._started = False

        self._wake = threading.Condition()  # of the next five
        self._order: Literal["run", "pause", "drain", "stop"] = "run"
        self._news = False
        self._failed = False
        self._handle: Handle | None = None
        self._validated: tuple[Handle, Ready] | None = None

        # Written by the thread alone, but for crashes and skipped, which `resume` forgives.
        self._state: State = "starting"
        self._crashes = 0
        self._restarts = 0
        self._last_error: str | None = None
        self._unsaved: str | None = None
        self._recovered: str | None = None
        self._learner = Learner()  # what is committed, and our epoch
        self._position = 0
        self._portion = min(_FIRST_PORTION, self._patience.batches)
        self._poison = Poison(self._patience.poison)
        self._keep_after = 0  # for the newest checkpoint
        self._keep_earlier = 0  # for the one before it
        self._metrics: Mapping[str, float] = {}
        self._backlog = Backlog(store.registry, policy)
        self._published_at = self._trimmed_at = time.monotonic()
        self._drained = True

    # For the server, from any thread

    def validate(self, spec: PolicySpec) -> None:
        """Begin a learner for a spec that is not registered yet; `start` goes on with it.

        Raises:
            RejectionError: BAD_SPEC, where the learner refuses it; RESOURCE_EXHAUSTED, where no
                learner could be begun.
        """
        handle: Handle | None = None
        try:
            handle = self._spawn()
            ready = self._start(handle, spec, _FIRST)
        except AssayError as error:
            if handle is not None:
                handle.kill()
            refused = isinstance(error, LearnerRefused)
            reason = Reason.BAD_SPEC if refused else Reason.RESOURCE_EXHAUSTED
            raise RejectionError(reason, error.message, error.fix) from None
        with self._wake:
            if self._order != "stop":
                self._validated = handle, ready
                return
        handle.kill()

    def start(self) -> None:
        """Begin to learn. A policy that is paused in the registry begins paused."""
        with self._wake:
            if self._started or self._order == "stop":
                return
            self._started = True
            if self._order == "run" and self._is_paused():
                self._order = "pause"
            self._thread.start()

    def notify(self) -> None:
        """Hear that something was committed."""
        with self._wake:
            self._news = True
            self._wake.notify_all()

    def pause(self) -> None:
        """Stop learning for now, after the call that the learner works on."""
        with self._wake:
            if self._order == "run":
                self._order = "pause"
                self._wake.notify_all()

    def resume(self) -> None:
        """Go on learning after a pause, or try again after a failure.

        After a failure what was passed over is tried again, too: somebody may have repaired what
        learners died of.
        """
        with self._wake:
            if self._order == "pause":
                self._order = "run"
            if self._failed:
                self._poison.forgive()
            self._failed = False
            self._crashes = 0
            self._wake.notify_all()

    def drain(self, timeout: float) -> bool:
        """Commit what was learned and stop.

        Args:
            timeout: Seconds for it. Then the learner is killed; what it had not committed is
                still in the log and is learned by the next one.

        Returns:
            Whether everything that was learned is committed.
        """
        with self._wake:
            if self._order != "stop":
                self._order = "drain"
            self._wake.notify_all()
        if self._started:
            self._thread.join(timeout)
        ended = not self._thread.is_alive()
        self.stop()
        return ended and self._drained

    def stop(self) -> None:
        """Stop at once. What was not committed is learned again by the next supervisor."""
        with self._wake:
            self._order = "stop"
            handle = self._handle
            validated, self._validated = self._validated, None
            self._wake.notify_all()
        for one in (handle, None if validated is None else validated[0]):
            if one is not None:
                one.kill()
        if self._started and threading.current_thread() is not self._thread:
            self._thread.join()
        self._state = "stopped"

    def status(self) -> SupervisorStatus:
        """Say how it goes. This reads the registry, so it is not for an event loop."""
        handle = self._handle
        behind, steps = self._backlog.count()
        return SupervisorStatus(
            policy=self._policy,
            state=self._state,
            restarts=self._restarts,
            last_error=self._last_error,
            unsaved=self._unsaved,
            recovered=self._recovered,
            skipped=len(self._poison.skipped),
            epoch=self._learner.epoch,
            position=self._position,
            committed=self._learner.position,
            version=self._learner.version,
            behind=behind,
            behind_steps=steps,
            keep_after=self._keep_after,
            health=None if handle is None else handle.health(),
            metrics=self._metrics,
        )

    # The thread

    def _run(self) -> None:
        try:
            while True:
                self._await_permission()
                began = time.monotonic()
                try:
                    self._supervise()
                    return
                except Exception as error:
                    if isinstance(error, RejectionError) and error.reason in _OVER:
                        self._note(error)
                        _log.warning("%s: the supervisor ends. %s", self._policy, error.message)
                        return
                    self._crashed(error, began)
        except _Ended:
            pass
        finally:
            self._end_learner()
            self._state = "stopped"

    def _await_permission(self) -> None:
        """Wait while the policy is paused or has failed."""
        with self._wake:
            while (self._order == "pause" or self._failed) and self._order not in ("drain", "stop"):
                self._state = "failed" if self._failed else "paused"
                self._wake.wait()
            if self._order in ("drain", "stop"):
                raise _Ended
        self._state = "starting"

    def _supervise(self) -> None:
        """Take a learner from its start to the end of the supervisor, or to its own."""
        handle = self._begin()
        while self._obey():
            batches = self._read(self._position)
            if batches:
                self._state = "learning"
                self._consume(handle, batches)
            self._publish_if_due(handle)
            self._trim_if_due()
            if not batches:
                self._state = "idle"
                self._rest(handle)
        self._state = "learning"
        self._drained = False
        self._checkpoint(handle)
        self._drained = True
        handle.stop(self._patience.stop_seconds)

    def _obey(self) -> bool:
        """Wait while paused; return whether to go on, and not to drain."""
        with self._wake:
            while self._order == "pause":
                self._state = "paused"
                self._wake.wait()
            if self._order == "stop":
                raise _Ended
            self._news = False
            return self._order == "run"

    def _rest(self, handle: Handle) -> None:
        with self._wake:
            if not self._news and self._order == "run":
                self._wake.wait(self._patience.poll_seconds)
        if self._store.registry.state(self._policy) == "deleted":
            raise RejectionError(Reason.POLICY_DELETED, f"'{self._policy}' was deleted.")
        health = handle.health()
        if not health.alive:
            raise LearnerCrashed(
                f"The learner '{self._policy}' ({health.where}) died while it had nothing to do."
            )
        self._last_error = None  # it is over, and the log has it

    def _crashed(self, error: Exception, began: float) -> None:
        """Take in that a learner is gone or of no more use, and wait before the next one."""
        self._note(error)
        with self._wake:
            if self._order in ("drain", "stop"):
                self._drained = self._position <= self._learner.position
                raise _Ended
            handle = self._handle
        self._go_back()
        # One that is dead is left as it is: Ray may be about to begin it again.
        if handle is not None and handle.health().alive:
            handle.kill()
        steady = time.monotonic() - began > self._patience.steady_seconds
        self._crashes = 1 if self._state == "idle" and steady else self._crashes + 1
        self._state = "starting"
        # A learner that does not take its own policy will not take it in a second either, while a
        # machine or cluster without a place for it will have one at some time.
        hopeless = self._crashes >= self._patience.crashes and not isinstance(error, ExecutorError)
        failed = hopeless or isinstance(error, LearnerRefused)
        self._log_crash(error, failed)
        if failed:
            self._failed = True
            self._end_learner()
            return
        self._sleep(self._patience.pause(self._crashes))
        self._restarts += 1

    def _log_crash(self, error: Exception, failed: bool) -> None:
        """Leave a line about a learner that is gone; what nobody expected with its traceback."""
        if failed:
            done = (
                f"The policy has failed: no learner is begun until `assay server resume "
                f"{self._policy}`; experience is still taken"
            )
        else:
            pause = self._patience.pause(self._crashes)
            done = f"The next learner begins in {pause:.3g} s; {self._crashes} crashes in a row"
        trace = None if isinstance(error, AssayError) else error
        level = logging.ERROR if failed or trace is not None else logging.WARNING
        _log.log(level, "%s: %s %s.", self._policy, self._last_error, done, exc_info=trace)

    def _sleep(self, seconds: float, *, ends: Collection[str] = ("drain", "stop")) -> None:
        """Wait, unless the supervisor is told to end or to try again at once."""
        until = time.monotonic() + seconds
        with self._wake:
            crashes = self._crashes
            while (left := until - time.monotonic()) > 0 and self._crashes == crashes:
                if self._order in ends:
                    raise _Ended
                self._wake.wait(left)

    def _note(self, error: Exception) -> None:
        self._last_error = error.message if isinstance(error, AssayError) else repr(error)

    def _end_learner(self) -> None:
        with self._wake:
            handle, self._handle = self._handle, None
        if handle is not None:
            handle.kill()

    def _go_back(self) -> None:
        """Forget what was consumed and not committed: it is consumed again."""
        self._position = self._learner.position
        self._backlog.reset(self._position)

    # The beginning of a learner

    def _begin(self) -> Handle:
        self._learner = self._store_retry(lambda: self._store.registry.open_learner(self._policy))
        self._go_back()
        with self._wake:
            validated, self._validated = self._validated, None
        if validated is not None and self._learner == _FIRST:
            handle, ready = validated
            self._adopt(handle)
        else:
            if validated is not None:
                validated[0].kill()
            handle = self._spawn()
            self._adopt(handle)
            ready = self._start(handle, self._store.registry.policy(self._policy).spec)
        # What the earlier checkpoint needs is not known before it is one of this learner.
        self._keep_after, self._keep_earlier = ready.replay_from, 0
        self._published_at = time.monotonic()
        self._replay(handle, ready.replay_from)
        for publication in ready.publications:
            self._publish(publication)
        return handle

    def _spawn(self) -> Handle:
        memory = self._settings.memory_mb
        if memory == "auto" and self._settings.device != "cpu":
            memory = None  # drivers of GPUs map far more than they use
        return self._executor.spawn(self._policy, memory_mb=memory, **self._host)

    def _adopt(self, handle: Handle) -> None:
        """Make a handle known to `stop`, which may have come in the meantime."""
        with self._wake:
            self._handle = handle
            if self._order == "stop":
                raise _Ended

    def _start(self, handle: Handle, spec: PolicySpec, learner: Learner | None = None) -> Ready:
        checkpoint = weights = b""
        metrics: Mapping[str, float] = {}
        if learner is None:
            checkpoint = self._read_checkpoint()
            learner = self._learner
            if not checkpoint and learner.version:
                weights, metrics = self._read_weights()
        message = Start(
            spec=spec.canonical().decode(),
            settings=self._settings.model_dump_json(),
            epoch=learner.epoch,
            version=learner.version,
            position=learner.position,
            checkpoint=checkpoint,
            weights=weights,
            metrics=metrics,
        )
        return Ready.from_frame(*handle.call(*message.to_frame(), self._patience.start_seconds))

    def _read_checkpoint(self) -> bytes:
        """Return the newest checkpoint that can be read; b"" where there is none."""
        now = self._learner
        found = self._intact(now.checkpoint)
        if found is not None or now.checkpoint is None:
            return found or b""
        found = self._intact(now.earlier)
        registry = self._store.registry
        self._learner = registry.drop_checkpoint(self._policy, now.epoch, both=found is None)
        self._go_back()
        if found is None:
            return b""
        self._recover(
            f"The newest checkpoint ({now.checkpoint[:12]}...) cannot be read. Learning goes on "
            f"from the one before it, behind batch {self._position}."
        )
        return found

    def _read_weights(self) -> tuple[bytes, Mapping[str, float]]:
        """Return the newest model file that can be read, and the metrics of its version."""
        for model in self._store.registry.models(self._policy):
            found = self._intact(model.sha256)
            if found is not None:
                self._recover(
                    "No checkpoint can be read. Learning goes on from the weights of version "
                    f"{model.version}; optimizer, critics and replay begin from nothing."
                )
                return found, model.metrics
        self._recover("Neither a checkpoint nor a model can be read. Learning begins from nothing.")
        return b"", {}

    def _intact(self, digest: str | None) -> bytes | None:
        """Return a file by its SHA-256; None where it is damaged or there is none."""
        if digest is None:
            return None
        try:
            return self._store.blobs(self._policy).get(digest)
        except RejectionError as error:
            if error.reason not in _DAMAGED:
                raise
            return None

    def _recover(self, what: str) -> None:
        """Tell that a learner goes on from something else than its newest checkpoint."""
        self._recovered = what
        _log.error("%s: %s", self._policy, what)

    def _replay(self, handle: Handle, after: int) -> None:
        """Send what the learner has consumed before and needs again."""
        while after < self._learner.position:
            batches = self._read(after)
            again = [one for one in batches if one.position <= self._learner.position]
            if not again:
                return
            if kept := self._poison.without(again):
                self._ask(handle, kept, replaying=True)
            after = again[-1].position
            with self._wake:
                if self._order in ("drain", "stop"):
                    raise _Ended

    # Batches

    def _read(self, after: int) -> list[Stored]:
        limit = 1 if self._poison.alone(after, self._learner.position) else self._portion
        batches = self._store.read(
            self._policy, after=after, limit=limit, most_bytes=self._patience.bytes
        )
        with self._wake:
            damaged = self._poison.damaged(batches)
        for one in damaged:
            _log.error("%s: %s is passed over. %s", self._policy, one, one.damage)
        return batches

    def _ask(self, handle: Handle, batches: Sequence[Stored], *, replaying: bool) -> Outcome:
        message = Consume(
            tuple((one.position, one.client, one.payload) for one in batches), replaying
        )
        began = time.monotonic()
        try:
            answer = handle.call(*message.to_frame(), self._patience.call_seconds)
        except (LearnerCrashed, LearnerRefused) as error:
            self._poison.suspect(batches)
            what = f"{error.message} This was at {_named(batches)}."
            if len(batches) == 1 and not replaying:
                what += self._blame(batches[0])
            raise LearnerCrashed(what, error.fix) from None
        self._adjust(len(batches), time.monotonic() - began)
        return Outcome.from_frame(*answer)

    def _blame(self, batch: Stored) -> str:
        """Note that a learner died of a batch alone; return what is done about it, if anything."""
        with self._wake:
            if self._order != "run":
                return ""
            found = self._poison.blame(batch.position, self._learner.position)
        if not found:
            return ""
        done = (
            "It is passed over, as each learner died of it."
            if len(found) == 1
            else f"Batches {found[0]} to {found[-1]} are passed over, as learners died of them."
        )
        _log.error("%s: %s. %s", self._policy, batch, done)
        return f" {done}"

    def _adjust(self, batches: int, took: float) -> None:
        """Choose how many batches the next call brings."""
        wanted = self._patience.answer_seconds
        if took > wanted:
            self._portion = max(1, batches // 2)
        elif took < wanted / 4 and batches >= self._portion:
            self._portion = min(self._patience.batches, 2 * self._portion)

    def _consume(self, handle: Handle, batches: list[Stored]) -> None:
        kept = self._poison.without(batches)
        outcome = self._ask(handle, kept, replaying=False) if kept else None
        if outcome is not None and outcome.position != kept[-1].position:
            raise LearnerCrashed(
                f"The learner '{self._policy}' says that it is at {outcome.position} after "
                f"{_named(kept)}."
            )
        self._position = batches[-1].position
        self._backlog.consumed(batches)
        if outcome is None:
            return
        for publication in outcome.publications:
            self._publish(publication)
        # Not before its checkpoint is committed: until then the next learner may need more.
        self._keep_after = outcome.keep_after
        self._metrics = outcome.metrics
        self._tell(self._on_metrics, outcome.metrics)

    # Versions

    def _publish_if_due(self, handle: Handle) -> None:
        seconds = self._patience.publish_seconds
        due = seconds is not None and time.monotonic() - self._published_at > seconds
        if due and self._position > self._learner.position:
            self._published_at = time.monotonic()  # also if there is nothing to publish
            self._checkpoint(handle)

    def _checkpoint(self, handle: Handle) -> None:
        """Have the learner publish what it has learned since its last version."""
        head, blobs = handle.call({"method": CHECKPOINT}, (), self._patience.call_seconds)
        if head["publication"] is not None:
            self._publish(Publication.from_frame(head["publication"], blobs))

    def _publish(self, new: Publication) -> None:
        """Commit a version; without a checkpoint the cursor stays where the last one was."""
        before = self._learner
        if new.version != before.version + 1:
            raise LearnerCrashed(
                f"The learner '{self._policy}' publishes version {new.version}; expected "
                f"{before.version + 1}."
            )
        position = new.position if new.checkpoint else before.position

        def commit() -> Learner:
            now = self._store.registry.learner(self._policy)
            if now.epoch == before.epoch and now.version == new.version:
                return now  # an attempt before went through, although it did not look so
            self._store.publish(
                self._policy,
                before.epoch,
                position,
                new.snapshot,
                checkpoint=new.checkpoint or None,
                architecture=new.architecture,
                parent=new.parent,
                metrics=new.metrics,
                channel=self._channel(),
            )
            return self._store.registry.learner(self._policy)

        self._learner = self._store_retry(commit)
        self._last_error = None  # it is over, and the log has it
        self._published_at = time.monotonic()
        if new.checkpoint:
            self._keep_earlier = self._keep_after
        if self._learner.position > before.position:
            self._crashes = 0
        self._tell(self._on_published, self._store.registry.model(self._policy, new.version))

    def _store_retry(self, work: Callable[[], Learner]) -> Learner:
        """Do something that the store may have no room for just now, until it has."""
        attempt = 0
        while True:
            try:
                done = work()
            except StoreError as error:
                self._note(error)
                self._unsaved = error.message
                attempt += 1
                if attempt == 1:
                    _log.warning("%s: nothing can be saved. %s", self._policy, error.message)
                # What was learned is not given up for a drain while it may still be saved.
                self._sleep(self._patience.pause(attempt), ends=("stop",))
                continue
            self._unsaved = None
            if attempt:
                _log.info("%s: what was learned can be saved again", self._policy)
            return done

    def _trim_if_due(self) -> None:
        seconds = self._patience.trim_seconds
        if seconds is None or time.monotonic() - self._trimmed_at < seconds:
            return
        self._trimmed_at = time.monotonic()
        try:
            needed = min(self._keep_after, self._keep_earlier)
            self._store.trim(self._policy, keep_after=needed)
        except (StoreError, OSError) as error:
            _log.warning("%s: old experience cannot be deleted. %s", self._policy, error)

    def _tell(self, listener: Callable[[T], None], value: T) -> None:
        try:
            listener(value)
        except Exception:
            _log.exception("A listener of '%s' failed", self._policy)

    def _is_paused(self) -> bool:
        with contextlib.suppress(RejectionError):
            return self._store.registry.state(self._policy) == "paused"
        return False


def _named(batches: Sequence[Stored]) -> str:
    first, last = batches[0], batches[-1]
    if len(batches) == 1:
        return str(first)
    return f"batches {first.position} to {last.position}"
