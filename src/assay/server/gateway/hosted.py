"""One policy, as the gateway holds it in memory. Everything that must last is in the store."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from assay.server.gateway.config import ServerConfig
from assay.server.gateway.guard import Guard, Verdicts, share_of
from assay.server.gateway.journal import Journal
from assay.server.learner.messages import ON_POLICY_LAG
from assay.server.protocol import assay_pb2 as pb
from assay.server.spec import PolicySpec
from assay.server.store.registry import CANARY, STABLE, ModelVersion
from assay.server.supervisor import Supervisor
from assay.server.tensors import Layout

if TYPE_CHECKING:
    from assay.server.gateway.ingest import IngestStream

WINDOW_SECONDS = 10.0  # that a rate is taken over
_SAMPLE_SECONDS = 0.5
_SMOOTH = 0.05  # weight of the newest batch in a running mean
_VERDICTS_SHOWN = 3
_CALM_SECONDS = 5.0  # without a refusal, after which batches are taken again
_UNHEARD_SECONDS = 60.0  # the same where nothing was taken either
STEPS, TOO_OLD = "server/steps", "server/steps_too_old"
WINDOW = 256  # steps that are judged together
BACKLOG_SECONDS = 300.0  # for which old steps may be what clients had kept
_STARVING = 0.9  # share of them that is left out

Supervise = Callable[..., Supervisor]


class Rates:
    """How fast some counters grow. One thread samples, any may ask.

    Example:
        >>> rates = Rates()
        >>> for second in range(4):
        ...     rates.sample(float(second), (100.0 * second, second))
        >>> rates.per_second()
        (100.0, 1.0)
    """

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque()

    def sample(self, now: float, counts: Sequence[float]) -> None:
        """Note where the counters are; a sample right after another one is passed over."""
        samples = self._samples
        if samples and now - samples[-1][0] < _SAMPLE_SECONDS:
            return
        samples.append((now, tuple(counts)))
        # The one before the window stays, or the rate would be that of a shorter time.
        while len(samples) > 2 and now - samples[1][0] >= self._window:
            samples.popleft()

    def per_second(self) -> tuple[float, ...]:
        """Return the rate of each counter; nothing before the second sample."""
        samples = list(self._samples)
        if len(samples) < 2:
            return ()
        (began, first), (ended, last) = samples[0], samples[-1]
        return tuple((b - a) / (ended - began) for a, b in zip(first, last, strict=True))


class Signal:
    """Wakes everyone who waits for the next change. For the event loop's thread."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def fire(self) -> None:
        """Wake everyone."""
        self._event.set()
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Return what the next change sets. Take it before you look at what may change."""
        return self._event


class Freshness:
    """Follows the counts that a learner reports: whether it gets steps that it can learn from.

    On-policy learners leave out steps that are more than `max_lag` versions behind. Where clients
    are held at an old version, that is all of them, and then no version comes that could change
    it. After an outage it is all of them as well, but only until the clients have sent what they
    had kept.

    Args:
        clock: Steady seconds.

    Attributes:
        starving: Whether nearly all steps are left out, and that will not pass by itself.
        catching_up: Whether they are, and it may: clients can have a version that is new enough.
        left_out: So many of the last ones were,
        of: of so many.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.starving = self.catching_up = False
        self.left_out = self.of = 0
        self._from: tuple[float, float] | None = None
        self._since: float | None = None  # when nearly all steps began to be left out

    def look(self, metrics: Mapping[str, float], *, reachable: bool = False) -> bool:
        """Take in what a learner reports; return whether `starving` or `catching_up` has changed.

        Args:
            metrics: Of the learner.
            reachable: Whether clients can have a version whose steps are not left out.
        """
        if STEPS not in metrics or TOO_OLD not in metrics:
            return False
        steps, old = metrics[STEPS], metrics[TOO_OLD]
        if self._from is None or steps < self._from[0] or old < self._from[1]:
            self._from = (steps, old)  # it has just begun, or begun again
            return False
        came, left_out = steps - self._from[0], old - self._from[1]
        if came < WINDOW:
            return False
        self._from = (steps, old)
        self.left_out, self.of = int(left_out), int(came)
        before, now = (self.starving, self.catching_up), self._clock()
        if left_out < _STARVING * came:
            self._since = None
            self.starving = self.catching_up = False
        else:
            self._since = now if self._since is None else self._since
            self.starving = not reachable or now - self._since >= BACKLOG_SECONDS
            self.catching_up = not self.starving
        return before != (self.starving, self.catching_up)


