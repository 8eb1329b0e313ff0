"""A cluster that runs batch jobs, and common rules to schedule them.

A job asks for processors and a time, and keeps its processors until it ends: there is no
preemption, and any free processors will do. Events are submissions and ends of jobs. A scheduling
rule is a function of the cluster that names the waiting job to start now, or None to wait for the
next event; `simulate` asks it again until it waits. Rules see what a scheduler sees: run times are
private to the simulator.

The measure is the bounded slowdown of a job, max(1, (wait + run) / max(run, 10 s)) (Feitelson et
al. 1997).
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right, insort
from collections.abc import Callable, Sequence

import numpy as np

from assay.core.errors import EnvError
from assay.core.types import State
from assay.envs.systems.workload import Job

THRESHOLD = 10.0  # seconds; shorter jobs count as if they ran this long
Rule = Callable[["Cluster"], int | None]
Score = Callable[["Cluster", int], float]


class Cluster:
    """The state of a cluster in time; it begins empty, at the first submission.

    Attributes:
        now: The time, in seconds.
        free: Idle processors.
        queue: Numbers (positions in `jobs`) of the waiting jobs, oldest first.
        submit: Submit time of every job.
        size: Processors of every job.
        requested: Estimated run time of every job.
        start: When each job was started, or NaN.
        arrived: How many jobs have been submitted.
    """

    def __init__(self, jobs: Sequence[Job], processors: int) -> None:
        self.processors = processors
        self.submit = [job.submit for job in jobs]
        self.size = [job.size for job in jobs]
        self.requested = [job.requested for job in jobs]
        self._run = [job.run for job in jobs]
        self.now = self.submit[0]
        self.free = processors
        self.queue: list[int] = []
        self.start = [math.nan] * len(jobs)
        self.arrived = 0
        self._ends: list[tuple[float, int]] = []  # of running jobs; a heap
        self._expected: list[tuple[float, int]] = []  # the same by their estimates; sorted
        self._admit()

    @property
    def running(self) -> int:
        """Return how many jobs run."""
        return len(self._ends)

    @property
    def expected_ends(self) -> list[tuple[float, int]]:
        """Return when running jobs end by their estimates, soonest first, with their numbers."""
        return self._expected

    def can_wait(self) -> bool:
        """Return whether there is an event to wait for."""
        return bool(self._ends) or self.arrived < len(self.submit)

    def begin(self, job: int) -> None:
        """Start a waiting job.

        Raises:
            EnvError: It is not waiting, or too few processors are idle.
        """
        if job not in self.queue:
            raise EnvError(f"Job {job} is not waiting, so it cannot be started.")
        if self.size[job] > self.free:
            raise EnvError(
                f"Job {job} needs {self.size[job]} processors; {self.free} are idle.",
                "Start only what the action mask allows.",
            )
        self.queue.remove(job)
        self.free -= self.size[job]
        self.start[job] = self.now
        heapq.heappush(self._ends, (self.now + self._run[job], job))
        insort(self._expected, (self.now + self.requested[job], job))

    def advance(self) -> float:
        """Advance to the next event, process all events of that time, and return the cost.

        Returns:
            How much the bounded slowdowns of the waiting jobs have grown in sum.
        """
        before, times = self.now, []
        if self._ends:
            times.append(self._ends[0][0])
        if self.arrived < len(self.submit):
            times.append(self.submit[self.arrived])
        self.now = min(times)
        cost = sum(
            self._slowdown(job, self.now) - self._slowdown(job, before) for job in self.queue
        )
        while self._ends and self._ends[0][0] <= self.now:
            _, job = heapq.heappop(self._ends)
            self.free += self.size[job]
            self._expected.remove((self.start[job] + self.requested[job], job))
        self._admit()
        return cost

    def slowdowns(self) -> list[float]:
        """Return the bounded slowdown of every job; NaN where it has not started."""
        return [self._slowdown(job, start) for job, start in enumerate(self.start)]

    def submitted_since(self, time: float) -> int:
        """Return how many jobs were submitted after a time, up to now."""
        return self.arrived - bisect_right(self.submit, time, 0, self.arrived)

    def get_state(self) -> State:
        """Return the state, without what the jobs determine."""
        return {
            "now": self.now,
            "arrived": self.arrived,
            "queue": np.array(self.queue, np.int64),
            "start": np.array(self.start),
            "running": np.array([job for _, job in self._ends], np.int64),
        }

    def set_state(self, state: State) -> None:
        """Restore what `get_state` of a cluster with the same jobs returned."""
        self.now, self.arrived = float(state["now"]), int(state["arrived"])
        self.queue, self.start = state["queue"].tolist(), state["start"].tolist()
        running = state["running"].tolist()
        self.free = self.processors - sum(self.size[job] for job in running)
        self._ends = [(self.start[job] + self._run[job], job) for job in running]  # still a heap
        self._expected = sorted((self.start[job] + self.requested[job], job) for job in running)

    def _admit(self) -> None:
        while self.arrived < len(self.submit) and self.submit[self.arrived] <= self.now:
            self.queue.append(self.arrived)
            self.arrived += 1

    def _slowdown(self, job: int, start: float) -> float:
        run = self._run[job]
        slowdown = (start - self.submit[job] + run) / max(run, THRESHOLD)
        return 1.0 if slowdown < 1.0 else slowdown


def simulate(rule: Rule, jobs: Sequence[Job], processors: int) -> Cluster:
    """Schedule jobs by a rule and return the cluster after the last start.

    Raises:
        EnvError: The rule starts a job that it may not, or waits forever.
    """
    cluster = Cluster(jobs, processors)
    while cluster.queue or cluster.arrived < len(cluster.submit):
        job = rule(cluster) if cluster.queue else None
        if job is not None:
            cluster.begin(job)
        elif cluster.can_wait():
            cluster.advance()
        else:
            raise EnvError(f"The rule waits with {len(cluster.queue)} jobs and an empty cluster.")
    return cluster


# ------------------------------------------------------------------ orders: the lowest goes first


def by_arrival(cluster: Cluster, job: int) -> float:
    """Order by submission: first come, first served."""
    return job


def by_requested(cluster: Cluster, job: int) -> float:
    """Order by estimated run time: shortest job first."""
    return cluster.requested[job]


def by_wfp3(cluster: Cluster, job: int) -> float:
    """Order by -(wait / requested)^3 size, which favours old, short and large jobs."""
    wait = cluster.now - cluster.submit[job]
    return -((wait / cluster.requested[job]) ** 3) * cluster.size[job]


def by_unicep(cluster: Cluster, job: int) -> float:
    """Order by -wait / (log2(size) requested), which favours old, small and short jobs."""
    wait = cluster.now - cluster.submit[job]
    return -wait / (math.log2(max(cluster.size[job], 2)) * cluster.requested[job])


def by_f1(cluster: Cluster, job: int) -> float:
    """Order by log10(requested) size + 870 log10(submit), fitted to simulations.

    From Carastan-Santos and de Camargo (2017). The submit time counts from the first job's.
    """
    age = cluster.submit[job] - cluster.submit[0]
    return math.log10(max(cluster.requested[job], 1.0)) * cluster.size[job] + 870 * math.log10(
        max(age, 1.0)
    )


# ------------------------------------------------------------------ rules


def strict(score: Score) -> Rule:
    """Start jobs in an order; if the first does not fit, all wait."""

    def rule(cluster: Cluster) -> int | None:
        job = min(cluster.queue, key=lambda j: (score(cluster, j), j))
        return job if cluster.size[job] <= cluster.free else None

    return rule


def greedy(score: Score) -> Rule:
    """Start the first in an order among the jobs that fit; large ones may wait for long."""

    def rule(cluster: Cluster) -> int | None:
        fitting = [j for j in cluster.queue if cluster.size[j] <= cluster.free]
        return min(fitting, key=lambda j: (score(cluster, j), j)) if fitting else None

    return rule


def held_back(reserve: float, limit: float) -> Rule:
    """Start the shortest that fits, but keep a reserve of processors free of long jobs.

    This is what sites do that reserve nodes for short jobs.

    Args:
        reserve: Share of the processors that jobs beyond the limit leave idle, unless the cluster
            is empty.
        limit: Estimate, in seconds, up to which a job may use the reserve.
    """
    shortest = greedy(by_requested)

    def rule(cluster: Cluster) -> int | None:
        job = shortest(cluster)
        if job is None or cluster.requested[job] <= limit or not cluster.running:
            return job
        kept = reserve * cluster.processors
        long = [j for j in cluster.queue if cluster.size[j] <= cluster.free - kept]
        return min(long, key=lambda j: (cluster.requested[j], j)) if long else None

    return rule


def backfilling(score: Score) -> Rule:
    """Start jobs in an order, and let others pass that do not delay the first (EASY).

    When the first does not fit, it is promised the time at which, by the estimates, enough
    processors will be free. Another job may start now if it ends before that, or if it needs only
    processors that the first leaves over (Lifka 1995; Mu'alem and Feitelson 2001).
    """

    def rule(cluster: Cluster) -> int | None:
        order = sorted(cluster.queue, key=lambda j: (score(cluster, j), j))
        head, free = order[0], cluster.free
        if cluster.size[head] <= free:
            return head
        shadow, spare = promise(cluster, head)
        for job in order[1:]:
            size = cluster.size[job]
            ends_before = cluster.now + cluster.requested[job] <= shadow
            if size <= free and (ends_before or size <= spare):
                return job
        return None

    return rule


def promise(cluster: Cluster, job: int) -> tuple[float, int]:
    """Return when enough processors will be free for a job, by the estimates, and how many more.

    Jobs that run longer than estimated are expected to end immediately.
    """
    free, need = cluster.free, cluster.size[job]
    shadow = cluster.now
    for end, other in cluster.expected_ends:
        if free >= need and end > shadow:
            break
        free += cluster.size[other]
        shadow = max(end, cluster.now)
    return shadow, free - need


BASELINES: dict[str, Rule] = {
    "FCFS": strict(by_arrival),
    "SJF": strict(by_requested),
    "EASY": backfilling(by_arrival),
    "EASY, SJF order": backfilling(by_requested),
    "EASY, F1 order": backfilling(by_f1),
    "EASY, WFP3 order": backfilling(by_wfp3),
    "EASY, UNICEP order": backfilling(by_unicep),
    "shortest that fits": greedy(by_requested),
}
