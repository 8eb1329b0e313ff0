"""`assay/JobScheduling-v0`: decide which waiting job of a cluster starts next.

An episode is a window of consecutive jobs of a workload, on a cluster that is empty at first. At
every event the agent acts repeatedly until it waits: it starts one of the jobs shown, or waits for
the next event. It does not act where it has no choice.

Actions: 0 to `window` - 1 start the job in that row, the last one waits. The mask is the
`action_mask` in the info. The first rows hold the jobs with the shortest estimates in that order,
those that fit now before those that do not; the last `oldest` rows hold those of the others that
have waited longest. Jobs for which there is no row are only counted.

The reward is minus the growth of the bounded slowdowns of the waiting jobs (see `cluster`),
divided by the number of jobs. The minimum of every job, a slowdown of 1, is charged at the last
step. So the undiscounted return is exactly minus the mean bounded slowdown. Growth depends on true
run times, which the simulator knows and the observation does not show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.utils import seeding

from assay.core.errors import EnvError
from assay.core.types import ACTION_MASK, State
from assay.envs.arguments import require_integer
from assay.envs.systems.cluster import Cluster, Rule, held_back, simulate
from assay.envs.systems.splits import TRACE_SEEDS, Split, known
from assay.envs.systems.workload import DAY, SHIPPED, Workload, lublin, read_swf

TRAIN_SHARE = 0.7  # of the jobs of a workload that the user gives
TEST_JOBS = 60_000

_JOB_FEATURES = 7
_EMPTY_ROW = (0.0,) * _JOB_FEATURES
_MACHINE_FEATURES = 14
_HORIZONS = (60.0, 600.0, 3600.0, 4 * 3600.0)  # seconds ahead, for processors expected to be free
_LOG_DAY = math.log1p(DAY)


class JobScheduling(gym.Env[np.ndarray, Any]):
    """Schedule the jobs of a workload on a cluster; see the module for the rules.

    Observation, all of it scaled to the order of 1 (times by their logarithms): per row whether
    there is a job, its size, its estimate, its wait, its slowdown so far by the estimate, whether
    it fits now, and the processors that it would leave idle; then of the cluster the idle
    processors, those expected to be idle in 1 minute, 10 minutes, 1 and 4 hours, running and
    waiting jobs, jobs without a row, the work that waits, submissions in the last hour and the
    last six, the longest wait, and the time of day (sine and cosine).

    Args:
        workload: Path of a workload in the Standard Workload Format; by default the shipped one.
        processors: Size of the machine, where the workload's header does not say it.
        jobs: How many an episode has.
        window: Rows of the observation.
        oldest: How many of the rows are for those that have waited longest.
        split: "train" or "test", which have no job in common (see `load_workload`).

    Raises:
        EnvError: An argument is out of range, or the workload has too few jobs.
        WorkloadError: The workload cannot be read.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (typed so by Gymnasium)

    def __init__(
        self,
        workload: str | None = None,
        processors: int | None = None,
        jobs: int = 256,
        window: int = 8,
        oldest: int = 3,
        split: Split = "train",
    ) -> None:
        require_integer("jobs", jobs, 2)
        require_integer("window", window, 1)
        require_integer("oldest", oldest, 0)
        if oldest > window:
            raise EnvError(f"oldest is {oldest}, more than the window of {window} rows.")
        self.workload = load_workload(workload, processors, split)
        self.jobs, self.window, self.oldest = jobs, window, oldest
        self.starts = window_starts(self.workload, jobs)
        size = window * _JOB_FEATURES + _MACHINE_FEATURES
        self.observation_space = Box(-2.0, 4.0, (size,), np.float32)
        self.action_space = Discrete(window + 1)
        self._first = self.starts[0]
        self._begin()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start with a window that the seed chooses."""
        super().reset(seed=seed)
        self._first = int(self.np_random.integers(self.starts.start, self.starts.stop))
        self._begin()
        return self._observe(), {ACTION_MASK: self._mask()}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Start a job or wait, and continue to the next choice.

        Raises:
            EnvError: The mask forbids the action, or the episode is over.
        """
        cluster = self.cluster
        if self._over():
            raise EnvError("The episode is over.", "Call reset() before the next step.")
        cost = 0.0
        if action == self.window:
            if not cluster.can_wait():
                raise EnvError("No event is left, so waiting would never end.")
            cost += cluster.advance()
        elif 0 <= action < self.window and self.rows[action] >= 0:
            cluster.begin(self.rows[action])
        else:
            raise EnvError(
                f"There is no job in row {action}.", "Choose only what the action mask allows."
            )
        cost += self._go_on()
        over = self._over()
        info: dict[str, Any] = {ACTION_MASK: self._mask()}
        if over:
            cost += self.jobs
        return self._observe(), -cost / self.jobs, over, False, info

    def get_state(self) -> State:
        """Return the state that the next steps depend on."""
        return {"first": self._first, "cluster": self.cluster.get_state()}

    def set_state(self, state: State) -> None:
        """Restore what `get_state` returned."""
        self._first = int(state["first"])
        self._begin()
        self.cluster.set_state(state["cluster"])
        self._show()

    def _begin(self) -> None:
        chosen = self.workload.jobs[self._first : self._first + self.jobs]
        self.cluster = Cluster(chosen, self.workload.processors)
        scale = math.log2(self.workload.processors)
        self._size = [math.log2(job.size) / scale for job in chosen]
        self._requested = [math.log1p(job.requested) / _LOG_DAY for job in chosen]
        self._show()

    def _over(self) -> bool:
        return not self.cluster.queue and self.cluster.arrived == self.jobs

    def _go_on(self) -> float:
        """Advance time until a job that is shown fits, and return the cost."""
        cluster, cost = self.cluster, 0.0
        self._show()
        while not self._fits_one() and not self._over():
            cost += cluster.advance()
            self._show()
        return cost

    def _fits_one(self) -> bool:
        size, free = self.cluster.size, self.cluster.free
        return any(job >= 0 and size[job] <= free for job in self.rows)

    def _show(self) -> None:
        """Choose the jobs that get a row; -1 means none."""
        queue, size, free = self.cluster.queue, self.cluster.size, self.cluster.free
        requested = self.cluster.requested
        order = sorted(queue, key=lambda job: (size[job] > free, requested[job]))
        short = order[: self.window - self.oldest]
        taken = set(short)
        old = [job for job in queue if job not in taken][: self.oldest]
        self.rows: list[int] = short + [-1] * (self.window - self.oldest - len(short))
        self.rows += old + [-1] * (self.oldest - len(old))

    def _mask(self) -> np.ndarray:
        mask = np.zeros(self.window + 1, np.int8)
        size, free = self.cluster.size, self.cluster.free
        for row, job in enumerate(self.rows):
            mask[row] = job >= 0 and size[job] <= free
        mask[-1] = self.cluster.can_wait()
        return mask

    def _observe(self) -> np.ndarray:
        cluster, now, log = self.cluster, self.cluster.now, math.log1p
        values: list[float] = []
        for job in self.rows:
            if job < 0:
                values += _EMPTY_ROW
                continue
            wait = now - cluster.submit[job]
            values += (
                1.0,
                self._size[job],
                self._requested[job],
                log(wait) / _LOG_DAY,
                log(wait / max(cluster.requested[job], 1.0)) / 4,
                1.0 if cluster.size[job] <= cluster.free else 0.0,
                (cluster.free - cluster.size[job]) / cluster.processors,
            )
        queue, processors = cluster.queue, cluster.processors
        values.append(cluster.free / processors)
        values += self._expected_free()
        work = sum(cluster.size[job] * cluster.requested[job] for job in queue)
        longest = now - cluster.submit[queue[0]] if queue else 0.0
        angle = 2 * math.pi * (now % DAY) / DAY
        values += (
            log(cluster.running) / 4,
            log(len(queue)) / 4,
            log(max(len(queue) - self.window, 0)) / 4,
            log(work / (processors * 3600.0)) / 4,
            log(cluster.submitted_since(now - 3600.0)) / 3,
            log(cluster.submitted_since(now - 6 * 3600.0)) / 4,
            log(longest) / _LOG_DAY,
            math.sin(angle),
            math.cos(angle),
        )
        return np.clip(np.array(values, np.float32), -2.0, 4.0)

    def _expected_free(self) -> list[float]:
        """Return the shares of processors that, by the estimates, are idle in a while."""
        cluster = self.cluster
        free, found = cluster.free, []
        ends = iter(cluster.expected_ends)
        end, job = next(ends, (math.inf, 0))
        for horizon in _HORIZONS:
            while end <= cluster.now + horizon:
                free += cluster.size[job]
                end, job = next(ends, (math.inf, 0))
            found.append(free / cluster.processors)
        return found