class Hosted:
    """A policy that is being served."""

    def __init__(
        self,
        spec: PolicySpec,
        config: ServerConfig,
        supervisor: Supervisor,
        journal: Journal,
        verdicts: Verdicts,
    ) -> None:
        self.name, self.spec, self.hash = spec.name, spec, spec.hash()
        self.layout = Layout(spec)
        self.supervisor, self.journal, self.verdicts = supervisor, journal, verdicts
        self.rates = Rates()  # of steps and batches
        self.freshness = Freshness()  # of the steps that reach its learner
        self._lag: float | None = None
        self.newest = 0  # version that was published
        self.infos: dict[str, pb.ModelInfo] = {}  # what each channel points to
        self.state = "starting"  # and the next five: as `SupervisorStatus` has them
        self.last_error: str | None = None
        self.unsaved: str | None = None
        self.recovered: str | None = None
        self.behind_steps = 0
        self.skipped = 0
        self._refusal: tuple[float, str] | None = None  # the last one for the disk, and why
        self._acked_since = True
        self.broken = False  # whether nothing can be committed until the server is started again
        self.changed = Signal()
        self.streams: dict[str, set[IngestStream]] = {}  # the open ones, by client
        self.watching: Counter[str] = Counter()  # how often each client waits for models
        self.guard = Guard(config.canary) if config.canary.share > 0 else None
        self.told: frozenset[str] = frozenset()  # kinds of troubles that the log has
        self.told_trial = 0  # the version whose trial the clients were told of
        self.guarding = asyncio.Lock()
        self.refreshing = asyncio.Lock()
        self._credits = config.credits
        self._backlog = config.backlog_of(spec.name)
        self._max_lag = config.learner_of(spec.name).max_lag
        self._lowest = 1.0

    def open_streams(self) -> list[IngestStream]:
        """Return the open streams of all clients."""
        return [one for some in self.streams.values() for one in some]

    def committed(self, steps: int) -> None:
        """Count a batch that the learner has to catch up with."""
        self.behind_steps += steps
        self._acked_since = True

    def refused(self, why: str) -> None:
        """Note that the store could not take a batch."""
        self._refusal, self._acked_since = (time.monotonic(), why), False

    @property
    def refusing(self) -> str | None:
        """Return why batches are refused now, as far as is known; None if they are not."""
        if self._refusal is None:
            return None
        at, why = self._refusal
        # Where nobody sends any more, nobody knows. A small batch may fit where others do not.
        longest = _CALM_SECONDS if self._acked_since else _UNHEARD_SECONDS
        return why if time.monotonic() - at < longest else None

    @property
    def works(self) -> bool:
        """Return whether its experience is taken and learned from."""
        idle = self.state in ("failed", "paused", "stopped")
        return not idle and not self.broken and self.refusing is None and self.unsaved is None

    def note_version(self, version: int) -> None:
        """Note which version decided the steps that come in; 0 is not a version."""
        if version:
            lag = float(self.newest - version)
            self._lag = lag if self._lag is None else self._lag + _SMOOTH * (lag - self._lag)

    @property
    def lag(self) -> float:
        """Return how many versions steps are behind that come in, on average."""
        return self._lag or 0.0

    def credits(self) -> tuple[int, int]:
        """Return how many batches and bytes a stream may have under way.

        All of it while the learner is less than half of the allowed backlog behind, then less and
        less, and nothing at the end of it.
        """
        share = min(max(2.0 * (1.0 - self.behind_steps / self._backlog), 0.0), 1.0)
        if share == 0.0:
            return 0, 0
        return math.ceil(self._credits.batches * share), math.ceil(self._credits.bytes * share)

    def version_of(self, channel: str) -> int:
        """Return what a channel points to; 0 for nothing."""
        info = self.infos.get(channel)
        return info.version if info is not None else 0

    def on_trial(self) -> bool:
        """Return whether a version is being tried on some clients."""
        canary, stable = self.version_of(CANARY), self.version_of(STABLE)
        return self.guard is not None and canary > stable > 0 and canary not in self.verdicts

    def is_trying(self) -> bool:
        """Return whether some clients get the version on trial (it has a baseline to judge by)."""
        stable = self.version_of(STABLE)
        return self.guard is not None and self.on_trial() and self.guard.has_baseline(stable)

    def channel_of(self, client: str) -> str:
        """Return the channel that a client follows, if it does not ask for one."""
        if self.guard is None or not self.is_trying():
            return STABLE
        return CANARY if self.guard.tries(client, self._lowest) else STABLE

    def join(self, client: str) -> None:
        """Note that a client waits for models."""
        self.watching[client] += 1
        self._clients_changed()

    def leave(self, client: str) -> None:
        """Note that a client does not wait for models any more."""
        self.watching[client] -= 1
        if self.watching[client] <= 0:
            del self.watching[client]
        self._clients_changed()

    def _clients_changed(self) -> None:
        if self.guard is None:
            return
        before = self._lowest
        self._lowest = min(map(share_of, self.watching), default=1.0)
        if self._lowest != before:
            self.changed.fire()  # another one may have to try now

    def publish_channel(self) -> str | None:
        """Return the channel that a new version goes to; called by the supervisor."""
        if self.guard is None or not self.version_of(STABLE):
            return STABLE
        return None  # the guard moves the channels

    def troubles(self) -> dict[str, str]:
        """Say what is wrong now, with what to do about it: a sentence by its kind."""
        troubles = {}
        if self.broken:
            troubles["broken"] = (
                "The disk has failed, and nothing is taken until the server is started again; "
                "clients keep what they have. Check the disk, then start it again."
            )
        if self.state == "failed":
            troubles["failed"] = (
                f"The learner has failed: {self.last_error} Experience is still taken; `assay "
                f"server resume {self.name}` tries again."
            )
        if self.state == "stopped" and self.last_error is not None:
            troubles["stopped"] = f"Nothing is learned any more: {self.last_error}"
        if self.refusing is not None and not self.broken:
            troubles["refusing"] = f"Batches are refused; clients keep them. {self.refusing}"
        if self.unsaved is not None:
            troubles["unsaved"] = f"What was learned cannot be saved. {self.unsaved}"
        if self.skipped:
            troubles[f"skipped {self.skipped}"] = (
                f"{self.skipped} of the batches were passed over, as each learner died of them or "
                "they cannot be read; the server's log names them."
            )
        if self.freshness.starving:
            troubles["starving"] = self._starving()
        return troubles

    @property
    def _most_lag(self) -> int | None:
        return ON_POLICY_LAG if self._max_lag == "auto" else self._max_lag

    def is_reachable(self) -> bool:
        """Return whether clients can have a version whose steps are not too old to learn from."""
        newest = max((info.version for info in self.infos.values()), default=0)
        return self._most_lag is None or newest >= self.newest - self._most_lag

    def _starving(self) -> str:
        where = [
            f"{channel} {'is pinned to' if info.pinned else 'points to'} version {info.version}"
            for channel, info in self.infos.items()
        ]
        what = (
            f"The learner starves: {self.freshness.left_out} of the last {self.freshness.of} steps "
            f"were left out, as their version is more than {self._most_lag} behind the newest, "
            f"which is {self.newest} ({', '.join(where)})."
        )
        if self.is_reachable():
            return (
                f"{what} Clients act with old versions although they can have a newer one: see "
                "what they report, or raise max_lag of the learner (null: no limit)."
            )
        return (
            f"{what} Let the clients have the newest version (`assay server pin {self.name} "
            "--off`), or raise max_lag of the learner (null: no limit)."
        )

    def notes(self) -> list[str]:
        """Say what an operator should know, a sentence each."""
        recovered = [] if self.recovered is None else [self.recovered]
        failed = map(str, self.verdicts.newest(_VERDICTS_SHOWN))
        return [*self.troubles().values(), *recovered, *failed]

    def info_for(self, client: str, channel: str = "") -> pb.ModelInfo | None:
        """Return the model that a client should use."""
        channel = channel or self.channel_of(client)
        return self.infos.get(channel)


def model_info(model: ModelVersion, channel: str = "", pinned: bool = False) -> pb.ModelInfo:
    """Describe a version for the wire."""
    described = asdict(model) | {"metrics": finite(model.metrics)}
    return pb.ModelInfo(**described, channel=channel, pinned=pinned)


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Leave out what is not a number."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
