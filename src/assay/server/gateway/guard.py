"""A canary: new versions are tried on some clients, and go to all or come back by themselves.

The server adds up the rewards of each client's episodes as their batches are committed, late ones
in the episode that runs when they come. An episode counts for a version if no other version decided
any of its steps, and if a model decided most of them: where a version fails and something else
stands in for it, the return is not its own. First
the stable version gathers `min_episodes`; then the newest version is tried, and judged as soon as
it has as many:

    worse than the stable version, or than the best stable version of late, by more than the
    tolerance, beyond two standard errors   ->  rolled back, never tried again
    looks worse than the best, not clearly  ->  goes on, for up to five times as many episodes
    otherwise                               ->  promoted to all clients

The best counts as well, since a version may always be a little worse than the one before it, and
a hundred of them are a lot worse. It is the one with the highest mean return, less its standard
error, of all that were stable in the last `best_hours`.

While a version is on trial, later ones wait; then the newest of them is next. Those that failed lie
beside the policy's experience, in `policies/<name>/verdicts.json`.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from assay.core.config import Model
from assay.runs.files import write_atomic
from assay.server.client.shield import Flag
from assay.server.gateway.config import CanarySettings
from assay.server.store.log import make_directory
from assay.server.tensors import Experience, parts_of

log = logging.getLogger("assay.server")

Verdict = Literal["promote", "rollback"]

VERDICTS = "verdicts.json"
_KEPT = 64  # only the newest version is ever tried, so that old failures do not matter
_RECENT = 400  # episodes of a version that are remembered
_VERSIONS = 16  # versions that are remembered
_CLIENTS = 4096  # clients whose running episode is remembered
_STANDARD_ERRORS = 2.0
_LONGEST = 5  # times `min_episodes`, for a trial without a clear result
_STOOD_IN = int(Flag.FALLBACK | Flag.HEURISTIC)


@dataclass(slots=True)
class _Running:
    """An episode that is not over."""

    at: tuple[int, int] = (0, 0)  # the episode and step that come next
    version: int | None = None  # None before the first step of the policy
    total: float = 0.0
    steps: int = 0
    stood_in: int = 0  # steps that a fallback or the heuristic decided
    mixed: bool = False

    def add(self, rewards: float, steps: int, stood_in: int, versions: Collection[int]) -> None:
        self.total += rewards
        self.steps += steps
        self.stood_in += stood_in
        for version in versions:
            if self.version is None:
                self.version = version
            self.mixed |= version != self.version


class Failed(Model):
    """Why a version was rolled back."""

    version: int = Field(description="The one that was tried.")
    mean: float = Field(description="Its mean return,")
    episodes: int = Field(description="over so many episodes.")
    stable: int = Field(description="What it was judged by,")
    stable_mean: float = Field(description="with this mean return,")
    stable_episodes: int = Field(description="over so many episodes.")
    best: bool = Field(False, description="Whether that was the best of late, not the last one.")
    tolerance: float = Field(description="How much worse would be good enough, as a share.")
    time: float = Field(description="Seconds since the epoch.")

    def __str__(self) -> str:
        when = datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        best = ", the best stable version of late" if self.best else ""
        return (
            f"Version {self.version} was rolled back ({when}): its mean return was {self.mean:.4g} "
            f"over {self.episodes} episodes, against {self.stable_mean:.4g} of version "
            f"{self.stable} over {self.stable_episodes}{best}; the tolerance is "
            f"{self.tolerance:.3g}."
        )


class _File(Model):
    schema_version: Literal[1] = 1
    failed: tuple[Failed, ...] = ()


class Verdicts:
    """The failed versions of one policy.

    Args:
        directory: Of the policy; nothing is made there before the first verdict.

    Attributes:
        failed: By version, the oldest first.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / VERDICTS
        self.failed: dict[int, Failed] = {}
        try:
            found = _File.model_validate_json(self._path.read_bytes())
            self.failed = {one.version: one for one in found.failed}
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning(
                "'%s' cannot be read, so versions that failed may be tried again: %s",
                self._path, error,
            )  # fmt: skip

    def __contains__(self, version: object) -> bool:
        return version in self.failed

    def add(self, verdict: Failed) -> None:
        """Keep a verdict. A disk that fails is logged, and the verdict holds until a restart."""
        known = {**self.failed, verdict.version: verdict}
        # Replaced as a whole, as others read it meanwhile.
        self.failed = {version: known[version] for version in sorted(known)[-_KEPT:]}
        text = _File(failed=tuple(self.failed.values())).model_dump_json(indent=1)
        try:
            make_directory(self._path.parent)
            write_atomic(self._path, text.encode())
        except OSError as error:
            log.warning("The verdict on version %d is lost: %s", verdict.version, error)

    def newest(self, count: int) -> list[Failed]:
        """Return the latest verdicts, the last one first."""
        return sorted(self.failed.values(), key=lambda one: one.version, reverse=True)[:count]


@dataclass(frozen=True, slots=True)
class _Measured:
    """What is known of a version's returns."""

    version: int  # whose
    episodes: int  # how many were counted
    mean: float  # of their returns
    error: float  # its standard error
    at: float  # when that was, in seconds since the epoch

    @property
    def surely(self) -> float:
        """Return what its mean is at least, so that luck with few episodes counts less."""
        return self.mean - self.error