@lru_cache(maxsize=4)
def load_workload(
    path: str | None = None, processors: int | None = None, split: Split = "train"
) -> Workload:
    """Return the jobs of a split, read or drawn once, however many environments use them.

    Args:
        path: A workload, of which "train" is the first 70% of the jobs and "test" the rest. By
            default "train" is the shipped one, and "test" another that is drawn from the same
            model, with the first seed of the test (see `splits`).
        processors: Size of the machine, where the workload's header does not say it.
        split: "train" or "test".

    Raises:
        EnvError: The split is unknown.
        WorkloadError: The workload cannot be read.
    """
    if path is not None:
        whole = read_swf(Path(path), processors)
        border = int(len(whole.jobs) * TRAIN_SHARE)
        jobs = whole.jobs[:border] if known(split) == "train" else whole.jobs[border:]
        return replace(whole, jobs=jobs)
    shipped = read_swf(SHIPPED, processors)
    if known(split) == "train":
        return shipped
    return lublin(TEST_JOBS, shipped.processors, load=0.9, seed=TRACE_SEEDS["test"].start)


def window_starts(workload: Workload, jobs: int) -> range:
    """Return the first jobs that a window can have.

    Raises:
        EnvError: There are fewer jobs than in a window.
    """
    if len(workload.jobs) < jobs:
        raise EnvError(
            f"The split has {len(workload.jobs)} jobs, fewer than the {jobs} of an episode.",
            "Give a longer workload, or set jobs to less.",
        )
    return range(len(workload.jobs) - jobs + 1)