class Guard:
    """Judges versions by the episodes of one policy. It only counts; the hub acts on it."""

    def __init__(self, settings: CanarySettings, now: Callable[[], float] = time.time) -> None:
        self.settings = settings
        self._now = now
        self._running: dict[str, _Running] = {}
        self._returns: dict[int, deque[float]] = {}
        self._unanswered: Counter[int] = Counter()
        self._compared: tuple[int, ...] = ()  # the versions that were judged last
        self._best: _Measured | None = None

    def record(self, client: str, experience: Experience, trying: int = 0) -> None:
        """Take in the steps of a committed batch.

        Args:
            client: Who sent it.
            experience: What it holds.
            trying: The version that this client is to try; 0 for none.
        """
        running = self._running.get(client)
        if running is not None:
            running.total += sum(experience.patches.values())
        if not experience.steps:
            return
        fields = experience.fields
        ended = fields["terminated"] | fields["truncated"]
        running = self._running.pop(client, None)
        number, step = experience.episode, experience.start_step
        if running is None or running.at != (number, step):
            # Without its beginning, the sum of an episode says nothing.
            running = _Running(mixed=step != 0)
        stretch = self.settings.stretch
        for part, over in parts_of(ended):
            steps = part.stop - part.start
            own = fields["version"][part][fields["flags"][part] == 0]
            rewards = float(np.sum(fields["reward"][part], dtype=np.float64))
            stood_in = int(np.count_nonzero(fields["flags"][part] & _STOOD_IN))
            running.add(rewards, steps, stood_in, np.unique(own).tolist())
            if over or (stretch is not None and running.steps >= stretch):
                self._count(running, trying)
                running = _Running()
            number, step = (number + 1, 0) if over else (number, step + steps)
        running.at = number, step
        self._running[client] = running
        while len(self._running) > _CLIENTS:
            self._running.pop(next(iter(self._running)))

    def _count(self, episode: _Running, trying: int) -> None:
        if 2 * episode.stood_in > episode.steps:
            if trying:
                self._unanswered[trying] += 1
            return
        if episode.mixed or not episode.version:  # 0 is a fallback
            return
        self._returns.setdefault(episode.version, deque(maxlen=_RECENT)).append(episode.total)
        while len(self._returns) > _VERSIONS:
            # Not the stable one: it is the oldest where all that came after it have failed.
            self._returns.pop(min(self._returns.keys() - set(self._compared)))

    def episodes(self, version: int) -> int:
        """Return how many episodes of a version were counted."""
        return len(self._returns.get(version, ()))

    def mean(self, version: int) -> float | None:
        """Return the mean return of a version, or None before its first episode."""
        found = self._returns.get(version)
        return sum(found) / len(found) if found else None

    def has_baseline(self, stable: int) -> bool:
        """Return whether enough is known about the stable version to judge another by it."""
        return self.episodes(stable) >= self.settings.min_episodes

    def judge(self, stable: int, canary: int) -> Verdict | None:
        """Return what to do with a version on trial, or None while too little is known."""
        least = self.settings.min_episodes
        self._compared = stable, canary
        if not self.has_baseline(stable):
            return None
        self._note_best(stable)
        if self._unanswered[canary] >= least and self._unanswered[canary] > self.episodes(canary):
            return "rollback"  # it does not even answer
        if self.episodes(canary) < least:
            return None
        best, beside = self._best, self._measure(stable)
        assert best is not None
        if self._is_worse(canary, beside) or self._is_worse(canary, best, lucky=True):
            return "rollback"
        in_doubt = best.mean - self._measure(canary).mean > self._allowed(best.mean)
        if in_doubt and self.episodes(canary) < _LONGEST * least:
            return None
        return "promote"

    def _measure(self, version: int) -> _Measured:
        returns = np.array(self._returns[version])
        error = math.sqrt(returns.var(ddof=1) / len(returns))
        return _Measured(version, len(returns), float(returns.mean()), error, self._now())

    def _note_best(self, stable: int) -> None:
        """Take in how the stable version does, in case that there was none better of late."""
        now, best = self._measure(stable), self._best
        if (
            best is None
            or best.version == stable
            or self._now() - best.at >= 3600.0 * self.settings.best_hours
            or now.surely > best.surely
        ):
            self._best = now

    def forget_best(self) -> None:
        """Judge by the stable version alone from now on: an operator has chosen it."""
        self._best = None

    def _allowed(self, mean: float) -> float:
        return self.settings.tolerance * abs(mean)

    def _is_worse(self, canary: int, than: _Measured, *, lucky: bool = False) -> bool:
        """Return whether a version is clearly worse than a stable one.

        The best of many was lucky, too: its error is added in full.
        """
        new = self._measure(canary)
        error = than.error + new.error if lucky else math.hypot(than.error, new.error)
        doubt = _STANDARD_ERRORS * error
        return than.mean - new.mean - doubt > self._allowed(than.mean)

    def failure(self, stable: int, canary: int) -> Failed:
        """Say why a version that was judged is rolled back."""
        mean, episodes = self.mean(canary), self.episodes(canary)
        judge = self._measure(stable)
        answers = episodes >= self.settings.min_episodes
        if answers and self._best is not None and not self._is_worse(canary, judge):
            judge = self._best
        return Failed(
            version=canary,
            mean=mean or 0.0,
            episodes=episodes,
            stable=judge.version,
            stable_mean=judge.mean,
            stable_episodes=judge.episodes,
            best=judge.version != stable,
            tolerance=self.settings.tolerance,
            time=self._now(),
        )

    def tries(self, client: str, lowest: float) -> bool:
        """Return whether a client tries new versions.

        Those do whose id has a small enough hash; if none of the clients that are there has one,
        the one with the smallest does.

        Args:
            client: Its id.
            lowest: The smallest `share_of` of all clients that are there.
        """
        place = share_of(client)
        return place < self.settings.share or place <= lowest


@functools.lru_cache(maxsize=8192)
def share_of(client: str) -> float:
    """Return where a client stands between 0 and 1, the same at any time."""
    digest = hashlib.sha256(client.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2.0**64