def judge(rule: Rule, workload: Workload, starts: Sequence[int], jobs: int = 256) -> np.ndarray:
    """Return the mean bounded slowdown of a scheduling rule in every window.

    Example:
        >>> from assay.envs.systems.cluster import BASELINES
        >>> workload = load_workload()
        >>> easy = judge(BASELINES["EASY"], workload, range(0, 2000, 500))
        >>> bool(easy.mean() < judge(BASELINES["FCFS"], workload, range(0, 2000, 500)).mean())
        True
    """
    results = []
    for start in starts:
        done = simulate(rule, workload.jobs[start : start + jobs], workload.processors)
        results.append(float(np.mean(done.slowdowns())))
    return np.array(results)


def tune_reserve(
    workload: Workload,
    jobs: int = 256,
    *,
    reserves: Sequence[float] = (0.0, 0.125, 0.25, 0.375, 0.4375, 0.5, 0.5625, 0.625, 0.75),
    limits: Sequence[float] = (600.0, 1800.0, 2700.0, 3600.0, 5400.0, 7200.0, 14400.0),
) -> tuple[float, float]:
    """Return the reserve and the limit of `held_back` that are best on a (training) workload.

    Windows start at every half of their length, so that all jobs are used.
    """
    starts = window_starts(workload, jobs)[:: max(jobs // 2, 1)]
    options = [(reserve, limit) for reserve in reserves for limit in limits]
    return min(options, key=lambda o: judge(held_back(*o), workload, starts, jobs).mean())


def windows_of(seeds: Sequence[int], starts: range) -> list[int]:
    """Return the first jobs of the windows that an environment reset with each seed would draw."""
    draws = (seeding.np_random(int(seed))[0] for seed in seeds)
    return [int(rng.integers(starts.start, starts.stop)) for rng in draws]
